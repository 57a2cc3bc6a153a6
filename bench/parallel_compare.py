#!/usr/bin/env python3
"""Strong scaling of `mpirun -n N twinrun compare`, beside the comparison of one process with all cores.

    python bench/parallel_compare.py --folder SCRATCH     [--quick] [--ranks 1,2] [--mpiexec WORDS] [--case "one large file"]

Two runs as many small files, as few large ones, and as a single field, in the page cache. Lines run interleaved, in rotating order:

    serial, 1 thread      one process, --threads 1
    serial                one process, a thread a core
    N ranks               a job of N ranks, a thread each

Of each: the whole command (wall), what the comparison says that it took (inside), and the processor time of all its processes, which
says what sharing the work costs also where other programs use the machine. Medians, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from measure import Spread

CASES = {
    "many small files": (6000, 8 << 10),
    "few large files": (16, 96 << 20),
    "one large file": (1, 2 << 30),
}
OVERSUBSCRIBED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def make(folder: Path, files: int, size: int) -> tuple[Path, Path]:
    """Two runs; every fourth file of the second has one element that differs."""
    random = np.random.default_rng(0)
    runs = folder / "a", folder / "b"
    for run in runs:
        run.mkdir(parents=True, exist_ok=True)
    for at in range(files):
        values = random.standard_normal(size // 8)
        for run in runs:
            np.save(run / f"x.{at // 8:06}.{at % 8}.npy", values)
            values[at % values.size] += at % 4 == 0
    return runs


def once(words: list[str], report: Path, differ: int) -> tuple[float, float, float]:
    """(wall, inside, processor) seconds of one comparison."""
    report.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [*words, "-q", "--json", str(report)],
        env={**os.environ, **OVERSUBSCRIBED},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=600,
    )
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(report.read_text()) if done.returncode == 1 else {}
    if done.returncode != 1 or found["different"] != differ:
        sys.exit(f"{shlex.join(words)}: status {done.returncode}\n{done.stderr.decode(errors='replace')}")
    return wall, found["seconds"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="scratch, with 8 GB free")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--words", default="", help="more for compare: --words='--ulp 4'")
    parser.add_argument("--mpiexec", default=str(Path(sys.executable).parent / "mpiexec"))
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the files' sizes and numbers")
    arguments = parser.parse_args()
    compare = [sys.executable, "-m", "twinrun", "compare"]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} of other programs at the begin, "
        f"{time.strftime('%Y-%m-%d')}; seconds: median (smallest to largest) of {arguments.times}"
    )
    for name in arguments.case or CASES:
        files, size = CASES[name]
        if arguments.quick:
            files, size = max(min(4, files), files // 16), max(1 << 10, size // 16)
        a, b = make(arguments.folder / name.replace(" ", "-"), files, size)
        words = [str(a), str(b), "--device", "cpu", *shlex.split(arguments.words)]
        lines = {
            "serial, 1 thread": [*compare, *words, "--threads", "1"],
            "serial": [*compare, *words],
        }
        for ranks in map(int, arguments.ranks.split(",")):
            # One rank is what a job of one costs: MPI is not even started, unless it is asked for.
            lines[f"{ranks} rank{'s' if ranks > 1 else ''}"] = [
                *shlex.split(arguments.mpiexec), "-n", str(ranks), *compare, *words, "--threads", "1", "--mpi", "on",
            ]  # fmt: skip
        taken: dict[str, list[tuple[float, float, float]]] = {line: [] for line in lines}
        order = list(lines)
        for turn in range(arguments.times + 1):
            for line in order[turn % len(order) :] + order[: turn % len(order)]:
                seconds = once(lines[line], arguments.folder / "report.json", -(-files // 4))
                if turn:  # the first warms up
                    taken[line].append(seconds)
        print(f"\n{name}: {files} of {size >> 10} KiB a run\n")
        print("| | whole command | inside | processor |\n|---|---|---|---|")
        for line, values in taken.items():
            spreads = [Spread(list(column)) for column in zip(*values, strict=True)]
            cells = [f"{s.median:.2f} ({min(s.values):.2f} to {max(s.values):.2f})" for s in spreads]
            print(f"| {line} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
