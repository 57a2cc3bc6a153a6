"""Whether tasks ran in an order that lets their conditions, or their nodes, be told from the time.

A test by shuffling takes any order for equally likely. Measurements of other programs often ran one condition
after another, and batch systems fill one node after another. Then neighbours are of one level more often than
in shuffled orders, and a change of the machine looks like an effect: nothing is claimed of these. Tasks that
ran at the same time have no order.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..study.tasks import condition_columns
from .resampling import permutation_p, permuted

__all__ = [
    "RANDOM",
    "UNKNOWN",
    "blocks_are_guessed",
    "conditions_in_stretches",
    "imported",
    "in_stretches",
    "order_is_known",
]

UNKNOWN = "in which order the conditions ran is not known"
RANDOM = "tasks in random order"

# Of random orders as many are taken for stretches. Two stretches are, from six tasks of each level
# on. With fewer no test by shuffling has a small p.
_LEVEL = 0.005
_DRAWS = 1999


def imported(frame: pd.DataFrame) -> bool:
    """Whether the tasks are another program's, so that nobody knows that their order was drawn."""
    return "engine" in frame and bool((frame["engine"] == "imported").all())


def blocks_are_guessed(good: pd.DataFrame) -> bool:
    """Whether block n is the n-th run of each condition, because the file names no blocks."""
    return (
        imported(good)
        and "guessed_block" in good
        and bool(good["guessed_block"].fillna(False).astype(bool).any())
    )


def order_is_known(good: pd.DataFrame) -> bool:
    """Whether tasks are in the order in which they ran."""
    return not (blocks_are_guessed(good) and condition_columns(good) and good["start"].isna().all())


def _moments(good: pd.DataFrame) -> np.ndarray:
    """A number for each task, in the order of time; the same for tasks that ran at the same time."""
    start = good["start"].to_numpy(dtype=float)
    own = pd.to_numeric(good["wall"], errors="coerce") if "wall" in good else np.nan
    end = good["end"].fillna(good["start"] + own).fillna(good["start"]).to_numpy(dtype=float)
    found = np.zeros(len(start), dtype=int)
    moment, first_end = 0, np.inf
    for k in np.argsort(start, kind="stable"):
        if start[k] >= first_end:
            moment, first_end = moment + 1, np.inf
        found[k], first_end = moment, min(first_end, end[k])
    return found


def _alike(rows: np.ndarray) -> np.ndarray:
    """How many neighbours in each row are equal."""
    return (rows[:, 1:] == rows[:, :-1]).sum(axis=1)


def in_stretches(good: pd.DataFrame, columns: list[str]) -> list[str]:
    """The columns of which one value ran after another: their order is visibly none of those that shuffling,
    within blocks, takes for equally likely.
    """
    if len(good) < 2 or good["start"].isna().any():
        return []
    rng = np.random.default_rng(1)
    order = np.lexsort((rng.random(len(good)), _moments(good)))
    blocks = None
    if not blocks_are_guessed(good) and 2 <= 2 * good["block"].nunique() <= len(good):
        blocks = good["block"].to_numpy()[order]
    found = []
    for column in columns:
        codes = pd.factorize(good[column].map(str))[0][order]
        if len(np.unique(codes)) < 2:
            continue

        def drawn(count: int, codes: np.ndarray = codes) -> np.ndarray:
            return _alike(permuted(codes, blocks, count, rng))[:, None]

        if permutation_p(_alike(codes[None]), drawn, _DRAWS)[0] <= _LEVEL:
            found.append(column)
    return found


def conditions_in_stretches(good: pd.DataFrame) -> list[str]:
    """The conditions of another program of which one level ran after another. A study of twinrun draws
    their order.
    """
    return in_stretches(good, condition_columns(good)) if imported(good) else []
