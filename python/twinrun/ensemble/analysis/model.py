"""Removes the planned effects of a study from its times.

Times are analysed as logarithms: effects multiply, and a factor's effect is a ratio. Conditions and blocks
are coded as deviations from the mean (their coefficients sum to 0), so that a main effect means the same with
and without interactions. `terms` tests them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS

from ...words import estimate, percent, significant
from ..study.tasks import condition_columns

if TYPE_CHECKING:
    from statsmodels.regression.linear_model import RegressionResultsWrapper

__all__ = [
    "Left",
    "Model",
    "Term",
    "at_least",
    "cells_of",
    "cells_of_codes",
    "confounded",
    "crossed",
    "fall_of_bic",
    "left_over",
    "levels_of",
    "model_of",
    "percent",
    "residuals",
    "span",
    "with_interval",
    "with_nodes",
]

_BASES = ("off", "no", "n", "none", "false", "0", "0.0")


def at_least(share: float) -> str:
    """As `percent`, of a number that is no smaller: what is said to bound something must bound it.

    >>> at_least(0.01234), at_least(1.234), at_least(0.05)
    ('1.3%', '124%', '5%')
    """
    if not np.isfinite(share):
        return "?"
    x = 100 * share
    digits = 0 if x >= 100 else 1 - math.floor(math.log10(x)) if x > 0 else 0
    up = math.ceil(round(x * 10.0**digits, 6)) / 10.0**digits
    return f"{up:.0f}%" if up >= 100 else f"{up:.2g}%"


def span(low: float, high: float, scale: float = 100.0, unit: str = "%", marks: Sequence[float] = ()) -> str:
    """'[3.2, 5.6]%'. marks: values, before scaling, across which no end is rounded."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return "(no interval)"
    scaled = [m * scale for m in marks]
    return f"[{significant(low * scale, 3, scaled)}, {significant(high * scale, 3, scaled)}]{unit}"


def with_interval(
    value: float, low: float, high: float, marks: Sequence[float] = (1.0,), least: int = 2, sign: str = ""
) -> str:
    """'1.41 [1.38, 1.45]', with as many digits as are needed to tell the ends from the marks. sign:
    '+' to show it.
    """
    if not (np.isfinite(low) or np.isfinite(high)):
        return f"{value:{sign}.{least}f}"
    said, first, last = estimate(value, low, high, marks, least)
    return f"{sign if value >= 0 else ''}{said} [{first}, {last}]"


def levels_of(column: pd.Series) -> list[str]:
    """The levels as text, the base first: off, no, none or the like, otherwise the smallest."""

    def key(level: str) -> tuple:
        try:
            return level.lower() not in _BASES, 0, float(level), level
        except ValueError:
            return level.lower() not in _BASES, 1, 0.0, level

    return sorted({str(v) for v in column}, key=key)


def cells_of(frame: pd.DataFrame, columns: list[str]) -> pd.Series:
    """A text for each row with its levels of these columns; a missing column counts as empty."""
    if not columns:
        return pd.Series([""] * len(frame), index=frame.index)
    parts = [frame[c].astype(object).map(str) if c in frame else pd.Series("", frame.index) for c in columns]
    return pd.Series(["\x1f".join(row) for row in zip(*parts, strict=True)], index=frame.index)


def cells_of_codes(coded: np.ndarray) -> np.ndarray:
    """A number for each row: rows with the same codes have the same."""
    return np.unique(np.round(coded, 9), axis=0, return_inverse=True)[1].ravel()


@dataclass(frozen=True)
class Term:
    """name: 'checkpoint' or 'checkpoint x cores'; factors: the columns; where: its columns of the model's
    matrix.
    """

    name: str
    factors: tuple[str, ...]
    where: tuple[int, ...]


