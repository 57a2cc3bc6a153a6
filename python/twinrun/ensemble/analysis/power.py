"""The smallest effect that is found in a share of studies like this one, by simulation of the test
itself; the power of t tests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

__all__ = ["STUDIES", "of_t_test", "reach", "smallest"]

STUDIES = 300  # simulated for each effect: their share is known within about 2%
_STEPS = 9  # of bisection: an effect is known within about 1%
_DOUBLINGS = 12
_POINTS = 4001  # of the integral over the estimated deviation: its error is below 1e-6
_WIDTHS = 12  # standard deviations of that estimate, on each side, that the integral covers


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


def of_t_test(effect: float, level: float, freedom: int) -> float:
    """The power of a two-sided t test; effect in standard errors.

    The integral over the estimated deviation of the normal probability beyond the limit. SciPy's
    noncentral t gives nan far from its mean, and so large effects had no power.
    """
    limit = stats.t.ppf(1 - level / 2, freedom)
    spread = _WIDTHS / np.sqrt(2 * freedom)
    s = np.linspace(max(0.0, 1 - spread), 1 + spread, _POINTS)  # estimated by true deviation
    with np.errstate(divide="ignore"):
        log = (freedom - 1) * np.log(s) - freedom * (s * s - 1) / 2
    density = np.exp(log - log.max())
    found = special.ndtr(effect - limit * s) + special.ndtr(-effect - limit * s)
    return float(density @ found / density.sum())


def reach(level: float, power: float, freedom: int, sides: int = 2) -> float:
    """The effect, in standard errors, that a t test at this level finds with this power."""
    limit = stats.t.ppf(1 - level / sides, freedom)
    return float(optimize.brentq(lambda x: stats.nct.sf(limit, freedom, x) - power, 0, 10 * limit + 20))
