"""From a numpy type and a place to fields: dense arrays, and the members of arrays of structs.

Used by every format whose elements lie in memory layout: npy, npz, contiguous HDF5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .model import Extent, Field, Skipped, decoded, dtype_of, gather, read_records, storage_dtype, unit_of

__all__ = ["Decoded", "Stored", "array_fields"]


@dataclass(frozen=True)
class Stored:
    """An array that begins at `offset` of file `path`."""

    path: str
    offset: int


@dataclass(frozen=True)
class Decoded:
    """An array whose bytes come from read_bytes(offset, count), offset counted from its first byte."""

    path: str
    read_bytes: Callable[[int, int], object]


def array_fields(
    name: str, dtype: np.dtype, shape: tuple[int, ...], source: Stored | Decoded, fortran_order: bool = False
) -> tuple[list[Field], Skipped]:
    """Fields and skipped parts of an array of `dtype` in C order of `shape`.

    A struct gives a field `name.member` for each numeric member, strided over the records; a member that is
    itself an array gives a field with its dimensions last. The caller has checked that the bytes exist.
    """
    fields: list[Field] = []
    skipped: Skipped = []
    records = math.prod(shape)

    def leaf(label: str, kind: np.dtype, at: int, inner: tuple[int, ...]) -> None:
        known = dtype_of(kind)
        if known is None:
            skipped.append((label, _reason(kind)))
            return
        if inner and fortran_order:
            skipped.append((label, "array members of a column-major array of structs are not supported"))
            return
        code, order = known
        told = {"fortran_order": fortran_order, "unit": unit_of(kind)}
        whole = shape + inner
        within = math.prod(inner)
        size = records * within
        if size == 0:
            fields.append(Field(label, code, order, whole, extents=(), **told))
            return
        span = kind.itemsize * within  # bytes of this member in a record
        if isinstance(source, Stored) and (within == 1 or span == dtype.itemsize):
            stride = dtype.itemsize if within == 1 else kind.itemsize
            extents = (Extent(source.path, source.offset + at, size, stride),)
            fields.append(Field(label, code, order, whole, extents=extents, **told))
            return

        def read(first: int, count: int) -> np.ndarray:
            start, stop = first // within, -(-(first + count) // within)
            if isinstance(source, Stored):
                offset = source.offset + at + start * dtype.itemsize
                raw = read_records(source.path, offset, dtype.itemsize, stop - start, span)
            else:
                raw = gather(
                    source.read_bytes, at + start * dtype.itemsize, dtype.itemsize, stop - start, span
                )
            skip = first - start * within
            return raw.reshape(-1).view(storage_dtype(code, order))[skip : skip + count]

        reader = decoded(label, code, size, source.path, read)
        fields.append(Field(label, code, order, whole, read=reader, **told))

    def walk(label: str, kind: np.dtype, at: int, inner: tuple[int, ...]) -> None:
        if kind.subdtype is not None:
            base, sizes = kind.subdtype
            walk(label, base, at, inner + sizes)
        elif kind.names is not None:
            if inner:
                skipped.append((label, "an array of structs inside a struct is not supported"))
                return
            for member in kind.names:
                member_dtype, offset = kind.fields[member][:2]  # type: ignore[index]
                walk(f"{label}.{member}", member_dtype, at + offset, ())
        else:
            leaf(label, kind, at, inner)

    if dtype.hasobject:
        skipped.append((name, "Python objects: reading them would run code from the file"))
    else:
        walk(name, dtype, 0, ())
    return fields, skipped


def _reason(kind: np.dtype) -> str:
    if kind.kind in "SU":
        return "text is not compared"
    if kind.kind == "V":
        return f"untyped bytes ({kind.itemsize} an element): the file does not say what they mean"
    return f"elements of type {kind.name} ({8 * kind.itemsize} bits) are not supported"
