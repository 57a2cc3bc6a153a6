"""Runs the code blocks of pages of the docs, and compares what commands print with what the page says.

usage: docs_run.py [--write] PAGE...       --write puts what was printed into the page

A page's blocks run in order, in one empty folder. What is run:

    ```console          lines that begin with "$ " are commands, for bash; what follows is what they print
    ```python           a program of its own, unless a line above says otherwise

A line above a block says what else it is:

    <!-- file NAME -->          the block is written to that file
    <!-- from PATH -->          the block is a part of that file of the repository
    <!-- not run: REASON -->    the block is shown only
    <!-- measured -->           the commands run, and must not fail; what they print differs each time

In what is printed, a line that is … alone stands for any lines, and … within a line for any text. Seconds are not
compared. A page that
needs more than twinrun says so in its first lines, and is skipped where that is missing:

    <!-- needs torch, cmake, $TWINRUN_PREFIX -->        Python packages, programs, variables of the environment

The home folder of commands is the page's folder. Where TWINRUN_PREFIX names an installed twinrun, it is twinrun there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds, for hangs
_BLOCK = re.compile(
    r"(?:^<!-- (?P<says>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NEEDS = re.compile(r"^<!-- needs (.*?) -->$", re.MULTILINE)
_END = "\x1e"


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    says: str  # the comment above it
    line: int
    start: int  # of its text, in the page

    @property
    def runs(self) -> bool:
        return self.kind in ("console", "python") and self.says in ("", "measured")


@dataclass(frozen=True)
class Wrong:
    """A block that did not do what its page says."""

    line: int
    what: str


def blocks_of(page: str) -> list[Block]:
    return [
        Block(
            found["kind"],
            found["text"],
            (found["says"] or "").strip(),
            page.count("\n", 0, found.start("text")),
            found.start("text"),
        )
        for found in _BLOCK.finditer(page)
    ]


def missing(page: str) -> str | None:
    """What a page needs and is not there."""
    for name in re.split(r",\s*", found[1]) if (found := _NEEDS.search(page)) else ():
        if name.startswith("$"):
            if not os.environ.get(name[1:]):
                return name
        elif shutil.which(name) is None and importlib.util.find_spec(name) is None:
            return name
    return None


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a transcript, and what each printed. A command goes on where a line ends with \\, or begins with "> "."""
    command, said, open_ = "", "", False
    for line in text.splitlines(keepends=True):
        if open_:
            command += line
            open_ = line.rstrip("\n").endswith("\\")
        elif line.startswith("> ") and command and not said:
            command += line[2:]
        elif line.startswith("$ "):
            if command:
                yield command.rstrip("\n"), said
            command, said = line[2:], ""
            open_ = line.rstrip("\n").endswith("\\")
        else:
            said += line
    if command:
        yield command.rstrip("\n"), said


_SECONDS = re.compile(r" *\b\d[\d.]*(?:e-\d+)? ?(?:s|ms)\b")


def _steady(text: str) -> str:
    """A text without its seconds, and without the room that columns leave for them."""
    return re.sub(r"  +", "  ", _SECONDS.sub("  # s", text))


def agrees(said: str, printed: str) -> bool:
    """Is that what the page says? … stands for anything, and so does a time in seconds."""
    said, printed = _steady(said), _steady(printed)
    parts = []
    for line in said.rstrip("\n").split("\n"):
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.rstrip().split("…")) + r" *\n")
    printed = "\n".join(line.rstrip() for line in printed.rstrip("\n").split("\n")) + "\n"
    return re.fullmatch("".join(parts), printed) is not None


def environment(folder: Path) -> dict[str, str]:
    """Where `twinrun` and `python` are those of this interpreter, and reports have the width of a page."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, words in {"twinrun": "-m twinrun", "python": "", "python3": "", "pytest": "-m pytest -c /dev/null --rootdir=. -p no:cacheprovider"}.items():  # fmt: skip
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    given = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "2",
        "HOME": str(folder),
    }
    if prefix := os.environ.get("TWINRUN_PREFIX"):
        (folder / "twinrun").symlink_to(Path(prefix).resolve())
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PYTEST_ADDOPTS", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):  # fmt: skip
        os.environ.pop(name, None)
    return {**os.environ, **given}


def _transcript(block: Block, folder: Path, env: dict[str, str]) -> list[tuple[str, str, str]]:
    """Commands, what the page says that each prints, and what it printed."""
    commands = list(commands_of(block.text))
    script = "exec 2>&1 </dev/null\n"
    for command, _ in commands:
        # Statuses go on to the next command: $? is what a reader would see. 2 and more are failures.
        ended = (
            "[ $_last -lt 2 ] || printf 'failed with status %d\n' $_last\n"
            if block.says == "measured"
            else ""
        )
        script += f"(exit ${{_last:-0}})\n{command}\n_last=$?\n{ended}printf '{_END}'\n"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, stdout=subprocess.PIPE, timeout=LIMIT, check=False
    )
    printed = done.stdout.decode("utf-8", "replace").split(_END)
    printed += [""] * (len(commands) + 1 - len(printed))
    return [(command, said, got) for (command, said), got in zip(commands, printed, strict=False)]


def run_page(path: Path) -> tuple[list[Wrong], str]:
    """Runs a page's blocks: what is wrong, and the page's text with what was printed."""
    page = path.read_text("utf-8")
    wrong: list[Wrong] = []
    changed: list[tuple[Block, str]] = []
    with tempfile.TemporaryDirectory(prefix="docs-") as name:
        folder = Path(name)
        env = environment(folder)
        for block in blocks_of(page):
            if block.says.startswith("file "):
                target = folder / block.says.removeprefix("file ").strip()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, "utf-8")
            elif block.says.startswith("from "):
                source = (ROOT / block.says.removeprefix("from ").strip()).read_text("utf-8")
                if block.text not in source:
                    wrong.append(Wrong(block.line, f"{block.says[5:]} does not have these lines"))
            elif block.kind == "python" and block.runs:
                done = subprocess.run(
                    [sys.executable, "-c", block.text], cwd=folder, env=env, capture_output=True, text=True,
                    timeout=LIMIT, check=False,
                )  # fmt: skip
                if done.returncode != 0:
                    wrong.append(Wrong(block.line, done.stderr.strip()))
            elif block.kind == "console" and block.runs:
                text = ""
                for command, said, got in _transcript(block, folder, env):
                    same = agrees(said, got)
                    if block.says == "measured" and "failed with status" not in got:
                        same = bool(said) == bool(got)
                    if not same:
                        wrong.append(Wrong(block.line, f"$ {command}\nsays:\n{said}\nprinted:\n{got}"))
                    lines = command.split("\n")
                    text += "$ " + "\n".join(lines) + "\n"
                    text += said if same else (got if got.endswith("\n") or not got else got + "\n")
                changed.append((block, text))
    for block, text in reversed(changed):
        page = page[: block.start] + text + page[block.start + len(block.text) :]
    return wrong, page


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="put what was printed into the page")
    given = parser.parse_args(arguments)
    status = 0
    for path in given.pages:
        if (lacks := missing(path.read_text("utf-8"))) is not None:
            print(f"{path}: not run, needs {lacks}")
            continue
        wrong, page = run_page(path)
        for each in wrong:
            print(f"{path}:{each.line}: {each.what}", file=sys.stderr)
        if given.write:
            path.write_text(page, "utf-8")
        elif wrong:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
