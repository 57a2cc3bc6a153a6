"""Which value of a factor the running task has: its environment, and commands that inspect it."""

from __future__ import annotations

import os
import subprocess

from .kernel import IO, read_text, reaped_io
from .sampling import Sampler

__all__ = ["Checks"]


class Checks:
    """values: by factor. io: of the commands, which are not the task's. rules: `verify` of the spec."""

    def __init__(self, folder: str, rules: dict[str, dict], sampler: Sampler) -> None:
        self.values: dict[str, str | None] = {}
        self.io = dict.fromkeys(IO.values(), 0)
        self._folder, self._rules, self._sampler = folder, rules, sampler
        self._running: dict[int, str] = {}  # pid of a command -> factor
        self._due: list[tuple[float, str, dict]] = []

    def begin(self, begin: float) -> None:
        """The time from which commands are due."""
        self._due = [
            (begin + how["after"], name, how) for name, how in self._rules.items() if how["kind"] == "check"
        ]
        self._due.sort(key=lambda x: x[0])

    def see_variables(self, task: int) -> None:
        """Factors that are environment variables, as the running task has them."""
        text = read_text(f"/proc/{task}/environ")
        variables = dict(x.split("=", 1) for x in (text or "").split("\0") if "=" in x)
        for name, how in self._rules.items():
            if how["kind"] == "environment":  # an empty text: it has ended
                self.values[name] = variables.get(how["variable"], "(unset)") if text else None

    def next(self) -> float:
        """When the next command is due."""
        return self._due[0][0] if self._due else float("inf")

    def start_due(self, now: float, task: int) -> None:
        """Starts the commands that are due."""
        while self._due and now >= self._due[0][0]:
            self._start(*self._due.pop(0)[1:], task)

    def _start(self, name: str, how: dict, task: int) -> None:
        words = [w.replace("{pid}", str(task)) for w in how["command"]]
        with open(self._output(name), "wb") as said:
            try:
                child = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                return
        self._running[child.pid] = name
        self._sampler.not_the_task.add(child.pid)
        child.returncode = 0  # waited for by `reap`

    def _output(self, name: str) -> str:
        return os.path.join(self._folder, f"check-{name}")

    def reap(self, pid: int) -> bool:
        """Waits for a process that has ended, if it is one of these commands."""
        if pid not in self._running:
            return False
        before = reaped_io()
        code = os.wait4(pid, 0)[1]
        after = reaped_io()
        if before is not None and after is not None:
            for name in after:
                self.io[name] += after[name] - before[name]
        factor = self._running.pop(pid)
        text = read_text(self._output(factor))
        if code == 0 and text is not None:
            self.values[factor] = text.strip()
        return True
