"""Times lines against each other: all interleaved in one run, in rotating order, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from page_cache import drop, may_drop_all, resident

T = TypeVar("T")


@dataclass
class Spread:
    """Values of repeated measurements."""

    values: list[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def json(self) -> dict:
        """As the results file keeps it."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "count": len(self.values),
        }


@dataclass
class Timing(Generic[T]):
    """One line's repetitions. outcome: what each found; all must agree. taken: seconds that a line measured itself."""

    seconds: list[float] = field(default_factory=list)
    outcome: T | None = None

    def rate(self, amount: float) -> Spread:
        """amount / seconds."""
        return Spread([amount / s for s in self.seconds])


@dataclass(frozen=True)
class Effort:
    """How often to measure: a line stops after `most` repetitions, or after `least` and this many seconds."""

    least: int
    most: int
    seconds: float


Work = Callable[[], T]


def interleave(
    lines: Sequence[tuple[str, Work]],
    effort: Effort,
    before: Callable[[], None],
    warm_up: bool,
    check: Callable[[str, T, T], None],
    seconds_of: Callable[[T], float | None] = lambda _: None,
) -> dict[str, Timing[T]]:
    """Measures lines (key, work) round-robin.

    before: called untimed before each run. warm_up: one uncounted run of each first. check(key, first, later): that a
    line finds the same each time. seconds_of: the time that a line took by its own account, where it has one.
    """
    timings: dict[str, Timing[T]] = {key: Timing() for key, _ in lines}
    if warm_up:
        for _, work in lines:
            before()
            work()
    for round_ in range(effort.most):
        for key, work in _rotated(lines, round_):
            timing = timings[key]
            if len(timing.seconds) >= effort.least and sum(timing.seconds) >= effort.seconds:
                continue
            before()
            gc.collect()
            start = time.perf_counter()
            outcome = work()
            seconds = time.perf_counter() - start
            own = seconds_of(outcome)
            timing.seconds.append(seconds if own is None else own)
            if timing.outcome is None:
                timing.outcome = outcome
            else:
                check(key, timing.outcome, outcome)
    return timings


def _rotated(lines: Sequence[tuple[str, Work]], by: int) -> Iterable[tuple[str, Work]]:
    at = by % len(lines) if lines else 0
    return [*lines[at:], *lines[:at]]


def write_results(path: Path, results: object) -> None:
    """Of a table: with the command, the date and the number of cores."""
    facts = {
        "argv": sys.argv[1:],
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "results": results,
    }
    path.write_text(json.dumps(facts, indent=1))


def interleave_cached(
    lines: Sequence[tuple[str, Work]],
    repeat: int,
    files: Sequence[Path],
    cold: bool,
    check: Callable[[str, T, T], None],
) -> dict[str, Timing[T]]:
    """The same so many times, with these files in the page cache all the time, or dropped from it before each run."""
    everything = may_drop_all()
    with contextlib.nullcontext() if cold else resident(files):
        return interleave(
            lines,
            Effort(repeat, repeat, 0),
            (lambda: drop(files, everything)) if cold else lambda: None,
            not cold,
            check,
        )
