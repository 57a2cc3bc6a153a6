"""The parts of a comparison. Each can run anywhere and in any order; together they are the whole comparison.

    unit      one place (step, rank) of both runs; or a whole step, where related data lies on several ranks
              (particles matched by ID, fields cut differently)
    share     of a unit: some of its fields, and ranges of fields that are larger than a share
    outcome   the result of a share, and its side effects (notes of subjects, rules that matched)

Outcomes are joined in the order of units, so that a shared comparison reports the same as a serial one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import _core
from ..errors import Stale, TwinrunError
from ..runs.subject import Place
from .attributes import AttributeDifference
from .field import FieldComparison, FieldPart, put_together
from .matching import StepMatch
from .merge import ranges_of

__all__ = [
    "LEAST_PIECE",
    "Outcome",
    "Piece",
    "Unit",
    "in_shares",
    "largest_first",
    "owners",
    "pieces",
    "shares_by_size",
]

# The smallest range in bytes that is worth a unit of its own, and the unit of ranges: see `merge.ranges_of`.
LEAST_PIECE = _core.RANGE_BYTES


@dataclass
class Unit:
    """A part of a comparison.

    ranks: of the place in a and b; None for the whole step. share: (which, of how many) of the unit's fields.
    recut: the fields to compare as global arrays, after the places of the step; else None. entries_a,
    entries_b: facts of the places, for processes that do not have them.
    """

    index: int  # among the units, in the order of the serial comparison
    match: StepMatch
    ranks: tuple[int, int] | None = None
    share: tuple[int, int] = (0, 1)
    recut: tuple[str, ...] | None = None
    entries_a: dict[Place, object] = field(default_factory=dict)
    entries_b: dict[Place, object] = field(default_factory=dict)

    def places(self) -> tuple[list[Place], list[Place]]:
        """The places of both subjects."""
        if self.ranks is not None:
            return [(self.match.step_a, self.ranks[0])], [(self.match.step_b, self.ranks[1])]
        return (
            [(self.match.step_a, rank) for rank in self.match.ranks_a],
            [(self.match.step_b, rank) for rank in self.match.ranks_b],
        )


@dataclass
class Outcome:
    """The result of a unit, or of a share of it.

    problems_at: the number of the field pair that each problem belongs to, -1 for the place itself;
    results_at: the same for results. parts: ranges of fields that several shares divide, with the number of
    the field pair. order: (field pair, note) where particles only lie in another order. recut: fields that
    remain because the runs cut them differently. attributes, attributes_compared: those that differ, and how
    many were compared. notes_a, notes_b, left_out: of the subjects. rules: what the rules of tolerances
    matched, missed and skipped. error: the error that ended the share.
    """

    results: list[FieldComparison] = field(default_factory=list)
    results_at: list[int] = field(default_factory=list)
    problems: list[TwinrunError] = field(default_factory=list)
    problems_at: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: tuple[int, str] | None = None
    opening: int = 0
    keyed: set[str] = field(default_factory=set)
    recut: list[str] = field(default_factory=list)
    notes_a: list[str] = field(default_factory=list)
    notes_b: list[str] = field(default_factory=list)
    left_out: tuple[int, int] = (0, 0)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0
    rules: tuple = ()
    periodic: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error: Exception | None = None
    pairs: list[tuple[str, int, bool]] | None = (
        None  # of a share: all field pairs of the unit, their bytes, whether they are divisible
    )
    parts: list[tuple[int, FieldPart]] = field(default_factory=list)

    def keep_places(self, at: int, results: int, problems: int) -> None:
        """Assigns the results and problems without a field pair to pair `at`.

        results, problems: how many there are now.
        """
        self.results_at += [at] * (results - len(self.results_at))
        self.problems_at += [at] * (problems - len(self.problems_at))


def in_shares(outcomes: Sequence[Outcome], where: str = "") -> Outcome:
    """Joins the outcomes of the shares of one unit.

    What every share meets (opening) counts once. where: the place.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    first = outcomes[0]
    whole = Outcome(
        opening=first.opening, recut=first.recut, notes=first.notes,
        notes_a=first.notes_a, notes_b=first.notes_b, left_out=first.left_out,
        attributes=first.attributes, attributes_compared=first.attributes_compared,
    )  # fmt: skip
    divided: dict[int, list[FieldPart]] = {}
    for at, part in (found for o in outcomes for found in o.parts):
        divided.setdefault(at, []).append(part)
    problems = [(at, p) for o in outcomes for at, p in zip(o.problems_at, o.problems, strict=True)]
    said: set[int | str] = set()
    for at, problem in sorted(problems, key=lambda pair: pair[0]):
        once = (
            at if at >= 0 else str(problem)
        )  # a field has one problem, although several shares had parts of it
        if once not in said:
            whole.problems.append(problem)
        said.add(once)
    seen = [o.pairs for o in outcomes if o.pairs is not None]
    changed = any(pairs != seen[0] for pairs in seen)
    if changed:  # each share then left fields to shares that did not have them
        whole.problems.append(Stale("was changed while it was compared", where=where, fix="compare again"))
    results = [(at, f) for o in outcomes for at, f in zip(o.results_at, o.results, strict=True)]
    # A share that failed has no ranges: its error is reported, and the field has no result.
    if not changed and len(seen) == len(outcomes):
        results += [(at, put_together(parts)) for at, parts in divided.items() if at not in said]
    whole.results = [f for _, f in sorted(results, key=lambda pair: pair[0])]
    whole.order = min((o.order for o in outcomes if o.order is not None), default=None)
    whole.rules = tuple(_union(o.rules[i] for o in outcomes if o.rules) for i in range(3))
    for outcome in outcomes:
        whole.periodic |= outcome.periodic
        whole.error = whole.error or outcome.error
    return whole


