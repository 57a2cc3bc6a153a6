"""What a path (or the caller's arrays) holds: places (step, rank), and at each of them named fields.

A subject is a history, a folder of files, one file, or arrays. Places are opened one at a time, so that a
history of any length needs few open files.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import math
import os
import re
import resource
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from .. import _core
from ..arguments import checked_path
from ..errors import DamagedFile, FormatError, Incomparable, MissingFile, Stale, TwinrunError, Unmatched
from ..formats import Field, FileContent, formats, open_as, open_file, open_whatever
from ..formats.facts import FILE, NOT_COMPARED, SUMMARY, Fact
from ..formats.files import is_metadata, reading
from ..formats.folder import BYTES, DataFile, is_data_set, is_history, list_folder, told_format
from ..formats.model import (
    ITEMSIZE,
    label_field,
    labels_of,
    labels_told,
    storage_dtype,
    summary_fields,
    unit_of,
)
from ..marks import METADATA_SUFFIX
from .arrays import ArrayView, DeviceArrayView, taken
from .containers import Texts, flattened, is_container

__all__ = [
    "FieldRef",
    "HistorySubject",
    "Opened",
    "Place",
    "Subject",
    "decoded_source",
    "incomplete_note",
    "label_refs",
    "metadata_path",
    "open_subject",
]

_OF_METADATA = frozenset({SUMMARY, NOT_COMPARED})  # fields that belong to no file

Place = tuple[int | None, int]  # step, rank


def metadata_path(path: str) -> str:
    """The metadata file of a file of another program: beside it."""
    return path.rstrip("/") + METADATA_SUFFIX


def decoded_source(dtype: str, items: int, field: Field) -> _core.Source:
    """A source whose elements `field.read` decodes."""
    storage = storage_dtype(dtype)

    def fetch(first: int, count: int, address: int) -> None:
        assert field.read is not None
        values = field.read(first, count)
        if values.size != count or values.dtype != storage:
            raise DamagedFile(f"{values.size} elements of {values.dtype} where {count} of {storage} belong")
        raw = (ctypes.c_uint8 * (count * storage.itemsize)).from_address(address)
        np.ctypeslib.as_array(raw).view(storage)[:] = values

    return _core.decoded_source(dtype, items, fetch)


@dataclass
class FieldRef:
    """One field of one place. shape: in the order of the stored elements (reversed where fortran_order)."""

    name: str
    dtype: str
    byte_order: str
    shape: tuple[int, ...]
    fortran_order: bool
    where: str
    extents: list[tuple[str, int, int, int]] | None = None  # path, offset, stride, count
    reader: Field | None = None
    memory: ArrayView | DeviceArrayView | None = None
    metadata: _core.Metadata | None = None
    metadata_field: int = 0
    facts: _core.FieldFacts | None = None  # of the metadata's field
    no_data: bool = False
    recorded: tuple[_core.RecordStore, int] | None = None  # the record that holds its elements, and the step
    place: tuple[tuple[int, ...], tuple[int, ...]] | None = (
        None  # shape of the global array and offset in it, as `shape`
    )
    key: str | None = None  # of particles: the field of their IDs and their group, as the file names them
    group: str | None = None
    own_name: str = ""  # in its file
    unit: str | None = None  # of dates and time spans; None for plain numbers
    kind: str | None = None  # of elements that are no numbers: their kind
    tell: Callable[[int], str] | None = None  # such an element as text
    parts: object = None  # of a global array: where its parts are (parts.Parts)
    open_reader: Callable[[], Field | None] | None = None  # of the format, where elements must be decoded
    text: Callable[[tuple[int, ...]], str] | None = None  # of digests of texts: the text at an index
    told_as_text: bool = False  # see formats.Field

    @property
    def items(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def user_shape(self) -> tuple[int, ...]:
        """Shape as the user knows it."""
        return self.shape[::-1] if self.fortran_order else self.shape

    @property
    def reads_anywhere(self) -> bool:
        """Whether a part of its elements, or of its metadata, can be read at the cost of that part."""
        in_files = self.extents is not None or self.recorded is not None or self.no_data
        return in_files or (self.reader is not None and self.reader.reads_anywhere)

    @property
    def user_place(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape of the global array and offset in it, as the user knows them."""
        if self.place is None or not self.fortran_order:
            return self.place
        return self.place[0][::-1], self.place[1][::-1]

    @property
    def digest(self) -> str | None:
        """The kind of its metadata's digests."""
        return None if self.facts is None else self.facts.digest

    def need_metadata(self) -> _core.Metadata:
        """The facts of its metadata, if it has metadata."""
        assert self.metadata is not None
        return self.metadata

    def need_source(self, cache: str = "auto") -> _core.Source:
        """Its elements, where it is known to have them."""
        source = self.source(cache)
        assert source is not None
        return source

    def index(self, scalar: int) -> tuple[int, ...]:
        """N-D index of a scalar; for complex fields with a last 0 (real part) or 1 (imaginary part)."""
        part: tuple[int, ...] = ()
        if self.dtype in ("c64", "c128"):
            scalar, component = divmod(scalar, 2)
            part = (component,)
        at = []
        for size in reversed(self.shape):
            scalar, i = divmod(scalar, size)
            at.append(i)
        return (tuple(at) if self.fortran_order else tuple(reversed(at))) + part

    def load(self) -> None:
        """Opens the file of a field that its metadata alone told until now; what the file says of it counts from then on."""
        if self.reader is None and self.open_reader is not None and not self.no_data:
            self.reader = self.open_reader()
            self.told_as_text = self.reader is not None and self.reader.told_as_text

    def source(self, cache: str = "auto") -> _core.Source | None:
        """A source of its elements; None if only metadata was kept."""
        if self.no_data:
            return None
        if self.recorded is not None and self.items:
            store, step = self.recorded
            return store.source(step, self.name, self.dtype, self.items)
        if self.memory is not None:
            m = self.memory
            if isinstance(m, DeviceArrayView):
                return _core.device_source(
                    m.dtype, m.shape, m.strides, m.address, m.device, m.stream, m.swap, m.owner
                )
            return _core.memory_source(m.dtype, m.items, m.address, m.stride, m.swap, m.owner)
        if self.extents is not None:
            return _core.file_source(self.dtype, self.byte_order, self.items, self.extents, cache)
        self.load()
        if self.reader is None:
            raise Stale(
                f"describes field {self.name!r}, which its data file does not hold",
                where=self.where,
                fix="index it again with 'twinrun index'",
            )
        if self.reader.problem is not None:
            raise self.reader.problem
        return decoded_source(self.dtype, self.items, self.reader)


