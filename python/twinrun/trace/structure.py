"""How two events differ beside the bits of their values: kinds of containers, the order of keys, strides."""

from __future__ import annotations

from ..runs.events import Event, Traced
from ..runs.gaps import gap
from ..runs.structure import ARGUMENTS, CLASS, GRAD, OF_TENSORS, OWN, WEAK, Key, facts_of, own_facts
from .result import Origin, StructureDifference
from .site import Site

__all__ = ["StructureSeen", "lone_containers", "structure_differences"]


# Facts of what is called, and of no value: their role.
_OF_THE_CALL = {OWN: "module", ARGUMENTS: "operation"}


def structure_differences(a: Event, b: Event, site: Site) -> list[StructureDifference]:
    """What differs beside the values of two events. Nothing, where one of them does not say.

    What belongs to a value that only one of them has is left out: that value is told by itself.
    """
    if a.structure is None or b.structure is None or a.structure == b.structure:
        return []
    ours, theirs = facts_of(a.structure), facts_of(b.structure)
    known_a, known_b = _values(a), _values(b)
    found: list[StructureDifference] = []
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        if ours.get(key) == theirs.get(key):
            continue
        out, name, what = key
        if what in _OF_THE_CALL and not name:
            mine, yours = _said(ours, a, what), _said(theirs, b, what)
            found += _own_differences(mine, yours, site, _OF_THE_CALL[what])
            continue
        one, other = known_a.get((out, name)), known_b.get((out, name))
        if _is_told(key, one, other):
            continue
        role = next((v.role for v in (one, other) if v is not None and not gap(v)), "value")
        usual = str(what == GRAD and role == "parameter") if what in (GRAD, WEAK) else ""
        said = ours.get(key, usual), theirs.get(key, usual)
        if said[0] != said[1]:
            found.append(StructureDifference(site, name, role, out, what, *said))
    return found


def lone_containers(a: Event, b: Event, found: list[StructureDifference]) -> list[StructureDifference]:
    """Of what `structure_differences` found, containers that one run alone has, such as an empty list.

    Of those whose values one run alone has these values are told.
    """
    ours, theirs = _values(a), _values(b)

    def is_alone(d: StructureDifference) -> bool:
        if (d.a and d.b) or not d.name or (d.out, d.name) in ours or (d.out, d.name) in theirs:
            return False
        mine, others = (ours, theirs) if d.a else (theirs, ours)
        within = [key for key in mine if key[0] == d.out and key[1].startswith(f"{d.name}.")]
        return all(key in others for key in within)

    return [d for d in found if d.what == CLASS and is_alone(d)]


def _said(facts: dict[Key, str], e: Event, what: str) -> str | None:
    """What an event says of what is called; None where it does not say."""
    said = facts.get((False, "", what))
    # An operation without plain values says nothing of them.
    return "" if said is None and what == ARGUMENTS and (False, "settings") not in _values(e) else said


def _own_differences(a: str | None, b: str | None, site: Site, role: str) -> list[StructureDifference]:
    """What differs of a module itself, or of the plain values of an operation. Nothing, where one of the
    events does not say.
    """
    if a is None or b is None:
        return []
    ours, theirs = own_facts(a), own_facts(b)
    return [
        StructureDifference(site, "", role, False, what, ours.get(what, ""), theirs.get(what, ""))
        for what in dict.fromkeys((*ours, *theirs))
        if ours.get(what) != theirs.get(what)
    ]


def _values(e: Event) -> dict[tuple[bool, str], Traced]:
    return {(v.out, v.name): v for v in reversed(e.values)}


def _is_told(key: Key, one: Traced | None, other: Traced | None) -> bool:
    """Whether a difference is that of the values: there is another one, or none, in its place."""
    if key[2] in OF_TENSORS:
        if one is None or other is None:
            return one is not other
        return one.shape != other.shape
    alone = one or other if one is None or other is None else None
    return key[2] == CLASS and alone is not None and not gap(alone)


class StructureSeen:
    """What differed beside the values so far in an iteration, and which of it may be why values differ."""

    def __init__(self) -> None:
        # By the number of a call in run a: what went into it; what calls within it gave.
        self._taken: dict[int, list[StructureDifference]] = {}
        self._given: dict[int, list[StructureDifference]] = {}
        # By microbatch and module: what its forward pass took and gave.
        self._forward: dict[tuple[int, str], list[StructureDifference]] = {}
        self._in_a: dict[int, int] = {}  # numbers of calls in run a, by those in run b

    def add(self, a: Event, b: Event, differences: list[StructureDifference]) -> None:
        """Two events were compared."""
        self._in_a[b.call] = a.call
        for d in differences:
            if not d.out:
                self._taken.setdefault(a.call, []).append(d)
            else:
                self._given.setdefault(a.enclosing, []).append(d)
            if a.phase == "forward":
                self._forward.setdefault((a.microbatch, a.module), []).append(d)

    def before(self, e: Event, origin: Origin) -> list[StructureDifference]:
        """What the code took otherwise that is blamed at an event: the call's own, or what is around it."""
        own = self._of(e.call) if e.call >= 0 else []
        if origin.reason == "operation":
            return own + (self._forward.get((e.microbatch, e.module), []) if e.phase == "backward" else [])
        if origin.reason == "unmatched":
            around = e.enclosing if origin.only_in == "a" else self._in_a.get(e.enclosing, -1)
            return self._of(around)
        return own + self._of(e.enclosing)

    def _of(self, call: int) -> list[StructureDifference]:
        return [*self._taken.get(call, ()), *self._given.get(call, ())]
