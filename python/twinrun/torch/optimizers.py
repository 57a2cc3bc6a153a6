"""Hooks of optimizers: settings, parameters, gradients and states before a step and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..runs.events import Event, Traced
from .guard import Guard
from .model import Owner, Owners, move_last
from .modes import left_uncompiled, step_within_step
from .position import Position
from .recorder import Recorder
from .replica_checks import ReplicaChecks
from .values import is_plain, tensors_of

__all__ = ["OptimizerHooks"]


class _Parameter(NamedTuple):
    """A parameter of an optimizer: the module it belongs to, its name, and its group's settings.

    operation: what a step of it is called. states: what its states are called, by their keys.
    """

    path: str
    name: str
    parameter: torch.Tensor
    group: dict[str, Any]
    operation: str
    states: dict[str, str]


class _Closure:
    """The closure of a step in the place of the program's own. What it is asked for is that of the program's.

    label: of the optimizer. returned: is called each time that it has returned or raised. calls: how often
    that was.
    """

    def __init__(
        self, closure: Callable[..., Any], label: str, position: Position, returned: Callable[[], None]
    ) -> None:
        self.__wrapped__ = closure
        self._label, self._position, self._returned = label, position, returned
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        position = self._position
        optimizing = position.optimizing
        # The model that it runs is no part of the optimizer's own work.
        position.optimizing = position.failed = False
        try:
            return self.__wrapped__(*args, **kwargs)
        except BaseException:
            position.failed = True
            raise
        finally:
            # Also where it raises: the optimizer may go on, with the gradients that are there then.
            # A closure that called this one goes on, too, and is no work of the optimizer's own.
            position.optimizing = optimizing
            self.calls += 1
            self._returned()

    @staticmethod
    def is_there(given: Any, label: str, position: Position) -> bool:
        """Whether a step is given this trace's closure of its optimizer already. Other traces may have put
        theirs around it.
        """
        while isinstance(given, _Closure):
            if given._label == label and given._position is position:
                return True
            given = given.__wrapped__
        return False

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not there yet
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)


class OptimizerHooks:
    """The hooks of optimizers. A step of the last one ends an iteration. A step within another one of the
    same optimizer is a part of that one.

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
        self._hooks: list[tuple[torch.optim.Optimizer, Any, Any]] = []
        # Of the step under way, by the label of its optimizer, as its closure may run another step:
        # the numbers of its calls, by the id of their parameter; and its closure, where it has one.
        self._calls: dict[str, dict[int, int]] = {}
        self._closures: dict[str, _Closure] = {}
        # The parameters that an optimizer had last, by its label.
        self._known: dict[str, tuple[list[int], list[_Parameter]]] = {}

    def attach(self, handles: list[Any]) -> None:
        """Adds the hooks, and what removes them to `handles`."""
        for number, optimizer in enumerate(self._optimizers):
            label = "" if len(self._optimizers) == 1 else f"{number}."
            handles.append(optimizer.register_step_pre_hook(self._stepping(label)))
            last = number == len(self._optimizers) - 1
            handles.append(optimizer.register_step_post_hook(self._stepped(label, last)))
            self._hooks.append((optimizer, *handles[-2:]))

    def come_last(self) -> None:
        """Lets the hooks run after those that were added since, which may change gradients and parameters."""
        for optimizer, before, after in self._hooks:
            move_last(optimizer._optimizer_step_pre_hooks, before)
            move_last(optimizer._optimizer_step_post_hooks, after)

    def _stepping(self, label: str) -> Callable[..., tuple[tuple, dict] | None]:
        def before(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if step_within_step(optimizer):
                # It may have a closure of its own: that makes gradients of this step, too.
                if not self._guard.records():
                    return None
                return self._with_closure(optimizer, label, args, kwargs, inner=True)
            self._position.optimizing, self._position.failed = True, False
            given = None
            self._closures.pop(label, None)  # of a step that failed
            if self._guard.records():
                given = self._with_closure(optimizer, label, args, kwargs, inner=False)
                with self._guard.work("the optimizer's step"):
                    self._see(optimizer, label, out=False)
            # Afterwards: where it raises, the trace has what differs.
            if self._replicas is not None and self._replicas.due():
                self._replicas.check(lambda: self._replicated(optimizer, label))
            return given

        return left_uncompiled(before)

    def _with_closure(
        self, optimizer: torch.optim.Optimizer, label: str, args: tuple, kwargs: dict, *, inner: bool
    ) -> tuple[tuple, dict] | None:
        """What a step is given, with the trace's closure in place of the program's; None where it has none,
        or where an inner step has that of the trace.

        A closure makes the gradients that a step takes. Those of before are of an earlier step.
        """
        own = kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None
        if not callable(own) or (inner and _Closure.is_there(own, label, self._position)):
            return None
        closure = _Closure(own, label, self._position, lambda: self._closure_returned(optimizer, label))
        if not inner:
            self._closures[label] = closure
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    def _closure_returned(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        if self._guard.records():
            with self._guard.work("the optimizer's step"):
                self._see_gradients(optimizer, label)

    def _see_gradients(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Adds the gradients that a closure made to what the step takes, in events of their own."""
        recorder, calls = self._recorder, self._calls.get(label, {})
        with recorder.together():
            for of in self._parameters(optimizer, label):
                if (gradient := of.parameter.grad) is not None:
                    call = calls.get(id(of.parameter), -1)
                    event = recorder.event("optimizer", of.path, "", of.operation, call)
                    recorder.see(event, f"{of.name}.grad", gradient, out=False, role="gradient")

    def _stepped(self, label: str, last: bool) -> Callable[..., None]:
        def after(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            if step_within_step(optimizer):
                return
            self._position.optimizing = self._position.failed = False
            closure = self._closures.pop(label, None)
            if self._guard.records():
                with self._guard.work("the optimizer's step"):
                    if closure is not None and not closure.calls:  # it took the gradients of before
                        self._see_gradients(optimizer, label)
                    self._see(optimizer, label, out=True)
            if last:
                self._ended()

        return left_uncompiled(after)

    def _parameters(self, optimizer: torch.optim.Optimizer, label: str) -> list[_Parameter]:
        """The parameters of an optimizer. They are listed again where they changed."""
        now = [id(what) for group in optimizer.param_groups for what in (group, *group["params"])]
        known = self._known.get(label)
        if known is not None and known[0] == now:
            return known[1]
        found: list[_Parameter] = []
        for g, group in enumerate(optimizer.param_groups):
            for n, p in enumerate(group["params"]):
                owner = self._owners.get(id(p)) or Owner("", f"{label}group{g}.{n}")
                operation = f"{label}{type(optimizer).__name__}.step of {owner.name}"
                found.append(_Parameter(owner.path, owner.name, p, group, operation, {}))
        self._known[label] = now, found
        return found

    def _see(self, optimizer: torch.optim.Optimizer, label: str, *, out: bool) -> None:
        recorder = self._recorder
        if not out:
            self._calls[label] = {}
        calls = self._calls.setdefault(label, {})
        settings: dict[int, tuple[dict[str, Any], list[Traced]]] = {}  # by the id of a group
        with recorder.together():
            self._see_own(optimizer, label, out=out)
            for of in self._parameters(optimizer, label):
                name, p, group = of.name, of.parameter, of.group
                if not out:
                    calls[id(p)] = self._position.new_call()
                event = recorder.event("optimizer", of.path, "", of.operation, calls.get(id(p), -1))
                if not out:
                    if id(group) not in settings:
                        settings[id(group)] = self._settings(group)
                    tensors, plain = settings[id(group)]
                    event.values.extend(plain)
                    if tensors:
                        recorder.see(event, "settings", tensors, out=False, role="setting")
                    if p.grad is not None and label not in self._closures:
                        recorder.see(event, f"{name}.grad", p.grad, out=False, role="gradient")
                recorder.see(event, name, p, out=out, role="parameter")
                self._see_state(event, of, optimizer.state.get(p, {}), out=out)

    def _see_own(self, optimizer: torch.optim.Optimizer, label: str, *, out: bool) -> None:
        """Adds the states that belong to no parameter, if there are any, as an event of their own."""
        own = {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
        if not own:
            return
        calls = self._calls[label]
        if not out:
            calls[id(optimizer)] = self._position.new_call()
        operation = f"{label}{type(optimizer).__name__}.step of its own state"
        event = self._recorder.event("optimizer", "", "", operation, calls.get(id(optimizer), -1))
        self._recorder.see(event, "state", own, out=out, role="state")

    def _see_state(self, event: Event, of: _Parameter, state: Any, *, out: bool) -> None:
        """Adds the states of a parameter to an event."""
        recorder = self._recorder
        if type(state) is not dict or not all(type(k) is str and is_plain(t) for k, t in state.items()):
            recorder.see(event, f"{of.name}.state", dict(state), out=out, role="state")
            return
        for key, one in state.items():  # all are tensors, as most optimizers have it
            name = of.states.get(key)
            if name is None:
                name = of.states[key] = f"{of.name}.state.{key}"
            recorder.see(event, name, one, out=out, role="state")

    def _settings(self, group: dict[str, Any]) -> tuple[dict[str, Any], list[Traced]]:
        """The settings of a group: those that hold tensors, and the values of the others."""
        own = {k: v for k, v in group.items() if k != "params"}
        tensors = {k: v for k, v in own.items() if tensors_of(v)}
        return tensors, self._recorder.settings({k: v for k, v in own.items() if k not in tensors})

    def _replicated(self, optimizer: torch.optim.Optimizer, label: str) -> list[tuple[str, torch.Tensor]]:
        """What data-parallel processes hold alike before a step."""
        values: list[tuple[str, torch.Tensor]] = []
        for of in self._parameters(optimizer, label):
            name, p = of.name, of.parameter
            values.append((name, p))
            if p.grad is not None:
                values.append((f"{name}.grad", p.grad))
            for key, one in sorted(optimizer.state.get(p, {}).items(), key=lambda pair: str(pair[0])):
                if isinstance(one, torch.Tensor):
                    values.append((f"{name}.state.{key}", one))
        return values
