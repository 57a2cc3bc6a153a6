#!/usr/bin/env python3
"""What interposition costs: a call in a loop, and whole applications, without and with the library, interleaved.

usage: interpose_cost.py [--library FILE] [--pairs N] [--calls N] [-- COMMAND...]

Without COMMAND: ns that a counted call takes more than one that is not, of calls that do next to nothing (fwrite of 8 bytes, fgets,
lseek, write to /dev/null). With COMMAND: wall and CPU seconds of pairs of runs, in random order within a pair, and the ratio on / off of
the pairs: median, quartiles, and a 95% interval of the median (order statistics). Where profiles are left, the library's own estimate too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOPS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(int argc, char** argv) {
    long n = atol(argv[1]);
    double value = 1;
    char text[32];
    int null = open("/dev/null", O_WRONLY), file = open("/proc/self/exe", O_RDONLY);
    FILE* stream = fopen("/dev/null", "w");
    FILE* lines = tmpfile();
    for (int i = 0; i < 1000; ++i) fputs("a line of text\n", lines);
#define LOOP(name, call) { double best = 1e300; for (int r = 0; r < 5; ++r) { double t = now(); for (long i = 0; i < n / 5; ++i) call; \
    t = (now() - t) / (n / 5); if (t < best) best = t; } printf("%s %.2f\n", name, best); }
    LOOP("fwrite", fwrite(&value, sizeof value, 1, stream))
    LOOP("fgets", if (!fgets(text, sizeof text, lines)) rewind(lines))
    LOOP("lseek", lseek(file, 0, SEEK_SET))
    LOOP("write", if (write(null, &value, 8) < 0) return 1)
    return 0;
}
"""


def spread(values: list[float]) -> str:
    """Median [quartiles]."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median: order statistics that hold it with 95%."""
    ordered, n = sorted(values), len(values)
    k = 0
    while sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 0.025:
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else (-math.inf, math.inf)


def variables(library: str, folder: str) -> dict[str, str]:
    return {"LD_PRELOAD": library, "TWINRUN_INTERPOSE_FOLDER": folder}


def loops(library: str, pairs: int, calls: int) -> None:
    cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        sys.exit("interpose_cost: there is no C compiler")
    with tempfile.TemporaryDirectory() as name:
        source, program = Path(name) / "loops.c", Path(name) / "loops"
        source.write_text(LOOPS)
        subprocess.run([cc, "-O2", "-w", "-o", program, source], check=True)
        seen: dict[str, dict[bool, list[float]]] = {}
        for pair in range(pairs):
            for on in random.Random(pair).sample([False, True], 2):
                more = variables(library, name) if on else {}
                out = subprocess.run(
                    [program, str(calls)],
                    env={**os.environ, **more},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for line in out.stdout.splitlines():
                    call, ns = line.split()
                    seen.setdefault(call, {False: [], True: []})[on].append(float(ns))
        for call, both in seen.items():
            more = [b - a for a, b in zip(both[False], both[True], strict=True)]
            print(
                f"{call:8} off {spread(both[False])} ns, on {spread(both[True])} ns, more {spread(more)} ns"
            )


def application(library: str, pairs: int, words: list[str]) -> None:
    walls: dict[bool, list[float]] = {False: [], True: []}
    cpus: dict[bool, list[float]] = {False: [], True: []}
    own = []
    for pair in range(pairs):
        for on in random.Random(pair).sample([False, True], 2):
            with tempfile.TemporaryDirectory() as name:
                more = variables(library, name) if on else {}
                before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                subprocess.run(
                    words,
                    env={**os.environ, **more},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                walls[on].append(time.monotonic() - start)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpus[on].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                found = [json.loads(p.read_text()) for p in Path(name).glob("PROFILE-*.json")]
                ranks = [p for p in found if p["rank"] is not None] or found
                if ranks:
                    own.append(max(p["own_cost_seconds"] / max(p["wall"], 1e-9) for p in ranks))
    for what, both in (("wall", walls), ("CPU", cpus)):
        ratios = [b / a for a, b in zip(both[False], both[True], strict=True)]
        low, high = interval(ratios)
        print(
            f"{what:5} off {spread(both[False])} s, on {spread(both[True])} s, on / off {spread(ratios)}, 95% of the median [{low:.4f}, {high:.4f}]"
        )
    if own:
        print(
            f"own estimate, of the wall time of the rank that made most calls: {100 * statistics.median(own):.3g}%"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default=os.environ.get("TWINRUN_INTERPOSE_LIBRARY"))
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--calls", type=int, default=2_000_000)
    parser.add_argument("command", nargs="*")
    given = parser.parse_args()
    if given.library is None:
        from twinrun.ensemble.study.interposition import library

        given.library = str(library())
    library_file = os.path.abspath(given.library)
    if given.command:
        application(library_file, given.pairs, given.command)
    else:
        loops(library_file, given.pairs, given.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
