"""Runs a study of haccio on the ensemble's engine: its conditions are the cells of a design, its
journal keeps the results.

Attempts lie in JOURNAL.attempts while they run; the folder goes when the last of them has its line.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct, field, structs

from ...ensemble.run.engines import EngineBase, State, examine
from ...ensemble.run.looks import Plan, looks
from ...ensemble.run.runner import Progress, run
from ...ensemble.run.work import Work
from ...ensemble.study.attempts import Attempts
from ...ensemble.study.design import Task
from ...ensemble.study.design import plan as tasks_of
from ...ensemble.study.document import Design, Stopping
from ...ensemble.study.study import Factor
from ...errors import DamagedFile, TwinrunError
from .journal import Journal
from .launch import new_data_folder, remove_data, settings

if TYPE_CHECKING:
    from .study import Study

__all__ = ["Condition", "Plan", "conduct", "looks"]

Condition = Mapping[str, Any]  # how a run differs from others: JSON
Blocks = list[dict[str, Mapping[str, Any]]]  # for each whole block: key of a condition -> its run

# What a journal keeps of a watcher's record.
_MEASURED = (
    "start",
    "wall",
    "user",
    "system",
    "run_queue_delay",
    "context_switches",
    "page_faults",
    "max_memory_bytes",
    "io",
    "pressure",
    "frequency_hz",
    "temperature_c",
    "node",
)


def key(condition: Condition) -> str:
    """The name of a condition in the journal."""
    return json.dumps(condition, sort_keys=True)


def whole_blocks(runs: Iterable[Mapping], conditions: Sequence[Condition]) -> Blocks:
    """Runs by block: the whole blocks before the first gap."""
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for line in runs:
        found.setdefault(line["block"], {})[key(line["condition"])] = line
    blocks: Blocks = []
    while all(key(c) in found.get(len(blocks), {}) for c in conditions):
        blocks.append(found[len(blocks)])
    return blocks


class _Measured(Struct):
    wall: float | None = None


class _Run(Struct):
    """What lines of runs and failures have in common."""

    block: Annotated[int, Meta(ge=0)]
    condition: dict[str, int | float]
    order: int = 0
    record: _Measured = field(default_factory=_Measured)


class _Failure(_Run, kw_only=True):
    attempt: Annotated[int, Meta(ge=1)]
    reason: str
    interrupted: bool


class _Attempts(Attempts):
    """Attempts of these runs: a folder counts whose spec is of the run that it is named after.

    cells: what a spec says of a run. data: where folders for files of runs are.
    """

    def __init__(self, root: Path, cells: Mapping[int, dict], data: Path | None) -> None:
        super().__init__(root, ())
        self._cells, self._data = cells, data

    def spec(self, task: int, attempt: int) -> dict:
        """The spec of an attempt; {} if it has none."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.folder(task, attempt) / "spec.json").read_text(errors="surrogateescape"))
            return found if isinstance(found, dict) else {}
        return {}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for task, attempt in super().__iter__():
            if task in self._cells and self.spec(task, attempt).get("cell") == self._cells[task]:
                yield task, attempt

    def clear(self, task: int, attempt: int) -> None:
        data = self.spec(task, attempt).get("data")
        if data and self._data is not None:
            remove_data(self._data, Path(data))
        with self.own(task, attempt) as folder:
            if folder is None:
                return
            # The spec comes last: it shows whose the folder is.
            for name in sorted(os.listdir(folder), key=lambda n: n == "spec.json"):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        with contextlib.suppress(OSError):
            self.folder(task, attempt).rmdir()


