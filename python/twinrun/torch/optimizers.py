"""Hooks of optimizers: settings, parameters, gradients and states before a step and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..runs.events import Traced
from .guard import Guard
from .model import Owner, Owners
from .position import Position
from .recorder import Recorder
from .replica_checks import ReplicaChecks
from .values import tensors_of

__all__ = ["OptimizerHooks"]


class _Parameter(NamedTuple):
    """A parameter of an optimizer: the module it belongs to, its name, and its group's settings."""

    path: str
    name: str
    tensor: torch.Tensor
    group: dict[str, Any]


class OptimizerHooks:
    """The hooks of optimizers. A step of the last one ends an iteration.

    replicas: compares data-parallel processes before a step; None where nobody asked for it.
    ended: what is called when an iteration ended.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        owners: Owners,
        guard: Guard,
        position: Position,
        recorder: Recorder,
        replicas: ReplicaChecks | None,
        ended: Callable[[], None],
    ) -> None:
        self._optimizers, self._owners = optimizers, owners
        self._guard, self._position, self._recorder = guard, position, recorder
        self._replicas, self._ended = replicas, ended
        # The number of the call, by optimizer and parameter, of the step under way.
        self._calls: dict[tuple[str, int], int] = {}

    def attach(self, handles: list[Any]) -> None:
        """Adds the hooks, and what removes them to `handles`."""
        for number, optimizer in enumerate(self._optimizers):
            label = "" if len(self._optimizers) == 1 else f"{number}."
            handles.append(optimizer.register_step_pre_hook(self._stepping(label)))
            last = number == len(self._optimizers) - 1
            handles.append(optimizer.register_step_post_hook(self._stepped(label, last)))

    def _stepping(self, label: str) -> Callable[..., None]:
        def before(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            self._position.optimizing = True
            if self._replicas is not None and self._replicas.due():
                self._replicas.check(lambda: self._replicated(optimizer, label))
            if not self._guard.records():
                return
            with self._guard.work("the optimizer's step"):
                self._see(optimizer, label, out=False)

        return before

    def _stepped(self, label: str, last: bool) -> Callable[..., None]:
        def after(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            self._position.optimizing = False
            if self._guard.records():
                with self._guard.work("the optimizer's step"):
                    self._see(optimizer, label, out=True)
            if last:
                self._ended()

        return after

    def _parameters(self, optimizer: torch.optim.Optimizer, label: str) -> Iterator[_Parameter]:
        for g, group in enumerate(optimizer.param_groups):
            for n, p in enumerate(group["params"]):
                owner = self._owners.get(id(p)) or Owner("", f"{label}group{g}.{n}")
                yield _Parameter(owner.path, owner.name, p, group)

    def _see(self, optimizer: torch.optim.Optimizer, label: str, *, out: bool) -> None:
        recorder = self._recorder
        name_of = f"{label}{type(optimizer).__name__}.step"
        if not out:
            self._calls.clear()
        settings: dict[int, tuple[dict[str, Any], list[Traced]]] = {}  # by the id of a group
        with recorder.together():
            for path, name, p, group in self._parameters(optimizer, label):
                key = (label, id(p))
                if not out:
                    self._calls[key] = self._position.new_call()
                event = recorder.event(
                    "optimizer", path, "", f"{name_of} of {name}", self._calls.get(key, -1)
                )
                if not out:
                    if id(group) not in settings:
                        settings[id(group)] = self._settings(group)
                    tensors, plain = settings[id(group)]
                    event.values.extend(plain)
                    if tensors:
                        recorder.see(event, "settings", tensors, out=False, role="setting")
                    if p.grad is not None:
                        recorder.see(event, f"{name}.grad", p.grad, out=False, role="gradient")
                recorder.see(event, name, p, out=out, role="parameter")
                recorder.see(event, f"{name}.state", dict(optimizer.state.get(p, {})), out=out, role="state")

    def _settings(self, group: dict[str, Any]) -> tuple[dict[str, Any], list[Traced]]:
        """The settings of a group: those that hold tensors, and the values of the others."""
        own = {k: v for k, v in group.items() if k != "params"}
        tensors = {k: v for k, v in own.items() if tensors_of(v)}
        return tensors, self._recorder.settings({k: v for k, v in own.items() if k not in tensors})

    def _replicated(self, optimizer: torch.optim.Optimizer, label: str) -> list[tuple[str, torch.Tensor]]:
        """What data-parallel processes hold alike before a step."""
        values: list[tuple[str, torch.Tensor]] = []
        for _, name, p, _ in self._parameters(optimizer, label):
            values.append((name, p))
            if p.grad is not None:
                values.append((f"{name}.grad", p.grad))
            for key, one in sorted(optimizer.state.get(p, {}).items(), key=lambda pair: str(pair[0])):
                if isinstance(one, torch.Tensor):
                    values.append((f"{name}.state.{key}", one))
        return values
