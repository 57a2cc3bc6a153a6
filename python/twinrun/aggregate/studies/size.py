"""Bandwidth and its variation, against particles of a rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...ensemble import intervals
from ...ensemble.intervals import Interval
from .engine import Blocks, Condition, key
from .launch import RESULTS, Job, Result
from .report import Finding, beyond, joint, names_of, percent, save_picture, size_text, table, top
from .study import ManyStacks, Rate, launch_arguments, storage_identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PARTICLES", "Size"]

PARTICLES = (5_000, 10_000, 25_000, 50_000, 75_000, 100_000)


class _OfMethod(Struct):
    rate: Rate
    order: int
    phases: dict[str, float]


class _Results(Struct):
    """Of a run: by method."""

    mpi: str
    hosts: dict[str, int]
    begin: float
    methods: dict[str, _OfMethod]


@dataclass(frozen=True, kw_only=True)
class Size(ManyStacks):
    """The study of sizes. A run is a launch of haccio: a warm-up, then each method once.

    precision: the precision to reach, of means (relative) and coefficients of variation (absolute). target: a
    coefficient of variation that is small enough. synced: the time of fsync counts.
    """

    name = "size"
    results = _Results
    folder: Path
    particles: Sequence[int] = PARTICLES
    methods: Sequence[str] = ("aggregate", "posix-packed", "mpiio-collective")
    layout: str = "records"
    operation: str = "write"
    synced: bool = False
    target: float = 0.10

    def own_identity(self) -> dict:
        """What runs of one journal have in common."""
        return {
            **storage_identity(self.folder, self.layout, self.synced),
            "particles": sorted(self.particles),
            "methods": list(self.methods),
            "operation": self.operation,
        }

    def factors(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """The MPI library, and how many particles."""
        return {"stack": range(len(self.stacks)), "particles": sorted(set(self.particles))}

    def job(self, condition: Condition, block: int, prefix: str) -> Job:
        """All methods once, after a warm-up."""
        operations = "write" if self.operation == "write" else "write,read"
        arguments = [
            *("--particles", str(condition["particles"]), "--layout", self.layout),
            *("--operations", operations, *launch_arguments(self.warmup, 1, block)),
            *("--sync", "after" if self.synced else "none"),
            *(word for m in self.methods for word in ("--method", m)),
            *self.arguments,
            f"{prefix}data",
        ]
        return Job(self.stacks[condition["stack"]], self.ranks, arguments)

    def read(self, condition: Condition, own: Path) -> dict:
        """The bandwidth of each method."""
        result = Result.of(own / RESULTS)
        rate = "synced_bytes_per_second" if self.synced and self.operation == "write" else "bytes_per_second"
        done = [x for x in result.all("repetition") if x["operation"] == self.operation]
        if not done:
            raise ValueError("there is no line of kind 'repetition'")
        return {
            "mpi": result.run["mpi"],
            "hosts": result.run["hosts"],
            "begin": done[0]["begin"],
            "methods": {
                x["method"]: {"rate": x[rate], "order": x["order"], "phases": x["phases"]} for x in done
            },
        }

    def flaw(self, condition: Condition, results: Mapping[str, Any]) -> str | None:
        """Also where a method is missing."""
        wrong = super().flaw(condition, results)
        missing = [m for m in self.methods if wrong is None and m not in results["methods"]]
        return f"it has nothing of method {missing[0]}" if missing else wrong

    def _rates(self, blocks: Blocks, stack: int, particles: int, method: str) -> list[float]:
        k = key({"stack": stack, "particles": particles})
        return [b[k]["methods"][method]["rate"] for b in blocks]

    def _cells(self, blocks: Blocks) -> list[tuple[int, str, int, list[float]]]:
        return [
            (s, m, n, self._rates(blocks, s, n, m))
            for s in range(len(self.stacks))
            for m in self.methods
            for n in sorted(self.particles)
        ]

    def enough(self, blocks: Blocks) -> bool:
        """Whether all means and coefficients of variation are precise enough."""
        for *_, rates in self._cells(blocks):
            mean = intervals.mean(rates, self.confidence)
            if not mean.within(self.precision * mean.value):
                return False
            if not intervals.variation(rates, self.confidence).within(self.precision):
                return False
        return True

    def result(self, blocks: Blocks, ended: bool) -> dict:
        """All figures, and what follows from them. ended: the intervals are as narrow as was asked."""
        names = names_of(r for b in blocks for r in b.values())
        rows = [
            {
                "stack": s,
                "mpi": names.get(s),
                "method": m,
                "particles": n,
                "bytes_per_rank": 38 * n,
                "mean": intervals.mean(rates, self.confidence).json(),
                "deviation": intervals.deviation(rates, self.confidence).json(),
                "variation": intervals.variation(rates, self.confidence).json(),
                "rates": rates,
            }
            for s, m, n, rates in self._cells(blocks)
        ]
        return self.document(blocks, ended, rows, target=self.target)

    def guidance(self, blocks: Blocks) -> list[Finding]:
        """Guidance: which size, which method, which stack."""
        names = names_of(r for b in blocks for r in b.values())
        found = []
        for s in range(len(self.stacks)):
            for m in self.methods:
                place = f"{m}, {names[s]}"
                found.append(self._size_finding(blocks, s, m, place))
                if len(self.particles) > 1:
                    found.append(self._trend_finding(blocks, s, m, place))
        if len(self.stacks) * len(self.methods) > 1:
            found.append(self._best_finding(blocks, names))
        return found

    def _size_finding(self, blocks: Blocks, stack: int, method: str, place: str) -> Finding:
        """Guidance: from which size on the coefficient of variation is small enough."""
        sizes = sorted(self.particles)
        confidence = joint(self.confidence, len(sizes))
        known = {n: intervals.variation(self._rates(blocks, stack, n, method), confidence) for n in sizes}

        def first(fits: dict[int, bool]) -> int | None:
            start = None
            for n in reversed(sizes):
                if not fits[n]:
                    break
                start = n
            return start

        sure = first({n: i.known and i.high <= self.target for n, i in known.items()})
        possible = first({n: not i.known or i.low <= self.target for n, i in known.items()})
        target = percent(self.target)
        shown = "; ".join(
            f"{known[n].text(100, '%')} at {n}" for n in sorted({sizes[0], sure or sizes[-1], sizes[-1]})
        )
        if sure is not None and sure == possible:
            where = "at all sizes" if sure == sizes[0] else f"from {size_text(sure)} on"
            return Finding(f"{place}: runs vary by no more than {target} {where} ({shown})", True)
        if possible is None:
            return Finding(
                f"{place}: runs vary by more than {target} at the largest size too ({shown})", True
            )
        return Finding(
            f"{place}: from which size on runs vary by no more than {target} {beyond(len(blocks))} ({shown})",
            False,
        )

    def _trend_finding(self, blocks: Blocks, stack: int, method: str, place: str) -> Finding:
        """Guidance: whether small jobs vary more than large ones."""
        small, large = min(self.particles), max(self.particles)
        ratio = intervals.ratio_of_variations(
            self._rates(blocks, stack, small, method),
            self._rates(blocks, stack, large, method),
            self.confidence,
        )
        shown = f"coefficient of variation at {small} by that at {large} particles a rank: {ratio.text(marks=(1.0,))}"
        if ratio.low > 1:
            return Finding(f"{place}: small jobs vary more ({shown})", True)
        if ratio.high < 1:
            return Finding(f"{place}: large jobs vary more ({shown})", True)
        return Finding(
            f"{place}: whether small jobs vary more than large ones {beyond(len(blocks))} ({shown})", False
        )

    def _best_finding(self, blocks: Blocks, names: dict[int, str]) -> Finding:
        """Guidance: the fastest of all methods and stacks, at the largest size."""
        n = max(self.particles)
        ways = [(s, m) for s in range(len(self.stacks)) for m in self.methods]
        rates = {w: self._rates(blocks, w[0], n, w[1]) for w in ways}
        best, *others = sorted(ways, key=lambda w: -math.fsum(rates[w]))
        confidence = joint(self.confidence, len(others))
        ratios = {w: intervals.ratio_of_means(rates[best], rates[w], confidence) for w in others}
        nearest = min(ratios, key=lambda w: ratios[w].low)
        ratio = ratios[nearest]
        first, second = (f"{m}, {names[s]}" if len(self.stacks) > 1 else m for s, m in (best, nearest))
        shown = f"{ratio.text(marks=(1.0,))} times {second} at {size_text(n)}, {self.operation}{' and fsync' if self.synced else ''}"
        if ratio.low > 1:
            return Finding(f"fastest: {first} ({shown})", True)
        return Finding(f"which is fastest {beyond(len(blocks))}: {first} is {shown}", False)


def lines(result: dict) -> list[str]:
    """A table of a result."""
    several = len(result["stacks"]) > 1
    header = ["method", "particles", "MB a rank", "MB/s", "deviation", "CoV"]
    rows = []
    for r in result["rows"]:
        mean, deviation, variation = (Interval.of(r[k]) for k in ("mean", "deviation", "variation"))
        rows.append(
            [
                f"{r['method']}, {r['mpi']}" if several else r["method"],
                str(r["particles"]),
                f"{r['bytes_per_rank'] / 1e6:.3g}",
                mean.text(1e-6),
                deviation.text(1e-6),
                variation.text(100, "%"),
            ]
        )
    return table(header, rows)


def draw(result: dict, path: str | Path) -> None:
    """Bandwidth, standard deviation and coefficient of variation against particles of a rank."""
    several = len(result["stacks"]) > 1
    series: dict[str, list[dict]] = {}
    for r in result["rows"]:
        series.setdefault(f"{r['method']}, {r['mpi']}" if several else r["method"], []).append(r)

    def panel(quantity: str, scale: float, label: str) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            for i, (name, rows) in enumerate(series.items()):
                xs = [r["particles"] * (1 + 0.012 * (i - len(series) / 2)) for r in rows]
                known = [Interval.of(r[quantity]) for r in rows]
                values = [scale * v.value for v in known]
                bars = list(zip(*(v.bars(scale) for v in known), strict=True))
                axes.errorbar(xs, values, yerr=bars, fmt="o-", capsize=3, label=name)
            axes.set_xscale("log")
            sizes = result["particles"]
            axes.set_xticks(sizes, [str(n) for n in sizes], fontsize=8)
            axes.set_xticks([], minor=True)
            axes.set_xlabel("particles a rank")
            axes.set_ylabel(label)
            axes.set_ylim(0, top(scale, [Interval.of(r[quantity]) for rows in series.values() for r in rows]))
            if quantity == "variation":
                axes.axhline(scale * result["target"], color="black", linestyle="--", linewidth=1)
            axes.legend(fontsize=8)

        return paint

    title = (
        f"{result['layout']}, {result['ranks']} ranks, {result['operation']}, {result['blocks']} repetitions"
    )
    save_picture(
        path,
        [
            panel("mean", 1e-6, "bandwidth, MB/s"),
            panel("deviation", 1e-6, "standard deviation, MB/s"),
            panel("variation", 100, "coefficient of variation, %"),
        ],
        title,
    )
