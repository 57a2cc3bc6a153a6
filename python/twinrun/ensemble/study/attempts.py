"""Folders of attempts, TASK-ATTEMPT each: what a watcher runs from, and what it leaves."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .removal import FOLDER_ITSELF, remove

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

    A task may remove its folder, move it, and put a link or another folder in its place. So nothing is
    removed but from a folder that is known to be the one that was made here: by its inode, which this
    process knows of folders that it made. Of others their own spec tells it.
    """

    def __init__(self, root: Path, recorded: Iterable[tuple[int, int]], keep: Sequence[str] = ()) -> None:
        self.root, self.recorded, self._keep = root, set(recorded), tuple(keep)
        self._made: dict[tuple[int, int], tuple[int, int]] = {}  # device and inode
        self._left: dict[Path, str] = {}

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
            folder = self.folder(task, attempt)
            try:
                folder.mkdir()
            except FileExistsError:
                attempt += 1
                continue
            made = os.lstat(folder)
            self._made[task, attempt] = made.st_dev, made.st_ino
            return attempt

    def inode(self, task: int, attempt: int) -> int:
        """The inode of a folder that was made here: its spec has it as `inode`."""
        return self._made[task, attempt][1]

    def leads(self, task: int, attempt: int) -> bool:
        """Whether the name of an attempt's folder leads to the folder that was made, if by a link."""
        try:
            folder = os.open(self.folder(task, attempt), FOLDER_ITSELF & ~os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return self._is_made(folder, task, attempt)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def own(self, task: int, attempt: int) -> Iterator[int | None]:
        """The open folder that was made for an attempt; None where its name is that of nothing or another."""
        folder = None
        try:
            with contextlib.suppress(OSError):
                folder = os.open(self.folder(task, attempt), FOLDER_ITSELF)
            yield folder if folder is not None and self._is_made(folder, task, attempt) else None
        finally:
            if folder is not None:
                os.close(folder)

    def _is_made(self, folder: int, task: int, attempt: int) -> bool:
        found = os.fstat(folder)
        if made := self._made.get((task, attempt)):
            return made == (found.st_dev, found.st_ino)
        # The device is not compared: a restart of the node may number it anew.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            spec = os.open("spec.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with open(spec, encoding="utf-8", errors="surrogateescape") as file:
                return json.load(file).get("inode") == found.st_ino
        return False

    def clear(self, task: int, attempt: int) -> None:
        """Removes files of an attempt that are not needed after it has its line."""
        path = self.folder(task, attempt)
        with self.own(task, attempt) as folder:
            if folder is None:
                self._see(path)
                return
            # The spec comes last: it shows whose the folder is.
            for name in sorted(os.listdir(folder), key=lambda n: n == "spec.json"):
                if name in _LEFT_BY_US or not self._is_kept(name, folder):
                    for mount in remove(name, folder):
                        self._left[path / mount] = "is mounted there, and is left alone"
        self._made.pop((task, attempt), None)

    def _is_kept(self, name: str, folder: int) -> bool:
        """Whether an entry of an attempt's folder stays, or has something in it that does."""
        if any(fnmatch.fnmatch(name, k) for k in (*_KEPT, *self._keep)):
            return True
        if not self._keep or not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        with contextlib.suppress(OSError):
            for root, folders, files, _ in os.fwalk(name, dir_fd=folder):
                inside = [f"{root}/{entry}" for entry in (*folders, *files)]
                if any(fnmatch.fnmatch(path, k) for path in inside for k in self._keep):
                    return True
        return False

    def _see(self, path: Path) -> None:
        if os.path.lexists(path):
            self._left[path] = (
                "is not the folder that was made for the task: it is left alone, with all in it"
            )

    def left(self) -> list[str]:
        """What was found where folders of attempts are, and is not theirs."""
        for task, attempt in self._made:
            with self.own(task, attempt) as folder:
                if folder is None:
                    self._see(self.folder(task, attempt))
        return [f"{path}: {why}" for path, why in sorted(self._left.items())]

    def clear_recorded(self) -> None:
        """Clears attempts whose runner died between their line and the end of `clear`."""
        for task, attempt in self:
            if (task, attempt) in self.recorded and (self.folder(task, attempt) / "spec.json").exists():
                self.clear(task, attempt)
