"""Sources that took time from a core, by name: interrupts, soft interrupts, the hypervisor, other threads.

Counts and times are the kernel's, before and after each round (/proc/interrupts, softirqs, stat,
PID/task/TID). The kernel counts interrupts and does not time them one by one; what they took
together is in clock ticks, if the kernel was built to measure it. The CPU time of a thread belongs
to the core on which it was last; threads that began and ended in between are missing. `rtla
osnoise` times each of them, where the program and a kernel with that tracer are installed: see
`rtla`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import TwinrunError, one_line
from ..words import percent

__all__ = ["Snapshot", "check_rtla", "figures", "named", "rtla", "rtla_table", "sentence", "since"]

_MOST = 8  # names of a kind and core that are kept
# Threads of the kernel have a core, or a pool, behind a slash; other names may hold one.
_OF_KERNEL = re.compile(r"([a-z_]+)/(?:u?[0-9].*)$")
_SHOWN = 3  # and that the sentence has
# Numbers of a core's line in /proc/stat.
_STAT = {"interrupts": 5, "soft interrupts": 6, "hypervisor": 7}
_RTLA_COLUMNS = ("hardware", "nmi", "irq", "softirq", "thread")

Figures = dict[str, dict[str, float]]  # {kind: {name: count or seconds}} of a core


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _rows(text: str, names: bool) -> dict[int, dict[str, float]]:
    """{core: {row: count}} of /proc/interrupts (names: rows have a description) or softirqs."""
    lines = text.splitlines()
    found: dict[int, dict[str, float]] = {}
    if not lines:
        return found
    cores = [int(word[3:]) for word in lines[0].split() if re.fullmatch(r"CPU[0-9]+", word)]
    for line in lines[1:]:
        label, _, rest = line.partition(":")
        words = rest.split()
        if len(words) < len(cores) or not all(word.isdigit() for word in words[: len(cores)]):
            continue  # as ERR, which has one number for all
        label = label.strip()
        about = words[len(cores) :]
        if names and about:  # a device's comes after its controller and line
            label = about[-1] if label.isdigit() else " ".join(about)
        for core, word in zip(cores, words, strict=False):
            own = found.setdefault(core, {})
            own[label] = own.get(label, 0.0) + int(word)
    return found


def named(comm: str) -> str:
    """A thread's name without its number: kworker/0:1-events is one of kworker's."""
    kernel = _OF_KERNEL.match(comm)
    return kernel[1] if kernel else re.sub(r"[-_:.]?[0-9]+$", "", comm) or comm


class Snapshot:
    """The kernel's counters now. root: a folder in place of /, for tests. without: processes that
    are not counted.
    """

    def __init__(self, root: str = "", without: Iterable[int] = ()) -> None:
        self.interrupts = _rows(_text(f"{root}/proc/interrupts"), names=True)
        self.softirqs = _rows(_text(f"{root}/proc/softirqs"), names=False)
        self.times = self._times(_text(f"{root}/proc/stat"))
        self.threads = dict(self._threads(root, set(without)))

    @staticmethod
    def _times(text: str) -> dict[int, dict[str, float]]:
        tick = os.sysconf("SC_CLK_TCK")
        found = {}
        for line in text.splitlines():
            words = line.split()
            core = re.fullmatch(r"cpu([0-9]+)", words[0]) if words else None
            if core is not None and len(words) > 8 and all(word.isdigit() for word in words[1:9]):
                found[int(core[1])] = {name: int(words[1 + k]) / tick for name, k in _STAT.items()}
        return found

    @staticmethod
    def _threads(root: str, without: set[int]) -> Iterable[tuple[tuple[int, str], tuple[str, int, float]]]:
        """((thread, when it began), (name, core, seconds of CPU time))."""
        try:
            processes = [name for name in os.listdir(f"{root}/proc") if name.isdigit()]
        except OSError:
            return
        for process in processes:
            if int(process) in without:
                continue
            try:
                threads = os.listdir(f"{root}/proc/{process}/task")
            except OSError:
                continue  # it has ended
            for thread in threads:
                place = f"{root}/proc/{process}/task/{thread}"
                head, _, tail = _text(f"{place}/stat").rpartition(")")
                words = tail.split()
                used = _text(f"{place}/schedstat").split()
                if len(words) < 37 or not used or not used[0].isdigit():
                    continue
                yield (int(thread), words[19]), (head.partition("(")[2], int(words[36]), int(used[0]) / 1e9)


def _came(
    before: Mapping[int, Mapping[str, float]], after: Mapping[int, Mapping[str, float]], core: int
) -> dict[str, float]:
    earlier = before.get(core, {})
    return {
        name: n - earlier.get(name, 0.0)
        for name, n in after.get(core, {}).items()
        if n > earlier.get(name, 0.0)
    }


def since(before: Snapshot, after: Snapshot, cores: Iterable[int]) -> dict[int, Figures]:
    """The counts of each core between two snapshots."""
    found: dict[int, Figures] = {}
    for core in cores:
        found[core] = {
            "interrupts": _came(before.interrupts, after.interrupts, core),
            "softirqs": _came(before.softirqs, after.softirqs, core),
            "times": _came(before.times, after.times, core),
            "threads": {},
        }
    for key, (name, core, used) in after.threads.items():
        took = used - before.threads.get(key, ("", 0, 0.0))[2]
        if core in found and took > 0:
            own = found[core]["threads"]
            own[named(name)] = own.get(named(name), 0.0) + took
    return found


def added(parts: Iterable[Figures]) -> Figures:
    """The sum over rounds."""
    total: Figures = {}
    for part in parts:
        for kind, values in part.items():
            own = total.setdefault(kind, {})
            for name, n in values.items():
                own[name] = own.get(name, 0.0) + n
    return total


def figures(core: int, parts: Iterable[Figures], seconds: float) -> dict[str, Any]:
    """Sources in a document: counts by second, and times as shares of the time; the largest of each kind."""
    found: dict[str, Any] = {"core": core, "seconds": seconds}
    for kind, values in added(parts).items():
        largest = sorted(values.items(), key=lambda item: -item[1])[:_MOST]
        found[kind] = {one_line(name, 80): n / seconds for name, n in largest} if seconds > 0 else {}
    return found


def sentence(core: Mapping[str, Any]) -> str:
    """What took time from a core, by name; "" where the kernel says nothing."""

    def listed(kind: str, text: Callable[[float], str]) -> str:
        largest = sorted(core.get(kind, {}).items(), key=lambda item: -item[1])[:_SHOWN]
        return ", ".join(f"{name} {text(value)}" for name, value in largest)

    def share(value: float) -> str:
        return percent(value)[:-1]

    parts = []
    if core.get("threads"):
        parts.append(
            f"threads that were last there used, in % of one core's time and on any core: {listed('threads', share)}"
        )
    if core.get("times"):
        parts.append(f"together, in %: {listed('times', share)}")
    if core.get("interrupts"):
        parts.append(f"interrupts a second: {listed('interrupts', '{:.4g}'.format)}")
    if core.get("softirqs"):
        parts.append(f"soft interrupts a second: {listed('softirqs', '{:.4g}'.format)}")
    return f"By name, the kernel tells of core {core['core']}: {'; '.join(parts)}." if parts else ""


# rtla ---------------------------------------------------------------------------------------------


def rtla_table(text: str) -> dict[int, dict[str, float]]:
    """{core: {share of noise, counts by source}} of what `rtla osnoise top -q` prints: its last
    line for each core.

    The columns: CPU, period, runtime, noise, available %, largest noise, largest single; then
    counts of hardware noise, NMI, IRQ, softirq and thread noise.
    """
    found = {}
    for line in text.splitlines():
        words = line.replace("#", " ").split()
        if len(words) != 12 or not words[0].isdigit():
            continue
        try:
            runtime, noise = float(words[2]), float(words[3])
            counts = [float(word) for word in words[7:]]
            largest = float(words[6])
        except ValueError:
            continue
        if runtime > 0:
            found[int(words[0])] = {
                "share": noise / runtime,
                "largest_us": largest,
                **dict(zip(_RTLA_COLUMNS, counts, strict=True)),
                "seconds": runtime / 1e6,
            }
    return found


def check_rtla() -> None:
    """Raises TwinrunError where rtla is not installed."""
    if shutil.which("rtla") is None:
        raise TwinrunError("is not installed", where="rtla", fix="install it, or leave out --rtla")


def rtla(cores: Iterable[int], seconds: float) -> list[dict[str, float]]:
    """Runs `rtla osnoise top` on these cores: what it measured of each.

    Raises TwinrunError where it cannot work here.
    """
    whole = max(round(seconds), 1)
    chosen = ",".join(map(str, cores))
    words = ["rtla", "osnoise", "top", "-q", "-c", chosen, "-d", f"{whole}s"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=whole + 60)
    except (OSError, subprocess.SubprocessError) as error:
        raise TwinrunError(f"failed: {error}", where="rtla", fix="leave out --rtla") from None
    found = rtla_table(done.stdout.decode(errors="replace"))
    if done.returncode != 0 or not found:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["it printed no table"])[-1]
        raise TwinrunError(
            f"failed: {one_line(said, 200)}",
            where="rtla",
            fix="it needs root and a kernel with the osnoise tracer; or leave out --rtla",
        )
    return [{"core": core, **found[core]} for core in sorted(found)]
