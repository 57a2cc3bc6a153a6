"""The events of a step on their way into a run: digests are collected, and read once when the step
is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from .. import _core
from ..errors import TwinrunError
from ..runs.digest import Digest, digest_of_text, digests_read, digests_started
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
        # Digests under way, and the values that they belong to, one after the other.
        self._started: list[_core.WordDigests] = []
        self._waiting: list[Traced] = []
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
            self._started.append(digests_started(arrays))
        except TwinrunError:
            for name, array in arrays.items():
                self._alone(event, name, array, out, role, keep)
            return
        for name, array in arrays.items():
            self._append(event, name, array, out, role, keep)

    def _append(self, event: Event, name: str, array: object, out: bool, role: Any, keep: Any) -> None:
        """Adds a value that is the next one of `_started`."""
        traced = Traced(name, out, role, "", ())
        event.values.append(traced)
        self._waiting.append(traced)
        if keep is not None and (copy := keep(array)) is not None:
            traced.kept = f"{KEPT}{len(self._kept)}"
            self._kept[traced.kept] = copy

    def _alone(self, event: Event, name: str, array: object, out: bool, role: Any, keep: Any) -> None:
        """As `see` of one array; says why where it has no digest."""
        try:
            self._started.append(digests_started({name: array}))
        except TwinrunError as e:
            try:
                shape = tuple(int(n) for n in getattr(array, "shape", ()))
            except (RuntimeError, TypeError, ValueError):  # nested tensors have no numbers there
                shape = ()
            kind = str(getattr(array, "dtype", "?")).removeprefix("torch.")
            self.missing(event, name, str(e), out=out, role=role, form=(kind, shape))
        else:
            self._append(event, name, array, out, role, keep)

    def bytes_kept(self, event: Event) -> int:
        """Bytes of the copies of an event's values."""
        copies = [self._kept[v.kept] for v in event.values if v.kept]
        return sum(int(getattr(c, "nbytes", 0)) for c in copies)

    def known(self, event: Event, name: str, digest: Digest, form: tuple, *, out: bool, role: Any) -> None:
        """Adds a value whose digest was made before. form: type and shape."""
        kind, shape = form
        event.values.append(Traced(name, out, role, kind, shape, digest=int(digest)))

    def text(self, event: Event, name: str, text: str, *, out: bool, role: Any) -> None:
        """Adds a value of Python, as text."""
        self.known(event, name, digest_of_text(text), ("python", ()), out=out, role=role)

    def missing(
        self, event: Event, name: str, why: str, *, out: bool, role: Any, form: tuple = ("?", ())
    ) -> None:
        """Adds a value that has no digest, with the reason: a comparison does not take it for equal."""
        kind, shape = form
        event.values.append(Traced(name, out, role, kind, shape, "", why or "no reason is known"))

    def problem(self, text: str) -> None:
        """Notes what was not traced: two traces with a problem are never the same."""
        self._problems.append(text)

    def events(self) -> tuple[list[Event], list[str]]:
        """(events, problems) of the step under way. Reads its digests."""
        waiting = iter(self._waiting)
        for made in self._started:
            # The digests first: zip takes one of the first too many.
            for (number, kind, shape), traced in zip(digests_read(made), waiting, strict=False):
                traced.digest, traced.dtype, traced.shape = number, kind, shape
        self._started, self._waiting = [], []
        return self._events, self._problems

    def drop(self) -> None:
        """Forgets the step under way."""
        self._events, self._kept, self._problems = [], {}, []
        self._started, self._waiting = [], []

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
