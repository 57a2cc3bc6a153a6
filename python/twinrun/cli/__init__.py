"""The command line: one module for each verb. Exit status: 0 the same or done, 1 different, 2 failed."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from ..errors import TwinrunError, name_options, one_line
from ..streams import STDOUT, prepare
from ..urls import without_secrets
from .help import GROUPS, QUICK, write_overview

__all__ = ["main"]

_TRACEBACK = "TWINRUN_TRACEBACK"  # set: defects are shown with their traceback
# A group of verbs without a verb: its message is the help of the group. (click before 8.2 prints
# that itself.)
_NO_VERB = getattr(click.exceptions, "NoArgsIsHelpError", ())


# Verbs, and what each does. The module of the same name is loaded when the verb is used: numpy,
# rich and the formats take longer than much of what is asked for.
_VERBS = {name: said for verbs in GROUPS.values() for name, said in verbs.items()}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = "aside" if cmd_name in ("completion", "help", "manual") else cmd_name
        verb = getattr(importlib.import_module(f"{__name__}.{module}"), cmd_name)
        return verb if isinstance(verb, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, with the nearest verbs in the message."""
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], _VERBS, 2)
            hint = f"did you mean {' or '.join(near)}?" if near else "verbs: twinrun --help"
            raise TwinrunError(f"there is no verb {args[0]!r:.60}", fix=hint)
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "VERB [OPTIONS] ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_overview(ctx, formatter, GROUPS)


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from .._core import __version__  # the core takes a while to load, which help does not need

    click.echo(f"twinrun, version {__version__}")
    context.exit()


@click.group(
    cls=_Group,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run it twice. Know where, when and why it differs: in its results, and in its time."""


def _run(arguments: Sequence[str]) -> int:
    """Status of a verb.

    Not click's own main(): that one ends with status 1, "different", on a closed pipe.
    """
    if "_TWINRUN_COMPLETE" in os.environ:  # a shell asks for completions
        cli.main(prog_name="twinrun")
    try:
        # Who types no verb asks what there is: that is a result, and no error.
        with cli.make_context("twinrun", list(arguments) or ["--help"]) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as e:  # --help, --version
        status = e.exit_code
    sys.stdout.flush()
    return status if isinstance(status, int) else 0


def _said(error: BaseException) -> str:
    """The line for an error: where, what, what to do."""
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        return "interrupted before the work was done"
    if isinstance(error, click.ClickException):
        path = getattr(getattr(error, "ctx", None), "command_path", "twinrun")
        path = path.removesuffix(f" {QUICK}")
        if isinstance(error, click.NoSuchOption) and error.option_name == "--vs":
            return f"--vs stands before --: write {path} -- 'cmd A' --vs 'cmd B' (see: {path} --help)"
        from .common import worded

        return f"{worded(error)} (see: {path} --help)"
    if isinstance(error, TwinrunError):
        return str(error)
    if isinstance(error, BrokenPipeError):
        return f"{STDOUT} was closed before the report's end: use -q or --json FILE"
    if isinstance(error, OSError) and error.filename == STDOUT:
        return f"{STDOUT} cannot be written: {error.strerror}; use -q, or name a file"
    if isinstance(error, MemoryError):
        return "not enough memory: give a smaller --memory"
    if isinstance(error, OSError):
        place = (
            f"{os.fsdecode(error.filename)}: "
            if isinstance(error.filename, (str, bytes, os.PathLike))
            else "a file: "
        )
        advice = "; check owner and permissions" if isinstance(error, PermissionError) else ""
        return f"{place}{error.strerror or error}{advice}"
    return f"a defect of twinrun: {type(error).__name__}: {error}; please report it, with {_TRACEBACK}=1 set"


def _failed(error: BaseException) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get(_TRACEBACK):
        import traceback

        # Words of a library may repeat URLs, with their secrets.
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    if isinstance(error, _NO_VERB):
        print(without_secrets(error.format_message()), file=sys.stderr)
    else:
        print(f"twinrun: {one_line(_said(error))}", file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a verb and exits. Every error is one line on stderr and status 2."""
    named = False
    try:
        try:
            try:
                named = name_options(True)
                prepare()
                status = _run(sys.argv[1:] if arguments is None else arguments)
                # all output is written: Python's shutdown does nothing else
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            except (Exception, KeyboardInterrupt) as e:
                status = _failed(e)
        except KeyboardInterrupt as e:  # while an error was printed
            status = _failed(e)
    finally:
        name_options(named)
    try:
        sys.stdout.flush()
    except OSError:  # the rest of the buffer cannot be written, and Python must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
