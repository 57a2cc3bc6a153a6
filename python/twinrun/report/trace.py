"""The page of a comparison of traces: the first operation that differs, what is around it, and
modules by iteration.

What is made here is data; the markup: templates/trace.html.j2.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..markup import render
from ..trace.words import IN_VALUE, later_text, structure_lines, verdict_text
from ..words import number
from .charts import Picture, heat_map
from .document import write_whole
from .parts import BAD, GOOD, OPEN, Table

if TYPE_CHECKING:
    from ..trace.result import Around, Origin, Passed, TraceComparison, ValueDifference
    from ..trace.site import Site

__all__ = ["trace_html", "write_trace_html"]

_CLASSES = {"same": GOOD, "different": BAD, "incomparable": OPEN}
_STATES = {
    "outputs differ": BAD,
    "inputs differ": OPEN,
    "only in a": OPEN,
    "only in b": OPEN,
    "not known": OPEN,
    "not all compared": OPEN,
}
_LINES, _MOST_LINES = 12, 200
_ROWS = 60  # of a table
_NUMBERS = 200  # rows of a picture's table
_MAP_COLUMNS, _MAP_ROWS = 72, 40
_VALUES = 12  # of an event


@dataclass
class _Map:
    picture: Picture
    numbers: Table
    joined: str  # what the picture joins, or ''


@dataclass
class _Event:
    """An event around the first divergence."""

    site: str
    kind: str
    state: str
    state_class: str
    takes: list[tuple[str, bool]]  # (text, whether it differs)
    gives: list[tuple[str, bool]]
    first: bool


def _module(path: str) -> str:
    return path or "the model"


def _producer(site: Site, here: Site) -> str:
    """Where a value comes from, seen from an event."""
    before = "" if site.iteration == here.iteration else f", iteration {site.iteration}"
    what = site.operation if site.phase == "optimizer" else f"{site.phase} of {_module(site.module)}"
    if site.operation not in ("forward", site.phase) and site.phase != "optimizer":
        what += f", {site.operation}"
    return f"{what}{before}"


def _passed(p: Passed, here: Site) -> tuple[str, bool]:
    role = "" if p.role == "value" else f" ({'generator' if p.role == 'rng' else p.role})"
    form = "" if p.form.startswith("python") else f": {p.form}"
    came = f", from {_producer(p.producer, here)}" if p.producer is not None else ""
    left = f", not compared: {p.not_compared}" if p.not_compared else ""
    return f"{p.name}{role}{form}{came}{left}", p.differs


def _few(values: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Those that differ come first where there are too many."""
    if len(values) <= _VALUES:
        return values
    shown = sorted(values, key=lambda v: not v[1])[:_VALUES]
    return [*shown, (f"and {len(values) - _VALUES} more", sum(differs for _, differs in values) > _VALUES)]


def _event(near: Around, first: Origin | None) -> _Event:
    takes = [_passed(p, near.site) for p in near.values if not p.out]
    gives = [_passed(p, near.site) for p in near.values if p.out]
    agrees = near.state.endswith(IN_VALUE)
    shown = near.state in _STATES and near.state != "not all compared"
    at_first = first is not None and near.site == first.site and shown
    return _Event(
        str(near.site), near.kind, near.text, OPEN if agrees else _STATES.get(near.state, GOOD), _few(takes), _few(gives), at_first
    )  # fmt: skip


def _span(group: list[int]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]}–{group[-1]}"


