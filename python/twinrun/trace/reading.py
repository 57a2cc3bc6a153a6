"""Traces on storage: the events of each rank and iteration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import _core
from .._core import __version__
from ..comparison.renames import Rename
from ..errors import DamagedFile, FormatError, TwinrunError
from ..formats.element_types import storage_dtype
from ..runs.events import DIGESTS, EVENTS, VERSION, Event, decoded_events, is_trace_field
from ..runs.fields import FieldRef
from ..runs.histories import HistorySubject
from ..runs.metadata import check_content
from ..runs.provenance import Provenance, ProvenanceOfRank, read_provenance
from ..runs.subject import Place
from ..runs.traces import histories_of_ranks
from .renames import NewNames
from .site import Site

__all__ = ["RankOfTrace", "TraceSubject"]


def _values(ref: FieldRef) -> np.ndarray:
    if ref.no_data:
        raise FormatError("its data was not kept", where=ref.where, fix="capture the trace with its data")
    raw = _core.read_source(ref.need_source(), 0, ref.items)
    array = raw.view(storage_dtype(ref.dtype))
    shape = ref.user_shape
    return array.reshape(shape[::-1]).T if ref.fortran_order else array.reshape(shape)


class Kept(NamedTuple):
    """The data of a value, its type as twinrun calls it, and (shape, offset) in a global array, or None."""

    data: np.ndarray
    dtype: str
    place: tuple[tuple[int, ...], tuple[int, ...]] | None


class TraceSubject:
    """A trace: the events of every rank and iteration. Raises TwinrunError where a folder is no trace.

    renames: rules for the names in its events.
    """

    def __init__(self, path: str | os.PathLike[str], renames: Sequence[Rename] = ()) -> None:
        self.label = os.fspath(path)
        self.names = NewNames(renames, self.label)
        folders = histories_of_ranks(self.label)
        if not folders:
            # As any other path that is no history: what is wrong is said once.
            folders = {0: self.label}
        self._subjects = {rank: HistorySubject(folder) for rank, folder in folders.items()}
        # Of the steps that were read: the places whose data it keeps, and those to which it came.
        self.wanted: set[Site] = set()
        self._met: set[Site] = set()
        self._formats: set[int] = set()  # versions of the format, of these steps
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

    @cached_property
    def provenance(self) -> Provenance | None:
        """The conditions of all ranks. Those of a rank that are damaged are left out, and noted."""
        entries: list[ProvenanceOfRank] = []
        for folder_rank, subject in self._subjects.items():
            own = [
                ProvenanceOfRank(folder_rank if len(self._subjects) > 1 else entry.rank, entry.json)
                for entry in subject.provenance
            ]
            try:
                read_provenance(own)
            except TwinrunError as e:
                self.notes.append(f"{subject.label}: {e}")
            else:
                entries += own
        return read_provenance(entries)

    def written_by(self) -> str:
        """The version of twinrun that wrote it, and that of the format of the steps that were read."""
        program = "" if self.provenance is None else self.provenance.text("compiler", "twinrun_version")
        formats = ", ".join(map(str, sorted(self._formats)))
        return f"twinrun {program or '(version not known)'} (format {formats})"

    def written_otherwise(self) -> bool:
        """Whether another version of twinrun, or of the format, wrote it, as far as is known."""
        program = "" if self.provenance is None else self.provenance.text("compiler", "twinrun_version")
        return bool(self._formats - {VERSION}) or program not in ("", __version__)

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
            events, problems, wanted, version = decoded_events(
                _values(fields[EVENTS]), _values(fields[DIGESTS]), where
            )
            self._formats.add(version)
        if wanted:
            self.wanted.update(Site(*place) for place in wanted)
            here = (Site(iteration, e.microbatch, e.phase, e.module, e.operation) for e in events)
            self._met.update(self.wanted.intersection(here))
        self.names.apply(events)
        return events, problems, others

    def not_reached(self) -> list[Site]:
        """The places whose data the trace was to keep, and to which no rank of it came."""
        for site in self.wanted - self._met:  # iterations that were not compared
            for rank in self.ranks:
                with contextlib.suppress(TwinrunError):
                    if (rank, site.iteration) in self._places:
                        self.events(rank, site.iteration)
        return sorted(self.wanted - self._met)

    def kept(self, rank: int, iteration: int, name: str) -> Kept:
        """A kept value. Raises TwinrunError."""
        subject, place = self._places[(rank, iteration)]
        with subject.open(place) as opened:
            if name not in opened:
                raise DamagedFile(f"the step has no field {name!r}", where=subject.label)
            ref = opened[name]
            return Kept(_values(ref), ref.dtype, ref.user_place)


class RankOfTrace(NamedTuple):
    """One of the two that are compared. label: what messages call it."""

    subject: TraceSubject
    rank: int
    label: str
