"""Steps in a history's folder that no journal names, so that every call leaves them out."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from typing import NamedTuple

from .. import _core
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats.files import open_regular, reading
from ..marks import MANIFEST, METADATA_SUFFIX, STEP_FOLDER, STEP_MARK

__all__ = [
    "Unnamed",
    "error_of_no_step",
    "error_of_unnamed",
    "folders_of_unnamed",
    "unnamed_of",
    "unnamed_steps",
]

_DIFFERENCE = re.compile(r"(rank-\d{5,})(?:\.\d+)?\.twr")
_DIFFERENCE_MAGIC = b"TWRDIFF\n"
_OF_A_RANK = re.compile(r"rank-\d{5,}(?:\.\d+)?\.tw[rm]")
_HOW_UNNAMED = "the journal was cut or is an older copy, or the folder is a copy"
_MOST_NAMED = 8  # folders in one message
_HEAD = 128  # bytes of a difference's header: spec/record.md


class Unnamed(NamedTuple):
    """Steps that are there and that no journal names: see `unnamed_steps`."""

    problems: list[str]  # one line for each journal that is missing or empty
    notes: list[str]  # one line for each other step
    whole: list[str]  # the folders of whole steps among those of the notes


def unnamed_steps(path: str, history: _core.History) -> Unnamed:
    """Looks for steps of a history, or of a rank's part of one, that no journal names.

    A writer marks a folder before its first file, until the journal names the step. So a whole step without
    that mark was committed once: a run that was killed leaves none. Steps of a run at work are passed over.
    """
    steps = _core.unnamed_steps(path)
    lost = {step.journal: step for step in reversed(steps) if step.lost}
    problems = [
        f"{journal}: {'damaged: its first line is incomplete' if os.path.lexists(journal) else 'missing'}, "
        f"but files of step {step.step} of rank {step.rank} exist, which it should name: restore it from a copy"
        for journal, step in sorted(lost.items())
    ]
    notes = [
        f"{os.path.join(path, step.folder)}: not checked: the journal of rank {step.rank} does not name its files there: "
        f"{_HOW_UNNAMED}"
        for step in steps
        if not step.lost
    ]
    folders = {step.folder for step in steps if not step.lost}
    said = {step.folder for step in steps}
    if history.record is not None:
        packed = _packed_unnamed(path, history)
        notes += [
            f"{os.path.join(path, folder)}: not checked: no journal names it: its line was cut, or was not written yet"
            for folder in packed
        ]
        folders.update(folder for folder, whole in packed.items() if whole)
        said |= set(packed)
    notes += [
        f"{os.path.join(path, folder)}: not checked: no journal names it, and it has no mark of this history: its line was "
        "cut, and a copy left hidden files out, or another program made it"
        for folder in _unmarked(path, history)
        if folder not in said
    ]
    attempts: dict[str, int] = {}
    for step in history.steps:
        if found := STEP_FOLDER.fullmatch(step.folder):
            attempts[found[1]] = int(found[2] or 0)
    whole = []
    for folder in sorted(folders):
        found = STEP_FOLDER.fullmatch(folder)
        # Where a later attempt at the step is named, this one is superseded.
        if found is None or attempts.get(found[1], -1) <= int(found[2] or 0):
            whole.append(os.path.join(path, folder))
    return Unnamed(problems, notes, whole)


def _unmarked(path: str, history: _core.History) -> list[str]:
    """Folders of steps with files of ranks that no journal names, and that have no mark of a history."""
    named = {step.folder for step in history.steps}
    found = []
    for entry in os.scandir(path):
        if (
            entry.name in named
            or not STEP_FOLDER.fullmatch(entry.name)
            or not entry.is_dir(follow_symlinks=False)
        ):
            continue
        try:
            names = os.listdir(entry.path)
        except FileNotFoundError:  # the run removed the step just now
            continue
        if any(map(_OF_A_RANK.fullmatch, names)) and not any(map(STEP_MARK.fullmatch, names)):
            found.append(entry.name)
    return sorted(found)


def error_of_unnamed(
    path: str, history: _core.History, undone: str, fix: str, label: str | None = None
) -> TwinrunError | None:
    """The error of a call that leaves out whole steps which no journal names; None if there are none.

    undone: what was not done with them, as 'not restored'. label: of the history, where `path` is a copy.
    """
    found = unnamed_steps(path, history)
    if found.problems:
        return DamagedFile(found.problems[0])
    if not found.whole:
        return None
    names = [os.path.basename(folder) for folder in found.whole]
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return DamagedFile(
        f"{shown} {undone}: no journal names {'it' if len(names) == 1 else 'them'}: {_HOW_UNNAMED}",
        where=label or path,
        fix=fix,
    )


def unnamed_of(path: str, history: _core.History, label: str | None = None) -> TwinrunError | None:
    """What to say of whole steps in a history's folder that no journal names; None where there are none.

    label: of the history, where `path` is a copy.
    """
    if not _others(path, history):
        return None
    return error_of_unnamed(path, history, "left out", "bring the journal back from a copy", label)


def error_of_no_step(path: str, history: _core.History, step: int) -> TwinrunError:
    """What to say where a history is asked for a step that it does not have."""
    for folder in folders_of_unnamed(path, history):
        found = STEP_FOLDER.fullmatch(folder)
        if found is not None and int(found[1]) == step:
            return DamagedFile(
                f"{folder} was not read: no journal names it: {_HOW_UNNAMED}",
                where=path,
                fix="bring the journal back from a copy",
            )
    if step in history.incomplete:
        return MissingFile(f"step {step} is incomplete: not every rank committed it", where=path)
    return MissingFile(f"has no step {step}", where=path, fix="twinrun log lists the steps")


def folders_of_unnamed(path: str, history: _core.History) -> list[str]:
    """The names of folders of whole steps that no journal names."""
    return (
        [os.path.basename(one) for one in unnamed_steps(path, history).whole]
        if _others(path, history)
        else []
    )


def _others(path: str, history: _core.History) -> bool:
    """Whether there is any folder of a step that no journal names. In the usual case nothing is opened."""
    named = {step.folder for step in history.steps}
    with os.scandir(path) as entries:
        return any(e.name.startswith("step-") and e.name not in named for e in entries)


def _packed_unnamed(path: str, history: _core.History) -> dict[str, bool]:
    """Folders of steps of other programs' files that no journal names, ascending; True: the step is whole.

    Such steps have no metadata, by which the core finds those of histories.
    """
    named = {step.folder for step in history.steps}
    folders = [
        e for e in os.scandir(path) if STEP_FOLDER.fullmatch(e.name) and e.is_dir(follow_symlinks=False)
    ]
    found = {}
    for folder in sorted(folders, key=lambda entry: entry.name):
        names = set(os.listdir(folder.path)) if folder.name not in named else set()
        ranks: dict[str, list[str]] = {}
        for name in names:
            if (file := _DIFFERENCE.fullmatch(name)) and file[1] + METADATA_SUFFIX not in names:
                ranks.setdefault(file[1], []).append(os.path.join(folder.path, name))
        # A step that was replaced may have left a difference there that later steps need.
        for rank in [rank for rank in ranks if _is_mentioned(path, history, folder.name, rank)]:
            del ranks[rank]
        if ranks:
            found[folder.name] = any(
                any(map(_is_difference, files)) and _was_committed(path, history, folder.name, rank)
                for rank, files in ranks.items()
            )
    return found


def _is_mentioned(path: str, history: _core.History, folder: str, rank: str) -> bool:
    """Whether the journal of this rank has a line that names a step's folder, or a file in it."""
    journal = os.path.join(path, MANIFEST if history.ranks == 1 else rank + ".jsonl")
    with reading(path):
        try:
            with open(journal, "rb") as file:
                return any(folder.encode() in line and _mentions(_whole_line(line), folder) for line in file)
        except FileNotFoundError:
            return False


