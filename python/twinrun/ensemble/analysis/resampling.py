"""Permutation tests and bootstrap intervals, with blocks kept together.

Permutations stop early where a test is far from deciding (Besag and Clifford, Biometrika 78, 1991): the p
value stays valid, and a study without effects costs a twentieth of the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy import stats

__all__ = ["BLOCKS", "bootstrap", "bootstrap_rows", "permutation_p", "permuted"]

BLOCKS = 10  # fewer blocks are not resampled as wholes: there would be too few of them
_ENOUGH = 20  # draws as extreme as the data, after which more draws would not change the answer
# draws at first, then as many again as there were, up to the largest that is quick and small in memory
_BATCH = 60
_LARGEST = 500


def permutation_p(
    observed: np.ndarray, draw: Callable[[int], np.ndarray], most: int, enough: int = _ENOUGH
) -> np.ndarray:
    """P values of statistics (k of them; large is extreme) against draws under the null: draw(n) gives (n,
    k), n at most what is asked for. Ties within rounding count against the claim.
    """
    observed = np.atleast_1d(np.asarray(observed, dtype=float))
    reached = np.zeros(observed.shape, dtype=int)
    p = np.full(observed.shape, np.nan)
    done = 0
    while done < most and np.isnan(p).any():
        drawn = draw(min(max(_BATCH, done), _LARGEST, most - done)).reshape(-1, len(observed))
        extreme = drawn >= observed - 1e-9 * np.abs(observed)
        running = reached + np.cumsum(extreme, axis=0)
        for k in np.flatnonzero(np.isnan(p)):
            if running[-1, k] >= enough:
                p[k] = enough / (done + 1 + int(np.argmax(running[:, k] >= enough)))
        reached = running[-1]
        done += len(drawn)
    left = np.isnan(p)
    p[left] = (reached[left] + 1) / (done + 1)
    return np.minimum(p, 1.0)


def permuted(
    values: np.ndarray, blocks: np.ndarray | None, count: int, rng: np.random.Generator
) -> np.ndarray:
    """(count, n): `values` shuffled, within blocks where blocks are given."""
    n = len(values)
    keys = rng.random((count, n))
    if blocks is None:
        return values[np.argsort(keys, axis=1)]
    codes = np.unique(blocks, return_inverse=True)[1]
    home = np.argsort(codes, kind="stable")
    # Sorting by (block, random) lists the members of each block in random order, at the places of that block.
    order = np.argsort(codes[None, :] + keys, axis=1)
    result = np.empty((count, n), dtype=values.dtype)
    result[:, home] = values[order]
    return result


def bootstrap(
    columns: tuple[np.ndarray, ...],
    statistic: Callable[..., np.ndarray | float],
    *,
    confidence: float,
    resamples: int,
    seed: int,
    blocks: np.ndarray | None = None,
) -> tuple[float, float]:
    """The BCa interval of statistic(*columns), tasks (rows) resampled together, or blocks where there are at
    least BLOCKS.

    statistic takes 1-dimensional arrays. (nan, nan) where there is none: fewer than five units, or all alike.
    """
    codes = None if blocks is None else np.unique(blocks, return_inverse=True)[1]
    if codes is not None and BLOCKS <= codes.max() + 1 < len(codes):
        members = [np.flatnonzero(codes == b) for b in range(codes.max() + 1)]
    else:
        members = [np.array([i]) for i in range(len(columns[0]))]
    if len(members) < 5:
        return float("nan"), float("nan")

    def of(units: np.ndarray) -> float:
        rows = np.concatenate([members[u] for u in units])
        return float(statistic(*(c[rows] for c in columns)))

    with np.errstate(all="ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of degenerate data: the answer is nan
            found = stats.bootstrap(
                (np.arange(len(members)),),
                of,
                vectorized=False,
                method="BCa",
                confidence_level=confidence,
                n_resamples=resamples,
                rng=np.random.default_rng(seed),
            ).confidence_interval
    return float(found.low), float(found.high)


def bootstrap_rows(
    data: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    confidence: float,
    resamples: int,
    seed: int,
    method: str = "BCa",
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of many statistics at once: `statistic` takes (m, n, columns), m resamples of the rows of
    data, gives (k, m).
    """

    def of(rows: np.ndarray, axis: int = -1) -> np.ndarray:
        rows = np.moveaxis(rows, axis, -1).astype(int)
        flat = rows.reshape(-1, rows.shape[-1])
        return np.asarray(statistic(data[flat])).reshape(-1, *rows.shape[:-1])

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = stats.bootstrap(
            (np.arange(len(data)),),
            of,
            vectorized=True,
            method=method,
            confidence_level=confidence,
            n_resamples=resamples,
            batch=max(1, 2_000_000 // max(data.size, 1)),
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return np.asarray(found.low, dtype=float).ravel(), np.asarray(found.high, dtype=float).ravel()
