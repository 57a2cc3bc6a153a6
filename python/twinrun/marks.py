"""How twinrun recognises its own files: names, suffixes, first bytes."""

from __future__ import annotations

import contextlib
import os
import re

__all__ = [
    "GOLDEN_MANIFEST",
    "JOURNAL",
    "JOURNAL_KEYS",
    "MANIFEST",
    "METADATA_MAGIC",
    "METADATA_SUFFIX",
    "NOISE",
    "STEP_FOLDER",
    "STEP_MARK",
    "STUDY_FILES",
    "STUDY_FOLDERS",
    "STUDY_KEYS",
    "TRACE_EVENTS",
    "VALUES_MAGIC",
    "begins_history",
    "has_manifest",
    "is_journal",
]

MANIFEST = "manifest.jsonl"  # of a history
GOLDEN_MANIFEST = "golden.json"
METADATA_MAGIC = b"\x89TWM\r\n\x1a\n"  # spec/metadata.md
METADATA_SUFFIX = ".twm"
VALUES_MAGIC = b"\x89TWV\r\n\x1a\n"  # spec/values.md
TRACE_EVENTS = "trace.events"  # a field of a step that is part of a trace: spec/trace.md
STEP_FOLDER = re.compile(r"step-(-?\d{10,})(?:\.(\d+))?")  # of a history: step, attempt
STEP_MARK = re.compile(r"\.twinrun-[0-9a-f]{32}")  # a file that says whose a step's folder is

# Files of a study's folder: names, and keys that every line of them has. Files of other programs do
# not have all of them.
STUDY_FILES = ("study.toml", "here", "plan.jsonl", "tasks.jsonl", "warmup.jsonl")
STUDY_FOLDERS = ("environments", "output", "results", "noise")
_PLANNED = frozenset({"task", "block", "order", "factors", "seed", "repetition"})
STUDY_KEYS = {
    "plan.jsonl": _PLANNED,
    "tasks.jsonl": _PLANNED | {"attempt", "status"},
    "warmup.jsonl": _PLANNED | {"attempt", "status"},
}
JOURNAL_KEYS = frozenset(
    {"kind", "version", "study", "conditions"}
)  # of the first line of an I/O study's journal
NOISE = "noise report"  # the kind of a document with a measurement of noise

JOURNAL = re.compile(r"rank-(\d{5,})\.jsonl")  # of a history of several ranks: spec/history.md
_MOST_LINE = 16 << 20  # bytes: longer first lines are not looked into
# Keys of the first line of a manifest, all of which it has: one that is damaged keeps most of them.
_KEYS = (b'"atol"', b'"chunk_bytes"', b'"digest"', b'"keep_data"', b'"residue_bits"', b'"rtol"', b'"xxh3"')
_ENOUGH_KEYS = 3  # others' files may have one or two of these words


def begins_history(manifest: str | os.PathLike[str]) -> bool:
    """Whether the first line of a file is that of a history's manifest, as it is where nothing is damaged."""
    said = _parsed(_first_line(manifest))
    return isinstance(said, dict) and "twinrun_history" in said


def is_journal(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the name and the beginning of the journal of a rank, of whichever history."""
    named = JOURNAL.fullmatch(os.path.basename(path)) is not None
    return named and b'"twinrun_journal"' in _first_line(path)


def has_manifest(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has the manifest of a history, which may be damaged.

    Other programs have files of this name too: their first line is whole JSON, nothing in it is of a
    history, and no files of a history lie beside it. What is not sure to be theirs counts as a history, so
    that damage is told.
    """
    manifest = os.path.join(folder, MANIFEST)
    if not os.path.isfile(manifest):
        return False
    line = _first_line(manifest)
    if b'"twinrun_' in line or sum(key in line for key in _KEYS) >= _ENOUGH_KEYS or _parsed(line) is None:
        return True
    return _has_files_of_history(folder)


def _has_files_of_history(folder: str | os.PathLike[str]) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if is_journal(path):
                return True
            if STEP_FOLDER.fullmatch(name):
                with contextlib.suppress(OSError):
                    if any(map(STEP_MARK.fullmatch, os.listdir(path))):
                        return True
    return False


def _first_line(path: str | os.PathLike[str]) -> bytes:
    """The first line; nothing of it where it is too long, or the file cannot be read."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):  # reading a pipe would block
            with open(path, "rb") as file:
                line = file.readline(_MOST_LINE)
                return line if len(line) < _MOST_LINE else b""
    return b""


def _parsed(line: bytes) -> object:
    """A line as JSON; None where it is none, or null."""
    import json  # most commands do not need it

    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(line)
    return None
