"""Hooks of parameters: their gradients once they are summed up."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from .guard import Guard
from .model import Owner, Owners
from .position import Position
from .recorder import Recorder

__all__ = ["ParameterGradients"]

_UNOWNED = Owner("", "parameter")


class ParameterGradients:
    """The hooks of parameters."""

    def __init__(self, owners: Owners, guard: Guard, position: Position, recorder: Recorder) -> None:
        self._owners, self._guard, self._position, self._recorder = owners, guard, position, recorder
        self.seen: set[str] = set()  # the names of parameters whose gradients came in this iteration

    def attach(self, parameters: Iterable[torch.nn.Parameter], handles: list[Any]) -> None:
        """Adds the hooks of parameters, and what removes them to `handles`."""
        for p in parameters:
            if p.requires_grad:
                path, name = self._owners.get(id(p), _UNOWNED)
                accumulated = partial(self._accumulated, path, name, f"gradient of {name}")
                handles.append(p.register_post_accumulate_grad_hook(accumulated))

    def _accumulated(self, path: str, name: str, operation: str, p: torch.nn.Parameter) -> None:
        """A gradient is summed up. path, name: of the parameter. operation: what its event is called."""
        if not self._guard.records() or (gradient := p.grad) is None:
            return
        self.seen.add(name)
        what = "a gradient of a parameter"
        if self._recorder.is_light((gradient,)):
            self._guard.light(what, self._see, path, name, operation, gradient)
            return
        with self._guard.work(what):
            self._see(path, name, operation, gradient)

    def _see(self, path: str, name: str, operation: str, gradient: torch.Tensor) -> None:
        event = self._recorder.event("backward", path, "", operation, self._position.new_call())
        self._recorder.see(event, name, gradient, out=True, role="gradient")
