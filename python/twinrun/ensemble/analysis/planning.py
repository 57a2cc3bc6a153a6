"""How many repetitions an effect of x% needs.

The power of a two-sample t test of logarithms, at the measured deviation within conditions and blocks, and at
the upper end of that deviation's interval: a plan from the estimate alone is too optimistic half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import special

from ..study.tasks import condition_columns, usable
from . import deviations
from .assumptions import checked
from .model import left_over, model_of, percent
from .power import of_t_test
from .remarks import equal
from .result import DESCRIBED, OPEN, Analysis, Judge, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["deviation", "planning", "repetitions"]

_EFFECTS = (0.01, 0.02, 0.05, 0.1, 0.2)
_ROUNDING = 1e-12  # of logarithms: a smaller deviation is none
_MOST = 10**6


def repetitions(effect: float, sigma: float, alpha: float, power: float) -> int:
    """Tasks of a condition that find a ratio of 1 + effect between two conditions with this power."""
    size = float(np.log1p(effect)) / max(sigma, 1e-12)

    def enough(tasks: int) -> bool:
        return of_t_test(size * math.sqrt(tasks / 2), alpha, 2 * tasks - 2) >= power

    # As many as it takes where the deviation is known; the test takes a few more.
    known = 2 * (float(special.ndtri(1 - alpha / 2) + special.ndtri(power)) / max(size, 1e-9)) ** 2
    low, high = _around(enough, int(min(max(known, 2), _MOST)))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def _around(enough: Callable[[int], bool], start: int) -> tuple[int, int]:
    """The fewest that are enough lie between these two; the last may be _MOST, whatever it is."""
    step = 1
    if enough(start):
        low, high = 2, start
        while low < high:
            below = max(2, high - step)
            if not enough(below):
                return below + 1, high
            high, step = below, 2 * step
        return low, high
    low = start
    while low < _MOST:
        high = min(low + step, _MOST)
        if enough(high):
            return low + 1, high
        low, step = high, 2 * step
    return _MOST, _MOST


def deviation(good: pd.DataFrame, options: Options) -> tuple[float, float, float, int]:
    """The standard deviation of logarithms within conditions and blocks, its interval, its degrees of
    freedom.
    """
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    fit = model.fit()
    sigma, freedom, left = float(np.sqrt(fit.mse_resid)), model.freedom, np.asarray(fit.resid)
    own = deviations.freedom(left, freedom)
    may = deviations.unseen(len(y), len(y), options.confidence)
    low, high = deviations.ends(sigma, own, may, options.confidence)
    return sigma, low, high, freedom


def planning(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Repetitions for effects of 1, 2, 5, 10, 20%, and the smallest effect that this study could find."""
    title = "How many repetitions"
    good = usable(frame, options.value)
    if len(good) < 4:
        return nothing(
            "planning",
            title,
            f"How many repetitions are needed cannot be decided from {len(good)} tasks.",
            len(good),
        )
    if equal(good[options.value].to_numpy(dtype=float)):
        return nothing("planning", title, f"All {len(good)} tasks took the same time.", len(good))
    sigma, low, high, freedom = deviation(good, options)
    if sigma < _ROUNDING:
        return nothing("planning", title, f"How many repetitions are needed cannot be decided: all tasks of a condition and block took equal "
                       f"times ({len(good)} tasks); it takes times that are recorded in finer steps.", len(good))  # fmt: skip
    assumed = checked(left_over(good, options.value, blocks=False), None, options)
    if assumed.fails:
        low = high = math.nan
    rows = [
        {"effect": e, "repetitions": repetitions(e, sigma, options.alpha, options.power),
         "to be safe": None if assumed.fails else repetitions(e, high, options.alpha, options.power)}
        for e in sorted({*_EFFECTS, options.matters})
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    goal = next(r for r in rows if r["effect"] == options.matters)

    def tell(_: Judge) -> tuple[str, str]:
        if assumed.fails:
            return (f"To see a difference of {percent(options.matters)} between two conditions in {percent(options.power)} of studies would take "
                    f"{goal['repetitions']} repetitions of each, if later tasks are as these and independent; how many to be safe cannot be "
                    f"given: {assumed.fails} ({len(good)} tasks)."), OPEN  # fmt: skip
        return (
            f"To see a difference of {percent(options.matters)} between two conditions in {percent(options.power)} of studies takes "
            f"{goal['repetitions']} repetitions of each, {goal['to be safe']} to be safe, at a deviation within conditions of "
            f"{percent(sigma)} [{percent(low)}, {percent(high)}] ({len(good)} tasks; {assumed.words}).",
            DESCRIBED if freedom >= 8 else OPEN,
        )

    def draw(axes: Axes) -> None:
        axes.plot(100 * table["effect"], table["repetitions"], "o-", label="at the measured deviation")
        if not assumed.fails:
            axes.plot(100 * table["effect"], table["to be safe"], "s--", label="at its upper end")
        axes.set(
            xscale="log", yscale="log", xlabel="effect (%)", ylabel="repetitions a condition", title=title
        )
        axes.legend()

    facts = {"deviation": {"value": sigma, "low": low, "high": high}, "rows": rows}
    return Analysis("planning", title, table, tell, len(good), options.alpha, (), draw, facts)
