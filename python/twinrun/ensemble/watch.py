"""Runs one attempt of a task and records what it took: a separate program beside the task, on the task's
node.

usage: python -I -S watch.py FOLDER      FOLDER/spec.json says what to run

It imports nothing but the standard library, so that it starts within some 20 ms and needs no installation on
a node. Being its own process makes three promises possible:

* What is counted is the task alone. All processes that the task leaves behind become children of this one
  (PR_SET_CHILD_SUBREAPER), so that wait4 tells the CPU time, faults and context switches of the whole tree,
  and /proc/self/io its I/O, exactly; only descendants whose parent ignored SIGCHLD are missing from these.
* A killed runner loses nothing: the attempt goes on, and the next runner finds its record in the folder.
* Nothing runs twice: `claim` is made with O_EXCL, by this program or by a runner that gives the attempt up.

    lock        held (flock) as long as this process lives      claim         who runs the attempt
    stop        the runner asks for the end                     record.json   the measurements: written once,
                whole

Run-queue delay: the kernel counts it for each thread, and never adds it up. Where permitted (root,
CONFIG_TASKSTATS), it sends the figures of every thread that ends: exact. Elsewhere threads are read every
`period` seconds: exact for what lives when it is read and for the task's first process, less the last period
of threads that ended in between; `coverage` is the share of the exact CPU time that the same readings saw.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time

VERSION = 1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OWN_SHARE = 1 / 200  # share of a core that sampling may take: slow readings are made less often
_MOST_OPEN = 400  # files of threads that stay open between readings
_LEFT_BEHIND = 2.0  # seconds that processes have to end after their task
_GATE = struct.Struct("=2d5q")  # what the child used before its program began


def read_text(path: str) -> str | None:
    """A file's text; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def numbers_of_list(text: str) -> list[int]:
    """The numbers of "0-2,5", as the kernel writes lists."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found.extend(range(int(low), int(high or low) + 1))
    return found


def list_of_numbers(numbers: object) -> str:
    """Numbers as "0-2,5"."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):  # type: ignore[call-overload]
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def cores_of_level(level: str, share: list[int], spare: int | None = None) -> list[int]:
    """The cores of a level, among those that the task may have: all | all-but-one | a number | a list as
    0,2-3.

    spare: the core that all-but-one leaves free; by default the first, where interrupts go by default.
    """
    share = sorted(share)
    if level == "all":
        return share
    if level == "all-but-one":
        if len(share) < 2:
            raise ValueError(f"all-but-one of {len(share)} core leaves none")
        free = share[0] if spare is None or spare not in share else spare
        return [c for c in share if c != free]
    if re.fullmatch(r"[0-9]+", level):
        if not 1 <= int(level) <= len(share):
            raise ValueError(f"{level} cores of {len(share)}")
        return share[-int(level) :]
    wanted = numbers_of_list(level.removeprefix("list:"))
    if not set(wanted) <= set(share):
        raise ValueError(f"cores {level} are not all among {list_of_numbers(share)}")
    return sorted(set(wanted))


# ---- what the kernel says of threads that end --------------------------------------------------------------


