"""How often reports on ensembles keep their promises, over simulated studies whose truth is known.

python bench/ensemble_rates.py grid|alarms|power|alone|causes|intervals|coverage|covariates|kept|unseen|unequal|slow|slow-tests|slow-told|pairs|workloads [--studies N] [--tasks 10,40,200] [--noise normal,...] [--design ...]

grid: alarms and intervals of the same reports, with Clopper and Pearson's interval of the rate of false claims.
        --jobs: processes at once, of grid, power, causes and slow; --json FILE: a line for
        each cell of the grid is added, with the seeds of false claims.
alarms: studies in which nothing is the matter; how many reports claim anything (a trend of a drift is no false claim).
        --counters adds all measures of the system to each task; --first is the first study's seed.
intervals: how many of the 95% intervals of the same studies miss the truth, and how many are not given.
power: the effect that a report says it could have seen is planted in another study; how many reports find it.
alone: the same of one analysis without its report, at the level of a report of nine tests: quicker.
covariates: a covariate adds an effect, in units of the noise; how many analyses claim it (0: none is there).
kept: the correlation with a covariate that a report could have seen is planted in another study.
coverage: the interval of the coefficient of variation alone, of tasks without conditions; --block: tasks of a block.
unseen: what the upper ends of intervals allow for, as in the table of `deviations`.
unequal: groups with one mean, of which one varies more; how often one analysis alone claims an effect at 5%.
causes: one cause is planted, twice as large as promised; how many reports find it, and how many find it alone.
        one: how many find it alone, and with an interval that holds the effect.
slow: one task in ten is 10% slower, beside a deviation of 3%; how many studies `tail` finds, and how many any test could.
slow-tests: the same of tests that take noise for normal, and how often they claim a group where noise is skewed.
slow-told: how many of the same studies, and of noise alone, `tail` claims and describes, at the level of nine tests.
pairs: two equal studies of tasks that resemble the ones before; how many `compare` alone claims to differ at 5%.
workloads: replicas that begin at one moment, in studies of several conditions; how many reports claim what.

Each row is printed as it is done, as a row of a table in Markdown. Seeds are fixed: the same command prints the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from operator import add
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "python", "support"))

import ensemble_rates as rates
import numpy as np
from ensemble_simulation import workloads
from scipy import stats


def _alarms(a: argparse.Namespace, sizes: list[int]) -> None:
    said = "with a false claim" if a.what == "alarms" else "interval: missed, not given"
    print(f"| noise | design | tasks | {said} of {a.studies} | which |")
    print("|---|---|---|---|---|")
    for noise in a.noise.split(","):
        for design in a.design.split(","):
            for n in sizes:
                if a.what == "alarms":
                    count, which = rates.false_alarms(noise, design, n, a.studies, a.counters, a.first)
                    said = str(count)
                else:
                    said, which = rates.missed(noise, design, n, a.studies)
                listed = ", ".join(f"{k} {v}" for k, v in which.most_common())
                print(f"| {noise} | {design} | {n} | {said} | {listed} |", flush=True)


def _within(count: int, of: int) -> str:
    """'3 of 40 [1.6%, 20%]'."""
    ends = stats.binomtest(count, of).proportion_ci(0.95)
    return f"{count} of {of} [{100 * ends.low:.3g}%, {100 * ends.high:.3g}%]"


_AT_ONCE = 10  # studies of a process before it takes others


def _shared(a: argparse.Namespace, of: Callable[..., Any], rows: list[tuple]) -> Iterator[Any]:
    """Sums of of(*row, studies, first) over all studies, one for each row and in their order."""
    parts = [(k, min(_AT_ONCE, a.studies - k)) for k in range(0, a.studies, _AT_ONCE)]
    if a.jobs == 1:
        yield from (reduce(add, [of(*row, count, a.first + k) for k, count in parts]) for row in rows)
        return
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # of the processes, which import numpy anew: matrices are small
    with ProcessPoolExecutor(a.jobs, multiprocessing.get_context("spawn")) as pool:
        begun = [[pool.submit(of, *row, count, a.first + k) for k, count in parts] for row in rows]
        for row in begun:
            yield reduce(add, [part.result() for part in row])


def _grid(a: argparse.Namespace, sizes: list[int]) -> None:
    names = rates.INTERVALS
    print(
        f"| design | noise | tasks | false claims | which | {' | '.join(f'{x}: held, of given' for x in names)} |"
    )
    print("|---|---|---|---|---|" + "---|" * len(names))
    rows = [
        (noise, design, n) for design in a.design.split(",") for noise in a.noise.split(",") for n in sizes
    ]
    for (noise, design, n), c in zip(rows, _shared(a, rates.cell, rows), strict=True):
        which = ", ".join(f"{k} {v}" for k, v in c.which.most_common())
        told = " | ".join(f"{c.held[x]} of {c.given[x]}" if c.given[x] else "none" for x in names)
        print(f"| {design} | {noise} | {n} | {_within(c.alarms, c.studies)} | {which} | {told} |", flush=True)
        if a.json:
            with open(a.json, "a") as file:
                print(json.dumps({"design": design, "noise": noise, "tasks": n, **vars(c)}), file=file)


def _covariates(a: argparse.Namespace, sizes: list[int]) -> None:
    effects = (0.0, 0.25, 0.5, 1.0)
    print(f"| resembles the one before | tasks | {' | '.join(f'effect {e:g}' for e in effects)} |")
    print("|---|---|" + "---|" * len(effects))
    for memory in map(float, a.memory.split(",")):
        for n in sizes:
            said = " | ".join(str(rates.covariates_found(n, e, memory, a.studies)) for e in effects)
            print(f"| {memory:g} | {n} | {said} |", flush=True)


def _kept(a: argparse.Namespace, sizes: list[int]) -> None:
    print(
        f"| resembles the one before | tasks | found of {a.studies} | alone | no promise | median promise |"
    )
    print("|---|---|---|---|---|---|")
    for memory in map(float, a.memory.split(",")):
        for n in sizes:
            found, alone, none, promise = rates.covariates_kept(n, memory, a.studies)
            print(f"| {memory:g} | {n} | {found} | {alone} | {none} | {promise:.2f} |", flush=True)


def _coverage(a: argparse.Namespace, sizes: list[int]) -> None:
    print(
        f"| noise | tasks | blocks of | given, of {a.studies} | truth below | truth above | held, of those given |"
    )
    print("|---|---|---|---|---|---|---|")
    for noise in a.noise.split(","):
        for n in sizes:
            c = rates.covered(noise, n, a.studies, a.block)
            given = a.studies - c["not given"]
            held = f"{100 * c['held'] / given:.1f}%" if given else ""
            print(
                f"| {noise} | {n} | {a.block} | {given} | {c['too high']} | {c['too low']} | {held} |",
                flush=True,
            )


def _unseen(a: argparse.Namespace, sizes: list[int]) -> None:
    print("| tasks | tails | the worst | unseen in | resemblance | the worst | unseen in |")
    print("|---|---|---|---|---|---|---|")
    for n in sizes:
        both = rates.worst_unseen(n, a.studies, np.random.default_rng(1))
        said = " | ".join(f"{times:.3f} | {name} | {100 * share:.0f}%" for times, name, share in both)
        print(f"| {n} | {said} |", flush=True)


def _alone(a: argparse.Namespace, sizes: list[int]) -> None:
    print(f"| cause | tasks | promised, of {a.studies} | found | effect |")
    print("|---|---|---|---|---|")
    for cause in a.cause.split(","):
        for n in sizes:
            promised, found, effect = rates.kept_alone(cause, n, a.studies)
            said = f"{_within(found, promised)} | {100 * effect:.2g}%" if promised else " | "
            print(f"| {cause} | {n} | {promised} | {said} |", flush=True)


# In deviations of tasks: an effect that the classical test, with one variance, finds in most studies.
_EFFECT = {"nodes": 4.0, "factors": 1.5, "blocks": 1.0}


def _unequal(a: argparse.Namespace, _: list[int]) -> None:
    print(f"| groups | last one varies more | claims of {a.studies} | as all do | with an effect |")
    print("|---|---|---|---|---|")
    rows = []
    asked = {k: v for k, v in rates.UNEQUAL.items() if v[0] in a.cause.split(",")}
    for name, (what, sizes, deviation, last) in asked.items():
        effect = _EFFECT[what] / (np.sqrt(sizes[-1]) if what == "nodes" else 1.0)
        rows += [(name, last / deviation, 0.0), (name, 1.0, 0.0), (name, 1.0, effect)]
    found = list(_shared(a, rates.unequal, rows))
    for k in range(0, len(rows), 3):
        name, times, _ = rows[k]
        print(
            f"| {name} | {times:g} times | {_within(found[k], a.studies)} | {found[k + 1]} | {found[k + 2]} |"
        )


def _planted(cause: str, n: int, times: float, noise: str, studies: int, first: int) -> rates.Planted:
    return rates.planted(cause, n, studies, times, None, noise, first)


def _effects(a: argparse.Namespace, sizes: list[int]) -> None:
    print(
        f"| cause | tasks | promised, of {a.studies} | found | alone | interval holds | one | others | effect |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    times = 1.0 if a.what == "power" else 2.0
    rows = [(cause, n, times, "normal") for cause in a.cause.split(",") for n in sizes]
    for (cause, n, *_), c in zip(rows, _shared(a, _planted, rows), strict=True):
        said = ", ".join(f"{k} {v}" for k, v in c.others.most_common())
        found = _within(c.found, c.promised) if c.promised else "none"
        print(
            f"| {cause} | {n} | {c.promised} | {found} | {c.alone} | {c.holds} | {c.one} | {said} | {c.effect} |",
            flush=True,
        )


def _slow_tests(a: argparse.Namespace, sizes: list[int]) -> None:
    print(
        "| tasks | test, with limits of normal noise | finds the slow group | claims one of lognormal delays | of skewed noise |"
    )
    print("|---|---|---|---|---|")
    for n in sizes:
        for name, shares in rates.slow_groups_tests(n, 0.05 / 9, a.studies).items():
            print(f"| {n} | {name} | {' | '.join(f'{100 * x:.3g}%' for x in shares)} |", flush=True)


def _slow_told(a: argparse.Namespace, sizes: list[int]) -> None:
    print(f"| noise | tasks | claims a slow group, of {a.studies} | describes slow tasks |")
    print("|---|---|---|---|")
    for noise in ("slow", *a.noise.split(",")):
        for n in sizes:
            claimed, described = rates.slow_groups_told(noise, n, a.studies, a.first)
            print(f"| {noise} | {n} | {claimed} | {described} |", flush=True)


def _pairs(a: argparse.Namespace, sizes: list[int]) -> None:
    print(f"| autoregression | tasks | claims a difference, of {a.studies} |")
    print("|---|---|---|")
    for coefficient in (0.0, 0.5, 0.8):
        for n in sizes:
            claimed = rates.pairs_claimed(coefficient, n, a.studies, a.first)
            print(f"| {coefficient:g} | {n} | {_within(claimed, a.studies)} |", flush=True)


def _slow(a: argparse.Namespace, sizes: list[int]) -> None:
    print(f"| tasks | found of {a.studies} | any test at most |")
    print("|---|---|---|")
    level = 0.05 / 9  # of a report with nine tests
    rows = [(n, level) for n in sizes]
    for (n, _), found in zip(rows, _shared(a, rates.slow_groups_found, rows), strict=True):
        bound = rates.slow_groups_bound(n, level)
        print(f"| {n} | {_within(found, a.studies)} | {100 * bound:.0f}% |", flush=True)


def _workloads(a: argparse.Namespace, _: list[int]) -> None:
    print("| workloads | blocks | effect of the condition | claims | which |")
    print("|---|---|---|---|---|")
    two = [({"mode": name}, 8) for name in ("off", "on")]
    sizes = [({"replicas": str(n)}, n) for n in (2, 4, 8)]
    for said, cells, blocks, effect in (
        ("two conditions of 8 replicas", two, 10, 0.0),
        ("2, 4 and 8 replicas", sizes, 8, 0.0),
        ("two conditions of 8 replicas", two, 10, 0.1),
    ):
        which: Counter[str] = Counter()
        count = 0
        for seed in range(a.first, a.first + a.studies):
            claimed = [x.name for x in rates.report(workloads(seed, cells, blocks, effect=effect)).alarms]
            count += bool(claimed)
            which.update(claimed)
        listed = ", ".join(f"{k} {v}" for k, v in which.most_common())
        print(f"| {said} | {blocks} | {effect:.0%} | {_within(count, a.studies)} | {listed} |", flush=True)


_DO = {
    "grid": _grid, "alarms": _alarms, "intervals": _alarms, "power": _effects, "alone": _alone, "causes": _effects, "covariates": _covariates, "kept": _kept,
    "coverage": _coverage, "unseen": _unseen, "unequal": _unequal, "slow": _slow, "slow-tests": _slow_tests,
    "slow-told": _slow_told, "pairs": _pairs, "workloads": _workloads,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=list(_DO))
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--tasks", default="10,40,200")
    parser.add_argument("--noise", default=",".join(rates.NOISES))
    parser.add_argument("--design", default=",".join(rates.DESIGNS))
    parser.add_argument("--cause", default=",".join(rates.CAUSES))
    parser.add_argument("--counters", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--memory", default="0,0.5,0.8")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json")
    a = parser.parse_args()
    sizes = [int(n) for n in a.tasks.split(",")]
    begun = time.monotonic()
    _DO[a.what](a, sizes)
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
