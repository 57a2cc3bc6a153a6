"""How many tasks the best of all tests needs to tell a slow group from a tail.

Two normal distributions of one variance are held against the Johnson's SU that is nearest to them. The best
test between the two, if both were known, is that of the ratio of their likelihoods (Neyman and Pearson). Its
logarithm is a sum over tasks, which is simulated. No test that takes such an SU for noise needs fewer tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .distributions import johnson, samples

__all__ = ["MOST", "Pair", "tasks_to_tell"]

MOST = 3000  # tasks, beyond which it is not looked how many it takes
_LEAST = 12
_SUMS, _STEP = 2000, 1.08  # simulated studies of each number of tasks, and the next number by the last
_MODEL = 40_000  # values of a fitted mixture, to which an SU is fitted


@dataclass(frozen=True)
class Pair:
    """Two normal distributions: the mean of the fast and of the slow one, the deviation of both, and the
    share of the slow one.
    """

    fast: float
    slow: float
    deviation: float
    share: float

    def drawn(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Values of this pair."""
        means = np.where(rng.random(count) < self.share, self.slow, self.fast)
        return means + self.deviation * rng.standard_normal(count)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """The logarithm of its density."""
        others = np.log1p(-self.share) + stats.norm.logpdf(y, self.fast, self.deviation)
        return np.logaddexp(others, np.log(self.share) + stats.norm.logpdf(y, self.slow, self.deviation))


def tasks_to_tell(pair: Pair, level: float, power: float, rng: np.random.Generator) -> float:
    """Tasks with which the best test at this level finds the pair in this share of studies; infinite if
    `MOST` are too few.
    """
    x = pair.drawn(_MODEL, rng)
    place, width, gamma, delta = johnson(x[None])[1][0]
    one = stats.johnsonsu(gamma, delta, place, width)
    noise = samples(rng.standard_normal((1, _MODEL)), np.array([[place, width, gamma, delta]]))[0]
    there, not_there = (pair.log_density(y) - one.logpdf(y) for y in (x, noise))

    def sums(values: np.ndarray, n: int) -> np.ndarray:
        return values[rng.integers(0, len(values), (_SUMS, n))].sum(axis=1)

    n = _LEAST
    while n <= MOST:
        # Sums of a tail are not normal: a few values lie far below all others.
        limit = np.quantile(sums(not_there, n), 1 - level)
        if (sums(there, n) > limit).mean() >= power:
            return n
        n = math.ceil(n * _STEP)
    return math.inf
