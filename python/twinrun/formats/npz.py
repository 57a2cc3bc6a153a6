"""NumPy .npz archives: a zip file of .npy members.

Stored members are read by offset, deflated ones are streamed.
"""

from __future__ import annotations

import io
import struct
import threading
import zipfile
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .files import open_regular, read_exact, reading
from .layout import Decoded, Stored, array_fields
from .model import FileContent, Format
from .npy import parse_header

_LOCAL = struct.Struct("<4s5H3I2H")  # local file header
_ENCRYPTED = 0x1
_DEFLATE_LIMIT = 1032  # bytes out of one byte of deflate, at the very most (zlib's technical details)


class _Stream:
    """Bytes of one compressed member by offset: forward goes on where it was, backward starts again."""

    def __init__(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, lock: threading.Lock, path: str
    ) -> None:
        self._archive, self._info, self._lock, self._path = archive, info, lock, path
        self._stream: zipfile.ZipExtFile | None = None

    def read(self, offset: int, count: int) -> bytearray:
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


def _data_offset(file: BinaryIO, size: int, info: zipfile.ZipInfo, path: str) -> int:
    """Where the bytes of a member begin: after its local header, whose extra part has a length of its own."""
    what = f"member {info.filename!r}"
    if info.header_offset < 0 or info.header_offset + _LOCAL.size > size:
        raise DamagedFile(f"{what} begins outside the file", where=path)
    header = _LOCAL.unpack(read_exact(file, info.header_offset, _LOCAL.size, path, what))
    if header[0] != b"PK\3\4" or header[3] != info.compress_type:
        raise DamagedFile(f"{what}: no matching header at byte {info.header_offset}", where=path)
    offset = info.header_offset + _LOCAL.size + header[9] + header[10]
    if offset + info.compress_size > size:
        raise DamagedFile(
            f"{what}: {info.compress_size} bytes at {offset} pass the end of the file", where=path
        )
    return offset


def open_npz(path: str) -> FileContent:
    """Opens a .npz file. Its fields are named like the members, without .npy."""
    file, size = open_regular(path)
    content = FileContent(path, "npz")
    keep_open = False
    archive: zipfile.ZipFile | None = None
    try:
        with reading(path, "zip archive"):
            archive = zipfile.ZipFile(io.BufferedReader(file))  # type: ignore[type-var]
            names: set[str] = set()
            lock = threading.Lock()
            for info in archive.infolist():
                name = info.filename
                if name in names:
                    raise DamagedFile(f"two members are named {name!r}", where=path)
                names.add(name)
                if not name.endswith(".npy"):
                    content.skipped.append((name, "not an .npy member"))
                    continue
                keep_open |= _add_member(content, archive, info, file, size, lock)
    except BaseException:
        if archive is not None:
            archive.close()
        file.close()
        raise

    def close() -> None:
        archive.close()
        file.close()

    if keep_open:
        content.on_close = close
    else:
        close()
    return content


def _add_member(
    content: FileContent,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    file: BinaryIO,
    size: int,
    lock: threading.Lock,
) -> bool:
    """Adds the fields of one member; whether they need the archive to stay open."""
    path, what = content.path, f"member {info.filename!r}"
    if info.flag_bits & _ENCRYPTED:
        raise Unsupported(f"{what} is encrypted", where=path)
    offset = _data_offset(file, size, info, path)
    stored = info.compress_type == zipfile.ZIP_STORED
    if stored and info.compress_size != info.file_size:
        raise DamagedFile(f"{what} is stored, yet has two sizes", where=path)
    if (
        info.compress_type == zipfile.ZIP_DEFLATED
        and info.file_size > (info.compress_size + 16) * _DEFLATE_LIMIT
    ):
        raise DamagedFile(f"{what} claims {info.file_size} bytes out of {info.compress_size}", where=path)
    stream = _Stream(archive, info, lock, path)

    def read(at: int, count: int) -> bytes:
        if stored:
            return read_exact(file, offset + at, count, path, what)
        return bytes(stream.read(at, count))

    header = parse_header(read, info.file_size, path, what)
    if not header.dtype.hasobject and header.bytes_before + header.bytes_data != info.file_size:
        raise DamagedFile(f"{what} holds more bytes than its array", where=path)

    def read_array(at: int, count: int) -> bytearray:
        return stream.read(header.bytes_before + at, count)

    source = Stored(path, offset + header.bytes_before) if stored else Decoded(path, read_array)
    name = info.filename.removesuffix(".npy")
    fields, skipped = array_fields(name, header.dtype, header.shape, source, header.fortran_order)
    for field in fields:
        content.add(field)
    content.skipped += skipped
    return not stored and bool(fields)


def _sniff(path: str, file: BinaryIO) -> bool:
    """A zip file whose first member is an .npy: other formats are zip files too."""
    start = file.read(_LOCAL.size)
    if len(start) < _LOCAL.size or start[:4] != b"PK\3\4":
        return False
    return file.read(_LOCAL.unpack(start)[9]).endswith(b".npy")


FORMAT = Format("npz", "NumPy archive", open_npz, suffixes=(".npz",), sniff=_sniff)
