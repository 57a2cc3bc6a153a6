"""What starts attempts: the one interface that the runner knows, and the choice among its implementations.

An engine starts watch.py in the folder of an attempt, and says whether it still may come to a record. It never waits: `files`
are what a poll may wake for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..study.study import Study

__all__ = ["EngineBase", "Running", "State", "examine", "withdraw"]

WATCH = Path(__file__).resolve().parents[1] / "watch.py"
FOLDER = "TWINRUN_TASK_FOLDER"  # in the environment of each task: its folder


@dataclass
class Running:
    """An attempt that was started. token: the engine's own."""

    task: int
    attempt: int
    folder: Path
    cores: list[int] | None = None
    token: Any = None
    began: float = 0.0
    extra: dict = field(default_factory=dict)


class EngineBase(ABC):
    """Where attempts run."""

    name = "?"

    def __init__(self, study: Study) -> None:
        self.study = study

    @abstractmethod
    def free(self) -> bool:
        """Whether a further attempt may be started."""

    def cores(self) -> list[int] | None:
        """Cores for the next attempt; None: what it finds."""
        return None

    def own_cores(self, level: str | None, cores: list[int] | None) -> list[int] | None:
        """Cores for whatever watches an attempt with these."""
        return None

    def command(self, words: list[str], values: Mapping[str, str]) -> list[str]:
        """A task's command as this engine runs it."""
        return words

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        """Variables that this engine wants; the user's own win."""
        return {}

    @abstractmethod
    def start(self, running: Running, node: str | None) -> None:
        """Starts it; its spec is in its folder. Raises TwinrunError where that cannot be."""

    @abstractmethod
    def adopt(self, running: Running) -> None:
        """Takes over an attempt that an earlier runner started and that may still run."""

    @abstractmethod
    def alive(self, running: Running) -> bool:
        """Whether it may still come to a record."""

    @abstractmethod
    def stop(self, running: Running) -> None:
        """Asks for its end; its file `stop` is there."""

    @abstractmethod
    def done(self, running: Running) -> None:
        """It is no more."""

    def files(self) -> list[int]:
        """Files that become readable when something has ended."""
        return []

    def pause(self) -> float:
        """Seconds after which to look again."""
        return 1.0

    def all_cores(self) -> contextlib.AbstractContextManager[object]:
        """While in force this process may use the tasks' cores as well."""
        return contextlib.nullcontext()

    def close(self) -> None:  # noqa: B027
        """Gives back what it holds; attempts go on."""


class State:
    """What the folder of an attempt says."""

    RECORDED, RUNNING, LOST, NEVER, SUBMITTED = "recorded", "running", "lost", "never ran", "submitted"


def withdraw(folder: Path) -> bool:
    """Claims an attempt so that nothing will run it; False where it runs or ran."""
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
    """The state of an attempt that nobody of this process started."""
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
    # Locks of other nodes are seen on file systems that pass them on; where they are not, the batch system is asked.
    if claim.get("host") not in (None, platform.node()) and (folder / "submitted.json").exists():
        return State.SUBMITTED
    return State.LOST


def end_stragglers(folder: Path) -> int:
    """Kills processes of an attempt whose watcher died, found by their environment; how many."""
    import signal

    wanted = f"{FOLDER}={folder}".encode()
    killed = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    killed += 1
        except OSError:
            continue
    return killed
