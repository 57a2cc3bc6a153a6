"""The parts of a comparison. Each can run anywhere and in any order; together they are the whole comparison.

    unit      one place (step, rank) of both runs; or a whole step, where related data lies on several ranks
              (particles matched by ID, fields cut differently)
    share     of a unit: some of its fields, and ranges of fields that are larger than a share

What they find is joined in the order of units (outcome), so that a shared comparison reports the
same as a serial one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import _core
from ..runs.subject import Place
from .matching import StepMatch
from .merge import ranges_of

__all__ = [
    "LEAST_PIECE",
    "Piece",
    "Unit",
    "largest_first",
    "owners",
    "pieces",
    "shares_by_size",
]

# The smallest range in bytes that is worth a unit of its own, and the unit of ranges: see
# `merge.ranges_of`.
LEAST_PIECE = _core.RANGE_BYTES


@dataclass(frozen=True)
class Unit:
    """A part of a comparison.

    ranks: of the place in a and b; None for the whole step. share: (which, of how many) of the unit's fields.
    recut: the fields to compare as global arrays, after the places of the step; else None. entries_a,
    entries_b: facts of the places, for processes that do not have them. stamps: of the places of
    both runs, for processes that open the runs themselves.
    """

    index: int  # among the units, in the order of the serial comparison
    match: StepMatch
    ranks: tuple[int, int] | None = None
    share: tuple[int, int] = (0, 1)
    recut: tuple[str, ...] | None = None
    entries_a: dict[Place, object] = field(default_factory=dict)
    entries_b: dict[Place, object] = field(default_factory=dict)
    stamps: tuple[str, str] = ("", "")

    def places(self) -> tuple[list[Place], list[Place]]:
        """The places of both subjects."""
        if self.ranks is not None:
            return [(self.match.step_a, self.ranks[0])], [(self.match.step_b, self.ranks[1])]
        return (
            [(self.match.step_a, rank) for rank in self.match.ranks_a],
            [(self.match.step_b, rank) for rank in self.match.ranks_b],
        )


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
