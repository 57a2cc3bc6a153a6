"""The report of a comparison as one self-contained HTML file: verdict and first divergence, then where and
how much.

Every number of a picture is in a table below it. With very many steps, ranks and fields, neighbours are
joined in pictures, and tables are cut: the page holds a file of rows to save, and `--json` has all.

What is made here is data; the markup: templates/comparison.html.j2.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..arithmetic import any_values
from ..comparison.field import finite_scalars
from ..comparison.overview import of_fields, where_they_part
from ..comparison.words import first_values, ranked, tolerance_text, verdict_line
from ..comparison.work import Comparison, FieldComparison, histogram_edges
from ..errors import TwinrunError
from ..markup import render
from ..words import byte_size, common_length, exact, number, percent
from .charts import COLOURS, NARROW, Line, Picture, bars, density, heat_map, line_chart
from .document import write_whole
from .parts import BAD, GOOD, OPEN, Table
from .places import Places, look

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["error_html", "html", "write_error_html", "write_html"]

_CLASSES = {"same": GOOD, "different": BAD, "incomparable": OPEN}
_ROWS = 60  # of a table
_NUMBERS = 200  # rows of a picture's table
_LINES = 12  # notes, problems, conditions that are visible without unfolding
_MOST_LINES = 200
_SAVED_ROWS = 10_000  # in the file that the page holds
_MAP_COLUMNS, _MAP_ROWS = 72, 30
_NARROW_COLUMNS, _NARROW_NAME = 24, 18  # of a map that fits a telephone: steps, characters of a name
_FACTS = ("step", "rank", "field", "dtype", "shape", "elements", "different", "first_index", "first_id", "first_a",
          "first_b", "max_abs_diff", "max_abs_diff_is_bound", "max_rel_diff", "rms_diff", "atol", "rtol", "ulps",
          "different_is_exact", "first_chunk")  # fmt: skip


@dataclass
class _Group:
    """Sums over comparisons that a picture or a table joins."""

    elements: int = 0
    different: int = 0
    exact: bool = True  # `different` is a count, and not what is known at least
    count: int = 0
    largest: float | None = 0.0
    bound: bool = False
    finite: int = 0  # scalars with a finite |a-b|, which the squares are of
    squares: float | None = 0.0
    squares_are_bounds: bool = False
    first: FieldComparison | None = None

    def add(self, f: FieldComparison) -> None:
        self.count += 1
        self.elements += f.elements
        self.different += f.different
        self.exact &= f.different_is_exact
        if f.kind is not None and f.max_abs_diff is None:
            pass  # not numbers: there is no |a-b|
        elif f.max_abs_diff is None or self.largest is None:
            self.largest = None
        elif f.max_abs_diff >= self.largest:
            self.bound = f.max_abs_diff_is_bound and (self.bound or f.max_abs_diff > self.largest)
            self.largest = f.max_abs_diff
        finite = finite_scalars(f.elements, f.infinite, f.histogram)
        self.finite += finite
        rms = f.rms_diff_all
        self.squares_are_bounds = self.squares_are_bounds or f.rms_diff_all_is_bound
        if self.squares is not None:
            self.squares = (
                self.squares + rms * rms * finite if rms is not None and math.isfinite(rms) else None
            )
        if not f.same and self.first is None:
            self.first = f

    @property
    def rms(self) -> float | None:
        if self.squares is None or not self.elements:
            return None
        return math.sqrt(self.squares / self.finite) if self.finite else 0.0

    def different_text(self) -> str:
        return ("" if self.exact else "≥ ") + f"{self.different:,}"

    def rms_text(self) -> str:
        return ("≤ " if self.squares_are_bounds and self.rms else "") + number(self.rms)

    def largest_text(self) -> str:
        return ("≤ " if self.bound else "") + number(self.largest)


@dataclass
class _Facts:
    """One pass over all comparisons."""

    fields: dict[str, _Group] = field(default_factory=dict)
    steps: dict[int | None, _Group] = field(default_factory=dict)
    by_field: dict[tuple[int | None, str], _Group] = field(default_factory=dict)
    by_rank: dict[tuple[int | None, int], _Group] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    histogram: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    tolerances: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, c: Comparison) -> _Facts:
        facts = cls()
        for f in c.fields:
            for group in (
                facts.fields.setdefault(f.field, _Group()),
                facts.steps.setdefault(f.step, _Group()),
                facts.by_field.setdefault((f.step, f.field), _Group()),
                facts.by_rank.setdefault((f.step, f.rank), _Group()),
            ):
                group.add(f)
            facts.ranks.add(f.rank)
            absolute = f.atol if f.atol > 0 and f.rtol == 0 and not f.ulps else None
            facts.tolerances.setdefault(f.field, {})[tolerance_text(f)] = absolute
        counted = [f for f in c.fields if f.particles is None]
        facts.histogram = _sums(f.histogram for f in counted)
        facts.differing = _sums(f.histogram_different for f in counted)
        return facts


def _sums(histograms: Iterable[list[int]]) -> list[int]:
    total: np.ndarray | int = 0
    remaining = iter(histograms)
    while some := list(itertools.islice(remaining, 1024)):
        total = total + np.array(some, np.int64).sum(axis=0)
    return total.tolist() if isinstance(total, np.ndarray) else []


@dataclass
class _Growth:
    picture: Picture
    narrow: Picture
    legend: list[str]  # names of lines, in the order of their colours
    notes: list[str]
    numbers: Table


@dataclass
class _Map:
    title: str
    picture: Picture
    narrow: Picture | None  # for a telephone; None where its cells or names would not fit
    numbers: Table


@dataclass
class _Plane:
    picture: Picture
    grey: bool  # it shows what does not differ, too


@dataclass
class _Field:
    """Where one field differs."""

    title: str
    shape: str
    different: int
    elements: int
    line: Picture | None
    planes: list[_Plane]
    note: str
    listing: Table


@dataclass
class _Where:
    fields: list[_Field]
    note: str


@dataclass
class _Histogram:
    picture: Picture
    numbers: Table


@dataclass
class _Saved:
    """The file of rows that the page holds."""

    json: str  # in base64
    rows: int


@dataclass
class _Read:
    said: str
    stages: Table
    notes: list[str]


def html(comparison: Comparison) -> str:
    """The page. For pictures of places the data is read again: within limits, and the pictures are
    left out if the data is missing.
    """
    c = comparison
    facts = _Facts.of(c)
    return render(
        "report/comparison.html.j2",
        title=f"twinrun: {c.verdict}: {c.a} against {c.b}",
        runs=_title(c.a, c.b),
        c=c,
        kind=_CLASSES[c.verdict],
        said=verdict_line(c).removeprefix(c.verdict),
        first=_first(c),
        part=where_they_part(c, of_fields(c)),
        with_rank=ranked(c),
        overview=_overview(c, facts),
        conditions=_conditions(c),
        growth=_growth(facts),
        maps=_maps(facts),
        where=_where(c),
        histogram=_histogram(facts),
        fields=_fields_table(facts, ranked(c)),
        particles=_particles(c),
        attributes=_attributes(c),
        rows=_rows_table(c),
        saved=_saved(c),
        read=_read(c),
        shown=_LINES,
        most=_MOST_LINES,
    )


def error_html(a: str, b: str, error: str) -> str:
    """The page of two runs that could not be compared."""
    return render(
        "report/incomparable.html.j2",
        title=f"twinrun: incomparable: {a} against {b}",
        runs=_title(a, b),
        kind=OPEN,
        error=error,
        pairs_of_runs=[("first run", a), ("second run", b)],
    )


@any_values
def write_html(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Writes the page whole or not at all; TwinrunError where it cannot."""
    write_whole(os.fspath(path), html(comparison), "HTML")


