"""Whether there is a slow group: a few tasks that are not just the tail of the distribution.

A mixture of two normal distributions of one variance (of logarithms of the time, conditions and blocks taken
out) is compared with one distribution. An outlier test was the alternative: a group of slow tasks widens the
scale that it measures by and hides itself (masking), and it needs a normal distribution to begin with. Noise
of systems is skewed and has long tails without being two things. So the one distribution is of a family that
has both, Johnson's SU (Biometrika 36, 1949), with as many parameters as the mixture; the statistic is the
ratio of the two likelihoods, and it is judged against samples of the SU that fits best. A slow group is the
smaller part, at most three tasks of ten: two halves with one slower half are two modes, and reported as such.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from ..study.tasks import usable
from .model import left_over, percent, span
from .power import smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, could_have, nothing

__all__ = ["johnson", "mixture", "tail"]

_SHARES = (0.05, 0.15, 0.35)  # of the slow group, from where the search starts
_STEPS = 60
_LEAST = 12  # tasks
_MOST = 0.3  # of the tasks, in a slow group
_ONE_IN = 10  # tasks is slow, in the studies in which a slow group could have been seen
# Where the search for an SU starts: places as shares of the way from the ends to the median, widths
# in deviations.
_PLACES = (-0.05, -0.4, -1.5)
_WIDTHS = (0.05, 0.15, 0.4, 1.0, 2.5, 8.0)
# Simulated for what could have been seen, and samples of the null for each.
_STUDIES, _EACH = 80, 16
_DRAWS = 499  # of the null, at most: each is two searches
_ROUNDS = 3  # of a finer search around the best


def mixture(
    x: np.ndarray, most: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two normal distributions of one variance, by expectation-maximisation, for each row of x.

    Gives the gain in log-likelihood over one normal distribution, the slow group's share, both
    means, the deviation. Only a slow group of at most this share counts; all others gain nothing.
    No library that the package depends on fits mixtures; the common variance keeps the likelihood
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
        gain = np.where((b > a) & (w <= most), gain, 0.0)
        better = gain > best
        best = np.where(better, gain, best)
        for k, v in zip(kept, (w, a, b, s), strict=True):
            k[better] = v[better]
    return best, kept[0], kept[1], kept[2], kept[3]


def johnson(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Johnson's SU by likelihood, for each row of x: the log-likelihood, and place, width, gamma, delta.

    asinh((x - place) / width) is normal; its mean and deviation have a formula, place and width are searched
    on a grid that the data place, then around the best. All rows are searched at once, which scipy's fit does
    not.
    """
    rows, n = x.shape
    middle, deviation = np.median(x, axis=1), x.std(axis=1) + 1e-300
    low, high = x.min(axis=1), x.max(axis=1)
    best, kept = np.full(rows, -np.inf), np.zeros((rows, 4))

    def look(place: np.ndarray, width: np.ndarray) -> None:
        z = (x - place[:, None]) / width[:, None]
        u = np.arcsinh(z)
        s = u.std(axis=1) + 1e-300
        told = -n * np.log(s * width) - 0.5 * np.log1p(z * z).sum(axis=1) - n / 2 * np.log(2 * np.pi * np.e)
        better = told > best
        best[better] = told[better]
        kept[better] = np.stack([place, width, -u.mean(axis=1) / s, 1 / s], axis=1)[better]

    for width in _WIDTHS:
        for share in _PLACES:
            look(low + share * (middle - low), width * deviation)
            look(high - share * (high - middle), width * deviation)
        for off in (-1.0, -0.4, 0.0, 0.4, 1.0):
            look(middle + off * deviation, width * deviation)
    step = 0.5
    for _ in range(_ROUNDS):
        place, width = kept[:, 0].copy(), kept[:, 1].copy()
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                wider = np.maximum(width * 2.0 ** (1.5 * b * step), _WIDTHS[0] * deviation)
                look(place + a * step * np.maximum(width, 0.3 * deviation), wider)
        step /= 2
    return best, kept


