"""What pages have in common: the classes of verdicts, and tables. Their markup: templates/parts.html.j2."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BAD", "GOOD", "OPEN", "Table"]

GOOD, BAD, OPEN = "good", "bad", "open"  # classes of verdicts


@dataclass
class Table:
    """A table; without rows it is not shown.

    text: columns that are aligned left. wrap: columns whose lines may break. left_out: rows that
    the page does not have.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: Sequence[int] = ()
    wrap: Sequence[int] = ()
    left_out: int = 0

    def between(self, start: int, end: int) -> Table:
        """The same with some of its rows."""
        rows = self.rows[start:end]
        return dataclasses.replace(self, rows=rows, left_out=self.left_out + len(self.rows) - len(rows))

    def first(self, most: int) -> Table:
        """The same table with at most this many rows."""
        return self.between(0, most)
