"""VTK's XML files, .vtu .vtp .vti .vtr .vts, and the files .pvtu .pvti … that list pieces.

Fields are named by section and array: PointData/velocity, CellData/owner, Points, Cells/connectivity. An
array in raw appended data without compression is one extent; text, base64 and compressed blocks are decoded.
Arrays of structured grids (image data, rectilinear and structured grids) have the shape (z, y, x) or (z, y,
x, components).

A data set may consist of several pieces, in one file or in several. The pieces of a structured grid are
joined to its whole extent, so that runs with other pieces compare. The pieces of an unstructured grid are
concatenated.

The XML is read by expat, up to the appended data. A document type, and so any entity, is refused.

Source: "VTK XML formats", https://docs.vtk.org/en/latest/vtk_file_formats/vtkxml_file_format.html.
"""

from __future__ import annotations

import base64
import binascii
import functools
import lzma
import math
import os
import re
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.parsers import expat

from ..errors import DamagedFile, FormatError, MissingPackage, Unsupported
from .blocks import BandCache, BandReader, Box
from .files import open_regular, read_exact
from .model import (
    ITEMSIZE,
    LARGEST,
    Extent,
    Field,
    FileContent,
    Format,
    checked_shape,
    decoded,
    header_field,
    storage_dtype,
)

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_TYPES = {
    f"{word}{bits}": f"{letter}{bits}"
    for word, letter, widths in (
        ("Int", "i", (8, 16, 32, 64)),
        ("UInt", "u", (8, 16, 32, 64)),
        ("Float", "f", (32, 64)),
    )
    for bits in widths
}
_KINDS = ("UnstructuredGrid", "PolyData", "ImageData", "RectilinearGrid", "StructuredGrid")
_SECTIONS = (
    "PointData",
    "CellData",
    "FieldData",
    "Points",
    "Cells",
    "Coordinates",
    "Verts",
    "Lines",
    "Strips",
    "Polys",
)
_COMPRESSORS = ("vtkZLibDataCompressor", "vtkLZ4DataCompressor", "vtkLZMADataCompressor")
_SUFFIXES = (".vtu", ".vtp", ".vti", ".vtr", ".vts")
_MOST_ELEMENTS = 1_000_000
_DEEPEST = 64
_MOST_PIECES = 1_000_000
_LARGEST_BLOCK = 1 << 28
_KEPT = 32 << 20


@dataclass
class _Array:
    """A DataArray of the header.

    begin, end: the bytes of the file with its text, if the data is inline; otherwise -1.
    """

    section: str
    attributes: dict[str, str]
    begin: int = -1
    end: int = -1


@dataclass
class _Piece:
    """One piece of a data set. active: the names of the active arrays, for PointData and CellData."""

    attributes: dict[str, str]
    arrays: list[_Array] = field(default_factory=list)
    active: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class _Document:
    """The content of the XML.

    appended: offset of the appended data, the byte after the underscore; -1 if there is none.
    """

    kind: str = ""
    attributes: dict[str, str] = field(default_factory=dict)  # of VTKFile
    whole: dict[str, str] = field(default_factory=dict)  # of the grid
    fields: list[_Array] = field(default_factory=list)
    pieces: list[_Piece] = field(default_factory=list)
    appended: int = -1
    appended_encoding: str = ""


class _AppendedData(Exception):
    """Stops the parser where the appended data begins, because that is not XML."""


# ---- the XML ----


