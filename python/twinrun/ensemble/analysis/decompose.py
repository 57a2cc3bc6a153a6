"""Slow minus fast tasks: compute, MPI, I/O, and how long tasks waited for a core.

Two partitions of a rank's time; each adds up to it: by call (inside MPI, inside I/O, the rest,
which is compute), and by scheduler (on a core, waiting for one, blocked). They overlap: a rank that
waits in MPI may be waiting for another that has no core. So shares of variance are Shapley values
(Lindeman, Merenda and Gold): a component's mean gain in R^2 over all orders in which components can
enter; and the share that run-queue delay has in common with the others is reported beside its own.
Seconds are means over ranks, with the sum of run-queue delay beside them: where ranks wait for each
other, each one's delay can hold up all, so the time lost to it lies between mean and sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...bootstrap import interval
from ..study.interposition import OFF
from ..study.tasks import condition_columns, load_profiles, usable
from .model import model_of, percent
from .profiles import COLUMN, difference_of_profiles
from .result import DESCRIBED, OPEN, Analysis, Judge, Options, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["components", "decompose", "difference_of_profiles", "shapley"]

_MPI = ("mpi_collective", "mpi_point_to_point", "mpi_wait", "mpi_one_sided", "mpi_other")
_IO = ("mpi_file", "posix_read", "posix_write", "posix_meta", "stdio")
_LEAST = 12  # tasks
_NAMES = {"compute": "compute", "mpi": "MPI", "io": "I/O", "delay": "run-queue delay", "cpu": "on a core", "blocked": "blocked"}  # fmt: skip


def _seconds(ranks: Sequence[dict], groups: Sequence[str]) -> float:
    """Mean over ranks of the time in calls of these groups."""
    return float(
        np.mean([sum(c["seconds"] for c in r["calls"].values() if c["group"] in groups) for r in ranks])
    )


def components(good: pd.DataFrame, profiles: Sequence[Sequence[dict]], value: str = "wall") -> pd.DataFrame:
    """A row for each task, in s: wall; compute, mpi, io (nan without profiles); delay (mean over ranks),
    delay_sum; cpu, blocked.

    compute is the rest of the wall time, also before MPI_Init and after MPI_Finalize.
    """
    rows = []
    given = {
        c: pd.to_numeric(good[c], errors="coerce").to_numpy() if c in good else np.full(len(good), np.nan)
        for c in ("run_queue_delay", "user", "system")
    }
    for k, ranks in enumerate(profiles):
        wall = float(good[value].iloc[k])
        row = {"wall": wall, "compute": math.nan, "mpi": math.nan, "io": math.nan}
        total = float(given["run_queue_delay"][k])
        cpu = math.nan
        if ranks:
            row["mpi"], row["io"] = _seconds(ranks, _MPI), _seconds(ranks, _IO)
            row["compute"] = wall - row["mpi"] - row["io"]
            if all(r.get("run_queue_delay") is not None for r in ranks):
                total = sum(float(r["run_queue_delay"]) for r in ranks)
            if all(r.get("cpu") is not None for r in ranks):
                cpu = float(np.mean([r["cpu"] for r in ranks]))
        else:
            cpu = float(given["user"][k] + given["system"][k])
        width = max(len(ranks), 1)
        row["delay_sum"], row["delay"] = total, total / width
        # More than one thread in a rank: its core seconds are no part of its wall time.
        alone = math.isfinite(cpu) and cpu + total / width <= 1.05 * wall
        row["cpu"], row["blocked"] = (cpu, wall - cpu - total / width) if alone else (math.nan, math.nan)
        rows.append(row)
    return pd.DataFrame(rows)


def shapley(data: np.ndarray) -> np.ndarray:
    """Shares of the variance of column 0 by the other k columns: (2 k + 1, m) for data of (m, n, 1 + k).

    First the Shapley values over R^2, then R^2 of each column alone, then R^2 of all."""
    m, _, width = data.shape
    k = width - 1
    d = data - data.mean(axis=1, keepdims=True)
    covariance = np.einsum("mia,mib->mab", d, d)
    scale = np.sqrt(np.einsum("maa->ma", covariance))
    correlation = covariance / np.maximum(scale[:, :, None] * scale[:, None, :], 1e-300)
    explained: dict[tuple[int, ...], np.ndarray] = {(): np.zeros(m)}
    for size in range(1, k + 1):
        for group in itertools.combinations(range(1, width), size):
            at = np.array(group)
            # Components that add up to the whole are collinear: the pseudo-inverse handles that.
            inverse = np.linalg.pinv(correlation[:, at[:, None], at[None, :]], rcond=1e-9, hermitian=True)
            r = correlation[:, at, 0]
            explained[group] = np.clip(np.einsum("ma,mab,mb->m", r, inverse, r), 0, 1)
    shares = []
    for j in range(1, width):
        others = [i for i in range(1, width) if i != j]
        mean = np.zeros(m)
        for size in range(k):
            groups = list(itertools.combinations(others, size))
            for group in groups:
                gain = explained[tuple(sorted((*group, j)))] - explained[group]
                mean += gain / len(groups) / k
        shares.append(mean)
    alone = [explained[(j,)] for j in range(1, width)]
    return np.array([*shares, *alone, explained[tuple(range(1, width))]])


def _slow_minus_fast(data: np.ndarray) -> np.ndarray:
    """(columns, m): means of the slowest quarter minus means of the fastest, by column 0."""
    quarter = max(1, data.shape[1] // 4)
    order = np.argsort(data[:, :, 0], axis=1, kind="stable")
    fast = np.take_along_axis(data, order[:, :quarter, None], axis=1).mean(axis=1)
    slow = np.take_along_axis(data, order[:, -quarter:, None], axis=1).mean(axis=1)
    return (slow - fast).T


@dataclass
class _Parts:
    """What is left of the parts of each task's time, conditions and blocks taken out.

    everything: the columns of `left`, the wall time first; columns: those of them that explain it;
    middle: the median task, in s.
    """

    columns: list[str]
    everything: list[str]
    left: np.ndarray
    middle: float
    options: Options

    @property
    def count(self) -> int:
        return len(self.columns)

    def _resampled(
        self, data: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], method: str = "BCa"
    ) -> tuple[np.ndarray, np.ndarray]:
        return interval(
            [len(data)],
            lambda rows: statistic(data[rows]),
            confidence=self.options.confidence,
            resamples=self.options.resamples,
            rng=np.random.default_rng(self.options.seed),
            method=method,
            batch=max(1, 2_000_000 // max(data.size, 1)),
        )

    @cached_property
    def shares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the variance, as `shapley`, with intervals."""
        data = self.left[:, : 1 + self.count]
        return shapley(data[None])[:, 0], *self._resampled(data, shapley)

    @cached_property
    def more(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds of the slow quarter above the fast one, with intervals."""
        return _slow_minus_fast(self.left[None])[:, 0], *self._resampled(
            self.left, _slow_minus_fast, "percentile"
        )

    def table(self) -> pd.DataFrame:
        left, (more, low, high), (shares, share_low, share_high) = self.left, self.more, self.shares
        slowest, fastest = int(np.argmax(left[:, 0])), int(np.argmin(left[:, 0]))
        rows = []
        for i, c in enumerate(self.everything):
            row = {"part": "wall" if c == "wall" else _NAMES.get(c, "run-queue delay, sum over ranks"),
                   "slow - fast quarter (s)": more[i], "low": low[i], "high": high[i],
                   "of the median task": more[i] / self.middle, "slowest - fastest task (s)": left[slowest, i] - left[fastest, i]}  # fmt: skip
            if c in self.columns:
                j = self.columns.index(c)
                row |= {"share of variance": shares[j], "share low": share_low[j], "share high": share_high[j],
                        "R2 alone": shares[self.count + j]}  # fmt: skip
            rows.append(row)
        return pd.DataFrame(rows)

    def calls(self, profiles: Sequence[Sequence[dict]]) -> list[dict]:
        """The calls of the slow quarter beside those of the fast one."""
        order = np.argsort(self.left[:, 0], kind="stable")
        quarter = max(1, len(order) // 4)
        found = difference_of_profiles(
            [profiles[i] for i in order[-quarter:]], [profiles[i] for i in order[:quarter]]
        )
        return found.to_dict("records")

    def _explained(self, parts: Sequence[int]) -> float:
        """R^2 of these columns together."""
        return float(shapley(self.left[None][:, :, [0, *(1 + i for i in parts)]])[-1, 0])

    def commonality(self) -> dict[str, float]:
        """A part of what run-queue delay explains is explained by the others too."""
        k, shares, d = self.count, self.shares[0], self.columns.index("delay")
        own = float(np.clip(shares[2 * k] - self._explained([i for i in range(k) if i != d]), 0, 1))
        found = {
            "delay_alone": float(shares[k + d]),
            "only_delay": own,
            "in_common": float(shares[k + d]) - own,
        }
        if "mpi" in self.columns:
            m = self.columns.index("mpi")
            found["delay_and_mpi"] = float(shares[k + d] + shares[k + m] - self._explained([d, m]))
        return found

    def tell(self, facts: Mapping[str, Any], _: Judge) -> tuple[str, str]:
        (more, low, high), (shares, share_low, share_high) = self.more, self.shares
        listed = []
        for j, c in enumerate(self.columns):
            i = self.everything.index(c)
            listed.append(f"{_NAMES[c]} {more[i]:+.3g} s [{low[i]:.3g}, {high[i]:.3g}] and {percent(shares[j])} "
                          f"[{percent(share_low[j])}, {percent(share_high[j])}] of the variance")  # fmt: skip
        text = (f"The slowest quarter of {len(self.left)} tasks took {more[0]:.3g} s longer than the fastest, {percent(more[0] / self.middle)} of "
                f"the median task ({self.middle:.4g} s, the base): {'; '.join(listed)}")  # fmt: skip
        if self.count == 1:
            return text + "; without profiles of calls, what is MPI and what is I/O cannot be decided.", OPEN
        common = facts.get("commonality", {})
        if "delay_and_mpi" in common:
            text += (f"; run-queue delay alone goes with {percent(common['delay_alone'])} of the variance, "
                     f"{percent(max(0.0, common['delay_and_mpi']))} in common with MPI")  # fmt: skip
        return text + " (run-queue delay lies within the other parts, it does not add to them).", DESCRIBED

    def draw(self, title: str, axes: Axes) -> None:
        more, more_low, more_high = self.more
        shown = [i for i, c in enumerate(self.everything) if c not in ("wall", "delay_sum")]
        at = np.arange(len(shown))[::-1]
        low = np.maximum(more[shown] - more_low[shown], 0)
        high = np.maximum(more_high[shown] - more[shown], 0)
        axes.barh(at, more[shown], xerr=[low, high], color="#4878a8", capsize=3)
        axes.set_yticks(at, [_NAMES[self.everything[i]] for i in shown])
        axes.axvline(more[0], color="#a84848", linewidth=1, label="all of it")
        axes.legend()
        axes.set(xlabel="slow minus fast quarter (s)", title=title)


def _with_profiles(
    frame: pd.DataFrame, options: Options, profiles: Sequence[Sequence[dict]] | None
) -> tuple[pd.DataFrame, Sequence[Sequence[dict]]]:
    """Good tasks and their profiles. Tasks without the library measure its cost: they are left out."""
    good = usable(frame, options.value)
    if profiles is None:
        profiles = (
            load_profiles(good, frame.attrs.get("study")) if "study" in frame.attrs else [[]] * len(good)
        )
    if COLUMN not in good:
        return good, profiles
    counted = (good[COLUMN].map(str) != OFF).to_numpy()
    return good[counted].reset_index(drop=True), [p for p, k in zip(profiles, counted, strict=True) if k]


def _left(good: pd.DataFrame, parts: pd.DataFrame, columns: list[str], options: Options) -> _Parts:
    split = [c for c in ("cpu", "blocked") if parts[c].notna().all()]
    everything = ["wall", *columns, *(["delay_sum"] if "delay" in columns else []), *split]
    raw = parts[everything].to_numpy(dtype=float)
    q = np.linalg.qr(model_of(good, raw[:, 0], condition_columns(good)).matrix)[0]
    return _Parts(columns, everything, raw - q @ (q.T @ raw), float(np.median(parts["wall"])), options)


def decompose(
    frame: pd.DataFrame,
    options: Options = Options(),  # noqa: B008
    profiles: Sequence[Sequence[dict]] | None = None,
) -> Analysis:
    """The extra time of the slowest quarter of tasks against the fastest, and the share of the variance of
    each part.

    Conditions and blocks are removed from all parts alike. profiles: those of usable(frame),
    otherwise read from attrs["study"].
    """
    title = "Where slow tasks lose their time"
    good, profiles = _with_profiles(frame, options, profiles)
    if len(good) < _LEAST:
        return nothing("decompose", title, f"Where slow tasks lose their time cannot be decided with {len(good)} tasks; it takes "
                       f"{_LEAST} and more.", len(good))  # fmt: skip
    parts = components(good, profiles, options.value)
    columns = [c for c in ("compute", "mpi", "io", "delay") if parts[c].notna().all()]
    without = int(parts["mpi"].isna().sum())
    if "mpi" not in columns:
        columns = [c for c in columns if c == "delay"]
    if not columns or parts["wall"].std() <= 1e-12 * parts["wall"].mean():
        return nothing("decompose", title, f"Where slow tasks lose their time cannot be decided: {len(good)} tasks, "
                       f"{len(good) - without} with profiles of calls, {int(parts['delay'].notna().sum())} with run-queue delay.",
                       len(good))  # fmt: skip
    own = _left(good, parts, columns, options)
    table = own.table()
    facts: dict[str, Any] = {"base": own.middle, "parts": table.replace({np.nan: None}).to_dict("records")}
    if "mpi" in columns:
        facts["calls"] = own.calls(profiles)
    if "delay" in columns and own.count > 1:
        facts["commonality"] = own.commonality()
    has_both = any(c["group"] == "mpi_file" for ranks in profiles for r in ranks for c in r["calls"].values())
    notes = [
        "time in an MPI file call includes the POSIX calls it makes where the library calls them through the same symbols"
    ]
    return Analysis("decompose", title, table, partial(own.tell, facts), len(good), options.alpha, (), partial(own.draw, title), facts,
                    notes if has_both else [])  # fmt: skip