def _union(sets):
    return list(dict.fromkeys(x for s in sets for x in s))


def shares_by_size(sizes: Sequence[int], wanted: int) -> list[int]:
    """How many shares each unit is cut into, by its size.

    sizes: bytes, of both runs. wanted: shares of all units together.
    """
    goal = max(2 * LEAST_PIECE, sum(sizes) // wanted)
    return [max(1, min(wanted, size // goal)) for size in sizes]


@dataclass(frozen=True)
class Piece:
    """A field pair, or one of several parts of it.

    at: its number. part: (which, of how many). bytes: of one run, about.
    """

    at: int
    part: tuple[int, int]
    bytes: int

    def ranges(self, items: int, itemsize: int, scalars: int) -> list[tuple[int, int]] | None:
        """(first scalar, count) of this part of a field; None for the whole field. scalars: of an item."""
        which, of = self.part
        return None if of == 1 else [ranges_of(items * scalars, LEAST_PIECE // itemsize * scalars, of)[which]]


def pieces(sizes: Sequence[int], divisible: Sequence[bool], shares: int) -> list[Piece]:
    """The field pairs in order, large ones in parts. Every rank gets the same result. sizes: bytes."""
    limit = max(LEAST_PIECE, -(-sum(sizes) // shares))
    found = []
    for at, (size, may) in enumerate(zip(sizes, divisible, strict=True)):
        of = max(1, -(-size // limit)) if may else 1
        found += [Piece(at, (k, of), size // of) for k in range(of)]
    return found


def owners(sizes: Sequence[int], shares: int) -> list[int]:
    """The share of each piece: the largest first, to the share with the fewest bytes.

    Every rank gets the same result.
    """
    loads = [(0, share) for share in range(shares)]
    found = [0] * len(sizes)
    for at in largest_first(sizes):
        load, share = heapq.heappop(loads)
        found[at] = share
        heapq.heappush(loads, (load + sizes[at] + 1, share))
    return found


def largest_first(sizes: Sequence[int]) -> list[int]:
    """Positions of the sizes, largest first; equal sizes in their order."""
    return sorted(range(len(sizes)), key=lambda at: -sizes[at])
