"""Opening and reading files that nobody vouches for: every failure becomes a FormatError, nothing is trusted.

A file is a regular file (a pipe would block, a device never ends), its size is taken before a length from
inside it is believed, and reads are bounded by that size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..marks import METADATA_MAGIC, METADATA_SUFFIX

__all__ = ["file_size", "files_below", "is_metadata", "is_own", "open_regular", "read_exact", "reading"]

_OWN = ".twinrun"  # begins the names of what twinrun has in the works


@contextmanager
def reading(where: str, what: str = "") -> Iterator[None]:
    """Turns whatever goes wrong inside into one FormatError at `where`; `what` names the part that was read."""
    part = f"{what}: " if what else ""
    try:
        yield
    except TwinrunError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFile(f"{part}no such file", where=where, fix="check the path") from error
    except MemoryError as error:
        raise FormatError(f"{part}not enough memory to read it", where=where) from error
    except OSError as error:
        if error.errno is None or error.strerror is None:  # HDF5 and zip libraries: no system error behind it
            raise DamagedFile(f"{part}{_words(error)}", where=where) from error
        raise FormatError(f"{part}cannot be read: {error.strerror}", where=where) from error
    except RecursionError as error:
        raise DamagedFile(f"{part}nested too deeply", where=where) from error
    except Exception as error:  # libraries raise nearly anything on hostile input
        raise DamagedFile(f"{part}{_words(error)}", where=where) from error


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def file_size(path: str) -> int:
    """Size in bytes of a regular file."""
    with reading(path):
        status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise FormatError("is a folder, not a file", where=path)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("is not a regular file", where=path, fix="write its content to a file first")
    return status.st_size


def open_regular(path: str) -> tuple[BinaryIO, int]:
    """An unbuffered regular file open for reading, and its size in bytes."""
    file_size(path)  # before open(): opening a pipe would wait for its other end
    with reading(path):
        file = open(path, "rb", buffering=0)
        return file, os.fstat(file.fileno()).st_size


def read_exact(file: BinaryIO, offset: int, count: int, where: str, what: str) -> bytes:
    """`count` bytes at `offset`, or DamagedFile.

    The caller has checked `count` against the size of the file.
    """
    with reading(where, what):
        parts = []
        while count > 0:
            piece = os.pread(file.fileno(), min(count, 1 << 26), offset)
            if not piece:
                raise DamagedFile(f"{what}: the file ends {count} bytes too early", where=where)
            parts.append(piece)
            offset += len(piece)
            count -= len(piece)
    return b"".join(parts)


def is_metadata(path: str, cut: bool = False) -> bool:
    """Whether twinrun wrote a file as metadata, by what it begins with; a bit there may be damaged, which opening it tells.

    cut: or what may be left of such a file, which may be nothing.
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


def is_own(path: str) -> bool:
    """Whether twinrun put a file among the data: it is no part of them."""
    return os.path.basename(path).startswith(_OWN) or (path.endswith(METADATA_SUFFIX) and is_metadata(path))


def files_below(folder: str) -> list[tuple[str, str]]:
    """(path relative to a folder, path) of all that is no folder in it and below, but for what is twinrun's own, sorted."""
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
