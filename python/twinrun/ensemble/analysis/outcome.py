"""Whether slow tasks also computed other results.

A task's `results` hold a text, a truth value or a number for each name. Tasks whose results are not those of
most tasks of their condition are compared in time with the others (Mann-Whitney). Where results were compared
with a reference's (`results.verdict`), the others are those that differ from it, whatever their condition.
Where some tasks left no results, or could not be compared, nothing is said of all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import condition_columns, usable
from .compare import hodges_lehmann
from .model import at_least, cells_of, percent, residuals, span
from .result import DESCRIBED, FOUND, OPEN, Analysis, Claim, Judge, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["outcome"]


def _parted(differing: pd.DataFrame) -> str:
    """' (first at step 20, by at most 0.001)', as far as known."""

    def known(column: str) -> pd.Series:
        numbers = differing[column] if column in differing else pd.Series(np.nan, differing.index)
        return pd.to_numeric(numbers, errors="coerce").dropna()

    said = []
    if len(steps := known("results.first_step")):
        said.append(f"first at step {steps.min():.0f}")
    if len(sizes := known("results.max_abs_diff")):
        # A difference by NaN or by infinity has no number, and so has one that only digests show.
        rest = len(differing) - len(sizes)
        how = f" where that is known: in {rest} it is not, or not finite" if rest else ""
        said.append(f"by at most {sizes.max():.3g}{how}")
    return f" ({', '.join(said)})" if said else ""


def _have_other_results(good: pd.DataFrame, columns: list[str], compared: bool) -> np.ndarray:
    """Which tasks: those that differ from the reference, otherwise from most of their condition."""
    if compared:
        return (good["results.verdict"] == "different").to_numpy()
    words = cells_of(good, columns)
    usual = words.groupby(cells_of(good, condition_columns(good))).transform(
        lambda s: s.value_counts().index[0]
    )
    return (words != usual).to_numpy()


def _by_level(good: pd.DataFrame, other: np.ndarray) -> list[str]:
    """How many tasks of each level have other results, in words."""
    said = []
    for f in condition_columns(good):
        of_level = pd.Series(other).groupby(good[f].map(str).to_numpy()).agg(["sum", "size"])
        said.append(
            f"other results by {f.removeprefix('factors.')}: "
            + ", ".join(f"{k} {a} of {b}" for k, a, b in of_level.itertuples())
        )
    return said


def _all_the_same(asked: int, than: str, all_known: bool, options: Options) -> str:
    """What is said where no task has other results; without a full stop. asked: how many were compared."""
    most = 1 - options.alpha ** (1 / asked)
    where = f"as {than}" if than else "within their conditions"
    if not all_known:
        return f"{asked} tasks computed the same {where}; whether all do cannot be decided"
    what = f"All {asked} tasks that were compared" if than else f"All {asked} tasks"
    return f"{what} computed the same {where}; at {percent(options.confidence)} confidence at most {at_least(most)} of such tasks do not"  # fmt: skip


def _differ_in_time(left: np.ndarray, other: np.ndarray, options: Options) -> Claim:
    """Of the tasks with other results; p is 1 where either group is too small to say."""
    what, count = "tasks with other results differ in time", int(other.sum())
    if count < 2 or len(other) - count < 2:
        return Claim(what, 1.0, {"tasks": count})
    shift, low, high = hodges_lehmann(left[~other], left[other], options.confidence)
    return Claim(
        what,
        float(stats.mannwhitneyu(left[other], left[~other]).pvalue),
        {
            "tasks": count,
            "effect": float(np.expm1(shift)),
            "low": float(np.expm1(low)),
            "high": float(np.expm1(high)),
        },
    )


def _sentence(first: str, claim: Claim, unknown: str, judge: Judge) -> tuple[str, str]:
    """What is said, and its state. first: how many tasks; unknown: what was not compared."""
    if judge.holds(claim):
        effect = claim.facts["effect"]
        return (f"{first}, and took {percent(abs(effect))} {'longer' if effect > 0 else 'less'} "
                f"{span(claim.facts['low'], claim.facts['high'])} ({judge.p(claim)}){unknown}."), FOUND  # fmt: skip
    return f"{first}; whether they differ in time cannot be decided ({judge.p(claim)}){unknown}.", OPEN


def outcome(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Which tasks computed other results, and whether they are slower or faster."""
    title = "Results beside time"
    good = usable(frame, options.value)
    columns = [c for c in good if c.startswith("results.")]
    every = len(good)
    good = good[good[columns].notna().any(axis=1)].reset_index(drop=True) if columns else good.iloc[:0]
    missing = every - len(good)
    compared = {"results.verdict", "results.reference"} <= set(columns)
    undecided = references = 0
    than = ""
    if compared:
        told = good["results.verdict"].isin(["reference", "same", "different"])
        undecided = int((~told).sum())
        good = good[told].reset_index(drop=True)
        references = int((good["results.verdict"] == "reference").sum())
        own = good["results.reference"].map(lambda of: isinstance(of, str)).any()
        than = "the reference" if own else "the first task of their seed"
    n = len(good) - references
    unknown = "".join(
        f"; {words}"
        for count, words in (
            (missing, f"{missing} more ended well and left no results"),
            (undecided, f"of {undecided} more the results could not be compared"),
        )
        if count
    )
    if n < (1 if compared else 2):
        why = "no task was compared with another" if len(good) or undecided else "the study recorded none"
        return nothing(
            "outcome",
            title,
            f"Whether results are the same is unknown: {why}{unknown if compared else ''}.",
            n,
        )
    other = _have_other_results(good, columns, compared)
    count = int(other.sum())
    notes = _by_level(good, other) if compared and count else []
    table = pd.DataFrame({"task": good["task"], options.value: good[options.value], "other results": other, **{c: good[c] for c in columns}})  # fmt: skip
    table = table[other].reset_index(drop=True)
    if count == 0:
        text = f"{_all_the_same(n, than, not unknown, options)}{unknown}."
        state = OPEN if unknown else DESCRIBED
        takes = {"takes": "results of all tasks that can be compared"} if unknown else {}
        return Analysis(
            "outcome", title, table, lambda _: (text, state), n, options.alpha, facts=takes, notes=notes
        )
    left = residuals(good, options.value, blocks=False)
    claim = _differ_in_time(left, other, options)
    parted = _parted(good[other]) if compared else ""
    first = f"{count} of {n} tasks computed something else than {than or 'most of their condition'}{parted}"

    def draw(axes: Axes) -> None:
        axes.ecdf(100 * np.expm1(left[~other]), label="same results")
        axes.ecdf(100 * np.expm1(left[other]), label="other results")
        axes.legend()
        axes.set(xlabel="against all (%)", ylabel="share of tasks", title=title)

    return Analysis("outcome", title, table, partial(_sentence, first, claim, unknown), n, options.alpha, [claim], draw,
                    dict(claim.facts), notes)  # fmt: skip
