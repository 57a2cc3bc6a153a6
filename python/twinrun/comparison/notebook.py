"""Results as HTML for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import one_line
from ..markup import render
from ..words import exact, number
from .words import first_values, tolerance_text, verdict_line

if TYPE_CHECKING:
    from .field import FieldComparison
    from .result import Comparison

__all__ = ["comparison_html", "field_html"]

_ROWS = 15
_NOTES = 5
_LONGEST = 200  # characters of the place of a field
_COLOURS = {"same": "#2c7a3d", "different": "#c4382c", "incomparable": "#9a6700"}


@dataclass
class _List:
    """Texts, of which the first are shown. attribute: where all are."""

    title: str
    texts: list[str]
    attribute: str
    shown: int = _NOTES


def comparison_html(c: Comparison) -> str:
    """The HTML of a comparison: the verdict, what could not be compared, the fields that differ."""
    shown = (
        c.fields
        if len(c.fields) <= _ROWS
        else [*(f for f in c.fields if not f.same), *(f for f in c.fields if f.same)]
    )
    rows = [
        (
            "" if f.step is None else f.step,
            f.rank,
            f.field,
            f._counted(),
            f"{f.elements:,}",
            "" if f.kind is not None else ("≤ " if f.max_abs_diff_is_bound else "") + number(f.max_abs_diff),
            number(f.max_rel_diff) if f.different and f.kind is None and f.different_is_exact else "",
            tolerance_text(f),
        )
        for f in shown[:_ROWS]
    ]
    return render(
        "comparison/notebook.html.j2",
        verdict=c.verdict,
        colour=_COLOURS[c.verdict],
        said=verdict_line(c).removeprefix(c.verdict),
        lists=[
            _List("Not compared", c.problems, ".problems"),
            _List("Attributes that differ", [d.text() for d in c.attributes], ".attributes"),
        ],
        head=("step", "rank", "field", "different", "of", "max |a − b|", "max rel", "tolerance"),
        rows=rows,
        left_out=len(c.fields) - len(rows),
    )


def field_html(f: FieldComparison) -> str:
    """The HTML of one field."""
    word = "same" if f.same else "different"
    rows: list[tuple] = [
        ("different", f"{f._counted()} of {f.elements:,}"),
        ("tolerance", tolerance_text(f)),
    ]
    if not f.same:
        rows.append(("first", f.place()))
        if f.kind is None and f.different_is_exact:
            rows += [("a", exact(f.first_a)), ("b", exact(f.first_b))]
        elif (known := first_values(f)) is not None:
            rows += [("a", known[0]), ("b", known[1])]
    if f.kind is None:
        bound = "at most " if f.max_abs_diff_is_bound else ""
        rows += [] if f.same or not f.different_is_exact else [("|a − b|", number(f.first_abs_diff))]
        rows += [
            ("max |a − b|", bound + number(f.max_abs_diff)),
            ("RMS of what differs", number(f.rms_diff)),
        ]
    rows += [("type, shape", f"{f.kind or f.dtype} {list(f.shape)}"), ("method", f"{f.method} on {f.device}")]
    at = f.place() if f.same else f.field
    return render(
        "comparison/notebook.html.j2",
        verdict=word,
        colour=_COLOURS[word],
        said=f": {one_line(at, _LONGEST)}",
        lists=[],
        head=("", ""),
        rows=rows,
        left_out=0,
    )
