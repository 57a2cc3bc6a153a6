"""One entry of a comparison: a field that both runs have at a place, or a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import TwinrunError
from ..formats.element_types import scalars_of
from ..runs.fields import FieldRef
from ..runs.subject import Place
from .field import FieldComparison
from .matching import StepMatch, at_place, labels_of_both
from .outcome import Compared
from .ranges import compare_part, compare_stretches, compare_uniform, divisible, put_together
from .request import Request
from .settings import Settings
from .shares import Piece, owners, pieces
from .words import cut_where_they_differ

__all__ = ["PairSize", "compare_entry", "pieces_of_share"]

PairSize = tuple[str, int, bool]  # of a field pair: name, bytes, whether it is divisible


def pieces_of_share(
    pairs: Sequence[tuple[int, tuple[FieldRef, FieldRef]]], share: tuple[int, int], settings: Settings
) -> tuple[list[Piece], list[PairSize] | None]:
    """The pieces of field pairs that belong to a share; and all pairs, None where there is one share.

    pairs: each with its number, ascending.
    """
    if share[1] == 1:
        return [Piece(at, (0, 1), 0) for at, _ in pairs], None
    every = [(x.name, max(x.items, y.items) * x.itemsize, divisible(x, y, settings)) for _, (x, y) in pairs]
    found = pieces([size for _, size, _ in every], [may for _, _, may in every], share[1])
    mine = owners([piece.bytes for piece in found], share[1])
    return [
        replace(piece, at=pairs[piece.at][0])
        for piece, owner in zip(found, mine, strict=True)
        if owner == share[0]
    ], every


def compare_entry(
    request: Request, match: StepMatch, x: FieldRef, y: FieldRef, place: Place, piece: Piece
) -> Compared:
    """Compares a field, or a part of it."""
    settings = request.settings
    scalars = scalars_of(x.dtype)
    period = settings.period(x, y, place[0])
    try:
        if x.parts is None and (uniform := compare_uniform(x, y, place, settings)) is not None:
            return Compared(piece.at, x.name, result=uniform, period=period)
        ranges = piece.ranges(x.items, x.itemsize, scalars)
        compare_it = compare_part
        if x.parts is not None:
            from .sums import compare_placed as compare_it  # few runs need it
        if ranges is None and x.parts is None:
            part = compare_stretches(x, y, place, settings, request.progress)
        else:
            part = compare_it(x, y, place, settings, ranges, request.progress)
        if ranges is not None:
            return Compared(piece.at, x.name, part=part, period=period)
        result = put_together([part])
        texts = _texts_of(x, y, result)
        if texts is None:
            return Compared(piece.at, x.name, result=result, period=period)
        note = _note_of_texts(request, result, texts)
        told = replace(result, first_a=texts[0], first_b=texts[1])
        return Compared(piece.at, x.name, result=told, note=note, period=period)
    except TwinrunError as error:
        return Compared(piece.at, x.name, problem=request.kept(error, match), period=period)


def _texts_of(x: FieldRef, y: FieldRef, found: FieldComparison) -> tuple[str, str] | None:
    """The first two texts that differ, where the fields hold digests of texts: a digest means nothing to a
    person.
    """
    if found.same or found.first_index is None or x.text is None or y.text is None:
        return None
    try:
        return cut_where_they_differ(x.text(found.first_index), y.text(found.first_index))
    except TwinrunError:  # the verdict stands without them
        return None


def _note_of_texts(request: Request, found: FieldComparison, texts: tuple[str, str]) -> str:
    at = ", ".join(map(str, found.first_index[:-1])) if found.first_index else ""
    name = f"{found.field}[{at}]" if at else found.field
    of_a, of_b = labels_of_both(request.a, request.b)
    at = at_place((found.step, found.rank), request.a, request.b)
    return f"{at}{name} is {texts[0]} in {of_a}, {texts[1]} in {of_b}"
