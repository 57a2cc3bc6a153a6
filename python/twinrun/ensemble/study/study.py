"""A study: what runs, what varies, how often, and when it ends.

Read from TOML; docs/ensemble.md has all keys.

    name = "checkpoints"
    command = ["mdrun", "-cpt", "{checkpoint}", "-seed", "{seed}"]
    repetitions = 10

    [factors.checkpoint]
    levels = ["on", "off"]
    values = { on = "0.005", off = "-1" }

    [factors.cores]
    levels = ["all", "all-but-one"]

Every unknown key is an error: a study with a misspelt key would measure something else.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

from ...errors import DamagedFile, MissingFile, MissingPackage, TwinrunError
from .interposition import OFF, check_rules, library

__all__ = [
    "Compared",
    "Engine",
    "Factor",
    "Hypothesis",
    "Interpose",
    "Metric",
    "Noise",
    "Stopping",
    "Study",
    "parse_study",
    "read_study",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_-]*)\}")
# Names in templates besides factors.
PLACES = (
    "task",
    "seed",
    "folder",
    "repetition",
    "block",
    "attempt",
    "study",
    "here",
    "cores",
    "core_count",
    "node",
)
INTERPOSE = "interpose"  # the factor of tasks with and without the interposition library
UNSET = "(unset)"  # a level of an environment variable: it is not set


@dataclass(frozen=True)
class Factor:
    """A condition that is varied on purpose.

    kind: "value" ({NAME} in the command, and variables of the environment), "cores", "threads". levels: their
    names. values: what {NAME} becomes. variables: of the environment, templates. check: a command that says
    what holds for the running task, {pid}; after: seconds from its start. match: an expression whose first
    group, found in `match_file`, is the value.
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
class Metric:
    """A number that a task reports: by an expression (its first group) or a key of a JSON file."""

    name: str
    file: str = "stdout"
    regex: str = ""
    which: str = "last"  # first | last | sum | mean | largest | smallest | count
    json: str = ""  # a.b.0.c


@dataclass(frozen=True)
class Engine:
    """Where tasks run. kind: local, mpirun or psij; other fields as docs/ensemble.md has them."""

    kind: str = "local"
    cores_per_task: int = 0  # 0: an equal share
    pin: bool = True
    share_cores: bool = False
    spare: int | None = None
    launcher: tuple[str, ...] = ("mpirun",)
    ranks: str = "1"
    executor: str = "slurm"
    nodes: int = 1
    processes_per_node: int = 0
    cores_per_process: int = 0
    walltime: float = 0.0
    queue: str = ""
    project: str = ""
    exclusive: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    batch_launcher: str = "single"
    poll: float = 0.0  # seconds between polls of the batch system; 0: PSI/J's default


@dataclass(frozen=True)
class Interpose:
    """Tasks' calls are counted.

    arm: tasks without the library are part of the design, in every `every`-th block, so that its cost is
    known; flush: seconds between profiles while a task runs (0: none); library: a file instead of the
    installed one.
    """

    arm: bool = True
    every: int = 1
    flush: int = 30
    library: str = ""


@dataclass(frozen=True)
class Stopping:
    """The stopping rule: the mean of `metric` is known within `precision` (relative) in every cell."""

    metric: str = "wall"
    precision: float = 0.05
    confidence: float = 0.95
    least: int = 10
    most: int = 40


@dataclass(frozen=True)
class Hypothesis:
    """What the study is to show: that a factor's level makes `metric` slower, faster, larger, smaller or
    different than `base` does, by more than `by` (a ratio less one), or that it is the same within `by`.
    given: other factors' levels that it is about.
    """

    factor: str
    expect: str
    metric: str = "wall"
    by: float = 0.0
    level: str = ""
    base: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Compared:
    """Results that are compared: a path in the task's folder (a template), with those of the first task of
    the same seed, or with `reference`. atol, rtol: None is what the results' own metadata says.
    """

    path: str
    reference: str = ""
    atol: float | None = None
    rtol: float | None = None


@dataclass(frozen=True)
class Noise:
    """Noise of the system, measured before the first block and after the last.

    seconds: of each measurement.
    """

    seconds: float = 10.0
    threshold: str = "9x"
    compare: bool = True


