"""twinrun golden save|check"""

from __future__ import annotations

import contextlib
import sys

import click

from ..errors import TwinrunError, one_line
from ..words import byte_size, counted, whole_percent
from .choices import GOLDEN_CHUNK
from .common import PATH, SIZE, console, format_options, joined_periods, progress_bar, read_options
from .help import Group


@click.group(cls=Group)
def golden() -> None:
    """Golden checks: keep digests of a run, a few percent of its bytes, and compare later runs with them."""


@golden.command()
@click.argument("run", type=PATH)
@click.option(
    "--output",
    "-o",
    type=PATH,
    required=True,
    metavar="FOLDER",
    help="Where to keep the golden files.",
)
@click.option("--atol", type=float, default=None, help="Absolute tolerance: |a-b| <= atol + rtol |a|.")
@click.option("--rtol", type=float, default=None, help="Relative tolerance.")
@click.option(
    "--ulp", type=int, default=None, metavar="N", help="Numbers at most N representable values apart agree."
)
@click.option("--tolerances", type=PATH, default=None, metavar="FILE",
              help="Rules by field and step, as for 'twinrun compare'.")  # fmt: skip
@click.option("--key", default=None, metavar="GLOB",
              help="Field with particle IDs: rows are kept in their order, of all ranks together.")  # fmt: skip
@click.option(
    "--period",
    multiple=True,
    callback=joined_periods,
    metavar="L",
    help="Box lengths for positions, as for 'twinrun compare'.",
)
@click.option("--keep-values", type=SIZE, default="64K", show_default=True,
              help="Arrays up to this size keep their values; 0: none.")  # fmt: skip
@click.option("--residue-bits", type=click.Choice(["0", "2", "4"]), default="4", show_default=True,
              help="Bits an element that show small differences; 0: only whether cells are the same.")  # fmt: skip
@click.option(
    "--chunk", type=SIZE, default=GOLDEN_CHUNK, show_default="16K", help="Bytes a digest covers: 4K to 1M."
)
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--tolerate-integers", is_flag=True, help="The tolerance holds for integers and booleans too.")
@click.option("--ignore-attribute", "ignore_attributes", multiple=True, metavar="GLOB",
              help="Attributes that may change (path@name, or a name alone); may be given again.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@format_options
@read_options
def save(
    run: str,
    output: str,
    atol: float | None,
    rtol: float | None,
    ulp: int | None,
    tolerances: str | None,
    key: str | None,
    period: str | None,
    keep_values: int,
    residue_bits: str,
    chunk: int,
    fields: tuple[str, ...],
    steps: str | None,
    tolerate_integers: bool,
    ignore_attributes: tuple[str, ...],
    quiet: bool,
    options: dict,
    reading: dict,
) -> int:
    """Keep digests of RUN in a folder small enough for a repository.

    Golden files that golden.json lists there are replaced, no others.
    """

    from ..golden import save as save_run

    with progress_bar(quiet) as progress:
        facts = save_run(
            run,
            output,
            atol=atol,
            rtol=rtol,
            ulp=ulp,
            tolerances=tolerances,
            key=key,
            period=period,
            keep_values=keep_values,
            ignore_attributes=ignore_attributes,
            residue_bits=int(residue_bits),
            chunk_bytes=chunk,
            fields=fields or None,
            steps=steps,
            tolerate_integers=tolerate_integers,
            **reading,
            options=options,
            progress=progress,
        )
    if quiet:
        return 0
    out = console()
    for note in facts.notes[:10]:
        out.print(one_line(f"note: {note}"), soft_wrap=True, style="dim")
    share = whole_percent(facts.bytes / facts.data_bytes if facts.data_bytes else 0)
    fields_said = counted(facts.names, "field")
    if facts.steps:
        fields_said += f" at {counted(facts.steps, 'step')}"
    out.print(
        f"{one_line(facts.path)}: {facts.files} files for {fields_said}, {byte_size(facts.data_bytes)} -> "
        f"{byte_size(facts.bytes)} ({share} of the data)",
        soft_wrap=True,
    )
    return 0


def _report_error(
    folder: str, run: str, error: BaseException, json_file: str | None, junit: str | None, github: bool
) -> None:
    """Replaces reports of an earlier check, which must not look like reports of this one.

    What goes wrong here is left out: `error` is reported.
    """
    from ..report.document import incomparable_document, write_json
    from ..report.github import error_annotation
    from ..report.junit import write_junit_error

    said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
    if json_file is not None:
        with contextlib.suppress(TwinrunError):
            write_json(json_file, {**incomparable_document(folder, run, said), "golden": folder, "run": run})
    if junit is not None:
        with contextlib.suppress(TwinrunError):
            write_junit_error(junit, folder, run, said)
    if github:
        print(error_annotation(f"golden check of {run}", said), file=sys.stderr)


@golden.command()
@click.argument("folder", metavar="GOLDEN", type=PATH)
@click.argument("run", type=PATH)
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--ulp", type=int, default=None, metavar="N",
              help="In place of the saved one: numbers at most N representable values apart agree.")  # fmt: skip
