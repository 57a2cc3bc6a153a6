"""twinrun tolerances RUN RUN…"""

from __future__ import annotations

import os

import click

from ..errors import TwinrunError, one_line, options_of_compare
from .common import PATH, device_options, format_options, joined_periods, progress_bar, say_without_effect
from .help import Verb

_MOST_NAMED = 3


def _options(verb: click.Command) -> set[str]:
    return {name for option in verb.params for name in option.opts}


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option(
    "-o", "--output", type=PATH, default=None, metavar="FILE", help="File to write; default: stdout."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--margin", type=float, default=2.0, show_default=True, help="Factor on the spread.")
@click.option("--by-step", is_flag=True, help="A rule for each step: for differences that grow.")
@click.option(
    "--field", "fields", multiple=True, metavar="GLOB", help="Only these fields; may be given again."
)
@click.option("--steps", default=None, metavar="LIST", help="Only these steps: 10,20 or 100:200.")
@click.option("--key", default=None, metavar="FIELD", help="Match particles by these IDs.")
@click.option(
    "--period",
    multiple=True,
    callback=joined_periods,
    metavar="L[,L,L]",
    help="Box length: positions compare on the circle.",
)
@format_options
@device_options
def tolerances(
    runs: tuple[str, ...],
    output: str | None,
    force: bool,
    margin: float,
    by_step: bool,
    fields: tuple[str, ...],
    steps: str | None,
    key: str | None,
    period: str | None,
    options: dict,
    reading: dict,
) -> int:
    """Propose tolerances from two or more RUNS of the same code: their spread, as rules for --tolerances."""

    from ..comparison.options import CompareOptions
    from ..comparison.proposal import propose
    from ..outputs import check_outputs
    from ..report.document import write_whole
    from ..words import counted
    from .compare import compare

    if output is not None and os.path.lexists(output) and not force:
        raise TwinrunError(
            "is there already, and may have been edited", where=output, fix="give --force to replace it"
        )
    check_outputs({"-o": output}, runs)
    # What could not be compared comes with advice for `twinrun compare`, which has more options.
    elsewhere = _options(compare) - _options(click.get_current_context().command)
    with options_of_compare(elsewhere), progress_bar() as progress:
        proposal = propose(
            runs,
            margin=margin,
            by_step=by_step,
            fields=fields or None,
            steps=steps,
            key=key,
            period=period,
            options=CompareOptions(formats=options, **reading),
            progress=progress,
        )
    say_without_effect(runs, options)
    text = proposal.toml()
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text, "TOML", "-o")
    if labels := list(proposal.attributes):
        named = ", ".join(labels[:_MOST_NAMED]) + (", …" if len(labels) > _MOST_NAMED else "")
        verb = "differs, and has" if len(labels) == 1 else "differ, and have"
        said = f"note: {counted(len(labels), 'attribute')} {verb} no tolerance: {named}"
        click.echo(one_line(f"{said}; rules that leave them out are comments in the file"), err=True)
    if not proposal.problems:
        return 0
    more = f" (and {len(proposal.problems) - 1} more)" if len(proposal.problems) > 1 else ""
    raise TwinrunError(
        f"{one_line(proposal.problems[0])}{more}", fix="the rules know nothing of what was not compared"
    )
