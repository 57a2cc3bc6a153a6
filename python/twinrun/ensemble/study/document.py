"""The keys of a study's file: their types, ranges and defaults. docs/reference/ensemble.md says what they
mean.

`twinrun.documents.checked` makes a `Document` of what TOML holds. What concerns several tables at
once is checked in `study`, which makes a `Study` of it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ...documents import Text, Words

__all__ = [
    "CommandKeys",
    "Compared",
    "CovariateKeys",
    "Design",
    "Document",
    "Engine",
    "FactorKeys",
    "Hypothesis",
    "Interpose",
    "InterposeKeys",
    "MetricKeys",
    "Noise",
    "Recorded",
    "Sampling",
    "Seeds",
    "Settings",
    "Stopping",
]

_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_CountFrom1 = Annotated[int, Meta(ge=1, le=1_000_000)]
_CountFrom2 = Annotated[int, Meta(ge=2, le=1_000_000)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_Tolerance = Annotated[float, Meta(ge=0, le=1e300)]
_Name = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_-]*\Z", description="letters, digits, _ and -, and begin with no digit")
]  # fmt: skip


class Expression(str):
    """A regular expression with a group; or nothing."""

    @classmethod
    def of(cls, value: object) -> Expression:
        """Raises ValueError."""
        if not isinstance(value, str):
            raise ValueError(f"must be a text, not {value!r:.60}")
        try:
            if value and re.compile(value).groups < 1:
                raise ValueError("has no group: put what counts in parentheses")
        except re.error as e:
            raise ValueError(f"is not a regular expression: {e}") from None
        return cls(value)


class Lines(tuple[Words, ...]):
    """Commands, one after the other: one as `Words` has it, or a list of lists."""

    @classmethod
    def of(cls, value: object) -> Lines:
        """Raises ValueError as `Words`."""
        if isinstance(value, list) and value and all(isinstance(line, list) for line in value):
            lines = [Words.of(line) for line in value]
        else:
            lines = [Words.of(value)]
        return cls(line for line in lines if line)


class Number(str):
    """A number of ranks: an integer, or a template for one."""

    @classmethod
    def of(cls, value: object) -> Number:
        """Raises ValueError."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"must be an integer or a text, not {value!r:.60}")
        return cls(value)


class CommandKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[commands.NAME]: a level of the factor `command`. A text is filled, and then split or given
    to the shell; a list is filled word by word. prepare: besides that of the study.
    """

    command: str | list[str | int | float | bool]
    prepare: Lines = Lines()


class FactorKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[factors.NAME]. kind: None is the usual one for the name."""

    levels: Words = Words()
    kind: Literal["value", "cores", "threads", "replicas", "interpose"] | None = None
    values: dict[str, Text] = {}
    variable: str = ""
    environment: dict[str, Text] = {}
    check: Words = Words()
    check_after: _Seconds = 0.0
    match: Expression = Expression()
    match_file: str = "stdout"

    def __post_init__(self) -> None:
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ValueError("levels must name at least one level, each once")
        unknown = sorted(set(self.values) - set(self.levels))
        if unknown:
            raise ValueError(f"values names {unknown[0]!r}, which is not a level")
        if self.check and self.match:
            raise ValueError("check and match: give one of them")


class MetricKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[metrics.NAME]: a number that a task reports, by an expression or a key of a JSON file, a.b.0.c."""

    file: str = "stdout"
    regex: Expression = Expression()
    which: Literal["first", "last", "sum", "mean", "largest", "smallest", "count"] = "last"
    json: str = ""

    def __post_init__(self) -> None:
        if self.which == "count" and self.json:
            raise ValueError("which = count is of a regex")
        if bool(self.regex) == bool(self.json):
            raise ValueError("regex or json: give one of them")


class CovariateKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[covariates.NAME]: a command that prints a number, run before each task. difference: and
    after it; the number is then what came to it.
    """

    command: Words
    difference: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty")


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[engine]: where tasks run."""

    kind: Literal["local", "mpirun", "srun", "psij"] = "local"
    cores_per_task: _Count = 0  # 0: an equal share
    pin: bool = True
    share_cores: bool = False
    spare: int | None = None
    launcher: Words = Words(("mpirun",))
    ranks: Number = Number("1")
    executor: str = "slurm"
    nodes: _CountFrom1 = 1
    processes_per_node: _Count = 0
    cores_per_process: _Count = 0
    walltime: _Seconds = 0.0
    queue: str = ""
    project: str = ""
    exclusive: bool = False
    attributes: dict[str, Text] = {}
    batch_launcher: str = "single"
    # Seconds between polls of the batch system; 0: PSI/J's default.
    poll: Annotated[float, Meta(ge=0, le=3600)] = 0.0

    def __post_init__(self) -> None:
        if not self.launcher:
            raise ValueError("launcher is empty")


class Interpose(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks' calls are counted.

    arm: tasks without the library are part of the design, in every `every`-th block, so that its cost is
    known; flush: seconds between profiles while a task runs (0: none); library: a file instead of the
    installed one.
    """

    arm: bool = True
    every: _CountFrom1 = 1
    flush: Annotated[int, Meta(ge=0, le=999_999)] = 30
    library: str = ""


