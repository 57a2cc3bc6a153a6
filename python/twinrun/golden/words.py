"""One element or one span of a golden check as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .. import _core
from ..comparison.words import exceeded_text, values_text
from ..formats.dates import NOT_A_TIME, distance_text, time_text
from ..formats.texts import SUFFIX
from ..words import number
from .result import brackets

if TYPE_CHECKING:
    from .result import GoldenElement, GoldenField, GoldenSpan

__all__ = ["distance", "element_text", "largest_text", "span_text", "tolerance_text"]


def tolerance_text(f: GoldenField) -> str:
    """'1e-09 + 0.5 |a|', '4 ulp or 1e-09'."""
    parts = [f"{f.atol:g}"] if f.atol or not (f.rtol or f.ulps) else []
    said = " + ".join([*parts, f"{f.rtol:g} |a|"] if f.rtol else parts)
    return " or ".join(t for t in (f"{f.ulps} ulp" if f.ulps else "", said) if t)


def _told(value: float | int | str, f: GoldenField) -> str:
    if f.unit is not None and isinstance(value, int):
        return time_text(value, f.unit)
    return value if isinstance(value, str) else repr(value)


def _index(index: tuple[int, ...], f: GoldenField) -> tuple[int, ...]:
    """An index without that of a digest's word, where elements are digests of texts."""
    return index[:-1] if f.kind is not None and f.field.endswith(SUFFIX) else index


def distance(value: float, f: GoldenField) -> str:
    """A |a - b| of this field: '0.0019', '3 days'."""
    if f.unit is None or not math.isfinite(value):
        return number(value)
    return distance_text(int(value), f.unit)


def largest_text(f: GoldenField) -> str:
    """The largest |a - b| of a field, for a table: '0.0019', '≤ 0.0019', 'at least 0.0019', '?'; '' where
    elements have no distance.
    """
    if f.kind is not None:
        return ""
    if f.unit is not None and any(NOT_A_TIME in (e.a, e.b) for e in f.listed):
        return "NaT"
    if math.isinf(f.at_least):
        return "inf"
    if f.at_most is not None and math.isfinite(f.at_most):
        return ("≤ " if f.at_most > f.at_least else "") + distance(f.at_most, f)
    return f"at least {distance(f.at_least, f)}" if f.at_least else "?"


def _of_times(e: GoldenElement, head: str, f: GoldenField, unit: str) -> str:
    """'t[0] = 2020-01-02, was 2020-01-01: |a-b| = 1 day > 0', of dates and spans whose values are kept."""
    assert isinstance(e.a, int) and isinstance(e.b, int)
    said = f"{head}, was {time_text(e.a, unit)}"
    if NOT_A_TIME in (e.a, e.b):
        return said
    return f"{said}: |a-b| = {distance_text(abs(e.a - e.b), unit)} > {tolerance_text(f)}"


def element_text(e: GoldenElement, f: GoldenField) -> str:
    """'x[3, 7] = 0.25, was 0.2519: |a-b| = 0.0019 > 0.001'; of digests 'x[3, 7] = 0.25: |a-b| is 0.0019 to
    0.002 > 0.001'.
    """
    at = f"{f.field}{brackets(_index(e.index, f), e.id)}"
    different = e.verdict == "different"
    if f.kind is not None and f.field.endswith(SUFFIX) and not isinstance(e.b, str):  # digests say nothing
        return f"{at}: another {f.kind}" if different else f"{at} may be another {f.kind}"
    head = f"{at} = {_told(e.b, f)}"
    if e.a is not None:
        if f.unit is not None and not isinstance(e.b, str):
            return _of_times(e, head, f, f.unit)
        if not isinstance(e.b, str):
            was, now = values_text(e.a, e.b, 0.0 if math.isinf(e.at_most) else e.at_most).split(" against ")
            head = f"{at} = {now}, was {was}"
        if f.kind is not None or math.isinf(e.at_most):
            return head
        allowed = exceeded_text(f.atol, f.rtol, f.ulps, e.at_most)
        said = _core.distance_text(e.at_most, allowed)
        if f.ulps is not None and isinstance(e.a, float) and isinstance(e.b, float):
            said += _core.ulps_text(f.dtype, e.a, e.b)
        return f"{head}: |a-b| = {said} > {allowed}"
    head += ": "
    none = f.kind is not None or (f.unit is not None and e.b == NOT_A_TIME)  # codes and NaT have no distance
    if none or (math.isinf(e.at_most) and (e.cells is not None or e.at_least == 0)):
        value = "" if none else " value"
        return head + ("is not what it was" if different else f"may be another{value} than it was")
    if math.isinf(e.at_least):  # NaN or infinite
        return f"{head}was another value, and {_told(e.b, f)} is within the tolerance of no other"
    if e.cells is None:
        said, allowed = distance(e.at_least, f), tolerance_text(f)
        if e.at_least <= f.atol or said == allowed:  # no more is known than that it differs
            return f"{head}|a-b| is more than {allowed}"
        return f"{head}|a-b| is at least {said} > {allowed}"
    low, high = distance(e.at_least, f), distance(e.at_most, f)
    said = low if e.at_least == e.at_most else f"about {high}" if low == high else f"{low} to {high}"
    sign = ">" if different else "against"
    way = f", the golden value is {'larger' if e.cells > 0 else 'smaller'}" if e.cells else ""
    return f"{head}|a-b| is {said} {sign} {tolerance_text(f)}{way}"


def span_text(s: GoldenSpan, f: GoldenField) -> str:
    """'at least 3 of x[0] to x[2047] differ'."""

    def at(index: tuple[int, ...]) -> str:
        return f.field + brackets(_index(index, f))

    where = (
        at(s.first_index)
        if at(s.first_index) == at(s.last_index)
        else f"{at(s.first_index)} to {at(s.last_index)}"
    )
    if s.verdict == "undecided":
        return f"of {where} any may differ, or none"
    return f"{'' if s.exact and not s.undecided else 'at least '}{s.different} of {where} differ{'s' if s.different == 1 else ''}"
