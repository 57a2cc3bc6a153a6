"""Joins the core's results (`_core.compare`) for disjoint parts of one field into one result.

Parts are ranges of scalars that were compared separately, by ranks of a job for example, or stretches in
another order (particles by their IDs). Counts add up, the first place is the smallest, sums of squares agree
up to rounding. Bytes and seconds are those that the parts took: where two meet, both read the same pages of
metadata.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core

__all__ = ["merged", "ranges_of", "with_places"]

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


def with_places(r: dict, place_of: Callable[[Any], object]) -> dict:
    """A result of the core with other places: `place_of` takes the number of a scalar, and returns something
    ordered.
    """
    return r | {key: None if r[key] is None else place_of(r[key]) for key in _PLACES}


def merged(parts: Sequence[dict], order: Callable[[Any], Any] | None = None) -> dict:
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
    if any(part[key] != first[key] for part in others for key in _ALIKE):
        raise ValueError("parts of one field were compared by different methods")  # a defect of twinrun
    whole = {key: first[key] for key in _ALIKE}
    for key in _ADDED:
        whole[key] = sum(part[key] for part in parts)
    for key in _ADDED_LISTS:
        whole[key] = [sum(column) for column in zip(*(part[key] for part in parts), strict=True)]
    _take(whole, _first(parts, "first", order), ("first", "first_a", "first_b"))
    for largest, with_it in _LARGEST.items():
        most = max(part[largest] for part in parts)
        holders = [part for part in parts if part[largest] == most]
        _take(whole, _first(holders, with_it[0], order), (largest, *with_it))
    whole["max_abs_unread"] = _most([part["max_abs_unread"] for part in parts])
    whole["max_abs"], whole["max_abs_is_bound"] = _core.largest_of_all(
        whole["max_abs_read"], whole["max_abs_unread"]
    )
    # The core warns about the largest value that it sees: a part with smaller values would warn about those.
    _take(whole, max(parts, key=lambda part: part["largest"]), ("largest", "warnings"))
    whole["reason"] = next((part["reason"] for part in parts if part["reason"]), "")
    whole["io"] = next((part["io"] for part in parts if part["io"] not in ("", "none")), first["io"])
    devices = sorted({name for part in parts for name in part["device"].split(", ")})
    whole["device"] = ", ".join(devices)
    # A part without work for a device has no reason for one.
    worked = [part for part in parts if any(part["stages"][s]["ran"] for s in ("sketch", "elements"))]
    on_device = [part for part in worked if part["device"] != "cpu"]
    whole["device_reason"] = (on_device or worked or [first])[0]["device_reason"]
    whole["stages"] = {
        name: {"ran": any(part["stages"][name]["ran"] for part in parts)}
        | {key: sum(part["stages"][name][key] for part in parts) for key in _OF_STAGE}
        for name in first["stages"]
    }
    return whole


def _first(parts: Sequence[dict], place: str, order: Callable[[Any], Any] | None) -> dict:
    """The part with the smallest place; any where none has one."""
    there = [part for part in parts if part[place] is not None]
    if not there:
        return parts[0]
    return min(there, key=lambda part: part[place] if order is None else order(part[place]))


def _take(whole: dict, part: dict, keys: Sequence[str]) -> None:
    whole.update({key: part[key] for key in keys})


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
