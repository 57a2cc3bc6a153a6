"""Tables: text with commas, tabs or spaces (CSV, numpy.savetxt, pandas.to_csv), and Parquet. Each column is a
field.

pandas reads text, a block of lines at a time; pyarrow reads Parquet, a batch of a row group at a time.
Numeric columns of a text table are i64, u64, f64 or bool; those of Parquet keep their type. Every other
column is text, which is compared exactly by digests (see `texts`). Missing numbers are NaN in text tables,
and have a mask in Parquet.
"""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import json
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import DamagedFile, FormatError, MissingPackage, Unsupported
from .facts import Fact
from .files import open_regular, read_exact, reading
from .model import Field, FileContent, Format, decoded, dtype_of, unreadable
from .parquet_footer import null_counts
from .texts import MASK, SUFFIX, column_name, encode_object, printable, text_digests

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["arrow_columns", "arrow_metadata", "arrow_type", "looks_like_table"]

_HEAD = 1 << 16
_BLOCK = 1 << 20
_LONGEST_RECORD = 64 << 20
_MOST_COLUMNS = 100_000
_CACHE_BYTES = 128 << 20
_SAMPLED = 200  # lines
_TEXT_SUFFIXES = (".csv", ".tsv", ".tab")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_SOME_TEXT = (".txt", ".dat", ".asc", ".xvg", ".out", ".data")
_COMMENT = "#%@"
_NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE
)
_LONG_INTEGER = r"\s*[+-]?\d{16,}\s*"
_EXACT = 1 << 53  # integers up to it are exact in f64
_MISSING = ["", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "<NA>", "null", "NULL"]
_WORD = re.compile(r'"(?:[^"]|"")*"|\S+')
_ROWS_A_BYTE = 1 << 20  # of Parquet: above the best compression, of runs of one value or of missing values
_BATCH = 1 << 16
_PARQUET = b"PAR1"


_EXACT_NUMBERS = {"float_precision": "round_trip"}


def _rounds_wrong(pandas: ModuleType) -> bool:
    """Whether this pandas needs float_precision='round_trip' to read the last digit of numbers correctly.

    Versions before 3.1 do. Later ones are always exact, and warn about the option.
    """
    return tuple(int(n) for n in pandas.__version__.split(".")[:2]) < (3, 1)


# ---- recognising a table of text ----


@dataclass(frozen=True)
class _Layout:
    """The layout of a table of text.

    delimiter: None for spaces. begin: offset of the first row of values, in bytes. comments: the lines in
    front of it.
    """

    delimiter: str | None
    names: tuple[str, ...]
    begin: int
    comments: tuple[str, ...] = ()


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return _WORD.findall(line)
    return next(csv.reader([line], delimiter=delimiter), [])


def _records(lines: Sequence[str], delimiter: str | None, whole: bool) -> list[tuple[int, list[str]]]:
    """(number of its first line, cells) of the first rows, at most about _SAMPLED. A quoted text may span
    several lines.

    whole: `lines` are the whole file; otherwise the last row is left out, because it may be incomplete.
    Returns an empty list if `lines` are not valid CSV.
    """
    found: list[tuple[int, list[str]]] = []
    if delimiter is None:
        for at, line in enumerate(lines):
            if line.strip() and not line.lstrip().startswith("#"):
                found.append((at, _cells(line, None)))
            if len(found) > _SAMPLED:
                break
        return found
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    try:
        at = 0
        for row in reader:
            if row:
                found.append((at, row))
            at = reader.line_num
            if len(found) > _SAMPLED:
                return found
    except csv.Error:
        return []
    if not whole and len(found) > 1:
        found.pop()  # may end within a text
    return found


def _numeric(cell: str, missing: bool = True) -> bool:
    return _NUMBER.fullmatch(cell) is not None or (missing and cell.strip() in _MISSING)


