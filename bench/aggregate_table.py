"""twinrun_aggregate beside POSIX and MPI-IO: haccio, all methods interleaved in one run, as a table of Markdown.

python bench/aggregate_table.py --program build/release/bin/haccio [--mpiexec "mpiexec --oversubscribe"] [--folder DIR]

Each size and layout is a run of haccio of its own, in which a repetition has every method once, in shuffled order, with the two
ceilings: a copy of all ranks' data in memory, and one process that writes as many bytes. MB/s: after a barrier, from the first rank's start to
the last rank's end, files in the page cache; and with the fsync that follows. Medians, with least and most; CoV: coefficient of variation. The last column
pairs repetitions: how many times the method's bandwidth aggregate has, with an interval of 95%.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from measure import Spread
from table import markdown, number, spread

from twinrun.aggregate.studies.launch import Stack, default_program
from twinrun.ensemble.intervals import Interval, ratio_of_means

OURS = "aggregate"
CEILINGS = ("ceiling-copy", "ceiling-write")
BASELINES = {
    "records": ("posix", "posix-packed", "mpiio-collective", "mpiio-two-phase"),
    "blocks": ("posix", "mpiio-collective", "mpiio-two-phase"),
    "variables": ("posix", "mpiio-collective", "mpiio-two-phase"),
}
# Of the same data: what aggregate is to reach at least, by baseline, layout and column. None: any.
GOALS = (
    ("mpiio-two-phase", None, "cached", 3.0, 0),
    ("posix", "records", "cached", 5.0, 0),
    ("posix", "blocks", "cached", 0.5, 0),
    ("posix", "blocks", "synced", 0.9, 25_000),
)


def measure(stack: Stack, arguments: argparse.Namespace, layout: str, particles: int, seed: int) -> dict:
    """One run: {method: {"cached": rates, "synced": rates}} by repetition, and where it ran."""
    methods = [OURS, *BASELINES[layout], *CEILINGS]
    file = arguments.folder / "aggregate-table.data"
    result = stack.run(
        arguments.ranks,
        [
            *(
                "--particles",
                str(particles),
                "--layout",
                layout,
                "--methods",
                ",".join(methods),
                "--sync",
                "after",
            ),
            *("--warmup", "1", "--repeat", str(arguments.repeat), "--seed", str(seed), str(file)),
        ],
        arguments.limit,
    )
    rates: dict[str, dict[str, list[float]]] = {m: {"cached": [], "synced": []} for m in methods}
    for x in sorted(result.all("repetition"), key=lambda x: x["repetition"]):
        rates[x["method"]]["cached"].append(x["bytes_per_second"])
        if "synced_bytes_per_second" in x:
            rates[x["method"]]["synced"].append(x["synced_bytes_per_second"])
    return {"layout": layout, "particles": particles, "rates": rates, "run": result.run}


def variation(values: list[float]) -> float | None:
    """The coefficient of variation."""
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else None


def cells(values: list[float]) -> list[str]:
    """Of one column."""
    if not values:
        return ["", ""]
    cov = variation(values)
    return [spread(Spread([x / 1e6 for x in values])), "" if cov is None else f"{100 * cov:.2g}%"]


def against(case: dict, method: str, column: str) -> Interval:
    """How many times the method's bandwidth aggregate has."""
    return ratio_of_means(case["rates"][OURS][column], case["rates"][method][column])


def rows(case: dict) -> Iterator[list[str]]:
    """Of one size and layout."""
    size = f"{case['layout']}, {case['particles'] / 1000:g}k"
    for method, rates in case["rates"].items():
        ratio = "" if method == OURS else against(case, method, "cached").text()
        synced = "" if method == OURS or not rates["synced"] else against(case, method, "synced").text()
        yield [f"{size}: {method}", *cells(rates["cached"]), ratio, *cells(rates["synced"]), synced]


def goals(cases: list[dict]) -> Iterator[list[str]]:
    """Which goals were reached, by the medians of this run."""
    for method, layout, column, goal, least in GOALS:
        for case in cases:
            if (layout and case["layout"] != layout) or case["particles"] < least:
                continue
            ours, other = (statistics.median(case["rates"][m][column]) for m in (OURS, method))
            place = (
                f"{case['layout']}, {case['particles'] / 1000:g}k, {column}: at least {goal:g} times {method}"
            )
            yield [place, number(ours / other), "yes" if ours >= goal * other else "no"]
    for case in cases:
        for column in ("cached", "synced"):
            found = {m: variation(case["rates"][m][column]) for m in (OURS, *BASELINES[case["layout"]])}
            if any(v is None for v in found.values()):
                continue
            ours = found.pop(OURS)
            best = min(found, key=found.get)
            place = f"{case['layout']}, {case['particles'] / 1000:g}k, {column}: varies no more than {best} ({100 * found[best]:.2g}%)"
            yield [place, f"{100 * ours:.2g}%", "yes" if ours <= found[best] else "no"]


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", help="haccio; default: TWINRUN_HACCIO, or from the PATH")
    parser.add_argument("--mpiexec", help="what starts it, with options; default: what it was built with")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--particles", default="5000,25000,100000", help="a rank")
    parser.add_argument("--layouts", default=",".join(BASELINES))
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one run, at most")
    parser.add_argument("--json", type=Path, help="all repetitions")
    arguments = parser.parse_args()
    stack = Stack.of(arguments.program or default_program(), arguments.mpiexec)
    layouts = arguments.layouts.split(",")
    if unknown := set(layouts) - set(BASELINES):
        parser.error(f"--layouts: {unknown.pop()!r} is none of {', '.join(BASELINES)}")
    cases = []
    for seed, (layout, particles) in enumerate(
        (a, int(b)) for a in layouts for b in arguments.particles.split(",")
    ):
        print(f"{layout}, {particles} particles a rank", file=sys.stderr)
        cases.append(measure(stack, arguments, layout, particles, seed))
        if arguments.json:
            arguments.json.write_text(json.dumps(cases, indent=1) + "\n")
    run = cases[0]["run"]
    hosts = len(run["hosts"])
    print(
        f"{run['ranks']} ranks on {hosts} host{'s' if hosts > 1 else ''}, {run['mpi']}, {platform.system()} "
        f"{platform.release()}; {arguments.repeat} repetitions\n"
    )
    header = ["", "MB/s", "CoV", "aggregate is, times", "and fsync, MB/s", "CoV", "aggregate is, times"]
    print(markdown(header, [row for case in cases for row in rows(case)]), end="\n\n")
    print(markdown(["goal", "reached", ""], list(goals(cases))))


if __name__ == "__main__":
    main()
