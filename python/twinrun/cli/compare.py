"""twinrun compare RUN_A RUN_B"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..comparison.choices import ALIGNMENTS, METHODS
from ..errors import TwinrunError, one_line
from ..urls import without_secrets
from .common import (
    EXIT_STATUS,
    PATH,
    Range,
    console,
    device_options,
    format_options,
    joined_periods,
    over_ranks,
    progress_bar,
    worded,
)
from .help import Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..comparison.parallel import Team
    from ..comparison.result import Comparison
    from ..trace.result import TraceComparison


class _Reports(NamedTuple):
    """The files that a comparison writes; None for those that it does not."""

    json_file: str | None
    picture: str | None
    html_file: str | None
    junit: str | None
    listing: str | None

    @property
    def by_option(self) -> dict[str, str | None]:
        """The file of each report, None where it is not asked for, by the option that names it."""
        return {
            "--json": self.json_file,
            "--picture": self.picture,
            "--html": self.html_file,
            "--junit": self.junit,
            "--list-differences": self.listing,
        }

    def check(self, inputs: list[str]) -> None:
        """Raises TwinrunError where a file cannot be written, or is one that is read."""
        outputs = self.by_option
        if any(path is not None for path in outputs.values()):
            from ..outputs import check_outputs

            check_outputs(outputs, inputs)

    def write_error(self, run_a: str, run_b: str, error: BaseException) -> None:
        """Replaces reports of an earlier comparison, which must not look like reports of this one."""
        said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        run_a, run_b, said = map(without_secrets, (run_a, run_b, said))
        with contextlib.suppress(TwinrunError):  # the first error is reported
            if self.json_file is not None:
                from ..report.document import incomparable_document, write_json

                write_json(self.json_file, incomparable_document(run_a, run_b, said))
        with contextlib.suppress(TwinrunError):
            if self.html_file is not None:
                from ..report.html import write_error_html

                write_error_html(self.html_file, run_a, run_b, said)
        with contextlib.suppress(TwinrunError):
            if self.junit is not None:
                from ..report.junit import write_junit_error

                write_junit_error(self.junit, run_a, run_b, said)
        # A list has no form for an error: what the user has there stays.

    def write_trace(self, result: TraceComparison) -> None:
        if self.json_file is not None:
            from ..report.document import write_json
            from ..trace.words import trace_document

            write_json(self.json_file, trace_document(result))
        if self.html_file is not None:
            from ..report.trace import write_trace_html

            write_trace_html(result, self.html_file)

    def say_where(self) -> None:
        """Where the files are that people look at, on standard error: the verdict is the last line
        of standard output.
        """
        for path in (self.html_file, self.picture, self.listing):
            if path is not None:
                click.echo(one_line(f"wrote {path}"), err=True)

    def write(self, result: Comparison) -> None:
        if self.json_file is not None:
            from ..report.document import document, write_json

            write_json(self.json_file, document(result))
        if self.picture is not None:
            from ..report.picture import save_growth

            save_growth(result, self.picture)
        if self.html_file is not None:
            from ..report.html import write_html

            write_html(result, self.html_file)
        if self.junit is not None:
            from ..report.junit import write_junit

            write_junit(self.junit, result)
        if self.listing is not None:
            from ..report.listing import write_differences

            write_differences(result, self.listing)


# Of `git bisect run`: a commit that cannot be tested is skipped, and 128 or more ends the search.
_SKIP, _ABORT, _INTERRUPTED = 125, 129, 130


class _Compare(Verb):
    """The verb, whose wrong usage is no verdict on a commit."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as e:
            if "--bisect" not in given:
                raise
            click.echo(one_line(f"twinrun: {worded(e)} (see: {ctx.command_path} --help)"), err=True)
            ctx.exit(_ABORT)