class Opened(dict[str, FieldRef]):
    """Fields of a place by name, and the other facts of its files.

    facts: by label; None where a subject cannot have facts, as arrays in memory. skipped: (name, where,
    reason) of what exists and cannot be compared. formats: of the files; format_of: the format of the file of
    a fact, by label. notes: what the user should know about the place. one_array: a file of a format that
    holds one array is among its files. array_name: the name of its only array, a prefix of its fields.
    """

    def __init__(self, fields: Mapping[str, FieldRef] | None = None) -> None:
        super().__init__(fields or {})
        self.facts: dict[str, Fact] | None = None
        self.skipped: list[tuple[str, str, str]] = []
        self.formats: set[str] = set()
        self.format_of: dict[str, str] = {}
        self.notes: list[str] = []
        self.one_array = False
        self.array_name: str | None = None

    def with_fields(self, fields: Mapping[str, FieldRef]) -> Opened:
        """The same place with other fields."""
        made = Opened(fields)
        vars(made).update(vars(self))
        return made


class FieldLayout(Protocol):
    """The type and shape of a field of a run or a sketch."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def user_shape(self) -> tuple[int, ...]: ...
    @property
    def fortran_order(self) -> bool: ...


def check_alike(a: FieldLayout, b: FieldLayout, what: str, label_a: str, label_b: str) -> None:
    """Raises Incomparable where the types or shapes of two fields differ. what: names the field."""
    if a.dtype != b.dtype:
        raise Incomparable(f"{what}: {a.dtype} in {label_a}, {b.dtype} in {label_b}", fix="types must agree")
    kinds = getattr(a, "kind", None), getattr(b, "kind", None)
    if kinds[0] != kinds[1]:
        said = [kind or "numbers" for kind in kinds]
        raise Incomparable(f"{what}: {said[0]} in {label_a}, {said[1]} in {label_b}", fix="types must agree")
    units = getattr(a, "unit", None), getattr(b, "unit", None)
    if units[0] != units[1]:
        # the same integers stand for other times, or for plain numbers
        said = [unit or "plain numbers" for unit in units]
        raise Incomparable(
            f"{what}: {said[0]} in {label_a}, {said[1]} in {label_b}", fix="units of time must agree"
        )
    if a.user_shape != b.user_shape:
        raise Incomparable(
            f"{what}: shape {list(a.user_shape)} in {label_a}, {list(b.user_shape)} in {label_b}",
            fix="shapes must agree",
        )


def untouched(metadata: _core.Metadata, files: Iterable[str] | None = None) -> bool:
    """Whether the data files are those that the metadata was made from: same files, sizes, times and status.

    The status is a code in the metadata: an edit whose time was set back, another file of this name, or a
    copy that kept its time has another code, whatever the time of the metadata file. Metadata without a code
    proves nothing. files: the data files to check; by default those that the metadata names. Raises
    MissingFile, DamagedFile or Stale where their number or a size rules it out.
    """
    known = metadata.data_files
    at_hand = [path for path, _, _ in known] if files is None else list(files)
    if len(at_hand) != len(known):
        raise Stale(
            f"was made from {len(known)} data files, now there are {len(at_hand)}",
            where=metadata.path,
            fix="index it again with 'twinrun index'",
        )
    same = True
    found = []
    for path, (recorded, size, mtime) in zip(at_hand, known, strict=True):
        with reading(path):
            now = os.stat(path)
        if now.st_size < size:
            raise DamagedFile(
                f"truncated: {size} bytes when it was indexed, {now.st_size} now",
                where=path,
                fix="restore it, or index it again with 'twinrun index'",
            )
        if now.st_size != size:
            raise _stale(metadata, path)
        found.append(now)
        same = same and now.st_mtime_ns == mtime and os.path.realpath(recorded) == os.path.realpath(path)
    return same and metadata.status == status_code(found)  # 0 stands for metadata without a code


def status_code(found: Iterable[os.stat_result]) -> int:
    """A code, not 0, of the identity and last change of files. No program can set back st_ctime."""
    packed = b"".join(struct.pack("<qQ", s.st_ctime_ns, s.st_ino & (1 << 64) - 1) for s in found)
    return _core.xxh3(packed) or 1


def _stale(metadata: _core.Metadata, path: str) -> Stale:
    return Stale(
        f"older than its data file {path}, which was changed since",
        where=metadata.path,
        fix="index it again with 'twinrun index'",
    )


def _layout(ref: FieldRef) -> tuple:
    """What metadata keeps of a field, and its file says too, but for the places of its elements."""
    return ref.dtype, ref.byte_order, ref.shape, ref.fortran_order, ref.unit, ref.kind


def check_layout(
    metadata: _core.Metadata, refs: Sequence[FieldRef], content: FileContent
) -> dict[str, Field]:
    """Raises Stale unless a file says of itself all that its metadata says: files, fields, what each is, and where it lies; and
    what is wrong with a field that cannot be read now.

    A field that was not indexed is not looked at. refs: all fields of the metadata. Returns the file's, by the names there.
    """

    def changed(what: str) -> Stale:
        return Stale(what, where=content.path, fix="restore it, or index it again with 'twinrun index'")

    own = {field.name: field for field in summary_fields(content.facts, len(content.skipped), content.path)}
    fields = {**content.fields, **own}
    indexed = [ref for ref in refs if ref.name not in _OF_METADATA]
    if (
        content.one_array and len(content.fields) == len(indexed) == 1
    ):  # named after the file, which may have been renamed
        fields[indexed[0].name] = next(iter(content.fields.values()))
    told = {ref.name for ref in refs}
    if own.keys() - told or (told & _OF_METADATA) - own.keys():
        raise changed(
            "tells attributes, or holds what cannot be compared, otherwise than when it was indexed"
        )
    now = {
        ref.name: ref
        for ref in refs_of_fields(
            {ref.name: fields[ref.name] for ref in indexed if ref.name in fields}, content.path
        )
    }
    for ref in indexed:
        said = now.get(ref.name)
        if said is None:
            raise changed(f"has no field {ref.name!r}, which it had when it was indexed")
        problem = fields[ref.name].problem
        if problem is not None:
            raise problem
        if _layout(ref) != _layout(said) or places_of(ref) != places_of(said):
            raise changed(f"says field {ref.name!r} otherwise than when it was indexed")
    files = [os.path.realpath(path) for path, _, _ in metadata.data_files]
    if [os.path.realpath(path) for path in content.files()] != files:
        raise changed("is made of other files than when it was indexed")
    return fields


def check_content(metadata: _core.Metadata, fields: list[FieldRef]) -> list[str]:
    """Compares the data with the checksums of the metadata: for files that were touched or copied.

    Returns notes. Raises Stale unless all data is unchanged.
    """
    for ref in fields:
        source = ref.source()
        if source is not None and _core.changed_parts(metadata, ref.metadata_field, source):
            raise _stale(metadata, ref.where if ref.extents is None else ref.extents[0][0])
    since = "may have been" if metadata.status == 0 else "was"
    return [
        f"{metadata.path}: its data {since} touched, copied or renamed since it was indexed, and the same content was found: read to make sure"
    ]


def check_current(
    metadata: _core.Metadata, fields: list[FieldRef], files: Iterable[str] | None = None
) -> list[str]:
    """Raises Stale, MissingFile or DamagedFile unless the data files hold the data that the metadata was made
    from. Returns notes.
    """
    return [] if untouched(metadata, files) else check_content(metadata, fields)


def refs_of_metadata(
    metadata: _core.Metadata, reopen: Callable[[], FileContent] | None = None
) -> list[FieldRef]:
    """The fields that a metadata file describes. reopen: gives its data opened, for those that must be decoded."""
    files = metadata.data_files
    refs = []
    for at, facts in enumerate(metadata.fields):
        ref = FieldRef(
            name=facts.name,
            dtype=facts.dtype,
            byte_order=facts.byte_order,
            shape=facts.shape,
            fortran_order=facts.fortran_order,
            where=metadata.path,
            metadata=metadata,
            metadata_field=at,
            facts=facts,
        )
        ref.key = facts.key or None
        if facts.global_shape:
            ref.place = facts.global_shape, facts.global_offset
        if facts.extents or facts.items == 0:
            ref.extents = [(files[f][0], offset, stride, count) for f, offset, stride, count in facts.extents]
        elif not files:
            ref.no_data = True
        elif reopen is not None:
            ref.open_reader = functools.partial(_field_of, reopen, facts.name)
        refs.append(ref)
    return _as_labelled(refs)


def _as_labelled(refs: list[FieldRef]) -> list[FieldRef]:
    """The fields without labels; each field gets the unit and kind that its labels hold."""
    told, labels = labels_told({ref.name: ref.shape for ref in refs})
    kept = [ref for ref in refs if ref.name not in labels]
    for ref in kept:
        own = told.get(ref.name, {})
        ref.unit, ref.kind = own.get("unit"), own.get("kind")
    return kept


def _field_of(reopen: Callable[[], FileContent], name: str) -> Field | None:
    content = reopen()
    if name in content.fields or name != SUMMARY:
        return content.fields.get(name)
    return next(iter(summary_fields(content.facts, 0, content.path)), None)


def reopening(metadata: _core.Metadata) -> Callable[[], FileContent] | None:
    """How to open the data of a metadata file as when it was indexed; None where there is none, or a history has it."""
    if not metadata.data_files or not metadata.fields or not metadata.fields[0].format:
        return None
    path, how = metadata.path.removesuffix(METADATA_SUFFIX), metadata.fields[0].format
    data = (
        path if os.path.isdir(path) else metadata.data_files[0][0]
    )  # a data set that is a folder has other files first
    return lambda: open_as(data, how, metadata.path)


def refs_of_fields(fields: Mapping[str, Field], path: str) -> list[FieldRef]:
    """The fields of an opened file that has no metadata."""
    refs = []
    for name, f in fields.items():
        ref = FieldRef(
            name,
            f.dtype,
            f.byte_order,
            f.shape,
            f.fortran_order,
            path,
            key=f.key,
            group=f.group,
            own_name=f.name,
            unit=f.unit,
            text=f.text,
            told_as_text=f.told_as_text,
            kind=f.kind,
            tell=f.tell,
        )
        if f.extents is not None:
            ref.extents = [(e.path, e.offset, e.stride, e.count) for e in f.extents]
        else:
            ref.reader = f
        refs.append(ref)
    return refs


def label_refs(refs: Sequence[FieldRef], where: str) -> list[FieldRef]:
    """The labels that hold units and kinds of these fields in metadata.

    Raises Incomparable where a field has such a name.
    """
    taken = sorted(labels_told({ref.name: ref.shape for ref in refs})[1])
    if taken:
        raise Incomparable(
            f"field {taken[0]!r} has no elements, and metadata keeps the unit or the kind of a field by such a name",
            where=where,
            fix="name it otherwise, or choose fields",
        )
    labels = [label for ref in refs for label in labels_of(ref.name, ref.unit, ref.kind)]
    return refs_of_fields({label: label_field(label) for label in labels}, "labels")


_Same = TypeVar("_Same", bound="Subject")


@dataclass
class Subject:
    """One side of a comparison.

    kind: history, folder, file or arrays. label: for messages. places: (step, rank), sorted. open(place)
    gives the fields there by name, with notes on the place. notes: what the user should know about the whole.
    """

    kind: str
    label: str
    places: list[Place]
    notes: list[str] = field(default_factory=list)
    provenance: list[_core.RankProvenance] = field(default_factory=list)  # of a history
    skipped: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # (name, where, reason) of those that belong to no place
    # Places that hold only files without a step and of no known format; and the names of these files.
    unknown: set[Place] = field(default_factory=set)
    unknown_names: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True) -> Iterator[Opened]:
        """Fields and facts at a place, valid inside the `with`."""
        raise NotImplementedError

    def times(self) -> dict[int | None, float]:
        """Physical time by step, of the steps that have it."""
        return {}

    # ---- for other processes, which open places without listing the run ----

    def size(self, place: Place) -> int:
        """Bytes at a place, as far as known without opening it."""
        return 0

    def entry(self, place: Place) -> object:
        """The entry of a place that `open` needs."""
        return None

    def know(self, entries: Mapping[Place, Any]) -> None:
        """Replaces the entries of places."""

    def explained(self, error: TwinrunError, step: int | None) -> TwinrunError:
        """The error; or, where a running run removed the data meanwhile, an error that says so."""
        return error

    def without_places(self: _Same) -> _Same:
        """A copy without places, to send to other processes."""
        light = copy.copy(self)
        light.places, light.notes, light.provenance = [], [], []
        light.know({})
        return light


class _Arrays(Subject):
    def __init__(
        self, arrays: Mapping[str, object], label: str, one_array: bool = False, stream: object = None
    ) -> None:
        super().__init__("arrays", label, [(None, 0)])
        self._one_array = one_array
        self._refs = {}
        for name, array in arrays.items():
            v = taken(name, array, stream)
            ref = FieldRef(name, v.dtype, "little", v.shape, v.fortran_order, label, memory=v)
            if isinstance(v, ArrayView):
                ref.unit = unit_of(v.owner.dtype)
            if isinstance(array, Texts):
                ref.text = array.text
            self._refs[name] = ref

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True) -> Iterator[Opened]:
        opened = Opened(self._refs)
        opened.one_array, opened.array_name = self._one_array, "array" if self._one_array else None
        yield opened


def incomplete_note(steps: list[int]) -> str:
    """Notes on steps that only some ranks committed."""
    shown = ", ".join(map(str, steps[:4])) + (", …" if len(steps) > 4 else "")
    what, are = ("step", "is") if len(steps) == 1 else ("steps", "are")
    return f"{what} {shown} {are} not part of the history: not every rank committed {'it' if are == 'is' else 'them'}"


def _records_kept() -> int:
    """How many records one of two runs may keep open: each has two files, and half of the process's files are
    for others.
    """
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


class Journals:
    """The journals of a history, which a run may be writing.

    They are read again only where they have grown.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[list, dict[Place, tuple[str, _core.RankFiles]]] | None = None

    def written(self) -> list[tuple[str, int, int]]:
        """The files and their sizes: lines are only added."""
        with reading(self._path), os.scandir(self._path) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(".jsonl"))
        found = []
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # replaced just now
                facts = os.stat(os.path.join(self._path, name))
                found.append((name, facts.st_ino, facts.st_size))
        return found

    def entries(self) -> dict[Place, tuple[str, _core.RankFiles]]:
        """The committed steps: {(step, rank): (folder, files)}. Raises TwinrunError."""
        written = self.written()
        if self._read is None or self._read[0] != written:
            steps = _core.open_history(self._path).steps
            self._read = (
                written,
                {(s.step, r.rank): (s.folder, r) for s in steps for r in s.ranks},
            )
        return self._read[1]