class CellWork(Work):
    """The runs of a study. engine: what starts them; default: processes of this node.

    Raises DamagedFile for a journal with a line that no run of this study has written.
    """

    def __init__(
        self,
        journal: Journal,
        subject: Study,
        plan: Plan,
        engine: Callable[[Any], EngineBase] | None = None,
    ) -> None:
        self.journal, self.subject, self._engine = journal, subject, engine
        self.blocks: Blocks = []
        self.conditions = subject.conditions()
        self.study = structs.replace(
            settings(subject.name, subject.seconds),
            factors=tuple(
                Factor(name, tuple(json.dumps(x) for x in levels))
                for name, levels in subject.factors().items()
            ),
            stopping=Stopping(least=plan.least, most=plan.most),
            design=Design(order=plan.seed),
        )
        self.tasks = tasks_of(self.study)
        self._condition = {
            t.task: {name: json.loads(level) for name, level in t.factors.items()} for t in self.tasks
        }
        cells = {t.task: {"block": t.block, "condition": self._condition[t.task]} for t in self.tasks}
        self._number = {(t.block, key(self._condition[t.task])): t for t in self.tasks}
        self._lines = self._of_journal()
        self.path = Path(f"{journal.path.resolve()}.attempts")
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_dir()):
            raise TwinrunError(
                "is there already, and is not a folder of a study: it is left alone",
                where=self.path,
                fix="move it away, or give another --journal",
            )
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as e:
            raise TwinrunError(
                f"no folder for runs can be made: {e.strerror}",
                where=self.path,
                fix="give a --journal in a folder that can be written",
            ) from None
        self.attempts: _Attempts = _Attempts(self.path, cells, subject.folder)
        self.attempts.recorded.update((x["task"], x["attempt"]) for x in self._lines)
        self._clear({x["task"] for x in self._lines if x["status"] == "ok"})

    def engine(self) -> EngineBase:
        return super().engine() if self._engine is None else self._engine(self.study)

    # -- the journal

    def _of_journal(self) -> list[dict]:
        """Lines of the journal, as the runner has them; runs after the plan's last block are left out."""
        found: list[dict] = []
        seen: dict[tuple[int, str], int] = {}
        known = {key(c) for c in self.conditions}
        for number, line in enumerate(self.journal.lines, 1):
            if line["kind"] not in ("run", "failure"):
                continue
            why = self._flaw(line, known)
            if why is None:
                place = line["block"], key(line["condition"])
                if line["kind"] == "run" and place in seen:
                    why = f"is a second one of block {place[0] + 1}, {place[1]}, after line {seen[place]}"
            if why is not None:
                raise DamagedFile(
                    f"line {number} {why}",
                    where=self.journal.path,
                    fix="remove that line, so that its run is made again, or give another --journal",
                )
            if line["kind"] == "run":
                seen[place] = number
            if place in self._number:
                found.append(self._line(self._number[place], line.get("attempt", 0), line))
        return found

    def _flaw(self, line: Mapping, known: set[str]) -> str | None:
        """Why a line of the journal does not belong to a run of this study."""
        try:
            msgspec.convert(line, _Run if line["kind"] == "run" else _Failure)
        except msgspec.ValidationError as e:
            return f"is no {line['kind']} of this study: {e}"
        condition = line["condition"]
        if key(condition) not in known:
            return f"has condition {json.dumps(condition)}, which is none of this study"
        if line["kind"] == "failure":
            return None
        wrong = self.subject.flaw(condition, line)
        return None if wrong is None else f"is not a result of a run: {wrong}"

    def _line(self, task: Task, attempt: int, line: Mapping) -> dict:
        reason, record = line.get("reason"), line.get("record", {})
        return {
            "task": task.task,
            "attempt": attempt,
            "block": task.block,
            "factors": task.factors,
            "status": "ok" if reason is None else "failed",
            "reason": reason,
            "wall": record.get("wall"),
            "contradicted": [],
            "interrupted": bool(line.get("interrupted")),
        }

    def lines(self) -> list[dict]:
        # Failures of earlier commands do not count: their runs are made again.
        return [x for x in self._lines if x["status"] == "ok"]

    def keep(self, task: Task, attempt: int, record: Mapping, engine: str) -> dict:
        own = self.attempts.folder(task.task, attempt)
        condition = self._condition[task.task]
        data = self.attempts.spec(task.task, attempt).get("data")
        job = self.subject.job(condition, task.block, _prefix(data))
        results: Mapping = {}
        reason = job.failure(own, record, self.subject.seconds)
        if reason is None:
            try:
                results = self.subject.read(condition, own)
                wrong = self.subject.flaw(condition, results)
            except (ValueError, KeyError, TypeError, ZeroDivisionError) as e:
                wrong = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) and e.args else str(e)
            if wrong is not None:
                reason = f"{' '.join(job.words(own))} wrote an invalid result: {wrong}"
        line: dict[str, Any] = {"block": task.block, "order": task.order, "condition": condition}
        if reason is None:
            line |= results
        else:
            line |= {"attempt": attempt, "reason": reason, "interrupted": bool(record.get("interrupted"))}
        if measured := {k: record[k] for k in _MEASURED if record.get(k) is not None}:
            line["record"] = measured
        facts = record.get("facts")
        # The watcher knows what it started: an mpiexec, or the program that starts two.
        self.journal.add(line, facts and {**facts, "haccio": job.stack.facts()})
        self._lines.append(self._line(task, attempt, line))
        self.attempts.recorded.add((task.task, attempt))
        return self._lines[-1]

    def ended(self, line: Mapping) -> None:
        """Blocks are compared whole: the study ends with the first run that fails."""
        if line["reason"] is not None and not line["interrupted"]:
            raise TwinrunError(
                line["reason"],
                fix=f"see to it, and give the same command again: {self.journal.path} has the other runs",
            )

    # -- runs

    def spec(self, engine: EngineBase, task: Task, attempt: int, share: list[int] | None) -> dict:
        condition = self._condition[task.task]
        data = None if self.subject.folder is None else new_data_folder(self.subject.folder)
        job = self.subject.job(condition, task.block, _prefix(data))
        own = self.attempts.folder(task.task, attempt)
        cell = {"block": task.block, "condition": condition}
        return job.spec(self.study, engine, own, share, data, cell=cell)

    def enough(self, blocks: int) -> bool:
        self.blocks = whole_blocks(self.journal.runs, self.conditions)[:blocks]
        return self.subject.enough(self.blocks)

    def _clear(self, done: set[int]) -> None:
        """Removes attempts that are recorded, those of tasks that have run, and those that never ran."""
        for task, attempt in list(self.attempts):
            state = examine(self.attempts.folder(task, attempt))
            over = (task, attempt) in self.attempts.recorded or task in done
            if state == State.NEVER or (over and state != State.RUNNING):
                self.attempts.clear(task, attempt)

    def close(self) -> None:
        """Removes the folder of attempts, if none is left."""
        self._clear({x["task"] for x in self.lines()})
        for left in self.path.iterdir():
            with contextlib.suppress(OSError):
                left.rmdir()  # the folder of an attempt that never began
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _prefix(data: str | Path | None) -> str:
    """The beginning of the names of a run's files."""
    return "" if data is None else f"{data}/file-"


def conduct(
    journal: Journal,
    subject: Study,
    plan: Plan,
    report: Callable[[Progress], None] | None = None,
    engine: Callable[[Any], EngineBase] | None = None,
) -> tuple[Blocks, bool]:
    """Makes the runs that the journal lacks. Returns all whole blocks, and whether they are enough.

    Raises TwinrunError where a run failed, or where the user stopped the study.
    """
    work = CellWork(journal, subject, plan, engine)
    try:
        outcome = run(work, report=report)
    finally:
        work.close()
    if outcome.ended == "interrupted":
        raise TwinrunError(
            f"interrupted: {outcome.done} of at most {outcome.total} runs are kept",
            where=journal.path,
            fix="give the same command again to go on",
        )
    return work.blocks, outcome.ended == "enough"
