"""What the files of a place have beside their elements: compared, or reported where they cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..runs.subject import Opened, Place
from .attributes import match_attributes, uncompared
from .matching import StepMatch
from .outcome import Outcome
from .request import Request, Selection

__all__ = ["compare_facts", "uncompared_things"]


def compare_facts(
    request: Request,
    match: StepMatch,
    opened: tuple[Sequence[Opened], Sequence[Opened]],
    place: Place,
    wanted: Selection,
) -> Outcome:
    """Compares what the files of a place say beside their elements, and reports what in them cannot be
    compared.
    """
    sides = [[e for o in held for e in o.skipped] for held in opened]
    found = uncompared_things(request, sides, wanted, match)
    facts = match_attributes(
        request.a,
        request.b,
        opened,
        place,
        wanted=wanted,
        left_out=wanted.leaves_out,
        ignored=lambda label: (request.by_time and label == "@time") or wanted.ignores(label),
        named=request.globs is not None,
        common=request.common,
    )
    if facts.problem is not None:
        found.problems.append((-1, request.kept(facts.problem, match)))
    found.remarks.attributes += facts.differences
    found.remarks.attributes_compared += facts.compared
    found.remarks.notes += facts.notes
    return found


def uncompared_things(
    request: Request,
    sides: Iterable[Iterable[tuple[str, str, str]]],
    wanted: Selection,
    match: StepMatch | None = None,
) -> Outcome:
    """Reports what cannot be compared. sides: of both runs, what it is: see `Opened.skipped`."""
    found = Outcome()
    for problem in uncompared(sides, wanted):
        found.remarks.left_out += 1
        if problem is not None:
            found.problems.append((-1, request.kept(problem, match)))
    return found
