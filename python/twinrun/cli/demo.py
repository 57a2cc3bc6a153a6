"""twinrun demo: a real simulation twice, their comparison, its picture."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from ..errors import MissingFile, MissingPackage, TwinrunError
from ..marks import MANIFEST
from ..words import byte_size, number
from .common import console, progress_bar
from .help import Verb

if TYPE_CHECKING:
    from rich.console import Console

    from ..comparison.work import Comparison

MINIHACC = "TWINRUN_MINIHACC"
MARK = ".twinrun-demo"  # in the folder of a demo's history


def find_minihacc() -> str | None:
    """The larger simulation's program: $TWINRUN_MINIHACC, or on the PATH; None where it is not built."""

    import shutil

    path = os.environ.get(MINIHACC) or shutil.which("minihacc")
    return path if path and os.access(path, os.X_OK) else None


class _Simulation(NamedTuple):
    """A simulation of the demo, and what it runs where nobody says otherwise."""

    said: str
    module: str | None  # of this package; None: the program minihacc
    particles: int | None  # None: as many as it has
    steps: int
    captures: str
    atol: float
    # What the first and the second run are called with, and how that reads.
    ways: tuple[tuple[str, str], tuple[str, str]] | None = None
    needs: tuple[str, str] | None = None  # a package of Python, and what pip installs


# Seconds on two cores. minihacc is built from the source tree by `make demo`.
_SIMULATIONS = {
    "particles": _Simulation(
        "gravity", "particles", 512, 300, "50,100,150,200,250,300", 1e-5,
        (("--threads 2", "2 threads"), ("--threads 3", "3 threads")),
    ),
    "minihacc": _Simulation("a P3M N-body code", None, 200_000, 50, "10,20,30,40", 1e-4),
    "pytorch": _Simulation(
        "a small network that learns, in PyTorch", "training", None, 400, "1,100,200,300,400", 1e-6,
        (("--threads 1", "1 thread"), ("--threads 2", "2 threads")), ("torch", "twinrun[torch]"),
    ),
    "lammps": _Simulation(
        "a melt of 4000 atoms, in LAMMPS", "melt", None, 800, "200,400,600,800", 1e-6,
        (("--newton on", "Newton's third law used"), ("--newton off", "not used")), ("lammps", "lammps[mpi]"),
    ),
}  # fmt: skip


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
    chosen: _Simulation, program: str | None, out: str, particles: int | None, steps: int, captures: str, atol: float,
    deterministic: bool, second: bool,
) -> None:  # fmt: skip
    import subprocess

    # Histories of an earlier demonstration are replaced, as was checked; anything else in the
    # folder stays.
    given = ["--steps", str(steps), "--capture", captures, "--atol", repr(atol)]
    given += [] if particles is None else ["--particles", str(particles)]
    if chosen.module is None:
        assert program is not None
        command = [program, *given, "--history", out, "--setting", "existing=replace", "--quiet"]
        command += ["--deterministic"] if deterministic else []
    else:
        assert chosen.ways is not None
        way = chosen.ways[second and not deterministic][0]
        command = [sys.executable, "-m", f"twinrun.cli.{chosen.module}", out, *given, *way.split()]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as e:
        raise TwinrunError(f"the simulation ended with status {e.returncode}", where=command[0]) from None
    _mark(out)


def _choose(simulation: str, shorthand: str | None) -> tuple[_Simulation, str | None]:
    """The simulation that the options name, and the program that it needs; raises what is missing."""

    import importlib.util

    if shorthand is not None:
        if simulation not in ("auto", shorthand):
            raise TwinrunError(
                f"--{shorthand} and --simulation {simulation} name two simulations", fix="give one of them"
            )
        simulation = shorthand
    program = find_minihacc() if simulation in ("auto", "minihacc") else None
    if simulation == "minihacc" and program is None:
        raise MissingFile(
            "the simulation 'minihacc' is not built",
            where=os.environ.get(MINIHACC),
            fix=f"run 'make demo', set {MINIHACC} to the program, or leave out --simulation",
        )
    if simulation == "auto":
        simulation = "particles" if program is None else "minihacc"
    chosen = _SIMULATIONS[simulation]
    if chosen.needs is not None and importlib.util.find_spec(chosen.needs[0]) is None:
        raise MissingPackage.of(*chosen.needs, f"the simulation '{simulation}'")
    return chosen, program


def _free_name(folder: str, name: str, suffix: str, mark: bytes) -> str:
    """The name of a file, with a number where another file has that name.

    Files of an earlier demo have a mark.
    """
    for taken in itertools.count():
        path = os.path.join(folder, f"{name}-{taken}{suffix}" if taken else name + suffix)
        if not os.path.lexists(path):
            return path
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    if mark in file.read(4096):
                        return path
    raise AssertionError


def _growth_lines(c: Comparison) -> list[str]:
    """The growth of |a - b| as text: a row for each field, a column for each captured step."""

    from ..report.picture import growth

    lines = growth(c)
    steps = sorted({s for points in lines.values() for s, *_ in points})
    rows = [
        "growth of the largest |a-b| (every element compared):",
        "  step  " + "".join(f"{s:>11}" for s in steps),
    ]
    width = max([6, *map(len, lines)])
    rows[1] = "  " + "step".ljust(width) + rows[1][8:]
    for name, points in lines.items():
        at = {s: ("≤ " if not exact else "") + number(high) for s, _, high, exact in points}
        rows.append(f"  {name:<{width}}" + "".join(f"{at.get(s, ''):>11}" for s in steps))
    return rows


