"""twinrun log RUN"""

from __future__ import annotations

import json

import click
from rich.table import Table

from .. import _core
from ..errors import one_line
from ..report.text import byte_size
from ..settings import checked_path
from .common import console


@click.command()
@click.argument("run", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def log(run: str, as_json: bool) -> int:
    """List the committed steps of a history with their sizes."""
    history = _core.open_history(checked_path(run))
    if as_json:
        print(json.dumps(history, indent=1))
        return 0
    out = console()
    tolerance = f"atol {history['atol']:g}" + (f", rtol {history['rtol']:g}" if history["rtol"] else "")
    bits, chunk = history["residue_bits"], history["chunk_bytes"] // 1024
    out.print(
        one_line(
            f"history {run}: {tolerance}, {bits} residue bits, chunks of {chunk} KiB, {history['digest']} digests"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("step", "ranks", "data", "metadata", "share"):
        table.add_column(column, justify="right")
    total_data = total_metadata = 0
    for step in history["steps"]:
        data = sum(r["data_bytes"] for r in step["ranks"])
        metadata = sum(r["metadata_bytes"] for r in step["ranks"])
        total_data += data
        total_metadata += metadata
        share = f"{100 * metadata / data:.3g}%" if data else ""
        table.add_row(str(step["step"]), str(len(step["ranks"])), byte_size(data), byte_size(metadata), share)
    out.print(table)
    if history["torn"]:
        out.print("note: the last step was being committed when the run ended; it is not part of the history")
    out.print(
        f"{len(history['steps'])} steps, {byte_size(total_data)} of data, {byte_size(total_metadata)} of metadata"
    )
    return 0
