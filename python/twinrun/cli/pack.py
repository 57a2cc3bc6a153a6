"""twinrun pack SOURCE RECORD"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..errors import one_line
from ..words import byte_size, counted
from .choices import METHODS
from .common import PATH, SIZE, THREADS, console
from .help import Verb

if TYPE_CHECKING:
    from ..capture.records import PackedStep

MOST = 20  # notes that are shown


@click.command(cls=Verb)
@click.argument("source", type=PATH)
@click.argument("record", type=PATH)
@click.option(
    "--method", type=click.Choice(METHODS), default="runs", show_default=True, help="How copies are found."
)
@click.option(
    "--chunk",
    type=SIZE,
    default="256",
    show_default=True,
    help="Bytes of a chunk: a power of two from 32 to 64K.",
)
@click.option("--compress", type=click.Choice(["zstd", "none"]), default=None,
              help="Compression of new chunks. Default: zstd where this build has it.")  # fmt: skip
@click.option("--level", type=click.IntRange(-7, 19), default=1, show_default=True, help="Level of zstd.")
@click.option(
    "--xor/--no-xor",
    default=None,
    help="Pack new chunks after XOR with what they replace, where that is smaller.",
)
@click.option("--bounded", is_flag=True,
              help="Chunks within their field's tolerance of what restore gives are not kept again.")  # fmt: skip
@click.option("--against", type=PATH, default=None, metavar="RECORD",
              help="Record of another run: its content is not kept again. It must stay where it is.")  # fmt: skip
@click.option(
    "--append",
    is_flag=True,
    help="Go on with an existing record. Its steps stay; a changed one is an error.",
)
@click.option("--update", is_flag=True, help="As --append; and a changed step becomes a new version.")
@click.option("--table", type=SIZE, default="0", help="Memory for the table of hashes, at most; 0: no limit.")
@click.option("--verify", is_flag=True, help="Compare bytes, not hashes alone. Slower.")
@click.option("--threads", type=THREADS, default=0, help="Worker threads; 0: all cores.")
@click.option(
    "--json", "as_json", is_flag=True, help="Facts of every step, and what was left out, as JSON lines."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each step.")
def pack(
    source: str, record: str, method: str, chunk: int, compress: str | None, level: int, xor: bool | None, bounded: bool,
    against: str | None, append: bool, update: bool, table: int, verify: bool, threads: int, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Keep every step of a run at a fraction of its size.

    SOURCE is a history that twinrun captured, or a folder of any program's files, whose step is a number in
    their names. RECORD becomes a folder from which 'twinrun restore' gives any step back, bit for bit. Of a
    folder everything is kept, hidden files, links and empty folders too; a file that cannot be kept is named.
    A step of one rank must fit into memory two to three times.
    """

    from ..capture.records import RecordOptions
    from ..capture.records import pack as pack_steps

    out = console()

    def say(step: PackedStep) -> None:
        if as_json:
            print(json.dumps(vars(step)), flush=True)
        elif not quiet:
            share = 100 * step.payload_chunks / step.chunks if step.chunks else 0.0
            again = ", a new version" if step.new_version else ""
            out.print(
                f"step {step.step}{again}, rank {step.rank}: {byte_size(step.full_bytes)} -> {byte_size(step.bytes)}, "
                f"{share:.3g}% of chunks new"
            )

    options = RecordOptions(method, chunk, compress, level, xor, bounded, table, verify)
    facts = pack_steps(
        source,
        record,
        options=options,
        against=against,
        append=append,
        update=update,
        threads=threads,
        progress=say,
    )
    for number, (name, why) in enumerate(facts.notes):
        if as_json:
            print(json.dumps({"name": name, "note": why}))
        elif number < MOST:
            out.print(one_line(f"{name}: {why}"), soft_wrap=True)
        elif number == MOST:
            out.print(f"… and {len(facts.notes) - MOST} more: --json names all")
    if not as_json:
        rest = (
            f", {facts.ratio(without_first=True):.4g} without the first step" if len(facts.steps) > 1 else ""
        )
        out.print(
            f"{counted(len(facts.steps), 'step')}: {byte_size(facts.full_bytes)} -> {byte_size(facts.bytes)}, "
            f"ratio {facts.ratio():.4g}{rest}"
        )
    return 0
