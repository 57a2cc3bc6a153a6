"""Starts and ends of tasks on a clock that does not step.

Durations are those of a monotonic clock. Starts and ends are times of day, and somebody may set that clock
while a study runs. So each task has the seconds since its node started as well (`clock`). All tasks of one
start of a node get the same difference between the two clocks: that of most of them. Where a study has no
such seconds, numbers of tasks tell that a clock went back, and starts and ends are then not used at all.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

__all__ = ["steady"]

_STEP = 0.1  # seconds: two clocks, read one after the other, differ by less
_BACK = 60.0  # seconds: tasks that were started in the order of their numbers may begin in another, by less
_OWN = ("local", "mpirun", "srun")  # engines that start tasks in the order of their numbers


def _seconds(x: float) -> str:
    return f"{x:.3g} s" if x < 1000 else f"{x:.0f} s"


def _of_one_start(rows: pd.DataFrame) -> tuple[pd.Series, list[str]]:
    """What to add to the times of these tasks, of one start of a node; and each step of the clock."""
    rows = rows.sort_values("clock.seconds", kind="stable")
    ahead = rows["start"] - rows["clock.seconds"]
    added = ahead.quantile(interpolation="nearest") - ahead
    node, task = rows["node"].to_numpy(), rows["task"].to_numpy()
    steps = []
    for k in np.flatnonzero(np.abs(np.diff(ahead)) > _STEP):
        by = float(ahead.iloc[k + 1] - ahead.iloc[k])
        way = "back" if by < 0 else "forward"
        steps.append(
            f"the clock of {node[k + 1] or 'a node'} was set {way} by {_seconds(abs(by))} before task {task[k + 1]}"
        )
    return added, steps


def steady(frame: pd.DataFrame) -> pd.DataFrame:
    """The same tasks, their starts and ends as of clocks that nobody set.

    `attrs["clock"]` says what was changed.

    A task keeps the start and end that were read as `read.start` and `read.end` where one was changed.
    """
    if "clock.seconds" in frame:
        known = frame["start"].notna() & frame["clock.seconds"].notna()
        added = pd.Series(0.0, frame.index)
        steps: list[str] = []
        for _, rows in frame[known].groupby("clock.boot", dropna=False, sort=False):
            own, told = _of_one_start(rows)
            if told:
                added[own.index] = own
                steps += told
        if steps:
            made = frame.assign(**{"read.start": frame["start"], "read.end": frame["end"]})
            made["start"], made["end"] = frame["start"] + added, frame["end"] + added
            more = f" and {len(steps) - 3} more times" if len(steps) > 3 else ""
            made.attrs = {
                **frame.attrs,
                "clock": f"While the study ran, {'; '.join(steps[:3])}{more}. Starts and ends are those of a clock that nobody set.",
            }
            return made
        if known.all():
            return frame
    return _by_number(frame)


def _by_number(frame: pd.DataFrame) -> pd.DataFrame:
    """Without starts and ends where those of first attempts contradict the order of tasks."""
    if "engine" not in frame:
        return frame
    first = frame[frame["engine"].isin(_OWN) & (frame["attempt"] == 1) & frame["start"].notna()].sort_values(
        "task"
    )
    fall = first["start"].diff().min() if len(first) > 1 else math.nan
    if not fall < -_BACK:
        return frame
    task = first["task"].loc[first["start"].diff().idxmin()]
    made = frame.assign(
        **{"read.start": frame["start"], "read.end": frame["end"], "start": math.nan, "end": math.nan}
    )
    made.attrs = {
        **frame.attrs,
        "clock": f"Task {task} began {_seconds(-fall)} before the task that was started before it: a clock was set back while the study ran. "
        "Tasks are in the order of their numbers, and nothing is said by time of day, of periods or of makespan.",
    }
    return made
