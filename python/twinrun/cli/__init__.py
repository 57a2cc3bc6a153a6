"""The command line: one module for each verb. Exit status: 0 the same or done, 1 different, 2 failed."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from ..errors import TwinrunError, one_line
from ..streams import STDOUT, prepare

__all__ = ["main"]

_TRACEBACK = "TWINRUN_TRACEBACK"  # set: defects are shown with their traceback
# A group of verbs without a verb: its message is the help of the group. (click before 8.2 prints that itself.)
_NO_VERB = getattr(click.exceptions, "NoArgsIsHelpError", ())


# Verbs in the order in which a new user needs them, and the first paragraph of what each says of itself. The module of
# the same name is loaded when the verb is used: numpy, rich and the formats take longer than much of what is asked for.
_VERBS = {
    "compare": "Say whether two runs agree; if not: at which step, rank, field and index they first differ, and by how much.",
    "index": "Build metadata for files of other programs, beside them, so that comparing reads a few percent.",
    "show": "Show the fields of a history, folder, file or metadata file, or (--system, --devices) what twinrun uses on this machine.",
    "log": "List the committed steps of a history: sizes, how long capture blocked the application, where it diverged.",
    "verify": "Check every checksum of histories or indexed files, and that files still have the fields that their metadata describes.",
    "golden": "Golden checks: keep digests of a run, a few percent of its bytes, and compare later runs with them.",
    "tolerances": "Propose tolerances from two or more RUNS of the same code: their spread, as rules for --tolerances.",
    "pack": "Keep every step of a run at a fraction of its size.",
    "restore": "Write steps of a record back as files, every byte checked.",
    "compact": "Remove steps of a record; chunks that other steps need are kept in few files.",
    "flush": "Copy steps that a run left on a node-local tier to their history.",
    "aggregate": "Aggregation of many ranks' data: who gathers and writes for whom.",
    "ensemble": "Is the time reproducible?",
    "interpose": "Run COMMAND, count and time its calls of MPI, POSIX and stdio, and print them on stderr.",
    "noise": "Measure the time that the operating system takes from each core, with and without a free core.",
    "demo": "Run a P3M N-body simulation twice with the same input, and show where the two runs differ.",
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        verb = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        return verb if isinstance(verb, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, _VERBS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=said).get_short_help_str(width))
                    for name, said in _VERBS.items()
                ]
            )


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from .._core import __version__  # the core takes a while to load, which help does not need

    click.echo(f"twinrun, version {__version__}")
    context.exit()


@click.group(cls=_Group, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run it twice. Know where, when and why it differs."""


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
        path = getattr(getattr(error, "ctx", None), "command_path", "twinrun")
        return f"{error.format_message()} (see: {path} --help)"
    if isinstance(error, TwinrunError):
        return str(error)
    if isinstance(error, BrokenPipeError):
        return f"{STDOUT} was closed before the report's end: use -q or --json FILE"
    if isinstance(error, OSError) and error.filename == STDOUT:
        return f"{STDOUT} cannot be written: {error.strerror}; use -q, or name a file"
    if isinstance(error, MemoryError):
        return "not enough memory: give a smaller --memory"
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes, os.PathLike)) else "a file: "
        return f"{place}{error.strerror or error}"
    return f"a defect of twinrun: {type(error).__name__}: {error}; please report it, with {_TRACEBACK}=1 set"


def _failed(error: BaseException) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get(_TRACEBACK):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, _NO_VERB):
        print(error.format_message(), file=sys.stderr)
    else:
        print(f"twinrun: {one_line(_said(error))}", file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a verb and exits. Every error is one line on stderr and status 2."""
    try:
        try:
            prepare()
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
