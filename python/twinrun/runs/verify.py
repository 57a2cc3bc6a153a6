"""Verification: checks every checksum of a history, or of files with metadata."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .. import _core
from ..arguments import MEMORY, check_settings, checked_path, own_source
from ..errors import DamagedFile, FormatError, MissingFile, Stale, TwinrunError
from ..formats.files import is_metadata, open_regular, reading
from ..formats.folder import is_history
from ..marks import GOLDEN_MANIFEST, MANIFEST, METADATA_SUFFIX, STEP_FOLDER, STEP_MARK
from .fields import FieldRef, refs_of_metadata
from .histories import Journals, others_note
from .metadata import check_layout, metadata_path, reopening
from .unnamed import unnamed_steps

__all__ = ["Verified", "damage_of_step", "damaged_metadata", "verify"]

_PADDING_AT_ONCE = 1 << 20


class _Found(NamedTuple):
    problems: list[str]
    files: int


class Verified(_Found):
    """The result of `verify`: (problems, files). It is true if no problem was found, nor an unnamed step.

    >>> with twinrun.Run("runs/a") as run:
    ...     facts = run.capture(0, {"x": np.zeros(100)})
    >>> bool(twinrun.verify("runs/a"))
    True

    Attributes
    ----------
    problems : list of str
        One line for each damaged or missing file or part, with what to do.
    files : int
        How many files were checked.
    notes : list of str
        One line for each thing that was not checked.
    unnamed : list of str
        Folders of whole steps that no journal names, so that they were not checked. Each has a note too.
    """

    notes: list[str]
    unnamed: list[str]

    def __new__(
        cls,
        problems: list[str],
        files: int,
        notes: list[str] | None = None,
        unnamed: list[str] | None = None,
    ) -> Verified:
        made = super().__new__(cls, problems, files)
        made.notes = notes or []
        made.unnamed = unnamed or []
        return made

    def __bool__(self) -> bool:
        return not self.problems and not self.unnamed


def _verify_metadata(metadata: _core.Metadata, refs: list[FieldRef], threads: int) -> list[str]:
    """Problems of a metadata file, and of the elements of fields that have data."""
    try:
        metadata.verify()
    except TwinrunError as e:
        return [str(e)]
    problems = []
    for ref in refs:
        try:
            source = ref.source()
            changed = (
                [] if source is None else _core.changed_parts(metadata, ref.metadata_field, source, threads)
            )
        except TwinrunError as e:
            problems.append(str(e))
            continue
        if changed:
            where = ref.extents[0].path if ref.extents else ref.where
            problems.append(
                f"{where}: damaged: field {ref.name!r}: {len(changed)} of its 1 MiB parts changed, the first is part "
                f"{changed[0]}: restore it"
            )
    return problems


def _verify_padding(data: str, extents: list[tuple[int, int]], part: tuple[int, int]) -> list[str]:
    """Checks that the bytes between and after the fields of a data file are zero. Returns problems.

    extents: (begin, end) of the fields, ascending. part: (begin, end) of the rank's part of the file.
    """
    problems = []
    end, last = part
    with reading(data), open(data, "rb") as file:
        for begin, next_end in [*extents, (last, last)]:
            while end < begin:
                file.seek(end)
                read = file.read(min(begin - end, _PADDING_AT_ONCE))
                if not read or any(read):
                    problems.append(
                        f"{data}: damaged: its padding from byte {end} on is not zero: restore it"
                    )
                    break
                end += len(read)
            end = max(end, next_end)
    return problems


def _verify_step(folder: str, rank: _core.RankFiles, threads: int) -> tuple[list[str], int]:
    """Checks the files of a rank and step once. Returns (problems, number of files)."""
    if not rank.metadata:  # packed files of another program, which are checked with the record
        return [], 1
    name = os.path.join(folder, rank.metadata)
    try:
        metadata = _core.Metadata(name)
        if metadata.bytes != rank.metadata_bytes or metadata.header_xxh3() != rank.header_xxh3:
            raise DamagedFile("is not the file that the manifest names", where=name)
    except TwinrunError as e:
        return [str(e)], 1
    # There is no data file if the data was never kept or dropped, or if it is in the record, which
    # is checked separately.
    if not rank.data or rank.difference is not None:
        return _verify_metadata(metadata, [], threads), 1
    data = os.path.join(folder, rank.data)
    if not os.path.exists(data):
        return [f"{data}: missing: restore it"], 2
    size = os.path.getsize(data)
    if size != rank.file_bytes:
        return [f"{data}: damaged: {size} bytes, the manifest says {rank.file_bytes}: restore it"], 2
    refs = refs_of_metadata(metadata)
    problems = _verify_metadata(metadata, refs, threads)
    ours = os.path.realpath(data)
    extents = [
        (e.offset, e.offset + e.stride * e.count)
        for ref in refs
        for e in ref.extents or ()
        if os.path.realpath(e.path) == ours
    ]
    begin, end = rank.offset, rank.offset + rank.data_bytes
    outside = [e for e in extents if e[0] < begin or e[1] > end]
    if outside:
        problems.append(
            f"{name}: damaged: it refers to bytes {outside[0]} of {data}, but this rank has {(begin, end)}: restore it"
        )
    else:
        problems += _verify_padding(data, sorted(extents), (begin, end))
    return problems, 2


def damage_of_step(path: str, step: int, threads: int = 1) -> str:
    """What is wrong with the files of a committed step, whose metadata has checksums of all; "": nothing."""
    for one in _core.open_history(path).steps:
        if one.step == step:
            for rank in one.ranks:
                problems, _ = _verify_step(os.path.join(path, one.folder), rank, threads)
                if problems:
                    return problems[0]
    return ""


def _verify_place(
    path: str, step: int, folder: str, rank: _core.RankFiles, threads: int, journals: Journals
) -> tuple[list[str], int]:
    """Checks the files of a rank and step. Returns (problems, number of files).

    A run may be writing the history. After a problem the journals are read again: if the run has replaced the
    files, the new ones are checked; if it has removed the step, there is no problem.
    """
    while True:
        try:
            problems, files = _verify_step(os.path.join(path, folder), rank, threads)
        except TwinrunError as e:
            problems, files = [str(e)], 2
        except FileNotFoundError as e:
            problems, files = [f"{e.filename}: missing: restore it"], 2
        if not problems:
            return problems, files
        now = journals.entries().get((step, rank.rank))
        if now == (folder, rank):
            return problems, files
        if now is None:
            return [], 0
        folder, rank = now


def _check_record(
    path: str, rank: int, threads: int, memory: int, journals: Journals
) -> list[_core.RecordProblem]:
    """Problems of a rank's record.

    Checks again if the journals have changed, because a run may add differences meanwhile, and `compact` may
    move them.
    """
    while True:
        before = journals.written()
        problems = _core.check_record(path, rank, threads, memory)
        if not problems or journals.written() == before:
            return problems


def _verify_recorded(
    path: str, history: _core.History, rank: int, broken: set[int], threads: int, journals: Journals
) -> list[str]:
    """Checks that the record of a rank holds what the metadata of its steps says. Returns problems.

    broken: steps that cannot be restored. A difference whose own checksums are right may be that of another
    run.
    """
    record = _core.open_record(path, rank)
    problems = []
    for step in history.steps:
        for own in step.ranks:
            if own.rank != rank or own.difference is None or not own.metadata or step.step in broken:
                continue
            folder = os.path.join(path, step.folder)
            try:
                metadata = _core.Metadata(os.path.join(folder, own.metadata))
            except TwinrunError:  # which is a problem already
                continue
            try:
                if metadata.bytes_elsewhere:  # residues, which are in the record
                    metadata.read_residues_from(record, own.difference)
                    metadata.verify()
                found = _changed_fields(metadata, record, step.step, threads)
            except TwinrunError as e:
                found = [str(e)]
            # a run may have removed or replaced the step meanwhile
            if found and journals.entries().get((step.step, rank)) == (step.folder, own):
                problems += [f"{os.path.join(folder, own.data)}: {what}" for what in found]
    return problems


def _changed_fields(
    metadata: _core.Metadata, record: _core.RecordStore, step: int, threads: int
) -> list[str]:
    """What is wrong with the fields of a step of a record, by its metadata."""
    problems = []
    for ref in refs_of_metadata(metadata):
        if not ref.items:
            continue
        ref.extents, ref.recorded = None, (record, step)
        if _core.changed_parts(metadata, ref.metadata_field, ref.need_source(), threads):
            problems.append(
                f"damaged: does not give the field {ref.name!r} that {metadata.path} describes: one of them was changed, "
                "or is of another run: restore it"
            )
    return problems


def _verify_history(path: str, threads: int, memory: int) -> Verified:
    """Checks a history."""
    journals = Journals(path)
    history = _core.open_history(path)
    unnamed = unnamed_steps(path, history)
    problems: list[str] = []
    files = 1
    if history.ranks > 1 and history.local_part is None:
        existing = {name for name in os.listdir(path) if re.fullmatch(r"rank-\d{5,}\.jsonl", name)}
        files += len(existing)
        # Every rank creates its journal before any rank captures.
        if len(existing) < history.ranks and (history.steps or history.incomplete) and not unnamed.problems:
            first = next(n for r in itertools.count() if (n := f"rank-{r:05}.jsonl") not in existing)
            more = history.ranks - len(existing) - 1
            also = f", and of {more} more ranks" if more else ""
            problems.append(f"{os.path.join(path, first)}: missing{also}: restore it")
    elif history.ranks > 1:
        files += 1
    for step in history.steps:
        for own in step.ranks:
            found, checked = _verify_place(path, step.step, step.folder, own, threads, journals)
            problems += found
            files += checked
    if history.record is not None:
        ranks = [history.local_part] if history.local_part is not None else range(history.ranks)
        for rank in ranks:
            broken: set[int] = set()
            for problem in _check_record(path, rank, threads or os.cpu_count() or 1, memory, journals):
                steps = problem.steps
                broken.update(steps)
                lost = ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")
                needed_by = f": steps that need it: {lost}" if steps else ": no step needs the damaged part"
                problems.append(f"{problem.what}{needed_by}")
            problems += _verify_recorded(path, history, rank, broken, threads, journals)
            files += sum(1 for s in history.steps for r in s.ranks if r.difference is not None)
    others = others_note(_core.entries_of_others(path))
    if others:
        problems.append(f"{path}: {others}")
    return Verified(problems + unnamed.problems, files, unnamed.notes, unnamed.whole)


def damaged_metadata(
    path: str, chosen: Callable[[list[int]], Iterable[int]], threads: int
) -> tuple[int, str] | None:
    """(step, problem) of the first step of a history with a record whose metadata is damaged.

    chosen: `chosen(steps)` returns the steps to check. None if there is no problem, no history or no record.
    The differences in the record are not checked.
    """
    if not is_history(path):
        return None
    journals = Journals(path)
    history = _core.open_history(path)
    if history.record is None:
        return None
    selected = {*chosen(sorted(step.step for step in history.steps))}
    for step in history.steps:
        for rank in step.ranks if step.step in selected else ():
            problems, _ = _verify_place(path, step.step, step.folder, rank, threads, journals)
            if problems:
                return step.step, problems[0]
    return None


def _parts(path: str) -> list[str]:
    """The folders of ranks on a node-local tier."""
    with os.scandir(path) as entries:
        return sorted(e.path for e in entries if e.name.startswith("rank-") and is_history(e.path))


def verify(path: str | os.PathLike[str], *, threads: int = 0, memory: int = MEMORY) -> Verified:
    """Checks every checksum of a history, or of files and their metadata.

    >>> with twinrun.Run("runs/a") as run:
    ...     facts = run.capture(0, {"x": np.zeros(1000)})
    >>> twinrun.verify("runs/a").problems
    []

    Parameters
    ----------
    path : str or path
        A history, also one on a node-local tier (the folder of one rank, or of all); a folder; a file with
        metadata beside it; or a metadata file.
    threads : int, default 0
        Number of threads; 0 takes all cores.
    memory : int, default 1 GiB
        Most bytes for reading a record, beside its index.

    Returns
    -------
    Verified
        Problems, and how many files were checked. It is true if there is no problem, and no whole step
        that no journal names: then every byte that checksums cover is as it was written. For a history that
        is every byte of every file, except files of steps that were not committed.

    Raises
    ------
    MissingFile
        The path does not exist, or nothing there can be verified.
    DamagedFile
        The manifest of the history cannot be read.
    TwinrunError
        `threads` or `memory` is invalid.

    Notes
    -----
    A run may write the history meanwhile. Files that it removes are not reported.

    Complete files of a step that no journal names are a problem if the rank's journal is missing or empty,
    because every rank creates its journal before its first file. If the journal has its first line, they
    become a note, and the result is not true: the journal was cut or is an older copy, or the folder is a
    copy. Where a later attempt at the step is named, they are a note alone. Files that a killed run did not
    finish are not reported, but in a record of another program's files they are a note. Journals and
    steps of another history than the manifest's are a problem: the manifest was exchanged, or two histories
    were mixed.

    A file .twm in a folder that twinrun did not write is not checked, which becomes a note. A file counts as
    written by twinrun, and as damaged if it cannot be read, if it begins like metadata, if the file that it
    would describe is beside it, or if its folder is that of a step or has golden files.

    Examples
    --------
    >>> with open("runs/a/step-0000000000/rank-00000.data", "r+b") as file:
    ...     _ = file.seek(80), file.write(b"?")
    >>> len(twinrun.verify("runs/a").problems)
    1
    """
    path = own_source(checked_path(path))
    check_settings(threads=threads, memory=memory)
    if not os.path.exists(path):
        raise MissingFile.at(path)
    histories = [] if not os.path.isdir(path) else [path] if is_history(path) else _parts(path)
    if histories:
        found = [_verify_history(p, threads, memory) for p in histories]
        return Verified(
            [problem for part in found for problem in part.problems],
            sum(part.files for part in found),
            [note for part in found for note in part.notes],
            [folder for part in found for folder in part.unnamed],
        )
    targets, others = _metadata_files(path)
    if not targets:
        what = (
            "was not written by twinrun"
            if others == [path]
            else "has no metadata by which it could be verified"
        )
        raise MissingFile(what, where=path, fix="write metadata with 'twinrun index'")
    problems: list[str] = _without_manifest(path) if os.path.isdir(path) else []
    for target in targets:
        try:
            metadata = _core.Metadata(checked_path(target))
            _check_beside(metadata, target)
            for file in metadata.data_files:
                if not os.path.exists(file.path) or os.path.getsize(file.path) != file.bytes:
                    raise Stale("is missing, or its size has changed since it was indexed", where=file.path)
            if metadata.bytes_elsewhere:
                raise DamagedFile(
                    "its residues are not in it: it is truncated, or of a step of a record",
                    where=target,
                    fix="verify the record's folder, or restore the file from a copy",
                )
            with contextlib.ExitStack() as stack:
                problems.extend(_verify_metadata(metadata, _refs(metadata, stack), threads))
        except TwinrunError as e:
            problems.append(str(e))
    notes = [f"{name}: not checked: twinrun did not write it" for name in others]
    return Verified(problems, 2 * len(targets), notes)


def _metadata_files(path: str) -> tuple[list[str], list[str]]:
    """(metadata files for a path and, if it is a folder, in it.

    Other files there with the suffix of metadata).
    """
    found: list[str] = []
    others: list[str] = []
    if not os.path.isdir(path) and path.endswith(METADATA_SUFFIX):
        (found if _is_ours(path, os.listdir(os.path.dirname(path) or ".")) else others).append(path)
    elif os.path.lexists(metadata_path(path)):
        found.append(metadata_path(path))
    for folder, folders, names in os.walk(path):
        for name in sorted(n for n in names if n.endswith(METADATA_SUFFIX)):
            file = os.path.join(folder, name)
            (found if _is_ours(file, [*folders, *names]) else others).append(file)
    return found, others


def _is_ours(path: str, beside: list[str]) -> bool:
    """Whether twinrun wrote a file with the suffix of metadata.

    If its first bytes are damaged, it counts as twinrun's if the file that it describes is beside it, or if
    its folder is that of a step or has golden files. beside: the names in its folder.
    """
    try:
        file, size = open_regular(path)
        file.close()
    except FormatError:
        return os.path.isfile(path)  # a file that cannot be read; opening it reports the error
    if size and is_metadata(path, cut=True):
        return True
    name = os.path.basename(path).removesuffix(METADATA_SUFFIX)
    return name in beside or GOLDEN_MANIFEST in beside or any(map(STEP_MARK.fullmatch, beside))


def _without_manifest(path: str) -> list[str]:
    """Problems for histories without a manifest, which are recognised by the folders of their steps."""
    lost = []
    for folder, folders, names in os.walk(path):
        if STEP_FOLDER.fullmatch(os.path.basename(folder)) and any(
            STEP_MARK.fullmatch(name) for name in names
        ):
            history = os.path.dirname(os.path.abspath(folder))
            if not is_history(history):
                lost.append(os.path.join(history, MANIFEST))
        folders.sort()
    return [f"{name}: missing: restore it from a copy" for name in dict.fromkeys(lost)]


def _check_beside(metadata: _core.Metadata, target: str) -> None:
    """Raises Stale if metadata is beside a file that it does not describe."""
    beside = target.removesuffix(METADATA_SUFFIX)
    if not os.path.isfile(beside) or not metadata.data_files:
        return
    ours = os.path.realpath(beside)
    if all(os.path.realpath(file.path) != ours for file in metadata.data_files):
        raise Stale(
            f"is metadata of {metadata.data_files[0].path}, and {beside} was not checked",
            where=target,
            fix="index it with 'twinrun index'",
        )


def _refs(metadata: _core.Metadata, stack: contextlib.ExitStack) -> list[FieldRef]:
    """The fields of a metadata file. Fields without extents are read by their format's reader, which `stack`
    closes.

    Raises FormatError or Stale as `check_layout`.
    """
    refs = refs_of_metadata(metadata)
    reopen = reopening(metadata)
    if reopen is None:  # metadata of a history, or without data
        return refs
    content = stack.enter_context(reopen())
    fields = check_layout(metadata, refs, content)
    for ref in refs:
        if ref.extents is None:
            ref.reader = fields[ref.name]
    return refs
