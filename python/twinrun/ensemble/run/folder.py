"""The work of a study that has a folder: specs from its templates, lines of tasks.jsonl."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import TwinrunError, one_line
from .. import intervals, locations
from ..study import interposition, results
from ..study.design import Task, cells
from ..study.record import StudyFolder, task_line
from ..study.shown import shown_line, shown_words
from ..study.study import COMMAND, UNSET, Study
from ..study.templates import PLACES, fill
from ..watch.cores import cores_of_level
from .engines import EngineBase
from .work import Work, watch_spec

__all__ = ["FolderWork", "cell_of", "is_enough"]


def cell_of(factors: Mapping[str, str]) -> tuple[str, ...]:
    """A cell as a key."""
    return tuple(factors.values())


class FolderWork(Work):
    """The study of an opened folder."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self.study, self.tasks = folder.study, folder.tasks
        self.path, self.attempts = folder.path, folder.attempts

    def lines(self) -> list[dict]:
        return self._folder.lines()

    def spec(self, engine: EngineBase, task: Task, attempt: int, share: list[int] | None) -> dict:
        return spec_of(self._folder, engine, task, attempt, self.attempts.folder(task.task, attempt), share)

    def keep(self, task: Task, attempt: int, record: Mapping, engine: str) -> dict:
        own = self.attempts.folder(task.task, attempt)
        line, facts = task_line(self.study, task, attempt, record, own, engine)
        if self.study.results is not None and not task.warmup:
            line["results"] = results.judge(self.study, self.path, line, own)
        self._folder.add(line, facts)
        return line

    def begin(self) -> None:
        self._around("setup", self.study.setup)

    def finish(self) -> None:
        self._around("cleanup", self.study.cleanup)

    def _around(self, what: str, commands: Sequence[Sequence[str]]) -> None:
        """Runs commands for each cell, where tasks run. Raises TwinrunError where one of them fails."""
        if not commands:
            return
        study = self.study
        for cell in cells(study):
            values = dict.fromkeys(PLACES, "") | {
                "study": str(self.path),
                "here": str(study.here),
                "folder": str(self.path),
            }
            values |= {f.name: f.value(cell[f.name]) for f in study.factors}
            directory = study.here / fill(study.directory or str(self.path), values)
            for words in commands:
                line = [fill(w, values) for w in words]
                with tempfile.TemporaryFile() as said:
                    try:
                        status = subprocess.run(
                            line, cwd=directory, stdin=subprocess.DEVNULL, stdout=said, stderr=said
                        ).returncode
                    except OSError as e:
                        raise TwinrunError(
                            f"{what} {shown_words(line)!r:.200} cannot be started: {e.strerror}"
                        ) from None
                    if status != 0:
                        said.seek(0)
                        last = said.read()[-300:].decode(errors="replace")
                        raise TwinrunError(
                            f"{what} {shown_words(line)!r:.200} ended with status {status}: {one_line(last) or 'it printed nothing'}"
                        )

    def enough(self, blocks: int) -> bool:
        return is_enough(self.study, [x for x in self.lines() if x["block"] < blocks])


def _value(line: Mapping, metric: str) -> float | None:
    value: object = line
    for key in metric.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else None


def is_enough(study: Study, lines: Sequence[Mapping]) -> bool:
    """Whether the stopping rule's intervals are narrow enough in every cell."""
    rule = study.stopping
    if rule is None:
        return False
    if rule.of == "ratios":
        return _ratios_known(study, lines)
    values: dict[tuple, dict[int, list[float]]] = {}
    planned = set()
    for line in lines:
        if line["task"] < 0:
            continue
        planned.add(cell_of(line["factors"]))
        value = _value(line, rule.metric)
        if line["status"] == "ok" and value is not None and value > 0:
            values.setdefault(cell_of(line["factors"]), {}).setdefault(line["block"], []).append(value)
    if not planned or planned != set(values):
        return False
    for own in values.values():
        # Tasks of one workload share what happened meanwhile: blocks count.
        interval = intervals.mean([sum(x) / len(x) for x in own.values()], rule.confidence)
        if not interval.within(rule.precision * interval.value):
            return False
    return True


def _ratios_known(study: Study, lines: Sequence[Mapping]) -> bool:
    """Whether the ratio of every cell to the first is known, or the median of the only one."""
    rule = study.stopping
    assert rule is not None
    keys = [cell_of(cell) for cell in cells(study)]
    every: dict[tuple, dict[int, list[float]]] = {key: {} for key in keys}
    for line in lines:
        value = _value(line, rule.metric)
        if line["task"] >= 0 and line["status"] == "ok" and value is not None and value > 0:
            every[cell_of(line["factors"])].setdefault(line["block"], []).append(value)
    values = {key: {block: intervals.median(x) for block, x in own.items()} for key, own in every.items()}
    confidence = locations.sequential(locations.each(rule.confidence, len(keys) - 1))
    if len(keys) == 1:
        found = locations.median(list(values[keys[0]].values()), confidence)
        return found.within(rule.precision * found.value)
    base = values[keys[0]]
    for key in keys[1:]:
        both = sorted(base.keys() & values[key].keys())
        ratio = locations.ratio([base[b] for b in both], [values[key][b] for b in both], confidence)
        if not ratio.within(rule.precision * ratio.value):
            return False
    return True


