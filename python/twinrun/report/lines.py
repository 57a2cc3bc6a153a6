"""Lines and tables for people: printed by Rich on terminals, and without it elsewhere, with the same bytes.

Rich takes longer to import than most comparisons take, and a millisecond for each row of a table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Cell", "Grid", "Line", "print_parts", "write_parts"]


class Line:
    """A line of the report. wraps: at the width of the terminal, as sentences without names do.
    bare: the style is the text's own.
    """

    def __init__(self, text: str, style: str = "", wraps: bool = False, bare: bool = False) -> None:
        self.text, self.style, self.wraps, self.bare = text, style, wraps, bare


Cell = tuple[str, str]  # text, style


class Grid:
    """A table whose texts are never cut. columns: title, and whether its cells are right-aligned.
    folds: on a terminal that is too narrow, long cells are folded.
    """

    def __init__(
        self, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Cell]], folds: bool = False
    ) -> None:
        self.columns, self.rows, self.folds = columns, rows, folds

    def width(self, measure: Callable[[str], int]) -> int:
        """Columns of the terminal that the longest line needs."""
        return sum(self._widths(measure)) + 2 * (len(self.columns) - 1)

    def _widths(self, measure: Callable[[str], int]) -> list[int]:
        rows = [[title for title, _ in self.columns], *([text for text, _ in row] for row in self.rows)]
        return [max(map(measure, column)) for column in zip(*rows, strict=True)]

    def lines(self, measure: Callable[[str], int]) -> Iterator[list[Cell]]:
        """The lines as texts with their styles: columns two spaces apart, each as wide as its widest cell."""
        widths = self._widths(measure)
        for cells in ([(title, "dim") for title, _ in self.columns], *self.rows):
            line: list[Cell] = []
            gap = 0
            for (text, style), (_, right), width in zip(cells, self.columns, widths, strict=True):
                fill = width - measure(text)
                before = gap + (fill if right else 0)
                if text:
                    line += [(" " * before, ""), (text, style)] if before else [(text, style)]
                    gap = 2 + (0 if right else fill)
                else:
                    gap += width + 2
            yield line


def print_parts(console: Console, parts: Iterable[Line | Grid]) -> None:
    """Prints lines and tables on a terminal."""
    from rich.cells import cell_len
    from rich.text import Text

    for part in parts:
        if isinstance(part, Grid):
            if part.folds and console.is_terminal and part.width(cell_len) > console.width:
                console.print(_table_of(part))
                continue
            for line in part.lines(cell_len):
                console.print(Text.assemble(*line), soft_wrap=True)
        elif part.wraps:
            console.print(part.text, style=part.style)
        elif part.bare:
            console.print(Text(part.text, style=part.style), soft_wrap=True)
        else:
            console.print(Text(part.text), style=part.style, soft_wrap=True)


def write_parts(stream: TextIO | None, parts: Iterable[Line | Grid]) -> bool:
    """Writes what `print_parts` prints where there is no terminal, without Rich.

    False, with nothing written, where the lines need Rich: for a terminal, where the environment
    asks for colours, where sentences are longer than the terminal is wide, and for characters that
    take no or two places.
    """
    if stream is None or stream.isatty() or any(name in os.environ for name in _COLOURS):
        return False
    lines: list[str] = []
    width = _width()
    for part in parts:
        if isinstance(part, Grid):
            lines += ("".join(text for text, _ in line) for line in part.lines(len))
        else:
            lines.append(part.text)
            if (part.wraps and len(part.text) > width) or part.text != part.text.rstrip():
                return False
    text = "\n".join(lines)
    if not text.isascii() and not all(c.isascii() or c in _NARROW for c in set(text)):
        return False
    if not text.replace("\n", "").isprintable() or not all(lines):
        return False
    stream.write(text + "\n")
    stream.flush()
    return True


# The variables that make Rich take any stream for a terminal.
_COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_NARROW = frozenset(
    "█·≤…|×▁▂▃▄▅▆▇"
)  # of our own; names of other scripts may be wider than their number of characters


def _width() -> int:
    """Columns that lines may have at least: where nothing is a terminal, Rich takes 80."""
    found = [80]
    if os.environ.get("COLUMNS", "").isdigit():
        found.append(int(os.environ["COLUMNS"]))
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                found.append(os.get_terminal_size(stream.fileno()).columns)
        except (AttributeError, OSError, ValueError):
            continue
    return min(found)


def _table_of(grid: Grid) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title, right in grid.columns:
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(Text(text, style=style) for text, style in row))
    return table
