"""Whether the time of larger problems varies less, or more.

Glejser's regression: log |deviation from the size's mean| on log size. Its slope is the exponent e of the
coefficient of variation ~ size^e, whatever the noise's distribution, as long as it is the same at all sizes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS
from statsmodels.tools.tools import add_constant

from ..study.tasks import usable
from .model import percent, residuals, span, with_interval
from .power import in_report, reach
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing
from .spread import variation_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["scaling"]


def _is_number_of_replicas(good: pd.DataFrame, levels: pd.Series) -> bool:
    """Whether a factor is how many tasks run at once: no size of a problem."""
    if "replica" not in good or good["replica"].isna().any():
        return False
    most = 1 + good["replica"].astype(float).groupby(levels).max()
    return bool((most == most.index.to_numpy(float)).all())


def _size_column(good: pd.DataFrame, asked: str | None) -> str | None:
    """The column of the problem's size: the requested one, otherwise the only factor whose levels
    are three or more positive numbers.
    """
    names = [asked, f"factors.{asked}", f"metrics.{asked}"] if asked else []
    for name in names:
        if name in good:
            return name
    if asked:
        return None
    numeric = []
    for c in good:
        if c.startswith("factors."):
            x = pd.to_numeric(good[c].astype(str), errors="coerce")
            if x.notna().all() and (x > 0).all() and x.nunique() >= 3 and not _is_number_of_replicas(good, x):
                numeric.append(c)
    return numeric[0] if len(numeric) == 1 else None


class _Scaling:
    """Glejser's regression of the deviations of tasks on their sizes.

    named: the size, without what its column says of its origin.
    """

    def __init__(self, good: pd.DataFrame, size: np.ndarray, column: str, options: Options) -> None:
        self.good, self.size, self.options = good, size, options
        self.named = column.split(".", 1)[-1]
        of_size = good if column.startswith("factors.") else good.assign(**{"factors.size": good[column]})
        blocks = bool((good["block"].value_counts() >= 4).all())
        self.left = residuals(of_size, options.value, blocks=blocks)
        x, y = np.log(size), np.log(np.maximum(np.abs(self.left), 1e-12))
        fit = OLS(y, add_constant(x)).fit(cov_type="HC3", use_t=True)
        self.low, self.high = (float(v) for v in fit.conf_int(options.alpha)[1])
        self.slope, self._error = float(fit.params[1]), float(fit.bse[1])
        self.z = x - x.mean()
        p = max(float(fit.pvalues[1]), self._p_of_order(y - y.mean()))
        facts = {"exponent": self.slope, "low": self.low, "high": self.high}
        self.claim = Claim("variation goes with size", p, facts)
        self.rows = [self._row(s) for s in np.unique(size)]

    def _p_of_order(self, y: np.ndarray) -> float:
        """p by shuffled deviations. y: their logarithms, less the mean."""
        rng = np.random.default_rng(self.options.seed)
        return float(
            permutation_p(
                np.array([abs(self.z @ y)]),
                lambda n: np.abs(permuted(y, None, n, rng) @ self.z)[:, None],
                self.options.permutations,
            )[0]
        )

    def _row(self, s: float) -> dict:
        """The tasks of a size."""
        part = self.good[self.options.value].to_numpy(dtype=float)[self.size == s]
        left = self.left[self.size == s]
        value, low, high, _ = variation_interval(part.mean() * np.exp(left - left.mean()), None, self.options)
        median = float(np.median(part))
        return {"size": s, "n": len(part), "median": median, "CoV": value, "low": low, "high": high}

    def could_see(self, level: float) -> float:
        return reach(level, in_report(self.options.power), len(self.left) - 2) * self._error

    def explains(self, judge: Judge) -> tuple[pd.Series, float] | None:
        """Deviations as they would be at one size: what `variation_factors` sees of it goes with it."""
        if not judge.holds(self.claim):
            return None
        left, n = self.left, len(self.left)
        even = left * np.exp(-self.slope * self.z)
        fall = n * np.log(max(float((left**2).mean()), 1e-300) / max(float((even**2).mean()), 1e-300))
        return pd.Series(left - even), float(fall - 2 * self.slope * self.z.sum() - np.log(n))

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        data = f"{len(self.good)} tasks at {len(self.rows)} sizes ({self.named})"
        ends = ", ".join(
            f"{percent(r['CoV'])} {span(r['low'], r['high'])} at {r['size']:g}"
            for r in (self.rows[0], self.rows[-1])
        )
        exponent, p = with_interval(self.slope, self.low, self.high, (0.0,)), judge.p(self.claim)
        if judge.holds(self.claim):
            how = "less" if self.slope < 0 else "more"
            return (f"The time varies {how} at a larger {self.named} ({p}): coefficient of variation ~ size^"
                    f"{exponent}; {ends} ({data})."), FOUND  # fmt: skip
        return (f"Whether variation goes with size cannot be decided ({p}, {data}): exponent "
                f"{exponent}; one of {result.seen:.2f} could have been seen in about "
                f"{100 * self.options.power:g}% of studies like this; {ends}."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        c, low, high = (
            np.array([r[name] for r in self.rows], dtype=float) for name in ("CoV", "low", "high")
        )
        bars = [np.nan_to_num(c - low), np.nan_to_num(high - c)]
        axes.errorbar([r["size"] for r in self.rows], 100 * c, [100 * b for b in bars], fmt="o-")
        axes.set(
            xscale="log", yscale="log", xlabel=self.named, ylabel="coefficient of variation (%)", title=title
        )


def scaling(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The coefficient of variation by size, and the exponent of its trend."""
    title = "Variation against problem size"
    good = usable(frame, options.value)
    column = _size_column(good, options.size)
    size = (
        pd.to_numeric(good[column].astype(str), errors="coerce").to_numpy(dtype=float)
        if column
        else np.array([])
    )
    if (
        column is None
        or len(np.unique(size)) < 3
        or len(good) < 5 * len(np.unique(size))
        or not (size > 0).all()
    ):
        return nothing("scaling", title, "How variation goes with size cannot be decided: it takes three sizes and more "
                       f"(a factor of numbers, or the option size), five tasks each; here {len(good)} tasks.", len(good))  # fmt: skip
    found = _Scaling(good, size, column, options)
    result = Analysis(
        "scaling",
        title,
        pd.DataFrame(found.rows),
        lambda judge: found.tell(result, judge),
        len(good),
        options.alpha,
        [found.claim],
        partial(found.draw, title),
        dict(found.claim.facts),
        explains=found.explains,
        could_see=found.could_see,
        power=options.power,
    )
    return result
