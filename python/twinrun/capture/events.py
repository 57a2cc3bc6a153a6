"""The events of a step on their way into a run: digests are collected, and read once when the step
is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import TwinrunError
from ..runs.digest import Digest, digests_of
from ..runs.events import KEPT, Event, Traced, encoded_events

__all__ = ["EventWriter", "copied"]

_Facts = TypeVar("_Facts")


def copied(array: Any) -> Any:
    """A copy of an array, on the device where it is."""
    if hasattr(array, "detach") and hasattr(array, "clone"):
        return array.detach().clone()
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and hasattr(array, "copy"):
        return array.copy()
    return np.array(array, copy=True)


class EventWriter:
    """Collects the events of one step after the other, and captures each step as a whole.

    The values are digested when they are handed in, so they may change afterwards.
    """

    def __init__(self, path: str, keeps_data: bool) -> None:
        if not keeps_data:
            raise TwinrunError(
                "a trace keeps its digests as data, and this run keeps no data",
                where=path,
                fix="make it with keep_data=True",
            )
        self._events: list[Event] = []
        self._pending: list[tuple[Traced, Digest]] = []
        self._kept: dict[str, object] = {}
        self._problems: list[str] = []

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> Event:
        """Appends an event. Its values are added by `see`."""
        self._events.append(event)
        return event

    def see(
        self,
        event: Event,
        arrays: Mapping[str, object],
        *,
        out: bool,
        role: Any = "value",
        keep: Any = None,
    ) -> None:
        """Digests arrays, and adds them to an event. keep: a function that copies an array which is
        kept, or None.

        An array that has no digest is added too, with the reason: a comparison then reports it.
        """
        if not arrays:
            return
        try:
            made: Sequence[Any] = digests_of(arrays)
        except TwinrunError:
            made = [self._alone(name, array) for name, array in arrays.items()]
        for (name, array), one in zip(arrays.items(), made, strict=True):
            if isinstance(one, Traced):
                one.out, one.role = out, role
                event.values.append(one)
                continue
            digest, dtype, shape = one
            traced = Traced(name, out, role, dtype, shape)
            event.values.append(traced)
            self._pending.append((traced, digest))
            if keep is not None and (copy := keep(array)) is not None:
                traced.kept = f"{KEPT}{len(self._kept)}"
                self._kept[traced.kept] = copy

    def bytes_kept(self, event: Event) -> int:
        """Bytes of the copies of an event's values."""
        copies = [self._kept[v.kept] for v in event.values if v.kept]
        return sum(int(getattr(c, "nbytes", 0)) for c in copies)

    def known(self, event: Event, name: str, digest: Digest, form: tuple, *, out: bool, role: Any) -> None:
        """Adds a value whose digest was made before."""
        traced = Traced(name, out, role, *form)
        event.values.append(traced)
        self._pending.append((traced, digest))

    @staticmethod
    def _alone(name: str, array: object) -> Any:
        try:
            return digests_of({name: array})[0]
        except TwinrunError as e:
            shape = tuple(int(n) for n in getattr(array, "shape", ()))
            return Traced(name, False, "value", str(getattr(array, "dtype", "?")), shape, "", str(e))

    def problem(self, text: str) -> None:
        """Notes what was not traced: two traces with a problem are never the same."""
        self._problems.append(text)

    def events(self) -> tuple[list[Event], list[str]]:
        """(events, problems) of the step under way. Reads its digests."""
        for traced, digest in self._pending:
            traced.digest = int(digest)
        return self._events, self._problems

    def drop(self) -> None:
        """Forgets the step under way."""
        self._events, self._pending, self._kept, self._problems = [], [], {}, []

    def capture(
        self, capture: Callable[[dict[str, object]], _Facts], beside: Mapping[str, object] | None = None
    ) -> _Facts | None:
        """Hands the fields of the step to `capture`, and begins the next one; None where there are none.

        beside: more fields of the step. Raises as `capture` does.
        """
        if not self._events and not self._problems:
            return None
        try:
            return capture({**encoded_events(*self.events()), **self._kept, **(beside or {})})
        finally:
            self.drop()