def write_error_html(path: str, a: str, b: str, error: str) -> None:
    """Writes the page of two runs that could not be compared."""
    write_whole(path, error_html(a, b, error), "HTML")


def _names(a: str, b: str) -> tuple[str, str]:
    """Short names that distinguish the runs: without their common folders."""
    parts = [label.rstrip("/").split("/") for label in (a, b)]
    common = common_length(*parts)
    tails = ["/".join(p[min(common, len(p) - 1) :]) or label for p, label in zip(parts, (a, b), strict=True)]
    first, second = (t if len(t) <= 50 else "…" + t[-48:] for t in tails)
    return first, second


def _title(a: str, b: str) -> str:
    return " against ".join(_names(a, b))


def _place(f: FieldComparison, with_rank: bool) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [] if f.step is None else [("step", f.step)]
    if with_rank and f.key is None and f.ranks is None:
        pairs.append(("rank", f.rank))
    pairs.append(("field", f.field))
    if f.first_id is not None:
        pairs.append(("ID", f.first_id))
    if f.first_chunk is not None:
        pairs.append(("first chunk", f._chunk_text()))
    if f.first_index:
        pairs.append(("index", "[" + ", ".join(map(str, f.global_index(f.first_index) or ())) + "]"))
    return pairs


def _first(c: Comparison) -> list[tuple[str, object]]:
    f = c.first
    if f is None:
        return []
    if not f.different_is_exact:
        chunks = f"{f.different:,} of {f.chunks:,}"
        return [
            *_place(f, ranked(c)),
            ("chunks that differ", chunks),
            ("elements", "only the data could say which"),
        ]
    values: list[tuple[str, object]] = [("first run", exact(f.first_a)), ("second run", exact(f.first_b))]
    if f.kind is not None:
        known = first_values(f)
        values = [] if known is None else [("first run", known[0]), ("second run", known[1])]
        values.append(("of the kind", f.kind))
    elif f.particles is None:
        values += [("|a − b|", number(f.first_abs_diff)), ("tolerance", tolerance_text(f))]
    else:
        values = [
            (name, "has it" if v is not None else "lacks it")
            for name, v in (("first run", f.first_a), ("second run", f.first_b))
        ]
    return [*_place(f, ranked(c)), *values]


