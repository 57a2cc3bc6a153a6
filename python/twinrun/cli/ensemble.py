"""twinrun ensemble -- COMMAND --vs COMMAND, and twinrun ensemble
run|status|plan|report|profiles|export|import|init
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from ..errors import MissingFile, TwinrunError, one_line
from ..words import counted
from .choices import IMPORTED
from .common import PATH, Range, VerbWithJson, console, json_option
from .help import QUICK, Group, options_of
from .progress import Teller, span
from .quick import init, quick

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ensemble"]

# Formats of exports, and how names of their files end.
_EXPORTS = {
    "parquet": (".parquet",),
    "csv": (".csv",),
    "hyperfine": (".json",),
    "openmetrics": (".prom", ".om"),
}


class _Ensemble(Group):
    """Without a verb: options and commands behind `--`, as `quick` takes them.

    An option, or `--`, where a verb could stand decides that: no verb begins with a dash, so that
    no command's name is ever taken for a verb.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the verb that stands for no verb before options."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [QUICK, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, with a hint for commands without `--` before them."""
        if args and args[0] not in self.commands:
            from ..ensemble.study.shown import shown_line

            raise TwinrunError(
                f"there is no verb {shown_line(args[0])!r:.60}",
                fix="put -- before a command that is to be timed; verbs: twinrun ensemble --help",
            )
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both ways to call it."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] -- COMMAND [--vs COMMAND]...")
        formatter.write_usage(ctx.command_path, "VERB [ARGS]...", "       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the first way, then the verbs."""
        own = [record for _, records in options_of(quick, ctx, grouped=False) for record in records]
        with formatter.section("Options before --"):
            formatter.write_dl(own)
        self.format_commands(ctx, formatter)


@click.group(cls=_Ensemble)
def ensemble() -> None:
    """Is the time reproducible?

    twinrun ensemble -- 'cmd A' --vs 'cmd B' runs both in turn, until it is known which is faster
    and by how much. A verb runs a study of identical tasks under varied conditions, and says what
    makes their time vary.
    """


ensemble.add_command(quick)
ensemble.add_command(init)


def _places(study: str, folder: str | None) -> tuple[Path | None, Path]:
    """(study file or None, folder) of the argument: a file, or the folder of a started study."""

    from pathlib import Path

    path = Path(study)
    if path.is_dir():
        if folder is not None:
            raise TwinrunError("give --folder with the file of a study", where=study)
        return None, path
    if not path.exists():
        raise MissingFile("there is no such study", where=study)
    return path, Path(folder) if folder else path.with_suffix("")


@ensemble.command()
@click.argument("study", type=PATH)
@click.option("--folder", type=PATH, default=None, help="Folder of the study; default: STUDY without .toml.")
@click.option("--retry", type=click.IntRange(0), default=None, metavar="N",
              help="Repeat failed tasks up to N times; default: from the study.")  # fmt: skip
@click.option("--amend", is_flag=True, help="Go on with a changed study, such as one with more repetitions.")
@click.option(
    "--parquet",
    type=PATH,
    default=None,
    metavar="FILE",
    help="Write all tasks to this file at the end.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def run(
    study: str, folder: str | None, retry: int | None, amend: bool, parquet: str | None, quiet: bool
) -> int:
    """Run STUDY, a TOML file, or go on where it stopped.

    Every task is kept in the folder as soon as it has ended. Ctrl-C waits for the tasks that run, a second
    one ends them.
    """

    from ..ensemble.run import runner
    from ..ensemble.study import exporting
    from ..ensemble.study.record import files_of_study
    from ..outputs import check_outputs

    file, place = _places(study, folder)
    check_outputs({"--parquet": parquet}, [*files_of_study(place), *([file] if file else [])])
    with Teller(quiet) as tell:
        outcome = runner.run_study(file, place, retries=retry, amend=amend, report=tell)
    if parquet:
        exporting.write_parquet(place, parquet)
    for note in outcome.left:
        console(stderr=True).print(f"note: {one_line(note)}", soft_wrap=True)
    if outcome.ended == "interrupted":
        raise TwinrunError(
            f"interrupted: {outcome.done} of {outcome.total} tasks have run",
            where=place,
            fix="give the same command again to go on",
        )
    why = {"enough": "; the intervals are narrow enough", "time": "; the time is up"}.get(outcome.ended, "")
    bad = f", {outcome.failed} of them not ok" if outcome.failed else ""
    console().print(f"{place}: {outcome.done} of {outcome.total} tasks have run{bad}{why}", soft_wrap=True)
    return 0


@ensemble.command(cls=VerbWithJson)
@click.argument("folder", type=PATH)
@json_option("All facts")
def status(folder: str, json_file: str | None) -> int:
    """Say how far a study is, also while it runs."""
    from ..ensemble.run import runner

    found = runner.status_of(folder)
    out = console()
    if json_file is not None:
        from ..ensemble.study.record import files_of_study
        from ..outputs import check_outputs
        from ..report.document import write_text

        check_outputs({"--json": json_file}, files_of_study(folder))
        write_text(json_file, json.dumps(found) + "\n")
        if json_file == "-":
            return 0
    out.print(
        f"{found['study']}: {found['ended']} of {found['tasks']} tasks have run, "
        f"{'a runner is at work' if found['runner_at_work'] else 'no runner is at work'}",
        soft_wrap=True,
    )
    for name, number in sorted(found["by_status"].items()):
        out.print(f"  {name}: {number}")
    for name, what, one, many in (
        ("interrupted_attempts", "attempt", " was interrupted", " were interrupted"),
        ("contradicted", "task", " ran otherwise than intended", " ran otherwise than intended"),
    ):
        if found[name]:
            out.print(f"  {counted(found[name], what)}{one if found[name] == 1 else many}")
    if found["running"]:
        out.print(f"  running: {', '.join(found['running'])}", soft_wrap=True)
    if found["ended"] < found["tasks"]:
        out.print(f"  {span(found['seconds_left'])}")
    return 0


@ensemble.command()
@click.argument("study", type=PATH)
@click.option(
    "--blocks", type=click.IntRange(0), default=2, show_default=True, help="Blocks whose tasks are listed."
)
def plan(study: str, blocks: int) -> int:
    """Say what STUDY would run, without running it: cells, order, and the aliases of a fractional design."""
    from ..ensemble.study import design
    from ..ensemble.study.study import read_study

    given = read_study(study)
    cells = design.cells(given)
    out = console()
    tasks = design.plan(given)
    out.print(
        f"{given.name}: {len(cells)} cells, {given.blocks} blocks{' at most' if given.stopping else ''}, {len(tasks)} tasks, "
        f"{len(design.warmups(given))} warm-ups; engine {given.engine.kind}, {given.concurrency} at once",
        soft_wrap=True,
    )
    if given.design.kind == "fractional":
        for line in design.fraction_of(
            [f.name for f in given.factors], given.design.generators, given.design.fraction
        ).said():
            out.print(f"  {line}", soft_wrap=True)
    for task in tasks:
        if task.block < blocks:
            what = ", ".join(f"{k} = {v}" for k, v in task.factors.items())
            node = f", node {task.node}" if task.node else ""
            out.print(
                f"  block {task.block + 1}, task {task.task}: {what or 'no factors'}{node}", soft_wrap=True
            )
    return 0


def _imported(place: str, stack: contextlib.ExitStack, value: str, factors: tuple[str, ...]) -> str:
    """The folder of a study; of a file a temporary one."""
    from pathlib import Path

    if not Path(place).is_file():
        if factors:
            raise TwinrunError("--factor names columns of a CSV file, and this is none", where=place)
        return place
    import tempfile

    from ..ensemble.study import importing

    folder = (
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twinrun-ensemble-"))) / Path(place).stem
    )
    importing.import_tasks([place], folder, value=value, factors=factors)
    return str(folder)


@ensemble.command()
@click.argument("folder", type=PATH)
@click.option(
    "--html", type=PATH, default=None, metavar="FILE", help="One file with all tables and pictures."
)
@click.option(
    "--json", "json_file", type=PATH, default=None, metavar="FILE", help="All figures; - is stdout."
)
@click.option(
    "--matters",
    type=Range(0, 10, min_open=True),
    default=None,
    help="The smallest variation that matters (relative).",
)
@click.option("--confidence", type=Range(0.5, 0.999), default=None,
              help="Confidence of intervals; 1 - the rate of false alarms over all analyses.")  # fmt: skip
@click.option(
    "--against", type=PATH, default=None, metavar="FOLDER", help="An earlier study to compare with."
)
@click.option(
    "--exit-status",
    is_flag=True,
    help="Status 1 where the time is not reproducible, 2 where that is undecided.",
)
@click.option(
    "--value",
    default="",
    metavar="COLUMN",
    help="What is analysed: wall (default), user, metrics.NAME; of a CSV file: the column of times.",
)
@click.option(
    "--factor",
    "factors",
    multiple=True,
    metavar="COLUMN",
    help="Of a CSV file: a column of conditions; default: those of words.",
)
@click.option(
    "--covariate",
    "covariates",
    type=PATH,
    multiple=True,
    metavar="CSV",
    help="Numbers of tasks: a column task or time, and one for each covariate.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Whole sentences of analyses that cannot decide.")
def report(folder: str, html: str | None, json_file: str | None, matters: float | None, confidence: float | None,
           against: str | None, exit_status: bool, value: str, factors: tuple[str, ...], covariates: tuple[str, ...],
           quiet: bool, verbose: bool) -> int:  # fmt: skip
    """Report what the tasks of the study in FOLDER show: how much their time varies, and what explains it.

    FOLDER may be a file of another program too, as `import` takes it.
    """
    from pathlib import Path

    from ..ensemble import Options, analyse
    from ..ensemble.study.record import files_of_study
    from ..outputs import check_outputs

    check_outputs(
        {"--json": json_file, "--html": html},
        [
            *map(Path, covariates),
            *(
                p
                for place in (folder, against)
                if place is not None
                for p in (Path(place), *files_of_study(place))
            ),
        ],
    )
    given: dict[str, Any] = {
        k: v for k, v in (("matters", matters), ("confidence", confidence)) if v is not None
    }
    with contextlib.ExitStack() as stack:
        own = _imported(folder, stack, value, factors)
        if value and own == folder:
            given["value"] = value
        other = None if against is None else _imported(against, stack, value, factors)
        findings = analyse(own, Options(**given), against=other, covariates=covariates)
    if json_file is not None:
        findings.to_json(json_file)
    if html is not None:
        findings.to_html(html)
    out = console(stderr=json_file == "-")
    for line in [findings.headline] if quiet else findings.lines(verbose):
        out.print(line, soft_wrap=True)
    return {"reproducible": 0, "not reproducible": 1}.get(findings.verdict, 2) if exit_status else 0


@ensemble.command()
@click.argument("folder", type=PATH)
@click.option(
    "--slow",
    type=int,
    multiple=True,
    metavar="TASK",
    help="Tasks of the first group; default: the slowest quarter.",
)
@click.option(
    "--fast",
    type=int,
    multiple=True,
    metavar="TASK",
    help="Tasks of the second group; default: the fastest quarter.",
)
@click.option("--by", default="", metavar="FACTOR=LEVEL", help="Compare tasks at this level with all others.")
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Calls to list.")
@click.option("--picture", type=PATH, default=None, metavar="FILE",
              help="Bars of the differences and histograms: .svg, .png, .pdf.")  # fmt: skip
@click.option(
    "--json", "json_file", type=PATH, default=None, metavar="FILE", help="All figures; - is stdout."
)
def profiles(
    folder: str,
    slow: tuple[int, ...],
    fast: tuple[int, ...],
    by: str,
    top: int,
    picture: str | None,
    json_file: str | None,
) -> int:
    """Say in which calls slow tasks of the study in FOLDER spent more time than fast ones, or one group more
    than another.
    """

    from ..outputs import check_outputs
    from ..packages import check
    from ..report import write_json

    if by and (slow or fast):
        raise TwinrunError("--by and tasks both name two groups", fix="give one of them")
    from ..ensemble.study.record import files_of_study

    check_outputs({"--json": json_file, "--picture": picture}, files_of_study(folder))
    check()
    from ..ensemble.analysis.profiles import compare_tasks

    found = compare_tasks(folder, slow, fast, by)
    if json_file is not None:
        write_json(json_file, found.document())
    if picture is not None:
        found.save(picture)
    out = console(stderr=json_file == "-")
    columns = ("slow (s)", "fast (s)", "difference (s)", "of the difference", "slow calls", "fast calls",
               "slow mean (s)", "fast mean (s)", "slow bytes", "fast bytes")  # fmt: skip
    out.print(
        f"{'call':<24} {'group':<18} " + " ".join(f"{c:>17}" for c in columns), soft_wrap=True, markup=False
    )
    for row in found.table.head(top).to_dict("records"):
        cells = [f"{row[c]:>17.4g}" if row[c] == row[c] else " " * 17 for c in columns]
        out.print(
            f"{row['call']:<24} {row['group']:<18} " + " ".join(cells),
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    if len(found.table) > top:
        out.print(f"... and {len(found.table) - top} more")
    for note in found.notes:
        out.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    out.print(found.sentence, soft_wrap=True, markup=False, highlight=False)
    return 0


@ensemble.command()
@click.argument("folder", type=PATH)
@click.argument("file", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(_EXPORTS)),
    default=None,
    help="Default: by the end of FILE's name.",
)
def export(folder: str, file: str, form: str | None) -> int:
    """Write the tasks of the study in FOLDER for other programs: .parquet and .csv (a row for each
    attempt), .json (as hyperfine), .prom or .om (OpenMetrics text).
    """
    from pathlib import Path

    from ..ensemble.study import exporting
    from ..ensemble.study.record import files_of_study
    from ..outputs import check_outputs

    check_outputs({"FILE": file}, files_of_study(folder))
    ends = {end: name for name, own in _EXPORTS.items() for end in own}
    form = form or ends.get(Path(file).suffix.lower())
    if form is None:
        raise TwinrunError(
            "its name does not say which format to write",
            where=file,
            fix=f"give --format, or a name that ends in {', '.join(sorted(ends))}",
        )
    what = "conditions" if form == "hyperfine" else "attempts"
    number = exporting.WRITERS[form](folder, file)
    console().print(f"{file}: {number} {what}", soft_wrap=True)
    return 0


_COLUMNS = [
    click.option(
        "--format",
        "form",
        type=click.Choice(IMPORTED),
        default=None,
        help="Format of the files; default: by content.",
    ),
    click.option(
        "--value",
        default="",
        metavar="COLUMN",
        help="Of CSV: the column of times; default: one named wall, time, seconds, ...",
    ),
    click.option(
        "--factor",
        "factors",
        multiple=True,
        metavar="COLUMN",
        help="Of CSV: a column of conditions; default: those of words.",
    ),
]


@ensemble.command("import")
@click.argument("files", type=PATH, nargs=-1, required=True)
@click.option("--output", type=PATH, required=True, metavar="FOLDER", help="Folder of the new study.")
@_COLUMNS[0]
@_COLUMNS[1]
@_COLUMNS[2]
def import_(
    files: tuple[str, ...], output: str, form: str | None, value: str, factors: tuple[str, ...]
) -> int:
    """Make a study from other programs' measurements: JSON of hyperfine and Google Benchmark,
    ReFrame's performance logs, sacct --parsable2, CSV, Caliper or Thicket profiles, RADICAL's .prof
    files.
    """
    from ..ensemble.study import importing

    number = importing.import_tasks(files, output, form, value, factors)
    console().print(f"{output}: {number} task{'' if number == 1 else 's'}", soft_wrap=True)
    return 0
