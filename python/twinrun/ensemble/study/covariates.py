"""Numbers that the user knows of tasks, from CSV: by task, or by time.

task,humidity           by the number of the task
time,power              by time: the mean of the values while a task ran; without one, the last
                        value before it, if it is at most three usual gaps between values old
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from ...errors import DamagedFile, MissingFile, TwinrunError
from .foreign import cells_in, moment, number_of

__all__ = ["PREFIX", "with_covariates"]

PREFIX = "covariates."  # of columns of the table of tasks
_TIMES = ("time", "timestamp", "date", "start")
_OLD = 3.0  # usual gaps


def _column(name: str, frame: pd.DataFrame) -> str:
    column = f"{PREFIX}{name.strip()}"
    if column in frame:
        raise TwinrunError(f"the covariate {name!r:.60} is there twice", fix="rename a column")
    return column


def _while(start: float, end: float, times: np.ndarray, values: np.ndarray, old: float) -> float:
    """The mean of what was measured from start to end, or the last value before, if it is not too old."""
    first, last = np.searchsorted(times, start, "left"), np.searchsorted(times, end, "right")
    if last > first:
        return float(values[first:last].mean())
    return float(values[first - 1]) if first > 0 and start - times[first - 1] <= old else np.nan


def _ran(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """When tasks started and ended; of one that is not given, what the other and the time say."""
    start, end, wall = (pd.to_numeric(frame[name], errors="coerce") for name in ("start", "end", "wall"))
    return start.fillna(end - wall), end.fillna(start + wall)


def with_covariates(frame: pd.DataFrame, path: str | os.PathLike[str]) -> pd.DataFrame:
    """The table of tasks with the columns of a file besides, named `covariates.NAME`; cells that
    are no number are missing.

    Raises MissingFile, DamagedFile, TwinrunError where no task has a value.
    """
    place = Path(path)
    if not place.is_file():
        raise MissingFile("there is no such file", where=path)
    try:
        head, *rows = cells_in(place.read_text(encoding="utf-8-sig", errors="replace"), ",") or [[]]
    except ValueError as e:
        raise DamagedFile(f"is not a table of covariates: {e}", where=path) from None
    names = [name.strip() for name in head]
    key = next((name for name in names if name.lower() in ("task", *_TIMES)), None)
    if key is None or len(set(names)) != len(names) or any(len(row) != len(head) for row in rows):
        raise DamagedFile(
            "is not a table of covariates: it needs a column task or time, names that differ, and rows as long as the header",
            where=path,
        )
    at = names.index(key)
    if not rows:
        raise DamagedFile("has a header and no rows", where=path)
    read = number_of if key.lower() == "task" else moment
    if all(read(row[at]) is None for row in rows):
        what = "number of a task" if key.lower() == "task" else "moment"
        raise DamagedFile(
            f"column {key!r}: {rows[0][at]!r:.60} is no {what}, and no other row has one", where=path,
            fix="write seconds since 1970, or a date and time such as 2026-01-31 12:00:00+00:00" if key.lower() != "task" else "write 0, 1, ...",
        )  # fmt: skip
    made = frame.copy()
    made.attrs = dict(frame.attrs)
    for place_, name in enumerate(names):
        if place_ == at:
            continue
        column = _column(name, made)
        pairs = [(read(row[at]), number_of(row[place_])) for row in rows]
        known = sorted((k, v) for k, v in pairs if k is not None and v is not None)
        if not known:
            continue  # a column of words
        keys, values = np.array([k for k, _ in known]), np.array([v for _, v in known])
        if key.lower() == "task":
            if len(set(keys)) != len(keys):
                raise DamagedFile(f"names a task twice in {name!r:.60}", where=path)
            found = made["task"].astype(float).map(dict(known)).to_numpy(dtype=float)
        else:
            gaps = np.diff(keys)
            old = _OLD * float(np.median(gaps)) if len(gaps) else np.inf
            found = np.array(
                [
                    _while(s, e, keys, values, old) if np.isfinite(s) and np.isfinite(e) else np.nan
                    for s, e in zip(*_ran(made), strict=True)
                ]
            )
        if not np.isfinite(found).any():
            raise TwinrunError(
                f"no task has a value of {name!r:.60}",
                where=path,
                fix="times are seconds since 1970, or dates with a zone",
            )
        made[column] = found
    if len(made.columns) == len(frame.columns):
        raise DamagedFile(f"has no column of numbers beside {key!r}", where=path)
    return made
