"""twinrun compact RECORD"""

from __future__ import annotations

import click

from ..words import byte_size, counted
from .common import PATH, THREADS, console
from .help import Verb


@click.command(cls=Verb)
@click.argument("record", type=PATH)
@click.option(
    "--keep-last",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Remove all steps but the newest N.",
)
@click.option(
    "--drop", type=int, multiple=True, metavar="STEP", help="Remove this step; may be given several times."
)
@click.option(
    "--forget-missing",
    is_flag=True,
    help="Records against this one that are not there any more were removed, not moved.",
)
@click.option("--threads", type=THREADS, default=0, help="Worker threads; 0: all cores.")
def compact(
    record: str, keep_last: int | None, drop: tuple[int, ...], forget_missing: bool, threads: int
) -> int:
    """Remove steps of a record; chunks that other steps need are kept in few files.

    The record can be read meanwhile. After a crash every remaining step is unchanged.
    """
    from ..capture.records import compact as compact_record

    facts = compact_record(
        record, keep_last=keep_last, drop=drop, threads=threads, forget_missing=forget_missing
    )
    console().print(
        f"{counted(facts.dropped_steps, 'step')} removed; differences: {byte_size(facts.bytes_before)} -> {byte_size(facts.bytes_after)}"
    )
    return 0
