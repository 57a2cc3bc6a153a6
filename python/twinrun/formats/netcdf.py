"""NetCDF classic: CDF-1, CDF-2 (64-bit offsets) and CDF-5 (64-bit data), parsed here. NetCDF-4 is HDF5.

A variable without the record dimension is dense and big-endian. Variables with the record dimension are
interleaved, record by record. Such a variable is one strided extent if it has one element in each record.
Otherwise it has an extent for each record, or, with many records, a reader that gathers them. Values are
compared as stored, and attributes such as scale_factor exactly: if these are equal, equal stored values mean
equal values.

Source: "The NetCDF Classic Format Specification", docs/file_format_specifications.md of netcdf-c.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, Unsupported
from . import exodus
from .attributes import MEANING, note_meaning
from .element_types import ITEMSIZE, storage_dtype
from .facts import DIMENSIONS, shown
from .files import MEND, open_regular, read_exact
from .model import Extent, Field, FileContent, Format, checked_shape, decoded, flag
from .records import read_records

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_DIMENSION, _VARIABLE, _ATTRIBUTE = 0x0A, 0x0B, 0x0C
_TYPES = {
    1: "i8", 3: "i16", 4: "i32", 5: "f32", 6: "f64", 7: "u8", 8: "u16", 9: "u32", 10: "i64", 11: "u64",
}  # fmt: skip
_CHAR = 2
_LONGEST_HEADER = 1 << 24
_MOST_CHARACTERS = 1 << 24
_MOST_DIMENSIONS = 1024  # NC_MAX_VAR_DIMS
# An extent costs the caller about a microsecond and 28 bytes of metadata. With more records a
# reader is cheaper.
_MOST_RECORD_EXTENTS = 1024


class _Cursor:
    """Reads a header from its start; never past the end of the file, nor past _LONGEST_HEADER."""

    def __init__(self, file: BinaryIO, size: int, version: int, path: str) -> None:
        self._file, self._size, self.path = file, size, path
        self._data = b""
        self.at = 4
        self.is_narrow = version == 1  # CDF-1: offsets have 32 bits
        self.is_wide = version == 5  # CDF-5: counts, lengths and dimension numbers have 64 bits

    def take(self, count: int, what: str) -> bytes:
        end = self.at + count
        if end > self._size:
            raise DamagedFile(f"its header ends before {what}", where=self.path)
        if end > _LONGEST_HEADER:
            raise Unsupported(f"a header of more than {_LONGEST_HEADER} bytes", where=self.path)
        if end > len(self._data):
            length = min(max(end, 2 * len(self._data), 1 << 14), self._size, _LONGEST_HEADER)
            self._data = read_exact(self._file, 0, length, self.path, "header")
        self.at = end
        return self._data[self.at - count : self.at]

    def word(self, what: str) -> int:
        return struct.unpack(">I", self.take(4, what))[0]

    def number(self, what: str, bits: int | None = None) -> int:
        """A count or an offset. Raises DamagedFile if it is negative."""
        wide = self.is_wide if bits is None else bits == 64
        value: int = struct.unpack(">q" if wide else ">i", self.take(8 if wide else 4, what))[0]
        if value < 0:
            raise DamagedFile(f"{what} is negative", where=self.path)
        return value

    def length(self, what: str) -> int:
        """The size of a variable, or the number of records.

        -1 if all its bits are set, which means unknown.
        """
        value: int = struct.unpack(">Q" if self.is_wide else ">I", self.take(8 if self.is_wide else 4, what))[
            0
        ]
        return -1 if value == (1 << (64 if self.is_wide else 32)) - 1 else value

    def name(self, what: str) -> str:
        length = self.number(f"the length of {what}")
        raw = self.take(length + -length % 4, what)[:length]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise DamagedFile(f"{what} is not UTF-8 text", where=self.path) from None

    def list_of(self, tag: int, what: str) -> int:
        """Number of elements of a list that begins here."""
        found, count = self.word(what), self.number(f"the number of {what}")
        if found != tag and (found, count) != (0, 0):
            raise DamagedFile(f"expected a list of {what} in its header, found tag {found}", where=self.path)
        return count


@dataclass
class _Attribute:
    code: int  # type, as in the file
    count: int
    offset: int
    raw: bytes

    def first(self) -> float | None:
        """Its number; None if it is text or does not have exactly one number."""
        code = _TYPES.get(self.code)
        if code is None or self.count != 1:
            return None
        return np.frombuffer(self.raw, storage_dtype(code, "big"), 1)[0].item()


@dataclass
class _Variable:
    name: str
    dimensions: list[int]
    attributes: dict[str, _Attribute]
    code: int
    begin: int
    shape: tuple[int, ...] = ()  # without the record dimension
    is_record: bool = False
    span: int = 0  # bytes, without the record dimension


@dataclass
class _Header:
    records: int = 0  # -1: as many as fit into the file
    dimensions: list[tuple[str, int]] = field(default_factory=list)
    attributes: dict[str, _Attribute] = field(default_factory=dict)
    variables: list[_Variable] = field(default_factory=list)
    end: int = 0


def open_netcdf(path: str, attributes: object = False) -> FileContent:
    """Opens a NetCDF classic file without reading its data.

    attributes: if true, numeric attributes become fields `variable@attribute` (`@attribute` for those of the
    file), which may have tolerances; otherwise they are facts.
    """
    with_attributes = flag(attributes, "attributes", path)
    file, size = open_regular(path)
    with file:
        start = read_exact(file, 0, min(size, 4), path, "header")
        if start[:3] != b"CDF" or len(start) < 4:
            raise DamagedFile("does not begin like a NetCDF classic file", where=path)
        if start[3] not in (1, 2, 5):
            raise Unsupported(f"NetCDF classic version {start[3]} is not known", where=path)
        header = _parse(_Cursor(file, size, start[3], path))
    content = FileContent(path, "netcdf", model="netcdf")
    _add_attributes(content, "", header.attributes, with_attributes)
    records, stride = _records(header, size, path)
    for name, length in header.dimensions:
        content.say("", f"(dimension {name})", length or "unlimited")
    for variable in header.variables:
        _add_attributes(content, variable.name, variable.attributes, with_attributes)
        content.say(variable.name, DIMENSIONS, [header.dimensions[d][0] for d in variable.dimensions])
        content.add(_field(variable, records, stride, size, path))
    note_meaning(
        content,
        (
            (v.name, {word: v.attributes[word].first() for word in MEANING if word in v.attributes})
            for v in header.variables
        ),
    )
    if exodus.is_exodus(header.attributes, content.fields):
        exodus.apply(content, lambda name: _rows(content, name))
    return content


def _rows(content: FileContent, name: str) -> list[str]:
    """The texts of a variable of characters; [] if there is none, or it is too long for names."""
    field = content.fields.get(name)
    if field is None or field.kind != "text" or not 0 < field.size <= _MOST_CHARACTERS:
        return []
    rows = field.elements().reshape(field.shape[0], -1)
    return [row.tobytes().decode("utf-8", "backslashreplace") for row in rows]


def _parse(cursor: _Cursor) -> _Header:
    header = _Header(cursor.length("the number of records"))
    for _ in range(cursor.list_of(_DIMENSION, "dimensions")):
        name = cursor.name("the name of a dimension")
        header.dimensions.append((name, cursor.number(f"the length of dimension {name!r:.60}")))
    if sum(length == 0 for _, length in header.dimensions) > 1:
        raise DamagedFile("its header has two record dimensions, and one is allowed", where=cursor.path)
    header.attributes = _parse_attributes(cursor)
    for _ in range(cursor.list_of(_VARIABLE, "variables")):
        header.variables.append(_parse_variable(cursor, header))
    header.end = cursor.at
    return header


def _parse_attributes(cursor: _Cursor) -> dict[str, _Attribute]:
    result: dict[str, _Attribute] = {}
    for _ in range(cursor.list_of(_ATTRIBUTE, "attributes")):
        name = cursor.name("the name of an attribute")
        code = cursor.word(f"the type of attribute {name!r:.60}")
        if code != _CHAR and code not in _TYPES:
            raise DamagedFile(f"attribute {name!r:.60} is of the unknown type {code}", where=cursor.path)
        count = cursor.number(f"the length of attribute {name!r:.60}")
        length = count * (1 if code == _CHAR else ITEMSIZE[_TYPES[code]])
        offset = cursor.at
        raw = cursor.take(length + -length % 4, f"the values of attribute {name!r:.60}")
        if name in result:
            raise DamagedFile(f"two attributes are named {name!r:.60}", where=cursor.path)
        result[name] = _Attribute(code, count, offset, raw[:length])
    return result


def _parse_variable(cursor: _Cursor, header: _Header) -> _Variable:
    path = cursor.path
    name = cursor.name("the name of a variable")
    what = f"variable {name!r:.60}"
    rank = cursor.number(f"the number of dimensions of {what}")
    if rank > _MOST_DIMENSIONS:
        raise DamagedFile(f"{what} has {rank} dimensions, more than {_MOST_DIMENSIONS}", where=path)
    dimensions = [cursor.number(f"a dimension of {what}") for _ in range(rank)]
    if any(d >= len(header.dimensions) for d in dimensions):
        raise DamagedFile(f"{what} has a dimension that the file lacks", where=path)
    attributes = _parse_attributes(cursor)
    code = cursor.word(f"the type of {what}")
    if code != _CHAR and code not in _TYPES:
        raise DamagedFile(f"{what} is of the unknown type {code}", where=path)
    cursor.length(f"the size of {what}")  # redundant, and by specification wrong in large files
    begin = cursor.number(f"the place of {what}", 32 if cursor.is_narrow else 64)
    variable = _Variable(name, dimensions, attributes, code, begin)
    lengths = [header.dimensions[d][1] for d in dimensions]
    variable.is_record = bool(lengths) and lengths[0] == 0
    if variable.is_record:
        lengths = lengths[1:]
    if 0 in lengths:
        raise DamagedFile(f"{what}: only its first dimension may be the record dimension", where=path)
    itemsize = 1 if code == _CHAR else ITEMSIZE[_TYPES[code]]
    variable.shape = checked_shape(lengths, itemsize, path, what)
    variable.span = math.prod(variable.shape) * itemsize
    return variable


def _records(header: _Header, size: int, path: str) -> tuple[int, int]:
    """(number of records, bytes from one to the next)."""
    variables = [v for v in header.variables if v.is_record]
    if not variables:
        return 0, 0
    # Each variable's part of a record is padded to 4 bytes, unless there is only one such variable.
    stride = variables[0].span if len(variables) == 1 else sum(v.span + -v.span % 4 for v in variables)
    if header.records >= 0:
        return header.records, stride
    # As many complete records as the file holds; the padding at its end may be missing.
    first = min(v.begin for v in variables)
    end = max(v.begin - first + v.span for v in variables)
    left = size - first
    return (0 if left < end else (left - end) // stride + 1), stride


def _field(variable: _Variable, records: int, stride: int, size: int, path: str) -> Field:
    """The field of a variable. Characters become bytes of kind 'text', which always compare exactly."""
    if variable.code != _CHAR:
        return _numbers(variable, records, stride, size, path, _TYPES[variable.code])
    new = _numbers(variable, records, stride, size, path, "u8")
    new.characters = True
    new.kind, new.tell = "text", lambda position: shown(new.elements(position, 1).tobytes())
    return new


def _numbers(variable: _Variable, records: int, stride: int, size: int, path: str, code: str) -> Field:
    """The field of a variable of type `code`.

    stride: bytes from one record to the next. size: bytes of the file.
    """
    name = variable.name
    itemsize = ITEMSIZE[code]
    shape = (records, *variable.shape) if variable.is_record else variable.shape
    checked_shape(shape, itemsize, path, f"variable {name!r:.60}")
    count = math.prod(shape)
    if count == 0:
        return Field(name, code, "big", shape, extents=())
    last = (records - 1) * stride if variable.is_record else 0
    if variable.begin < 4 or variable.begin + last + variable.span > size:
        message = (
            f"variable {name!r:.60} needs bytes {variable.begin} to {variable.begin + last + variable.span} of a "
            f"file of {size}"
        )
        raise DamagedFile(message, where=path, fix=f"the file is cut short or its header is wrong: {MEND}")
    within = math.prod(variable.shape)
    if not variable.is_record or stride == variable.span:
        return Field(name, code, "big", shape, extents=(Extent(path, variable.begin, count, itemsize),))
    if within == 1:
        return Field(name, code, "big", shape, extents=(Extent(path, variable.begin, records, stride),))
    if records <= _MOST_RECORD_EXTENTS:
        extents = tuple(
            Extent(path, variable.begin + number * stride, within, itemsize) for number in range(records)
        )
        return Field(name, code, "big", shape, extents=extents)

    def read(first: int, size: int) -> np.ndarray:
        start, stop = first // within, -(-(first + size) // within)
        raw = read_records(path, variable.begin + start * stride, stride, stop - start, variable.span)
        skip = first - start * within
        return raw.reshape(-1).view(storage_dtype(code, "big"))[skip : skip + size]

    return Field(name, code, "big", shape, read=decoded(name, code, count, path, read))


def _add_attributes(
    content: FileContent, owner: str, attributes: dict[str, _Attribute], as_fields: bool
) -> None:
    for name, attribute in attributes.items():
        if attribute.code == _CHAR:
            content.say(owner, name, attribute.raw)
            continue
        code, count = _TYPES[attribute.code], attribute.count
        if as_fields:
            extents = (Extent(content.path, attribute.offset, count, ITEMSIZE[code]),) if count else ()
            content.add(Field(f"{owner}@{name}", code, "big", (count,), extents=extents))
        else:
            content.say(owner, name, np.frombuffer(attribute.raw, storage_dtype(code, "big")))


FORMAT = Format(
    "netcdf",
    "NetCDF classic",
    open_netcdf,
    suffixes=(".nc", ".cdf", ".nc3"),
    magic=(b"CDF\x01", b"CDF\x02", b"CDF\x05"),
    options=frozenset({"attributes"}),
)
