"""Numbers and texts for people: in reports, messages and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

__all__ = [
    "aligned",
    "byte_size",
    "common_length",
    "counted",
    "estimate",
    "exact",
    "number",
    "percent",
    "significant",
    "whole_percent",
]

_MOST_DIGITS = 15
_NOTHING = 1e-12  # a share below is rounding


def number(value: float | int | None) -> str:
    """A value for people: 3 significant digits of a float, all digits of an integer."""
    if value is None:
        return "?"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value) or math.isinf(value):
        return str(value)
    return f"{value:.3g}"


def common_length(*sequences: Sequence[object]) -> int:
    """How many of their first elements all sequences have in common.

    >>> common_length("abcd", "abx"), common_length(["a", "b"], ["c"]), common_length("ab", "abc")
    (2, 0, 2)
    """
    alike = (all(one == ones[0] for one in ones) for ones in zip(*sequences, strict=False))
    return sum(takewhile(bool, alike))


def percent(share: float) -> str:
    """A share with two digits, or all before the point, and never with an exponent.

    >>> percent(0.05), percent(0.0012), percent(1.234), percent(0.999), percent(1.5e-7), percent(3e-16)
    ('5%', '0.12%', '123%', '100%', '0.000015%', '0%')
    """
    if not math.isfinite(share):
        return "?"
    if abs(share) < _NOTHING:
        return "0%"
    x = 100 * share
    digits = 0 if abs(x) >= 99.5 else max(0, 1 - math.floor(math.log10(abs(x))))
    text = f"{float(f'{x:.2g}') if digits else x:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text}%"


def whole_percent(share: float) -> str:
    """A share with three digits, or all before the point.

    >>> whole_percent(0.1292), whole_percent(29.3)
    ('12.9%', '2930%')
    """
    return f"{100 * share:.3g}%" if share < 1 else f"{100 * share:.0f}%"


def exact(value: float | int | str | None) -> str:
    """A value with all its digits."""
    return "?" if value is None else value if isinstance(value, str) else repr(value)


def _on_its_side(x: float, text: str, marks: Sequence[float]) -> bool:
    """Whether a number as printed lies where it lies: below, at or above each of the marks."""
    return not math.isfinite(x) or all(
        (x > m) == (float(text) > m) and (x < m) == (float(text) < m) for m in marks if math.isfinite(m)
    )


def estimate(
    value: float, low: float, high: float, marks: Sequence[float] = (1.0,), least: int = 2
) -> tuple[str, str, str]:
    """A value and the ends of its interval, with as many decimals as the interval deserves.

    Rounding moves no end across or onto one of the marks, such as the ratio 1 of no effect: what is
    said of the interval holds of the printed one too. least: decimals, at least.
    """
    half = (high - low) / 2
    known = math.isfinite(half) and half > _NOTHING * abs(value)
    digits = min(max(least, -math.floor(math.log10(half))), max(least, 6)) if known else least
    checked = (low, high) if math.isfinite(low) or math.isfinite(high) else (value,)
    while digits < _MOST_DIGITS and not all(_on_its_side(x, f"{x:.{digits}f}", marks) for x in checked):
        digits += 1
    return f"{value:.{digits}f}", f"{low:.{digits}f}", f"{high:.{digits}f}"


def significant(x: float, digits: int, marks: Sequence[float] = ()) -> str:
    """A number with this many significant digits, or with more where rounding would move it across or
    onto a mark.
    """
    while digits < _MOST_DIGITS and not _on_its_side(x, f"{x:.{digits}g}", marks):
        digits += 1
    return f"{x:.{digits}g}"


def byte_size(n: float) -> str:
    """1.2 GB: decimal units, as storage is sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return ""


def counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def counted_steps(steps: Iterable[int | None]) -> str:
    """How many steps these are. What has no step is none, unless nothing has one: that is one state."""
    found = set(steps)
    return counted(len(found - {None}) or len(found), "step")


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
