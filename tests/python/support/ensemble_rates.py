"""Whole reports on simulated studies: how often they claim what is not so, find what is planted, and miss with an interval."""

from __future__ import annotations

import functools
import gc
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from ensemble_support import uncollected
from scipy import signal, stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.assumptions import checked, long_tail
from twinrun.ensemble.analysis.compare import compare
from twinrun.ensemble.analysis.findings import ANALYSES, Findings, analyse_frame
from twinrun.ensemble.analysis.model import Left
from twinrun.ensemble.analysis.result import Judge
from twinrun.ensemble.analysis.serial import autoregression, resembling
from twinrun.ensemble.analysis.spread import variation_interval
from twinrun.ensemble.analysis.tail import johnson, mixture, tail
from twinrun.ensemble.study.tasks import frame_of

TESTS = [n for n in ANALYSES if n not in ("makespan", "decompose", "regimes")]
OPTIONS = Options(permutations=999, resamples=299)


def _resembling(by: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """A first-order autoregression with a standard deviation of 3%."""

    def made(rng: np.random.Generator, n: int) -> np.ndarray:
        shocks = rng.standard_normal(n + 100) * 0.03 * math.sqrt(1 - by**2)
        return signal.lfilter([1.0], [1.0, -by], shocks)[100:]

    return made


# Logarithms of the time, in the order in which tasks run.
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: 0.03 * rng.standard_normal(n),
    # Of the time itself: the exponential of a t has no mean.
    "t3": lambda rng, n: np.log(np.maximum(1 + 0.03 * rng.standard_t(3, n), 0.1)),
    "delays": lambda rng, n: np.log1p(0.02 * rng.lognormal(0, 1, n)),
    "bimodal": lambda rng, n: 0.02 * rng.standard_normal(n) + 0.1 * (rng.random(n) < 0.5),
    "AR 0.5": _resembling(0.5),
    "AR 0.8": _resembling(0.8),
    "drift": lambda rng, n: 0.03 * rng.standard_normal(n) + np.linspace(0, 0.1, n),
}
# (levels of the factor, nodes, tasks of a block); 0: all tasks are one block.
DESIGNS: dict[str, tuple[int, int, int]] = {
    "replicas": (1, 1, 0),
    "blocks": (1, 1, 5),
    "factor": (2, 1, 2),
    "nodes": (2, 5, 10),
    "workloads": (1, 5, 10),
}
_AT_ONCE = ("workloads",)  # all tasks of a block begin at one moment, each on a slot of its own


