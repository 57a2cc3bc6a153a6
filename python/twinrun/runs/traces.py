"""Whether a path is a trace. Loads little: every comparison asks."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable, TwinrunError
from ..marks import METADATA_SUFFIX, TRACE_EVENTS, has_manifest

if TYPE_CHECKING:
    from .subject import Subject

__all__ = ["has_traced_ranks", "histories_of_ranks", "holds_history", "is_trace", "is_traced"]

_RANK = re.compile(r"rank([0-9]{1,9})")


def _rank_folders(path: str) -> dict[int, str]:
    """{rank: folder} of a run of several processes that each wrote a history."""
    found: dict[int, str] = {}
    try:
        names = sorted(name for name in os.listdir(path) if name.startswith("rank"))
    except OSError:
        return {}
    for name in names:
        matched = _RANK.fullmatch(name)
        if matched is None:
            continue
        folder = os.path.join(path, name)
        if has_manifest(folder):
            if int(matched[1]) in found:
                raise Incomparable(f"two folders of rank {int(matched[1])}", where=path)
            found[int(matched[1])] = folder
    return found


def histories_of_ranks(path: str) -> dict[int, str]:
    """{rank: folder} of a history, or of a folder with a history of each rank."""
    if has_manifest(path):
        return {0: path}
    return _rank_folders(path)


def _first_metadata(folder: str) -> str | None:
    """A metadata file of the first step, without opening the history; None where its steps are packed."""
    with contextlib.suppress(OSError):
        first = min((name for name in os.listdir(folder) if name.startswith("step-")), default=None)
        if first is not None:
            names = os.listdir(os.path.join(folder, first))
            found = min((name for name in names if name.endswith(METADATA_SUFFIX)), default=None)
            return None if found is None else os.path.join(folder, first, found)
    return None


def is_trace(path: object) -> bool:
    """Whether a path is a trace: a history whose first step has events, or folders of ranks with such."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    if "\0" in os.fsdecode(path):
        return False
    return _first_is_traced(histories_of_ranks(os.fspath(path)))


def _first_is_traced(folders: dict[int, str]) -> bool:
    for folder in list(folders.values())[:1]:
        try:
            first = _first_metadata(folder)
            if first is not None:
                return _core.Metadata(first).has_field(TRACE_EVENTS)
            from .histories import HistorySubject

            subject = HistorySubject(folder)
            return bool(subject.places) and subject.metadata(subject.places[0]).has_field(TRACE_EVENTS)
        except TwinrunError:  # who compares the history says what is wrong
            return False
    return False


def holds_history(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with the manifest of a history."""
    return has_manifest(os.fsdecode(path))


def has_traced_ranks(path: str | os.PathLike[str]) -> bool:
    """As `is_trace`, of what holds no history itself."""
    return os.path.isdir(path) and _first_is_traced(_rank_folders(os.fspath(path)))


def is_traced(run: Subject) -> bool:
    """As `is_trace`, of a history that is open: its folders need not be listed."""
    from .histories import HistorySubject

    if not isinstance(run, HistorySubject):
        return False
    if not run.places:
        return is_trace(run.label)
    try:
        return run.metadata(run.places[0]).has_field(TRACE_EVENTS)
    except TwinrunError:  # who compares the history says what is wrong
        return False
