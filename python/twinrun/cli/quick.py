"""twinrun ensemble [OPTIONS] -- COMMAND [--vs COMMAND]...   and   twinrun ensemble init"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import TwinrunError, one_line
from .common import PATH, Range, console
from .help import QUICK, Verb

if TYPE_CHECKING:
    from pathlib import Path

    from ..ensemble.analysis.conditions import Conditions
    from ..ensemble.study.command_line import CommandLine
    from ..report.parts import Table

__all__ = ["init", "quick"]

_LEVELS = 1000


def _levels(
    _context: click.Context, _parameter: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, list[str]]:
    """1,2,4; a comma of a value is written \\,"""
    found: dict[str, list[str]] = {}
    for name, text in given:
        levels = [re.sub(r"\\(.)", r"\1", v) for v in re.findall(r"(?:\\.|[^,\\])+", text)]
        if not levels or len(set(levels)) != len(levels):
            raise click.BadParameter(f"{name} needs values, each once: {text!r:.80}")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = levels
    return found


_TIMING: list[Callable] = [
    click.option("-L", "--parameter", "--parameter-list", "parameter", type=(str, str), multiple=True, callback=_levels,
                 metavar="NAME VALUES", help="Values, as 1,2,4, that {NAME} in commands becomes; several: all combinations."),
    click.option("-P", "--parameter-scan", "scans", type=(str, str, str), multiple=True, metavar="NAME MIN MAX",
                 help="The values from MIN to MAX."),
    click.option("-D", "--parameter-step-size", "step", default="1", show_default=True, metavar="STEP", help="Step of --parameter-scan."),
    click.option("-w", "--warmup", type=click.IntRange(0, 1000), default=1, show_default=True, metavar="N",
                 help="Rounds of all commands before the first that counts."),
    click.option("--precision", type=Range(1e-4, 10), default=0.02, show_default=True,
                 help="Stop when the intervals of all ratios (of the median, with one command) are as narrow: +- 2%."),
    click.option("-t", "--time", "seconds", type=Range(0, 1e9, min_open=True), default=None, metavar="SECONDS",
                 help="Stop when the time is up; default: 60 s, but not before --min-runs."),
    click.option("-r", "--runs", type=click.IntRange(1, 100_000), default=None, metavar="N", help="Exactly N runs of each, whatever the intervals."),
    click.option("-m", "--min-runs", type=click.IntRange(1, 100_000), default=10, show_default=True, metavar="N",
                 help="Runs of each before intervals are looked at."),
    click.option("-M", "--max-runs", type=click.IntRange(1, 100_000), default=1000, show_default=True, metavar="N", help="Runs of each, at most."),
    click.option("--confidence", type=Range(0.5, 0.999), default=0.95, show_default=True, help="Of all intervals together."),
    click.option("-n", "--command-name", "names", multiple=True, metavar="NAME", help="A name for each command, in their order."),
    click.option("-s", "--setup", default="", metavar="CMD", help="Run before the first run, for each combination."),
    click.option("-p", "--prepare", multiple=True, metavar="CMD", help="Run before each run, not measured; one for all commands, or one for each."),
    click.option("-c", "--cleanup", default="", metavar="CMD", help="Run after the last run, for each combination."),
    click.option("-S", "--shell", default="auto", show_default=True, metavar="auto|none|SHELL",
                 help="What runs command lines; auto: /bin/sh for all where one of them needs a shell."),
    click.option("-N", "no_shell", is_flag=True, help="As --shell none."),
    click.option("-i", "--ignore-failure", is_flag=True, help="Measure commands that end with a status other than 0."),
    click.option("--seed", type=click.IntRange(0, 1_000_000), default=None, help="Of the random order; default: another one each time."),
]  # fmt: skip


def _timed(verb: Callable) -> Callable:
    """The options of a command line, which the verb receives as `given`; and its words."""

    def gathered(**options: Any) -> int:
        known = ("parameter", "scans", "step", "warmup", "precision", "seconds", "runs", "min_runs", "max_runs", "confidence",
                 "names", "setup", "prepare", "cleanup", "shell", "no_shell", "ignore_failure", "seed", "words")  # fmt: skip
        return verb(_command_line(**{k: options.pop(k) for k in known}), **options)

    gathered.__doc__, gathered.__name__ = verb.__doc__, verb.__name__
    gathered.__click_params__ = list(getattr(verb, "__click_params__", []))  # type: ignore[attr-defined]
    found: Callable = click.argument("words", nargs=-1, metavar="-- COMMAND [--vs COMMAND]...")(gathered)
    for option in reversed(_TIMING):
        found = option(found)
    return found


def _command_line(*, parameter: dict[str, list[str]], scans: Sequence[tuple[str, str, str]], step: str, warmup: int, precision: float,
                  seconds: float | None, runs: int | None, min_runs: int, max_runs: int, confidence: float, names: tuple[str, ...], setup: str,
                  prepare: tuple[str, ...], cleanup: str, shell: str, no_shell: bool, ignore_failure: bool, seed: int | None,
                  words: tuple[str, ...]) -> CommandLine:  # fmt: skip
    from ..ensemble.study.command_line import CommandLine, commands_of, scan

    for name, low, high in scans:
        if name in parameter:
            raise TwinrunError(f"the parameter {name} is given twice")
        parameter[name] = scan(name, low, high, step)
    if no_shell and shell not in ("auto", "none"):
        raise TwinrunError("-N and --shell contradict each other")
    if min_runs > max_runs and runs is None:
        raise TwinrunError(f"--min-runs {min_runs} is more than --max-runs {max_runs}")
    return CommandLine(
        commands=commands_of(words),
        names=names,
        parameters=parameter,
        directory=os.getcwd(),
        shell="none" if no_shell else shell,
        setup=setup,
        prepare=prepare,
        cleanup=cleanup,
        warmup=warmup,
        least=runs or min_runs,
        most=runs or max_runs,
        precision=precision,
        confidence=confidence,
        seconds=(seconds or 0.0) if runs else (seconds or 60.0),
        time_after=1 if seconds else (runs or min_runs),
        order=_random_order() if seed is None else seed,
        ignore_failure=ignore_failure,
    )


def _random_order() -> int:
    import secrets

    return secrets.randbelow(1_000_000)


@click.command(QUICK, hidden=True, context_settings={"ignore_unknown_options": False})
@_timed
@click.option(
    "-o",
    "--keep",
    type=PATH,
    default=None,
    metavar="FOLDER",
    help="Keep the runs as a study, for twinrun ensemble report.",
)
@click.option(
    "--export-json",
    "--export",
    "export_json",
    type=PATH,
    default=None,
    metavar="FILE",
    help="Times and means, as hyperfine writes them.",
)
@click.option(
    "--export-csv", type=PATH, default=None, metavar="FILE", help="Means, as hyperfine writes them."
)
@click.option("--export-markdown", type=PATH, default=None, metavar="FILE", help="The table.")
@click.option("-q", "--quiet", is_flag=True, help="Print the sentence only.")
def quick(given: CommandLine, keep: str | None, export_json: str | None, export_csv: str | None, export_markdown: str | None, quiet: bool) -> int:  # fmt: skip
    """Compare the times of commands: a table, and a sentence with its interval."""
    from ..ensemble.run.quick import run_commands
    from ..ensemble.study import exporting
    from ..ensemble.study.record import files_of_study
    from ..ensemble.study.shown import shown_command
    from ..outputs import check_outputs, check_writable
    from ..packages import check
    from ..report.document import write_whole as write_report

    outputs = {"--export-json": export_json, "--export-csv": export_csv, "--export-markdown": export_markdown}
    check_outputs(outputs, files_of_study(keep) if keep is not None else [])
    check_writable(outputs)
    check()
    from ..ensemble import Options, load_tasks
    from ..ensemble.analysis.conditions import conditions_of
    from .progress import Teller

    left: list[str] = []
    with _folder(keep, left) as folder:
        with Teller(quiet or not sys.stderr.isatty()) as tell:
            outcome, trouble = run_commands(given, folder, tell, left)
        if outcome.done == 0:
            raise trouble or TwinrunError("interrupted before the first run ended: nothing can be said")
        frame = load_tasks(folder)
        frame.attrs["name"] = one_line(
            given.names[0] if given.names else shown_command(given.commands[0]), 60
        )
        found = conditions_of(
            frame, Options(confidence=given.confidence, matters=max(1e-6, 2 * given.precision))
        )
        # First what was found: a file that cannot be written, or a cleanup that fails, does not
        # lose it.
        _print(found, given, outcome.ended, keep, quiet)
        for name, write in (
            ("--export-json", exporting.write_hyperfine),
            ("--export-csv", exporting.write_hyperfine_csv),
        ):
            if (path := outputs[name]) is not None:
                write(folder, path, name)
        if export_markdown is not None:
            write_report(export_markdown, _markdown(_table(found)), "Markdown", "--export-markdown")
    if trouble is not None:
        raise trouble
    if outcome.ended == "interrupted":
        raise TwinrunError(
            f"interrupted: {outcome.done} of at most {outcome.total} runs ended, and the report is about these"
        )
    if not any(row.n for row in found.rows):
        raise TwinrunError(
            "no run ended by itself with a status that counts", fix="look at what the commands print"
        )
    return 0


def _print(found: Conditions, given: CommandLine, ended: str, keep: str | None, quiet: bool) -> None:
    from ..report.ensemble import aligned

    out = console()
    if not quiet:
        for row in aligned(_table(found)):
            out.print(row, soft_wrap=True)
        for note in _notes(found, given, ended):
            out.print(note, soft_wrap=True)
        out.print()
    for sentence in found.sentences(given.precision):
        out.print(one_line(sentence), soft_wrap=True)
    if keep is not None and not quiet:
        out.print(f"{keep}: twinrun ensemble report {keep}", soft_wrap=True)


@contextlib.contextmanager
def _folder(keep: str | None, left: Sequence[str]) -> Iterator[Path]:
    """The folder of the runs: the user's, or one that goes, unless it has something of the user (left)."""
    import tempfile
    from pathlib import Path

    folder = Path(keep if keep is not None else tempfile.mkdtemp(prefix="twinrun-ensemble-"))
    try:
        yield folder
    finally:
        for note in left:
            console(stderr=True).print(f"note: {one_line(note)}", soft_wrap=True)
        if keep is None and not left:
            from ..ensemble.study.removal import FOLDER_ITSELF, remove

            above = os.open(folder.parent, FOLDER_ITSELF & ~os.O_NOFOLLOW)
            remove(folder.name, above)
            os.close(above)


