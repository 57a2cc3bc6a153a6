"""Parquet files: each column is a field, of its own type, with a mask where it lacks values.

pyarrow reads them, a batch of a row group at a time.
"""

from __future__ import annotations

import bisect
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, Unsupported
from .arrow import (
    arrow_metadata,
    arrow_type,
    categories_of,
    code_of,
    digests_of,
    import_pyarrow,
    is_missing,
    numbers_of,
)
from .columns import MOST_COLUMNS, add_column, say_order, unique
from .files import open_regular, reading
from .model import FileContent, unreadable
from .parquet_footer import null_counts
from .texts import MASK, SUFFIX, encode_object

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["open_parquet"]

# of Parquet: above the best compression, of runs of one value or of missing values
_ROWS_A_BYTE = 1 << 20
_BATCH = 1 << 16


class _ParquetColumn:
    """A column of a Parquet file, read batch by batch from the row group that contains the requested row.

    rows: the first row of each row group, then the number of all rows. Thread-safe by `lock`, which all
    columns share.
    """

    def __init__(
        self, file: Any, path: str, at: int, rows: Sequence[int], name: str, lock: threading.Lock
    ) -> None:
        self._file, self._path, self._at, self._rows, self._name, self._lock = (
            file,
            path,
            at,
            rows,
            name,
            lock,
        )
        self._batches: Iterator[Any] | None = None
        self._next = 0  # first row after the last batch
        self._first, self._batch = 0, None

    def read(self, first: int, count: int, take: Any) -> np.ndarray:
        """Rows [first, first + count), converted batch by batch: `take(batch)` returns an array."""
        parts = []
        with self._lock:
            while count:
                batch = self._batch_with(first)
                skip = first - self._first
                part = take(batch.slice(skip, count))
                if len(part) == 0:
                    raise DamagedFile(
                        f"column {self._name!r:.80} has fewer rows than its footer says", where=self._path
                    )
                parts.append(part)
                first, count = first + len(part), count - len(part)
        return np.concatenate(parts)

    def whole(self, batch: Any) -> Any:
        """The batch itself.

        Raises DamagedFile if it lacks values although the file's statistics say that none is missing.
        """
        if batch.null_count:
            raise DamagedFile(
                f"column {self._name!r:.80} lacks values, but its statistics say that it lacks none",
                where=self._path,
            )
        return batch

    def text(self, row: int) -> str:
        """The value of a row as text."""
        with self._lock:
            return repr(self._batch_with(row)[row - self._first].as_py())

    def _batch_with(self, row: int) -> Any:
        """The batch that contains a row. The caller holds the lock."""
        if self._batches is None or row < self._first:
            group = bisect.bisect_right(self._rows, row) - 1
            groups = range(group, len(self._rows) - 1)
            self._batches = self._file.iter_batches(
                _BATCH, row_groups=list(groups), columns=[self._name], use_threads=False
            )
            self._first = self._next = self._rows[group]
            self._batch = None
        while self._batch is None or row >= self._next:
            batch = next(self._batches, None)
            if batch is None:
                raise DamagedFile(
                    f"column {self._name!r:.80} has fewer rows than its footer says", where=self._path
                )
            self._first, self._next = self._next, self._next + batch.num_rows
            self._batch = batch.column(0)
        return self._batch


def open_parquet(path: str) -> FileContent:
    pa, pq = import_pyarrow(path)
    file, size = open_regular(path)
    with file, reading(path, "Parquet"):
        counts = null_counts(file, size)
    content = FileContent(path, "table", dialect="parquet")
    with reading(path, "Parquet"):
        limits = {"thrift_string_size_limit": 1 << 26, "thrift_container_size_limit": 1 << 22}
        schema = pq.read_schema(path)
        texts = [
            f.name
            for f in schema
            if pa.types.is_string(f.type) or pa.types.is_large_string(f.type) or pa.types.is_binary(f.type)
        ]
        opened = pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False, **limits)
    content.on_close = opened.close
    try:
        with reading(path, "Parquet"):
            _add_parquet(content, opened, schema, size, counts, pa)
    except BaseException:
        content.close()
        raise
    return content


