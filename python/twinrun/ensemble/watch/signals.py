"""Signals to the watcher, and waiting for the next one."""

from __future__ import annotations

import os
import select
import signal

__all__ = ["Signals"]


class Signals:
    """asked: SIGTERM has come. While `interrupting` it raises InterruptedError too.

    A child that ends wakes `wait`. SIGINT and SIGHUP do nothing: Ctrl-C is the runner's.
    """

    def __init__(self) -> None:
        self.asked = self.interrupting = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.asked = True
        if self.interrupting:
            raise InterruptedError("stopped")

    def wait(self, seconds: float) -> None:
        """Until a signal comes, or so long."""
        self._poll.poll(max(seconds * 1e3, 0.0))
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
