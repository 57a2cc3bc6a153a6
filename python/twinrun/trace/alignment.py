"""Two streams of events, matched: by the longest stretches that they have in common, in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

from ..runs.events import Event

__all__ = ["Pair", "aligned", "is_rest", "leading"]

Pair = tuple[Event | None, Event | None]
# Pairs of equal keys beyond which matching would take minutes; keys that are too frequent are then
# left unmatched.
_MOST_PAIRS = 30_000_000

# What comes before the first module of an iteration.
_BEFORE = ("begin", "record")


def is_rest(events: Sequence[Event]) -> bool:
    """Whether an iteration has nothing but values that the training named: those after the last step."""
    return bool(events) and all(e.phase in _BEFORE for e in events)


def leading(events: Sequence[Event]) -> list[Event]:
    """The events before the first one of a module."""
    return list(takewhile(lambda e: e.phase in _BEFORE, events))


def _strict(e: Event) -> Hashable:
    return (e.phase, e.microbatch, e.module, e.operation, tuple((v.name, v.out, v.form) for v in e.values))


def _loose(e: Event) -> Hashable:
    # An entry and an exit have one name; which of the two an event is follows from what it holds.
    return (e.phase, e.module, e.operation, any(v.out for v in e.values))


def _blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Numbers of matched keys, ascending on both sides."""
    first, last_a, last_b = 0, len(a), len(b)
    while first < min(last_a, last_b) and a[first] == b[first]:
        first += 1
    while last_a > first and last_b > first and a[last_a - 1] == b[last_b - 1]:
        last_a, last_b = last_a - 1, last_b - 1
    pairs = [(i, i) for i in range(first)]
    middle_a, middle_b = a[first:last_a], b[first:last_b]
    if middle_a and middle_b:
        often_a, often_b = Counter(middle_a), Counter(middle_b)
        cost = sum(n * often_b[key] for key, n in often_a.items())
        matcher = SequenceMatcher(None, middle_a, middle_b, autojunk=cost > _MOST_PAIRS)
        for i, j, n in matcher.get_matching_blocks():
            pairs.extend((first + i + k, first + j + k) for k in range(n))
    tail = len(a) - last_a
    pairs.extend((last_a + k, last_b + k) for k in range(tail))
    return pairs


def _matched(
    a: Sequence[Event], b: Sequence[Event], keys: Sequence[Callable[[Event], Hashable]]
) -> list[Pair]:
    if not a or not b or not keys:
        return [*((e, None) for e in a), *((None, e) for e in b)]
    pairs: list[Pair] = []
    at_a = at_b = 0
    ends = [*_blocks([keys[0](e) for e in a], [keys[0](e) for e in b]), (len(a), len(b))]
    for i, j in ends:
        pairs.extend(_matched(a[at_a:i], b[at_b:j], keys[1:]))
        if i < len(a):
            pairs.append((a[i], b[j]))
        at_a, at_b = i + 1, j + 1
    return pairs


def aligned(a: Sequence[Event], b: Sequence[Event]) -> list[Pair]:
    """Pairs of events in the order of both streams; None where the other run has none.

    First events that also agree in the names, types and shapes of their values are matched; what is
    between them is matched by phase, module and operation. Gradients of parameters are matched wherever they
    are: frameworks sum them up in an order that may change, as threads and compiled code do.
    """
    pairs = _matched(a, b, (_strict, _loose))
    moved: dict[Hashable, list[Event]] = {}
    for one, other in pairs:
        if one is None and other is not None and (key := _of_parameter(other)):
            moved.setdefault(key, []).append(other)
    if not moved:
        return pairs
    taken: set[int] = set()
    found: list[Pair] = []
    for one, other in pairs:
        if other is None and (waiting := moved.get(_of_parameter(one))):
            other = waiting.pop(0)
            taken.add(id(other))
        found.append((one, other))
    return [pair for pair in found if pair[0] is not None or id(pair[1]) not in taken]


def _of_parameter(e: Event | None) -> Hashable:
    """What the event of a parameter's gradient is matched by; None for other events."""
    if e is None or e.phase != "backward" or not e.operation.startswith("gradient of "):
        return None
    return e.module, e.operation
