"""Brings two fields into one storage order and one type before they are compared.

Users count elements in row-major order, however they are stored. Two fields with the same storage order are
compared in this order; if it is column-major, the core converts the positions that it reports
(difference/column_order.hpp). If the storage orders differ, the column-major field is read in row-major
order.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable
from ..formats.blocks import BandCache, BandReader
from ..formats.element_types import storage_dtype
from ..formats.facts import codes
from ..formats.layout import Decoded
from ..formats.model import Field, decoded
from ..formats.strided import Strided
from .arrays import DeviceArrayView, row_major
from .fields import FieldRef

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "columns_of",
    "in_one_order",
    "in_one_type",
    "in_type",
    "read_by_column",
    "read_by_row",
]

_BAND = 48 << 20  # bytes of a field that are transposed at a time


def ordered(ref: FieldRef) -> bool:
    """Whether the storage order matters: more than one axis is longer than 1."""
    return sum(n > 1 for n in ref.shape) > 1


def columns_of(ref: FieldRef) -> list[int]:
    """The shape of a column-major field, for the core.

    Empty for other fields and if the order does not matter.
    """
    return list(ref.shape) if ref.fortran_order and ordered(ref) else []


def in_one_order(a: FieldRef, b: FieldRef, what: str) -> tuple[FieldRef, FieldRef]:
    """Both fields in one storage order: row-major, unless both are column-major.

    Raises Incomparable where the elements are needed for that, and were not kept. what: names the field.
    """
    if a.fortran_order == b.fortran_order or not ordered(a):
        on_device = all(isinstance(ref.memory, DeviceArrayView) for ref in (a, b))
        # Kernels read strided arrays at no cost, and then report row-major positions.
        return (read_by_row(a), read_by_row(b)) if on_device and columns_of(a) else (a, b)
    by_column, by_row = (a, b) if a.fortran_order else (b, a)
    if by_column.no_data and by_column.items:
        raise Incomparable(
            f"{what}: column-major (Fortran order) in {by_column.where}, of which only digests are kept, and "
            f"row-major (C order) in {by_row.where}",
            fix="compare with the data at hand, or write both in one order",
        )
    return read_by_row(a), read_by_row(b)


def in_one_type(a: FieldRef, b: FieldRef) -> tuple[FieldRef, FieldRef]:
    """Both fields as f64 if they come from text files, with integers in one run and fractions in the
    other. Both as codes if they are characters, which one file gives as bytes.
    """
    if a.dtype == b.dtype:
        return a, b
    for ref in (a, b):
        ref.load()
    if a.characters and b.characters:
        return _as_codes(a), _as_codes(b)
    if not (a.told_as_text and b.told_as_text):
        return a, b
    return _as_f64(a), _as_f64(b)


def in_type(ref: FieldRef, dtype: str) -> FieldRef:
    """A field of numbers from a text file in another type: f64, or integers (1.0 becomes 1).

    Reading raises Incomparable if a number is not an integer. Other fields are returned as they are.
    """
    if ref.dtype == dtype or not ref.told_as_text:
        return ref
    if dtype == "f64":
        return _as_f64(ref)
    if dtype not in ("i64", "u64") or ref.dtype != "f64" or ref.reader is None or ref.reader.read is None:
        return ref
    read = ref.reader.read

    def whole(first: int, count: int) -> np.ndarray:
        values = read(first, count)
        here = np.iinfo(np.int64 if dtype == "i64" else np.uint64)
        fits = (values == np.rint(values)) & (values >= here.min) & (np.abs(values) <= 2.0**53)
        if not fits.all():
            raise Incomparable(
                f"{values[~fits][0]} is not an integer, as the other run has",
                where=ref.where,
                fix="types must agree",
            )
        return values.astype(here.dtype)

    reader = dataclasses.replace(ref.reader, dtype=dtype, read=whole)
    return dataclasses.replace(ref, dtype=dtype, reader=reader, metadata=None)


def _as_f64(ref: FieldRef) -> FieldRef:
    if ref.dtype == "f64" or not isinstance(ref.reader, Field) or ref.reader.read is None:
        return ref
    read = ref.reader.read
    reader = dataclasses.replace(
        ref.reader, dtype="f64", read=lambda first, count: read(first, count).astype(np.float64)
    )
    return dataclasses.replace(ref, dtype="f64", reader=reader, metadata=None)


def _as_codes(ref: FieldRef) -> FieldRef:
    """Characters by their codes. A zero is an empty text, as everywhere where texts have a fixed length."""
    if ref.dtype != "u8" or ref.extents is None:
        return ref
    known: list[np.ndarray] = []

    def read(first: int, count: int) -> np.ndarray:
        if not known:
            known.append(codes([bytes((byte,)).rstrip(b"\0") for byte in range(256)]))
        source = ref.source()
        assert source is not None  # elements in files
        return known[0][_core.read_source(source, first, count)]

    reader = Field(
        ref.name, "u64", sys.byteorder, ref.shape, read=decoded(ref.name, "u64", ref.items, ref.where, read)
    )
    return dataclasses.replace(
        ref, dtype="u64", byte_order=sys.byteorder, extents=None, reader=reader, metadata=None
    )


def read_by_row(ref: FieldRef) -> FieldRef:
    """The field in row-major order: itself, or a view that transposes when it is read.

    The view has no metadata, because the digests of a column-major field cover its elements in storage order.
    """
    if not ref.fortran_order:
        return ref
    row_view = dataclasses.replace(
        ref,
        shape=ref.user_shape,
        place=ref.user_place,
        fortran_order=False,
        metadata=ref.metadata if not ordered(ref) and ref.place is None else None,
    )
    if not ordered(ref) or ref.no_data or not ref.items:
        return row_view
    if ref.memory is not None:
        return dataclasses.replace(row_view, memory=row_major(ref.memory))
    reader = Field(
        ref.name,
        ref.dtype,
        sys.byteorder,
        ref.user_shape,
        read=decoded(ref.name, ref.dtype, ref.items, ref.where, _Transposed(ref).read),
    )
    return dataclasses.replace(
        row_view,
        byte_order=sys.byteorder,
        extents=None,
        recorded=None,
        open_reader=None,
        reader=reader,
        stored=None,
        told_type=ref.told_type if ref.stored is None else ref.type_in_run,
    )


def read_by_column(ref: FieldRef) -> FieldRef:
    """The field in column-major order: itself, or a view that transposes when it is read."""
    if ref.fortran_order:
        return ref
    memory = ref.memory
    if memory is not None:
        memory = dataclasses.replace(memory, fortran_order=True)
    # The columns of the field are the rows of its transpose.
    transpose = read_by_row(dataclasses.replace(ref, fortran_order=True, memory=memory))
    return dataclasses.replace(transpose, fortran_order=True)


class _Transposed:
    """Reads a column-major field in row-major order, a band of rows at a time. Thread-safe.

    The field is opened at the first read.
    """

    def __init__(self, ref: FieldRef) -> None:
        self._ref, self._lock = ref, threading.Lock()
        self._reader: BandReader | None = None

    def read(self, first: int, count: int) -> np.ndarray:
        with self._lock:
            if self._reader is None:
                self._reader = self._open()
        return self._reader.read(first, count)

    def _open(self) -> BandReader:
        ref = self._ref
        source, size, shape = ref.source(), ref.itemsize, ref.user_shape
        assert source is not None  # read_by_row() makes no reader for a field without data

        def read_bytes(offset: int, count: int) -> np.ndarray:
            return _core.read_source(source, offset // size, count // size)

        strides, inner = [], 1
        for n in shape:  # in column-major order the first axis has stride 1
            strides.append(inner)
            inner *= n
        array = Strided(Decoded(ref.where, read_bytes), 0, ref.dtype, sys.byteorder, shape, tuple(strides))
        rows = max(1, min(shape[0], _BAND // max(1, ref.items // shape[0] * size)))
        thick = (rows,) + (1,) * (len(shape) - 1)
        return BandReader(shape, thick, storage_dtype(ref.dtype), array.read_box, BandCache(2 * _BAND))
