"""Hooks of parameters: their gradients once they are summed up."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from .guard import Guard
from .model import Owner, Owners
from .modes import sees_functions
from .position import Position
from .recorder import Recorder

__all__ = ["ParameterGradients"]

_UNOWNED = Owner("", "parameter")


class ParameterGradients:
    """The hooks of parameters."""

    def __init__(self, owners: Owners, guard: Guard, position: Position, recorder: Recorder) -> None:
        self._owners, self._guard, self._position, self._recorder = owners, guard, position, recorder
        self.seen: set[str] = set()  # the names of parameters whose gradients came in this iteration
        # By the id of a parameter that has a hook: it, the name in its events, and what removes it.
        self._hooked: dict[int, tuple[torch.nn.Parameter, str, Any]] = {}

    def attach(self, parameters: Iterable[torch.nn.Parameter], handles: list[Any]) -> None:
        """Adds the hooks of parameters that have none, and what removes them to `handles`."""
        for p in parameters:
            if torch.nn.parameter.is_lazy(p) or not p.requires_grad:
                continue
            path, name = self._owners.get(id(p), _UNOWNED)
            known = self._hooked.get(id(p))
            if known is not None and known[0] is p:
                if known[1] == name:
                    continue
                known[2].remove()  # its module has another name now
            accumulated = partial(self._accumulated, path, name, f"gradient of {name}")
            handle = p.register_post_accumulate_grad_hook(accumulated)
            self._hooked[id(p)] = p, name, handle
            handles.append(handle)

    def keep(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Removes the hooks of all parameters but these."""
        kept = {id(p) for p in parameters}
        for number in [n for n in self._hooked if n not in kept]:
            self._hooked.pop(number)[2].remove()

    def _accumulated(self, path: str, name: str, operation: str, p: torch.nn.Parameter) -> None:
        """A gradient is summed up. path, name: of the parameter. operation: what its event is called."""
        if not self._guard.records():
            return
        what = "a gradient of a parameter"
        if not sees_functions() and self._recorder.is_light((p.grad,)):
            self._guard.light(what, self._see, path, name, operation, p)
            return
        with self._guard.work(what):
            self._see(path, name, operation, p)

    def _see(self, path: str, name: str, operation: str, p: torch.nn.Parameter) -> None:
        if (gradient := p.grad) is None:
            return
        self.seen.add(name)
        event = self._recorder.event("backward", path, "", operation, self._position.new_call())
        self._recorder.see(event, name, gradient, out=True, role="gradient")
