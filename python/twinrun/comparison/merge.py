"""What comparing a field, or some of it, found: the core's result, and what its places mean.

Parts are ranges of scalars that were compared separately, by ranks of a job for example, or stretches in
another order (particles by their IDs). The core joins their results (`src/core/engine/merge.hpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .. import _core

__all__ = ["Found", "RowPlace", "Values", "merged", "ranges_of", "with_places"]

Place = Any  # the number of a scalar, or what `with_places` put there: something ordered


class RowPlace(NamedTuple):
    """A scalar of a row that was matched by its ID. scalar: its number in the row."""

    id: int
    scalar: int


class Values(NamedTuple):
    """The elements of both runs at a place: numbers, or texts for people."""

    a: float | int | str | None
    b: float | int | str | None


@dataclass(frozen=True)
class Found:
    """What comparing a field, or some of it, found.

    result: of the core. places: what the places in it mean; None: they are the numbers of scalars.
    readable: the elements at the first difference, where those of `result` are codes, or a run has no value.
    valueless: whether a run has no value where the first difference is, or the farthest. built: what
    building metadata for this comparison took.
    """

    result: _core.FieldResult
    places: dict[int, Place] | None = None
    readable: Values | None = None
    valueless: bool = False
    built: _core.StageFacts | None = None

    @property
    def first(self) -> Place | None:
        """Where the first difference is."""
        return self._meant(self.result.first)

    @property
    def first_values(self) -> Values:
        """The elements there."""
        return self.readable or Values(self.result.first_a, self.result.first_b)

    @property
    def max_abs_at(self) -> Place | None:
        """Where the largest |a - b| of what was read is."""
        return self._meant(self.result.max_abs_at)

    @property
    def max_rel_different_at(self) -> Place | None:
        """Where the largest |a - b| / |a| of what differs is."""
        return self._meant(self.result.max_rel_different_at)

    @property
    def stages(self) -> dict[str, _core.StageFacts]:
        """What each stage did, by its name."""
        own = {"tree": self.result.tree, "sketch": self.result.sketch, "elements": self.result.elements}
        return own if self.built is None else own | {"build": self.built}

    def all_places(self) -> dict[int, Place]:
        """What each place in the result means."""
        if self.places is not None:
            return self.places
        r = self.result
        known = (r.first, r.max_abs_at, r.max_rel_at, r.max_rel_different_at)
        return {at: at for at in known if at is not None}

    def _meant(self, at: int | None) -> Place | None:
        return at if at is None or self.places is None else self.places[at]


def with_places(found: Found, place_of: Callable[[Place], Place]) -> Found:
    """A result with other places: `place_of` takes one of its places, and returns something ordered."""
    return replace(found, places={at: place_of(place) for at, place in found.all_places().items()})


def merged(parts: Sequence[Found], columns: Sequence[int] = ()) -> Found:
    """The result of all parts together.

    parts: at least one, of one field, rule and method. columns: the shape of a column-major array.

    Parts may come in any order, and be joined in groups: the outcome differs only in the rounding of sums,
    and in whose words are kept (why a device was chosen, how files were read). Raises ValueError for parts
    with different methods.
    """
    if len(parts) == 1:
        return parts[0]
    results, places = [part.result for part in parts], None
    if any(part.places is not None for part in parts):  # the core takes numbers in their order
        every = sorted({place for part in parts for place in part.all_places().values()})
        number = {place: at for at, place in enumerate(every)}
        results = [
            part.result.renumbered({at: number[place] for at, place in part.all_places().items()})
            for part in parts
        ]
        places = dict(enumerate(every))
    result = _core.merge_results(results, columns)
    first = [part for part, own in zip(parts, results, strict=True) if own.first == result.first]
    built = [part.built for part in parts if part.built is not None]
    return Found(
        result,
        places,
        readable=None if result.first is None else first[0].readable,
        valueless=any(part.valueless for part in parts),
        built=sum(built[1:], built[0]) if built else None,
    )


def ranges_of(scalars: int, unit: int, parts: int) -> list[tuple[int, int]]:
    """(first, count) of at most so many ranges of about one size, all but the last a multiple of `unit`; they
    cover the field.

    unit: of scalars, a multiple of the core's `range_unit`.
    """
    units = -(-scalars // unit)
    parts = max(1, min(parts, units))
    ends = [min(scalars, units * (k + 1) // parts * unit) for k in range(parts)]
    return [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]
