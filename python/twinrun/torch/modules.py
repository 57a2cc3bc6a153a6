"""Hooks of modules: what goes in and what comes out, with parameters, buffers and settings."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..runs.events import Event
from ..runs.gaps import BY_CHANCE, CHANGED_BEFORE, NOT_LOOKED_INTO
from ..runs.structure import Fact
from .arguments import changed, given
from .generators import Generators
from .guard import Guard
from .model import Owned, Watched, hook_after, hook_before, move_last
from .modes import compiling, in_backward
from .module_gradients import ModuleGradients, sequence_number
from .node_gradients import NodeGradients
from .position import Frame, Position
from .recorder import Recorder
from .states import Changed, Snapshot, Subtree, changed_by
from .traced_model import TracedModel
from .values import Leaf, differentiates_forward, leaves, same_tensors, tangents_of, tensors_among

__all__ = ["ModuleHooks"]


# What a module took out of a container of its caller, or of what it and the modules below it hold.
_GONE = "there no more"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of functions and objects: other ones in each process


def _extra(module: torch.nn.Module) -> str:
    try:
        said = module.extra_repr()
        return _ADDRESS.sub("", said) if " at 0x" in said else said
    except Exception:  # it is the model's own code
        return ""


class _Hook:
    """A hook of a module. A copy of the module, or one that was saved as a whole, is not traced: it has a
    function that does nothing in this one's place, which needs no twinrun either.
    """

    __slots__ = ("_hooks", "_watched")

    def __init__(self, hooks: ModuleHooks, watched: Watched) -> None:
        self._hooks, self._watched = hooks, watched

    def __reduce__(self) -> tuple:
        return getattr, (contextlib.nullcontext, "__exit__")

    def __deepcopy__(self, memo: dict) -> Any:
        return contextlib.nullcontext.__exit__


class _Before(_Hook):
    __slots__ = ()

    def __call__(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if not compiling():
            self._hooks.enter(self._watched, args, kwargs)


class _After(_Hook):
    __slots__ = ()

    def __call__(self, module: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if not compiling():
            self._hooks.leave(self._watched, args, kwargs, output)


class ModuleHooks:
    """The hooks of the modules that are watched, before and after their `forward`."""

    def __init__(
        self,
        model: TracedModel,
        guard: Guard,
        position: Position,
        recorder: Recorder,
        generators: Generators,
        gradients: ModuleGradients | NodeGradients,
        look: Callable[[], object],
    ) -> None:
        """look: is called before a model runs, to hook what came into it."""
        self._model, self._guard, self._position = model, guard, position
        self._recorder, self._generators, self._gradients = recorder, generators, gradients
        self._look = look
        self._hooks: dict[Watched, list[Any]] = {}
        self.entered = False  # whether a module was called in this iteration
        # Whether modules of two threads overlapped in this iteration, and if a warning said so.
        self._overlapped = self._told_overlap = False

    def attach(self, watched: Iterable[Watched], handles: list[Any]) -> None:
        """Adds the hooks of modules, and what removes them to `handles`."""
        for w in watched:
            hooks = self._hooks[w] = [hook_before(w.module, _Before(self, w))]
            handles.append(hooks[0])  # at once: the next one may fail
            hooks.append(hook_after(w.module, _After(self, w), always=True))
            handles.append(hooks[1])

    def _come_last(self) -> None:
        """Lets the hooks run after those that were added since: these may change what is seen."""
        for w, hooks in self._hooks.items():
            move_last(w.module._forward_pre_hooks, hooks[0])
            move_last(w.module._forward_hooks, hooks[1])

    def detach(self, watched: Iterable[Watched]) -> list[Any]:
        """Removes the hooks of modules, and gives what removed them."""
        gone = [hook for w in watched for hook in self._hooks.pop(w, ())]
        for hook in gone:
            hook.remove()
        return gone

    def forget(self) -> None:
        """All hooks have been removed."""
        self._hooks.clear()

    def begin_iteration(self) -> None:
        """No module was called yet."""
        self.entered = self._overlapped = False
        self._gradients.forget()
        for w in self._model.watched:
            w.calls = 0
            w.called = False
            w.last_call = -1
            w.own.begin_iteration()

    def enter(self, w: Watched, args: tuple, kwargs: dict) -> None:
        """A module is called."""
        self._position.touched = True
        if not self._guard.records():
            return
        phase = "recompute" if in_backward() else "forward"
        tangents = self._tangents(w, args=args, kwargs=kwargs, held=w.parameters)
        with self._guard.work(("the input of", w.path)):
            self._enter(w, phase, args, kwargs, tangents)

    def _tangents(
        self, w: Watched, *, held: Iterable[Owned] = (), **values: Any
    ) -> tuple[list[Leaf], list[str]]:
        """What forward differentiation carries beside values and parameters; and what of it cannot be read.
        Not as work of the guard, which takes away the transforms of torch.func: they hold it.
        """
        if not differentiates_forward():
            return [], []
        try:
            with self._guard.within_transforms():
                found = [leaf for name, value in values.items() for leaf in leaves(name, value)]
                owned = ((one.name, one.tensor("parameter")) for one in held)
                return tangents_of([*found, *((name, t) for name, t in owned if t is not None)])
        except Exception as e:
            if not self._guard.failed(f"the tangents of {w.path or 'the model'}", e):
                raise
            return [], []

    def _enter(
        self, w: Watched, phase: str, args: tuple, kwargs: dict, tangents: tuple[list[Leaf], list[str]]
    ) -> None:
        position, recorder = self._position, self._recorder
        if phase == "forward" and (w.root or not self.entered or self._model.has_lazy):
            self._look()
            self._come_last()
        self.entered = w.called = True
        if phase == "forward":
            if w.root and position.failed:  # with its closure the step failed: it does not go on
                position.optimizing = position.failed = False
            while position.frames and position.frames[-1].phase != "forward":
                position.frames.pop()  # a recomputation that ended early
            if w.root and not any(frame.watched is w for frame in position.frames):  # a model may call itself
                position.microbatch = w.calls
                w.calls += 1
        if phase == "forward":
            self._note_threads(w)
        objects: list[str] = []
        facts: list[Fact] = []
        named: list[Leaf] = []
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor:  # most modules take one
            taken = unnamed = [("args.0", args[0])]
        else:
            taken = unnamed = leaves("args", args, others=objects, facts=facts, attributes=objects)
            if kwargs:
                named = leaves("kwargs", kwargs, others=objects, facts=facts, attributes=objects)
                taken = unnamed + named
            facts += same_tensors(taken)
        stops = [node for t in tensors_among(taken) if (node := t.grad_fn) is not None]
        call = w.last_call = position.new_call()
        event = recorder.event(phase, w.path, w.kind, "forward", call)
        position.frames.append(Frame(call, phase, w, sequence_number(), stops, given(taken)))
        recorder.setting(event, "settings", f"{_extra(w.module)} training={w.module.training}")
        event.structure = f"{event.structure}{w.own.line()}"
        for name in (*objects, *tangents[1]):
            recorder.setting(event, name, NOT_LOOKED_INTO)
        with recorder.together():
            recorder.see_leaves(event, unnamed, out=False, facts=facts)
            if named:
                recorder.see_leaves(event, named, out=False)
            if tangents[0]:
                recorder.see_leaves(event, tangents[0], out=False)
            if w.parameters:
                self._see_owned(event, w.parameters, "parameter", out=False)
            if w.buffers:
                self._see_owned(event, w.buffers, "buffer", out=False)
        self._generators.add_states(event)
        if w.subtree is None:
            w.subtree = Subtree(w, self._model.swaps)
        position.frames[-1].state = Snapshot(w.subtree)

    def leave(self, w: Watched, args: tuple, kwargs: dict, output: Any) -> None:
        """A module has returned."""
        if not self._guard.records():
            return
        grads = torch.is_grad_enabled()
        tangents = self._tangents(w, output=output)
        with self._guard.work(("the output of", w.path)):
            self._leave(w, args, kwargs, output, grads, tangents)

    def _leave(
        self,
        w: Watched,
        args: tuple,
        kwargs: dict,
        output: Any,
        grads: bool,
        tangents: tuple[list[Leaf], list[str]],
    ) -> None:
        frames, recorder = self._position.frames, self._recorder
        at = self._position.innermost_of(w)
        if at < 0:  # the trace began inside of it
            return
        frame = frames[at]
        frames[at + 1 :] = [other for other in frames[at + 1 :] if other.thread != frame.thread]
        if frame.phase == "forward":
            self._note_threads(w)
        event = recorder.event(frame.phase, w.path, w.kind, "forward", frame.call)
        objects: list[str] = []
        facts: list[Fact] = []
        if type(output) is torch.Tensor:
            found = [("output", output)]
        else:
            found = leaves("output", output, others=objects, facts=facts, attributes=objects)
            facts += same_tensors(found)
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor:
            held = [("args.0", args[0])]
        else:
            held = [*leaves("args", args), *leaves("kwargs", kwargs)]
        written, gone = changed(frame.given, held)
        states: list[Changed] = []
        if frame.state is not None:
            around = [outer.state for outer in frames[:at] if outer.state is not None]
            states = changed_by(frame.state, around)
        anew: set[int | str] = {
            one.name if one.tensor is None else id(one.tensor) for one in states if one.counted
        }
        gone += [one.name for one in states if one.tensor is None]
        for name in (*objects, *tangents[1]):
            recorder.setting(event, name, NOT_LOOKED_INTO, out=True)
        for name in gone:
            recorder.setting(event, name, _GONE, out=True)
        with recorder.together():
            # What its code may have taken from modules that it did not call.
            for other in w.below:
                if other.last_call <= frame.call and frame.phase == "forward" and self._is_hooked(other):
                    self._see_uncalled(
                        event, other, f"{other.path[len(w.path) :].lstrip('.')}.", frame.call, anew
                    )
            recorder.see_leaves(event, found, out=True, facts=facts)
            if tangents[0]:
                recorder.see_leaves(event, tangents[0], out=True)
            if written:
                self._see_written(event, written, found)
            seen: set[int] = set()
            if w.buffers and w.module.training:
                self._see_owned(event, w.buffers, "buffer", out=True)
                seen = {id(one.tensor("buffer")) for one in w.buffers}
            for state in states:
                if state.tensor is not None and id(state.tensor) not in seen:
                    recorder.see_tensor(event, state.name, state.tensor, out=True, role=state.role)
        del frames[at]
        if grads:
            # The nodes of the graph that the module's own code made.
            made = [t for t in tensors_among(found) if t.requires_grad]
            nodes = [node for t in made if (node := t.grad_fn) is not None]
            self._gradients.watch(
                nodes,
                w.path,
                w.kind,
                stops={id(n) for n in frame.stops},
                first=frame.sequence,
                since=frame.call,
                # TorchScript makes other nodes once it has optimized a module.
                hidden=isinstance(w.module, torch.jit.ScriptModule),
                coming=lambda node: tuple(sorted({t.output_nr for t in made if t.grad_fn is node})),
            )
        if not frames:
            self._gradients.forget()

    def _note_threads(self, w: Watched) -> None:
        """Where modules are at work in several threads at once, which of them comes first is by chance: once
        in an iteration the trace says so, and once a warning.
        """
        other = self._position.beside(w)
        if other is None or self._overlapped:
            return
        self._overlapped = True
        paths = sorted({w.path or "the model", other.watched.path or "the model"})
        text = self._guard.problem(f"two threads called {' and '.join(paths)} at the same time. {BY_CHANCE}")
        if not self._told_overlap:
            self._told_overlap = True
            warnings.warn(f"twinrun: {text}", RuntimeWarning, stacklevel=6)

    def _see_written(self, event: Event, written: Sequence[Leaf], outputs: Sequence[Leaf]) -> None:
        """Adds what a module wrote into its caller's values. What works in place gives it as output, too."""
        given_back = {id(t): name for name, t in outputs if isinstance(t, torch.Tensor)}
        others = [leaf for leaf in written if id(leaf[1]) not in given_back]
        if others:
            self._recorder.see_leaves(event, others, out=True)
        for name, t in written:
            if id(t) in given_back:
                self._recorder.see_twice(event, name, t, given_back[id(t)])

    def _see_uncalled(
        self, event: Event, w: Watched, prefix: str, since: int, changed: set[int | str]
    ) -> None:
        """Adds what a module holds, and those below it that were not called since. prefix: of names.
        changed: the ids of tensors that are not what went in any more, and names where none is any more.
        """
        for role, owned in (("parameter", w.parameters), ("buffer", w.buffers)):
            for one in owned:
                t = one.tensor(role)
                if f"{prefix}{one.name}" in changed if t is None else id(t) in changed:
                    self._recorder.setting(event, f"{prefix}{one.name}", CHANGED_BEFORE)
                elif t is not None:
                    self._recorder.see_tensor(event, f"{prefix}{one.name}", t, out=False, role=role)
        for other in w.below:
            if other.last_call <= since and self._is_hooked(other):
                below = other.path[len(w.path) :].lstrip(".")
                self._see_uncalled(event, other, f"{prefix}{below}.", since, changed)

    def _is_hooked(self, w: Watched) -> bool:
        """Whether its calls would be seen: a program may remove all hooks."""
        return w in self._hooks and self._hooks[w][0].id in w.module._forward_pre_hooks

    def unhooked(self) -> list[Watched]:
        """The modules whose hooks the program removed."""
        return [
            w
            for w, (before, after) in self._hooks.items()
            if before.id not in w.module._forward_pre_hooks or after.id not in w.module._forward_hooks
        ]

    def _see_owned(self, event: Event, owned: Iterable[Owned], role: str, *, out: bool) -> None:
        for one in owned:
            t = one.tensor(role)
            if t is not None:
                self._recorder.see_tensor(event, one.name, t, out=out, role=role)
