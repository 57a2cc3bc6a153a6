"""Whether the time goes with numbers that the user named: room temperature, power, the load of a file system.

The correlation of normal scores of both, what the conditions do taken out. Numbers that drift
slowly go with any time that drifts slowly, without a cause. So the test is by permutation, and
among series that resemble the ones before as the times do (`serial.Null`); the larger p counts.
Tests are two-sided. Holm's method corrects over covariates.

What could have been seen is simulated: the covariate's effect is planted in shuffled times, or in
series that resemble the ones before as the times are shown to.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from ..study.covariates import PREFIX
from ..study.tasks import usable
from .correction import holm
from .model import Left, fall_of_bic, left_over, with_interval
from .power import STUDIES, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing
from .serial import (
    LARGEST,
    LEAST,
    LIKELY,
    Null,
    Resemblance,
    autoregression,
    resemblance,
    scores,
    with_before,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["covariates"]

_LEVEL = 0.05


class _Covariate:
    """One covariate, of the tasks that have it."""

    def __init__(self, name: str, good: pd.DataFrame, options: Options) -> None:
        self.name = name.removeprefix(PREFIX)
        values = pd.to_numeric(good[name], errors="coerce").to_numpy(dtype=float)
        self.has = np.isfinite(values)
        self.part = good[self.has].reset_index(drop=True)
        self.values = values[self.has]
        self.n = len(self.part)
        self.known = self.n >= LEAST and len(np.unique(self.values)) >= 3
        if not self.known:
            return
        self.left: Left = left_over(self.part, options.value, blocks=False)
        own = self.left.again(scores(self.values[None]))[0]
        self._own = (own - own.mean()) / max(float(np.linalg.norm(own - own.mean())), 1e-300)

    def correlation(self, rows: np.ndarray) -> np.ndarray:
        z = scores(rows)
        z = z - z.mean(axis=1, keepdims=True)
        return (z @ self._own) / np.maximum(np.linalg.norm(z, axis=1), 1e-300)

    def _looked_for(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = rows - rows.mean(axis=1, keepdims=True)
        rest = rows - (rows @ self._own)[:, None] * self._own[None]
        return np.abs(self.correlation(rows)), with_before(rest)

    def _shuffled(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return np.abs(self.correlation(self.left.again(permuted(self.left.values, None, count, rng))))

    def p(self, options: Options, rng: np.random.Generator) -> float:
        values = self.left.values
        by_order = permutation_p(
            np.abs(self.correlation(values[None])),
            lambda m: self._shuffled(m, rng)[:, None],
            options.permutations,
        )[0]
        null = Null(self.n, self._looked_for, self.left.again, rng)
        return max(float(by_order), null.p(values, options.permutations))

    def could_see(self, level: float, alike: Resemblance, options: Options) -> float:
        """The smallest correlation that is found at this level in `power` of studies like this;
        infinite where none is.
        """
        rng = np.random.default_rng(options.seed)
        null = Null(self.n, self._looked_for, self.left.again, rng)
        measured = self._looked_for(self.left.values[None])[1]
        # Studies whose tasks resemble each other more than was likely find less: so the largest
        # where it is shown.
        much = float(null.coefficients(measured, LARGEST if alike.shown else LIKELY)[0])
        if much > 0:
            series = autoregression(much, STUDIES, self.n, rng)
        else:
            series = permuted(self.left.values, None, STUDIES, rng)
        series = self.left.again(series)
        series = series - series.mean(axis=1, keepdims=True)
        series /= np.maximum(np.linalg.norm(series, axis=1, keepdims=True), 1e-300)
        # p has steps of 1 / (draws + 1), and each study draws anew: its limit is an order statistic
        # of the draws.
        draws = options.permutations
        beyond = int(level * (draws + 1) + 1e-9)
        if beyond < 1:
            return float("inf")
        limit = np.quantile(self._shuffled(1999, rng), 1 - rng.beta(beyond, draws + 1 - beyond, STUDIES))
        # Another study has other values of the covariate: both deviations are known to 1 / sqrt(2
        # n) only.
        times = np.exp(rng.standard_normal(STUDIES) / np.sqrt(self.n))[:, None]

        def found(effect: float) -> np.ndarray:
            """effect: its deviation, by that of the times without it."""
            reached, before = self._looked_for(series + effect * times * self._own)
            return (reached >= limit) & (reached >= null.limits(before, beyond / (draws + 1)))

        effect = smallest(found, options.power, 0.5)
        return effect / np.sqrt(1 + effect**2) if np.isfinite(effect) else float("inf")

    def effect(self) -> np.ndarray:
        """Its effect on the logarithm of each of its tasks."""
        rest = self.left.values - self.left.values.mean()
        return (rest @ self._own) * self._own


class _Table:
    """The correlations with all covariates that are known well enough.

    resemblances: how much the times of each one's tasks resemble the ones before.
    """

    def __init__(self, known: list[_Covariate], options: Options) -> None:
        rng = np.random.default_rng(options.seed)
        self.known, self.options = known, options
        self.raw = [c.p(options, rng) for c in known]
        self.resemblances = [
            resemblance(c.left.values, c.left.again, _LEVEL, options.permutations, rng) for c in known
        ]
        corrected = holm(self.raw)
        self.rows = [
            self._row(c, p, float(adjusted), alike)
            for c, p, adjusted, alike in zip(known, self.raw, corrected, self.resemblances, strict=True)
        ]
        self.claims = [Claim(row["covariate"], row["p, Holm"], row) for row in self.rows]

    def _row(self, c: _Covariate, p: float, adjusted: float, alike: Resemblance) -> dict[str, Any]:
        r = float(c.correlation(c.left.values[None])[0])
        half = stats.norm.ppf(1 - self.options.alpha / 2) * np.sqrt((1 + r * r / 2) / max(c.n - 3, 1))
        z = float(np.arctanh(np.clip(r, -0.999999, 0.999999)))
        low, high = (np.nan, np.nan) if alike.shown else (float(np.tanh(z - half)), float(np.tanh(z + half)))
        return {
            "covariate": c.name,
            "n": c.n,
            "correlation": r,
            "low": low,
            "high": high,
            "p": p,
            "p, Holm": adjusted,
        }

    @property
    def notes(self) -> list[str]:
        return [
            f"the correlation with {c.name} has no interval: tasks resemble the ones before (correlation {alike.value:.2f})"
            for c, alike in zip(self.known, self.resemblances, strict=True)
            if alike.shown
        ]

    def could_see(self, level: float) -> float:
        """With each of the covariates; Holm corrects for them."""
        each = level / len(self.known)
        return max(
            c.could_see(each, alike, self.options)
            for c, alike in zip(self.known, self.resemblances, strict=True)
        )

    def explains(self, good: pd.DataFrame, judge: Judge) -> tuple[pd.Series, float] | None:
        """The effect of the one that fits best, of several that say the same."""
        effects = []
        for claim, c in zip(self.claims, self.known, strict=True):
            if judge.holds(claim):
                whole = np.zeros(len(good))
                whole[c.has] = c.effect()
                effects.append(whole)
        if not effects:
            return None
        rest = left_over(good, self.options.value, blocks=False).values
        best = max(effects, key=lambda e: fall_of_bic(rest, e, 1))
        return pd.Series(best), fall_of_bic(rest, best, 1)

    def _said(self, row: dict[str, Any]) -> str:
        """A covariate's correlation; of how many tasks, where covariates differ in that."""
        said = f"{row['covariate']}: {with_interval(row['correlation'], row['low'], row['high'], (0.0,), sign='+')}"
        return said if len({c.n for c in self.known}) == 1 else f"{said} of {row['n']} tasks"

    def tell(self, tasks: int, result: Analysis, judge: Judge) -> tuple[str, str]:
        """tasks: of the study, with a value or without."""
        with_value = [c.n for c in self.known]
        each = (
            f"{min(with_value)} to {max(with_value)}"
            if min(with_value) < max(with_value)
            else str(with_value[0])
        )
        which = f"{tasks} tasks" if min(with_value) == tasks else f"{each} of {tasks} tasks have a value"
        data = f"{which}; conditions taken out"
        found = [c for c in self.claims if judge.holds(c)]
        if found:
            told = "; ".join(f"{self._said(c.facts)} ({judge.p(c)})" for c in found)
            return f"The time correlates with covariates: {told} ({data}); that is no proof of cause.", FOUND
        told = "; ".join(self._said(c.facts) for c in self.claims)
        seen = result.seen
        if seen is None or not np.isfinite(seen):
            return (
                f"No correlation with a covariate is shown: {told} ({data}): none is sure to be seen in a study like this.",
                OPEN,
            )
        return (f"No correlation with a covariate is shown: {told} ({data}): one of {seen:.2f} could have been seen in "
                f"{100 * self.options.power:g}% of studies like this, a weaker one cannot be decided."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        """The times over the covariate of the smallest p."""
        first = self.known[int(np.argmin(self.raw))]
        axes.plot(first.values, first.part[self.options.value], ".")
        axes.set(xlabel=first.name, ylabel=self.options.value, title=title)


def covariates(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The correlation of the time with each column `covariates.NAME`."""
    title = "Correlation with covariates"
    good = usable(frame, options.value)
    every = [_Covariate(c, good, options) for c in good if str(c).startswith(PREFIX)]
    known = [c for c in every if c.known and c.left.values.std() > 1e-12]
    notes = [
        f"{c.name} has fewer than {LEAST} tasks with a value, or fewer than 3 values"
        for c in every
        if not c.known
    ]
    if not known:
        return nothing("covariates", title, f"Whether the time goes with a covariate cannot be decided: none has {LEAST} tasks and three "
                       f"values ({len(good)} tasks).", len(good))  # fmt: skip
    table = _Table(known, options)
    result = Analysis(
        "covariates",
        title,
        pd.DataFrame(table.rows),
        lambda judge: table.tell(len(good), result, judge),
        max(c.n for c in known),
        options.alpha,
        table.claims,
        partial(table.draw, title),
        {},
        notes + table.notes,
        explains=partial(table.explains, good),
        could_see=table.could_see,
        power=options.power,
    )
    return result
