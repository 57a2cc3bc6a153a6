"""Numbers as tables, on a terminal and in a document: the same Markdown, with columns aligned, serves both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from measure import Spread

BEGIN = "<!-- measured: begin; make bench BENCH_ARGS='--write docs/benchmark-tables.md' rewrites this -->"
END = "<!-- measured: end -->"


def number(x: float) -> str:
    """Three digits that count."""
    if x >= 1000:
        return f"{x:,.0f}".replace(",", " ")
    if x >= 100:
        return f"{x:.0f}"
    return f"{x:#.3g}"


def spread(s: Spread | None) -> str:
    """'12.3 (11.9 to 12.8)'."""
    if s is None:
        return ""
    low, high = number(min(s.values)), number(max(s.values))
    return number(s.median) if low == high else f"{number(s.median)} ({low} to {high})"


def percent(share: float | None) -> str:
    """'0.1%'; nothing is '0', and never a rounded something."""
    if share is None:
        return ""
    if share == 0:
        return "0"
    x = 100 * share
    if x >= 99.95:
        return ">99.9%" if x < 100 else "100%" if x < 100.05 else f"{x:.1f}%"
    return f"{x:.1f}%" if x >= 10 else f"{x:.2g}%" if x >= 0.01 else f"{x:.1e}%"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned table: the first column to the left, the others to the right."""
    widths = [max(len(r[i]) for r in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *padded]) + " |"

    rule = "|" + "-" * (widths[0] + 2) + "|" + "".join("-" * (w + 1) + ":|" for w in widths[1:])
    return "\n".join([line(header), rule, *map(line, rows)])


def split(document: Path, marks: tuple[str, str] = (BEGIN, END)) -> tuple[str, str]:
    """What comes before and after the measured part of a document, marks included. ValueError if it has none."""
    text = document.read_text()
    begin, end = marks
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{document}: lacks the lines {begin!r} and {end!r}")
    return text[: text.index(begin) + len(begin)], text[text.index(end) :]


def rewrite(document: Path, measured: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Puts text between the marks of a document."""
    head, tail = split(document, marks)
    document.write_text(f"{head}\n\n{measured.strip()}\n\n{tail}")