class HistorySubject(Subject):
    """A captured history, or a rank's part of one on a node-local tier."""

    def __init__(self, path: str) -> None:
        self._journals = Journals(path)
        history = _core.open_history(path)
        self._files: dict[Place, tuple[str, _core.RankFiles]] = {
            (s.step, r.rank): (s.folder, r) for s in history.steps for r in s.ranks
        }
        self._records: dict[int, _core.RecordStore] = {}
        super().__init__("history", path, sorted(self._files), provenance=history.provenance)
        if history.torn:
            self.notes.append(
                f"{path}: its last step was being committed when the run ended; it is not part of it"
            )
        if history.incomplete:
            self.notes.append(f"{path}: {incomplete_note(history.incomplete)}")

    def size(self, place: Place) -> int:
        _, files = self._files[place]
        return files.metadata_bytes + files.data_bytes

    def entry(self, place: Place) -> object:
        return self._files[place]

    def know(self, entries: Mapping[Place, Any]) -> None:
        self._files = dict(entries)

    def without_places(self) -> HistorySubject:
        light = super().without_places()
        light._records, light._journals = {}, Journals(self.label)
        return light

    def metadata(self, place: Place) -> _core.Metadata:
        """The metadata of a place, as it was committed; the data is not checked."""
        folder, files = self._files[place]
        if not files.metadata:
            raise FormatError(
                "holds files of another program, packed as they were",
                where=self.label,
                fix="give them back with 'twinrun restore', and name the folder where they are",
            )
        path = os.path.join(self.label, folder, files.metadata)
        metadata = _core.Metadata(path)
        if metadata.bytes != files.metadata_bytes or metadata.header_xxh3() != files.header_xxh3:
            raise DamagedFile(
                "is not the file that the manifest names", where=path, fix="restore the history"
            )
        return metadata

    def _record(self, rank: int) -> _core.RecordStore:
        """An open record.

        Records stay open for the next steps, up to a limit of files: then the last used ones stay open.
        """
        store = self._records.pop(rank, None) or _core.open_record(self.label, rank)
        self._records[rank] = store  # a dict keeps the order of insertion
        while len(self._records) > _records_kept():
            del self._records[next(iter(self._records))]
        return store

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
                f"step {step} left the history while it was read", where=self.label, fix="a run is writing it"
            )
        return Incomparable(
            f"step {step} was captured again, or its data left, while it was read",
            where=self.label,
            fix="a run is writing it: try again",
        )

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True) -> Iterator[Opened]:
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
        metadata = self.metadata(place)
        refs = refs_of_metadata(metadata)
        step, rank = place
        if self._files[place][1].difference is not None:
            assert step is not None
            for ref in refs:
                if ref.items:  # a record has no segment for a field without elements
                    ref.extents, ref.recorded = None, (self._record(rank), step)
            yield self._by_name(refs, use_metadata)
            return
        if not self._files[place][1].data:  # the data was dropped or never kept: only metadata remains
            for ref in refs:
                if ref.items:
                    ref.extents, ref.no_data = None, True
            yield self._by_name(refs, use_metadata)
            return
        notes = []
        try:  # only twinrun writes here: data that is not newer than its metadata belongs to a copy
            metadata.check_data_files()
        except Stale:
            notes = check_current(metadata, refs)
        opened = self._by_name(refs, use_metadata)
        opened.notes = notes
        yield opened

    @staticmethod
    def _by_name(refs: list[FieldRef], use_metadata: bool) -> Opened:
        if not use_metadata:
            for ref in refs:
                ref.metadata = None
        return Opened({ref.name: ref for ref in refs})


