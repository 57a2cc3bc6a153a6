"""Files of JSON lines that only grow: each line is on storage before anything follows from it.

A crash leaves a torn last line at worst, which is cut off when the file is opened again. Any other
flaw is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import DamagedFile, TwinrunError

__all__ = ["Lines", "hold", "lines_of", "read_lines"]


def lines_of(
    text: bytes,
    where: str | os.PathLike[str],
    *,
    ours: Callable[[int, dict], bool] = lambda number, line: True,
    what: str = "no JSON object",
    fix: str = "remove that line",
) -> tuple[list[dict], int]:
    """The objects of whole lines, and where the last of them ends.

    ours(number, line): whether a line belongs there. what, fix: of the error. Raises DamagedFile
    with the number of the first line that does not.
    """
    whole = text.rfind(b"\n") + 1
    lines = []
    for number, line in enumerate(text[:whole].splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not ours(number, value):
            raise DamagedFile(f"line {number} is {what}", where=where, fix=fix)
        lines.append(value)
    return lines, whole


def read_lines(path: Path) -> tuple[list[dict], int]:
    """As `lines_of`, of a file; nothing where there is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    return lines_of(text, path)


class Lines:
    """A file of lines; each is on storage when `add` returns.

    file: open for reading and appending; it is closed by `close`. lines, whole: what `lines_of` gave of it.
    """

    def __init__(self, file: int, path: Path, lines: list[dict], whole: int) -> None:
        self.lines, self._file, self._path = lines, file, path
        if os.fstat(file).st_size > whole:
            os.ftruncate(file, whole)
        _sync_folder(path.parent)

    @classmethod
    def of(cls, path: Path) -> Lines:
        """Opens or makes the file; no link."""
        lines, whole = read_lines(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return cls(os.open(path, flags, 0o644), path, lines, whole)

    def add(self, line: Mapping) -> None:
        """Appends a line, whole or not at all. Raises TwinrunError where the storage is full,
        OSError where it fails.
        """
        # One write, so that a crash leaves at worst a torn line; allow_nan: readers need strict
        # JSON.
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, data) != len(data):
                os.ftruncate(self._file, size)  # else the next line would follow half of this one
                raise TwinrunError("the storage is full", where=self._path, fix="make room, and start again")
            os.fsync(self._file)
        except OSError as e:
            raise OSError(e.errno, e.strerror, os.fspath(self._path)) from None
        self.lines.append(dict(line))

    def close(self) -> None:
        """Releases the file."""
        os.close(self._file)


def hold(file: int, taken: TwinrunError) -> None:
    """Locks a file until it is closed. Raises `taken` where another process has it for longer than
    a moment.
    """
    for attempt in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == 19:
                raise taken from None
            time.sleep(0.01)  # a status command holds it for a moment


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
