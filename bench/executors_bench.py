#!/usr/bin/env python3
"""Comparisons that workers of executors share, beside twinrun's own ranks and one process.

    python bench/executors_bench.py --folder SCRATCH     [--quick] [--mpiexec WORDS]

Lines run interleaved, in rotating order, two workers or ranks of a thread each:

    serial          one process, --threads 1
    own ranks       mpiexec -n 2 twinrun compare: the leader works too
    mpi4py.futures  mpiexec -n 3 python -m mpi4py.futures: a process that hands out, and two workers
    processes       concurrent.futures.ProcessPoolExecutor, started for the comparison
    dask            a LocalCluster of two processes, started before; where `distributed` is installed

Of each the whole command, what the comparison says that it took (inside), and the processor time of all processes, in seconds. The
inside of executors has the start of their workers, but for Dask's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import Spread, write_results

# Of histories: steps and fields; of files: how many, in steps of eight ranks.
CASES = {"history of 20 steps, 1000 fields each": (20, 1000), "6000 files of 8 KiB": (6000, 0)}
OVERSUBSCRIBED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
PROGRAM = """
import json, sys
def main():
    a, b, report, kind = sys.argv[1:]
    import twinrun
    if kind == "mpi4py.futures":
        from mpi4py.futures import MPIPoolExecutor
        pool = MPIPoolExecutor()
    elif kind == "processes":
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    else:
        import distributed
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        pool = distributed.Client(cluster).get_executor()
    with pool:
        found = twinrun.compare(a, b, executor=pool)
    with open(report, "w") as file:
        json.dump({"verdict": found.verdict, "fields": len(found.fields), "seconds": found.seconds}, file)
if __name__ == "__main__":
    main()
"""


def history(path: Path, steps: int, fields: int) -> None:
    """Fields of 1 KiB."""
    import twinrun

    random = np.random.default_rng(0)
    state = {f"field_{at:05d}": random.standard_normal(256).astype("f4") for at in range(fields)}
    with twinrun.Run(path, atol=1e-6) as run:
        for step in range(steps):
            run.capture(step, state)


def files(path: Path, count: int) -> None:
    """A file a step and rank."""
    path.mkdir()
    random = np.random.default_rng(0)
    for at in range(count):
        np.save(path / f"x.{at // 8:06}.{at % 8}.npy", random.standard_normal(1024))


def once(words: list[str], report: Path) -> tuple[float, float, float, dict]:
    """(wall, inside, processor) seconds of a command, and its report."""
    report.unlink(missing_ok=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(words, env=os.environ | OVERSUBSCRIBED, capture_output=True, text=True)
    wall = time.perf_counter() - start
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not report.exists():
        raise SystemExit(f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    said = json.loads(report.read_text())
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return wall, said["seconds"], processor, said


def lines(program: Path, report: Path, a: Path, b: Path, mpiexec: list[str]) -> dict[str, list[str]]:
    """The command of each line."""
    python = sys.executable
    compare = [python, "-m", "twinrun", "compare", str(a), str(b), "-q", "--json", str(report)]
    ask = [str(program), str(a), str(b), str(report)]
    found = {
        "serial": [*compare, "--threads", "1", "--mpi", "off"],
        "own ranks": [*mpiexec, "-n", "2", *compare, "--threads", "1"],
        "mpi4py.futures": [*mpiexec, "-n", "3", python, "-m", "mpi4py.futures", *ask, "mpi4py.futures"],
        "processes": [python, *ask, "processes"],
    }
    try:
        import distributed  # noqa: F401
    except ImportError:
        print("without dask: there is no `distributed`", file=sys.stderr)
    else:
        found["dask"] = [python, *ask, "dask"]
    return found


def main(arguments: list[str]) -> None:
    """Measures and prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the runs go")
    parser.add_argument("--quick", action="store_true", help="little data, once")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--mpiexec", default=str(Path(sys.executable).parent / "mpiexec"))
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    results: dict[str, dict[str, list]] = {}
    for case, (count, fields) in CASES.items():
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            folder = Path(name)
            scale = 50 if given.quick else 1
            for run in "ab":
                if fields:
                    history(folder / run, count, fields // scale)
                else:
                    files(folder / run, count // scale)
            (folder / "program.py").write_text(PROGRAM)
            report = folder / "report.json"
            every = lines(
                folder / "program.py", report, folder / "a", folder / "b", shlex.split(given.mpiexec)
            )
            taken: dict[str, list] = {line: [] for line in every}
            for round_ in range(1 if given.quick else given.times):
                names = list(every)
                for line in names[round_ % len(names) :] + names[: round_ % len(names)]:
                    *seconds, said = once(every[line], report)
                    if said["verdict"] != "same":
                        raise SystemExit(f"{line}: {said}")
                    taken[line].append(seconds)
        print(f"{case}:\n\n| | whole command | inside | processor |\n|---|---|---|---|")
        for line, rows in taken.items():
            parts = [Spread(list(column)) for column in zip(*rows, strict=True)]
            print(
                f"| {line} | "
                + " | ".join(f"{p.median:.2f} ({min(p.values):.2f} to {max(p.values):.2f})" for p in parts)
                + " |"
            )
        print(flush=True)
        results[case] = taken
    if given.json is not None:
        write_results(given.json, results)


if __name__ == "__main__":
    main(sys.argv[1:])
