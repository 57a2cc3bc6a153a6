"""Compares two studies of the same work: their time, its spread and its tail.

Location: the Hodges-Lehmann shift of logarithms (a ratio) with the interval that belongs to the
Mann-Whitney test. Spread: Brown-Forsythe, and the ratio of the coefficients of variation. Tail: how
far the mean of the slowest tenth lies above the mean, in standard deviations, by a studentized
permutation test (Chung and Romano, Annals of Statistics 41, 2013): what is left of the two scalings
is then no alarm, also where a distribution has two modes and its median lies in either. Conditions
that both studies have are removed, by the mean of both. Three questions, corrected by Holm. Two
studies are two times and perhaps two machines: the analysis shows what differs, and not why.

Tasks that resemble the ones before tell less than their number, and two equal studies of such tasks
differ by more. So each difference is also held against pairs of series that resemble the ones before
as much (`serial.Null`). Where a study is shown to have such tasks, no interval is given.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from ...bootstrap import interval
from ...errors import Incomparable
from ..study.tasks import usable
from .correction import holm
from .model import at_least, cells_of, with_interval
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, nothing
from .serial import Null, Resemblance, resemblance, scores, with_before

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["compare", "hodges_lehmann", "slow_tail"]

# blocks in both studies: with as many, blocks are the units, because tasks of a block are not
# independent
_BLOCKS = 8
_LEVEL = 0.05  # at which tasks are shown to resemble the ones before
# Values of a simulated series between the two studies: they ran at other times.
_APART = 100


def hodges_lehmann(a: np.ndarray, b: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """The shift of b against a: the median of all differences, and the distribution-free interval of Moses.

    Its ends are order statistics of the differences, by the null distribution of Mann and Whitney's U (exact
    by its normal approximation with continuity beyond 50 pairs a side).
    """
    differences = np.sort((b[:, None] - a[None, :]).ravel())
    m, n = len(a), len(b)
    z = stats.norm.ppf((1 + confidence) / 2)
    k = int(np.floor(m * n / 2 - z * np.sqrt(m * n * (m + n + 1) / 12)))
    if min(m, n) <= 12:
        # The largest count that U stays below with at most half of alpha, exactly, by the test's
        # own p value.
        x = np.arange(m, dtype=float)
        k = bisect.bisect_right(
            range(m * n // 2 + 1),
            (1 - confidence) / 2,
            key=lambda u: stats.mannwhitneyu(x, _with_u(m, n, u), alternative="less", method="exact").pvalue,
        )
    middle = float(np.median(differences))
    if k < 1:
        return middle, -np.inf, np.inf
    return middle, float(differences[k - 1]), float(differences[m * n - k])


def _with_u(m: int, n: int, u: int) -> np.ndarray:
    """n values whose U against 0 .. m - 1 makes Mann and Whitney's statistic of 0 .. m - 1 equal to u."""
    y = np.full(n, m + 0.5) + np.arange(n) * 1e-3
    full, rest = divmod(u, m)
    y[:full] = -1 - np.arange(full)
    if full < n and rest:
        y[full] = m - rest - 0.5
    return y


