"""twinrun compare RUN_A RUN_B"""

from __future__ import annotations

import contextlib

import click

from ..comparison import METHODS
from ..comparison import compare as compare_runs
from ..errors import TwinrunError
from ..report.document import document, incomparable_document, write_json
from ..report.text import print_comparison
from .common import console, device_options, format_dict, format_options, progress_bar


@click.command()
@click.argument("run_a", type=click.Path())
@click.argument("run_b", type=click.Path())
@click.option("--atol", type=float, default=None, help="Absolute tolerance: |a-b| <= atol + rtol |a|.")
@click.option("--rtol", type=float, default=None, help="Relative tolerance.")
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--nan-differs", is_flag=True, help="A NaN differs from a NaN.")
@click.option("--tolerate-integers", is_flag=True, help="The tolerance holds for integers and booleans too.")
@click.option(
    "--method", type=click.Choice(METHODS), default="auto", show_default=True, help="How to compare."
)
@click.option("--no-metadata", is_flag=True, help="Leave metadata beside the files alone.")
@click.option(
    "--json", "json_file", type=click.Path(), default=None, metavar="FILE", help="All facts; - is stdout."
)
@click.option(
    "--picture",
    type=click.Path(),
    default=None,
    metavar="FILE",
    help="Growth of |a-b| by step (.png, .pdf, .svg).",
)
@click.option("--cache", type=click.Choice(["auto", "buffered", "direct"]), default="auto", show_default=True,
              help="Reads through the page cache, or past it.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Also what each stage read and took.")
@click.option("-q", "--quiet", is_flag=True, help="No output but errors: the exit status says it.")
@format_options
@device_options
def compare(
    run_a: str,
    run_b: str,
    atol: float | None,
    rtol: float | None,
    fields: tuple[str, ...],
    steps: str | None,
    nan_differs: bool,
    tolerate_integers: bool,
    method: str,
    no_metadata: bool,
    json_file: str | None,
    picture: str | None,
    cache: str,
    verbose: bool,
    quiet: bool,
    format_name: str | None,
    dtype: str | None,
    shape: str | None,
    offset: int | None,
    threads: int,
    memory: int,
    io: str,
    device: str,
) -> int:
    """Say whether two runs agree; if not: at which step, rank, field and index they first part, and by how much.

    RUN_A (the reference) and RUN_B are histories, folders of files, or files. Exit status: 0 the same, 1 different,
    2 could not compare.
    """
    out = console(stderr=json_file == "-")
    try:
        with progress_bar(quiet) as progress:
            result = compare_runs(
                run_a,
                run_b,
                atol=atol,
                rtol=rtol,
                equal_nan=not nan_differs,
                method=method,
                fields=fields or None,
                steps=steps,
                tolerate_integers=tolerate_integers,
                use_metadata=not no_metadata,
                threads=threads,
                memory=memory,
                io=io,
                cache=cache,
                device=device,
                options=format_dict(format_name, dtype, shape, offset),
                progress=progress,
            )
    except (Exception, KeyboardInterrupt) as e:
        if (
            json_file is not None
        ):  # no report of an earlier comparison may stay there as if it were this one's
            said = "interrupted" if isinstance(e, KeyboardInterrupt) else str(e) or type(e).__name__
            with contextlib.suppress(TwinrunError):  # the first error is the one to tell
                write_json(json_file, incomparable_document(run_a, run_b, said))
        raise
    if json_file is not None:
        write_json(json_file, document(result))
    if picture is not None:
        from ..report.picture import save_growth

        save_growth(result, picture)
    if not quiet:
        print_comparison(out, result, details=verbose)
    return 0 if result.same else 1
