"""Where times lie: the median of one condition, and the ratio of two, with intervals that need no
normal noise.

The ratio is the Hodges-Lehmann estimate of the logarithms of ratios within blocks: the median of
their averages in pairs. Its interval belongs to Wilcoxon's signed-rank test: it holds the true
ratio with the stated probability where these logarithms are symmetric, as they are for two
conditions with noise of one form. A few slow runs hardly move either. The median's interval has
order statistics as its ends, and needs no assumption about the form.

Both take blocks (or runs) as independent of each other. A rule that looks repeatedly, and stops at
the first interval that is narrow, stops too often where the interval is narrow by chance.
`sequential` makes up for that: `tests/python/ensemble/test_ensemble_locations.py` simulates it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from .intervals import Interval

__all__ = ["each", "median", "ratio", "sequential"]

_EXACT = 60  # blocks, up to which the null distribution of signed ranks is exact
_PAIRS = 1500  # blocks, up to which all averages of pairs are held
_STRICTER = 0.8  # of 1 - confidence, for rules that look repeatedly


def sequential(confidence: float) -> float:
    """The confidence of intervals by which a rule stops, so that they keep the one that is stated."""
    return 1 - _STRICTER * (1 - confidence)


def each(confidence: float, comparisons: int) -> float:
    """The confidence of each of several intervals that hold together (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, comparisons)


@functools.lru_cache(maxsize=4096)
def _signed_rank(n: int, alpha: float) -> int:
    """The largest k for which fewer than k of the averages lie below the true value with at most
    alpha / 2.
    """
    if n > _EXACT:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.floor(n * (n + 1) / 4 - NormalDist().inv_cdf(1 - alpha / 2) * deviation)
    p = np.zeros(n * (n + 1) // 2 + 1)
    p[0] = 1.0
    for rank in range(1, n + 1):
        with_it = p.copy()
        with_it[rank:] += p[:-rank]
        p = with_it / 2
    return int(np.searchsorted(np.cumsum(p), alpha / 2, side="right"))


@functools.lru_cache(maxsize=4096)
def _sign(n: int, alpha: float) -> int:
    """The same of the values themselves: order statistics around the median."""
    below, total = 0, 0
    for k in range(n // 2 + 1):
        total += math.comb(n, k)
        if total > alpha / 2 * 2**n:
            break
        below = k + 1
    return below


def _averages(x: np.ndarray, places: Sequence[int]) -> list[float]:
    """The averages of pairs (a value with itself too) at these places of their order, from 0."""
    n = len(x)
    if n <= _PAIRS:
        i, j = np.triu_indices(n)
        averages = np.sort((x[i] + x[j]) / 2)
        return [float(averages[k]) for k in places]
    x = np.sort(x)
    low, high = np.full(len(places), x[0]), np.full(len(places), x[-1])
    rank = np.asarray(places)
    for _ in range(60):
        middle = (low + high) / 2
        # Pairs i <= j with an average of at most the middle: those of all i, j, and of i = j once
        # more, by half.
        up_to = np.array(
            [
                (np.searchsorted(x, 2 * m - x, side="right").sum() + np.searchsorted(x, m, side="right")) / 2
                for m in middle
            ]
        )
        high = np.where(up_to > rank, middle, high)
        low = np.where(up_to > rank, low, middle)
    return [float(v) for v in high]


def median(x: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Interval:
    """The median, by order statistics; without an interval where there are too few values."""
    values = np.sort(np.asarray(x, dtype=float))
    n = len(values)
    if n == 0:
        return Interval(math.nan, 0.0, math.inf, 0, confidence)
    k = _sign(n, 1 - confidence)
    if k < 1:
        return Interval(float(np.median(values)), 0.0, math.inf, n, confidence)
    return Interval(float(np.median(values)), float(values[k - 1]), float(values[n - k]), n, confidence)


def ratio(
    base: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray, confidence: float = 0.95
) -> Interval:
    """other / base, of positive values, base[i] and other[i] of the same block."""
    x = np.log(np.asarray(other, dtype=float)) - np.log(np.asarray(base, dtype=float))
    n = len(x)
    if n == 0:
        return Interval(math.nan, 0.0, math.inf, 0, confidence)
    last = n * (n + 1) // 2 - 1
    k = _signed_rank(n, 1 - confidence)
    places = [last // 2, last - last // 2, max(k - 1, 0), min(last - k + 1, last)]
    below, above, low, high = (math.exp(v) for v in _averages(x, places))
    if k < 1:
        low, high = 0.0, math.inf
    return Interval(math.sqrt(below * above), low, high, n, confidence)