@dataclass(frozen=True)
class Study:
    """A whole study. Raises TwinrunError where parts contradict each other; see `parse_study`."""

    name: str
    command: tuple[str, ...]
    factors: tuple[Factor, ...]
    repetitions: int = 10
    shell: bool = False
    directory: str = ""
    prepare: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    warmup: int = 0
    time_limit: float | None = None
    grace: float = 5.0
    retries: int = 0
    success: tuple[int, ...] = (0,)
    keep: tuple[str, ...] = ()
    design: str = "full"
    base: Mapping[str, str] = field(default_factory=dict)
    generators: tuple[str, ...] = ()
    fraction: int = 0
    nodes: tuple[str, ...] = ()
    order_seed: int = 1
    seeds: str = "repetition"
    first_seed: int = 1
    engine: Engine = field(default_factory=Engine)
    period: float = 0.05
    kernel_ends: bool = True
    metrics: tuple[Metric, ...] = ()
    results_file: str = ""
    capture_file: str = ""
    node_file: str = ""
    results: Compared | None = None
    noise: Noise | None = None
    hypotheses: tuple[Hypothesis, ...] = ()
    interpose: Interpose | None = None
    stopping: Stopping | None = None
    here: Path = Path()
    document: Mapping[str, object] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """The largest number of blocks."""
        return self.stopping.most if self.stopping else self.repetitions

    def factor(self, name: str) -> Factor:
        """A factor by its name."""
        return next(f for f in self.factors if f.name == name)


_Kind = TypeVar("_Kind")


