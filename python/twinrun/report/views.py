"""Comparisons as their methods show them: the `views` of the package."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from .text import print_comparison, write_comparison

if TYPE_CHECKING:
    import matplotlib.figure

    from ..comparison.work import Comparison
    from ..trace.result import TraceComparison

__all__ = ["as_text", "growth_figure", "map_figure", "write_html", "write_trace_html"]


def as_text(comparison: Comparison) -> str:
    """The report that `twinrun compare` prints."""
    out = io.StringIO()
    if not write_comparison(out, comparison):
        from rich.console import Console

        print_comparison(Console(file=out, width=110, no_color=True, highlight=False), comparison)
    return out.getvalue().rstrip("\n")


def write_html(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """The page, with all pictures inside. Raises TwinrunError where it cannot be written."""
    from .html import write_html as write

    write(comparison, path)


def write_trace_html(comparison: TraceComparison, path: str | os.PathLike[str]) -> None:
    """The page of a comparison of traces. Raises TwinrunError where it cannot be written."""
    from .trace import write_trace_html as write

    write(comparison, path)


def growth_figure(comparison: Comparison) -> matplotlib.figure.Figure:
    """The growth of |a - b| over steps. Raises MissingPackage without matplotlib."""
    from .picture import growth_figure as draw

    return draw(comparison)


def map_figure(comparison: Comparison, field: str | None, step: int | None) -> matplotlib.figure.Figure:
    """Where a field differs. Raises MissingPackage without matplotlib, TwinrunError where there is no map."""
    from .picture import map_figure as draw

    return draw(comparison, field, step)
