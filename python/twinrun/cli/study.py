"""twinrun aggregate study size|interference|split"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from ..errors import TwinrunError
from .choices import COMMUNICATORS, INTENSITIES, PARTICLES, SIZES
from .common import PATH, Range, console, progress_bar
from .help import Group

if TYPE_CHECKING:
    from ..aggregate.studies.launch import Stack
    from ..aggregate.studies.study import Study
    from ..ensemble.run.runner import Progress

__all__ = ["study"]


class _Numbers(click.ParamType):
    """5000,25000."""

    name = "numbers"

    def __init__(self, kind: type, least: float) -> None:
        self._kind, self._least = kind, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple:
        if not isinstance(value, str):
            return tuple(value)
        try:
            numbers = tuple(dict.fromkeys(self._kind(x) for x in value.split(",")))
        except ValueError:
            numbers = ()
        if not numbers or not all(self._least <= x < 1e12 for x in numbers):
            self.fail(f"{value!r} is not numbers from {self._least:g} on, as in 1,2,4", param, ctx)
        return numbers


_SHARE = Range(0, 1, min_open=True)


@click.group(cls=Group)
def study() -> None:
    """Is the speed of I/O reproducible?

    Studies repeat runs of haccio, the I/O kernel of HACC, until the answer is known.

    Each prints a table, and guidance with its evidence, also where the data cannot decide. All runs are kept
    in --journal: a study that was stopped goes on from there when the same command is given again. Ctrl-C
    waits for the run that is at work, a second one ends it. Options of haccio come after --.
    """


def _shared(command: Callable) -> Callable:
    """Options of all studies."""
    name = command.__name__.removeprefix("study_")
    options = [
        click.option("--ranks", type=click.IntRange(1), default=16, show_default=True, help="Ranks of a job."),
        click.option("--program", multiple=True, type=PATH, help="haccio; default: TWINRUN_HACCIO, or from the PATH."),
        click.option("--mpiexec", multiple=True, help="Launcher with options; default: the one that haccio was built with."),
        click.option("--least", type=click.IntRange(2), default=10, show_default=True, help="Repetitions, at least."),
        click.option("--most", type=click.IntRange(2), default=40, show_default=True, help="Repetitions, at most."),
        click.option("--confidence", type=Range(0.5, 0.999), default=0.95, show_default=True, help="Of the intervals."),
        click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the order of runs."),
        click.option("--journal", type=PATH, default=f"haccio-{name}.jsonl", show_default=True,
                     help="File that keeps all runs."),
        click.option("--json", "json_path", type=PATH, help="Write all figures to this file; - is stdout."),
        click.option("--picture", type=PATH, help="Draw the figures: PNG, PDF or SVG, by matplotlib."),
        click.option("--run-limit", type=Range(1), default=600.0, show_default=True,
                     help="Seconds of one run, at most."),
        click.option("-q", "--quiet", is_flag=True, help="Print the guidance only."),
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
    ]  # fmt: skip
    return _with_options(command, options)


def _storage(command: Callable) -> Callable:
    """Options of studies that write files."""
    options = [
        click.option("--layout", type=click.Choice(["records", "blocks", "variables"]), default="records", show_default=True,
                     help="How variables lie in the file."),
        click.option("--folder", type=click.Path(exists=True, file_okay=False), default=".", show_default=True,
                     help="Folder for the files of jobs, on the storage to study."),
        click.option("--sync", is_flag=True, help="Include the time of fsync."),
    ]  # fmt: skip
    return _with_options(command, options)


def _with_options(command: Callable, options: Sequence[Callable]) -> Callable:
    for option in reversed(options):
        command = option(command)
    return command


def _stacks(programs: Sequence[str], mpiexecs: Sequence[str]) -> list[Stack]:
    from ..aggregate.studies.launch import Stack, default_program

    if not programs:
        programs = [default_program()] * max(len(mpiexecs), 1)
    if mpiexecs and len(mpiexecs) != len(programs):
        raise TwinrunError(
            "--program and --mpiexec go together", fix="give one of each for each MPI library, in one order"
        )
    if not mpiexecs:
        return [Stack.of(p) for p in programs]
    return [Stack.of(p, m) for p, m in zip(programs, mpiexecs, strict=True)]


def _common(options: Mapping) -> dict:
    """Settings of every study, from the shared options."""
    return {
        "ranks": options["ranks"],
        "precision": options["precision"],
        "confidence": options["confidence"],
        "seconds": options["run_limit"],
        "arguments": options["arguments"],
    }


def _on_storage(options: Mapping) -> dict:
    """Settings of studies that write files."""

    from pathlib import Path

    return {
        **_common(options),
        "folder": Path(options["folder"]),
        "layout": options["layout"],
        "synced": options["sync"],
    }


def _precision(default: float, of: str) -> Callable:
    return click.option("--precision", type=_SHARE, default=default, show_default=True, help=of)


def _facts() -> dict:
    import platform

    from .._core import __version__

    return {
        "twinrun": __version__,
        "host": platform.node(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def _teller(bar: Callable[[str, int, int], None] | None, quiet: bool) -> Callable[[Progress], None]:
    """Moves the bar when runs end. Other messages, as after Ctrl-C, are lines on stderr."""

    def tell(progress: Progress) -> None:
        if bar:
            bar("runs", progress.done, progress.total)
        if progress.line is None and not quiet:
            console(stderr=True).print(progress.text, soft_wrap=True)

    return tell


def _conduct(subject: Study, module: ModuleType, options: dict) -> int:
    """Runs a study and prints its results."""

    from ..aggregate.studies import engine
    from ..aggregate.studies.journal import Journal
    from ..aggregate.studies.report import check_pictures
    from ..outputs import check_outputs
    from ..report.document import write_whole

    if options["picture"]:
        check_pictures()
    if options["most"] < options["least"]:
        raise TwinrunError("--most is less than --least")
    plan = engine.Plan(options["least"], options["most"], options["seed"])
    identity = {**subject.identity(), "seed": plan.seed}
    check_outputs(
        {"--json": options["json_path"], "--picture": options["picture"]},
        [options["journal"], *options["program"]],
    )
    with (
        Journal(options["journal"], subject.name, identity, _facts()) as journal,
        progress_bar(options["quiet"]) as bar,
    ):
        blocks, ended = engine.conduct(journal, subject, plan, _teller(bar, options["quiet"]))
        facts = journal.header["facts"]
    result = {
        **subject.result(blocks, ended),
        "seed": plan.seed,
        "confidence": options["confidence"],
        "facts": facts,
    }
    text = json.dumps(result, indent=1, allow_nan=False)
    if options["json_path"] == "-":
        click.echo(text)
    elif options["json_path"]:
        write_whole(options["json_path"], text + "\n", "JSON")
    if options["picture"]:
        module.draw(result, options["picture"])
    out = console(stderr=options["json_path"] == "-")
    if not options["quiet"]:
        for line in module.lines(result):
            out.print(line, soft_wrap=True)
        why = (
            f"intervals are within {100 * subject.precision:.3g}%"
            if ended
            else f"--most reached; not all intervals are within {100 * subject.precision:.3g}%"
        )
        out.print(
            f"{len(blocks)} repetitions, {100 * options['confidence']:.3g}% intervals in brackets; {why}",
            soft_wrap=True,
        )
    for finding in result["guidance"]:
        out.print(finding["sentence"], soft_wrap=True)
    return 0


@study.command("size")
@_shared
@click.option(
    "--particles",
    type=_Numbers(int, 1),
    default=",".join(map(str, PARTICLES)),
    show_default=True,
    help="Particles of a rank.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("aggregate", "posix-packed", "mpiio-collective"),
    show_default=True,
    help="As haccio --method; may be repeated.",
)
@click.option(
    "--operation",
    type=click.Choice(["write", "read"]),
    default="write",
    show_default=True,
    help="What is measured.",
)
@_precision(0.05, "Precision of means (relative) and coefficients of variation.")
@click.option(
    "--target",
    type=_SHARE,
    default=0.1,
    show_default=True,
    help="A coefficient of variation that is small enough.",
)
@_storage
def study_size(particles: tuple, methods: tuple, operation: str, target: float, **options: Any) -> int:
    """Bandwidth, standard deviation and coefficient of variation against particles of a rank."""

    from ..aggregate.studies import size

    subject = size.Size(
        stacks=_stacks(options["program"], options["mpiexec"]),
        particles=particles,
        methods=methods,
        operation=operation,
        target=target,
        **_on_storage(options),
    )
    return _conduct(subject, size, options)


@study.command("interference")
@_shared
@click.option(
    "--particles",
    type=click.IntRange(1),
    default=52_632,
    show_default=True,
    help="Particles of a rank of the job (2 MB).",
)
@click.option(
    "--intensities",
    type=_Numbers(float, 1e-4),
    default=",".join(map(str, INTENSITIES)),
    show_default=True,
    help="Intensities of the second job: MB of a rank.",
)
@click.option(
    "--other-ranks",
    type=click.IntRange(0),
    default=0,
    help="Ranks of the second job; default: the same number.",
)
@click.option("--method", default="aggregate", show_default=True, help="As haccio --method.")
@click.option("--other-method", default="", help="Method of the second job; default: the same.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Repetitions in a run.")
@_precision(0.05, "Precision of losses.")
@click.option(
    "--tolerated", type=_SHARE, default=0.05, show_default=True, help="A loss that does not matter."
)
@_storage
def study_interference(particles: int, intensities: tuple, other_ranks: int, method: str, other_method: str, repeat: int,
                       tolerated: float, **options: Any) -> int:  # fmt: skip
    """One job alone, and the same job beside a second one of varying intensity: mean, deviation, loss."""

    from ..aggregate.studies import interference

    stacks = _stacks(options["program"], options["mpiexec"])
    if len(stacks) != 1:
        raise TwinrunError("this study is of one MPI library", fix="give --program and --mpiexec once")
    subject = interference.Interference(
        stack=stacks[0],
        particles=particles,
        intensities=intensities,
        other_ranks=other_ranks,
        method=method,
        other_method=other_method,
        repeat=repeat,
        tolerated=tolerated,
        **_on_storage(options),
    )
    return _conduct(subject, interference, options)


@study.command("split")
@_shared
@click.option(
    "--communicators",
    type=_Numbers(int, 1),
    default=",".join(map(str, COMMUNICATORS)),
    show_default=True,
    help="Communicators that are made one after the other.",
)
@click.option(
    "--sizes",
    type=_Numbers(int, 1),
    default=",".join(map(str, SIZES)),
    show_default=True,
    help="Ranks of each communicator.",
)
@_precision(0.2, "Precision of mean times (relative).")
def study_split(communicators: tuple, sizes: tuple, **options: Any) -> int:
    """The time of successive MPI_Comm_split, of group-based creation and of coloured splits, by number and
    MPI library.
    """

    from ..aggregate.studies import split

    if min(sizes) > options["ranks"]:
        raise TwinrunError("all --sizes are above the number of --ranks")
    subject = split.Split(
        stacks=_stacks(options["program"], options["mpiexec"]),
        communicators=communicators,
        sizes=sizes,
        **_common(options),
    )
    return _conduct(subject, split, options)
