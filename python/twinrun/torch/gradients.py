"""Hooks of parameters: their gradients once they are summed up."""

from __future__ import annotations

from collections.abc import Iterable
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

    def attach(self, parameters: Iterable[torch.nn.Parameter], handles: list[Any]) -> None:
        """Adds the hooks of parameters, and what removes them to `handles`."""
        for p in parameters:
            if p.requires_grad:
                handles.append(p.register_post_accumulate_grad_hook(self._accumulated))

    def _accumulated(self, p: torch.nn.Parameter) -> None:
        if not self._guard.records() or p.grad is None:
            return
        with self._guard.work("a gradient of a parameter"):
            path, name = self._owners.get(id(p), _UNOWNED)
            call = self._position.new_call()
            event = self._recorder.event("backward", path, "", f"gradient of {name}", call)
            self._recorder.see(event, name, p.grad, out=True, role="gradient")
