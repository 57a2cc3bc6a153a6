"""A daily rhythm: one sine and cosine of 24 h, fitted to means of hours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import brentq
from statsmodels.regression.linear_model import WLS

from ..study.tasks import usable
from .model import fall_of_bic, percent, residuals
from .power import in_report
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["moments", "time_of_day"]

_DAY = 86400.0
_FLAT = 1e-12  # variance that a rhythm leaves, by its own: less is rounding


def moments(good: pd.DataFrame) -> np.ndarray | None:
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
        fit = WLS(self.means, self._matrix, weights=self._weights).fit()
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
    start = moments(good)
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
