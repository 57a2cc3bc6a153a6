"""The smallest effect that is found in a share of studies like this one, by simulation of the test itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

__all__ = ["STUDIES", "reach", "smallest"]

STUDIES = 300  # simulated for each effect: their share is known within about 2%
_STEPS = 9  # of bisection: an effect is known within about 1%
_DOUBLINGS = 12


def smallest(found: Callable[[float], np.ndarray], power: float, start: float, steps: int = _STEPS) -> float:
    """The smallest effect with this power, by bisection; infinite where none has it.

    found(effect) says for each simulated study whether it is found. It must draw the same studies each time,
    so that only the effect differs.
    """
    low, high = 0.0, start
    for _ in range(_DOUBLINGS):
        if found(high).mean() >= power:
            break
        low, high = high, 2 * high
    else:
        return float("inf")
    for _ in range(steps):
        middle = (low + high) / 2
        if found(middle).mean() >= power:
            high = middle
        else:
            low = middle
    return high


def reach(level: float, power: float, freedom: int, sides: int = 2) -> float:
    """The effect, in standard errors, that a t test at this level finds with this power."""
    limit = stats.t.ppf(1 - level / sides, freedom)
    return float(optimize.brentq(lambda x: stats.nct.sf(limit, freedom, x) - power, 0, 10 * limit + 20))
