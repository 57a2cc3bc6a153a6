"""The journal of a study: a line of JSON for its settings, then one for each run, on storage as soon as the
run has ended.

A crash can leave a torn last line; it is cut off when the study goes on. Any other flaw is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ...errors import DamagedFile, Incomparable, TwinrunError

__all__ = ["Journal"]

_VERSION = 1
_BEGINS = (b'{"kind": "study"', b'{"kind": "run"')  # the first line, and the others


class Journal:
    """The runs of a study. One process at a time."""

    runs: list[dict]
    header: dict

    def __init__(
        self, path: str | os.PathLike[str], study: str, conditions: Mapping, facts: Mapping | None = None
    ) -> None:
        """Opens or starts the journal of `study`.

        conditions: settings that make runs comparable, as JSON; an existing journal must have the same.
        facts: recorded, not compared. Raises Incomparable where they differ, DamagedFile, TwinrunError where
        another process has it.
        """
        self.path = Path(path)
        try:
            self._file = self._open()  # closed by close()
        except OSError as e:
            raise TwinrunError(f"cannot be opened: {e.strerror}", where=path) from None
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise TwinrunError("is no regular file", where=path, fix="give another --journal")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TwinrunError("another study is writing to this journal", where=path) from None
            wanted = {
                "kind": "study",
                "version": _VERSION,
                "study": study,
                "conditions": json.loads(json.dumps(conditions)),
            }
            lines = self._read()
            if lines:
                self._check(lines[0], wanted)
                self.header, self.runs = lines[0], lines[1:]
            else:
                self.header, self.runs = {**wanted, "facts": json.loads(json.dumps(facts or {}))}, []
                self._append(self.header)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        """Opens a new or an existing file; a link that leads nowhere is an error."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            number = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            number = os.open(self.path, flags)
        return open(number, "a+b")

    def _read(self) -> list[dict]:
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        lines = []
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append(None)
            if not isinstance(lines[-1], dict) or lines[-1].get("kind") != (
                "study" if number == 1 else "run"
            ):
                raise DamagedFile(
                    f"line {number} is not one of a study's journal",
                    where=self.path,
                    fix="remove that line, or give another --journal",
                )
        if whole < len(text):  # torn: its run is made again
            torn, begin = text[whole:], _BEGINS[bool(lines)]
            if not (torn.startswith(begin) or begin.startswith(torn)):
                raise DamagedFile(
                    "is there already, and is no journal of a study"
                    if not lines
                    else "its end is not a study's",
                    where=self.path,
                    fix="give another --journal",
                )
            self._file.truncate(whole)
        return lines

    def _check(self, header: dict, wanted: dict) -> None:
        if header.get("version") != _VERSION or header.get("study") != wanted["study"]:
            raise Incomparable(
                f"is the journal of a study of {header.get('study')}, version {header.get('version')}",
                where=self.path,
                fix="give another --journal",
            )
        before, now = header.get("conditions", {}), wanted["conditions"]
        different = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
        if different:
            k = different[0]
            raise Incomparable(
                f"is of runs with {k} = {before.get(k)!r}, not {now.get(k)!r}",
                where=self.path,
                fix="give the same options to go on with it, or another --journal",
            )

    def _append(self, line: Mapping) -> None:
        # One write, so that a crash leaves at worst a torn line; allow_nan: readers need strict JSON.
        os.write(self._file.fileno(), (json.dumps(line, allow_nan=False) + "\n").encode())
        os.fsync(self._file.fileno())

    def add(self, run: Mapping) -> None:
        """Adds a run that has ended."""
        line = {"kind": "run", **run}
        self._append(line)
        self.runs.append(line)

    def close(self) -> None:
        """Releases the file, so that another process can use it."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
