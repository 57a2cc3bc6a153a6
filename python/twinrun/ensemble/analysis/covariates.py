"""Whether the time goes with numbers that the user named: room temperature, power, the load of a file system.

The correlation of normal scores of both, what the conditions do taken out. Numbers that drift slowly go with any time
that drifts slowly, without a cause. So the test is by permutation, and among series that resemble the ones before as
the times do (`serial.Null`); the larger p counts. Tests are two-sided. Holm's method corrects over covariates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ..study.covariates import PREFIX
from ..study.tasks import usable
from .model import Left, fall_of_bic, left_over, with_interval
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing
from .serial import LEAST, Null, resemblance, scores, with_before

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

    def p(self, options: Options, rng: np.random.Generator) -> float:
        again, values = self.left.again, self.left.values
        observed = np.abs(self.correlation(values[None]))
        by_order = permutation_p(
            observed,
            lambda m: np.abs(self.correlation(again(permuted(values, None, m, rng))))[:, None],
            options.permutations,
        )[0]
        return max(
            float(by_order), Null(self.n, self._looked_for, again, rng).p(values, options.permutations)
        )

    def effect(self) -> np.ndarray:
        """What it adds to the logarithm of each of its tasks."""
        rest = self.left.values - self.left.values.mean()
        return (rest @ self._own) * self._own


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
    rng = np.random.default_rng(options.seed)
    raw = [c.p(options, rng) for c in known]
    corrected = multipletests(raw, method="holm")[1]
    rows: list[dict[str, Any]] = []
    for c, p, holm in zip(known, raw, corrected, strict=True):
        r = float(c.correlation(c.left.values[None])[0])
        half = stats.norm.ppf(1 - options.alpha / 2) * np.sqrt((1 + r * r / 2) / max(c.n - 3, 1))
        z = float(np.arctanh(np.clip(r, -0.999999, 0.999999)))
        alike = resemblance(c.left.values, c.left.again, _LEVEL, options.permutations, rng)
        ends = (np.nan, np.nan) if alike.shown else (float(np.tanh(z - half)), float(np.tanh(z + half)))
        rows.append(
            {
                "covariate": c.name,
                "n": c.n,
                "correlation": r,
                "low": ends[0],
                "high": ends[1],
                "p": p,
                "p, Holm": float(holm),
            }
        )
        if alike.shown:
            notes.append(
                f"the correlation with {c.name} has no interval: tasks resemble the ones before (correlation {alike.value:.2f})"
            )
    claims = [Claim(row["covariate"], row["p, Holm"], row) for row in rows]

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        found = [(k, c) for k, c in zip(claims, known, strict=True) if judge.holds(k)]
        if not found:
            return None
        # Of several that say the same the one that fits best.
        effects = []
        for _, c in found:
            whole = np.zeros(len(good))
            whole[c.has] = c.effect()
            effects.append(whole)
        rest = left_over(good, options.value, blocks=False).values
        best = max(effects, key=lambda e: fall_of_bic(rest, e, 1))
        return pd.Series(best), fall_of_bic(rest, best, 1)

    def tell(judge: Judge) -> tuple[str, str]:
        data = f"{len(good)} tasks; conditions taken out"
        found = [c for c in claims if judge.holds(c)]
        if found:
            told = "; ".join(f"{c.what}: {_said(c.facts)} ({judge.p(c)})" for c in found)
            return f"The time correlates with covariates: {told} ({data}); that is no proof of cause.", FOUND
        told = "; ".join(f"{c.what}: {_said(c.facts)}" for c in claims)
        return (
            f"No correlation with a covariate is shown: {told} ({data}); a weak one cannot be decided.",
            OPEN,
        )

    first = known[int(np.argmin(raw))]

    def draw(axes: Axes) -> None:
        axes.plot(first.values, first.part[options.value], ".")
        axes.set(xlabel=first.name, ylabel=options.value, title=title)

    return Analysis(
        "covariates",
        title,
        pd.DataFrame(rows),
        tell,
        len(good),
        options.alpha,
        claims,
        draw,
        {},
        notes,
        explains=explains,
    )


def _said(row: dict[str, Any]) -> str:
    return with_interval(row["correlation"], row["low"], row["high"], (0.0,), sign="+")
