"""twinrun perturb FILE… -o FOLDER"""

from __future__ import annotations

import click

from .common import PATH, format_options
from .help import Verb

__all__ = ["perturb"]


@click.command(cls=Verb)
@click.argument("sources", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=PATH, required=True, metavar="FOLDER",
              help="Members are written to FOLDER/member-001 and so on.")  # fmt: skip
@click.option("--members", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many.")
@click.option("--ulp", type=click.IntRange(1, 1 << 20), default=None, metavar="N",
              help="Each number moves by N representable values. Without --relative: 1.")  # fmt: skip
@click.option("--relative", type=float, default=None, metavar="R",
              help="Each number changes by at most this share, as 1e-14.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Of the first member; the others follow.")  # fmt: skip
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--match", default=None, metavar="REGEX",
              help=r"Numbers of a text, as groups: 'temperature = (\S+)'; ^ and $ are ends of lines.")  # fmt: skip
@click.option("--step", type=int, default=None, help="Of a history: the step whose state is perturbed.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@format_options
def perturb(
    sources: tuple[str, ...],
    output: str,
    members: int,
    ulp: int | None,
    relative: float | None,
    seed: int,
    fields: tuple[str, ...],
    match: str | None,
    step: int | None,
    quiet: bool,
    options: dict,
) -> int:
    """Write perturbed copies of input files, or of a step of a history: for the reference runs of
    'twinrun accept'.

    Numbers with fractions change in their last digits; zeros, integers and seeds stay. A member that is there
    already is replaced only if twinrun wrote it and nobody changed it since.
    """
    from ..acceptance.copies import perturb_copies

    found = perturb_copies(
        sources,
        output,
        members=members,
        ulp=1 if ulp is None and relative is None else ulp,
        relative=relative,
        seed=seed,
        fields=fields or None,
        match=match,
        step=step,
        options=options,
    )
    if not quiet:
        for copy in found:
            click.echo(f"{copy.folder}: {copy.changed} numbers changed, seed {copy.seed}")
    return 0
