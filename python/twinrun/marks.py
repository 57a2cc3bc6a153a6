"""How twinrun recognises its own files: names, suffixes, first bytes."""

from __future__ import annotations

import re

__all__ = [
    "GOLDEN_MANIFEST",
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
