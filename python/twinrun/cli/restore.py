"""twinrun restore RECORD TO"""

from __future__ import annotations

import click

from ..recording import restore as restore_steps
from .common import THREADS, console


@click.command()
@click.argument("record", type=click.Path())
@click.argument("to", type=click.Path())
@click.option(
    "--step",
    "steps",
    type=int,
    multiple=True,
    metavar="N",
    help="This step; may be given several times. Default: all.",
)
@click.option(
    "--flat", is_flag=True, help="Other programs' files of one step: into TO itself, not TO/step-N."
)
@click.option("--threads", type=THREADS, default=0, help="Worker threads; 0 (default): all cores.")
def restore(record: str, to: str, steps: tuple[int, ...], flat: bool, threads: int) -> int:
    """Give steps of a record back as the files that they were, every byte checked.

    Steps that twinrun captured come as a history in TO; files of other programs come under their names. Nothing that is there
    is written over.
    """
    paths = restore_steps(record, to, steps=steps or None, flat=flat, threads=threads)
    console().print(f"{len(paths)} files in {to}", soft_wrap=True)
    return 0