def _is_difference(path: str) -> bool:
    """Whether a file has the sealed header of a difference, and the size that this says."""
    try:
        file, size = open_regular(path)
    except FormatError:
        return False
    with file:
        head = file.read(_HEAD)
    if len(head) < _HEAD or not head.startswith(_DIFFERENCE_MAGIC):
        return False
    offset, index = struct.unpack_from("<QQ", head, 24)
    return offset + index == size and struct.unpack_from("<Q", head, 120)[0] == _core.xxh3(head[:120])


def _was_committed(path: str, history: _core.History, folder: str, rank: str) -> bool:
    """Whether a step's folder must have been named by the journal of this rank once, and is not any more."""
    begun = os.path.join(path, folder, rank + ".begun")
    journal = os.path.join(path, MANIFEST if history.ranks == 1 else rank + ".jsonl")
    with reading(path):
        with open(os.path.join(path, MANIFEST), "rb") as manifest:
            own = _whole_line(manifest.readline())
        mark = f".twinrun-{own.get('id')}"
        if os.path.lexists(begun) or not os.path.lexists(os.path.join(path, folder, mark)):
            return False
        if _is_written_now(journal):
            return False
        # Again: a run that has ended since may have committed the step.
        if _is_mentioned(path, history, folder, rank):
            return False
        return os.path.isdir(os.path.join(path, folder)) and not os.path.lexists(begun)


def _whole_line(line: bytes) -> dict[str, object]:
    """The object of a line of a journal; an empty one if the line was cut or is damaged."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _mentions(line: dict[str, object], folder: str) -> bool:
    """Whether a line of a journal names the folder of a step, or a file in it."""
    moved = line.get("moved")
    files = [line.get("file"), *(m.get("file") for m in (moved if isinstance(moved, list) else []))]
    return line.get("folder") == folder or any(str(file).startswith(folder + "/") for file in files)


def _is_written_now(journal: str) -> bool:
    """Whether a run is writing this journal, as far as its lock shows. On storage without locks: False."""
    try:
        opened = os.open(journal, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(opened)
    return False
