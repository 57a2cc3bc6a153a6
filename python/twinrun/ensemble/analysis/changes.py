"""Change points of a long series, by optimal partitioning, with a permutation check so that noise gives none.

The series is the residual of conditions, in order of start, as normal scores of its ranks: one very slow task
is no change. `segments` finds the segments that fit best for a penalty, and the penalty decides how
many; here it is what the best single change, or half of the best stretch that differs from the rest, gains in
series whose order was shuffled, at most in a share alpha of them.

Tasks that resemble the ones before have stretches that differ, and no change: the best stretch is
held also against series of a first-order autoregression (`serial`). There its gain is divided by
what such series gain by themselves, by their own correlation with the one before. A trend is the
simpler answer: a change must fit clearly better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..study.tasks import usable
from .deviations import freedom
from .model import Left, fall_of_bic, left_over, percent, span
from .order import UNKNOWN, order_is_known
from .power import STUDIES, deviations_like, narrowed, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import CLEAR, LEAST, Null, line_gain, scores, with_before
from .unequal import two_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["changes", "gains", "segments"]

_SEGMENT = 3  # tasks that a segment has at least
# A longer series is binned, because the number of stretches is the square of its length.
_BINS = 128
_CELLS = 50_000  # values of rows that are searched at once: arrays of them fit a cache of 1 MiB


def segments(z: np.ndarray, penalty: float, least: int = _SEGMENT) -> list[int]:
    """The ends of the segments of a series that fit best: the sum of squares within them and `penalty` for
    each is the least there is. Optimal partitioning (Jackson et al. 2005), in the square of the length.

    >>> segments(np.array([0.0, 0.0, 0.0, 5.0, 5.0, 5.0]), 1.0)
    [3, 6]

    z: float64, one dimension. least: values that a segment has at least; a shorter series is one segment.
    """
    n = len(z)
    if n < 2 * least:
        return [n]
    sums, squares = (np.concatenate([[0.0], np.cumsum(column)]) for column in (z, z * z))
    cost = np.full(n + 1, np.inf)  # of the first values, at best
    before = np.zeros(n + 1, int)  # where the last segment of these begins
    cost[0] = 0.0
    for end in range(least, n + 1):
        begin = np.arange(end - least + 1)
        within = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        all_in = cost[begin] + within + penalty
        before[end] = best = int(np.argmin(all_in))
        cost[end] = all_in[best]
    ends = [n]
    while before[ends[-1]] > 0:
        ends.append(int(before[ends[-1]]))
    return ends[::-1]


def best_stretch(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row: how much the sum of squares falls by the best single change, or half of that by the best
    stretch; and the correlation of each value with the one before, with that stretch taken out.
    """
    n = z.shape[1]
    z = z - z.mean(axis=1, keepdims=True)
    step = max(1, _CELLS // n)
    parts = [_stretches(z[k : k + step]) for k in range(0, max(1, len(z)), step)]
    best, begin, wide = (np.concatenate(column) for column in zip(*parts, strict=True))
    place = np.arange(n)
    inside = (place >= begin[:, None]) & (place < (begin + wide)[:, None])
    count = np.maximum(inside.sum(axis=1), 1)
    high = (z * inside).sum(axis=1) / count
    low = (z * ~inside).sum(axis=1) / np.maximum(n - count, 1)
    return best, with_before(z - np.where(inside, high[:, None], low[:, None]))


def _stretches(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row of a mean of 0, the best gain; where its stretch begins, and how wide it is."""
    rows, n = z.shape
    sums = np.concatenate([np.zeros((rows, 1)), np.cumsum(z, axis=1)], axis=1)
    best, begin, wide = _single(sums)
    # No stretch of a row has a larger sum.
    most = (sums.max(axis=1) - sums.min(axis=1)) ** 2
    room = np.empty(rows * n)
    for width in range(_SEGMENT, n - _SEGMENT + 1):
        # A stretch of this width against the rest: n / (width (n - width)) of its centred sum
        # squared.
        scale = n / (width * (n - width))
        some = np.flatnonzero(most * scale / 2 > best)
        if not len(some):
            continue
        own = sums if len(some) == rows else sums[some]
        # Without the first and the last: these are single changes.
        square = room[: len(some) * (n - width - 1)].reshape(len(some), -1)
        np.subtract(own[:, width + 1 : -1], own[:, 1 : -width - 1], out=square)
        np.multiply(square, square, out=square)
        top = square.max(axis=1) * scale / 2
        better = np.flatnonzero(top > best[some])
        at = some[better]
        best[at], begin[at], wide[at] = top[better], square[better].argmax(axis=1) + 1, width
    return best, begin, wide


def _single(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `_stretches`, of single changes: stretches at the beginning or the end. sums: of the values before
    each place, for each row.
    """
    rows, n = sums.shape[0], sums.shape[1] - 1
    width = np.arange(_SEGMENT, n - _SEGMENT + 1)
    if not len(width):
        return np.zeros(rows), np.zeros(rows, dtype=int), np.full(rows, n)
    scale = n / (width * (n - width))
    first = (sums[:, width] - sums[:, :1]) ** 2 * scale
    last = (sums[:, -1:] - sums[:, n - width]) ** 2 * scale
    gain = np.maximum(first, last)
    at = gain.argmax(axis=1)
    best = gain[np.arange(rows), at]
    at_end = last[np.arange(rows), at] > first[np.arange(rows), at]
    begin = np.where(at_end, n - width[at], 0)
    return best, np.where(best > 0, begin, 0), np.where(best > 0, width[at], n)


def gains(z: np.ndarray) -> np.ndarray:
    """The first of `best_stretch`."""
    return best_stretch(z)[0]


@dataclass
class _Series:
    """What is left of the times without conditions, in order of start; a long series is binned. at:
    where bins begin and end.
    """

    over: Left
    options: Options
    rng: np.random.Generator
    at: np.ndarray = field(init=False)
    null: Null = field(init=False)

    def __post_init__(self) -> None:
        step = -(-self.n // _BINS)
        parts = np.array_split(np.arange(self.n), -(-self.n // step))
        self.at = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
        self.null = Null(self.n, lambda rows: self.alone(rows)[1:], self.over.again, self.rng)

    @property
    def n(self) -> int:
        return len(self.over.values)

    def binned(self, rows: np.ndarray) -> np.ndarray:
        """Normal scores of each row, by bin, with a variance of 1."""
        z = scores(rows)
        sums = np.concatenate([np.zeros((len(z), 1)), np.cumsum(z, axis=1)], axis=1)
        z = np.diff(sums[:, self.at], axis=1) / np.diff(self.at)
        return z / z.std(axis=1, keepdims=True)

    def alone(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gain, the same against that of series that resemble the ones before as much, and how
        much that is.
        """
        z = self.binned(rows)
        gain, before = best_stretch(z)
        much = np.clip(before, 0, 0.95)
        return gain, gain / np.maximum(z.shape[1] - gain, 1e-9) * (1 - much) / (1 + much), before

    def shuffled(self, count: int) -> np.ndarray:
        """Gains of the series in shuffled order."""
        rows = self.over.again(permuted(self.over.values, None, count, self.rng))
        return gains(self.binned(rows))[:, None]

    def points(self) -> tuple[float, list[int]]:
        """p of any change at all, and the places of changes."""
        left, options = self.over.values, self.options
        bins = self.binned(left[None])[0]
        own = float(gains(bins[None])[0])
        p = float(permutation_p(np.array([own]), self.shuffled, options.permutations)[0])
        if p <= options.alpha:
            p = max(p, self.null.p(left, options.permutations))
        penalty = float(np.quantile(self.shuffled(499), 1 - options.alpha))
        # No segmentation gains its penalty where the best stretch does not.
        ends = [len(bins)] if own <= penalty else segments(bins, penalty)
        return p, [int(self.at[e]) for e in ends[:-1]]

    def could_see(self, level: float) -> float:
        """A change in the middle, in shuffled series, that is found and fits better than a trend."""
        n, left, over = self.n, self.over.values, self.over
        random = np.random.default_rng(self.options.seed)
        series = over.again(permuted(left, None, STUDIES, random))
        series = series * deviations_like(freedom(left, n - over.basis.shape[1]), random)
        limit = float(np.quantile(self.shuffled(1999), 1 - level))
        late = (np.arange(n) >= n // 2).astype(float)
        middle = (late - late.mean()) / np.sqrt(n * late.mean() * (1 - late.mean()))

        def found(effect: float) -> np.ndarray:
            def told(at: np.ndarray) -> np.ndarray:
                rows = over.again(series[at] * over.scale + np.log1p(effect) * late)
                gain, against, before = self.alone(rows)
                raw = rows - rows.mean(axis=1, keepdims=True)
                total = (raw**2).sum(axis=1)
                step = np.maximum(raw @ middle, 0) ** 2  # in the middle, where it is
                fit = -n * np.log(1 - step / total) - 2 * np.log(n) - CLEAR
                better = fit > -n * np.log(1 - line_gain(raw) / total) - np.log(n)
                return (gain >= limit) & (against >= self.null.limits(before, level)) & better

            return narrowed(told, self.options.power)

        return smallest(found, self.options.power, float(np.expm1(2 * left.std() / np.sqrt(n))))


_Segments = list[tuple[int, int]]  # first place, and the place behind the last


def changes(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Where the level of the series changes, and by how much; the p value is for any change at all."""
    title = "Change points"
    good = usable(frame, options.value)
    n = len(good)
    if n < LEAST:
        return nothing("changes", title, f"Whether the time changed during the study cannot be decided with {n} tasks; it takes "
                       f"{LEAST} and more.", n)  # fmt: skip
    if not order_is_known(good):
        return nothing(
            "changes", title, f"Whether the time changed during the study cannot be decided: {UNKNOWN}.", n
        )
    over = left_over(good, options.value, blocks=False)
    left = over.values
    if left.std() < 1e-12:
        return nothing("changes", title, f"All {n} tasks took the same time.", n)
    series = _Series(over, options, np.random.default_rng(options.seed))
    p, points = series.points()
    segments = list(zip([0, *points], [*points, n], strict=True))
    rows = _levels(good, left, segments, options)
    claim = Claim("the time changed", p if points else 1.0, {"points": points, "segments": rows})

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        if not judge.holds(claim):
            return None
        level = np.concatenate([np.full(b - a, left[a:b].mean()) for a, b in segments])
        return pd.Series(level), fall_of_bic(left, level, 2 * len(points)) - CLEAR

    def tell(judge: Judge) -> tuple[str, str]:
        return _sentence(result, judge, rows, n)

    def draw(axes: Axes) -> None:
        axes.plot(range(n), 100 * np.expm1(left), ".", alpha=0.6)
        for (a, b), row in zip(segments, rows, strict=True):
            axes.hlines(100 * row["against all"], a, b, color="#a84848")
        axes.set(
            xlabel="task, in order of start", ylabel="against all, conditions taken out (%)", title=title
        )

    result = Analysis("changes", title, pd.DataFrame(rows), tell, n, options.alpha, [claim], draw, dict(claim.facts),
                      explains=explains, could_see=series.could_see, power=options.power)  # fmt: skip
    return result


def _levels(
    good: pd.DataFrame, left: np.ndarray, segments: _Segments, options: Options
) -> list[dict[str, Any]]:
    """A row for each segment: its level, and how much that differs from the one before."""
    rows: list[dict[str, Any]] = []
    for a, b in segments:
        row = {"from task": good["task"].iloc[a], "to task": good["task"].iloc[b - 1], "from place": a, "n": b - a,
               "start": good["start"].iloc[a], "median": float(np.median(good[options.value].iloc[a:b])),
               "against all": float(np.expm1(left[a:b].mean()))}  # fmt: skip
        if rows:
            before = left[slice(*segments[len(rows) - 1])]
            low, high = np.expm1(two_groups(left[a:b], before).ends(options.confidence))
            row |= {"change": float(np.expm1(left[a:b].mean() - before.mean())), "low": float(low),
                    "high": float(high)}  # fmt: skip
        rows.append(row)
    return rows


def _sentence(result: Analysis, judge: Judge, rows: list[dict[str, Any]], tasks: int) -> tuple[str, str]:
    """What is said, and its state. rows: of segments."""
    claim = result.claims[0]
    if judge.holds(claim):
        told = "; ".join(
            f"at place {r['from place']} (task {r['from task']}) by {percent(r['change'])} {span(r['low'], r['high'])}"
            for r in rows[1:4]
        )
        more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
        return (
            f"The time changed {told}{more} ({judge.p(claim)}; {tasks} tasks; base: the segment before).",
            FOUND,
        )
    return (f"No change point is shown ({judge.p(claim)}, {tasks} tasks): {could_have(result, 'a change of {} in the middle of the series', ', a smaller or shorter one not')}."), OPEN  # fmt: skip