def _layout_of(head: bytes, whole: bool, suffix: str) -> tuple[_Layout, list[list[str]]] | None:
    """The layout of a table of text that begins with `head`, and some of its rows; None if it is not a table.

    whole: `head` is the whole file. suffix: of its name, in lower case; a .csv file may be one column of texts.
    """
    if not printable(head):
        return None
    begin = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    text = head[begin:].decode("utf-8", "replace")
    lines = text.split("\n")
    if not whole:
        lines.pop()  # may be incomplete
    comment, skipped = "", 0
    for line in lines:
        if line.strip() and line.strip()[0] not in _COMMENT:
            break
        comment = line.strip() or comment
        skipped += 1
    ways: list[tuple[str | None, int]] = [(",", 2), ("\t", 2), (";", 2), ("|", 2), (None, 1)]
    if suffix == ".csv":
        ways.append((",", 1))
    for delimiter, least in ways:
        records = _records(lines[skipped:], delimiter, whole)
        if not records:
            continue
        rows = [row for _, row in records]
        width = len(rows[-1])
        ragged = any(len(row) != width for row in rows[1:]) or len(rows[0]) not in (width, width - 1)
        if width < least or ragged or width > _MOST_COLUMNS:
            continue
        values = rows[1:] or rows
        numbers = [all(_numeric(row[c]) for row in values if c < len(row)) for c in range(width)]
        first = rows[0]
        header = len(first) < width or not any(_numeric(c, missing=False) for c in first)
        if len(rows) == 1 and header:
            return None
        if header:
            names = first if len(first) == width else ["", *first]  # R writes no name for the row names
            names = [name.strip().strip('"') for name in names]
            start = skipped + records[1][0]
        else:
            names = _names_in_comment(comment, delimiter, width)
            start = skipped + records[0][0]
        if not any(numbers) and delimiter is None:
            continue
        at = begin + sum(len(line.encode()) + 1 for line in lines[:start])
        comments = tuple(line.strip() for line in lines[:skipped] if line.strip())
        return _Layout(delimiter, tuple(names), at, comments), list(values) if header else rows
    return None


def _names_in_comment(comment: str, delimiter: str | None, width: int) -> list[str]:
    """Names of columns from the last comment before the first row; column_0, column_1, … if it has none."""
    text = comment.lstrip("#%").strip()
    for words in (_cells(text, delimiter), text.split()):
        if len(words) == width and text[:1] != "@" and not all(_numeric(w) for w in words):
            return [w.strip().strip('"') for w in words]
    return [f"column_{n}" for n in range(width)]


def looks_like_table(path: str, head: bytes, whole: bool) -> bool:
    """Whether a file that begins with `head` is a table of text. whole: `head` is the whole file.

    Many texts look like a table. A file without a suffix of tables is only taken for one if all its columns
    are numeric; for the suffixes in _SOME_TEXT one numeric column is enough.
    """
    suffix = os.path.splitext(path)[1].lower()
    found = _layout_of(head, whole, suffix)
    if found is None:
        return False
    if suffix in _TEXT_SUFFIXES:
        return True
    layout, rows = found
    width = len(layout.names)
    numbers = [all(_numeric(row[c]) for row in rows if c < len(row)) for c in range(width)]
    if suffix in _SOME_TEXT or suffix[1:].isdecimal() or not suffix:
        return all(numbers) or (any(numbers) and len(rows) > 1 and suffix in _SOME_TEXT)
    return all(numbers) and len(rows) > 1


# ---- tables of text ----


@dataclass
class _Column:
    """Which kinds of values the blocks of a column hold, and so which type the whole column needs."""

    kinds: set[str] = field(default_factory=set)
    largest: int = 0  # largest magnitude of its integers
    negative: bool = False
    inexact: bool = False  # has integers, in a block with fractions, that f64 cannot represent

    def add_block(self, series: Any, texts: Any) -> None:
        """Takes the column of one block into account. texts(): its cells as text."""
        kind = series.dtype.kind
        if kind not in "biuf":
            kind = "O"
        self.kinds.add(kind)
        if kind in "iu" and len(series):
            values = series.to_numpy()
            self.largest = max(self.largest, abs(int(values.min())), int(values.max()))
            self.negative = self.negative or int(values.min()) < 0
        elif kind == "f":
            with np.errstate(invalid="ignore"):
                large = bool((np.abs(series.to_numpy()) >= _EXACT).any())
            if large:
                cells = texts()
                whole = (int(cell) for cell in cells[cells.str.fullmatch(_LONG_INTEGER)])
                self.inexact = self.inexact or any(n != int(float(n)) for n in whole)

    def kind(self) -> str:
        """The kind of the column: 'i', 'u', 'f', 'b', or 'O' for text."""
        if len(self.kinds) == 1 and not self.inexact:
            return next(iter(self.kinds))
        if "O" in self.kinds or "b" in self.kinds or self.inexact or not self.kinds:
            return "O"
        if "f" not in self.kinds:
            return "O" if self.negative else "u"
        return "f" if self.largest <= _EXACT else "O"


