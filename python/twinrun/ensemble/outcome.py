"""Did the slow task also compute something else? Results beside time.

A task's `results` are what the study says of them: text, a truth value or a number for each name. Tasks whose results are not those
of most tasks of their condition are compared in time with the others (Mann-Whitney).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from .compare import hodges_lehmann
from .model import cells_of, percent, residuals, span
from .result import FOUND, OPEN, TOLD, Analysis, Claim, Judge, Options, nothing
from .tasks import condition_columns, usable

__all__ = ["outcome"]


def outcome(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Which tasks computed something else, and whether they are slower or faster."""
    title = "Results beside time"
    good = usable(frame, options.value)
    columns = [c for c in good if c.startswith("results.")]
    good = good[good[columns].notna().any(axis=1)].reset_index(drop=True) if columns else good.iloc[:0]
    n = len(good)
    if n < 2:
        return nothing(
            "outcome", title, "Whether results are the same cannot be told: the study recorded none.", n
        )
    words = cells_of(good, columns)
    factors = condition_columns(good)
    cells = cells_of(good, factors)
    usual = words.groupby(cells).transform(lambda s: s.value_counts().index[0])
    other = (words != usual).to_numpy()
    count = int(other.sum())
    table = pd.DataFrame({"task": good["task"], options.value: good[options.value], "other results": other, **{c: good[c] for c in columns}})  # fmt: skip
    table = table[other].reset_index(drop=True)
    if count == 0:
        most = 1 - options.alpha ** (1 / n)
        text = f"All {n} tasks computed the same within their conditions; at {percent(options.confidence)} confidence at most {percent(most)} of such tasks do not."  # fmt: skip
        return Analysis("outcome", title, table, lambda _: (text, TOLD), n, options.alpha)
    left = residuals(good, options.value, blocks=False)
    claim = Claim("tasks with other results differ in time", 1.0, {"tasks": count})
    if count >= 2 and n - count >= 2:
        shift = hodges_lehmann(left[~other], left[other], options.confidence)
        claim = Claim(claim.what, float(stats.mannwhitneyu(left[other], left[~other]).pvalue),
                      {"tasks": count, "effect": float(np.expm1(shift[0])), "low": float(np.expm1(shift[1])),
                       "high": float(np.expm1(shift[2]))})  # fmt: skip

    def tell(judge: Judge) -> tuple[str, str]:
        first = f"{count} of {n} tasks computed something else than most of their condition"
        if judge.holds(claim):
            effect = claim.facts["effect"]
            return (f"{first}, and took {percent(abs(effect))} {'longer' if effect > 0 else 'less'} "
                    f"{span(claim.facts['low'], claim.facts['high'])} ({judge.p(claim)})."), FOUND  # fmt: skip
        return f"{first}; whether they differ in time cannot be decided ({judge.p(claim)}).", OPEN

    def draw(axes: Axes) -> None:
        axes.ecdf(100 * np.expm1(left[~other]), label="same results")
        axes.ecdf(100 * np.expm1(left[other]), label="other results")
        axes.legend()
        axes.set(xlabel="against all (%)", ylabel="share of tasks", title=title)

    return Analysis("outcome", title, table, tell, n, options.alpha, [claim], draw, dict(claim.facts))
