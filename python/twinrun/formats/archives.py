"""Members of zip archives: where stored ones lie in the file, and the bytes of compressed ones by offset, decoded about once.

An archive may be a whole file or lie inside one. Shared by the formats whose files are zip archives.
"""

from __future__ import annotations

import bisect
import copy
import io
import struct
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .files import open_regular, read_exact, reading
from .layout import Decoded, Stored

__all__ = ["LOCAL_HEADER", "Archive", "MemberStream", "Pieces", "first_member", "member_offset"]

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 0x1
_MOST_MEMBERS = 1_000_000
DEFLATE_LIMIT = 1032  # bytes out of one byte of deflate, at the very most (zlib's technical details)


_PIECE = 1 << 20  # bytes that are decoded at once, and kept
_KEPT_BYTES = 64 << 20  # of an archive: what one thread had to decode on its way another one asks for soon
_MOST_MARKS = 256  # places of a stream to go on from: about 50 KiB each
_LEAST_BETWEEN_MARKS = 4 << 20
_PACKED = 1 << 18  # bytes of a compressed stream that are read at once
_MOST_CURSORS = 16


class Pieces:
    """The pieces of the members of an archive that were decoded last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int]) -> bytes | None:
        with self._lock:
            piece = self._kept.get(key)
            if piece is not None:
                self._kept.move_to_end(key)
            return piece

    def put(self, key: tuple[int, int], piece: bytes) -> None:
        with self._lock:
            self._bytes += len(piece) - len(self._kept.pop(key, b""))
            self._kept[key] = piece
            while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])


class _Inflating:
    """A deflate stream, decoded up to `offset`. A copy goes on from the same place."""

    def __init__(self, read_packed: Callable[[int, int], bytes], size: int) -> None:
        self.offset, self._read_packed, self._size, self._at = 0, read_packed, size, 0
        self._stream = zlib.decompressobj(-15)

    def copy(self) -> _Inflating:
        made = copy.copy(self)
        made._stream = self._stream.copy()
        return made

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer where the stream ends."""
        parts = []
        left = count
        while left and not self._stream.eof:
            packed = self._stream.unconsumed_tail
            if not packed and self._at < self._size:
                packed = self._read_packed(self._at, min(_PACKED, self._size - self._at))
                self._at += len(packed)
            part = self._stream.decompress(packed, left)
            if not part and not packed:
                break
            parts.append(part)
            left -= len(part)
        self.offset += count - left
        return b"".join(parts)


class _Opened:
    """A stream of another kind, decoded by Python's zipfile: it cannot be copied."""

    def __init__(self, stream: BinaryIO) -> None:
        self.offset, self._stream = 0, stream

    def copy(self) -> None:
        return None

    def read(self, count: int) -> bytes:
        parts = []
        left = count
        while left and (part := self._stream.read(left)):
            parts.append(part)
            left -= len(part)
        self.offset += count - left
        return b"".join(parts)


