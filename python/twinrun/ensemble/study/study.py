"""A study: what runs, what varies, how often, and when it ends.

Read from TOML; docs/reference/ensemble.md has all keys.

    name = "checkpoints"
    command = ["mdrun", "-cpt", "{checkpoint}", "-seed", "{seed}"]
    repetitions = 10

    [factors.checkpoint]
    levels = ["on", "off"]
    values = { on = "0.005", off = "-1" }

    [factors.cores]
    levels = ["all", "all-but-one"]

Every unknown key is an error: a study with a misspelt key would measure something else. `document`
has the keys with their types and ranges; here is what they mean together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from ...documents import Words, checked, read_toml
from ...errors import MissingFile, TwinrunError
from .document import (
    CommandKeys,
    Document,
    FactorKeys,
    Hypothesis,
    Interpose,
    InterposeKeys,
    MetricKeys,
    Settings,
)
from .interposition import OFF, check_rules, library
from .templates import PLACES, places

__all__ = ["COMMAND", "Command", "Factor", "Metric", "Study", "parse_study", "read_study"]

COMMAND = "command"  # the factor of studies with several commands
REPLICAS = "replicas"  # the factor of the number of tasks in a workload
INTERPOSE = "interpose"  # the factor of tasks with and without the interposition library
UNSET = "(unset)"  # a level of an environment variable: it is not set


@dataclass(frozen=True)
class Factor:
    """A condition that is varied on purpose.

    kind: "value" ({NAME} in the command, and variables of the environment), "cores", "threads",
    "replicas" (how many tasks a workload has), "interpose".
    levels: their names. values: what {NAME} becomes. variables: of the environment, templates.
    check: a command that says what holds for the running task, {pid}; after: seconds from its
    start. match: an expression whose first group, found in `match_file`, is the value.
    """

    name: str
    levels: tuple[str, ...]
    kind: str = "value"
    values: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    check: tuple[str, ...] = ()
    check_after: float = 0.0
    match: str = ""
    match_file: str = "stdout"

    def value(self, level: str) -> str:
        """The text that replaces {NAME}."""
        return self.values.get(level, level)


@dataclass(frozen=True)
class Command:
    """A level of the factor `command`. words: one text, or words; templates."""

    words: str | tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()

    @property
    def templates(self) -> list[str]:
        """All its texts."""
        own = [self.words] if isinstance(self.words, str) else list(self.words)
        return [*own, *(w for line in self.prepare for w in line)]


class Metric(MetricKeys, frozen=True, kw_only=True):
    """A number that a task reports: by an expression (its first group) or a key of a JSON file."""

    name: str


class Study(Settings, frozen=True, kw_only=True):
    """A whole study. document: as it was read. here: the folder where relative paths begin.
    commands: by level of the factor `command`; where there are any, `command` is empty.
    """

    name: str
    command: tuple[str, ...]
    commands: Mapping[str, Command] = {}
    factors: tuple[Factor, ...]
    metrics: tuple[Metric, ...]
    interpose: Interpose | None
    here: Path
    document: Mapping[str, object]

    def replicas_of(self, cell: Mapping[str, str]) -> int:
        """How many identical tasks a workload of this cell has."""
        for factor in self.factors:
            if factor.kind == REPLICAS:
                return int(factor.value(cell[factor.name]))
        return self.replicas

    @property
    def replicated(self) -> bool:
        """Whether cells are workloads of tasks that start at once."""
        return self.replicas > 1 or any(f.kind == REPLICAS for f in self.factors)

    @property
    def most_replicas(self) -> int:
        """Tasks of the largest workload."""
        own = [int(f.value(x)) for f in self.factors if f.kind == REPLICAS for x in f.levels]
        return max(own, default=self.replicas)

    @property
    def blocks(self) -> int:
        """The largest number of blocks."""
        return self.stopping.most if self.stopping else self.repetitions

    @property
    def texts(self) -> list[str]:
        """Templates of what tasks run."""
        return [
            *self.command,
            *(t for command in self.commands.values() for t in command.templates),
            *self.environment.values(),
            *(w for own in self.covariates.values() for w in own.command),
            *(w for line in (*self.setup, *self.prepare, *self.cleanup) for w in line),
        ]

    def factor(self, name: str) -> Factor:
        """A factor by its name."""
        return next(f for f in self.factors if f.name == name)


def _factor(name: str, keys: FactorKeys, where: str) -> Factor:
    def wrong(key: str, what: str) -> TwinrunError:
        return TwinrunError(f"factors.{name}.{key} {what}", where=where)

    kind = keys.kind or (name if name in ("cores", "threads", REPLICAS, INTERPOSE) else "value")
    if kind == REPLICAS:
        for level in keys.levels:
            number = keys.values.get(level, level)
            if not re.fullmatch(r"[1-9][0-9]{0,4}", number):
                raise wrong("levels", f"must be numbers of tasks from 1 to 99999, not {number!r:.40}")
    if (kind == INTERPOSE) != (name == INTERPOSE):
        raise wrong("kind", f"is {INTERPOSE} for the factor {INTERPOSE}, and for no other")
    if name in PLACES and kind == "value":
        raise wrong("kind", f"{{{name}}} has a meaning of its own: give the factor another name")
    variables: dict[str, str] = {**keys.environment}
    if keys.variable:
        variables[keys.variable] = "{" + name + "}"
    if kind == "threads" and not variables:
        variables = {"OMP_NUM_THREADS": "{" + name + "}"}
    return Factor(
        name, keys.levels, kind, keys.values, variables, keys.check, keys.check_after, keys.match, keys.match_file
    )  # fmt: skip


def _interpose(keys: InterposeKeys, factors: dict[str, Factor], where: str) -> Interpose | None:
    """Also makes the factor, unless the study has its own: levels off, on, and each injection by its name."""

    def wrong(key: str, what: str, fix: str | None = None) -> TwinrunError:
        return TwinrunError(f"interpose.{key} {what}", where=where, fix=fix)

    if INTERPOSE in factors:
        if keys.inject:
            raise wrong("inject", f"and factors.{INTERPOSE}.values: give one of them")
    elif keys.enabled:
        own = [OFF] if keys.arm else []
        if {OFF, "on"} & set(keys.inject):
            raise wrong("inject", "gives rules to off or on, which inject nothing: name them otherwise")
        factors[INTERPOSE] = Factor(INTERPOSE, (*own, "on", *keys.inject), INTERPOSE, keys.inject)
    factor = factors.get(INTERPOSE)
    if not keys.enabled:
        if factor is not None:
            raise wrong("enabled", f"is false, and there is a factor {INTERPOSE}")
        return None
    assert factor is not None
    if keys.arm and OFF not in factor.levels:
        raise wrong("arm", f"is true, and {OFF} is not a level of {INTERPOSE}", "add it, or set arm = false")
    if factor.values.get(OFF):
        raise wrong("inject", f"gives rules to {OFF}, which is without the library")
    if OFF not in factor.levels and keys.every > 1:
        raise wrong("every", "is for tasks without the library, of which there are none")
    for level, rules in factor.values.items():
        try:
            check_rules(rules, library(Path(where).resolve().parent / keys.library if keys.library else None))
        except MissingFile:
            break  # an error when tasks are to run: a plan can be shown without it
        except TwinrunError as e:
            raise wrong(f"inject.{level}", e.what, e.fix) from None
    return keys


def _commands(keys: Mapping[str, CommandKeys], where: str) -> dict[str, Command]:
    found = {}
    for name, own in keys.items():
        try:
            if not name.strip():
                raise ValueError("needs a name")
            words = Words.of(own.command)  # of a text: whether it can be split
        except ValueError as e:
            raise TwinrunError(f"commands.{name} {e}", where=where) from None
        if not words or not words[0].strip():
            raise TwinrunError(f"commands.{name} has no command", where=where)
        found[name] = Command(
            own.command if isinstance(own.command, str) else tuple(words), tuple(own.prepare)
        )
    return found


def _check_hypothesis(number: int, hypothesis: Hypothesis, study: Study, where: str) -> None:
    def wrong(key: str, what: str) -> TwinrunError:
        return TwinrunError(f"hypotheses[{number}].{key} {what}", where=where)

    factors = {f.name: f for f in study.factors}
    name = hypothesis.factor
    if name not in factors:
        raise wrong("factor", f"names {name!r:.60}, which is no factor of the study")
    levels = factors[name].levels
    for key, level in (("level", hypothesis.level), ("base", hypothesis.base)):
        if level and level not in levels:
            raise wrong(key, f"names {level!r:.60}, which is not a level of {name}")
    if len(levels) < 2 or (hypothesis.level and hypothesis.level == hypothesis.base):
        raise wrong("level", "and base must be two levels")
    if len(levels) > 2 and not (hypothesis.level and hypothesis.base):
        raise wrong("level", f"and base must be given: {name} has {len(levels)} levels")
    for other, level in hypothesis.given.items():
        if other not in factors or other == name or level not in factors[other].levels:
            raise wrong("given", f"names {other} = {level!r:.60}, which does not exist")
    known = {"wall", "user", "system", "run_queue_delay", "max_memory_bytes", *_named(study)}
    if hypothesis.metric not in known and "." not in hypothesis.metric:
        raise wrong("metric", f"is {hypothesis.metric!r}, which is not measured")


def _named(study: Study) -> set[str]:
    return {f"metrics.{m.name}" for m in study.metrics}


def parse_study(document: Mapping, path: str | Path = "study.toml") -> Study:
    """The study of a TOML document. Raises TwinrunError for missing, unknown or contradictory keys."""
    where = str(path)
    given = checked(document, Document, where, "docs/reference/ensemble.md lists all keys")
    factors = {n: _factor(n, keys, where) for n, keys in given.factors.items()}
    commands = _commands(given.commands, where)
    if commands:
        if COMMAND in factors:
            raise TwinrunError(
                f"factors.{COMMAND} is the factor of [commands]: name it otherwise", where=where
            )
        factors = {COMMAND: Factor(COMMAND, tuple(commands), COMMAND), **factors}
    # A factor of this kind requires it.
    interposed = given.interpose or (InterposeKeys() if INTERPOSE in factors else None)
    interpose = None if interposed is None else _interpose(interposed, factors, where)
    try:
        command = (str(given.command),) if given.shell and not commands else Words.of(given.command)
    except ValueError as e:
        raise TwinrunError(f"command {e}", where=where) from None
    study = Study(
        **{name: getattr(given, name) for name in Settings.__struct_fields__},
        name=given.name if given.name is not None else Path(where).stem,
        command=command,
        commands=commands,
        factors=tuple(factors.values()),
        metrics=tuple(Metric(name=n, **structs.asdict(keys)) for n, keys in given.metrics.items()),
        interpose=interpose,
        here=Path(where).resolve().parent,
        document=document,
    )
    _check(study, where)
    if study.replicated and "concurrency" not in document:
        study = structs.replace(study, concurrency=_slots(study))
    return study


def _slots(study: Study) -> int:
    """Tasks at once, if the study does not say it: all of a workload, at most as many as this node
    has cores for.
    """
    if study.engine.kind not in ("local", "mpirun") or study.engine.share_cores:
        return study.most_replicas
    return max(
        1, min(study.most_replicas, len(os.sched_getaffinity(0)) // (study.engine.cores_per_task or 1))
    )


def _check(study: Study, where: str) -> None:
    """Checks rules that concern several keys."""
    if not study.commands and (not study.command or not study.command[0].strip()):
        raise TwinrunError("there is no command", where=where)
    names = {f.name for f in study.factors}
    templates = [*study.texts, study.engine.ranks]
    templates += study.engine.launcher if study.engine.kind == "mpirun" else ()
    templates += [t for f in study.factors for t in f.variables.values()]
    if study.results is not None:
        templates += [study.results.path, study.results.reference]
    if study.replicas > 1 and any(f.kind == REPLICAS for f in study.factors):
        raise TwinrunError("replicas and a factor of that kind: give one of them", where=where)
    if study.replicated and study.design.nodes:
        raise TwinrunError(
            "design.nodes sends single tasks to nodes, and replicas share all slots",
            where=where,
            fix="leave out design.nodes",
        )
    if study.noise is not None and study.engine.kind in ("psij", "srun"):
        raise TwinrunError(
            "noise is measured on this node, and tasks of a batch system run on others",
            where=where,
            fix="run twinrun noise as a job of its own",
        )
    for number, hypothesis in enumerate(study.hypotheses, 1):
        _check_hypothesis(number, hypothesis, study, where)
    used: set[str] = set()
    for template in templates:
        used |= places(template, names, where)
    for factor in study.factors:
        if factor.kind == "value" and factor.name not in used:
            raise TwinrunError(
                f"the factor {factor.name} changes nothing",
                where=where,
                fix=f"write {{{factor.name}}} in the command, or give it a variable",
            )
    for name, level in study.design.base.items():
        if name not in names or level not in study.factor(name).levels:
            raise TwinrunError(f"design.base names {name} = {level}, which does not exist", where=where)
    if study.stopping and study.stopping.metric != "wall":
        if study.stopping.metric not in {"user", "system", "run_queue_delay", *_named(study)}:
            raise TwinrunError(f"stopping.metric {study.stopping.metric!r} is not measured", where=where)


def read_study(path: str | os.PathLike[str]) -> Study:
    """The study in a file.

    Raises MissingFile, DamagedFile where it is no TOML, TwinrunError as `parse_study`.
    """
    return parse_study(read_toml(path, "study"), os.fspath(path))
