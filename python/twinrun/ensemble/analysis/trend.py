"""Whether the time drifts: a straight line over the order of tasks.

The line is fitted to normal scores of the residuals of conditions, so that one very slow task is
not a trend. It is held against shuffled series, and against series that resemble the ones before
(`serial`), whose wandering is not a trend.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import usable
from .changes import gains
from .deviations import freedom
from .model import Left, fall_of_bic, left_over, percent, span
from .order import UNKNOWN, order_is_known
from .power import STUDIES, deviations_like, narrowed, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import CLEAR, LEAST, Null, line_gain, scores, with_before

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["trend"]


def _against(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The line's gain against that of series that resemble the ones before as much, and how much that is."""
    n = z.shape[1]
    z = z - z.mean(axis=1, keepdims=True)
    line = np.arange(n) - (n - 1) / 2
    before = with_before(z - (z @ line / (line @ line))[:, None] * line)
    much = np.clip(before, 0, 0.95)
    gain = line_gain(z)
    return gain / np.maximum((z**2).sum(axis=1) - gain, 1e-9) * (1 - much) / (1 + much), before


def _gain(rows: np.ndarray) -> np.ndarray:
    return line_gain(scores(rows))


class _Drift:
    """The straight line over the times that conditions leave over."""

    def __init__(self, over: Left, options: Options) -> None:
        self.over, self.options = over, options
        self.left = left = over.values
        self.n = n = len(left)
        self._rng = np.random.default_rng(options.seed)
        self._null = Null(n, lambda rows: _against(scores(rows)), over.again, self._rng)
        self.p = self._tested()
        self.line = line = np.arange(n) - (n - 1) / 2
        # What conditions leave of the line: what they leave of the times has no more of it.
        self.own = line - over.basis @ (over.basis.T @ line)
        self.freedom = max(n - over.basis.shape[1] - 1, 1)
        slopes, errors = self._fitted(left[None])
        self.slope = float(slopes[0])
        half = float(stats.t.ppf(1 - options.alpha / 2, self.freedom)) * float(errors[0])
        if self.p <= options.alpha:
            # A claim has an interval without 0.
            by_slope = 2 * stats.t.sf(abs(self.slope) / max(float(errors[0]), 1e-300), self.freedom)
            self.p = max(self.p, float(by_slope))
        self.whole, self.low, self.high = (
            float(np.expm1((n - 1) * x)) for x in (self.slope, self.slope - half, self.slope + half)
        )
        self.claim = Claim(
            "the time drifts", self.p, {"effect": self.whole, "low": self.low, "high": self.high}
        )

    def _shuffled(self, count: int) -> np.ndarray:
        return _gain(self.over.again(permuted(self.left, None, count, self._rng)))[:, None]

    def _tested(self) -> float:
        """p, against shuffled series and those that resemble the ones before."""
        draws = self.options.permutations
        p = float(permutation_p(_gain(self.left[None]), self._shuffled, draws)[0])
        return max(p, self._null.p(self.left, draws)) if p <= self.options.alpha else p

    def _fitted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slope of each row, treated as `Left.values`, and its standard error."""
        left, size = rows * self.over.scale, max(float(self.own @ self.own), 1e-300)
        slope = left @ self.own / size
        rest = left - slope[:, None] * self.own
        # Tasks that resemble the ones before count as fewer than they are.
        much = np.clip(with_before(rest), 0, 0.95)
        return slope, np.sqrt((rest**2).sum(axis=1) / self.freedom / size * (1 + much) / (1 - much))

    def could_see(self, level: float) -> float:
        """A line in shuffled series that is found and fits better than a change."""
        n, over = self.n, self.over
        random = np.random.default_rng(self.options.seed)
        series = over.again(permuted(self.left, None, STUDIES, random))
        series = series * deviations_like(freedom(self.left, n - over.basis.shape[1]), random)
        limit = float(np.quantile(self._shuffled(1999), 1 - level))
        by_slope = float(stats.t.ppf(1 - level / 2, self.freedom))

        def better(raw: np.ndarray) -> np.ndarray:
            raw = raw - raw.mean(axis=1, keepdims=True)
            total = (raw**2).sum(axis=1)
            step = -n * np.log(1 - gains(raw) / total) - 2 * np.log(n) - CLEAR
            return np.asarray(-n * np.log(1 - line_gain(raw) / total) - np.log(n) > step)

        def found(effect: float) -> np.ndarray:
            def told(at: np.ndarray) -> np.ndarray:
                raw = over.again(series[at] * over.scale + np.log1p(effect) / (n - 1) * self.line)
                rows = scores(raw)
                against, before = _against(rows)
                drifts = (line_gain(rows) >= limit) & (against >= self._null.limits(before, level))
                slopes, errors = self._fitted(raw)
                drifts &= np.abs(slopes) >= by_slope * errors
                drifts[drifts] = better(raw[drifts])
                return drifts

            return narrowed(told, self.options.power)

        return smallest(found, self.options.power, float(np.expm1(2 * self.left.std() / np.sqrt(n))))

    def explains(self, judge: Judge) -> tuple[pd.Series, float] | None:
        if not judge.holds(self.claim):
            return None
        return pd.Series(self.slope * self.line), fall_of_bic(self.left, self._drawn(), 1)

    def _drawn(self) -> np.ndarray:
        """The line in what conditions leave."""
        return self.slope * self.own / self.over.scale

    def table(self, times: pd.Series) -> pd.DataFrame:
        """The first quarter of the tasks, and the last."""
        edge, left = max(1, self.n // 4), self.left
        return pd.DataFrame(
            {
                "tasks": ["first quarter", "last quarter"],
                "n": [edge, edge],
                "median": [float(np.median(times.iloc[:edge])), float(np.median(times.iloc[-edge:]))],
                "against all": [float(np.expm1(left[:edge].mean())), float(np.expm1(left[-edge:].mean()))],
            }
        )

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        p = judge.p(self.claim)
        if judge.holds(self.claim):
            return (f"The time drifts ({p}): the last task takes {percent(abs(self.whole))} {'longer' if self.whole > 0 else 'less'} than the "
                    f"first, by a straight line {span(self.low, self.high)} ({self.n} tasks; base: the first)."), FOUND  # fmt: skip
        could = could_have(result, "a drift of {} from the first task to the last", ", a smaller one not")
        return f"No trend is shown ({p}, {self.n} tasks): {could}.", OPEN

    def draw(self, title: str, axes: Axes) -> None:
        axes.plot(range(self.n), 100 * np.expm1(self.left), ".", alpha=0.6)
        fitted = self.left.mean() + self._drawn()
        axes.plot(range(self.n), 100 * np.expm1(fitted), color="#a84848")
        axes.set(
            xlabel="task, in order of start", ylabel="against all, conditions taken out (%)", title=title
        )


def trend(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """How much longer tasks take at the end of the study than at its beginning, by a straight line."""
    title = "Trend"
    good = usable(frame, options.value)
    n = len(good)
    if n < LEAST:
        return nothing("trend", title, f"Whether the time drifts cannot be decided with {n} tasks; it takes {LEAST} and more.", n)  # fmt: skip
    if not order_is_known(good):
        return nothing("trend", title, f"Whether the time drifts cannot be decided: {UNKNOWN}.", n)
    over = left_over(good, options.value, blocks=False)
    if over.values.std() < 1e-12:
        return nothing("trend", title, f"All {n} tasks took the same time.", n)
    drift = _Drift(over, options)
    result = Analysis(
        "trend",
        title,
        drift.table(good[options.value]),
        lambda judge: drift.tell(result, judge),
        n,
        options.alpha,
        [drift.claim],
        partial(drift.draw, title),
        dict(drift.claim.facts),
        explains=drift.explains,
        could_see=drift.could_see,
        power=options.power,
    )
    return result
