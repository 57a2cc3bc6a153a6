"""One element or one span of a golden check as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..comparison.words import values_text
from ..words import number
from .result import brackets

if TYPE_CHECKING:
    from .result import GoldenElement, GoldenField, GoldenSpan

__all__ = ["element_text", "span_text", "tolerance_text"]


def tolerance_text(f: GoldenField) -> str:
    """'1e-09 + 0.5 |a|', '4 ulp or 1e-09'."""
    parts = [f"{f.atol:g}"] if f.atol or not (f.rtol or f.ulps) else []
    said = " + ".join([*parts, f"{f.rtol:g} |a|"] if f.rtol else parts)
    return " or ".join(t for t in (f"{f.ulps} ulp" if f.ulps else "", said) if t)


def _told(value: float | int | str) -> str:
    return value if isinstance(value, str) else repr(value)


def element_text(e: GoldenElement, f: GoldenField) -> str:
    """'x[3, 7] = 0.25, was 0.2519: |a-b| = 0.0019 > 0.001'; of digests 'x[3, 7] = 0.25: |a-b| is 0.0019 to
    0.002 > 0.001'.
    """
    at = f"{f.field}{brackets(e.index, e.id)}"
    head = f"{at} = {_told(e.b)}"
    different = e.verdict == "different"
    if e.a is not None:
        if not isinstance(e.b, str):
            was, now = values_text(e.a, e.b, 0.0 if math.isinf(e.at_most) else e.at_most).split(" against ")
            head = f"{at} = {now}, was {was}"
        if f.kind is not None or math.isinf(e.at_most):
            return head
        allowed = tolerance_text(f)
        said = number(e.at_most)
        if said == allowed:  # as many digits as it takes to see which is larger
            said = next((t for n in range(4, 18) if (t := f"{e.at_most:.{n}g}") != allowed), repr(e.at_most))
        return f"{head}: |a-b| = {said} > {allowed}"
    head += ": "
    if f.kind is not None:  # codes have no distance
        return head + ("is not what it was" if different else "may be another than it was")
    if e.cells is None:
        return f"{head}|a-b| is at least {number(e.at_least)} > {tolerance_text(f)}"
    if math.isinf(e.at_most):
        return head + ("is not what it was" if different else "may be another value than it was")
    low, high = number(e.at_least), number(e.at_most)
    said = low if e.at_least == e.at_most else f"about {high}" if low == high else f"{low} to {high}"
    sign = ">" if different else "against"
    way = f", the golden value is {'larger' if e.cells > 0 else 'smaller'}" if e.cells else ""
    return f"{head}|a-b| is {said} {sign} {tolerance_text(f)}{way}"


def span_text(s: GoldenSpan, f: GoldenField) -> str:
    """'at least 3 of x[0] to x[2047] differ'."""

    def at(index: tuple[int, ...]) -> str:
        return f"{f.field}[{', '.join(map(str, index))}]" if index else f.field

    where = at(s.first_index) if s.first == s.last else f"{at(s.first_index)} to {at(s.last_index)}"
    if s.verdict == "undecided":
        return f"of {where} any may differ, or none"
    return f"{'' if s.exact and not s.undecided else 'at least '}{s.different} of {where} differ{'s' if s.different == 1 else ''}"
