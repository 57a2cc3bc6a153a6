"""Traces on storage: the events of each rank and iteration."""

from __future__ import annotations

import contextlib
import os
import re

import numpy as np

from .. import _core
from ..errors import DamagedFile, FormatError, Incomparable, TwinrunError
from ..formats.model import storage_dtype
from ..marks import MANIFEST, METADATA_SUFFIX
from ..runs.events import DIGESTS, EVENTS, Event, decoded_events, is_trace_field
from ..runs.fields import FieldRef
from ..runs.histories import HistorySubject
from ..runs.metadata import check_content
from ..runs.provenance import Provenance, read_provenance
from ..runs.subject import Place

__all__ = ["TraceSubject", "is_trace"]

_RANK = re.compile(r"rank([0-9]{1,9})")


def _rank_folders(path: str) -> dict[int, str]:
    """{rank: folder} of a run of several processes, each of which wrote a history."""
    found: dict[int, str] = {}
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return {}
    for name in names:
        matched = _RANK.fullmatch(name)
        folder = os.path.join(path, name)
        if matched and os.path.isfile(os.path.join(folder, MANIFEST)):
            if int(matched[1]) in found:
                raise Incomparable(f"two folders of rank {int(matched[1])}", where=path)
            found[int(matched[1])] = folder
    return found


def _histories(path: str) -> dict[int, str]:
    if os.path.isfile(os.path.join(path, MANIFEST)):
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
    folders = _histories(os.fspath(path))
    for folder in list(folders.values())[:1]:
        try:
            first = _first_metadata(folder)
            if first is not None:
                return any(f.name == EVENTS for f in _core.Metadata(first).fields)
            subject = HistorySubject(folder)
            places = [p for p in subject.places if p[0] is not None]
            return bool(places) and any(f.name == EVENTS for f in subject.metadata(places[0]).fields)
        except TwinrunError:  # who compares the history says what is wrong
            return False
    return False


def _values(ref: FieldRef) -> np.ndarray:
    if ref.no_data:
        raise FormatError("its data was not kept", where=ref.where, fix="capture the trace with its data")
    raw = _core.read_source(ref.need_source(), 0, ref.items)
    array = raw.view(storage_dtype(ref.dtype))
    shape = ref.user_shape
    return array.reshape(shape[::-1]).T if ref.fortran_order else array.reshape(shape)


class TraceSubject:
    """A trace: the events of every rank and iteration. Raises TwinrunError where a folder is no trace."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.label = os.fspath(path)
        folders = _histories(self.label)
        if not folders:
            # As any other path that is no history: what is wrong is said once.
            folders = {0: self.label}
        self._subjects = {rank: HistorySubject(folder) for rank, folder in folders.items()}
        self.notes = [note for s in self._subjects.values() for note in s.notes]
        self._places: dict[tuple[int, int], tuple[HistorySubject, Place]] = {}
        for folder_rank, subject in self._subjects.items():
            for step, rank in subject.places:
                assert step is not None
                self._places[(folder_rank if len(folders) > 1 else max(rank, folder_rank), step)] = (
                    subject,
                    (step, rank),
                )

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted({rank for rank, _ in self._places})

    def iterations(self, rank: int) -> list[int]:
        """The iterations of a rank, ascending."""
        return sorted(step for r, step in self._places if r == rank)

    @property
    def provenance(self) -> Provenance | None:
        """The conditions of the run."""
        return read_provenance(next(iter(self._subjects.values())).provenance)

    def events(self, rank: int, iteration: int) -> tuple[list[Event], list[str], list[str]]:
        """(events, problems, names of fields beside the trace). Raises TwinrunError."""
        subject, place = self._places[(rank, iteration)]
        where = f"{subject.label}, step {iteration}"
        with subject.open(place) as fields:
            others = [name for name in fields if not is_trace_field(name)]
            if EVENTS not in fields and DIGESTS not in fields:
                return [], [], others
            missing = [name for name in (EVENTS, DIGESTS) if name not in fields]
            if missing:
                raise DamagedFile(f"the step has no field {missing[0]!r}", where=where)
            metadata = subject.metadata(place)
            check_content(metadata, [fields[EVENTS], fields[DIGESTS]])
            events, problems = decoded_events(_values(fields[EVENTS]), _values(fields[DIGESTS]), where)
        return events, problems, others

    def kept(self, rank: int, iteration: int, name: str) -> tuple[np.ndarray, str]:
        """The data of a kept value, and its type as twinrun calls it. Raises TwinrunError."""
        subject, place = self._places[(rank, iteration)]
        with subject.open(place) as opened:
            if name not in opened:
                raise DamagedFile(f"the step has no field {name!r}", where=subject.label)
            ref = opened[name]
            return _values(ref), ref.dtype
