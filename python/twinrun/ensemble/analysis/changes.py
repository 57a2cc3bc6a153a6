"""Change points of a long series, by PELT, with a permutation check so that noise gives none.

The series is the residual of conditions, in order of start, as normal scores of its ranks: one very slow task
is no change. PELT (`ruptures`) finds the segments that fit best for a penalty, and the penalty decides how
many; here it is what the best single change, or half of the best stretch that differs from the rest, gains in
series whose order was shuffled, at most in a share alpha of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import ruptures
from matplotlib.axes import Axes
from scipy import stats

from ..study.tasks import usable
from .model import left_over, percent, span
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing

__all__ = ["changes", "gains"]

_LEAST = 16  # tasks
_SEGMENT = 3  # tasks that a segment has at least
_BINS = 128  # a longer series is binned, because the number of stretches is the square of its length


def gains(z: np.ndarray) -> np.ndarray:
    """For each row: how much the sum of squares falls by the best single change, or half of that by the best
    stretch.
    """
    rows, n = z.shape
    sums = np.concatenate([np.zeros((rows, 1)), np.cumsum(z - z.mean(axis=1, keepdims=True), axis=1)], axis=1)
    best = np.zeros(rows)
    for width in range(_SEGMENT, n - _SEGMENT + 1):
        inside = sums[:, width:] - sums[:, :-width]
        # A stretch of this width against the rest: n / (width (n - width)) of its centred sum squared.
        gain = inside**2 * (n / (width * (n - width)))
        at_end = np.maximum(gain[:, 0], gain[:, -1])
        best = np.maximum(best, np.maximum(at_end, gain.max(axis=1) / 2))
    return best


def changes(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Where the level of the series changes, and by how much; the p value is for any change at all."""
    title = "Change points"
    good = usable(frame, options.value)
    n = len(good)
    if n < _LEAST:
        return nothing("changes", title, f"Whether the time changed during the study cannot be decided with {n} tasks; it takes "
                       f"{_LEAST} and more.", n)  # fmt: skip
    over = left_over(good, options.value, blocks=False)
    left = over.values
    if left.std() < 1e-12:
        return nothing("changes", title, f"All {n} tasks took the same time.", n)

    def scores_of(rows: np.ndarray) -> np.ndarray:
        return stats.norm.ppf((stats.rankdata(rows, axis=1) - 0.375) / (n + 0.25))

    scores = scores_of(left[None])[0]
    step = -(-n // _BINS)
    bins = np.array([part.mean() for part in np.array_split(scores, -(-n // step))])
    bins = bins / bins.std()
    own = float(gains(bins[None])[0])
    rng = np.random.default_rng(options.seed)

    def shuffled(count: int) -> np.ndarray:
        drawn = permuted(left, None, count, rng)
        drawn = scores_of(over.again(drawn))
        if step > 1:
            at = np.concatenate([[0], np.cumsum([len(p) for p in np.array_split(scores, len(bins))])])
            sums = np.concatenate([np.zeros((count, 1)), np.cumsum(drawn, axis=1)], axis=1)
            drawn = np.diff(sums[:, at], axis=1) / np.diff(at)
            drawn = drawn / drawn.std(axis=1, keepdims=True)
        return gains(drawn)[:, None]

    p = float(permutation_p(np.array([own]), shuffled, options.permutations)[0])
    penalty = float(np.quantile(shuffled(499), 1 - options.alpha))
    # No segmentation gains its penalty where the best stretch does not.
    ends = (
        [len(bins)]
        if own <= penalty
        else ruptures.Pelt(model="l2", min_size=_SEGMENT, jump=1).fit(bins).predict(pen=penalty)
    )
    edges = np.concatenate([[0], np.cumsum([len(s) for s in np.array_split(scores, len(bins))])])
    points = [int(edges[e]) for e in ends[:-1]]
    segments = list(zip([0, *points], [*points, n], strict=True))
    rows: list[dict[str, Any]] = []
    for a, b in segments:
        row = {"from task": good["task"].iloc[a], "to task": good["task"].iloc[b - 1], "from place": a, "n": b - a,
               "start": good["start"].iloc[a], "median": float(np.median(good[options.value].iloc[a:b])),
               "against all": float(np.expm1(left[a:b].mean()))}  # fmt: skip
        if rows:
            before = left[slice(*segments[len(rows) - 1])]
            ci = stats.ttest_ind(left[a:b], before, equal_var=False).confidence_interval(options.confidence)
            row |= {"change": float(np.expm1(left[a:b].mean() - before.mean())), "low": float(np.expm1(ci.low)),
                    "high": float(np.expm1(ci.high))}  # fmt: skip
        rows.append(row)
    table = pd.DataFrame(rows)
    # A change in the middle gains n / 4 times its square; the square root's error is about one deviation.
    critical = np.sqrt(max(penalty, 0)) + stats.norm.ppf(options.power)
    seen = float(np.expm1(2 * critical / np.sqrt(n) * left.std()))
    claim = Claim("the time changed", p if points else 1.0, {"points": points, "segments": rows})

    def tell(judge: Judge) -> tuple[str, str]:
        if judge.holds(claim):
            told = "; ".join(
                f"at place {r['from place']} (task {r['from task']}) by {percent(r['change'])} {span(r['low'], r['high'])}"
                for r in rows[1:4]
            )
            more = f" and {len(points) - 3} more" if len(points) > 3 else ""
            return (
                f"The time changed {told}{more} ({judge.p(claim)}; {n} tasks; base: the segment before).",
                FOUND,
            )
        return (f"No change point is shown ({judge.p(claim)}, {n} tasks): a change of {percent(seen)} in the middle of the series could "
                "have been seen, a smaller or shorter one cannot be decided."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(range(n), 100 * np.expm1(left), ".", alpha=0.6)
        for (a, b), row in zip(segments, rows, strict=True):
            axes.hlines(100 * row["against all"], a, b, color="#a84848")
        axes.set(
            xlabel="task, in order of start", ylabel="against all, conditions taken out (%)", title=title
        )

    return Analysis(
        "changes", title, table, tell, n, options.alpha, [claim], draw, {**claim.facts, "detectable": seen}
    )
