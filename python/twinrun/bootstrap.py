"""The bootstrap of all rooms: BCa and percentile intervals by SciPy, studentized ones, units that
stay together.

A unit is what is resampled: a task, a window of time, a block of tasks. Statistics take unit numbers, so that
rows of a table, blocks of unequal size and two samples are one case.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["SEED", "drawn", "interval", "members_of", "studentized"]

SEED = 20171128  # fixed: the same data give the same interval


def members_of(codes: np.ndarray) -> list[np.ndarray]:
    """The rows of each unit, for the label of each row."""
    labels = np.unique(codes, return_inverse=True)[1]
    return [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]


def interval(
    units: Sequence[int],
    statistic: Callable[..., np.ndarray],
    *,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
    method: str = "BCa",
    batch: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of statistics of one or more samples, whose units are resampled (SciPy's bootstrap).

    units: how many each sample has. statistic takes for each sample (m, n) unit numbers, a row a
    resample, and gives (m,), or (k, m) for k statistics. Gives the k lower and the k upper ends,
    NaN where BCa has none.
    """
    from scipy import stats

    def of(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        rows = [np.moveaxis(c, axis, -1).astype(int) for c in chosen]
        shape = np.broadcast_shapes(*(r.shape[:-1] for r in rows))
        flat = [np.broadcast_to(r, (*shape, r.shape[-1])).reshape(-1, r.shape[-1]) for r in rows]
        found = np.asarray(statistic(*flat))
        return found.reshape((*found.shape[:-1], *shape))

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of degenerate data: the answer is NaN
        found = stats.bootstrap(
            [np.arange(n) for n in units],
            of,
            vectorized=True,
            method=method,
            confidence_level=confidence,
            n_resamples=resamples,
            batch=batch,
            rng=rng,
        ).confidence_interval
    return np.asarray(found.low, dtype=float).ravel(), np.asarray(found.high, dtype=float).ravel()


def drawn(units: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(1 + resamples, units) unit numbers: the data itself comes first."""
    return np.concatenate([np.arange(units)[None], rng.integers(0, units, (resamples, units))])


def studentized(statistic: np.ndarray, error: np.ndarray, confidence: float) -> tuple[float, float]:
    """The bootstrap-t interval of a statistic and its standard error on the resamples of `drawn`.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5. Resamples without a finite t
    count as infinitely far away, on the side where they lie.
    """
    resamples = len(statistic) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (statistic[1:] - statistic[0]) / error[1:]
    undefined = ~np.isfinite(t)
    below = np.nan_to_num(statistic[1:][undefined], nan=-np.inf) < statistic[0]
    t[undefined] = np.where(below, -np.inf, np.inf)
    t.sort()
    tail = (1 - confidence) / 2 * (resamples + 1)
    upper = t[min(math.ceil(resamples + 1 - tail), resamples) - 1]
    lower = t[max(math.floor(tail), 1) - 1]
    return float(statistic[0] - error[0] * upper), float(statistic[0] - error[0] * lower)
