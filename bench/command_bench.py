"""Whole commands on large files: `twinrun compare` in a fresh process, warm, beside the published method and a plain mapped comparison.

    .venv/bin/python bench/command_bench.py               # two minutes, 10 GB of disk; --quick: small files
    .venv/bin/python bench/command_bench.py --keep FOLDER --cases noise-40 --package OLD=/path --package NEW=/path

The pairs are those of compare_bench.py. Each line starts a process and waits for its end; lines run interleaved. GB/s are bytes of
one run by the command's own clock (the report's seconds); seconds are from start to exit. "mapped" is bench/mapped_compare.c: it
counts elements that differ, and says nothing else of them. Nothing holds the files in the page cache but use: the first round is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import cases
import lines
from cases import Array, Case, Metadata

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = Metadata("published", 0)
OURS = Metadata("linear", 4)
SYNTHETIC = ("identical", "sparse", "noise-1", "noise-40")
SIMULATED = "minihacc"


@dataclass(frozen=True)
class Taken:
    """What a process took. own: by its own clock; whole: from start to exit; processor: of all its threads."""

    own: float
    whole: float
    processor: float


def timed(words: list[str], environment: dict[str, str] | None = None) -> tuple[str, float, float]:
    """What a process printed, the seconds from start to exit, and the processor's."""
    start = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    taken = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: status {process.returncode}")
    return text, taken, used.ru_utime + used.ru_stime


def mapped(program: Path, case: Case, threads: int) -> Callable[[], Taken]:
    """The plain comparison of whole files."""
    files = sorted({(case.data_file("a", x), case.data_file("b", x)) for x in case.arrays})
    words = [str(program), str(case.eps), str(threads), *(str(x) for pair in files for x in pair)]

    def run() -> Taken:
        text, taken, used = timed(words)
        found, own = text.split()
        if case.different is not None and int(found) != case.different:
            raise SystemExit(f"{case.key}: {found} elements differ for the plain comparison")
        return Taken(float(own), taken, used)

    return run


def compared(
    case: Case, words: list[str], metadata: Metadata | None, package: str | None
) -> Callable[[], Taken]:
    """`twinrun compare` in a process of its own. The verdict is checked."""
    paths = [str(case.path(run, metadata)) for run in "ab"]
    # As installed packages are: compiled once.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if package is not None:
        environment["PYTHONPATH"] = package
    whole = [sys.executable, "-m", "twinrun", "compare", *paths, "--atol", repr(case.eps), *words]

    def run() -> Taken:
        text, taken, used = timed([*whole, "--json", "-"], environment)
        document = json.loads(text)
        if case.different is not None and (document["verdict"] == "same") != (case.different == 0):
            raise SystemExit(f"{case.key}, {words}: {document['verdict']}")
        return Taken(document["seconds"], taken, used)

    return run


def lines_of(
    case: Case, program: Path, packages: dict[str, str | None], threads: int
) -> dict[str, Callable[[], Taken]]:
    """The lines of a case by their names."""
    found = {"mapped": mapped(program, case, threads)}
    for label, package in packages.items():
        name = f", {label}" if len(packages) > 1 else ""
        direct = ["--method", "direct", "--no-metadata"]
        found[f"direct{name}"] = compared(case, direct, None, package)
        found[f"published method{name}"] = compared(case, ["--method", "published"], PUBLISHED, package)
        found[f"4 bits{name}"] = compared(case, [], OURS, package)
    return found


def prepared(folder: Path, key: str, make: Callable[[], Case]) -> Case:
    """A pair with metadata of both kinds; one that an earlier call kept is taken."""
    kept = folder / f"{key}.json"
    if kept.exists():
        facts = json.loads(kept.read_text())
        arrays = [Array(**x) for x in facts.pop("arrays")]
        return Case(**{**facts, "folder": Path(facts["folder"]), "arrays": arrays})
    case = make()
    for metadata in (PUBLISHED, OURS):
        lines.prepare(case, metadata, folder)
    kept.write_text(json.dumps({**asdict(case), "folder": str(case.folder)}))
    return case


def synthetic(folder: Path, key: str, per_field: int) -> Case:
    """A pair of compare_bench.py."""
    recipe = next(r for r in cases.RECIPES if r.key == key)
    reference = folder / "a.bin"
    if not reference.exists():
        cases.write_reference(reference, per_field)
    return cases.make_case(recipe, reference, folder / key, per_field)


def simulated(folder: Path, program: Path, particles: int, captures: int) -> Case:
    """Two runs of minihacc."""
    runs = folder / "minihacc-runs"
    last = captures + 2
    if not runs.exists():
        cases.run_simulation(str(program), particles, last, ",".join(map(str, range(3, last + 1))), runs)
    return cases.simulation_case(1e-5, runs, folder / SIMULATED)


def shown(values: list[float], amount: float = 0) -> str:
    """The median, with the fastest and the slowest."""
    if amount:
        values = [amount / x for x in values]
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def measure(case: Case, chosen: dict[str, Callable[[], Taken]], repeat: int) -> dict[str, list[Taken]]:
    """Interleaved, in rotating order; the first round warms the page cache."""
    names = list(chosen)
    for name in names:
        chosen[name]()
    found: dict[str, list[Taken]] = {name: [] for name in names}
    for i in range(repeat):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(chosen[name]())
    for name, taken in found.items():
        own = shown([x.own for x in taken], case.bytes / 1e9)
        whole = shown([x.whole for x in taken])
        processor = statistics.median(x.processor for x in taken)
        print(f"| {case.title} | {name} | {own} | {whole} | {processor:.2f} |", flush=True)
    return found


def main(arguments: list[str]) -> None:
    """Measures and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="7 MB and 3,000 particles, two repetitions")
    parser.add_argument("--cases", default=",".join((*SYNTHETIC, SIMULATED)))
    parser.add_argument("--only", help="lines whose names contain this")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where files are kept for the next call")
    parser.add_argument("--minihacc", type=Path, default=ROOT / "build/release/bin/minihacc")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--package", action="append", default=[], help="NAME=FOLDER that holds twinrun")
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    packages: dict[str, str | None] = dict(x.split("=", 1) for x in given.package) or {"twinrun": None}
    per_field = cases.elements_per_field(7.4 if given.quick else 1073)
    threads = len(os.sched_getaffinity(0))
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(given.keep or scratch).absolute()
        folder.mkdir(exist_ok=True)
        program = Path(scratch) / "mapped_compare"
        source = ROOT / "bench/mapped_compare.c"
        subprocess.run([given.cc, "-O3", "-march=native", "-pthread", "-o", program, source], check=True)
        print("| case | line | GB/s by its own clock | s from start to exit | processor, s |")
        print("|---|---|---:|---:|---:|")
        for key in given.cases.split(","):
            if key == SIMULATED:
                size = (3_000, 2) if given.quick else (1_000_000, 38)
                case = prepared(folder, key, lambda size=size: simulated(folder, given.minihacc, *size))
            else:
                case = prepared(folder, key, lambda key=key: synthetic(folder, key, per_field))
            chosen = lines_of(case, program, packages, threads)
            chosen = {k: v for k, v in chosen.items() if given.only is None or given.only in k}
            found = measure(case, chosen, 2 if given.quick else given.repeat)
            results[key] = {name: [asdict(x) for x in taken] for name, taken in found.items()}
            if given.keep is None:
                case.remove()
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