class _Reader:
    """Takes keys out of a table; keys that remain at the end are an error."""

    def __init__(self, table: object, where: str, path: str) -> None:
        if not isinstance(table, Mapping):
            raise TwinrunError(f"{where or 'the study'} must be a table", where=path)
        self._table, self._where, self._path = dict(table), where, path

    @property
    def path(self) -> str:
        """The top table of the file."""
        return self._path

    def error(self, key: str, what: str, fix: str | None = None) -> TwinrunError:
        name = f"{self._where}.{key}" if self._where else key
        return TwinrunError(f"{name} {what}", where=self._path, fix=fix)

    @overload
    def take(self, key: str, kind: type[_Kind], default: _Kind) -> _Kind: ...
    @overload
    def take(self, key: str, kind: tuple[type, ...], default: object) -> Any: ...
    def take(self, key: str, kind: type | tuple[type, ...], default: object) -> object:
        if key not in self._table:
            return default
        value = self._table.pop(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            raise self.error(key, f"must be {' or '.join(k.__name__ for k in kinds)}, not {value!r:.60}")
        return value

    def number(self, key: str, default: float, least: float, most: float = 1e9) -> float:
        value = float(self.take(key, (int, float), default))
        if not least <= value <= most:
            raise self.error(key, f"must be from {least:g} to {most:g}, not {value:g}")
        return value

    def count(self, key: str, default: int, least: int = 0, most: int = 1_000_000) -> int:
        value = self.take(key, int, default)
        if not least <= value <= most:
            raise self.error(key, f"must be from {least} to {most}, not {value}")
        return value

    def choice(self, key: str, default: str, among: Sequence[str]) -> str:
        value = self.take(key, str, default)
        if value not in among:
            raise self.error(key, f"must be one of {', '.join(among)}, not {value!r:.60}")
        return value

    def words(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts and numbers, or one text that is split as a shell would."""
        value = self.take(key, (str, list), list(default))
        if isinstance(value, str):
            try:
                return tuple(shlex.split(value))
            except ValueError as e:
                raise self.error(key, f"cannot be split into words: {e}") from None
        return tuple(self.text(key, x) for x in value)

    def text(self, key: str, value: object) -> str:
        """A text or number, as text."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, int, float)):
            return str(value)
        raise self.error(key, f"holds {value!r:.60}, which is no text or number")

    def texts(self, key: str) -> dict[str, str]:
        value = self.take(key, dict, {})
        return {str(k): self.text(key, v) for k, v in value.items()}

    def table(self, key: str) -> _Reader:
        return _Reader(self._table.pop(key, {}), f"{self._where}.{key}" if self._where else key, self._path)

    def tables(self, key: str) -> dict[str, _Reader]:
        found = self.take(key, dict, {})
        for name in found:
            if not _NAME.fullmatch(name):
                raise self.error(key, f"has the name {name!r:.60}: write letters, digits, _ and -")
        prefix = f"{self._where}.{key}" if self._where else key
        return {n: _Reader(t, f"{prefix}.{n}", self._path) for n, t in found.items()}

    def end(self) -> None:
        if self._table:
            key = next(iter(self._table))
            raise self.error(key, "is not understood", "docs/ensemble.md lists all keys")


def _expression(reader: _Reader, key: str, text: str) -> str:
    try:
        if text and re.compile(text).groups < 1:
            raise reader.error(key, "has no group: put what counts in parentheses")
    except re.error as e:
        raise reader.error(key, f"is no regular expression: {e}") from None
    return text


def _factor(name: str, reader: _Reader) -> Factor:
    levels = reader.words("levels")
    if len(levels) < 1 or len(set(levels)) != len(levels):
        raise reader.error("levels", "must name at least one level, each once")
    usual = name if name in ("cores", "threads", INTERPOSE) else "value"
    kind = reader.choice("kind", usual, ("value", "cores", "threads", INTERPOSE))
    if (kind == INTERPOSE) != (name == INTERPOSE):
        raise reader.error("kind", f"is {INTERPOSE} for the factor {INTERPOSE}, and for no other")
    if name in PLACES and kind == "value":
        raise reader.error("kind", f"{{{name}}} has a meaning of its own: give the factor another name")
    variables = reader.texts("environment")
    variable = reader.take("variable", str, "")
    if variable:
        variables[str(variable)] = "{" + name + "}"
    if kind == "threads" and not variables:
        variables = {"OMP_NUM_THREADS": "{" + name + "}"}
    values = reader.texts("values")
    unknown = sorted(set(values) - set(levels))
    if unknown:
        raise reader.error("values", f"names {unknown[0]!r}, which is no level")
    factor = Factor(
        name=name,
        levels=levels,
        kind=kind,
        values=values,
        variables=variables,
        check=reader.words("check"),
        check_after=reader.number("check_after", 0.0, 0.0),
        match=_expression(reader, "match", str(reader.take("match", str, ""))),
        match_file=str(reader.take("match_file", str, "stdout")),
    )
    if bool(factor.check) + bool(factor.match) > 1:
        raise reader.error("check", "and match: give one of them")
    reader.end()
    return factor


def _metric(name: str, reader: _Reader) -> Metric:
    metric = Metric(
        name=name,
        file=str(reader.take("file", str, "stdout")),
        regex=_expression(reader, "regex", str(reader.take("regex", str, ""))),
        which=reader.choice(
            "which",
            "last",
            ("first", "last", "sum", "mean", "largest", "smallest", "count"),
        ),
        json=str(reader.take("json", str, "")),
    )
    if metric.which == "count" and metric.json:
        raise reader.error("which", "= count is of a regex")
    if bool(metric.regex) == bool(metric.json):
        raise reader.error("regex", "or json: give one of them")
    reader.end()
    return metric


def _engine(reader: _Reader) -> Engine:
    kind = reader.choice("kind", "local", ("local", "mpirun", "psij"))
    spare = reader.take("spare", int, None)
    engine = Engine(
        kind=kind,
        cores_per_task=reader.count("cores_per_task", 0),
        pin=bool(reader.take("pin", bool, True)),
        share_cores=bool(reader.take("share_cores", bool, False)),
        spare=spare,
        launcher=reader.words("launcher", ("mpirun",)),
        ranks=reader.text("ranks", reader.take("ranks", (int, str), 1)),
        executor=str(reader.take("executor", str, "slurm")),
        nodes=reader.count("nodes", 1, 1),
        processes_per_node=reader.count("processes_per_node", 0),
        cores_per_process=reader.count("cores_per_process", 0),
        walltime=reader.number("walltime", 0.0, 0.0),
        queue=str(reader.take("queue", str, "")),
        project=str(reader.take("project", str, "")),
        exclusive=bool(reader.take("exclusive", bool, False)),
        attributes=reader.texts("attributes"),
        batch_launcher=str(reader.take("batch_launcher", str, "single")),
        poll=reader.number("poll", 0.0, 0.0, 3600.0),
    )
    if not engine.launcher:
        raise reader.error("launcher", "is empty")
    reader.end()
    return engine


def _interpose(reader: _Reader, factors: dict[str, Factor]) -> Interpose | None:
    """Also makes the factor, unless the study has its own: levels off, on, and each injection by its name."""
    enabled = bool(reader.take("enabled", bool, True))
    interpose = Interpose(
        arm=bool(reader.take("arm", bool, True)),
        every=reader.count("every", 1, 1),
        flush=reader.count("flush", 30, 0, 999_999),
        library=str(reader.take("library", str, "")),
    )
    inject = reader.texts("inject")
    if INTERPOSE in factors:
        if inject:
            raise reader.error("inject", f"and factors.{INTERPOSE}.values: give one of them")
    elif enabled:
        own = [OFF] if interpose.arm else []
        if {OFF, "on"} & set(inject):
            raise reader.error(
                "inject", "gives rules to off or on, which inject nothing: name them otherwise"
            )
        factors[INTERPOSE] = Factor(INTERPOSE, (*own, "on", *inject), INTERPOSE, inject)
    factor = factors.get(INTERPOSE)
    if not enabled:
        if factor is not None:
            raise reader.error("enabled", f"is false, and there is a factor {INTERPOSE}")
        reader.end()
        return None
    assert factor is not None
    if interpose.arm and OFF not in factor.levels:
        raise reader.error(
            "arm", f"is true, and {OFF} is no level of {INTERPOSE}", "add it, or set arm = false"
        )
    if factor.values.get(OFF):
        raise reader.error("inject", f"gives rules to {OFF}, which is without the library")
    if OFF not in factor.levels and interpose.every > 1:
        raise reader.error("every", "is for tasks without the library, of which there are none")
    for level, rules in factor.values.items():
        try:
            check_rules(
                rules,
                library(
                    Path(reader.path).resolve().parent / interpose.library if interpose.library else None
                ),
            )
        except MissingFile:
            break  # an error when tasks are to run: a plan can be shown without it
        except TwinrunError as e:
            raise reader.error(f"inject.{level}", e.what, e.fix) from None
    reader.end()
    return interpose


def _stopping(reader: _Reader) -> Stopping:
    stopping = Stopping(
        metric=str(reader.take("metric", str, "wall")),
        precision=reader.number("precision", 0.05, 1e-6, 10.0),
        confidence=reader.number("confidence", 0.95, 0.5, 0.999),
        least=reader.count("least", 10, 2),
        most=reader.count("most", 40, 2),
    )
    if stopping.most < stopping.least:
        raise reader.error("most", "is less than least")
    reader.end()
    return stopping


_SAME = "same"
_EXPECTED = ("slower", "faster", "larger", "smaller", "different", _SAME)


def _hypothesis(number: int, table: object, factors: Mapping[str, Factor], path: str) -> Hypothesis:
    reader = _Reader(table, f"hypotheses[{number}]", path)
    factor = str(reader.take("factor", str, ""))
    if factor not in factors:
        raise reader.error("factor", f"names {factor!r:.60}, which is no factor of the study")
    expect = reader.choice("expect", "different", _EXPECTED)
    hypothesis = Hypothesis(
        factor=factor,
        expect=expect,
        metric=str(reader.take("metric", str, "wall")),
        by=reader.number("by", 0.0, 0.0, 1e6),
        level=reader.text("level", reader.take("level", (str, int, float, bool), "")),
        base=reader.text("base", reader.take("base", (str, int, float, bool), "")),
        given=reader.texts("given"),
        text=str(reader.take("text", str, "")),
    )
    levels = factors[factor].levels
    for key, level in (("level", hypothesis.level), ("base", hypothesis.base)):
        if level and level not in levels:
            raise reader.error(key, f"names {level!r:.60}, which is no level of {factor}")
    if len(levels) < 2 or (hypothesis.level and hypothesis.level == hypothesis.base):
        raise reader.error("level", "and base must be two levels")
    if len(levels) > 2 and not (hypothesis.level and hypothesis.base):
        raise reader.error("level", f"and base must be given: {factor} has {len(levels)} levels")
    for name, level in hypothesis.given.items():
        if name not in factors or name == factor or level not in factors[name].levels:
            raise reader.error("given", f"names {name} = {level!r:.60}, which there is not")
    if expect == _SAME and hypothesis.by == 0:
        raise reader.error("by", "must say within what they are the same, as 0.02")
    reader.end()
    return hypothesis


def _compared(reader: _Reader) -> Compared:
    tolerances: list[float | None] = []
    for key in ("atol", "rtol"):
        value = reader.number(key, -1.0, -1.0, 1e300)
        if -1 < value < 0:
            raise reader.error(key, "must not be negative")
        tolerances.append(None if value < 0 else value)
    compared = Compared(
        str(reader.take("compare", str, "")), str(reader.take("reference", str, "")), *tolerances
    )
    if not compared.path:
        raise reader.error("compare", "must name what tasks computed: a history, a folder or a file")
    reader.end()
    return compared


def _noise(reader: _Reader) -> Noise:
    noise = Noise(
        seconds=reader.number("seconds", 10.0, 0.1, 86400.0),
        threshold=str(reader.take("threshold", str, "9x")),
        compare=bool(reader.take("compare", bool, True)),
    )
    reader.end()
    return noise


def parse_study(document: Mapping, path: str | Path = "study.toml") -> Study:
    """The study of a TOML document. Raises TwinrunError for missing, unknown or contradictory keys."""
    where = str(path)
    top = _Reader(document, "", where)
    hypotheses = top.take("hypotheses", list, [])
    for entry in hypotheses:
        if not isinstance(entry, Mapping):
            raise top.error("hypotheses", "must be tables: [[hypotheses]]")
    has_stopping, has_results, has_noise = (
        "stopping" in document,
        "results" in document,
        "noise" in document,
    )
    design, seeds, sampling, record = (
        top.table("design"),
        top.table("seeds"),
        top.table("sampling"),
        top.table("record"),
    )
    limit = top.number("time_limit", 0.0, 0.0)
    shell = bool(top.take("shell", bool, False))
    if shell and not isinstance(document.get("command"), str):
        raise top.error("shell", "needs command as one text")
    command = (str(top.take("command", str, "")),) if shell else top.words("command")
    prepare = top.take("prepare", (str, list), [])
    if isinstance(prepare, list) and not all(isinstance(x, list) for x in prepare):
        prepare = [prepare]
    lines = [shlex.split(prepare)] if isinstance(prepare, str) else prepare
    factors = {n: _factor(n, r) for n, r in top.tables("factors").items()}
    # A factor of this kind requires it.
    interposed = "interpose" in document or INTERPOSE in factors
    interpose = _interpose(top.table("interpose"), factors) if interposed else None
    study = Study(
        name=str(top.take("name", str, Path(where).stem)),
        command=command,
        factors=tuple(factors.values()),
        repetitions=top.count("repetitions", 10, 1),
        shell=shell,
        directory=str(top.take("directory", str, "")),
        prepare=tuple(tuple(top.text("prepare", w) for w in line) for line in lines if line),
        environment=top.texts("environment"),
        concurrency=top.count("concurrency", 1, 1, 100_000),
        warmup=top.count("warmup", 0),
        time_limit=limit or None,
        grace=top.number("grace", 5.0, 0.0),
        retries=top.count("retries", 0),
        success=tuple(top.take("success", list, [0])),
        keep=top.words("keep"),
        design=design.choice("kind", "full", ("full", "one-at-a-time", "fractional")),
        base=design.texts("base"),
        generators=tuple(design.text("generators", g) for g in design.take("generators", list, [])),
        fraction=design.count("fraction", 0, 0, 10),
        nodes=design.words("nodes"),
        order_seed=design.count("order", 1),
        seeds=seeds.choice("kind", "repetition", ("repetition", "task", "fixed")),
        first_seed=seeds.count("first", 1),
        engine=_engine(top.table("engine")),
        period=sampling.number("period", 0.05, 0.001, 3600.0),
        kernel_ends=bool(sampling.take("kernel_ends", bool, True)),
        metrics=tuple(_metric(n, r) for n, r in top.tables("metrics").items()),
        results_file=str(record.take("results", str, "")),
        capture_file=str(record.take("capture", str, "")),
        node_file=str(record.take("node", str, "")),
        results=_compared(top.table("results")) if has_results else None,
        noise=_noise(top.table("noise")) if has_noise else None,
        hypotheses=tuple(_hypothesis(i, h, factors, where) for i, h in enumerate(hypotheses, 1)),
        interpose=interpose,
        stopping=_stopping(top.table("stopping")) if has_stopping else None,
        here=Path(where).resolve().parent,
        document=document,
    )
    for reader in (design, seeds, sampling, record, top):
        reader.end()
    _check(study, where)
    return study


def _check(study: Study, where: str) -> None:
    """Checks rules that concern several keys."""
    if not study.command or not study.command[0].strip():
        raise TwinrunError("there is no command", where=where)
    if not all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 256 for x in study.success):
        raise TwinrunError("success must list exit statuses", where=where)
    names = {f.name for f in study.factors}
    templates = [
        *study.command,
        *study.environment.values(),
        *(w for line in study.prepare for w in line),
        study.engine.ranks,
    ]
    templates += [t for f in study.factors for t in f.variables.values()]
    if study.results is not None:
        templates += [study.results.path, study.results.reference]
    if study.results is not None and study.results_file:
        raise TwinrunError("results and record.results: give one of them", where=where)
    if study.noise is not None and study.engine.kind == "psij":
        raise TwinrunError(
            "noise is measured on this node, and tasks of a batch system run on others",
            where=where,
            fix="run twinrun noise as a job of its own",
        )
    for hypothesis in study.hypotheses:
        known = {
            "wall",
            "user",
            "system",
            "run_queue_delay",
            "max_memory_bytes",
            *(f"metrics.{m.name}" for m in study.metrics),
        }
        if hypothesis.metric not in known and "." not in hypothesis.metric:
            raise TwinrunError(
                f"a hypothesis is about {hypothesis.metric!r}, which is not measured", where=where
            )
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
    for name, level in study.base.items():
        if name not in names or level not in study.factor(name).levels:
            raise TwinrunError(f"design.base names {name} = {level}, which there is not", where=where)
    if study.base and study.design != "one-at-a-time":
        raise TwinrunError("design.base is for one-at-a-time", where=where)
    if (study.generators or study.fraction) and study.design != "fractional":
        raise TwinrunError("design.generators and fraction are for fractional", where=where)
    if study.stopping and study.stopping.metric != "wall":
        known = {"user", "system", "run_queue_delay", *(f"metrics.{m.name}" for m in study.metrics)}
        if study.stopping.metric not in known:
            raise TwinrunError(f"stopping.metric {study.stopping.metric!r} is not measured", where=where)


def places(template: str, factors: set[str], where: str | None = None) -> set[str]:
    """Names in braces. Raises TwinrunError for an unknown name."""
    found = set()
    for match in _PLACE.finditer(template):
        name = match[1]
        if name is None:
            continue
        if name not in factors and name not in PLACES:
            raise TwinrunError(
                f"{{{name}}} means nothing in {template!r:.80}",
                where=where,
                fix="name a factor, or write {{ and }} for braces",
            )
        found.add(name)
    return found


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with its names replaced by values."""
    return _PLACE.sub(lambda m: values[m[1]] if m[1] else m[0][0], template)


def read_study(path: str | os.PathLike[str]) -> Study:
    """The study in a file.

    Raises MissingFile, DamagedFile where it is no TOML, TwinrunError as `parse_study`.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise MissingPackage.of("tomli", "tomli", path) from None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFile("there is no such study", where=path) from None
    except (OSError, UnicodeDecodeError) as e:
        raise TwinrunError(f"cannot be read: {e}", where=path) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise DamagedFile(f"is not TOML: {e}", where=path) from None
    return parse_study(document, os.fspath(path))
