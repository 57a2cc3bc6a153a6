"""A comparison in one line: its verdict, a tolerance, a difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import one_line
from ..words import byte_size, counted, number

if TYPE_CHECKING:
    from .field import FieldComparison
    from .result import Comparison

__all__ = ["tolerance_text", "verdict_line"]


def tolerance_text(f: FieldComparison) -> str:
    """'1e-09 + 0.5 |a|', '4 ulp or 1e-09'."""
    parts = []
    if f.ulps:
        parts.append(f"{f.ulps} ulp")
    if f.atol == 0 and f.rtol == 0 and not parts:
        return "0"
    if f.atol:
        parts.append(f"{f.atol:g}")
    if f.rtol:
        parts.append(f"{f.rtol:g} |a|")
    return (
        " + ".join(parts)
        if not f.ulps
        else " or ".join([parts[0], *([" + ".join(parts[1:])] if parts[1:] else [])])
    )


def _difference(f: FieldComparison) -> str:
    """'x[3]: |a-b| = 6.5e-09 > 1e-09', of the first element of a field that differs."""
    if f.particles is not None:
        if f.first_a is not None and f.first_b is not None:
            return f"{f.place()}: the runs hold this particle not equally often"
        run = "first" if f.first_a is not None else "second"
        return f"{f.place()}: only the {run} run has this particle"
    if f.kind is not None and f.first_a is None and f.first_b is None:
        return f"{f.place()}: another {f.kind}"
    if f.kind is not None:
        return f"{f.place()}: {_element(f.first_a)} against {_element(f.first_b)}"
    if f._texts is not None and f._texts[0] != f._texts[1]:  # the last index is that of a digest's word
        return f"{replace(f, first_index=(f.first_index or ())[:-1]).place()}: {f._texts[0]} against {f._texts[1]}"
    diff = f.first_abs_diff
    if isinstance(diff, float) and math.isinf(diff):
        return f"{f.place()}: {_element(f.first_a)} against {_element(f.first_b)}"
    allowed = tolerance_text(f)
    said = number(diff)
    if said == allowed and isinstance(diff, float):  # as many digits as it takes to see which is larger
        said = next((t for n in range(4, 18) if (t := f"{diff:.{n}g}") != allowed), repr(diff))
    return f"{f.place()}: |a-b| = {said} > {allowed}"


def _element(value: float | int | str | None) -> str:
    return value if isinstance(value, str) else number(value)


def _attributes(c: Comparison) -> str:
    """'x@units: 'm' against 'km' (and 2 more)'."""
    first = c.attributes[0]
    where = f"{first.place()}: " if first.step is not None else ""
    more = f" (and {len(c.attributes) - 1} more)" if len(c.attributes) > 1 else ""
    return f"{where}{first.text()}{more}"


def verdict_line(c: Comparison) -> str:
    """The last line: `different: first at step 500, rank 0, x[1234, 2]: |a-b| = 6.5e-09 > 1e-09`."""
    first = c.first
    if c.problems:
        if first is not None:
            rest = f"all else differs, first at {_difference(first)}"
        else:
            rest = f"attributes differ: {_attributes(c)}" if c.attributes else "all else agrees"
        count = counted(len(c.problems), "thing")
        return one_line(f"incomparable: {count} could not be compared: {c.problems[0]}; {rest}")
    if first is not None:
        also = f"; {counted(len(c.attributes), 'attribute')} too" if c.attributes else ""
        return one_line(f"different: first at {_difference(first)}{also}")
    if c.attributes:
        return one_line(f"different: all elements agree, attributes do not: {_attributes(c)}")
    elements = sum(f.elements for f in c.fields)
    steps = len({f.step for f in c.fields})
    tolerances = {tolerance_text(f) for f in c.fields if f.atol or f.rtol or f.ulps}
    within = (
        f" within {tolerances.pop()}" if len(tolerances) == 1 else " within tolerance" if tolerances else ""
    )
    share = 50 * c.bytes_read / c.bytes_compared if c.bytes_compared else 0
    return (
        f"same: {counted(len({f.field for f in c.fields}), 'field')}, {counted(steps, 'step')}, {counted(elements, 'element')} "
        f"({byte_size(c.bytes_compared)} a run) agree{within}; read {share:.3g}% of them"
        + (f"; {counted(c.attributes_compared, 'attribute')} too" if c.attributes_compared else "")
        + (f"; not compared: {counted(c.not_compared, 'thing')} (see the notes)" if c.not_compared else "")
    )
