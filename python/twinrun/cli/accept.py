"""twinrun accept REFERENCE… --new NEW…"""

from __future__ import annotations

import click

from .common import MEMORY, PATH, Range, format_options, progress_bar
from .help import Verb

__all__ = ["accept"]

_STATUS = {"accepted": 0, "rejected": 1, "undecided": 2}


class _Accept(Verb):
    """Runs after --new, up to the next option, are new runs: shells expand patterns to several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        words = list(args)
        while words:
            word = words.pop(0)
            if word != "--new":
                spread.append(word)
                continue
            if not words or words[0].startswith("-"):
                raise click.UsageError("--new names no run", ctx)
            while words and not words[0].startswith("-"):
                spread += ["--new", words.pop(0)]
        return super().parse_args(ctx, spread)


@click.command(cls=_Accept)
@click.argument("references", nargs=-1, required=True, type=PATH)
@click.option(
    "--new", multiple=True, required=True, type=PATH, metavar="NEW...", help="The runs to be judged."
)
@click.option("--confidence", type=Range(0.5, 0.9999), default=0.95, show_default=True,
              help="1 - confidence is the rate of false alarms of the test of distributions.")  # fmt: skip
@click.option("--growth", type=Range(1), default=10.0, show_default=True, metavar="X",
              help="While differences grow, a new run may be X times as far off as the farthest reference run.")  # fmt: skip
@click.option("--spread", type=float, default=0.05, show_default=True, metavar="S",
              help="Differences have settled from this share of a field's own variation on.")  # fmt: skip
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option(
    "--leave-out", multiple=True, metavar="GLOB", help="Leave out these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--key", default="auto", show_default=True, metavar="FIELD",
              help="The field with the IDs of particles; auto: as files say; none: rows match by place.")  # fmt: skip
@click.option("--rounding", type=Range(0), default=0.0, show_default=True, metavar="R",
              help="Relative rounding of the values as written, where it is coarser than their type's: 5e-6 for texts of six digits.")  # fmt: skip
@click.option("--permutations", type=click.IntRange(99, 10**7), default=4999, show_default=True,
              help="Choices of new runs that are drawn, where there are more.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=20171128, help="Of these choices.")
@click.option(
    "--memory", type=MEMORY, default="1G", show_default=True, help="For elements sorted by ID, at most."
)
@click.option("--json", "json_file", type=PATH, default=None, metavar="FILE", help="All facts; - is stdout.")
@click.option("--html", "html_file", type=PATH, default=None, metavar="FILE", help="A self-contained page.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only: the exit status has the verdict.")
@format_options
def accept(
    references: tuple[str, ...],
    new: tuple[str, ...],
    confidence: float,
    growth: float,
    spread: float,
    fields: tuple[str, ...],
    leave_out: tuple[str, ...],
    steps: str | None,
    key: str,
    permutations: int,
    seed: int,
    rounding: float,
    memory: int,
    json_file: str | None,
    html_file: str | None,
    quiet: bool,
    options: dict,
) -> int:
    """Say whether new runs (other compiler, library, machine, precision) belong to the distribution
    of reference runs.

    twinrun accept REFERENCE... --new NEW...: runs are histories, folders of files, or files.
    Reference runs are right, and vary as new runs may: 'twinrun perturb' makes their input.
    """
    from ..outputs import check_outputs

    check_outputs({"--json": json_file, "--html": html_file}, [*references, *new])
    from ..acceptance.work import accept as accept_runs

    with progress_bar(quiet) as progress:
        found = accept_runs(
            references,
            new,
            confidence=confidence,
            growth=growth,
            spread=spread,
            fields=fields or None,
            leave_out=leave_out,
            steps=steps,
            key=key,
            permutations=permutations,
            seed=seed,
            rounding=rounding,
            memory=memory,
            options=options,
            progress=progress,
        )
    if json_file is not None:
        found.to_json(json_file)
    if html_file is not None:
        found.to_html(html_file)
    if not quiet:
        for line in found.lines():
            click.echo(line, err=json_file == "-")
    return _STATUS[found.verdict]
