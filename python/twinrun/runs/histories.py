"""A captured history as a subject."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from ..errors import DamagedFile, FormatError, Incomparable, Stale, TwinrunError, Unmatched
from ..formats.files import reading
from .beside import beside_note, names_beside
from .fields import FieldRef, refs_of_metadata
from .metadata import check_content, check_current
from .subject import Listed, ListedPlaces, Opened, Place, Subject
from .unnamed import unnamed_of

__all__ = ["HistorySubject", "Journals", "incomplete_note", "others_note"]


_MOST_METADATA = 32 << 20  # bytes of the metadata of a list of many places, about 16,384 fields
_IN_MEMORY = 64 << 10  # the core keeps smaller metadata in memory, and no file open


def incomplete_note(steps: list[int]) -> str:
    """A note on steps that only some ranks committed."""
    shown = ", ".join(map(str, steps[:4])) + (", …" if len(steps) > 4 else "")
    what, are = ("step", "is") if len(steps) == 1 else ("steps", "are")
    return f"{what} {shown} {are} not part of the history: not every rank committed {'it' if are == 'is' else 'them'}"


def others_note(names: Sequence[str]) -> str:
    """A note on files of another history in the folder of a history; "" if there are none.

    names: of these files, as `_core` found them.
    """
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]}{more} beside its manifest.jsonl: of another history: restore the manifest from a copy if it was "
        "exchanged; or move them to their own"
    )


def _records_kept() -> int:
    """How many records each of two runs may keep open.

    A record needs two open files. Half of the process's limit is left for other files.
    """
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


def _lists_kept() -> int:
    """How many metadata files each of two runs may keep open in a list, which opens data files besides."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 32)