@dataclass(frozen=True)
class _Part:
    """A file, or one of several steps in it (step is None for fields without a step of their own)."""

    file: DataFile | str
    step: int | None

    @property
    def path(self) -> str:
        return self.file if isinstance(self.file, str) else self.file.path


class _Files(Subject):
    """Files of other programs: one, or a folder of them."""

    def __init__(self, kind: str, path: str, files: Iterable[DataFile | str], options: dict) -> None:
        self._options = options
        self._times: dict[int | None, float] = {}
        self._timed = False
        self._by_place: dict[Place, list[_Part]] = {}
        super().__init__(kind, path, [])
        for file in files:
            place = (None, 0) if isinstance(file, str) else (file.step, file.rank)
            for step in self._steps_in(file):
                self._by_place.setdefault(place if step is None else (step, place[1]), []).append(
                    _Part(file, step)
                )
        self.unknown = {
            place
            for place, parts in self._by_place.items()
            if not any(isinstance(part.file, str) or part.file.format != BYTES for part in parts)
        }
        self.unknown_names = [
            part.file.prefix
            for place in self.unknown
            for part in self._by_place[place]
            if not isinstance(part.file, str)
        ]
        self.places = sorted(self._by_place, key=lambda p: (-1 if p[0] is None else p[0], p[1]))

    def _steps_in(self, file: DataFile | str) -> list[int | None]:
        """Steps that a file names itself; [None] where it has one step."""
        if not isinstance(file, str) and not formats()[file.format].many_steps:
            return [None]
        with self._open_file(file) as content:
            steps = content.steps()
            self._times.update(content.times.items())
            alone = any(f.step is None for f in content.fields.values())
            return [*steps, *([None] if alone else [])] or [None]

    def times(self) -> dict[int | None, float]:
        if not self._timed:
            self._timed = True
            for (step, _), parts in self._by_place.items():
                for part in parts:
                    if part.step is None and step not in self._times:
                        with self._open_file(part.file) as content:
                            if content.time is not None:
                                self._times[step] = content.time
        return self._times

    def size(self, place: Place) -> int:
        total = 0
        for part in self._by_place[place]:
            with contextlib.suppress(OSError):
                total += os.stat(part.path).st_size
        return total

    def entry(self, place: Place) -> object:
        return self._by_place[place]

    def know(self, entries: Mapping[Place, Any]) -> None:
        self._by_place = dict(entries)

    def _open_file(self, file: DataFile | str) -> FileContent:
        options = {k: v for k, v in self._options.items() if k != "format"}
        if "format" in self._options:
            told = self._options["format"]
            return open_file(file, told, **options) if isinstance(file, str) else file.open(options)
        return open_whatever(file, **options) if isinstance(file, str) else file.open_whatever(options)

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True) -> Iterator[Opened]:
        fields = Opened()
        fields.facts = {}
        with contextlib.ExitStack() as stack:
            for part in self._by_place[place]:
                for ref in self._refs(part, use_metadata, stack, fields):
                    if ref.name in fields:
                        raise FormatError(
                            f"field {ref.name!r} is in {fields[ref.name].where} too, at the same step and rank",
                            where=part.path,
                            fix="name one of them otherwise, or compare files",
                        )
                    fields[ref.name] = ref
            yield fields

    def _refs(
        self, part: _Part, use_metadata: bool, stack: contextlib.ExitStack, opened: Opened
    ) -> list[FieldRef]:
        path = part.path
        checked_path(path)
        content = stack.enter_context(self._open_file(part.file))
        opened.notes += [f"{path}: {note}" for note in content.notes]
        opened.one_array = opened.one_array or content.one_array
        refs = refs_of_fields({n: f for n, f in content.fields.items() if f.step == part.step}, path)
        only = refs[0].name if content.one_array and len(refs) == 1 else content.array_name
        opened.array_name = only if self.kind == "file" else None
        beside = metadata_path(path)
        if use_metadata and is_metadata(beside, cut=True):
            opened.notes += _attach(_core.Metadata(beside), refs, content)
        if part.step is not None:
            refs, notes = _of_step(refs, content, part)
            opened.notes += notes
        named = self._names_here(part.file, refs, content)
        for ref in refs:
            ref.name = named(ref.name)
        if (
            not isinstance(part.file, str) and not content.fields
        ):  # that it is there must be seen all the same
            label = part.file.label
            refs += refs_of_fields({label: label_field(label)}, path)
        says = content.dialect or content.format
        opened.formats.add(says)
        if not isinstance(part.file, str) and self._in_a_file_of_any_name(part.file, content):
            _keep(opened, Fact.of(part.file.label, FILE, content.format), says)
        for fact in content.facts.values():
            if fact.step in (None, part.step):
                _keep(opened, replace(fact, owner=named(fact.owner)), says)
        for name, why in content.skipped:
            in_step = re.match(r"step-(\d+)/", name)
            if in_step is None or int(in_step[1]) == part.step:
                opened.skipped.append((named(name[in_step.end() :] if in_step else name), path, why))
        return refs

    @staticmethod
    def _in_a_file_of_any_name(file: DataFile, content: FileContent) -> bool:
        """Whether the names of the fields do not tell their file, which holds one step."""
        told = file.use_prefix or content.format == BYTES or not content.fields
        named_after = _one_array_format(file.format) and len(content.fields) == 1
        return not (told or named_after or content.steps())

    @staticmethod
    def _names_here(file: DataFile | str, refs: list[FieldRef], content: FileContent) -> Callable[[str], str]:
        """The prefix of a file's fields in its folder: see formats.folder. '' is the file itself."""
        if isinstance(file, str):
            return lambda name: name
        if content.format == BYTES and file.format != BYTES:
            return lambda name: file.relative
        if _one_array_format(file.format) and len(refs) == 1:
            only = refs[0].name
            return lambda name: file.prefix if name in (only, "") else f"{file.prefix}/{name}"
        if file.use_prefix:
            return lambda name: f"{file.prefix}/{name}" if name else file.prefix
        return lambda name: name


