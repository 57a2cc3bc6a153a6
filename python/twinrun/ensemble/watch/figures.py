"""The resources of a task: the kernel's figures after it, less those before."""

from __future__ import annotations

import os
import resource
import time

from .checks import Checks
from .ends import ExitListener
from .kernel import IO, io_of, pressure, read_text, reaped_io
from .sampling import Sampler
from .task import Task

__all__ = ["Figures"]


def most_memory(reaped: int, before: int, reported: int, read: int) -> int | None:
    """Bytes of the largest process of a task; None where no source is known.

    reaped: what wait() reports. It includes the memory of the child before exec, which is `before`
    or a little more. reported: what the kernel reports when threads end. read: what was read while
    it ran. 0: no report.
    """
    return reaped if reaped > before + (2 << 20) else reported or read or None


class Figures:
    """Made before the task is forked; `begin` is for when it stands at the gate."""

    def __init__(self) -> None:
        self._pressure = pressure()

    def begin(self, task: Task) -> None:
        """Resources used before the program."""
        self._used = task.used
        self._cpu = self._delay = 0
        try:
            self._cpu, self._delay = (
                int(x) for x in (read_text(f"/proc/{task.pid}/schedstat") or "").split()[:2]
            )
        except ValueError:
            pass
        self._io = reaped_io()
        try:
            self._gate_io, _ = io_of(f"/proc/{task.pid}/io")
        except (OSError, ValueError, KeyError):
            self._gate_io = dict.fromkeys(IO.values(), 0)
        self._gate_io["read_chars"] += 1  # the byte that it reads at the gate
        self._gate_io["read_calls"] += 1
        self._own = time.process_time()

    def end(
        self,
        task: Task,
        usage: list[resource.struct_rusage],
        sampler: Sampler,
        listener: ExitListener | None,
        checks: Checks,
    ) -> dict:
        """The figures of a record, once all processes have ended."""
        own = time.process_time() - self._own
        sampler.finish()
        exact = None
        if listener is not None:
            exact = listener.total(os.getpid(), task.pid, sampler.not_the_task)
            if not listener.complete:
                exact = None
        used = self._used
        user = sum(u.ru_utime for u in usage) - used[0]
        system = sum(u.ru_stime for u in usage) - used[1]
        sampled_cpu = max(sampler.cpu - self._cpu, 0) / 1e9
        delay = (exact[0] if exact else sampler.delay) - self._delay
        before = max(used[6], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10
        reaped = max((u.ru_maxrss for u in usage), default=0) << 10
        frequencies = (sampler.frequencies[core] for core in sorted(sampler.frequencies))
        return {
            "user": max(user, 0.0),
            "system": max(system, 0.0),
            "run_queue_delay": max(delay, 0) / 1e9,
            "context_switches": {
                "voluntary": max(sum(u.ru_nvcsw for u in usage) - used[4], 0),
                "involuntary": max(sum(u.ru_nivcsw for u in usage) - used[5], 0),
            },
            "page_faults": {
                "minor": max(sum(u.ru_minflt for u in usage) - used[2], 0),
                "major": max(sum(u.ru_majflt for u in usage) - used[3], 0),
            },
            "max_memory_bytes": most_memory(reaped, before, exact[3] if exact else 0, sampler.most_memory),
            "io": self._io_since(checks.io),
            "pressure": self._pressure_since(),
            "frequency_hz": [sum(v) / len(v) for v in frequencies] or None,
            "temperature_c": max(sampler.temperatures, default=None),
            "sampling": {
                "run_queue_delay": "exact" if exact else "sampled",
                "sampled_run_queue_delay": max(sampler.delay - self._delay, 0) / 1e9,
                "coverage": min(sampled_cpu / (user + system), 1.0) if user + system > 0 else None,
                "samples": sampler.samples,
                "threads": exact[2] if exact else sampler.threads_seen,
                "own_seconds": own,
            },
        }

    def _io_since(self, of_checks: dict[str, int]) -> dict[str, int] | None:
        after = reaped_io()
        if self._io is None or after is None:
            return None
        return {k: max(after[k] - self._io[k] - self._gate_io[k] - of_checks[k], 0) for k in after}

    def _pressure_since(self) -> dict[str, float] | None:
        after = pressure()
        if self._pressure is None or after is None:
            return None
        return {k: after[k] - self._pressure[k] for k in after}
