"""Permutation tests, within blocks where there are any; which bootstrap intervals blocks have.

Permutations stop early where a test is far from deciding (Besag and Clifford, Biometrika 78, 1991): the p
value stays valid, and a study without effects costs a twentieth of the work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["BLOCKS", "permutation_p", "permuted"]

BLOCKS = 10  # fewer blocks are not resampled as wholes: there would be too few of them
_ENOUGH = 20  # draws as extreme as the data, after which more draws would not change the answer
# draws at first, then as many again as there were, up to the largest that is quick and small in
# memory
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
    # Sorting by (block, random) lists the members of each block in random order, at the places of
    # that block.
    order = np.argsort(codes[None, :] + keys, axis=1)
    result = np.empty((count, n), dtype=values.dtype)
    result[:, home] = values[order]
    return result
