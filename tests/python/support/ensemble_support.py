"""What tests of ensembles share: studies of tiny programs, attempts watched alone, limits on time."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from commands import HANG

from twinrun.ensemble.run.engines import WATCH
from twinrun.ensemble.run.work import variable_rules
from twinrun.outputs import write_whole


@contextmanager
def uncollected() -> Iterator[None]:
    """What is there is not collected as garbage.

    statsmodels collects in each correction of p values: most of the time of hundreds of simulated studies.
    """
    frozen = gc.get_freeze_count()  # by tests/python/conftest.py
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


PYTHON = [sys.executable, "-I", "-S", "-c"]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what takes longer."""

    def over(*_: object) -> None:
        raise AssertionError(f"did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class KillAt:
    """SIGKILL of this process at the n-th call of a function of these files, or that it makes; n = 0: counts them.

    Passed to `sys.setprofile`.
    """

    def __init__(self, n: int, files: Collection[str]) -> None:
        self.n, self.files, self.calls = n, files, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename in self.files:
            self.calls += 1
            if self.calls == self.n:
                os.kill(os.getpid(), signal.SIGKILL)


def attempt(folder: Path, command: list[str], **keys: object) -> dict:
    """The record of one attempt, by the watcher as it runs on nodes."""
    start_watch(folder, command, **keys).wait(timeout=HANG)
    return json.loads((folder / "record.json").read_text())


def start_watch(folder: Path, command: list[str], **keys: object) -> subprocess.Popen:
    """Starts the watcher."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "command": command, "environment": {}, "variables": variable_rules(), "directory": str(folder), "prepare": [], "time_limit": None, "grace": 5.0,
        "success": [0], "cores": None, "cores_level": None, "spare": None, "own_cores": None, "period": 0.05, "listen": True,
        "verify": {}, "submit": 0.0, **keys,
    }  # fmt: skip
    # Whole: a watcher of the same folder may be reading it.
    write_whole(folder / "spec.json", json.dumps(spec).encode())
    return subprocess.Popen([sys.executable, "-I", "-S", str(WATCH), str(folder)])


def write_study(folder: Path, **keys: object) -> Path:
    """A study file in a folder: keys are TOML, tables as dictionaries."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.toml"

    def value(x: object) -> str:
        if isinstance(x, dict):
            return "{ " + ", ".join(f"{json.dumps(k)} = {value(v)}" for k, v in x.items()) + " }"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(map(value, x)) + "]"
        return json.dumps(x)

    path.write_text("".join(f"{k} = {value(v)}\n" for k, v in keys.items()))
    return path


def lines(folder: Path, name: str = "tasks.jsonl") -> list[dict]:
    """Lines of a study's folder; strictly whole."""
    text = (folder / name).read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def give_times(folder: Path, time_of: Callable[[dict], float]) -> None:
    """Gives the tasks of a study that ran the times that a test knows.

    What a busy machine does to real times is real: a report may rightly claim it, and claims what is not so in one study
    of twenty. A test that says what a report claims must know the times.
    """
    made = [{**line, "wall": time_of(line)} for line in lines(folder)]
    write_whole(folder / "tasks.jsonl", "".join(json.dumps(line) + "\n" for line in made).encode())


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a process of its own; its status as waitpid gives it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]
