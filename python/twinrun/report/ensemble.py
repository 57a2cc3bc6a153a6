"""The report of an ensemble study: one HTML file that needs nothing else, and a summary for a terminal.

It takes twinrun.ensemble.Findings by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import one_line
from .document import write_whole
from .frame import BAD, GOOD, OPEN, frame, table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["page", "print_findings", "summary_lines", "svg_of", "table_of", "write_html"]

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ROWS = 40  # rows of a table in the page; JSON has all
_WORDS = {"found": "found", "none": "nothing", "open": "undecided", "told": ""}
_CLASSES = {"found": BAD, "none": GOOD, "open": OPEN, "told": ""}
_VERDICTS = {"reproducible": GOOD, "not reproducible": BAD, "undecided": OPEN}


def _cell(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else ""
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.4g}"
    return "" if value is None else one_line(str(value), 80)


def table_of(rows_of: pd.DataFrame) -> str:
    """A table of HTML."""
    if rows_of.empty:
        return ""
    rows = (tuple(map(_cell, row)) for row in rows_of.head(_ROWS).itertuples(index=False, name=None))
    more = (
        f'<p class="note">{len(rows_of) - _ROWS} more rows are in the JSON.</p>'
        if len(rows_of) > _ROWS
        else ""
    )
    return table([str(c) for c in rows_of.columns], rows) + more


def svg_of(figure: Figure | None, salt: str) -> str:
    """A figure as SVG with text as text; '' for None. salt: makes ids unique to each picture."""
    import matplotlib

    if figure is None:
        return ""
    # Names of nodes and conditions are text, never mathematics; ids are the same in every run.
    with matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": salt}):
        out = io.StringIO()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # warnings of glyphs that the measuring font lacks; text stays text
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # XML cannot hold control characters, and terminals interpret them.
    text = _CONTROL.sub("", out.getvalue())
    return f'<div class="scroll" tabindex="0">{text[text.index("<svg") :]}</div>'


def _picture(analysis: Any) -> str:
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # texts read this setting when they are made
        figure = analysis.figure()
    return svg_of(figure, analysis.name)


def _badge(state: str) -> str:
    word = _WORDS[state]
    return f'<span class="state {_CLASSES[state]}">{word}</span>' if word else ""


def page(findings: Any) -> str:
    """The page: the verdict first, one sentence an analysis, then each with its picture and table."""
    title = one_line(f"{findings.study}: is the time reproducible?")
    attempts = ", ".join(f"{v} {html.escape(one_line(k))}" for k, v in findings.attempts.items())
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict {_VERDICTS[findings.verdict]}">{html.escape(one_line(findings.headline))}</p>',
        f'<p class="note">Attempts: {attempts}; good tasks: {findings.tasks}. Value: {html.escape(one_line(findings.options.value))}. '
        f"Intervals are of {100 * findings.options.confidence:g}%. p values are corrected for the claims of their analysis, and by "
        "Holm's method for all analyses of this page.</p><ul>",
    ]
    for a in findings.analyses:
        parts.append(
            f'<li>{_badge(a.state)}<a href="#{a.name}">{html.escape(a.title)}</a>: {html.escape(one_line(a.sentence))}</li>'
        )
    parts.append("</ul>")
    for a in findings.analyses:
        if a.table.empty and a.draw is None:
            continue
        parts.append(
            f'<h2 id="{a.name}">{html.escape(a.title)}</h2>\n<p>{_badge(a.state)}{html.escape(one_line(a.sentence))}</p>'
        )
        parts += [f'<p class="note">{html.escape(one_line(note))}</p>' for note in a.notes]
        parts += [_picture(a), table_of(a.table)]
        for name in ("cells", "calls"):
            if a.facts.get(name):
                import pandas as pd

                parts.append(table_of(pd.DataFrame(a.facts[name])))
    return frame(title, parts)


def write_html(findings: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(findings), "HTML")


def summary_lines(findings: Any) -> list[str]:
    """A line for each analysis: findings first, the verdict last."""
    order = {"found": 0, "open": 1, "none": 1, "told": 2}
    made = sorted(findings.analyses, key=lambda a: order[a.state])
    lines = [f"{_WORDS[a.state] or 'measured':10} {one_line(a.sentence)}" for a in made]
    return [*lines, "", one_line(findings.headline)]


def print_findings(console: Any, findings: Any) -> None:
    """The summary on a rich console."""
    for line in summary_lines(findings):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
