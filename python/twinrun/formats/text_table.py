"""Tables of text: numbers and words between commas, tabs or spaces (CSV, numpy.savetxt, pandas.to_csv).

pandas reads them, a block of lines at a time. Numeric columns are i64, u64, f64 or bool; every
other column is text, which is compared exactly by digests (see `texts`). Missing numbers are NaN.
"""

from __future__ import annotations

import bisect
import csv
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, FormatError, MissingPackage, Unsupported
from .columns import MOST_COLUMNS, add_column, say_order, unique
from .files import open_regular, read_exact, reading
from .model import FileContent
from .texts import printable, text_digests

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["HEAD", "TEXT_SUFFIXES", "looks_like_table", "open_text"]

HEAD = 1 << 16  # bytes that a file is recognised by
TEXT_SUFFIXES = (".csv", ".tsv", ".tab")

_BLOCK = 1 << 20
_LONGEST_RECORD = 64 << 20
_CACHE_BYTES = 128 << 20
_SAMPLED = 200  # lines
_SOME_TEXT = (".txt", ".dat", ".asc", ".xvg", ".out", ".data")
_COMMENT = "#%@"
_NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE
)
_LONG_INTEGER = r"\s*[+-]?\d{16,}\s*"
_INFINITY = re.compile(r"\s*[+-]?inf(inity)?\s*", re.IGNORECASE)
_EXACT = 1 << 53  # integers up to it are exact in f64
_MISSING = ["", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "<NA>", "null", "NULL"]
_WORD = re.compile(r'"(?:[^"]|"")*"|\S+')


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

    whole: `head` is the whole file. suffix: of its name, in lower case; a .csv file may be one
    column of texts.
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
        if width < least or ragged or width > MOST_COLUMNS:
            continue
        # time;x and 1;2,5: the comma is a decimal point, and such numbers are compared as text.
        if delimiter == "," and len(rows[0]) == 1 < width and ";" in rows[0][0]:
            continue
        values = rows[1:] or rows
        numbers = [all(_numeric(row[c]) for row in values if c < len(row)) for c in range(width)]
        first = rows[0]
        header = len(first) < width or not any(_numeric(c, missing=False) for c in first)
        if len(rows) == 1 and header:
            return None
        if header:
            # R writes no name for the row names
            names = first if len(first) == width else ["", *first]
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
    if suffix in TEXT_SUFFIXES:
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
    # Has numbers that f64 cannot represent: integers beside fractions, or what is beyond its range.
    inexact: bool = False

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
            values = series.to_numpy()
            with np.errstate(invalid="ignore"):
                large = bool((np.abs(values) >= _EXACT).any())
            if large:
                cells = texts()
                infinite = cells[np.isinf(values)]  # 1e400 is read as inf, as 1e401 is
                self.inexact = self.inexact or not infinite.str.fullmatch(_INFINITY).all()
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
    # The count may be wrong with quoted texts or other line ends: count again by the csv module,
    # which is slower.
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
            head = read_exact(self._file, 0, min(self._size, HEAD), path, "first lines")
            found = _layout_of(head, self._size <= HEAD, os.path.splitext(path)[1].lower())
            if found is None:
                raise FormatError(
                    "is not a table that can be read",
                    where=path,
                    fix="write rows of one length, as numpy.savetxt does",
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
                        f"has a row of more than {_LONGEST_RECORD} bytes, at byte {at}", where=self.path
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
            raise FormatError(what, where=self.path, fix="write rows of one length, as numpy.savetxt does")

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
            raise DamagedFile(
                f"has rows of {frame.shape[1]} cells, and its first row has {width}", where=self.path
            )
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


def _pandas(path: str) -> ModuleType:
    try:
        import pandas
    except ImportError:
        raise MissingPackage.of("pandas", "twinrun[tables]", path) from None
    return pandas


def open_text(path: str) -> FileContent:
    content = FileContent(path, "table")
    table = _TextTable(path, _pandas(path))
    content.on_close = table.close
    if table.layout.delimiter is not None and table.layout.comments:
        content.say("", "(comments)", list(table.layout.comments))
    names = unique(table.layout.names)
    say_order(content, names)
    for at, (name, kind) in enumerate(zip(names, table.kinds, strict=True)):
        add_column(
            content,
            name,
            None if kind == "O" else _CODES[kind],
            table.rows,
            lambda f, n, at=at: table.read(at, f, n),
            text=lambda index, at=at: table.text(at, index[0]),
            told_as_text=kind == "f" or (kind in "iu" and table.columns[at].largest <= _EXACT),
        )
    return content