def _overview(c: Comparison, facts: _Facts) -> list[tuple[str, object]]:
    elements = sum(f.elements for f in c.fields)
    read = _bytes_of_elements_read(c)
    share = read / c.bytes_compared if c.bytes_compared else 0.0
    least = "" if all(g.exact for g in facts.fields.values()) else "at least "
    return [
        ("elements that differ", f"{least}{c.different:,} of {elements:,}"),
        (
            "fields that differ",
            f"{sum(g.different > 0 for g in facts.fields.values())} of {len(facts.fields)}",
        ),
        ("steps that differ", f"{sum(g.different > 0 for g in facts.steps.values())} of {len(facts.steps)}"),
        *([("ranks", f"{len(facts.ranks):,}")] if ranked(c) else []),
        ("data of a run", byte_size(c.bytes_compared)),
        ("of it read", percent(share)),
        ("time", f"{c.seconds:.3g} s"),
        *([("compared on", c.device)] if c.device not in ("", "cpu") else []),
    ]


def _bytes_of_elements_read(c: Comparison) -> float:
    """Of one run: bytes of the elements that were compared one by one, decoded or not."""
    return sum(f.bytes * min(f.elements_read, f.elements) / f.elements for f in c.fields if f.elements)


def _conditions(c: Comparison) -> Table | None:
    found = c.conditions
    if found is None:
        return None
    rows = [(d.group, d.name, d.a, d.b) for d in found]
    return Table(("", "condition", *_names(c.a, c.b)), rows, text=(0, 1), wrap=(2, 3))


