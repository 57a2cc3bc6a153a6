"""Histories of many entries (steps x fields): how long and how much memory opening, listing and comparing take.

    .venv/bin/python bench/open_bench.py                     # 10,000 steps of 100 fields: a million entries, half a minute to write
    .venv/bin/python bench/open_bench.py --steps 100 --fields 10000 --folder /dev/shm

The history is written by `twinrun.Run`, fields of 8 numbers. Each line runs in a process of its own, so that its memory is its
own too: "opening" opens the history twice, as comparing it with itself does before it compares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import twinrun

_OPENING = "from twinrun.runs.opening import open_subject\nfor _ in 'ab':\n    places = len(open_subject(path).places)"
_COMPARING = "import twinrun\nassert twinrun.compare(path, path).same"
_LOG = "from twinrun.cli import main\ntry:\n    main(['log', path])\nexcept SystemExit as e:\n    assert e.code == 0"
_LINES = {"opening": _OPENING, "`twinrun log`": _LOG, "comparing": _COMPARING}
_PROGRAM = """
import json, resource, sys, time
path = sys.argv[1]
start = time.perf_counter()
{}
used = resource.getrusage(resource.RUSAGE_SELF)
taken = time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
print(json.dumps(taken), file=sys.stderr)
"""


def write(path: str, steps: int, fields: int) -> float:
    """Writes a history; seconds."""
    state = {f"field_{n:05d}": np.arange(8.0) + n for n in range(fields)}
    start = time.perf_counter()
    with twinrun.Run(path, atol=1e-6, threads=1) as run:
        for step in range(steps):
            run.capture(step, state)
    return time.perf_counter() - start


def measured(program: str, path: str) -> tuple[float, float, float]:
    """Seconds, seconds of processors, MiB at most."""
    words = [sys.executable, "-c", _PROGRAM.format(program), path]
    run = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    seconds, used, memory = json.loads(run.stderr.splitlines()[-1])
    return seconds, used, memory


def main(arguments: list[str]) -> None:
    """Measures and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--fields", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the history goes, for the time of the measurement")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    entries = given.steps * given.fields
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        path = f"{name}/run"
        print(f"{entries} entries, written in {write(path, given.steps, given.fields):.1f} s\n")
        print("| line | s | processors, s | MiB | us an entry |", "|---|---:|---:|---:|---:|", sep="\n")
        for line, program in _LINES.items():
            found = sorted(measured(program, path) for _ in range(given.repeat))
            seconds, used, memory = found[len(found) // 2]
            spread = f"{seconds:.2f} ({found[0][0]:.2f} to {found[-1][0]:.2f})"
            print(
                f"| {line} | {spread} | {used:.2f} | {memory:.0f} | {1e6 * seconds / entries:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