def made(seed: int, noise: str, design: str, n: int) -> tuple[pd.DataFrame, np.random.Generator]:
    """A study of n tasks, one after another or a block at once, and what else may be drawn for it."""
    levels, nodes, size = DESIGNS[design]
    at_once = design in _AT_ONCE
    rng = np.random.default_rng([seed, n, list(DESIGNS).index(design), list(NOISES).index(noise)])
    y = NOISES[noise](rng, n)
    size = size or n
    lines: list[dict[str, Any]] = []
    start = 1.7e9
    for block in range(-(-n // size)):
        places = rng.permutation(max(nodes, size))
        order = rng.permutation(size)
        for position in range(min(size, n - block * size)):
            k = len(lines)
            line: dict[str, Any] = {
                "task": k, "attempt": 1, "block": block, "order": k, "status": "ok", "node": f"n{places[position] % nodes}",
                "start": start, "wall": 10 * math.exp(y[k]), "run_queue_delay": float(rng.gamma(2)),
                "context_switches": {"voluntary": int(rng.poisson(1000)), "involuntary": int(rng.poisson(500))},
            }  # fmt: skip
            if levels > 1:
                line["factors"] = {"checkpoint": ("off", "on")[order[position] % 2]}
            if at_once:
                # The last of them begins some ms after the first.
                line |= {"replica": position, "slot": int(places[position]), "released": start}
                line["start"] = start + 0.0005 * position
            line["end"] = line["start"] + line["wall"]
            if not at_once:
                start = line["end"] + 1.0
            lines.append(line)
        if at_once:
            start = max(line["end"] for line in lines[-size:]) + 1.0
    return frame_of(lines), rng


# What comes to each counter by second, as `watch/system.py` records them, on a node with a fabric; seconds in clock ticks.
COUNTERS = {
    "irq_seconds": 0.004, "softirq_seconds": 0.01, "steal_seconds": 0.02, "interrupts": 900.0, "device_interrupts": 30.0,
    "interrupts_LOC": 250.0, "interrupts_NMI": 0.5, "interrupts_RES": 40.0, "interrupts_CAL": 20.0, "interrupts_TLB": 8.0,
    "softirqs": 400.0, "cores_run_queue_seconds": 0.05, "throttled": 0.3, "throttled_seconds": 0.01, "quota_throttled": 0.1,
    "quota_seconds": 0.01, "node_page_faults": 3000.0, "node_major_page_faults": 0.6, "pages_swapped_in": 0.4,
    "pages_swapped_out": 0.4, "memory_compactions": 0.2, "network_received_bytes": 1e5, "network_sent_bytes": 1e5,
    "network_dropped": 0.2, "network_errors": 0.0, "fabric_received_bytes": 1e7, "fabric_sent_bytes": 1e7,
    "fabric_send_waits": 300.0, "fabric_errors": 0.0,
}  # fmt: skip
_TICKS = ("irq_seconds", "softirq_seconds", "steal_seconds")
_MEMORY = {"AR 0.5": 0.5, "AR 0.8": 0.8}


def counted(frame: pd.DataFrame, noise: str, rng: np.random.Generator) -> pd.DataFrame:
    """The same tasks with everything that a task's line may hold of the system. None of it does anything to the time.

    It resembles the one before as much as the time does, and half of its variance is common to all.
    """
    n = len(frame)
    seconds = frame["wall"].to_numpy(dtype=float) + rng.uniform(0.001, 0.02, n)
    memory = _MEMORY.get(noise, 0.0)

    def series() -> np.ndarray:
        shocks = rng.standard_normal(n + 100) * math.sqrt(1 - memory**2)
        return signal.lfilter([1.0], [1.0, -memory], shocks)[100:]

    common = series()

    def load_of() -> np.ndarray:
        return math.sqrt(0.5) * (common + series())

    new: dict[str, np.ndarray] = {"counters.seconds": seconds}
    for name, rate in COUNTERS.items():
        expected = rate * seconds * np.exp(0.5 * load_of())
        if name in _TICKS:
            new[f"counters.{name}"] = rng.poisson(expected * 100) / 100
        elif name.endswith("seconds"):
            new[f"counters.{name}"] = rng.gamma(4, expected / 4)
        elif name.endswith("bytes"):
            new[f"counters.{name}"] = np.rint(rng.gamma(4, expected / 4))
        else:
            new[f"counters.{name}"] = rng.poisson(expected).astype(float)
    new |= {
        "frequency_hz.mean": 3e9 * (1 - 0.02 * load_of()), "temperature_c": np.rint(60 + 4 * load_of()),
        "pressure.cpu_some": rng.gamma(4, 0.01 * seconds * np.exp(0.5 * load_of())),
        "pressure.io_some": rng.gamma(4, 0.01 * seconds * np.exp(0.5 * load_of())),
        "pressure.memory_some": np.zeros(n), "page_faults.minor": rng.poisson(2000, n).astype(float),
        "page_faults.major": rng.poisson(0.5 * seconds).astype(float),
        "gpu.clock_mhz": np.rint(1700 - 30 * load_of()), "gpu.memory_clock_mhz": np.full(n, 2600.0),
        "gpu.throttled": rng.uniform(0, 1, n) * (load_of() > 0), "gpu.temperature_c": np.rint(50 + 4 * load_of()),
    }  # fmt: skip
    return frame.drop(columns=[c for c in new if c in frame]).assign(**new)


def report(frame: pd.DataFrame, options: Options = OPTIONS) -> Findings:
    return analyse_frame(frame, options, only=TESTS)


def _quietly(of: Callable) -> Callable:
    """Without the collection of garbage that statsmodels asks for in each correction of p values."""

    @functools.wraps(of)
    def inside(*arguments: Any, **named: Any) -> Any:
        with uncollected():
            return of(*arguments, **named)

    return inside


@_quietly
def false_alarms(
    noise: str, design: str, n: int, studies: int, counters: bool = False, first: int = 0
) -> tuple[int, Counter]:
    """Reports with a claim that is not so, and the analyses that made them; counters: with all measures of the system."""
    count, which = 0, Counter()
    for seed in range(first, first + studies):
        frame, rng = made(seed, noise, design, n)
        if counters:
            frame = counted(frame, noise, rng)
        alarms = [a.name for a in report(frame).alarms]
        if noise == "drift":
            alarms = [a for a in alarms if a != "trend"]
        count += bool(alarms)
        which.update(alarms)
    return count, which


@functools.cache
def truths(noise: str) -> tuple[float, float]:
    """The coefficient of variation of the time, and the standard deviation of its logarithm."""
    y = NOISES[noise](np.random.default_rng(1), 4_000_000)
    x = np.exp(y)
    return float(x.std() / x.mean()), float(y.std())


@functools.cache
def quantiles(noise: str) -> tuple[float, float]:
    """The median and the 95% quantile of the time."""
    y = NOISES[noise](np.random.default_rng(1), 4_000_000)
    return float(10 * np.exp(np.median(y))), float(10 * np.exp(np.quantile(y, 0.95)))


INTERVALS = ("CoV", "deviation", "median", "95% quantile", "ratio", "ratio of medians", "difference of deviations", "nodes")  # fmt: skip


@dataclass
class Cell:
    """What reports on studies of one kind said. alarms: reports with a false claim; which: analyses that made it; given,
    held: intervals of each kind, and those of them that hold the truth; below: those that lie below it; claims: the seed of
    each report with a false claim, and its analyses."""

    studies: int = 0
    alarms: int = 0
    which: Counter = field(default_factory=Counter)
    given: Counter = field(default_factory=Counter)
    held: Counter = field(default_factory=Counter)
    below: Counter = field(default_factory=Counter)
    claims: list[tuple[int, list[str]]] = field(default_factory=list)

    def __add__(self, other: Cell) -> Cell:
        return Cell(self.studies + other.studies, self.alarms + other.alarms, self.which + other.which, self.given + other.given,
                    self.held + other.held, self.below + other.below, self.claims + other.claims)  # fmt: skip


def _first(rows: Any) -> dict[str, Any] | None:
    return rows[0] if rows else None


def _intervals(found: Findings) -> dict[str, tuple[float, float]]:
    """Of those whose truth is known, the ones that are given. Nodes: where all of their intervals lie about nothing, the
    narrowest; otherwise the one that is farthest from it."""
    ratios = found["conditions"].facts.get("ratios", [])
    shown: dict[str, dict[str, Any] | None] = {
        "CoV": found["spread"].facts.get("cov"),
        "deviation": found["planning"].facts.get("deviation"),
        "ratio": _first(found["factors"].facts.get("effects")),
        "difference of deviations": _first(found["variation_factors"].facts.get("effects")),
        "ratio of medians": ratios[0] if ratios and not ratios[0]["fails"] else None,
    }
    rows = found["conditions"].table
    if len(rows):
        shown["median"] = {"low": rows["low"][0], "high": rows["high"][0]}
    rows = found["spread"].table
    if len(rows):
        shown["95% quantile"] = {"low": rows["q95 low"][0], "high": rows["q95 high"][0]}
    rows = found["nodes"].table
    if len(rows):
        worst = int(np.argmax(np.maximum(rows["low"], -rows["high"])))
        shown["nodes"] = {"low": rows["low"][worst], "high": rows["high"][worst]}
    ends = {k: (v["low"], v["high"]) for k, v in shown.items() if v is not None and v["low"] is not None and v["high"] is not None}  # fmt: skip
    return {k: v for k, v in ends.items() if all(map(math.isfinite, v))}


@_quietly
def cell(noise: str, design: str, n: int, studies: int, first: int = 0) -> Cell:
    """Whole reports on studies in which nothing is the matter: false claims, and intervals that hold the truth."""
    result = Cell()
    truth = dict(zip(INTERVALS, (*truths(noise), *quantiles(noise), 1.0, 1.0, 0.0, 0.0), strict=True))
    for seed in range(first, first + studies):
        found = report(made(seed, noise, design, n)[0])
        alarms = [a.name for a in found.alarms if not (noise == "drift" and a.name == "trend")]
        result.studies += 1
        result.alarms += bool(alarms)
        result.which.update(alarms)
        if alarms:
            result.claims.append((seed, alarms))
        for name, (low, high) in _intervals(found).items():
            result.given[name] += 1
            result.held[name] += bool(low <= truth[name] <= high)
            result.below[name] += bool(high < truth[name])
    return result


@_quietly
def missed(noise: str, design: str, n: int, studies: int) -> tuple[str, Counter]:
    """Intervals of the coefficient of variation, of the deviation and of the factor's ratio that miss: counts of missed and not given."""
    counts: Counter = Counter()
    spread, deviation = truths(noise)
    for seed in range(studies):
        found = analyse_frame(
            made(seed, noise, design, n)[0], OPTIONS, only=["spread", "planning", "factors"]
        )
        effects = found["factors"].facts.get("effects", [])
        for name, facts, truth in (
            ("CoV", found["spread"].facts.get("cov"), spread),
            ("deviation", found["planning"].facts.get("deviation"), deviation),
            ("ratio", effects[0] if effects else None, 1.0),
        ):
            given = facts is not None and facts["low"] is not None and math.isfinite(facts["high"])
            if not given:
                counts[f"{name} not given"] += 1
            elif not facts["low"] <= truth <= facts["high"]:
                counts[f"{name} missed"] += 1
    return "", counts


def _some(x: np.ndarray) -> np.ndarray:
    return x.astype(float)


# Each: the design, and the logarithm that an effect of 1 adds to each task.
CAUSES: dict[str, tuple[str, Callable[[pd.DataFrame, np.random.Generator], np.ndarray]]] = {
    "factors": ("factor", lambda f, rng: _some((f["factors.checkpoint"] == "on").to_numpy())),
    "nodes": ("nodes", lambda f, rng: _some((f["node"] == "n2").to_numpy())),
    "blocks": ("blocks", lambda f, rng: rng.standard_normal(f["block"].nunique())[f["block"].to_numpy()]),
    "periods": ("replicas", lambda f, rng: np.sin(
        2 * np.pi * (rng.integers(3, max(4, len(f) // 3)) * np.arange(len(f)) / len(f) + rng.random()))),
    "changes": ("replicas", lambda f, rng: _some(np.arange(len(f)) >= len(f) // 2)),
    "trend": ("replicas", lambda f, rng: np.linspace(0, 1, len(f))),
    "tail": ("replicas", lambda f, rng: _some(rng.permutation(np.arange(len(f)) % 10 == 3))),
}  # fmt: skip


def promised(findings: Findings, cause: str) -> float | None:
    """The effect, as a logarithm, that the report says it could have seen."""
    if cause not in findings.names:
        return None
    a = findings[cause]
    told = a.seen
    return None if told is None or not math.isfinite(told) else float(math.log1p(told))


def _estimate(analysis: Any) -> tuple[float, float] | None:
    """The interval of the effect of the first claim that holds, as shares."""
    facts = analysis.found[0].facts
    if analysis.name == "factors":
        e = facts["effects"][0]
        return e["low"] - 1, e["high"] - 1
    if analysis.name == "changes":
        e = facts["segments"][-1]
        return e["low"], e["high"]
    return (facts["low"], facts["high"]) if "low" in facts else None


@dataclass
class Planted:
    """Reports on studies with a planted cause. reports: all; promised: those for which another study promised an effect;
    found: those that find the cause; alone: and nothing else; holds: and an interval with the effect; one: alone and with
    it; others: what they claim besides; sizes: the effects, as logarithms; seeds: of the promised ones that do not find it."""

    reports: int = 0
    promised: int = 0
    found: int = 0
    alone: int = 0
    holds: int = 0
    one: int = 0
    others: Counter = field(default_factory=Counter)
    sizes: list[float] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)

    def __add__(self, other: Planted) -> Planted:
        return Planted(self.reports + other.reports, self.promised + other.promised, self.found + other.found, self.alone + other.alone,
                       self.holds + other.holds, self.one + other.one, self.others + other.others, self.sizes + other.sizes,
                       self.missed + other.missed)  # fmt: skip

    @property
    def effect(self) -> str:
        """The median effect that was planted, as a share."""
        return f"{100 * math.expm1(float(np.median(self.sizes))):.2g}%" if self.sizes else "none"


@_quietly
def planted(
    cause: str,
    n: int,
    studies: int,
    times: float,
    effect: float | None = None,
    noise: str = "normal",
    first: int = 0,
) -> Planted:
    """Plants so many times the effect that a report on another study promises; `effect`: this one."""
    design, adds = CAUSES[cause]
    result = Planted()
    for seed in range(first, first + studies):
        result.reports += 1
        size = effect
        if size is None:
            size = promised(report(made(10**6 + seed, noise, design, n)[0]), cause)
        if size is None:
            continue
        result.promised += 1
        result.sizes.append(times * size)
        frame, rng = made(2 * 10**6 + seed, noise, design, n)
        frame["wall"] *= np.exp(times * size * adds(frame, rng))
        findings = report(frame)
        names = [a.name for a in findings.alarms]
        alone = names == [cause] and (cause != "changes" or len(findings[cause].facts["points"]) == 1)
        holds = False
        if cause in names:
            ends = _estimate(findings[cause])
            truth = math.expm1(times * size) if cause not in ("blocks", "periods") else times * size
            holds = ends is not None and bool(ends[0] <= truth <= ends[1])
        else:
            result.missed.append(seed)
        result.found += cause in names
        result.alone += alone
        result.holds += holds
        result.one += alone and holds
        result.others.update(x for x in names if x != cause)
    return result


@_quietly
def kept_alone(cause: str, n: int, studies: int, tests: int = 9) -> tuple[int, int, float]:
    """Plants what the analysis promises on another study at the level of a report of so many tests. Studies that promise
    something; those of them in which the analysis finds it; the median promise.
    """
    design, adds = CAUSES[cause]
    options = Options(permutations=4999, resamples=99)
    level, analysis = 0.05 / tests, ANALYSES[cause]
    promised_, found, sizes = 0, 0, []
    for seed in range(studies):
        could_see = analysis(made(10**6 + seed, "normal", design, n)[0], options).could_see
        size = math.inf if could_see is None else could_see(level)
        if not math.isfinite(size):
            continue
        promised_ += 1
        sizes.append(size)
        frame, rng = made(2 * 10**6 + seed, "normal", design, n)
        frame["wall"] *= np.exp(math.log1p(size) * adds(frame, rng))
        p = analysis(frame, options).p
        found += p is not None and p <= level
    return promised_, found, float(np.median(sizes)) if sizes else math.nan


def covaried(n: int, seed: int, effect: float, memory: float) -> pd.DataFrame:
    """Tasks with 3% noise and a covariate whose deviation adds `effect` times that; both remember by `memory`."""
    rng = np.random.default_rng([seed, n, round(1000 * effect), round(1000 * memory)])

    def series() -> np.ndarray:
        shocks = rng.standard_normal(n + 100) * math.sqrt(1 - memory**2)
        return signal.lfilter([1.0], [1.0, -memory], shocks)[100:]

    given = series()
    wall = np.exp(0.03 * (series() + effect * given))
    lines = [
        {"task": k, "block": k, "order": 0, "wall": float(wall[k]), "start": 10.0 * k, "end": 10.0 * k + 5, "factors": {},
         "status": "ok", "covariates": {"room": float(given[k])}}
        for k in range(n)
    ]  # fmt: skip
    return frame_of(lines)


def covariates_found(n: int, effect: float, memory: float, studies: int) -> int:
    """Of so many studies, those whose analysis of covariates claims the covariate."""
    from twinrun.ensemble.analysis.covariates import covariates

    found = 0
    for seed in range(studies):
        claims = covariates(covaried(n, seed, effect, memory), OPTIONS).claims
        found += any(Judge(OPTIONS.alpha).holds(claim) for claim in claims)
        gc.collect()
    return found


@_quietly
def covariates_kept(n: int, memory: float, studies: int) -> tuple[int, int, int, float]:
    """Plants the correlation that a report on another study promises. Reports that find the covariate; that find nothing
    else; promises that are none (infinite); the median promise.
    """
    from twinrun.ensemble.analysis.covariates import covariates

    names = [*TESTS, "covariates"]
    found = alone = none = 0
    promises = []
    for seed in range(studies):
        first = covariates(covaried(n, 10**6 + seed, 0.0, memory), OPTIONS)
        # As many tests as a report on such a study has.
        planted = covaried(n, 2 * 10**6 + seed, 0.0, memory)
        if not promises and not none:
            level = analyse_frame(planted, OPTIONS, only=names)["covariates"].judged_by.level
        assert first.could_see is not None
        promise = first.could_see(level)
        if not math.isfinite(promise):
            none += 1
            continue
        promises.append(promise)
        effect = promise / math.sqrt(1 - promise**2)
        alarms = [
            a.name
            for a in analyse_frame(covaried(n, 2 * 10**6 + seed, effect, memory), OPTIONS, only=names).alarms
        ]
        found += "covariates" in alarms
        alone += alarms == ["covariates"]
    return found, alone, none, float(np.median(promises)) if promises else math.nan


def independent(n: int, block: int) -> tuple[Left, np.ndarray | None]:
    """Residuals of tasks without conditions, of which only a mean is taken; their blocks of this size, or none."""
    scale = np.full(n, math.sqrt(1 - 1 / n))
    return Left(np.zeros(n), np.full((n, 1), 1 / math.sqrt(n)), scale), np.arange(
        n
    ) // block if block > 1 else None


def covered(noise: str, n: int, studies: int, block: int = 1) -> Counter:
    """Intervals of the coefficient of variation, as `spread` gives them: counts of held, too high, too low, not given."""
    counts: Counter = Counter()
    truth = truths(noise)[0]
    empty, blocks = independent(n, block)
    options = Options(permutations=199)
    for seed in range(studies):
        y = NOISES[noise](np.random.default_rng([3, seed, n, block]), n)
        left = Left((y - y.mean()) / empty.scale, empty.basis, empty.scale)
        if checked(left, blocks, options).fails:
            counts["not given"] += 1
            continue
        low, high = variation_interval(np.exp(y), blocks, options)[1:3]
        counts["too high" if truth < low else "too low" if truth > high else "held"] += 1
    return counts


# Distributions of which `deviations` allows for those that stay unseen: what draws them, and their deviation.
UNSEEN_TAILS: dict[str, tuple[Callable[[np.random.Generator, int, int], np.ndarray], float]] = {
    f"t{d:g}": (lambda rng, count, n, d=d: rng.standard_t(d, (count, n)), math.sqrt(d / (d - 2)))
    for d in (3, 3.5, 4, 5, 6, 8, 12, 20)
} | {
    f"lognormal {s:g}": (lambda rng, count, n, s=s: rng.lognormal(0, s, (count, n)), math.sqrt(math.expm1(s * s) * math.exp(s * s)))
    for s in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
}  # fmt: skip
UNSEEN_ALIKE: dict[str, tuple[Callable[[np.random.Generator, int, int], np.ndarray], float]] = {
    f"autoregression {c:g}": (lambda rng, count, n, c=c: autoregression(c, count, n, rng), 1.0)
    for c in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
}


def worst_unseen(n: int, count: int, rng: np.random.Generator) -> list[tuple[float, str, float]]:
    """Of tails, and of resemblances: the true deviation by the estimated one that one of 25 studies exceeds, the noise for
    which it is largest, and the share of its studies in which nothing is shown; where that is more than one of twenty.
    """
    limit = float(np.quantile(resembling(rng.standard_normal((count, n))), 0.95))
    result = []
    for family in (UNSEEN_TAILS, UNSEEN_ALIKE):
        worst = (1.0, "none", 0.0)
        for name, (draw, deviation) in family.items():
            x = draw(rng, count, n)
            unseen = ~long_tail(x)
            if family is UNSEEN_ALIKE:
                unseen &= resembling(x) <= limit
            share = float(unseen.mean()) * (0.95 if family is UNSEEN_TAILS else 1.0)
            if share > 0.05:
                times = float(np.quantile(deviation / x[unseen].std(axis=1, ddof=1), 0.96))
                worst = max(worst, (times, name, share))
        result.append(worst)
    return result


# One task in ten is 10% slower, beside a deviation of 3%.
_SLOW, _SHARE, _DEVIATION = math.log(1.1), 0.1, 0.03


def _slow_groups(rng: np.random.Generator, studies: int, n: int) -> np.ndarray:
    return _DEVIATION * rng.standard_normal((studies, n)) + _SLOW * (rng.random((studies, n)) < _SHARE)


def slow_groups_found(n: int, level: float, studies: int, first: int = 0) -> int:
    """Of so many studies with a slow group, those in which `tail` alone shows it at this level."""
    options = Options(permutations=999, resamples=99)
    found = 0
    for seed in range(first, first + studies):
        frame = made(seed, "normal", "replicas", n)[0]
        frame["wall"] = 10 * np.exp(_slow_groups(np.random.default_rng([6, seed, n]), 1, n)[0])
        p = tail(frame, options).p
        found += p is not None and p <= level
    return found


def slow_groups_told(noise: str, n: int, studies: int, first: int = 0) -> tuple[int, int]:
    """Of so many studies, those in which `tail` alone claims a group at the level of a report of nine tests, and those in
    which it describes tasks that take longer without claiming it. noise: one of NOISES, or `slow`.
    """
    options = Options(permutations=999, resamples=99)
    claimed = described = 0
    for seed in range(first, first + studies):
        frame, _ = made(seed, "normal" if noise == "slow" else noise, "replicas", n)
        if noise == "slow":
            frame["wall"] = 10 * np.exp(_slow_groups(np.random.default_rng([6, seed, n]), 1, n)[0])
        found = tail(frame, options)
        found.judge = Judge(options.alpha, 9.0, 9)
        claimed += bool(found.found)
        described += bool(found.description)
    return claimed, described


def pairs_claimed(coefficient: float, n: int, studies: int, first: int = 0) -> int:
    """Of so many pairs of equal studies, those that `compare` alone claims to differ. Tasks resemble the ones before by this
    autoregression.
    """
    claimed = 0
    for seed in range(first, first + studies):
        rng = np.random.default_rng([6, seed])
        pair = [
            frame_of(
                {"task": k, "status": "ok", "wall": 10 * math.exp(y), "block": 0, "order": k}
                for k, y in enumerate(0.03 * autoregression(coefficient, 1, n, rng)[0])
            )
            for _ in range(2)
        ]
        claimed += bool(compare(*pair, Options(permutations=499, resamples=99)).found)
    return claimed


def _best_of(two: Callable, one: Callable) -> Callable[[np.ndarray], np.ndarray]:
    """The test of Neyman and Pearson between two distributions that are known, by their log densities."""
    return lambda x: (two(x) - one(x)).sum(axis=1)


def _outliers(x: np.ndarray) -> np.ndarray:
    """Generalized ESD (Rosner, 1983) of slow tasks, at most one of five: the largest studentized distance, of those that
    remain when the slowest are gone, by its own limit.
    """
    rows, n = x.shape
    ranked, found = np.sort(x, axis=1), np.zeros(rows)
    for gone in range(n // 5):
        left = n - gone
        part = ranked[:, :left]
        t = stats.t.ppf(1 - 0.05 / left, left - 2)
        limit = (left - 1) * t / math.sqrt((left - 2 + t**2) * left)
        found = np.maximum(found, (part[:, -1] - part.mean(axis=1)) / part.std(axis=1, ddof=1) / limit)
    return found


def _bandwidths(x: np.ndarray) -> np.ndarray:
    """Silverman's critical bandwidth (1981), in deviations: the narrowest normal kernel with which a density has one mode."""
    result = []
    for row in (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True):
        at = np.linspace(row.min() - 0.5, row.max() + 0.5, 200)[:, None]
        low, high = 0.02, 2.0
        for _ in range(9):
            h = math.sqrt(low * high)
            rises = np.diff(np.exp(-(((at - row) / h) ** 2) / 2).sum(axis=1)) > 0
            low, high = (h, high) if (rises[1:] & ~rises[:-1]).sum() > 1 else (low, h)
        result.append(high)
    return np.array(result)


def slow_groups_tests(n: int, level: float, studies: int) -> dict[str, tuple[float, float, float]]:
    """What tests that take noise for normal find: of studies with a slow group; and their false alarms, of studies with
    lognormal delays, and with the skewed noise that looks most like a slow group. Their limits are those of normal noise.
    """
    rng = np.random.default_rng(2)
    many = _slow_groups(rng, 1, 100_000)
    place, width, gamma, delta = johnson(many)[1][0]
    skewed = stats.johnsonsu(gamma, delta, place, width)
    tests = {
        "best, if all but normal noise were excluded": _best_of(
            _two_groups, stats.norm(many.mean(), many.std()).logpdf
        ),
        "two normals against one, by likelihood": lambda x: mixture(x, 0.3)[0],
        "generalized ESD": _outliers,
        "Silverman's number of modes": _bandwidths,
    }
    noise = {
        "normal": many.mean() + many.std() * rng.standard_normal((studies, n)),
        "slow": _slow_groups(rng, studies, n),
        "delays": np.stack([NOISES["delays"](rng, n) for _ in range(studies)]),
        "skewed": skewed.rvs((studies, n), random_state=rng),
    }
    found = {}
    for name, test in tests.items():
        few = 600 if test is _bandwidths else studies
        limit = np.quantile(test(noise["normal"][: 3 * few]), 1 - level)
        found[name] = tuple(
            float((test(noise[k][:few]) > limit).mean()) for k in ("slow", "delays", "skewed")
        )
    return found


def _two_groups(x: np.ndarray) -> np.ndarray:
    """The log density of tasks of which one in ten is slower."""
    return np.logaddexp(
        math.log(1 - _SHARE) + stats.norm.logpdf(x, 0, _DEVIATION),
        math.log(_SHARE) + stats.norm.logpdf(x, _SLOW, _DEVIATION),
    )


def slow_groups_bound(n: int, level: float, studies: int = 20_000) -> float:
    """The share of such studies that any test finds, if it takes the skewed noise that is most like them for noise in all
    but this share of studies: by Neyman and Pearson, the test of the one against the other by their likelihoods.
    """
    rng = np.random.default_rng(1)
    place, width, gamma, delta = johnson(_slow_groups(rng, 1, 100_000))[1][0]
    noise = stats.johnsonsu(gamma, delta, place, width)
    ratio = _best_of(_two_groups, noise.logpdf)

    limit = np.quantile(ratio(noise.rvs((studies, n), random_state=rng)), 1 - level)
    return float((ratio(_slow_groups(rng, studies, n)) > limit).mean())


# Groups with one mean: (what they are, tasks of each, deviation of all, of the last one). The last two columns of
# the table plant an effect in the last group, with equal deviations.
UNEQUAL: dict[str, tuple[str, tuple[int, ...], float, float]] = {
    "8 nodes of 8": ("nodes", (8,) * 8, 0.01, 0.08),
    "7 nodes of 10, one of 3": ("nodes", (10,) * 7 + (3,), 0.01, 0.08),
    "16 nodes of 3": ("nodes", (3,) * 16, 0.01, 0.08),
    "conditions of 30 and 6": ("factors", (30, 6), 0.02, 0.10),
    "conditions of 30, 6 and 6": ("factors", (30, 6, 6), 0.02, 0.10),
    "7 blocks of 10, one of 3": ("blocks", (10,) * 7 + (3,), 0.02, 0.10),
    "10 blocks of 4": ("blocks", (4,) * 10, 0.02, 0.10),
}


def unequal(name: str, last: float, effect: float, studies: int, first: int = 0) -> int:
    """Studies of groups in which one analysis alone claims an effect at 5%. last: the deviation of the last group, in those
    of the others; effect: of it (of blocks: the deviation between them), in the same unit.
    """
    what, sizes, deviation, _ = UNEQUAL[name]
    group = np.repeat(np.arange(len(sizes)), sizes)
    at_end = group == len(sizes) - 1
    count = 0
    for seed in range(first, first + studies):
        rng = np.random.default_rng([seed, 1])
        y = deviation * np.where(at_end, last, 1.0) * rng.standard_normal(len(group))
        adds = rng.standard_normal(len(sizes))[group] if what == "blocks" else at_end
        y = y + deviation * effect * adds
        lines = [
            {
                "task": k, "attempt": 1, "block": int(g) if what == "blocks" else 0, "order": k, "status": "ok",
                "node": f"n{g}" if what == "nodes" else None, "wall": float(np.exp(y[k])),
                "factors": {"cond": str(g)} if what == "factors" else {},
            }
            for k, g in enumerate(group)
        ]  # fmt: skip
        count += (ANALYSES[what](frame_of(lines), OPTIONS).p or 0.0) <= 0.05
    return count
