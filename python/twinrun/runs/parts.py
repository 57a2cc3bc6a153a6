"""Fields of which ranks hold parts, as one array: for runs that cut it differently.

Nothing is gathered: elements are joined a stretch at a time, as they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import _core
from ..errors import Incomparable
from ..formats import Field
from ..formats.model import storage_dtype
from .fields import FieldRef
from .order import read_by_row

__all__ = ["Parts", "give_places", "parts_of_both"]


@dataclass
class _Piece:
    """A box of the global array, as rows that are consecutive both in it and in the part.

    width: elements of a row. outer: sizes of the axes that number rows. strides: of these axes, in elements
    of the global array. base: where row 0 begins in it.
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
        """The first row that begins at or after an element of the global array."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self.start(middle) < element:
                low = middle + 1
            else:
                high = middle
        return low

    def starts(self, first: int, last: int) -> np.ndarray:
        """Where the rows [first, last) begin."""
        rest: np.ndarray = np.arange(first, last, dtype=np.int64)
        at = np.full(rest.size, self.base, np.int64)
        for size, stride in zip(reversed(self.outer), reversed(self.strides), strict=True):
            rest, i = np.divmod(rest, size)
            at += i * stride
        return at


def _whole(part: FieldRef) -> tuple[int, ...]:
    """The shape of the array that it is a part of."""
    assert part.place is not None
    return part.place[0]


def _piece(rank: int, ref: FieldRef) -> _Piece:
    assert ref.place is not None
    whole, offset = ref.place
    axis = len(whole) - 1  # the innermost cut axis, and all axes after it, form a row
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
    """Raises Incomparable unless each element belongs to exactly one part."""
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


def _stored_alike(
    sides: Sequence[Sequence[tuple[int, FieldRef]]],
) -> list[list[tuple[int, FieldRef]]]:
    """Parts of both runs in one order of storage, where some lie in both at once (one row is row- and
    column-major).

    Transposed parts lose their metadata, whose sums follow the other order; they keep its tolerance.
    """
    orders = {ref.fortran_order for side in sides for _, ref in side if sum(n > 1 for n in ref.shape) > 1}
    if len(orders) > 1:  # row by row, then
        return [[(rank, read_by_row(ref)) for rank, ref in side] for side in sides]
    wanted = orders.pop() if orders else next((ref.fortran_order for side in sides for _, ref in side), False)
    return [
        [(rank, ref if ref.fortran_order == wanted else _turned(ref)) for rank, ref in side] for side in sides
    ]


def give_places(
    held: Sequence[Mapping[str, list[tuple[int, FieldRef]]]],
) -> list[dict[str, list[tuple[int, FieldRef]]]]:
    """The parts of fields of both runs, by name; a field that one rank holds as a whole has its place in the
    global array of the other run.
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


def _turned(ref: FieldRef) -> FieldRef:
    place = None if ref.place is None else (ref.place[0][::-1], ref.place[1][::-1])
    return replace(
        ref,
        shape=ref.shape[::-1],
        place=place,
        fortran_order=not ref.fortran_order,
        metadata=None,
    )


class Parts:
    """An array of which ranks hold parts. Nothing is gathered: stretches are joined as they are read.

    parts: (rank, field), each with its place. Raises Incomparable: a part has no place, or another type or
    global shape; two parts overlap; elements are missing.
    """

    def __init__(
        self, name: str, parts: Sequence[tuple[int, FieldRef]], label: str, cache: str = "auto"
    ) -> None:
        first = parts[0][1]
        for rank, ref in parts:
            if ref.place is None:
                raise Incomparable(
                    f"field {name!r} of rank {rank} has no place in a global array", where=label,
                    fix="capture it with its global shape and offset",
                )  # fmt: skip
            same = (ref.dtype, _whole(ref), ref.fortran_order, ref.unit) == (
                first.dtype,
                _whole(first),
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
        self.shape = _whole(first)
        pieces = [_piece(rank, ref) for rank, ref in parts if ref.items]
        if 0 not in self.shape:
            _check_cover(pieces, self.shape, name, label)
        pieces.sort(key=lambda p: p.base)
        self._pieces = pieces
        self.storage = storage_dtype(first.dtype)

    @property
    def refs(self) -> list[FieldRef]:
        """The parts that hold elements."""
        return [piece.ref for piece in self._pieces]

    def assemble(
        self, begin: int, out: np.ndarray, fetch: Callable[[_Piece, int, int], np.ndarray]
    ) -> np.ndarray:
        """Fills `out` with elements from `begin` on. `fetch(piece, first, count)` gives those of each part.

        The first axis of `out`, and of fetched arrays, numbers elements.
        """
        count = len(out)
        end = begin + count
        for piece in self._pieces:
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
            values = fetch(piece, from_element, to_element - from_element)
            if last_row - first_row == 1:
                out[int(starts[0]) + skip : int(starts[0]) + stop] = values
                continue
            if skip:  # the stretch begins within the first row
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
        """Residues of elements [begin, begin + count), from the metadata of the parts: uint8, one for each
        scalar.
        """
        pair = 2 if self.first.dtype in ("c64", "c128") else 1

        def fetch(piece: _Piece, first: int, n: int) -> np.ndarray:
            ref = piece.ref
            found = _core.read_residues(ref.need_metadata(), ref.metadata_field, first * pair, n * pair)
            return found.reshape(n, pair)

        return self.assemble(begin, np.empty((count, pair), np.uint8), fetch).reshape(-1)

    def check_data(self) -> None:
        """Raises Incomparable where the elements of a part are not available."""
        for piece in self._pieces:
            if piece.ref.no_data:
                raise Incomparable(
                    f"field {self.name!r} of rank {piece.rank}: only its metadata is at hand, and it cannot decide",
                    where=piece.ref.where,
                    fix="compare with the data at hand",
                )

    def field(self) -> FieldRef:
        """The array as one field."""

        def fetch(piece: _Piece, first: int, n: int) -> np.ndarray:
            if piece.source is None:
                piece.source = piece.ref.source(self.cache)
            assert piece.source is not None  # no source: only metadata is available, which was checked before
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
    """The parts of two runs, in one order of storage.

    held: (rank, field) of each run. Raises what `Parts` raises.
    """
    a, b = _stored_alike(held)
    return Parts(name, a, labels[0], cache), Parts(name, b, labels[1], cache)


def _native() -> str:
    return "little" if np.little_endian else "big"
