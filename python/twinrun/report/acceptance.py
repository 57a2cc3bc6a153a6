"""The report of an acceptance: JSON, and one self-contained HTML file.

It takes twinrun.Acceptance by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

import math
from typing import Any

from ..markup import render
from ..words import number
from .charts import COLOURS, NARROW, Line, Picture, line_chart
from .document import _plain, write_whole
from .document import write_json as write_document
from .parts import BAD, GOOD, OPEN, Table

__all__ = ["page", "write_html", "write_json"]

_CLASSES = {"accepted": GOOD, "rejected": BAD, "undecided": OPEN}
_ROWS = 200
_LINES = 3  # fields in the picture: each has two lines


def _said(value: float) -> str:
    return "" if math.isnan(value) else number(value)


def _drawn(found: Any) -> list[Any]:
    """The fields of the picture: those that exceed first, then those whose new runs are farthest away."""
    several = [f for f in found.fields if sum(step is not None for step, _, _ in f.distances) > 1]
    several.sort(key=lambda f: (not f.exceeds, 0.0 if math.isnan(f.ratio) else -f.ratio))
    return several[:_LINES]


def _picture(found: Any, *width: float) -> Picture | None:
    """How far runs are apart, by step: reference runs, and the farthest new run."""
    lines = []
    for k, f in enumerate(_drawn(found)):
        points = [(step, own, new) for step, own, new in f.distances if step is not None]
        for name, at, shift in (("reference runs", 1, 0), ("farthest new run", 2, 1)):
            said = [
                (float(p[0]), p[at], False, f"{f.field}, step {p[0]}: {number(p[at])}, {name}")
                for p in points
            ]
            lines.append(Line(f"{f.field}: {name}", (2 * k + shift) % COLOURS, said))
    title = "Distance to the reference runs, while differences grow"
    return line_chart(lines, [], title, *width) if lines else None


def _names(found: Any) -> list[tuple[str, int]]:
    """The legend of the picture: names and colours."""
    return [
        (f"{f.field}: {name}", (2 * k + shift) % COLOURS)
        for k, f in enumerate(_drawn(found))
        for name, shift in (("reference runs", 0), ("farthest new run", 1))
    ]


def page(found: Any) -> str:
    """The page: the sentence, excesses, the picture of growth, the table of fields, what was checked."""
    head = [
        "field",
        "growing steps",
        "settled steps",
        "distance",
        "at step",
        "growth a step",
        "of new runs",
        "deviation",
        "of",
        "p",
    ]
    ordered = sorted(found.fields, key=lambda f: not f.exceeds)
    rows = [
        [
            f.field,
            len(f.growing),
            len(f.settled),
            _said(f.ratio),
            "" if f.ratio_step is None else f.ratio_step,
            _said(f.rate),
            _said(f.new_rate),
            _said(f.deviation),
            f.deviation_of if f.deviation_step is None else f"{f.deviation_of}, step {f.deviation_step}",
            _said(f.p),
        ]
        for f in ordered
    ]
    excesses = Table(["excess"], [[str(e)] for e in found.excesses], text=[0], wrap=[0]).first(_ROWS)
    tests = Table(["statistic", "p"], [[name, number(p)] for name, p in found.tests.items()], text=[0])
    return render(
        "report/acceptance.html.j2",
        title="Acceptance",
        verdict=found.verdict,
        sentence=found.sentence,
        verdict_class=_CLASSES[found.verdict],
        excesses=excesses,
        fields=Table(head, rows, text=[0, 8]).first(_ROWS),
        tests=tests,
        growth=number(found.growth),
        picture=_picture(found),
        narrow=_picture(found, NARROW),
        names=_names(found),
        alarms="" if found.alarms is None else str(found.alarms),
        detectable=_said(found.detectable),
        checked=found.checked,
        notes=found.notes,
        references=found.references,
        new=found.new,
    )


def write_html(found: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(found), "HTML")


def write_json(found: Any, path: str) -> None:
    """Writes the facts; - is standard output."""
    write_document(path, _plain(found.document))
