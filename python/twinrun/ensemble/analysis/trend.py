"""Whether the time drifts: a straight line over the order of tasks.

The line is fitted to normal scores of the residuals of conditions, so that one very slow task is
not a trend. It is held against shuffled series, and against series that resemble the ones before
(`serial`), whose wandering is not a trend.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from ..study.tasks import usable
from .changes import best_stretch
from .deviations import freedom
from .model import fall_of_bic, left_over, percent, span
from .power import STUDIES, deviations_like, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import CLEAR, LEAST, Null, line_gain, scores, with_before

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


def trend(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """How much longer tasks take at the end of the study than at its beginning, by a straight line."""
    title = "Trend"
    good = usable(frame, options.value)
    n = len(good)
    if n < LEAST:
        return nothing("trend", title, f"Whether the time drifts cannot be decided with {n} tasks; it takes {LEAST} and more.", n)  # fmt: skip
    over = left_over(good, options.value, blocks=False)
    left = over.values
    if left.std() < 1e-12:
        return nothing("trend", title, f"All {n} tasks took the same time.", n)
    rng = np.random.default_rng(options.seed)

    def gain(rows: np.ndarray) -> np.ndarray:
        return line_gain(scores(rows))

    def shuffled(count: int) -> np.ndarray:
        return gain(over.again(permuted(left, None, count, rng)))[:, None]

    null = Null(n, lambda rows: _against(scores(rows)), over.again, rng)
    p = float(permutation_p(gain(left[None]), shuffled, options.permutations)[0])
    if p <= options.alpha:
        p = max(p, null.p(left, options.permutations))
    line = np.arange(n) - (n - 1) / 2
    slope = float(left @ line / (line @ line))
    rest = left - left.mean() - slope * line
    # Tasks that resemble the ones before count as fewer than they are.
    much = float(np.clip(with_before(rest[None])[0], 0, 0.95))
    error = float(np.sqrt((rest @ rest) / (n - 2) / (line @ line) * (1 + much) / (1 - much)))
    half = float(stats.t.ppf(1 - options.alpha / 2, n - 2)) * error
    whole, low, high = (float(np.expm1((n - 1) * x)) for x in (slope, slope - half, slope + half))
    claim = Claim("the time drifts", p, {"effect": whole, "low": low, "high": high})
    edge = max(1, n // 4)
    table = pd.DataFrame(
        {
            "tasks": ["first quarter", "last quarter"],
            "n": [edge, edge],
            "median": [float(np.median(good[options.value].iloc[:edge])), float(np.median(good[options.value].iloc[-edge:]))],
            "against all": [float(np.expm1(left[:edge].mean())), float(np.expm1(left[-edge:].mean()))],
        }
    )  # fmt: skip

    def could_see(level: float) -> float:
        """A line in shuffled series that is found and fits better than a change."""
        random = np.random.default_rng(options.seed)
        series = over.again(permuted(left, None, STUDIES, random))
        series = series * deviations_like(freedom(left, n - over.basis.shape[1]), random)
        limit = float(np.quantile(shuffled(1999), 1 - level))

        def found(effect: float) -> np.ndarray:
            raw = over.again(series * over.scale + np.log1p(effect) / (n - 1) * line)
            rows = scores(raw)
            against, before = _against(rows)
            raw = raw - raw.mean(axis=1, keepdims=True)
            total = (raw**2).sum(axis=1)
            fit = -n * np.log(1 - line_gain(raw) / total) - np.log(n)
            better = fit > -n * np.log(1 - best_stretch(raw)[0] / total) - 2 * np.log(n) - CLEAR
            return (line_gain(rows) >= limit) & (against >= null.limits(before, level)) & better

        return smallest(found, options.power, float(np.expm1(2 * left.std() / np.sqrt(n))))

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        return (pd.Series(slope * line), fall_of_bic(left, slope * line, 1)) if judge.holds(claim) else None

    def tell(judge: Judge) -> tuple[str, str]:
        if judge.holds(claim):
            return (f"The time drifts ({judge.p(claim)}): the last task takes {percent(abs(whole))} {'longer' if whole > 0 else 'less'} than the "
                    f"first, by a straight line {span(low, high)} ({n} tasks; base: the first)."), FOUND  # fmt: skip
        return (f"No trend is shown ({judge.p(claim)}, {n} tasks): {could_have(result, 'a drift of {} from the first task to the last', ', a smaller one not')}."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(range(n), 100 * np.expm1(left), ".", alpha=0.6)
        axes.plot(range(n), 100 * np.expm1(left.mean() + slope * line), color="#a84848")
        axes.set(
            xlabel="task, in order of start", ylabel="against all, conditions taken out (%)", title=title
        )

    result = Analysis("trend", title, table, tell, n, options.alpha, [claim], draw, dict(claim.facts),
                      explains=explains, could_see=could_see, power=options.power)  # fmt: skip
    return result
