"""The report of an ensemble study: one self-contained HTML file, and a summary for a terminal.

It takes twinrun.ensemble.Findings by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..markup import drawn, render
from ..words import percent, significant
from .document import write_json as write_document
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

__all__ = [
    "TIMES",
    "aligned",
    "conditions_table",
    "page",
    "print_findings",
    "seconds",
    "summary_lines",
    "svg_of",
    "table_of",
    "unit_of",
    "write_html",
    "write_json",
]

TIMES = ("wall", "user", "system", "run_queue_delay")  # columns in seconds
_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ROWS = 40  # rows of a table in the page; JSON has all
_WORDS = {"found": "found", "none": "nothing", "open": "undecided", "described": ""}
_CLASSES = {"found": BAD, "none": GOOD, "open": OPEN, "described": ""}
_VERDICTS = {"reproducible": GOOD, "not reproducible": BAD, "undecided": OPEN}


def _cell(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else ""
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}" if np.isfinite(value) else ""  # what is not known has no end
    return "" if value is None else one_line(str(value), 80)


def unit_of(value: float) -> str:
    """s, ms, us or ns."""
    return "s" if not value < 1 else "ms" if value >= 1e-3 else "us" if value >= 1e-6 else "ns"


def seconds(value: float, unit: str = "") -> str:
    """A time with four digits, in the unit, or in one that suits it and is named."""
    if not math.isfinite(value):
        return "?"
    name = unit or unit_of(value)
    return f"{value * dict(_SCALES)[name]:#.4g}".rstrip(".") + ("" if unit else f" {name}")


def conditions_table(rows_of: pd.DataFrame, confidence: float, value: str = "wall") -> Table:
    """The table of conditions for people: each interval in one cell."""
    medians = [x for x in rows_of["median"] if math.isfinite(x)]
    unit = unit_of(min(medians)) if medians and value in TIMES else ""

    def text(x: float) -> str:
        return seconds(x, unit) if unit else f"{x:.4g}"

    def interval(row: Any, low: str, high: str, write: Callable[[float], str]) -> str:
        known = math.isfinite(row[low]) and math.isfinite(row[high])
        return f"[{write(row[low])}, {write(row[high])}]" if known else "not known"

    against = next((c for c in rows_of.columns if str(c).startswith("against ")), None)
    head = [
        "condition",
        "n",
        f"median ({unit})" if unit else f"median of {value}",
        f"{100 * confidence:g}% interval",
        "CoV",
    ]
    head += ["against the first", "interval"] if against is not None else []
    rows = []
    for place, row in enumerate(rows_of.to_dict("records")):
        known = math.isfinite(row["median"])
        cells = [one_line(str(row["condition"]), 60), str(row["n"]), text(row["median"]) if known else "",
                 interval(row, "low", "high", text), percent(row["CoV"]) if math.isfinite(row["CoV"]) else ""]  # fmt: skip
        if against is not None and place == 0:
            cells += ["1", ""]
        elif against is not None:
            cells += [significant(row[against], 4) if math.isfinite(row[against]) else "",
                      interval(row, "ratio low", "ratio high", lambda x: significant(x, 4, (1.0,)))]  # fmt: skip
        rows.append(tuple(cells))
    return Table(head, rows, text=(0,))


def aligned(table: Table) -> list[str]:
    """The lines of a table for a terminal."""
    rows = [[str(c) for c in row] for row in (table.head, *table.rows)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


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

    # Texts read this setting when they are made.
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = analysis.figure()
    if figure is not None:
        for axes in figure.axes:
            if axes.get_title() == analysis.title:  # the heading says it
                axes.set_title("")
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
    takes: str
    details: _Details | None


def _details(analysis: Any, options: Any) -> _Details | None:
    if analysis.table.empty and analysis.draw is None:
        return None
    if analysis.name == "conditions" and not analysis.table.empty:
        tables = [conditions_table(analysis.table, options.confidence, options.value)]
    else:
        tables = [table_of(analysis.table)]
    for name in ("cells", "calls"):
        if analysis.facts.get(name):
            import pandas as pd

            tables.append(table_of(pd.DataFrame(analysis.facts[name])))
    return _Details(analysis.notes, _picture(analysis), tables)


def page(findings: Any) -> str:
    """The page: the verdict and the conditions first, one sentence an analysis, then each with its
    picture and table; analyses that could not decide are folded behind what it would take.
    """
    made = [
        _Analysis(
            a.name,
            a.title.rstrip("?") if findings.takes(a.name) else a.title,
            _WORDS[a.state],
            _CLASSES[a.state],
            a.sentence,
            findings.takes(a.name),
            _details(a, findings.options),
        )
        for a in findings.analyses
    ]
    decided = [a for a in made if not a.takes]
    return render(
        "report/ensemble.html.j2",
        title=f"{findings.study}: is the time reproducible?",
        kind=_VERDICTS[findings.verdict],
        headline=findings.headline,
        attempts=findings.attempts,
        tasks=findings.tasks,
        remarks=findings.remarks,
        value=findings.options.value,
        confidence=f"{100 * findings.options.confidence:g}%",
        conditions=[a for a in decided if a.name == "conditions"],
        analyses=[a for a in decided if a.name != "conditions"],
        described=[a for a in findings.analyses if a.description],
        undecided=[a for a in made if a.takes],
    )


def write_html(findings: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(findings), "HTML")


def write_json(findings: Any, path: str) -> None:
    """Writes all numbers; TwinrunError where it cannot."""
    write_document(path, findings.document())


def summary_lines(findings: Any, verbose: bool = False) -> list[str]:
    """The study's name, remarks on its tasks, the table of conditions, a line for each analysis (findings
    first), the verdict last.

    verbose: whole sentences of analyses that could not decide.
    """
    lines = [one_line(findings.study, 200), ""]
    if findings.remarks:
        lines += [*map(one_line, findings.remarks), ""]
    order = {"found": 0, "none": 1, "described": 2, "open": 3}
    made = sorted(findings.analyses, key=lambda a: order[a.state])
    for a in made:
        if a.name == "conditions" and not a.table.empty:
            lines += [
                *aligned(conditions_table(a.table, findings.options.confidence, findings.options.value)),
                "",
            ]
    undecided = []
    for a in made:
        takes = findings.takes(a.name)
        if takes and not verbose:
            undecided.append(
                f"{_WORDS[a.state]:10} {one_line(a.title).rstrip('?')}; to decide: {one_line(takes)}"
            )
        else:
            (undecided if takes else lines).append(
                f"{_WORDS[a.state] or 'measured':10} {one_line(a.sentence)}"
            )
    lines += [f"{'measured':10} {one_line(a.description)}" for a in made if a.description]
    return [*lines, *undecided, "", one_line(findings.headline)]


def print_findings(console: Any, findings: Any) -> None:
    """The summary on a rich console."""
    for line in summary_lines(findings):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
