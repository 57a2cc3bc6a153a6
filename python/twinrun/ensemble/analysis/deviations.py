"""Intervals of a standard deviation, or of a coefficient of variation, that few tasks give.

The estimated variance is taken for a multiple of chi-squared. Its degrees of freedom follow from the kurtosis
(Shoemaker, The American Statistician 57, 2003), or from how much blocks add to the variance.

The upper end allows for more: tails and resemblances that so few tasks do not show. A sample
without its slowest tasks looks like a narrow one. A sample that is shown to have a long tail has no
interval (`assumptions`), so those that have one are the narrow ones. Which tails and resemblances
may be there is a question of the number of tasks: those that stay unseen in more than one of twenty
studies. The upper end is made for the worst of them, as p values are for the worst of a confidence
set (Berger and Boos, Journal of the American Statistical Association 89, 1994).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["LEAST", "Unseen", "ends", "freedom", "freedom_of_blocks", "tasks_for", "unseen"]

LEAST = 5  # tasks; fewer have no interval
# The true deviation by the estimated one, which one of 25 studies exceeds: the worst of t
# distributions with 3 degrees and more, lognormal ones with up to 1, and of first-order
# autoregressions with up to 0.8. Of each the studies in which it stays unseen, where more than one
# of twenty do. `bench/ensemble_rates.py unseen` makes it.
_COUNTS = (5, 6, 7, 8, 10, 12, 16, 20, 30, 40, 60, 80, 120, 200, 400, 1000)
_TAILS = (7.77, 6.54, 5.77, 5.26, 4.62, 4.14, 3.67, 3.43, 3.16, 2.21, 1.64, 1.59, 1.52, 1.25, 1.11, 1.06)  # fmt: skip
_ALIKE = (5.00, 4.33, 3.80, 3.63, 3.22, 2.98, 2.76, 2.58, 2.00, 1.63, 1.32, 1.28, 1.19, 1.13, 1.08, 1.05)  # fmt: skip
_ONE_IN = 0.04  # of studies that exceed them
# of 1 - confidence: what each end may miss. Their noises differ, so few studies miss both
_END = 0.8
_DOUBT = 20.0  # tasks whose kurtosis counts as much as an assumed normal distribution
_SMALLEST = 1e-12
_MOST = 10**6


@dataclass(frozen=True)
class Unseen:
    """Effects that may be unseen: the ratio of the true deviation to the estimated one.

    tails: with a long tail; alike: with tasks (or blocks) that resemble the ones before.
    """

    tails: float
    alike: float

    @property
    def most(self) -> float:
        """The larger of the two."""
        return max(self.tails, self.alike)


def _at(count: int, values: tuple[float, ...]) -> float:
    if count > _COUNTS[-1]:
        return 1 + (values[-1] - 1) * math.sqrt(_COUNTS[-1] / count)
    return float(np.exp(np.interp(math.log(count), np.log(_COUNTS), np.log(values))))


def unseen(tasks: int, units: int, confidence: float) -> Unseen:
    """For this many tasks, whose units (tasks or blocks) were checked to be independent."""
    further = max(1.0, stats.norm.isf(_END * (1 - confidence)) / stats.norm.isf(_ONE_IN))
    return Unseen(_at(tasks, _TAILS) ** further, _at(units, _ALIKE) ** further)


def freedom(left: np.ndarray, own: int) -> float:
    """Degrees of freedom of the variance of residuals that have `own` of them; the kurtosis makes
    them fewer or more.
    """
    n = len(left)
    if n < 4 or np.std(left) < _SMALLEST:
        return float(own)
    excess = float(stats.kurtosis(left, bias=False))
    if excess < 0:
        excess = max(excess, -1.9) * n / (n + _DOUBT)
    return max(1.0, own / (1 + excess / 2))


def freedom_of_blocks(x: np.ndarray, blocks: np.ndarray) -> float:
    """Degrees of freedom of the coefficient of variation's square where blocks are independent, and
    tasks of one are not.
    """
    own = freedom(x, len(x) - 1)
    d, codes = x - x.mean(), np.unique(blocks, return_inverse=True)[1]
    variance = float((d**2).mean())
    if variance < _SMALLEST**2:
        return own
    added = np.bincount(codes, d**2 / variance - 1 - 2 * d / x.mean()) / len(x)
    count = codes.max() + 1
    error = count / (count - 1) * float((added**2).sum())
    return max(1.0, min(own, 2 / max(error, _SMALLEST)))


def ends(value: float, own: float, may: Unseen, confidence: float) -> tuple[float, float]:
    """The interval of a deviation with this many degrees of freedom."""
    miss = _END * (1 - confidence)
    low = value * math.sqrt(own / stats.chi2.isf(miss, own))
    high = value * max(may.most, math.sqrt(own / stats.chi2.ppf(miss, own)))
    return low, high


def tasks_for(value: float, limit: float, confidence: float) -> int:
    """Normal tasks whose interval of this deviation does not hold the limit; a million where more
    are needed.
    """

    def enough(tasks: int) -> bool:
        low, high = ends(value, tasks - 1.0, unseen(tasks, tasks, confidence), confidence)
        return low > limit or high <= limit

    high = LEAST
    while not enough(high):
        if high >= _MOST:
            return _MOST
        high = min(2 * high, _MOST)
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return max(high, LEAST)
