"""The report for a terminal: a table like `git diff --stat`, capped, and the verdict last."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..comparison.words import verdict_line
from ..comparison.work import Comparison, FieldComparison
from ..errors import one_line
from ..runs.provenance import Provenance
from ..words import byte_size, counted, exact, number

__all__ = [
    "print_comparison",
    "print_provenance",
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


def _bar(f: FieldComparison) -> Text:
    if f.different == 0:
        return Text("")
    share = f.different / f.elements
    filled = max(1, round(share * _BAR))
    return Text("█" * filled + "·" * (_BAR - filled), style="red")


def print_comparison(console: Console, c: Comparison, details: bool = False) -> None:
    """Prints notes, table and verdict. The verdict is always the last line."""
    for note in c.notes[:10]:
        console.print(Text(one_line(f"note: {note}")), soft_wrap=True, style="dim")
    if len(c.notes) > 10:
        console.print(f"note: {len(c.notes) - 10} more notes in --json", style="dim")
    for problem in c.problems[:10]:
        console.print(Text(one_line(f"not compared: {problem}")), soft_wrap=True, style="red")
    if len(c.problems) > 10:
        console.print(f"not compared: {len(c.problems) - 10} more in --json", style="red")
    if c.attributes:
        console.print(f"attributes: {len(c.attributes)} of {c.attributes_compared} differ", style="red")
    for d in c.attributes[:10]:
        where = "" if d.step is None and d.rank == 0 else f"{d.place()}: "
        meaning = " (changes what its numbers mean)" if d.meaning else ""
        console.print(Text(one_line(f"  {where}{d.text()}{meaning}")), soft_wrap=True, style="red")
    if len(c.attributes) > 10:
        console.print(f"  … and {len(c.attributes) - 10} more: --json has all", style="red")
    shown, left_out = _rows(c)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    with_step = any(f.step is not None for f in c.fields)
    with_rank = any(f.rank != 0 for f in c.fields)
    if with_step:
        table.add_column("step", justify="right")
    if with_rank:
        table.add_column("rank", justify="right")
    table.add_column("field")
    table.add_column("different", justify="right")
    table.add_column("of", justify="right")
    table.add_column("")
    table.add_column("max |a-b|", justify="right")
    table.add_column("max rel", justify="right")
    table.add_column("read", justify="right")
    for f in shown:
        cells: list[Text] = []
        if with_step:
            cells.append(Text("" if f.step is None else str(f.step)))
        if with_rank:
            cells.append(Text(str(f.rank)))
        bound = "≤ " if f.max_abs_diff_is_bound else ""
        read = sum(s["bytes_read"] for s in f.stages.values())
        cells += [
            Text(one_line(f.field)),
            Text(str(f.different), style="red" if f.different else "green"),
            Text(str(f.elements)),
            _bar(f),
            Text("" if f.kind is not None else bound + number(f.max_abs_diff)),
            Text(number(f.max_rel_diff) if f.different else ""),
            Text(f"{50 * read / f.bytes:.3g}%" if f.bytes else ""),
        ]
        table.add_row(*cells)
    if shown:
        console.print(table)
    if left_out:
        console.print(f"… and {left_out} more rows: --json has all", style="dim")
    warnings: dict[str, list[str]] = {}
    for f in c.fields:
        for w in f.warnings:
            warnings.setdefault(w.split(" for values")[0], []).append(f"{f.field}: {w}")
    for same in list(warnings.values())[:5]:
        more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
        console.print(Text(one_line(f"warning: {same[0]}{more}")), style="yellow", soft_wrap=True)
    reasons = {f.reason for f in c.fields if f.reason}
    for reason in sorted(reasons)[:3]:
        console.print(Text(f"method: {reason}"), style="dim", soft_wrap=True)
    device = _device_line(c)
    if device and (details or c.device_asked not in ("auto", "cpu") or c.device != "cpu"):
        console.print(Text(one_line(device)), style="dim", soft_wrap=True)
    if details:
        _details(console, c)
    _conditions(console, c)
    console.print(Text(verdict_line(c), style="bold green" if c.same else "bold red"), soft_wrap=True)


def _facts_table(*columns: str) -> Table:
    table = Table(
        box=None, pad_edge=False, show_header=bool(columns), header_style="dim", padding=(0, 2, 0, 0)
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _conditions(console: Console, c: Comparison) -> None:
    """Prints in which conditions the runs differ: all where there is a difference to explain, else one line."""
    found = c.conditions
    if found is None:
        return
    if not found:
        if not c.same:
            console.print("conditions: the runs recorded no difference", style="dim")
        return
    if c.same:
        names = ", ".join(d.name for d in found[:MOST_CONDITIONS])
        more = f" and {len(found) - MOST_CONDITIONS} more" if len(found) > MOST_CONDITIONS else ""
        console.print(Text(one_line(f"conditions that differ: {names}{more}")), style="dim", soft_wrap=True)
        return
    sides = [
        one_line(run if len(run) <= _LONGEST_LABEL else "…" + run[1 - _LONGEST_LABEL :]) for run in (c.a, c.b)
    ]
    table = _facts_table("conditions that differ", "", *sides)
    for d in found[:MOST_CONDITIONS]:
        table.add_row(*(Text(one_line(t, _LONGEST_FACT)) for t in (d.group, d.name, d.a, d.b)))
    console.print(table)
    if len(found) > MOST_CONDITIONS:
        console.print(f"… and {len(found) - MOST_CONDITIONS} more: --json has all", style="dim")


def print_provenance(console: Console, p: Provenance) -> None:
    """Prints under which conditions a run ran."""
    of = [counted(len(p.ranks), "rank")] + ([counted(p.sessions, "session")] if p.sessions > 1 else [])
    console.print(f"provenance ({', '.join(of)})", style="dim")
    table = _facts_table()
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


def _details(console: Console, c: Comparison) -> None:
    for name, stage in c.stages.items():
        if stage["chunks_in"] or stage["bytes_read"]:
            console.print(
                f"{name}: {stage['chunks_in']} chunks in, {stage['chunks_out']} left, {byte_size(stage['bytes_read'])} read, "
                f"{stage['seconds']:.3g} s",
                style="dim",
            )
    if c.device_seconds > 0:
        console.print(f"device: {c.device_seconds:.3g} s of copies and kernels", style="dim")
    first = c.first
    if first is not None:
        console.print(
            f"first difference: a = {exact(first.first_a)}, b = {exact(first.first_b)}", style="dim"
        )
