"""Checks that each C++ source compiles alone: builds that take a dozen at a time (TWINRUN_UNITY) hide a missing include.

usage: check_alone.py BUILD [WORD...]     BUILD: a configured build folder, of either kind
                                          WORD: only sources with one of these words in their paths

Nothing is written. A source of a dozen is read with the options of the dozen.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sources(file: Path) -> list[Path]:
    """The source, or those that a file of CMake's takes together."""
    if "Unity" not in file.parts:
        return [file]
    return [Path(name) for name in re.findall(r'^#include "(.*)"$', file.read_text(), re.MULTILINE)]


def commands(build: Path, words: list[str]) -> dict[str, tuple[list[str], str]]:
    """By source: the command that only reads it, and the folder where it runs."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        together = Path(entry["file"])
        if together.suffix not in (".cpp", ".cxx") or not together.is_file():
            continue
        command = shlex.split(entry["command"])
        at = command.index("-o")
        for source in sources(together):
            if source.suffix != ".cpp" or not source.is_relative_to(ROOT):
                continue
            name = str(source.relative_to(ROOT))
            if words and not any(word in name for word in words):
                continue
            alone = [
                str(source) if one == entry["file"] else one for one in (*command[:at], *command[at + 2 :])
            ]
            found[name] = ([*alone, "-fsyntax-only"], entry["directory"])
    return found


def says(job: tuple[list[str], str]) -> str:
    command, folder = job
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> int:
    build, words = Path(sys.argv[1]), sys.argv[2:]
    jobs = commands(build, words)
    if not jobs:
        print(f"check_alone: {build} compiles no such source")
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
