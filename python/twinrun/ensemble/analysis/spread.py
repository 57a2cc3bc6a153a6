"""The spread of identical tasks, and its cost: range, quantiles, coefficient of variation; makespan,
core-hours.

The range has no bootstrap interval (an extreme cannot be resampled beyond itself) and grows with
the number of tasks. What needs no assumption is the share of all such tasks that lies between the
fastest and the slowest (Wilks, 1941). Quantiles have distribution-free intervals. The coefficient
of variation has the interval of `deviations`; where there are ten blocks or more, they are the
units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import condition_columns, statuses, usable
from . import deviations
from .assumptions import Assumptions, checked
from .model import left_over, percent, span
from .remarks import equal
from .resampling import BLOCKS
from .result import DESCRIBED, FOUND, NONE, OPEN, Analysis, Judge, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["core_hours", "makespan", "quantile_interval", "spread", "variation_interval"]

_ROUNDING = 1e-15  # a smaller coefficient of variation is rounding
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def quantile_interval(x: np.ndarray, q: float, confidence: float) -> tuple[float, float]:
    """The distribution-free interval of a quantile: its true coverage is at least `confidence`, or an end is
    infinite. It is that of `scipy.stats.quantile_test`.
    """
    # Which makes a distribution, and its documents, each time.
    ranked, share = np.sort(x), (1 - confidence) / 2
    low = int(stats.binom.ppf(share, len(x), q)) - 1
    high = int(stats.binom.isf(share, len(x), q))
    return (
        float(ranked[low]) if low >= 0 else -math.inf,
        float(ranked[high]) if high < len(x) else math.inf,
    )


def variation_interval(
    x: np.ndarray, blocks: np.ndarray | None, options: Options
) -> tuple[float, float, float, str]:
    """(coefficient of variation, low, high, what is taken as independent)."""
    value = float(np.std(x, ddof=1) / np.mean(x)) if len(x) > 1 else math.nan
    together = blocks if blocks is not None and BLOCKS <= len(np.unique(blocks)) < len(x) else None
    units = "tasks" if together is None else "blocks"
    if len(x) < deviations.LEAST or value < _ROUNDING:
        return value, math.nan, math.nan, units
    if together is None:
        own, count = deviations.freedom(x, len(x) - 1), len(x)
    else:
        own, count = deviations.freedom_of_blocks(x, together), len(np.unique(together))
    may = deviations.unseen(len(x), count, options.confidence)
    low, high = deviations.ends(value, own, may, options.confidence)
    return value, low, high, units


def _row(name: str, x: np.ndarray, blocks: np.ndarray | None, options: Options, assumed: Assumptions) -> dict:
    row = {
        "tasks": name,
        "n": len(x),
        "fastest": x.min(),
        "slowest": x.max(),
        "(max-min)/min": x.max() / x.min() - 1,
    }
    for q in _QUANTILES:
        row[f"q{100 * q:g}"] = float(np.quantile(x, q))
        known = len(x) > 1 and not assumed.resemblance.shown
        low, high = quantile_interval(x, q, options.confidence) if known else (-math.inf, math.inf)
        row[f"q{100 * q:g} low"] = low if math.isfinite(low) else math.nan
        row[f"q{100 * q:g} high"] = high if math.isfinite(high) else math.nan
    row["CoV"], row["CoV low"], row["CoV high"], row["independent"] = variation_interval(x, blocks, options)
    if assumed.fails:
        row["CoV low"] = row["CoV high"] = math.nan
    return row  # fmt: skip


def _rows(
    good: pd.DataFrame, within: np.ndarray, blocks: np.ndarray | None, options: Options, assumed: Assumptions
) -> list[dict]:
    """The row of all tasks; with conditions that of `within`, what they do taken out, and one of each."""
    rows = [_row("all", good[options.value].to_numpy(dtype=float), blocks, options, assumed)]
    factors = condition_columns(good)
    if not factors:
        return rows
    rows.append(_row("conditions taken out", within, blocks, options, assumed))
    for levels, part in good.groupby([good[f].map(str) for f in factors], sort=True):
        name = ", ".join(f"{f.removeprefix('factors.')}={v}" for f, v in zip(factors, levels, strict=True))
        x = part[options.value].to_numpy(dtype=float)
        rows.append(_row(name, x, part["block"].to_numpy(), options, assumed))
    return rows


@dataclass(frozen=True)
class _Spread:
    """What is known of the spread.

    x: the times; within: what their conditions do taken out; rows: of the table; other: how many attempts
    are in no time, by status.
    """

    x: np.ndarray
    within: np.ndarray
    rows: list[dict]
    assumed: Assumptions
    other: dict[str, int]
    options: Options

    @property
    def conditions(self) -> bool:
        return len(self.rows) > 1

    @property
    def one(self) -> dict:
        """The row that the sentence is of."""
        return self.rows[1 if self.conditions else 0]

    @property
    def inside(self) -> float:
        """The share of all such tasks that lies between the fastest and the slowest, at least."""
        return float(stats.beta.ppf(1 - self.options.confidence, len(self.x) - 1, 2))

    @property
    def why(self) -> str | None:
        """Why the coefficient of variation has no interval; None: it has one."""
        if math.isfinite(float(self.one["CoV low"])) and math.isfinite(float(self.one["CoV high"])):
            return None
        return self.assumed.fails or "too few tasks"

    def facts(self) -> dict:
        one, assumed = self.one, self.assumed
        return {
            "cov": {
                "value": float(one["CoV"]),
                "low": float(one["CoV low"]),
                "high": float(one["CoV high"]),
                "independent": one["independent"],
            },
            "resemblance": {
                "value": assumed.resemblance.value,
                "p": assumed.resemblance.p,
                "units": assumed.units,
            },
            "long_tail": assumed.long_tail,
            "no_interval": self.why,
            "range": float(one["(max-min)/min"]),
            "median": float(np.median(self.x)),
            "share_between_extremes": self.inside,
        }

    def _measured(self) -> str:
        """The range, the coefficient of variation, and what they leave out."""
        one, assumed, options = self.one, self.assumed, self.options
        whose = f"{len(self.x)} tasks" + (", what their conditions do taken out," if self.conditions else "")
        low, high = float(one["CoV low"]), float(one["CoV high"])
        interval = f"{percent(one['CoV'])} {span(low, high, marks=(options.matters,))} ({assumed.words})"
        if assumed.fails:
            interval = f"{percent(one['CoV'])}, and its interval cannot be given: {assumed.fails}"
        measured = f", {float(self.x.min()):.4g} s as measured" if self.conditions else ""
        text = (
            f"Of {whose} the slowest took {percent(one['(max-min)/min'])} longer than the fastest (base: the fastest, "
            f"{one['fastest']:.4g} s{measured}); the coefficient of variation is {interval}; "
            f"at {percent(options.confidence)} confidence, at least {percent(self.inside)} of such tasks lie between the two"
        )
        if self.other:
            text += f"; attempts that are in no time given here: {', '.join(f'{v} {k}' for k, v in self.other.items())}"
        return text

    def tell(self, _: Judge) -> tuple[str, str]:
        text, matters = self._measured(), percent(self.options.matters)
        low, high = float(self.one["CoV low"]), float(self.one["CoV high"])
        if not (math.isfinite(low) and math.isfinite(high)):
            text += f"; whether the time is reproducible to {matters} cannot be decided"
            return text + ("." if self.assumed.fails else " with so few."), OPEN
        if high <= self.options.matters:
            return text + f": reproducible to {matters}.", NONE
        if low > self.options.matters:
            return text + f": not reproducible to {matters}.", FOUND
        return text + f": whether that is within {matters} cannot be decided.", OPEN

    def draw(self, title: str, axes: Axes) -> None:
        axes.ecdf(self.x, label="all")
        if self.conditions:
            axes.ecdf(self.within, label="conditions taken out")
        axes.set(xlabel=f"{self.options.value} (s)", ylabel="share of tasks", title=title)
        axes.legend()


def spread(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008  (frozen)
    """Range, quantiles and coefficient of variation of all tasks, of each condition, and of residuals."""
    title = "How far apart are the tasks?"
    good = usable(frame, options.value)
    if len(good) < 2:
        return nothing(
            "spread", title, f"Nothing can be said of a spread with {len(good)} good tasks.", len(good)
        )
    x = good[options.value].to_numpy(dtype=float)
    if equal(x):
        return nothing("spread", title, f"All {len(good)} tasks took the same time.", len(good))
    blocks = good["block"].to_numpy() if good["block"].nunique() > 1 else None
    over = left_over(good, options.value, blocks=False)
    assumed = checked(over, blocks, options)
    within = float(np.exp(np.mean(np.log(x)))) * np.exp(over.values) if condition_columns(good) else x
    rows = _rows(good, within, blocks, options, assumed)
    other = {k: v for k, v in statuses(frame).items() if k != "ok"}
    found = _Spread(x, within, rows, assumed, other, options)
    notes = []
    if blocks is not None and found.one["independent"] == "tasks":
        notes.append(f"fewer than {BLOCKS} blocks: the interval takes tasks as independent of each other")
    return Analysis(
        "spread",
        title,
        pd.DataFrame(rows),
        found.tell,
        len(x),
        options.alpha,
        (),
        partial(found.draw, title),
        found.facts(),
        notes,
    )


def core_hours(part: pd.DataFrame) -> tuple[float, float, float, float]:
    """(makespan s, core-hours held, of them unused, cores) of tasks that were launched as one workload.

    Held: from the first start to the last end, all cores that the workload used: the distinct ones
    where they are recorded, otherwise the largest number in use at once.
    """
    begin, end = part["start"].to_numpy(dtype=float), part["end"].to_numpy(dtype=float)
    makespan = float(end.max() - begin.min())
    width = part["cores.count"].astype(float).fillna(1).clip(lower=1).to_numpy()
    if part["cores"].map(lambda c: isinstance(c, (list, tuple)) and len(c) > 0).all():
        cores = float(
            len(
                {
                    (node, core)
                    for node, used in zip(part["node"], part["cores"], strict=True)
                    for core in used
                }
            )
        )
    else:
        # Ends come before starts of the same moment: a task that begins as another ends needs no
        # other core.
        events = sorted([(t, 1, w) for t, w in zip(begin, width, strict=True)] + [(t, 0, -w) for t, w in zip(end, width, strict=True)])  # fmt: skip
        cores = float(max(np.cumsum([w for _, _, w in events])))
    held = makespan * cores
    busy = float(((end - begin) * width).sum())
    return makespan, held / 3600, max(0.0, held - busy) / 3600, cores


def makespan(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Makespan and unused core-hours of each block; failed attempts count, because they held their cores."""
    title = "Makespan and core-hours lost"
    timed = frame[np.isfinite(frame["start"]) & np.isfinite(frame["end"])].copy()
    if timed.empty:
        return nothing(
            "makespan", title, "Nothing can be said of makespan: no task has a start and an end.", 0
        )
    timed["block"] = timed["block"].fillna(0)
    # Replicas of one condition are a workload; without replicas a block is one.
    conditions = condition_columns(timed) if "replica" in timed and timed["replica"].notna().any() else []
    unit = "workload" if conditions else "block"
    rows = []
    for key, part in timed.groupby(["block", *conditions], sort=True):
        span_, held, lost, cores = core_hours(part)
        names = {c.removeprefix("factors."): v for c, v in zip(conditions, key[1:], strict=True)}
        slots = {"slots": part["slot"].nunique()} if "slot" in part and part["slot"].notna().any() else {}
        rows.append({"block": key[0], **names, "attempts": len(part), **slots, "cores": cores, "makespan": span_, "core-hours held": held,
                     "core-hours unused": lost, "unused, of those held": lost / held if held else 0.0})  # fmt: skip
    table = pd.DataFrame(rows)
    if len(table) > 1 and (table["attempts"] == 1).all():
        return nothing(
            "makespan", title, f"Nothing can be said of makespan: each {unit} has one attempt, which waits for no other ({len(timed)} attempts).",
            len(timed),
        )  # fmt: skip
    held, lost = table["core-hours held"].sum(), table["core-hours unused"].sum()
    spans = table["makespan"].to_numpy(dtype=float)
    if conditions:
        own = [c.removeprefix("factors.") for c in conditions]
        spans = spans / table.groupby(own)["makespan"].transform("median").to_numpy(dtype=float)
    value, low, high, _ = variation_interval(spans, None, options)

    def tell(_: Judge) -> tuple[str, str]:
        text = (
            f"{len(table)} {unit}{'s' if len(table) > 1 else ''} of {len(timed)} attempt{'s' if len(timed) > 1 else ''} held {held:.3g} core-hours, of which "
            f"{percent(lost / held if held else 0)} went unused while the {unit}'s last task was awaited (base: core-hours held)"
        )
        if len(table) < 2:
            return text + f"; how makespan varies cannot be decided from one {unit}.", DESCRIBED
        range_ = f"{spans.min():.4g} to {spans.max():.4g} s"
        if conditions:
            range_ = f"{percent(spans.min())} to {percent(spans.max())} of the median of its condition"
        return (
            text + f"; the makespan was {range_}, coefficient of variation "
            f"{percent(value)} {span(low, high)}.",
            DESCRIBED,
        )

    def draw(axes: Axes) -> None:
        axes.bar(range(len(table)), table["makespan"], color="#4878a8")
        axes.set(xlabel=unit, ylabel="makespan (s)", title=title)
        axes.set_xticks(range(len(table)), [str(b) for b in table["block"]], fontsize=7)

    facts = {"core_hours_held": float(held), "core_hours_unused": float(lost), "cov": {"value": value, "low": low, "high": high}}  # fmt: skip
    return Analysis("makespan", title, table, tell, len(timed), options.alpha, (), draw, facts)