_CODES = {"i": "i64", "u": "u64", "f": "f64", "b": "bool"}


def _row_of_another_width(block: bytes, delimiter: str | None, width: int, quotes: bool) -> bool:
    """Whether a row of the block has more or fewer than `width` cells. Blank lines are not rows.

    quotes: the block contains quotation marks, so that delimiters and line ends within them do not count.
    """
    data = np.frombuffer(block, np.uint8)
    blank = np.isin(data, np.frombuffer(b" \t\r\n".replace((delimiter or " ").encode(), b""), np.uint8))
    blank |= data == ord(" ")
    outside = np.cumsum(data == ord('"')) % 2 == 0 if quotes else np.True_
    if delimiter is None:
        marks, least = ~blank, width
        marks[1:] &= blank[:-1]
    else:
        marks, least = (data == ord(delimiter)) & outside, width - 1
    ends = np.append(np.flatnonzero((data == ord("\n")) & outside), len(data))
    in_line = np.diff(np.searchsorted(np.flatnonzero(marks), ends), prepend=0)
    rows = np.diff(np.searchsorted(np.flatnonzero(~blank), ends), prepend=0) > 0
    if not (rows & (in_line != least)).any():
        return False
    if not quotes and b"\r" not in block:
        return True
    # The count may be wrong with quoted texts or other line ends: count again by the csv module, which is
    # slower.
    lines = io.StringIO(block.decode("utf-8", "replace"), newline=None if delimiter is None else "")
    if delimiter is None:
        return any(len(_WORD.findall(line)) != width for line in lines if line.strip())
    try:
        found = csv.reader(lines, delimiter=delimiter)
        return any(len(row) != width for row in found if len(row) > 1 or "".join(row).strip())
    except csv.Error:
        return False  # pandas reports the error


