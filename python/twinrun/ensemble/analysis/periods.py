"""Something that comes back: the highest peak of a periodogram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import signal, stats

from ..study.tasks import usable
from .deviations import freedom
from .model import Left, fall_of_bic, left_over, percent
from .power import STUDIES, deviations_like, narrowed, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .serial import Null, with_before
from .time_of_day import moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["periods"]


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
    start = moments(good)
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
