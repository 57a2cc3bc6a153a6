"""Readings of a task while it runs."""

from __future__ import annotations

import glob
import os
import re

from .cores import numbers_of_list
from .kernel import read_text

__all__ = ["Pace", "Sampler"]

_OWN_SHARE = 1 / 200  # share of a core that sampling may take: slow readings are made less often
_MOST_OPEN = 400  # files of threads that stay open between readings


class _Process:
    """A descendant process."""

    def __init__(self, pid: int, first: int) -> None:
        self.pid, self.first = pid, first
        self.threads: dict[int, list[int]] = {}  # tid -> [open file or -1, CPU time, delay] (ns)
        self.looked = first
        self.cores: list[int] = []  # as last seen

    def read(self, tid: int) -> None:
        entry = self.threads.setdefault(tid, [-1, 0, 0])
        try:
            if entry[0] < 0:
                file = os.open(f"/proc/{self.pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                if len(self.threads) < _MOST_OPEN:
                    entry[0] = file
                    data = os.pread(file, 128, 0)
                else:
                    data = os.read(file, 128)
                    os.close(file)
            else:
                data = os.pread(entry[0], 128, 0)
            cpu, delay, _ = data.split()
            entry[1], entry[2] = int(cpu), int(delay)
        except (OSError, ValueError):  # it ended: its last figures count
            self.close(tid)

    def close(self, tid: int) -> None:
        entry = self.threads[tid]
        if entry[0] >= 0:
            os.close(entry[0])
            entry[0] = -1


class Sampler:
    """Reads schedstat of all threads below this process, and which cores, how many threads and how much
    memory they have.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.cpu = self.delay = 0  # ns, of processes that ended
        self.most_threads = 0
        self.most_memory = 0
        self.cores: set[int] = set()
        self.frequencies: dict[int, list[float]] = {}
        self.temperatures: list[float] = []
        self._processes: dict[int, _Process] = {}
        self.threads_seen = 0
        self.not_the_task: set[int] = set()

    @staticmethod
    def _children(pid: int, tid: int) -> list[int]:
        try:
            file = os.open(f"/proc/{pid}/task/{tid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            data = b""
            while piece := os.read(file, 1 << 16):
                data += piece
            return [int(x) for x in data.split()]
        except OSError:
            return []
        finally:
            os.close(file)

    def descendants(self) -> list[int]:
        """All descendants now."""
        found: list[int] = []
        todo = [os.getpid()]
        while todo:
            pid = todo.pop()
            try:
                threads = os.listdir(f"/proc/{pid}/task")
            except OSError:
                continue
            for tid in threads:
                children = self._children(pid, int(tid))
                found.extend(children)
                todo.extend(children)
        return found

    def sample(self) -> None:
        """Takes one reading."""
        own = os.getpid()
        seen = set()
        todo = self._children(own, own)
        while todo:
            pid = todo.pop()
            if pid in seen or pid in self.not_the_task:
                continue
            seen.add(pid)
            try:
                tids = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
            except OSError:
                continue
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = _Process(pid, self.samples)
            self.most_threads = max(self.most_threads, len(tids))
            for tid in process.threads.keys() - set(tids):
                process.close(tid)
            # Any thread may have children; with many threads, most are read only now and then.
            all_of_them = len(tids) <= 4 or self.samples % 10 == 0
            for tid in tids:
                process.read(tid)
                if all_of_them or tid == pid:
                    todo.extend(self._children(pid, tid))
            if self.samples >= process.looked:
                self._look(process)
        for pid in self._processes.keys() - seen:
            self._forget(pid)
        self.samples += 1

    def _look(self, process: _Process) -> None:
        """Reads figures that change seldom."""
        process.looked = self.samples + 1 + min((self.samples - process.first) // 2, 20)
        # A child before exec has the memory and the command line of the watcher: checked first.
        ours = read_text(f"/proc/{process.pid}/cmdline") == read_text("/proc/self/cmdline")
        text = read_text(f"/proc/{process.pid}/status") or ""
        cores = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.M)
        if cores:
            process.cores = numbers_of_list(cores[1])
        memory = re.search(r"^VmHWM:\s*(\d+) kB", text, re.M)
        if memory and not ours:
            self.most_memory = max(self.most_memory, int(memory[1]) << 10)

    def _forget(self, pid: int) -> None:
        process = self._processes.pop(pid)
        self.cores.update(process.cores)
        for tid, (_, cpu, delay) in process.threads.items():
            process.close(tid)
            self.cpu += cpu
            self.delay += delay
            self.threads_seen += 1

    def last(self, pid: int) -> None:
        """Reads a child that has ended, before it is waited for: the figures of its main thread are final."""
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = _Process(pid, self.samples)
        process.read(pid)
        self._forget(pid)

    def look_at_processor(self, cores: list[int]) -> None:
        """Frequency of these cores and the highest temperature, where the system has them."""
        for core in cores:
            text = read_text(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
            if text and text.strip().isdigit():
                self.frequencies.setdefault(core, []).append(int(text) * 1e3)
        found = []
        for path in glob.glob("/sys/class/thermal/thermal_zone*/temp") + glob.glob(
            "/sys/class/hwmon/hwmon*/temp*_input"
        ):
            text = (read_text(path) or "").strip()
            if re.fullmatch(r"-?\d+", text) and 0 < int(text) < 200_000:
                found.append(int(text) / 1e3)
        if found:
            self.temperatures.append(max(found))

    def finish(self) -> None:
        """Adds up the figures."""
        for pid in list(self._processes):
            self._forget(pid)


class Pace:
    """When the next reading is due: after 5 ms at first, so that short tasks are read as well, then
    every `period`; later where readings are slow.
    """

    def __init__(self, period: float, begin: float) -> None:
        self.period = self._shortest = period
        self.due = begin
        self._step = min(0.005, period)

    def took(self, now: float, cost: float) -> None:
        """Counts a reading that took this many seconds of CPU time."""
        self.period = max(self._shortest, cost / _OWN_SHARE)
        self.due = now + max(self._step, cost / _OWN_SHARE)
        self._step = min(self._step * 2, self.period)