class _TextTable:
    """A table of text as blocks of whole lines. Blocks are parsed when they are read; the last ones are
    cached.

    Thread-safe: `read` and `text` hold a lock.
    """

    def __init__(self, path: str, pandas: ModuleType) -> None:
        self.path, self._pandas = path, pandas
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[list[np.ndarray], int]] = OrderedDict()
        self._kept_bytes = 0
        self._file, self._size = open_regular(path)
        try:
            head = read_exact(self._file, 0, min(self._size, _HEAD), path, "first lines")
            found = _layout_of(head, self._size <= _HEAD, os.path.splitext(path)[1].lower())
            if found is None:
                raise FormatError(
                    "is not a table that can be read",
                    where=path,
                    fix="rows of one length, as numpy.savetxt writes",
                )
            self.layout, _ = found
            self._quotes = self.layout.delimiter is not None
            self.columns = [_Column() for _ in self.layout.names]
            self._begins: list[int] = []  # bytes
            self._rows = [0]
            for begin, block in self._blocks():
                self._check_rows(block, begin)
                frame = self._parse(block)
                for at, column in enumerate(self.columns):
                    column.add_block(frame[at], lambda at=at, block=block: self._parse(block, {at: str})[at])
                self._begins.append(begin)
                self._rows.append(self._rows[-1] + len(frame))
            self._begins.append(self._size)
            self.kinds = [column.kind() for column in self.columns]
        except BaseException:
            self._file.close()
            raise

    @property
    def rows(self) -> int:
        return self._rows[-1]

    def close(self) -> None:
        self._kept.clear()
        self._file.close()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of blocks of whole rows, of about _BLOCK bytes each."""
        at = self.layout.begin
        while at < self._size:
            length = _BLOCK
            while True:
                block = read_exact(self._file, at, min(length, self._size - at), self.path, "rows")
                end = len(block) if at + len(block) == self._size else self._last_end(block)
                if end:
                    break
                if length >= _LONGEST_RECORD:
                    raise Unsupported(
                        f"a row of more than {_LONGEST_RECORD} bytes at byte {at}", where=self.path
                    )
                length *= 4
            yield at, block[:end]
            at += end

    def _last_end(self, block: bytes) -> int:
        """The offset after the last line that ends outside of quotes; 0 if there is none."""
        if not self._quotes or b'"' not in block:
            return block.rfind(b"\n") + 1
        data = np.frombuffer(block, np.uint8)
        inside = np.cumsum(data == ord('"')) % 2
        ends = np.flatnonzero((data == ord("\n")) & (inside == 0))
        return int(ends[-1]) + 1 if ends.size else 0

    def _rows_of(self, block: bytes) -> bytes:
        """A block without comment lines.

        Only tables with spaces have comments: a row of CSV may begin with '#'.
        """
        if self.layout.delimiter is not None or b"#" not in block:
            return block
        return re.sub(rb"(?m)^[ \t]*#[^\n]*(\n|\Z)", b"", block)

    def _check_rows(self, block: bytes, begin: int) -> None:
        """Raises FormatError if a row has a wrong number of cells.

        pandas does not: it fills short rows with empty cells.
        """
        width, delimiter = len(self.columns), self.layout.delimiter
        block = self._rows_of(block)
        if _row_of_another_width(block, delimiter, width, quotes=b'"' in block):
            what = f"a row after byte {begin} does not have {width} cells, as the first row has"
            raise FormatError(what, where=self.path, fix="rows of one length, as numpy.savetxt writes")

    def _parse(self, block: bytes, types: dict[int, object] | None = None) -> Any:
        """The pandas DataFrame of a block.

        types: {column: type}; pandas infers the types of other columns.
        """
        block = self._rows_of(block)
        width = len(self.columns)
        if not block.strip():
            return self._pandas.DataFrame({at: np.empty(0) for at in range(width)})
        types = types or {}
        # An empty cell of a text column is an empty text, not a missing value.
        missing = {at: [] if types.get(at) is str else _MISSING for at in range(width)}
        frame = self._pandas.read_csv(
            io.BytesIO(block),
            header=None,
            sep=r"\s+" if self.layout.delimiter is None else self.layout.delimiter,
            engine="c",
            dtype=types or None,
            **_EXACT_NUMBERS if _rounds_wrong(self._pandas) else {},
            keep_default_na=False,
            na_values=missing,
            skipinitialspace=self.layout.delimiter is not None and not any(t is str for t in types.values()),
            low_memory=False,
            encoding="utf-8",
        )
        if frame.shape[1] != width:
            raise DamagedFile(f"rows of {frame.shape[1]} cells; the first row has {width}", where=self.path)
        return frame

    def _arrays(self, number: int) -> list[np.ndarray]:
        """The columns of block `number`, in the types of the whole columns; from the cache, or parsed."""
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept[0]
        begin, end = self._begins[number], self._begins[number + 1]
        block = read_exact(self._file, begin, end - begin, self.path, "rows")
        numbers = {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.bool_, "O": str}
        frame = self._parse(block, {at: numbers[kind] for at, kind in enumerate(self.kinds)})
        if len(frame) != self._rows[number + 1] - self._rows[number]:
            raise DamagedFile("was changed while it was read", where=self.path)
        arrays = [
            text_digests(v if isinstance(v, str) else None for v in frame[at])
            if kind == "O"
            else frame[at].to_numpy()
            for at, kind in enumerate(self.kinds)
        ]
        size = sum(a.nbytes for a in arrays)
        while self._kept and self._kept_bytes + size > _CACHE_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        self._kept[number] = arrays, size
        self._kept_bytes += size
        return arrays

    def text(self, column: int, row: int) -> str:
        """The text of a cell, quoted by repr()."""
        with self._lock:
            number = bisect.bisect_right(self._rows, row) - 1
            begin, end = self._begins[number], self._begins[number + 1]
            block = read_exact(self._file, begin, end - begin, self.path, "rows")
            with reading(self.path, "rows"):
                return repr(self._parse(block, {column: str})[column].iloc[row - self._rows[number]])

    def read(self, column: int, first: int, count: int) -> np.ndarray:
        """Rows [first, first + count) of a column."""
        with self._lock:
            parts = []
            number = bisect.bisect_right(self._rows, first) - 1
            while count:
                skip = first - self._rows[number]
                part = self._arrays(number)[column][skip : skip + count]
                parts.append(part)
                first, count, number = first + len(part), count - len(part), number + 1
            return np.concatenate(parts)


def _unique(names: Sequence[str]) -> list[str]:
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


def _pandas(path: str) -> ModuleType:
    try:
        import pandas
    except ImportError:
        raise MissingPackage.of("pandas", "twinrun[tables]", path) from None
    return pandas


def _open_text(path: str) -> FileContent:
    content = FileContent(path, "table")
    table = _TextTable(path, _pandas(path))
    content.on_close = table.close
    if table.layout.delimiter is not None and table.layout.comments:
        content.say("", "(comments)", list(table.layout.comments))
    names = _unique(table.layout.names)
    _say_order(content, names)
    for at, (name, kind) in enumerate(zip(names, table.kinds, strict=True)):
        _add_column(
            content,
            name,
            None if kind == "O" else _CODES[kind],
            table.rows,
            lambda f, n, at=at: table.read(at, f, n),
            text=lambda index, at=at: table.text(at, index[0]),
            told_as_text=kind == "f" or (kind in "iu" and table.columns[at].largest <= _EXACT),
        )
    return content


def _say_order(content: FileContent, names: Sequence[str]) -> None:
    content.add_fact(replace(Fact.of("", "(columns)", list(names)), order=tuple(names)))


def _add_column(
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


# ---- Parquet, and tables of Arrow ----


def _pyarrow(path: str) -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackage.of("pyarrow", "twinrun[tables]", path) from None
    return pyarrow, pyarrow.parquet


def _code_of(kind: Any, pa: ModuleType) -> tuple[str | None, str | None]:
    """(type, unit) of the field for an Arrow type; the type is None for text and other non-numeric types."""
    t = pa.types
    if t.is_boolean(kind):
        return "bool", None
    if t.is_integer(kind) or t.is_floating(kind):
        known = dtype_of(np.dtype(kind.to_pandas_dtype()))
        return (None if known is None else known[0]), None
    if t.is_timestamp(kind) or t.is_duration(kind) or t.is_time64(kind) or t.is_date64(kind):
        return "i64", str(kind)
    if t.is_time32(kind) or t.is_date32(kind):
        return "i32", str(kind)
    return None, None


def arrow_type(one: Any, pa: ModuleType) -> str:
    """The type of a column or member as pyarrow shows it, without details that are storage.

    Storage is: the width of offsets (large_string, views), the integer type of a dictionary, the name of a
    list's element.
    """
    return _type_text(one.type, pa) + ("" if one.nullable else " not null")


def _type_text(kind: Any, pa: ModuleType) -> str:
    def is_a(*names: str) -> bool:  # old versions of pyarrow lack some of them
        return any(hasattr(pa.types, f"is_{n}") and getattr(pa.types, f"is_{n}")(kind) for n in names)

    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind} of {_type_text(kind.storage_type, pa)}"
    if is_a("run_end_encoded"):
        return _type_text(kind.value_type, pa)
    if is_a("dictionary"):
        return f"dictionary<{_type_text(kind.value_type, pa)}{', ordered' if kind.ordered else ''}>"
    if is_a("string", "large_string", "string_view"):
        return "string"
    if is_a("binary", "large_binary", "binary_view"):
        return "binary"
    if is_a("fixed_size_list"):
        return f"fixed_size_list<{arrow_type(kind.value_field, pa)}>[{kind.list_size}]"
    if is_a("list", "large_list", "list_view", "large_list_view"):
        return f"list<{arrow_type(kind.value_field, pa)}>"
    if is_a("map"):
        of_each = f"{_type_text(kind.key_type, pa)}, {arrow_type(kind.item_field, pa)}"
        return f"map<{of_each}{', keys sorted' if kind.keys_sorted else ''}>"
    if is_a("struct"):
        members = (kind.field(at) for at in range(kind.num_fields))
        return "struct<" + ", ".join(f"{m.name!r}: {arrow_type(m, pa)}" for m in members) + ">"
    return str(kind)


_STORAGE_METADATA = (b"ARROW:", b"PARQUET:")  # prefixes of keys that describe storage
_WRITER_KEYS = ("creator", "pandas_version")


def arrow_metadata(schema: Any, pa: ModuleType) -> Iterator[tuple[str, str, object]]:
    """(owner, key, value) of the metadata of a schema and its fields.

    owner: a column, a member of one, or '' for the schema.
    """

    def entries(where: str, metadata: Mapping[bytes, bytes] | None) -> Iterator[tuple[str, str, object]]:
        for key, value in (metadata or {}).items():
            if not key.startswith(_STORAGE_METADATA):
                yield (
                    where,
                    key.decode("utf-8", "replace"),
                    _without_writer(value) if key == b"pandas" else value,
                )

    def members(where: str, one: Any) -> Iterator[tuple[str, str, object]]:
        yield from entries(where, one.metadata)
        kind = one.type
        for at in range(kind.num_fields if hasattr(kind, "field") else 0):
            yield from members(f"{where}.{kind.field(at).name}", kind.field(at))

    yield from entries("", schema.metadata)
    for one in schema:
        yield from members(one.name, one)


def _without_writer(value: bytes) -> object:
    """The metadata of pandas (index and types), parsed, without the versions of the writing program."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return {k: v for k, v in parsed.items() if k not in _WRITER_KEYS} if isinstance(parsed, dict) else value