def _table(found: Conditions) -> Table:
    from ..report.ensemble import conditions_table

    return conditions_table(found.table(), found.confidence)


def _markdown(table: Table) -> str:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    rows = [[f"`{row[0]}`", *row[1:]] for row in table.rows]
    return "\n".join([line(table.head), "|:---|" + "---:|" * (len(table.head) - 1), *map(line, rows)]) + "\n"


def _notes(found: Conditions, given: CommandLine, ended: str) -> list[str]:
    from ..ensemble.study.command_line import shell_of

    notes = []
    if shell := shell_of(given):
        notes.append(
            f"note: {shell} ran the commands, and its start is part of their time; -N runs them without"
        )
    for row in found.rows:
        if row.failed:
            notes.append(
                f"note: {row.failed} runs of {one_line(row.name, 60)} did not end by themselves, and are not in its times"
            )
    if found.fails:
        notes.append(f"note: medians have no interval: {found.fails}")
    if ended == "time":
        notes.append("note: the time was up before all intervals were as narrow as asked")
    return notes


@click.command(cls=Verb)
@_timed
@click.option(
    "-o",
    "--output",
    type=PATH,
    default="study.toml",
    show_default=True,
    metavar="FILE",
    help="The file; - is stdout.",
)
@click.option("--name", default="", help="The study's name; default: that of the file.")
def init(given: CommandLine, output: str, name: str) -> int:
    """Write the study.toml of a command line, to be changed and run: twinrun ensemble run FILE."""
    from pathlib import Path

    from ..ensemble.study.command_line import study_text
    from ..ensemble.study.study import parse_study
    from ..outputs import write_whole

    text = study_text(given, name or ("" if output == "-" else Path(output).stem))
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    parse_study(tomllib.loads(text), output)
    if output == "-":
        print(text, end="")
        return 0
    if os.path.lexists(output):
        raise TwinrunError("is there already", where=output, fix="give another --output")
    write_whole(output, text.encode())
    console().print(f"{output}: run it with twinrun ensemble run {output}", soft_wrap=True)
    return 0