class ExitListener:
    """Delay and CPU time of every thread of this node that ends: taskstats over netlink (linux/taskstats.h).

    Raises OSError where the kernel does not permit it: it needs CAP_NET_ADMIN.
    """

    # Offsets of struct taskstats; checked against its figures of this process.
    _PID, _PARENT, _DELAY, _CPU, _PEAK = 128, 132, 24, 64, 200

    def __init__(self) -> None:
        self.complete = True
        self._ends: list[
            tuple[int, int, int, int, int]
        ] = []  # pid, parent, delay, CPU time (ns), peak memory (KiB)
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        try:
            self._socket.bind((0, 0))
            self._socket.settimeout(2)
            # SO_RCVBUFFORCE: 8 MiB hold some 10,000 ends.
            self._socket.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
            answer = self._ask(16, 3, self._attribute(2, b"TASKSTATS\0"))
            self._family = struct.unpack("H", self._attributes(answer)[1])[0]
            found = self._parse(self._ask(self._family, 1, self._attribute(1, struct.pack("I", os.getpid()))))
            if [x[:2] for x in found] != [(os.getpid(), os.getppid())]:
                raise OSError(errno.EPROTO, "taskstats is laid out otherwise")
            mask = (read_text("/sys/devices/system/cpu/possible") or "0").strip().encode()
            self._ask(self._family, 1, self._attribute(3, mask + b"\0"))
            self._socket.setblocking(False)
        except (OSError, KeyError, struct.error, IndexError) as e:
            self._socket.close()
            raise OSError(errno.ENOTSUP, str(e)) from None

    @staticmethod
    def _attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)

    @staticmethod
    def _attributes(data: bytes) -> dict[int, bytes]:
        found, at = {}, 0
        while at + 4 <= len(data):
            length, kind = struct.unpack_from("HH", data, at)
            if length < 4:
                break
            found[kind & 0x3FFF] = data[at + 4 : at + length]
            at += (length + 3) & ~3
        return found

    def _ask(self, family: int, command: int, payload: bytes) -> bytes:
        body = struct.pack("BBxx", command, 1) + payload
        self._socket.send(struct.pack("IHHII", 16 + len(body), family, 5, 1, 0) + body)  # REQUEST | ACK
        answer = b""
        while True:
            data = self._socket.recv(1 << 16)
            kind = struct.unpack_from("H", data, 4)[0]
            if kind == 2:  # NLMSG_ERROR, with 0 where there is none
                code = struct.unpack_from("i", data, 16)[0]
                if code:
                    raise OSError(-code, os.strerror(-code))
                return answer
            answer = data[20:]

    def _parse(self, data: bytes) -> list[tuple[int, int, int, int, int]]:
        per_thread = self._attributes(data).get(
            4
        )  # TASKSTATS_TYPE_AGGR_PID; 5, of the whole process, repeats them
        if per_thread is None:
            return []
        stats = self._attributes(per_thread)[3]
        delay, cpu, peak = (
            struct.unpack_from("Q", stats, at)[0] for at in (self._DELAY, self._CPU, self._PEAK)
        )
        return [(*struct.unpack_from("II", stats, self._PID), delay, cpu, peak)]

    def drain(self) -> None:
        """Reads the messages that have arrived."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: some were lost
                self.complete = False
                continue
            at = 0
            while at + 16 <= len(data):
                length = struct.unpack_from("I", data, at)[0]
                if length < 20:
                    break
                try:
                    self._ends.extend(self._parse(data[at + 20 : at + length]))
                except (KeyError, struct.error):
                    self.complete = False
                at += (length + 3) & ~3

    def total(self, root: int, main: int, without: set[int]) -> tuple[int, int, int, int]:
        """(delay, CPU time, threads, peak memory) of the descendants of `root`, in ns, without those of the
        excluded processes; `main` must be among them.
        """
        self.drain()
        self._socket.close()
        members = {root}
        size = 0
        while len(members) != size:  # children may have ended before their parents
            size = len(members)
            members.update(x[0] for x in self._ends if x[1] in members and x[0] not in without)
        own = [x for x in self._ends if x[0] != root and x[0] in members]
        if main not in members:
            self.complete = False
        peak = max((x[4] for x in own), default=0) << 10
        return sum(x[2] for x in own), sum(x[3] for x in own), len(own), peak


def most_memory(reaped: int, before: int, told: int, read: int) -> int | None:
    """Bytes of the largest process of a task; None where no source is known.

    reaped: what wait() reports. It includes the memory of the child before exec, which is `before` or a little
    more. told: what the kernel reports where threads end. read: what was read while it ran. 0: no report.
    """
    return reaped if reaped > before + (2 << 20) else told or read or None


# ---- what is read while the task runs ----------------------------------------------------------------------


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
            # Any thread may have children; with many threads, most are asked only now and then.
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


def pressure() -> dict[str, float] | None:
    """Seconds that tasks of the node waited since it started (pressure stall information); None where not
    available.
    """
    found = {}
    for kind, lines in (("cpu", ("some",)), ("io", ("some", "full")), ("memory", ("some",))):
        text = read_text(f"/proc/pressure/{kind}")
        if text is None:
            return None
        for line in lines:
            total = re.search(rf"^{line} .*total=(\d+)", text, re.M)
            if total:
                found[f"{kind}_{line}"] = int(total[1]) / 1e6
    return found


_IO = {
    "read_bytes": "read_bytes",
    "write_bytes": "write_bytes",
    "rchar": "read_chars",
    "wchar": "write_chars",
    "syscr": "read_calls",
    "syscw": "write_calls",
}


def _io_of(path: str) -> tuple[dict[str, int], int]:
    """Reads an io file of /proc in one call; also returns its length."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(file, 4096)
    finally:
        os.close(file)
    fields = dict(line.split(": ") for line in data.decode().splitlines())
    return {name: int(fields[key]) for key, name in _IO.items()}, len(data)