def _map(result: TraceComparison) -> _Map | None:
    """Modules by iteration: those in which anything differs first, each in the order of execution."""
    iterations = sorted({n for n, _ in result.by_module})
    modules = list(dict.fromkeys(m for _, m in result.by_module))
    if not modules:
        return None
    differ = {m for (_, m), (_, d) in result.by_module.items() if d}
    order = [*(m for m in modules if m in differ), *(m for m in modules if m not in differ)]
    size = max(1, math.ceil(len(iterations) / _MAP_COLUMNS))
    columns = [iterations[i : i + size] for i in range(0, len(iterations), size)]
    column_of = {n: at for at, group in enumerate(columns) for n in group}
    labels = [_module(m) for m in order]
    if len(order) > _MAP_ROWS:
        labels = [*labels[: _MAP_ROWS - 1], f"{len(order) - _MAP_ROWS + 1} more modules"]
    row_of = {m: min(at, len(labels) - 1) for at, m in enumerate(order)}
    sums: dict[tuple[int, int], list[int]] = {}
    for (n, m), (values, different) in result.by_module.items():
        cell = sums.setdefault((row_of[m], column_of[n]), [0, 0])
        cell[0] += values
        cell[1] += different
    cells: dict[tuple[int, int], tuple[float | None, str]] = {}
    rows: list[tuple[str, str, str, str]] = []
    for (r, c), (values, different) in sorted(sums.items(), key=lambda item: (item[0][1], item[0][0])):
        said = f"iteration {_span(columns[c])}, {labels[r]}: {different:,} of {values:,} values differ"
        cells[r, c] = (different / max(values, 1) if different else None, said)
        if different:
            rows.append((_span(columns[c]), labels[r], f"{different:,}", f"{values:,}"))
    picture = heat_map(
        labels,
        [_span(c) for c in columns],
        cells,
        "Share of values that differ by module and iteration",
        "iteration",
    )
    joined = f"Each column joins {size} iterations. " if size > 1 else ""
    head = ("iteration", "module", "values that differ", "of")
    return _Map(picture, Table(head, rows, (1,)).first(_NUMBERS), joined)


def _facts(o: Origin) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [("iteration", o.site.iteration)]
    if o.site.microbatch:
        pairs.append(("microbatch", o.site.microbatch))
    if o.rank or o.names_rank:
        pairs.append(("rank", o.rank))
    pairs += [("phase", o.site.phase), ("module", _module(o.module)), ("operation", o.site.operation)]
    if o.kind:
        pairs.append(("class", o.kind))
    if o.calls:
        pairs.append(("call", f"{o.call} of {o.calls}"))
    pairs.append(("reason", f"only in {o.only_in}" if o.only_in else o.reason))
    return pairs


def _cell(value: object) -> object:
    return "" if value is None else value


def _row(v: ValueDifference) -> tuple[object, ...]:
    index = "" if v.first_index is None else f"[{', '.join(map(str, v.first_index))}]"
    return (
        v.name, v.role, "out" if v.out else "in", v.a, v.b, _cell(v.different), _cell(v.elements),
        "" if v.max_abs_diff is None else number(v.max_abs_diff), _cell(v.max_ulp), index, _cell(v.first_a), _cell(v.first_b),
    )  # fmt: skip


def trace_html(result: TraceComparison) -> str:
    """The page."""
    first = result.first_divergence
    others = [o for o in result.firsts.values() if o is not first]
    later = [o for o in result.origins if o is not first and o not in others]
    said = verdict_text(result).removeprefix(result.verdict)
    head = (
        "value",
        "role",
        "",
        "in a",
        "in b",
        "different",
        "of",
        "max |a − b|",
        "ULP",
        "first at",
        "a",
        "b",
    )
    # Without data that both runs kept, the amounts are empty.
    columns = len(head) if first is not None and any(v.elements is not None for v in first.values) else 5
    rows = [] if first is None else [_row(v)[:columns] for v in first.values]
    conditions = result.conditions
    return render(
        "report/trace.html.j2",
        title=f"twinrun: {result.verdict}: {result.a} against {result.b}",
        runs=f"{result.a} against {result.b}",
        result=result,
        kind=_CLASSES[result.verdict],
        said=said,
        first=None if first is None else _facts(first),
        beside=[] if first is None else structure_lines(first),
        values=Table(head[:columns], rows, (1, 2, 3, 4)).first(_ROWS),
        around=[_event(near, first) for near in result.around],
        map=_map(result),
        others=[str(o) for o in others],
        later=[str(o) for o in later],
        later_head=later_text(later).capitalize(),
        overview=[
            ("events matched", f"{result.events:,}"),
            ("values compared", f"{result.values:,}"),
            ("that differ", f"{result.different_values:,}"),
            ("unmatched", f"{result.unmatched:,}"),
            ("iterations", f"{len({n for n, _ in result.by_module}):,}"),
            ("modules", f"{len({m for _, m in result.by_module}):,}"),
            ("time", f"{result.seconds:.3g} s"),
        ],
        conditions=None
        if conditions is None
        else Table(
            ("", "condition", "a", "b"), [(c.group, c.name, c.a, c.b) for c in conditions], (0, 1), (2, 3)
        ).first(_ROWS),
        shown=_LINES,
        most=_MOST_LINES,
    )


def write_trace_html(result: TraceComparison, path: str | os.PathLike[str]) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(os.fspath(path), trace_html(result), "HTML")
