"""Datasets of HDF5 files as fields."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, FormatError, MissingFile, MissingPackage, Unsupported
from ..remote import object_of
from .blocks import BandReader, Box
from .element_types import dtype_of, storage_dtype, unit_of
from .facts import codes
from .files import file_size, open_regular, read_exact, reading
from .hdf5_chunks import ChunkCheck
from .hdf5_places import creation_list, file_beside, misplaced_file
from .hdf5_types import (
    NotNumeric,
    check_booleans,
    enum_names,
    file_dtype,
    has_unused_bits,
    kind_of_elements,
    leaves,
    nested_type,
    plain_dtype,
    tagged_dtype,
    type_name,
    type_text,
    with_bytes,
)
from .layout import Decoded, Stored, array_fields
from .model import Field, checked_shape, decoded, repeated, unreadable

if TYPE_CHECKING:
    import numpy as np

    from .hdf5 import Walker
else:
    from ..later import numpy as np

_FILTERS = {
    1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 307: "bzip2",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip


class Dataset:
    """Turns one dataset into fields."""

    def __init__(self, walker: Walker, dataset: Any, label: str) -> None:
        self.walker, self.dataset, self.label = walker, dataset, label
        self.h5py = walker.h5py
        self.plist = creation_list(self.h5py, dataset)
        # A null dataspace holds no elements, and neither does a shape of 0.
        self.shape = (0,) if dataset.shape is None else tuple(int(n) for n in dataset.shape)
        elsewhere = object_of(walker.path) is not None
        self.path = walker.path if elsewhere else os.fspath(dataset.file.filename)
        self.check_chunks = ChunkCheck(self.h5py, dataset, self.plist)

    def add(self) -> None:
        """Adds the fields and facts of the dataset."""
        content = self.walker.content
        tid = self.dataset.id.get_type()
        others: list[tuple[str, tuple[str, ...]]] = []  # non-numeric parts: label, path of members
        kind: np.dtype | None
        try:
            kind, is_exact = file_dtype(self.h5py, tid, self.label, others, ())
        except NotNumeric:
            kind, is_exact, others = None, False, [(self.label, ())]
        self.say(tid)
        checked_shape(self.shape, max(kind.itemsize if kind else 1, 1), self.path, f"dataset {self.label!r}")
        empty = math.prod(self.shape) == 0
        problem = None if empty else self.problem()
        for label, members in others:
            content.add(self.coded(label, members, tid, problem))
        if kind is None:
            return
        source = None
        if is_exact and problem is None and not empty:
            try:
                source = self.extents(kind)
            except FormatError as error:  # only this dataset cannot be read
                problem = error
        elif problem is None and not empty:
            problem = self.decoding_problem(tid)
        if empty or source is not None:
            fields, skipped = self.stored_fields(kind, source or Stored(self.path, 0))
        else:
            fields, skipped = self.decoded_fields(kind, problem)
        for field in fields:
            field.null = self.dataset.shape is None
            content.add(field)
        content.skipped += skipped

    def stored_fields(
        self, kind: np.dtype, source: Stored | Decoded
    ) -> tuple[list[Field], list[tuple[str, str]]]:
        """Fields, and skipped parts, of elements that lie in the file as in memory.

        Booleans are read here and not by the core, which takes all bytes but 0 for true.
        """
        booleans = {label for label, _, leaf, _ in leaves(self.label, kind, (), ()) if leaf.kind == "b"}
        fields, skipped = array_fields(self.label, with_bytes(kind) if booleans else kind, self.shape, source)
        return [self.boolean(f) if f.name in booleans else f for f in fields], skipped

    def boolean(self, numbers: Field) -> Field:
        """The field of booleans of a field of i8."""
        if not numbers.size:
            return replace(numbers, dtype="bool")

        def read(first: int, count: int) -> np.ndarray:
            values = numbers.elements(first, count)
            check_booleans(values, f"dataset {self.label!r}", self.path)
            return values.view(np.bool_)

        checked = decoded(numbers.name, "bool", numbers.size, self.path, read)
        return replace(numbers, dtype="bool", extents=None, read=checked, reads_anywhere=True)

    def say(self, tid: Any) -> None:
        """Adds what HDF5 records about a dataset beside its elements: type, names of an enumeration, fill
        value, …"""
        content, h5t = self.walker.content, self.h5py.h5t
        names = enum_names(self.h5py, tid)
        if names is not None:
            content.say(self.label, "(enum)", names, meaning=True)
        elif tid.get_class() not in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM) or has_unused_bits(h5t, tid):
            content.say(self.label, "(type)", type_text(self.h5py, tid), meaning=True)
        if tid.committed():
            content.say(self.label, "(named type)", type_name(self.h5py, tid))
        if self.dataset.shape is None:
            content.say(self.label, "(shape)", "null")
        elif self.dataset.maxshape != self.dataset.shape:
            content.say(self.label, "(largest shape)", list(self.dataset.maxshape))
        if self.plist.fill_value_defined() == self.h5py.h5d.FILL_VALUE_USER_DEFINED:
            try:
                fill = self.dataset.fillvalue
            except (TypeError, ValueError, OSError, RuntimeError):
                content.skipped.append((f"{self.label}@(fill value)", "a fill value that h5py cannot read"))
            else:
                # 0 is the default
                if np.any(np.asarray(fill) != np.zeros((), np.asarray(fill).dtype)):
                    content.say(
                        self.label, "(fill value)", fill, encode=self.walker.encode, tell=self.walker.shown
                    )

    def coded(self, label: str, members: tuple[str, ...], tid: Any, problem: FormatError | None) -> Field:
        """The field of codes of non-numeric elements, or of a non-numeric member of compound elements."""
        for name in members:
            tid = tid.get_member_type(tid.get_member_index(os.fsencode(name)))
        kind = kind_of_elements(self.h5py, tid)
        if math.prod(self.shape) == 0:
            return Field(label, "u64", "little", self.shape, extents=(), kind=kind)
        if problem is None and tid.detect_class(self.h5py.h5t.REFERENCE) and self.has_no_values():
            message = "neither elements nor fill values were written: it is not defined what its references point at"
            problem = Unsupported(message, where=f"{self.path}: dataset {label!r}")
        if problem is not None:
            new = unreadable(label, "u64", "little", self.shape, problem)
            new.kind = kind
            return new
        chunks = self.dataset.chunks if self.plist.get_layout() == self.h5py.h5d.CHUNKED else None
        walker, elements = self.walker, _Elements(self, label, members, tid)

        def read_box(box: Box) -> np.ndarray:
            part = elements.rows(box)
            return codes(part, walker.encode).reshape([s.stop - s.start for s in box])

        reader = BandReader(
            self.shape, chunks or (1,) * len(self.shape), storage_dtype("u64"), read_box, walker.cache
        )

        def tell(position: int) -> str:
            index = np.unravel_index(position, self.shape) if self.shape else ()
            with reading(self.path, f"dataset {label!r}"), walker.cache.lock:
                return walker.shown(elements.rows(tuple(slice(int(i), int(i) + 1) for i in index))[0])

        uniform = self.never_written()
        read_any = repeated(reader.read) if uniform else reader.read
        read = decoded(label, "u64", math.prod(self.shape), self.path, read_any)
        return Field(
            label, "u64", "little", self.shape, read=read, kind=kind, tell=tell, uniform=uniform,
            reads_anywhere=uniform,
        )  # fmt: skip

    def problem(self) -> FormatError | None:
        """Why the dataset cannot be read, None if it can: a missing filter, external file or virtual
        source."""
        where = f"{self.path}: dataset {self.label!r}"
        for number in range(self.plist.get_nfilters()):
            code, _, _, name = self.plist.get_filter(number)
            if self.h5py.h5z.filter_avail(code):
                continue
            title = (
                f"HDF5 filter {code} ({_FILTERS.get(code) or name.decode('utf-8', 'replace') or 'no name'})"
            )
            try:
                importlib.import_module("hdf5plugin")  # registers its filters
            except ImportError:
                return MissingPackage(
                    f"is compressed with {title}", where=where, fix="run: pip install hdf5plugin"
                )
            if not self.h5py.h5z.filter_avail(code):
                fix = "pip's hdf5plugin lacks it: set HDF5_PLUGIN_PATH, or rewrite the file by h5repack"
                return Unsupported(f"is compressed with {title}", where=where, fix=fix)
        if self.plist.get_layout() == self.h5py.h5d.VIRTUAL:
            return self.walker.virtual_problem(self.dataset, self.path, where)
        for number in range(self.plist.get_external_count()):
            name = os.fsdecode(self.plist.get_external(number)[0])
            if self.beside(name) is None:
                return MissingFile(f"its external file {name!r} is not there", where=where)
        return None

    def decoding_problem(self, tid: Any) -> FormatError | None:
        """Why HDF5 cannot read this dataset's external files correctly, None if it can.

        HDF5 looks for external files in the working folder, and reads zeros past their end.
        """
        if not self.plist.get_external_count():
            return None
        where = f"{self.path}: dataset {self.label!r}"
        misplaced = misplaced_file(self.plist, self.path)
        if misplaced is not None:
            return Unsupported(
                f"its elements need HDF5 itself, which looks for {misplaced!r} in the working folder",
                where=where,
                fix="run in the folder of the file, or set HDF5_EXTFILE_PREFIX to it",
            )
        try:
            self.external(math.prod(self.shape) * tid.get_size())
        except FormatError as error:
            return error
        return None

    def beside(self, name: str) -> str | None:
        """As `file_beside`, for the file of this dataset."""
        return file_beside(name, self.path)

    def extents(self, kind: np.dtype) -> Stored | Decoded | None:
        """Where the elements lie in memory layout, or None if h5py must read them."""
        if self.plist.get_layout() != self.h5py.h5d.CONTIGUOUS or self.plist.get_nfilters():
            return None
        needed = math.prod(self.shape) * kind.itemsize
        if self.plist.get_external_count():
            return self.external(needed)
        stored = self.dataset.id.get_storage_size()
        if stored == 0:
            return None  # nothing is allocated: every element has the fill value
        offset = self.dataset.id.get_offset()
        if offset is None:
            return None
        size = file_size(self.path)
        if stored != needed or offset < 0 or offset + needed > size:
            message = f"dataset {self.label!r} needs {needed} bytes, but has {stored} at {offset} in a file of {size}"
            raise DamagedFile(message, where=self.path)
        return Stored(self.path, offset)

    def never_written(self) -> bool:
        """Whether HDF5 has allocated no space for elements, so that all have the fill value."""
        h5d = self.h5py.h5d
        return (
            self.plist.get_layout() in (h5d.CONTIGUOUS, h5d.CHUNKED)
            and not self.plist.get_external_count()
            and self.plist.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
            and self.dataset.id.get_space_status() == h5d.SPACE_STATUS_NOT_ALLOCATED
            and self.dataset.id.get_storage_size() == 0
        )

    def has_no_values(self) -> bool:
        """Whether HDF5 gives elements nobody wrote as memory holds them: there is no space for any, and the
        file asks for no fill values.
        """
        return self.never_written() and self.plist.get_fill_time() == self.h5py.h5d.FILL_TIME_NEVER

    def external(self, needed: int) -> Stored | Decoded:
        """Where elements in external files lie: one piece of a file, or a function that joins several
        pieces."""
        # First byte, last byte + 1, file, offset in it.
        pieces: list[tuple[int, int, str, int]] = []
        at = 0
        for number in range(self.plist.get_external_count()):
            name, offset, size = self.plist.get_external(number)
            path = self.beside(os.fsdecode(name))
            assert path is not None  # problem() checked it
            self.walker.sources[path] = None
            here = min(int(size), needed - at)
            if here <= 0:
                break
            if offset < 0 or offset + here > file_size(path):
                # HDF5 itself would read zeros there.
                message = (
                    f"ends before byte {offset + here}, which dataset {self.label!r} of {self.path} needs"
                )
                raise DamagedFile(message, where=path)
            pieces.append((at, at + here, path, int(offset)))
            at += here
        if at < needed:
            raise DamagedFile(
                f"dataset {self.label!r}: its external files hold {at} of {needed} bytes", where=self.path
            )
        if len(pieces) == 1:
            return Stored(pieces[0][2], pieces[0][3])

        def read_bytes(first: int, count: int) -> bytes:
            parts = []
            for begin, end, path, offset in pieces:
                low, high = max(first, begin), min(first + count, end)
                if low < high:
                    file, _ = open_regular(path)
                    with file:
                        parts.append(read_exact(file, offset + low - begin, high - low, path, self.label))
            return b"".join(parts)

        return Decoded(self.path, read_bytes)

    def decoded_fields(
        self, kind: np.dtype, problem: FormatError | None
    ) -> tuple[list[Field], list[tuple[str, str]]]:
        """Fields, and skipped parts, of elements that h5py reads."""
        fields: list[Field] = []
        skipped: list[tuple[str, str]] = []
        chunks = self.dataset.chunks if self.plist.get_layout() == self.h5py.h5d.CHUNKED else None
        for label, members, leaf, inner in leaves(self.label, kind, (), ()):
            known = dtype_of(leaf)
            if known is None:  # cannot happen: file_dtype returns only known types
                skipped.append((label, f"elements of type {leaf.name} are not supported"))
                continue
            shape = self.shape + inner
            checked_shape(shape, leaf.itemsize, self.path, f"dataset {label!r}")
            if problem is not None:
                fields.append(unreadable(label, known[0], "little", shape, problem))
                continue
            reader = self.reader(
                members, known[0], shape, (chunks or (1,) * len(self.shape)) + inner, len(inner)
            )
            # The members of an element's array may have several fill values.
            uniform = math.prod(inner) == 1 and self.never_written()
            read_any = repeated(reader.read) if uniform else reader.read
            read = decoded(label, known[0], math.prod(shape), self.path, read_any)
            fields.append(
                Field(
                    label,
                    known[0],
                    "little",
                    shape,
                    read=read,
                    unit=unit_of(leaf),
                    reads_anywhere=uniform or reader.reads_anywhere,
                    uniform=uniform,
                )
            )
        return fields, skipped

    def reader(
        self, members: tuple[str, ...], code: str, shape: tuple[int, ...], chunks: tuple[int, ...], inner: int
    ) -> BandReader:
        """Reads one numeric leaf of the elements.

        inner: number of axes of array elements, the last ones of `shape`.
        """
        dataset, native, walker = self.dataset, storage_dtype(code), self.walker
        if members:
            # Convert only this member; others may have any type.
            dataset = dataset.fields(members[0])

        no_values = self.has_no_values()

        def read_box(box: Box) -> np.ndarray:
            if not walker.file:
                raise FormatError("the file was closed", where=self.path)
            if no_values:  # what HDF5 would give is what memory held
                return np.zeros([s.stop - s.start for s in box], native)
            # The axes of array elements follow those of the dataset. HDF5 always reads them whole.
            outer = box[: len(box) - inner] if box else ()
            self.check_chunks(outer)
            part = np.asarray(dataset[outer])
            for member in members[1:]:
                part = part[member]
            if inner:
                cut: tuple[Any, ...] = (Ellipsis, *box[len(box) - inner :])
                part = part[cut]
            if part.dtype.kind in "mM":
                part = part.view("i8")
            if native.kind == "b":
                check_booleans(part, f"dataset {self.label!r}", self.path)
            return part.astype(native, copy=False)

        return BandReader(shape, chunks, native, read_box, walker.cache)


class _Elements:
    """Reads elements that are not numbers, or such members of compound elements.

    tid: the HDF5 type of the elements, or of the member.
    """

    def __init__(self, owner: Dataset, label: str, members: tuple[str, ...], tid: Any) -> None:
        self._dataset, self._walker, self._h5py, self._path = (
            owner.dataset,
            owner.walker,
            owner.h5py,
            owner.path,
        )
        self._label, self._members, self._tid = label, members, tid
        self._check_chunks = owner.check_chunks
        self._plain = plain_dtype(tid)
        self._file_type = self._type_as_stored()

    def _type_as_stored(self) -> Any:
        """The type that HDF5 reads without conversion; None: h5py reads the elements."""
        if self._plain is None:  # numpy has no such type
            return self._tid
        # h5py cannot convert opaque bytes with a tag.
        if tagged_dtype(self._h5py, self._tid) is None:
            return None
        return nested_type(self._h5py, self._tid, self._members)

    def rows(self, box: Box) -> np.ndarray:
        """The elements of a box, one in each row."""
        if not self._walker.file:
            raise FormatError("the file was closed", where=self._path)
        self._check_chunks(box)
        count = math.prod(s.stop - s.start for s in box)
        return self._by_h5py(box, count) if self._file_type is None else self._as_stored(box, count)

    def _as_stored(self, box: Box, count: int) -> np.ndarray:
        if self._members and self._plain is None:
            raise Unsupported(
                f"member {self._label!r} is of a type that h5py does not read", where=self._path
            )
        part = np.zeros(count, f"V{self._tid.get_size()}")
        space = self._dataset.id.get_space()
        if box:
            space.select_hyperslab(tuple(s.start for s in box), tuple(s.stop - s.start for s in box))
        self._dataset.id.read(self._h5py.h5s.create_simple((count,)), space, part, self._file_type)
        if self._plain is None:
            return part
        found = np.frombuffer(part.tobytes(), np.dtype((self._plain, (1,))))
        return found.reshape(count, *(self._plain.shape or ()))

    def _by_h5py(self, box: Box, count: int) -> np.ndarray:
        members = self._members
        found = self._dataset.fields(members[0])[box] if members else self._dataset[box]
        if not box and not isinstance(found, np.ndarray):
            part = np.empty(1, object)
            part[0] = found
        elif not box:  # a scalar dataset whose element is an array
            part = found.reshape(1, *found.shape)
        else:
            part = np.asarray(found)
            part = part.reshape(count, *part.shape[len(box) :])
        for member in members[1:]:
            part = np.asarray([row[member] for row in part]) if part.dtype == object else part[member]
        return part
