"""Folders of attempts, TASK-ATTEMPT each: what a watcher runs from, and what it leaves."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

__all__ = ["Attempts"]

_LEFT_BY_US = {
    "spec.json",
    "claim",
    "lock",
    "started.json",
    "record.json",
    "stop",
    "prepare",
    "ready",
    "gate",
}
_KEPT = ("stdout", "stderr", "PROFILE-*", "agent", "check-*")


class Attempts:
    """Attempts in a folder. recorded: (task, attempt) of those that have their line. keep: patterns
    of files that stay besides those that always do.
    """

    def __init__(self, root: Path, recorded: Iterable[tuple[int, int]], keep: Sequence[str] = ()) -> None:
        self.root, self.recorded, self._keep = root, set(recorded), tuple(keep)

    def folder(self, task: int, attempt: int) -> Path:
        """The folder of an attempt."""
        return self.root / f"{task}-{attempt}"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(task, attempt) of all folders of this study: no links, and no other folders with such a name."""
        for name in sorted(os.listdir(self.root)):
            match = re.fullmatch(r"(-?\d+)-(\d+)", name)
            path = self.root / name
            if match is None or path.is_symlink() or not path.is_dir():
                continue
            task, attempt = int(match[1]), int(match[2])
            inside = set(os.listdir(path))
            if not inside or inside & _LEFT_BY_US or (task, attempt) in self.recorded:
                yield task, attempt

    def new(self, task: int) -> int:
        """Makes the folder of another attempt; returns its number."""
        attempt = 1 + max([a for t, a in self.recorded if t == task], default=0)
        while True:
            try:
                self.folder(task, attempt).mkdir()
                return attempt
            except FileExistsError:
                attempt += 1

    def clear(self, task: int, attempt: int) -> None:
        """Removes files of an attempt that are not needed after it has its line."""
        folder = self.folder(task, attempt)
        keep = (*_KEPT, *self._keep)
        for entry in sorted(
            folder.iterdir(), key=lambda p: p.name == "record.json"
        ):  # the record comes last: it shows what remains
            if entry.name in _LEFT_BY_US or not any(fnmatch.fnmatch(entry.name, k) for k in keep):
                if entry.is_dir() and not entry.is_symlink():
                    if any(
                        fnmatch.fnmatch(str(p.relative_to(folder)), k)
                        for p in entry.rglob("*")
                        for k in self._keep
                    ):
                        continue
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        entry.unlink()

    def clear_recorded(self) -> None:
        """Clears attempts whose runner died between their line and `clear`."""
        for task, attempt in self:
            if (task, attempt) in self.recorded and (self.folder(task, attempt) / "record.json").exists():
                self.clear(task, attempt)