def reaped_io() -> dict[str, int] | None:
    """I/O of all processes that this process, or its children, have waited for.

    A process's figures hold its threads' and those of its children that ended; this one has a single thread.
    """
    try:
        own, length = _io_of(f"/proc/self/task/{os.getpid()}/io")
        both, _ = _io_of("/proc/self/io")
    except (OSError, ValueError, KeyError):
        return None
    found = {name: both[name] - own[name] for name in both}
    found["read_chars"] -= length  # of reading the first
    found["read_calls"] -= 1
    return found


# ---- the conditions ----------------------------------------------------------------------------------------


def keeps_variable(name: str, rules: dict[str, list[str]]) -> bool:
    """Filters variables like src/core/history/variables.hpp.

    The spec file has the rules: this program imports no package.
    """
    words = "|".join(map(re.escape, rules["secret_words"] + rules["secret_variable_words"]))
    listed = name in rules["names"] or name.startswith(tuple(rules["prefixes"]))
    bookkeeping = name.startswith(tuple(rules["bookkeeping"]))
    secret = re.search(rf"(?<![A-Z])({words})(?![A-Z])", _upper(name))
    return listed and not bookkeeping and secret is None


def _upper(name: str) -> str:
    """Upper case of ASCII letters only, as in the core."""
    return re.sub("[a-z]+", lambda m: m[0].upper(), name)


