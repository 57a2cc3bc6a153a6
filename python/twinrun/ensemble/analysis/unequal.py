"""Errors of effects where groups vary differently: one noisy node, one condition that makes times vary.

With one variance for all tasks, 6 noisy runs beside 30 quiet ones seem to have another mean in a quarter of
studies in which they do not. So the error of an effect is made of the residuals of the very tasks that it is
made of: each group has a variance of its own (Rao's MINQUE, 1970). For two groups that is Welch's error,
and for groups of equal size the classical one. Degrees of freedom are those of Welch (Biometrika 38, 1951),
with the correlation of residuals within a design. Effects of several columns are tested by the sum of
their squares (Brown and Forsythe, Technometrics 16, 1974; Box's degrees of freedom for both sides).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Effect", "Uneven", "against_rest", "error_against_rest", "groups_differ", "two_groups"]

_FLAT = 1e-12  # variance within groups, by that of the effect: less is rounding
_ROUNDING = 1e-13  # of a mean of logarithms
# What a group's residuals hold of its variance; less: its tasks decide their own fitted values.
_SURE = 1e-9
_LEAST = 0.05  # of the mean square of a group's residuals: its variance, at least
# A node whose variance is beyond this quantile of F, if all vary alike, is tested with its own
# variance. A higher share keeps the rate of false claims for nodes of three runs, a lower one the
# power for nodes that vary alike.
_NOISIER = 0.1


def _squares(rows: np.ndarray) -> float:
    """The sum of squares of rows.T @ rows: that of rows @ rows.T too, which may be much smaller."""
    few = rows if rows.shape[0] < rows.shape[1] else rows.T
    return float(((few @ few.T) ** 2).sum())


@dataclass(frozen=True)
class Effect:
    """A contrast of a model's coefficients, its error, and the degrees of freedom of that."""

    value: float
    error: float
    freedom: float

    def ends(self, confidence: float) -> tuple[float, float]:
        """Its interval; not a number where the tasks of a group took equal times."""
        if not self.error > 0:
            return np.nan, np.nan
        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.value - half, self.value + half

    def above(self, at: float) -> float:
        """p of the claim that it is larger than this, one-sided."""
        if not self.error > 0:
            return 0.5
        return float(stats.t.sf((self.value - at) / self.error, self.freedom))


def two_groups(group: np.ndarray, base: np.ndarray) -> Effect:
    """The difference of two means, with Welch's error; of two values each or more."""
    n, m = len(group), len(base)
    a, b = (float(x.var(ddof=1)) / len(x) for x in (group, base))
    difference = float(group.mean() - base.mean())
    if a + b < _ROUNDING**2:
        return Effect(difference, 0.0, 1.0)
    return Effect(difference, float(np.sqrt(a + b)), (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1)))


def groups_differ(values: np.ndarray, groups: np.ndarray) -> float:
    """p of Welch's test of several means (1951); 0 where a group does not vary, or is one task.

    One noisy group counts for little in it. In few tasks each it finds too much: it stands beside another.
    """
    n = np.bincount(groups).astype(float)
    if n.min() < 2:
        return 0.0
    k, mean = len(n), np.bincount(groups, values) / n
    variance = np.bincount(groups, (values - mean[groups]) ** 2) / (n - 1)
    if variance.min() <= _FLAT * max(float(mean.var()), _ROUNDING**2):
        return 0.0
    w = n / variance
    middle = w @ mean / w.sum()
    spread = float(((1 - w / w.sum()) ** 2 / (n - 1)).sum())
    f = (w @ (mean - middle) ** 2) / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * spread)
    return float(stats.f.sf(f, k - 1, (k**2 - 1) / (3 * spread)))


