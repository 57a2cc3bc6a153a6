"""Every differing element as a table, in a Parquet or CSV file: step, rank, field, index, id, a, b, abs_diff.

Values are doubles, which hold all types except 64-bit integers: those are in a_integer and b_integer too, and
IDs in a type that holds every one of them. Rows are written as they are found, so that memory stays bounded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from ..arithmetic import any_values
from ..comparison.differences import Differences, differences
from ..comparison.work import Comparison
from ..errors import MissingPackage, TwinrunError
from ..outputs import csv_writer, replacing

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

if TYPE_CHECKING:
    import pyarrow

__all__ = ["COLUMNS", "write_differences"]

COLUMNS = ("step", "rank", "field", "index", "id", "a", "b", "abs_diff", "a_integer", "b_integer")
_ROW_GROUP = 1 << 18  # rows
_LONG = frozenset({"i64", "u64"})  # types that doubles do not hold


class _Out(Protocol):
    def add(self, part: Differences) -> None: ...
    def close(self) -> None: ...


@any_values
def write_differences(comparison: Comparison, path: str | os.PathLike[str]) -> int:
    """Writes every difference into a Parquet file, or CSV where its name ends in .csv, whole or not at all.

    Returns how many.

    Raises MissingPackage without pyarrow, Stale where the data changed since, and what reading raises.
    """
    path = os.fspath(path)
    is_csv = path.lower().endswith(".csv")
    if not is_csv:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingPackage.of("pyarrow", "twinrun[parquet]", path) from None
    count = 0
    with _replacing(path) as temporary:
        out: _Out = _Csv(temporary) if is_csv else _Parquet(temporary, comparison)
        try:
            for part in differences(comparison):
                out.add(part)
                count += part.count
        finally:
            out.close()
    return count


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """A temporary name beside the file, which replaces it at the end; after an error it is as it was."""
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe is not replaced
        raise TwinrunError(
            "cannot write the differences: it is not a regular file", where=path, fix="name another file"
        )
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as e:
        raise TwinrunError(
            f"cannot write the differences: {e.strerror or e}",
            where=path,
            fix="name another file with --list-differences",
        ) from None


def _text(name: str) -> str:
    """A text that UTF-8 can hold: names of files may be any bytes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


class _Parquet:
    def __init__(self, path: str, comparison: Comparison) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        differing = [f for f in comparison.fields if not f.same]
        types = {t for f in differing for t in f.types or (f.dtype,)}
        keys = {f.key for f in differing if f.key is not None}
        self._id = _exact(
            pa, {f.dtype for f in comparison.fields if f.field in keys and f.particles is not None}
        )
        self._integer = _exact(pa, types & _LONG)
        columns = (pa.int64(), pa.int32(), pa.string(), pa.list_(pa.int64()), self._id, pa.float64(), pa.float64(),
                 pa.float64(), self._integer, self._integer)  # fmt: skip
        facts = {"twinrun.verdict": comparison.verdict, "twinrun.a": comparison.a, "twinrun.b": comparison.b,
                 "twinrun.problems": str(len(comparison.problems))}  # fmt: skip
        self._schema = pa.schema(
            list(zip(COLUMNS, columns, strict=True)), metadata={k: _text(v) for k, v in facts.items()}
        )
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[pyarrow.RecordBatch] = []
        self._rows = 0

    def add(self, part: Differences) -> None:
        pa, n, width = self._pa, part.count, part.index.shape[1]
        if not n:
            return
        offsets = pa.array(np.arange(n + 1, dtype=np.int32) * width)
        missing = [None if held is None else ~held for held in (part.in_a, part.in_b)]
        values = [
            pa.array(v.astype(np.float64), mask=m) for v, m in zip((part.a, part.b), missing, strict=True)
        ]
        nothing = pa.nulls(n, self._integer)
        whole = [
            _column(pa, v, self._integer, m) if _is_long(v) else nothing
            for v, m in zip((part.a, part.b), missing, strict=True)
        ]
        step = part.field.step
        self._waiting.append(
            pa.record_batch(
                [
                    pa.nulls(n, pa.int64()) if step is None else pa.repeat(pa.scalar(step, pa.int64()), n),
                    pa.repeat(pa.scalar(part.field.rank, pa.int32()), n),
                    pa.repeat(_text(part.field.field), n),
                    pa.ListArray.from_arrays(offsets, pa.array(part.global_index.reshape(-1))),
                    pa.nulls(n, self._id) if part.ids is None else _column(pa, part.ids, self._id, None),
                    *values,
                    pa.nulls(n, pa.float64()) if part.field.kind is not None else pa.array(part.abs_diff),
                    *whole,
                ],
                schema=self._schema,
            )
        )
        self._rows += n
        if self._rows >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(
                self._pa.Table.from_batches(self._waiting, self._schema), row_group_size=_ROW_GROUP
            )
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _exact(pa: Any, dtypes: set[str]) -> Any:
    """The type of a column that holds all integers of these types."""
    if "u64" in dtypes:
        return pa.uint64() if all(d.startswith("u") for d in dtypes) else pa.decimal128(20, 0)
    return pa.int64()


def _is_long(values: np.ndarray) -> bool:
    """Whether they are 64-bit integers, which a column of float64 would round."""
    return values.dtype.kind in "iu" and values.dtype.itemsize == 8


def _column(pa: Any, values: np.ndarray, kind: Any, mask: np.ndarray | None) -> Any:
    """Integers in a column of a type that `_exact` chose."""
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(int(v)) for v in values], kind, mask=mask)
    return pa.array(values, kind, mask=mask)


class _Csv:
    def __init__(self, path: str) -> None:
        self._file = open(path, "w", newline="", encoding="utf-8")
        self._rows = csv_writer(self._file)
        self._rows.writerow(COLUMNS)

    def add(self, part: Differences) -> None:
        f = part.field
        front = ("" if f.step is None else f.step, f.rank, _text(f.field))
        values = []
        long = _is_long(part.a), _is_long(part.b)
        for of, held in ((part.a, part.in_a), (part.b, part.in_b)):
            texts = [repr(v) for v in of.tolist()]
            values.append(
                texts if held is None else [t if h else "" for t, h in zip(texts, held, strict=True)]
            )
        ids = [""] * part.count if part.ids is None else part.ids.tolist()
        for index, name, a, b, diff in zip(
            part.global_index.tolist(), ids, *values, part.abs_diff.tolist(), strict=True
        ):
            exact = (a if long[0] else "", b if long[1] else "")
            apart = "" if f.kind is not None else repr(diff)
            self._rows.writerow((*front, " ".join(map(str, index)), name, a, b, apart, *exact))

    def close(self) -> None:
        self._file.close()
