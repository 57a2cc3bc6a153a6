"""The report of an ensemble study: one HTML file that needs nothing else, and a summary for a terminal.

It takes twinrun.ensemble.Findings as it finds it, for reports know nothing of what makes them.
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

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["page", "print_findings", "summary_lines", "write_html"]

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ROWS = 40  # of a table in the page; JSON has all
_WORDS = {"found": "found", "none": "nothing", "open": "undecided", "told": ""}
_COLOURS = {"found": "#a84848", "none": "#48884a", "open": "#b08030", "told": "#607080"}
_VERDICTS = {"reproducible": "#48884a", "not reproducible": "#a84848", "undecided": "#b08030"}
_STYLE = """
body{margin:1.5em auto;max-width:1000px;padding:0 1em;font:15px/1.45 system-ui,sans-serif;color:#222}
h1{font-size:1.3em}h2{font-size:1.1em;margin:2em 0 .3em;border-top:1px solid #ddd;padding-top:1em}
.verdict{border-left:6px solid;padding:.6em 1em;background:#f6f6f6;font-size:1.1em}
.state{color:#fff;border-radius:3px;padding:0 .45em;font-size:.8em;margin-right:.5em}
table{border-collapse:collapse;font-size:12px;display:block;overflow-x:auto;margin:.6em 0}
td,th{border-bottom:1px solid #e4e4e4;padding:.15em .6em;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}.note{color:#666;font-size:.9em}
li{margin:.35em 0}a{color:inherit}
"""


def _cell(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else ""
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.4g}"
    return "" if value is None else one_line(str(value), 80)


def _table(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    head = "".join(f"<th>{html.escape(one_line(str(c)))}</th>" for c in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(v))}</td>" for v in row) + "</tr>"
        for row in table.head(_ROWS).itertuples(index=False, name=None)
    )
    more = (
        f'<p class="note">{len(table) - _ROWS} more rows are in the JSON.</p>' if len(table) > _ROWS else ""
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>{more}"


def _picture(analysis: Any) -> str:
    """The analysis' figure as SVG with text as text."""
    import matplotlib

    # Names of nodes and conditions are text, never mathematics; ids differ from picture to picture, and not from run to run.
    with matplotlib.rc_context(
        {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": analysis.name}
    ):
        figure = analysis.figure()
        if figure is None:
            return ""
        out = io.StringIO()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # of glyphs that the measuring font lacks; text stays text
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # XML has no word for control characters, and a terminal has too many.
    text = _CONTROL.sub("", out.getvalue())
    return text[text.index("<svg") :]


def _badge(state: str) -> str:
    word = _WORDS[state]
    return f'<span class="state" style="background:{_COLOURS[state]}">{word}</span>' if word else ""


def page(findings: Any) -> str:
    """The page: the verdict first, one sentence an analysis, then each with its picture and table."""
    title = html.escape(one_line(f"{findings.study}: is the time reproducible?"))
    attempts = ", ".join(f"{v} {html.escape(one_line(k))}" for k, v in findings.attempts.items())
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f'<p class="verdict" style="border-color:{_VERDICTS[findings.verdict]}">{html.escape(one_line(findings.headline))}</p>',
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
        parts += [_picture(a), _table(a.table)]
        for name in ("cells", "calls"):
            if a.facts.get(name):
                import pandas as pd

                parts.append(_table(pd.DataFrame(a.facts[name])))
    parts.append("</body></html>\n")
    return "\n".join(p for p in parts if p)


def write_html(findings: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(findings), "HTML")


def summary_lines(findings: Any) -> list[str]:
    """A line an analysis, what was found first, the verdict last."""
    order = {"found": 0, "open": 1, "none": 1, "told": 2}
    made = sorted(findings.analyses, key=lambda a: order[a.state])
    lines = [f"{_WORDS[a.state] or 'measured':10} {one_line(a.sentence)}" for a in made]
    return [*lines, "", one_line(findings.headline)]


def print_findings(console: Any, findings: Any) -> None:
    """The summary on a rich console."""
    for line in summary_lines(findings):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
