"""Starts haccio under the mpiexec of an MPI library, and reads its results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...ensemble.run.engines import EngineBase, Running
from ...ensemble.run.local import LocalEngine
from ...ensemble.run.ranks import sharing
from ...ensemble.run.work import watch_spec
from ...ensemble.study.document import Engine, Sampling
from ...ensemble.study.study import Study
from ...errors import MissingFile, TwinrunError

__all__ = [
    "OTHER",
    "RESULTS",
    "Job",
    "Result",
    "Stack",
    "default_program",
    "new_data_folder",
    "remove_data",
    "settings",
]

PROGRAM = "TWINRUN_HACCIO"  # environment: where haccio is
RESULTS = "results.jsonl"  # in the folder of an attempt
OTHER = "other.jsonl"  # of the second job
_SECOND = "haccio: the second job"
_BESIDE = Path(__file__).with_name("beside.py")
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


def new_data_folder(folder: Path) -> Path:
    """A new name for the folder of a run's files."""
    while True:
        made = Path(os.path.abspath(folder)) / f"haccio-study-{secrets.token_hex(8)}"
        if not os.path.lexists(made):
            return made


def remove_data(folder: Path, made: Path) -> None:
    """Removes the folder of a run's files, only if its name is one that `new_data_folder` makes."""
    ours = re.fullmatch(r"haccio-study-[0-9a-f]{16}", made.name) and made.parent == Path(
        os.path.abspath(folder)
    )
    if not ours or made.is_symlink() or not made.is_dir():
        return
    for left in made.iterdir():
        left.unlink(missing_ok=True)
    made.rmdir()


def settings(name: str, seconds: float) -> Study:
    """How haccio runs, as a study of one task: at any core, `seconds` at most."""
    return Study(
        name=name,
        command=("haccio",),
        factors=(),
        metrics=(),
        interpose=None,
        here=Path.cwd(),
        document={},
        engine=Engine(pin=False),
        # The watcher reads rarely, so the job may use all cores.
        sampling=Sampling(period=1.0),
        time_limit=seconds,
        grace=_STOPS_WITHIN,
    )


@dataclass(frozen=True)
class Result:
    """Lines of haccio's --json, by kind."""

    lines: tuple[dict, ...]

    @classmethod
    def of(cls, path: Path) -> Result:
        """Reads a file. Raises ValueError if haccio did not write it."""
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            text = b""
        lines = []
        for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
            try:
                lines.append(msgspec.json.decode(line))  # neither NaN nor infinities
            except msgspec.DecodeError:
                lines.append(None)
            if not isinstance(lines[-1], dict) or "kind" not in lines[-1]:
                raise ValueError(f"line {number} of {path.name} is not an object with a kind")
        return cls(tuple(lines))

    def all(self, kind: str) -> list[dict]:
        """All lines of one kind."""
        return [x for x in self.lines if x["kind"] == kind]

    @property
    def run(self) -> dict:
        """The line with the place of the run."""
        for line in self.all("run"):
            return line
        raise ValueError("there is no line of kind 'run'")


@dataclass(frozen=True)
class Job:
    """A launch of haccio. beside: a second job that runs all the time; stop: the file that ends it."""

    stack: Stack
    ranks: int
    arguments: Sequence[str]
    beside: Job | None = None
    stop: str = ""

    def words(self, results: Path) -> list[str]:
        """Its command line, which writes `results`."""
        words = list(self.arguments)
        at = 1 if words[:1] == ["split"] else 0
        words[at:at] = ["--quiet", "--json", str(results)]
        return [*self.stack.mpiexec, "-n", str(self.ranks), self.stack.program, *words]

    def command(self, own: Path) -> list[str]:
        """What the engine runs in the folder of an attempt."""
        mine = self.words(own / RESULTS)
        if self.beside is None:
            return mine
        results = own / OTHER
        both = {"job": mine, "other": self.beside.words(results), "results": str(results), "stop": self.stop}
        return [sys.executable, "-I", "-S", str(_BESIDE), json.dumps(both)]

    def environment(self) -> dict[str, str]:
        """Environment variables that it needs; the user's values take precedence."""
        ranks = max(self.ranks, self.beside.ranks if self.beside else 0)
        return {k: v for k, v in sharing(ranks, os.cpu_count() or 1).items() if k not in os.environ}

    def spec(
        self,
        study: Study,
        engine: EngineBase,
        own: Path,
        share: list[int] | None,
        data: Path | None = None,
        **more: object,
    ) -> dict:
        """What its watcher runs. data: the folder for its files, which is made first."""
        prepare = [] if data is None else [["mkdir", "-m", "700", str(data)]]
        more |= {"prepare": prepare, "data": None if data is None else str(data)}
        return watch_spec(
            study, engine, own, self.command(own), self.environment(), study.here, share, **more
        )

    def failure(self, own: Path, record: Mapping, seconds: float) -> str | None:
        """Why the attempt has no results; None if it has."""
        status, exit_, signal = (record.get(k) for k in ("status", "exit", "signal"))
        if status == "ok":
            return None
        if status == "timeout":
            what = f"did not end within {seconds:g} s"
        elif record.get("interrupted"):
            what = "was interrupted"
        elif exit_ is not None:
            what = f"ended with status {exit_}"
        elif signal is not None:
            what = f"was ended by signal {signal}"
        else:
            what = f"failed: {record.get('reason')}"
        said: list[str] = []
        for name in ("prepare", "stderr", "stdout"):
            with contextlib.suppress(OSError):
                said += (own / name).read_text(errors="replace").strip().splitlines()
        own_words = [x for x in said if x.startswith("haccio: ")]
        second = [x for x in own_words if x.startswith(_SECOND)]  # beside.py's
        first = [x for x in own_words or said if x not in second]
        words = shlex.join(self.words(own / RESULTS))
        return ": ".join([f"{words} {what}", *second[:1], *first[:1]])


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
                    "does not say which launcher of MPI starts it", where=program, fix="give --mpiexec"
                ) from None
            words: tuple[str, ...] = (mpiexec,)
        else:
            words = tuple(shlex.split(mpiexec))
        if not words or shutil.which(words[0]) is None:
            raise MissingFile("is not a program", where=mpiexec, fix="give --mpiexec")
        return cls(words, os.path.abspath(path))

    def facts(self) -> dict[str, str]:
        """Which program it is: its path and the SHA-256 of its content."""
        found = {"path": os.path.realpath(self.program)}
        with contextlib.suppress(OSError):
            found["sha256"] = hashlib.sha256(Path(self.program).read_bytes()).hexdigest()
        return found

    def run(self, ranks: int, arguments: Sequence[str], seconds: float) -> Result:
        """Runs a job to its end. Raises TwinrunError if it fails or exceeds its limit."""
        job, study = Job(self, ranks, arguments), settings("haccio", seconds)
        with tempfile.TemporaryDirectory(prefix="twinrun-study-") as folder:
            own = Path(folder)
            engine = LocalEngine(study)
            running = Running(0, 1, own, cores=engine.cores())
            (own / "spec.json").write_text(json.dumps(job.spec(study, engine, own, running.cores)))
            engine.start(running, None)
            try:
                running.token.wait()
            finally:
                engine.stop(running)
                engine.done(running)
            record = {"reason": "the program that watched it died"}
            with contextlib.suppress(FileNotFoundError):
                record = json.loads((own / "record.json").read_text())
            why = job.failure(own, record, seconds)
            if why is not None:
                raise TwinrunError(why)
            return Result.of(own / RESULTS)
