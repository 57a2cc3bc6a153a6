"""The report of an ensemble study: one HTML file that needs nothing else, and a summary for a terminal.

It takes twinrun.ensemble.Findings by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..markup import drawn, render
from .document import write_whole
from .parts import BAD, GOOD, OPEN, Table

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
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


def table_of(rows_of: pd.DataFrame) -> Table:
    """The first rows of a frame."""
    rows = [tuple(map(_cell, row)) for row in rows_of.head(_ROWS).itertuples(index=False, name=None)]
    return Table([str(c) for c in rows_of.columns], rows, left_out=len(rows_of) - len(rows))


def svg_of(figure: Figure | None, salt: str) -> Markup | None:
    """A figure as SVG with text as text. salt: makes ids unique to each picture."""
    import matplotlib

    if figure is None:
        return None
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
    return drawn(text[text.index("<svg") :])


def _picture(analysis: Any) -> Markup | None:
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # texts read this setting when they are made
        figure = analysis.figure()
    return svg_of(figure, analysis.name)


@dataclass
class _Details:
    """What an analysis has beside its sentence."""

    notes: list[str]
    picture: Markup | None
    tables: list[Table]


@dataclass
class _Analysis:
    """One analysis. word: of its state; kind: its class."""

    name: str
    title: str
    word: str
    kind: str
    sentence: str
    details: _Details | None


def _details(analysis: Any) -> _Details | None:
    if analysis.table.empty and analysis.draw is None:
        return None
    tables = [table_of(analysis.table)]
    for name in ("cells", "calls"):
        if analysis.facts.get(name):
            import pandas as pd

            tables.append(table_of(pd.DataFrame(analysis.facts[name])))
    return _Details(analysis.notes, _picture(analysis), tables)


def page(findings: Any) -> str:
    """The page: the verdict first, one sentence an analysis, then each with its picture and table."""
    return render(
        "report/ensemble.html.j2",
        title=f"{findings.study}: is the time reproducible?",
        kind=_VERDICTS[findings.verdict],
        headline=findings.headline,
        attempts=findings.attempts,
        tasks=findings.tasks,
        value=findings.options.value,
        confidence=f"{100 * findings.options.confidence:g}%",
        analyses=[
            _Analysis(a.name, a.title, _WORDS[a.state], _CLASSES[a.state], a.sentence, _details(a))
            for a in findings.analyses
        ],
    )


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