def _steps_to_capture(captures: str | None, steps: int, chosen: _Simulation) -> str:
    """The steps as a list in words: those that are asked for, or a few of all."""
    if captures is None:
        if steps == chosen.steps:
            return chosen.captures
        return ",".join(map(str, range(max(1, steps // 5), steps + 1, max(1, steps // 5))))
    try:
        if not all(0 < int(word) <= steps for word in captures.split(",")):
            raise ValueError
    except ValueError:
        raise TwinrunError(
            f"--capture {captures} is no list of steps from 1 to {steps}", fix="give steps as 10,20,30"
        ) from None
    return captures


def _compare(runs: list[str], folder: str) -> tuple[Comparison, Comparison]:
    """The comparison in stages, and that of every element, which must agree."""
    from ..comparison.options import CompareOptions
    from ..comparison.work import compare

    with progress_bar() as progress:
        result = compare(*runs, progress=progress)
        # The runs are small: every element is compared too, for the exact growth and as a check of
        # the three stages.
        every = compare(*runs, options=CompareOptions(method="direct"), progress=progress)
    if [(f.different, f.first_index) for f in every.fields] != [
        (f.different, f.first_index) for f in result.fields
    ]:
        raise TwinrunError(
            "the staged comparison and that of every element disagree: please report this", where=folder
        )
    return result, every


def _show(out: Console, folder: str, runs: list[str], result: Comparison, every: Comparison) -> None:
    """Prints both comparisons, and writes the picture and the page."""
    from ..report.html import write_html
    from ..report.picture import save_growth
    from ..report.text import print_comparison

    out.print("")
    for line in _growth_lines(every):
        out.print(line, soft_wrap=True)
    picture = _free_name(folder, "growth", ".png", b"Software\0twinrun")
    try:
        save_growth(every, picture)
        out.print(f"picture: {picture}")
    except MissingPackage as e:
        out.print(f"no picture: {e}", soft_wrap=True)
    page = _free_name(folder, "report", ".html", b'<meta name="generator" content="twinrun">')
    write_html(result, page)
    out.print(f"page: {page}", soft_wrap=True)
    elements = 2 * sum(f.elements_read * f.bytes // f.elements for f in result.fields if f.elements)
    out.print(
        f"in stages: compared {byte_size(2 * result.bytes_compared)} in {result.seconds:.2g} s, reading {byte_size(result.bytes_read)}, "
        f"{byte_size(elements)} of it elements"
    )
    out.print(f"again: twinrun compare {runs[0]} {runs[1]}", soft_wrap=True)
    out.print("")
    print_comparison(out, result)


@click.command(cls=Verb)
@click.option("--folder", type=click.Path(file_okay=False), default="twinrun-demo", show_default=True,
              help="Folder of the runs, the report and the picture; runs of an earlier demo are replaced, other histories never.")  # fmt: skip
@click.option("--pytorch", "shorthand", flag_value="pytorch", default=None,
              help="Train a small network of PyTorch instead, with 1 and with 2 threads.")  # fmt: skip
@click.option("--lammps", "shorthand", flag_value="lammps",
              help="Melt 4000 atoms with LAMMPS instead, with Newton's third law used and not.")  # fmt: skip
@click.option(
    "--simulation",
    type=click.Choice(["auto", *_SIMULATIONS]),
    default="auto",
    help="auto: minihacc where it is built (make demo builds it), else the particles in the package.",
)
@click.option(
    "--particles",
    type=click.IntRange(1),
    default=None,
    show_default="512, minihacc: 200000",
    help="Particles of the simulation, where it has a choice.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=None,
    show_default="300, minihacc: 50, pytorch: 400, lammps: 800",
    help="Steps of the simulation.",
)
@click.option(
    "--capture",
    "captures",
    default=None,
    metavar="LIST",
    show_default="four to six of them",
    help="Steps to capture.",
)
@click.option(
    "--atol",
    type=float,
    default=None,
    show_default="1e-5, minihacc: 1e-4, pytorch and lammps: 1e-6",
    help="The error bound.",
)
@click.option(
    "--deterministic", is_flag=True, help="Run the simulation with a fixed order of sums: the runs are equal."
)
def demo(
    folder: str,
    shorthand: str | None,
    simulation: str,
    particles: int | None,
    steps: int | None,
    captures: str | None,
    atol: float | None,
    deterministic: bool,
) -> int:
    """Run a simulation twice with the same input, and show where the two runs differ.

    Nothing random is planted. A sum of floating-point numbers depends on the order of its terms,
    and the second run adds in another order: it has another number of threads, or computes the
    force of a pair twice (--lammps).
    """

    out = console()
    chosen, program = _choose(simulation, shorthand)
    if particles is not None and chosen.particles is None:
        raise TwinrunError(
            f"--particles {particles}: {chosen.said}, has no choice of them", fix="leave it out"
        )
    particles, steps = particles or chosen.particles, steps or chosen.steps
    atol = chosen.atol if atol is None else atol
    captures = _steps_to_capture(captures, steps, chosen)
    runs = [os.path.join(folder, name) for name in ("run-a", "run-b")]
    for run in runs:
        _check_replaceable(run)
    for second, run in enumerate(runs):
        way = "" if chosen.ways is None else f", {chosen.ways[second and not deterministic][1]}"
        count = "" if particles is None else f": {particles} particles"
        out.print(f"running {chosen.said}{count}, {steps} steps{way}, into {run} …", soft_wrap=True)
        sys.stdout.flush()
        _simulate(chosen, program, run, particles, steps, captures, atol, deterministic, bool(second))
    result, every = _compare(runs, folder)
    _show(out, folder, runs, result, every)
    return 0
