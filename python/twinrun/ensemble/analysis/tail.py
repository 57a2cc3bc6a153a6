"""Whether there is a slow group: a few tasks that are not just the tail of the distribution.

A mixture of two normal distributions of one variance (of logarithms of the time, conditions and blocks taken
out) is compared with one distribution. An outlier test was the alternative: a group of slow tasks widens the
scale that it measures by and hides itself (masking), and it needs a normal distribution to begin with. Noise
of systems is skewed and has long tails without being two things. So the one distribution is of a family that
has both, Johnson's SU (Biometrika 36, 1949), with as many parameters as the mixture; the statistic is the
ratio of the two likelihoods, and it is judged against samples of the SU that fits best. A slow group is the
smaller part, at most three tasks of ten: two halves with one slower half are two modes, and reported as such.

Where slow tasks stand out and the skewed distribution fits them too, it says so, with numbers: which tasks
are rather slow, by how much, and how many tasks the best of all tests would need. It claims nothing then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import usable
from .best_test import MOST, Pair, tasks_to_tell
from .deviations import freedom
from .distributions import johnson, mixture, ratio, samples
from .model import Left, left_over, percent, span
from .power import deviations_like, in_report, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, could_have, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["johnson", "mixture", "tail"]

_LEAST = 12  # tasks
_MOST = 0.3  # of the tasks, in a slow group
_ONE_IN = 10  # tasks is slow, in the studies in which a slow group could have been seen
# Simulated for what could have been seen, and samples of the null for each.
_STUDIES, _EACH = 80, 16
_AT_ONCE = 150_000  # values of those samples
_DRAWS = 499  # of the null, at most: each is two searches
# Of the gain in log-likelihood: one of twenty samples of one normal distribution has more, with 12
# to 1280 tasks (quantiles of 800 to 8000 samples lie between 1.81 and 2.20).
_STANDS_OUT = 2.2


def _ratio(x: np.ndarray, *, rough: bool = False) -> np.ndarray:
    """`ratio` of samples of which nothing is fitted yet; two normals of which one is slow."""
    return ratio(x, mixture(x, _MOST, rough=rough)[0], johnson(x, rough=rough)[0])


@dataclass
class _Group:
    """The slow part of a mixture of two normals.

    gain: in log-likelihood over one; share, fast, slow, deviation: of the mixture; ratio: of
    likelihoods, against Johnson's SU; one, fitted: the likelihood of that SU, and the SU.
    """

    good: pd.DataFrame
    over: Left
    options: Options
    gain: float
    share: float
    fast: float
    slow: float
    deviation: float
    ratio: float
    one: float
    fitted: np.ndarray
    rng: np.random.Generator

    @property
    def left(self) -> np.ndarray:
        return self.over.values

    @property
    def n(self) -> int:
        return len(self.left)

    @property
    def two(self) -> bool:
        """Whether two normals fit better than an SU, and than one normal: so says BIC.

        Two equal modes are neither. Where an SU fits them worst of all, a small group would fit
        better than it.
        """
        return self.ratio > 0 and self.gain > np.log(self.n)

    @cached_property
    def members(self) -> np.ndarray:
        """The tasks that are rather slow."""
        a, b, s, w = self.fast, self.slow, self.deviation, self.share
        with np.errstate(over="ignore"):
            odds = (
                np.log(max(w, 1e-12) / max(1 - w, 1e-12))
                - (b**2 - a**2) / (2 * s**2)
                + (b - a) / s**2 * self.left
            )
        return np.asarray(odds > 0)

    def p(self) -> float:
        """Against samples of the SU that fits best."""
        if not self.two:
            return 1.0

        def null(count: int) -> np.ndarray:
            return _ratio(samples(self.rng.standard_normal((count, self.n)), self.fitted))[:, None]

        return float(permutation_p(np.array([self.ratio]), null, min(self.options.permutations, _DRAWS))[0])

    @property
    def stands_out(self) -> bool:
        """Whether slow tasks lie farther from the others than in 19 of 20 samples of one normal
        distribution.
        """
        return self.gain > _STANDS_OUT and bool(self.members.any())

    def needed(self, level: float) -> float:
        """Tasks that the best test needs to tell this mixture from the SU nearest to it."""
        pair = Pair(self.fast, self.slow, self.deviation, self.share)
        return tasks_to_tell(pair, level, self.options.power, np.random.default_rng(self.options.seed))

    def describe(self, judge: Judge, claim: Claim) -> str:
        """Slow tasks that stand out, where it cannot be told whether they are a group; or nothing."""
        if judge.holds(claim) or not self.stands_out:
            return ""
        longer = np.expm1(self.left[self.members] - self.left[~self.members].mean())
        low, high = percent(float(longer.min())), percent(float(longer.max()))
        by = low if low == high else f"{low} to {high}"
        whose = ", what conditions and blocks do taken out," if self.over.basis.shape[1] > 1 else ""
        return (
            f"Some tasks take longer: {len(longer)} of {self.n}{whose} took {by} longer than the mean of the others. This may be a group of slow tasks, or "
            f"a long tail: not told apart ({judge.p(claim)}). Even the best test needs {self.enough(judge)} to tell such a group from such a tail."
        )

    def enough(self, judge: Judge) -> str:
        """The tasks that would tell the slow ones that stand out from a tail."""
        least = self.needed(judge.level)
        if not math.isfinite(least):
            return f"more than {MOST} tasks"
        # Fewer were not enough here: the pair that was fitted to these is not known well.
        return (
            f"about {10 * math.ceil(least / 10)} tasks"
            if least >= 1.5 * self.n
            else f"more than {self.n} tasks"
        )

    def bic(self) -> dict[str, float]:
        many = np.log(self.n)
        normal = float(stats.norm.logpdf(self.left, self.left.mean(), self.left.std()).sum())
        return {
            "one normal": 2 * many - 2 * normal,
            "one Johnson SU": 4 * many - 2 * self.one,
            "two normals": 4 * many - 2 * (normal + self.gain),
        }

    def ends(self) -> tuple[float, float]:
        """How much slower the group is: the interval by percentiles of resampled tasks, or by t where
        that is wider.

        Percentiles of a few slow tasks are too near to each other.
        """
        options = self.options
        drawn = mixture(
            self.left[self.rng.integers(0, self.n, (min(options.resamples, _DRAWS), self.n))], _MOST
        )
        apart = (drawn[3] - drawn[2])[drawn[0] > 0]
        if not len(apart):
            return np.nan, np.nan
        low, high = np.quantile(apart, [options.alpha / 2, 1 - options.alpha / 2])
        slow = self.share * self.n
        error = self.deviation * np.sqrt(1 / max(slow, 1.0) + 1 / (self.n - slow))
        half = stats.t.ppf(1 - options.alpha / 2, self.n - 2) * error
        middle = self.slow - self.fast
        return float(np.expm1(min(low, middle - half))), float(np.expm1(max(high, middle + half)))

    def claim(self) -> Claim:
        p, count = self.p(), int(self.members.sum())
        share = stats.binomtest(count, self.n).proportion_ci(self.options.confidence)
        low, high = self.ends() if p <= self.options.alpha else (np.nan, np.nan)
        return Claim("a slow group", p, {"tasks": count, "share": count / self.n, "share_low": float(share.low), "share_high": float(share.high),
                     "slower": float(np.expm1(self.slow - self.fast)), "low": low, "high": high, "of": self.n})  # fmt: skip

    def table(self) -> pd.DataFrame:
        good, value = self.good, self.options.value
        table = pd.DataFrame({"task": good["task"], "node": good["node"], "block": good["block"], "order": good["order"], value: good[value],
                              "against all": np.expm1(self.left), "slow group": self.members})  # fmt: skip
        shown = max(10, int(self.members.sum()))
        return table.sort_values("against all", ascending=False).head(shown).reset_index(drop=True)

    def notes(self) -> list[str]:
        """Two modes are described; without a test, because no cause is claimed for the smaller one."""
        gain, share, a, b, s = (float(v[0]) for v in mixture(self.left[None]))
        if not (share > _MOST and 2 * gain > 2 * np.log(self.n) + 10 and b - a > 3 * s):
            return []
        return [
            f"the times have two modes: {percent(share)} of {self.n} tasks are about {percent(float(np.expm1(b - a)))} slower than the others "
            "(a description, not tested); a slow group is looked for beside one distribution"
        ]

    def could_see(self, level: float) -> float:
        """One task in ten is slower, in studies with the middle of this one's residuals."""
        random = np.random.default_rng(self.options.seed)
        left = self.left
        middle = np.where(self.members, left - (self.slow - self.fast), left) if self.two else left
        base = permuted(middle - middle.mean(), None, _STUDIES, random)
        base = base * deviations_like(freedom(middle, self.n - self.over.basis.shape[1]), random, _STUDIES)
        adds = np.zeros(self.n)
        adds[::_ONE_IN] = 1.0
        normal = random.standard_normal((_STUDIES * _EACH, self.n))

        def found(effect: float) -> np.ndarray:
            rows = base + np.log1p(effect) * adds
            gain = mixture(rows, _MOST)[0]
            likelihood, fits = johnson(rows)
            own = ratio(rows, gain, likelihood)

            likely = (gain > np.log(self.n)) & (own > 0)
            if likely.mean() < in_report(self.options.power):
                return likely
            return self._apart(own, fits, normal, level) & likely

        return smallest(found, self.options.power, float(np.expm1(2 * left.std())), steps=5)

    def _apart(self, own: np.ndarray, fits: np.ndarray, normal: np.ndarray, level: float) -> np.ndarray:
        """Which studies have a ratio (own) that samples of their own SU (fits) exceed at this level.

        A few samples give the place and width of a study's ratios, those of all studies together how far
        the limit lies. What is left to simulate lies beyond that limit or not: so it is at least what it
        would be if nothing more did. Where too many studies are below it already, it is not simulated.
        """
        studies, allowed = len(own), len(own) * (1 - in_report(self.options.power))
        beyond = studies * _EACH - math.floor((studies * _EACH - 1) * (1 - level))
        ratios = np.full((studies, _EACH), np.nan)
        each, failed = normal.reshape(studies, _EACH, -1), np.zeros(studies, dtype=bool)
        order = np.argsort(own)
        step = max(1, _AT_ONCE // (_EACH * self.n))
        for k in range(0, studies, step):
            at = order[k : k + step]
            null = samples(each[at].reshape(-1, self.n), np.repeat(fits[at], _EACH, axis=0))
            ratios[at] = np.maximum(_ratio(null, rough=True), -self.n).reshape(-1, _EACH)
            known = order[: k + step]
            centre = ratios[known].mean(axis=1)
            wide = ratios[known].std(axis=1, ddof=1) + 1e-9
            far = np.sort(((ratios[known] - centre[:, None]) / wide[:, None]).ravel())
            if len(known) == studies:
                failed[known] = own[known] <= centre + np.quantile(far, 1 - level) * wide
            elif len(far) >= beyond:
                failed[known] = own[known] <= centre + far[-beyond] * wide
            if failed.sum() > allowed:
                break
        return ~failed

    def explained(self) -> tuple[pd.Series, float]:
        """What it adds to its tasks, and how much better that fits."""
        apart = (self.slow - self.fast) * self.members.astype(float)
        return pd.Series(apart), 2 * self.gain - 3 * float(np.log(self.n))

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        claim = result.claims[0]
        facts = claim.facts
        if judge.holds(claim):
            share = f"[{percent(facts['share_low'])}, {percent(facts['share_high'])}]"
            return (f"There is a slow group ({judge.p(claim)}): {facts['tasks']} of {self.n} tasks, {percent(facts['share'])} {share}, "
                    f"{percent(facts['slower'])} slower than the others {span(facts['low'], facts['high'])} (base: the others' mean)."), FOUND  # fmt: skip
        return (f"No slow group is shown ({judge.p(claim)}, {self.n} tasks): {could_have(result, 'one task in ten that is {} slower', ', a closer or smaller group not')}."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        slow, count = self.members, int(self.members.sum())
        axes.hist(100 * np.expm1(self.left[~slow]), bins="auto", color="#4878a8", label="others")
        if count and self.two:
            axes.hist(
                100 * np.expm1(self.left[slow]), bins=max(3, count // 3), color="#a84848", label="slow group"
            )
            axes.legend()
        axes.set(xlabel="against all, conditions taken out (%)", ylabel="tasks", title=title)


def tail(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The slow group: how many tasks, which, and how much slower."""
    title = "Slow tail"
    good = usable(frame, options.value)
    if len(good) < _LEAST:
        return nothing("tail", title, f"Whether there is a slow group cannot be decided with {len(good)} tasks; it takes "
                       f"{_LEAST} and more.", len(good))  # fmt: skip
    blocks = bool((good["block"].value_counts() >= 4).all())
    over = left_over(good, options.value, blocks=blocks)
    if over.values.std() < 1e-12:
        return nothing("tail", title, f"All {len(good)} tasks took the same time.", len(good))
    one = over.values[None]
    likelihood, fitted = johnson(one)
    gain, share, fast, slow, deviation = (float(v[0]) for v in mixture(one, _MOST))
    rng = np.random.default_rng(options.seed)
    own = _Group(good, over, options, gain, share, fast, slow, deviation, float(ratio(one, np.array([gain]), likelihood)[0]), float(likelihood[0]), fitted, rng)  # fmt: skip
    claim = own.claim()

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        return own.explained() if judge.holds(claim) else None

    facts = {"bic": own.bic(), **claim.facts}
    result = Analysis("tail", title, own.table(), lambda judge: own.tell(result, judge), len(good), options.alpha, [claim],
                      partial(own.draw, title), facts, own.notes(), explains=explains, could_see=own.could_see, power=options.power, describe=lambda judge: own.describe(judge, claim))  # fmt: skip
    return result