def _drawn(facts: _Facts) -> list[str]:
    """Fields that the growth picture draws: those that diverge first, then those with the largest
    difference.
    """
    order = {step: at for at, step in enumerate(facts.steps)}

    def rank(name: str) -> tuple:
        g = facts.fields[name]
        return (order[g.first.step] if g.first is not None else len(order), -(g.largest or 0.0))

    return sorted(facts.fields, key=rank)[:COLOURS]


def _growth(facts: _Facts) -> _Growth | None:
    steps = sorted(s for s in facts.steps if s is not None)
    if len(steps) < 2 or not any((g.largest or 0) > 0 for g in facts.fields.values()):
        return None
    names = _drawn(facts)
    lines, bounds = [], False
    for colour, name in enumerate(names):
        of_max: list[tuple[float, float, bool, str]] = []
        of_rms: list[tuple[float, float, bool, str]] = []
        for step in steps:
            g = facts.by_field.get((step, name))
            if g is None:
                continue
            bounds = bounds or g.bound
            if g.largest is not None:
                said = f"step {step}, {name}: max |a − b| {g.largest_text()}, RMS {g.rms_text()}"
                of_max.append((step, g.largest, g.bound, said))
            if g.rms is not None and not g.squares_are_bounds:
                of_rms.append((step, g.rms, False, ""))
        if of_rms:
            lines.append(Line(name, colour, of_rms, dashed=True))
        if of_max:
            lines.append(Line(name, colour, of_max))
    if not lines:
        return None
    every = {t for ts in facts.tolerances.values() for t in ts.values() if t}
    rules: Sequence[tuple[float, str, int | None]]
    if len(every) == 1:
        only = every.pop()
        rules = [(only, f"tolerance {only:g}", None)]
    else:
        rules = [
            (t, f"tolerance of {name[:20]} {t:g}", at)
            for at, name in enumerate(names)
            for t in facts.tolerances[name].values()
            if t
        ][:4]
    relative = any(t is None and k != "0" for ts in facts.tolerances.values() for k, t in ts.items())
    notes = []
    if bounds:
        notes.append("▽: at most so much, from metadata alone.")
    if relative:
        notes.append("Relative tolerances and those in representable values are no line here.")
    if len(facts.fields) > len(names):
        notes.append(f"Drawn are {len(names)} of {len(facts.fields)} fields, those that part first.")
    rows = [
        (step, name, g.largest_text(), g.rms_text(), g.different_text(), f"{g.elements:,}")
        for step in steps
        for name in names
        if (g := facts.by_field.get((step, name))) is not None
    ]
    title = "Largest and root mean square |a − b| by step and field, logarithmic"
    return _Growth(
        line_chart(lines, rules, title),
        line_chart(lines, rules, title, NARROW),
        names,
        notes,
        _numbers(("step", "field", "max |a − b|", "RMS", "different", "of"), rows, (1,)),
    )


def _numbers(head: Sequence[str], rows: Sequence[Sequence[object]], text: Sequence[int]) -> Table:
    """The numbers of a picture."""
    return Table(head, rows, text).first(_NUMBERS)


def _bins(values: Sequence, most: int) -> list[list]:
    """Joins neighbours, so that at most `most` groups remain."""
    size = max(1, math.ceil(len(values) / most))
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def _span(group: Sequence) -> str:
    first, last = ("no step" if v is None else str(v) for v in (group[0], group[-1]))
    return first if len(group) == 1 else f"{first}–{last}"


