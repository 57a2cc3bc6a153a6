"""Effects of time: by block, by time of day, and periodic over the study."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import statsmodels.api as sm
from matplotlib.axes import Axes
from scipy import signal, stats
from scipy.optimize import brentq

from ..study.tasks import condition_columns, usable
from .deviations import freedom
from .model import Left, Model, at_least, fall_of_bic, left_over, model_of, percent, residuals
from .power import STUDIES, Chance, deviations_like, in_report, narrowed, smallest
from .remarks import equal
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import Null, with_before
from .terms import TermTest, terms_tested
from .unequal import groups_differ

__all__ = ["blocks", "periods", "time_of_day"]

_DAY = 86400.0
_FLAT = 1e-12  # variance within blocks, by that between: less is rounding


def _by_block(codes: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """For rows of values in the order of time: F of blocks; the correlation of each value with the one before
    inside of blocks, their means taken out; the same across the borders of blocks.

    Blocks that differ leave the last two as they are, load that comes and goes does not.
    """
    n = len(codes)
    member = (codes[:, None] == np.arange(codes.max() + 1)[None, :]).astype(float)
    size = member.sum(axis=0)
    inner = codes[1:] == codes[:-1]

    def of(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = rows - rows.mean(axis=1, keepdims=True)
        means = rows @ member / size
        rest = rows - means[:, codes]
        squares = rest**2 @ member
        all_ = squares.sum(axis=1)
        between = (means**2 * size).sum(axis=1)
        least = np.maximum(_FLAT * between, 1e-300)
        pooled = all_[:, None] / max(n - len(size), 1)
        # Brown and Forsythe's F takes no equal variances. A block of one task has that of all.
        of_blocks = np.where(size > 1, squares / np.maximum(size - 1, 1), pooled)
        f = between / np.maximum(of_blocks @ (1 - size / n), least)
        within = np.maximum(all_, least)
        products = rows[:, 1:] * rows[:, :-1]
        variance = np.maximum((rows**2).mean(axis=1), 1e-300)
        across = products[:, ~inner].mean(axis=1) / variance
        return f, (rest[:, 1:] * rest[:, :-1])[:, inner].sum(axis=1) / within, across

    return of


@dataclass
class _Blocks:
    """Tasks by block. mean_square: between blocks; noise: what it would be without effects; n0: the mean
    size of blocks (Searle); beyond: the model with a straight line over the order of tasks.
    """

    good: pd.DataFrame
    options: Options
    model: Model
    over: Left
    codes: np.ndarray
    mean_square: float
    noise: float
    n0: float
    rng: np.random.Generator
    beyond: Model

    @property
    def freedom(self) -> tuple[int, int]:
        return len(self.model.block_columns), self.model.freedom

    @cached_property
    def sigma(self) -> float:
        """The deviation inside of blocks; 0 where it is rounding."""
        return float(np.sqrt(self.noise)) if self.noise > 2 * _FLAT * self.mean_square else 0.0

    @cached_property
    def of(self) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
        return _by_block(self.codes)

    @cached_property
    def nulls(self) -> list[Null]:
        """Series that resemble the ones before as tasks do inside of blocks, and across their borders."""
        return [
            Null(len(self.good), lambda rows, k=k: (self.of(rows)[0], self.of(rows)[k]), self.over.again, self.rng)  # type: ignore[misc]
            for k in (1, 2)
        ]  # fmt: skip

    @cached_property
    def beside_a_line(self) -> TermTest | None:
        """The test of blocks where a straight line explains what it can; None: the two are one."""
        columns = self.beyond.block_columns
        if self.beyond.freedom < 1:
            return None
        test = TermTest(self.beyond, columns)
        return test if test.freedom[0] == len(columns) else None

    def p_beside_a_line(self) -> float:
        """Of F and of its permutation; 1 where a line and the blocks cannot be told apart."""
        if self.beside_a_line is None:
            return 1.0
        where = {"block": self.beyond.block_columns}
        return max(terms_tested(self.beyond, where, self.options.permutations, self.rng)["block"][1:])

    def deviation(self, by: float = 1.0) -> float:
        """The deviation between blocks. With one of s, the mean square is n0 s^2 + sigma^2, times an F
        variable (by).
        """
        return float(np.sqrt(max(0.0, (self.mean_square / by - self.sigma**2) / self.n0)))

    def ends(self) -> tuple[float, float]:
        half = self.options.alpha / 2
        return (
            self.deviation(stats.f.ppf(1 - half, *self.freedom)),
            self.deviation(stats.f.ppf(half, *self.freedom)),
        )

    def could_see(self, level: float) -> float:
        """The deviation between blocks, in shuffled residuals."""
        random = np.random.default_rng(self.options.seed)
        over = self.over
        series = over.again(permuted(over.values, None, STUDIES, random)) * over.scale
        series = series * deviations_like(freedom(over.values, self.freedom[1]), random)
        adds = random.standard_normal((STUDIES, self.freedom[0] + 1))[:, self.codes]
        limit = float(stats.f.ppf(1 - level, *self.freedom))
        chance = Chance(len(self.good), None, random)
        beside = self.beside_a_line
        if beside is None:
            return math.inf

        def found(effect: float) -> np.ndarray:
            rows = over.again(series + effect * adds)
            f, inside, across = self.of(rows)
            by = np.minimum(self.nulls[0].limits(inside, level), self.nulls[1].limits(across, level))
            by_chance = chance.limit(rows, lambda shuffled: self.of(over.again(shuffled))[0], level)
            plain = beside.without(rows)
            beside_chance = chance.limit(plain, lambda shuffled: beside.f(beside.without(shuffled)), level)
            told = beside.f(plain) >= max(beside.limit(level), beside_chance)
            return told & (f >= np.maximum(max(limit, by_chance), by))

        # Where tasks of a block took equal times, the search starts from what blocks do.
        return smallest(found, self.options.power, max(self.sigma, float(over.values.std()) / 8))

    def explained(self) -> tuple[pd.Series, float]:
        """The means of blocks, drawn towards their own as random effects are; how much better they fit."""
        codes = self.codes
        x = self.over.values - self.over.values.mean()
        member = (codes[:, None] == np.arange(self.freedom[0] + 1)[None, :]).astype(float)
        size, means = member.sum(axis=0), x @ member / member.sum(axis=0)
        between, within = self.deviation() ** 2, max(self.sigma**2, 1e-300)
        effect = (means * size * between / (size * between + within))[codes]
        inner = float(((x - means[codes]) ** 2).sum())
        wide = within + size * between
        told = (
            (len(x) - len(size)) * np.log(within)
            + np.log(wide).sum()
            + inner / within
            + (size * means**2 / wide).sum()
        )
        alone = len(x) * np.log(float(x @ x) / len(x)) + len(x)
        return pd.Series(effect), float(alone - told - np.log(len(x)))

    def table(self) -> pd.DataFrame:
        rows = []
        times = self.good[self.options.value].to_numpy(dtype=float)
        for block, where in self.good.groupby("block", sort=True).indices.items():
            part = times[where]
            rows.append({"block": block, "n": len(where), "median": float(np.median(part)), "(max-min)/min": part.max() / part.min() - 1,
                         "CoV": float(np.std(part, ddof=1) / part.mean()) if len(part) > 1 else np.nan,
                         "against all, conditions taken out": float(np.expm1(self.over.values[where].mean()))})  # fmt: skip
        return pd.DataFrame(rows)

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        claim = result.claims[0]
        low, high = claim.facts["low"], claim.facts["high"]
        data = f"{len(self.good)} tasks in {self.freedom[0] + 1} blocks"
        inside = (
            f"{percent(self.sigma)} within"
            if self.sigma
            else "none within: tasks of a block took equal times"
        )
        if judge.holds(claim):
            return (f"Blocks differ ({judge.p(claim)}): a standard deviation between them of {percent(claim.facts['between'])} of the time "
                    f"[{percent(low)}, {percent(high)}], beside {inside} ({data})."), FOUND  # fmt: skip
        if high <= self.options.matters:
            return (
                f"Blocks do not differ by a standard deviation of more than {at_least(high)} of the time at "
                f"{percent(self.options.confidence)} confidence ({data}).",
                NONE,
            )
        return (f"Whether blocks differ cannot be decided ({judge.p(claim)}, {data}): "
                f"{could_have(result, 'a standard deviation between blocks of {} of the time')}."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        times = self.good[self.options.value].to_numpy(dtype=float)
        groups = self.good.groupby("block").indices
        axes.boxplot([times[w] for w in groups.values()], widths=0.6)
        axes.axhline(float(np.median(times)), color="#999999", linewidth=0.8)
        axes.set_xticks(range(1, len(groups) + 1), [str(b) for b in groups], fontsize=7)
        axes.set(xlabel="block", ylabel=f"{self.options.value} (s)", title=title)


def blocks(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Whether blocks (batches) differ: the test of a random effect, and the standard deviation between blocks
    with its interval.

    Tasks of a block ran one after another, so load that comes and goes slowly makes them alike too. Blocks
    must differ more than those of series that resemble the ones before as much as tasks do inside of blocks,
    and across their borders; and by more than a straight line explains: a drift is no effect of blocks.
    """
    title = "By block"
    good = usable(frame, options.value)
    if good["block"].nunique() < 2 or len(good) < 2 * good["block"].nunique():
        return nothing("blocks", title, f"Whether blocks differ cannot be decided: {len(good)} tasks in "
                       f"{good['block'].nunique()} block(s).", len(good))  # fmt: skip
    if equal(good[options.value].to_numpy(dtype=float)):
        return nothing("blocks", title, f"All {len(good)} tasks took the same time.", len(good))
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    rng = np.random.default_rng(options.seed)
    tested = terms_tested(model, {"block": model.block_columns}, options.permutations, rng)
    _, p_f, p_permuted = tested["block"]
    test = TermTest(model, model.block_columns)
    mean_square, noise = (float(x[0]) for x in test.variances(test.without(model.y[None] - model.y.mean())))
    sizes = good["block"].value_counts().to_numpy()
    n0 = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / len(model.block_columns)
    over = left_over(good, options.value, blocks=False)
    codes = np.unique(good["block"].to_numpy(), return_inverse=True)[1]
    line = (np.arange(len(y)) - (len(y) - 1) / 2)[:, None] / len(y)
    beyond = replace(model, matrix=np.hstack([model.matrix, line]))
    own = _Blocks(good, options, model, over, codes, mean_square, noise, n0, rng, beyond)
    p = max(p_f, p_permuted, groups_differ(over.values, codes))
    if p <= options.alpha:
        p = max(p, own.p_beside_a_line())
    if p <= options.alpha and over.values.std() > 1e-12:
        p = max(p, min(null.p(over.values, options.permutations) for null in own.nulls))
    low, high = own.ends()
    claim = Claim("blocks differ", p, {"between": own.deviation(), "low": low, "high": high})

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        return own.explained() if judge.holds(claim) else None

    facts = {**claim.facts, "within": own.sigma}
    result = Analysis("blocks", title, own.table(), lambda judge: own.tell(result, judge), len(good), options.alpha, [claim],
                      partial(own.draw, title), facts, explains=explains, could_see=own.could_see, power=options.power)  # fmt: skip
    return result


