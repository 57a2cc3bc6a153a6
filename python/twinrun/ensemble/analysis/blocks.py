"""Whether blocks (batches of tasks) differ, beside a line and tasks that resemble the ones before."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import condition_columns, usable
from .deviations import freedom
from .model import Left, Model, at_least, left_over, model_of, percent
from .order import UNKNOWN, blocks_are_guessed, conditions_in_stretches, order_is_known
from .power import STUDIES, Chance, deviations_like, smallest
from .remarks import equal
from .resampling import permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import Null
from .terms import TermTest, terms_tested
from .unequal import groups_differ

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["blocks"]

_OWN = "blocks of tasks that ran together"
_BALANCED = 0.01  # level at which blocks are shown to differ by too little
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
        """The interval of the deviation. Its upper end takes no noise off the mean square.

        Where each block has the same kinds of tasks, which nobody named, tasks of a block differ by more than
        their noise, and less of it is in the means of blocks than they seem to show.
        """
        half = self.options.alpha / 2
        least = float(stats.chi2.ppf(half, self.freedom[0])) / self.freedom[0]
        return (
            self.deviation(stats.f.ppf(1 - half, *self.freedom)),
            float(np.sqrt(self.mean_square / least / self.n0)),
        )

    def p_of_balance(self) -> float:
        """p of blocks that differ by so little, if tasks of a block are independent of each other."""
        return float(stats.f.cdf(self.mean_square / max(self.noise, 1e-300), *self.freedom))

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
        if (p := self.p_of_balance()) <= _BALANCED:
            least = "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
            return (
                f"Whether blocks differ cannot be decided: they differ by less than independent tasks would ({least}), as where each "
                f"block has the same kinds of tasks; if so, name these as a factor ({data}).",
                OPEN,
            )
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
    if not order_is_known(good):
        return nothing(
            "blocks", title, f"Whether blocks differ cannot be decided: {UNKNOWN}.", len(good), _OWN
        )
    if blocks_are_guessed(good) and conditions_in_stretches(good):
        why = "the tasks that are taken as a block did not run together"
        return nothing("blocks", title, f"Whether blocks differ cannot be decided: {why}.", len(good), _OWN)
    if equal(good[options.value].to_numpy(dtype=float)):
        return nothing("blocks", title, f"All {len(good)} tasks took the same time.", len(good))
    over = left_over(good, options.value, blocks=False)
    if over.values.std() < 1e-12:
        why = "what conditions leave of the times is equal"
        return nothing(
            "blocks", title, f"Whether blocks differ cannot be decided: {why} ({len(good)} tasks).", len(good)
        )
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    rng = np.random.default_rng(options.seed)
    tested = terms_tested(model, {"block": model.block_columns}, options.permutations, rng)
    _, p_f, p_permuted = tested["block"]
    test = TermTest(model, model.block_columns)
    mean_square, noise = (float(x[0]) for x in test.variances(test.without(model.y[None] - model.y.mean())))
    sizes = good["block"].value_counts().to_numpy()
    n0 = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / len(model.block_columns)
    codes = np.unique(good["block"].to_numpy(), return_inverse=True)[1]
    line = (np.arange(len(y)) - (len(y) - 1) / 2)[:, None] / len(y)
    beyond = replace(model, matrix=np.hstack([model.matrix, line]))
    own = _Blocks(good, options, model, over, codes, mean_square, noise, n0, rng, beyond)
    p = max(p_f, p_permuted, groups_differ(over.values, codes))
    if p <= options.alpha:
        p = max(p, own.p_beside_a_line())
    if p <= options.alpha:
        p = max(p, min(null.p(over.values, options.permutations) for null in own.nulls))
    low, high = own.ends()
    claim = Claim("blocks differ", p, {"between": own.deviation(), "low": low, "high": high})

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        return own.explained() if judge.holds(claim) else None

    facts = {**claim.facts, "within": own.sigma}
    result = Analysis("blocks", title, own.table(), lambda judge: own.tell(result, judge), len(good), options.alpha, [claim],
                      partial(own.draw, title), facts, explains=explains, could_see=own.could_see, power=options.power)  # fmt: skip
    return result
