"""The events of an iteration and their values. A value is digested where it is seen, all tensors of one
value in one batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..capture.events import EventWriter, copied, known_value
from ..errors import TwinrunError
from ..runs.events import Event, Traced
from ..runs.gaps import NOT_LOOKED_INTO, UNCALLED, gap_value
from ..runs.structure import GRAD, STRIDES, Fact, line, lines
from ..trace.escalation import KeptPlaces
from ..trace.site import Site
from .generators import Generators
from .modes import sees_functions
from .position import Position
from .values import (
    TOO_DEEP,
    Leaf,
    digest_of_text,
    facts_of_parts,
    is_plain,
    leaves,
    local_tensors,
    plain_text,
    put,
    same_tensors,
    strides_of,
)

__all__ = ["Recorder"]

_SHORT = 300  # characters of a text that is kept
_MOST_SETTINGS = 4096


class Recorder:
    """Makes the events of an iteration, and hands them to a writer.

    keep: of which places the data is kept beside the digests. gradient_seen: is called at each event of a
    backward pass. gradient_due: whether that captures an iteration the next time. keeps_any: whether there
    are such places. begun: whether the iteration has what comes before its first event.
    """

    def __init__(
        self,
        writer: EventWriter,
        position: Position,
        generators: Generators,
        keep: KeptPlaces,
        gradient_seen: Callable[[], None],
        gradient_due: Callable[[], bool] = bool,
    ) -> None:
        self._writer, self._position, self._generators, self._keep = writer, position, generators, keep
        self.keeps_any = bool(keep)
        # Add events that were made before, with other tensors. No data is kept of them.
        self.see_again, self.add_again = writer.see_again, writer.add_again
        self.started, self.see_started = writer.started, writer.see_started
        self.gradient_seen, self.gradient_due = gradient_seen, gradient_due
        self.begun = False
        # By name and text. Of this trace alone: while events are encoded, their values change.
        self._settings: dict[tuple[str, str, bool], Traced] = {}
        self._lines: dict[tuple[str, str, str, bool], str] = {}
        self._strides: dict[tuple[str, tuple[int, ...], tuple[int, ...], bool], str] = {}

    def begin_iteration(self) -> None:
        """The next event is the first of an iteration."""
        self.begun = False

    def ensure_begun(self) -> None:
        """Writes what comes before the first event of an iteration."""
        if not self.begun:
            self.begun = True
            self._generators.begin_iteration()

    def event(
        self,
        phase: str,
        module: str,
        kind: str,
        operation: str,
        call: int,
        microbatch: int | None = None,
        enclosing: int | None = None,
    ) -> Event:
        """Adds an event at this place of the training. microbatch, enclosing: None for those under way."""
        if not self.begun:
            self.ensure_begun()
        if phase == "backward":
            self.gradient_seen()
        position = self._position
        number = position.microbatch if microbatch is None else microbatch
        within = position.enclosing(call) if enclosing is None else enclosing
        values = self._writer.new_values()
        return self.add(Event(phase, number, module, kind, operation, call, within, values, ""))

    def is_light(self, gradients: Iterable[Any]) -> bool:
        """Whether `Guard.light` can see gradients: nothing is to be written before, and none has parts."""
        if not self.begun or self.keeps_any or sees_functions() or self.gradient_due():
            return False
        for one in gradients:  # a generator takes longer
            if one is not None and not is_plain(one):
                return False
        return True

    def new_values(self) -> list[Traced]:
        """An empty list for the values of an event that is made elsewhere."""
        return self._writer.new_values()

    def add(self, event: Event) -> Event:
        """Adds an event that was made before: it comes after those that were added meanwhile."""
        if self.keeps_any:
            self._keep.meets(self._site(event))
        return self._writer.add(event)

    def see(
        self,
        event: Event,
        name: str,
        what: Any,
        *,
        out: bool,
        role: str = "value",
        attributes: list[str] | None = None,
    ) -> None:
        """Adds what a value holds to an event: tensors, and plain values as settings. In a value of the
        training's own nothing may be left out: an object that is not looked into has no digest.

        attributes: takes the names of attributes of data classes that are no fields.
        """
        if is_plain(what):
            self._see_plain(event, name, what, out, role)
            return
        objects: list[str] = []
        if role == "value":
            facts: list[Fact] = []
            found = leaves(name, what, others=objects, facts=facts, attributes=attributes)
            self.see_leaves(event, found, out=out, role=role, facts=[*facts, *same_tensors(found)])
        else:
            self.see_leaves(event, leaves(name, what, others=objects), out=out, role=role)
        for label in objects:
            if role == "value":
                self._writer.missing(event, label, NOT_LOOKED_INTO, out=out, role=role)
            else:
                self.setting(event, label, NOT_LOOKED_INTO, out=out)

    def see_leaves(
        self,
        event: Event,
        found: Sequence[Leaf],
        *,
        out: bool,
        role: str = "value",
        facts: Sequence[Fact] = (),
    ) -> None:
        """Adds tensors to an event, and plain values as settings, which come before all tensors.

        facts: of what holds them.
        """
        if facts:
            event.structure = f"{event.structure}{lines(facts, out)}"
        if len(found) == 1 and is_plain(found[0][1]):  # most modules take one tensor, and give one
            ((name, tensor),) = found
            self._see_plain(event, name, tensor, out, role)
            return
        tensors: dict[str, torch.Tensor] = {}
        keep, places = self._keeper(event), {}
        for label, one in found:
            if is_plain(one) and label not in tensors:  # most of them
                tensors[label] = one
                if one.requires_grad is not (role == "parameter") or not one.is_contiguous():
                    self._note(event, label, one, out, role)
                continue
            if one is TOO_DEEP:
                self._writer.missing(event, label, repr(one), out=out, role=role)
                continue
            text = plain_text(one)
            if text is not None:
                self.setting(event, label, text, out=out)
                continue
            if label in tensors:  # keys 1 and "1" of a mapping: which is which in another run?
                self._writer.missing(event, label, "two values have this name", out=out, role=role)
            parts = put(tensors, label, one)
            event.structure = f"{event.structure}{lines(facts_of_parts(label, one, parts), out)}"
            if keep is not None and hasattr(one, "placements"):
                places.update(_place_of(label, one))
        self._writer.see(event, tensors, out=out, role=role, keep=keep, places=places)

    def see_twice(self, event: Event, name: str, t: torch.Tensor, seen: str) -> None:
        """Adds a tensor that comes out of an event under another name, too. seen: that name."""
        other = next(
            (v for v in reversed(event.values) if v.out and v.role == "value" and v.name == seen), None
        )
        if other is None or not is_plain(t):  # it has parts
            self.see_leaves(event, [(name, t)], out=True)
            return
        self._note(event, name, t, True, "value")
        self._writer.see_twice(event, name, other, out=True, role="value")

    def uncalled(self, module: str, kind: str) -> None:
        """Adds what stands for a module of this iteration whose calls were not seen."""
        call = self._position.new_call()
        event = self.event("forward", module, kind, "not seen", call, microbatch=0, enclosing=-1)
        event.values.append(gap_value("calls", False, UNCALLED))

    def see_tensor(self, event: Event, name: str, t: torch.Tensor, *, out: bool, role: str) -> None:
        """Adds a tensor to an event."""
        if is_plain(t):
            self._see_plain(event, name, t, out, role)
            return
        keep = self._keeper(event)
        places = _place_of(name, t) if keep is not None and hasattr(t, "placements") else {}
        parts = local_tensors(name, t)
        event.structure = f"{event.structure}{lines(facts_of_parts(name, t, parts), out)}"
        self._writer.see(event, dict(parts), out=out, role=role, keep=keep, places=places)

    def _see_plain(self, event: Event, name: str, t: torch.Tensor, out: bool, role: str) -> None:
        if t.requires_grad is not (role == "parameter") or not t.is_contiguous():
            self._note(event, name, t, out, role)
        keep = self._keeper(event) if self.keeps_any else None
        self._writer.see_one(event, name, t, out=out, role=role, keep=keep)

    def see_operands(self, event: Event, tensors: Mapping[str, torch.Tensor], *, out: bool) -> None:
        """Adds tensors to the event of an operation."""
        self._note_operands(event, tensors, out)
        self._writer.see(event, tensors, out=out, role="value", keep=self._keeper(event))

    def short_setting(self, name: str, text: str, *, out: bool = False) -> Traced | None:
        """A value of Python for several events, as text; None for a long one."""
        return self._setting(name, text, out) if len(text) <= _SHORT else None

    def strides(self, name: str, t: torch.Tensor, out: bool) -> str:
        """The line about the strides of a plain tensor that is not row-major."""
        key = name, t.stride(), t.shape, out
        known = self._strides.get(key)
        if known is None:
            if len(self._strides) >= _MOST_SETTINGS:
                self._strides.clear()
            known = self._strides[key] = self._line(name, STRIDES, strides_of(t), out)
        return known

    def see_both(
        self, event: Event, taken: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]
    ) -> None:
        """Adds what an operation took and gave, digested in one batch. No data is kept of it."""
        self._note_operands(event, taken, False)
        self._note_operands(event, given, True)
        self._writer.see_both(event, taken, given)

    def _note(self, event: Event, name: str, t: torch.Tensor, out: bool, role: str) -> None:
        """Notes what code may ask a plain tensor for, where it is not the usual."""
        needs = t.requires_grad
        if needs is not (role == "parameter"):
            said = self._line(name, GRAD, "True" if needs else "False", out)
            event.structure = f"{event.structure}{said}"
        if not t.is_contiguous():
            event.structure = f"{event.structure}{self._line(name, STRIDES, strides_of(t), out)}"

    def _note_operands(self, event: Event, tensors: Mapping[str, torch.Tensor], out: bool) -> None:
        """Operations are below what asks for gradients: only strides are noted."""
        for name, t in tensors.items():
            try:
                if not t.is_contiguous() and is_plain(t):
                    event.structure = f"{event.structure}{self._line(name, STRIDES, strides_of(t), out)}"
            except RuntimeError:  # some kinds of tensors have no strides
                continue

    def _line(self, name: str, what: str, text: str, out: bool) -> str:
        """A fact as a line. Those of modules come again at each call."""
        key = name, what, text, out
        known = self._lines.get(key)
        if known is None:
            if len(self._lines) >= _MOST_SETTINGS:
                self._lines.clear()
            known = self._lines[key] = line(name, what, text, out)
        return known

    def setting(self, event: Event, name: str, text: str, *, out: bool = False) -> None:
        """Adds a value of Python to an event, as text."""
        if len(text) <= _SHORT:
            event.values.append(self._setting(name, text, out))
            return
        self._writer.known(event, name, digest_of_text(text), ("python", ()), out=out, role="setting")

    def together(self) -> contextlib.AbstractContextManager[None]:
        """A context whose values are digested in one batch at its end: they must not change before."""
        return self._writer.together()

    def settings(self, values: Mapping[str, Any]) -> list[Traced]:
        """Plain values that go into many events: they are made once. Tensors are left out."""
        objects: list[str] = []
        found = leaves("settings", values, others=objects)
        texts = [(label, plain_text(one)) for label, one in found]
        known = [self._setting(label, text) for label, text in texts if text is not None]
        return known + [self._setting(label, NOT_LOOKED_INTO) for label in objects]

    def _setting(self, name: str, text: str, out: bool = False) -> Traced:
        """A value of Python that goes into events or comes out. Those of modules come again at each call."""
        known = self._settings.get((name, text, out))
        if known is None:
            if len(self._settings) >= _MOST_SETTINGS:
                self._settings.clear()
            known = known_value(name, digest_of_text(text), ("python", ()), "setting", out=out)
            self._settings[name, text, out] = known
        return known

    def keeps(self, event: Event) -> bool:
        """Whether this is a place whose data is kept."""
        return self.keeps_any and self._keep.meets(self._site(event))

    def _keeper(self, event: Event) -> Callable[[Any], Any] | None:
        return copied if self.keeps_any and self._keep.meets(self._site(event)) else None

    def _site(self, event: Event) -> Site:
        at = self._position.iteration
        return Site(at, event.microbatch, event.phase, event.module, event.operation)


def _place_of(name: str, t: torch.Tensor) -> dict[str, Any]:
    """{name of the local part of a DTensor: (shape, offset) in the global one}, where it is known."""
    from .placements import held_parts

    with contextlib.suppress(TwinrunError):  # partial sums have no place
        return {f"{name}@local": (p.shape, p.offset) for p in held_parts(name, t) if p.shape}
    return {}
