"""Profiles of calls: two groups of tasks side by side, and the cost of counting.

Seconds, calls and bytes are means over the ranks of a task, then over the tasks of a group. Calls that were
made inside others (MPI-IO's writes) are left out of seconds, so that seconds of a rank add up, and the rest
of its wall time is computation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...errors import TwinrunError
from ...outputs import save_figure
from ..study.interposition import OFF
from ..study.study import INTERPOSE, Study
from ..study.tasks import condition_columns, load_profiles, load_tasks, usable
from .factors import as_verified, effects_of
from .model import model_of, percent
from .result import DESCRIBED, OPEN, Analysis, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["REST", "Difference", "compare_tasks", "difference_of_profiles", "interposition"]

REST = "outside of calls"  # the rest of the wall time
COLUMN = f"factors.{INTERPOSE}"


def _means(tasks: Sequence[Sequence[dict]]) -> dict[str, dict[str, Any]]:
    """By call: its group, and means of seconds, count, bytes and the histogram; the longest of all."""
    found: dict[str, dict[str, Any]] = {}
    for ranks in tasks:
        for r in ranks:
            weight = 1 / (len(ranks) * len(tasks))
            for name, c in r["calls"].items():
                into = found.setdefault(
                    name, {"group": c["group"], "seconds": 0.0, "count": 0.0, "bytes": 0.0, "largest": 0.0, "histogram": np.zeros(64)}
                )  # fmt: skip
                for key in ("seconds", "count", "bytes"):
                    into[key] += weight * c.get(key, 0)
                into["largest"] = max(into["largest"], c.get("largest_seconds", 0.0))
                bins = np.asarray(c.get("histogram", []), dtype=float)[:64]
                into["histogram"][: len(bins)] += weight * bins
    return found


_NONE: dict[str, Any] = {"group": "", "seconds": 0.0, "count": 0.0, "bytes": 0.0, "largest": 0.0, "histogram": np.zeros(64)}  # fmt: skip


def difference_of_profiles(
    slow: Sequence[Sequence[dict]], fast: Sequence[Sequence[dict]], top: int | None = 12
) -> pd.DataFrame:
    """By call: mean seconds, calls, bytes a rank and mean seconds a call in both groups of tasks; the largest
    differences first.

    slow, fast: profiles of the ranks of each task; top: how many calls, None: all.
    """
    a, b = _means(slow), _means(fast)
    rows = []
    for name in {**a, **b}:
        s, f = a.get(name, _NONE), b.get(name, _NONE)
        rows.append({"call": name, "group": s["group"] or f["group"], "slow (s)": s["seconds"], "fast (s)": f["seconds"],
                     "difference (s)": s["seconds"] - f["seconds"], "slow calls": s["count"], "fast calls": f["count"],
                     "slow mean (s)": s["seconds"] / s["count"] if s["count"] else math.nan,
                     "fast mean (s)": f["seconds"] / f["count"] if f["count"] else math.nan,
                     "slow bytes": s["bytes"], "fast bytes": f["bytes"],
                     "slow largest (s)": s["largest"], "fast largest (s)": f["largest"]})  # fmt: skip
    columns = ["call", "group", "slow (s)", "fast (s)", "difference (s)", "slow calls", "fast calls", "slow mean (s)",
               "fast mean (s)", "slow bytes", "fast bytes", "slow largest (s)", "fast largest (s)"]  # fmt: skip
    table = pd.DataFrame(rows, columns=columns)
    table = table.sort_values("difference (s)", key=np.abs, ascending=False, kind="stable")
    return (table if top is None else table.head(top)).reset_index(drop=True)


class Difference:
    """Profiles of two groups of tasks.

    names: of the groups; tasks: their numbers; walls: their mean wall times, s; table: as
    `difference_of_profiles`, with the rest of the wall time and each row's share of the difference; notes:
    what a reader must know.
    """

    def __init__(
        self,
        names: tuple[str, str],
        tasks: tuple[list[int], list[int]],
        walls: tuple[float, float],
        profiles: tuple[Sequence[Sequence[dict]], Sequence[Sequence[dict]]],
    ) -> None:
        self.names, self.tasks, self.walls = names, tasks, walls
        self._means = _means(profiles[0]), _means(profiles[1])
        table = difference_of_profiles(*profiles, top=None)
        inside = table["slow (s)"].sum(), table["fast (s)"].sum()
        rest = {
            "call": REST,
            "group": "compute",
            "slow (s)": walls[0] - inside[0],
            "fast (s)": walls[1] - inside[1],
        }
        rest["difference (s)"] = rest["slow (s)"] - rest["fast (s)"]
        table = pd.concat([table, pd.DataFrame([rest])], ignore_index=True)
        whole = walls[0] - walls[1]
        table["of the difference"] = table["difference (s)"] / whole if whole else math.nan
        table = table.sort_values("difference (s)", key=np.abs, ascending=False, kind="stable")
        self.table = table.reset_index(drop=True)
        self.notes = self._remarks(profiles)

    @staticmethod
    def _remarks(profiles: tuple[Sequence[Sequence[dict]], Sequence[Sequence[dict]]]) -> list[str]:
        every = [r for group in profiles for ranks in group for r in ranks]
        others = sorted({x for r in every for x in r.get("other_preloads") or []})
        notes = [f"other tools were preloaded too: {', '.join(others)}"] if others else []
        notes += sorted({x for r in every for x in r.get("errors") or []})
        injected = sum(x.get("count", 0) for r in every for x in (r.get("injected") or {}).get("rules", []))
        if injected:
            seconds = sum(x.get("seconds", 0.0) for r in every for x in r["injected"]["rules"])
            notes.append(
                f"{injected} delays of {seconds:.3g} s together were injected into these tasks, over all ranks"
            )
        return notes

    @property
    def sentence(self) -> str:
        """What it shows."""
        whole = self.walls[0] - self.walls[1]
        main = self.table.head(3)
        listed = ", ".join(
            f"{c} {d:+.3g} s" for c, d in zip(main["call"], main["difference (s)"], strict=True)
        )
        return (f"{self.names[0]} ({len(self.tasks[0])} tasks, {self.walls[0]:.4g} s) took {whole:+.3g} s against {self.names[1]} "
                f"({len(self.tasks[1])} tasks, {self.walls[1]:.4g} s); a rank's largest differences: {listed}.")  # fmt: skip

    def document(self) -> dict:
        """For JSON."""
        return {
            "names": list(self.names),
            "tasks": [list(t) for t in self.tasks],
            "walls": list(self.walls),
            "calls": self.table.astype(object).where(self.table.notna(), None).to_dict("records"),
            "notes": self.notes,
        }

    def draw_bars(self, axes: Axes, top: int = 12) -> None:
        """Bars: seconds of each call in the first group less those in the second."""
        shown = self.table.head(top)
        at = np.arange(len(shown))[::-1]
        colours = ["#a84848" if d > 0 else "#4878a8" for d in shown["difference (s)"]]
        axes.barh(at, shown["difference (s)"], color=colours)
        axes.set_yticks(at, list(shown["call"]), fontsize=8)
        axes.axvline(0, color="#444444", linewidth=0.8)
        axes.set(xlabel="difference a rank (s)", title=f"{self.names[0]} - {self.names[1]}")

    def draw_histogram(self, axes: Axes, call: str) -> None:
        """How long single calls took, in both groups."""
        edges = 2.0 ** np.arange(65) * 1e-9
        top = 0
        for means, name, colour in zip(self._means, self.names, ("#a84848", "#4878a8"), strict=True):
            counts = means.get(call, _NONE)["histogram"]
            used = np.flatnonzero(counts)
            if len(used):
                top = max(top, int(used[-1]) + 1)
                axes.stairs(
                    counts[: used[-1] + 1],
                    edges[: used[-1] + 2],
                    label=name,
                    color=colour,
                    fill=True,
                    alpha=0.45,
                )
        axes.set(xscale="log", xlabel="time of a call (s)", ylabel="calls a rank", title=call)
        if top:
            axes.set_yscale("symlog", linthresh=1)
            axes.legend(fontsize=7)

    def figure(self) -> Figure:
        """Bars, and histograms of the calls that differ most."""
        from matplotlib.figure import Figure

        calls = [c for c in self.table["call"] if c != REST][:3]
        figure = Figure(figsize=(11, 2.4 + 1.6 * max(len(calls), 1)), layout="constrained")
        grid = figure.add_gridspec(max(len(calls), 1), 2)
        self.draw_bars(figure.add_subplot(grid[:, 0]))
        for i, call in enumerate(calls):
            self.draw_histogram(figure.add_subplot(grid[i, 1]), call)
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture: .svg, .png, .pdf. Raises TwinrunError where it cannot."""
        save_figure(self.figure(), path)


