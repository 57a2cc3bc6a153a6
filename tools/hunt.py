#!/usr/bin/env python3
"""Runs the randomized tests on fresh seeds until the time is over, and keeps what fails for `make
test` to repeat.

usage: hunt.py --bin FOLDER [--seconds S] [--seed N] [--only WORD]
       hunt.py --bin FOLDER --replay

Rounds of one part each: a file of Python tests (those with hypothesis), or the tests of a C++
program that draw from test_seed(). The seed of each round is printed. Python: a failing example is
kept in tests/hunted/examples, hypothesis' database, from which every later run of the test takes it
first. C++: program, test and seed are kept in tests/hunted/seeds.json; --replay runs those. Exit
status: 0 if nothing failed, 1 if something did.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEEDS = Path("tests/hunted/seeds.json")
_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def python_files(root: Path) -> list[Path]:
    """Those with tests of hypothesis."""
    found = sorted((root / "tests" / "python").rglob("test_*.py"))
    return [path for path in found if re.search(r"^@given\b", path.read_text(), re.MULTILINE)]


def seeded_tests(source: str) -> list[str]:
    """Names of a C++ file's tests that draw from test_seed(): all of them, where a helper of theirs does."""
    starts = [(m.start(), f"{m[1]}.{m[2]}") for m in _TEST.finditer(source)]
    ends = [at for at, _ in starts[1:]] + [len(source)]
    if starts and "test_seed(" in source[: starts[0][0]]:
        return [name for _, name in starts]
    return [name for (at, name), end in zip(starts, ends, strict=True) if "test_seed(" in source[at:end]]


def cpp_programs(root: Path) -> dict[str, list[str]]:
    """{program: its tests that draw from test_seed()}."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("*_test.cpp")):
        names = seeded_tests(path.read_text())
        if names:
            found.setdefault(f"test_{path.parent.name}", []).extend(names)
    return found


def read_seeds(root: Path) -> list[dict]:
    """[{program, test, seed}] of what hunts found in C++."""
    path = root / SEEDS
    return json.loads(path.read_text()) if path.exists() else []


def keep_seed(root: Path, program: str, test: str, seed: int) -> None:
    kept = read_seeds(root)
    entry = {"program": program, "test": test, "seed": seed}
    if entry not in kept:
        (root / SEEDS).parent.mkdir(parents=True, exist_ok=True)
        (root / SEEDS).write_text(json.dumps([*kept, entry], indent=1) + "\n")


def run_cpp(program: Path, tests: list[str], seed: int) -> list[str]:
    """The tests that fail with this seed; the program's own name where it ends otherwise than by a
    failure.
    """
    words = [str(program), "--gtest_brief=1", "--gtest_color=no"]
    if tests:
        words.append(
            "--gtest_filter=" + ":".join(w for t in tests for w in (t, f"*/{t}/*", t.replace(".", "/*.")))
        )
    done = subprocess.run(
        words,
        env={**os.environ, "TWINRUN_TEST_SEED": str(seed)},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return []
    failed = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout, re.MULTILINE)))
    print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
    return failed or ["*"]


def run_python(root: Path, file: Path, seed: int) -> bool:
    """Whether its tests of hypothesis pass."""
    words = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", str(file.relative_to(root))]
    return subprocess.run(
        words,
        cwd=root,
        env={**os.environ, "TWINRUN_HUNT_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32)},
    ).returncode in (
        0,
        5,
    )


def replay(root: Path, folder: Path) -> int:
    """Runs what hunts found in C++ again. Returns how much of it fails."""
    failing = 0
    for entry in read_seeds(root):
        tests = [] if entry["test"] == "*" else [entry["test"]]
        if run_cpp(folder / entry["program"], tests, entry["seed"]):
            print(f"{entry['program']} {entry['test']}: fails with TWINRUN_TEST_SEED={entry['seed']}")
            failing += 1
    return failing


def parts_of(root: Path, folder: Path, only: str) -> list[tuple[str, Callable[[int], bool]]]:
    """(name, whether it passes with a seed) of all parts whose name holds a word."""

    def cpp(program: str, tests: list[str]) -> Callable[[int], bool]:
        def passes(seed: int) -> bool:
            failed = run_cpp(folder / program, tests, seed)
            for test in failed:
                keep_seed(root, program, test, seed)
            return not failed

        return passes

    found: list[tuple[str, Callable[[int], bool]]] = []
    for program, tests in cpp_programs(root).items():
        if (folder / program).exists():
            found.append((program, cpp(program, tests)))
    for path in python_files(root):
        found.append((str(path.relative_to(root)), lambda seed, path=path: run_python(root, path, seed)))
    return [part for part in found if only in part[0]]


def hunt(
    parts: list[tuple[str, Callable[[int], bool]]],
    seconds: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Runs parts in random order, all of them before one comes again, until the time is over.
    Returns what failed.
    """
    draw = random.Random(seed)
    print(f"hunting for {seconds:g} s, from seed {seed}", flush=True)
    end = clock() + seconds
    failed: list[str] = []
    while parts:
        for name, passes in draw.sample(parts, len(parts)):
            if clock() >= end:
                return failed
            own = draw.getrandbits(63)
            print(f"seed {own}: {name}", flush=True)
            if not passes(own):
                failed.append(f"{name} with seed {own}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, required=True, help="where the C++ tests are")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the order and of all seeds; fresh if not given"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="parts whose name holds this")
    parser.add_argument("--replay", action="store_true")
    given = parser.parse_args()
    folder = given.bin.resolve()
    if given.replay:
        return 1 if replay(ROOT, folder) else 0
    seed = random.SystemRandom().getrandbits(63) if given.seed is None else given.seed
    failed = hunt(parts_of(ROOT, folder, given.only), given.seconds, seed)
    for line in failed:
        print(f"found: {line}")
    print(
        f"{len(failed)} found"
        + ("; kept in tests/hunted: mend them, and commit what was kept" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
