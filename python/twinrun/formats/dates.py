"""Dates and time spans, which compare as integers, as text: `unit` is one of `element_types.unit_of`."""

from __future__ import annotations

from .. import _core

__all__ = ["NOT_A_TIME", "distance_text", "time_text"]

NOT_A_TIME = -(1 << 63)


def time_text(value: int, unit: str) -> str:
    """A date in ISO 8601, or a span with its unit.

    >>> time_text(18661, "M8[D]"), time_text(3, "m8[25ms]"), time_text(NOT_A_TIME, "M8[s]")
    ('2021-02-03', '75 ms', 'NaT')
    """
    return _core.time_text(value, unit)


def distance_text(steps: int, unit: str) -> str:
    """So many steps of a unit, below 2^64.

    >>> distance_text(3, "M8[D]"), distance_text(1, "m8[h]"), distance_text(2, "M8[25s]")
    ('3 days', '1 hour', '50 s')
    """
    return _core.span_text(steps, unit)
