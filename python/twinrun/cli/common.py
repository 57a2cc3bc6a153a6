"""Common parts of verbs: options, sizes, progress."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ..errors import one_line
from .help import Verb

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "EXIT_STATUS",
    "MEMORY",
    "PATH",
    "SIZE",
    "THREADS",
    "Range",
    "Size",
    "VerbWithJson",
    "console",
    "device_options",
    "format_options",
    "joined_periods",
    "json_option",
    "over_ranks",
    "print_not_compared",
    "progress_bar",
    "read_options",
    "say_without_effect",
    "worded",
]


class Range(click.FloatRange):
    """A finite number within limits. click's own range takes nan, as no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "_" in value:  # Python takes 1_0 for 10
            self.fail(f"{value!r} is no number.", param, ctx)
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return found


def joined_periods(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The value of --period, which may be given several times, each time for other fields."""
    if len(given) > 1 and not all("=" in one for one in given):
        from ..errors import TwinrunError

        raise TwinrunError(
            f"--period was given {len(given)} times, and not each time with the names of its fields",
            fix="write --period pos=10 --period vel=3, or the lengths by axis once: --period 10,10,20",
        )
    return ",".join(given) if given else None


class Size(click.ParamType):
    """Bytes, as 512M, 2GiB, 65536."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least  # that works

    _units: ClassVar = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower().removesuffix("b").removesuffix("i")
        unit = text[-1:] if text[-1:].isalpha() else ""
        if unit in self._units and "_" not in text:  # Python takes 1_0 for 10
            try:
                n = int(float(text[: len(text) - len(unit)]) * (1 << self._units[unit]))
                if 0 <= n < self._least:
                    self.fail(f"{value!r} is too small: give at least {self._least >> 10}K", param, ctx)
                if 0 <= n < 1 << 62:
                    return n
            except (ValueError, OverflowError):
                pass
        self.fail(f"{value!r} is not a size: write 512M, 2G or a number of bytes", param, ctx)


class VerbWithJson(Verb):
    """A verb whose --json prints where no FILE follows, as it did when it took none: see `json_option`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            if "--json" not in given:
                raise
            # The word behind it is no FILE, but the argument that is missing.
            given[given.index("--json")] = "--json=-"
            ctx.params.clear()
            return super().parse_args(ctx, given)


def json_option(said: str) -> Callable[[Callable], Callable]:
    """--json FILE, as all verbs have it; --json alone is standard output. For verbs of `VerbWithJson`."""
    return click.option(
        "--json",
        "json_file",
        type=PATH,
        is_flag=False,
        flag_value="-",
        default=None,
        metavar="[FILE]",
        help=f"{said}; - or no FILE is stdout.",
    )


# What click says of a number, and what it means.
_NUMBERS = (
    (re.compile(r"is not a valid integer(?: range)?\."), "is no whole number."),
    (re.compile(r"is not a valid float(?: range)?\."), "is no number."),
)


def worded(error: click.ClickException) -> str:
    """The words of a wrong option in one line, with click's words for numbers in plain ones."""
    said = " ".join(error.format_message().split())
    for pattern, words in _NUMBERS:
        said = pattern.sub(words, said)
    return said


EXIT_STATUS = {"same": 0, "different": 1, "incomparable": 2}  # of a verdict

# A path that the verb itself looks at: what click says of one that may not be read has no advice.
PATH = click.Path(readable=False)
SIZE = Size()
MEMORY = Size(1 << 16)  # less is no room for anything
THREADS = click.IntRange(0, 4096)
_MOST_PROBLEMS = 10  # that are printed of one file


def console(stderr: bool = False) -> Console:
    """A console that is plain when it is not a terminal."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Rich would exit with status 1, which means "different"."""
            raise BrokenPipeError

    return Plain(stderr=stderr, highlight=False, emoji=False, markup=False)


def print_not_compared(out: Console, problems: Sequence[str]) -> None:
    """What a file holds and no comparison can compare, as `twinrun compare` says it."""
    for problem in problems[:_MOST_PROBLEMS]:
        out.print(one_line(f"not compared: {problem}"), style="red", soft_wrap=True)
    if len(problems) > _MOST_PROBLEMS:
        out.print(f"not compared: {len(problems) - _MOST_PROBLEMS} more", style="red")


def read_options(verb: Callable, ways: tuple[str, ...] = ("auto", "uring", "pread")) -> Callable:
    """Options of every verb that reads data.

    The verb receives them as `reading`: threads, memory (bytes), io.
    """

    @functools.wraps(verb)
    def gathered(*args: object, threads: int, memory: int, io: str, **rest: object) -> int:
        reading = {**rest.pop("reading", {}), "threads": threads, "memory": memory, "io": io}  # type: ignore[dict-item]
        return verb(*args, reading=reading, **rest)

    for option in reversed(
        [
            click.option("--threads", type=THREADS, default=0, help="Worker threads; 0: all cores."),
            click.option("--memory", type=MEMORY, default="1G", show_default=True, help="Read buffers, at most."),
            click.option("--io", type=click.Choice(ways), default="auto", show_default=True,
                         help="How files are read."),
        ]
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered


def device_options(verb: Callable) -> Callable:
    """Options of verbs that can work on GPUs: `reading` has device too."""

    @click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda|cuda:N[,M]",
        help="Where to compare: on the CPU, on all GPUs, or on these; auto: where it is expected to be faster.",
    )
    @functools.wraps(verb)
    def gathered(*args: object, device: str, reading: dict, **rest: object) -> int:
        return verb(*args, reading={**reading, "device": device}, **rest)

    return read_options(gathered, ("auto", "uring", "pread", "gds"))


def format_options(verb: Callable) -> Callable:
    """Options for files without a description of their content.

    The verb receives them as `options`, for `open_file`.
    """

    @functools.wraps(verb)
    def gathered(
        *args: object,
        format_name: str | None,
        dtype: str | None,
        shape: str | None,
        offset: int | None,
        format_option: dict[str, str],
        **rest: object,
    ) -> int:
        given = {"format": format_name, "dtype": dtype, "shape": shape, "offset": offset}
        return verb(
            *args, options={**format_option, **{k: v for k, v in given.items() if v is not None}}, **rest
        )

    for option in reversed(
        [
            click.option(
                "--format", "format_name", default=None, help="Format of the files, if it is not recognised."
            ),
            click.option("--dtype", default=None, help="Raw files: f32, f64, i32, <f4, >f8, …"),
            click.option("--shape", default=None, help="Raw files: 100x200x3."),
            click.option(
                "--offset", type=SIZE, default=None, help="Raw files: bytes before the first element."
            ),
            click.option(
                "--format-option",
                metavar="NAME=VALUE",
                multiple=True,
                callback=_pairs,
                help="An option of the format, such as types=0:f64 of VELOC's files; may be given several times.",
            ),
        ]
    ):
        gathered = option(gathered)
    return gathered


def say_without_effect(paths: Iterable[str], options: Mapping[str, object]) -> None:
    """Says on standard error which options of formats none of these runs takes."""
    if options:
        from ..runs.opening import open_subject, without_effect

        for note in without_effect([open_subject(path, options) for path in paths], options):
            click.echo(one_line(f"note: {note}"), err=True)


def _pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise click.BadParameter("must look like NAME=VALUE")
    return {name.strip(): value for name, _, value in pairs}


def over_ranks(verb: Callable[..., int]) -> Callable[..., int]:
    """The option of a verb that ranks of an MPI job share.

    The leader receives `team`; the other ranks serve it.

    All ranks end with the leader's status.
    """

    @click.option(
        "--mpi",
        type=click.Choice(("auto", "on", "off")),
        default="auto",
        show_default=True,
        help="Share the work over MPI's ranks; auto: where mpirun or srun started several.",
    )
    @functools.wraps(verb)
    def shared(*args: object, mpi: str, **options: object) -> int:
        from ..comparison.launch import alone

        if alone(mpi):
            return verb(*args, **options, team=None)
        from ..comparison import parallel

        with parallel.joined(mpi) as team:
            if team is None:
                return verb(*args, **options, team=None)
            if not team.leads:
                return team.serve()
            given = click.get_current_context().get_parameter_source("memory")
            team.memory_is_each = given is not click.core.ParameterSource.DEFAULT
            status = verb(*args, **options, team=team)
            sys.stdout.flush()  # an error here changes the status
            team.dismiss(status)
            return status

    return shared


@contextlib.contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr for long work, on a terminal only; None elsewhere. What is done is counted in bytes."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield report
