"""The smallest effect that is found in a share of studies like this one, by simulation of the test
itself; the power of t tests.

Two things make a promise too large where tasks are few. The study's own deviation is an estimate: another
study of the same work may have a larger one, and simulated studies differ in theirs as the estimate may
(`deviations_like`). And a test by permutation shuffles the effect too: a group of two slow tasks is together
again in many orders, and no effect is large enough for a small p value (`Chance`).

A promise is of the whole report: the effect is found, as the only finding, and its interval holds it. An
interval misses one of twenty, and another analysis takes some: so the test alone must find it more often.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

from .resampling import permuted

__all__ = ["STUDIES", "Chance", "deviations_like", "in_report", "narrowed", "of_t_test", "reach", "smallest"]

STUDIES = 300  # simulated for each effect: their share is known within about 2%
_AT_ONCE = 100  # of them
_LOST = 0.65  # of the studies that may miss it: to intervals that do, and to other findings
_STEPS = 9  # of bisection: an effect is known within about 1%
_DOUBLINGS = 12
_POINTS = 4001  # of the integral over the estimated deviation: its error is below 1e-6
_WIDTHS = 12  # standard deviations of that estimate, on each side, that the integral covers


_DRAWS = 1999  # orders, over all simulated studies together


class Chance:
    """Limits of tests by permutation, for simulated studies that hold an effect.

    blocks: within which values are shuffled; None: there are none.
    """

    def __init__(self, tasks: int, blocks: np.ndarray | None, rng: np.random.Generator) -> None:
        self._orders = permuted(np.arange(tasks), blocks, _DRAWS, rng)

    def limit(self, rows: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], level: float) -> float:
        """What the statistic of these studies (rows), shuffled, exceeds in this share of orders."""
        shuffled = rows[np.arange(_DRAWS)[:, None] % len(rows), self._orders]
        return float(np.quantile(statistic(shuffled), 1 - level))


def deviations_like(freedom: float, rng: np.random.Generator, studies: int = STUDIES) -> np.ndarray:
    """(studies, 1): true deviations, by an estimate of 1 with so many degrees of freedom."""
    return np.sqrt(freedom / rng.chisquare(freedom, (studies, 1)))


def in_report(power: float) -> float:
    """The power that a test needs alone, so that a report with it has this one."""
    return power + _LOST * (1 - power)


def narrowed(told: Callable[[np.ndarray], np.ndarray], power: float) -> np.ndarray:
    """The simulated studies that are found, for `smallest`. told says it of some of them, by their places.

    It is asked of some after the others, until those that may still be found are too few: the others then
    count as found, which changes nothing.
    """
    found = np.ones(STUDIES, dtype=bool)
    for places in np.split(np.arange(STUDIES), range(_AT_ONCE, STUDIES, _AT_ONCE)):
        if found.mean() < in_report(power):
            break
        found[places] = told(places)
    return found


def smallest(found: Callable[[float], np.ndarray], power: float, start: float, steps: int = _STEPS) -> float:
    """The smallest effect with this power in a whole report, by bisection; infinite where none has it.

    found(effect) says for each simulated study whether it is found. It must draw the same studies each time,
    so that only the effect differs.
    """
    power = in_report(power)
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
