"""The command line: one module for each verb. Exit status: 0 the same or done, 1 different, 2 could not."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from .._core import __version__
from ..errors import TwinrunError, one_line
from . import (
    aggregate,
    compact,
    compare,
    demo,
    ensemble,
    flush,
    golden,
    index,
    interpose,
    log,
    noise,
    pack,
    restore,
    show,
    tolerances,
    verify,
)

__all__ = ["main"]

_TRACEBACK = "TWINRUN_TRACEBACK"  # set: defects are shown with their traceback


class _Group(click.Group):
    """Verbs in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twinrun")
def cli() -> None:
    """Run it twice. Know where, when and why it differs."""


for command in (
    compare.compare,
    index.index,
    show.show,
    log.log,
    verify.verify,
    golden.golden,
    tolerances.tolerances,
    pack.pack,
    restore.restore,
    compact.compact,
    flush.flush,
    aggregate.aggregate,
    ensemble.ensemble,
    interpose.interpose,
    noise.noise,
    demo.demo,
):
    cli.add_command(command)


def _run(arguments: Sequence[str]) -> int:
    """Status of a verb.

    Not click's own main(): that one ends with status 1, "different", on a closed pipe.
    """
    if "_TWINRUN_COMPLETE" in os.environ:  # a shell asks for completions
        cli.main(prog_name="twinrun")
    try:
        with cli.make_context("twinrun", list(arguments)) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as e:  # --help, --version
        status = e.exit_code
    sys.stdout.flush()
    return status if isinstance(status, int) else 0


def _said(error: BaseException) -> str:
    """The line for an error: where, what, what to do."""
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        return "interrupted: nothing was brought to its end"
    if isinstance(error, click.ClickException):
        return f"{error.format_message()} (see: twinrun --help)"
    if isinstance(error, TwinrunError):
        return str(error)
    if isinstance(error, BrokenPipeError):
        return "standard output was closed before the report's end: use -q or --json FILE"
    if isinstance(error, MemoryError):
        return "not enough memory: give a smaller --memory"
    if isinstance(error, OSError):
        return f"{error.filename or 'standard output'}: {error.strerror or error}"
    return f"a defect of twinrun: {type(error).__name__}: {error}; please report it, with {_TRACEBACK}=1 set"


def _failed(error: BaseException) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get(_TRACEBACK):
        traceback.print_exception(error)
    print(f"twinrun: {one_line(_said(error))}", file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a verb and exits. Every error is one line on stderr and status 2."""
    try:
        try:
            for stream in (sys.stdout, sys.stderr):  # a character that the terminal cannot encode is no error
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(errors="backslashreplace")
            status = _run(sys.argv[1:] if arguments is None else arguments)
            # all output is written: Python's shutdown does nothing else
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except (Exception, KeyboardInterrupt) as e:
            status = _failed(e)
    except KeyboardInterrupt as e:  # while an error was printed
        status = _failed(e)
    try:
        sys.stdout.flush()
    except OSError:  # the rest of the buffer cannot be written, and Python must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
