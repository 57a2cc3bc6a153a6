"""What operations take and give: tensors by name, and plain values as text. A training runs the same
operations again and again: what there is to do for one of certain types is found out once, as a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..capture.events import ReadyEvent
from ..runs.events import Event, Traced
from .values import is_plain, leaves, plain_text, put

__all__ = ["Plan", "Ready", "flat", "operands", "plan_of"]

_SCALARS = {bool, int, float, str, type(None)}
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
# The types that plans know. The text of a plain value of them is all that is recorded of it.
_KNOWN = {
    _TENSOR, _PARAMETER, bool, int, float, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip
_CONTAINERS = (list, tuple)


class Plan:
    """What operations of certain types take and give.

    places: of tensors among all values, as `flat` gives them. names: of these tensors, and whether they come
    out. plain: the places of the other values that go in. others: names of what comes out and is None.
    ready: events that were made, by the text of these other values. taken: how many tensors go in.
    """

    __slots__ = ("names", "others", "places", "plain", "ready", "taken")

    def __init__(
        self, places: list[int], names: list[tuple[str, bool]], plain: list[int], others: list[str]
    ) -> None:
        self.places, self.names, self.plain, self.others = places, names, plain, others
        self.taken = sum(not out for _, out in names)
        self.ready: dict[str, Ready] = {}

    def new_event(
        self, operation: str, setting: Traced | None, others: list[Traced], home: list
    ) -> ReadyEvent:
        """An event of the operation, without what differs from time to time."""
        traced = [Traced(name, out, "value", "", ()) for name, out in self.names]
        values = [*([] if setting is None else [setting]), *others, *traced]
        return ReadyEvent(Event("", 0, "", "", operation, -1, -1, values, ""), traced, home)


class Ready(NamedTuple):
    """Events of a plan that nobody uses now, the settings of new ones, and a line of these for people."""

    events: list[ReadyEvent]
    setting: Traced | None
    others: list[Traced]
    arguments: str


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


def flat(args: tuple, kwargs: dict[str, Any], result: Any) -> tuple[tuple, Sequence[Any]]:
    """(types of what an operation took and gave, these values without the lists that hold them)."""
    values: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
    types: tuple = tuple(map(type, values))
    if list in types or tuple in types:
        taken: list[Any] = []
        inner: list[Any] = []
        for kind, one in zip(types, values, strict=True):
            if kind is list or kind is tuple:
                inner.append((kind, *map(type, one)))
                taken.extend(one)
            else:
                inner.append(kind)
                taken.append(one)
        types, values = tuple(inner), taken
    kind = type(result)
    if kind is tuple or kind is list:
        return (types, (kind, *map(type, result)), *kwargs), (*values, *result)
    return (types, kind, *kwargs), (*values, result)


def plan_of(types: tuple, values: Sequence[Any], named: dict[str, Any], result: Any) -> Plan | None:
    """The plan for operations of these types, as `flat` gives them with the values. None where there is none:
    other types may have names of their own making.
    """
    taken_types, given_type = types[0], types[1]
    inner = [one for kind in taken_types for one in (kind[1:] if type(kind) is tuple else (kind,))]
    outer = list(given_type[1:]) if type(given_type) is tuple else [given_type]
    if not _KNOWN.issuperset(inner) or not all(kind is _TENSOR or kind is type(None) for kind in outer):
        return None
    taken, _ = operands(named)
    given, others = operands({"output": result})
    places = [n for n, one in enumerate(values) if isinstance(one, _TENSOR)]
    tensors = [*taken.values(), *given.values()]
    if len(places) != len(tensors) or any(values[n] is not t for n, t in zip(places, tensors, strict=True)):
        return None
    names = [*((name, False) for name in taken), *((name, True) for name in given)]
    plain = [n for n, kind in enumerate(inner) if not issubclass(kind, _TENSOR)]
    return Plan(places, names, plain, [name for name, _ in others])
