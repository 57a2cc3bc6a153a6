"""Dates and time spans, which compare as integers, as text: `unit` is one of `element_types.unit_of`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["NOT_A_TIME", "distance_text", "time_text"]

NOT_A_TIME = -(1 << 63)
_UNIT = re.compile(r"[mM]8\[(\d*)([A-Za-z]+)\]")
_WORDS = {"Y": "year", "M": "month", "W": "week", "D": "day", "h": "hour", "m": "minute"}


def time_text(value: int, unit: str) -> str:
    """A date in ISO 8601, or a span with its unit.

    >>> time_text(18661, "M8[D]"), time_text(3, "m8[25ms]"), time_text(NOT_A_TIME, "M8[s]")
    ('2021-02-03', '75 ms', 'NaT')
    """
    if value == NOT_A_TIME:
        return "NaT"
    if unit.startswith("m"):
        return distance_text(value, unit)
    return str(np.array(value, np.int64).view(unit))


def distance_text(steps: int, unit: str) -> str:
    """So many steps of a unit.

    >>> distance_text(3, "M8[D]"), distance_text(1, "m8[h]"), distance_text(2, "M8[25s]")
    ('3 days', '1 hour', '50 s')
    """
    found = _UNIT.fullmatch(unit)
    if found is None:  # NumPy's span without a unit
        return str(steps)
    many = steps * int(found[1] or 1)
    word = _WORDS.get(found[2])
    if word is None:
        return f"{many} {found[2]}"
    return f"{many} {word}" if abs(many) == 1 else f"{many} {word}s"
