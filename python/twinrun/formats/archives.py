"""Members of zip archives: the place of stored members, and random access to compressed ones that decodes
each about once.

An archive may be a whole file or a part of one. Used by all formats whose files are zip archives.
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

__all__ = [
    "LOCAL_HEADER",
    "Archive",
    "MemberStream",
    "Pieces",
    "StoredMember",
    "first_member",
    "member_offset",
    "wrong_checksum",
]

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 0x41  # in one way or another
_UTF_8 = 0x800
_MOST_MEMBERS = 1_000_000
DEFLATE_LIMIT = 1032  # largest compression ratio of deflate (zlib.net, "zlib Technical Details")


_PIECE = 1 << 20  # bytes that are decoded and cached at once
# Cached bytes of an archive; pieces decoded for one thread are soon needed by another.
_KEPT_BYTES = 64 << 20
_MOST_MARKS = 256  # saved states of a stream, about 50 KiB each
_LEAST_BETWEEN_MARKS = 4 << 20
_PACKED = 1 << 18  # bytes of a compressed stream that are read at once
_MOST_CURSORS = 16


class Pieces:
    """A least-recently-used cache of decoded pieces of an archive's members. Thread-safe."""

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
    """A deflate stream, decoded up to `offset`. A copy continues from the same offset."""

    def __init__(self, read_packed: Callable[[int, int], bytes], size: int) -> None:
        self.offset, self._read_packed, self._size, self._at = 0, read_packed, size, 0
        self._stream = zlib.decompressobj(-15)

    def copy(self) -> _Inflating:
        made = copy.copy(self)
        made._stream = self._stream.copy()
        return made

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end of the stream."""
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


class _OtherStream:
    """A stream of another compression method, decoded by Python's zipfile. It cannot be copied."""

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
    """Random access to the bytes of one compressed member; thread-safe, and each byte is decoded about once.

    A stream can only be decoded from its start. One thread at a time decodes, piece by piece. Decoded pieces
    are cached for all threads, and copies of a deflate stream's state are kept as marks. A piece that is no
    longer cached is decoded from the nearest mark.
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
        """file, offset: the file and the offset of the member's compressed bytes.

        pieces: the cache of the archive.
        """
        self._archive, self._info, self._pieces, self._path = archive, info, pieces, path
        self._file, self._begin = file, offset
        self._lock = threading.Lock()
        # The message of a failure, for later reads. The exception itself would keep the readers in
        # its traceback alive.
        self._problem = ""
        self._cursors: list[_Inflating | _OtherStream] = []  # least recently used first
        self._marks: list[_Inflating] = []  # by offset
        self._between = max(_LEAST_BETWEEN_MARKS, info.file_size // _MOST_MARKS)
        # Number of bytes from the start in the checksum, and the checksum.
        self._summed = self._sum = 0

    def head(self, count: int) -> bytes:
        """The first `count` bytes, without decoding more. Raises FormatError if the member has fewer."""
        with reading(self._path, f"member {self._info.filename!r}"):
            found = self._new().read(count)
        if len(found) != count:
            raise self._short()
        return found

    def read(self, offset: int, count: int) -> bytearray:
        """`count` bytes from `offset`.

        Raises FormatError if the member has fewer, or its checksum is wrong.
        """
        result = bytearray()
        with reading(self._path, f"member {self._info.filename!r}"):
            while len(result) < count:
                number, within = divmod(offset + len(result), _PIECE)
                part = memoryview(self._piece(number))[within : within + count - len(result)]
                if not part:
                    raise self._short()
                result += part
        return result

    def check(self) -> FormatError | None:
        """Decodes all of it: the error where that fails, or where its checksum is wrong."""
        try:
            with reading(self._path, f"member {self._info.filename!r}"):
                for number in range(1 + max(0, self._info.file_size - 1) // _PIECE):
                    self._piece(number)
        except FormatError as problem:
            return problem
        return None

    def _short(self) -> DamagedFile:
        return DamagedFile(f"member {self._info.filename!r} ends before its array does", where=self._path)

    def _new(self) -> _Inflating | _OtherStream:
        if self._archive.fp is None or self._file.closed:
            raise FormatError("the file was closed", where=self._path)
        if self._info.compress_type != zipfile.ZIP_DEFLATED:
            return _OtherStream(self._archive.open(self._info))  # type: ignore[arg-type]
        return _Inflating(self._packed, self._info.compress_size)

    def _packed(self, at: int, count: int) -> bytes:
        what = f"member {self._info.filename!r}"
        if self._file.closed:
            raise FormatError("the file was closed", where=self._path)
        return read_exact(self._file, self._begin + at, count, self._path, what)

    def _piece(self, number: int) -> bytes:
        """Piece `number` of the member: from the cache, or decoded with all pieces from the nearest mark
        on."""
        key = (self._info.header_offset, number)
        if self._archive.fp is None:
            raise FormatError("the file was closed", where=self._path)
        found = self._pieces.get(key)
        if found is not None:
            return found
        with self._lock:
            if self._problem:
                raise DamagedFile(self._problem, where=self._path)
            found = self._pieces.get(key)  # another thread may have decoded it meanwhile
            if found is not None:
                return found
            cursor = self._take(number * _PIECE)
            while True:  # a cursor that fails is not kept, because its state is unknown
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

    def _take(self, offset: int) -> _Inflating | _OtherStream:
        """The stream that has the fewest bytes to decode up to `offset`: a free cursor, a copy of a mark, or
        a new one."""
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
        """Adds the piece at offset `at` to the checksum.

        At the end of the member, checks checksum and length.
        """
        if at != self._summed:
            return
        self._summed, self._sum = at + len(piece), zlib.crc32(piece, self._sum)
        if len(piece) == _PIECE and self._summed < self._info.file_size:
            return
        if self._summed != self._info.file_size or self._sum != self._info.CRC:
            error = wrong_checksum(self._info, self._path)
            self._problem = error.what
            raise error


def wrong_checksum(info: zipfile.ZipInfo, path: str) -> DamagedFile:
    """The error for a member whose bytes are not those that were written."""
    return DamagedFile(f"member {info.filename!r}: its checksum or its length is wrong", where=path)


class StoredMember:
    """The bytes of a member that is not compressed. Reads in order from the start to the end check its
    checksum; parts alone cannot. Thread-safe; the file is opened for each read.
    """

    def __init__(self, path: str, info: zipfile.ZipInfo, offset: int) -> None:
        """offset: of the member's bytes in the file."""
        self._path, self._info, self._begin = path, info, offset
        self._what = f"member {info.filename!r}"
        self._lock = threading.Lock()
        # Number of bytes from the start in the checksum, and the checksum.
        self._summed = self._sum = 0

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`. Raises DamagedFile at the end of a member with a wrong checksum."""
        file, _ = open_regular(self._path)
        with file:
            part = read_exact(file, self._begin + offset, count, self._path, self._what)
        with self._lock:
            if offset == 0:
                self._summed = self._sum = 0
            if offset == self._summed:
                self._summed, self._sum = offset + count, zlib.crc32(part, self._sum)
                if self._summed == self._info.file_size and self._sum != self._info.CRC:
                    raise wrong_checksum(self._info, self._path)
        return part

    def check(self) -> DamagedFile | None:
        """Reads all of it: the error where its checksum is wrong."""
        total, at = 0, 0
        file, _ = open_regular(self._path)
        with file:
            while at < self._info.file_size:
                count = min(_PIECE, self._info.file_size - at)
                part = read_exact(file, self._begin + at, count, self._path, self._what)
                total, at = zlib.crc32(part, total), at + count
        return None if total == self._info.CRC else wrong_checksum(self._info, self._path)


def member_offset(file: BinaryIO, size: int, info: zipfile.ZipInfo, path: str, base: int = 0) -> int:
    """The offset of a member's bytes in the file: after its local header, whose length is not in the
    directory.

    base, size: offset and bytes of the archive in the file. Raises DamagedFile if the member is not within
    it.
    """
    what = f"member {info.filename!r}"
    if info.header_offset < 0 or info.header_offset + LOCAL_HEADER.size > size:
        raise DamagedFile(f"{what} begins outside the file", where=path)
    # An orig_filename is that of the directory, decoded as the archive says.
    name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF_8 else "cp437")
    begin = base + info.header_offset
    there = min(LOCAL_HEADER.size + len(name), size - info.header_offset)
    read = read_exact(file, begin, there, path, what)
    header = LOCAL_HEADER.unpack_from(read)
    named = header[9] == len(name) and read[LOCAL_HEADER.size :] == name
    if header[0] != b"PK\3\4" or header[3] != info.compress_type or not named:
        raise DamagedFile(f"{what}: no matching header at byte {info.header_offset}", where=path)
    offset = info.header_offset + LOCAL_HEADER.size + header[9] + header[10]
    if offset + info.compress_size > size:
        raise DamagedFile(
            f"{what}: {info.compress_size} bytes at {offset} extend beyond the end of the file", where=path
        )
    return base + offset


def check_sizes(info: zipfile.ZipInfo, path: str) -> None:
    """Raises FormatError if a member is encrypted, or its sizes with and without compression contradict each
    other."""
    what = f"member {info.filename!r}"
    if info.flag_bits & _ENCRYPTED:
        raise Unsupported(f"{what} is encrypted", where=path)
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise DamagedFile(f"{what} is not compressed, but has two different sizes", where=path)
    if (
        info.compress_type == zipfile.ZIP_DEFLATED
        and info.file_size > (info.compress_size + 16) * DEFLATE_LIMIT
    ):
        raise DamagedFile(
            f"{what} claims {info.file_size} bytes, more than its {info.compress_size} compressed bytes can hold",
            where=path,
        )


class _Part(io.RawIOBase):
    """Bytes [base, base + length) of a file as a file object."""

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
                    f"bytes {base} to {base + self.size} extend beyond the end of the file, which has {size}",
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
        """The bytes of a member: their place in the file, or a function that decodes them if they are
        compressed."""
        info = self.members[name]
        check_sizes(info, self.path)
        offset = member_offset(self._file, self.size, info, self.path, self.base)
        if info.compress_type == zipfile.ZIP_STORED:
            return Stored(self.path, offset)
        stream = MemberStream(self._zip, info, self._pieces, self._file, offset, self.path)
        return Decoded(self.path, stream.read)

    def read(self, name: str, longest: int) -> bytes:
        """All bytes of a member. Raises Unsupported if they are more than `longest`."""
        source, size = self.source(name), self.members[name].file_size
        if size > longest:
            raise Unsupported(f"member {name!r} has {size} bytes, more than {longest}", where=self.path)
        if isinstance(source, Stored):
            found = read_exact(self._file, source.offset, size, self.path, f"member {name!r}")
            if zlib.crc32(found) != self.members[name].CRC:
                raise wrong_checksum(self.members[name], self.path)
            return found
        return bytes(source.read_bytes(0, size))  # type: ignore[call-overload]

    def close(self) -> None:
        """Closes the archive. Afterwards compressed members cannot be read."""
        self._zip.close()
        self._file.close()


def first_member(file: BinaryIO) -> bytes:
    """Name of the first member of a zip file; b'' if it is not a zip file."""
    start = file.read(LOCAL_HEADER.size)
    if len(start) < LOCAL_HEADER.size or start[:4] != b"PK\3\4":
        return b""
    return file.read(LOCAL_HEADER.unpack(start)[9])