def _words(study: Study, task: Task, values: Mapping[str, str]) -> list[str]:
    """The words of a task's command, the shell's included."""
    shell = shlex.split(study.shell) if isinstance(study.shell, str) and study.shell else ["/bin/sh"]
    chosen = study.commands.get(task.factors.get(COMMAND, ""))
    if chosen is None:
        if study.shell:
            return [*shell, "-c", fill(study.command[0], {k: shlex.quote(v) for k, v in values.items()})]
        return [fill(w, values) for w in study.command]
    if not isinstance(chosen.words, str):
        return [fill(w, values) for w in chosen.words]
    # Levels stand in a command line as they are: they may be several words.
    line = fill(chosen.words, values)
    if study.shell:
        return [*shell, "-c", line]
    try:
        return shlex.split(line)
    except ValueError as e:
        raise TwinrunError(f"the command {shown_line(line)!r:.200} cannot be split into words: {e}") from None


def _values(
    folder: StudyFolder, task: Task, attempt: int, own: Path, cores: list[int] | None
) -> dict[str, str]:
    """What the names in a command, a variable, … stand for."""
    study = folder.study
    return {
        **{f.name: f.value(task.factors[f.name]) for f in study.factors},
        "task": str(task.task),
        "seed": str(task.seed),
        "folder": str(own),
        "repetition": str(task.repetition),
        "replica": "" if task.replica is None else str(task.replica),
        "block": str(task.block),
        "attempt": str(attempt),
        "study": str(folder.path),
        "here": str(study.here),
        "cores": ",".join(map(str, cores or [])),
        "core_count": str(len(cores)) if cores else "",
        "node": task.node or "",
    }


def _environment(
    study: Study, engine: EngineBase, task: Task, own: Path, values: Mapping[str, str]
) -> dict[str, str | None]:
    """The variables that a task has beside those of this process; None: without it."""
    environment: dict[str, str | None] = {
        k: v for k, v in engine.environment(values).items() if k not in os.environ
    }
    environment |= {k: fill(v, values) for k, v in study.environment.items()}
    for factor in study.factors:
        for variable, template in factor.variables.items():
            value = fill(template, values)
            environment[variable] = None if value == UNSET else value
    interposed = next((task.factors[f.name] for f in study.factors if f.kind == "interpose"), None)
    preloaded = environment["LD_PRELOAD"] if "LD_PRELOAD" in environment else os.environ.get("LD_PRELOAD")
    return environment | interposition.variables_of_task(study, interposed, task.seed, own, preloaded)


def _verify(study: Study, values: Mapping[str, str]) -> dict[str, dict]:
    """How the watcher sees the value of each factor."""
    verify: dict[str, dict] = {}
    for factor in study.factors:
        name = factor.name
        if factor.check:
            check = [w if w == "{pid}" else fill(w.replace("{pid}", "{{pid}}"), values) for w in factor.check]
            verify[name] = {"kind": "check", "command": check, "after": factor.check_after}
        elif factor.kind in ("cores", "threads"):
            verify[name] = {"kind": factor.kind}
        elif factor.variables and not factor.match:
            # The variable with the level itself, if there is one.
            variable = next(
                (v for v, t in factor.variables.items() if t == "{" + name + "}"),
                next(iter(factor.variables)),
            )
            verify[name] = {"kind": "environment", "variable": variable}
    return verify


def spec_of(
    folder: StudyFolder, engine: EngineBase, task: Task, attempt: int, own: Path, share: list[int] | None
) -> dict:
    """The spec that the watcher runs."""
    study = folder.study
    level = next((f.value(task.factors[f.name]) for f in study.factors if f.kind == "cores"), None)
    cores = share
    if share is not None and level is not None:
        cores = cores_of_level(level, share, study.engine.spare)
    values = _values(folder, task, attempt, own, cores)
    words = _words(study, task, values)
    chosen = study.commands.get(task.factors.get(COMMAND, ""))
    prepare = [*study.prepare, *(chosen.prepare if chosen else ())]
    directory = Path(fill(study.directory, values)) if study.directory else own
    return watch_spec(
        study,
        engine,
        own,
        engine.command(words, values),
        _environment(study, engine, task, own, values),
        directory if directory.is_absolute() else study.here / directory,
        share,
        prepare=[[fill(w, values) for w in line] for line in prepare],
        covariates={
            name: {"command": [fill(w, values) for w in own.command], "difference": own.difference}
            for name, own in study.covariates.items()
        },
        cores_level=level,
        own_cores=engine.own_cores(level, share),
        verify=_verify(study, values),
    )
