"""The journal of a study: a line of JSON for its settings, then one for each run, on storage as soon as the
run has ended.

    study           the settings that its runs have in common
    run             a run and its results; record: what its watcher measured, environment: the name of
    environment     the conditions of runs, named by the SHA-256 of their content
    failure         a run without results, and the reason; it is made again when the study goes on

A crash can leave a torn last line; it is cut off when the study goes on. Any other flaw is an error. Journals
of earlier versions have no lines of the last two kinds, and go on.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from ...ensemble.study.lines import Lines, hold, lines_of
from ...ensemble.study.record import named
from ...errors import DamagedFile, Incomparable, TwinrunError

__all__ = ["Journal"]

_VERSION = 1
_LATER = ("run", "environment", "failure")  # kinds of lines after the first


def _begins(kind: str) -> bytes:
    return f'{{"kind": "{kind}"'.encode()


class Journal:
    """The runs of a study. One process at a time."""

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
            file = self._open()  # closed by close()
        except OSError as e:
            raise TwinrunError(f"cannot be opened: {e.strerror}", where=path) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise TwinrunError("is not a regular file", where=path, fix="give another --journal")
            hold(file, TwinrunError("another study is writing to this journal", where=path))
            expected = {
                "kind": "study",
                "version": _VERSION,
                "study": study,
                "conditions": json.loads(json.dumps(conditions)),
            }
            with open(file, "rb", closefd=False) as all_of_it:
                there, whole = self._read(all_of_it.read())
            if there:
                self._check(there[0], expected)
            self._lines = Lines(file, self.path.resolve(), there, whole)
            if not there:
                self._lines.add({**expected, "facts": json.loads(json.dumps(facts or {}))})
        except BaseException:
            os.close(file)
            raise
        self.header = self._lines.lines[0]
        self._environments = {x.get("name") for x in self._lines.lines if x["kind"] == "environment"}

    def _open(self) -> int:
        """Opens a new or an existing file; a link that leads nowhere is an error."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self.path, flags)

    def _read(self, text: bytes) -> tuple[list[dict], int]:
        """The whole lines, and where they end. What follows is torn: its run is made again."""
        lines, whole = lines_of(
            text,
            self.path,
            ours=lambda number, line: line.get("kind") in (("study",) if number == 1 else _LATER),
            what="not one of a study's journal",
            fix="remove that line, or give another --journal",
        )
        torn, begins = text[whole:], [_begins(k) for k in (_LATER if lines else ("study",))]
        if not any(torn.startswith(b) or b.startswith(torn) for b in begins):
            raise DamagedFile(
                "its end is not a study's" if lines else "is there already, and is no journal of a study",
                where=self.path,
                fix="give another --journal",
            )
        return lines, whole

    def _check(self, header: dict, expected: dict) -> None:
        if header.get("version") != _VERSION or header.get("study") != expected["study"]:
            raise Incomparable(
                f"is the journal of a study of {header.get('study')}, version {header.get('version')}",
                where=self.path,
                fix="give another --journal",
            )
        if not all(isinstance(header.get(k), dict) for k in ("conditions", "facts")):
            raise DamagedFile(
                "line 1 is without conditions or facts", where=self.path, fix="give another --journal"
            )
        before, now = header["conditions"], expected["conditions"]
        different = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
        if different:
            k = different[0]
            raise Incomparable(
                f"is of runs with {k} = {before.get(k)!r}, not {now.get(k)!r}",
                where=self.path,
                fix="give the same options to go on with it, or another --journal",
            )

    @property
    def lines(self) -> list[dict]:
        """All lines, the first one too."""
        return self._lines.lines

    @property
    def runs(self) -> list[dict]:
        """Runs with results."""
        return [x for x in self.lines if x["kind"] == "run"]

    @property
    def failures(self) -> list[dict]:
        """Runs without results."""
        return [x for x in self.lines if x["kind"] == "failure"]

    def add(self, run: Mapping, facts: Mapping | None = None) -> None:
        """Adds a run that has ended; with a `reason` it has no results. facts: the conditions of the run."""
        if facts:
            name, _ = named(facts)
            if name not in self._environments:
                self._lines.add({"kind": "environment", "name": name, "facts": facts})
                self._environments.add(name)
            run = {**run, "environment": name}
        self._lines.add({"kind": "failure" if "reason" in run else "run", **run})

    def close(self) -> None:
        """Releases the file, so that another process can use it."""
        self._lines.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
