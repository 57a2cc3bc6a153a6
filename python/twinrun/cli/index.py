"""twinrun index PATH…"""

from __future__ import annotations

import click

from ..errors import one_line
from ..words import byte_size, counted, whole_percent
from .common import (
    PATH,
    SIZE,
    console,
    format_options,
    print_not_compared,
    progress_bar,
    read_options,
    say_without_effect,
)
from .help import Verb


@click.command(cls=Verb)
@click.argument("paths", type=PATH, nargs=-1, required=True)
@click.option(
    "--atol", type=float, default=0.0, show_default=True, help="Absolute tolerance of later comparisons."
)
@click.option(
    "--rtol", type=float, default=0.0, show_default=True, help="Relative tolerance of later comparisons."
)
@click.option("--residue-bits", type=click.Choice(["0", "2", "4"]), default="4", show_default=True,
              help="Bits an element that prove small differences without reading data.")  # fmt: skip
@click.option("--chunk", type=SIZE, default="4K", show_default=True, help="Bytes a digest covers: 4K to 1M.")
@click.option("--digest", type=click.Choice(["linear", "published"]), default="linear", show_default=True,
              help="Kind of digests; published: those of the paper, for comparisons with its method.")  # fmt: skip
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option(
    "--key",
    metavar="FIELD",
    help="Field with the IDs of particles, for comparisons with --key ('auto': what the files say).",
)
@click.option("--refresh", is_flag=True, help="Build metadata also where it is current.")
@format_options
@read_options
def index(
    paths: tuple[str, ...],
    atol: float,
    rtol: float,
    residue_bits: str,
    chunk: int,
    digest: str,
    fields: tuple[str, ...],
    key: str | None,
    refresh: bool,
    options: dict,
    reading: dict,
) -> int:
    """Build metadata for files of other programs, beside them, so that comparing reads a few percent."""
    from ..runs.index import index as index_paths

    with progress_bar() as progress:
        done = index_paths(
            *paths,
            atol=atol,
            rtol=rtol,
            residue_bits=int(residue_bits),
            chunk_bytes=chunk,
            digest=digest,
            fields=fields or None,
            key=key,
            refresh=refresh,
            **reading,
            progress=progress,
            options=options,
        )
    say_without_effect(paths, options)
    out = console()
    for facts in done:
        share = whole_percent(facts.metadata_bytes / facts.data_bytes if facts.data_bytes else 0)
        state = "" if facts.fresh else " (current, kept)"
        out.print(
            f"{one_line(facts.metadata)}: {counted(facts.fields, 'field')}, {byte_size(facts.data_bytes)} -> "
            f"{byte_size(facts.metadata_bytes)} ({share}){state}",
            soft_wrap=True,
        )
        print_not_compared(out, facts.not_compared)
    return 0
