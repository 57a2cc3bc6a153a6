"""A golden check for a terminal, and as a JSON document."""

from __future__ import annotations

import dataclasses
import re

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._core import __version__
from ..errors import one_line
from ..golden import GoldenCheck, GoldenField, GoldenProblem
from ..golden.words import element_text, largest_text, span_text, tolerance_text
from ..words import byte_size, counted, counted_steps
from .document import _plain, attribute_document

__all__ = ["field_text", "golden_document", "golden_line", "print_golden", "without_rank"]

MOST_ROWS = 40
MOST_ELEMENTS = 5  # a field
_MOST_FIELDS = 10  # fields whose elements are shown


def field_text(f: GoldenField) -> str:
    """The main fact of a field that does not agree, on one line."""
    first = f.first
    if f.verdict == "different":
        if first is not None and first.verdict == "different":
            return element_text(first, f)
        return next(span_text(s, f) for s in f.spans if s.verdict == "different")
    if first is not None:
        return element_text(first, f)
    return span_text(f.spans[0], f) if f.spans else "agrees"


def _ranked(c: GoldenCheck) -> bool:
    """Whether ranks are worth a word: a run without them is rank 0 alone."""
    ranks = [f.rank for f in c.fields] + [p.rank for p in c.problems] + [a.rank for a in c.attributes]
    return any(ranks)


def _prefix(c: GoldenCheck, f: GoldenField) -> str:
    return ("" if f.step is None else f"step {f.step}, ") + (f"rank {f.rank}, " if _ranked(c) else "")


_AT_RANK_0 = re.compile(r"(?:(step -?\d+), )?rank 0(?:, (.*))?", re.DOTALL)


def without_rank(c: GoldenCheck, place: str) -> str:
    """'step 3, rank 0, x' as 'step 3, x', where there are no ranks."""
    found = None if _ranked(c) else _AT_RANK_0.fullmatch(place)
    return place if found is None else ", ".join(part for part in found.groups() if part)


def _said(c: GoldenCheck, p: GoldenProblem) -> str:
    return ": ".join(t for t in (without_rank(c, p.place()), p.text) if t)


def _attributes(c: GoldenCheck) -> str:
    first = c.attributes[0]
    more = f" (and {len(c.attributes) - 1} more)" if len(c.attributes) > 1 else ""
    place = without_rank(c, first.place())
    return f"attributes are not what they were: {f'{place}: ' if place else ''}{first.text()}{more}"


def golden_line(c: GoldenCheck) -> str:
    """The verdict, on one line."""
    if c.verdict == "incomparable":
        n = len(c.problems)
        first = c.problems[0] if c.problems else None
        said = "nothing was compared" if first is None else _said(c, first)
        more = f" (and {n - 1} more)" if n > 1 else ""
        apart = c.first
        also = (
            (f"; {_attributes(c)}" if c.attributes else "")
            if apart is None or apart.verdict != "different"
            else f"; different: {_prefix(c, apart)}{field_text(apart)}"
        )
        return one_line(f"could not compare: {said}{more}{also}")
    field = c.first
    if c.attributes and (field is None or field.verdict != "different"):
        return one_line(f"different: {_attributes(c)}")
    if field is not None and field.verdict == "different":
        place, text = _prefix(c, field), field_text(field)
        if field.first is not None and field.first.verdict == "different":
            return one_line(f"different: first at {place}{text}")
        return one_line(f"different: {f'at {place}' if place else ''}{text}")  # of a stretch, not an element
    if field is not None:
        counts = (
            "passes, as requested"
            if c.undecided_passes
            else "counts as different (--undecided pass lets it pass)"
        )
        return one_line(f"undecided within one cell: {_prefix(c, field)}{field_text(field)}; {counts}")
    elements = sum(f.elements for f in c.fields)
    data = sum(f.bytes for f in c.fields)
    tolerances = {tolerance_text(f) for f in c.fields if f.atol or f.rtol or f.ulps}
    within = (
        f" within {tolerances.pop()}" if len(tolerances) == 1 else " within tolerance" if tolerances else ""
    )
    names = len({f.field for f in c.fields})
    return (
        f"same: {counted(names, 'field')}, {counted_steps(f.step for f in c.fields)}, {counted(elements, 'element')} "
        f"({byte_size(data)}) agree{within} with {byte_size(c.golden_bytes)} of golden files"
    )


