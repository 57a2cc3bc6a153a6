"""Runs the rest of a study: starts attempts in the order of the plan, records each as it ends, and applies
the stopping rule.

    for each part of the plan (warm-ups; blocks up to the next look):
        settle attempts that an earlier runner left: recorded ones are kept, running ones adopted, lost ones
        kept as killed while tasks of the part are unfinished: start attempts while there is room; record
        those that ended if the study has a stopping rule and the intervals are narrow enough: end

Ctrl-C: no new attempt starts, and running ones are waited for; a second Ctrl-C, or SIGTERM, ends them: they
are kept as killed, `interrupted`, and run again when the study goes on. SIGKILL of the runner leaves attempts
running; see `engines`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import TwinrunError
from ...outputs import write_whole
from .. import intervals
from ..study import interposition
from ..study.design import Task
from ..study.record import StudyFolder, read_lines, unfinished
from .engines import EngineBase, Running, State, end_stragglers, examine, open_gate, withdraw
from .folder import FolderWork, cell_of
from .looks import Plan, parts, workloads
from .work import Work

__all__ = ["Outcome", "Progress", "estimate", "run", "run_study", "status_of"]


@dataclass(frozen=True)
class Progress:
    """An event of a run. line: of the attempt that ended; None for other events."""

    done: int
    total: int
    running: int
    seconds_left: float | None
    text: str
    line: Mapping | None = None


@dataclass(frozen=True)
class Outcome:
    """How the run of a study ended.

    Attributes
    ----------
    ended : {'complete', 'enough', 'time', 'interrupted'}
        'enough': the stopping rule was met before all tasks had run; 'time': its time was up.
    done : int
        Tasks that have ended, warm-up tasks not counted.
    total : int
        Tasks of the study, warm-up tasks not counted.
    failed : int
        Tasks that have ended without a good attempt.
    retried : int
        Attempts of this run that repeated a failed one.
    left : tuple of str
        What lies where folders of attempts are, is not theirs, and was left alone.
    """

    ended: str
    done: int
    total: int
    failed: int
    retried: int
    left: tuple[str, ...] = ()


def estimate(
    tasks: Iterable[Task],
    lines: Sequence[Mapping],
    concurrency: int,
    running: Mapping[int, float] | None = None,
) -> float | None:
    """Estimated seconds until these tasks have run, from tasks of the same cells; None if none has run.

    running: for tasks that run already, since how many seconds.
    """
    walls: dict[tuple, list[float]] = {}
    overheads = []
    for line in lines:
        if line.get("wall") is not None and line["status"] in ("ok", "timeout"):
            walls.setdefault(cell_of(line["factors"]), []).append(line["wall"])
            if line.get("submit") is not None and line.get("start") is not None:
                overheads.append(max(line["start"] - line["submit"], 0.0))
    every = [w for own in walls.values() for w in own]
    if not every:
        return None
    overhead = intervals.median(overheads) if overheads else 0.0
    total = longest = 0.0
    for task in tasks:
        own = walls.get(cell_of(task.factors), every)
        seconds = sum(own) / len(own) + overhead
        if running and task.task in running:
            seconds = max(seconds - running[task.task], 0.0)
        total += seconds
        longest = max(longest, seconds)
    return max(total / concurrency, longest)


_LOOKS = 10  # that a task at its gate takes in the time between the word and the moment


class _Signals:
    """Counts Ctrl-C while in force; SIGTERM counts for two. `file` is readable when one came."""

    def __enter__(self) -> _Signals:
        self.asked = 0
        self.file, self._say = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number, weight in ((signal.SIGINT, 1), (signal.SIGTERM, 2)):
                self._before[number] = signal.signal(number, self._handler(weight))
        return self

    def _handler(self, weight: int) -> Callable:
        def handler(*_: object) -> None:
            self.asked += weight
            with contextlib.suppress(BlockingIOError):
                os.write(self._say, b"!")

        return handler

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.file)
        os.close(self._say)


class _Run:
    """One call of `run`."""

    def __init__(
        self, work: Work, retries: int, report: Callable[[Progress], None] | None, signals: _Signals
    ) -> None:
        self.work, self.study, self.retries = work, work.study, retries
        self._report, self._signals = report, signals
        self._by_number = {t.task: t for t in work.tasks}
        self._running: list[Running] = []
        self._stopping = False
        self._told = False
        self._begun = -1  # the last block that a task was started of
        self._deadline = math.inf
        self.time_was_up = False
        self.retried = 0
        self.engine: EngineBase = work.engine()

    # -- reporting

    def _remaining(self) -> list[Task]:
        return unfinished(self.work.tasks, self.work.lines(), self.retries)

    def tell(self, text: str, line: Mapping | None = None) -> None:
        if self._report is None:
            return
        left = self._remaining()
        now = time.monotonic()
        seconds = estimate(
            left, self.work.lines(), self.study.concurrency, {r.task: now - r.began for r in self._running}
        )
        total = len(self.work.tasks)
        self._report(Progress(total - len(left), total, len(self._running), seconds, text, line))

    # -- attempts of earlier runners

    def settle(self) -> None:
        """Continues attempts of an earlier runner."""
        attempts = self.work.attempts
        for number, attempt in list(attempts):
            if (number, attempt) in attempts.recorded or number not in self._by_number:
                continue
            folder = attempts.folder(number, attempt)
            running = Running(number, attempt, folder, began=time.monotonic())
            with contextlib.suppress(OSError, ValueError, KeyError):
                running.submit = json.loads((folder / "spec.json").read_text())["submit"]
            state = examine(folder)
            if state == State.SUBMITTED and (
                not (folder / "submitted.json").exists() or self.engine.name in ("local", "mpirun")
            ):
                # A watcher that starts later finds the attempt claimed.
                state = State.NEVER if withdraw(folder) else examine(folder)
            if state in (State.RUNNING, State.SUBMITTED):
                if self.engine.gate is not None:
                    open_gate(folder, time.time())
                with contextlib.suppress(OSError, ValueError):
                    running.cores = json.loads((folder / "spec.json").read_text())["cores"]
                self.engine.adopt(running)
                self._running.append(running)
            elif (record := _record_of(running)) is not None:
                self._keep(running, record)
            elif state == State.LOST:
                self._lost(running, interrupted=True)
        if self._running:
            self.tell(f"{len(self._running)} attempts of an earlier runner still run and are waited for")

    # -- noise

    def measure_noise(self, when: str) -> None:
        """Measures the system's noise, once in a study, on the cores of its tasks; writes noise/before.json
        and after.json.
        """
        rule = self.study.noise
        path = self.work.path / "noise" / f"{when}.json"
        if (
            rule is None
            or path.exists()
            or (when == "before" and any(x["task"] >= 0 for x in self.work.lines()))
        ):
            return
        from ...noise.measurement import measure

        self.tell(f"measuring noise for {rule.seconds:g} s")
        path.parent.mkdir(exist_ok=True)
        with self.engine.all_cores():
            found = measure(
                rule.seconds, free=self.study.engine.spare, threshold=rule.threshold, compare=rule.compare
            )
        found.to_json(path)

    # -- recording

    def _keep(self, running: Running, record: Mapping) -> dict:
        """Keeps an attempt that has ended; returns its line."""
        task = self._by_number[running.task]
        line = self.work.keep(task, running.attempt, record, self._engine_of(running.folder))
        self.work.attempts.clear(running.task, running.attempt)
        if running in self._running:
            self._running.remove(running)
        self.tell(_said(task, line), line)
        return line

    def _engine_of(self, folder: Path) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return json.loads((folder / "spec.json").read_text())["engine"]
        return self.engine.name

    def _lost(self, running: Running, interrupted: bool) -> dict:
        """Records an attempt that will never have a record of its own: its watcher died."""
        end_stragglers(running.folder)
        spec: dict[str, Any] = {"submit": running.submit}
        started: dict[str, Any] = {}
        claim: dict[str, Any] = {}
        for target, name in ((spec, "spec.json"), (started, "started.json"), (claim, "claim")):
            with contextlib.suppress(OSError, ValueError):
                target.update(json.loads((running.folder / name).read_text()))
        record = {
            "status": "killed",
            "submit": spec.get("submit"),
            "start": started.get("start"),
            "node": claim.get("node"),
            "cores": spec.get("cores") or [],
            "slot": spec.get("slot"),
            "interrupted": interrupted,
            "reason": "the program that watched it died" if claim else "the job ended before it began",
        }
        with self.work.attempts.own(running.task, running.attempt) as own:
            if own is None:
                record |= {"status": "failed", "reason": _EXCHANGED}
            else:
                # With a record the attempt is complete, whatever happens to this process now.
                write_whole(f"/proc/self/fd/{own}/record.json", json.dumps(record).encode())
        return self._keep(running, record)

    # -- starting

    def _start(self, task: Task, gated: bool) -> Running:
        attempt = self.work.attempts.new(task.task)
        if attempt > 1:
            self.retried += 1
        folder = self.work.attempts.folder(task.task, attempt)
        running = Running(task.task, attempt, folder, cores=self.engine.cores(), began=time.monotonic())
        spec = self.work.spec(self.engine, task, attempt, running.cores)
        if task.replica is not None:
            spec |= {"slot": self.engine.slot(), "gate": (self.engine.gate or 0.0) / _LOOKS if gated else 0.0}
        spec["inode"] = self.work.attempts.inode(task.task, attempt)
        running.submit = spec["submit"]
        (folder / "spec.json").write_text(json.dumps(spec))
        self.engine.start(running, task.node)
        self._running.append(running)
        return running

    def _release(self, wave: Sequence[Running]) -> None:
        """Lets tasks begin at one moment, when all of them are ready (or have ended before that)."""
        assert self.engine.gate is not None
        waiting = list(wave)
        while waiting and not self._stopping:
            self._ask()
            waiting = [
                r
                for r in waiting
                if not any((r.folder / name).exists() for name in ("ready", "record.json"))
                and self.engine.alive(r)
            ]
            if waiting:
                poll = select.poll()
                poll.register(self._signals.file, select.POLLIN)
                poll.poll(10)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._signals.file, 64)
        if not self._stopping:
            moment = time.time() + self.engine.gate
            for running in wave:
                open_gate(running.folder, moment)

    def _fill(self, queue: list[Task], wave: list[Running] | None) -> bool:
        """Starts tasks from the front of the queue while there are slots for them. wave: takes those that
        wait for a common moment. Returns whether any began.
        """
        began = False
        while queue and not self._signals.asked and self.engine.free():
            if self._may_not_begin(queue[0].block):
                queue.clear()
                break
            self._begun = max(self._begun, queue[0].block)
            started = self._start(queue.pop(0), wave is not None)
            began = True
            if wave is not None:
                wave.append(started)
        return began

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs tasks until all are finished, or the user stops."""
        queue = unfinished(tasks, self.work.lines(), self.retries)
        waiting = {r.task for r in self._running}
        queue = [t for t in queue if t.task not in waiting]
        replicated = bool(tasks) and tasks[0].replica is not None
        wave: list[Running] | None = None
        if replicated:
            self.engine.shuffle([self.study.design.order, *map(abs, (tasks[0].task, tasks[0].block))])
            wave = [] if self.engine.gate is not None else None
        while queue or self._running:
            self._ask()
            self._fill(queue, wave)
            if wave is not None:
                self._release(wave)
                wave = None
            if not self._running:
                return
            unseen = False  # tasks that this pass does not look at, and that may have ended
            for running in list(self._running):
                task = self._by_number[running.task]
                if (record := _record_of(running)) is not None:
                    self.engine.done(running)
                    line = self._keep(running, record)
                elif not self.engine.alive(running):
                    # Checked again: the record comes before the end.
                    if _record_of(running) is not None:
                        continue
                    self.engine.done(running)
                    if self.work.attempts.leads(running.task, running.attempt):
                        withdraw(running.folder)
                    line = self._lost(running, interrupted=self._stopping)
                else:
                    continue
                self.work.ended(line)
                if not self._signals.asked and task in unfinished([task], self.work.lines(), self.retries):
                    queue.append(task)  # repeated, up to the limit of retries
                # Its slot does not wait until others that ended meanwhile are recorded too.
                unseen |= self._fill(queue, None)
            if (
                self._running
                and not unseen
                and not (queue and self.engine.free() and not self._signals.asked)
            ):
                self._pause()

    def limit(self, seconds: float) -> None:
        """From now on, how long blocks may begin; 0 is for ever."""
        self._deadline = time.monotonic() + seconds if seconds else math.inf

    def _may_not_begin(self, block: int) -> bool:
        """Whether the study's time is up for this block."""
        rule = self.study.stopping
        late = rule is not None and block >= rule.time_after and block > self._begun
        self.time_was_up |= late and time.monotonic() >= self._deadline
        return late and self.time_was_up

    def _pause(self) -> None:
        poll = select.poll()
        for file in (self._signals.file, *self.engine.files()):
            poll.register(file, select.POLLIN)
        own = sum("file" in r.extra for r in self._running)
        # Ends of own processes wake the poll; other processes are polled.
        poll.poll((5.0 if own == len(self._running) else self.engine.pause()) * 1e3)
        with contextlib.suppress(BlockingIOError):
            os.read(self._signals.file, 64)

    def _ask(self) -> None:
        """Handles Ctrl-C."""
        if self._signals.asked == 1 and not self._told:
            self._told = True
            if self._running:
                self.tell(f"waiting for the {len(self._running)} tasks that run; Ctrl-C again ends them")
        if self._signals.asked >= 2 and not self._stopping:
            self._stopping = True
            for running in self._running:
                if self.work.attempts.leads(running.task, running.attempt):
                    with contextlib.suppress(FileNotFoundError):
                        (running.folder / "stop").touch()
                self.engine.stop(running)