def _of_step(refs: list[FieldRef], content: FileContent, part: _Part) -> tuple[list[FieldRef], list[str]]:
    """Fields by the names that arrays have in every step, and notes.

    Of a step that was written twice the later one counts.
    """
    named: dict[str, FieldRef] = {}
    notes: list[str] = []
    for ref in refs:
        series = content.fields[ref.name].series or ref.name
        if series in named:
            notes.append(
                f"{part.path}: {series} of step {part.step} is there several times (a restart?): the last one counts"
            )
        ref.name = series
        named[series] = ref
    return list(named.values()), notes


def _attach(metadata: _core.Metadata, refs: list[FieldRef], content: FileContent) -> list[str]:
    """Gives fields of a file the metadata that lies beside it. Returns notes."""
    others = next((f.format for f in metadata.fields if f.format != content.how), None)
    # digests of a file that was read with other options are digests of other values
    if others is not None:
        return [f"{metadata.path} is not used: made of {others}, and this is {content.how}"]
    known = {ref.name: ref for ref in refs_of_metadata(metadata) if ref.name not in _OF_METADATA}
    if (
        content.one_array and len(refs) == len(known) == 1
    ):  # named after the file, which may have been renamed
        known = {refs[0].name: next(iter(known.values()))}
    attached = []
    for ref in refs:
        had = known.get(ref.name)
        if had is None:  # left out of the index on purpose
            continue
        if _layout(had) != _layout(ref):
            raise Stale(
                f"describes field {ref.name!r} otherwise than its data file does",
                where=metadata.path,
                fix="index it again with 'twinrun index'",
            )
        # its description changed since
        if had.extents and ref.extents and places_of(had) != places_of(ref):
            raise Stale(
                f"was made from other bytes than those of field {ref.name!r} now",
                where=metadata.path,
                fix="index it again with 'twinrun index'",
            )
        ref.metadata, ref.metadata_field, ref.facts = metadata, had.metadata_field, had.facts
        attached.append(ref)
    if not attached:
        raise Stale(
            f"describes none of the fields of {content.path}",
            where=metadata.path,
            fix="index it again with 'twinrun index'",
        )
    return check_current(metadata, attached, content.files())