def _moments(good: pd.DataFrame) -> np.ndarray | None:
    """Middles of tasks in seconds, or None where starts are not known."""
    if not np.isfinite(good["start"]).all():
        return None
    return good["start"].to_numpy(dtype=float)


class _Rhythm:
    """One sine and cosine of 24 h, fitted to the means of hours.

    start: when tasks began; left: what conditions leave over of the logarithms of their times.
    """

    def __init__(self, start: np.ndarray, left: np.ndarray, options: Options) -> None:
        self.start, self.left, self.options = start, left, options
        self.days = float(start.max() - start.min()) / _DAY
        by_hour = pd.Series(left).groupby(start // 3600)
        mean = by_hour.mean()
        self.hours, self.means = mean.index.to_numpy(), mean.to_numpy()
        self.counts = by_hour.size().to_numpy()
        angle = 2 * np.pi * (self.hours + 0.5) / 24
        self._matrix = np.column_stack([np.ones_like(angle), np.cos(angle), np.sin(angle)])
        self._weights = self.counts / self.counts.mean()
        fit = sm.WLS(self.means, self._matrix, weights=self._weights).fit()
        self.cosine, self.sine = fit.params[1], fit.params[2]
        self.amplitude = float(np.hypot(self.cosine, self.sine))
        self._error = float(np.sqrt((fit.bse[1] ** 2 + fit.bse[2] ** 2) / 2))
        half = stats.norm.ppf(1 - options.alpha / 2) * self._error
        self.high = self.amplitude + half
        facts = {"amplitude": self.amplitude, "low": max(0.0, self.amplitude - half), "high": self.high}
        self.claim = Claim("a daily rhythm", max(float(fit.f_pvalue), self._p_of_order()), facts)

    def _p_of_order(self) -> float:
        """p by shuffled hours."""
        w = np.sqrt(self._weights)
        turns = self._matrix[:, 1:] * w[:, None]
        q = np.linalg.qr(turns - np.outer(w, w @ turns) / (w @ w))[0]

        def power(v: np.ndarray) -> np.ndarray:
            v = v * w
            v = v - (v @ w)[:, None] * w / (w @ w)
            gain = ((v @ q) ** 2).sum(axis=1)
            return (gain / np.maximum((v**2).sum(axis=1) - gain, np.maximum(_FLAT * gain, 1e-300)))[:, None]

        rng = np.random.default_rng(self.options.seed)
        found = permutation_p(
            power(self.means[None])[0],
            lambda n: power(permuted(self.means, None, n, rng)),
            self.options.permutations,
        )
        return float(found[0])

    def could_see(self, level: float) -> float:
        return self._error * float(
            np.sqrt(_noncentral(level, in_report(self.options.power), len(self.means) - 3))
        )

    def explains(self, judge: Judge) -> tuple[pd.Series, float] | None:
        if not judge.holds(self.claim):
            return None
        turn = 2 * np.pi * self.start / _DAY
        effect = self.cosine * np.cos(turn) + self.sine * np.sin(turn)
        return pd.Series(effect), fall_of_bic(self.left, effect, 2)

    def table(self) -> pd.DataFrame:
        """Hours of the day."""
        of_day = (self.hours % 24).astype(int)
        table = pd.DataFrame({"hour (UTC)": of_day, "against all": np.expm1(self.means), "n": self.counts})
        return table.groupby("hour (UTC)").agg({"against all": "mean", "n": "sum"}).reset_index()

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        data = f"{len(self.left)} tasks in {len(self.means)} hours over {self.days:.3g} days"
        if judge.holds(self.claim):
            slowest = float(np.arctan2(self.sine, self.cosine) / (2 * np.pi) * 24 % 24)
            return (f"There is a daily rhythm ({judge.p(self.claim)}): +-{percent(self.amplitude)} of the time "
                    f"[{percent(self.claim.facts['low'])}, {percent(self.claim.facts['high'])}], slowest at {slowest:.1f} h UTC ({data})."), FOUND  # fmt: skip
        if self.high <= self.options.matters:
            return f"No daily rhythm of more than +-{percent(self.high)} of the time ({data}).", NONE
        return (f"Whether the time of day matters cannot be decided ({judge.p(self.claim)}, {data}): "
                f"{could_have(result, '+-{} of the time')}."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        axes.plot(self.start % _DAY / 3600, 100 * np.expm1(self.left), ".", alpha=0.5)
        axes.set(xlabel="hour of the day (UTC)", ylabel="against all (%)", title=title, xlim=(0, 24))


def time_of_day(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """A daily rhythm: one sine and cosine of 24 h (UTC) fitted to means of hours, for tasks of one hour share
    what happened in it.
    """
    title = "By time of day"
    good = usable(frame, options.value)
    start = _moments(good)
    need = "it takes two days and more, and eight hours of work spread over them"
    covered = 0.0 if start is None or len(good) == 0 else float(start.max() - start.min())
    hours = np.array([]) if start is None else np.unique(start // 3600)
    if start is None or covered < 2 * _DAY or len(hours) < 8 or len(np.unique(hours % 24)) < 6:
        return nothing("time_of_day", title, f"Whether the time of day matters cannot be decided: the study's {len(good)} tasks "
                       f"cover {covered / 3600:.3g} h; {need}.", len(good))  # fmt: skip
    own = _Rhythm(start, residuals(good, options.value, blocks=False), options)
    result = Analysis("time_of_day", title, own.table(), lambda judge: own.tell(result, judge), len(good), options.alpha, [own.claim],
                      partial(own.draw, title), dict(own.claim.facts), explains=own.explains, could_see=own.could_see, power=options.power)  # fmt: skip
    return result


def _noncentral(alpha: float, power: float, freedom: int) -> float:
    """The noncentrality of F with 2 degrees at which a test has this power, for two coefficients of equal
    error.
    """
    critical = stats.f.ppf(1 - alpha, 2, freedom)
    return float(brentq(lambda x: stats.ncf.sf(critical, 2, freedom, x) - power, 1e-3, 1e3))


def _powers(pairs: np.ndarray) -> np.ndarray:
    """The sum of squares of each pair (the last axis). Numpy's own sum over so short an axis takes
    several times as long.
    """
    squares = pairs * pairs
    return np.asarray(squares[..., 0] + squares[..., 1])


def _pairs(rows: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a mean of 0 and a deviation of 1; what each has of each frequency's sine and cosine."""
    v = rows - rows.mean(axis=1, keepdims=True)
    v = v / np.maximum(v.std(axis=1, keepdims=True), 1e-300)
    return v, (v @ basis).reshape(len(v), -1, 2)


def _among_drifting(
    basis: np.ndarray, cycles: np.ndarray
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For rows in the order of time, whose steps are taken as even: the highest peak, each taken against what
    the spectrum of an autoregression has there; the correlation of each value with the one before, the
    best period taken out; and the highest peak itself.
    """
    columns = basis.reshape(len(basis), -1, 2)

    def of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        v, pairs = _pairs(rows, basis)
        height = _powers(pairs)
        best = height.argmax(axis=1)
        each = np.arange(len(v))
        rest = v - (columns[:, best].transpose(1, 0, 2) @ pairs[each, best][:, :, None])[:, :, 0]
        before = with_before(rest)
        phi = np.clip(before, 0.0, 0.95)[:, None]
        red = 1 / (1 + phi**2 - 2 * phi * np.cos(2 * np.pi * cycles[None] / v.shape[1]))
        against = (height / (red / red.mean(axis=1, keepdims=True))).max(axis=1)
        return against, before, height[each, best] / v.shape[1]

    return of


@dataclass
class _Periods:
    """The periodogram of residuals.

    t: starts, in s from the first; cycles: in the whole study, of each frequency; basis: a sine and a cosine
    for each, orthonormal, side by side.
    """

    over: Left
    t: np.ndarray
    options: Options
    rng: np.random.Generator
    cycles: np.ndarray = field(init=False)
    basis: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        # Finer steps find no more.
        self.cycles = np.arange(2.0, len(self.t) / 2 + 0.25, 0.25)
        angle = 2 * np.pi * self.cycles[:, None] * self.t / self.covered
        pairs = np.stack([np.cos(angle), np.sin(angle)], axis=2)
        pairs -= pairs.mean(axis=1, keepdims=True)
        u, s, _ = np.linalg.svd(pairs, full_matrices=False)
        u = np.where((s < 1e-6 * s.max(axis=1, keepdims=True))[:, None, :], 0, u)
        self.basis = u.transpose(1, 0, 2).reshape(len(self.t), -1)

    @property
    def covered(self) -> float:
        return float(self.t.max())

    @cached_property
    def in_time(self) -> np.ndarray:
        return np.argsort(self.t)

    @cached_property
    def looked_for(self) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return _among_drifting(self.basis[self.in_time], self.cycles)

    @cached_property
    def among(self) -> Null:
        """Series that resemble the ones before, in the order of time."""
        at = self.in_time
        return Null(
            len(self.t),
            lambda rows: self.looked_for(rows)[:2],
            lambda rows: self.over.again(rows[:, np.argsort(at)])[:, at],
            self.rng,
        )

    def peaks(self, v: np.ndarray) -> np.ndarray:
        """The share of the variance of each row at each frequency."""
        return _powers(_pairs(v, self.basis)[1]) / len(self.t)

    @cached_property
    def own(self) -> np.ndarray:
        return self.peaks(self.over.values[None])[0]

    @property
    def best(self) -> int:
        return int(self.own.argmax())

    def p(self) -> float:
        """Of the highest peak of all."""
        left, most = self.over.values, self.options.permutations

        def highest(n: int) -> np.ndarray:
            shuffled = self.over.again(permuted(left, None, n, self.rng))
            return self.peaks(shuffled).max(axis=1)[:, None]

        p = float(permutation_p(np.array([self.own.max()]), highest, most)[0])
        return max(p, self.among.p(left[self.in_time], most)) if p <= self.options.alpha else p

    def fitted(self) -> np.ndarray:
        """The sine and cosine of the best period."""
        left = self.over.values
        pair = self.basis.reshape(len(self.t), -1, 2)[:, self.best]
        return np.asarray(pair @ (pair.T @ (left - left.mean())))

    def amplitude(self) -> tuple[float, float]:
        """The amplitude of the best period, and half of its interval."""
        # Of a sine and a cosine, beside what they leave.
        n, share, deviation = len(self.t), float(self.own[self.best]), np.std(self.over.values)
        far = stats.t.ppf(1 - self.options.alpha / 2, max(n - 3, 1))
        return float(np.sqrt(2 * share) * deviation), float(
            far * deviation * np.sqrt(2 * max(1 - share, 0.0) / n)
        )

    def could_see(self, level: float) -> float:
        """A sine of any period, in shuffled residuals."""
        random = np.random.default_rng(self.options.seed)
        over, left = self.over, self.over.values
        series = over.again(permuted(left, None, STUDIES, random)) * over.scale
        series = series * deviations_like(freedom(left, len(left) - over.basis.shape[1]), random)
        phase, which = random.random(STUDIES), random.choice(self.cycles, STUDIES)
        wave = np.sin(2 * np.pi * (which[:, None] * self.t / self.covered + phase[:, None]))
        drawn = over.again(permuted(left, None, 1999, random))
        limit = float(np.quantile(self.peaks(drawn).max(axis=1), 1 - level))

        def found(effect: float) -> np.ndarray:
            rows = over.again(series + effect * wave)

            def told(at: np.ndarray) -> np.ndarray:
                against, before, height = self.looked_for(rows[at][:, self.in_time])
                return (height >= limit) & (against >= self.among.limits(before, level))

            return narrowed(told, self.options.power)

        return smallest(found, self.options.power, float(np.std(left)))

    def table(self) -> pd.DataFrame:
        left = self.over.values
        power = (
            signal.lombscargle(
                self.t, left - left.mean(), 2 * np.pi * self.cycles / self.covered, normalize=True
            )
            if self.own[self.best]
            else self.own
        )
        table = pd.DataFrame(
            {
                "period (s)": self.covered / self.cycles,
                "share of the variance": self.own,
                "Lomb-Scargle": power,
            }
        )
        return table.sort_values("share of the variance", ascending=False).head(5).reset_index(drop=True)

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        claim = result.claims[0]
        facts, data = claim.facts, f"{len(self.t)} tasks over {self.covered:.4g} s"
        if judge.holds(claim):
            return (f"Something comes back every {facts['period']:.4g} s, or at a multiple of that rate that tasks cannot tell apart "
                    f"({judge.p(claim)}): +-{percent(facts['amplitude'])} of the time [{percent(facts['low'])}, {percent(facts['high'])}], "
                    f"{percent(facts['share'])} of the variance that conditions leave ({data})."), FOUND  # fmt: skip
        seen = result.seen
        told = could_have(result, "+-{} of the time")
        if seen is not None and seen <= self.options.matters:
            return f"No periodic noise is shown; {told} ({data}).", NONE
        return f"Whether noise is periodic cannot be decided ({judge.p(claim)}, {data}): {told}.", OPEN

    def draw(self, title: str, axes: Axes) -> None:
        axes.plot(self.covered / self.cycles, self.own)
        axes.set(xscale="log", xlabel="period (s)", ylabel="share of the variance", title=title)


def periods(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """A periodic effect: the highest peak of the Lomb-Scargle periodogram of residuals, over starts.

    The p value is of the highest peak of all; periods from two mean gaps to half of the study. It is the
    larger of two: by permutation of the series, and among series in which each task resembles the one before
    (a first-order autoregression as the data's own, the best period taken out): load that comes and goes
    slowly has high peaks, and no period. A straight line is taken out first: where tasks begin at a few
    moments, a drift has high peaks too.
    """
    title = "Periodic noise"
    good = usable(frame, options.value)
    start = _moments(good)
    if start is None or len(good) < 12 or start.max() <= start.min():
        return nothing(
            "periods",
            title,
            f"Whether noise is periodic cannot be decided with {len(good)} tasks.",
            len(good),
        )
    # A node that comes round regularly is an effect of the node, not a period.
    over = left_over(good, options.value, blocks=False, nodes=True)
    if over.values.std() < 1e-12:
        return nothing("periods", title, f"All {len(good)} tasks took the same time.", len(good))
    straight = over.without(start)
    over = straight if straight.values.std() >= 1e-12 else over
    own = _Periods(over, start - start.min(), options, np.random.default_rng(options.seed))
    p = own.p()
    period = own.covered / own.cycles[own.best]
    amplitude, half = own.amplitude()
    claim = Claim(f"a period of {period:.3g} s", p, {"period": period, "amplitude": amplitude, "share": float(own.own[own.best]),
                  "low": max(0.0, amplitude - half), "high": amplitude + half})  # fmt: skip

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        # A sine and a cosine, and the period that was chosen.
        effect = own.fitted()
        return (pd.Series(effect), fall_of_bic(over.values, effect, 3)) if judge.holds(claim) else None

    result = Analysis("periods", title, own.table(), lambda judge: own.tell(result, judge), len(good), options.alpha, [claim],
                      partial(own.draw, title), dict(claim.facts), explains=explains, could_see=own.could_see, power=options.power)  # fmt: skip
    return result
