"""A comparison in one line: its verdict, a tolerance, a difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import one_line
from ..formats.dates import NOT_A_TIME, distance_text, time_text
from ..formats.texts import SUFFIX
from ..words import byte_size, common_length, counted, counted_steps, number

if TYPE_CHECKING:
    from .field import FieldComparison
    from .result import Comparison

__all__ = [
    "INTERRUPTED",
    "cut_where_they_differ",
    "difference_text",
    "exceeded_text",
    "field_repr",
    "first_values",
    "ranked",
    "tolerance_text",
    "values_text",
    "verdict_line",
]

_LONGEST = 200  # characters of a text
_BEFORE = 40  # of them before the place where two texts differ
_MOST_NORMALIZED = 10_000  # characters

INTERRUPTED = "interrupted: "  # how the problem of a comparison begins that Ctrl-C ended


def tolerance_text(f: FieldComparison) -> str:
    """'1e-09 + 0.5 |a|', '4 ulp or 1e-09'."""
    return _core.tolerance_text(_core.Tolerance(f.atol, f.rtol), f.ulps)


def exceeded_text(atol: float, rtol: float, ulps: int | None, difference: float) -> str:
    """A tolerance that `difference` exceeds: `tolerance_text` with as many digits as it takes to be less."""
    said = _core.tolerance_text(_core.Tolerance(atol, rtol), ulps)
    if rtol or not atol:
        return said
    short = f"{atol:.6g}"
    texts = (f"{atol:.{digits}g}" for digits in range(6, 18))
    return said.removesuffix(short) + next((text for text in texts if float(text) < difference), short)


def ranked(c: Comparison) -> bool:
    """Whether ranks are worth a word: rank 0 alone is what runs without ranks have."""
    return any(f.rank != 0 for f in c.fields)


def values_text(a: float | int, b: float | int, diff: float | int) -> str:
    """'0.4667538 against 0.4667436': with the digits in which they differ, and two more."""
    if isinstance(a, float) and isinstance(b, float):
        return _core.values_text(a, b, diff)
    return " against ".join(f"{x:.3g}" if isinstance(x, float) else str(x) for x in (a, b))


def first_values(f: FieldComparison) -> tuple[str, str] | None:
    """Both values of the first element that differs, for a person; None where only digests are known."""
    digests = f.field.endswith(SUFFIX) and not isinstance(f.first_a, str)
    if f.kind is not None and (digests or (f.first_a is None and f.first_b is None)):
        return None
    return _element(f.first_a, f._unit), _element(f.first_b, f._unit)


def cut_where_they_differ(a: str, b: str) -> tuple[str, str]:
    """Two texts, each in a few characters in which one sees the difference.

    >>> cut_where_they_differ("a" * 300 + "b", "a" * 300 + "c")[1][-5:]
    'aaaac'
    """
    if a != b and len(a) + len(b) < _MOST_NORMALIZED:
        from unicodedata import normalize  # few comparisons need it

        if normalize("NFC", a) == normalize("NFC", b):  # they look alike
            a, b = (text.encode("ascii", "backslashreplace").decode() for text in (a, b))
    if a[:_LONGEST] != b[:_LONGEST] or a == b:
        return a[:_LONGEST], b[:_LONGEST]
    begin = common_length(a, b) - _BEFORE
    return f"…{a[begin : begin + _LONGEST]}", f"…{b[begin : begin + _LONGEST]}"


def difference_text(f: FieldComparison, with_rank: bool) -> str:
    """'x[3]: 1 against 2, |a-b| = 1 > 1e-09 (100%)', of the first element of a field that differs."""
    if not f.different_is_exact:
        return (
            f"{f._place(with_rank)}: exact digests of {f.different} of {counted(f.chunks, 'chunk')} differ; "
            "which elements, only the data could say"
        )
    place = f._place(with_rank)
    if f.kind is not None and f.field.endswith(SUFFIX):  # the last index is that of a digest's word
        place = replace(f, first_index=(f.first_index or ())[:-1])._place(with_rank)
    if f.particles is not None:
        if f.first_a is not None and f.first_b is not None:
            return f"{place}: the runs hold this particle not equally often"
        run = "first" if f.first_a is not None else "second"
        return f"{place}: only the {run} run has this particle"
    if f._unit is not None and isinstance(f.first_a, int) and isinstance(f.first_b, int):
        return f"{place}: {_times(f.first_a, f.first_b, f._unit)}"
    if f.kind is not None:
        values = first_values(f)
        return f"{place}: another {f.kind}" if values is None else f"{place}: {' against '.join(values)}"
    diff = f.first_abs_diff
    if isinstance(diff, float) and math.isinf(diff):
        return f"{place}: {_element(f.first_a)} against {_element(f.first_b)}"
    allowed = tolerance_text(f) if diff is None else exceeded_text(f.atol, f.rtol, f.ulps, diff)
    said = _core.distance_text(diff, allowed) if isinstance(diff, float) else number(diff)
    a, b = f.first_a, f.first_b
    if diff is None or a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return f"{place}: |a-b| = {said} > {allowed}"
    if f.ulps is not None and math.isfinite(diff):
        said += _core.ulps_text(f.dtype, a, b)
    return f"{place}: {values_text(a, b, diff)}, |a-b| = {said} > {allowed}{_core.percent_text(a, diff)}"


def _times(a: int, b: int, unit: str) -> str:
    """Two dates or time spans, and how far they are apart: a share of the time since 1970 means nothing."""
    said = f"{time_text(a, unit)} against {time_text(b, unit)}"
    if NOT_A_TIME in (a, b):
        return said
    return f"{said}, {distance_text(abs(a - b), unit)} apart"


def _element(value: float | int | str | None, unit: str | None = None) -> str:
    if unit is not None and isinstance(value, int):
        return time_text(value, unit)
    return value if isinstance(value, str) else number(value)


def _attributes(c: Comparison) -> str:
    """'x@units: 'm' against 'km' (and 2 more)'."""
    first = c.attributes[0]
    where = f"{first.place()}: " if first.step is not None else ""
    more = f" (and {len(c.attributes) - 1} more)" if len(c.attributes) > 1 else ""
    return f"{where}{first.text()}{more}"


def field_repr(f: FieldComparison) -> str:
    """Three lines: which field it is, how much of it differs, and where that begins."""
    place = [] if f.step is None else [f"step {f.step}"]
    place += [f"rank {f.rank}"] if f.rank else []
    at = f" at {', '.join(place)}" if place else ""
    size = f"max |a-b| {'≤' if f.max_abs_diff_is_bound else '='} {number(f.max_abs_diff)}"
    much = f"{f._counted('at least ')} of {counted(f.elements, 'element')} differ{'s' if f.different == 1 else ''}"
    lines = (
        f"<FieldComparison of {f.field}{at}",
        f"  {f.kind or f.dtype}, {much}" + ("" if f.kind is not None else f", {size}"),
        f"  different: first at {difference_text(f, bool(f.rank))}>" if f.different else "  same>",
    )
    return "\n".join(one_line(line, 400) for line in lines)


def verdict_line(c: Comparison) -> str:
    """The last line: `different: first at step 500, rank 3, x[2]: 1.5 against 1.6, |a-b| = 0.1 >
    1e-09 (6.7%)`.

    The rank is left out where the runs have none but rank 0.
    """
    first = c.first
    with_rank = first is not None and (first.rank != 0 or ranked(c))
    if c.problems:
        if first is not None:
            rest = f"what was compared differs, first at {difference_text(first, with_rank)}"
        elif c.attributes:
            rest = f"attributes differ: {_attributes(c)}"
        else:
            rest = "what was compared agrees" if c.fields else "nothing was compared"
        stopped = next((p for p in c.problems if p.startswith(INTERRUPTED)), None)
        if stopped is not None:
            return one_line(f"incomparable: {stopped}; {rest}, nothing is known of the others")
        count = counted(len(c.problems), "thing")
        return one_line(f"incomparable: {count} could not be compared: {c.problems[0]}; {rest}")
    if first is not None:
        also = f"; {counted(len(c.attributes), 'attribute')} too" if c.attributes else ""
        return one_line(f"different: first at {difference_text(first, with_rank)}{also}")
    if c.attributes:
        return one_line(f"different: all elements agree, attributes do not: {_attributes(c)}")
    elements = sum(f.elements for f in c.fields)
    tolerances = {tolerance_text(f) for f in c.fields if f.atol or f.rtol or f.ulps}
    within = (
        f" within {tolerances.pop()}" if len(tolerances) == 1 else " within tolerance" if tolerances else ""
    )
    compared = sum(min(f.elements_read, f.elements) for f in c.fields)
    return (
        f"same: {counted(len({f.field for f in c.fields}), 'field')}, {counted_steps(f.step for f in c.fields)}, {counted(elements, 'element')} "
        f"({byte_size(c.bytes_compared)} a run) agree{within}"
        + _core.proof_text(compared, elements)
        + (f"; {counted(c.attributes_compared, 'attribute')} too" if c.attributes_compared else "")
        + (f"; not compared: {counted(c.not_compared, 'thing')} (see the notes)" if c.not_compared else "")
    )