_EXCHANGED = "its folder was removed while it ran, or another one has its name, so what it took is not known"


def _record_of(running: Running) -> dict | None:
    """The record of an attempt; None where there is none. Where a task put another folder in place of its
    own, a file of this name may be the user's: that of the watcher has what the spec says.
    """
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((running.folder / "record.json").read_text(errors="surrogateescape"))
        if isinstance(record, dict) and record.get("submit", running) == running.submit:
            return record
    return None


def _said(task: Task, line: Mapping) -> str:
    what = ", ".join(f"{k} = {v}" for k, v in task.factors.items())
    where = "warm-up" if task.warmup else f"block {task.block + 1}"
    taken = "" if line.get("wall") is None else f", {line['wall']:.3g} s"
    why = f" ({line['reason']})" if line.get("reason") else ""
    wrong = f"; {', '.join(line['contradicted'])} not as intended" if line["contradicted"] else ""
    return f"task {task.task} ({where}{'; ' if what else ''}{what}): {line['status']}{taken}{why}{wrong}"


def run_study(
    study_file: str | os.PathLike[str] | None,
    folder: str | os.PathLike[str],
    *,
    retries: int | None = None,
    amend: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Runs a study, or goes on with it; returns when it is complete, enough is known, or Ctrl-C was pressed.

    study_file: None goes on with the study of the folder. retries: of failed tasks, instead of the study's.
    Raises TwinrunError for an impossible study, or where another runner has it.
    """
    with StudyFolder(folder, study_file, amend) as opened:
        study = opened.study
        interposition.check(study)
        return run(FolderWork(opened), study.retries if retries is None else retries, report, opened.notes)


def run(
    work: Work, retries: int = 0, report: Callable[[Progress], None] | None = None, notes: Sequence[str] = ()
) -> Outcome:
    """Runs what is left of a study: `run_study`, for any kind of work. notes: lines that are
    printed first.
    """
    study = work.study
    plan = Plan(study.stopping.least, study.stopping.most) if study.stopping else None
    with _Signals() as signals:
        going = _Run(work, retries, report, signals)
        ended = "complete"
        begun = False
        try:
            for note in notes:
                going.tell(note)
            going.settle()
            if unfinished(work.tasks, work.lines(), going.retries):
                work.begin()
                begun = True
                going.limit(study.stopping.time if study.stopping else 0.0)
            for part in parts(work.tasks, plan):
                if not part[0].warmup and not signals.asked:
                    going.measure_noise("before")
                for workload in workloads(part):
                    going.run(workload)
                if signals.asked:
                    ended = "interrupted"
                    break
                if going.time_was_up:
                    ended = "time"
                    break
                if plan is not None and not part[0].warmup and work.enough(part[-1].block + 1):
                    ended = "enough"
                    break
            rest = unfinished(work.tasks, work.lines(), going.retries)
            if ended == "interrupted" and not rest:
                ended = "complete"
            if not signals.asked:
                going.measure_noise("after")
        finally:
            going.engine.close()
            if begun:
                work.finish()
        lines = [x for x in work.lines() if x["task"] >= 0]
        total = sum(not t.warmup for t in work.tasks)
        done = total - sum(not t.warmup for t in rest)
        good = {x["task"] for x in lines if x["status"] == "ok"}
        finished = {x["task"] for x in lines if not x["interrupted"]}
        left = tuple(work.attempts.left())
        return Outcome(ended, done, total, len(finished - good), going.retried, left)


def status_of(folder: str | os.PathLike[str]) -> dict:
    """The progress of a study, from its files alone; a runner may work meanwhile.

    Raises TwinrunError where there is no study.
    """
    path = Path(folder)
    if not (path / "plan.jsonl").is_file():
        raise TwinrunError(
            "is not a folder of a study", where=path, fix="start it with: twinrun ensemble run STUDY.toml"
        )
    planned = [x for x in read_lines(path / "plan.jsonl")[0] if not x.get("warmup")]
    lines = read_lines(path / "tasks.jsonl")[0]
    ended = {x["task"]: x for x in lines if not x.get("interrupted")}
    counts: dict[str, int] = {}
    for line in ended.values():
        counts[line["status"]] = counts.get(line["status"], 0) + 1
    at_work = False
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            at_work = True
        finally:
            os.close(lock)
    left = [
        Task(x["task"], x["block"], x["order"], x["factors"], x["seed"], x["repetition"])
        for x in planned
        if x["task"] not in ended
    ]
    running = sorted(
        name
        for name in (os.listdir(path / "output") if (path / "output").is_dir() else [])
        if examine(path / "output" / name) == State.RUNNING
    )
    from ..study.study import read_study

    study = read_study(path / "study.toml")
    return {
        "study": study.name,
        "tasks": len(planned),
        "ended": len(ended),
        "by_status": counts,
        "interrupted_attempts": sum(bool(x.get("interrupted")) for x in lines),
        "contradicted": sum(bool(x.get("contradicted")) for x in ended.values()),
        "runner_at_work": at_work,
        "running": running,
        "seconds_left": estimate(left, lines, study.concurrency) if left else 0.0,
    }
