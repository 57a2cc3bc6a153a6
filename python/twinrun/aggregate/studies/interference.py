"""A job alone, and the same job beside a second one of varying intensity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from ...ensemble import intervals
from ...ensemble.intervals import Interval
from .engine import Blocks, Condition, key
from .launch import OTHER, RESULTS, Job, Result, Stack
from .report import Finding, beyond, joint, percent, save_picture, table, top
from .study import Rate, Study, stack_words, storage_identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["INTENSITIES", "Interference"]

INTENSITIES = (0.2, 0.5, 1.0, 2.0, 4.0)  # MB of a rank, as on Mira
_FOR_EVER = 1_000_000_000  # repetitions; the second job ends on request
_PARTICLE = 38e-6  # MB


class _Results(Struct):
    """Results of a run. overlap: the share of the job's time in which the second one wrote,
    other_rate: how fast.
    """

    mpi: str
    hosts: dict[str, int]
    begin: float
    rate: Rate
    rates: list[Rate]
    overlap: Annotated[float, Meta(ge=0, le=1)] | None = None
    other_rate: Rate | None = None


@dataclass(frozen=True, kw_only=True)
class Interference(Study):
    """The study of interference.

    A run is a launch of the job, `repeat` repetitions, with the second job running throughout or not at all.

    precision: the precision to reach, of losses (absolute). tolerated: a loss that does not matter.
    """

    name = "interference"
    results = _Results
    stack: Stack
    folder: Path
    particles: int = 52_632  # 2 MB a rank, as the paper's
    intensities: Sequence[float] = INTENSITIES
    other_ranks: int = 0  # 0: the same number
    method: str = "aggregate"
    other_method: str = ""  # the same
    layout: str = "records"
    synced: bool = False
    repeat: int = 3
    tolerated: float = 0.05

    def own_identity(self) -> dict:
        """What runs of one journal have in common."""
        return {
            "stack": stack_words(self.stack),
            "other_ranks": self.other_ranks or self.ranks,
            **storage_identity(self.folder, self.layout, self.synced),
            "particles": self.particles,
            "intensities": sorted(self.intensities),
            "method": self.method,
            "other_method": self.other_method or self.method,
            "repeat": self.repeat,
        }

    def factors(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """How much the second job writes: nothing (alone), then the intensities."""
        return {"intensity": (0.0, *sorted(set(self.intensities)))}

    def _arguments(self, method: str, particles: int, repeat: int) -> list[str]:
        return [
            *(
                "--method",
                method,
                "--particles",
                str(particles),
                "--layout",
                self.layout,
                "--repeat",
                str(repeat),
            ),
            *("--sync", "after" if self.synced else "none", *self.arguments),
        ]

    def job(self, condition: Condition, block: int, prefix: str) -> Job:
        """The job, alone or beside the second one."""
        intensity = condition["intensity"]
        own = ["--warmup", str(self.warmup), *self._arguments(self.method, self.particles, self.repeat)]
        own.append(f"{prefix}a")
        if intensity == 0:
            return Job(self.stack, self.ranks, own)
        # The second job ends when it finds this file.
        stop = f"{prefix}stop"
        particles = max(round(intensity / _PARTICLE), 1)
        other = self._arguments(self.other_method or self.method, particles, _FOR_EVER)
        # Without that file the second job ends after the time of two of the longest runs.
        other += ["--until", stop, "--seconds", str(2 * self.seconds), f"{prefix}b"]
        beside = Job(self.stack, self.other_ranks or self.ranks, other)
        return Job(self.stack, self.ranks, own, beside, stop)

    def read(self, condition: Condition, own: Path) -> dict:
        """The bandwidth of the job, and of the second one meanwhile."""
        other = None if condition["intensity"] == 0 else Result.of(own / OTHER)
        return self._record(Result.of(own / RESULTS), other)

    def flaw(self, condition: Condition, results: Mapping[str, Any]) -> str | None:
        """Also checks that the results have figures of the second job."""
        wrong = super().flaw(condition, results)
        both = results.get("overlap") is not None and "other_rate" in results
        if wrong is None and condition["intensity"] and not both:
            return "it has nothing of the second job"
        return wrong

    def _taken(self, x: dict) -> float:
        return x["seconds"] + (x.get("sync_seconds", 0.0) if self.synced else 0.0)

    def _record(self, own: Result, other: Result | None) -> dict:
        mine = own.all("repetition")
        if not mine:
            raise ValueError("there is no line of kind 'repetition'")
        record = {
            "mpi": own.run["mpi"],
            "hosts": own.run["hosts"],
            "begin": mine[0]["begin"],
            "rate": sum(x["bytes"] for x in mine) / sum(map(self._taken, mine)),
            "rates": [x["bytes"] / self._taken(x) for x in mine],
        }
        if other is not None:
            spans = [(x["begin"], x["begin"] + self._taken(x)) for x in mine]
            during = [
                x
                for x in other.all("repetition")
                if any(x["begin"] < end and x["begin"] + self._taken(x) > begin for begin, end in spans)
            ]
            covered = sum(
                max(0.0, min(end, x["begin"] + self._taken(x)) - max(begin, x["begin"]))
                for begin, end in spans
                for x in during
            )
            record["overlap"] = min(covered / sum(end - begin for begin, end in spans), 1.0)
            taken = sum(map(self._taken, during))
            record["other_rate"] = sum(x["bytes"] for x in during) / taken if taken else None
        return record

    def _rates(self, blocks: Blocks, intensity: float) -> list[float]:
        return [b[key({"intensity": intensity})]["rate"] for b in blocks]

    def _loss(self, blocks: Blocks, intensity: float, confidence: float) -> Interval:
        alone = self._rates(blocks, 0.0)
        return intervals.ratio_of_means(self._rates(blocks, intensity), alone, confidence).loss()

    def enough(self, blocks: Blocks) -> bool:
        """Whether all losses are precise enough."""
        return all(self._loss(blocks, x, self.confidence).within(self.precision) for x in self.intensities)

    def result(self, blocks: Blocks, ended: bool) -> dict:
        """All figures, and what follows from them."""
        rows = []
        for x in (0.0, *sorted(self.intensities)):
            rates = self._rates(blocks, x)
            runs = [b[key({"intensity": x})] for b in blocks]
            row = {
                "intensity": x,
                "mean": intervals.mean(rates, self.confidence).json(),
                "deviation": intervals.deviation(rates, self.confidence).json(),
                "variation": intervals.variation(rates, self.confidence).json(),
                "rates": rates,
            }
            if x:
                others = [r["other_rate"] for r in runs if r["other_rate"]]
                alone = self._rates(blocks, 0.0)
                row |= {
                    "loss": self._loss(blocks, x, self.confidence).json(),
                    "deviation_ratio": intervals.ratio_of_deviations(rates, alone, self.confidence).json(),
                    "other_mean": intervals.mean(others, self.confidence).json(),
                    "other_deviation": intervals.deviation(others, self.confidence).json(),
                    "overlap": intervals.median([r["overlap"] for r in runs]) if runs else None,
                }
            rows.append(row)
        runs = [r for b in blocks for r in b.values()]
        facts = {
            "mpi": sorted({r["mpi"] for r in runs}),
            "hosts": sorted({h for r in runs for h in r["hosts"]}),
        }
        return self.document(blocks, ended, rows, **facts, tolerated=self.tolerated)

    def guidance(self, blocks: Blocks) -> list[Finding]:
        """Guidance: beside which jobs this one may run."""
        return [*self._of_losses(blocks), self._of_deviations(blocks), *self._limits(blocks)]

    def _of_losses(self, blocks: Blocks) -> list[Finding]:
        """Which jobs cost more than is tolerated."""
        intensities = sorted(self.intensities)
        confidence = joint(self.confidence, len(intensities))
        losses = {x: self._loss(blocks, x, confidence) for x in intensities}
        shown = "; ".join(f"{losses[x].text(100, '%')} beside {x:g} MB a rank" for x in intensities)
        harmful = [x for x in intensities if losses[x].known and losses[x].low > self.tolerated]
        harmless = [x for x in intensities if losses[x].known and losses[x].high <= self.tolerated]
        limit = percent(self.tolerated)
        found = []
        if harmful:
            found.append(
                Finding(
                    f"allocate so that no job writes {harmful[0]:g} MB a rank or more to the same storage beside this one: "
                    f"it loses over {limit} of its bandwidth ({shown})",
                    True,
                )
            )
        elif len(harmless) == len(intensities):
            found.append(
                Finding(f"any allocation will do: a job beside costs no more than {limit} ({shown})", True)
            )
        undecided = [x for x in intensities if x not in harmful and x not in harmless]
        if undecided:
            which = ", ".join(f"{x:g}" for x in undecided)
            found.append(
                Finding(
                    f"whether a job of {which} MB a rank beside costs more than {limit} {beyond(len(blocks))} ({shown})",
                    False,
                )
            )
        return found

    def _of_deviations(self, blocks: Blocks) -> Finding:
        """Whether the bandwidth varies more beside the strongest job."""
        strongest = max(self.intensities)
        ratio = intervals.ratio_of_deviations(
            self._rates(blocks, strongest), self._rates(blocks, 0.0), self.confidence
        )
        shown = f"standard deviation beside {strongest:g} MB a rank by that alone: {ratio.text(marks=(1.0,))}"
        if ratio.low > 1:
            return Finding(f"a job beside makes the bandwidth vary more ({shown})", True)
        if ratio.high < 1:
            return Finding(f"a job beside makes the bandwidth vary less ({shown})", True)
        return Finding(
            f"whether a job beside makes the bandwidth vary more {beyond(len(blocks))} ({shown})", False
        )

    def _limits(self, blocks: Blocks) -> list[Finding]:
        """What the losses hold beside the effect of storage."""
        runs = [r for b in blocks for r in b.values()]
        hosts = sorted({h for r in runs for h in r["hosts"]})
        found = []
        if len(hosts) == 1:
            found.append(
                Finding(
                    f"both jobs ran on {hosts[0]} alone, so that losses hold its processors and memory too, not storage only",
                    True,
                )
            )
        overlaps = [r["overlap"] for r in runs if "overlap" in r]
        if overlaps and intervals.median(overlaps) < 0.5:
            found.append(
                Finding(
                    f"the second job was writing for only {percent(intervals.median(overlaps))} of the first one's time "
                    "(the median run): losses are those of a job that writes now and then",
                    True,
                )
            )
        return found


def lines(result: dict) -> list[str]:
    """A table of a result."""
    header = ["beside", "MB/s", "deviation", "CoV", "loss", "deviation by that alone", "other MB/s"]
    rows = []
    for r in result["rows"]:
        rows.append(
            [
                f"{r['intensity']:g} MB a rank" if r["intensity"] else "nothing",
                Interval.of(r["mean"]).text(1e-6),
                Interval.of(r["deviation"]).text(1e-6),
                Interval.of(r["variation"]).text(100, "%"),
                Interval.of(r["loss"]).text(100, "%") if r["intensity"] else "",
                Interval.of(r["deviation_ratio"]).text() if r["intensity"] else "",
                Interval.of(r["other_mean"]).text(1e-6) if r["intensity"] else "",
            ]
        )
    return table(header, rows)


def draw(result: dict, path: str | Path) -> None:
    """Bandwidth and loss against the second job's intensity."""
    rows = result["rows"]

    def rates(axes: Axes) -> None:
        for i, r in enumerate(rows):
            axes.plot([i] * len(r["rates"]), [x / 1e6 for x in r["rates"]], ".", color="grey", alpha=0.5)
            v = Interval.of(r["mean"])
            axes.errorbar(
                [i], [v.value / 1e6], yerr=[[x] for x in v.bars(1e-6)], fmt="o", color="C0", capsize=3
            )
        axes.set_xticks(
            range(len(rows)), ["alone" if not r["intensity"] else f"{r['intensity']:g}" for r in rows]
        )
        axes.set_xlabel("second job, MB a rank")
        axes.set_ylabel("bandwidth, MB/s (dots: runs)")
        axes.set_ylim(0, top(1e-6, [Interval.of(r["mean"]) for r in rows]))

    def loss(axes: Axes) -> None:
        for i, r in enumerate(rows[1:], 1):
            v = Interval.of(r["loss"])
            axes.errorbar(
                [i], [100 * v.value], yerr=[[x] for x in v.bars(100)], fmt="o", color="C1", capsize=3
            )
        axes.axhline(0, color="black", linewidth=1)
        axes.axhline(100 * result["tolerated"], color="black", linestyle="--", linewidth=1)
        axes.set_xticks(range(1, len(rows)), [f"{r['intensity']:g}" for r in rows[1:]])
        axes.set_xlabel("second job, MB a rank")
        axes.set_ylabel("loss of bandwidth, %")
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -100), min(high, 105))

    title = f"{result['method']}, {result['layout']}, {result['ranks']} ranks, {result['blocks']} repetitions"
    save_picture(path, [rates, loss], title)
