"""How results show themselves. Reports know results, and results do not know reports: whoever knows
both, which is the package's own `__init__`, names the views here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Views", "views", "views_are"]


class Views(Protocol):
    """What draws a result."""

    def as_text(self, result: Any) -> str:
        """As the command prints it, without its last line feed."""

    def write_html(self, result: Any, path: str | os.PathLike[str]) -> None:
        """As one page. Raises TwinrunError where the file cannot be written."""

    def write_trace_html(self, result: Any, path: str | os.PathLike[str]) -> None:
        """A comparison of traces as one page. Raises TwinrunError where the file cannot be written."""

    def growth_figure(self, result: Any) -> Any:
        """As a figure of matplotlib's. Raises MissingPackage."""

    def map_figure(self, result: Any, field: str | None, step: int | None) -> Any:
        """Where a field differs, as a figure of matplotlib's. Raises MissingPackage, TwinrunError."""


_find: Callable[[], Any] | None = None


def views_are(find: Callable[[], Any]) -> None:
    """Names the views. find: imports the module that has them; it is called at the first use."""
    global _find
    _find = find


def views() -> Views:
    """The views that were named."""
    assert _find is not None, "the package names them when it is imported"
    return _find()
