"""Fields whose parts are cut differently over the ranks of the two runs: compared as global arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ..errors import Incomparable, TwinrunError, Unmatched
from ..runs.fields import FieldRef, check_alike
from ..runs.order import in_one_order
from ..runs.parts import give_places, parts_of_both
from ..runs.subject import Place
from ..runs.values import are_comparable, by_values, castable, in_common_type
from .entry import compare_entry, pieces_of_share
from .facts import compare_facts
from .matching import StepMatch, at_place, fields_named, lost, missing_ranks
from .outcome import Outcome
from .ranks import OpenStep
from .request import Request, Selection
from .shares import Piece

__all__ = ["compare_global_arrays"]

_Held = Mapping[str, Sequence[tuple[int, FieldRef]]]  # (rank, part) of each field of a run
# A field pair, or why there is none.
_Entry = tuple[Place, "tuple[FieldRef, FieldRef] | TwinrunError"]


def compare_global_arrays(
    request: Request,
    match: StepMatch,
    only: Set[str] | None = None,
    done: Set[str] = frozenset(),
    share: tuple[int, int] = (0, 1),
) -> Outcome:
    """Compares fields that the runs' ranks cut differently, as the global arrays that they are parts of.

    only: these fields; by default all fields of the step, and its facts. done, share: as of `compare_place`.
    """
    found = Outcome()
    wanted = Selection(request, match.step)
    step = OpenStep(request, match)
    try:
        with step as sides:
            if only is None and share[0] == 0:
                said_a, said_b = ([fields for _, fields in side] for side in sides)
                found.add(compare_facts(request, match, (said_a, said_b), (match.step, 0), wanted))
            held: list[dict[str, list[tuple[int, FieldRef]]]] = [{}, {}]
            for mine_of, side in zip(held, sides, strict=True):
                for rank, fields in side:
                    for name, ref in fields.items():
                        if name not in done and wanted(name) and (only is None or name in only):
                            mine_of.setdefault(name, []).append((rank, ref))
            entries, scattered = _entries(request, match, give_places(held), rank_by_rank=only is None)
            pairs = [(at, e) for at, (_, e) in enumerate(entries) if not isinstance(e, TwinrunError)]
            of_share, found.pairs = pieces_of_share(pairs, share, request.settings)
            mine: dict[int, list[Piece]] = {}
            for piece in of_share:
                mine.setdefault(piece.at, []).append(piece)
            for at, (place, entry) in enumerate(entries):
                if isinstance(entry, TwinrunError):
                    found.problems.append((at, request.kept(entry, match)))
                    continue
                for piece in mine.get(at, ()):
                    found.add_entry(compare_entry(request, match, *entry, place, piece))
            if scattered:
                # Not Unmatched: `common` must not leave out a rank that one run lost.
                lacking = "; ".join(map(str, missing_ranks(match, request.a, request.b)))
                problem = Incomparable(f"{fields_named(scattered)}: {lacking}")
                found.problems.append((len(entries), request.kept(problem, match)))
    except TwinrunError as error:
        if not request.goes_on:
            raise
        found.problems.append((-1, error))
    found.remarks.notes_a, found.remarks.notes_b = step.notes_a, step.notes_b
    found.remarks.met = wanted.met()
    return found


def _entries(
    request: Request, match: StepMatch, held: Sequence[_Held], rank_by_rank: bool
) -> tuple[list[_Entry], list[str]]:
    """The field pairs to compare; and fields that could only be compared rank by rank, on ranks that only one
    run has.

    rank_by_rank: fields that are no parts of global arrays may be paired by rank.
    """
    scattered: list[str] = []
    entries: list[_Entry] = []
    for name in dict.fromkeys((*held[0], *held[1])):
        parts = [*held[0].get(name, ()), *held[1].get(name, ())]
        everywhere = all(name in side for side in held)
        if not everywhere:
            # Of ranks that the other run has, or it lost one at least with what only that rank has.
            alone = [[rank] for rank, ref in parts if ref.place is None]
            ranks = [rank for rank, _ in parts]
            if any(lost(match, some, name in held[0]) for some in (ranks, *alone)):
                scattered.append(name)
                continue
        if rank_by_rank and everywhere and any(ref.place is None for _, ref in parts):
            of_a, of_b = (dict(side[name]) for side in held)
            if set(of_a) != set(of_b):
                scattered.append(name)
                continue
            # the same ranks of both runs have it: numbers of a header, for example
            for rank in of_a:
                place = (match.step, rank)
                entries.append((place, _pair_at(request, place, of_a[rank], of_b[rank])))
            continue
        try:
            entries.append(((match.step, 0), _global_pair(request, match, name, held)))
        except TwinrunError as error:
            entries.append(((match.step, 0), error))
    return entries, scattered


def _global_pair(
    request: Request, match: StepMatch, name: str, held: Sequence[_Held]
) -> tuple[FieldRef, FieldRef]:
    """A field of both runs as global arrays.

    held: its parts. Raises TwinrunError where the parts do not fit together.
    """
    labels = (request.a.label, request.b.label)
    at = at_place((match.step, 0), request.a, request.b)
    for side, label in zip(held, labels, strict=True):
        if name not in side:
            raise Unmatched(f"{at}field {name!r}: not there", where=label)
    sides: list[Sequence[tuple[int, FieldRef]]] = [side[name] for side in held]
    if request.settings.by_values:
        sides = [*in_common_type(sides)]
    parts = parts_of_both(name, sides, labels, request.settings.cache)
    x, y = (of_run.field() for of_run in parts)
    may_cast = not request.settings.by_values and castable(x.dtype, y.dtype)
    what = f"{at}field {name!r}"
    check_alike(x, y, what, *labels, castable=may_cast)
    return in_one_order(x, y, what)


def _pair_at(
    request: Request, place: Place, x: FieldRef, y: FieldRef
) -> tuple[FieldRef, FieldRef] | TwinrunError:
    """A field of one rank of both runs, or why it cannot be compared."""
    try:
        at = at_place(place, request.a, request.b)
        values = request.settings.by_values
        if values:
            x, y = by_values(x, y)
        mixed = values and are_comparable(x.dtype, y.dtype)
        may_cast = not values and castable(x.dtype, y.dtype)
        what = f"{at}field {x.name!r}"
        check_alike(x, y, what, request.a.label, request.b.label, mixed, may_cast)
        return in_one_order(x, y, what)
    except TwinrunError as error:
        return error
