"""The folder of a study as a table: a row for each attempt, failed ones included, nested keys
joined by dots.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import DamagedFile, MissingFile, TwinrunError, Unsupported
from .clocks import steady
from .interposition import read_profiles
from .study import read_study

__all__ = [
    "chosen_once",
    "condition_columns",
    "frame_of",
    "load_profiles",
    "load_tasks",
    "statuses",
    "usable",
]

VERSION = 1  # of a line of tasks.jsonl and of a profile
_COPIES_ON_WRITE = int(pd.__version__.partition(".")[0]) >= 3  # what shares columns may be changed alone
# Of `chosen_once`: a table, and what is usable of it by the column of the value.
_CHOSEN: ContextVar[tuple[pd.DataFrame, dict[str, pd.DataFrame]] | None] = ContextVar("chosen", default=None)
# Columns that analyses use by name; empty where a study lacks one.
_ALWAYS = ("task", "attempt", "block", "order", "status", "start", "end", "wall", "node", "cores")


def frame_of(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each line. Lists stay lists; `cores.count` and `frequency_hz.mean` are made from them."""
    frame = pd.json_normalize([dict(line) for line in lines], sep=".")
    for name in _ALWAYS:
        if name not in frame:
            frame[name] = None
    frame["cores.count"] = [len(c) if isinstance(c, (list, tuple)) else None for c in frame["cores"]]
    if "frequency_hz" in frame:
        frame["frequency_hz.mean"] = [
            float(np.mean(f)) if isinstance(f, (list, tuple)) and len(f) else math.nan
            for f in frame["frequency_hz"]
        ]
    for name in ("start", "end", "wall"):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame


def load_tasks(study: str | os.PathLike[str]) -> pd.DataFrame:
    r"""Loads the attempts of a study as a table: a row for each attempt, failed ones included.

    >>> import json, pathlib
    >>> pathlib.Path("study").mkdir()
    >>> lines = [{"task": k, "status": "ok", "wall": 1.0 + k} for k in range(2)]
    >>> _ = pathlib.Path("study/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    >>> from twinrun.ensemble import load_tasks
    >>> load_tasks("study")["wall"].tolist()
    [1.0, 2.0]

    Parameters
    ----------
    study : str or path
        The folder of the study.

    Returns
    -------
    pandas.DataFrame
        In the order in which the attempts ended. Nested keys are joined by dots; `attrs["study"]` is the
        folder. A last line that is cut short is left out. Where a clock was set while the study ran, `start`
        and `end` are those of a clock that nobody set, and `attrs["clock"]` says so.

    Raises
    ------
    MissingFile
        There is no tasks.jsonl in the folder.
    DamagedFile
        A line is not a task.
    Unsupported
        A line has a later version.
    TwinrunError
        No task has ended yet.
    """
    folder = Path(study)
    path = folder / "tasks.jsonl"
    try:
        text = path.read_bytes()
    except OSError as e:
        raise MissingFile(f"cannot be read: {e.strerror}", where=path, fix="name a study's folder") from None
    lines: list[dict] = []
    pieces = text.split(b"\n")
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            line = json.loads(piece)
            if not isinstance(line, dict) or "task" not in line:
                raise ValueError
        except ValueError:
            # No line break after it: the runner was killed while it wrote.
            if number == len(pieces):
                continue
            raise DamagedFile(f"line {number} is not one of a study's tasks", where=path) from None
        if line.get("version", VERSION) != VERSION:
            raise Unsupported(f"line {number} has version {line['version']!r}", where=path)
        lines.append(line)
    if not lines:
        raise TwinrunError("no task has ended yet", where=path, fix="run: twinrun ensemble run")
    frame = frame_of(lines)
    frame.attrs["study"] = str(folder)
    frame.attrs |= _about(folder)
    return steady(frame)


def _about(folder: Path) -> dict[str, Any]:
    """The study's name, the levels of its factors in their order, and whether it looked at
    intervals while it ran.
    """
    found: dict[str, Any] = {"name": folder.resolve().name}
    with contextlib.suppress(TwinrunError):
        study = read_study(folder / "study.toml")
        found["levels"] = {f.name: list(f.levels) for f in study.factors}
        found["looks"] = study.stopping is not None and study.stopping.most > study.stopping.least
        if "name" in study.document:
            found["name"] = study.name
    return found


def statuses(frame: pd.DataFrame) -> dict[str, int]:
    """{status: attempts}."""
    return {str(k): int(v) for k, v in frame["status"].fillna("ok").value_counts().items()}


@contextlib.contextmanager
def chosen_once(frame: pd.DataFrame) -> Iterator[None]:
    """Inside, what `usable` gives of this very table is chosen once, and copied for each who asks.

    Nobody changes the table meanwhile.
    """
    token = _CHOSEN.set((frame, {}))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def usable(frame: pd.DataFrame, value: str = "wall") -> pd.DataFrame:
    """The last good attempt of each task whose value is a positive number, in order of start."""
    of, found = _CHOSEN.get() or (None, {})
    if of is not frame:
        return _usable(frame, value)
    if value not in found:
        found[value] = _usable(frame, value)
    return found[value].copy(deep=not _COPIES_ON_WRITE)


def _usable(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    if value not in frame:
        raise TwinrunError(f"no task has {value!r}", fix="name another column of the table of tasks")
    # Rows are chosen by the few columns that it takes, so that all the others are copied once.
    rows = np.flatnonzero((frame["status"].fillna("ok") == "ok").to_numpy(bool))
    numbers = pd.to_numeric(frame[value].iloc[rows], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    rows = rows[np.isfinite(numbers) & (numbers > 0)]
    tasks = frame["task"].iloc[rows]
    if tasks.notna().all():
        rows = rows[~tasks.duplicated(keep="last").to_numpy()]
    block, start = (frame[name].iloc[rows].reset_index(drop=True) for name in ("block", "start"))
    block = block.fillna(0) if block.notna().any() else pd.Series(0, index=block.index)
    # `order` is the place of a task in its block.
    if start.notna().all():
        by = pd.DataFrame({"start": start})
    else:
        by = pd.DataFrame({"block": block, "order": frame["order"].iloc[rows].to_numpy()})
    if by.notna().all(axis=None):
        at = by.sort_values(list(by), kind="stable").index
        rows, block = rows[at], block.iloc[at]
    good = frame.iloc[rows].reset_index(drop=True)
    good[value] = pd.to_numeric(good[value], errors="coerce")
    good["block"] = block.reset_index(drop=True)
    return good


def condition_columns(frame: pd.DataFrame) -> list[str]:
    """The factors that vary among these rows."""
    return [
        c
        for c in frame
        if c.startswith("factors.") and len(set(map(str, frame[c].to_numpy(dtype=object)))) > 1
    ]


def load_profiles(frame: pd.DataFrame, study: str | os.PathLike[str] | None = None) -> list[list[dict]]:
    """For each row the profiles of its ranks, in order of rank; [] where it has none.

    A task with a missing or torn profile counts as without profiles: a part of its ranks would mislead.
    """
    folder = Path(study if study is not None else frame.attrs.get("study", "."))
    found: list[list[dict]] = []
    for paths in frame["profiles"] if "profiles" in frame else [None] * len(frame):
        ranks = []
        try:
            for path in paths if isinstance(paths, (list, tuple)) else ():
                profile = json.loads((folder / path).read_text(encoding="utf-8"))
                if profile.get("version", VERSION) != VERSION or not isinstance(profile.get("calls"), dict):
                    raise ValueError
                ranks.append(profile)
            ranks = read_profiles(ranks)
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            ranks = []
        found.append(ranks)
    return found
