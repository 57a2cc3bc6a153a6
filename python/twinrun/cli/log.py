"""twinrun log RUN"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .. import _core
from ..errors import one_line
from ..words import byte_size, counted
from .common import PATH, VerbWithJson, console, json_option

if TYPE_CHECKING:
    from ..report.lines import Grid, Line

_OF_HISTORY = ("path", "atol", "rtol", "residue_bits", "chunk_bytes", "digest", "keep_data", "torn", "ranks",
               "local_part", "to", "incomplete")  # fmt: skip
_OF_FILES = ("rank", "data", "data_bytes", "metadata", "metadata_bytes", "header_xxh3", "blocked_seconds", "difference",
             "full_bytes", "divergence", "offset", "file_bytes")  # fmt: skip
_OF_RECORD = ("method", "chunk_bytes", "codec", "level", "xor", "bounded", "against")


def _document(path: str, history: _core.History) -> dict:
    """As JSON has it."""
    from ..runs.unnamed import folders_of_unnamed

    record = history.record
    return {
        **{name: getattr(history, name) for name in _OF_HISTORY},
        "record": {name: getattr(record, name) for name in _OF_RECORD} if record is not None else None,
        "others": history.entries_of_others(),
        "unnamed": folders_of_unnamed(path, history),
        "provenance": [{"rank": p.rank, "json": p.json} for p in history.provenance],
        "steps": [
            {
                "step": step.step,
                "folder": step.folder,
                "ranks": [{name: getattr(files, name) for name in _OF_FILES} for files in step.ranks],
            }
            for step in history.steps
        ],
    }


def _divergence(step: _core.HistoryStep) -> str:
    """Where a step is not proven equal to the reference of its run: on the first such rank."""
    at = [r for r in step.ranks if r.divergence]
    if not at:
        return ""
    more = f" (and on {len(at) - 1} more ranks)" if len(at) > 1 else ""
    where = f"rank {at[0].rank}: " if len(step.ranks) > 1 else ""
    return one_line(f"{where}{at[0].divergence}{more}")


@click.command(cls=VerbWithJson)
@click.argument("run", type=PATH)
@json_option("All facts")
def log(run: str, json_file: str | None) -> int:
    """List the committed steps of a history: sizes, how long capture blocked the application, where it
    diverged.
    """

    from ..arguments import checked_path, own_source

    path = own_source(checked_path(run))
    history = _core.open_history(path)
    if json_file is not None:
        from ..outputs import check_outputs
        from ..report.document import write_text

        check_outputs({"--json": json_file}, [run])
        write_text(json_file, json.dumps(_document(path, history), indent=1) + "\n")
        if json_file == "-":
            return 0
    from ..report.lines import print_parts, write_parts

    if not write_parts(sys.stdout, _listing(run, path, history)):
        print_parts(console(), _listing(run, path, history))
    return 0


def _listing(run: str, path: str, history: _core.History) -> Iterator[Line | Grid]:
    """The history, a table of its steps, notes, and sums."""
    from ..report.lines import Line

    yield from _settings(run, history)
    yield _table(history)
    if history.torn:
        text = "note: the last step was being committed when the run ended; it is not part of the history"
        yield Line(text, wraps=True)
    from ..runs.histories import incomplete_note, others_note
    from ..runs.unnamed import unnamed_of

    steps = history.steps
    if history.incomplete:
        yield Line(f"note: {incomplete_note(history.incomplete)}")
    if others := others_note(history.entries_of_others()):
        yield Line(one_line(f"note: {others}"), wraps=True)
    if (unnamed := unnamed_of(path, history)) is not None:
        yield Line(one_line(f"note: {unnamed}"), wraps=True)
    data, kept, metadata = (sum(column) for column in zip((0, 0, 0), *map(_sizes, steps), strict=True))
    said = f" kept in {byte_size(kept)}" if history.record is not None else ""
    text = (
        f"{counted(len(steps), 'step')}, {byte_size(data)} of data{said}, {byte_size(metadata)} of metadata"
    )
    yield Line(text, wraps=True)


def _settings(run: str, history: _core.History) -> Iterator[Line]:
    """What the history is, and how its steps are kept."""
    from ..report.lines import Line

    part = history.local_part
    kind = "history" if part is None else f"rank {part}'s part, on a node-local tier, of a history"
    tolerance = f"atol {history.atol:g}" + (f", rtol {history.rtol:g}" if history.rtol else "")
    bits, chunk = history.residue_bits, history.chunk_bytes // 1024
    yield Line(
        one_line(
            f"{kind} {run}: {tolerance}, {bits} residue bits, chunks of {chunk} KiB, {history.digest} digests"
        )
    )
    record = history.record
    if record is not None:
        packed = f"{record.codec} level {record.level}" if record.codec != "none" else "not packed"
        packed += ", XOR" if record.xor else ""
        packed += ", within the tolerance" if record.bounded else ""
        packed += f", against {record.against}" if record.against else ""
        yield Line(
            one_line(f"record: method {record.method}, chunks of {record.chunk_bytes} bytes, {packed}")
        )


def _sizes(step: _core.HistoryStep) -> tuple[int, int, int]:
    """Bytes of a step over its ranks: of its data, of what is kept of these, of metadata."""
    return (
        sum(r.full_bytes for r in step.ranks),
        sum(r.data_bytes for r in step.ranks),
        sum(r.metadata_bytes for r in step.ranks),
    )


def _table(history: _core.History) -> Grid:
    """A row for each step."""
    from ..report.lines import Grid

    recorded = history.record is not None
    diverged = any(r.divergence for step in history.steps for r in step.ranks)
    columns = ["step", "ranks", "data", "metadata", "share", "blocked"]
    if recorded:
        columns[2:3] = ["data", "kept", "ratio"]
    rows: list[list[tuple[str, str]]] = []
    for step in history.steps:
        data, kept, metadata = _sizes(step)
        # The application waits for its slowest rank.
        blocked = max((r.blocked_seconds for r in step.ranks), default=0.0)
        row = [
            str(step.step),
            str(len(step.ranks)),
            byte_size(data),
            *([byte_size(kept), f"{data / kept:.4g}" if kept else ""] if recorded else []),
            byte_size(metadata),
            f"{100 * metadata / data:.3g}%" if data else "",
            f"{blocked:.2g} s",
            *([_divergence(step)] if diverged else []),
        ]
        rows.append([(cell, "") for cell in row])
    titles = [(title, True) for title in columns]
    return Grid([*titles, ("not equal to the reference", False)] if diverged else titles, rows)