class MemberStream:
    """Bytes of one compressed member by offset, for any number of threads in any order; each is decoded about once.

    A stream is decoded from its start only. So who asks first decodes for all, piece by piece, and leaves marks on the way, from
    which a deflate stream is decoded again; it is not where the pieces that were decoded last have what is asked for.
    """

    def __init__(
        self,
        archive: zipfile.ZipFile,
        info: zipfile.ZipInfo,
        pieces: Pieces,
        file: BinaryIO,
        offset: int,
        path: str,
    ) -> None:
        """file, offset: where its compressed bytes are."""
        self._archive, self._info, self._pieces, self._path = archive, info, pieces, path
        self._file, self._begin = file, offset
        self._lock = threading.Lock()
        self._problem = (
            ""  # for whoever asks next, too; an error that was raised would hold on to all who read
        )
        self._cursors: list[_Inflating | _Opened] = []  # the last used one last
        self._marks: list[_Inflating] = []  # by offset
        self._between = max(_LEAST_BETWEEN_MARKS, info.file_size // _MOST_MARKS)
        self._summed = self._sum = 0  # bytes of which the checksum is known, from the start, and it

    def head(self, count: int) -> bytes:
        """The first `count` bytes, without decoding more than these. Raises FormatError where it holds fewer."""
        with reading(self._path, f"member {self._info.filename!r}"):
            found = self._new().read(count)
        if len(found) != count:
            raise self._short()
        return found

    def read(self, offset: int, count: int) -> bytearray:
        """`count` bytes from `offset`. Raises FormatError where it holds fewer."""
        result = bytearray()
        with reading(self._path, f"member {self._info.filename!r}"):
            while len(result) < count:
                number, within = divmod(offset + len(result), _PIECE)
                part = memoryview(self._piece(number))[within : within + count - len(result)]
                if not part:
                    raise self._short()
                result += part
        return result

    def _short(self) -> DamagedFile:
        return DamagedFile(f"member {self._info.filename!r} ends before its array does", where=self._path)

    def _new(self) -> _Inflating | _Opened:
        if self._archive.fp is None or self._file.closed:
            raise FormatError("the file was closed", where=self._path)
        if self._info.compress_type != zipfile.ZIP_DEFLATED:
            return _Opened(self._archive.open(self._info))  # type: ignore[arg-type]
        return _Inflating(self._packed, self._info.compress_size)

    def _packed(self, at: int, count: int) -> bytes:
        what = f"member {self._info.filename!r}"
        if self._file.closed:
            raise FormatError("the file was closed", where=self._path)
        return read_exact(self._file, self._begin + at, count, self._path, what)

    def _piece(self, number: int) -> bytes:
        key = (self._info.header_offset, number)
        if self._archive.fp is None:
            raise FormatError("the file was closed", where=self._path)
        found = self._pieces.get(key)
        if found is not None:
            return found
        with self._lock:
            if self._problem:
                raise DamagedFile(self._problem, where=self._path)
            found = self._pieces.get(key)  # another thread may have made it meanwhile
            if found is not None:
                return found
            cursor = self._take(number * _PIECE)
            while True:  # a cursor that fails is gone: its state is unknown
                at = cursor.offset
                mark = self._marks[-1].offset if self._marks else 0
                if at >= mark + self._between and (here := cursor.copy()) is not None:
                    self._marks.append(here)
                found = cursor.read(_PIECE)
                self._check(at, found)
                self._pieces.put((key[0], at // _PIECE), found)
                if at == number * _PIECE:
                    break
                if not found:
                    raise self._short()
            self._cursors.append(cursor)
            del self._cursors[:-_MOST_CURSORS]
            return found

    def _take(self, offset: int) -> _Inflating | _Opened:
        """What decodes the fewest bytes on its way to `offset`: a cursor that rests before it, a mark, the start."""
        before = [c for c in self._cursors if c.offset <= offset]
        nearest = max(before, key=lambda c: c.offset, default=None)
        mark = (
            self._marks[at - 1]
            if (at := bisect.bisect(self._marks, offset, key=lambda m: m.offset))
            else None
        )
        if nearest is not None and (mark is None or nearest.offset >= mark.offset):
            self._cursors.remove(nearest)
            return nearest
        return self._new() if mark is None else mark.copy()

    def _check(self, at: int, piece: bytes) -> None:
        """Its checksum and its length, once it was decoded from start to end."""
        if at != self._summed:
            return
        self._summed, self._sum = at + len(piece), zlib.crc32(piece, self._sum)
        if len(piece) == _PIECE and self._summed < self._info.file_size:
            return
        if self._summed != self._info.file_size or self._sum != self._info.CRC:
            name = self._info.filename
            self._problem = f"member {name!r} is not what was compressed: its checksum or length is another"
            raise DamagedFile(self._problem, where=self._path)


def member_offset(file: BinaryIO, size: int, info: zipfile.ZipInfo, path: str, base: int = 0) -> int:
    """Where the bytes of a member begin: after its local header, whose extra part has a length of its own.

    base: where the archive begins in the file. size: its bytes. The result counts from the file's start.
    """
    what = f"member {info.filename!r}"
    if info.header_offset < 0 or info.header_offset + LOCAL_HEADER.size > size:
        raise DamagedFile(f"{what} begins outside the file", where=path)
    header = LOCAL_HEADER.unpack(read_exact(file, base + info.header_offset, LOCAL_HEADER.size, path, what))
    if header[0] != b"PK\3\4" or header[3] != info.compress_type:
        raise DamagedFile(f"{what}: no matching header at byte {info.header_offset}", where=path)
    offset = info.header_offset + LOCAL_HEADER.size + header[9] + header[10]
    if offset + info.compress_size > size:
        raise DamagedFile(
            f"{what}: {info.compress_size} bytes at {offset} pass the end of the file", where=path
        )
    return base + offset


def check_sizes(info: zipfile.ZipInfo, path: str) -> None:
    """Raises FormatError where a member is encrypted, or its two sizes cannot both be true."""
    what = f"member {info.filename!r}"
    if info.flag_bits & _ENCRYPTED:
        raise Unsupported(f"{what} is encrypted", where=path)
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise DamagedFile(f"{what} is stored, yet has two sizes", where=path)
    if (
        info.compress_type == zipfile.ZIP_DEFLATED
        and info.file_size > (info.compress_size + 16) * DEFLATE_LIMIT
    ):
        raise DamagedFile(f"{what} claims {info.file_size} bytes out of {info.compress_size}", where=path)


class _Part(io.RawIOBase):
    """Bytes [base, base + length) of a file as a file of their own."""

    def __init__(self, file: BinaryIO, base: int, length: int, path: str) -> None:
        self._file, self._base, self._length, self._path, self._at = file, base, length, path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + {0: 0, 1: self._at, 2: self._length}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = max(0, min(len(view), self._length - self._at))
        view[:count] = read_exact(self._file, self._base + self._at, count, self._path, "archive")
        self._at += count
        return count


class Archive:
    """A zip archive at bytes [base, base + length) of a file. `members` by name. Close it."""

    def __init__(self, path: str, base: int = 0, length: int | None = None) -> None:
        self.path, self.base = path, base
        self._file, size = open_regular(path)
        try:
            self.size = size - base if length is None else length
            if base < 0 or self.size < 0 or base + self.size > size:
                raise DamagedFile(
                    f"bytes {base} to {base + self.size} pass the end of the file, which has {size}",
                    where=path,
                )
            with reading(path, "zip archive"):
                part = io.BufferedReader(_Part(self._file, base, self.size, path))
                self._zip = zipfile.ZipFile(part)
                infos = self._zip.infolist()
            if len(infos) > _MOST_MEMBERS:
                raise Unsupported(f"more than {_MOST_MEMBERS} members", where=path)
            self.members = {info.filename: info for info in infos}
            if len(self.members) != len(infos):
                raise DamagedFile("two members have the same name", where=path)
        except BaseException:
            self._file.close()
            raise
        self._pieces = Pieces()

    def source(self, name: str) -> Stored | Decoded:
        """The bytes of a member: a place in the file, or decoded where it is compressed."""
        info = self.members[name]
        check_sizes(info, self.path)
        offset = member_offset(self._file, self.size, info, self.path, self.base)
        if info.compress_type == zipfile.ZIP_STORED:
            return Stored(self.path, offset)
        stream = MemberStream(self._zip, info, self._pieces, self._file, offset, self.path)
        return Decoded(self.path, stream.read)

    def read(self, name: str, longest: int) -> bytes:
        """All bytes of a member; Unsupported where they are more than `longest`."""
        source, size = self.source(name), self.members[name].file_size
        if size > longest:
            raise Unsupported(f"member {name!r} has {size} bytes, more than {longest}", where=self.path)
        if isinstance(source, Stored):
            return read_exact(self._file, source.offset, size, self.path, f"member {name!r}")
        return bytes(source.read_bytes(0, size))  # type: ignore[call-overload]

    def close(self) -> None:
        """Closes it: decoded members cannot be read any more."""
        self._zip.close()
        self._file.close()


def first_member(file: BinaryIO) -> bytes:
    """Name of the first member of a zip file, b'' where it is none."""
    start = file.read(LOCAL_HEADER.size)
    if len(start) < LOCAL_HEADER.size or start[:4] != b"PK\3\4":
        return b""
    return file.read(LOCAL_HEADER.unpack(start)[9])