def _document(file: BinaryIO, size: int, path: str) -> _Document:
    """Parses the XML of a file up to its appended data."""
    result = _Document()
    stack: list[str] = []
    current: _Array | None = None
    elements = 0
    parser = expat.ParserCreate()
    parser.buffer_text = False

    def refuse(*_: object) -> None:
        raise DamagedFile(
            "its XML has a document type, entities, or other parts that VTK never writes", where=path
        )

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal current, elements
        elements += 1
        if elements > _MOST_ELEMENTS or len(stack) > _DEEPEST:
            raise Unsupported("more XML than a header has", where=path)
        if not stack and name != "VTKFile":
            raise DamagedFile(f"begins with <{name[:40]}>, not <VTKFile>", where=path)
        inside = stack[-1] if stack else ""
        stack.append(name)
        if name == "VTKFile":
            result.attributes = attributes
        elif inside == "VTKFile" and name == "AppendedData":
            result.appended = parser.CurrentByteIndex
            result.appended_encoding = attributes.get("encoding", "base64")
            raise _AppendedData
        elif inside == "VTKFile" and not result.kind:
            result.kind, result.whole = name, attributes
        elif name == "Piece":
            if len(result.pieces) >= _MOST_PIECES:
                raise Unsupported(f"more than {_MOST_PIECES} pieces", where=path)
            result.pieces.append(_Piece(attributes))
        elif current is None and name in ("PointData", "CellData"):
            if result.pieces:
                result.pieces[-1].active[name] = attributes
        elif current is not None:  # an element within an array, such as InformationKey
            if current.begin >= 0 and current.end < 0:
                current.end = parser.CurrentByteIndex
        elif name in ("DataArray", "Array") and inside in _SECTIONS:
            current = _Array(inside, attributes)
            if inside == "FieldData":
                result.fields.append(current)
            elif not result.pieces:
                raise DamagedFile("an array outside of any piece", where=path)
            else:
                result.pieces[-1].arrays.append(current)

    def text(data: str) -> None:
        # Keep only the position of the text, which may have gigabytes.
        if current is None or stack[-1] not in ("DataArray", "Array") or not data.strip():
            return
        if current.end >= 0:
            raise Unsupported("an array whose numbers are interrupted", where=path)
        if current.begin < 0:
            current.begin = parser.CurrentByteIndex + len(data) - len(data.lstrip())

    def end(name: str) -> None:
        nonlocal current
        stack.pop()
        if (
            name in ("DataArray", "Array")
            and current is not None
            and (not stack or stack[-1] == current.section)
        ):
            if current.end < 0:
                current.end = parser.CurrentByteIndex
            current = None

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.ProcessingInstructionHandler = parser.StartCdataSectionHandler = refuse
    parser.CommentHandler = lambda _: None if current is None else refuse()
    at = 0
    try:
        while at < size:
            piece = read_exact(file, at, min(1 << 20, size - at), path, "XML")
            at += len(piece)
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except _AppendedData:
        tail = read_exact(file, result.appended, min(4096, size - result.appended), path, "XML")
        found = re.match(rb"<AppendedData[^>]*>\s*_", tail)
        if found is None:
            raise DamagedFile("its appended data does not begin with an underscore", where=path) from None
        result.appended += found.end()
    except expat.ExpatError as error:
        raise DamagedFile(f"its XML is damaged: {error}", where=path) from None
    finally:  # break the reference cycle between the parser and the handlers
        parser.StartElementHandler = parser.EndElementHandler = parser.CharacterDataHandler = None
    return result


def _integer(attributes: dict[str, str], name: str, where: str, default: int | None = None) -> int:
    text = attributes.get(name, "").strip()
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d{1,18}", text):
        raise DamagedFile(f"{name}={text[:40]!r} is not a number", where=where)
    return int(text)


def _extent(attributes: dict[str, str], name: str, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(lowest, highest) indices of points, x first."""
    words = attributes.get(name, "").split()
    if len(words) != 6 or not all(re.fullmatch(r"-?\d{1,10}", w) for w in words):
        raise DamagedFile(f"{name}={' '.join(words)[:60]!r} is not six numbers", where=where)
    low, high = tuple(map(int, words[::2])), tuple(map(int, words[1::2]))
    if any(b < a - 1 for a, b in zip(low, high, strict=True)):
        raise DamagedFile(f"{name}: the extent ends before it begins", where=where)
    return low, high


# ---- where the bytes of an array are ----


class _Characters:
    """Characters [first, last) of the text in bytes [begin, end) of a file, not counting white space."""

    def __init__(self, path: str, begin: int, end: int) -> None:
        self.path, self._begin, self._end = path, begin, end
        # The whole text, if it contains white space, which VTK does not write.
        self._all: bytes | None = None

    def __call__(self, first: int, last: int) -> bytes:
        if self._all is None:
            file, size = open_regular(self.path)
            with file:
                if self._end > size:
                    raise DamagedFile("the file has become shorter since it was opened", where=self.path)
                last_here = min(last, self._end - self._begin)
                text = read_exact(file, self._begin + first, max(last_here - first, 0), self.path, "text")
                if len(text.split()) <= 1 and text == text.strip():
                    return text
                whole = read_exact(file, self._begin, self._end - self._begin, self.path, "text")
            self._all = b"".join(whole.split())
        return self._all[first:last]


class _Base64:
    """Bytes [offset, offset + count) of data that is base64 text, from character `begin` on."""

    def __init__(self, characters: _Characters, begin: int = 0) -> None:
        self._characters, self._begin = characters, begin

    def __call__(self, offset: int, count: int) -> bytes:
        first, last = offset // 3 * 4, -(-(offset + count) // 3) * 4
        text = self._characters(self._begin + first, self._begin + last)
        try:
            found = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise DamagedFile(f"base64 text: {error}", where=self._characters.path) from None
        skip = offset - first // 4 * 3
        return found[skip : skip + count]

    def after(self, count: int) -> _Base64:
        """The data after a header of `count` bytes.

        The header is encoded separately, with its own padding.
        """
        return _Base64(self._characters, self._begin + -(-count // 3) * 4)


class _Raw:
    """Bytes [offset, offset + count) of raw data that begins at byte `begin` of a file."""

    def __init__(self, path: str, begin: int) -> None:
        self._path, self.begin = path, begin

    def __call__(self, offset: int, count: int) -> bytes:
        file, size = open_regular(self._path)
        with file:
            if self.begin + offset + count > size:
                raise DamagedFile(f"{count} bytes at {self.begin + offset} pass its end", where=self._path)
            return read_exact(file, self.begin + offset, count, self._path, "array")

    def after(self, count: int) -> _Raw:
        return _Raw(self._path, self.begin + count)


def _size(made: bytes | np.ndarray) -> int:
    return len(made) if isinstance(made, bytes) else made.nbytes


class _Cache:
    """The decoded blocks and arrays that were used last, at most _KEPT bytes.

    Thread-safe: threads that need the same block wait for the first one to decode it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_progress: dict[tuple[int, int], threading.Lock] = {}
        self._kept: OrderedDict[tuple[int, int], bytes | np.ndarray] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int], make: Callable[[], bytes | np.ndarray]) -> bytes | np.ndarray:
        with self._lock:
            turn = self._in_progress.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    self._in_progress.pop(key, None)
                    return self._kept[key]
            made = make()
            with self._lock:
                self._in_progress.pop(key, None)
                self._kept[key] = made
                self._bytes += _size(made)
                while self._bytes > _KEPT and len(self._kept) > 1:
                    self._bytes -= _size(self._kept.popitem(last=False)[1])
        return made


