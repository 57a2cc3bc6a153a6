#!/usr/bin/env python3
"""Checks that what repeats the version repeats that of project() in CMakeLists.txt.

usage: check_release.py          CITATION.cff, codemeta.json and CHANGELOG.md fit to the version
       check_release.py v1.2.3   and all is ready for a release under this tag

Headers and the Fortran module are checked by cmake/TwinrunVersion.cmake. Exit status: 0 all is well; 1 something is wrong, a line for
each thing.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "OWNER"  # stands in URLs until the project has a public place


def version_of(root: Path) -> str:
    """The version of project() in CMakeLists.txt."""
    found = re.search(r"project\(twinrun VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text("utf-8"))
    if found is None:
        raise SystemExit("CMakeLists.txt: project() has no version")
    return found[1]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def headings(root: Path) -> list[tuple[str, str]]:
    """Version and date of each heading of CHANGELOG.md, the newest first; 'Unreleased' has no date."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    return re.findall(r"^## \[([^\]]+)\](?: - (.*))?$", text, re.MULTILINE)


def check(root: Path = ROOT) -> list[str]:
    """What does not fit to the version."""
    version = version_of(root)
    problems = []
    cited = re.search(r"^version: *(\S+)$", (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    if cited is None or cited[1] != version:
        problems.append(
            f"CITATION.cff: version {cited and cited[1]}, and {version} in CMakeLists.txt: write the same"
        )
    described = json.loads((root / "codemeta.json").read_text("utf-8")).get("version")
    if described != version:
        problems.append(
            f"codemeta.json: version {described}, and {version} in CMakeLists.txt: write the same"
        )
    found = headings(root)
    if not found or found[0][0] != "Unreleased":
        problems.append(
            "CHANGELOG.md: the first heading is not '## [Unreleased]': add it, for what comes next"
        )
    released = [(name, day) for name, day in found if name != "Unreleased"]
    for name, day in released:
        if not re.fullmatch(r"\d+\.\d+\.\d+", name):
            problems.append(f"CHANGELOG.md: '{name}' is no version: write it as 1.2.3")
            return problems
        try:
            date.fromisoformat(day)
        except ValueError:
            problems.append(
                f"CHANGELOG.md: [{name}] has no date: write '## [{name}] - YYYY-MM-DD', as it was released"
            )
    order = [numbers(name) for name, _ in released]
    if order != sorted(set(order), reverse=True):
        problems.append("CHANGELOG.md: versions do not descend: the newest comes first, and each once")
    if order and order[0] > numbers(version):
        problems.append(f"CHANGELOG.md: [{released[0][0]}] is newer than {version} of CMakeLists.txt")
    return problems


def check_tag(tag: str, root: Path = ROOT) -> list[str]:
    """What is missing before a release under this tag."""
    version = version_of(root)
    problems = []
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, and CMakeLists.txt has {version}: tag v{version}")
    day = dict(headings(root)).get(version)
    if day is None:
        problems.append(
            f"CHANGELOG.md: no heading '## [{version}] - YYYY-MM-DD': move what is unreleased there"
        )
    released = re.search(r"^date-released: *(\S+)$", (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    if day is not None and (released is None or released[1].strip("'\"") != day):
        problems.append(f"CITATION.cff: date-released is not {day}, the date in CHANGELOG.md")
    if f"/{PLACEHOLDER}/" in (root / "pyproject.toml").read_text("utf-8"):
        problems.append(f"pyproject.toml: [project.urls] has {PLACEHOLDER}: write where the project lies")
    return problems


def main(words: list[str]) -> int:
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print(__doc__)
        return 0 if words in (["-h"], ["--help"]) else 2
    problems = check() + (check_tag(words[0]) if words else [])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
