"""The states of random number generators as values of a trace. They are read, and never changed."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..capture.events import EventWriter, known_value
from ..runs.digest import digests_of
from ..runs.events import Event, Traced
from .values import digest_of_text

__all__ = ["Generators"]


def _text(state: Any) -> str:
    if isinstance(state, np.ndarray):
        return f"{state.dtype}{state.tolist()}"
    if isinstance(state, tuple):
        return "(" + ",".join(_text(s) for s in state) + ")"
    return repr(state)


def _known_by(device: int) -> object:
    """What tells the state of a GPU's generator: its seed and its offset, where PyTorch gives them; they take
    a tenth of the time of the state.
    """
    generator = torch.cuda.default_generators[device]
    if hasattr(generator, "get_offset"):
        return generator.initial_seed(), generator.get_offset()
    return torch.cuda.get_rng_state(device).numpy().tobytes()


class Generators:
    """The generators that a trace looks at. which: 'torch', 'all' or 'none', as `trace` explains."""

    def __init__(self, which: str, writer: EventWriter) -> None:
        self._which, self._writer = which, writer
        # By name: the mark of the state that was digested last, and its value.
        self._known: dict[str, tuple[object, Traced]] = {}

    def begin_iteration(self) -> None:
        """An event with the states of Python's and NumPy's generators, where all are asked for."""
        if self._which != "all":
            return
        event = self._writer.add(Event("begin", 0, "", "", "begin", -1, -1, []))
        for name, state in (("random", random.getstate()), ("numpy.random", np.random.get_state())):
            self._writer.known(
                event, name, digest_of_text(_text(state)), ("python", ()), out=False, role="rng"
            )

    def add_states(self, event: Event) -> None:
        """Adds the states of PyTorch's generators to an event. An unchanged one is not digested again."""
        if self._which == "none":
            return
        state = torch.default_generator.get_state()
        # `numpy()` would run an operation, which modes see.
        mark = ctypes.string_at(state.data_ptr(), state.nbytes)
        self._add_state(event, "torch", mark, lambda: state)
        if torch.cuda.is_initialized():
            device = torch.cuda.current_device()
            name = f"cuda:{device}"
            self._add_state(event, name, _known_by(device), lambda: torch.cuda.get_rng_state(device))

    def _add_given(self, event: Event, name: str, generator: torch.Generator) -> None:
        """Adds the state of a generator that an operation draws from."""
        if generator.device.type == "cuda" and hasattr(generator, "get_offset"):
            text = f"{generator.initial_seed()} {generator.get_offset()}"
            event.values.append(known_value(name, digest_of_text(text), ("python", ()), "rng"))
            return
        state = generator.get_state()
        self._add_state(event, name, ctypes.string_at(state.data_ptr(), state.nbytes), lambda: state)

    def add_drawn(self, event: Event, generator: Any, device: torch.device) -> None:
        """Adds the state that an operation draws from. generator: None for the usual one of the device."""
        if self._which == "none":
            return
        if isinstance(generator, torch.Generator):
            self._add_given(event, "generator", generator)
        elif device.type == "cpu":
            self._add_given(event, "torch", torch.default_generator)
        elif device.type == "cuda" and torch.cuda.is_initialized():
            number = torch.cuda.current_device() if device.index is None else device.index
            self._add_given(event, f"cuda:{number}", torch.cuda.default_generators[number])

    def _add_state(self, event: Event, name: str, mark: object, state: Callable[[], torch.Tensor]) -> None:
        """mark: equal marks are of equal states."""
        known = self._known.get(name)
        if known is None or known[0] != mark:
            digest, *form = digests_of({name: state()})[0]
            known = self._known[name] = mark, known_value(name, digest, tuple(form), "rng")
        event.values.append(known[1])
