"""Blocks of runs in shuffled order, until intervals are narrow enough."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ensemble.run.looks import Plan, looks
from .journal import Journal

__all__ = ["Condition", "Plan", "conduct", "looks"]

Condition = Mapping[str, Any]  # how a run differs from others: JSON
Blocks = list[dict[str, Mapping[str, Any]]]  # for each whole block: key of a condition -> its run


def key(condition: Condition) -> str:
    """The name of a condition in the journal."""
    return json.dumps(condition, sort_keys=True)


def whole_blocks(runs: Iterable[Mapping], conditions: Sequence[Condition]) -> Blocks:
    """Runs by block: the whole blocks before the first gap."""
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["block"], {})[key(run["condition"])] = run
    blocks: Blocks = []
    while all(key(c) in found.get(len(blocks), {}) for c in conditions):
        blocks.append(found[len(blocks)])
    return blocks


def order(plan: Plan, block: int, conditions: int) -> list[int]:
    """The order of conditions in a block: the same after a restart."""
    return np.random.default_rng([plan.seed, block]).permutation(conditions).tolist()


def conduct(
    journal: Journal,
    conditions: Sequence[Condition],
    run: Callable[[Condition, int], Mapping],
    enough: Callable[[Blocks], bool],
    plan: Plan,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Blocks, bool]:
    """Makes the runs that the journal lacks. Returns all whole blocks, and whether `enough` ended it.

    run(condition, block): its results, as JSON. enough(blocks): whether the intervals are narrow enough.
    """
    made = {(r["block"], key(r["condition"])) for r in journal.runs}
    stops = set(looks(plan))
    for block in range(plan.most):
        for at, i in enumerate(order(plan, block, len(conditions))):
            condition = conditions[i]
            if (block, key(condition)) in made:
                continue
            if progress:
                progress(f"block {block + 1}", block * len(conditions) + at, plan.most * len(conditions))
            journal.add({"block": block, "order": at, "condition": dict(condition), **run(condition, block)})
        if block + 1 in stops:
            blocks = whole_blocks(journal.runs, conditions)[: block + 1]
            if enough(blocks):
                return blocks, True
    return whole_blocks(journal.runs, conditions)[: plan.most], False
