"""What intervals of a spread rest on, checked before one is given: independent tasks, and no long tail.

Where tasks resemble the ones before, n of them count as fewer than n. Where a single task holds much of
the variance, the next study may have a slower one, and no bootstrap knows of it. Both are tested at
5%; where one is shown, the interval is not given, and the reason is. A test that finds nothing is
no proof. `deviations` makes the upper end for what may have been missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from .model import Left
from .resampling import BLOCKS
from .result import Options
from .serial import LEAST, Resemblance, resemblance

__all__ = ["Assumptions", "checked", "long_tail"]

_LEVEL = 0.05
_JARQUE_BERA = stats.chi2.ppf(1 - _LEVEL, 2)


@dataclass(frozen=True)
class Assumptions:
    """Whether tasks (or blocks) resemble the ones before, and whether they have a long tail."""

    resemblance: Resemblance
    long_tail: bool
    units: str

    @property
    def fails(self) -> str:
        """Why no interval can be given, or nothing."""
        if self.resemblance.shown:
            return (f"{self.units} resemble the ones before (correlation {self.resemblance.value:.2f}), so they tell less than "
                    "their number")  # fmt: skip
        return "single tasks lie far from all others and hold much of the variance" if self.long_tail else ""

    @property
    def words(self) -> str:
        """What was checked and not refuted."""
        if not self.resemblance.tested:
            return f"so few {self.units} cannot show that they are independent of each other and have no long tail: the upper end allows for both"
        return (f"{self.units} taken as independent of each other: a correlation with the one before of "
                f"{self.resemblance.value:.2f}, p = {self.resemblance.p:.2g}; no long tail is shown; the upper end allows for what so many do not show")  # fmt: skip


def long_tail(rows: np.ndarray) -> np.ndarray:
    """Grubbs' test, or Jarque and Bera's where tails are longer than normal ones; for each row."""
    n = rows.shape[1]
    deviation = rows.std(axis=1, ddof=1) if n > 1 else np.zeros(len(rows))
    if n < 4:
        return np.zeros(len(rows), dtype=bool)
    varies = deviation >= 1e-12
    z = (rows - rows.mean(axis=1, keepdims=True)) / np.where(varies, deviation, 1.0)[:, None]
    t = stats.t.ppf(1 - _LEVEL / (2 * n), n - 2)
    outlier = np.abs(z).max(axis=1) > (n - 1) / np.sqrt(n) * np.sqrt(t**2 / (n - 2 + t**2))
    square = np.maximum((z**2).mean(axis=1), 1e-30)
    excess = np.maximum(0.0, (z**4).mean(axis=1) / square**2 - 3)
    skew = (z**3).mean(axis=1) / square**1.5
    return varies & (outlier | ((n / 6 * (skew**2 + excess**2 / 4) > _JARQUE_BERA) & (excess > 0)))


def checked(left: Left, blocks: np.ndarray | None, options: Options) -> Assumptions:
    """Checks residuals in the order of time. Ten blocks and more are the units: their means must be
    independent.
    """
    x = left.values
    rng = np.random.default_rng(options.seed)
    if blocks is not None and BLOCKS <= len(np.unique(blocks)) < len(x):
        codes = np.unique(blocks, return_inverse=True)[1]
        first = np.argsort([np.flatnonzero(codes == k)[0] for k in range(codes.max() + 1)])
        means = (np.bincount(codes, x) / np.bincount(codes))[first]
        alike = resemblance(means, lambda rows: rows, _LEVEL, options.permutations, rng)
        # And the last task of a block with the first of the next: blocks that only differ leave
        # these independent.
        border = np.flatnonzero(codes[1:] != codes[:-1])
        before, after = x[border], x[border + 1]
        value, by_border = alike.value, 1.0
        if np.ptp(before) > 0 and np.ptp(after) > 0:
            across = stats.spearmanr(before, after, alternative="greater")
            by_border = float(across.pvalue)
            value = float(across.statistic) if by_border < alike.p else value
        p = min(1.0, 2 * min(alike.p, by_border))
        alike = Resemblance(value, p, len(means) >= LEAST, _LEVEL)
        return Assumptions(alike, bool(long_tail(x[None])[0]), "blocks")
    alike = resemblance(x, left.again, _LEVEL, options.permutations, rng)
    return Assumptions(alike, bool(long_tail(x[None])[0]), "tasks")
