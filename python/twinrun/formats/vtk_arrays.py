"""Arrays of VTK's XML files: text, base64, raw and compressed blocks, read in parts.

An array in raw appended data without compression is one extent; what is decoded is kept for a while.
"""

from __future__ import annotations

import base64
import binascii
import functools
import lzma
import math
import re
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import DamagedFile, MissingPackage, Unsupported
from .element_types import ITEMSIZE, storage_dtype
from .files import open_regular, read_exact
from .model import Extent, Field, checked_shape, decoded
from .texts import is_beyond
from .vtk_header import Array, Document, integer_of, is_real, read_document

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["KEPT", "TYPES", "File", "array_field", "open_vtk_file", "text_field"]

TYPES = {
    f"{word}{bits}": f"{letter}{bits}"
    for word, letter, widths in (
        ("Int", "i", (8, 16, 32, 64)),
        ("UInt", "u", (8, 16, 32, 64)),
        ("Float", "f", (32, 64)),
    )
    for bits in widths
}
_COMPRESSORS = ("vtkZLibDataCompressor", "vtkLZ4DataCompressor", "vtkLZMADataCompressor")
_LARGEST_BLOCK = 1 << 28
KEPT = 32 << 20  # bytes of what is decoded


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


class Cache:
    """The decoded blocks and arrays that were used last, at most KEPT bytes.

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
                while self._bytes > KEPT and len(self._kept) > 1:
                    self._bytes -= _size(self._kept.popitem(last=False)[1])
        return made


class _Blocks:
    """A compressed array: a header with the sizes of its blocks, then the blocks.

    item: bytes of a number in the header. mark: '<' or '>', its byte order. kind: the name of VTK's
    compressor. room: bytes of the file, the most that the compressed blocks can have.
    """

    def __init__(
        self, source: _Base64 | _Raw, item: int, mark: str, kind: str, path: str, cache: Cache, room: int
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
class File:
    """A file whose XML was parsed.

    order: byte order of its data. header_item: bytes of a number in a header of data.
    """

    path: str
    size: int
    document: Document
    order: str
    header_item: int
    compressor: str
    cache: Cache = field(default_factory=Cache)

    @property
    def mark(self) -> str:
        return ">" if self.order == "big" else "<"


def open_vtk_file(path: str) -> File:
    """Parses the XML of a file, and checks that its encoding is supported."""
    file, size = open_regular(path)
    with file:
        document = read_document(file, size, path)
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
    return File(path, size, document, order, header_item, compressor)


def array_field(
    source: File, array: Array, name: str, tuples: tuple[int, ...] | None, components: int | None = None
) -> Field:
    """The field of an array. tuples: its shape without components; None takes it from the data.

    components: components of a tuple; None takes the attribute NumberOfComponents.
    """
    path, attributes = source.path, array.attributes
    what = f"array {name!r}"
    dtype = TYPES[attributes["type"]]
    item = ITEMSIZE[dtype]
    components = components or integer_of(attributes, "NumberOfComponents", path, 1) or 1
    if tuples is None and "NumberOfTuples" in attributes:
        tuples = (integer_of(attributes, "NumberOfTuples", path),)
    numbers = None
    if tuples is not None:
        numbers = math.prod(checked_shape((*tuples, components), item, path, what))
    if attributes.get("format", "ascii") == "ascii":
        return text_field(source, array, name, dtype, tuples, components, numbers)
    begin, end, raw = _place(source, array, what)
    if begin < 0 or begin > source.size - (0 if numbers == 0 else 1):
        if numbers == 0:
            return Field(name, dtype, source.order, _shape(tuples, components, 0), extents=())
        raise DamagedFile(f"{what} begins after the end of the file", where=path)
    length, read_bytes = _opened(
        source, _Raw(path, begin) if raw else _Base64(_Characters(path, begin, end)), what
    )
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


def _place(source: File, array: Array, what: str) -> tuple[int, int, bool]:
    """(first byte, byte after the last, whether the bytes are raw) of an array that is no text."""
    form = array.attributes.get("format", "ascii")
    if form == "appended":
        if source.document.appended < 0:
            raise DamagedFile(f"{what} is appended, and there is no appended data", where=source.path)
        begin = source.document.appended + integer_of(array.attributes, "offset", source.path)
        return begin, source.size, source.document.appended_encoding == "raw"
    if form == "binary":
        return array.begin, array.end, False
    raise Unsupported(f"{what} in format {form!r:.40}", where=source.path)


def _opened(source: File, place: _Base64 | _Raw, what: str) -> tuple[int, Callable[[int, int], bytes]]:
    """(bytes of an array, a function that reads some of them): by its header, decompressed."""
    if source.compressor:
        blocks = _Blocks(
            place, source.header_item, source.mark, source.compressor, source.path, source.cache, source.size
        )
        return blocks.size, blocks
    code = source.mark + ("I" if source.header_item == 4 else "Q")
    head = place(0, source.header_item)
    if len(head) != source.header_item:
        raise DamagedFile(f"{what} is cut short", where=source.path)
    (length,) = struct.unpack(code, head)
    if length > source.size:
        raise DamagedFile(f"{what} claims {length} bytes in a file of {source.size}", where=source.path)
    skip = source.header_item
    return length, lambda offset, count: place(skip + offset, count)


def _shape(tuples: tuple[int, ...] | None, components: int, numbers: int) -> tuple[int, ...]:
    tuples = (numbers // components,) if tuples is None else tuples
    return (*tuples, components) if components > 1 else tuples


def _wrong_word(words: list[bytes], name: str, dtype: str, path: str) -> DamagedFile:
    """The error for the first word that is no number of a type."""
    whole = dtype[0] in "iu"
    for word in words:
        text = word[:40].decode("utf-8", "backslashreplace")
        if not re.fullmatch(rb"[+-]?[0-9]+", word) if whole else not is_real(word):
            kind = "whole number" if whole else "number"
            return DamagedFile(f"array {name!r}: {text!r} is no {kind}", where=path)
        if whole and not _fits(word, dtype):
            return DamagedFile(f"array {name!r}: {text} is too large for its type, {dtype}", where=path)
    return DamagedFile(f"array {name!r} has words that are no numbers", where=path)


def _fits(word: bytes, dtype: str) -> bool:
    """Whether a whole number is within the range of a type."""
    limits = np.iinfo(storage_dtype(dtype))
    return len(word) < 40 and int(limits.min) <= int(word) <= int(limits.max)


def text_field(
    source: File,
    array: Array,
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
        except (ValueError, OverflowError):
            raise _wrong_word(words, name, dtype, path) from None
        if any(b"_" in w for w in words):  # Python takes 1_0 for 10
            raise _wrong_word(words, name, dtype, path)
        for at in np.flatnonzero(np.isinf(made)):
            if is_beyond(words[at], float(made[at])):
                text = words[at][:40].decode("utf-8", "backslashreplace")
                raise DamagedFile(f"array {name!r}: {text} is too large for its type, {dtype}", where=path)
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
