"""Results as HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..words import escaped, exact, number
from .words import tolerance_text, verdict_line

if TYPE_CHECKING:
    from .field import FieldComparison
    from .result import Comparison

__all__ = ["comparison_html", "field_html"]

_ROWS = 15
_NOTES = 5
_HEAD = "text-align:left;font-weight:600;padding:2px 10px 2px 0"
_CELL = "text-align:left;padding:2px 10px 2px 0"
_COLOURS = {"same": "#2c7a3d", "different": "#c4382c", "incomparable": "#9a6700"}


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    heads = "".join(f'<th scope="col" style="{_HEAD}">{escaped(h)}</th>' for h in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(v)}</td>' for v in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def comparison_html(c: Comparison) -> str:
    """The HTML of a comparison: the verdict, what could not be compared, the fields that differ."""
    said = escaped(verdict_line(c).removeprefix(c.verdict), 700)
    parts = [f'<div><p><b style="color:{_COLOURS[c.verdict]}">{c.verdict}</b>{said}</p>']
    if c.problems:
        lines = "".join(f"<li>{escaped(p, 400)}</li>" for p in c.problems[:_NOTES])
        more = (
            f"<li>and {len(c.problems) - _NOTES} more in .problems</li>" if len(c.problems) > _NOTES else ""
        )
        parts.append(f"<p>Not compared:</p><ul>{lines}{more}</ul>")
    if c.attributes:
        lines = "".join(f"<li>{escaped(d.text(), 400)}</li>" for d in c.attributes[:_NOTES])
        more = (
            f"<li>and {len(c.attributes) - _NOTES} more in .attributes</li>"
            if len(c.attributes) > _NOTES
            else ""
        )
        parts.append(f"<p>Attributes that differ:</p><ul>{lines}{more}</ul>")
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
            f"{f.different:,}",
            f"{f.elements:,}",
            ("≤ " if f.max_abs_diff_is_bound else "") + number(f.max_abs_diff),
            number(f.max_rel_diff) if f.different else "",
            tolerance_text(f),
        )
        for f in shown[:_ROWS]
    ]
    parts.append(
        _table(("step", "rank", "field", "different", "of", "max |a − b|", "max rel", "tolerance"), rows)
    )
    if len(c.fields) > _ROWS:
        parts.append(f"<p>{len(c.fields) - _ROWS} more rows: .to_pandas() has all.</p>")
    return "".join([*parts, "</div>"])


def field_html(f: FieldComparison) -> str:
    """The HTML of one field."""
    word = "same" if f.same else "different"
    rows: list[tuple] = [
        ("different", f"{f.different:,} of {f.elements:,}"),
        ("tolerance", tolerance_text(f)),
    ]
    if not f.same:
        rows += [
            ("first", f.place()),
            ("a", exact(f.first_a)),
            ("b", exact(f.first_b)),
            ("|a − b|", number(f.first_abs_diff)),
        ]
    bound = "at most " if f.max_abs_diff_is_bound else ""
    rows += [("max |a − b|", bound + number(f.max_abs_diff)), ("RMS of what differs", number(f.rms_diff)),
             ("type, shape", f"{f.dtype} {list(f.shape)}"), ("method", f"{f.method} on {f.device}")]  # fmt: skip
    at = f.place() if f.same else f.field
    return f'<div><p><b style="color:{_COLOURS[word]}">{word}</b>: {escaped(at)}</p>{_table(("", ""), rows)}</div>'
