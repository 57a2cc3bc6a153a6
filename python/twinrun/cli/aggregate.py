"""twinrun aggregate plan --topology T, twinrun aggregate join PATH"""

from __future__ import annotations

import os

import click

from ..errors import TwinrunError, one_line
from .choices import LAYOUTS, PLACEMENTS
from .common import PATH, SIZE, console
from .help import Group
from .study import study


class _Placements(click.ParamType):
    name = "list"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(str(value).split(",")))
        for name in names:
            if name not in PLACEMENTS:
                self.fail(f"{name!r} is no placement: {', '.join(PLACEMENTS)}", param, ctx)
        return names


@click.group(cls=Group)
def aggregate() -> None:
    """Aggregation of many ranks' data: who gathers and writes for whom."""


aggregate.add_command(study)


@aggregate.command()
@click.option("--topology", required=True, metavar="MACHINE",
              help="torus:AxBxC, dragonfly:GROUPSxROUTERSxNODES, fattree:RADIX,LEVELS, flat:NODES, file:PATH or hwloc.")  # fmt: skip
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    help="Ranks on each node.",
)
@click.option(
    "--ranks", type=click.IntRange(1), default=None, help="Ranks; default: all that the nodes hold."
)
@click.option("--aggregators", type=click.IntRange(1, 1 << 20), default=None,
              help="Aggregators of a file; default: one in 16 nodes.")  # fmt: skip
@click.option("--nodes-per-file", type=click.IntRange(0, 1 << 20), default=0, show_default=True,
              help="Nodes that share a file; 0: one file.")  # fmt: skip
@click.option("--particles", type=click.IntRange(1), default=None,
              help="Particles of HACC in a rank, on average: nine variables, 38 bytes.")  # fmt: skip
@click.option("--bytes-per-rank", type=SIZE, default=None, help="Bytes of a rank, on average. Default: 1M.")
@click.option("--items", default=None, metavar="BYTES,…", help="Bytes of an item of each variable.")
@click.option("--volumes", default="uniform", show_default=True, metavar="MODEL",
              help="uniform, skewed, linear, lognormal:SIGMA, heavy:FACTOR,EVERY, or a .json or .csv file.")  # fmt: skip
@click.option("--layout", type=click.Choice(LAYOUTS), default="records", show_default=True,
              help="How the file orders ranks and variables.")  # fmt: skip
@click.option(
    "--block",
    type=SIZE,
    default="4096",
    show_default=True,
    help="Partitions begin at multiples of this size.",
)
@click.option("--placement", "placements", type=_Placements(), default=",".join(PLACEMENTS), show_default=True,
              metavar="LIST", help="Placements to plan; the first is listed and drawn.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=1, show_default=True,
              help="Seed of random volumes and placements.")  # fmt: skip
@click.option("--rows", type=click.IntRange(0), default=20, show_default=True,
              help="Partitions to list; 0: all.")  # fmt: skip
@click.option("--json", "json_file", type=PATH, default=None, metavar="FILE", help="All facts; - is stdout.")
@click.option("--svg", "svg_file", type=PATH, default=None, metavar="FILE", help="Picture of the machine.")
@click.option("--png", "png_file", type=PATH, default=None, metavar="FILE",
              help="The same picture, by matplotlib (.png, .pdf).")  # fmt: skip
@click.option("--html", "html_file", type=PATH, default=None, metavar="FILE",
              help="Pictures of all placements.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print no tables.")
def plan(
    topology: str, ranks_per_node: int, ranks: int | None, aggregators: int | None, nodes_per_file: int, particles: int | None,
    bytes_per_rank: int | None, items: str | None, volumes: str, layout: str, block: int, placements: tuple[str, ...],
    seed: int, rows: int, json_file: str | None, svg_file: str | None, png_file: str | None, html_file: str | None, quiet: bool,
) -> int:  # fmt: skip
    """Say who would aggregate for whom on a machine, and how long each placement would take.

    Nothing is measured: costs are those of a model (docs/reference/aggregate.md), in seconds.
    """

    from ..aggregate.plan import PARTICLE, plan_aggregation
    from ..aggregate.report import plan_document, print_plan, save_html, save_picture
    from ..outputs import check_outputs
    from ..report.document import write_json

    if particles is not None and (bytes_per_rank is not None or items is not None):
        raise TwinrunError(
            "--particles and --bytes-per-rank or --items contradict each other",
            fix="give --particles, or --bytes-per-rank and --items",
        )
    try:
        item_bytes = [int(b) for b in items.split(",")] if items else None
    except ValueError:
        raise TwinrunError(f"--items {items!r}: write bytes, as 8,8,4") from None
    if particles is not None:
        item_bytes, bytes_per_rank = list(PARTICLE), particles * sum(PARTICLE)
    check_outputs(
        {"--json": json_file, "--svg": svg_file, "--png": png_file, "--html": html_file},
        [name for name in (volumes, topology.removeprefix("file:")) if os.path.isfile(name)],
    )
    found = plan_aggregation(
        topology,
        ranks_per_node=ranks_per_node,
        ranks=ranks,
        aggregators=aggregators,
        nodes_per_file=nodes_per_file,
        bytes_per_rank=1 << 20 if bytes_per_rank is None else bytes_per_rank,
        item_bytes=item_bytes,
        volumes=volumes,
        layout=layout,
        block=max(1, block),
        placements=placements,
        seed=seed,
    )
    if json_file is not None:
        write_json(json_file, plan_document(found))
    if svg_file is not None:
        save_picture(found, svg_file, form="svg")
    if png_file is not None:
        save_picture(found, png_file)
    if html_file is not None:
        save_html(found, html_file)
    if not quiet:
        print_plan(console(stderr=json_file == "-"), found, rows)
    return 0


@aggregate.command()
@click.argument("path", type=PATH)
@click.option("-o", "--output", type=PATH, default=None, metavar="FILE",
              help="The file to make; default: PATH itself.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace the output if it is there.")
@click.option("--remove", is_flag=True, help="Remove the sub-files when the new file is on storage.")
def join(path: str, output: str | None, replace: bool, remove: bool) -> int:
    """Make one file of the sub-files PATH.00000, PATH.00001, … of an aggregated write.

    PATH.twr-index says which bytes each of them has. The new file has the bytes that one shared file would
    have. It gets its name when it is complete and on storage. Nothing else is changed without --replace or
    --remove. --remove is refused where a sub-file is not the one that was written.
    """

    from ..aggregate.sub_files import join_sub_files
    from ..arguments import any_path
    from ..words import byte_size

    joined = join_sub_files(
        any_path(path), None if output is None else any_path(output), replace=replace, remove=remove
    )
    removed = ""
    if remove:
        gone = joined.files - sum(not name.endswith(".twr-index") for name in joined.kept)
        removed = f"; {gone} of them are removed" if joined.kept else ", which are removed"
    console().print(
        one_line(f"{joined.path}: {byte_size(joined.bytes)} of {joined.files} sub-files{removed}"),
        soft_wrap=True,
    )
    for name in joined.kept:
        console(stderr=True).print(
            one_line(f"{name}: stays, because it has a second name, or files changed meanwhile"),
            soft_wrap=True,
        )
    if joined.changed:
        first, more = joined.changed[0], len(joined.changed) - 1
        which, hold = (f"{first} and {more} more were", "they hold") if more else (f"{first} was", "it holds")
        console(stderr=True).print(
            one_line(f"note: {which} changed after the write, or copied: {joined.path} has what {hold} now"),
            soft_wrap=True,
        )
    return 0
