"""Makespan with fewer, as many, and more resources than tasks, simulated from the measured times.

Every simulated workload has measured times, without effects of conditions, in random order, and starts each
task as soon as a slot is free (list scheduling, as queues do). No time is drawn twice: then the mean makespan
is that of new tasks of the same distribution, and drawing with replacement makes it too small. It has no
interval, as the slowest tasks decide: of simulated studies of 20 and 40 tasks a bootstrap's 95% held the mean
in 29 to 88%. What holds for any distribution is how often the slowest of new tasks is slower than all that
were measured. With fewer slots than tasks variations average out; with more, slots idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..study.tasks import condition_columns, usable
from .model import percent, residuals
from .result import DESCRIBED, OPEN, Analysis, Judge, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["regimes", "schedule"]

_WORKLOADS = 400


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


def _changed(by: float) -> str:
    return f"{percent(abs(by))} {'shorter' if by < 0 else 'longer'}"


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
    times = x[rng.integers(0, len(x), (_WORKLOADS, n))]
    once = times if n > len(x) else rng.permuted(np.tile(x, (_WORKLOADS, 1)), axis=1)[:, :n]
    rows: list[dict[str, Any]] = []
    for regime, slots in (("fewer", max(1, n // 8)), ("fewer", max(1, n // 4)), ("fewer", max(1, n // 2)), ("as many", n), ("more", 2 * n)):  # fmt: skip
        spans, mean = schedule(times, slots), float(schedule(once, slots).mean())
        even = n * x.mean() / min(slots, n) if slots < n else x.mean()
        rounds = -(-n // slots) * float(np.median(x))
        rows.append({"regime": regime, "tasks": n, "slots": slots, "makespan": mean,
                     "CoV of makespan": float(spans.std() / spans.mean()), "q95": float(np.quantile(spans, 0.95)),
                     "all tasks median": rounds, "lost to variation": mean / rounds - 1,
                     "slots unused": float(1 - once.sum(axis=1).mean() / (slots * mean)), "evenly shared": float(even)})  # fmt: skip
    table = pd.DataFrame(rows).drop_duplicates("slots").reset_index(drop=True)
    by = {r["regime"]: r for r in rows}

    slower = n / (n + len(x))
    whose = ", what their conditions do taken out" if conditions else ""

    def tell(_: Judge) -> tuple[str, str]:
        fewer, same, more = by["fewer"], by["as many"], by["more"]
        text = "; ".join(
            f"{name} ({r['slots']} slots) {r['makespan']:.4g} s, {_changed(r['lost to variation'])}, "
            f"{percent(r['slots unused'])} of slot time unused"
            for name, r in (("fewer", fewer), ("as many", same), ("more", more))
        )
        return (f"Makespan of {n} tasks, simulated from {len(x)} measured{whose} (base: every task takes the median, {np.median(x):.4g} s): {text}. "
                f"There is no interval, as the slowest tasks decide: if tasks come in any order alike, in {percent(slower)} of workloads the slowest of {n} "
                f"new ones is slower than all {len(x)}.",
                DESCRIBED if len(x) >= 20 else OPEN)  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(table["slots"], 100 * table["lost to variation"], "o-", label="makespan lost to variation")
        axes.plot(table["slots"], 100 * table["slots unused"], "s--", label="slot time unused")
        axes.axvline(n, color="#999999", linewidth=0.8)
        axes.set(xscale="log", xlabel=f"slots for {n} tasks", ylabel="%", title=title)
        axes.legend()

    return Analysis(
        "regimes",
        title,
        table,
        tell,
        len(x),
        options.alpha,
        (),
        draw,
        {"rows": rows, "slower_than_all": slower},
    )
