"""The report for a terminal: notes, a table with a row for each field, and the verdict last."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ..comparison.overview import Overview, of_fields, scale_of, sparkline, tolerance_note, where_they_part
from ..comparison.words import ranked, verdict_line
from ..comparison.work import Comparison
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

MOST_ROWS = 40  # of a table on a terminal
MOST_NOTES = 10
MOST_CONDITIONS = 8
_LONGEST_FACT = 200  # characters of a table's cell
_LONGEST_LABEL = 24
_BAR = 16


def print_comparison(console: Console, c: Comparison, details: bool = False) -> None:
    """Prints notes, table and verdict. The verdict is always the last line."""
    print_parts(console, _report(c, details, console.width if console.is_terminal else None))


def write_comparison(stream: TextIO | None, c: Comparison, details: bool = False) -> bool:
    """Writes what `print_comparison` prints where there is no terminal, without Rich: see `write_parts`."""
    return write_parts(stream, _report(c, details, None))


def _bar(different: int, elements: int) -> Cell:
    if different == 0:
        return "", ""
    filled = max(1, round(different / elements * _BAR))
    return "█" * filled + "·" * (_BAR - filled), "red"


def _report(c: Comparison, details: bool, room: int | None) -> Iterator[Line | Grid]:
    """Notes, table and verdict. room: columns of the terminal; None: no terminal, every column is printed."""
    yield from _notes(c.notes, details)
    for problem in c.problems[:10] if len(c.problems) > 1 else ():  # the verdict says the only one
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
    overviews = of_fields(c)
    yield from _overview(c, overviews, room, details)
    if details and len(c.fields) > len(overviews):
        yield from _steps(c, room)
    warnings: dict[str, list[str]] = {}
    for f in c.fields:
        for w in f.warnings:
            warnings.setdefault(w.split(" for values")[0], []).append(f"{f.field}: {w}")
    for same in list(warnings.values())[:5]:
        more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
        yield Line(one_line(f"warning: {same[0]}{more}"), "yellow")
    if details:
        for reason in sorted({f.reason for f in c.fields if f.reason}):
            yield Line(one_line(f"method: {reason}"), "dim")
    device = _device_line(c)
    if device and (details or c.device_asked not in ("auto", "cpu") or c.device != "cpu"):
        yield Line(one_line(device), "dim")
    if details:
        yield from _details(c)
    if note := tolerance_note(c):
        yield Line(one_line(note))
    yield from _conditions(c)
    if part := where_they_part(c, overviews):
        yield Line(one_line(part))
    yield Line(verdict_line(c), "bold green" if c.same else "bold red", bare=True)


_NAMES_IN_NOTES = re.compile(r"^\S+(?=: )|'[^']*'|\"[^\"]*\"|\S*[\d/@]\S*")


def _notes(notes: Sequence[str], details: bool) -> Iterator[Line]:
    """Notes. Those that differ only in names and numbers become one line; with details, all are listed."""
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note if details else _NAMES_IN_NOTES.sub("…", note), []).append(note)
    shown = list(kinds.values())
    for same in shown if details else shown[:MOST_NOTES]:
        more = f" (and {len(same) - 1} more like it: -v)" if len(same) > 1 else ""
        yield Line(one_line(f"note: {same[0]}") + more, "dim")
    if not details and len(shown) > MOST_NOTES:
        yield Line(f"note: {len(shown) - MOST_NOTES} more notes: -v", "dim", wraps=True)


def _is_label(o: Overview) -> bool:
    """Whether it holds dimensions, coordinates, attributes or an index of labelled arrays, as @coords.x
    and T@dims do.
    """
    return o.name.startswith("@") or "@dims" in o.name


def _overview(
    c: Comparison, overviews: Sequence[Overview], room: int | None, details: bool
) -> Iterator[Line | Grid]:
    """A row a field. Without a terminal every field that differs has its row; labels that are equal
    share one line.
    """
    equal = [] if details else [o for o in overviews if _is_label(o) and o.same and not _may_part(o)]
    if equal and len(equal) < len(overviews):
        folded = {o.name for o in equal}
        yield from _overview(c, [o for o in overviews if o.name not in folded], room, True)
        what = "label agrees" if len(equal) == 1 else "labels agree"
        yield Line(f"{len(equal)} {what} too: {_first_names(equal)}", "dim", wraps=True)
        return
    shown = list(overviews)
    if len(shown) > MOST_ROWS:
        differ = [o for o in shown if not o.same or o.parts is not None]
        rest = [o for o in shown if o.same and o.parts is None]
        if room is not None:
            differ = differ[:MOST_ROWS]
        shown = differ + rest[: max(0, MOST_ROWS - len(differ))]
    if not shown:
        return
    steps = list(dict.fromkeys(f.step for f in c.fields))
    if len(steps) > 1:
        yield _over_steps(overviews, shown, steps, ranked(c), room)
    else:
        yield _at_one_step(shown, ranked(c), room)
    if left_out := len(overviews) - len(shown):
        differing = sum(not o.same for o in overviews) - sum(not o.same for o in shown)
        said = f", of which {differing} differ" if differing else ", within the tolerance"
        yield Line(f"… and {counted(left_out, 'more field')}{said}: --json has all", "dim", wraps=True)


def _may_part(o: Overview) -> bool:
    return o.parts is not None or not o.surely


def _first_names(overviews: Sequence[Overview]) -> str:
    more = f" and {len(overviews) - 3} more" if len(overviews) > 3 else ""
    return one_line(", ".join(o.name.removesuffix("@text") for o in overviews[:3]) + more)


def _measure(room: int | None) -> Callable[[str], int]:
    if room is None:
        return len
    from rich.cells import cell_len

    return cell_len


def _fitting(columns: Sequence[_Column], rows: Sequence[Sequence[Cell]], room: int | None) -> Grid:
    """The table without the columns for which the terminal has no room: those of the highest
    `leaves` go first.
    """
    kept = [
        k for k, column in enumerate(columns) if not column.leaves or any(row[k][0] for row in rows)
    ]  # an empty column says nothing
    while True:
        grid = Grid(
            [(columns[k].title, columns[k].right) for k in kept], [[row[k] for k in kept] for row in rows]
        )
        loose = [k for k in kept if columns[k].leaves]
        if room is None or not loose or grid.width(_measure(room)) <= room:
            return grid
        kept.remove(max(loose, key=lambda k: columns[k].leaves))


class _Column(NamedTuple):
    """A column. leaves: where it stands among those that leave a narrow terminal; the highest
    first, 0 never.
    """

    title: str
    right: bool = True
    leaves: int = 0


def _largest(o: Overview) -> Cell:
    f = o.largest
    if f is None or f.kind is not None:
        return "", ""
    return ("≤ " if f.max_abs_diff_is_bound else "") + number(f.max_abs_diff), ""


def _at_least(o: Overview) -> str:
    return "" if o.exact else "≥ "


def _over_steps(
    overviews: Sequence[Overview],
    shown: Sequence[Overview],
    steps: Sequence[int | None],
    with_rank: bool,
    room: int | None,
) -> Grid:
    """For each field the step where it parts and where it is above the tolerance, the largest
    difference and the growth.
    """
    columns = [
        _Column("field", right=False), _Column("parts"), _Column("above"), _Column("steps", leaves=3), _Column("share", leaves=4),
        _Column("max |a-b|"), _Column("at", right=False, leaves=2), _Column("growth", right=False, leaves=1),
    ]  # fmt: skip
    scale = scale_of(overviews)

    def rows(width: int) -> list[list[Cell]]:
        made = []
        for o in shown:
            parts = "" if o.parts is None else _step(o.parts.step)
            if not o.surely:
                parts = f"≤ {parts}" if parts else "?"
            red = "" if o.same else "red"
            made.append(
                [
                    (one_line(o.name), ""),
                    (parts, ""),
                    ("" if o.above is None else _step(o.above.step), red),
                    (f"{len(o.steps_above)}/{len(o.steps)}", red or "green"),
                    (_at_least(o) + f"{number(100 * o.different / o.elements)}%" if o.different else "", ""),
                    _largest(o),
                    (o.at(with_rank), ""),
                    (sparkline(o, steps, scale, width), red),
                ]
            )
        return made

    for width in (40, 24, 16, 8):
        made = rows(min(width, 24) if room is None else width)
        whole = _fitting(columns, made, None)
        if room is None or whole.width(_measure(room)) <= room:
            return whole
    return _fitting(columns, made, room)


def _step(step: int | None) -> str:
    """A step of a table; "-" for a field that belongs to none, as a file of notes beside the steps."""
    return "-" if step is None else str(step)


def _at_one_step(shown: Sequence[Overview], with_rank: bool, room: int | None) -> Grid:
    columns = [
        _Column("field", right=False), _Column("different"), _Column("of"), _Column("", right=False, leaves=3),
        _Column("max |a-b|"), _Column("max rel", leaves=1), _Column("at", right=False, leaves=2),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for o in shown:
        rows.append(
            [
                (one_line(o.name), ""),
                (_at_least(o) + str(o.different), "red" if o.different else "green"),
                (str(o.elements), ""),
                _bar(o.different, o.elements),
                _largest(o),
                (number(o.max_rel) if o.above is not None and o.above.kind is None and o.exact else "", ""),
                (o.place(with_rank), ""),
            ]
        )
    return _fitting(columns, rows, room)


def _steps(c: Comparison, room: int | None) -> Iterator[Line | Grid]:
    """A row for each step, rank and field: all if they are few, otherwise those that differ,
    earliest first.
    """
    shown = c.fields
    if room is not None and len(c.fields) > MOST_ROWS:
        differ = [f for f in c.fields if not f.same]
        shown = (differ or c.fields)[:MOST_ROWS]
    with_step = any(f.step is not None for f in c.fields)
    with_rank = ranked(c)
    columns = [_Column("step")] * with_step + [_Column("rank")] * with_rank
    columns += [
        _Column("field", right=False),
        _Column("different"),
        _Column("of"),
        _Column("", right=False, leaves=3),
    ]
    columns += [_Column("max |a-b|"), _Column("max rel", leaves=1), _Column("read", leaves=2)]
    rows = []
    for f in shown:
        cells: list[Cell] = []
        if with_step:
            cells.append(("" if f.step is None else str(f.step), ""))
        if with_rank:
            cells.append((str(f.rank), ""))
        bound = "≤ " if f.max_abs_diff_is_bound else ""
        read = 100 * min(f.elements_read, f.elements) / f.elements if f.elements else 0.0
        cells += [
            (one_line(f.field), ""),
            (("" if f.different_is_exact else "≥ ") + str(f.different), "red" if f.different else "green"),
            (str(f.elements), ""),
            _bar(f.different, f.elements),
            (bound + number(f.max_abs_diff) if f.kind is None else "", ""),
            (number(f.max_rel_diff) if f.different and f.kind is None and f.different_is_exact else "", ""),
            (f"{read:.3g}%" if f.elements else "", ""),
        ]
        rows.append(cells)
    yield _fitting(columns, rows, room)
    if left_out := len(c.fields) - len(shown):
        yield Line(f"… and {counted(left_out, 'more row')}: --json has all", "dim", wraps=True)


def _conditions(c: Comparison) -> Iterator[Line | Grid]:
    """In which conditions the runs differ: all where there is a difference to explain, otherwise one line."""
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
    if first is not None and first.kind is None and first.different_is_exact:
        yield Line(
            f"first difference: a = {exact(first.first_a)}, b = {exact(first.first_b)}", "dim", wraps=True
        )
