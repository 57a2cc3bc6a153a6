"""Whether the time of larger problems varies less, or more.

Glejser's regression: log |deviation from the size's mean| on log size. Its slope is the exponent e of the
coefficient of variation ~ size^e, whatever the noise's distribution, as long as it is the same at all sizes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import statsmodels.api as sm
from matplotlib.axes import Axes

from ..study.tasks import usable
from .model import percent, residuals, span, with_interval
from .power import in_report, reach
from .resampling import permutation_p, permuted
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing
from .spread import variation_interval

__all__ = ["scaling"]


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
            if x.notna().all() and (x > 0).all() and x.nunique() >= 3:
                numeric.append(c)
    return numeric[0] if len(numeric) == 1 else None


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
    frame_of_size = good if column.startswith("factors.") else good.assign(**{"factors.size": good[column]})
    left = residuals(frame_of_size, options.value, blocks=bool((good["block"].value_counts() >= 4).all()))
    x, y = np.log(size), np.log(np.maximum(np.abs(left), 1e-12))
    fit = sm.OLS(y, sm.add_constant(x)).fit(cov_type="HC3", use_t=True)
    low, high = (float(v) for v in fit.conf_int(options.alpha)[1])
    slope, error = float(fit.params[1]), float(fit.bse[1])
    rng = np.random.default_rng(options.seed)
    z = x - x.mean()
    p_permuted = permutation_p(
        np.array([abs(z @ (y - y.mean()))]),
        lambda n: np.abs(permuted(y - y.mean(), None, n, rng) @ z)[:, None],
        options.permutations,
    )[0]
    claim = Claim("variation goes with size", max(float(fit.pvalues[1]), float(p_permuted)), {"exponent": slope, "low": low, "high": high})  # fmt: skip
    rows = []
    for s in np.unique(size):
        part = good[options.value].to_numpy(dtype=float)[size == s]
        own = part.mean() * np.exp(left[size == s] - left[size == s].mean())
        value, l, h, _ = variation_interval(own, None, options)  # noqa: E741
        rows.append(
            {"size": s, "n": len(part), "median": float(np.median(part)), "CoV": value, "low": l, "high": h}
        )
    table = pd.DataFrame(rows)

    def could_see(level: float) -> float:
        return reach(level, in_report(options.power), len(y) - 2) * error

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        """Deviations as they would be at one size: what `variation_factors` sees of it goes with it."""
        if not judge.holds(claim):
            return None
        even = left * np.exp(-slope * z)
        n = len(left)
        fall = n * np.log(max(float((left**2).mean()), 1e-300) / max(float((even**2).mean()), 1e-300))
        return pd.Series(left - even), float(fall - 2 * slope * z.sum() - np.log(n))

    named = column.split(".", 1)[-1]

    def tell(judge: Judge) -> tuple[str, str]:
        data = f"{len(good)} tasks at {len(table)} sizes ({named})"
        ends = ", ".join(
            f"{percent(r['CoV'])} {span(r['low'], r['high'])} at {r['size']:g}" for r in (rows[0], rows[-1])
        )
        if judge.holds(claim):
            how = "less" if slope < 0 else "more"
            return (f"Larger problems vary {how} ({judge.p(claim)}): coefficient of variation ~ size^"
                    f"{with_interval(slope, low, high, (0.0,))}; {ends} ({data})."), FOUND  # fmt: skip
        return (f"Whether variation goes with size cannot be decided ({judge.p(claim)}, {data}): exponent "
                f"{with_interval(slope, low, high, (0.0,))}; one of {result.seen:.2f} could have been seen in about "
                f"{100 * options.power:g}% of studies like this; {ends}."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        c = table["CoV"].to_numpy()
        bars = [np.nan_to_num(c - table["low"].to_numpy()), np.nan_to_num(table["high"].to_numpy() - c)]
        axes.errorbar(table["size"], 100 * c, [100 * b for b in bars], fmt="o-")
        axes.set(xscale="log", yscale="log", xlabel=named, ylabel="coefficient of variation (%)", title=title)

    result = Analysis("scaling", title, table, tell, len(good), options.alpha, [claim], draw, dict(claim.facts),
                      explains=explains, could_see=could_see, power=options.power)  # fmt: skip
    return result
