"""Makespan with fewer, as many, and more resources than tasks, simulated from the measured times.

Every simulated workload draws its times from the measured ones, without effects of conditions, and starts
each task as soon as a slot is free, in order (list scheduling, as queues do). Its interval covers the
uncertainty of the times: the measured tasks are resampled too. With fewer slots than tasks variations average
out; with as many the slowest decides; with more, slots idle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..study.tasks import condition_columns, usable
from .model import percent, residuals
from .result import DESCRIBED, OPEN, Analysis, Judge, Options, nothing

__all__ = ["regimes", "schedule"]

_WORKLOADS = 400
_OUTER = 100


def schedule(times: np.ndarray, slots: int) -> np.ndarray:
    """Makespans of workloads (one in each row) on this many slots, tasks in order."""
    if slots >= times.shape[1]:
        return times.max(axis=1)
    free = times[:, :slots].copy()
    rows = np.arange(len(times))
    for k in range(slots, times.shape[1]):
        first = free.argmin(axis=1)
        free[rows, first] += times[:, k]
    return free.max(axis=1)


def regimes(frame: pd.DataFrame, options: Options = Options(), tasks: int | None = None) -> Analysis:  # noqa: B008
    """Mean makespan, its variation and the unused share of slots, for slots from a quarter to twice the
    number of tasks.
    """
    title = "Fewer, as many, more resources than tasks"
    good = usable(frame, options.value)
    x = good[options.value].to_numpy(dtype=float)
    conditions = bool(condition_columns(good)) and len(x) >= 5
    if conditions:
        x = float(np.median(x)) * np.exp(residuals(good, options.value, blocks=False))
    if len(x) < 5:
        return nothing("regimes", title, f"Makespan cannot be simulated from {len(x)} tasks.", len(x))
    n = tasks or min(len(x), 256)
    rng = np.random.default_rng(options.seed)
    draws = rng.integers(0, len(x), (_WORKLOADS, n))
    outer = rng.integers(0, len(x), (_OUTER, len(x)))
    few = rng.integers(0, len(x), (_OUTER, 20, n))
    rows: list[dict[str, Any]] = []
    for regime, slots in (("fewer", max(1, n // 8)), ("fewer", max(1, n // 4)), ("fewer", max(1, n // 2)), ("as many", n), ("more", 2 * n)):  # fmt: skip
        spans = schedule(x[draws], slots)
        # Another study would measure other times: so the measured tasks are resampled too.
        resampled = np.stack([x[o][f] for o, f in zip(outer, few, strict=True)]).reshape(-1, n)
        means = schedule(resampled, slots).reshape(_OUTER, 20).mean(axis=1)
        low, high = np.quantile(means, [options.alpha / 2, 1 - options.alpha / 2])
        even = n * x.mean() / min(slots, n) if slots < n else x.mean()
        rounds = -(-n // slots) * float(np.median(x))
        rows.append({"regime": regime, "tasks": n, "slots": slots, "makespan": float(spans.mean()), "low": float(low), "high": float(high),
                     "CoV of makespan": float(spans.std() / spans.mean()), "q95": float(np.quantile(spans, 0.95)),
                     "all tasks median": rounds, "lost to variation": float(spans.mean() / rounds - 1),
                     "slots unused": float(1 - (x[draws].sum(axis=1) / (slots * spans)).mean()), "evenly shared": float(even)})  # fmt: skip
    table = pd.DataFrame(rows).drop_duplicates("slots").reset_index(drop=True)
    by = {r["regime"]: r for r in rows}

    whose = ", what their conditions do taken out" if conditions else ""

    def tell(_: Judge) -> tuple[str, str]:
        fewer, same, more = by["fewer"], by["as many"], by["more"]
        text = "; ".join(
            f"{name} ({r['slots']} slots) {r['makespan']:.4g} s [{r['low']:.4g}, {r['high']:.4g}], {percent(r['lost to variation'])} "
            f"longer, {percent(r['slots unused'])} of slot time unused"
            for name, r in (("fewer", fewer), ("as many", same), ("more", more))
        )
        return (f"Makespan of {n} tasks, simulated from {len(x)} measured{whose} (base: every task takes the median, {np.median(x):.4g} s): {text}.",
                DESCRIBED if len(x) >= 20 else OPEN)  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(table["slots"], 100 * table["lost to variation"], "o-", label="makespan lost to variation")
        axes.plot(table["slots"], 100 * table["slots unused"], "s--", label="slot time unused")
        axes.axvline(n, color="#999999", linewidth=0.8)
        axes.set(xscale="log", xlabel=f"slots for {n} tasks", ylabel="%", title=title)
        axes.legend()

    return Analysis("regimes", title, table, tell, len(x), options.alpha, (), draw, {"rows": rows})
