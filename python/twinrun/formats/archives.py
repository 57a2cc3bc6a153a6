"""Members of zip archives: where stored ones lie in the file, and the bytes of compressed ones by offset.

An archive may be a whole file or lie inside one. Shared by the formats whose files are zip archives.
"""

from __future__ import annotations

import io
import struct
import threading
import zipfile
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .files import open_regular, read_exact, reading
from .layout import Decoded, Stored

__all__ = ["LOCAL_HEADER", "Archive", "MemberStream", "first_member", "member_offset"]

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 0x1
_MOST_MEMBERS = 1_000_000
DEFLATE_LIMIT = 1032  # bytes out of one byte of deflate, at the very most (zlib's technical details)


class MemberStream:
    """Bytes of one compressed member by offset: forward goes on where it was, backward starts again."""

    def __init__(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, lock: threading.Lock, path: str
    ) -> None:
        self._archive, self._info, self._lock, self._path = archive, info, lock, path
        self._stream: zipfile.ZipExtFile | None = None

    def read(self, offset: int, count: int) -> bytearray:
        """`count` bytes from `offset`. Raises FormatError where it holds fewer."""
        name = self._info.filename
        with self._lock, reading(self._path, f"member {name!r}"):
            if self._archive.fp is None:
                raise FormatError("the file was closed", where=self._path)
            if self._stream is None:
                self._stream = self._archive.open(self._info)  # type: ignore[assignment]
            stream = self._stream
            assert stream is not None
            try:
                if stream.tell() != offset:
                    stream.seek(offset)
                result = bytearray()
                while len(result) < count:
                    piece = stream.read(min(count - len(result), 1 << 20))
                    if not piece:
                        raise DamagedFile(f"member {name!r} ends before its array does", where=self._path)
                    result += piece
            except BaseException:
                self._stream = None  # its state is unknown; the next read starts again
                raise
            return result


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
        self._lock = threading.Lock()

    def source(self, name: str) -> Stored | Decoded:
        """The bytes of a member: a place in the file, or decoded where it is compressed."""
        info = self.members[name]
        check_sizes(info, self.path)
        offset = member_offset(self._file, self.size, info, self.path, self.base)
        if info.compress_type == zipfile.ZIP_STORED:
            return Stored(self.path, offset)
        return Decoded(self.path, MemberStream(self._zip, info, self._lock, self.path).read)

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
