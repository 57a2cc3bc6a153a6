"""What tests of studies of I/O share: runs that are functions of this process, by the runner of real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinrun.aggregate.studies import Journal, Plan, engine
from twinrun.aggregate.studies.launch import OTHER, RESULTS, Job, Result
from twinrun.aggregate.studies.study import Study
from twinrun.ensemble.run.engines import EngineBase, Running

__all__ = ["conduct", "conduct_study"]

Call = Callable[[dict, int, Path], None]  # condition, block, the folder for results


class Calls(EngineBase):
    """Runs attempts in this process, one at a time."""

    name = "local"

    def __init__(self, study: Any, call: Call) -> None:
        super().__init__(study)
        self._call, self._busy = call, False

    def free(self) -> bool:
        return not self._busy

    def start(self, running: Running, node: str | None) -> None:
        cell = json.loads((running.folder / "spec.json").read_text())["cell"]
        self._call(cell["condition"], cell["block"], running.folder)
        record = {"status": "ok", "submit": running.submit}  # as the spec has it
        (running.folder / "record.json").write_text(json.dumps(record))
        self._busy = True

    def adopt(self, running: Running) -> None:
        raise AssertionError("nothing runs beside this process")

    def alive(self, running: Running) -> bool:
        return False

    def stop(self, running: Running) -> None:
        pass

    def done(self, running: Running) -> None:
        self._busy = False


class Nothing:
    """A stack that is never started."""

    mpiexec, program = ("mpiexec",), "haccio"


@dataclass(frozen=True, kw_only=True)
class Called(Study):
    """A study whose conditions and rule to stop are given."""

    name = "called"
    given: Sequence[Mapping]
    stop: Callable[[list], bool]

    def factors(self) -> dict[str, list]:
        return {name: [c[name] for c in self.given] for name in self.given[0]}

    def job(self, condition: Mapping, block: int, prefix: str) -> Job:
        return Job(Nothing(), 1, [])

    def read(self, condition: Mapping, own: Path) -> dict:
        return json.loads((own / RESULTS).read_text())

    def flaw(self, condition: Mapping, results: Mapping) -> str | None:
        return None

    def enough(self, blocks: list) -> bool:
        return self.stop(blocks)

    def own_identity(self) -> dict:
        return {}

    def result(self, blocks: list, ended: bool) -> dict:
        return self.document(blocks, ended, [])

    def guidance(self, blocks: list) -> list:
        return []


def conduct(
    journal: Journal,
    conditions: Sequence[Mapping],
    run: Callable[[dict, int], Mapping],
    enough: Callable[[list], bool],
    plan: Plan,
) -> tuple[list, bool]:
    """Runs a study whose runs are what `run` returns."""

    def call(condition: dict, block: int, own: Path) -> None:
        (own / RESULTS).write_text(json.dumps(run(condition, block)))

    subject = Called(ranks=1, given=conditions, stop=enough)
    return engine.conduct(journal, subject, plan, engine=lambda study: Calls(study, call))


def conduct_study(journal: Journal, subject: Study, plan: Plan) -> tuple[list, bool]:
    """Runs a study whose stacks say by `run` and `start` what haccio writes."""

    def write(path: Path, result: Result) -> None:
        path.write_text("".join(json.dumps(line) + "\n" for line in result.lines))

    def call(condition: dict, block: int, own: Path) -> None:
        job = subject.job(condition, block, "file-")
        if job.beside is None:
            write(own / RESULTS, job.stack.run(job.ranks, job.arguments, subject.seconds))
            return
        with job.beside.stack.start(job.beside.ranks, job.beside.arguments) as other:
            other.wait_for("repetition", subject.seconds)
            write(own / RESULTS, job.stack.run(job.ranks, job.arguments, subject.seconds))
            write(own / OTHER, other.wait(subject.seconds))

    return engine.conduct(journal, subject, plan, engine=lambda study: Calls(study, call))