def _add_parquet(
    content: FileContent,
    opened: Any,
    schema: Any,
    size: int,
    counts: dict[str, int | None],
    pa: ModuleType,
) -> None:
    """Adds the columns of an opened file.

    size: its bytes. counts: {column: number of missing values, None if unknown}.
    """
    path = content.path
    rows = _row_groups(opened.metadata, size, path)
    if len(schema) > MOST_COLUMNS:
        raise Unsupported(f"more than {MOST_COLUMNS} columns", where=path)
    lock = threading.Lock()
    names = unique(schema.names)
    say_order(content, names)
    fields = {
        entry.name: name if code_of(entry.type, pa)[0] else name + SUFFIX
        for name, entry in zip(names, schema, strict=True)
    }
    for column, key, value in arrow_metadata(schema, pa):
        own, dot, inner = (column, "", "") if column in fields else column.partition(".")
        content.say(fields.get(own, own) + dot + inner, key, value)
    refused = _not_selectable(schema.names)
    for at, (name, entry) in enumerate(zip(names, schema, strict=True)):
        code, unit = code_of(entry.type, pa)
        own = name if code else name + SUFFIX
        content.say(own, "(type)", arrow_type(entry, pa), meaning=True)
        if (why := refused.get(entry.name)) is not None:
            problem = Unsupported(why, where=path)
            content.add(unreadable(name, code or "u64", sys.byteorder, (rows[-1],), problem))
            continue
        batches = (b.column(0) for b in opened.iter_batches(_BATCH, columns=[entry.name], use_threads=False))
        for inner, categories in categories_of(entry, batches, pa).items():
            content.say(own + inner, "(categories)", categories, encode=encode_object, meaning=True)
        source = _ParquetColumn(opened, path, at, rows, entry.name, lock)
        if code is None:
            add_column(content, name, None, rows[-1],
                        lambda f, n, c=source: c.read(f, n, lambda batch: digests_of(batch, pa)),
                        text=lambda index, c=source: c.text(index[0]))  # fmt: skip
            continue
        masked = entry.nullable and _has_missing(opened, entry.name, counts)
        add_column(content, name, code, rows[-1],
                    lambda f, n, c=source, code=code, masked=masked: c.read(f, n, lambda batch: numbers_of(
                        batch if masked else c.whole(batch), code, pa)), unit)  # fmt: skip
        if masked:
            content.say(f"{name}{MASK}", "(type)", f"where {name} has no value", meaning=True)
            mask = _ParquetColumn(opened, path, at, rows, entry.name, lock)
            add_column(content, f"{name}{MASK}", "bool", rows[-1],
                        lambda f, n, c=mask: c.read(f, n, is_missing))  # fmt: skip


def _row_groups(meta: Any, size: int, path: str) -> list[int]:
    """The first row of each row group, and the number of all rows. size: bytes of the file."""
    rows = [0]
    for group in range(meta.num_row_groups):
        here = meta.row_group(group).num_rows
        if here < 0:
            raise DamagedFile(f"row group {group} has {here} rows", where=path)
        rows.append(rows[-1] + here)
    if rows[-1] != meta.num_rows or rows[-1] > size * _ROWS_A_BYTE:
        raise DamagedFile(
            f"its footer claims {meta.num_rows} rows in {size} bytes, its row groups claim {rows[-1]}",
            where=path,
        )
    return rows


def _not_selectable(names: Sequence[str]) -> dict[str, str]:
    """Columns that pyarrow cannot read alone, and why: it takes a dot for a path into a struct."""
    why = {n: "pyarrow cannot select a column with a dot in its name" for n in names if "." in n}
    if len(set(names)) < len(names):
        why |= {n: "several columns have this name" for n in names if names.count(n) > 1}
    return why


def _has_missing(opened: Any, name: str, counts: dict[str, int | None]) -> bool:
    """Whether a column has missing values: from its statistics, or from its values if there are no
    statistics."""
    count = counts.get(name)
    if count is not None:
        return count > 0
    batches = opened.iter_batches(_BATCH, columns=[name], use_threads=False)
    return any(batch.column(0).null_count for batch in batches)
