"""Starts the process that reads a file through a package that may crash or hang, and sends requests to it.

See `worker` for the process. It has a limit of time, and ends when the process that started it ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

from ..errors import DamagedFile, FormatError, MissingPackage
from . import worker
from .blocks import BandCache
from .files import reading

__all__ = ["PATIENCE", "Worker", "check_installed", "seconds_of"]

PATIENCE = 120.0  # default seconds without progress; a read of 16 MiB takes milliseconds
_CLOSING = 10.0  # seconds: then a process is ended that does not close its file
_CACHE_BYTES = 256 << 20
_LONGEST_ANSWER = 1 << 30


def seconds_of(patience: object, path: str) -> float:
    """The value of the option `patience`. Raises FormatError unless it is a number of seconds."""
    try:
        seconds = float(patience)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds <= 1e6:
        raise FormatError(f"patience must be a number of seconds, not {patience!r:.40}", where=path)
    return seconds


def check_installed(package: str, extra: str, path: str) -> None:
    """Raises MissingPackage if a package is not installed. It is not imported."""
    try:
        found = importlib.util.find_spec(package)
    except ValueError:
        found = None
    if found is None:
        raise MissingPackage.of(package, extra, where=path)


# Processes without a file, by the process that started them (a fork must not share them), by module
# and by the places where they look for packages.
_waiting: dict[tuple[int, str, str], list[subprocess.Popen[bytes]]] = {}
_MOST_WAITING = 2
_lock = threading.Lock()


def _packages() -> str:
    return os.pathsep.join(place for place in sys.path if place)


def _idle(module: str) -> subprocess.Popen[bytes] | None:
    """A process that waits for a file to read by a module; None if there is none."""
    with _lock:
        waiting = _waiting.get((os.getpid(), module, _packages()), [])
        while waiting:
            process = waiting.pop()
            if process.poll() is None:
                return process
            _kill(process)
    return None


def _keep(module: str, process: subprocess.Popen[bytes]) -> bool:
    """Keeps a process for the next file; False if enough of them wait already."""
    with _lock:
        waiting = _waiting.setdefault((os.getpid(), module, _packages()), [])
        if len(waiting) >= _MOST_WAITING:
            return False
        waiting.append(process)
        return True


@atexit.register
def _end_waiting() -> None:
    for (starter, *_), waiting in _waiting.items():
        if starter == os.getpid():
            for process in waiting:
                _kill(process)
            waiting.clear()


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Worker:
    """The process that reads the file `path` by the module in the file `module`. Thread-safe by its cache's
    lock.

    package: the name of the package that it reads with, for messages. patience: seconds without progress (a
    variable listed, a byte read) after which reading fails. again: whether a process that closed its file may
    read the next one, so that the package is imported once for many files.
    """

    def __init__(
        self, path: str, module: str, package: str, patience: float = PATIENCE, again: bool = False
    ) -> None:
        self.path, self.package, self.patience = path, package, patience
        self.cache = BandCache(_CACHE_BYTES)
        self.problem: FormatError | None = None
        self._module, self._again = module, again
        self._process = (_idle(module) if again else None) or self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, worker.__file__, self._module, self.path]
        environment = {**os.environ, "PYTHONPATH": _packages()}
        with reading(self.path, self.package):
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )

    def open(self, **how: object) -> dict[str, Any]:
        """Opens the file; returns what the module says of it. Raises as `ask`.

        how: what the module needs besides its path. Then it gets a mapping with "path" among them.
        """
        facts, _ = self.ask({"open": {"path": self.path, **how} if how else self.path})
        return facts

    def close(self) -> None:
        """Ends the process, or keeps it for the next file. Later requests raise FormatError."""
        with self.cache.lock:
            self.cache.clear()
            if self.problem is not None:
                return
            closed = FormatError("the file was closed", where=self.path)
            if self._again and self._let_go() and _keep(self._module, self._process):
                self.problem = closed
            elif self.problem is None:
                self._end(closed)

    def _let_go(self) -> bool:
        """Closes the file in the process; False if that fails, after which the process is ended."""
        self.patience = min(self.patience, _CLOSING)
        try:
            self.ask({"close": True})
        except FormatError as error:
            if self.problem is None:
                self._end(error)
            return False
        return True

    def _end(self, problem: FormatError) -> FormatError:
        self.problem = problem
        _kill(self._process)
        return problem

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(self.patience)
        except subprocess.TimeoutExpired:  # it closed its output, but hangs before its exit
            return "its process does not end"
        return f"signal {-code}" if code < 0 else f"status {code}"

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """(answer, the bytes after it).

        Raises DamagedFile if the package fails, crashes, or makes no progress.
        """
        with self.cache.lock:
            if self.problem is not None:
                raise self.problem
            assert self._process.stdin is not None
            buffer = bytearray()
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                facts = None
                while facts is None or "progress" in facts:
                    while b"\n" not in buffer:
                        self._more(buffer)
                    line, _, rest = bytes(buffer).partition(b"\n")
                    facts, buffer = json.loads(line), bytearray(rest)
                data = buffer
                while len(data) < facts["bytes"]:
                    self._more(data)
            except (OSError, EOFError) as error:
                message = f"the {self.package} package crashed on it ({self._how_it_ended()})"
                raise self._end(DamagedFile(message, where=self.path)) from error
            except BaseException:  # half an answer is still to come
                if self.problem is None:
                    self._end(FormatError("reading was interrupted", where=self.path))
                raise
            if "error" in facts:
                raise DamagedFile(facts["error"], where=self.path)
            return facts, bytes(data)

    def _more(self, buffer: bytearray) -> None:
        """Appends the next bytes of the process.

        Raises DamagedFile after the time limit, EOFError if it ended.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + self.patience
        poll = select.poll()  # select() is limited to descriptors below 1024
        poll.register(pipe, select.POLLIN | select.POLLHUP)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            message = (
                f"no progress of the {self.package} package in {self.patience:g} s: "
                "is the file cut short, or still being written?"
            )
            fix = "if the storage is slow, give more time by the option patience=SECONDS"
            raise self._end(DamagedFile(message, where=self.path, fix=fix))
        piece = os.read(pipe, 1 << 20)
        if not piece:
            raise EOFError
        buffer += piece
        if len(buffer) > _LONGEST_ANSWER:
            raise self._end(DamagedFile(f"an answer of more than {_LONGEST_ANSWER} bytes", where=self.path))
