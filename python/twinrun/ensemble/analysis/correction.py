"""P-values of several tests, corrected for their number.

statsmodels' `multipletests` gives the same, and collects all of Python's garbage in each call. With pandas
loaded that takes a hundred times as long as an analysis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """The chance of any false claim stays below the level, whatever the tests share.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979.
    """
    raw = np.asarray(p, dtype=float)
    order = np.argsort(raw, kind="stable")
    times = np.arange(len(raw), 0, -1)
    return _in_place(order, np.maximum.accumulate(raw[order] * times))


def benjamini_hochberg(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Of the claims, the share that is false stays below the level on average.

    Source: Y. Benjamini, Y. Hochberg, Controlling the false discovery rate, J. R. Statist. Soc. B 57, 1995.
    """
    raw = np.asarray(p, dtype=float)
    order = np.argsort(raw, kind="stable")
    shares = np.arange(1, len(raw) + 1) / len(raw)
    return _in_place(order, np.minimum.accumulate((raw[order] / shares)[::-1])[::-1])


def _in_place(order: np.ndarray, corrected: np.ndarray) -> np.ndarray:
    """Of sorted values, each where it was before, and no more than 1."""
    made = np.empty(len(order))
    made[order] = np.minimum(corrected, 1.0)
    return made
