"""Starts haccio under the mpiexec of an MPI library, and reads its results."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...ensemble.run.ranks import OVERSUBSCRIBED
from ...errors import MissingFile, TwinrunError

__all__ = ["Result", "Running", "Stack", "data_files", "default_program"]

PROGRAM = "TWINRUN_HACCIO"  # environment: where haccio is
_STOPS_WITHIN = 20.0  # seconds that mpiexec has to end after SIGTERM


def default_program() -> str:
    """The path of haccio: TWINRUN_HACCIO, or from the PATH."""
    program = os.environ.get(PROGRAM) or shutil.which("haccio")
    if program is None:
        raise MissingFile(
            "there is no haccio on the PATH",
            fix=f"give --program, or set {PROGRAM}; it is built where CMake finds an MPI",
        )
    return program


@contextlib.contextmanager
def data_files(folder: Path) -> Iterator[str]:
    """A prefix for the files of a run, in a temporary folder; files of a failed run are removed."""
    try:
        made = Path(tempfile.mkdtemp(dir=folder, prefix="haccio-study-"))
    except OSError as e:
        raise TwinrunError(f"no folder for the data can be made: {e.strerror}", where=folder) from None
    try:
        yield str(made / "file-")
    finally:
        for left in made.iterdir():
            left.unlink(missing_ok=True)
        made.rmdir()


@dataclass(frozen=True)
class Result:
    """Lines of haccio's --json, by kind."""

    lines: tuple[dict, ...]

    def all(self, kind: str) -> list[dict]:
        """All lines of one kind."""
        return [x for x in self.lines if x["kind"] == kind]

    @property
    def run(self) -> dict:
        """The line with the place of the run."""
        return self.all("run")[0]


class Running:
    """A running job. It and all its processes end with the `with` block."""

    def __init__(self, stack: Stack, ranks: int, arguments: Sequence[str], folder: Path) -> None:
        self._json = folder / "results.jsonl"
        self._errors = folder / "errors"
        words = list(arguments)
        at = 1 if words[:1] == ["split"] else 0
        words[at:at] = ["--quiet", "--json", str(self._json)]
        self.command = [*stack.mpiexec, "-n", str(ranks), stack.program, *words]
        environment = dict(os.environ)
        if ranks > (os.cpu_count() or 1):
            environment = {**OVERSUBSCRIBED, **environment}
        try:
            with open(self._errors, "wb") as errors:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as e:
            raise TwinrunError(f"cannot be started: {e.strerror}", where=self.command[0]) from None

    def lines(self) -> list[dict]:
        """The output so far."""
        try:
            text = self._json.read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> Result:
        """Waits for the end, and returns the results. Raises TwinrunError where it failed or takes longer."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {seconds:g} s") from None
        if status != 0:
            raise self._failure(f"ended with status {status}")
        return Result(tuple(self.lines()))

    def wait_for(self, kind: str, seconds: float) -> None:
        """Waits until it has written a line of this kind."""
        deadline = time.monotonic() + seconds
        while not any(x["kind"] == kind for x in self.lines()):
            if self.ended:
                raise self._failure("ended early")
            if time.monotonic() > deadline:
                raise self._failure(f"did not begin within {seconds:g} s")
            time.sleep(0.02)

    def _failure(self, what: str) -> TwinrunError:
        said = self._errors.read_text(errors="replace").strip().splitlines()
        own = [x for x in said if x.startswith("haccio: ")] or said
        why = f": {own[0]}" if own else ""
        return TwinrunError(f"{shlex.join(self.command)} {what}{why}")

    def stop(self) -> None:
        """Ends it, if it runs."""
        if self.ended:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)  # a session of its own, without other processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOPS_WITHIN)
                return


@dataclass(frozen=True)
class Stack:
    """An MPI library: its mpiexec, with options, and the haccio that was built with it."""

    mpiexec: tuple[str, ...]
    program: str

    @classmethod
    def of(cls, program: str, mpiexec: str | None = None) -> Stack:
        """mpiexec: a command line; by default the one of the MPI that the program was built with."""
        path = shutil.which(program)
        if path is None:
            raise MissingFile("is not a program", where=program)
        if mpiexec is None:
            try:
                mpiexec = subprocess.run(
                    [path, "--print-mpiexec"], capture_output=True, text=True, timeout=60, check=True
                ).stdout.strip()
            except (OSError, subprocess.SubprocessError):
                raise TwinrunError(
                    "does not say what starts it", where=program, fix="give --mpiexec"
                ) from None
            words: tuple[str, ...] = (mpiexec,)
        else:
            words = tuple(shlex.split(mpiexec))
        if not words or shutil.which(words[0]) is None:
            raise MissingFile("is not a program", where=mpiexec, fix="give --mpiexec")
        return cls(words, os.path.abspath(path))

    @contextlib.contextmanager
    def start(self, ranks: int, arguments: Sequence[str]) -> Iterator[Running]:
        """Starts a job, which ends with the block at the latest."""
        with tempfile.TemporaryDirectory(prefix="twinrun-study-") as folder:
            job = Running(self, ranks, arguments, Path(folder))
            try:
                yield job
            finally:
                job.stop()

    def run(self, ranks: int, arguments: Sequence[str], seconds: float) -> Result:
        """Runs a job to its end."""
        with self.start(ranks, arguments) as job:
            return job.wait(seconds)
