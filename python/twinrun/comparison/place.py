"""One place of both runs: its facts, and the fields of one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence, Set

from ..errors import Incomparable, TwinrunError
from ..formats.element_types import INTEGERS
from ..runs.fields import FieldRef
from ..runs.subject import Opened, Place, Unopened
from .attributes import under_one_name, with_facts_of_files, with_summaries
from .entry import pieces_of_share
from .facts import compare_facts
from .field import FieldComparison
from .lists import Kept, ListedFields, compare_lists
from .matching import StepMatch, at_place, match_fields, names
from .outcome import Outcome
from .pairs import compare_pieces
from .request import Request, Selection

__all__ = ["compare_place", "order_of_lists"]


def compare_place(
    request: Request,
    match: StepMatch,
    ranks: tuple[int, int],
    done: Set[str] = frozenset(),
    share: tuple[int, int] = (0, 1),
    order_is_noted: bool = False,
) -> Outcome:
    """Compares one rank's part of a step. The fields that the runs cut differently remain: see
    `Outcome.recut`.

    ranks: in a and b. done: fields that were compared already. share: (which, of how many) of the fields.
    order_is_noted: particles in another order were noted already.
    """
    found = Outcome()
    kept: Kept | None = None
    step = match.step
    place = (step, ranks[0] if match.step_a is not None else ranks[1])
    wanted = Selection(request, step)
    if share[1] == 1 and not done:
        at_once = compare_lists(
            request,
            match,
            ranks,
            place,
            wanted,
            lambda rest: compare_place(rest, match, ranks, order_is_noted=True),
        )
        if isinstance(at_once, Outcome):
            if not order_is_noted:
                at_once.order = order_of_lists(request, match, ranks, place, _lists_of_integers(at_once))
            at_once.remarks.met = wanted.met()
            return at_once
        kept = at_once
    try:
        with contextlib.ExitStack() as stack:
            in_a = stack.enter_context(request.a.open((match.step_a, ranks[0]), request.use_metadata, False))
            found.remarks.notes_a += in_a.notes
            in_b = stack.enter_context(request.b.open((match.step_b, ranks[1]), request.use_metadata, False))
            found.remarks.notes_b += in_b.notes
            in_a, in_b = with_facts_of_files(in_a, in_b, wanted.leaves_out)
            if request.globs is None:
                in_a, in_b = under_one_name(in_a, in_b)
            in_a, in_b = with_summaries(in_a, in_b)
            _compare_opened(request, match, place, in_a, in_b, wanted, done, share, kept, found)
            if request.key is None and not order_is_noted:
                at = at_place(place, request.a, request.b)
                found.order = _another_order(
                    in_a, in_b, place, at, _lists_of_integers(found), request.settings.memory
                )
    except TwinrunError as error:
        if not request.goes_on:
            raise
        found.problems.append((-1, error))
    found.remarks.met = wanted.met()
    return found


def _compare_opened(
    request: Request,
    match: StepMatch,
    place: Place,
    in_a: Opened,
    in_b: Opened,
    wanted: Selection,
    done: Set[str],
    share: tuple[int, int],
    kept: Kept | None,
    found: Outcome,
) -> None:
    """Compares the fields of a place that is open, and adds to `found` what it finds, also before an error.

    done, share: see `compare_place`. kept: what was compared in lists.
    """
    unopened = [*in_a.unopened, *in_b.unopened]
    if unopened:
        told = _report_unopened(request, match, unopened, wanted, found)
        in_a, in_b = _without_unopened(in_a, in_b, told), _without_unopened(in_b, in_a, told)
    fields = match_fields(
        request.a,
        request.b,
        in_a,
        in_b,
        lambda n: n not in done and wanted(n),
        request.globs is not None,
        place,
        request.settings.by_values,
    )
    found.remarks.notes += fields.notes if share[0] == 0 else []
    for problem in fields.problems:
        found.problems.append((-1, request.kept(problem, match)))
    if share[0] == 0:
        found.add(compare_facts(request, match, ([in_a], [in_b]), place, wanted))
    opened = {id(m): m for pair in fields.pairs for m in (ref.metadata for ref in pair) if m is not None}
    found.remarks.opening = sum(m.bytes_read for m in opened.values())
    mine, found.pairs = pieces_of_share(list(enumerate(fields.pairs)), share, request.settings)
    found.add(compare_pieces(request, match, fields.pairs, mine, place, share[1] == 1, kept))
    if (
        not fields.pairs
        and not fields.recut
        and not fields.problems
        and not done
        and not in_a.skipped
        and not unopened
        and share[0] == 0
        and not found.remarks.attributes_compared  # a file may hold nothing else
        and not _all_skipped(in_a, wanted)
    ):
        at, there = at_place(place, request.a, request.b), [*in_a, *in_b]
        asked = f" that matches {names(map(repr, request.globs))}" if request.globs else " to compare"
        what, fix = f"no field{asked}", _fields_there(request.globs, there)
        if request.globs and any(map(wanted.asks_for, there)):
            what, fix = f"every field{asked} is left out", "ask for another one, or leave out fewer"
        nothing = Incomparable(f"{at}{what}", where=request.a.label, fix=fix)
        if request.globs is None:
            found.problems.append((-1, request.kept(nothing, match)))
        else:  # another step may have it
            found.remarks.nothing.append((place, nothing))
    found.recut = fields.recut


def _report_unopened(
    request: Request, match: StepMatch, unopened: Iterable[Unopened], wanted: Selection, found: Outcome
) -> list[Unopened]:
    """Adds a problem for each file that cannot be opened, but for those that hold nothing that is compared.
    Returns the files that have one.
    """
    told: list[Unopened] = []
    for file in unopened:
        left_out = wanted.skips(file.name or file.label)
        chosen = request.globs is None or any(file.may_match(g) for g in request.globs)
        if chosen and not left_out:
            if str(file.error) not in map(str, (other.error for other in told)):  # of both runs
                found.problems.append((-1, request.kept(file.error, match)))
            told.append(file)
    return told


def _without_unopened(mine: Opened, other: Opened, told: Sequence[Unopened]) -> Opened:
    """A place without what the other one may lack because a file of it cannot be opened.

    told: the files that a problem names. The fields of any other file are missing.
    """

    def may_lack(name: str) -> bool:
        return any(file.holds(name) or (not file.name and file in told) for file in other.unopened)

    made = mine.with_fields({n: f for n, f in mine.items() if n in other or not may_lack(n)})
    if mine.facts is not None and other.facts is not None:
        made.facts = {label: fact for label, fact in mine.facts.items() if label in other.facts}
    return made


def _fields_there(globs: Sequence[str] | None, names: Sequence[str]) -> str:
    """The names of fields that are near those asked for, or the first ones."""
    there = list(dict.fromkeys(names))
    if globs is None or not there:
        return "nothing was compared"
    from difflib import get_close_matches

    near = list(dict.fromkeys(n for g in globs for n in get_close_matches(g, there, 3)))
    said = ", ".join(repr(n) for n in (near or there)[:8])
    more = f" and {len(there) - 8} more" if not near and len(there) > 8 else ""
    return f"did you mean {said}?" if near else f"the fields are: {said}{more}"


def _all_skipped(fields: Iterable[str], wanted: Selection) -> bool:
    skipped = [wanted.skips(n) for n in fields]
    return bool(skipped) and all(skipped)


def _lists_of_integers(found: Outcome) -> list[FieldComparison]:
    """The fields that may be IDs in another order."""
    return [
        f
        for _, one in found.results
        for f in (one.lists_of_integers() if isinstance(one, ListedFields) else [one])
        if isinstance(f, FieldComparison)
    ]


def order_of_lists(
    request: Request,
    match: StepMatch,
    ranks: tuple[int, int],
    place: Place,
    lists: Sequence[FieldComparison],
) -> tuple[int, str] | None:
    """The note about particles whose order changed, after the number of their field; None where
    there is none.

    lists: the fields of a place that were compared in a list and may be IDs.
    """
    if not lists:
        return None
    with (
        request.a.open((match.step_a, ranks[0]), request.use_metadata, False) as in_a,
        request.b.open((match.step_b, ranks[1]), request.use_metadata, False) as in_b,
    ):
        at = at_place(place, request.a, request.b)
        return _another_order(in_a, in_b, place, at, lists, request.settings.memory)


def _another_order(
    in_a: Mapping[str, FieldRef],
    in_b: Mapping[str, FieldRef],
    place: Place,
    at: str,
    results: Iterable[FieldComparison],
    memory: int,
) -> tuple[int, str] | None:
    """The note about particles whose order changed, where no key was given, after the number of their field.

    at: the place, as `at_place` says it.
    """
    names = list(in_a)
    for f in results:
        if (f.step, f.rank) != place or f.same:
            continue
        ref = in_a.get(f.field)
        if ref is None or ref.dtype not in INTEGERS:
            continue
        from .by_id import order_note  # with NumPy

        with contextlib.suppress(TwinrunError):  # only a hint
            note = order_note(in_a, in_b, [f.field], memory)
            if note is not None:
                return names.index(f.field), f"{at}{note}"
    return None
