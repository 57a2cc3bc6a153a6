"""What took time from a core, in seconds: interrupts, soft interrupts, NMI and threads by name, by tracefs.

The kernel writes an event when each begins and ends (irq, irq_vectors, nmi, sched), into an instance of its
own, so that nobody's tracing is disturbed. Time belongs to the innermost: an interrupt within a soft
interrupt counts for the interrupt. Times are as exact as the trace's clock, one microsecond; they are no sums
of clock ticks, as those of /proc/stat are. Writing events takes time too, so a trace is made after the
measurement and not meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ..errors import TwinrunError, one_line
from ..words import percent
from .sources import named

__all__ = ["KINDS", "Took", "Trace", "document", "measured", "place", "sentence", "took"]

KINDS = ("irq", "softirq", "nmi", "thread")
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_BUFFER = 16384  # KiB a core: some 200,000 events
# Where a kernel lacks one, the others tell.
_EVENTS = (
    "irq/irq_handler_entry", "irq/irq_handler_exit", "irq/softirq_entry", "irq/softirq_exit", "nmi/nmi_handler", "sched/sched_switch",
)  # fmt: skip
_NEW = "task/task_newtask"  # by whom a thread was made: so the threads of this process are known
_VECTORS = "irq_vectors"  # begins and ends of interrupts that are no device's: their names end so
_OF_PROCESS = re.compile(r"twinrun-(\d+)-(\d+)(?:-threads)?")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IDLE = 0
_MOST = 8  # names of a kind and core that are kept
_SHOWN = 5  # and that the sentence has
# Core, time, event and what it says. The name of a thread, which comes first, may hold anything.
_LINE = re.compile(r"^\s*.*-\d+\s+(?:\(.{7}\)\s+)?\[(\d+)\]\s+\S+\s+(\d+\.\d+): (\w+): ?(.*)$")
_LOST = re.compile(r"^CPU:(\d+) \[LOST (\d+) EVENTS\]")
_SWITCH = re.compile(r"prev_comm=.* ==> next_comm=(.*) next_pid=(\d+)")


@dataclass
class Took:
    """What took time from a core. seconds, count: by kind and name; lost: events without a place."""

    seconds: dict[str, dict[str, float]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    count: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    lost: int = 0

    def add(self, kind: str, name: str, seconds: float, count: int = 0) -> None:
        """Adds a span of time, or that something came once more."""
        own, times = self.seconds[kind], self.count[kind]
        own[name] = own.get(name, 0.0) + seconds
        times[name] = times.get(name, 0) + count


class _Core:
    """Who has a core, the innermost last, from event to event."""

    def __init__(self, without: Collection[int]) -> None:
        self.took = Took()
        self._without = without
        self._open: list[tuple[str, str]] = []  # interrupts and soft interrupts
        self._thread: str | None = None  # None: idle, not counted, or not known yet
        self._since: float | None = None

    def _until(self, now: float) -> None:
        if self._since is not None:
            if self._open:
                self.took.add(*self._open[-1], now - self._since)
            elif self._thread is not None:
                self.took.add("thread", self._thread, now - self._since)
        self._since = now

    def begin(self, now: float, kind: str, name: str) -> None:
        self._until(now)
        self._open.append((kind, name))
        self.took.add(kind, name, 0.0, 1)

    def end(self, now: float, kind: str) -> None:
        self._until(now)
        # What began before the trace, or while events were lost, is not open.
        if self._open and self._open[-1][0] == kind:
            self._open.pop()

    def switch(self, now: float, comm: str, thread: int) -> None:
        self._until(now)
        self._open.clear()  # no interrupt lasts until another thread has the core
        self._thread = None if thread == _IDLE or thread in self._without else named(comm)
        if self._thread is not None:
            self.took.add("thread", self._thread, 0.0, 1)

    def nmi(self, now: float, name: str, seconds: float) -> None:
        """It is over, and says how long it took."""
        self._until(now - seconds)
        self._since = now
        self.took.add("nmi", name, seconds, 1)

    def lose(self, events: int) -> None:
        """What happened meanwhile is not known."""
        self.took.lost += events
        self._open.clear()
        self._thread = self._since = None


def _name(event: str, rest: str) -> str:
    found = re.search(r"name=(.*)$", rest) or re.search(r"action=(\w+)", rest)
    return one_line(found[1], 60) if found else event.removesuffix("_entry").removesuffix("_exit")


def took(lines: Iterable[str], without: Collection[int] = ()) -> dict[int, Took]:
    """What took time from each core, by the lines of a trace. without: threads that do not count."""
    cores: dict[int, _Core] = {}
    for line in lines:
        if lost := _LOST.match(line):
            cores.setdefault(int(lost[1]), _Core(without)).lose(int(lost[2]))
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        core = cores.setdefault(int(found[1]), _Core(without))
        now, event, rest = float(found[2]), found[3], found[4]
        kind = "softirq" if event.startswith("softirq") else "irq"
        if event == "sched_switch":
            if switch := _SWITCH.search(rest):
                core.switch(now, switch[1], int(switch[2]))
        elif event == "nmi_handler":
            if lasted := re.search(r"delta_ns: (\d+)", rest):
                core.nmi(now, rest.split("()")[0].strip(), int(lasted[1]) / 1e9)
        elif event.endswith("_entry"):
            core.begin(now, kind, _name(event, rest))
        elif event.endswith("_exit"):
            core.end(now, kind)
    return {number: core.took for number, core in sorted(cores.items())}


def place(places: Iterable[str] = _PLACES) -> Path:
    """Where tracefs is mounted. Raises TwinrunError where it is not, or may not be used."""
    for name in places:
        folder = Path(name)
        with contextlib.suppress(OSError):
            if (folder / "instances").is_dir() and os.access(folder / "instances", os.W_OK):
                return folder
    raise TwinrunError(
        "tracefs is not mounted here, or may not be used",
        where=_PLACES[0],
        fix=f"as root: mount -t tracefs nodev {_PLACES[0]}; or leave out --trace",
    )


def _put(path: Path, text: str) -> None:
    """Writes to a file of the kernel; makes none. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _remove(folder: Path) -> None:
    """Removes an instance, if it is there."""
    with contextlib.suppress(OSError):
        _put(folder / "events" / "enable", "0")
    with contextlib.suppress(OSError):
        folder.rmdir()


