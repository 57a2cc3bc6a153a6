"""Global arrays whose parts are held by ranks, as one field, for runs that divide the array differently.

The array is never gathered in memory: a range of elements is joined from the parts when it is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable
from ..formats import Field
from ..formats.element_types import scalars_of, storage_dtype
from .fields import FieldRef
from .order import read_by_row

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["Box", "Parts", "give_places", "parts_of_both"]


# The part of a rank: (rank, offset in the global array, shape).
Box = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass
class _Piece:
    """The part of one rank: a box of the global array, as rows that are contiguous both in the part and in
    the array.

    width: elements of a row. outer: sizes of the axes that count rows. strides: strides of these axes, in
    elements of the global array. base: the position of row 0 in the global array.
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
        """The position of a row in the global array. It increases with the row."""
        at = self.base
        for size, stride in zip(reversed(self.outer), reversed(self.strides), strict=True):
            row, i = divmod(row, size)
            at += i * stride
        return at

    def first_row_from(self, element: int) -> int:
        """The first row whose position in the global array is at least `element`."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self.start(middle) < element:
                low = middle + 1
            else:
                high = middle
        return low

    def starts(self, first: int, last: int) -> np.ndarray:
        """The positions of rows [first, last) in the global array: i64."""
        rest: np.ndarray = np.arange(first, last, dtype=np.int64)
        at = np.full(rest.size, self.base, np.int64)
        for size, stride in zip(reversed(self.outer), reversed(self.strides), strict=True):
            rest, i = np.divmod(rest, size)
            at += i * stride
        return at


def _global_shape(part: FieldRef) -> tuple[int, ...]:
    """The shape of the global array of a part."""
    assert part.place is not None
    return part.place[0]


def _piece(rank: int, ref: FieldRef) -> _Piece:
    """Cuts a part into rows that are contiguous both in it and in the global array."""
    assert ref.place is not None
    whole, offset = ref.place
    axis = len(whole) - 1  # the innermost divided axis and all axes after it form a row
    while axis > 0 and ref.shape[axis] == whole[axis]:
        axis -= 1
    strides = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    base = sum(o * stride for o, stride in zip(offset, strides, strict=True))
    return _Piece(
        rank,
        ref,
        offset,
        math.prod(ref.shape[axis:]),
        tuple(ref.shape[:axis]),
        tuple(strides[:axis]),
        base,
    )


def _check_cover(pieces: Sequence[_Piece], whole: tuple[int, ...], name: str, label: str) -> None:
    """Raises Incomparable unless every element of the global array is in exactly one part."""
    low = np.array([p.offset for p in pieces], np.int64)
    high = low + np.array([p.ref.shape for p in pieces], np.int64)
    for at in range(len(pieces) - 1):
        overlap = (np.minimum(high[at], high[at + 1 :]) > np.maximum(low[at], low[at + 1 :])).all(axis=1)
        if overlap.any():
            other = pieces[at + 1 + int(overlap.argmax())]
            raise Incomparable(
                f"field {name!r}: ranks {pieces[at].rank} and {other.rank} both hold some elements of the global array",
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


def _stored_alike(
    sides: Sequence[Sequence[tuple[int, FieldRef]]],
) -> list[list[tuple[int, FieldRef]]]:
    """The parts of both runs in one storage order.

    A part with at most one axis longer than 1 has both orders at once. If the orders of other parts differ,
    all are read in row-major order. Parts whose order changes lose their metadata, because its sums cover the
    other order.
    """
    orders = {ref.fortran_order for side in sides for _, ref in side if sum(n > 1 for n in ref.shape) > 1}
    if len(orders) > 1:
        return [[(rank, read_by_row(ref)) for rank, ref in side] for side in sides]
    order = orders.pop() if orders else next((ref.fortran_order for side in sides for _, ref in side), False)
    return [
        [(rank, ref if ref.fortran_order == order else _transposed(ref)) for rank, ref in side]
        for side in sides
    ]


def give_places(
    held: Sequence[Mapping[str, list[tuple[int, FieldRef]]]],
) -> list[dict[str, list[tuple[int, FieldRef]]]]:
    """Gives a place to fields that one rank holds as a whole, if they are global arrays in the other run.

    held: for each run, {name: [(rank, field)]}. Returns the same with places.
    """
    made = [dict(side) for side in held]
    for mine, other in (made, made[::-1]):
        for name, parts in mine.items():
            places = [ref.user_place for _, ref in other.get(name, ())]
            shapes = {place[0] for place in places if place is not None}
            if len(parts) != 1 or parts[0][1].place is not None or shapes != {parts[0][1].user_shape}:
                continue
            rank, ref = parts[0]
            mine[name] = [(rank, replace(ref, place=(ref.shape, (0,) * len(ref.shape))))]
    return made


def _transposed(ref: FieldRef) -> FieldRef:
    """A part with at most one axis longer than 1 in the other storage order. Its elements stay in place."""
    place = None if ref.place is None else (ref.place[0][::-1], ref.place[1][::-1])
    return replace(
        ref,
        shape=ref.shape[::-1],
        place=place,
        fortran_order=not ref.fortran_order,
        metadata=None,
    )


class Parts:
    """A global array whose parts are held by ranks. Ranges of elements are joined from the parts when they
    are read.

    parts: (rank, field), each with its place. Raises Incomparable if a part has no place, or another type,
    unit, order or global shape than the first part; if two parts overlap; or if elements are missing.
    """

    def __init__(
        self, name: str, parts: Sequence[tuple[int, FieldRef]], label: str, cache: str = "auto"
    ) -> None:
        first = parts[0][1]
        for rank, ref in parts:
            if ref.place is None:
                raise Incomparable(
                    f"field {name!r} of rank {rank} has no place in a global array", where=label,
                    fix="capture it with its global shape and its offset in it",
                )  # fmt: skip
            same = (ref.dtype, _global_shape(ref), ref.fortran_order, ref.unit) == (
                first.dtype,
                _global_shape(first),
                first.fortran_order,
                first.unit,
            )
            if not same:
                raise Incomparable(
                    f"field {name!r}: ranks {parts[0][0]} and {rank} disagree on type, unit, order or shape of the global array",
                    where=label,
                )
        self.name, self.label, self.cache, self.first = name, label, cache, first
        self.count = len(parts)
        self.shape = _global_shape(first)
        pieces = [_piece(rank, ref) for rank, ref in parts if ref.items]
        if 0 not in self.shape:
            _check_cover(pieces, self.shape, name, label)
        pieces.sort(key=lambda p: p.base)
        self._pieces = pieces
        self.storage = storage_dtype(first.dtype)

    @property
    def boxes(self) -> list[Box]:
        """Which rank holds what: (rank, offset, shape), as the user knows them."""
        turn = slice(None, None, -1 if self.first.fortran_order else 1)
        return [(p.rank, tuple(p.offset[turn]), tuple(p.ref.shape[turn])) for p in self._pieces]

    @property
    def refs(self) -> list[FieldRef]:
        """The parts that hold elements."""
        return [piece.ref for piece in self._pieces]

    def assemble(
        self, begin: int, out: np.ndarray, fetch: Callable[[_Piece, int, int], np.ndarray]
    ) -> np.ndarray:
        """Fills `out` with elements from position `begin` on, and returns it.

        fetch: `fetch(piece, first, count)` returns elements of a part. The first axis of `out`, and of
        fetched arrays, counts elements.
        """
        count = len(out)
        end = begin + count
        for piece in self._pieces:
            if piece.base >= end:
                break
            # The last row that begins at or before `begin` may extend into the range.
            first_row = max(piece.first_row_from(begin + 1) - 1, 0)
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
            values = fetch(piece, from_element, to_element - from_element)
            if last_row - first_row == 1:
                out[int(starts[0]) + skip : int(starts[0]) + stop] = values
                continue
            if skip:  # the range begins within the first row
                n = piece.width - skip
                out[:n] = values[:n]
                values, starts = values[n:], starts[1:]
            if stop < piece.width:
                out[int(starts[-1]) : int(starts[-1]) + stop] = values[len(values) - stop :]
                values, starts = values[: len(values) - stop], starts[:-1]
            _core.put_rows(
                out.reshape(-1).view(np.uint8),
                np.ascontiguousarray(values).reshape(-1).view(np.uint8),
                starts.astype(np.uint64),
                out.nbytes // max(len(out), 1),
            )
        return out

    def residues(self, begin: int, count: int) -> np.ndarray:
        """Residues of elements [begin, begin + count), from the metadata of the parts: u8, one for each
        scalar."""
        pair = scalars_of(self.first.dtype)

        def fetch(piece: _Piece, first: int, n: int) -> np.ndarray:
            ref = piece.ref
            found = _core.read_residues(ref.need_metadata(), ref.metadata_field, first * pair, n * pair)
            return found.reshape(n, pair)

        return self.assemble(begin, np.empty((count, pair), np.uint8), fetch).reshape(-1)

    def check_data(self, why: str = "") -> None:
        """Raises Incomparable if the elements of a part are not available. why: they are needed."""
        for piece in self._pieces:
            if piece.ref.no_data:
                raise Incomparable(
                    f"field {self.name!r} of rank {piece.rank}: only its metadata is available, and it cannot decide"
                    + (f": {why}" if why else ""),
                    where=piece.ref.where,
                    fix="compare with the data at hand",
                )

    def field(self) -> FieldRef:
        """The array as one field."""

        def fetch(piece: _Piece, first: int, n: int) -> np.ndarray:
            if piece.source is None:
                piece.source = piece.ref.source(self.cache)
            assert piece.source is not None  # check_data() was called before
            return _core.read_source(piece.source, first, n).view(self.storage)

        def read(begin: int, count: int) -> np.ndarray:
            return self.assemble(begin, np.empty(count, self.storage), fetch)

        byte_order = "little" if self.storage.itemsize == 1 else _native()
        return FieldRef(
            self.name,
            self.first.dtype,
            byte_order,
            self.shape,
            self.first.fortran_order,
            self.label,
            reader=Field(
                self.name,
                self.first.dtype,
                byte_order,
                self.shape,
                read=read,
                reads_anywhere=all(ref.reads_anywhere for ref in self.refs),
            ),
            facts=self.first.facts,
            unit=self.first.unit,
            parts=self,
        )


def parts_of_both(
    name: str,
    held: Sequence[Sequence[tuple[int, FieldRef]]],
    labels: tuple[str, str],
    cache: str = "auto",
) -> tuple[Parts, Parts]:
    """The global array of each of two runs, in one storage order.

    held: for each run, (rank, field). labels: names of the runs, for messages. Raises Incomparable as
    `Parts`.
    """
    a, b = _stored_alike(held)
    return Parts(name, a, labels[0], cache), Parts(name, b, labels[1], cache)


def _native() -> str:
    return "little" if np.little_endian else "big"