class Journals:
    """The journals of a history that a run may be writing. They are read again only if they have changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[list, dict[Place, tuple[str, _core.RankFiles]]] | None = None

    def written(self) -> list[tuple[str, int, int]]:
        """(name, inode, size) of each journal.

        They change with the content, because lines are only appended.
        """
        with reading(self._path), os.scandir(self._path) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(".jsonl"))
        found = []
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # replaced just now
                facts = os.stat(os.path.join(self._path, name))
                found.append((name, facts.st_ino, facts.st_size))
        return found

    def entries(self) -> dict[Place, tuple[str, _core.RankFiles]]:
        """The committed steps: {(step, rank): (folder, files)}. Raises TwinrunError if a journal is
        damaged."""
        written = self.written()
        if self._read is None or self._read[0] != written:
            steps = _core.open_history(self._path).steps
            self._read = (
                written,
                {(s.step, r.rank): (s.folder, r) for s in steps for r in s.ranks},
            )
        return self._read[1]


class HistorySubject(Subject):
    """A captured history, or the part of one rank on a node-local tier."""

    def __init__(self, path: str, label: str | None = None) -> None:
        """label: for messages, where the files at `path` are copies."""
        self._path = path
        label = path if label is None else label
        self._journals = Journals(path)
        history = _core.open_history(path)
        self._files: dict[Place, tuple[str, _core.RankFiles]] = {
            (s.step, r.rank): (s.folder, r) for s in history.steps for r in s.ranks
        }
        self._records: dict[int, _core.RecordStore] = {}
        super().__init__("history", label, sorted(self._files), provenance=history.provenance)
        # Said before steps are matched: those of a restored folder have other places.
        if self._files and not any(files.metadata for _, files in self._files.values()):
            self.refusal = self._error_of_packed_files()
        if history.torn:
            self.notes.append(
                f"{label}: its last step was being committed when the run ended; it is not part of the history"
            )
        self.incomplete = list(history.incomplete)
        if history.incomplete:
            self.notes.append(f"{label}: {incomplete_note(history.incomplete)}")
        if others := others_note(history.entries_of_others()):
            self.notes.append(f"{label}: {others}")
        self.unnamed = unnamed_of(path, history, label)
        if self.unnamed is not None:
            self.notes.append(str(self.unnamed))
        if beside := beside_note(names_beside(path, history)):
            self.notes.append(f"{label}: {beside}")

    def size(self, place: Place) -> int:
        _, files = self._files[place]
        return files.metadata_bytes + files.data_bytes

    def entry(self, place: Place) -> object:
        return self._files[place]

    def stamp(self, place: Place) -> str:
        folder, files = self._files[place]
        return f"{folder}/{files.metadata} {files.metadata_bytes} {files.header_xxh3} {files.data_bytes}"

    def know(self, entries: Mapping[Place, Any]) -> None:
        self._files = dict(entries)

    def without_places(self) -> HistorySubject:
        light = super().without_places()
        light._records, light._journals = {}, Journals(self._path)
        return light

    def metadata(self, place: Place) -> _core.Metadata:
        """The metadata of a place.

        Raises DamagedFile if it is not the file that was committed; does not check the data.
        """
        folder, files = self._files[place]
        if not files.metadata:
            raise self._error_of_packed_files()
        path = os.path.join(self._path, folder, files.metadata)
        metadata = _core.Metadata(path)
        if metadata.bytes != files.metadata_bytes or metadata.header_xxh3() != files.header_xxh3:
            raise DamagedFile(
                "is not the file that the manifest names", where=path, fix="restore the history"
            )
        return metadata

    def whole_metadata(self, place: Place) -> _core.Metadata:
        """The metadata of a place, with residues that are in the record."""
        metadata, difference = self.metadata(place), self._files[place][1].difference
        if difference is not None:
            metadata.read_residues_from(self._record(place[1]), difference)
        return metadata

    def _error_of_packed_files(self) -> FormatError:
        return FormatError(
            "holds packed files of another program",
            where=self.label,
            fix="restore them with 'twinrun restore', and compare the restored folder",
        )

    def _record(self, rank: int) -> _core.RecordStore:
        """The record of a rank, opened. The records that were used last stay open, up to `_records_kept`."""
        store = self._records.pop(rank, None) or _core.open_record(self._path, rank)
        self._records[rank] = store  # a dict keeps the order of insertion
        while len(self._records) > _records_kept():
            del self._records[next(iter(self._records))]
        return store

    def _is_touched(self, rank: int) -> bool:
        """Whether somebody else changed, copied or exchanged files of a rank's record."""
        return self._record(rank).changed_file() is not None

    def explained(self, error: TwinrunError, step: int | None) -> TwinrunError:
        try:
            now = self._journals.entries()
        except TwinrunError:
            return error
        known = {place: entry for place, entry in self._files.items() if place[0] == step}
        if all(now.get(place) == entry for place, entry in known.items()):
            return error
        if not any(place in now for place in known):
            return Unmatched(
                f"step {step} was removed from the history while it was read",
                where=self.label,
                fix="a run is writing the history",
            )
        return Incomparable(
            f"step {step} was captured again, or its data was removed, while it was read",
            where=self.label,
            fix="a run is writing the history: try again",
        )

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        try:
            with self._open(place, use_metadata) as fields:
                yield fields
        except TwinrunError as error:
            why = error if isinstance(error, Incomparable) else self.explained(error, place[0])
            if why is error:
                raise
            raise why from error

    @contextlib.contextmanager
    def _open(self, place: Place, use_metadata: bool) -> Iterator[Opened]:
        metadata = self.whole_metadata(place)
        refs = refs_of_metadata(metadata)
        step, rank = place
        folder, files = self._files[place]
        if files.difference is not None:
            assert step is not None
            for ref in refs:
                if ref.items:  # a record has no segment for a field without elements
                    ref.extents, ref.recorded = None, (self._record(rank), step)
            # A record is never newer than its journal, and has the files that this names, except in
            # a copy, or where files were exchanged. Then it is read.
            difference = os.path.join(self._path, folder, files.data)
            notes = check_content(metadata, refs, difference) if self._is_touched(rank) else []
            opened = self._by_name(refs, use_metadata)
            opened.notes = notes
            yield opened
            return
        # The data was dropped or never kept; only metadata exists.
        if not files.data:
            for ref in refs:
                if ref.items:
                    ref.extents, ref.no_data = None, True
            yield self._by_name(refs, use_metadata)
            return
        notes = self._check_data(place, metadata, refs)
        opened = self._by_name(refs, use_metadata)
        opened.notes = notes
        yield opened

    def _check_data(self, place: Place, metadata: _core.Metadata, refs: list[FieldRef]) -> list[str]:
        """Raises DamagedFile unless the data of a place is that of its metadata. Returns notes.

        Data has the time that its metadata tells, except in a copy of a history; then its content is checked.
        """
        return [] if self._is_current(place, metadata) else check_current(metadata, refs)

    def _is_current(self, place: Place, metadata: _core.Metadata) -> bool:
        """Whether the data of a place is known to be that of its metadata, without a look at its content."""
        try:
            metadata.check_data_files()
        except Stale:
            return False
        return True

    @contextlib.contextmanager
    def listed(self, place: Place) -> Iterator[Listed | None]:
        files = self._files[place][1]
        if files.difference is not None:
            yield None
            return
        metadata = self.metadata(place)
        read = metadata.bytes_read
        if files.data and not self._is_current(place, metadata):
            yield None
            return
        fields = _core.FieldList.of_metadata(metadata, bool(files.data))
        yield None if fields is None else Listed(fields, "metadata", bytes_read=read)

    def listed_together(self, places: Sequence[Place]) -> ListedPlaces | None:
        try:
            self._path.encode()
        except UnicodeEncodeError:  # the core takes texts
            return None
        entries = [self._files[place] for place in places]
        fields = _core.FieldList.of_history(
            self._path, [folder for folder, _ in entries], [files for _, files in entries]
        )
        return None if fields is None else ListedPlaces(fields, "metadata", fields.counts, fields.bytes_read)

    def part_of_list(self, place: Place) -> float:
        size = self._files[place][1].metadata_bytes
        if size <= _IN_MEMORY:
            return size / _MOST_METADATA
        return max(size / _MOST_METADATA, 1 / _lists_kept())

    @staticmethod
    def _by_name(refs: list[FieldRef], use_metadata: bool) -> Opened:
        if not use_metadata:
            for ref in refs:
                ref.metadata = None
        return Opened({ref.name: ref for ref in refs})