class _Blocks:
    """A compressed array: a header with the sizes of its blocks, then the blocks.

    item: bytes of a number in the header. mark: '<' or '>', its byte order. kind: the name of VTK's
    compressor. room: bytes of the file, the most that the compressed blocks can have.
    """

    def __init__(
        self, source: _Base64 | _Raw, item: int, mark: str, kind: str, path: str, cache: _Cache, room: int
    ) -> None:
        self._kind, self._path, self._cache = kind, path, cache
        code = mark + ("I" if item == 4 else "Q")
        (count,) = struct.unpack(code, source(0, item))
        if count > room // item:
            raise DamagedFile(f"{count} compressed blocks, more than fit into the file", where=path)
        numbers = np.frombuffer(
            source(0, (3 + count) * item) if count else bytes(3 * item), mark + f"u{item}"
        )
        if numbers.size != 3 + count:
            raise DamagedFile("the sizes of compressed blocks are cut short", where=path)
        self._block, last = int(numbers[1]), int(numbers[2])
        self._sizes = numbers[3:].astype(np.uint64)
        if count and (
            not 0 < self._block <= _LARGEST_BLOCK or last > self._block or (self._sizes > room).any()
        ):
            raise DamagedFile(f"compressed blocks of {self._block} bytes, the last of {last}", where=path)
        self._last = last or self._block
        self._starts = (
            np.concatenate([[0], np.cumsum(self._sizes.astype(object))]) if count else np.zeros(1, object)
        )
        if self._starts[-1] > room:
            raise DamagedFile(
                f"{self._starts[-1]} bytes of compressed blocks in a file of {room}", where=path
            )
        self._data = source.after((3 + count) * item)
        self.size = (count - 1) * self._block + self._last if count else 0

    def __call__(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            block, within = divmod(offset, self._block)
            whole = self._cache.get((id(self), block), functools.partial(self._unpack, block))
            part = bytes(whole[within : within + count])
            if not part:
                raise DamagedFile("its compressed blocks end too early", where=self._path)
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)

    def _unpack(self, block: int) -> bytes:
        packed = self._data(int(self._starts[block]), int(self._sizes[block]))
        size = self._last if block == len(self._sizes) - 1 else self._block
        try:
            complete = True
            if self._kind == "vtkLZ4DataCompressor":
                found = self._lz4(packed, size)
            else:
                zipped = self._kind == "vtkZLibDataCompressor"
                stream = zlib.decompressobj() if zipped else lzma.LZMADecompressor(memlimit=1 << 30)
                found = stream.decompress(packed, size + 1)
                complete = stream.eof  # then the library has verified the checksum
        except (zlib.error, lzma.LZMAError, EOFError) as error:
            raise DamagedFile(f"block {block}: {error}", where=self._path) from None
        if len(found) != size or not complete:
            raise DamagedFile(
                f"block {block} is incomplete, or {len(found)} bytes decompressed; its header says {size}",
                where=self._path,
            )
        return found

    def _lz4(self, packed: bytes, size: int) -> bytes:
        try:
            import lz4.block
        except ImportError as error:
            raise MissingPackage.of("lz4", "twinrun[vtk]", where=self._path) from error
        if size > 255 * len(packed) + 64:
            raise DamagedFile(f"{len(packed)} bytes of LZ4 cannot hold {size} bytes", where=self._path)
        try:
            return lz4.block.decompress(packed, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise DamagedFile(str(error), where=self._path) from None


# ---- arrays ----


@dataclass
class _File:
    """A file whose XML was parsed.

    order: byte order of its data. header_item: bytes of a number in a header of data.
    """

    path: str
    size: int
    document: _Document
    order: str
    header_item: int
    compressor: str
    cache: _Cache = field(default_factory=_Cache)

    @property
    def mark(self) -> str:
        return ">" if self.order == "big" else "<"


def _read(path: str) -> _File:
    """Parses the XML of a file, and checks that its encoding is supported."""
    file, size = open_regular(path)
    with file:
        document = _document(file, size, path)
    order = {"LittleEndian": "little", "BigEndian": "big"}.get(
        document.attributes.get("byte_order", "LittleEndian")
    )
    header_item = {"UInt32": 4, "UInt64": 8}.get(document.attributes.get("header_type", "UInt32"))
    compressor = document.attributes.get("compressor", "")
    if order is None or header_item is None:
        raise Unsupported("a byte order or a header type that is not known", where=path)
    if compressor and compressor not in _COMPRESSORS:
        raise Unsupported(f"compressed with {compressor!r:.60}", where=path)
    if document.appended >= 0 and document.appended_encoding not in ("raw", "base64"):
        raise Unsupported(f"appended data in encoding {document.appended_encoding!r:.40}", where=path)
    return _File(path, size, document, order, header_item, compressor)


def _field(
    source: _File, array: _Array, name: str, tuples: tuple[int, ...] | None, components: int | None = None
) -> Field:
    """The field of an array. tuples: its shape without components; None takes it from the data.

    components: components of a tuple; None takes the attribute NumberOfComponents.
    """
    path, attributes = source.path, array.attributes
    what = f"array {name!r}"
    dtype = _TYPES[attributes["type"]]
    item = ITEMSIZE[dtype]
    components = components or _integer(attributes, "NumberOfComponents", path, 1) or 1
    if tuples is None and "NumberOfTuples" in attributes:
        tuples = (_integer(attributes, "NumberOfTuples", path),)
    numbers = None
    if tuples is not None:
        numbers = math.prod(checked_shape((*tuples, components), item, path, what))
    form = attributes.get("format", "ascii")
    if form == "ascii":
        return _ascii(source, array, name, dtype, tuples, components, numbers)
    if form == "appended":
        if source.document.appended < 0:
            raise DamagedFile(f"{what} is appended, and there is no appended data", where=path)
        begin = source.document.appended + _integer(attributes, "offset", path)
        raw = source.document.appended_encoding == "raw"
        end = source.size
    elif form == "binary":
        begin, end, raw = array.begin, array.end, False
    else:
        raise Unsupported(f"{what} in format {form!r:.40}", where=path)
    if begin < 0 or begin > source.size - (0 if numbers == 0 else 1):
        if numbers == 0:
            return Field(name, dtype, source.order, _shape(tuples, components, 0), extents=())
        raise DamagedFile(f"{what} begins after the end of the file", where=path)
    place: _Base64 | _Raw = _Raw(path, begin) if raw else _Base64(_Characters(path, begin, end))
    read_bytes: Callable[[int, int], bytes]
    if source.compressor:
        blocks = _Blocks(
            place, source.header_item, source.mark, source.compressor, path, source.cache, source.size
        )
        length, read_bytes = blocks.size, blocks
    else:
        code = source.mark + ("I" if source.header_item == 4 else "Q")
        head = place(0, source.header_item)
        if len(head) != source.header_item:
            raise DamagedFile(f"{what} is cut short", where=path)
        (length,) = struct.unpack(code, head)
        if length > source.size:
            raise DamagedFile(f"{what} claims {length} bytes in a file of {source.size}", where=path)
        skip = source.header_item

        def read_bytes(offset: int, count: int) -> bytes:
            return place(skip + offset, count)

    if numbers is None:
        numbers = length // item
        tuples = (numbers // components,)
    if length != numbers * item or numbers % components:
        raise DamagedFile(
            f"{what} has {length} bytes; {numbers} elements of {dtype} are expected", where=path
        )
    shape = _shape(tuples, components, numbers)
    if raw and not source.compressor:
        first = begin + source.header_item
        if first + length > source.size:
            raise DamagedFile(f"{what}: its {length} bytes pass the end of the file", where=path)
        extents = (Extent(path, first, numbers, item),) if numbers else ()
        return Field(name, dtype, source.order, shape, extents=extents)
    stored = storage_dtype(dtype, source.order)

    def read(at: int, count: int) -> np.ndarray:
        found = read_bytes(at * item, count * item)
        if len(found) != count * item:
            raise DamagedFile(f"{what}: read {len(found)} of {count * item} bytes", where=path)
        return np.frombuffer(found, stored)

    return Field(name, dtype, source.order, shape, read=decoded(name, dtype, numbers, path, read))


def _shape(tuples: tuple[int, ...] | None, components: int, numbers: int) -> tuple[int, ...]:
    tuples = (numbers // components,) if tuples is None else tuples
    return (*tuples, components) if components > 1 else tuples


def _ascii(
    source: _File,
    array: _Array,
    name: str,
    dtype: str,
    tuples: tuple[int, ...] | None,
    components: int,
    numbers: int | None,
) -> Field:
    """The field of an array that is inline text. numbers: its number of elements; None counts them.

    The text is parsed when the field is read, and cached.
    """
    path = source.path
    empty = array.begin < 0
    length = 0 if empty else array.end - array.begin
    if numbers is not None and 2 * numbers > length + 1:
        raise DamagedFile(f"array {name!r}: {numbers} numbers in {length} bytes of text", where=path)

    def parse() -> np.ndarray:
        if empty:
            return np.empty(0, storage_dtype(dtype))
        file, size = open_regular(path)
        with file:
            if array.end > size:
                raise DamagedFile("the file has become shorter since it was opened", where=path)
            words = read_exact(file, array.begin, length, path, f"array {name!r}").split()
        try:
            number = int if dtype[0] in "iu" else float
            made = np.array([number(w) for w in words], storage_dtype(dtype))
        except (ValueError, OverflowError) as error:
            raise DamagedFile(f"array {name!r}: {error}", where=path) from None
        if numbers is not None and made.size != numbers:
            raise DamagedFile(f"array {name!r} has {made.size} numbers; {numbers} are expected", where=path)
        return made

    if numbers is None:  # the number of elements is only known after parsing the text
        numbers = parse().size
        tuples = (numbers // components,)
        if numbers % components:
            raise DamagedFile(f"array {name!r}: {numbers} numbers for {components} components", where=path)

    def read(first: int, count: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            whole = source.cache.get((id(array), -1), parse)
        return np.asarray(whole)[first : first + count]

    reader = decoded(name, dtype, numbers, path, read)
    return Field(name, dtype, "little", _shape(tuples, components, numbers), read=reader)


# ---- pieces ----


@dataclass
class _Grid:
    """The arrays of one piece.

    low, high: of a structured grid the lowest and highest indices of points, x first. component_names: of
    each field. active: as of the piece.
    """

    fields: dict[str, Field]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    component_names: dict[str, dict[str, str]] = field(default_factory=dict)
    active: dict[str, dict[str, str]] = field(default_factory=dict)


def _grid(source: _File, piece: _Piece, content: FileContent) -> _Grid:
    """The arrays of a piece, by the names of their fields. Adds facts and skipped arrays to `content`."""
    path, kind = source.path, source.document.kind
    result = _Grid({}, active=piece.active)
    cells: tuple[int, ...]
    if kind in ("UnstructuredGrid", "PolyData"):
        points: tuple[int, ...] = (_integer(piece.attributes, "NumberOfPoints", path),)
        counts = {
            s: _integer(piece.attributes, f"NumberOf{s}", path, 0)
            for s in ("Verts", "Lines", "Strips", "Polys")
        }
        cells = (
            _integer(piece.attributes, "NumberOfCells", path, 0)
            if kind == "UnstructuredGrid"
            else sum(counts.values()),
        )
        counts["Cells"] = cells[0]
    else:
        result.low, result.high = _extent(piece.attributes, "Extent", path)
        counts = {}
        points = _points(result)
        cells = _cells(result)
    for array in piece.arrays:
        label = array.attributes.get("Name", "").strip()
        section = array.section
        name = section if section == "Points" else f"{section}/{label or len(result.fields)}"
        if section in ("Verts", "Lines", "Strips", "Polys") and not counts.get(section):
            continue
        if array.attributes.get("type") == "String":
            result.fields[name] = _text_field(source, array, name)
            continue
        if array.attributes.get("type") not in _TYPES:
            content.skipped.append(
                (name, f"elements of type {array.attributes.get('type')!r:.40} are not compared")
            )
            continue
        tuples: tuple[int, ...] | None = None
        if section in ("PointData", "Points"):
            tuples = points
        elif section == "CellData":
            tuples = cells
        elif section in counts and label in ("offsets", "types"):
            tuples = (counts[section],)
        elif section == "Coordinates":
            axis = sum(1 for n in result.fields if n.startswith("Coordinates/"))
            if axis > 2:
                raise DamagedFile("more than three arrays of coordinates", where=path)
            name, tuples = f"Coordinates/{'xyz'[axis]}", (points[2 - axis],)
        new = _field(source, array, name, tuples, 3 if section == "Points" else None)
        result.component_names[name] = _component_names(array)
        if name in result.fields:
            raise DamagedFile(f"two arrays are named {name!r}", where=path)
        result.fields[name] = new
    return result


def _points(grid: _Grid) -> tuple[int, ...]:
    return tuple(b - a + 1 for a, b in zip(grid.low, grid.high, strict=True))[::-1]


def _cells(grid: _Grid) -> tuple[int, ...]:
    """Number of cells along each axis, z first.

    An axis with a single plane of points has one cell, as in VTK.
    """
    if any(n == 0 for n in _points(grid)):
        return (0, 0, 0)
    return tuple(max(n - 1, 1) for n in _points(grid))


def open_vtk(path: str) -> FileContent:
    """Opens a file of VTK's XML formats.

    For .pvtu and the other parallel formats: with all pieces that it lists.
    """
    source = _read(path)
    content = FileContent(path, "vtk")
    document = source.document
    parallel = document.kind.startswith("P") and document.kind[1:] in _KINDS
    kind = document.kind[1:] if parallel else document.kind
    if kind not in _KINDS:
        raise Unsupported(f"files of type {document.kind!r:.40} are not supported", where=path)
    grids: list[_Grid] = []
    if parallel:
        for piece in document.pieces:
            inner = _read(_source(path, piece))
            if inner.document.kind != kind:
                raise DamagedFile(f"holds {inner.document.kind!r:.40}, not {kind}", where=inner.path)
            grids += [_grid(inner, p, content) for p in inner.document.pieces]
            _add_field_data(content, inner, f"piece-{len(content.sources)}/")
            content.sources += (inner.path,)
    else:
        grids = [_grid(source, piece, content) for piece in document.pieces]
    if kind in ("UnstructuredGrid", "PolyData"):
        grids = [g for g in grids if any(f.size for f in g.fields.values())] or grids[:1]
        fields = _joined(grids, path)
    elif len(grids) == 1:
        fields = grids[0].fields
    else:
        whole = _Grid({}, *_extent(document.whole, "WholeExtent", path))
        fields = _put_together(grids, whole, content)
    for new in fields.values():
        content.add(new)
    if kind == "ImageData":
        for name in ("Origin", "Spacing", "Direction"):
            if name in document.whole:
                content.add(header_field(name, map(float, document.whole[name].split()), path))
    _add_field_data(content, source)
    content.say("", "(data set)", kind)
    for section in ("PointData", "CellData"):
        active = _by_piece([grid.active[section] for grid in grids if section in grid.active])
        for word, array in active.items():
            content.say(section, word, array)
    for name in fields:
        held = [grid.component_names[name] for grid in grids if name in grid.component_names]
        if names := _by_piece(held):
            content.say(name, "(component names)", names)
    if kind not in ("UnstructuredGrid", "PolyData"):
        content.say("", "(extent)", document.whole.get("WholeExtent", "").split())
    return content


def _text_field(source: _File, array: _Array, name: str) -> Field:
    """The field of an array of texts: its bytes, in which every text ends with a 0."""
    kept = {k: v for k, v in array.attributes.items() if k not in ("NumberOfTuples", "NumberOfComponents")}
    new = _field(source, replace(array, attributes={**kept, "type": "UInt8"}), name, None)
    new.kind = "text"
    return new


def _component_names(array: _Array) -> dict[str, str]:
    """The names of an array's components, by attribute."""
    return {k: v for k, v in array.attributes.items() if k.startswith("ComponentName")}


def _by_piece(of_pieces: list[dict[str, str]]) -> dict[str, Any]:
    """Attributes that all pieces have in common as they are; where the pieces disagree, those of
    each piece.
    """
    if all(one == of_pieces[0] for one in of_pieces):
        return dict(of_pieces[0]) if of_pieces else {}
    return {f"piece {at}: {key}": value for at, one in enumerate(of_pieces) for key, value in one.items()}


def _source(path: str, piece: _Piece) -> str:
    """Path of the file of a piece. Raises DamagedFile if it is not below the folder of `path`."""
    relative = piece.attributes.get("Source", "")
    parts = relative.replace("\\", "/").split("/")
    if not relative or os.path.isabs(relative) or ".." in parts or "\0" in relative:
        raise DamagedFile(f"it lists a piece outside of its folder: {relative[:60]!r}", where=path)
    return os.path.join(os.path.dirname(path), *parts)


def _common(grids: list[_Grid], where: str) -> list[str]:
    """Names of the arrays. Raises DamagedFile unless all pieces have them, with the same types."""
    names = list(grids[0].fields) if grids else []
    for grid in grids[1:]:
        if sorted(grid.fields) != sorted(names):
            other = sorted(set(names) ^ set(grid.fields))[0]
            raise DamagedFile(f"array {other!r} is not in every piece", where=where)
        for name in names:
            a, b = grids[0].fields[name], grid.fields[name]
            if (a.dtype, len(a.shape)) != (b.dtype, len(b.shape)):
                raise DamagedFile(f"array {name!r} has several types", where=where)
    return names


def _joined(grids: list[_Grid], path: str) -> dict[str, Field]:
    """The arrays of all pieces, concatenated."""
    if len(grids) == 1:
        return grids[0].fields
    result = {}
    for name in _common(grids, path):
        parts = [g.fields[name] for g in grids]
        first = parts[0]
        if len({p.shape[1:] for p in parts}) > 1:
            raise DamagedFile(f"array {name!r} has several numbers of components", where=path)
        shape = checked_shape(
            (sum(p.shape[0] for p in parts), *first.shape[1:]), first.itemsize, path, f"array {name!r}"
        )
        if all(p.extents is not None and p.byte_order == first.byte_order for p in parts):
            extents = tuple(e for p in parts for e in p.extents or ())
            result[name] = replace(first, shape=shape, extents=extents)
            continue

        def read(at: int, count: int, parts: list[Field] = parts) -> np.ndarray:
            out = []
            for part in parts:
                here = min(count, part.size - at)
                if here > 0:
                    out.append(part.elements(at, here))
                    at, count = 0, count - here
                else:
                    at -= part.size
                if not count:
                    break
            return np.concatenate(out)

        reader = decoded(name, first.dtype, math.prod(shape), path, read)
        result[name] = replace(first, shape=shape, extents=None, read=reader)
    return result


def _put_together(grids: list[_Grid], whole: _Grid, content: FileContent) -> dict[str, Field]:
    """The arrays of a structured grid's whole extent, joined from its pieces.

    Neighbouring pieces share the points on their border, and must have equal values there.
    """
    path = content.path
    for grid in grids:
        inside = all(a <= b for a, b in zip(whole.low, grid.low, strict=True)) and all(
            a >= b for a, b in zip(whole.high, grid.high, strict=True)
        )
        if not inside:
            raise DamagedFile("a piece extends beyond the whole extent", where=path)
    grids = [g for g in grids if math.prod(_points(g))]
    if sum(math.prod(_cells(g)) for g in grids) != math.prod(_cells(whole)):
        message = "its pieces overlap, or leave holes in the whole extent"
        raise Unsupported(message, where=path, fix="compare the pieces by themselves")
    result = {}
    cache = BandCache(_KEPT * 2)
    for name in _common(grids, path):
        first = grids[0].fields[name]
        if name.startswith("Coordinates/"):
            result[name] = _coordinates(name, grids, whole, path)
            continue
        cells = name.startswith("CellData/")
        components = first.shape[3:]
        shape = checked_shape(
            (_cells(whole) if cells else _points(whole)) + components, first.itemsize, path, f"array {name!r}"
        )
        if math.prod(shape) * 8 > LARGEST:
            raise DamagedFile(f"array {name!r} is too large", where=path)
        joined = _JoinedArray([(g, g.fields[name]) for g in grids], whole, shape, cells)
        chunks = tuple(max(g.fields[name].shape[axis] for g in grids) for axis in range(len(shape)))
        band = BandReader(shape, chunks, storage_dtype(first.dtype), joined.read, cache)
        reader = decoded(name, first.dtype, math.prod(shape), path, band.read)
        result[name] = Field(name, first.dtype, first.byte_order, shape, read=reader)
    return result


def _coordinates(name: str, grids: list[_Grid], whole: _Grid, path: str) -> Field:
    """The coordinates along one axis, joined from the pieces."""
    axis = "xyz".index(name[-1])
    count = whole.high[axis] - whole.low[axis] + 1
    first = grids[0].fields[name]

    def read(at: int, size: int) -> np.ndarray:
        out = np.zeros(count, storage_dtype(first.dtype))
        known = np.zeros(count, bool)
        for grid in grids:
            part = grid.fields[name].elements()
            here = slice(grid.low[axis] - whole.low[axis], grid.high[axis] - whole.low[axis] + 1)
            if out[here][known[here]].tobytes() != part[known[here]].tobytes():
                raise ValueError(
                    "its pieces have different coordinates for a plane that they share: compare the pieces"
                )
            out[here], known[here] = part, True
        if not known.all():
            raise ValueError("its pieces leave holes in the whole extent")
        return out[at : at + size]

    return Field(
        name,
        first.dtype,
        first.byte_order,
        (count,),
        read=decoded(name, first.dtype, count, path, read),
    )


class _JoinedArray:
    """Reads boxes of an array of the whole extent from the arrays of the pieces."""

    def __init__(
        self, parts: list[tuple[_Grid, Field]], whole: _Grid, shape: tuple[int, ...], cells: bool
    ) -> None:
        self._parts, self._shape, self._cells = parts, shape, cells
        self._origin = whole.low[::-1]

    def read(self, box: Box) -> np.ndarray:
        dtype = storage_dtype(self._parts[0][1].dtype)
        out = np.zeros(tuple(s.stop - s.start for s in box), dtype)
        covered = np.zeros(out.shape[:3], bool)
        for grid, new in self._parts:
            low = [a - b for a, b in zip(grid.low[::-1], self._origin, strict=True)]
            start = [max(s.start, a) for s, a in zip(box[:3], low, strict=True)]
            stop = [min(s.stop, a + n) for s, a, n in zip(box[:3], low, new.shape[:3], strict=True)]
            if any(a >= b for a, b in zip(start, stop, strict=True)):
                continue
            plane = math.prod(new.shape[1:])
            rows = new.elements((start[0] - low[0]) * plane, (stop[0] - start[0]) * plane)
            array = rows.reshape(stop[0] - start[0], *new.shape[1:])
            here = tuple(slice(a - b, c - b) for a, b, c in zip(start[1:], low[1:], stop[1:], strict=True))
            there = tuple(
                slice(a - s.start, c - s.start) for a, s, c in zip(start, box[:3], stop, strict=True)
            )
            inside = (slice(None), *here, *box[3:])
            part = array[inside]
            known = covered[there]
            if known.any() and out[there][known].tobytes() != np.ascontiguousarray(part)[known].tobytes():
                # Only one of the two values could be compared, so a difference in the other would
                # be missed.
                raise ValueError(
                    "its pieces have different values at a point that they share: compare the pieces"
                )
            out[there] = part
            covered[there] = True
        if not covered.all():
            raise ValueError("its pieces leave holes in the whole extent")
        return out


def _add_field_data(content: FileContent, source: _File, prefix: str = "") -> None:
    """Adds the arrays of the section FieldData. prefix: of their names, for the file of a piece."""
    for number, array in enumerate(source.document.fields):
        label = array.attributes.get("Name", "").strip() or str(number)
        name = f"{prefix}FieldData/{label}"
        if array.attributes.get("type") == "String":
            content.add(_text_field(source, array, name))
            continue
        if array.attributes.get("type") not in _TYPES:
            content.skipped.append(
                (name, f"elements of type {array.attributes.get('type')!r:.40} are not compared")
            )
            continue
        new = _field(source, array, name, None)
        content.add(new)
        if names := _component_names(array):
            content.say(name, "(component names)", names)
        if not prefix and label in ("TimeValue", "TIME", "time") and new.size == 1 and new.dtype[0] == "f":
            try:
                content.time = float(new.elements()[0])
            except FormatError:
                pass  # reading the field raises it again


def _sniff(path: str, file: BinaryIO) -> bool:
    return (
        re.match(rb"\s*(<\?xml[^>]*>)?\s*(<!--.*?-->\s*)?<VTKFile\b", file.read(2048), re.DOTALL) is not None
    )


def _parts(path: str) -> list[str]:
    """Paths of the pieces that a file of a parallel format (.pvtu, …) lists, whatever its suffix."""
    file, _ = open_regular(path)
    with file:
        if re.search(rb"""<VTKFile\b[^>]*\btype\s*=\s*["']P[A-Z]""", file.read(4096)) is None:
            return []
    return [_source(path, piece) for piece in _read(path).document.pieces]


FORMAT = Format(
    "vtk",
    "VTK XML file",
    open_vtk,
    suffixes=(*_SUFFIXES, *(f".p{suffix[1:]}" for suffix in _SUFFIXES)),
    sniff=_sniff,
    order=20,
    parts=_parts,
)
