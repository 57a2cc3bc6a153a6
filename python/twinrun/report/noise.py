"""The report of a measurement of noise: one HTML file that needs nothing else.

It takes twinrun.noise.Noise by its attributes: reports do not import what makes them.
"""

from __future__ import annotations

import html
from typing import Any

from ..errors import one_line
from .document import write_whole
from .ensemble import svg_of, table_of
from .frame import frame

__all__ = ["page", "write_html"]


def page(noise: Any) -> str:
    """The page: what it shows, the picture, the table."""
    d = noise.document
    title = one_line(f"Noise of the operating system on {d['host']}")
    facts = f"{d['rounds']} rounds, {d['seconds']:.3g} s, clock {d['clock']}, threshold {d['threshold']}; intervals are of {100 * d['confidence']:g}%."
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(one_line(noise.sentence, 4000))}</p>',
        f'<p class="note">{html.escape(one_line(facts))}</p>',
        svg_of(noise.figure(), "noise"),
        table_of(noise.table),
    ]
    return frame(title, parts)


def write_html(noise: Any, path: str) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(path, page(noise), "HTML")
