"""The base of all studies: factors, jobs, results, precision, and the identity of a journal."""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from .engine import Blocks, Condition
from .launch import Job, Stack
from .report import Finding

__all__ = ["ManyStacks", "Rate", "Study", "launch_arguments", "stack_words", "storage_identity"]

Rate = Annotated[float, Meta(gt=0, lt=1e30)]  # bytes a second


@dataclass(frozen=True, kw_only=True)
class Study(abc.ABC):
    """ranks: of a job.

    folder: for files of runs; None if they write none. precision: the precision that figures must
    reach. confidence: of intervals. seconds: the limit of one run.
    arguments: further options of haccio.
    """

    name: ClassVar[str]
    results: ClassVar[type[Struct]]  # what a run says, in the journal too
    folder: Path | None = None  # for files of a run
    ranks: int
    warmup: int = 1
    precision: float = 0.05
    confidence: float = 0.95
    seconds: float = 600.0
    arguments: Sequence[str] = ()

    @abc.abstractmethod
    def own_identity(self) -> dict:
        """The keys that this kind of study adds to `identity`."""

    @abc.abstractmethod
    def factors(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """What is varied, and its levels: every combination is a condition."""

    def conditions(self) -> list[Condition]:
        """The conditions; each is a launch in every block."""
        factors = self.factors()
        return [dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())]

    @abc.abstractmethod
    def job(self, condition: Condition, block: int, prefix: str) -> Job:
        """The launch of haccio that a run is. prefix: what names of its files begin with."""

    @abc.abstractmethod
    def read(self, condition: Condition, own: Path) -> Mapping[str, Any]:
        """The results of a run, from the folder of its attempt.

        Raises ValueError, KeyError or TypeError if haccio wrote something else.
        """

    def flaw(self, condition: Condition, results: Mapping[str, Any]) -> str | None:
        """The error in the results of a run; None if they are valid."""
        try:
            msgspec.convert(results, self.results)
        except msgspec.ValidationError as e:
            return str(e)
        return None

    @abc.abstractmethod
    def enough(self, blocks: Blocks) -> bool:
        """Whether all figures are precise enough."""

    @abc.abstractmethod
    def result(self, blocks: Blocks, ended: bool) -> dict[str, Any]:
        """All figures and the guidance. ended: the intervals are narrow enough."""

    @abc.abstractmethod
    def guidance(self, blocks: Blocks) -> list[Finding]:
        """The findings of the runs."""

    def identity(self) -> dict:
        """What runs of one journal have in common."""
        return {
            "ranks": self.ranks,
            **self.own_identity(),
            "warmup": self.warmup,
            "arguments": list(self.arguments),
        }

    def document(self, blocks: Blocks, ended: bool, rows: list[dict], **facts: object) -> dict:
        """A result, for JSON. ended: the intervals are narrow enough. facts: of this kind of study."""
        return {
            "study": self.name,
            **self.identity(),
            **facts,
            "blocks": len(blocks),
            "precise": ended,
            "precision": self.precision,
            "rows": rows,
            "guidance": [f.json() for f in self.guidance(blocks)] if blocks else [],
        }


@dataclass(frozen=True, kw_only=True)
class ManyStacks(Study):
    """A study that may compare MPI libraries."""

    stacks: Sequence[Stack]

    def identity(self) -> dict:
        """What runs of one journal have in common."""
        return {"stacks": [stack_words(s) for s in self.stacks], **super().identity()}


def stack_words(stack: Stack) -> list[str]:
    """The name of a stack in journals."""
    return [*stack.mpiexec, stack.program]


def storage_identity(folder: Path, layout: str, synced: bool) -> dict:
    """Keys of studies that write files."""
    return {"folder": os.path.abspath(folder), "layout": layout, "synced": synced}


def launch_arguments(warmup: int, repeat: int, block: int) -> list[str]:
    """Options of haccio for one run of a block: each block has its own order of methods."""
    return ["--warmup", str(warmup), "--repeat", str(repeat), "--seed", str(block + 1)]
