"""The report of a measurement of noise: one self-contained HTML file.

It takes twinrun.noise.Noise by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

from typing import Any

from ..markup import render
from .document import write_json as write_document
from .document import write_whole
from .ensemble import svg_of, table_of

__all__ = ["page", "write_html", "write_json"]


def page(noise: Any) -> str:
    """The page: what it shows, the picture, the table."""
    d = noise.document
    return render(
        "report/noise.html.j2",
        title=f"Noise of the operating system on {d['host']}",
        sentence=noise.sentence,
        rounds=d["rounds"],
        seconds=f"{d['seconds']:.3g}",
        clock=d["clock"],
        threshold=d["threshold"],
        confidence=f"{100 * d['confidence']:g}%",
        picture=svg_of(noise.figure(), "noise"),
        table=table_of(noise.table),
    )


def write_html(noise: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(noise), "HTML")


def write_json(noise: Any, path: str) -> None:
    """Writes the document and its sentence; TwinrunError where it cannot."""
    write_document(path, {**noise.document, "sentence": noise.sentence})
