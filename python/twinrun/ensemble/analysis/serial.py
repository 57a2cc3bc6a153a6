"""Tasks that resemble the ones before: a test of it, and a null of it for what is looked for in time.

Load that comes and goes slowly makes neighbours alike. Shuffled series do not have that, so a test by
permutation alone takes it for a change, a trend or an effect of blocks. Such a test is held a second time
against series of a first-order autoregression. What is looked for makes neighbours alike as well, so the
autoregression's coefficient is measured with it taken out, the same way in the data and in each series. The
coefficient is the largest that could have left so small a resemblance in one of twenty series: data that
cannot tell load from a change show neither.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import signal, special, stats

from .resampling import permutation_p, permuted

__all__ = [
    "CLEAR",
    "LARGEST",
    "LEAST",
    "LIKELY",
    "Null",
    "Resemblance",
    "autoregression",
    "line_gain",
    "resemblance",
    "resembling",
    "scores",
    "shocks",
    "with_before",
]

_COEFFICIENTS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
# Of series of the coefficient that is taken resemble the ones before as little as the data.
LARGEST = 0.05
LIKELY = 0.5  # the likely coefficient, by the same measure
_SERIES = 200
_LIMITS = 1000  # series by which a limit at a coefficient is known
_STEADY = 100  # values before the first one that counts
# of BIC: odds of 20. A change that fits better than a trend by less cannot be told from one
CLEAR = 6.0
LEAST = 16  # tasks; fewer cannot show whether they resemble the ones before


def scores(rows: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks in each row (Blom)."""
    n = rows.shape[-1]
    order = np.argsort(rows, axis=-1)
    ranked = np.take_along_axis(rows, order, axis=-1)
    if not (ranked[..., 1:] > ranked[..., :-1]).all():  # equal values share a rank
        return special.ndtri((stats.rankdata(rows, axis=-1) - 0.375) / (n + 0.25))
    # Without them every row has the same scores, in its own order.
    found = np.empty(rows.shape)
    one = special.ndtri((np.arange(1.0, n + 1) - 0.375) / (n + 0.25))
    np.put_along_axis(found, order, np.broadcast_to(one, rows.shape), axis=-1)
    return found


def with_before(rows: np.ndarray) -> np.ndarray:
    """The correlation of each value with the one before, for each row."""
    rows = rows - rows.mean(axis=-1, keepdims=True)
    return (rows[..., 1:] * rows[..., :-1]).sum(axis=-1) / np.maximum((rows**2).sum(axis=-1), 1e-300)