class InterposeKeys(Interpose, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[interpose]. inject: rules by the name of the level that they make."""

    enabled: bool = True
    inject: dict[str, Text] = {}


class Stopping(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[stopping]: what `of` names is known within `precision` (relative), or `time` is up.

    means: the mean of `metric` in every cell. ratios: the ratio of every cell to the first, or the
    median of the only one. time: seconds, after which no block begins, 0 is no limit; the first
    `time_after` blocks run whatever the time is.
    """

    of: Literal["means", "ratios"] = "means"
    metric: str = "wall"
    precision: Annotated[float, Meta(ge=1e-6, le=10)] = 0.05
    confidence: Annotated[float, Meta(ge=0.5, le=0.999)] = 0.95
    least: _CountFrom1 = 10
    most: _CountFrom1 = 40
    time: _Seconds = 0.0
    time_after: _CountFrom1 = 1

    def __post_init__(self) -> None:
        if self.most < self.least:
            raise ValueError("most is less than least")


class Hypothesis(Struct, frozen=True, forbid_unknown_fields=True):
    """[[hypotheses]]: what the study is to show: that a factor's level makes `metric` slower, faster, larger,
    smaller or different than `base` does, by more than `by` (a ratio less one), or that it is the same within
    `by`. given: other factors' levels that it is about.
    """

    factor: str
    expect: Literal["slower", "faster", "larger", "smaller", "different", "same"] = "different"
    metric: str = "wall"
    by: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    level: Text = Text()
    base: Text = Text()
    given: dict[str, Text] = {}
    text: str = ""

    def __post_init__(self) -> None:
        if self.expect == "same" and self.by == 0:
            raise ValueError("by must say within what they are the same, as 0.02")


class Compared(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[results]: a path in the task's folder (a template), compared with that of the first task of the same
    seed, or with `reference`. atol, rtol: None is what the results' own metadata says.
    """

    path: str = field(name="compare", default="")
    reference: str = ""
    atol: _Tolerance | None = None
    rtol: _Tolerance | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("compare must name what tasks computed: a history, a folder or a file")


class Noise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[noise]: noise of the system, measured before the first block and after the last.

    seconds: of each measurement.
    """

    seconds: Annotated[float, Meta(ge=0.1, le=86400)] = 10.0
    threshold: str = "9x"
    compare: bool = True


class Design(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[design]. order: the seed of the order."""

    kind: Literal["full", "one-at-a-time", "fractional"] = "full"
    base: dict[str, Text] = {}
    generators: tuple[Text, ...] = ()
    fraction: Annotated[int, Meta(ge=0, le=10)] = 0
    nodes: Words = Words()
    order: _Count = 1

    def __post_init__(self) -> None:
        if self.base and self.kind != "one-at-a-time":
            raise ValueError("base is for one-at-a-time")
        if (self.generators or self.fraction) and self.kind != "fractional":
            raise ValueError("generators and fraction are for fractional")


class Seeds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[seeds]."""

    kind: Literal["repetition", "task", "fixed"] = "repetition"
    first: _Count = 1


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[sampling]. kernel_ends: the kernel's figures of threads that end, where it permits."""

    period: Annotated[float, Meta(ge=0.001, le=3600)] = 0.05
    kernel_ends: bool = True


class Recorded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[record]: names of files that a task writes."""

    results: str = ""
    capture: str = ""
    node: str = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that a `Study` has as they are in the file. time_limit: 0 is none."""

    repetitions: _CountFrom1 = 10
    replicas: Annotated[int, Meta(ge=1, le=100_000)] = 1
    shell: bool | str = False
    directory: str = ""
    setup: Lines = Lines()
    prepare: Lines = Lines()
    cleanup: Lines = Lines()
    environment: dict[str, Text] = {}
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 1
    warmup: _Count = 0
    time_limit: _Seconds = 0.0
    grace: _Seconds = 5.0
    retries: _Count = 0
    success: tuple[Annotated[int, Meta(ge=0, le=255, description="an exit status")], ...] = (0,)
    keep: Words = Words()
    design: Design = Design()
    seeds: Seeds = Seeds()
    engine: Engine = Engine()
    sampling: Sampling = Sampling()
    record: Recorded = Recorded()
    results: Compared | None = None
    noise: Noise | None = None
    hypotheses: tuple[Hypothesis, ...] = ()
    covariates: dict[_Name, CovariateKeys] = {}
    stopping: Stopping | None = None

    def __post_init__(self) -> None:
        if self.results is not None and self.record.results:
            raise ValueError("results and record.results: give one of them")


class Document(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. command: one text with `shell`, otherwise `Words`."""

    name: str | None = None
    command: str | list[str | int | float | bool] = ""
    commands: dict[str, CommandKeys] = {}
    factors: dict[_Name, FactorKeys] = {}
    metrics: dict[_Name, MetricKeys] = {}
    interpose: InterposeKeys | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shell and not isinstance(self.command, str):
            raise ValueError("shell needs command as one text")
        if self.command and self.commands:
            raise ValueError("command and commands: give one of them")