def slow_tail(x: np.ndarray, share: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """How far the mean of the slowest share lies above the mean, in deviations, and its standard error.

    For each row; the error is that of the influence of each value (Rockafellar and Uryasev's mean excess).
    """
    mean, deviation = x.mean(axis=-1, keepdims=True), np.maximum(x.std(axis=-1, keepdims=True), 1e-300)
    z = (x - mean) / deviation
    edge = np.quantile(z, 1 - share, axis=-1, keepdims=True)
    beyond = edge + np.maximum(z - edge, 0) / share
    value = beyond.mean(axis=-1, keepdims=True)
    influence = beyond - value - z - value * (z**2 - 1) / 2
    return value[..., 0], np.sqrt((influence**2).sum(axis=-1)) / x.shape[-1]


def _without_conditions(frames: list[pd.DataFrame], value: str) -> list[np.ndarray]:
    both = pd.concat(frames, keys=range(2))
    factors = [c for c in both if c.startswith("factors.") and both[c].map(str).nunique() > 1]
    y = [np.log(f[value].to_numpy(dtype=float)) for f in frames]
    if not factors:
        return y
    cells = [cells_of(f, factors).to_numpy() for f in frames]
    shared = sorted(set(cells[0]) & set(cells[1]))
    if not shared:
        raise Incomparable("the two studies have no condition in common")
    kept = []
    for own, cell in zip(y, cells, strict=True):
        keep = np.isin(cell, shared)
        # The mean of both medians, so that the numbers of tasks do not matter.
        middle = {c: np.mean([np.median(v[w == c]) for v, w in zip(y, cells, strict=True)]) for c in shared}
        grand = np.mean(list(middle.values()))
        kept.append(own[keep] - np.array([middle[c] for c in cell[keep]]) + grand)
    return kept


def _cov_ratio(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The logarithm of the ratio of the coefficients of variation, y by x; for each row."""

    def log_cov(v: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(np.std(v, axis=-1, ddof=1) / np.mean(v, axis=-1), 1e-12))

    return np.asarray(log_cov(y) - log_cov(x))


def _tail_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return slow_tail(y)[0] - slow_tail(x)[0]


def _apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far the means are apart, in deviations inside of the studies; for each row."""
    inside = np.sqrt((x.var(axis=1) + y.var(axis=1)) / 2)
    return np.abs(y.mean(axis=1) - x.mean(axis=1)) / np.maximum(inside, 1e-300)


def _wider(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many times the mean deviation from the median differs, as a logarithm; for each row."""

    def deviation(v: np.ndarray) -> np.ndarray:
        return np.maximum(np.abs(v - np.median(v, axis=1, keepdims=True)).mean(axis=1), 1e-300)

    return np.abs(np.log(deviation(y) / deviation(x)))


def _tails_apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far the means of the slowest tenth are apart, in standard errors; for each row."""
    (first, its_error), (second, error) = slow_tail(x), slow_tail(y)
    return np.abs(second - first) / np.maximum(np.hypot(its_error, error), 1e-300)


@dataclass
class _Two:
    """Two studies, conditions taken out. a, b: logarithms of times; units: the same, or means of
    blocks where these are the units.
    """

    a: np.ndarray
    b: np.ndarray
    units: tuple[np.ndarray, np.ndarray]
    blocked: bool
    options: Options
    rng: np.random.Generator

    @property
    def wall(self) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(self.a), np.exp(self.b)

    @property
    def data(self) -> str:
        of_blocks = f", {len(self.units[0])} and {len(self.units[1])} blocks as units" if self.blocked else ""
        return f"{len(self.a)} and {len(self.b)} tasks{of_blocks}"

    @cached_property
    def alike(self) -> dict[str, Resemblance]:
        """How much the units of each study, and its tasks, resemble the ones before."""
        which = [("units", self.units), ("tasks", (self.a, self.b))]
        return {
            f"{what} of the {study} study": resemblance(
                values, lambda rows: rows, _LEVEL, self.options.permutations, self.rng
            )
            for what, both in which
            for study, values in zip(("first", "second"), both, strict=True)
        }

    def fails(self, what: str) -> list[str]:
        """Why there is no interval: in which study units (or tasks) resemble the ones before."""
        named = f"{'blocks' if self.blocked and what == 'units' else 'tasks'}"
        return [
            f"{named}{name.removeprefix(what)} resemble the ones before (correlation {alike.value:.2f})"
            for name, alike in self.alike.items()
            if name.startswith(what) and alike.shown
        ]

    def _p(self, p: float, statistic: Callable[..., np.ndarray], *both: np.ndarray) -> float:
        """p, also among pairs of series that resemble the ones before as much as both studies do."""
        if p > self.options.alpha:
            return p
        n = len(both[0])

        def looked_for(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x, y = rows[:, :n], rows[:, n:]
            # The larger: a study of independent tasks does not make up for the other one.
            return statistic(x, y), np.maximum(with_before(scores(x)), with_before(scores(y)))

        def without_the_time_between(rows: np.ndarray) -> np.ndarray:
            return np.hstack([rows[:, :n], rows[:, n + _APART :]])

        length = n + _APART + len(both[1])
        null = Null(length, looked_for, without_the_time_between, self.rng)
        return max(p, null.p(np.concatenate(both), self.options.permutations))

    def resampled(
        self, first: np.ndarray, second: np.ndarray, statistic: Callable[..., np.ndarray]
    ) -> tuple[float, float]:
        if self.fails("tasks"):
            return np.nan, np.nan
        ends = interval(
            [len(first), len(second)],
            lambda i, j: statistic(first[i], second[j]),
            confidence=self.options.confidence,
            resamples=self.options.resamples,
            rng=self.rng,
        )
        return float(ends[0][0]), float(ends[1][0])

    def location(self) -> dict[str, Any]:
        value, low, high = (float(np.exp(x)) for x in hodges_lehmann(*self.units, self.options.confidence))
        if self.fails("units"):
            low = high = np.nan
        p = float(stats.mannwhitneyu(*self.units, alternative="two-sided").pvalue)
        p = self._p(p, _apart, *self.units)
        return {"what": "location", "measure": "ratio of times", "value": value, "low": low, "high": high, "p": p}  # fmt: skip

    def spread(self) -> dict[str, Any]:
        low, high = self.resampled(*self.wall, _cov_ratio)
        p = self._p(float(stats.levene(self.a, self.b, center="median").pvalue), _wider, self.a, self.b)
        return {"what": "spread", "measure": "ratio of CoV", "value": float(np.exp(_cov_ratio(*self.wall))), "low": float(np.exp(low)),
                "high": float(np.exp(high)), "p": p}  # fmt: skip

    def tail(self) -> dict[str, Any]:
        low, high = self.resampled(self.a, self.b, _tail_difference)
        # Means and deviations are removed first: this test is about the shape only.
        shape = np.concatenate([(v - v.mean()) / max(v.std(), 1e-300) for v in (self.a, self.b)])
        first = len(self.a)

        def studentized(rows: np.ndarray) -> np.ndarray:
            return _tails_apart(rows[:, :first], rows[:, first:])[:, None]

        p = permutation_p(
            studentized(shape[None])[0],
            lambda n: studentized(permuted(shape, None, n, self.rng)),
            self.options.permutations,
        )[0]
        p = self._p(float(p), _tails_apart, self.a, self.b)
        return {"what": "tail", "measure": "change of the slowest tenth's mean, in deviations",
                "value": float(_tail_difference(self.a, self.b)), "low": low, "high": high, "p": float(p)}  # fmt: skip

    def quantiles(self) -> list[dict[str, Any]]:
        return [
            {"what": f"q{100 * q:g}", "measure": "ratio", "value": float(np.exp(np.quantile(self.b, q) - np.quantile(self.a, q)))}
            for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        ]  # fmt: skip

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        told = [
            f"{c.facts['measure']} {with_interval(c.facts['value'], c.facts['low'], c.facts['high'], least=3)} ({judge.p(c)})"
            for c in result.claims
            if judge.holds(c)
        ]
        if told:
            return f"The studies differ: {'; '.join(told)} (base: the first study; {self.data}).", FOUND
        shift, spread = (c.facts for c in result.claims[:2])
        most = max(shift["high"] - 1, 1 - shift["low"])
        if most <= self.options.matters:
            within = (f", the ratio of coefficients of variation being within [{spread['low']:.2f}, {spread['high']:.2f}]"
                      if np.isfinite(spread["low"]) else "")  # fmt: skip
            return (f"The time has not changed by more than {at_least(most)}; a change of spread or tail is "
                    f"not shown{within} ({self.data})."), NONE  # fmt: skip
        return (f"Whether the studies differ cannot be decided: ratio of times {with_interval(shift['value'], shift['low'], shift['high'], least=3)}, of "
                f"coefficients of variation {with_interval(spread['value'], spread['low'], spread['high'])} ({self.data})."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        axes.ecdf(self.wall[0], label="first")
        axes.ecdf(self.wall[1], label="second")
        axes.legend()
        axes.set(
            xlabel=f"{self.options.value} (s), shared conditions taken out",
            ylabel="share of tasks",
            title=title,
        )


def _two(frames: list[pd.DataFrame], options: Options) -> _Two:
    """Both studies without the conditions that they share."""
    a, b = _without_conditions(frames, options.value)
    blocked = (
        len(a) == len(frames[0])
        and len(b) == len(frames[1])
        and all(f["block"].nunique() >= _BLOCKS for f in frames)
    )
    units = a, b
    if blocked:
        units = tuple(
            pd.Series(v).groupby(f["block"].to_numpy()).mean().to_numpy()
            for v, f in zip((a, b), frames, strict=True)
        )
    return _Two(a, b, units, blocked, options, np.random.default_rng(options.seed))


def compare(first: pd.DataFrame, second: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Compares the second study with the first, which is the base."""
    title = "Two studies"
    frames = [usable(f, options.value) for f in (first, second)]
    if min(map(len, frames)) < 5:
        return nothing("compare", title, f"Whether the studies differ cannot be decided with {len(frames[0])} and "
                       f"{len(frames[1])} tasks.", sum(map(len, frames)))  # fmt: skip
    two = _two(frames, options)
    n = len(two.a) + len(two.b)
    if min(len(two.a), len(two.b)) < 5:
        return nothing("compare", title, f"Whether the studies differ cannot be decided: {len(two.a)} and {len(two.b)} tasks of "
                       "conditions that both have.", n)  # fmt: skip
    tested = [two.location(), two.spread(), two.tail()]
    corrected = holm([r["p"] for r in tested])
    for row, p in zip(tested, corrected, strict=True):
        row["p, Holm"] = float(p)
    claims = [Claim(r["what"], r["p, Holm"], r) for r in tested]
    rows = [*tested, *two.quantiles()]
    notes = []
    if not two.blocked:
        notes.append(f"fewer than {_BLOCKS} blocks in one of them: tasks are the units")
    if why := list(dict.fromkeys([*two.fails("units"), *two.fails("tasks")])):
        notes.append(f"no interval is given of what rests on them: {'; '.join(why)}")
    result = Analysis("compare", title, pd.DataFrame(rows), lambda judge: two.tell(result, judge), n, options.alpha, claims,
                      partial(two.draw, title), {"rows": rows}, notes)  # fmt: skip
    return result
