"""NumPy .npz archives: a zip file of .npy members.

Stored members are read by offset, compressed ones are decoded by `archives`. Members that are not arrays, and
pickled objects, are compared as bytes.

The checksum of a member (CRC-32) is checked where Python reads all of it: compressed members and stored
texts. Where there is nothing to read of them, as of an array without elements, that is when the archive is
opened. The core reads stored numbers in place, many parts at once and often not all: a second pass over the
data would take longer than comparing it. The option `verify` asks for it.
"""

from __future__ import annotations

import io
import zipfile
from typing import BinaryIO

from ..errors import DamagedFile, FormatError
from .archives import MemberStream, Pieces, StoredMember, check_sizes, first_member, member_offset
from .element_types import dtype_of
from .files import open_regular, read_exact, reading
from .layout import Decoded, Stored, array_fields, bytes_field, say_type
from .model import FileContent, Format, flag, unreadable
from .npy import PICKLED, parse_header
from .pointers import LARGEST, error_of


def open_npz(path: str, verify: object = False) -> FileContent:
    """Opens a .npz file. Its fields have the names of the members, without .npy.

    verify: also check the checksum of every stored member, which reads the whole file.
    """
    verify = flag(verify, "verify", path)
    file, size = open_regular(path)
    content = FileContent(path, "npz")
    keep_open = False
    archive: zipfile.ZipFile | None = None
    try:
        with reading(path, "zip archive"):
            archive = zipfile.ZipFile(io.BufferedReader(file))  # type: ignore[type-var]
            names: set[str] = set()
            pieces = Pieces()
            for info in archive.infolist():
                name = info.filename
                if name in names:
                    raise DamagedFile(f"two members are named {name!r}", where=path)
                names.add(name)
                before = len(content.fields)
                # Entries of folders too, because NumPy lists them.
                add = _add_member if name.endswith(".npy") else _add_bytes
                needed, problem = add(content, archive, info, file, size, pieces)
                keep_open |= needed
                if verify and info.compress_type == zipfile.ZIP_STORED:
                    problem = StoredMember(path, info, member_offset(file, size, info, path)).check()
                if problem is not None:
                    _lose(content, before, problem)
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
    pieces: Pieces,
) -> tuple[bool, FormatError | None]:
    """Adds the fields of one .npy member. Returns whether they need the archive to stay open, and what is
    wrong with a member that nobody will read.
    """
    path, what = content.path, f"member {info.filename!r}"
    check_sizes(info, path)
    offset = member_offset(file, size, info, path)
    stored = info.compress_type == zipfile.ZIP_STORED
    stream = MemberStream(archive, info, pieces, file, offset, path)
    member = StoredMember(path, info, offset)

    def read(at: int, count: int) -> bytes:
        if stored:
            return read_exact(file, offset + at, count, path, what)
        return stream.head(at + count)[at:]

    header = parse_header(read, info.file_size, path, what)
    left = info.file_size - header.bytes_before
    if not header.dtype.hasobject and header.bytes_data != left:
        raise DamagedFile(f"{what} holds more bytes than its array", where=path)

    def read_array(at: int, count: int) -> bytearray:
        return stream.read(header.bytes_before + at, count)

    source: Stored | Decoded
    if not stored:
        source = Decoded(path, read_array)
    elif header.dtype.names is None and not header.dtype.hasobject and dtype_of(header.dtype.base) is None:
        first = header.bytes_before  # texts, which Python reads

        def read_texts(at: int, count: int) -> bytes:
            if at == 0:  # the checksum is of the head, too
                return member.read(0, first + count)[first:]
            return member.read(first + at, count)

        source = Decoded(path, read_texts)
    else:
        source = Stored(path, offset + header.bytes_before)
    name = info.filename.removesuffix(".npy")
    problem = (member if stored else stream).check() if left == 0 else None
    if header.dtype.hasobject:
        content.add(bytes_field(name, source, left, PICKLED))
        return not stored, problem
    fields, skipped = array_fields(name, header.dtype, header.shape, source, header.fortran_order)
    for field in fields:
        content.add(field)
    content.skipped += skipped
    say_type(content, name, header.dtype)
    return not stored and bool(fields), problem


def _add_bytes(
    content: FileContent,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    file: BinaryIO,
    size: int,
    pieces: Pieces,
) -> tuple[bool, FormatError | None]:
    """Adds a member that is not an array, as bytes. Returns what `_add_member` does."""
    check_sizes(info, content.path)
    offset = member_offset(file, size, info, content.path)
    stored = info.compress_type == zipfile.ZIP_STORED
    stream = MemberStream(archive, info, pieces, file, offset, content.path)
    source = Stored(content.path, offset) if stored else Decoded(content.path, stream.read)
    content.add(bytes_field(info.filename, source, info.file_size))
    member = StoredMember(content.path, info, offset) if stored else stream
    if info.file_size == 0:
        return not stored, member.check()
    return not stored, _stands_for_another(member, info, content.path) if info.file_size <= LARGEST else None


def _stands_for_another(
    member: StoredMember | MemberStream, info: zipfile.ZipInfo, path: str
) -> FormatError | None:
    """Why a small member is not what its name says. What is wrong with its bytes is found later."""
    try:
        error = error_of(bytes(member.read(0, info.file_size)), path)
    except FormatError:
        return None
    if error is None:
        return None
    return DamagedFile(f"member {info.filename!r} {error.what}", where=path, fix=error.fix)


def _lose(content: FileContent, before: int, problem: FormatError) -> None:
    """Makes the fields of a member unreadable. before: the number of fields of other members."""
    for name, field in list(content.fields.items())[before:]:
        lost = unreadable(name, field.dtype, field.byte_order, field.shape, problem)
        lost.fortran_order, lost.unit, lost.kind = field.fortran_order, field.unit, field.kind
        content.fields[name] = lost


def _sniff(path: str, file: BinaryIO) -> bool:
    """Whether the first member of a zip file is a .npy. Other formats are zip files too."""
    return first_member(file).endswith(b".npy")


FORMAT = Format(
    "npz",
    "NumPy archive",
    open_npz,
    suffixes=(".npz",),
    sniff=_sniff,
    options=frozenset({"verify"}),
    aside=frozenset({"verify"}),
)
