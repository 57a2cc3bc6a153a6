"""Tasks as a table for other programs: Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import MissingFile, MissingPackage
from ...outputs import replacing
from .record import read_lines

__all__ = ["flat_rows", "write_parquet"]


def _flat(value: Mapping, prefix: str, row: dict) -> None:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and key not in ("capture", "results"):
            _flat(item, f"{name}.", row)
        elif isinstance(item, (Mapping, list)) and key not in ("cores", "frequency_hz"):
            row[name] = json.dumps(item)
        else:
            row[name] = item


def flat_rows(folder: str | os.PathLike[str]) -> list[dict]:
    """A row for each attempt: nested keys joined by dots, lists of numbers unchanged, other values as JSON.

    Raises MissingFile.
    """
    path = Path(folder) / "tasks.jsonl"
    if not path.is_file():
        raise MissingFile("there are no tasks", where=path)
    rows = []
    for line in read_lines(path)[0]:
        row: dict = {}
        _flat(line, "", row)
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def write_parquet(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Writes the tasks of a study; returns how many. Raises MissingPackage without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingPackage.of("pyarrow", "twinrun[parquet]", target) from None
    rows = flat_rows(folder)
    for name in rows[0] if rows else ():
        kinds = {type(r[name]) for r in rows if r[name] is not None}
        if kinds == {int, float}:
            for row in rows:
                row[name] = None if row[name] is None else float(row[name])
    table = pyarrow.Table.from_pylist(rows)
    with replacing(target) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    return len(rows)
