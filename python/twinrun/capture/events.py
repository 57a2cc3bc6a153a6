"""The events of a step on their way into a run: digests are collected, and read once when the step
is captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from .. import _core
from ..errors import TwinrunError
from ..runs.digest import Digest, digest_of_text, digests_read, digests_started, start_digests
from ..runs.events import KEPT, Event, Traced, Wanted, encoded_events

__all__ = ["EventWriter", "ReadyEvent", "StepEvents", "copied", "known_value", "refuse_later_steps"]

_Facts = TypeVar("_Facts")


def copied(array: Any) -> Any:
    """A copy of an array, on the device where it is."""
    if hasattr(array, "detach") and hasattr(array, "clone"):
        return array.detach().clone()
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and hasattr(array, "copy"):
        return array.copy()
    return np.array(array, copy=True)


def refuse_later_steps(path: str, steps: Sequence[int], start: int) -> None:
    """Raises TwinrunError where a run has a step that a trace from the iteration `start` on would write."""
    if there := [step for step in steps if step >= start]:
        raise TwinrunError(
            f"the run has step {there[-1]} already, and this trace would begin with {start}",
            where=path,
            fix=f"give start={there[-1] + 1}, or enter the trace that wrote it again: it goes on counting",
        )


class ReadyEvent(msgspec.Struct, gc=False, eq=False):
    """An event whose values have their names: other steps use it again. traced: its values that have digests
    of their own each time. home: the list of those that nobody uses now.
    """

    event: Event
    traced: list[Traced]
    home: list[ReadyEvent]


class StepEvents:
    """The events of one step, whose digests may be under way."""

    __slots__ = (
        "alone", "events", "kept", "places", "problems", "ready", "started", "twice", "waiting", "wanted",
    )  # fmt: skip

    def __init__(self, wanted: Sequence[Wanted] = ()) -> None:
        self.wanted = wanted
        self.events: list[Event] = []
        self.ready: list[ReadyEvent] = []  # those of them that may be used again
        self.alone = False  # whether values were digested one by one: some may have no digest
        # Digests under way, and the values that they belong to, one after the other.
        self.started: list[_core.WordDigests] = []
        self.waiting: list[Traced] = []
        # Values that are the same arrays as others: (value, the other one).
        self.twice: list[tuple[Traced, Traced]] = []
        self.kept: dict[str, object] = {}
        # Of what is kept: (shape, offset) in the global array that it is a part of.
        self.places: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.problems: list[str] = []

    @property
    def on_devices(self) -> bool:
        """Whether digests are under way on devices: reading them waits for these."""
        return any(made.on_devices for made in self.started)

    def read(self) -> None:
        """Reads the digests into the values. Waits for devices."""
        for traced, read in zip(self.waiting, digests_read(self.started), strict=True):
            traced.digest, traced.dtype, traced.shape = read
        for one, other in self.twice:
            one.digest, one.dtype, one.shape = other.digest, other.dtype, other.shape
            one.kept, one.missing = other.kept, other.missing
        self.started, self.waiting, self.twice = [], [], []

    def fields(self) -> dict[str, object]:
        """The fields of the step. Reads its digests."""
        self.read()
        return {**encoded_events(self.events, self.problems, self.wanted), **self.kept}


class _Kept(NamedTuple):
    """A value whose data is kept: it is copied by `keep`, and may be a part of a global array."""

    traced: Traced
    array: object
    keep: Callable[[Any], Any]
    place: Any


class _Batch:
    """Values that are digested together. They are in their events already."""

    __slots__ = ("arrays", "kept", "traced")

    def __init__(self) -> None:
        self.arrays: list[object] = []
        self.traced: list[Traced] = []
        self.kept: list[_Kept] = []


def known_value(name: str, digest: Digest, form: tuple, role: Any, *, out: bool = False) -> Traced:
    """A value whose digest was made before. It may be one of many events.

    form: type and shape.
    """
    kind, shape = form
    return Traced(name, out, role, kind, shape, digest=int(digest))


class _Together:
    """The context of `EventWriter.together`. A class: a generator takes longer."""

    __slots__ = ("_begun", "_writer")

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._begun = self._writer.begin_together()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._begun:
            self._writer.end_together()


class EventWriter:
    """Collects the events of one step after the other, and captures each step as a whole.

    The values are digested when they are handed in, so they may change afterwards. wanted: the places whose
    data the trace is to keep; every step names them. within: as of `digests_started`.
    """

    def __init__(self, path: str, keeps_data: bool, wanted: Iterable[Wanted] = ()) -> None:
        if not keeps_data:
            raise TwinrunError(
                "a trace keeps its digests as data, and this run keeps no data",
                where=path,
                fix="make it with keep_data=True",
            )
        self._wanted = sorted(wanted)
        self._step = StepEvents(self._wanted)
        self._together: _Batch | None = None
        self.within: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._lists: list[list[Traced]] = []  # of events that are written

    def __len__(self) -> int:
        return len(self._step.events)

    def new_values(self) -> list[Traced]:
        """An empty list for the values of a new event."""
        return self._lists.pop() if self._lists else []

    def written(self, step: StepEvents) -> None:
        """A step that was taken is written, and nobody needs its events any more.

        Their lists are used again: thousands of new ones in each step would set Python's garbage collector to
        look at everything that the program keeps.
        """
        again = {id(one.event) for one in step.ready}
        for event in step.events:
            if id(event) not in again:
                event.values.clear()
                self._lists.append(event.values)
        if not step.alone:
            for one in step.ready:
                one.home.append(one)
        step.events, step.ready = [], []

    def add(self, event: Event) -> Event:
        """Appends an event. Its values are added by `see`."""
        self._step.events.append(event)
        return event

    def see(
        self,
        event: Event,
        arrays: Mapping[str, object],
        *,
        out: bool,
        role: Any = "value",
        keep: Any = None,
        places: Mapping[str, Any] | None = None,
    ) -> None:
        """Digests arrays, and adds them to an event. keep: a function that copies an array which is
        kept, or None. places: (shape, offset) of parts in global arrays.

        An array that has no digest is added too, with the reason: a comparison then reports it.
        """
        if not arrays:
            return
        if keep is None and len(arrays) == 1:
            ((name, array),) = arrays.items()
            self.see_one(event, name, array, out=out, role=role, keep=None)
            return
        batch = self._together or _Batch()
        values, traced, data = event.values, batch.traced, batch.arrays
        for name, array in arrays.items():
            one = Traced(name, out, role, "", ())
            values.append(one)
            traced.append(one)
            data.append(array)
            if keep is not None:
                batch.kept.append(_Kept(one, array, keep, places.get(name) if places else None))
        if batch is not self._together:
            self._start(batch)

    def see_again(
        self,
        ready: ReadyEvent,
        digests: _core.WordDigests,
        within: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> Event:
        """Starts digests, as values of an event that was made before, and appends it. within: as of
        `start_digests`.
        """
        step, event, traced = self._step, ready.event, ready.traced
        if traced:
            try:
                start_digests(digests, lambda at: traced[at].name, None, within)
            except TwinrunError:
                with within():
                    for one, array in zip(traced, digests.arrays, strict=True):
                        self._alone(one, array)
            else:
                step.started.append(digests)
                step.waiting.extend(traced)
        step.events.append(event)
        step.ready.append(ready)
        return event

    def started(
        self, digests: _core.WordDigests, within: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> bool:
        """Starts digests of values that are added later. False: one of them has no digest, and nothing is
        added. within: as of `start_digests`.
        """
        try:
            start_digests(digests, str, None, within)
        except TwinrunError:
            return False
        return True

    def add_again(self, ready: ReadyEvent, parts: Iterable[_core.WordDigests]) -> Event:
        """Appends an event that was made before. parts: digests of its values that were started, in order."""
        step, event = self._step, ready.event
        step.started.extend(parts)
        step.waiting.extend(ready.traced)
        step.events.append(event)
        step.ready.append(ready)
        return event

    def see_started(self, event: Event, names: Iterable[str], digests: _core.WordDigests) -> None:
        """Adds what goes into an event, and has digests that were started. It is no event of the step yet."""
        traced = [Traced(name, False, "value", "", ()) for name in names]
        event.values += traced
        self._step.started.append(digests)
        self._step.waiting.extend(traced)

    def see_both(self, event: Event, taken: Mapping[str, object], given: Mapping[str, object]) -> None:
        """Digests what goes into an event and what comes out, in one batch of their own."""
        traced = [Traced(name, False, "value", "", ()) for name in taken]
        traced += [Traced(name, True, "value", "", ()) for name in given]
        if traced:
            event.values += traced
            self._digest(traced, [*taken.values(), *given.values()])

    def see_one(self, event: Event, name: str, array: object, *, out: bool, role: Any, keep: Any) -> None:
        """As `see` of one array."""
        one = Traced(name, out, role, "", ())
        event.values.append(one)
        batch = self._together
        if batch is None:
            self._digest([one], [array])
            if keep is not None:
                self._keep(one, array, keep, None)
            return
        batch.traced.append(one)
        batch.arrays.append(array)
        if keep is not None:
            batch.kept.append(_Kept(one, array, keep, None))

    def see_twice(self, event: Event, name: str, other: Traced, *, out: bool, role: Any) -> None:
        """Adds an array that the event has already as another value: it is digested once."""
        one = Traced(name, out, role, "", ())
        event.values.append(one)
        self._step.twice.append((one, other))

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Values that are seen within this context are digested in one batch, at its end: they must not
        change before.
        """
        return _Together(self)

    def begin_together(self) -> bool:
        """Begins such a batch. False: one is under way."""
        if self._together is not None:
            return False
        self._together = _Batch()
        return True

    def end_together(self) -> None:
        """Digests what was seen since."""
        batch, self._together = self._together, None
        if batch is not None:
            self._start(batch)

    def _start(self, batch: _Batch) -> None:
        """Digests values, and keeps the data of some."""
        if not batch.traced:
            return
        self._digest(batch.traced, batch.arrays)
        for kept in batch.kept:
            self._keep(*kept)

    def _digest(
        self,
        traced: list[Traced],
        arrays: list[object],
    ) -> None:
        """Digests the arrays of values."""
        step = self._step
        try:
            step.started.append(digests_started(arrays, lambda at: traced[at].name, None, self.within))
        except TwinrunError:
            with self.within():
                for one, array in zip(traced, arrays, strict=True):
                    self._alone(one, array)
        else:
            step.waiting.extend(traced)

    def _keep(self, traced: Traced, array: object, keep: Callable[[Any], Any], place: Any) -> None:
        if traced.missing or (copy := keep(array)) is None:
            return
        step = self._step
        traced.kept = f"{KEPT}{len(step.kept)}"
        step.kept[traced.kept] = copy
        if place is not None:
            step.places[traced.kept] = place

    def _alone(self, traced: Traced, array: Any) -> None:
        """Digests one value; says why where it has no digest."""
        step = self._step
        step.alone = True
        try:
            step.started.append(digests_started([array], lambda _: traced.name))
        except TwinrunError as e:
            with contextlib.suppress(
                RuntimeError, TypeError, ValueError
            ):  # nested tensors have no numbers there
                traced.shape = tuple(int(n) for n in getattr(array, "shape", ()))
            traced.dtype = str(getattr(array, "dtype", "?")).removeprefix("torch.")
            traced.missing, traced.digest = str(e) or "no reason is known", 0  # it may have been used before
        else:
            step.waiting.append(traced)

    def bytes_kept(self, event: Event) -> int:
        """Bytes of the copies of an event's values."""
        copies = [self._step.kept[v.kept] for v in event.values if v.kept]
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
        self._step.problems.append(text)

    def phases(self) -> set[str]:
        """The phases of the events of the step under way."""
        return {event.phase for event in self._step.events}

    def problems(self) -> list[str]:
        """What was not traced in the step under way."""
        return list(self._step.problems)

    def events(self) -> tuple[list[Event], list[str]]:
        """(events, problems) of the step under way. Reads its digests."""
        self._step.read()
        return self._step.events, self._step.problems

    def take(self) -> StepEvents | None:
        """The step under way, which ends here; None where there is nothing in it."""
        step = self._step
        if not step.events and not step.problems:
            return None
        self._step = StepEvents(self._wanted)
        return step

    def drop(self) -> None:
        """Forgets the step under way."""
        self._step = StepEvents(self._wanted)

    def capture(
        self, capture: Callable[[dict[str, object]], _Facts], beside: Mapping[str, object] | None = None
    ) -> _Facts | None:
        """Hands the fields of the step to `capture`, and begins the next one; None where there are none.

        beside: more fields of the step. Raises as `capture` does.
        """
        step = self.take()
        return None if step is None else capture({**step.fields(), **(beside or {})})