def _numbers(array: Any, code: str, pa: ModuleType) -> np.ndarray:
    """The numbers of a column, with 0 in the place of missing values."""
    if code in ("i64", "i32") and not pa.types.is_integer(array.type):
        array = array.view(pa.int64() if code == "i64" else pa.int32())
    if array.null_count:
        import pyarrow.compute

        zero = (
            pa.scalar(np.float16(0) if pa.types.is_float16(array.type) else 0, array.type)
            if not pa.types.is_boolean(array.type)
            else pa.scalar(False)
        )
        array = pyarrow.compute.if_else(pyarrow.compute.is_null(array), zero, array)
    return array.to_numpy(zero_copy_only=False)


def _digests(array: Any, pa: ModuleType) -> np.ndarray:
    """Digests of the values of a column: u64 of shape (n, 2)."""
    if pa.types.is_dictionary(array.type):  # hash each distinct text once
        missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)
        import pyarrow.compute

        places = pyarrow.compute.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)
        of_each = text_digests([*array.dictionary.to_pylist(), None])
        return of_each[np.where(missing, len(of_each) - 1, places)]
    return text_digests(array.to_pylist())


def _is_missing(array: Any) -> np.ndarray:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)


def _objects(values: Sequence[object]) -> np.ndarray:
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    return array