def _count(f: GoldenField) -> str:
    if f.different:
        return ("" if f.different_is_exact else "at least ") + str(f.different)
    if f.verdict == "undecided":
        return f"{f.undecided}?" if not f.chunks_undecided else "?"
    return "0"


def print_golden(console: Console, c: GoldenCheck) -> None:
    """Prints notes, problems, table, elements, and the verdict last."""
    for note in c.notes[:10]:
        console.print(Text(one_line(f"note: {note}")), soft_wrap=True, style="dim")
    # A problem that is alone is in the verdict.
    for p in c.problems[:10] if len(c.problems) > 1 or c.fields else []:
        console.print(Text(one_line(f"not compared: {_said(c, p)}")), soft_wrap=True, style="yellow")
    if len(c.problems) > 10:
        console.print(
            f"… and {len(c.problems) - 10} more that were not compared: --json has all", style="yellow"
        )
    order = {"different": 0, "undecided": 1, "same": 2}
    shown = c.fields
    if len(shown) > MOST_ROWS:
        chosen = {id(f) for f in sorted(c.fields, key=lambda f: order[f.verdict])[:MOST_ROWS]}
        shown = [f for f in c.fields if id(f) in chosen]
    if shown:
        _print_table(console, shown)
    if len(c.fields) > len(shown):
        console.print(f"… and {len(c.fields) - len(shown)} more rows: --json has all", style="dim")
    for f in [f for f in c.fields if f.verdict != "same"][:_MOST_FIELDS]:
        lines = [element_text(e, f) for e in f.listed[:MOST_ELEMENTS]]
        if not f.different_is_exact or not lines:
            lines = [span_text(s, f) for s in f.spans if not s.exact][:MOST_ELEMENTS] + lines[:1]
        for line in dict.fromkeys(lines):  # a text has several words of digest
            console.print(Text(one_line(f"  {_prefix(c, f)}{line}")), soft_wrap=True)
    for d in c.attributes[:MOST_ELEMENTS]:
        place = without_rank(c, d.place())
        console.print(Text(one_line(f"  {f'{place}: ' if place else ''}{d.text()}")), soft_wrap=True)
    if len(c.attributes) > MOST_ELEMENTS:
        more = len(c.attributes) - MOST_ELEMENTS
        console.print(f"  … and {more} more attributes: --json has all", style="dim")
    style = {"same": "bold green", "undecided": "bold yellow"}.get(c.verdict, "bold red")
    console.print(Text(golden_line(c), style=style), soft_wrap=True)


def _print_table(console: Console, shown: list[GoldenField]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    with_step = any(f.step is not None for f in shown)
    with_rank = any(f.rank != 0 for f in shown)
    for name, there in (("step", with_step), ("rank", with_rank)):
        if there:
            table.add_column(name, justify="right")
    table.add_column("field")
    for name in ("different", "of", "max |a-b|", "tolerance"):
        table.add_column(name, justify="right")
    for f in shown:
        color = {"same": "green", "undecided": "yellow"}.get(f.verdict, "red")
        cells = ([Text("" if f.step is None else str(f.step))] if with_step else []) + (
            [Text(str(f.rank))] if with_rank else []
        )
        cells += [
            Text(one_line(f.field)), Text(_count(f), style=color), Text(str(f.elements)), Text(largest_text(f)), Text(tolerance_text(f))
        ]  # fmt: skip
        table.add_row(*cells)
    console.print(table)


def golden_document(c: GoldenCheck) -> dict:
    """All facts of a check."""
    first = c.first
    told = None if first is None else first.first
    if first is not None and told is not None and told.verdict != first.verdict:
        told = None  # the element is unknown
    return _plain(
        {
            "twinrun": __version__,
            "verdict": c.verdict,
            "golden": c.golden,
            "run": c.run,
            "status": c.status,
            "different": c.different,
            "first_divergence": None
            if first is None
            else {"step": first.step, "rank": first.rank, "field": first.field, "verdict": first.verdict,
                  "index": None if told is None else list(told.index), "text": field_text(first)},
            "fields": [{**dataclasses.asdict(f), "verdict": f.verdict} for f in c.fields],
            "attributes": [attribute_document(d) for d in c.attributes],
            "attributes_compared": c.attributes_compared,
            "problems": [dataclasses.asdict(p) for p in c.problems],
            "undecided_passes": c.undecided_passes,
            "notes": c.notes,
            "golden_bytes": c.golden_bytes,
            "golden_provenance": c.provenance,
            "seconds": c.seconds,
        }
    )  # fmt: skip
