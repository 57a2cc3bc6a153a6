"""The number of missing values in each column of a Parquet file, from the statistics in its footer.

pyarrow reads these too, but some damaged footers terminate the process there, by an uncaught C++ exception in
`FileMetaData.row_group(g).column(c)`. Therefore this module parses the footer itself. It is a struct of
Thrift's compact protocol: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
and https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import Any, BinaryIO

__all__ = ["null_counts"]

_MAGIC = b"PAR1"
_TAIL = 8  # bytes: the length of the footer, and the magic
_LARGEST = 1 << 30  # bytes of a footer that is parsed
_DEEPEST = 32

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

# Numbers of fields in parquet.thrift.
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS = 1  # of RowGroup
_META_DATA = 3  # of ColumnChunk
_PATH, _STATISTICS = 3, 12  # of ColumnMetaData
_NULL_COUNT = 3  # of Statistics


class _Reader:
    """Parses the values of a footer. Raises IndexError or ValueError if the bytes are invalid."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("a length beyond the end")
        self.at += count
        return self.data[self.at - count : self.at]

    def _list(self, depth: int) -> list[object]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._number()
        if count > len(self.data) - self.at:  # an element has at least one byte
            raise ValueError("more elements than bytes")
        if kind in (_TRUE, _FALSE):
            return [self._byte() for _ in range(count)]
        return [self._value(kind, depth) for _ in range(count)]

    def _value(self, kind: int, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError("too deep")
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._number())
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        # Includes maps, which parquet.thrift does not use.
        raise ValueError(f"a value of type {kind}")

    def struct(self, depth: int = 0) -> dict[int, object]:
        """{number of a field: its value} of a struct."""
        fields: dict[int, object] = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields


def _list(value: object, number: int) -> list[Any]:
    """The field `number` of a struct, which must be a list; otherwise raises ValueError."""
    found = value.get(number) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise ValueError(f"no list {number}")
    return found


def null_counts(file: BinaryIO, size: int) -> dict[str, int | None]:
    """The number of missing values of columns, by their paths in the schema ("x", "s.list.element").

    Parameters
    ----------
    file : binary file
        The Parquet file; its position changes.
    size : int
        Size of the file in bytes.

    Returns
    -------
    dict of str to int or None
        None if the statistics of a column do not have the number. Columns may be absent. Empty if the footer
        cannot be parsed, because it is damaged or encrypted. Then the values must be read to find missing
        ones.
    """
    if size < _TAIL:
        return {}
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > min(size - _TAIL, _LARGEST):
        return {}
    file.seek(size - _TAIL - length)
    counts: dict[str, int | None] = {}
    try:
        footer = _Reader(file.read(length)).struct()
        for group in _list(footer, _ROW_GROUPS):
            for chunk in _list(group, _COLUMNS):
                meta = chunk[_META_DATA]
                path = b".".join(_list(meta, _PATH)).decode()
                statistics = meta.get(_STATISTICS)
                count = statistics.get(_NULL_COUNT) if isinstance(statistics, dict) else None
                known = counts.get(path, 0)
                counts[path] = None if count is None or count < 0 or known is None else known + count
    except (AttributeError, LookupError, TypeError, ValueError):  # not the structure of parquet.thrift
        return {}
    return counts
