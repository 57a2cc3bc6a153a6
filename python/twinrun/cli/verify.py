"""twinrun verify PATH…"""

from __future__ import annotations

import click

from ..errors import one_line
from ..words import counted
from .common import MEMORY, PATH, THREADS, console
from .help import Verb

MOST = 20


@click.command(cls=Verb)
@click.argument("paths", type=PATH, nargs=-1, required=True)
@click.option("--threads", type=THREADS, default=0, help="Worker threads; 0: all cores.")
@click.option(
    "--memory", type=MEMORY, default="1G", show_default=True, help="Read buffers of records, at most."
)
def verify(paths: tuple[str, ...], threads: int, memory: int) -> int:
    """Check every checksum of histories or indexed files, and that files still have the fields that
    their metadata describes.
    """
    from ..runs.verify import verify as verify_path

    out = console()
    damaged = 0
    checked = 0
    unnamed = 0
    for path in paths:
        found = verify_path(path, threads=threads, memory=memory)
        problems = found.problems
        checked += found.files
        for problem in problems[:MOST]:
            out.print(one_line(problem), soft_wrap=True)
        if len(problems) > MOST:
            out.print(f"… and {len(problems) - MOST} more")
        for note in found.notes[:MOST]:
            out.print(one_line(f"note: {note}"), style="dim", soft_wrap=True)
        if len(found.notes) > MOST:
            out.print(f"note: … and {len(found.notes) - MOST} more", style="dim")
        damaged += len(problems)
        unnamed += len(found.unnamed)
        if found.unnamed:
            there = counted(len(found.unnamed), "whole step")
            said = f"{path}: {there} there that no journal names; bring the journal back from a copy"
            click.echo(one_line(f"twinrun: {said}"), err=True)
    if damaged:
        out.print(f"damaged: {counted(damaged, 'problem')} in {counted(checked, 'file')}")
        return 1
    if unnamed:
        steps = counted(unnamed, "step")
        out.print(f"not checked: {steps} that no journal names; intact: {counted(checked, 'file')}")
        return 2
    out.print(f"intact: {counted(checked, 'file')}")
    return 0
