"""The common parts of tables of text and of Parquet: each column is a field."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .facts import Fact
from .model import Field, FileContent, decoded
from .texts import SUFFIX, column_name

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["MOST_COLUMNS", "add_column", "say_order", "unique"]

MOST_COLUMNS = 100_000


def unique(names: Sequence[str]) -> list[str]:
    """Unique names of columns: `index` for a first column without a name (pandas' index), `a#2` for the
    second `a`."""
    seen: dict[str, int] = {}
    result = []
    for at, name in enumerate(names):
        name = column_name(name) or ("index" if at == 0 else f"column_{at}")
        while True:
            number = seen[name] = seen.get(name, 0) + 1
            if number == 1:
                break
            name = f"{name}#{number}"
        result.append(name)
    return result


def say_order(content: FileContent, names: Sequence[str]) -> None:
    content.add_fact(replace(Fact.of("", "(columns)", list(names)), order=tuple(names)))


def add_column(
    content: FileContent,
    name: str,
    code: str | None,
    rows: int,
    read: Any,
    unit: str | None = None,
    text: Any = None,
    told_as_text: bool = False,
) -> None:
    """Adds the field of a column.

    code: its type; None for text, then `read` returns digests and `text(index)` the text.
    """
    if code is not None:
        reader = decoded(name, code, rows, content.path, read)
        content.add(
            Field(name, code, sys.byteorder, (rows,), read=reader, unit=unit, told_as_text=told_as_text)
        )
        return
    name += SUFFIX

    def read_words(first: int, count: int) -> np.ndarray:
        begin, end = first // 2, -(-(first + count) // 2)
        words = read(begin, end - begin).reshape(-1)
        return words[first - 2 * begin :][:count]

    reader = decoded(name, "u64", 2 * rows, content.path, read_words)
    content.add(Field(name, "u64", sys.byteorder, (rows, 2), read=reader, text=text))
