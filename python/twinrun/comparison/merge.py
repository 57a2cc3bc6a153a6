"""Joins the core's results (`_core.compare`) for disjoint parts of one field into one result.

Parts are ranges of scalars that were compared separately, by ranks of a job for example, or stretches in
another order (particles by their IDs). Counts add up, the first place is the smallest, sums of squares agree
up to rounding. Bytes and seconds are those that the parts took: where two meet, both read the same pages of
metadata.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .. import _core

__all__ = ["Found", "merged", "ranges_of", "with_places"]


@dataclass
class Found:
    """What comparing a field, or some of its ranges, found: named as `_core.FieldResult` names it.

    Places (first, …_at) are scalars' numbers, or what a caller put there (`with_places`); values of elements are numbers, or
    what they say to people.
    """

    method: str
    reason: str
    io: str
    device: str
    device_reason: str
    device_seconds: float
    scalars: int
    chunks: int
    different: int
    infinite: int
    scalars_read: int
    first: Any
    first_a: Any
    first_b: Any
    max_abs: float
    max_abs_is_bound: bool
    max_abs_unread: float
    max_abs_read: float
    max_abs_at: Any
    max_abs_a: Any
    max_abs_b: Any
    max_rel_read: float
    max_rel_at: Any
    max_rel_different: float
    max_rel_different_at: Any
    sum_squares: float
    sum_squares_different: float
    largest: float
    histogram: list[int]
    histogram_different: list[int]
    proven_by_tree: int
    proven_by_cells: list[int]
    cell: float
    coarse_cell: float
    stages: dict[str, dict]
    warnings: list[str]

    @classmethod
    def of(cls, result: _core.FieldResult) -> Found:
        """As the core says it."""
        return cls(**{name: getattr(result, name) for name in _NAMES})


_NAMES = tuple(part.name for part in fields(Found))

# How the values of parts are joined, by key of the core's result; `stages` is separate.
_ALIKE = ("method", "cell", "coarse_cell")  # the same in all parts
_ADDED = (
    "scalars",
    "chunks",
    "different",
    "infinite",
    "scalars_read",
    "sum_squares",
    "sum_squares_different",
    "proven_by_tree",
    "device_seconds",
)
_ADDED_LISTS = ("histogram", "histogram_different", "proven_by_cells")
# A maximum, its place, and what goes with that place.
_LARGEST = {
    "max_abs_read": ("max_abs_at", "max_abs_a", "max_abs_b"),
    "max_rel_read": ("max_rel_at",),
    "max_rel_different": ("max_rel_different_at",),
}
_PLACES = ("first", *(with_it[0] for with_it in _LARGEST.values()))
_OF_STAGE = ("chunks_in", "chunks_out", "bytes_read", "seconds")


def with_places(found: Found, place_of: Callable[[Any], object]) -> Found:
    """A result with other places: `place_of` takes the number of a scalar, and returns something ordered."""
    moved = replace(found)
    for name in _PLACES:
        if (at := getattr(found, name)) is not None:
            setattr(moved, name, place_of(at))
    return moved


def merged(parts: Sequence[Found], order: Callable[[Any], Any] | None = None) -> Found:
    """The result of all parts together.

    parts: at least one, of one field, settings and method. order: what places are ordered by, if not by
    themselves.

    Parts may come in any order, and be joined in groups: the outcome differs only in the rounding of sums,
    and in whose words are kept (why a device was chosen, how files were read). Raises ValueError for parts
    with different methods.
    """
    first, *others = parts
    if not others:
        return first
    if any(getattr(part, name) != getattr(first, name) for part in others for name in _ALIKE):
        raise ValueError("parts of one field were compared by different methods")  # a defect of twinrun
    whole = replace(first)
    for name in _ADDED:
        setattr(whole, name, sum(getattr(part, name) for part in parts))
    for name in _ADDED_LISTS:
        columns = zip(*(getattr(part, name) for part in parts), strict=True)
        setattr(whole, name, [sum(column) for column in columns])
    _take(whole, _first(parts, "first", order), ("first", "first_a", "first_b"))
    for largest, with_it in _LARGEST.items():
        most = max(getattr(part, largest) for part in parts)
        holders = [part for part in parts if getattr(part, largest) == most]
        _take(whole, _first(holders, with_it[0], order), (largest, *with_it))
    whole.max_abs_unread = _most([part.max_abs_unread for part in parts])
    whole.max_abs, whole.max_abs_is_bound = _core.largest_of_all(whole.max_abs_read, whole.max_abs_unread)
    # The core warns about the largest value that it sees: a part with smaller values would warn about those.
    _take(whole, max(parts, key=lambda part: part.largest), ("largest", "warnings"))
    whole.reason = next((part.reason for part in parts if part.reason), "")
    whole.io = next((part.io for part in parts if part.io not in ("", "none")), first.io)
    whole.device = ", ".join(sorted({name for part in parts for name in part.device.split(", ")}))
    # A part without work for a device has no reason for one.
    worked = [part for part in parts if any(part.stages[s]["ran"] for s in ("sketch", "elements"))]
    on_device = [part for part in worked if part.device != "cpu"]
    whole.device_reason = (on_device or worked or [first])[0].device_reason
    whole.stages = {
        name: {"ran": any(part.stages[name]["ran"] for part in parts)}
        | {key: sum(part.stages[name][key] for part in parts) for key in _OF_STAGE}
        for name in first.stages
    }
    return whole


def _first(parts: Sequence[Found], place: str, order: Callable[[Any], Any] | None) -> Found:
    """The part with the smallest place; any where none has one."""
    there = [part for part in parts if getattr(part, place) is not None]
    if not there:
        return parts[0]
    at = operator.attrgetter(place)
    return min(there, key=at if order is None else lambda part: order(at(part)))


def _take(whole: Found, part: Found, names: Sequence[str]) -> None:
    for name in names:
        setattr(whole, name, getattr(part, name))


def _most(values: Sequence[float]) -> float:
    """The largest; NaN (no bound is known) where one is."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def ranges_of(scalars: int, unit: int, parts: int) -> list[tuple[int, int]]:
    """(first, count) of at most so many ranges of about one size, all but the last a multiple of `unit`; they
    cover the field.

    unit: of scalars, a multiple of the core's `range_unit`.
    """
    units = -(-scalars // unit)
    parts = max(1, min(parts, units))
    ends = [min(scalars, units * (k + 1) // parts * unit) for k in range(parts)]
    return [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]
