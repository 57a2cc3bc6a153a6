"""One element or one span of a golden check as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .. import _core
from ..words import number

if TYPE_CHECKING:
    from .result import GoldenElement, GoldenField, GoldenSpan

__all__ = ["element_text", "span_text", "tolerance_text"]


def tolerance_text(f: GoldenField) -> str:
    """'1e-09 + 0.5 |a|'."""
    return _core.tolerance_text(_core.Tolerance(f.atol, f.rtol))


def _cells(n: int) -> str:
    return f"{abs(n)} cell{'s' if abs(n) != 1 else ''} {'above' if n > 0 else 'below'}"


def element_text(e: GoldenElement, f: GoldenField) -> str:
    """'x[3, 7] = 0.25: |a-b| is 0.0019 to 0.002 > 0.001 (31 cells below)'."""
    at = f"{f.field}[{', '.join(map(str, e.index))}]" if e.index else f.field
    head = f"{at} = {e.b if isinstance(e.b, str) else repr(e.b)}: "
    if f.kind is not None:  # codes have no distance
        return head + ("is not what it was" if e.verdict == "different" else "may be another than it was")
    if e.cells is None:
        return f"{head}|a-b| > {tolerance_text(f)} (by how much, the golden digests do not tell)"
    if math.isinf(e.at_most):
        return head + (
            "is not what it was" if e.verdict == "different" else "may be another value than it was"
        )
    low, high = number(e.at_least), number(e.at_most)
    said = low if e.at_least == e.at_most else f"about {high}" if low == high else f"{low} to {high}"
    sign = ">" if e.verdict == "different" else "against"
    way = (
        "the golden value lies in the same cell"
        if e.cells == 0
        else f"the golden value lies {_cells(e.cells)}"
    )
    return f"{head}|a-b| is {said} {sign} {tolerance_text(f)} ({way})"


def span_text(s: GoldenSpan, f: GoldenField) -> str:
    """'at least 3 of x[0] to x[2047] differ'."""

    def at(index: tuple[int, ...]) -> str:
        return f"{f.field}[{', '.join(map(str, index))}]" if index else f.field

    where = at(s.first_index) if s.first == s.last else f"{at(s.first_index)} to {at(s.last_index)}"
    if s.verdict == "undecided":
        return f"of {where} any may differ, or none"
    return f"{'' if s.exact and not s.undecided else 'at least '}{s.different} of {where} differ{'s' if s.different == 1 else ''}"
