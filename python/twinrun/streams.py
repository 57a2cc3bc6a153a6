"""Standard streams of the command: a closed or full one changes no verdict, and no opened file
takes its number.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["STDOUT", "prepare"]

STDOUT = "standard output"


class _Raw(io.RawIOBase):
    """Writes go to a descriptor, which stays open. (FileIO takes no number of a folder.)"""

    # Whether nobody asks how much was written: a text stream without a buffer, as of
    # PYTHONUNBUFFERED, does not, and a system call may write a part only (a signal came).
    whole = False

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = os.write(self._number, data)
        size = memoryview(data).nbytes
        while self.whole and written < size:
            written += os.write(self._number, memoryview(data)[written:])
        return written


class _Output(_Raw):
    """Standard output: its errors name it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as e:
            raise OSError(e.errno, e.strerror, STDOUT) from None


class _Messages(_Raw):
    """Standard error: what cannot be written is dropped, because there is no other place to report it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _occupy() -> None:
    """Opens something under each number of a closed standard stream: a file that is opened later
    would get that number, and what libraries and child processes print would go into it.

    Standard output becomes a folder, to which no process can write: printing is an error, as it was before.
    """
    for number, place, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, "/", os.O_RDONLY | os.O_DIRECTORY),
        (2, os.devnull, os.O_WRONLY),
    ):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(place, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def _text(raw: _Raw, before: io.TextIOWrapper | None, by_line: bool) -> io.TextIOWrapper:
    """A stream that writes as the one before did. A character that it cannot encode is not an error."""
    direct = raw.whole = before is not None and before.write_through
    return io.TextIOWrapper(
        raw if direct else io.BufferedWriter(raw),  # type: ignore[arg-type]
        encoding="utf-8" if before is None else before.encoding,
        errors="backslashreplace",
        newline="\n",
        line_buffering=by_line if before is None else before.line_buffering,
        write_through=direct,
    )


def prepare() -> None:
    """Replaces the standard streams of a process; streams that others replaced meanwhile stay."""
    _occupy()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)
    before = sys.stdout
    if before is None or (before is sys.__stdout__ and type(before) is io.TextIOWrapper):
        if before is not None:
            before.flush()
        sys.stdout = _text(_Output(1), before, False)
    before = sys.stderr
    if before is None or (before is sys.__stderr__ and type(before) is io.TextIOWrapper):
        sys.stderr = _text(_Messages(2), before, True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")
