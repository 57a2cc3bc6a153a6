"""How often a study repeats, and when it looks whether it knows enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Plan", "looks"]


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
    result = [plan.least]
    while result[-1] < plan.most:
        result.append(min(math.ceil(result[-1] * 1.25), plan.most))
    return result
