"""What a user can do with a file that no reader could open, whatever its format.

A reader says what is wrong in its own terms. Often the bytes show why: there are none, they are text,
or they only name a file of Git LFS.
"""

from __future__ import annotations

from ..errors import DamagedFile, FormatError
from .files import MEND, file_size, open_regular
from .pointers import place_elsewhere
from .texts import printable

__all__ = ["with_advice"]

_HEAD = 4096


def with_advice(error: FormatError, path: str) -> FormatError:
    """The error of opening a file, with what to do where it does not say that yet.

    error: returned as it is if it is no fault of the file's bytes: a missing package, say.
    """
    if type(error) not in (FormatError, DamagedFile):
        return error
    try:
        size = file_size(path)
        if size == 0:
            return DamagedFile(
                "is empty: it has 0 bytes",
                where=path,
                fix="write it again: the program that wrote it failed, or is not done",
            )
        file, _ = open_regular(path)
        with file:
            head = file.read(_HEAD)
    except FormatError:  # it is a folder, or may not be read
        head = b""
    if (elsewhere := place_elsewhere(path)) is not None:
        return elsewhere
    if error.fix is not None or type(error) is not DamagedFile:
        return error
    text = printable(head) and not head.lstrip().startswith((b"<", b"#", b"{", b"ITEM"))
    fix = f"it holds text: if that is a table, give --format table; else {MEND}" if text else MEND
    return DamagedFile(error.what, where=error.where, fix=fix)
