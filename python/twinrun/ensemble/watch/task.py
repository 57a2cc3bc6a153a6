"""The first process of a task: forked, prepared, and held at a gate until the clocks run."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct

from .conditions import candidates

__all__ = ["Task", "adopt_orphans"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_USED = struct.Struct("=2d5q")  # what the child used before its program began
_NOTHING = (0.0, 0.0, 0, 0, 0, 0, 0)

_library = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Processes that lose their parent below this one become its children."""
    _library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Task:
    """pid: of the process. used: what it has used as it stands at the gate, in the order of `_USED`."""

    def __init__(self, spec: dict, folder: str, cores: list[int], environment: dict[str, str]) -> None:
        self._spec, self._folder = spec, folder
        self._said, say = os.pipe2(os.O_CLOEXEC)
        gate, self._opens = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._said)
                os.close(self._opens)
                self._become(cores, environment, say, gate)
            except BaseException as e:
                try:
                    os.write(2, f"twinrun: {e}\n".encode(errors="replace"))
                finally:
                    os._exit(127)
        os.close(say)
        os.close(gate)
        data = os.read(self._said, _USED.size)
        self.used = _USED.unpack(data) if len(data) == _USED.size else _NOTHING

    def begin(self) -> str | None:
        """Opens the gate, and waits until the program has begun; returns why it could not."""
        os.write(self._opens, b"g")
        problem = os.read(self._said, 4)
        os.close(self._said)
        os.close(self._opens)
        if not problem:
            return None
        return os.strerror(struct.unpack("i", problem)[0] if len(problem) == 4 else 0)

    def _become(self, cores: list[int], environment: dict[str, str], said: int, gate: int) -> None:
        """Runs in the child: prepares everything, waits at the gate, becomes the program."""
        parent = os.getppid()
        os.setsid()
        _library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            path = os.path.join(self._folder, name)
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644), stream)
        os.sched_setaffinity(0, cores)
        os.chdir(self._spec["directory"])
        programs = [os.fsencode(p) for p in candidates(self._spec["command"][0], environment)]
        words = [os.fsencode(w) for w in self._spec["command"]]
        variables = {os.fsencode(k): os.fsencode(v) for k, v in environment.items()}
        used = resource.getrusage(resource.RUSAGE_SELF)
        os.write(
            said,
            _USED.pack(
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
