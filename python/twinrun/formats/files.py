"""Opening and reading untrusted files. Every failure becomes a FormatError.

Only regular files are opened: reading a pipe could block, and a device has no end. The size of the file is
determined first, and lengths that the file itself states are checked against it. An object of a store that
`remote` has open is a file too.
"""

from __future__ import annotations

import os
import re
import stat
from types import TracebackType
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError, Unsupported
from ..marks import METADATA_MAGIC, METADATA_SUFFIX
from ..remote import RemoteStream, object_of
from ..urls import is_url

__all__ = [
    "MEND",
    "file_size",
    "files_below",
    "is_metadata",
    "is_own",
    "open_regular",
    "pread",
    "read_exact",
    "reading",
]

MEND = "write it again, or restore it from a copy"  # what to do with a damaged file
_OWN = ".twinrun-"  # prefix of the names of files that are twinrun's own business
# Exactly: marks of histories and other folders, and what was not finished. Others' files may begin
# like this, and are data.
_OWN_NAME = re.compile(r"\.twinrun-([0-9a-f]{16}(\.tmp)?|[0-9a-f]{32}|demo|perturb\.json|golden-of)")


class reading:
    """Turns any exception inside the `with` block into a FormatError.

    where: the file, for the message. what: the part of it that is read. A TwinrunError passes through
    unchanged. A class: each file is read within a dozen of them, and generators take longer.
    """

    __slots__ = ("_what", "_where")

    def __init__(self, where: str, what: str = "") -> None:
        self._where, self._what = where, what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, TwinrunError):
            raise _as_format_error(error, self._where, f"{self._what}: " if self._what else "") from error


def _as_format_error(error: Exception, where: str, part: str) -> FormatError:
    """What an error that was met while a file was read is called. part: which part of it."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        if is_url(where):  # a reader that asked this machine for a file of that name
            return Unsupported(
                f"{part}files of this format are not read from stores", where=where, fix="download it first"
            )
        if os.path.islink(where) and not os.path.exists(where):
            return MissingFile.at(where)
        return MissingFile(f"{part}no such file", where=where, fix="check the path")
    if isinstance(error, MemoryError):
        return FormatError(f"{part}not enough memory to read it", where=where)
    if isinstance(error, OSError):
        # The HDF5 and zip libraries raise OSError without an error number of the system.
        if error.errno is None or error.strerror is None:
            return DamagedFile(f"{part}{_words_of_library(error)}", where=where)
        return FormatError.of_system(error, where, part)
    if isinstance(error, RecursionError):
        return DamagedFile(f"{part}nested too deeply", where=where)
    if str(error) == "File is not a zip file":  # of BadZipFile
        return DamagedFile("is no zip archive, as files of this format are", where=where)
    # Libraries raise many types of exceptions on damaged input.
    return DamagedFile(f"{part}{_words(error)}", where=where)


def _words_of_library(error: OSError) -> str:
    """What HDF5 says, without the name of its function: that stands before the reason."""
    found = re.fullmatch(r"Unable to [^()]* \((.*)\)", str(error).strip(), re.DOTALL)
    return f"cannot be read: {found[1]}" if found else _words(error)


def _words(error: BaseException) -> str:
    text = str(error).strip()
    if text and type(error).__module__.startswith(__package__):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def file_size(path: str) -> int:
    """Size in bytes of a regular file. Raises FormatError for anything else, MissingFile if there is none."""
    if (elsewhere := object_of(path)) is not None:
        return elsewhere.size
    with reading(path):
        status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise FormatError("is a folder, not a file", where=path)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("is not a regular file", where=path, fix="write its content to a file first")
    return status.st_size


def open_regular(path: str) -> tuple[BinaryIO, int]:
    """Opens a regular file for reading, unbuffered; returns it and its size in bytes.

    Raises as `file_size`.
    """
    if (elsewhere := object_of(path)) is not None:
        return RemoteStream(elsewhere), elsewhere.size  # type: ignore[return-value]
    file_size(path)  # before open(): opening a pipe waits for its other end
    with reading(path):
        file = open(path, "rb", buffering=0)
        return file, os.fstat(file.fileno()).st_size


def read_exact(file: BinaryIO, offset: int, count: int, where: str, what: str) -> bytes:
    """Reads `count` bytes at `offset`. Raises DamagedFile if the file ends before them.

    The caller checks `count` against the size of the file first, to bound the memory.
    """
    with reading(where, what):
        parts = []
        while count > 0:
            piece = pread(file, offset, min(count, 1 << 26))
            if not piece:
                raise DamagedFile(f"{what}: the file ends {count} bytes too early", where=where, fix=MEND)
            parts.append(piece)
            offset += len(piece)
            count -= len(piece)
    return b"".join(parts)


def pread(file: BinaryIO, offset: int, count: int) -> bytes:
    """As os.pread, of a file that `open_regular` opened."""
    if isinstance(file, RemoteStream):
        return file.read_at(offset, count)
    return os.pread(file.fileno(), count, offset)


def is_metadata(path: str, cut: bool = False) -> bool:
    """Whether a file is a metadata file of twinrun, by its first bytes.

    Up to two of these bytes may be damaged; opening the file reports the damage. cut: also accept a file that
    ends within these bytes, even an empty one, because it may be the rest of a metadata file that was cut
    short.
    """
    try:
        file, size = open_regular(path)
        with file:
            head = read_exact(file, 0, min(size, len(METADATA_MAGIC)), path, "header")
    except FormatError:
        return False
    if cut and METADATA_MAGIC.startswith(head):
        return True
    return sum(x == y for x, y in zip(head, METADATA_MAGIC, strict=False)) >= len(METADATA_MAGIC) - 2


def may_be_own(name: str) -> bool:
    """Whether `is_own` has to look at a file of this name: it has not for most."""
    return name.startswith(_OWN) or name.endswith(METADATA_SUFFIX)


def is_own(path: str) -> bool:
    """Whether twinrun wrote a file, or made a folder, in a folder of data: what it had not finished, its
    marks, and metadata. That is not data.
    """
    name = os.path.basename(path)
    return _OWN_NAME.fullmatch(name) is not None or (name.endswith(METADATA_SUFFIX) and is_metadata(path))


def files_below(folder: str) -> list[tuple[str, str]]:
    """(path relative to `folder`, path) of everything below a folder except folders and twinrun's own files,
    sorted."""
    found: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()
    stack = [""]
    while stack:
        relative = stack.pop()
        path = os.path.join(folder, relative)
        with reading(path):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue  # a link to a folder above
            seen.add((status.st_dev, status.st_ino))
            for name in os.listdir(path):
                below = os.path.join(relative, name)
                if os.path.isdir(os.path.join(path, name)):
                    stack.append(below)
                elif not is_own(os.path.join(path, name)):
                    found.append((below, os.path.join(path, name)))
    return sorted(found)