def _keep(opened: Opened, fact: Fact, format: str) -> None:
    """Adds a fact. A second fact with the same label gets another label."""
    assert opened.facts is not None
    label = fact.label
    while label in opened.facts:
        label += "'"
    opened.facts[label] = fact
    opened.format_of[label] = format


def places_of(ref: FieldRef) -> list[tuple[int, int, int]]:
    """Where the elements lie in their files; adjacent extents are joined."""
    found: list[tuple[int, int, int]] = []
    last = None
    for path, offset, stride, count in ref.extents or ():
        if (
            found
            and last == path
            and found[-1][1] == stride
            and found[-1][0] + found[-1][2] * stride == offset
        ):
            found[-1] = (*found[-1][:2], found[-1][2] + count)
        else:
            found.append((offset, stride, count))
        last = path
    return found


def _one_array_format(name: str) -> bool:
    known = formats().get(name)
    return known is not None and known.one_array


def open_subject(what: object, options: Mapping[str, object] | None = None, stream: object = None) -> Subject:
    """Opens a path, an array or a container of arrays as a subject (see `containers`).

    options: of formats (format, dtype, shape, …). stream: whose work makes arrays on a GPU. Raises
    MissingFile, FormatError.
    """
    options = dict(options or {})
    if isinstance(what, Subject):
        return what
    if is_container(what):
        named = flattened("", what, "arrays")
        if not named:
            raise TwinrunError("an empty container has nothing to compare")
        return _Arrays(named, "arrays", stream=stream)
    if not isinstance(what, (str, os.PathLike)):
        named = flattened("array", what)
        return _Arrays(named, "array", one_array=list(named) == ["array"], stream=stream)
    path = checked_path(what)
    if not os.path.exists(path):
        raise MissingFile("no such file or folder", where=path, fix="check the path")
    if not os.path.isdir(path):
        if path.endswith(METADATA_SUFFIX):
            return _Metadata(path)
        return _Files("file", path, [path], options)
    if is_history(path):
        return HistorySubject(path)
    forced = told_format(options)
    if is_data_set(path, forced):
        return _Files("file", path, [path], options)
    listing = list_folder(path, options)
    if not listing.data() and forced is not None and formats()[forced].is_folder is not None:
        return _Files("file", path, [path], options)  # opening it raises the error
    if not listing.data():
        raise MissingFile(
            "a folder without a manifest and without data files of a known format",
            where=path,
            fix="name a history that twinrun captured, or a folder of .npy, .npz, .h5, .safetensors or raw files",
        )
    subject = _Files("folder", path, listing.files, options)
    subject.notes.extend(f"{path}/{name} is ignored: {why}" for name, why in listing.ignored)
    subject.notes.extend(f"{path}/{name} is compared as bytes: {why}" for name, why in listing.unknown)
    subject.skipped = [(name, os.path.join(path, name), why) for name, why in listing.unreadable]
    return subject


