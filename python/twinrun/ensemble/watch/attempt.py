"""One attempt: runs the task that a spec describes, and says what it took."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time

from . import VERSION
from .checks import Checks
from .conditions import environment_facts, environment_of
from .cores import cores_of_level, list_of_numbers
from .ends import ExitListener
from .family import Family
from .figures import Figures
from .gpu import Gpus
from .hidden import without_secrets
from .kernel import clock, node_name
from .sampling import Pace, Sampler
from .signals import Signals
from .system import System
from .task import Task, adopt_orphans

__all__ = ["Attempt"]


_COVARIATE_LIMIT = 60.0  # seconds that a user's command for a number may take
_GATE_LIMIT = 3600.0  # seconds that a task waits for that
_GATE_AHEAD = 10.0  # seconds from the word to the moment, at most: the clock of a node may be wrong


class _Impossible(Exception):
    """The task cannot start. more: what its record says besides."""

    def __init__(self, why: str, **more: object) -> None:
        super().__init__(why)
        self.more = more


def _not_started(e: _Impossible) -> dict:
    """What the record of a task that cannot start says besides."""
    now = time.time()
    return {"status": "failed", "exit": None, "signal": None, "start": now, "end": now, "wall": None,
            "reason": str(e), "verified": {}, "interrupted": False, **e.more}  # fmt: skip


class Attempt:
    """spec: of spec.json in the attempt's folder. path: the name of that, as the task knows it."""

    def __init__(self, folder: str, spec: dict, path: str) -> None:
        self.folder, self.spec, self._path = folder, spec, path
        self._signals = Signals()
        adopt_orphans()
        self._sampler = Sampler()
        self._listener: ExitListener | None = None
        self._checks = Checks(folder, spec["verify"], self._sampler)
        self._family = Family(self._sampler, self._checks, self._signals)

    def run(self) -> dict:
        """Runs the task; returns what was measured."""
        spec = self.spec
        record: dict = {
            "version": VERSION,
            "node": node_name(),
            "submit": spec["submit"],
            "slot": spec.get("slot"),
        }
        environment = environment_of(spec["environment"])
        record["facts"] = environment_facts(environment, spec["command"], self._path, spec["variables"])
        try:
            record["cores"] = cores = self._cores()
            self._prepare(environment)
            before = self._covariates(environment)
            self._listen()
            figures = Figures()
            task = self._started(cores, environment)
            gpus, system = Gpus(environment), System(cores)  # outside of the time that is measured
            if spec.get("gate"):
                record["released"] = self._at_gate()
        except _Impossible as e:
            return record | _not_started(e)
        figures.begin(task)
        record["clock"] = clock()
        record["start"] = time.time()
        begin = time.monotonic()
        problem = task.begin()
        if problem is None:
            self._checks.see_variables(task.pid)
        end, status, ending, period = self._wait(begin, task.pid, cores, gpus)
        record["end"] = record["start"] + (end - begin)
        left = self._family.clear(task.pid)
        record |= figures.end(task, self._family.usage, self._sampler, self._listener, self._checks)
        record["sampling"] |= {"period": period, "left_behind": left}
        record |= {"counters": system.end(), "gpu": gpus.end()}
        if spec.get("covariates"):
            record["covariates"] = self._covariates_after(before, environment)
        return record | self._outcome(end - begin, status, ending, problem)

    def _outcome(self, wall: float, status: int | None, ending: str | None, problem: str | None) -> dict:
        """How the task ended. problem: why it could not be started."""
        exited = status is not None and os.WIFEXITED(status) and problem is None
        found = {
            "status": self._said(status, ending, problem),
            "exit": os.WEXITSTATUS(status) if status is not None and exited else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "wall": wall,
            "verified": self._verified(),
            "interrupted": ending == "interrupted",
        }
        if problem is not None:
            found["reason"] = f"{self._shown(self.spec['command'][0])} cannot be started: {problem}"
        return found

    # -- before the task

    def _listen(self) -> None:
        """Hears of processes that end, where the spec asks for it and the kernel allows it."""
        if self.spec["listen"]:
            try:
                self._listener = ExitListener()
            except OSError:
                pass

    def _started(self, cores: list[int], environment: dict[str, str]) -> Task:
        """The process of the task, which waits for its `begin`."""
        task = Task(self.spec, self.folder, cores, environment)
        with open(os.path.join(self.folder, "started.json"), "w", encoding="utf-8") as file:
            # the facts that remain should this process be killed
            json.dump({"pid": task.pid, "start": time.time()}, file)
        return task

    def _cores(self) -> list[int]:
        """The task's cores; this process moves to its own."""
        spec = self.spec
        try:
            cores = spec["cores"] or sorted(os.sched_getaffinity(0))
            if spec["cores_level"] is not None:
                cores = cores_of_level(spec["cores_level"], cores, spec["spare"])
            if spec["own_cores"]:
                os.sched_setaffinity(0, spec["own_cores"])
        except (ValueError, OSError) as e:
            raise _Impossible(f"cores: {e}") from None
        return cores

    def _prepare(self, environment: dict[str, str]) -> None:
        """Runs the commands that come before the task."""
        for words in self.spec["prepare"]:
            try:
                self._signals.interrupting = True
                with open(os.path.join(self.folder, "prepare"), "ab") as log:
                    done = subprocess.run(
                        words, cwd=self.spec["directory"], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                        stderr=log, timeout=self.spec["time_limit"],
                    )  # fmt: skip
                if done.returncode != 0:
                    raise _Impossible(
                        f"prepare {self._shown(shlex.join(words))!r:.200} ended with status {done.returncode}"
                    )
            except InterruptedError:
                raise _Impossible(
                    "stopped while it was prepared", status="killed", interrupted=self._by_the_runner()
                ) from None
            except (OSError, subprocess.SubprocessError) as e:
                raise _Impossible(f"prepare: {self._shown(str(e))}") from None
            finally:
                self._signals.interrupting = False

    def _shown(self, text: str) -> str:
        """A text of a command, as messages have it."""
        return without_secrets(text, self.spec["variables"])

    def _at_gate(self) -> float:
        """Waits, with the task ready to begin, for the moment at which all tasks of the workload
        do; returns it.

        The spec's `gate`: seconds between looks whether it is known.
        """
        with open(os.path.join(self.folder, "ready"), "w", encoding="utf-8"):
            pass
        gate = os.path.join(self.folder, "gate")
        give_up = time.monotonic() + _GATE_LIMIT
        due: float | None = None
        while True:
            moment = None
            try:
                with open(gate, encoding="utf-8") as file:
                    moment = float(json.load(file)["begin"])
            except FileNotFoundError:
                pass
            if self._signals.asked:
                raise _Impossible(
                    "stopped before it began", status="killed", interrupted=self._by_the_runner()
                )
            now = time.monotonic()
            if moment is not None and due is None:
                # From here on by a clock that nobody sets.
                due = now + min(moment - time.time(), _GATE_AHEAD)
            left = self.spec["gate"] if due is None else due - now
            if moment is not None and left <= 0:
                return moment
            if now > give_up:
                raise _Impossible(
                    "nobody let it begin: did the runner end?", status="killed", interrupted=True
                )
            self._signals.wait(left)

    def _covariates(self, environment: dict[str, str], after: bool = False) -> dict[str, float | None]:
        """The numbers that the user's commands print; null where one fails."""
        found: dict[str, float | None] = {}
        for name, how in (self.spec.get("covariates") or {}).items():
            if after and not how["difference"]:
                continue
            found[name] = None
            try:
                # A signal that asks for the end is seen right after.
                said = subprocess.run(
                    how["command"], cwd=self.spec["directory"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, timeout=_COVARIATE_LIMIT, check=True,
                ).stdout  # fmt: skip
                value = float(said.decode(errors="replace").strip())
                found[name] = value if value - value == 0 else None  # neither NaN nor infinite
            except (OSError, subprocess.SubprocessError, ValueError):
                pass
        return found

    def _covariates_after(
        self, before: dict[str, float | None], environment: dict[str, str]
    ) -> dict[str, float | None]:
        found = dict(before)
        for name, value in self._covariates(environment, after=True).items():
            earlier = before[name]
            found[name] = None if value is None or earlier is None else value - earlier
        return found

    def _by_the_runner(self) -> bool:
        return os.path.exists(os.path.join(self.folder, "stop"))

    # -- while it runs

    def _wait(
        self, begin: float, task: int, cores: list[int], gpus: Gpus
    ) -> tuple[float, int | None, str | None, float]:
        """Waits until the first process of the task ends: when, its status, the reason if this
        program ended it, and the period of readings.
        """
        spec = self.spec
        limit = begin + spec["time_limit"] if spec["time_limit"] else float("inf")
        self._checks.begin(begin)
        pace = Pace(spec["period"], begin)
        look_at = begin + 0.2
        ending: str | None = None
        force_at = float("inf")
        while True:
            now = time.monotonic()
            if now >= pace.due:
                before = time.thread_time()
                self._sampler.sample()
                if self._listener is not None:
                    self._listener.drain()
                if now >= look_at:
                    self._sampler.look_at_processor(cores)
                    gpus.look()
                    look_at = now + 5
                pace.took(now, time.thread_time() - before)
            self._checks.start_due(now, task)
            if self._signals.asked and ending is None:
                ending = "interrupted" if self._by_the_runner() else "killed from outside"
                force_at = now + spec["grace"]
                self._family.kill(signal.SIGTERM)
            elif now >= limit and ending is None:
                ending, force_at = "timeout", now + spec["grace"]
                self._family.kill(signal.SIGTERM)
            if now >= force_at:
                self._family.kill(signal.SIGKILL)
                force_at = now + 0.5
            until = min(pace.due, force_at, limit if ending is None else float("inf"), self._checks.next())
            self._signals.wait(until - now)
            now = time.monotonic()
            status = self._family.reap(task)
            if status is not None:
                return now, status, ending, pace.period

    # -- after it

    def _verified(self) -> dict[str, str | None]:
        """The level of each known factor that the task had."""
        found = dict(self._checks.values)
        for name, how in self.spec["verify"].items():
            if how["kind"] == "cores":
                found[name] = list_of_numbers(self._sampler.cores) or None
            elif how["kind"] == "threads":
                found[name] = str(self._sampler.most_threads) if self._sampler.most_threads else None
        return found

    def _said(self, status: int | None, ending: str | None, problem: str | None) -> str:
        if ending == "timeout":
            return "timeout"
        if ending is not None or status is None or os.WIFSIGNALED(status):
            return "killed"
        return "ok" if problem is None and os.WEXITSTATUS(status) in self.spec["success"] else "failed"
