"""Numbers and texts for people: in reports, messages and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["aligned", "byte_size", "counted", "exact", "number"]


def number(value: float | int | None) -> str:
    """A value for people: 3 significant digits of a float, all digits of an integer."""
    if value is None:
        return "?"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value) or math.isinf(value):
        return str(value)
    return f"{value:.3g}"


def exact(value: float | int | str | None) -> str:
    """A value with all its digits."""
    return "?" if value is None else value if isinstance(value, str) else repr(value)


def byte_size(n: float) -> str:
    """1.2 GB: decimal units, as storage is sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return ""


def counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Rows as lines, with columns right-aligned except the first `left`; never cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if k < left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
