"""Whether there is a slow group: a few tasks that are not just the tail of the distribution.

A mixture of two normal distributions of one variance (of logarithms of the time, conditions and blocks taken
out) is compared with one distribution. An outlier test was the alternative: a group of slow tasks widens the
scale that it measures by and hides itself (masking), and it needs a normal distribution to begin with. Noise
of systems is skewed without being two things. So the likelihood ratio is judged against samples of a
*skew-normal* distribution with the data's own moments, not of a normal one; its BIC stands beside the
mixture's, and both must speak for two groups. A distribution with a tail longer than a half-normal's counts
as one with a slow tail.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from ..study.tasks import usable
from .model import percent, residuals
from .resampling import permutation_p
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing

__all__ = ["mixture", "tail"]

_SHARES = (0.05, 0.15, 0.35)  # of the slow group, from where the search starts
_STEPS = 60
_LEAST = 12  # tasks


def mixture(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two normal distributions of one variance, by expectation-maximisation, for each row of x.

    Gives the gain in log-likelihood over one normal distribution, the slow group's share, both means, the
    deviation. No library that the package depends on fits mixtures; the common variance keeps the likelihood
    bounded.
    """
    x = np.atleast_2d(x)
    rows, n = x.shape
    one = x.std(axis=1)
    best: np.ndarray = np.full(rows, -np.inf)
    kept = [np.zeros(rows) for _ in range(4)]
    ranked = np.sort(x, axis=1)
    for share in _SHARES:
        slow = max(1, round(share * n))
        w = np.full(rows, slow / n)
        a, b = ranked[:, :-slow].mean(axis=1), ranked[:, -slow:].mean(axis=1)
        s = np.maximum(np.sqrt(np.maximum(one**2 - w * (1 - w) * (b - a) ** 2, 0)), 0.05 * one + 1e-300)
        for _ in range(_STEPS):
            # The log odds of the slow group are linear in x where variances are equal.
            odds = (np.log(w / (1 - w)) - (b**2 - a**2) / (2 * s**2))[:, None] + ((b - a) / s**2)[:, None] * x
            r = 1 / (1 + np.exp(-np.clip(odds, -40, 40)))
            w = np.clip(r.mean(axis=1), 0.5 / n, 1 - 0.5 / n)
            total = np.maximum(r.sum(axis=1), 1e-12)
            b = (r * x).sum(axis=1) / total
            a = ((1 - r) * x).sum(axis=1) / np.maximum(n - total, 1e-12)
            s = np.sqrt((r * (x - b[:, None]) ** 2 + (1 - r) * (x - a[:, None]) ** 2).sum(axis=1) / n)
            s = np.maximum(s, 1e-3 * one + 1e-300)
        with np.errstate(under="ignore"):
            density = (1 - w)[:, None] * np.exp(-((x - a[:, None]) ** 2) / (2 * s[:, None] ** 2)) + w[
                :, None
            ] * np.exp(-((x - b[:, None]) ** 2) / (2 * s[:, None] ** 2))
        gain = np.log(np.maximum(density, 1e-300)).sum(axis=1) + n * np.log((one + 1e-300) / s) + n / 2
        # Only a slow group counts: it has fewer tasks above than below.
        gain = np.where((b > a) & (w < 0.5), gain, 0.0)
        better = gain > best
        best = np.where(better, gain, best)
        for k, v in zip(kept, (w, a, b, s), strict=True):
            k[better] = v[better]
    return best, kept[0], kept[1], kept[2], kept[3]


def _skewed(x: np.ndarray) -> tuple[float, float, float]:
    """The skew-normal with the moments of x (its skewness at most 0.95): shape, location, scale."""
    g = float(np.clip(stats.skew(x), -0.95, 0.95))
    root = abs(g) ** (2 / 3)
    delta = np.sign(g) * np.sqrt(np.pi / 2 * root / (root + ((4 - np.pi) / 2) ** (2 / 3)))
    delta = float(np.clip(delta, -0.999, 0.999))
    scale = float(x.std() / np.sqrt(1 - 2 * delta**2 / np.pi))
    return delta / np.sqrt(1 - delta**2), float(x.mean() - scale * delta * np.sqrt(2 / np.pi)), scale