def for_bisect(verb: Callable[..., int]) -> Callable[..., int]:
    """The option of a verb whose status tells `git bisect run` what to do with a commit."""

    @click.option(
        "--bisect",
        is_flag=True,
        help="Exit status for 'git bisect run': 0 the same, 1 different, 125 (skip) could not compare.",
    )
    @functools.wraps(verb)
    def told(*args: object, bisect: bool, **options: object) -> int:
        if not bisect:
            return verb(*args, **options)
        try:
            status = verb(*args, **options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo("twinrun: interrupted before the work was done", err=True)
            return _INTERRUPTED
        except click.UsageError as e:
            click.echo(one_line(f"twinrun: {worded(e)} (see: twinrun compare --help)"), err=True)
            return _ABORT
        except (TwinrunError, OSError, MemoryError) as e:
            with contextlib.suppress(OSError):
                click.echo(one_line(f"twinrun: {str(e) or type(e).__name__}"), err=True)
            return _SKIP
        return status if status in (EXIT_STATUS["same"], EXIT_STATUS["different"]) else _SKIP

    return told


def _traces(run_a: str, run_b: str | None) -> bool:
    """Whether the runs are traces; an error where only one of them is."""
    from ..runs.traces import is_trace

    if run_b is None:
        if is_trace(run_a):
            return True
        from ..errors import Incomparable

        raise Incomparable("is no trace", where=run_a, fix="--replicas is for traces of several ranks")
    found = [is_trace(run_a), is_trace(run_b)]
    if any(found) and not all(found):
        from ..errors import Incomparable, MissingFile

        other = run_b if found[0] else run_a
        if not os.path.exists(other):
            raise MissingFile.at(other)
        raise Incomparable("is no trace, and the other run is one", where=other, fix="compare two traces")
    return all(found)


# What has no meaning for traces, and what has none with --closer-to: the first one given is named.
_NOT_OF_TRACES = (
    "--atol", "--rtol", "--field", "--steps", "--ranks", "--ulp", "--tolerances", "--key", "--period",
    "--leave-out", "--ignore-attribute", "--cast", "--nan-differs", "--closer-to",
    "--picture", "--junit", "--list-differences", "--format", "--dtype", "--shape", "--offset", "--format-option",
)  # fmt: skip
_NOT_OF_DISTANCES = (
    "--atol", "--rtol", "--ulp", "--tolerances", "--period", "--rename", "--ignore-attribute", "--nan-differs",
    "--picture", "--html", "--junit", "--list-differences", "--tolerate-integers", "--mpi",
)  # fmt: skip


def _refuse(options: tuple[str, ...], values: Mapping[str, object], why: str) -> None:
    """Raises TwinrunError for the first of `options` that is given."""
    for option in options:
        if values[option] not in (None, (), False):
            raise TwinrunError(f"{option} {why}", fix="leave it out")


def _by_option(asked: Mapping[str, Any], reports: _Reports, team: Team | None) -> dict[str, object]:
    """The values of what some kinds of comparisons have no use for, by the option that names it."""
    return {
        "--atol": asked["atol"], "--rtol": asked["rtol"], "--field": asked["fields"], "--steps": asked["steps"],
        "--ranks": asked["ranks"], "--ulp": asked["ulp"], "--tolerances": asked["tolerances"], "--key": asked["key"],
        "--period": asked["period"], "--leave-out": asked["leave_out"], "--ignore-attribute": asked["ignore_attributes"],
        "--rename": asked["rename"], "--cast": asked["cast"], "--nan-differs": asked["nan_differs"],
        **{f"--{name}": asked["options"].get(name) for name in ("format", "dtype", "shape", "offset")},
        "--format-option": sorted(asked["options"].keys() - {"format", "dtype", "shape", "offset"}) or None,
        "--closer-to": asked["closer_to"], "--tolerate-integers": asked["tolerate_integers"], "--mpi": team is not None,
        **reports.by_option,
    }  # fmt: skip


def _compare_traces(
    run_a: str, run_b: str | None, asked: Mapping[str, Any], reports: _Reports, verbose: bool, quiet: bool
) -> int:
    from ..comparison.tolerances import parse_steps
    from ..trace.comparison import compare_traces
    from ..trace.words import trace_lines

    values = _by_option(asked, reports, None)
    if asked["replicas"]:  # --ranks chooses some of them
        values["--ranks"] = None
    _refuse(_NOT_OF_TRACES, values, "is not for traces, which are compared bit by bit")
    ranks = asked["ranks"]
    chosen = asked["replicas"] if ranks is None else parse_steps(ranks, "ranks")
    result = compare_traces(
        run_a, run_b, common=asked["common"], replicas=chosen, rename=asked["rename"] or None
    )
    reports.write_trace(result)
    if not quiet:
        for line in trace_lines(result, verbose):
            click.echo(line, err=reports.json_file == "-")
        reports.say_where()
    return EXIT_STATUS[result.verdict]


def _distances(
    run_a: str, run_b: str, asked: Mapping[str, Any], reports: _Reports, quiet: bool, team: Team | None
) -> int:
    """How far both runs are from that of --closer-to."""
    from ..comparison.distances import compare_distances, distance_lines, distances_document
    from ..comparison.options import CompareOptions

    _refuse(_NOT_OF_DISTANCES, _by_option(asked, reports, team), "has no meaning with --closer-to")
    with progress_bar(quiet) as progress:
        result = compare_distances(
            run_a,
            run_b,
            asked["closer_to"],
            factor=asked["farther_by"] or 1.0,
            fields=asked["fields"] or None,
            **{name: asked[name] for name in ("steps", "ranks", "key", "align", "common", "leave_out")},
            options=CompareOptions(formats=asked["options"], cache=asked["cache"], **asked["reading"]),
            progress=progress,
        )
    if reports.json_file is not None:
        from ..report.document import write_json

        write_json(reports.json_file, distances_document(result))
    if not quiet:
        for line in distance_lines(result):
            click.echo(one_line(line, 400), err=reports.json_file == "-")
    if result.verdict == "incomparable":
        click.echo(one_line(f"twinrun: {result.problems[0]}", 400), err=True)
    return {"farther": 1, "incomparable": 2}.get(result.verdict, 0)


# Options of the verb that are parameters of the function of the same name.
_PASSED_ON = (
    "atol", "rtol", "steps", "ranks", "ulp", "tolerances", "key", "period", "align", "common", "leave_out",
    "ignore_attributes", "rename", "tolerate_integers",
)  # fmt: skip


def _compare_runs(
    run_a: str, run_b: str, asked: Mapping[str, Any], quiet: bool, team: Team | None
) -> Comparison:
    """The comparison; what it found until then, where it was interrupted."""
    from ..comparison.options import CompareOptions
    from ..comparison.work import Interrupted
    from ..comparison.work import compare as compare_runs

    how = CompareOptions(
        method=asked["method"],
        use_metadata=not asked["no_metadata"],
        cache=asked["cache"],
        team=team,
        formats=asked["options"],
        **asked["reading"],
    )
    try:
        with progress_bar(quiet) as progress:
            return compare_runs(
                run_a,
                run_b,
                **{name: asked[name] for name in _PASSED_ON},
                equal_nan=not asked["nan_differs"],
                fields=asked["fields"] or None,
                types="values" if asked["cast"] else "same",
                partial=True,
                options=how,
                progress=progress,
            )
    except Interrupted as e:
        return e.comparison


@click.command(cls=_Compare)
@click.argument("run_a", type=PATH)
@click.argument("run_b", type=PATH, required=False)
@click.option(
    "--atol",
    type=float,
    default=None,
    show_default="that of the metadata, else 0: equality",
    help="Absolute tolerance: |a-b| <= atol + rtol |a|.",
)
@click.option("--rtol", type=float, default=None, show_default="as of --atol", help="Relative tolerance.")
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--ranks", default=None, metavar="LIST", help="Only these ranks: 0,2 or 0:7.")
@click.option(
    "--ulp",
    type=click.IntRange(0),
    default=None,
    metavar="N",
    help="Floats that are at most N representable values apart agree, too.",
)
@click.option(
    "--tolerances",
    type=PATH,
    default=None,
    metavar="FILE",
    help="Rules by field and step (TOML); 'twinrun tolerances' proposes them.",
)
@click.option(
    "--key",
    default=None,
    metavar="FIELD",
    help="Match particles by these IDs, in any order, rank and file; 'auto': by the IDs that the files name.",
)
@click.option(
    "--period",
    multiple=True,
    callback=joined_periods,
    metavar="L[,L,L]",
    help="Box length: positions compare on the circle; or field=10x10x20.",
)
@click.option(
    "--align",
    type=click.Choice(ALIGNMENTS),
    default="step",
    show_default=True,
    help="Steps of the same number, or of the same time.",
)
@click.option(
    "--common",
    is_flag=True,
    help="Steps and fields that only one run has, and what cannot be compared, are left out, and noted; ranks are not (--ranks). "
    "Of traces: iterations before or after those that both have.",
)
@click.option(
    "--replicas",
    is_flag=True,
    help="Compare the data-parallel ranks of one trace among themselves; --ranks chooses some of them.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="GLOB",
    help="Leave out these fields, or files of a folder (by their path); may be given again.",
)
@click.option(
    "--ignore-attribute",
    "ignore_attributes",
    multiple=True,
    metavar="GLOB",
    help="Leave out these attributes (path@name, or a name alone); may be given again.",
)
@click.option(
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    help="Other names for the second run's fields, before they are matched: 'transformer.*=*'; may be given again.",
)
@click.option(
    "--cast",
    is_flag=True,
    help="Fields of different types are compared by the numbers that they hold, without rounding: float32 against "
    "bfloat16, float16, float64, integers, 8-bit floats times their scales.",
)
@click.option(
    "--closer-to",
    type=PATH,
    default=None,
    metavar="REFERENCE",
    help="Say whether RUN_B is farther from REFERENCE, such as a run in float64, than RUN_A is: by the largest and the "
    "root-mean-square distance of each field. Types may differ.",
)
@click.option(
    "--farther-by",
    type=Range(0, min_open=True),
    default=None,
    metavar="FACTOR",
    help="With --closer-to: so many times as far is not farther; 1 by default.",
)
@click.option("--nan-differs", is_flag=True, help="A NaN differs from a NaN.")
@click.option("--tolerate-integers", is_flag=True, help="The tolerance holds for integers and booleans too.")
@click.option(
    "--method", type=click.Choice(METHODS), default="auto", show_default=True, help="How to compare."
)
@click.option("--no-metadata", is_flag=True, help="Do not use metadata beside the files.")
@click.option("--json", "json_file", type=PATH, default=None, metavar="FILE", help="All facts; - is stdout.")
@click.option(
    "--picture",
    type=PATH,
    default=None,
    metavar="FILE",
    help="Growth of |a-b| by step (.png, .pdf, .svg).",
)
@click.option(
    "--html",
    "html_file",
    type=PATH,
    default=None,
    metavar="FILE",
    help="A self-contained page.",
)
@click.option("--junit", type=PATH, default=None, metavar="FILE", help="JUnit XML.")
@click.option(
    "--list-differences",
    type=PATH,
    default=None,
    metavar="FILE",
    help="Every element that differs, as Parquet (or .csv).",
)
@click.option("--cache", type=click.Choice(["auto", "buffered", "direct"]), default="auto", show_default=True,
              help="Reads through the page cache, or past it.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Also print what each stage read, and its time.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only: the exit status has the verdict.")
@for_bisect
@format_options
@device_options
@over_ranks
def compare(
    run_a: str,
    run_b: str | None,
    json_file: str | None,
    picture: str | None,
    html_file: str | None,
    junit: str | None,
    list_differences: str | None,
    verbose: bool,
    quiet: bool,
    team: Team | None = None,
    **asked: Any,
) -> int:
    """Say whether two runs agree; if not: at which step, rank, field and index they first differ, and by how
    much.

    RUN_A (the reference) and RUN_B are histories, folders of files, files, or URLs (https, s3, gs)
    of these. Attributes, text and unknown files count too. Each field has one row: the step where it
    first differs at all (parts), the step where it first differs by more than the tolerance (above),
    and how the largest difference grows. Of traces of trainings: the first operation whose inputs
    agree and whose outputs differ; with --replicas RUN_A alone.
    """
    if (run_b is None) != asked["replicas"]:
        raise click.UsageError(
            "--replicas takes one run." if asked["replicas"] else "Missing argument 'RUN_B'."
        )
    reports = _Reports(json_file, picture, html_file, junit, list_differences)
    reports.check([path for path in (run_a, run_b, asked["tolerances"], asked["closer_to"]) if path])
    try:
        if _traces(run_a, run_b):
            return _compare_traces(run_a, run_b, asked, reports, verbose, quiet)
        assert run_b is not None
        if asked["farther_by"] is not None and asked["closer_to"] is None:
            raise click.UsageError("--farther-by is for --closer-to.")
        if asked["closer_to"] is not None:
            return _distances(run_a, run_b, asked, reports, quiet, team)
        result = _compare_runs(run_a, run_b, asked, quiet, team)
    except (Exception, KeyboardInterrupt) as e:
        reports.write_error(run_a, run_b or run_a, e)
        raise
    reports.write(result)
    _say(result, reports, verbose, quiet)
    return EXIT_STATUS[result.verdict]


def _say(result: Comparison, reports: _Reports, verbose: bool, quiet: bool) -> None:
    """Prints a comparison, and the first problem."""
    if not quiet:
        from ..report.text import print_comparison, write_comparison

        aside = reports.json_file == "-"
        if not write_comparison(sys.stderr if aside else sys.stdout, result, verbose):
            print_comparison(console(stderr=aside), result, details=verbose)
        reports.say_where()
    if result.problems:  # as of any other error: the first, on stderr
        more = f" (and {len(result.problems) - 1} more)" if len(result.problems) > 1 else ""
        click.echo(f"twinrun: {result.problems[0]}{more}", err=True)
