"""Programs in C of several ranks, as tables measure them: built for the table, and run with what they print."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))
from mpi import ENVIRONMENT, is_hydra  # noqa: E402 - how ranks give way where there are more than cores


def parser_of(text: str, ranks: int, repeat: int) -> argparse.ArgumentParser:
    """The options of such a table. text: what it says of itself; the others: what it takes without options."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpicc", default="mpicc")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one line, at most")
    return parser


def build(mpicc: str, source: str, folder: str, *flags: str) -> Path:
    """The program of a source beside this file, made in `folder`."""
    program = Path(folder) / Path(source).stem
    subprocess.run([mpicc, "-O2", "-o", str(program), str(ROOT / "bench" / source), *flags], check=True)
    return program


def environment_of(ranks: int) -> dict[str, str]:
    """The environment of a job: ranks give way to each other only where they share cores."""
    shared = ranks > (os.cpu_count() or 1)
    polite = ("yield", "throttle")
    own = {k: v for k, v in ENVIRONMENT.items() if shared or not any(word in k.lower() for word in polite)}
    return {**os.environ, **own}


def run(
    arguments: argparse.Namespace, program: Path, words: list[object], preload: Path | None = None
) -> list[list[str]]:
    """The words of each line that the program prints."""
    start = arguments.mpiexec.split()
    if preload is not None:
        library = str(preload.resolve())
        start += ["-genv", "LD_PRELOAD", library] if is_hydra(start) else ["-x", f"LD_PRELOAD={library}"]
    done = subprocess.run(
        [*start, "-n", str(arguments.ranks), str(program), *map(str, words)],
        env=environment_of(arguments.ranks),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=arguments.limit,
    )
    return [line.split() for line in done.stdout.splitlines()]


def setting(arguments: argparse.Namespace) -> str:
    """'8 ranks, 2 cores, Linux 6.1'."""
    return f"{arguments.ranks} ranks, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
