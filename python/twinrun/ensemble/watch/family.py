"""All processes of a task: it, its descendants, and those that lost their parent."""

from __future__ import annotations

import os
import resource
import signal
import time

from .checks import Checks
from .sampling import Sampler
from .signals import Signals

__all__ = ["Family"]

_LEFT_BEHIND = 2.0  # seconds that processes have to end after their task


class Family:
    """usage: what the kernel says of each process that was waited for."""

    def __init__(self, sampler: Sampler, checks: Checks, signals: Signals) -> None:
        self.usage: list[resource.struct_rusage] = []
        self._sampler, self._checks, self._signals = sampler, checks, signals

    def kill(self, number: int) -> None:
        """Sends a signal to the whole tree, whatever sessions it made."""
        for pid in self._sampler.descendants():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def reap(self, first: int) -> int | None:
        """Waits for ended processes; returns the status of the task's first process if it is among them."""
        status = None
        while True:
            try:
                # Does not reap: waiting would remove the figures.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return status
            if ended is None:
                return status
            if self._checks.reap(ended.si_pid):
                continue
            self._sampler.last(ended.si_pid)
            _, code, used = os.wait4(ended.si_pid, 0)
            self.usage.append(used)
            if ended.si_pid == first:
                status = code

    def clear(self, first: int) -> int:
        """Ends processes that outlive the task; returns how many."""
        deadline = time.monotonic() + _LEFT_BEHIND
        killed: set[int] = set()
        while True:
            self.reap(first)
            left = self._sampler.descendants()
            if not left:
                return len(killed)
            if time.monotonic() >= deadline:
                killed.update(set(left) - self._sampler.not_the_task)
                self.kill(signal.SIGKILL)
            self._sampler.sample()
            self._signals.wait(0.02)