class Uneven:
    """What a model (its matrix) leaves of series, whose noise may differ from group to group.

    groups: of tasks, from 0 on. A group whose tasks all decide their own fitted values has the noise of
    all.
    """

    def __init__(self, matrix: np.ndarray, groups: np.ndarray) -> None:
        self._q, self._r = np.linalg.qr(matrix)
        self.groups = groups
        self._member = (groups[:, None] == np.arange(groups.max() + 1)[None, :]).astype(float)
        # The sum of squares of residuals of group g holds this much of the variance of group h.
        fitted = (self._q**2).sum(axis=1) @ self._member
        self._holds = self._shared() + np.diag(self._member.sum(axis=0) - 2 * fitted)
        self.freedom = matrix.shape[0] - matrix.shape[1]
        self._known = np.diag(self._holds) > _SURE
        self._solve = np.linalg.pinv(self._holds[np.ix_(self._known, self._known)], rcond=1e-9)

    def _shared(self) -> np.ndarray:
        """For each pair of groups, the sum of squares of what their tasks have to do with each other's
        fitted values: of pairs of tasks, or of pairs of columns, whichever are fewer.
        """
        tasks, columns = self._q.shape
        if tasks**2 < self._member.shape[1] * columns**2:
            return np.asarray(self._member.T @ (self._q @ self._q.T) ** 2 @ self._member)
        own = (self._q[self.groups == g] for g in range(self._member.shape[1]))
        flat = np.array([q.T @ q for q in own]).reshape(-1, columns**2)
        return np.asarray(flat @ flat.T)

    def left(self, rows: np.ndarray) -> np.ndarray:
        """The residuals of each row."""
        return rows - (rows @ self._q) @ self._q.T

    def variances(self, left: np.ndarray) -> np.ndarray:
        """The variance of each group (a column), for each row of residuals: that of no bias (Rao's MINQUE).

        An estimate may be negative: none is below a twentieth of the mean square of its group.
        """
        squares = left**2
        pooled = squares.sum(axis=1, keepdims=True) / max(self.freedom, 1)
        own = np.repeat(pooled, self._member.shape[1], axis=1)
        inside = squares @ self._member
        simple = inside / np.maximum(np.where(self._known, self._holds.sum(axis=1), 1), _SURE)
        own[:, self._known] = np.maximum(
            inside[:, self._known] @ self._solve.T, _LEAST * simple[:, self._known]
        )
        return own

    def of_groups(self, weights: np.ndarray) -> np.ndarray:
        """The sum of the weights of each group."""
        return weights @ self._member

    def welch(self, weights: np.ndarray, variances: np.ndarray | None) -> float:
        """Degrees of freedom of the sum of the groups' variances with these weights. variances: None where
        groups vary alike.
        """
        own = np.ones(len(weights)) if variances is None else variances
        estimated = (weights * self._known)[self._known] @ self._solve
        shares = estimated[:, None] * estimated[None, :] * self._holds[np.ix_(self._known, self._known)]
        shares = shares * (own[self._known][:, None] * own[self._known][None, :])
        mean = float(weights @ own)
        if variances is None:
            return float(np.clip(mean**2 / max(float(shares.sum()), 1e-300), 1, max(self.freedom, 1)))
        freedom = np.diag(self._holds)[self._known]
        # The square of an estimated variance is too large by (f + 2) / f.
        all_ = float(shares.sum()) - float((np.diag(shares) * 2 / (freedom + 2)).sum())
        return float(np.clip(mean**2 / max(all_, 1e-300) - 2, 1, max(self.freedom, 1)))

    def box(self, own: np.ndarray, variances: np.ndarray) -> float:
        """Degrees of freedom of the sum of squares of projections of this noise. own: orthonormal columns."""
        whole = own.T @ (own * variances[self.groups][:, None])
        parts = (own[self.groups == g] for g in range(len(variances)))
        each = np.array([_squares(part) for part in parts]) * variances**2
        freedom = np.where(self._known, np.diag(self._holds), self.freedom)
        all_ = float((whole**2).sum()) - float((each * 2 / (freedom + 2)).sum())
        # Where one group has all the noise, this leaves 1.
        lost = float((each * 2 / freedom).sum() / max(float(each.sum()), 1e-300))
        found = float(np.trace(whole)) ** 2 / max(all_, 1e-300) - lost
        return float(np.clip(found, 1, own.shape[1]))

    def effect(self, y: np.ndarray, contrast: np.ndarray) -> Effect:
        """A contrast of the coefficients that fit y."""
        weights = self._q @ np.linalg.solve(self._r.T, contrast)
        left = self.left(y[None])
        # Rounding does not count as noise.
        left = np.where(np.abs(left) < 1e-13 * max(1.0, float(np.abs(y).max())), 0.0, left)
        variances, own = self.variances(left)[0], self.of_groups(weights**2)
        return Effect(float(weights @ y), float(np.sqrt(own @ variances)), self.welch(own, variances))


