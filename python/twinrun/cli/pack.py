"""twinrun pack SOURCE RECORD"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import click

from ..errors import TwinrunError, one_line
from ..words import byte_size, counted
from .choices import METHODS
from .common import PATH, SIZE, THREADS, VerbWithJson, console, json_option

if TYPE_CHECKING:
    from ..capture.records import PackedStep

MOST = 20  # notes that are shown


@click.command(cls=VerbWithJson)
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
@json_option("Facts of every step, and what was left out, as JSON lines")
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each step.")
def pack(
    source: str, record: str, method: str, chunk: int, compress: str | None, level: int, xor: bool | None, bounded: bool,
    against: str | None, append: bool, update: bool, table: int, verify: bool, threads: int, json_file: str | None, quiet: bool,
) -> int:  # fmt: skip
    """Keep every step of a run at a fraction of its size.

    SOURCE is a history that twinrun captured, or a folder of any program's files, whose step is a number in
    their names. RECORD becomes a folder from which 'twinrun restore' gives any step back, bit for bit. Of a
    folder everything is kept, hidden files, links and empty folders too; a file that cannot be kept is named.
    A step of one rank must fit into memory two to three times.
    """

    from ..capture.records import RecordOptions
    from ..capture.records import pack as pack_steps
    from ..outputs import check_outputs
    from ..report.document import write_text

    check_outputs({"--json": json_file}, [source])
    out = console()
    lines: list[str] = []  # of a file, which is written at the end
    unsaid: list[OSError] = []  # the first error of standard output

    def tell(fact: dict[str, object]) -> None:
        if json_file == "-":
            print_line(json.dumps(fact))
        elif json_file is not None:
            lines.append(json.dumps(fact) + "\n")

    def print_line(line: str) -> None:
        # Where nobody reads it, packing goes on: the record matters more than the report.
        if not unsaid:
            try:
                print(line, flush=True) if json_file == "-" else out.print(line)
                sys.stdout.flush()
            except OSError as e:
                unsaid.append(e)

    def say(step: PackedStep) -> None:
        tell(vars(step))
        if json_file != "-" and not quiet:
            share = 100 * step.payload_chunks / step.chunks if step.chunks else 0.0
            again = ", a new version" if step.new_version else ""
            line = (
                f"step {step.step}{again}, rank {step.rank}: {byte_size(step.full_bytes)} -> {byte_size(step.bytes)}, "
                f"{share:.3g}% of chunks new"
            )
            print_line(line)

    options = RecordOptions(method, chunk, compress, level, xor, bounded, table, verify)
    try:
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
    except BaseException:
        # An earlier report must not look like one of this; these steps were packed.
        if json_file not in (None, "-"):
            with contextlib.suppress(TwinrunError):
                write_text(json_file, "".join(lines))
        raise
    for name, why in facts.notes:
        tell({"name": name, "note": why})
    if json_file not in (None, "-"):
        write_text(json_file, "".join(lines))
    if unsaid:
        packed = counted(len({step.step for step in facts.steps}), "step")
        raise TwinrunError(
            f"packing was finished ({packed}), but the report could not be written to standard output: {unsaid[0].strerror}",
            where=record,
            fix="see it with 'twinrun log'",
        )
    if json_file == "-":
        return 0
    for number, (name, why) in enumerate(facts.notes):
        if number < MOST:
            out.print(one_line(f"{name}: {why}"), soft_wrap=True)
        elif number == MOST:
            out.print(f"… and {len(facts.notes) - MOST} more: --json names all")
    rest = f", {facts.ratio(without_first=True):.4g} without the first step" if len(facts.steps) > 1 else ""
    out.print(
        f"{counted(len(facts.steps), 'step')}: {byte_size(facts.full_bytes)} -> {byte_size(facts.bytes)}, "
        f"ratio {facts.ratio():.4g}{rest}"
    )
    return 0