def environment_facts(
    environment: dict[str, str], command: list[str], folder: str, rules: dict[str, list[str]]
) -> dict[str, dict[str, str]]:
    """Facts by group and name, all text, as a history keeps them: what is the same for tasks of one setting
    on one node. rules: which variables of the environment.
    """
    system = os.uname()
    facts: dict[str, dict[str, str]] = {
        "host": {
            "name": node_name(),
            "system": f"{system.sysname} {system.release}",
            "version": system.version,
        },
        "cpu": {"architecture": system.machine, "cores": str(os.cpu_count() or 0)},
        "environment": {
            k: v.replace(folder, "{folder}")  # tasks of one setting have the same facts
            for k, v in sorted(environment.items())
            if keeps_variable(k, rules) and k not in rules["of_one_job"]
        },
    }
    for line in (read_text("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            facts["host"]["distribution"] = line.partition("=")[2].strip('"')
    first = (read_text("/proc/cpuinfo") or "").split("\n\n")[0]
    for key, name in (("model name", "model"), ("microcode", "microcode"), ("flags", "flags")):
        found = re.search(rf"^{key}\s*:\s*(.*)$", first, re.M)
        if found:
            facts["cpu"][name] = (
                hashlib.sha256(found[1].encode()).hexdigest()[:16] if name == "flags" else found[1].strip()
            )
    for name, path in (
        ("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        ("boost", "/sys/devices/system/cpu/cpufreq/boost"),
        ("no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
        ("smt", "/sys/devices/system/cpu/smt/control"),
        ("isolated", "/sys/devices/system/cpu/isolated"),
        ("online", "/sys/devices/system/cpu/online"),
        ("huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        ("memory_overcommit", "/proc/sys/vm/overcommit_memory"),
        ("address_randomisation", "/proc/sys/kernel/randomize_va_space"),
    ):
        text = read_text(path)
        if text and text.strip():
            facts["cpu" if path.startswith("/sys/devices") else "host"][name] = text.strip()
    total = re.search(r"^MemTotal:\s*(.*)$", read_text("/proc/meminfo") or "", re.M)
    if total:
        facts["host"]["memory"] = total[1]
    program = next((p for p in candidates(command[0], environment) if os.access(p, os.X_OK)), None)
    if program is not None and os.path.isfile(program):
        facts["program"] = {"path": os.path.realpath(program)}
        try:
            if os.path.getsize(program) <= 64 << 20:
                with open(program, "rb") as file:
                    facts["program"]["sha256"] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            pass
    return facts


def candidates(program: str, environment: dict[str, str]) -> list[str]:
    """Folders in which a program may lie."""
    if "/" in program:
        return [program]
    return [os.path.join(f, program) for f in environment.get("PATH", os.defpath).split(":") if f]


def node_name() -> str:
    """The name of this node in the batch system, or its own name."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


# ---- one attempt -------------------------------------------------------------------------------------------


class Attempt:
    """Runs the task that a spec describes."""

    def __init__(self, folder: str, spec: dict) -> None:
        self.folder, self.spec = folder, spec
        self._library = ctypes.CDLL(None, use_errno=True)
        self._asked_to_stop = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop)
        self._library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._sampler = Sampler()
        self._listener: ExitListener | None = None
        self._main = 0
        self._period = spec["period"]
        self._preparing = False
        self._verified: dict[str, str | None] = {}
        self._checks: dict[int, str] = {}  # pid of a command that looks at the task -> factor
        self._checks_io = dict.fromkeys(_IO.values(), 0)

    def _stop(self, *_: object) -> None:
        self._asked_to_stop = True
        if self._preparing:
            raise InterruptedError("stopped")

    def _by_the_runner(self) -> bool:
        return os.path.exists(os.path.join(self.folder, "stop"))

    # -- starting

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        for name, value in self.spec["environment"].items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment

    def _cores(self) -> list[int]:
        share = self.spec["cores"] or sorted(os.sched_getaffinity(0))
        if self.spec["cores_level"] is not None:
            return cores_of_level(self.spec["cores_level"], share, self.spec["spare"])
        return share

    def _child(self, cores: list[int], environment: dict[str, str], said: int, gate: int) -> None:
        """Runs in the child: prepares everything, waits at the gate, becomes the program."""
        parent = os.getppid()
        os.setsid()
        self._library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            path = os.path.join(self.folder, name)
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644), stream)
        os.sched_setaffinity(0, cores)
        os.chdir(self.spec["directory"])
        programs = [os.fsencode(p) for p in candidates(self.spec["command"][0], environment)]
        words = [os.fsencode(w) for w in self.spec["command"]]
        variables = {os.fsencode(k): os.fsencode(v) for k, v in environment.items()}
        used = resource.getrusage(resource.RUSAGE_SELF)
        os.write(
            said,
            _GATE.pack(
                used.ru_utime,
                used.ru_stime,
                used.ru_minflt,
                used.ru_majflt,
                used.ru_nvcsw,
                used.ru_nivcsw,
                used.ru_maxrss,
            ),
        )
        if os.read(gate, 1) != b"g":
            os._exit(127)
        worst = errno.ENOENT
        for program in programs:
            try:
                os.execve(program, words, variables)
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.ENOTDIR):
                    worst = e.errno or worst
        os.write(said, struct.pack("i", worst))
        os._exit(127)

    def _spawn(self, cores: list[int], environment: dict[str, str]) -> tuple[int, tuple, int, int]:
        said, say = os.pipe2(os.O_CLOEXEC)
        gate, opens = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                os.close(said)
                os.close(opens)
                self._child(cores, environment, say, gate)
            except BaseException as e:
                try:
                    os.write(2, f"twinrun: {e}\n".encode(errors="replace"))
                finally:
                    os._exit(127)
        os.close(say)
        os.close(gate)
        data = os.read(said, _GATE.size)
        used = _GATE.unpack(data) if len(data) == _GATE.size else (0.0, 0.0, 0, 0, 0, 0, 0)
        return pid, used, said, opens

    # -- running

    def _kill(self, number: int) -> None:
        """Sends a signal to the whole tree, whatever sessions it made."""
        for pid in self._sampler.descendants():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _reap(self, usage: list[resource.struct_rusage]) -> int | None:
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
            if ended.si_pid in self._checks:
                before = reaped_io()
                code = os.wait4(ended.si_pid, 0)[1]
                after = reaped_io()
                if before is not None and after is not None:
                    for name in after:
                        self._checks_io[name] += after[name] - before[name]
                self._checked(ended.si_pid, code)
                continue
            self._sampler.last(ended.si_pid)
            _, code, used = os.wait4(ended.si_pid, 0)
            usage.append(used)
            if ended.si_pid == self._main:
                status = code

    def _variables_seen(self) -> dict[str, str | None]:
        """Factors that are environment variables, as the running task has them."""
        found: dict[str, str | None] = {}
        text = read_text(f"/proc/{self._main}/environ")
        variables = dict(x.split("=", 1) for x in (text or "").split("\0") if "=" in x)
        for name, how in self.spec["verify"].items():
            if how["kind"] == "environment":  # an empty text: it has ended
                found[name] = variables.get(how["variable"], "(unset)") if text else None
        return found

    def _check(self, name: str, how: dict) -> None:
        """Starts a command that inspects the running task."""
        words = [w.replace("{pid}", str(self._main)) for w in how["command"]]
        with open(os.path.join(self.folder, f"check-{name}"), "wb") as said:
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
        self._checks[child.pid] = name
        self._sampler.not_the_task.add(child.pid)
        child.returncode = 0  # waited for by _reap

    def _checked(self, pid: int, code: int) -> None:
        name = self._checks.pop(pid)
        text = read_text(os.path.join(self.folder, f"check-{name}"))
        if code == 0 and text is not None:
            self._verified[name] = text.strip()

    def run(self) -> dict:
        """Runs the task; returns what was measured."""
        spec = self.spec
        record: dict = {"version": VERSION, "node": node_name(), "submit": spec["submit"]}
        environment = self._environment()
        record["facts"] = environment_facts(environment, spec["command"], self.folder, spec["variables"])
        try:
            cores = self._cores()
            if spec["own_cores"]:
                os.sched_setaffinity(0, spec["own_cores"])
        except (ValueError, OSError) as e:
            return {**record, **self._nothing(f"cores: {e}")}
        record["cores"] = cores
        for words in spec["prepare"]:
            try:
                self._preparing = True
                with open(os.path.join(self.folder, "prepare"), "ab") as log:
                    done = subprocess.run(
                        words, cwd=spec["directory"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        timeout=spec["time_limit"],
                    )  # fmt: skip
                why = None if done.returncode == 0 else f"prepare ended with status {done.returncode}"
            except InterruptedError:
                nothing = self._nothing("stopped while it was prepared")
                return {**record, **nothing, "status": "killed", "interrupted": self._by_the_runner()}
            except (OSError, subprocess.SubprocessError) as e:
                why = f"prepare: {e}"
            finally:
                self._preparing = False
            if why:
                return {**record, **self._nothing(why)}
        if spec["listen"]:
            try:
                self._listener = ExitListener()
            except OSError:
                pass
        pressure_before = pressure()
        self._main, used, said, opens = self._spawn(cores, environment)
        delay_before = cpu_before = 0
        try:
            cpu_before, delay_before = (
                int(x) for x in (read_text(f"/proc/{self._main}/schedstat") or "").split()[:2]
            )
        except ValueError:
            pass
        io_before = reaped_io()
        try:
            gate_io, _ = _io_of(f"/proc/{self._main}/io")
        except (OSError, ValueError, KeyError):
            gate_io = dict.fromkeys(_IO.values(), 0)
        gate_io["read_chars"] += 1  # the byte that it reads at the gate
        gate_io["read_calls"] += 1
        with open(os.path.join(self.folder, "started.json"), "w", encoding="utf-8") as file:
            json.dump(
                {"pid": self._main, "start": time.time()}, file
            )  # the facts that remain should this process be killed
        own_before = time.process_time()
        record["start"] = time.time()
        begin = time.monotonic()
        os.write(opens, b"g")
        problem = os.read(said, 4)  # until its program has begun
        os.close(said)
        os.close(opens)
        usage: list[resource.struct_rusage] = []
        verified = self._verified
        if not problem:
            verified |= self._variables_seen()
        end, status, ending = self._wait(begin, usage, cores)
        record["end"] = record["start"] + (end - begin)
        left = self._clear(usage)
        own = time.process_time() - own_before
        self._sampler.finish()
        exact = None
        if self._listener is not None:
            exact = self._listener.total(os.getpid(), self._main, self._sampler.not_the_task)
            if not self._listener.complete:
                exact = None
        user = sum(u.ru_utime for u in usage) - used[0]
        system = sum(u.ru_stime for u in usage) - used[1]
        sampled_cpu = max(self._sampler.cpu - cpu_before, 0) / 1e9
        delay = (exact[0] if exact else self._sampler.delay) - delay_before
        before = max(used[6], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10
        reaped = max((u.ru_maxrss for u in usage), default=0) << 10
        memory = most_memory(reaped, before, exact[3] if exact else 0, self._sampler.most_memory)
        io = None
        after = reaped_io()
        if io_before is not None and after is not None:
            io = {k: max(after[k] - io_before[k] - gate_io[k] - self._checks_io[k], 0) for k in after}
        pressure_after = pressure()
        waited = None
        if pressure_before is not None and pressure_after is not None:
            waited = {k: pressure_after[k] - pressure_before[k] for k in pressure_after}
        for name, how in spec["verify"].items():
            if how["kind"] == "cores":
                verified[name] = list_of_numbers(self._sampler.cores) or None
            elif how["kind"] == "threads":
                verified[name] = str(self._sampler.most_threads) if self._sampler.most_threads else None
        exit_status = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
        record |= {
            "status": self._said(status, ending, problem),
            "exit": None if problem else exit_status,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "wall": end - begin,
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
            "max_memory_bytes": memory,
            "io": io,
            "pressure": waited,
            "frequency_hz": [
                sum(v) / len(v) for v in (self._sampler.frequencies[c] for c in sorted(self._sampler.frequencies))
            ] or None,
            "temperature_c": max(self._sampler.temperatures, default=None),
            "verified": verified,
            "sampling": {
                "run_queue_delay": "exact" if exact else "sampled",
                "sampled_run_queue_delay": max(self._sampler.delay - delay_before, 0) / 1e9,
                "coverage": min(sampled_cpu / (user + system), 1.0) if user + system > 0 else None,
                "samples": self._sampler.samples,
                "period": self._period,
                "threads": exact[2] if exact else self._sampler.threads_seen,
                "own_seconds": own,
                "left_behind": left,
            },
            "interrupted": ending == "interrupted",
        }  # fmt: skip
        if problem:
            code = struct.unpack("i", problem)[0] if len(problem) == 4 else 0
            record["reason"] = f"{spec['command'][0]} cannot be started: {os.strerror(code)}"
        return record

    def _nothing(self, why: str) -> dict:
        """The record of an attempt that could not start."""
        now = time.time()
        return {"status": "failed", "exit": None, "signal": None, "start": now, "end": now, "wall": None, "reason": why,
                "verified": {}, "interrupted": False}  # fmt: skip

    def _said(self, status: int | None, ending: str | None, problem: bytes) -> str:
        if ending == "timeout":
            return "timeout"
        if ending is not None or status is None or os.WIFSIGNALED(status):
            return "killed"
        return "ok" if not problem and os.WEXITSTATUS(status) in self.spec["success"] else "failed"

    def _wait(
        self, begin: float, usage: list[resource.struct_rusage], cores: list[int]
    ) -> tuple[float, int | None, str | None]:
        """Waits until the first process of the task ends: when, its status, and the reason, if this program
        ended it.
        """
        spec, sampler = self.spec, self._sampler
        limit = begin + spec["time_limit"] if spec["time_limit"] else float("inf")
        checks = [
            (begin + how["after"], name, how)
            for name, how in spec["verify"].items()
            if how["kind"] == "check"
        ]
        checks.sort(key=lambda x: x[0])
        step = min(0.005, self._period)  # short tasks are read as well
        due = begin
        look_at = begin + 0.2
        ending: str | None = None
        force_at = float("inf")
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= due:
                before = time.thread_time()
                sampler.sample()
                if self._listener is not None:
                    self._listener.drain()
                if now >= look_at:
                    sampler.look_at_processor(cores)
                    look_at = now + 5
                cost = time.thread_time() - before
                self._period = max(spec["period"], cost / _OWN_SHARE)
                due = now + max(step, cost / _OWN_SHARE)
                step = min(step * 2, self._period)
            while checks and now >= checks[0][0]:
                self._check(*checks.pop(0)[1:])
            if self._asked_to_stop and ending is None:
                ending = "interrupted" if self._by_the_runner() else "killed from outside"
                force_at = now + spec["grace"]
                self._kill(signal.SIGTERM)
            elif now >= limit and ending is None:
                ending, force_at = "timeout", now + spec["grace"]
                self._kill(signal.SIGTERM)
            if now >= force_at:
                self._kill(signal.SIGKILL)
                force_at = now + 0.5
            until = min(due, force_at, limit if ending is None else float("inf"), *(x[0] for x in checks[:1]))
            poll.poll(max((until - now) * 1e3, 0.0))
            now = time.monotonic()
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass
            status = self._reap(usage)
            if status is not None:
                return now, status, ending

    def _clear(self, usage: list[resource.struct_rusage]) -> int:
        """Ends processes that outlive the task; returns how many."""
        deadline = time.monotonic() + _LEFT_BEHIND
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        killed: set[int] = set()
        while True:
            self._reap(usage)
            left = self._sampler.descendants()
            if not left:
                return len(killed)
            if time.monotonic() >= deadline:
                killed.update(set(left) - self._sampler.not_the_task)
                self._kill(signal.SIGKILL)
            self._sampler.sample()
            poll.poll(20)
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass


def write_whole(path: str, document: dict) -> None:
    """Writes a file whole or not at all."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(document, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def main(arguments: list[str]) -> int:
    """Runs the program. Status 0 where a record was written, or another process has the attempt."""
    folder = os.path.abspath(arguments[0])
    with open(os.path.join(folder, "spec.json"), encoding="utf-8", errors="surrogateescape") as file:
        spec = json.load(file)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 3
    try:
        claim = os.open(
            os.path.join(folder, "claim"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )
    except FileExistsError:
        return 0
    os.write(claim, json.dumps({"node": node_name(), "host": platform.node(), "pid": os.getpid()}).encode())
    os.fsync(claim)
    os.close(claim)
    write_whole(os.path.join(folder, "record.json"), Attempt(folder, spec).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