def _of_two(
    a: np.ndarray, b: np.ndarray, own: np.ndarray, others: np.ndarray, n: np.ndarray, m: np.ndarray,
    pooled: np.ndarray, freedom: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Error and degrees of freedom of a sum of two groups' noise.

    a, b: what their variances count; own, others: these variances, of n and m tasks; pooled: that of all,
    with this freedom.
    """
    few, many = np.where(n <= m, own, others), np.where(n <= m, others, own)
    fewer, more = np.minimum(n, m), np.maximum(n, m)
    limit = stats.f.isf(_NOISIER, np.maximum(fewer - 1, 1), np.maximum(more - 1, 1))
    noisier = (fewer > 2) & (few > limit * np.maximum(many, _FLAT * pooled))
    x, y = a * own, b * others
    welch = (x + y) ** 2 / np.maximum(x**2 / np.maximum(n - 1, 1) + y**2 / np.maximum(m - 1, 1), 1e-300)
    square = np.where(noisier, x + y, a * np.maximum(pooled, own) + b * np.maximum(pooled, others))
    return np.sqrt(square), np.where(noisier, np.clip(welch, 1, freedom), freedom)


def error_against_rest(
    left: np.ndarray, weights: np.ndarray, mine: np.ndarray, parameters: int
) -> tuple[float, float]:
    """As `against_rest`, the error and degrees of freedom of weights @ values. left: the residuals of a model
    with so many parameters; mine: whether a task is of the group.
    """
    freedom = max(len(left) - parameters, 1)
    if float(left @ left) <= _ROUNDING**2 * len(left):
        return 0.0, freedom
    pooled = np.array(float(left @ left) / freedom)
    n = np.array(float(mine.sum()))
    m = np.array(float((~mine).sum()))
    lost = len(left) / freedom  # residuals are smaller than noise
    own = np.array(float((left[mine] ** 2).sum()) / max(float(n) - 1, 1.0)) if n > 1 else pooled
    others = np.array(float((left[~mine] ** 2).sum()) / float(m) * lost) if m > 1 else pooled
    a, b = (np.array(float((weights[at] ** 2).sum())) for at in (mine, ~mine))
    error, own_freedom = _of_two(a, b, own, others, n, m, pooled, freedom)
    return float(error), float(own_freedom)


def against_rest(
    values: np.ndarray, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How far each group (a column of member) lies from the rest, for each row of values: difference,
    error, degrees of freedom, p of a two-sided t test.

    The error is 0 where neither group nor rest varies. It is made of one variance for all; of the
    group's own, or the rest's own, where that is larger. Where the smaller of the two is shown to vary
    more (`_NOISIER`), so few tasks decide how large the error is: it has Welch's degrees of freedom
    then. Of a group of one or two tasks that cannot be seen: it is taken to vary as the rest.
    """
    n = member.sum(axis=0)
    total = len(member)
    m = total - n
    mine = values @ member
    rest = values.sum(axis=1, keepdims=True) - mine
    squares = (values**2).sum(axis=1, keepdims=True)
    mine_squares = values**2 @ member
    inside = np.maximum(mine_squares - mine**2 / n, 0)
    outside = np.maximum(squares - mine_squares - rest**2 / m, 0)
    floor = np.maximum(_FLAT * squares, 1e-300)
    pooled = np.maximum(inside + outside, floor) / (total - 2)
    own = np.where(n > 1, inside / np.maximum(n - 1, 1), pooled)
    others = np.where(m > 1, outside / np.maximum(m - 1, 1), pooled)
    error, freedom = _of_two(1 / n, 1 / m, own, others, n, m, pooled, total - 2)
    flat = inside + outside <= floor
    error = np.where(flat, 0.0, error)
    difference = mine / n - rest / m
    t = np.abs(difference) / np.where(flat, np.sqrt(floor), error)
    return difference, error, freedom, 2 * stats.t.sf(t, freedom)
