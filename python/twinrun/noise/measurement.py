"""Noise of the operating system: the time that it takes from a thread that would run for ever, on each core.

    found = measure(seconds=30)
    found.sentence         what it shows, and how sure that is
    found.table            a row for each arm and core
    found.document         everything, for JSON; Noise(document) is the same again

Each core has a pinned thread, and all begin each loop at the same moment. Three loops (src/noise): readings
of a clock (detours: each interruption with its start and length), fixed work (how long equal pieces take) and
fixed time (how much is done in equal windows). A round runs them on all cores and on all but one, in an order
that changes from round to round; the effect of a free core is the mean difference of rounds, each with
itself. Shares of time have bootstrap intervals over windows of time.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from .._core import __version__
from ..errors import TwinrunError, in_short
from . import sources, tracefs
from .arms import ALL, BUT_ONE
from .figures import WINDOW_NS, core_figures, difference_of_rounds, share_of_round
from .result import KIND, VERSION, Noise, read_noise

__all__ = ["Noise", "measure", "parse_threshold", "read_noise"]

ROUNDS = 6
_SHARES = (0.4, 0.2, 0.4)  # of a round's time: detours, fixed work, fixed time
_LONGEST = 86400.0


def parse_threshold(text: str) -> tuple[float, int]:
    """Reads a threshold: how long a step of a loop must be to count as a detour.

    >>> from twinrun import noise
    >>> noise.parse_threshold("9x"), noise.parse_threshold("2us")
    ((9.0, 0), (0.0, 2000))

    Parameters
    ----------
    text : str
        "9x" or "9" (times an undisturbed step, at least 2), or "500ns", "2us", "1ms".

    Returns
    -------
    (float, int)
        Times an undisturbed step, and nanoseconds; one of them is 0.

    Raises
    ------
    TwinrunError
        The text is not a threshold.
    """
    word = text.strip().lower()
    for unit, size in (("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000)):
        if word.endswith(unit):
            number, scale = word.removesuffix(unit), size
            break
    else:
        number, scale = word.removesuffix("x"), 0
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (value * scale >= 1 if scale else value >= 2) or not value <= 1e9:
        raise TwinrunError(
            f"{text!r} is not a threshold",
            fix="write 9x (times an undisturbed step, at least 2) or 500ns, 2us, 1ms",
        )
    return (0.0, round(value * scale)) if scale else (value, 0)


def measure(
    seconds: float = 30.0,
    cores: Sequence[int] | None = None,
    *,
    free: int | None = None,
    threshold: str = "9x",
    rounds: int = ROUNDS,
    compare: bool = True,
    confidence: float = 0.95,
    rtla: bool = False,
    trace: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Noise:
    """Measures the time that the operating system takes from each core.

        found = twinrun.noise.measure(seconds=30)
        print(found.sentence)

    Parameters
    ----------
    seconds : float, default 30
        Time of the whole measurement, in seconds: 0.1 to 86400.
    cores : sequence of int, default None
        The cores to measure; None for those that this process may use.
    free : int, default None
        The core that one arm leaves free; None for the first.
    threshold : str, default '9x'
        From where on a step is a detour, as `parse_threshold` reads it.
    rounds : int, default 6
        Rounds of each arm, 1 to 1000.
    compare : bool, default True
        False: all cores only, and no arm with a free core.
    confidence : float, default 0.95
        Of intervals.
    rtla : bool, default False
        True: run `rtla osnoise` on the same cores right after, for a fifth of the time, and add what it says.
    trace : bool, default False
        True: the loops run again right after, for a fifth of the time, while the kernel traces what takes
        time from the cores (tracefs).
    report : callable, default None
        `report(done, total)` is called after each part.

    Returns
    -------
    Noise
        The measurement.

    Raises
    ------
    TwinrunError
        A core cannot be used, a parameter is out of its range, rtla is asked for and not installed, or a
        trace is asked for and tracefs is not mounted.
    MissingPackage
        A package of twinrun[ensemble] is not installed.

    Notes
    -----
    Not thread-safe: it moves the calling thread from the measured cores for a time, and other work disturbs
    the measurement. Loops: P. Beckman et al., 2006, for detours (src/noise/README.md).
    """
    from ..packages import check

    check()
    plan = _planned(seconds, cores, free, threshold, rounds, compare, confidence)
    if rtla:
        sources.check_rtla()
    if trace:
        tracefs.place()
    started = time.time()
    measured = _Measured(plan)
    measured.take_rounds(report)
    by_rtla, rtla_failed = _beside(rtla, lambda: sources.rtla(plan.arms[ALL], seconds / 5))
    by_trace, trace_failed = _beside(trace, lambda: _traced(plan.arms[ALL], max(seconds / 5, 0.1)))
    return Noise({
        "twinrun": __version__, "kind": KIND, "version": VERSION, "host": os.uname().nodename, "started": started,
        "seconds": time.time() - started, "clock": measured.clock, "confidence": confidence, "threshold": threshold,
        "rounds": rounds, "free": plan.free if BUT_ONE in plan.arms else None, "window_ns": WINDOW_NS,
        "slowest_hz": 5 / plan.loops[2], "arms": measured.figures(confidence),
        "comparison": measured.comparison(confidence), "sources": measured.sources(), "rtla": by_rtla,
        "rtla_failed": rtla_failed, "trace": by_trace, "trace_failed": trace_failed,
    })  # fmt: skip


@contextlib.contextmanager
def _elsewhere(cores: Sequence[int]) -> Iterator[None]:
    """This thread waits on other cores, if it may use any: it must not add noise."""
    own = os.sched_getaffinity(0)
    others = own - set(cores)
    try:
        if others:
            os.sched_setaffinity(0, others)
        yield
    finally:
        if others:
            os.sched_setaffinity(0, own)


def _traced(cores: list[int], seconds: float) -> list[dict[str, Any]]:
    """The loops again, while the kernel traces what takes time from these cores."""
    with _elsewhere(cores):
        return tracefs.measured(
            cores, lambda: _core.measure_noise(cores, seconds, 0.0, 0.0, window_ns=WINDOW_NS)
        )


def _beside(asked: bool, look: Callable[[], list[Any]]) -> tuple[list[Any] | None, str | None]:
    """What another program says, or why it does not: the measurement stays."""
    if not asked:
        return None, None
    try:
        return look(), None
    except TwinrunError as error:
        return None, str(error)


@dataclass(frozen=True)
class _Plan:
    """What is measured.

    arms: the cores of each. free: the core that one arm leaves free. loops: seconds of each loop of a
    round. times, nanoseconds: the threshold.
    """

    arms: dict[str, list[int]]
    free: int
    rounds: int
    loops: tuple[float, float, float]
    times: float
    nanoseconds: int


def _planned(
    seconds: float,
    cores: Sequence[int] | None,
    free: int | None,
    threshold: str,
    rounds: int,
    compare: bool,
    confidence: float,
) -> _Plan:
    """Raises TwinrunError where a core cannot be used, or a parameter is out of its range."""
    allowed = sorted(os.sched_getaffinity(0))
    chosen = list(allowed if cores is None else cores)
    missing = [c for c in chosen if c not in allowed]
    if missing or not chosen or len(set(chosen)) != len(chosen):
        raise TwinrunError(
            f"core {missing[0]} is not one of {allowed}" if missing else "name at least one core, each once"
        )
    if not 0.1 <= seconds <= _LONGEST:
        raise TwinrunError(f"seconds must be from 0.1 to {_LONGEST:g}, not {seconds:g}")
    if not 1 <= rounds <= 1000:
        raise TwinrunError(f"rounds must be from 1 to 1000, not {rounds}")
    if not 0.5 <= confidence < 1:
        raise TwinrunError(f"confidence must be between 0.5 and 1, not {in_short(confidence)}")
    times, nanoseconds = parse_threshold(threshold)
    spared = chosen[0] if free is None else free
    if spared not in chosen:
        raise TwinrunError(f"the core that is left free, {spared}, is not one of {chosen}")
    arms = {ALL: chosen}
    if compare and len(chosen) > 1:
        arms[BUT_ONE] = [c for c in chosen if c != spared]
    each = seconds / (rounds * len(arms))
    detours, fixed_work, fixed_time = (each * s for s in _SHARES)
    return _Plan(arms, spared, rounds, (detours, fixed_work, fixed_time), times, nanoseconds)


class _Measured:
    """The rounds of all arms. clock: the one that was read."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self.clock = ""
        self._raw: dict[str, list[list[_core.CoreNoise]]] = {arm: [] for arm in plan.arms}
        self._named: dict[str, dict[int, list[sources.Figures]]] = {
            arm: {c: [] for c in own} for arm, own in plan.arms.items()
        }
        self._spans = dict.fromkeys(plan.arms, 0.0)

    def take_rounds(self, report: Callable[[int, int], None] | None) -> None:
        """Measures. report: called with what is done and the total."""
        arms, done = list(self._plan.arms), 0
        for number in range(self._plan.rounds):
            # So that no arm is always the first.
            for arm in arms if number % 2 == 0 else arms[::-1]:
                self._take(arm)
                done += 1
                if report is not None:
                    report(done, self._plan.rounds * len(arms))

    def _take(self, arm: str) -> None:
        plan, cores = self._plan, self._plan.arms[arm]
        with _elsewhere(cores):
            before, begin = sources.Snapshot(without=[os.getpid()]), time.monotonic()
            found = _core.measure_noise(
                cores, *plan.loops, threshold=plan.times or 9.0, threshold_ns=plan.nanoseconds, window_ns=WINDOW_NS
            )  # fmt: skip
            self._spans[arm] += time.monotonic() - begin
            after = sources.Snapshot(without=[os.getpid()])
        self.clock = found.clock
        self._raw[arm].append(found.cores)
        for core, came in sources.since(before, after, cores).items():
            self._named[arm][core].append(came)

    def figures(self, confidence: float) -> dict[str, list[dict[str, Any]]]:
        """What each core shows, by arm."""
        return {
            arm: [
                core_figures([r[i] for r in parts], confidence=confidence)
                for i in range(len(self._plan.arms[arm]))
            ]
            for arm, parts in self._raw.items()
        }

    def sources(self) -> dict[str, list[dict[str, Any]]]:
        """What took the time of each core, by arm."""
        return {
            arm: [sources.figures(core, parts, self._spans[arm]) for core, parts in by_core.items()]
            for arm, by_core in self._named.items()
        }

    def comparison(self, confidence: float) -> dict[str, Any] | None:
        """What a free core changes for the others; None where no arm has one."""
        if BUT_ONE not in self._raw:
            return None
        pairs = []
        for whole, part in zip(self._raw[ALL], self._raw[BUT_ONE], strict=True):
            with_all = [share_of_round(r) for r in whole if r.core != self._plan.free]
            without = [share_of_round(r) for r in part]
            if not np.isnan([*with_all, *without]).any():
                pairs.append((float(np.mean(with_all)), float(np.mean(without))))
        return {**difference_of_rounds(pairs, confidence), "rounds": len(pairs), "pairs": pairs}