def _map(
    title: str,
    groups: dict[tuple, _Group],
    columns: list[list],
    rows: list[list],
    row_names: list[str],
    what: str,
) -> _Map:
    column_of = {v: at for at, group in enumerate(columns) for v in group}
    row_of = {v: at for at, group in enumerate(rows) for v in group}
    sums: dict[tuple[int, int], list] = {}
    for (step, row), g in groups.items():
        cell = sums.setdefault((row_of[row], column_of[step]), [0, 0, 0.0, ""])
        cell[0] += g.different
        cell[1] += g.elements
        cell[2] = None if cell[2] is None or g.largest is None else max(cell[2], g.largest)
        cell[3] = cell[3] if g.exact else "≥ "
    cells: dict[tuple[int, int], tuple[float | None, str]] = {}
    table_rows = []
    for (r, c), (different, elements, largest, least) in sorted(
        sums.items(), key=lambda item: (item[0][1], item[0][0])
    ):
        said = f"step {_span(columns[c])}, {what} {row_names[r]}: {least}{different:,} of {elements:,} differ, max |a − b| {number(largest)}"
        # One in 10^8 is the faintest shade.
        strength = None if not different else 1 + math.log10(different / max(elements, 1)) / 8
        cells[r, c] = (strength, said)
        if different:
            table_rows.append(
                (_span(columns[c]), row_names[r], f"{least}{different:,}", f"{elements:,}", number(largest))
            )
    names = [_span(c) for c in columns]
    said = f"Share of elements that differ by step and {what}"
    fits = len(columns) <= _NARROW_COLUMNS and max(map(len, row_names), default=0) <= _NARROW_NAME
    return _Map(
        title,
        heat_map(row_names, names, cells, said),
        heat_map(row_names, names, cells, said, whole=NARROW) if fits else None,
        _numbers(("step", what, "different", "of", "max |a − b|"), table_rows, (1,)),
    )


def _maps(facts: _Facts) -> list[_Map]:
    if not any(g.different for g in facts.fields.values()):
        return []
    steps = sorted(facts.steps, key=lambda s: -1 if s is None else s)
    columns = _bins(steps, _MAP_COLUMNS)
    out = []
    if len(facts.fields) > 1 or len(steps) > 1:
        names = [n for n, g in facts.fields.items() if g.different]
        names += [n for n, g in facts.fields.items() if not g.different]
        rows = [[n] for n in names[:_MAP_ROWS]]
        labels = list(names[:_MAP_ROWS])
        if len(names) > _MAP_ROWS:
            rows.append(names[_MAP_ROWS:])
            labels.append(f"{len(names) - _MAP_ROWS} more")
        title = f"Step × field ({len(steps)} × {len(names)})"
        out.append(_map(title, facts.by_field, columns, rows, labels, "field"))
    if len(facts.ranks) > 1:
        bins = _bins(sorted(facts.ranks), _MAP_ROWS)
        title = f"Step × rank ({len(steps)} × {len(facts.ranks)})"
        out.append(_map(title, facts.by_rank, columns, bins, [_span(g) for g in bins], "rank"))
    return out


def _where(c: Comparison) -> _Where | None:
    if c.first is None:
        return None
    try:
        found, said = look(c)
    except TwinrunError as error:
        found, said = [], str(error)
    return _Where([_of_field(p, ranked(c)) for p in found], said) if found or said else None


def _of_field(p: Places, with_rank: bool) -> _Field:
    f = p.field
    place = ", ".join(
        ([] if f.step is None else [f"step {f.step}"])
        + ([f"rank {f.rank}"] if with_rank and f.key is None and f.ranks is None else [])
    )
    title = f"{f.field} ({place})" if place else f.field
    line = None
    if p.line is not None and p.line.size:
        ends = [(at * p.bin_size, min((at + 1) * p.bin_size, p.line_length) - 1) for at in range(p.line.size)]
        spans = [_span((low,) if low == high else (low, high)) for low, high in ends]
        counts = p.line.tolist()
        line = bars(
            spans,
            counts,
            counts,
            f"Where {f.field} differs, along its index",
            "index, from",
            [str(low) for low, _ in ends],
        )
    planes = []
    for plane in p.planes:
        said = f"{f.field}: differences in the plane of {plane.labels[0]} and {plane.labels[1]}"
        picture = density(
            plane.counts, plane.ranges, plane.labels, said, behind=plane.behind, upwards=plane.upwards
        )
        planes.append(_Plane(picture, plane.behind is not None))
    with_id = any(i is not None for i, *_ in p.listed)
    numbers = f.kind is None  # the codes of texts mean nothing to a person
    rows = [
        ([i] if with_id else [])
        + ["[" + ", ".join(map(str, index)) + "]"]
        + ([exact(a), exact(b), number(d)] if numbers else [])
        for i, index, a, b, d in p.listed
    ]
    head = (["ID"] if with_id else []) + ["index"] + (["a", "b", "|a − b|"] if numbers else [])
    return _Field(
        title,
        " × ".join(map(str, f.shape)) or "one value",
        f.different,
        f.elements,
        line,
        planes,
        p.note,
        Table(head, rows, text=(0,)),
    )


