"""Engines, which start attempts: the interface that the runner uses.

An engine starts the watcher in the folder of an attempt, and says whether a record may still come. It never
waits: `files` are the files that a poll may watch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...outputs import write_whole
from ..study.study import Study

__all__ = ["EngineBase", "Running", "State", "examine", "open_gate", "withdraw"]

WATCH = Path(__file__).resolve().parents[1] / "watch" / "__main__.py"
FOLDER = "TWINRUN_TASK_FOLDER"  # in the environment of each task: its folder


@dataclass
class Running:
    """An attempt that was started. token: the engine's own. submit: when, as its spec and record have it."""

    task: int
    attempt: int
    folder: Path
    cores: list[int] | None = None
    token: Any = None
    began: float = 0.0
    submit: float | None = None
    extra: dict = field(default_factory=dict)


class EngineBase(ABC):
    """Starts attempts somewhere: on this node, or in a batch system."""

    name = "?"
    # Seconds from the word that all tasks of a workload may begin to the moment at which they do;
    # None where tasks start as the batch system has room.
    gate: float | None = None

    def __init__(self, study: Study) -> None:
        self.study = study

    @abstractmethod
    def free(self) -> bool:
        """Whether another attempt may start."""

    def shuffle(self, seed: Sequence[int]) -> None:  # noqa: B027
        """Puts the free slots in random order."""

    def slot(self) -> int | None:
        """The number of the slot that the next attempt gets; None where there are no slots."""
        return None

    def cores(self) -> list[int] | None:
        """Cores for the next attempt; None for those that it finds."""
        return None

    def own_cores(self, level: str | None, cores: list[int] | None) -> list[int] | None:
        """Cores for the watcher of an attempt with these cores."""
        return None

    def command(self, words: list[str], values: Mapping[str, str]) -> list[str]:
        """The command of a task, as this engine runs it."""
        return words

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        """Variables that this engine sets, unless the user sets them."""
        return {}

    @abstractmethod
    def start(self, running: Running, node: str | None) -> None:
        """Starts an attempt; its spec is in its folder. Raises TwinrunError where that fails."""

    @abstractmethod
    def adopt(self, running: Running) -> None:
        """Takes over an attempt of an earlier runner that may still run."""

    @abstractmethod
    def alive(self, running: Running) -> bool:
        """Whether the attempt may still produce a record."""

    @abstractmethod
    def stop(self, running: Running) -> None:
        """Asks the attempt to end; its file `stop` exists."""

    @abstractmethod
    def done(self, running: Running) -> None:
        """Releases what the finished attempt held."""

    def files(self) -> list[int]:
        """Files that become readable when an attempt has ended."""
        return []

    def pause(self) -> float:
        """Seconds until the next poll."""
        return 1.0

    def all_cores(self) -> contextlib.AbstractContextManager[object]:
        """A context in which this process may use the cores of tasks as well."""
        return contextlib.nullcontext()

    def close(self) -> None:  # noqa: B027
        """Releases what the engine holds; attempts go on."""


class State:
    """The state of an attempt, as its folder shows it."""

    RECORDED, RUNNING, LOST, NEVER, SUBMITTED = "recorded", "running", "lost", "never ran", "submitted"


def open_gate(folder: Path, moment: float) -> None:
    """Lets an attempt that waits at its gate begin at this moment (or now); once."""
    if (folder / "gate").exists():
        return
    with contextlib.suppress(FileNotFoundError):  # it has ended, and its folder was cleared
        write_whole(folder / "gate", json.dumps({"begin": moment}).encode(), durable=False)


def withdraw(folder: Path) -> bool:
    """Claims an attempt so that it cannot run; False where it runs or ran."""
    try:
        claim = os.open(folder / "claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    os.write(claim, b'{"withdrawn": true}')
    os.fsync(claim)
    os.close(claim)
    return True


def _held(folder: Path) -> bool:
    """Whether the attempt's watcher lives."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(lock)


def examine(folder: Path) -> str:
    """The state of an attempt that another process started."""
    if (folder / "record.json").exists():
        return State.RECORDED
    claim = {}
    with contextlib.suppress(OSError, ValueError):
        claim = json.loads((folder / "claim").read_text())
    if claim.get("withdrawn"):
        return State.NEVER
    if not (folder / "claim").exists():
        return State.SUBMITTED
    if _held(folder):
        return State.RUNNING
    # It may have ended in between: the record comes before the lock goes.
    if (folder / "record.json").exists():
        return State.RECORDED
    # Locks of other nodes are visible on some file systems only; elsewhere the batch system is
    # asked.
    if claim.get("host") not in (None, platform.node()) and (folder / "submitted.json").exists():
        return State.SUBMITTED
    return State.LOST


# How long killed processes of a dead watcher are waited for: those that wait for storage end later.
_END = 10.0  # s


def end_stragglers(folder: Path) -> int:
    """Kills processes of an attempt whose watcher died, found by their environment; returns how many.

    They have ended then, with those that they started meanwhile, unless the kernel keeps one for longer than
    ten seconds.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _END
    while True:
        alive = _kill_marked(f"{FOLDER}={folder}".encode())
        killed |= alive
        if not alive or time.monotonic() >= deadline:
            return len(killed)
        time.sleep(0.01)


def _kill_marked(mark: bytes) -> set[int]:
    """Sends SIGKILL to the processes whose environment has this variable; returns their numbers. One that has
    ended has no environment any more.
    """
    import signal

    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    found.add(int(name))
        except OSError:
            continue
    return found
