"""Whether the time correlates with what the system did meanwhile.

Run-queue delay, context switches, pressure, frequency, interrupts, throttling, networks, GPUs and the like.

Spearman's rank correlation of the residuals of both, without conditions, blocks and the order of tasks
(partial correlation: a drift that both follow is no answer). Intervals: Fisher's z with the error of
Bonett and Wright (2000). Tests: Holm.

Load that comes and goes slowly goes with any time that does, without a cause. So tasks count as
fewer where both resemble the ones before: (1 - a b) / (1 + a b) of them (Bretherton and others,
Journal of Climate 12, 1999). b is the largest coefficient that the times could have
(`serial.Null`), a the likely one of the measure.

What a task accumulates grows with its length by itself, so counts and seconds are taken by second of the
task. What is left of that cause has the other sign: a start that costs the same in each task, and a task that
waits and so uses less, make rates fall as tasks get longer. So tests are one-sided: more load (a lower
frequency) with longer tasks. The other direction is listed and no claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import condition_columns, usable
from .correction import holm
from .model import fall_of_bic, left_over, model_of, with_interval
from .power import in_report
from .result import FOUND, OPEN, Analysis, Claim, Judge, Options, nothing
from .serial import LIKELY, Null, with_before

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLUMNS", "load"]

COLUMNS = {
    "run_queue_delay": "run-queue delay",
    "context_switches.involuntary": "involuntary context switches",
    "context_switches.voluntary": "voluntary context switches",
    "page_faults.major": "major page faults",
    "pressure.cpu_some": "CPU pressure",
    "pressure.io_some": "I/O pressure",
    "pressure.memory_some": "memory pressure",
    "frequency_hz.mean": "core frequency",
    "temperature_c": "temperature",
    "page_faults.minor": "minor page faults",
    "counters.irq_seconds": "time in interrupts",
    "counters.softirq_seconds": "time in soft interrupts",
    "counters.steal_seconds": "time that the hypervisor took",
    "counters.device_interrupts": "interrupts of devices",
    "counters.interrupts_NMI": "non-maskable interrupts",
    "counters.interrupts_TLB": "TLB shootdowns",
    "counters.cores_run_queue_seconds": "run-queue delay of all threads on the cores",
    "counters.throttled": "throttling of the processor",
    "counters.quota_seconds": "throttling by the control group",
    "counters.node_major_page_faults": "major page faults of the node",
    "counters.pages_swapped_in": "pages swapped in",
    "counters.memory_compactions": "memory compactions",
    "counters.network_received_bytes": "network, received",
    "counters.network_sent_bytes": "network, sent",
    "counters.network_dropped": "network, dropped packets",
    "counters.fabric_received_bytes": "fabric, received",
    "counters.fabric_sent_bytes": "fabric, sent",
    "counters.fabric_send_waits": "fabric, waits before sending",
    "gpu.clock_mhz": "GPU clock",
    "gpu.memory_clock_mhz": "GPU memory clock",
    "gpu.throttled": "GPU clocks held down",
    "gpu.temperature_c": "GPU temperature",
}
# As they are; all others are accumulated during the task.
_STATES = (
    "frequency_hz.mean",
    "temperature_c",
    "gpu.clock_mhz",
    "gpu.memory_clock_mhz",
    "gpu.throttled",
    "gpu.temperature_c",
)
_FALLS = ("frequency_hz.mean", "gpu.clock_mhz", "gpu.memory_clock_mhz")  # what load lowers


def load(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The partial rank correlation of the time with each column of COLUMNS that varies."""
    title = "Correlation with load"
    good = usable(frame, options.value)
    x = _measures(good, options)
    if len(good) < 8 or not x:
        return nothing("load", title, f"Whether the time goes with the load cannot be decided: {len(good)} tasks, "
                       f"{len(x)} measures of load that vary.", len(good))  # fmt: skip
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    partial = _Partial(
        np.linalg.qr(np.column_stack([model.matrix, stats.zscore(np.arange(len(y), dtype=float))]))[0]
    )
    if partial.freedom < 4:
        return nothing(
            "load",
            title,
            f"Whether the time goes with the load cannot be decided with {len(y)} tasks.",
            len(good),
        )
    if partial.left(y).std() < 1e-9:
        return nothing("load", title, f"All {len(y)} tasks took the same time.", len(good))
    rows, fewest = _correlations(x, y, partial, options)
    claims = [Claim(r["measure"], r["p, Holm"], r) for r in rows]

    def could_see(level: float) -> float:
        """A correlation with the measure that tells least, by Fisher's z; Holm corrects for the measures."""
        far = stats.norm.ppf(1 - level / len(rows)) + stats.norm.ppf(in_report(options.power))
        return float(np.tanh(far / np.sqrt(max(fewest - 1, 0.5))))

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        found = [c.facts["column"] for c in claims if judge.holds(c)]
        if not found:
            return None
        rest = left_over(good, options.value, blocks=False).values
        ranks = np.column_stack([partial.left(x[column]) for column in found])
        effect = ranks @ np.linalg.lstsq(ranks, rest, rcond=None)[0]
        return pd.Series(effect), fall_of_bic(rest, effect, len(found))

    def tell(judge: Judge) -> tuple[str, str]:
        return _sentence(result, judge, options, len(rows), len(y))

    def draw(axes: Axes) -> None:
        best = rows[0]["column"]
        axes.plot(x[best], good[options.value], ".")
        axes.set(xlabel=COLUMNS[best], ylabel=f"{options.value} (s)", title=title)

    result = Analysis("load", title, pd.DataFrame(rows), tell, len(y), options.alpha, claims, draw, {}, _notes(rows, x),
                      explains=explains, could_see=could_see, power=options.power)  # fmt: skip
    return result


