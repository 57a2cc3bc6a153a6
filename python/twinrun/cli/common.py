"""What several verbs share: options, sizes, progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import TwinrunError

__all__ = [
    "SIZE",
    "THREADS",
    "Size",
    "console",
    "device_options",
    "format_options",
    "progress_bar",
    "read_options",
]


class Size(click.ParamType):
    """Bytes, as 512M, 2GiB, 65536."""

    name = "size"
    _units: ClassVar = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower().removesuffix("b").removesuffix("i")
        unit = text[-1:] if text[-1:].isalpha() else ""
        if unit in self._units:
            try:
                n = int(float(text[: len(text) - len(unit)]) * (1 << self._units[unit]))
                if 0 <= n < 1 << 62:
                    return n
            except (ValueError, OverflowError):
                pass
        self.fail(f"{value!r} is not a size: write 512M, 2G or a number of bytes", param, ctx)


SIZE = Size()
THREADS = click.IntRange(0, 4096)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with status 1, which is "different"."""
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """A console that is plain when it is not a terminal."""
    return _Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def read_options(command: Callable, ways: tuple[str, ...] = ("auto", "uring", "pread")) -> Callable:
    """Options of every verb that reads data."""
    for option in reversed(
        [
            click.option("--threads", type=THREADS, default=0, help="Worker threads; 0 (default): all cores."),
            click.option("--memory", type=SIZE, default="1G", show_default=True, help="Read buffers, at most."),
            click.option("--io", type=click.Choice(ways), default="auto", show_default=True,
                         help="How files are read."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def device_options(command: Callable) -> Callable:
    """Options of verbs that can work on GPUs: those of `read_options` too."""
    command = click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda|cuda:N[,M]",
        help="Where to compare: on the CPU, on all GPUs, or on these; auto: where it is expected to be faster.",
    )(command)
    return read_options(command, ("auto", "uring", "pread", "gds"))


def format_options(command: Callable) -> Callable:
    """Options for files that do not say what they hold."""
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
        ]
    ):
        command = option(command)
    return command


def format_dict(format_name: str | None, dtype: str | None, shape: str | None, offset: int | None) -> dict:
    """These options as `open_file` takes them."""
    given = {"format": format_name, "dtype": dtype, "shape": shape, "offset": offset}
    options = {k: v for k, v in given.items() if v is not None}
    if shape is not None and dtype is None and format_name in (None, "raw"):
        raise TwinrunError("--shape needs --dtype")
    return options


@contextlib.contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr for work that lasts, on a terminal only; None elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield report
