"""What writes cost a program that computes: in its own call, and in the background, as a table of Markdown.

python bench/background_table.py --build build/release --mpicc MPICC --mpiexec MPIEXEC [--ranks 2] [--folder DIR] [--sync]

Three ways take turns in one job: steps that only compute, steps that each write in the call, and steps that write in the background. Times
are those of the slowest rank, medians with least and most. The cost is what the way takes beyond the steps that only compute, paired by
repetition.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Spread
from table import markdown, spread

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))
from mpi import ENVIRONMENT  # noqa: E402 - how ranks give way where there are more than cores

CASES = ((2_000_000, 0.05), (20_000_000, 0.05), (20_000_000, 0.2))  # bytes of a rank, seconds of a step


def measure(
    arguments: argparse.Namespace, program: Path, size: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Seconds in all and in calls, by way, in the order of repetitions."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        done = subprocess.run(
            [
                *(*arguments.mpiexec.split(), "-n", str(arguments.ranks), str(program), folder, str(size)),
                *(str(arguments.steps), str(seconds), str(arguments.repeat), str(int(arguments.sync))),
            ],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=arguments.limit,
        )
    times: dict[str, list[tuple[float, float]]] = {}
    for line in done.stdout.splitlines():
        way, whole, calls = line.split()
        times.setdefault(way, []).append((float(whole), float(calls)))
    return times


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--mpicc", default="mpicc")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one line, at most")
    arguments = parser.parse_args()
    library = arguments.build.resolve() / "bin"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "background_cost"
        subprocess.run(
            [
                *(arguments.mpicc, "-O2", "-o", str(program), str(ROOT / "bench/background_cost.c")),
                *(f"-I{ROOT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"),
                *("-ltwinrun_aggregate", "-ltwinrun"),
            ],
            check=True,
        )
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
        f"{arguments.ranks} ranks, {os.cpu_count()} cores, {platform.system()} {platform.release()}; {arguments.steps} steps, "
        f"{arguments.repeat} repetitions{', sync' if arguments.sync else ''}; seconds\n"
    )
    heads = ["", "only computing", "cost of write", "in calls", "cost of write_begin", "in calls"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