def _ordered_within(array: Any, pa: ModuleType, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path within the elements, categories) of each ordered dictionary in an array, whose order is part of
    the data."""
    t = pa.types
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if t.is_dictionary(array.type):
        if array.type.ordered:
            yield path, array.dictionary
        yield from _ordered_within(array.dictionary, pa, path)
    elif t.is_struct(array.type):
        for at, member in enumerate(array.flatten()):
            yield from _ordered_within(member, pa, f"{path}.{array.type.field(at).name}")
    elif t.is_list(array.type) or t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
        yield from _ordered_within(array.flatten(), pa, f"{path}[]")
    elif t.is_map(array.type):
        yield from _ordered_within(array.keys, pa, f"{path}[]")
        yield from _ordered_within(array.items, pa, f"{path}[].value")


def _categories(entry: Any, chunks: Iterable[Any], pa: ModuleType) -> dict[str, list[object]]:
    """{path: categories in order} of a column's ordered dictionaries. Each chunk may have its own dictionary.

    entry: the column in the schema. chunks: only read if its type has an ordered dictionary.
    """
    found: dict[str, dict[bytes, object]] = {}
    if "ordered" in _type_text(entry.type, pa):
        for chunk in chunks:
            for path, categories in _ordered_within(chunk, pa):
                values = categories.to_pylist()
                known = found.setdefault(path, {})
                for digest, value in zip(text_digests(values), values, strict=True):
                    known.setdefault(digest.tobytes(), value)
    return {path: list(known.values()) for path, known in found.items()}


def arrow_columns(table: Any, where: str) -> Iterator[tuple[str, object]]:
    """(name, array) of the columns of an Arrow table in memory, of masks of missing values, and of ordered
    categories."""
    pa, _ = _pyarrow(where)
    for entry, column in zip(table.schema, table.columns, strict=True):
        name = column_name(entry.name)
        code, _ = _code_of(column.type, pa)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for path, categories in _categories(entry, chunks, pa).items():
            yield f"{name}@categories{path}", _objects(categories)
        if code is None:
            yield name, _objects(list(itertools.chain.from_iterable(c.to_pylist() for c in chunks)))
            continue
        parts = [_numbers(c, code, pa) for c in chunks]
        yield name, np.concatenate(parts) if parts else np.empty(0, code)
        if column.null_count:
            yield f"{name}{MASK}", np.concatenate([_is_missing(c) for c in chunks])


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


def _open_parquet(path: str) -> FileContent:
    pa, pq = _pyarrow(path)
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
    meta, path = opened.metadata, content.path
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
    if len(schema) > _MOST_COLUMNS:
        raise Unsupported(f"more than {_MOST_COLUMNS} columns", where=path)
    lock = threading.Lock()
    names = _unique(schema.names)
    _say_order(content, names)
    fields = {
        entry.name: name if _code_of(entry.type, pa)[0] else name + SUFFIX
        for name, entry in zip(names, schema, strict=True)
    }
    for column, key, value in arrow_metadata(schema, pa):
        own, dot, inner = (column, "", "") if column in fields else column.partition(".")
        content.say(fields.get(own, own) + dot + inner, key, value)
    twice = (
        {n for n in schema.names if schema.names.count(n) > 1}
        if len(set(schema.names)) < len(schema)
        else set()
    )
    for at, (name, entry) in enumerate(zip(names, schema, strict=True)):
        code, unit = _code_of(entry.type, pa)
        own = name if code else name + SUFFIX
        content.say(own, "(type)", arrow_type(entry, pa), meaning=True)
        if entry.name in twice or "." in entry.name:  # pyarrow takes a dot for a path into a struct
            why = (
                "several columns have this name"
                if entry.name in twice
                else "pyarrow cannot select a column with a dot in its name"
            )
            content.add(
                unreadable(name, code or "u64", sys.byteorder, (rows[-1],), Unsupported(why, where=path))
            )
            continue
        batches = (b.column(0) for b in opened.iter_batches(_BATCH, columns=[entry.name], use_threads=False))
        for inner, categories in _categories(entry, batches, pa).items():
            content.say(own + inner, "(categories)", categories, encode=encode_object, meaning=True)
        source = _ParquetColumn(opened, path, at, rows, entry.name, lock)
        if code is None:
            _add_column(content, name, None, rows[-1],
                        lambda f, n, c=source: c.read(f, n, lambda batch: _digests(batch, pa)),
                        text=lambda index, c=source: c.text(index[0]))  # fmt: skip
            continue
        masked = entry.nullable and _has_missing(opened, entry.name, counts)
        _add_column(content, name, code, rows[-1],
                    lambda f, n, c=source, code=code, masked=masked: c.read(f, n, lambda batch: _numbers(
                        batch if masked else c.whole(batch), code, pa)), unit)  # fmt: skip
        if masked:
            content.say(f"{name}{MASK}", "(type)", f"where {name} has no value", meaning=True)
            mask = _ParquetColumn(opened, path, at, rows, entry.name, lock)
            _add_column(content, f"{name}{MASK}", "bool", rows[-1],
                        lambda f, n, c=mask: c.read(f, n, _is_missing))  # fmt: skip


def _has_missing(opened: Any, name: str, counts: dict[str, int | None]) -> bool:
    """Whether a column has missing values: from its statistics, or from its values if there are no
    statistics."""
    count = counts.get(name)
    if count is not None:
        return count > 0
    batches = opened.iter_batches(_BATCH, columns=[name], use_threads=False)
    return any(batch.column(0).null_count for batch in batches)


def _is_text(path: str) -> bool:
    """Whether a table is text: neither its first bytes nor its suffix are those of Parquet."""
    file, size = open_regular(path)
    with file:
        head = read_exact(file, 0, min(size, len(_PARQUET)), path, "header")
    return head != _PARQUET and os.path.splitext(path)[1].lower() not in _PARQUET_SUFFIXES


def open_table(path: str) -> FileContent:
    """Opens a table of text, or a Parquet file.

    Raises FormatError; MissingPackage without pandas or pyarrow.
    """
    file, size = open_regular(path)
    with file:
        head = read_exact(file, 0, min(size, len(_PARQUET)), path, "header")
    return _open_parquet(path) if head == _PARQUET else _open_text(path)


def _sniff(path: str, file: BinaryIO) -> bool:
    from . import by_suffix

    promised = by_suffix(path)  # files of other formats may look like tables of text
    if promised is not None and promised.name not in ("table", "raw"):
        return False
    head = file.read(_HEAD + 1)
    return looks_like_table(path, head[:_HEAD], len(head) <= _HEAD)


FORMAT = Format(
    "table",
    "table: CSV, whitespace, Parquet",
    open_table,
    suffixes=(*_TEXT_SUFFIXES, *_PARQUET_SUFFIXES),
    magic=(_PARQUET,),
    sniff=_sniff,
    is_text=_is_text,
    order=90,  # asked late: text may be of many other formats
)
