"""Whether slow tasks also computed other results.

A task's `results` hold a text, a truth value or a number for each name. Tasks whose results are not those of
most tasks of their condition are compared in time with the others (Mann-Whitney). Where results were compared
with a reference's (`results.verdict`), the others are those that differ from it, whatever their condition.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from ..study.tasks import condition_columns, usable
from .compare import hodges_lehmann
from .model import cells_of, percent, residuals, span
from .result import DESCRIBED, FOUND, OPEN, Analysis, Claim, Judge, Options, nothing

__all__ = ["outcome"]


def _parted(differing: pd.DataFrame) -> str:
    """' (first at step 20, by at most 0.001)', as far as known."""
    said = []
    for column, form in (
        ("results.first_step", "first at step {:.0f}"),
        ("results.max_abs_diff", "by at most {:.3g}"),
    ):
        known = pd.to_numeric(differing[column], errors="coerce").dropna() if column in differing else ()
        if len(known):
            said.append(form.format(min(known) if "step" in column else max(known)))
    return f" ({', '.join(said)})" if said else ""


def outcome(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Which tasks computed other results, and whether they are slower or faster."""
    title = "Results beside time"
    good = usable(frame, options.value)
    columns = [c for c in good if c.startswith("results.")]
    good = good[good[columns].notna().any(axis=1)].reset_index(drop=True) if columns else good.iloc[:0]
    compared = {"results.verdict", "results.reference"} <= set(columns)
    undecided = 0
    if compared:
        told = good["results.verdict"].isin(["reference", "same", "different"])
        undecided = int((~told & good["results.verdict"].notna()).sum())
        good = good[told].reset_index(drop=True)
    n = len(good)
    if n < 2:
        return nothing(
            "outcome", title, "Whether results are the same is unknown: the study recorded none.", n
        )
    factors = condition_columns(good)
    if compared:
        other = (good["results.verdict"] == "different").to_numpy()
    else:
        words = cells_of(good, columns)
        usual = words.groupby(cells_of(good, factors)).transform(lambda s: s.value_counts().index[0])
        other = (words != usual).to_numpy()
    than = "the first task of their seed" if compared else "most of their condition"
    unknown = f"; of {undecided} more the results could not be compared" if undecided else ""
    notes = []
    if compared and other.any():
        for f in factors:
            of_level = pd.Series(other).groupby(good[f].map(str).to_numpy()).agg(["sum", "size"])
            notes.append(
                f"other results by {f.removeprefix('factors.')}: "
                + ", ".join(f"{k} {a} of {b}" for k, a, b in of_level.itertuples())
            )
    count = int(other.sum())
    table = pd.DataFrame({"task": good["task"], options.value: good[options.value], "other results": other, **{c: good[c] for c in columns}})  # fmt: skip
    table = table[other].reset_index(drop=True)
    if count == 0:
        asked = n - int((good["results.verdict"] == "reference").sum()) if compared else n
        most = 1 - options.alpha ** (1 / max(asked, 1))
        where = "as the first task of their seed" if compared else "within their conditions"
        text = f"All {n} tasks computed the same {where}; at {percent(options.confidence)} confidence at most {percent(most)} of such tasks do not{unknown}."  # fmt: skip
        return Analysis("outcome", title, table, lambda _: (text, DESCRIBED), n, options.alpha, notes=notes)
    left = residuals(good, options.value, blocks=False)
    claim = Claim("tasks with other results differ in time", 1.0, {"tasks": count})
    if count >= 2 and n - count >= 2:
        shift = hodges_lehmann(left[~other], left[other], options.confidence)
        claim = Claim(claim.what, float(stats.mannwhitneyu(left[other], left[~other]).pvalue),
                      {"tasks": count, "effect": float(np.expm1(shift[0])), "low": float(np.expm1(shift[1])),
                       "high": float(np.expm1(shift[2]))})  # fmt: skip

    parted = _parted(good[other]) if compared else ""

    def tell(judge: Judge) -> tuple[str, str]:
        first = f"{count} of {n} tasks computed something else than {than}{parted}"
        if judge.holds(claim):
            effect = claim.facts["effect"]
            return (f"{first}, and took {percent(abs(effect))} {'longer' if effect > 0 else 'less'} "
                    f"{span(claim.facts['low'], claim.facts['high'])} ({judge.p(claim)}){unknown}."), FOUND  # fmt: skip
        return f"{first}; whether they differ in time cannot be decided ({judge.p(claim)}){unknown}.", OPEN

    def draw(axes: Axes) -> None:
        axes.ecdf(100 * np.expm1(left[~other]), label="same results")
        axes.ecdf(100 * np.expm1(left[other]), label="other results")
        axes.legend()
        axes.set(xlabel="against all (%)", ylabel="share of tasks", title=title)

    return Analysis("outcome", title, table, tell, n, options.alpha, [claim], draw, dict(claim.facts), notes)