@dataclass
class Model:
    """A linear model of y: an intercept, blocks, terms.

    aliased: terms that the design cannot distinguish from others.
    """

    y: np.ndarray
    matrix: np.ndarray
    terms: list[Term]
    block_columns: tuple[int, ...]
    blocks: np.ndarray | None
    levels: dict[str, list[str]]
    aliased: list[str] = field(default_factory=list)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the residuals."""
        return len(self.y) - self.matrix.shape[1]

    def fit(self) -> RegressionResultsWrapper:
        """Fits the model by the least squares of statsmodels."""
        return OLS(self.y, self.matrix).fit()

    def row(self, levels: dict[str, str]) -> np.ndarray:
        """A row of the matrix for a mean block: factors at these levels, others at the mean of
        their levels.
        """
        row = np.zeros(self.matrix.shape[1])
        row[0] = 1
        for term in self.terms:
            codes = []
            for f in term.factors:
                coding = _coding(len(self.levels[f]))
                at = levels.get(f)
                codes.append(coding.mean(axis=0) if at is None else coding[self.levels[f].index(at)])
            product = codes[0]
            for c in codes[1:]:
                product = np.outer(product, c).ravel()
            row[list(term.where)] = product
        return row


def _coding(levels: int) -> np.ndarray:
    """Sum-to-zero coding: a row for each level."""
    return np.vstack([np.eye(levels - 1), -np.ones(levels - 1)])


def crossed(frame: pd.DataFrame, a: str, b: str) -> bool:
    """Whether the effects of a and b can be separated: the bipartite graph of their levels is connected."""
    left, right = (np.unique([str(v) for v in frame[c]], return_inverse=True)[1] for c in (a, b))
    table = np.zeros((left.max() + 1, right.max() + 1), dtype=bool)
    table[left, right] = True
    seen = np.zeros(len(table), dtype=bool)
    seen[0] = True
    while True:
        grown = (table & table[seen].any(axis=0)).any(axis=1)
        if (grown == seen).all():
            return bool(seen.all())
        seen = grown | seen


def confounded(frame: pd.DataFrame, columns: list[str], other: str) -> list[str]:
    """The columns whose effects the design cannot separate from those of the other column.

    A column that is the other by another name is not listed.
    """
    against = [str(v) for v in frame[other]]
    if frame[other].isna().any() or len(set(against)) < 2:
        return []
    texts = {c: [str(v) for v in frame[c]] for c in columns}
    return [
        c
        for c, text in texts.items()
        if len(set(text)) > 1 and text != against and not crossed(frame, c, other)
    ]


def with_nodes(good: pd.DataFrame, columns: list[str]) -> list[str]:
    """The conditions whose levels had nodes of their own."""
    # With a node of its own for each task, nodes are part of what makes tasks differ.
    shared = good["node"].notna().all() and good["node"].duplicated().any()
    return confounded(good, columns, "node") if shared else []


def model_of(
    frame: pd.DataFrame,
    y: np.ndarray,
    factors: list[str],
    *,
    blocks: bool = True,
    order: int = 2,
    spare: int = 3,
) -> Model:
    """Main effects, then interactions up to `order`, as far as the design separates them and `spare` degrees
    remain.
    """
    n = len(y)
    parts: list[np.ndarray] = [np.ones((n, 1))]
    count = 1
    block_columns: tuple[int, ...] = ()
    codes = None
    if blocks and frame["block"].nunique() > 1:
        codes = np.unique(frame["block"].to_numpy(), return_inverse=True)[1]
        if codes.max() + 1 <= n // 2:
            part = _coding(codes.max() + 1)[codes]
            parts.append(part)
            block_columns = tuple(range(1, 1 + part.shape[1]))
            count += part.shape[1]
        else:
            codes = None  # one task in each block: a block is then no group
    coded, levels = {}, {}
    for f in factors:
        levels[f] = levels_of(frame[f])
        place = {level: k for k, level in enumerate(levels[f])}
        at = np.array([place[str(v)] for v in frame[f]])
        coded[f] = _coding(len(levels[f]))[at]
    terms, aliased = [], []
    matrix = np.hstack(parts)
    rank = np.linalg.matrix_rank(matrix)
    for depth in range(1, order + 1):
        for group in itertools.combinations(factors, depth):
            part = coded[group[0]]
            for f in group[1:]:
                part = (part[:, :, None] * coded[f][:, None, :]).reshape(n, -1)
            name = " x ".join(f.removeprefix("factors.") for f in group)
            wider = np.hstack([matrix, part])
            wider_rank = np.linalg.matrix_rank(wider)
            if wider_rank < rank + part.shape[1] or n - wider_rank < spare:
                aliased.append(name)
                continue
            terms.append(Term(name, group, tuple(range(count, count + part.shape[1]))))
            matrix, rank, count = wider, wider_rank, count + part.shape[1]
    return Model(y, matrix, terms, block_columns, codes, levels, aliased)


@dataclass(frozen=True)
class Left:
    """Residuals of logarithms, divided by sqrt(1 - leverage), so that all have the same variance.

    basis: orthonormal, of the removed effects. again: rows of shuffled values, without the same effects as
    the data; otherwise shuffled series would have more degrees of freedom than the data, and look smoother.
    """

    values: np.ndarray
    basis: np.ndarray
    scale: np.ndarray

    def again(self, rows: np.ndarray) -> np.ndarray:
        """Residuals of rows of shuffled values, treated like the data."""
        return (rows - (rows @ self.basis) @ self.basis.T) / self.scale

    def without(self, column: np.ndarray) -> Left:
        """The same, with a straight line over this column taken out too."""
        own = column - column.mean()
        own = own - self.basis @ (self.basis.T @ own)
        size = float(np.sqrt(own @ own))
        if size <= 1e-9 * float(np.sqrt(((column - column.mean()) ** 2).sum())):
            return self
        basis = np.column_stack([self.basis, own / size])
        scale = np.sqrt(1 - np.minimum((basis**2).sum(axis=1), 1 - 1e-9))
        rest = self.values * self.scale
        return Left((rest - basis @ (basis.T @ rest)) / scale, basis, scale)


def left_over(frame: pd.DataFrame, value: str, *, blocks: bool, nodes: bool = False) -> Left:
    """Logarithms of the value without the effects of conditions (all repeated combinations) and, on request,
    of blocks and nodes.

    Nodes only where they have three or more tasks on average; otherwise little would remain.
    """
    y = np.log(frame[value].to_numpy(dtype=float))
    factors = condition_columns(frame)
    matrix = model_of(frame, y, factors, blocks=blocks, order=max(1, len(factors))).matrix
    if nodes and frame["node"].notna().all() and 1 < frame["node"].nunique() <= len(y) / 3:
        matrix = np.hstack([matrix, pd.get_dummies(frame["node"].map(str), dtype=float).to_numpy()])
    u, s, _ = np.linalg.svd(matrix, full_matrices=False)
    q = u[:, s > 1e-9 * s[0]]
    scale = np.sqrt(1 - np.minimum((q**2).sum(axis=1), 1 - 1e-9))
    left = y - q @ (q.T @ y)
    # Rounding does not count as noise.
    left[np.abs(left) < 1e-13 * max(1.0, float(np.abs(y).max()))] = 0
    return Left(left / scale, q, scale)


def residuals(frame: pd.DataFrame, value: str, *, blocks: bool, nodes: bool = False) -> np.ndarray:
    """The values of `left_over`."""
    return left_over(frame, value, blocks=blocks, nodes=nodes).values


def fall_of_bic(left: np.ndarray, effect: np.ndarray, parameters: float) -> float:
    """How much BIC falls where effects are taken out of normal values, for this many parameters."""
    n = len(left)
    rest = left - effect
    inside, all_ = float(((rest - rest.mean()) ** 2).sum()), float(((left - left.mean()) ** 2).sum())
    return n * float(np.log(max(all_, 1e-300) / max(inside, 1e-12 * all_, 1e-300))) - parameters * float(
        np.log(n)
    )