def _drawn(normal: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """Samples of the SU of each row of fits, from normal ones."""
    place, width, gamma, delta = fits.T[:, :, None]
    return place + width * np.sinh(np.clip((normal - gamma) / delta, -50, 50))


def _ratio(x: np.ndarray) -> np.ndarray:
    """The logarithm of the likelihood of two normals, one of them slow, by that of an SU, for each row."""
    n = x.shape[1]
    one = -n * np.log(x.std(axis=1) + 1e-300) - n / 2 * np.log(2 * np.pi * np.e)
    gain = mixture(x, _MOST)[0]
    return np.where(gain > 0, one + gain - johnson(x)[0], -1e300)


def tail(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The slow group: how many tasks, which, and how much slower."""
    title = "Slow tail"
    good = usable(frame, options.value)
    if len(good) < _LEAST:
        return nothing("tail", title, f"Whether there is a slow group cannot be decided with {len(good)} tasks; it takes "
                       f"{_LEAST} and more.", len(good))  # fmt: skip
    blocks = bool((good["block"].value_counts() >= 4).all())
    over = left_over(good, options.value, blocks=blocks)
    left = over.values
    n, deviation = len(left), float(left.std())
    if deviation < 1e-12:
        return nothing("tail", title, f"All {n} tasks took the same time.", n)
    gain, share, a, b, s = (float(v[0]) for v in mixture(left[None], _MOST))
    own = float(_ratio(left[None])[0])
    one_likelihood, fitted = johnson(left[None])
    rng = np.random.default_rng(options.seed)

    def draw_null(count: int) -> np.ndarray:
        return _ratio(_drawn(rng.standard_normal((count, n)), fitted))[:, None]

    two = own > 0  # both have four parameters: so says BIC
    p = float(permutation_p(np.array([own]), draw_null, min(options.permutations, _DRAWS))[0]) if two else 1.0
    log_one = float(stats.norm.logpdf(left, left.mean(), deviation).sum())
    bic = {"one normal": 2 * np.log(n) - 2 * log_one, "one Johnson SU": 4 * np.log(n) - 2 * float(one_likelihood[0]),
           "two normals": 4 * np.log(n) - 2 * (log_one + gain)}  # fmt: skip
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
    ends = (np.nan, np.nan)
    if p <= options.alpha:
        drawn = mixture(left[rng.integers(0, n, (min(options.resamples, _DRAWS), n))], _MOST)
        apart = (drawn[3] - drawn[2])[drawn[0] > 0]
        if len(apart):
            low, high = np.expm1(np.quantile(apart, [options.alpha / 2, 1 - options.alpha / 2]))
            ends = float(low), float(high)
    claim = Claim("a slow group", p, {"tasks": count, "share": count / n, "share_low": float(interval.low),
                  "share_high": float(interval.high), "slower": slower, "low": ends[0], "high": ends[1], "of": n})  # fmt: skip
    table = pd.DataFrame({"task": good["task"], "node": good["node"], "block": good["block"], "order": good["order"],
                          options.value: good[options.value], "against all": np.expm1(left), "slow group": slow})  # fmt: skip
    table = table.sort_values("against all", ascending=False).head(max(10, count)).reset_index(drop=True)
    # Two modes are described; without a test, because no cause is claimed for the smaller one.
    halves = [float(v[0]) for v in mixture(left[None])]
    modes = halves[1] > _MOST and 2 * halves[0] > 2 * np.log(n) + 10 and halves[3] - halves[2] > 3 * halves[4]
    notes = []
    if modes:
        notes.append(
            f"the times have two modes: {percent(halves[1])} of {n} tasks are about {percent(float(np.expm1(halves[3] - halves[2])))} slower than the others "
            "(a description, not tested); a slow group is looked for beside one distribution"
        )

    def could_see(level: float) -> float:
        """One task in ten is slower, in studies with the middle of this one's residuals."""
        random = np.random.default_rng(options.seed)
        middle = np.where(slow, left - (b - a), left) if two else left
        base = permuted(middle, None, _STUDIES, random)
        adds = np.zeros(n)
        adds[::_ONE_IN] = 1.0
        normal = random.standard_normal((_STUDIES * _EACH, n))

        def found(effect: float) -> np.ndarray:
            rows = base + np.log1p(effect) * adds
            # Each study is held against its own SU: a few samples give the place and width of its
            # ratios, those of all studies together how far the limit lies.
            fits = np.repeat(johnson(rows)[1], _EACH, axis=0)
            ratios = np.maximum(_ratio(_drawn(normal, fits)), -n).reshape(_STUDIES, _EACH)
            centre, wide = ratios.mean(axis=1), ratios.std(axis=1, ddof=1) + 1e-9
            limit = np.quantile((ratios - centre[:, None]) / wide[:, None], 1 - level)
            return _ratio(rows) > np.maximum(centre + limit * wide, 0.0)

        return smallest(found, options.power, float(np.expm1(2 * deviation)), steps=5)

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        if not judge.holds(claim):
            return None
        return pd.Series((b - a) * slow.astype(float)), 2 * gain - 3 * float(np.log(n))

    def tell(judge: Judge) -> tuple[str, str]:
        if judge.holds(claim):
            return (f"There is a slow group ({judge.p(claim)}): {count} of {n} tasks, {percent(count / n)} "
                    f"{span_text(interval)}, {percent(slower)} slower than the others {span(*ends)} (base: the others' mean)."), FOUND  # fmt: skip
        return (f"No slow group is shown ({judge.p(claim)}, {n} tasks): {could_have(result, 'one task in ten that is {} slower')}; "
                "a closer or smaller group cannot be decided."), OPEN  # fmt: skip

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
    result = Analysis("tail", title, table, tell, n, options.alpha, [claim], draw, facts, notes,
                      explains=explains, could_see=could_see, power=options.power)  # fmt: skip
    return result


class _Bounds(Protocol):
    """The bounds of an interval, as scipy gives it."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def span_text(interval: _Bounds) -> str:
    """'[1%, 9%]' of a binomial interval."""
    return f"[{percent(interval.low)}, {percent(interval.high)}]"
