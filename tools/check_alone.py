"""Checks that each C++ source of tests and applications compiles alone: builds that take a dozen at a time hide a missing include.

usage: check_alone.py BUILD [WORD...]     BUILD: a build folder, configured with TWINRUN_UNITY=OFF
                                          WORD: only sources with one of these words in their paths

The sources of src/ are not looked at: clang-tidy reads each of them alone.
"""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commands(build: Path, words: list[str]) -> dict[str, tuple[list[str], str]]:
    """By source: the command that only reads it, and the folder where it runs."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if source.suffix != ".cpp" or "Unity" in source.parts or not source.is_relative_to(ROOT):
            continue
        name = str(source.relative_to(ROOT))
        if not name.startswith(("tests/", "apps/")) or (words and not any(word in name for word in words)):
            continue
        command = shlex.split(entry["command"])
        at = command.index("-o")
        found[name] = ([*command[:at], *command[at + 2 :], "-fsyntax-only"], entry["directory"])
    return found


def says(job: tuple[list[str], str]) -> str:
    command, folder = job
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> int:
    build, words = Path(sys.argv[1]), sys.argv[2:]
    jobs = commands(build, words)
    if not jobs:
        print(
            f"check_alone: {build} compiles no source of tests by itself: configure it with TWINRUN_UNITY=OFF"
        )
        return 1
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, text in zip(jobs, pool.map(says, jobs.values()), strict=True):
            if text:
                failed += 1
                print(f"check_alone: {name} does not compile alone:\n{text}", end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
