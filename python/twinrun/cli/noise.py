"""twinrun noise"""

from __future__ import annotations

import click

from ..errors import TwinrunError
from .common import PATH, Range, console, progress_bar
from .help import Verb

__all__ = ["noise"]


def _cores(text: str) -> list[int]:
    """Numbers of "0,2-3". TwinrunError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdigit() and (last.isdigit() or not dash)) or int(last or first) > 1 << 16:
            raise TwinrunError(f"--cores {text!r} is no list of cores", fix="write 0,2-3 or all")
        found += range(int(first), int(last or first) + 1)
    return found


@click.command(cls=Verb)
@click.option(
    "--seconds", type=float, default=30.0, show_default=True, help="Duration of the whole measurement, about."
)
@click.option(
    "--cores",
    default="all",
    show_default=True,
    metavar="LIST",
    help="Cores: 0,2-3; default: all that this process may use.",
)
@click.option(
    "--free",
    type=click.IntRange(0),
    default=None,
    metavar="CORE",
    help="The core that stays free in one arm; default: the first.",
)
@click.option(
    "--no-compare", is_flag=True, help="Measure all cores only, without an arm that has a free core."
)
@click.option("--threshold", default="9x", show_default=True, metavar="T",
              help="From where on a step of the loop is a detour: 9x (an undisturbed step), 500ns, 2us.")  # fmt: skip
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=6,
    show_default=True,
    help="Number of pairs of measurements.",
)
@click.option(
    "--confidence",
    type=Range(0.5, 0.999),
    default=0.95,
    show_default=True,
    help="Confidence of intervals.",
)
@click.option(
    "--rtla",
    is_flag=True,
    help="Run 'rtla osnoise' right after, for a fifth of the time, where it is installed.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Run the loops again, for a fifth of the time, while the kernel traces what takes time, by name (root).",
)
@click.option(
    "--json", "json_file", type=PATH, default=None, metavar="FILE", help="All figures; - is stdout."
)
@click.option("--html", type=PATH, default=None, metavar="FILE", help="One page with table and picture.")
@click.option("--picture", type=PATH, default=None, metavar="FILE", help="The picture: .png, .svg or .pdf.")
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def noise(seconds: float, cores: str, free: int | None, no_compare: bool, threshold: str, rounds: int, confidence: float, rtla: bool, trace: bool,
          json_file: str | None, html: str | None, picture: str | None, quiet: bool) -> int:  # fmt: skip
    """Measure the time that the operating system takes from each core, with and without a free core.

    All cores are busy meanwhile: run it on an idle machine to see the system's own noise, or beside other
    work to see its effect.
    """

    from ..noise.measurement import measure
    from ..outputs import NOISE_MEASURED, check_outputs, check_writable

    outputs = {"--json": json_file, "--html": html, "--picture": picture}
    check_outputs(outputs, replaceable=NOISE_MEASURED)
    check_writable(outputs)
    chosen = None if cores == "all" else _cores(cores)
    with progress_bar(quiet) as bar:
        found = measure(
            seconds,
            chosen,
            free=free,
            threshold=threshold,
            rounds=rounds,
            compare=not no_compare,
            confidence=confidence,
            rtla=rtla,
            trace=trace,
            report=None if bar is None else lambda done, total: bar("measuring", done, total),
        )
    if json_file is not None:
        found.to_json(json_file)
    if html is not None:
        found.to_html(html)
    if picture is not None:
        found.to_picture(picture)
    out = console(stderr=json_file == "-")
    for line in [found.sentence] if quiet else found.lines():
        out.print(line, soft_wrap=True)
    return 0
