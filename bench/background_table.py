"""What writes cost a program that computes: in its own call, and in the background, as a table of Markdown.

python bench/background_table.py --build build/release --mpicc MPICC --mpiexec MPIEXEC [--ranks 2] [--folder DIR] [--sync]

Three ways take turns in one job: steps that only compute, steps that each write in the call, and steps that write in the background. Times
are those of the slowest rank, medians with least and most. The cost is what the way takes beyond the steps that only compute, paired by
repetition.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from measure import Spread
from mpi_programs import ROOT, build, parser_of, run, setting
from table import markdown, spread

CASES = ((2_000_000, 0.05), (20_000_000, 0.05), (20_000_000, 0.2))  # bytes of a rank, seconds of a step


def measure(
    arguments: argparse.Namespace, program: Path, size: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Seconds in all and in calls, by way, in the order of repetitions."""
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        words = [folder, size, arguments.steps, seconds, arguments.repeat, int(arguments.sync)]
        for way, whole, calls in run(arguments, program, words):
            times.setdefault(way, []).append((float(whole), float(calls)))
    return times


def main() -> None:
    """Measures, and prints the table."""
    parser = parser_of(__doc__, ranks=2, repeat=7)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--sync", action="store_true")
    arguments = parser.parse_args()
    library = arguments.build.resolve() / "bin"
    flags = [f"-I{ROOT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        libraries = ["-ltwinrun_aggregate", "-ltwinrun"]
        program = build(arguments.mpicc, "background_cost.c", folder, *flags, *libraries)
        for size, seconds in CASES:
            times = measure(arguments, program, size, seconds)
            alone = times["compute"]
            row = [f"{size / 1e6:g} MB a rank, steps of {seconds:g} s", spread(Spread([t[0] for t in alone]))]
            for way in ("caller", "background"):
                cost = [t[0] - a[0] for t, a in zip(times[way], alone, strict=True)]
                row += [spread(Spread(cost)), f"{statistics.median(t[1] for t in times[way]):.3f}"]
            rows.append(row)
            print(row, file=sys.stderr)
    print(
        f"{setting(arguments)}; {arguments.steps} steps, {arguments.repeat} repetitions"
        f"{', sync' if arguments.sync else ''}; seconds\n"
    )
    heads = ["", "only computing", "cost of write", "in calls", "cost of write_begin", "in calls"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
