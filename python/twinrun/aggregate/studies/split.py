"""The time to make communicators: successive splits, groups, coloured splits, by their number and by MPI
library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from ...ensemble import intervals
from ...ensemble.intervals import Interval
from .engine import Blocks, Condition, key
from .launch import RESULTS, Job, Result
from .report import Finding, beyond, joint, names_of, save_picture, table
from .study import ManyStacks, launch_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COMMUNICATORS", "SIZES", "WAYS", "Split"]

COMMUNICATORS = (1, 2, 4, 8, 16)
SIZES = (2, 4, 8, 16)
WAYS = ("split", "group", "coloured", "disjoint")


class _OfWay(Struct):
    seconds: Annotated[float, Meta(ge=0, lt=1e9)]
    order: int


class _Results(Struct):
    """Of a run: by way."""

    mpi: str
    rounds: int
    ways: dict[str, _OfWay]


@dataclass(frozen=True, kw_only=True)
class Split(ManyStacks):
    """The study of communicators. A run is a launch of `haccio split`: a warm-up, then each way once.

    communicators: how many; sizes: ranks of each, those above the number of ranks left out. precision: how
    well mean times are to be known (relative).
    """

    name = "split"
    results = _Results
    communicators: Sequence[int] = COMMUNICATORS
    sizes: Sequence[int] = SIZES
    ways: Sequence[str] = WAYS
    precision: float = 0.2

    def own_identity(self) -> dict:
        """What runs of one journal have in common."""
        return {
            "communicators": sorted(self.communicators),
            "sizes": sorted(x for x in self.sizes if x <= self.ranks),
            "ways": list(self.ways),
        }

    def factors(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """The MPI library, how many communicators, and how large."""
        same = self.own_identity()
        return {
            "stack": range(len(self.stacks)),
            "communicators": list(dict.fromkeys(same["communicators"])),
            "size": list(dict.fromkeys(same["sizes"])),
        }

    def job(self, condition: Condition, block: int, prefix: str) -> Job:
        """All ways once, after a warm-up."""
        arguments = [
            *("split", "--communicators", str(condition["communicators"]), "--size", str(condition["size"])),
            *("--ways", ",".join(self.ways), *launch_arguments(self.warmup, 1, block)),
            *self.arguments,
        ]
        return Job(self.stacks[condition["stack"]], self.ranks, arguments)

    def read(self, condition: Condition, own: Path) -> dict:
        """The time of each way."""
        result = Result.of(own / RESULTS)
        return {
            "mpi": result.run["mpi"],
            "rounds": result.run["rounds"],
            "ways": {
                x["way"]: {"seconds": x["seconds"], "order": x["order"]} for x in result.all("repetition")
            },
        }

    def flaw(self, condition: Condition, results: Mapping[str, Any]) -> str | None:
        """Also where a way is missing."""
        wrong = super().flaw(condition, results)
        missing = [w for w in self.ways if wrong is None and w not in results["ways"]]
        return f"it has nothing of way {missing[0]}" if missing else wrong

    def _seconds(self, blocks: Blocks, condition: Condition, way: str) -> list[float]:
        return [b[key(condition)]["ways"][way]["seconds"] for b in blocks]

    def enough(self, blocks: Blocks) -> bool:
        """Whether all mean times are precise enough."""
        for condition in self.conditions():
            for way in self.ways:
                mean = intervals.mean(self._seconds(blocks, condition, way), self.confidence)
                if not mean.within(self.precision * mean.value):
                    return False
        return True

    def result(self, blocks: Blocks, ended: bool) -> dict:
        """All figures, and what follows from them."""
        names = names_of(r for b in blocks for r in b.values())
        rows = []
        for condition in self.conditions():
            for way in self.ways:
                seconds = self._seconds(blocks, condition, way)
                row = {
                    **condition,
                    "mpi": names.get(condition["stack"]),
                    "way": way,
                    "mean": intervals.mean(seconds, self.confidence).json(),
                    "deviation": intervals.deviation(seconds, self.confidence).json(),
                    "seconds": seconds,
                }
                if blocks:
                    row["rounds"] = blocks[0][key(condition)]["rounds"]
                rows.append(row)
        return self.document(blocks, ended, rows)

    def guidance(self, blocks: Blocks) -> list[Finding]:
        """Guidance: which way, and which MPI library, for the largest number of communicators."""
        names = names_of(r for b in blocks for r in b.values())
        same = self.identity()
        found = []
        for s in range(len(self.stacks)):
            for k in sorted({same["sizes"][0], same["sizes"][-1]}):
                found += self._way_findings(
                    blocks, {"stack": s, "communicators": same["communicators"][-1], "size": k}, names[s]
                )
        if len(self.stacks) > 1:
            found += self._stack_findings(blocks, same, names)
        return found

    def _way_findings(self, blocks: Blocks, condition: Condition, name: str) -> list[Finding]:
        place = (
            f"{condition['communicators']} communicators of {condition['size']} of {self.ranks} ranks, {name}"
        )
        same = [w for w in self.ways if w != "disjoint"]  # ways to the same communicators
        if len(same) < 2:
            return []
        seconds = {w: self._seconds(blocks, condition, w) for w in same}
        best, *others = sorted(same, key=lambda w: sum(seconds[w]))
        confidence = joint(self.confidence, len(others))
        ratios = {w: intervals.ratio_of_means(seconds[w], seconds[best], confidence) for w in others}
        shown = "; ".join(f"{w} takes {r.text()} times as long" for w, r in ratios.items())
        slower = [w for w, r in ratios.items() if r.low > 1]
        if len(slower) == len(others):
            return [Finding(f"{place}: use {_WORDS[best]} ({shown})", True)]
        if slower:
            worse = " and ".join(_WORDS[w] for w in slower)
            return [
                Finding(
                    f"{place}: avoid {worse} ({shown}); which of the others is fastest {beyond(len(blocks))}",
                    True,
                )
            ]
        return [Finding(f"{place}: which way is fastest {beyond(len(blocks))} ({shown})", False)]

    def _stack_findings(self, blocks: Blocks, same: dict, names: dict[int, str]) -> list[Finding]:
        found = []
        place = {"communicators": same["communicators"][-1], "size": same["sizes"][-1]}
        claims = len(self.ways) * (len(self.stacks) - 1)
        for way in self.ways:
            seconds = {s: self._seconds(blocks, {"stack": s, **place}, way) for s in range(len(self.stacks))}
            best, *others = sorted(seconds, key=lambda s: sum(seconds[s]))
            for other in others:
                ratio = intervals.ratio_of_means(
                    seconds[other], seconds[best], joint(self.confidence, claims)
                )
                what = f"{place['communicators']} communicators of {place['size']} ranks by {_WORDS[way]}"
                shown = f"{names[other]} takes {ratio.text()} times as long as {names[best]}"
                if ratio.low > 1:
                    found.append(Finding(f"{what}: {shown}", True))
                else:
                    found.append(
                        Finding(f"{what}: which MPI library is faster {beyond(len(blocks))} ({shown})", False)
                    )
        return found


_WORDS = {
    "split": "successive MPI_Comm_split",
    "group": "MPI_Comm_create_group",
    "coloured": "coloured MPI_Comm_split, a round for partitions that do not overlap",
    "disjoint": "one coloured MPI_Comm_split",
}


def lines(result: dict) -> list[str]:
    """A table of a result."""
    header = ["MPI library", "communicators", "ranks each", "rounds", *result["ways"]]
    rows: dict[tuple, list[str]] = {}
    for r in result["rows"]:
        place = (r["stack"], r["communicators"], r["size"])
        first = [r["mpi"] or "", str(r["communicators"]), str(r["size"]), str(r.get("rounds", ""))]
        rows.setdefault(place, first).append(Interval.of(r["mean"]).text(1e3, " ms"))
    return table(header, list(rows.values()))


def draw(result: dict, path: str | Path) -> None:
    """Time against the number of communicators: panels for the smallest and the largest ones, a line for each
    way and stack.
    """
    sizes = sorted({result["sizes"][0], result["sizes"][-1]})
    styles = ["-", "--", ":", "-."]

    def panel(size: int) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            for s in range(len(result["stacks"])):
                for i, way in enumerate(result["ways"]):
                    rows = [r for r in result["rows"] if (r["stack"], r["way"], r["size"]) == (s, way, size)]
                    known = [Interval.of(r["mean"]) for r in rows]
                    axes.errorbar(
                        [r["communicators"] for r in rows],
                        [1e3 * v.value for v in known],
                        yerr=list(zip(*(v.bars(1e3) for v in known), strict=True)),
                        fmt="o" + styles[s % len(styles)],
                        color=f"C{i}",
                        capsize=3,
                        label=f"{way}, {rows[0]['mpi']}",
                    )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("communicators")
            axes.set_ylabel("ms, slowest rank")
            axes.set_title(f"{size} ranks each", fontsize=10)
            axes.legend(fontsize=8)

        return paint

    save_picture(path, [panel(k) for k in sizes], f"{result['ranks']} ranks, {result['blocks']} repetitions")
