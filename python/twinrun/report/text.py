"""The report for a terminal: a table like `git diff --stat`, capped, and the verdict last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ..comparison.words import verdict_line
from ..comparison.work import Comparison, FieldComparison
from ..errors import one_line
from ..words import byte_size, counted, exact, number
from .lines import Cell, Grid, Line, print_parts, write_parts

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.provenance import Provenance

__all__ = [
    "print_comparison",
    "print_provenance",
    "write_comparison",
]

MOST_ROWS = 40
MOST_CONDITIONS = 8
_LONGEST_FACT = 200  # characters of a table's cell
_LONGEST_LABEL = 24
_BAR = 16


def _rows(c: Comparison) -> tuple[list[FieldComparison], int]:
    """The rows of the table: all if they are few, else those that differ, earliest first; and how many are
    left out.
    """
    if len(c.fields) <= MOST_ROWS:
        return c.fields, 0
    differ = [f for f in c.fields if not f.same]
    rest = [f for f in c.fields if f.same]
    shown = (differ + rest)[:MOST_ROWS]
    order = {id(f): i for i, f in enumerate(c.fields)}
    return sorted(shown, key=lambda f: order[id(f)]), len(c.fields) - len(shown)


def print_comparison(console: Console, c: Comparison, details: bool = False) -> None:
    """Prints notes, table and verdict. The verdict is always the last line."""
    print_parts(console, _report(c, details))


def write_comparison(stream: TextIO | None, c: Comparison, details: bool = False) -> bool:
    """Writes what `print_comparison` prints where there is no terminal, without Rich: see `write_parts`."""
    return write_parts(stream, _report(c, details))


def _bar(f: FieldComparison) -> Cell:
    if f.different == 0:
        return "", ""
    share = f.different / f.elements
    filled = max(1, round(share * _BAR))
    return "█" * filled + "·" * (_BAR - filled), "red"


def _report(c: Comparison, details: bool) -> Iterator[Line | Grid]:
    """Notes, table and verdict."""
    for note in c.notes[:10]:
        yield Line(one_line(f"note: {note}"), "dim")
    if len(c.notes) > 10:
        yield Line(f"note: {len(c.notes) - 10} more notes in --json", "dim", wraps=True)
    for problem in c.problems[:10]:
        yield Line(one_line(f"not compared: {problem}"), "red")
    if len(c.problems) > 10:
        yield Line(f"not compared: {len(c.problems) - 10} more in --json", "red", wraps=True)
    if c.attributes:
        yield Line(f"attributes: {len(c.attributes)} of {c.attributes_compared} differ", "red", wraps=True)
    for d in c.attributes[:10]:
        where = "" if d.step is None and d.rank == 0 else f"{d.place()}: "
        meaning = " (changes what its numbers mean)" if d.meaning else ""
        yield Line(one_line(f"  {where}{d.text()}{meaning}"), "red")
    if len(c.attributes) > 10:
        yield Line(f"  … and {len(c.attributes) - 10} more: --json has all", "red", wraps=True)
    shown, left_out = _rows(c)
    if shown:
        yield _fields_table(c, shown)
    if left_out:
        yield Line(f"… and {left_out} more rows: --json has all", "dim", wraps=True)
    warnings: dict[str, list[str]] = {}
    for f in c.fields:
        for w in f.warnings:
            warnings.setdefault(w.split(" for values")[0], []).append(f"{f.field}: {w}")
    for same in list(warnings.values())[:5]:
        more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
        yield Line(one_line(f"warning: {same[0]}{more}"), "yellow")
    reasons = {f.reason for f in c.fields if f.reason}
    for reason in sorted(reasons)[:3]:
        yield Line(f"method: {reason}", "dim")
    device = _device_line(c)
    if device and (details or c.device_asked not in ("auto", "cpu") or c.device != "cpu"):
        yield Line(one_line(device), "dim")
    if details:
        yield from _details(c)
    yield from _conditions(c)
    yield Line(verdict_line(c), "bold green" if c.same else "bold red", bare=True)


def _fields_table(c: Comparison, shown: Sequence[FieldComparison]) -> Grid:
    with_step = any(f.step is not None for f in c.fields)
    with_rank = any(f.rank != 0 for f in c.fields)
    columns = [("step", True)] * with_step + [("rank", True)] * with_rank
    columns += [("field", False), ("different", True), ("of", True), ("", False)]
    columns += [("max |a-b|", True), ("max rel", True), ("read", True)]
    rows = []
    for f in shown:
        cells: list[Cell] = []
        if with_step:
            cells.append(("" if f.step is None else str(f.step), ""))
        if with_rank:
            cells.append((str(f.rank), ""))
        bound = "≤ " if f.max_abs_diff_is_bound else ""
        read = sum(s["bytes_read"] for s in f.stages.values())
        cells += [
            (one_line(f.field), ""),
            (str(f.different), "red" if f.different else "green"),
            (str(f.elements), ""),
            _bar(f),
            ("" if f.kind is not None else bound + number(f.max_abs_diff), ""),
            (number(f.max_rel_diff) if f.different else "", ""),
            (f"{50 * read / f.bytes:.3g}%" if f.bytes else "", ""),
        ]
        rows.append(cells)
    return Grid(columns, rows)


def _conditions(c: Comparison) -> Iterator[Line | Grid]:
    """In which conditions the runs differ: all where there is a difference to explain, else one line."""
    found = c.conditions
    if found is None:
        return
    if not found:
        if not c.same:
            yield Line("conditions: the runs recorded no difference", "dim", wraps=True)
        return
    if c.same:
        names = ", ".join(d.name for d in found[:MOST_CONDITIONS])
        more = f" and {len(found) - MOST_CONDITIONS} more" if len(found) > MOST_CONDITIONS else ""
        yield Line(one_line(f"conditions that differ: {names}{more}"), "dim")
        return
    sides = [
        one_line(run if len(run) <= _LONGEST_LABEL else "…" + run[1 - _LONGEST_LABEL :]) for run in (c.a, c.b)
    ]
    columns = [(title, False) for title in ("conditions that differ", "", *sides)]
    rows = [
        [(one_line(t, _LONGEST_FACT), "") for t in (d.group, d.name, d.a, d.b)]
        for d in found[:MOST_CONDITIONS]
    ]
    yield Grid(columns, rows, folds=True)
    if len(found) > MOST_CONDITIONS:
        yield Line(f"… and {len(found) - MOST_CONDITIONS} more: --json has all", "dim", wraps=True)


def print_provenance(console: Console, p: Provenance) -> None:
    """Prints under which conditions a run ran."""
    from rich.table import Table
    from rich.text import Text

    of = [counted(len(p.ranks), "rank")] + ([counted(p.sessions, "session")] if p.sessions > 1 else [])
    console.print(f"provenance ({', '.join(of)})", style="dim")
    table = Table(box=None, pad_edge=False, show_header=False, header_style="dim", padding=(0, 2, 0, 0))
    for group, facts in p.facts().items():
        for at, (name, value) in enumerate(facts.items()):
            cells = ("" if at else group, name, value)
            table.add_row(*(Text(one_line(t)) for t in cells))
    console.print(table)


def _device_line(c: Comparison) -> str:
    """Where the work was done, and why; among several reasons the first for a GPU."""
    on_gpu = [f for f in c.fields if f.device != "cpu"]
    if not c.fields:  # no field was compared on any device
        return ""
    reasons = list(dict.fromkeys(f.device_reason for f in (on_gpu or c.fields) if f.device_reason))
    more = f"; {len(reasons) - 1} more in --json" if len(reasons) > 1 else ""
    return f"device: {c.device}" + (f" ({reasons[0]}{more})" if reasons else "")


def _details(c: Comparison) -> Iterator[Line]:
    for name, stage in c.stages.items():
        if stage["chunks_in"] or stage["bytes_read"]:
            yield Line(
                f"{name}: {stage['chunks_in']} chunks in, {stage['chunks_out']} left, {byte_size(stage['bytes_read'])} read, "
                f"{stage['seconds']:.3g} s",
                "dim",
                wraps=True,
            )
    if c.device_seconds > 0:
        yield Line(f"device: {c.device_seconds:.3g} s of copies and kernels", "dim", wraps=True)
    first = c.first
    if first is not None:
        yield Line(
            f"first difference: a = {exact(first.first_a)}, b = {exact(first.first_b)}", "dim", wraps=True
        )
