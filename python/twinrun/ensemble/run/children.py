"""Engines whose attempts are children of this process, each in a slot of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from ...errors import TwinrunError
from ..study.study import Study
from .engines import WATCH, EngineBase, Running

__all__ = ["ChildEngine"]


class ChildEngine(EngineBase):
    """Slots, and the processes in them. Subclasses say how many slots there are: `_make_slots`."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._unused: list[int] = []
        self._files: list[int] = []  # of processes, which become readable when these end

    def _make_slots(self, number: int) -> None:
        self._unused = list(range(number))

    def free(self) -> bool:
        return bool(self._unused)

    def shuffle(self, seed: Sequence[int]) -> None:
        order = np.random.default_rng(list(seed)).permutation(sorted(self._unused))
        self._unused = [int(slot) for slot in order]

    def slot(self) -> int | None:
        return self._unused[0]

    def _take(self, running: Running, slot: int) -> None:
        self._unused.remove(slot)
        running.extra["slot"] = slot

    def _launch(self, running: Running, before: Sequence[str] = ()) -> None:
        """Starts the watcher of an attempt that has its slot. before: words of a launcher. Raises
        TwinrunError.
        """
        words = [*before, sys.executable, "-I", "-S", str(WATCH), str(running.folder)]
        try:
            with open(running.folder / "agent", "wb") as said:
                running.token = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,  # Ctrl-C of the terminal is not for it
                )
        except OSError as e:
            self._unused.append(running.extra.pop("slot"))
            raise TwinrunError(f"{words[0]} cannot be started: {e.strerror}") from None
        with contextlib.suppress(OSError, AttributeError):
            running.extra["file"] = os.pidfd_open(running.token.pid)
            self._files.append(running.extra["file"])

    def done(self, running: Running) -> None:
        if "slot" in running.extra:
            self._unused.append(running.extra.pop("slot"))
        file = running.extra.pop("file", None)
        if file is not None:
            self._files.remove(file)
            os.close(file)
        if running.token is not None:
            running.token.wait()

    def files(self) -> list[int]:
        return self._files

    def pause(self) -> float:
        return 0.2
