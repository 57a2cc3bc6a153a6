"""What a runner runs: the tasks of a study, what the watcher is to do for each, and where results go."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import _core
from ..study.attempts import Attempts
from ..study.design import Task
from ..study.study import Study
from .choice import engine_of
from .engines import FOLDER, EngineBase

__all__ = ["Work", "variable_rules", "watch_spec"]


def variable_rules() -> dict[str, list[str]]:
    """Which environment variables the watcher stores, as its spec says it."""
    rules = _core.variable_rules()
    return {
        "names": rules.names,
        "prefixes": rules.prefixes,
        "bookkeeping": rules.bookkeeping,
        "of_one_job": rules.of_one_job,
        "secret_words": rules.secret_words,
        "secret_variable_words": rules.secret_variable_words,
    }


class Work(ABC):
    """study: where and how tasks run, and when it is enough. tasks: in the order of the plan. path:
    the folder that engines may use. attempts: their folders.
    """

    study: Study
    tasks: Sequence[Task]
    path: Path
    attempts: Attempts

    def engine(self) -> EngineBase:
        """What starts attempts."""
        return engine_of(self.study, self.path)

    @abstractmethod
    def lines(self) -> list[dict]:
        """Lines of ended attempts: `task`, `attempt`, `block`, `factors`, `status`, `wall`,
        `submit`, `start`, `interrupted`.
        """

    @abstractmethod
    def spec(self, engine: EngineBase, task: Task, attempt: int, share: list[int] | None) -> dict:
        """The spec that the watcher runs: `watch_spec`. share: cores of the attempt."""

    @abstractmethod
    def keep(self, task: Task, attempt: int, record: Mapping, engine: str) -> dict:
        """Makes the line of an attempt of its record and its folder, and puts it on storage; returns it."""

    @abstractmethod
    def enough(self, blocks: int) -> bool:
        """Whether this number of blocks is enough."""

    def begin(self) -> None:  # noqa: B027
        """Called before the first attempt of a run, where there is one."""

    def finish(self) -> None:  # noqa: B027
        """Called after the last attempt of a run that called `begin`, however it ended."""

    def ended(self, line: Mapping) -> None:  # noqa: B027
        """An attempt of this runner has its line. Raises TwinrunError where the study cannot go on."""


def watch_spec(
    study: Study,
    engine: EngineBase,
    own: Path,
    command: list[str],
    environment: Mapping[str, str | None],
    directory: Path,
    share: list[int] | None,
    **more: object,
) -> dict:
    """The spec of an attempt in the folder `own`. environment: what differs from the watcher's;
    None: not set.

    more: further keys, and those that are not as here.
    """
    return {
        "version": 1,
        "command": command,
        "environment": {**environment, FOLDER: str(own)},
        "variables": variable_rules(),
        "directory": str(directory),
        "prepare": [],
        "time_limit": study.time_limit or None,
        "grace": study.grace,
        "success": list(study.success),
        "cores": share,
        "cores_level": None,
        "spare": study.engine.spare,
        "own_cores": engine.own_cores(None, share),
        "period": study.sampling.period,
        "listen": study.sampling.kernel_ends,
        "verify": {},
        "engine": engine.name,
        "submit": time.time(),
        **more,
    }