@click.option("--key", default=None, metavar="GLOB",
              help="Field with particle IDs: rows are matched by them, whatever their order.")  # fmt: skip
@click.option(
    "--period",
    multiple=True,
    callback=joined_periods,
    metavar="L",
    help="In place of the saved one: box lengths for positions.",
)
@click.option("--undecided", type=click.Choice(["fail", "pass"]), default="fail", show_default=True,
              help="Whether a field that is undecided within one cell counts as different, or passes.")  # fmt: skip
@click.option("--json", "json_file", type=PATH, default=None, metavar="FILE", help="All facts; - is stdout.")
@click.option("--junit", type=PATH, default=None, metavar="FILE", help="A report as JUnit XML.")
@click.option("--github", is_flag=True, help="Annotations and a summary for GitHub Actions.")
@click.option("--list", "most_listed", type=click.IntRange(1, 10_000_000), default=100, show_default=True,
              help="Elements and chunks to list of each field, at most.")  # fmt: skip
@click.option("--ignore-attribute", "ignore_attributes", multiple=True, metavar="GLOB",
              help="Attributes that may change (path@name, or a name alone); may be given again.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print errors only: the exit status has the verdict.")
@format_options
@read_options
def check(
    folder: str,
    run: str,
    fields: tuple[str, ...],
    steps: str | None,
    ulp: int | None,
    key: str | None,
    period: str | None,
    undecided: str,
    json_file: str | None,
    junit: str | None,
    github: bool,
    most_listed: int,
    ignore_attributes: tuple[str, ...],
    quiet: bool,
    options: dict,
    reading: dict,
) -> int:
    """Say whether RUN agrees with golden files; if not: which elements differ, and by how much."""

    from ..golden import check as check_run
    from ..outputs import check_outputs
    from ..report.document import write_json
    from ..report.github import annotation_lines, uninterpreted, write_summary
    from ..report.golden import golden_document, golden_line, print_golden
    from ..report.junit import write_junit

    out = console(stderr=json_file == "-")
    check_outputs({"--json": json_file, "--junit": junit}, [folder, run])
    try:
        with progress_bar(quiet) as progress:
            result = check_run(
                folder,
                run,
                fields=fields or None,
                steps=steps,
                ulp=ulp,
                key=key,
                period=period,
                undecided=undecided,
                most_listed=most_listed,
                ignore_attributes=ignore_attributes,
                **reading,
                options=options,
                progress=progress,
            )
    except (Exception, KeyboardInterrupt) as e:
        _report_error(folder, run, e, json_file, junit, github)
        raise
    if json_file is not None:
        write_json(json_file, golden_document(result))
    if junit is not None:
        write_junit(junit, result)
    stream = sys.stderr if json_file == "-" else sys.stdout
    if not quiet:
        with uninterpreted(stream) if github else contextlib.nullcontext():
            print_golden(out, result)
    if github:
        for line in annotation_lines(result):
            print(line, file=stream)
        write_summary(result)
    # As for any other error: also on stderr, whatever reports were requested.
    if result.status == 2:
        click.echo(f"twinrun: {golden_line(result)}", err=True)
    return result.status
