"""What a reader must know of the tasks before any analysis: a line each, for the top of a report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...errors import one_line
from ..study.covariates import PREFIX
from ..study.tasks import condition_columns, statuses, usable
from .order import conditions_in_stretches, imported, order_is_known
from .result import Options

__all__ = ["equal", "remarks"]

_ROUNDING = 1e-12  # of logarithms: times that differ by less are equal


def equal(values: np.ndarray) -> bool:
    """Whether two times and more are all the same, but for rounding."""
    return len(values) > 1 and float(np.ptp(np.log(values))) < _ROUNDING


def remarks(frame: pd.DataFrame, options: Options) -> list[str]:
    """Tasks that all failed, a single task, equal times, unknown nodes, clocks that were set."""
    found = []
    good = usable(frame, options.value)
    n = len(good)
    ended = statuses(frame)
    if n == 0 and not ended.get("ok"):
        how = ", ".join(f"{count} {status}" for status, count in ended.items())
        printed = "" if imported(frame) else " The folder output has what each printed."
        if reason := _reason(frame):
            printed = f" Most say: {reason}.{printed}"
        found.append(f"No task ended well (attempts: {how}), so nothing is said of the time.{printed}")
    elif n == 0:
        others = [str(c) for c in frame if str(c).startswith("metrics.") and frame[c].notna().any()]
        hint = f" Other columns: {', '.join(others):.200} (--value NAME)." if others else ""
        found.append(
            f"No task has a value of {options.value} above 0, though {ended['ok']} ended well, so nothing is said of it.{hint}"
        )
    elif n == 1:
        found.append("One task ended well: one time does not tell how times vary.")
    if equal(good[options.value].to_numpy(dtype=float)):
        found.append(f"All {n} tasks have the same value of {options.value}, {good[options.value].iloc[0]:.6g}: they differ by less than was recorded, "
                     "so nothing is said of what makes them differ.")  # fmt: skip
    if n:
        found += _left_out(frame, good, ended, options)
    unknown = int(good["node"].isna().sum())
    if 0 < unknown < n:
        found.append(
            f"{unknown} of {n} tasks do not tell on which node they ran: nodes are analysed without them."
        )
    elif n and unknown == n:
        whose = f"None of {n} tasks tells" if n > 1 else "The task does not tell"
        found.append(f"{whose} on which node it ran: nothing is said of nodes.")
    found += _of_import(frame, good, options)
    found += _covariates(good)
    if frame.attrs.get("clock"):
        found.append(str(frame.attrs["clock"]))
    return found


def _reason(frame: pd.DataFrame) -> str:
    """Why most attempts did not end well, where their watchers say so."""
    if "reason" not in frame or frame["reason"].isna().all():
        return ""
    return one_line(str(frame["reason"].dropna().mode().iloc[0]), 200).rstrip(".")


def _of_import(frame: pd.DataFrame, good: pd.DataFrame, options: Options) -> list[str]:
    """What the files of other programs leave open."""
    if not imported(frame):
        return []
    found = []
    conditions = condition_columns(good)
    if stretches := conditions_in_stretches(good):
        names = " and ".join(one_line(c.removeprefix("factors."), 60) for c in stretches)
        found.append(
            f"One level of {names} ran after another: a change of the machine meanwhile cannot be told from what {names} does."
        )
    if not order_is_known(good):
        found.append(
            "In which order the conditions ran is not known: a change of the machine between them cannot be told from what they do. "
            "The n-th run of each is taken as block n."
        )
    for column in (str(c) for c in good if str(c).startswith("metrics.") and c != options.value):
        values = pd.to_numeric(good[column], errors="coerce").dropna()
        times = values.value_counts()
        whose = (
            values.groupby([good.loc[values.index, c] for c in conditions]).nunique() if conditions else times
        )
        if (
            len(times) > 1
            and times.min() > 1
            and 2 * len(times) <= len(values)
            and (not conditions or whose.max() > 1)
        ):
            name = one_line(column.removeprefix("metrics."), 60)
            found.append(
                f"The column {name} has {len(times)} different numbers, each several times, and counts as a measure. "
                f"If it is a condition, say so: --factor {name}."
            )
    return found


def _covariates(good: pd.DataFrame) -> list[str]:
    """Covariates that have few numbers."""
    found = []
    for column in (str(c) for c in good if str(c).startswith(PREFIX)):
        known, n = int(good[column].notna().sum()), len(good)
        if 2 * known < n:
            found.append(
                f"The covariate {one_line(column.removeprefix(PREFIX), 60)} has a number for {known} of {n} tasks: "
                "for the others its command failed or printed none, or its table has none."
            )
    return found


def _left_out(
    frame: pd.DataFrame, good: pd.DataFrame, ended: Mapping[str, int], options: Options
) -> list[str]:
    """Attempts that are in no time of the report."""
    found = []
    tasks = frame["task"].nunique() if frame["task"].notna().all() else len(frame)
    failed = {status: count for status, count in ended.items() if status != "ok"}
    if failed:
        how = ", ".join(f"{count} {status}" for status, count in failed.items())
        found.append(
            f"{sum(failed.values())} of {len(frame)} attempts ({how}) are in no time here; {len(good)} of {tasks} tasks ended well. "
            "If slow tasks are those that fail, times look shorter than they are."
        )
    values = pd.to_numeric(frame.loc[frame["status"].fillna("ok") == "ok", options.value], errors="coerce")
    none, low = int(values.isna().sum()), int((values <= 0).sum())
    if none:
        found.append(f"{none} attempts that ended well have no value of {options.value}, and are left out.")
    if low:
        found.append(
            f"{low} attempts have a value of {options.value} of 0 or less, and are left out: effects are ratios."
        )
    return found
