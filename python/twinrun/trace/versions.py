"""Two traces of two versions of twinrun, or of two levels: which kinds of records only one of them has."""

from __future__ import annotations

from collections.abc import Sequence

from ..runs.events import Event, Traced
from ..runs.gaps import WRITTEN, gap, may_be_alone
from .reading import TraceSubject

__all__ = ["KindsOfRecords", "levels_differ"]

_MOST_KINDS = 5
_ROLES = {"rng": "states of generators", "state": "states of optimizers", "value": "values"}


def _of_event(e: Event) -> str:
    """The kind of an event, in words."""
    if e.phase in ("forward", "recompute"):
        return (
            f"{e.phase} passes of modules" if e.operation == "forward" else f"operations in {e.phase} passes"
        )
    if e.phase == "backward":
        return "gradients of parameters" if e.operation.startswith("gradient of ") else "backward events"
    return f"{e.phase} events"


def _of_value(v: Traced) -> str:
    """The kind of a value, in words."""
    if v.name.endswith(WRITTEN):
        return "marks of what was written"
    if v.role == "setting":
        return f"settings {v.name!r}" if v.name.startswith("settings") else "plain values"
    return _ROLES.get(v.role, f"{v.role}s")


def levels_differ(ours: Sequence[Event], theirs: Sequence[Event]) -> str:
    """Says so where one of two traces has operations in an iteration, and the other one has none; or ''."""
    said = [
        "level 'ops'" if any(map(_is_operation, events)) else "level 'modules'" for events in (ours, theirs)
    ]
    return (
        ""
        if said[0] == said[1]
        else f"{said[0]} in one trace, {said[1]} in the other: trace both with one level"
    )


def _is_operation(e: Event) -> bool:
    """Whether it is one of PyTorch's, such as aten.mm.default."""
    return e.phase != "record" and " " not in e.operation and e.operation.count(".") > 1


class KindsOfRecords:
    """The kinds of records of two traces, as far as they were compared. Where one version of twinrun wrote
    both, only the level of the first iteration is looked at.
    """

    def __init__(self, a: TraceSubject, b: TraceSubject) -> None:
        self._subjects = a, b
        self._levels: str | None = None  # how they differ; None: nobody looked
        # Kinds of events; and of values, by the kind of their event.
        self._events: tuple[set[str], set[str]] = (set(), set())
        self._values: tuple[set[tuple[str, bool, str]], set[tuple[str, bool, str]]] = (set(), set())

    def add(self, ours: Sequence[Event], theirs: Sequence[Event]) -> None:
        """The events of an iteration, of both traces."""
        a, b = self._subjects
        if not ours or not theirs:
            return
        if a.written_by() == b.written_by():
            if self._levels is None:
                self._levels = levels_differ(ours, theirs)
            return
        for side, events in enumerate((ours, theirs)):
            for e in events:
                kind = _of_event(e)
                self._events[side].add(kind)
                self._values[side].update(
                    (kind, v.out, _of_value(v)) for v in e.values if not may_be_alone(gap(v))
                )

    def notes(self) -> list[str]:
        """What only one of the traces has, in one line for each that lacks something."""
        found = [self._levels] if self._levels else []
        for side in (0, 1):
            lacking, other = self._subjects[side], self._subjects[1 - side]
            only = self._lacked(side)
            if only:
                more = f" and {len(only) - _MOST_KINDS} more kinds" if len(only) > _MOST_KINDS else ""
                found.append(
                    f"{lacking.label} was written by {lacking.written_by()}, and has none of these records: "
                    f"{', '.join(only[:_MOST_KINDS])}{more}. Those of {other.label}, written by {other.written_by()}, "
                    "have no counterpart: make both traces with one version of twinrun"
                )
        return found

    def _lacked(self, side: int) -> list[str]:
        """The kinds that this trace does not have, and the other one has."""
        events = self._events[1 - side] - self._events[side]
        values = {
            f"{what} that {'come out of' if out else 'go into'} {kind}"
            for kind, out, what in self._values[1 - side] - self._values[side]
            if kind not in events
        }
        return [*sorted(events), *sorted(values)]
