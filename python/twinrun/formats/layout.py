"""Fields of an array with a numpy type whose elements have the layout of memory: dense arrays, and arrays of
structs.

Used by npy, npz, contiguous HDF5 datasets and others. Non-numeric elements such as text become fields of
codes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .element_types import ITEMSIZE, dtype_of, storage_dtype, unit_of
from .facts import title_of
from .files import file_size, files_below
from .model import Extent, Field, FileContent, Skipped, coded, decoded
from .records import gather, read_records

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["Decoded", "Stored", "array_fields", "bytes_field", "kind_of", "plain_field", "say_type"]


@dataclass(frozen=True)
class Stored:
    """An array that begins at `offset` of file `path`."""

    path: str
    offset: int


@dataclass(frozen=True)
class Decoded:
    """An array whose bytes are decoded: `read_bytes(offset, count)`, with offset 0 at the array's first
    byte."""

    path: str
    read_bytes: Callable[[int, int], object]


def array_fields(
    name: str, dtype: np.dtype, shape: tuple[int, ...], source: Stored | Decoded, fortran_order: bool = False
) -> tuple[list[Field], Skipped]:
    """Fields, and skipped parts, of an array of `dtype` in C order of `shape`.

    An array of structs becomes one field `name.member` for each member. A numeric member is strided over the
    records; if it is itself an array, its dimensions are the last axes of the field. A non-numeric member
    becomes a field of codes, one for each record. The caller has checked that all bytes exist.
    """
    if dtype.hasobject:
        return [], [(name, "Python objects: reading them would run code from the file")]
    records = _Records(dtype, shape, source, fortran_order)
    records.add(name, dtype, 0, ())
    return records.fields, []


class _Records:
    """An array of structs, or of single numbers: `fields` gets a field for each member."""

    def __init__(
        self, dtype: np.dtype, shape: tuple[int, ...], source: Stored | Decoded, fortran_order: bool
    ) -> None:
        self._dtype, self._shape, self._source = dtype, shape, source
        self._fortran_order = fortran_order
        self.fields: list[Field] = []

    def add(self, label: str, kind: np.dtype, at: int, inner: tuple[int, ...]) -> None:
        """Adds a member. at: its first byte in a record. inner: the shape of the array that it is in."""
        if kind.subdtype is not None:
            base, sizes = kind.subdtype
            self.add(label, base, at, inner + sizes)
        elif kind.names is None:
            self._add_leaf(label, kind, at, inner)
        elif inner or not kind.names:  # a struct without members still has a shape to compare
            self._add_coded(label, np.dtype((kind, inner)) if inner else kind, at)
        else:
            for member in kind.names:
                member_dtype, offset = kind.fields[member][:2]  # type: ignore[index]
                self.add(f"{label}.{member}", member_dtype, at + offset, ())

    def _bytes(self, at: int, first: int, count: int, size: int) -> np.ndarray:
        """Bytes `at` to `at + size` of records from `first` on."""
        source, item = self._source, self._dtype.itemsize
        place = at + first * item
        if isinstance(source, Stored):
            return read_records(source.path, source.offset + place, item, count, size)
        return gather(source.read_bytes, place, item, count, size)

    def _add_coded(self, label: str, kind: np.dtype, at: int) -> None:
        def rows(first: int, count: int) -> np.ndarray:
            if kind.itemsize == 0:  # texts of length 0
                return np.zeros(count, kind)
            raw = self._bytes(at, first, count, kind.itemsize)
            if kind.subdtype is None:
                return raw.reshape(-1).view(kind)
            base, sizes = kind.subdtype
            return raw.reshape(-1).view(base).reshape(count, *sizes)

        new = coded(label, kind_of(kind), self._shape, self._source.path, rows)
        new.fortran_order = self._fortran_order
        self.fields.append(new)

    def _add_leaf(self, label: str, kind: np.dtype, at: int, inner: tuple[int, ...]) -> None:
        known = dtype_of(kind)
        if known is None or (inner and self._fortran_order):
            self._add_coded(label, np.dtype((kind, inner)) if inner else kind, at)
            return
        code, order = known
        within = math.prod(inner)
        size = math.prod(self._shape) * within
        field = functools.partial(
            Field,
            label,
            code,
            order,
            self._shape + inner,
            fortran_order=self._fortran_order,
            unit=unit_of(kind),
        )
        if size == 0:
            self.fields.append(field(extents=()))
            return
        item, source = self._dtype.itemsize, self._source
        span = kind.itemsize * within  # bytes of this member in a record
        if isinstance(source, Stored) and (within == 1 or span == item):
            stride = item if within == 1 else kind.itemsize
            self.fields.append(field(extents=(Extent(source.path, source.offset + at, size, stride),)))
            return

        def read(first: int, count: int) -> np.ndarray:
            start, stop = first // within, -(-(first + count) // within)
            raw = self._bytes(at, start, stop - start, span)
            skip = first - start * within
            return raw.reshape(-1).view(storage_dtype(code, order))[skip : skip + count]

        self.fields.append(field(read=decoded(label, code, size, source.path, read)))


def plain_field(
    name: str, kind: tuple[str, str], shape: tuple[int, ...], source: Stored, fortran_order: bool = False
) -> Field:
    """The field that `array_fields` makes of a stored array of numbers, made without NumPy. kind:
    type and byte order.
    """
    size, itemsize = math.prod(shape), ITEMSIZE[kind[0]]
    extents = (Extent(source.path, source.offset, size, itemsize),) if size else ()
    return Field(name, *kind, shape, extents=extents, fortran_order=fortran_order)


def bytes_field(name: str, source: Stored | Decoded, size: int, kind: str = "bytes") -> Field:
    """A field of u8 for bytes that cannot be interpreted, or not safely. They always compare exactly."""
    if isinstance(source, Stored):
        extents = (Extent(source.path, source.offset, size, 1),) if size else ()
        return Field(name, "u8", "little", (size,), extents=extents, kind=kind)
    read = decoded(
        name,
        "u8",
        size,
        source.path,
        lambda first, count: np.frombuffer(source.read_bytes(first, count), np.uint8),  # type: ignore[call-overload]
    )
    return Field(name, "u8", "little", (size,), read=read, kind=kind)


def add_others(content: FileContent, folder: str, known: Callable[[str], bool]) -> None:
    """For a data set that is a folder: adds each file that is not part of the format, as bytes under its
    relative path.

    known: `known(relative_path)` returns whether a file is part of the format.
    """
    for relative, path in files_below(folder):
        if known(relative):
            continue
        if not os.path.isfile(path):
            reason = "a link that leads nowhere" if os.path.islink(path) else "not a regular file"
            content.skipped.append((relative, reason))
            continue
        add_other(content, relative, Stored(path, 0), file_size(path))


def add_other(content: FileContent, name: str, source: Stored | Decoded, size: int) -> None:
    """Adds a file or archive member that is not part of the format, as bytes, with a note."""
    content.add(bytes_field(f"./{name}" if name in content.fields else name, source, size))
    content.notes.append(f"{name} is compared as bytes: {content.format} has no such file")
    content.one_array = False


def say_type(content: FileContent, name: str, dtype: np.dtype) -> None:
    """Adds as a fact what a numpy type states and its fields do not: the width of texts, the order of a
    struct's members."""
    if dtype.names is not None:
        content.say(name, "(members)", _members(dtype))
    elif dtype.kind in "SU" and dtype.itemsize:
        content.say(name, "(type)", f"{dtype.kind}{dtype.itemsize // np.dtype(dtype.kind + '1').itemsize}")


def _members(dtype: np.dtype) -> list[object]:
    """The members of a struct in order: names; with them nested members, the width of texts, and titles."""
    found: list[object] = []
    for name in dtype.names or ():
        kind = dtype.fields[name][0].base  # type: ignore[index]
        member: list[object] = [name]
        if kind.names is not None:
            member.append(_members(kind))
        elif kind.kind in "SU":
            member.append(kind.str[1:])
        if (title := title_of(dtype, name)) is not None:
            member.append({"title": title})
        found.append(member if len(member) > 1 else name)
    return found


def kind_of(dtype: np.dtype) -> str:
    """The kind of elements for which the core has no type, for `Field.kind`: 'text', 'struct', …"""
    if dtype.subdtype is not None:
        return f"array of {kind_of(dtype.subdtype[0])}"
    if dtype.names is not None:
        return "struct"
    return {"S": "text (bytes)", "U": "text", "V": "bytes"}.get(dtype.kind, dtype.newbyteorder("=").name)
