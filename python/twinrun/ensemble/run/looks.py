"""How often a study repeats, and when it looks whether it knows enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..study.design import Task

__all__ = ["Plan", "looks", "parts", "workloads"]


@dataclass(frozen=True)
class Plan:
    """How often. least, most: blocks. seed: of the order."""

    least: int = 10
    most: int = 40
    seed: int = 1


def looks(plan: Plan) -> list[int]:
    """After how many blocks intervals are looked at.

    A quarter more each time: looking after every block would stop at the first interval that is narrow by
    chance.
    """
    result = [min(plan.least, plan.most)]
    while result[-1] < plan.most:
        result.append(min(math.ceil(result[-1] * 1.25), plan.most))
    return result


def workloads(part: Sequence[Task]) -> list[list[Task]]:
    """Tasks that run at once, and end before the next ones begin: the replicas of a cell; without
    replicas the whole part.
    """
    if part[0].replica is None:
        return [list(part)]
    groups = itertools.groupby(part, key=lambda t: (t.block, tuple(t.factors.items())))
    return [list(group) for _, group in groups]


def parts(tasks: Sequence[Task], plan: Plan | None) -> list[list[Task]]:
    """Warm-ups, then blocks up to each look; without a plan all blocks at once."""
    found = [[t for t in tasks if t.warmup]]
    own = [t for t in tasks if not t.warmup]
    if plan is None:
        return [p for p in (*found, own) if p]
    before = 0
    for look in looks(plan):
        found.append([t for t in own if before <= t.block < look])
        before = look
    return [p for p in found if p]
