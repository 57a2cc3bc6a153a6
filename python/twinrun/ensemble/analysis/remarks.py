"""What a reader must know of the tasks before any analysis: a line each, for the top of a report."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..study.tasks import statuses, usable
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
        found.append(
            f"No task ended well (attempts: {how}), so nothing is said of the time. The folder output has what each printed."
        )
    elif n == 0:
        found.append(
            f"No task has a value of {options.value} above 0, though {ended['ok']} ended well, so nothing is said of it."
        )
    elif n == 1:
        found.append("One task ended well: one time does not tell how times vary.")
    if equal(good[options.value].to_numpy(dtype=float)):
        found.append(f"All {n} tasks have the same value of {options.value}, {good[options.value].iloc[0]:.6g}: they differ by less than was recorded, "
                     "so nothing is said of what makes them differ.")  # fmt: skip
    unknown = int(good["node"].isna().sum())
    if 0 < unknown < n:
        found.append(
            f"{unknown} of {n} tasks do not tell on which node they ran: nodes are analysed without them."
        )
    elif n and unknown == n:
        found.append(f"None of {n} tasks tells on which node it ran: nothing is said of nodes.")
    if frame.attrs.get("clock"):
        found.append(str(frame.attrs["clock"]))
    return found