def shocks(count: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """The normal values that `autoregression` draws."""
    return rng.standard_normal((count, n + _STEADY))


def autoregression(coefficient: float, count: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """(count, n): normal series with this coefficient and a variance of 1."""
    drawn = shocks(count, n, rng) * np.sqrt(1 - coefficient**2)
    return signal.lfilter([1.0], [1.0, -coefficient], drawn, axis=1)[:, _STEADY:]


def resembling(rows: np.ndarray) -> np.ndarray:
    """The first three correlations with what came before, added up, each half as heavy as the last;
    for each row.
    """
    z = scores(rows)
    total = sum(
        0.5**k * (z[:, k + 1 :] * z[:, : -k - 1]).sum(axis=1) for k in range(min(3, rows.shape[1] - 1))
    )
    return np.asarray(total)


@dataclass(frozen=True)
class Resemblance:
    """How much tasks resemble the ones before.

    value: the correlation with the one before; p: one-sided, by permutation; tested: whether there were
    enough tasks, so that a large p says something.
    """

    value: float
    p: float
    tested: bool
    alpha: float

    @property
    def shown(self) -> bool:
        """Whether tasks are shown to resemble the ones before."""
        return self.p <= self.alpha


def resemblance(
    values: np.ndarray,
    again: Callable[[np.ndarray], np.ndarray],
    alpha: float,
    permutations: int,
    rng: np.random.Generator,
) -> Resemblance:
    """Tests whether values in the order of time resemble the ones before; again: as `model.Left.again`."""

    def statistic(rows: np.ndarray) -> np.ndarray:
        return resembling(rows)[:, None]

    n = len(values)
    if n < 4 or np.std(values) < 1e-12:
        return Resemblance(0.0, 1.0, False, alpha)
    p = permutation_p(
        statistic(values[None])[0], lambda m: statistic(again(permuted(values, None, m, rng))), permutations
    )[0]
    return Resemblance(float(with_before(scores(values[None]))[0]), float(p), n >= LEAST, alpha)


def line_gain(rows: np.ndarray) -> np.ndarray:
    """How much the sum of squares of each row falls by a straight line."""
    n = rows.shape[-1]
    line = np.arange(n) - (n - 1) / 2
    return (rows @ line) ** 2 / (line @ line)


class Null:
    """Series that resemble the ones before, by a first-order autoregression, and what is looked for in them.

    looked_for(rows) gives, for each row, the statistic (large is extreme) and the correlation with the one
    before, with what is looked for taken out; again: as `model.Left.again`.

    What is looked for takes long in long series, and few coefficients count where tasks hardly resemble the
    ones before. So series are drawn for all of them, in one order, and looked at where they count.
    """

    def __init__(
        self,
        n: int,
        looked_for: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        again: Callable[[np.ndarray], np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        self._n, self._looked_for, self._again, self._rng = n, looked_for, again, rng
        self._measured: list[Callable[[], np.ndarray]] = []
        self._known: dict[float, list[Callable[[], np.ndarray]]] = {}

    def _series(self, coefficient: float, count: int) -> np.ndarray:
        return self._again(autoregression(coefficient, count, self._n, self._rng))

    def _seen_in(self, coefficient: float, count: int, which: int) -> Callable[[], np.ndarray]:
        """What is looked for (its part `which`) in series that are drawn now, and looked at when it is
        called.
        """
        own = copy.deepcopy(self._rng)
        shocks(count, self._n, self._rng)
        return cache(
            lambda: self._looked_for(self._again(autoregression(coefficient, count, self._n, own)))[which]
        )

    def coefficients(self, measured: np.ndarray, share: float = LARGEST) -> np.ndarray:
        """The coefficient whose series resemble the ones before as little as measured in this share
        of series.

        One of twenty: the largest that could have been. Half: the likely one.
        """
        if not self._measured:
            self._measured = [self._seen_in(c, _SERIES, 1) for c in _COEFFICIENTS]
        measured = measured + 1e-6  # where all are alike: the largest
        lowest: list[float] = []
        for seen in self._measured:
            lowest.append(float(np.quantile(seen(), share)))
            increasing = np.maximum.accumulate(np.array(lowest)) + 1e-9 * np.arange(len(lowest))
            if increasing[-1] > np.max(measured):
                break
        return np.interp(measured, increasing, _COEFFICIENTS[: len(lowest)])

    def p(self, values: np.ndarray, most: int) -> float:
        """p of what is looked for in values."""
        own, measured = self._looked_for(values[None])
        coefficient = float(self.coefficients(measured)[0])
        found = permutation_p(own, lambda m: self._looked_for(self._series(coefficient, m))[0][:, None], most)
        return float(found[0])

    def limits(self, measured: np.ndarray, level: float) -> np.ndarray:
        """The statistics that are found at this level, where the resemblance is as measured."""
        at = _COEFFICIENTS[::2]
        if level not in self._known:
            self._known[level] = [self._seen_in(c, _LIMITS, 0) for c in at]
        taken = self.coefficients(measured)
        # Those on both sides of what is taken.
        first = int(np.searchsorted(at, taken.min(), side="right")) - 1
        behind = int(np.searchsorted(at, taken.max(), side="left")) + 1
        known = [float(np.quantile(seen(), 1 - level)) for seen in self._known[level][first:behind]]
        return np.interp(taken, at[first:behind], known)