def tail(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The slow group: how many tasks, which, and how much slower."""
    title = "Slow tail"
    good = usable(frame, options.value)
    if len(good) < _LEAST:
        return nothing("tail", title, f"Whether there is a slow group cannot be decided with {len(good)} tasks; it takes "
                       f"{_LEAST} and more.", len(good))  # fmt: skip
    blocks = bool((good["block"].value_counts() >= 4).all())
    left = residuals(good, options.value, blocks=blocks)
    n, deviation = len(left), float(left.std())
    if deviation < 1e-12:
        return nothing("tail", title, f"All {n} tasks took the same time.", n)
    gain, share, a, b, s = (float(v[0]) for v in mixture(left))
    shape, location, scale = _skewed(left)
    rng = np.random.default_rng(options.seed)
    delta = shape / np.sqrt(1 + shape**2)

    def draw_null(count: int) -> np.ndarray:
        # Azzalini's representation; location and scale do not matter to the ratio.
        normal = rng.standard_normal((2, count, n))
        return mixture(delta * np.abs(normal[0]) + np.sqrt(1 - delta**2) * normal[1])[0][:, None]

    p = float(permutation_p(np.array([gain]), draw_null, options.permutations)[0])
    log_one = float(stats.norm.logpdf(left, left.mean(), deviation).sum())
    log_skewed = float(stats.skewnorm.logpdf(left, shape, location, scale).sum())
    bic = {"one normal": 2 * np.log(n) - 2 * log_one, "one skew-normal": 3 * np.log(n) - 2 * log_skewed,
           "two normals": 4 * np.log(n) - 2 * (log_one + gain)}  # fmt: skip
    two = bic["two normals"] < min(bic["one normal"], bic["one skew-normal"])
    with np.errstate(over="ignore"):
        odds = (
            np.log(max(share, 1e-12) / max(1 - share, 1e-12))
            - (b**2 - a**2) / (2 * s**2)
            + (b - a) / s**2 * left
        )
    slow = odds > 0
    slower = float(np.expm1(b - a))
    count = int(slow.sum())
    interval = stats.binomtest(count, n).proportion_ci(options.confidence)
    claim = Claim("a slow group", p if two else 1.0, {"tasks": count, "share": count / n, "share_low": float(interval.low),
                  "share_high": float(interval.high), "slower": slower, "of": n})  # fmt: skip
    table = pd.DataFrame({"task": good["task"], "node": good["node"], "block": good["block"], "order": good["order"],
                          options.value: good[options.value], "against all": np.expm1(left), "slow group": slow})  # fmt: skip
    table = table.sort_values("against all", ascending=False).head(max(10, count)).reset_index(drop=True)
    # One task in twenty, apart by so many deviations, is seen in 90 of 100 studies of 40 tasks (simulated; by
    # six in 73, by five in 27).
    seen = float(np.expm1(_SEEN * s if two else _SEEN * deviation))

    def tell(judge: Judge) -> tuple[str, str]:
        if judge.holds(claim):
            return (f"There is a slow group ({judge.p(claim)}): {count} of {n} tasks, {percent(count / n)} "
                    f"{span_text(interval)}, {percent(slower)} slower than the others (base: the others' mean)."), FOUND  # fmt: skip
        return (f"No slow group is shown ({judge.p(claim)}, {n} tasks): one in twenty tasks, {percent(seen)} slower or more, "
                "would most likely have been seen; a closer or smaller group cannot be decided."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.hist(100 * np.expm1(left[~slow]), bins="auto", color="#4878a8", label="others")
        if count and judge_two:
            axes.hist(
                100 * np.expm1(left[slow]), bins=max(3, count // 3), color="#a84848", label="slow group"
            )
            axes.legend()
        axes.set(xlabel="against all, conditions taken out (%)", ylabel="tasks", title=title)

    judge_two = two
    facts = {"bic": bic, **claim.facts}
    return Analysis("tail", title, table, tell, n, options.alpha, [claim], draw, facts)


_SEEN = 7.0


def span_text(interval) -> str:
    """'[1%, 9%]' of a binomial interval."""
    return f"[{percent(interval.low)}, {percent(interval.high)}]"
