"""twinrun demo: a real simulation twice, their comparison, its picture."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING

import click

from ..errors import MissingFile, MissingPackage, TwinrunError
from ..marks import MANIFEST
from ..words import byte_size, number
from .common import console, progress_bar
from .help import Verb

if TYPE_CHECKING:
    from ..comparison.work import Comparison

MINIHACC = "TWINRUN_MINIHACC"
MARK = ".twinrun-demo"  # in the folder of a demo's history


def find_minihacc() -> str:
    """The simulation's program: $TWINRUN_MINIHACC, or on the PATH."""

    import shutil

    path = os.environ.get(MINIHACC) or shutil.which("minihacc")
    if not path or not os.access(path, os.X_OK):
        raise MissingFile(
            "the simulation 'minihacc' is not built",
            where=path,
            fix=f"run 'make demo', or set {MINIHACC} to the program",
        )
    return path


def _mark_of(run: str) -> bytes:
    """The mark beside a demo's history: the XXH3 of its manifest, which has the id of the history and every
    step.
    """

    from .._core import xxh3

    with open(os.path.join(run, MANIFEST), "rb") as file:
        return f"{xxh3(file.read()):016x}\n".encode()


def _check_replaceable(run: str) -> None:
    """Raises TwinrunError where a history exists, unless an earlier demo made it and it is unchanged."""
    manifest, mark = os.path.join(run, MANIFEST), os.path.join(run, MARK)
    if not os.path.lexists(manifest):
        return
    with contextlib.suppress(OSError):
        if all(stat.S_ISREG(os.lstat(path).st_mode) for path in (manifest, mark)):
            with open(mark, "rb") as file:
                if file.read(100) == _mark_of(run):
                    return
    raise TwinrunError(
        f"a history is there already that is not, or no longer, what an earlier demo wrote (no {MARK} says so): nothing was done",
        where=run,
        fix="name another folder with --folder, or remove this one if it is of a demo",
    )


def _mark(run: str) -> None:
    """Marks the history as made by a demo. The name is no part of a history and no link."""

    from ..outputs import write_whole

    mark = os.path.join(run, MARK)
    if os.path.lexists(mark) and not stat.S_ISREG(os.lstat(mark).st_mode):
        return  # without the mark the next demo refuses
    write_whole(mark, _mark_of(run), durable=False)


def _simulate(
    program: str, out: str, particles: int, steps: int, captures: str, atol: float, deterministic: bool
) -> None:
    import subprocess

    command = [
        program,
        "--particles",
        str(particles),
        "--steps",
        str(steps),
        "--history",
        out,
        "--atol",
        repr(atol),
    ]
    # Of an earlier demonstration, as was checked; anything else in the folder stays.
    command += ["--setting", "existing=replace"]
    command += ["--capture", captures, "--quiet"] + (["--deterministic"] if deterministic else [])
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as e:
        raise TwinrunError(f"the simulation ended with status {e.returncode}", where=program) from None
    _mark(out)


def _free_name(folder: str) -> str:
    """The name of the picture: growth.png, with a number where another file has that name.

    Pictures of a demo have a mark.
    """
    for taken in itertools.count():
        path = os.path.join(folder, f"growth-{taken}.png" if taken else "growth.png")
        if not os.path.lexists(path):
            return path
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    if b"Software\0twinrun" in file.read(4096):
                        return path
    raise AssertionError


def _growth_lines(c: Comparison) -> list[str]:
    """The growth of |a - b| as text: a row for each field, a column for each captured step."""

    from ..report.picture import growth

    lines = growth(c)
    steps = sorted({s for points in lines.values() for s, *_ in points})
    rows = [
        "growth of the largest |a-b| (every element compared):",
        "  step  " + "".join(f"{s:>12}" for s in steps),
    ]
    for name, points in lines.items():
        at = {s: ("≤ " if not exact else "") + number(high) for s, _, high, exact in points}
        rows.append(f"  {name:<6}" + "".join(f"{at.get(s, ''):>12}" for s in steps))
    return rows


@click.command(cls=Verb)
@click.option("--folder", type=click.Path(file_okay=False), default="twinrun-demo", show_default=True,
              help="Folder of the runs, the report and the picture; runs of an earlier demo are replaced, other histories never.")  # fmt: skip
@click.option(
    "--particles",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Particles of the simulation.",
)
@click.option(
    "--steps", type=click.IntRange(1), default=50, show_default=True, help="Steps of the simulation."
)
@click.option("--capture", "captures", default="10,20,30,40", show_default=True, help="Steps to capture.")
@click.option("--atol", type=float, default=1e-4, show_default=True, help="The error bound.")
@click.option(
    "--deterministic", is_flag=True, help="Run the simulation with a fixed order of sums: the runs are equal."
)
def demo(folder: str, particles: int, steps: int, captures: str, atol: float, deterministic: bool) -> int:
    """Run a P3M N-body simulation twice with the same input, and show where the two runs differ.

    Nothing random is planted: sums of floating-point numbers whose order depends on threads are enough.
    Exit status: 0 if the demonstration ran, with any verdict; 2 if it failed.
    """

    from ..comparison.work import compare as compare_runs
    from ..report.picture import save_growth
    from ..report.text import print_comparison

    out = console()
    program = find_minihacc()
    runs = [os.path.join(folder, name) for name in ("run-a", "run-b")]
    for run in runs:
        _check_replaceable(run)
    for run in runs:
        out.print(f"simulating {particles} particles, {steps} steps, into {run} …")
        sys.stdout.flush()
        _simulate(program, run, particles, steps, captures, atol, deterministic)
    with progress_bar() as progress:
        result = compare_runs(*runs, progress=progress)
        # The runs are small: every element is compared too, for the exact growth and as a check of the three
        # stages.
        every = compare_runs(*runs, method="direct", progress=progress)
    if [(f.different, f.first_index) for f in every.fields] != [
        (f.different, f.first_index) for f in result.fields
    ]:
        raise TwinrunError(
            "the staged comparison and that of every element disagree: please report this", where=folder
        )
    out.print("")
    for line in _growth_lines(every):
        out.print(line)
    picture = _free_name(folder)
    try:
        save_growth(every, picture)
        out.print(f"picture: {picture}")
    except MissingPackage as e:
        out.print(f"no picture: {e}")
    elements = 2 * sum(f.elements_read * f.bytes // f.elements for f in result.fields if f.elements)
    out.print(
        f"in stages: compared {byte_size(2 * result.bytes_compared)} in {result.seconds:.2g} s, reading {byte_size(result.bytes_read)}, "
        f"{byte_size(elements)} of it elements"
    )
    out.print(f"again: twinrun compare {runs[0]} {runs[1]}")
    out.print("")
    print_comparison(out, result)
    return 0