def _histogram(facts: _Facts) -> _Histogram | None:
    counts, parts = facts.histogram, facts.differing
    if not counts or not any(counts[1:]):
        return None
    edges = histogram_edges()
    names = ["0", f"< {edges[0]:.0e}"]
    names += [f"{low:.0e}".replace("e-0", "e-").replace("e+0", "e") for low in edges[:-1]]
    names += [f"≥ {edges[-1]:.0e}".replace("e+", "e"), "∞"]
    used = [at for at, n in enumerate(counts) if n and at > 0]
    inner = [at for at in used if at < len(counts) - 1]
    shown = list(range(inner[0], inner[-1] + 1)) if inner else []
    shown = ([0] if counts[0] else []) + shown + ([len(counts) - 1] if counts[-1] else [])
    picture = bars(
        [names[at] for at in shown],
        [counts[at] for at in shown],
        [parts[at] for at in shown],
        "How many elements differ by how much, in decades, logarithmic",
        "|a − b|, from",
    )
    rows = [(names[at], f"{counts[at]:,}", f"{parts[at]:,}") for at in shown]
    return _Histogram(picture, _numbers(("|a − b| from", "elements", "different"), rows, ()))


def _fields_table(facts: _Facts, with_rank: bool) -> Table:
    rows = []
    for name, g in facts.fields.items():
        first = g.first
        tolerance = list(facts.tolerances[name])
        rows.append(
            (
                name,
                g.different_text(),
                f"{g.elements:,}",
                "" if first is None else first._place(with_rank),
                g.largest_text(),
                g.rms_text(),
                tolerance[0] + (f" and {len(tolerance) - 1} more" if len(tolerance) > 1 else ""),
            )
        )
    rows.sort(key=lambda r: r[1] == "0")
    head = ("field", "different", "of", "first at", "max |a − b|", "RMS", "tolerance")
    return Table(head, rows, text=(3,)).first(_ROWS)


def _particles(c: Comparison) -> Table:
    rows = []
    for f in c.fields:
        if f.particles is None:
            continue
        p = f.particles
        ids = [f"{word} {', '.join(map(str, p[key]))}" for word, key in
               (("lost", "lost_ids"), ("born", "born_ids"), ("doubled", "doubled_ids")) if p.get(key)]  # fmt: skip
        rows.append(
            (f.field, "" if f.step is None else f.step, *(f"{p[k]:,}" for k in ("matched", "lost", "born")),
             f"{p['doubled_a']:,} and {p['doubled_b']:,}", "not looked at" if p["moved"] is None else f"{p['moved']:,}", "; ".join(ids))
        )  # fmt: skip
    head = (
        "IDs",
        "step",
        "matched",
        "lost",
        "born",
        "doubled in each",
        "on another rank",
        "the first of them",
    )
    return Table(head, rows, wrap=(7,)).first(_ROWS)