class Trace:
    """Traces these cores while it is open, in an instance of its own; `lines` are its events.

    Raises TwinrunError where the kernel does not let it.
    """

    def __init__(self, cores: Collection[int], folder: Path) -> None:
        self._cores = cores
        # A PID is one of its namespace: a dead one there may live in another container.
        space = os.stat("/proc/self/ns/pid").st_ino
        self._own = folder / "instances" / f"twinrun-{os.getpid()}-{space}"
        self._made = self._own.with_name(f"{self._own.name}-threads")
        self._before: dict[int, Any] = {}
        self._begun = 0.0
        self.seconds = 0.0  # how long it traced

    def _write(self, name: str, text: str) -> None:
        _put(self._own / name, text)

    def __enter__(self) -> Trace:
        self._remove_of_dead()
        try:
            self._catch()
            self._made.mkdir()
            _put(self._made / "set_event_pid", " ".join(os.listdir("/proc/self/task")))
            _put(self._made / "events" / _NEW / "enable", "1")
            self._own.mkdir()
            self._write("tracing_on", "0")
            self._write("trace_clock", "mono")
            self._write("buffer_size_kb", str(_BUFFER))
            # In words of 32 bits, the highest first.
            mask = sum(1 << core for core in self._cores)
            words = [f"{mask >> 32 * k & 0xFFFFFFFF:x}" for k in range(max(self._cores) // 32 + 1)]
            self._write("tracing_cpumask", ",".join(words[::-1]))
            enabled = sum(self._enable(event) for event in (*_EVENTS, _VECTORS))
            if not enabled:
                raise OSError("the kernel has none of the events of interrupts and threads")
            self._begun = time.monotonic()
            self._write("tracing_on", "1")
        except BaseException as error:
            self._end()
            if not isinstance(error, OSError):
                raise
            raise TwinrunError(
                f"tracing cannot begin: {error.strerror or error}", where=self._own, fix="leave out --trace"
            ) from None
        return self

    def _remove_of_dead(self) -> None:
        """Removes instances of processes that were killed before they could."""
        space = self._own.name.rsplit("-", 1)[1]
        with contextlib.suppress(OSError):
            for folder in list(self._own.parent.iterdir()):
                found = _OF_PROCESS.fullmatch(folder.name)
                if found is None or found[2] != space:
                    continue
                if int(found[1]) == os.getpid() or not os.path.exists(f"/proc/{found[1]}"):
                    _remove(folder)

    def _catch(self) -> None:
        """Signals that end this process remove the instances first, at any moment.

        Python's handlers are those of the main thread. A signal that the program ignores stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                self._before[number] = before
                signal.signal(number, self._ended)

    def _ended(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        self._end()
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _end(self) -> None:
        """Removes the instances, and puts the signals' handlers back."""
        self._remove()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _enable(self, event: str) -> bool:
        with contextlib.suppress(OSError):
            self._write(f"events/{event}/enable", "1")
            return True
        return False

    def stop(self) -> None:
        """No further events are written."""
        self._write("tracing_on", "0")
        self.seconds = time.monotonic() - self._begun

    def lines(self) -> Iterator[str]:
        """The events, once stopped."""
        with open(self._own / "trace", encoding="utf-8", errors="replace") as file:
            yield from file

    def threads(self) -> set[int]:
        """The threads of this process, also those that were made meanwhile and have ended."""
        text = (self._made / "trace").read_text(encoding="utf-8", errors="replace")
        return {
            int(x) for x in (*os.listdir("/proc/self/task"), *re.findall(r"task_newtask: pid=(\d+)", text))
        }

    def overrun(self) -> dict[int, int]:
        """Events of each core that had no place in the buffer."""
        found = {}
        for core in self._cores:
            with contextlib.suppress(OSError):
                text = (self._own / "per_cpu" / f"cpu{core}" / "stats").read_text()
                if told := re.search(r"^overrun: (\d+)", text, re.M):
                    found[core] = int(told[1])
        return found

    def _remove(self) -> None:
        for folder in (self._own, self._made):
            _remove(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end()


def document(found: Took, core: int, seconds: float) -> dict[str, Any]:
    """What took time from a core, for JSON: shares of it and counts a second, the largest of each kind."""
    kinds: dict[str, Any] = {}
    for kind in KINDS:
        largest = sorted(found.seconds[kind].items(), key=lambda item: -item[1])[:_MOST]
        kinds[kind] = {
            name: {"share": took_ / seconds, "per_s": found.count[kind][name] / seconds}
            for name, took_ in largest
        }
    return {"core": core, "seconds": seconds, "lost": found.lost, **kinds}


def sentence(core: Mapping[str, Any]) -> str:
    """What took time from a core, the largest first."""
    every = sorted(
        ((own["share"], name, kind) for kind in KINDS for name, own in core[kind].items()), reverse=True
    )
    told = ", ".join(f"{name} ({kind}) {percent(share)[:-1]}" for share, name, kind in every[:_SHOWN])
    lost = f" {core['lost']} events were lost, so that this is too little." if core["lost"] else ""
    return f"By the kernel's trace, right after, these took time from core {core['core']}, in %: {told or 'nothing'}.{lost}"


def measured(cores: Collection[int], loops: Callable[[], object]) -> list[dict[str, Any]]:
    """Runs the loops under a trace: what took time from each core meanwhile, in documents.

    Raises TwinrunError where the kernel does not let it.
    """
    with Trace(cores, place()) as trace:
        loops()
        trace.stop()
        found = took(trace.lines(), trace.threads())
        overrun = trace.overrun()
    made = []
    for core in sorted(cores):
        own = found.get(core, Took())
        own.lost += overrun.get(core, 0)
        # Of the whole traced time: loops begin later than the trace, and end before it.
        made.append(document(own, core, trace.seconds))
    return made
