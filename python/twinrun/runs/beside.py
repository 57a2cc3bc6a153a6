"""Files in a history's folder that are not the history's: they are neither compared nor packed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import _core
from ..formats.files import is_own, reading
from ..marks import JOURNAL, MANIFEST, STEP_FOLDER, STEP_MARK, is_journal

__all__ = ["beside_note", "names_beside"]

_LEFTOVERS = "step-leftovers"  # of a record: spec/history.md
_MOST_NAMED = 3


def names_beside(path: str, history: _core.History) -> list[str]:
    """The names of files and folders beside a history's own, sorted.

    Steps of this or of another history, and journals, are not among them: `unnamed_of` and
    `entries_of_others` tell of these. The folders of steps are not looked into.
    """
    named = {step.folder for step in history.steps}
    with reading(path), os.scandir(path) as entries:
        return sorted(
            e.name
            for e in entries
            if e.name != MANIFEST and e.name not in named and not _is_of_a_history(e, history.ranks)
        )


def _is_of_a_history(entry: os.DirEntry, ranks: int) -> bool:
    if found := JOURNAL.fullmatch(entry.name):
        return int(found[1]) < ranks or is_journal(entry.path)
    if entry.name == _LEFTOVERS:
        return entry.is_dir()
    if STEP_FOLDER.fullmatch(entry.name) and entry.is_dir():
        try:
            names = os.listdir(entry.path)
        except OSError:  # the run removed the step just now
            return True
        # What is left of a step that was removed is empty; of one that a run begins, marked.
        return not names or any(STEP_MARK.fullmatch(n) or n.endswith(".begun") for n in names)
    return is_own(entry.path)


def beside_note(names: Sequence[str]) -> str:
    """A note on what `names_beside` found; "" if there is nothing."""
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    shown = ", ".join(names[:_MOST_NAMED]) + more
    if len(names) == 1:
        return f"1 other file or folder beside the history is not compared: {shown}; name it to compare it"
    return f"{len(names)} other files and folders beside the history are not compared: {shown}; name them to compare them"