def _attributes(c: Comparison) -> Table:
    """Attributes, and other facts beside elements, in which the files differ."""
    rows = [
        (
            "" if d.step is None else d.step,
            d.rank,
            d.label,
            "not there" if d.a is None else d.a,
            "not there" if d.b is None else d.b,
            "changes what its numbers mean" if d.meaning else "",
        )
        for d in c.attributes[:_ROWS]
    ]
    head = ("step", "rank", "attribute", "first run", "second run", "")
    return Table(head, rows, text=(2, 3, 4, 5))


def _in_order(c: Comparison) -> list[FieldComparison]:
    """Every step, rank and field; of very many, those that differ first."""
    if len(c.fields) <= _ROWS:
        return c.fields
    return [*(f for f in c.fields if not f.same), *(f for f in c.fields if f.same)]


def _rows_table(c: Comparison) -> Table:
    with_rank = ranked(c)
    rows = [
        (
            "" if f.step is None else f.step,
            *([f.rank] if with_rank else []),
            f.field,
            f._counted(),
            f"{f.elements:,}",
            "[" + ", ".join(map(str, f.global_index(f.first_index) or ())) + "]" if f.first_index else "",
            "" if f.kind is not None else ("≤ " if f.max_abs_diff_is_bound else "") + number(f.max_abs_diff),
            number(f.max_rel_diff) if f.different and f.kind is None and f.different_is_exact else "",
            tolerance_text(f),
            f.kind or f.dtype,
            " × ".join(map(str, f.shape)),
        )
        for f in _in_order(c)[:_ROWS]
    ]
    head = (
        "step",
        *(["rank"] if with_rank else []),
        "field",
        "different",
        "of",
        "first index",
        "max |a − b|",
        "max rel",
        "tolerance",
        "type",
        "shape",
    )
    return Table(head, rows, text=(2 if with_rank else 1,), left_out=len(c.fields) - len(rows))


def _saved(c: Comparison) -> _Saved:
    saved = _in_order(c)[:_SAVED_ROWS]
    content = json.dumps(
        {
            "verdict": c.verdict,
            "a": c.a,
            "b": c.b,
            "rows_in_all": len(c.fields),
            "columns": _FACTS,
            "rows": [[_json(getattr(f, k)) for k in _FACTS] for f in saved],
            "problems": c.problems[:_MOST_LINES],
            "notes": c.notes[:_MOST_LINES],
        },
        separators=(",", ":"),
        allow_nan=False,
    )
    return _Saved(base64.b64encode(content.encode()).decode(), len(saved))


def _json(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return list(value) if isinstance(value, tuple) else value


def _what_was_read(c: Comparison) -> str:
    """How much was compared one by one, and how much was read for that."""
    one_by_one = _bytes_of_elements_read(c)
    data = byte_size(c.bytes_compared)
    of_all = "All elements" if round(one_by_one) >= c.bytes_compared else f"{byte_size(one_by_one)} of them"
    said = f"Each run has {data} of elements. {of_all} were compared one by one."
    if c.bytes_read:
        return f"{said} For that, {byte_size(c.bytes_read)} of both runs' files was read in place, metadata included."
    if one_by_one:
        return f"{said} Nothing was read in place: elements were decoded, or lay in memory."
    return said


def _read(c: Comparison) -> _Read:
    stages = [
        (
            name,
            f"{s['chunks_in']:,}",
            f"{s['chunks_out']:,}",
            byte_size(s["bytes_read"]),
            f"{s['seconds']:.3g}",
        )
        for name, s in c.stages.items()
        if s["chunks_in"] or s["bytes_read"]
    ]
    reasons = list(dict.fromkeys(f.reason for f in c.fields if f.reason))
    warnings = list(dict.fromkeys(f"{f.field}: {w}" for f in c.fields for w in f.warnings))
    return _Read(
        _what_was_read(c),
        Table(("stage", "chunks in", "left open", "bytes read", "seconds"), stages),
        [*(f"method: {r}" for r in reasons), *(f"warning: {w}" for w in warnings), *c.notes],
    )