class _Metadata(Subject):
    """A metadata file without its data."""

    def __init__(self, path: str) -> None:
        super().__init__("file", path, [(None, 0)])

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True) -> Iterator[Opened]:
        metadata = _core.Metadata(self.label)
        reopen = reopening(metadata)
        with contextlib.ExitStack() as stack:
            once = None if reopen is None else functools.cache(lambda: stack.enter_context(reopen()))
            yield self._opened(metadata, once)

    def _opened(self, metadata: _core.Metadata, reopen: Callable[[], FileContent] | None) -> Opened:
        refs = refs_of_metadata(metadata, reopen)
        opened = Opened()
        for ref in refs:
            if ref.name == NOT_COMPARED:
                why = "what it was made from holds something that cannot be compared"
                opened.skipped.append((ref.name, self.label, why))
            elif ref.name == SUMMARY:
                ref.kind = "code"
        indexed, refs = refs, [ref for ref in refs if ref.name != NOT_COMPARED]
        plain = [ref for ref in refs if ref.name != SUMMARY]
        kinds = [ref.facts.format.partition(" ")[0] for ref in plain if ref.facts is not None]
        opened.one_array = len(plain) == 1 and _one_array_format(kinds[0])
        opened.array_name = plain[0].name if opened.one_array else None
        opened.formats = set(kinds)
        try:
            if not untouched(metadata):
                if reopen is not None:
                    check_layout(metadata, indexed, reopen())
                opened.notes += check_content(metadata, refs)
        except MissingFile:
            opened.notes.append(f"{self.label}: its data is not available: only its metadata is compared")
            for ref in refs:
                ref.no_data = True
        opened.update({ref.name: ref for ref in refs})
        return opened
