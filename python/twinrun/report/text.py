"""The report for a terminal: a table like `git diff --stat`, capped, and the verdict last."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..comparison.work import Comparison, FieldComparison
from ..errors import one_line
from ..runs.provenance import Provenance

__all__ = [
    "byte_size",
    "exact",
    "number",
    "print_comparison",
    "print_provenance",
    "tolerance_text",
    "verdict_line",
]

MOST_ROWS = 40
MOST_CONDITIONS = 8
_LONGEST_FACT = 200  # characters of a table's cell
_LONGEST_LABEL = 24
_BAR = 16


def number(value: float | int | None) -> str:
    """A value as a person reads it: 3 significant digits of floats, all of an integer."""
    if value is None:
        return "?"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value) or math.isinf(value):
        return str(value)
    return f"{value:.3g}"


def exact(value: float | int | str | None) -> str:
    """A value with all its digits."""
    return "?" if value is None else value if isinstance(value, str) else repr(value)


def byte_size(n: float) -> str:
    """1.2 GB: decimal units, as storage is sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return ""


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def tolerance_text(f: FieldComparison) -> str:
    """'1e-09 + 0.5 |a|', '4 ulp or 1e-09'."""
    parts = []
    if f.ulps:
        parts.append(f"{f.ulps} ulp")
    if f.atol == 0 and f.rtol == 0 and not parts:
        return "0"
    if f.atol:
        parts.append(f"{f.atol:g}")
    if f.rtol:
        parts.append(f"{f.rtol:g} |a|")
    return (
        " + ".join(parts)
        if not f.ulps
        else " or ".join([parts[0], *([" + ".join(parts[1:])] if parts[1:] else [])])
    )


def _difference(f: FieldComparison) -> str:
    """'x[3]: |a-b| = 6.5e-09 > 1e-09', of the first element of a field that differs."""
    if f.particles is not None:
        if f.first_a is not None and f.first_b is not None:
            return f"{f.place()}: the runs hold this particle not equally often"
        run = "first" if f.first_a is not None else "second"
        return f"{f.place()}: only the {run} run has this particle"
    if f.kind is not None and f.first_a is None and f.first_b is None:
        return f"{f.place()}: another {f.kind}"
    if f.kind is not None:
        return f"{f.place()}: {_element(f.first_a)} against {_element(f.first_b)}"
    diff = f.first_abs_diff
    if isinstance(diff, float) and math.isinf(diff):
        return f"{f.place()}: {number(f.first_a)} against {number(f.first_b)}"
    allowed = tolerance_text(f)
    said = number(diff)
    if said == allowed and isinstance(diff, float):  # as many digits as it takes to see which is larger
        said = next((t for n in range(4, 18) if (t := f"{diff:.{n}g}") != allowed), repr(diff))
    return f"{f.place()}: |a-b| = {said} > {allowed}"


def _element(value: float | int | str | None) -> str:
    return value if isinstance(value, str) else number(value)


def _attributes(c: Comparison) -> str:
    """'x@units: 'm' against 'km' (and 2 more)'."""
    first = c.attributes[0]
    where = f"{first.place()}: " if first.step is not None else ""
    more = f" (and {len(c.attributes) - 1} more)" if len(c.attributes) > 1 else ""
    return f"{where}{first.text()}{more}"


def verdict_line(c: Comparison) -> str:
    """The last line: `different: first at step 500, rank 0, x[1234, 2]: |a-b| = 6.5e-09 > 1e-09`."""
    first = c.first
    if c.problems:
        if first is not None:
            rest = f"all else differs, first at {_difference(first)}"
        else:
            rest = f"attributes differ: {_attributes(c)}" if c.attributes else "all else agrees"
        count = _count(len(c.problems), "thing")
        return one_line(f"incomparable: {count} could not be compared: {c.problems[0]}; {rest}")
    if first is not None:
        also = f"; {_count(len(c.attributes), 'attribute')} too" if c.attributes else ""
        return one_line(f"different: first at {_difference(first)}{also}")
    if c.attributes:
        return one_line(f"different: all elements agree, attributes do not: {_attributes(c)}")
    elements = sum(f.elements for f in c.fields)
    steps = len({f.step for f in c.fields})
    tolerances = {tolerance_text(f) for f in c.fields if f.atol or f.rtol or f.ulps}
    within = (
        f" within {tolerances.pop()}" if len(tolerances) == 1 else " within tolerance" if tolerances else ""
    )
    share = 50 * c.bytes_read / c.bytes_compared if c.bytes_compared else 0
    return (
        f"same: {_count(len({f.field for f in c.fields}), 'field')}, {_count(steps, 'step')}, {_count(elements, 'element')} "
        f"({byte_size(c.bytes_compared)} a run) agree{within}; read {share:.3g}% of them"
        + (f"; {_count(c.attributes_compared, 'attribute')} too" if c.attributes_compared else "")
        + (f"; not compared: {_count(c.not_compared, 'thing')} (see the notes)" if c.not_compared else "")
    )


def _rows(c: Comparison) -> tuple[list[FieldComparison], int]:
    """What the table shows: all if they are few, else those that differ, earliest first; and how many are left out."""
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
    """In what the conditions of the runs differ: all that can explain a difference, a line where there is none to explain."""
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
    of = [_count(len(p.ranks), "rank")] + ([_count(p.sessions, "session")] if p.sessions > 1 else [])
    console.print(f"provenance ({', '.join(of)})", style="dim")
    table = _facts_table()
    for group, facts in p.facts().items():
        for at, (name, value) in enumerate(facts.items()):
            cells = ("" if at else group, name, value)
            table.add_row(*(Text(one_line(t)) for t in cells))
    console.print(table)


def _device_line(c: Comparison) -> str:
    """Where the work was done, and why; of several reasons the first for a GPU."""
    on_gpu = [f for f in c.fields if f.device != "cpu"]
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
