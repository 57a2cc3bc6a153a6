"""Fields that ranks hold parts of, as one array: for runs that cut it differently.

Nothing is gathered: elements are put together a stretch at a time, as they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import _core
from .errors import Incomparable
from .formats import Field
from .formats.model import storage_dtype
from .subject import FieldRef

__all__ = ["global_field"]


@dataclass
class _Piece:
    """A box of the global array, as rows that are consecutive both in it and in the part.

    width: elements of a row. outer: sizes of the axes that number rows. strides: of these axes, in elements of the global
    array. base: where row 0 begins in it.
    """

    rank: int
    ref: FieldRef
    offset: tuple[int, ...]
    width: int
    outer: tuple[int, ...]
    strides: tuple[int, ...]
    base: int
    source: _core.Source | None = None

    @property
    def rows(self) -> int:
        return math.prod(self.outer)

    def start(self, row: int) -> int:
        """Where a row begins in the global array. Rises with the row."""
        at = self.base
        for size, stride in zip(reversed(self.outer), reversed(self.strides), strict=True):
            row, i = divmod(row, size)
            at += i * stride
        return at

    def first_row_from(self, element: int) -> int:
        """The first row that begins at or behind an element of the global array."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self.start(middle) < element:
                low = middle + 1
            else:
                high = middle
        return low

    def starts(self, first: int, last: int) -> np.ndarray:
        """Where rows [first, last) begin."""
        rest = np.arange(first, last, dtype=np.int64)
        at = np.full(rest.size, self.base, np.int64)
        for size, stride in zip(reversed(self.outer), reversed(self.strides), strict=True):
            rest, i = np.divmod(rest, size)
            at += i * stride
        return at


def _piece(rank: int, ref: FieldRef) -> _Piece:
    assert ref.place is not None
    whole, offset = ref.place
    axis = len(whole) - 1  # the innermost axis that is cut, and all behind it, make a row
    while axis > 0 and ref.shape[axis] == whole[axis]:
        axis -= 1
    behind = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    base = sum(o * stride for o, stride in zip(offset, behind, strict=True))
    return _Piece(
        rank,
        ref,
        offset,
        math.prod(ref.shape[axis:]),
        tuple(ref.shape[:axis]),
        tuple(behind[:axis]),
        base,
    )


def _check_cover(pieces: Sequence[_Piece], whole: tuple[int, ...], name: str, label: str) -> None:
    """Raises Incomparable unless every element belongs to exactly one part."""
    low = np.array([p.offset for p in pieces], np.int64)
    high = low + np.array([p.ref.shape for p in pieces], np.int64)
    for at in range(len(pieces) - 1):
        overlap = (np.minimum(high[at], high[at + 1 :]) > np.maximum(low[at], low[at + 1 :])).all(axis=1)
        if overlap.any():
            other = pieces[at + 1 + int(overlap.argmax())]
            raise Incomparable(
                f"field {name!r}: ranks {pieces[at].rank} and {other.rank} both hold a part of the global array",
                where=label,
                fix="capture fields without their halo",
            )
    held = sum(p.ref.items for p in pieces)
    if held != math.prod(whole):
        raise Incomparable(
            f"field {name!r}: its {len(pieces)} parts hold {held} of the {math.prod(whole)} elements of the global array",
            where=label,
            fix="is a rank missing?",
        )


def global_field(
    name: str, parts: Sequence[tuple[int, FieldRef]], label: str, cache: str = "auto"
) -> FieldRef:
    """The array that ranks hold parts of, as one field. parts: (rank, field), each with its place.

    Raises Incomparable: a part has no place, or another type or global shape; two parts overlap; elements are missing.
    """
    first = parts[0][1]
    for rank, ref in parts:
        if ref.place is None:
            raise Incomparable(
                f"field {name!r} of rank {rank} has no place in a global array", where=label,
                fix="capture it with its global shape and offset",
            )  # fmt: skip
        same = (ref.dtype, ref.place[0], ref.fortran_order) == (
            first.dtype,
            first.place[0],
            first.fortran_order,
        )  # type: ignore[index]
        if not same:
            raise Incomparable(
                f"field {name!r}: ranks {parts[0][0]} and {rank} disagree on type, order or shape of the global array",
                where=label,
            )
    whole = first.place[0]  # type: ignore[index]
    pieces = [_piece(rank, ref) for rank, ref in parts if ref.items]
    if not whole or math.prod(whole):
        _check_cover(pieces, whole, name, label)
    pieces.sort(key=lambda p: p.base)
    storage = storage_dtype(first.dtype)

    def read(begin: int, count: int) -> np.ndarray:
        out = np.empty(count, storage)
        end = begin + count
        for piece in pieces:
            if piece.base >= end:
                break
            first_row = max(
                piece.first_row_from(begin + 1) - 1, 0
            )  # the row before may reach into the stretch
            if piece.start(first_row) + piece.width <= begin:
                first_row += 1
            last_row = piece.first_row_from(end)
            if first_row >= last_row:
                continue
            starts = piece.starts(first_row, last_row) - begin
            skip = max(0, -int(starts[0]))
            stop = piece.width - max(0, int(starts[-1]) + piece.width - count)
            from_element = first_row * piece.width + skip
            to_element = (last_row - 1) * piece.width + stop
            if piece.source is None:
                piece.source = piece.ref.source(cache)
                if piece.source is None:
                    raise Incomparable(
                        f"field {name!r} of rank {piece.rank}: only its metadata is at hand, and the runs cut it differently",
                        where=piece.ref.where,
                        fix="compare with the data at hand",
                    )
            values = _core.read_source(piece.source, from_element, to_element - from_element).view(storage)
            if last_row - first_row == 1:
                out[int(starts[0]) + skip : int(starts[0]) + stop] = values
                continue
            at = (starts[:, None] + np.arange(piece.width)[None, :]).reshape(-1)
            out[at[skip : at.size - (piece.width - stop)]] = values
        return out

    field = Field(name, first.dtype, "little" if storage.itemsize == 1 else _native(), whole, read=read)
    return FieldRef(
        name,
        first.dtype,
        field.byte_order,
        whole,
        first.fortran_order,
        label,
        reader=field,
        facts=first.facts,
    )


def _native() -> str:
    return "little" if np.little_endian else "big"
