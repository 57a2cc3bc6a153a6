"""twinrun restore RECORD TO"""

from __future__ import annotations

import os
import re

import click

from ..errors import TwinrunError, one_line
from ..words import counted
from .common import MEMORY, PATH, THREADS, console
from .help import Verb


@click.command(cls=Verb)
@click.argument("record", type=PATH)
@click.argument("to", type=PATH)
@click.option(
    "--step",
    "steps",
    type=int,
    multiple=True,
    metavar="N",
    help="This step; may be given several times. Default: all.",
)
@click.option(
    "--flat", is_flag=True, help="Other programs' files of one step: into TO as they were, not TO/step-N."
)
@click.option(
    "--field", default=None, help="Only this field (or file) of one step: its bytes go to the file TO."
)
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Rank, with --field.")
@click.option(
    "--bytes",
    "part",
    default=None,
    metavar="OFFSET:COUNT",
    help="Only these bytes, with --field; OFFSET: for all from there on.",
)
@click.option("--threads", type=THREADS, default=0, help="Worker threads; 0: all cores.")
@click.option("--memory", type=MEMORY, default="1G", show_default=True, help="Read buffers, at most.")
def restore(
    record: str,
    to: str,
    steps: tuple[int, ...],
    flat: bool,
    field: str | None,
    rank: int,
    part: str | None,
    threads: int,
    memory: int,
) -> int:
    """Write steps of a record back as files, every byte checked.

    Steps that twinrun captured come as a history in TO. Files of other programs come under their names, in a
    folder step-N of TO for each step; with --flat one step comes into TO itself. Whatever is in TO stays as
    it is, and no link in it is followed.
    """
    from ..capture.records import restore_named, write_part

    if field is not None:
        if flat:
            raise TwinrunError(
                "--flat has no effect with --field, whose bytes go to the file TO: leave it out"
            )
        if len({*steps}) != 1:
            raise TwinrunError("--field needs one --step")
        found = re.fullmatch(r"(\d+):(\d*)", part or "0:")
        if found is None:
            raise TwinrunError(f"--bytes {part!r} is not of the form OFFSET:COUNT")
        count = int(found[2]) if found[2] else None
        size = write_part(
            record,
            steps[0],
            field,
            to,
            rank=rank,
            offset=int(found[1]),
            count=count,
            threads=threads,
            memory=memory,
        )
        console().print(f"wrote {counted(size, 'byte')} to {one_line(to)}", soft_wrap=True)
        return 0
    if part is not None:
        raise TwinrunError("--bytes needs --field")
    paths, unnamed, notes = restore_named(
        record, to, steps=steps or None, flat=flat, threads=threads, memory=memory
    )
    folders = sum(os.path.isdir(path) and not os.path.islink(path) for path in paths)
    made = f"wrote {counted(len(paths) - folders, 'file')}"
    if folders:
        made += f" and {counted(folders, 'empty folder')}"
    console().print(f"{made} below {one_line(to)}", soft_wrap=True)
    for note in notes:
        click.echo(one_line(f"note: {note}"), err=True)
    if unnamed is not None:
        raise unnamed
    return 0