def _with_profiles(folder: str | os.PathLike[str]) -> tuple[pd.DataFrame, list[list[dict]]]:
    good = usable(load_tasks(folder))
    profiles = load_profiles(good, folder)
    keep = [i for i, ranks in enumerate(profiles) if ranks]
    if not keep:
        raise TwinrunError(
            "no task that ended well has profiles of calls", where=folder, fix="add [interpose] to the study"
        )
    return good.iloc[keep].reset_index(drop=True), [profiles[i] for i in keep]


def _numbered(good: pd.DataFrame, chosen: Sequence[int], folder: str | os.PathLike[str]) -> list[int]:
    rows = []
    for task in chosen:
        found = np.flatnonzero(good["task"].to_numpy() == task)
        if not len(found):
            raise TwinrunError(f"task {task} did not end well, or has no profiles", where=folder)
        rows.append(int(found[0]))
    return rows


def compare_tasks(
    folder: str | os.PathLike[str],
    slow: Sequence[int] = (),
    fast: Sequence[int] = (),
    by: str = "",
) -> Difference:
    """Profiles of two groups of a study's tasks: those named; those at a level of a factor against all others
    (by: "factor=level"); otherwise the slowest quarter against the fastest, tasks with injected delays apart.
    Raises TwinrunError where a group is empty.
    """
    good, profiles = _with_profiles(folder)
    walls = good["wall"].to_numpy(dtype=float)
    names = "slow", "fast"
    if by:
        factor, found, level = by.partition("=")
        column = f"factors.{factor.strip()}"
        if column not in good or not found:
            raise TwinrunError(
                f"--by {by!r} names no factor of the study", where=folder, fix="write factor=level"
            )
        at = (good[column].map(str) == level.strip()).to_numpy()
        groups = np.flatnonzero(at), np.flatnonzero(~at)
        names = f"{factor.strip()} = {level.strip()}", "others"
    elif slow or fast:
        a, b = _numbered(good, slow, folder), _numbered(good, fast, folder)
        order = np.argsort(walls, kind="stable")
        groups = (np.array(a or [i for i in order[::-1] if i not in b][:1], dtype=int),
                  np.array(b or [i for i in order if i not in a][:1], dtype=int))  # fmt: skip
    else:
        among: np.ndarray = np.arange(len(good))
        if COLUMN in good and good[COLUMN].nunique() > 1:
            # Tasks with injected delays need no explanation.
            plain = [i for i in among if not any((r.get("injected") or {}).get("rules") for r in profiles[i])]
            among = np.array(plain or list(among), dtype=int)
        order = among[np.argsort(walls[among], kind="stable")]
        quarter = max(1, len(order) // 4)
        groups = order[-quarter:], order[:quarter]
        if len(order) >= 8:
            names = "the slowest quarter", "the fastest quarter"
    if not len(groups[0]) or not len(groups[1]) or set(groups[0]) & set(groups[1]):
        raise TwinrunError(
            "there are no two groups of tasks to compare", where=folder, fix="name other tasks"
        )
    numbers = good["task"].to_numpy()
    return Difference(
        names,
        ([int(numbers[i]) for i in groups[0]], [int(numbers[i]) for i in groups[1]]),
        (float(walls[groups[0]].mean()), float(walls[groups[1]].mean())),
        ([profiles[i] for i in groups[0]], [profiles[i] for i in groups[1]]),
    )


def _own_facts(good: pd.DataFrame, folder: str | os.PathLike[str] | None) -> tuple[float | None, list[str]]:
    """What the library says of itself in profiles: the share of the time that it took by its own estimate
    (None where it is not known), and the other tools that were preloaded beside it.
    """
    if folder is None:
        return None, []
    every = [r for ranks in load_profiles(good, folder) for r in ranks]
    shares = [
        r["own_cost_seconds"] / r["wall"]
        for r in every
        if r.get("own_cost_seconds") is not None and r.get("wall")
    ]
    others = sorted({x for r in every for x in r.get("other_preloads") or []})
    return (float(np.mean(shares)) if shares else None), others


def _costs(good: pd.DataFrame, levels: list[str], plain: list[str], options: Options) -> list[dict[str, Any]]:
    """What each level of interposition costs, as a share of the time. plain: levels that only count."""
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    rows = []
    for effect in effects_of(model, options) if model.freedom >= 3 else ():
        level = effect["effect"].rpartition(": ")[2].removesuffix(f" / {OFF}")
        if effect["term"] == INTERPOSE and level != effect["effect"] and level in levels:
            rows.append({"level": level, "counting only": level in plain,
                         "cost": math.expm1(effect["value"]), "low": math.expm1(effect["low"]),
                         "high": math.expm1(effect["high"])})  # fmt: skip
    return rows


def _draw_costs(rows: list[dict[str, Any]], title: str, axes: Axes) -> None:
    table = pd.DataFrame(rows)
    at = np.arange(len(rows))[::-1]
    middle = 100 * table["cost"].to_numpy()
    axes.errorbar(middle, at, xerr=[middle - 100 * table["low"], 100 * table["high"] - middle], fmt="o")
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(at, list(table["level"]))
    axes.set(xlabel="of the time (%)", title=title)


def interposition(
    frame: pd.DataFrame,
    study: Study | None = None,
    options: Options = Options(),  # noqa: B008
    folder: str | os.PathLike[str] | None = None,
) -> Analysis | None:
    """The cost of counting, as a share of the time, from tasks with and without the library; None where no
    task was counted.
    """
    title = "What counting calls costs"
    if COLUMN not in frame:
        return None
    good, _ = as_verified(usable(frame, options.value))
    levels = sorted(good[COLUMN].dropna().map(str).unique()) if len(good) else []
    rules = next((f.values for f in study.factors if f.kind == INTERPOSE), {}) if study is not None else {}
    plain = [level for level in levels if level != OFF and not rules.get(level)]
    if OFF not in levels or not plain:
        why = (
            "all tasks ran with the interposition library"
            if OFF not in levels
            else "no task ran with the library alone"
        )
        return nothing(
            "interposition",
            title,
            f"What interposition costs was not measured: {why} ([interpose] arm).",
            len(good),
        )
    rows = _costs(good, levels, plain, options)
    only = [r for r in rows if r["counting only"]]
    if not only:
        return nothing(
            "interposition",
            title,
            f"What interposition costs cannot be decided with {len(good)} tasks.",
            len(good),
        )
    own, others = _own_facts(good, folder if folder is not None else frame.attrs.get("study"))
    told = "; ".join(f"{percent(r['cost'])} [{percent(r['low'])}, {percent(r['high'])}]" for r in only)
    text = f"The interposition costs {told} of the time ({len(good)} tasks; base: {OFF})"
    if own is not None:
        text += f"; the library's own estimate, calls times what one costs, is {percent(own)}"
    worst = max(abs(r["low"]) if abs(r["low"]) > abs(r["high"]) else abs(r["high"]) for r in only)
    state = DESCRIBED if worst <= options.matters else OPEN
    notes = [f"other tools were preloaded beside it: {', '.join(others)}"] if others else []
    return Analysis(
        "interposition",
        title,
        pd.DataFrame(rows),
        lambda _: (text + ".", state),
        len(good),
        options.alpha,
        (),
        partial(_draw_costs, rows, title),
        {"cost": rows, "own": own},
        notes,
    )
