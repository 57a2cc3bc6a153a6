"""What operations take and give: tensors by name, and plain values as text. A training runs the same
operations again and again: what there is to do for one of certain types and plain values is found out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _core
from ..capture.events import ReadyEvent
from ..runs.events import Event, Traced
from .values import is_plain, leaves, plain_text, put

__all__ = ["Known", "Pools", "operands", "same_objects"]

_SCALARS = {bool, int, float, str, type(None)}


class Known(NamedTuple):
    """What is known of operations that take and give values of certain types, and certain plain values.

    pool: events that nobody uses now; operations with other plain values have the same ones. names: of the
    tensors, and whether they come out. values: of each event: a setting, or the number of a tensor.
    arguments: a line of the settings for people. then: what is known of what comes out, where that is looked
    at by itself.
    """

    pool: list[ReadyEvent]
    names: list[tuple[str, bool]]
    values: list[Traced | int]
    arguments: str
    then: _core.OperationPlans

    def event(self, operation: str) -> ReadyEvent:
        """An event of the operation, without what differs from time to time: used again, or a new one."""
        if not self.pool:
            traced = [Traced(name, out, "value", "", ()) for name, out in self.names]
            values = [traced[one] if isinstance(one, int) else one for one in self.values]
            return ReadyEvent(Event("", 0, "", "", operation, -1, -1, values, ""), traced, self.pool)
        ready = self.pool.pop()
        for at, one in enumerate(self.values):
            if type(one) is Traced:
                ready.event.values[at] = one
        return ready


class Pools:
    """Events of one operation that nobody uses now, by what they hold: a learning rate that is another one in
    each step needs no new ones.
    """

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[tuple, list[ReadyEvent]] = {}

    def of(self, names: list[tuple[str, bool]], values: list[Traced | int]) -> list[ReadyEvent]:
        """Those whose values are tensors of these names, and settings at the same places."""
        key = *names, *(one if isinstance(one, int) else None for one in values)
        return self._pools.setdefault(key, [])


def operands(named: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[tuple[str, str]]]:
    """(tensors, other values as text) of the arguments of an operation."""
    tensors: dict[str, torch.Tensor] = {}
    plain: list[tuple[str, str]] = []
    for name, value in named.items():
        if type(value) in _SCALARS:
            plain.append((name, repr(value)))
            continue
        if is_plain(value) and name not in tensors:  # most of them
            tensors[name] = value
            continue
        for label, one in leaves(name, value):
            if is_plain(one) and label not in tensors:
                tensors[label] = one
            elif (text := plain_text(one)) is not None:
                plain.append((label, text))
            else:
                put(tensors, label, one)
    return tensors, plain


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two lists have the same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