def _measures(good: pd.DataFrame, options: Options) -> dict[str, np.ndarray]:
    """The columns of COLUMNS that vary: states as they are, what a task accumulates by second of the task."""
    x = {}
    for column in COLUMNS:
        if column in good:
            values = pd.to_numeric(good[column], errors="coerce").to_numpy(dtype=float)
            if column not in _STATES:
                measured = "as measured" if "as measured" in good and options.value == "wall" else "wall"
                if column.startswith("counters.") and "counters.seconds" in good:
                    measured = "counters.seconds"
                values = values / pd.to_numeric(good[measured], errors="coerce").to_numpy(dtype=float)
            # Counts that are almost always 0 have no useful ranks.
            if np.isfinite(values).all() and len(values) and stats.mode(values).count <= len(values) / 2:
                x[column] = values
    return x


@dataclass(frozen=True)
class _Partial:
    """Ranks without conditions, blocks and the order of tasks. basis: orthonormal, of these."""

    basis: np.ndarray

    @property
    def freedom(self) -> int:
        """Degrees of freedom of a correlation of what is left, of tasks that do not resemble each other."""
        return len(self.basis) - 1 - self.basis.shape[1]

    def left(self, values: np.ndarray) -> np.ndarray:
        ranks = stats.rankdata(values)
        return ranks - self.basis @ (self.basis.T @ ranks)

    def with_before(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is left of each row's first value, and how much each row resembles the values before."""
        ranks = stats.rankdata(rows, axis=1)
        ranks = ranks - (ranks @ self.basis) @ self.basis.T
        return ranks[:, 0], with_before(ranks)


def _correlations(
    x: dict[str, np.ndarray], y: np.ndarray, partial: _Partial, options: Options
) -> tuple[list[dict[str, Any]], float]:
    """A row for each measure, the strongest first; and the fewest degrees of freedom of all."""
    own, full = partial.left(y), partial.freedom
    null = Null(len(y), partial.with_before, lambda rows: rows, np.random.default_rng(options.seed))
    of_time = float(null.coefficients(with_before(own[None]))[0])
    rows: list[dict[str, Any]] = []
    fewest = float(full)
    for column, values in x.items():
        other = partial.left(values)
        both = of_time * float(null.coefficients(with_before(other[None]), LIKELY)[0])
        freedom = max(1.0, full * (1 - both) / (1 + both))
        fewest = min(fewest, freedom)
        r = float(np.corrcoef(own, other)[0, 1]) if other.std() > 1e-9 and own.std() > 1e-9 else 0.0
        t = r * np.sqrt(freedom / max(1 - r * r, 1e-12))
        error = np.sqrt((1 + r * r / 2) / max(freedom - 1, 0.5))
        half = stats.norm.ppf(1 - options.alpha / 2) * error
        z = np.arctanh(np.clip(r, -0.999999, 0.999999))
        rows.append({"measure": COLUMNS[column], "column": column, "Spearman": float(stats.spearmanr(y, values).statistic),
                     "by": "as it is" if column in _STATES else "second of the task",
                     "partial": r, "low": float(np.tanh(z - half)), "high": float(np.tanh(z + half)),
                     "p": float(stats.t.sf(-t if column in _FALLS else t, freedom))})  # fmt: skip
    corrected = holm([r["p"] for r in rows])
    for row, p in zip(rows, corrected, strict=True):
        row["p, Holm"] = float(p)
    rows.sort(key=lambda r: -abs(r["partial"]))
    return rows, fewest


def _notes(rows: list[dict[str, Any]], x: dict[str, np.ndarray]) -> list[str]:
    """Correlations that have a cause other than load."""
    falling = [r["measure"] for r in rows if r["column"] not in _STATES and r["high"] < 0]
    notes = (
        [f"longer tasks have less of these by second, as tasks that only wait do: {', '.join(falling)}"]
        if falling
        else []
    )
    if "temperature_c" in x or "gpu.temperature_c" in x:
        notes.append("temperature rises with the length of a task by itself")
    return notes


def _sentence(result: Analysis, judge: Judge, options: Options, measures: int, tasks: int) -> tuple[str, str]:
    """What is said, and its state."""
    found = [c for c in result.claims if judge.holds(c)]
    data = f"{tasks} tasks; by second of the task; conditions, blocks and order taken out"
    if found:
        told = "; ".join(f"{c.what}: {with_interval(c.facts['partial'], c.facts['low'], c.facts['high'], (0.0,), sign='+')} ({judge.p(c)})"
                         for c in found)  # fmt: skip
        return (
            f"The time correlates with the load (rank correlation): {told} ({data}); that is no proof of cause.",
            FOUND,
        )
    return (f"No correlation with load is shown ({measures} measures, {data}): one of {result.seen:.2f} could have been seen in "
            f"about {100 * options.power:g}% of studies like this, a weaker one cannot be decided."), OPEN  # fmt: skip
