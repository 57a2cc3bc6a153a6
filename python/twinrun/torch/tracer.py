"""`trace`: what goes into the modules of a model, what comes out, and how the model learns from it.

Nothing here changes a value: hooks return None, and digests are made of what is there.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..arguments import step_number
from ..capture.events import EventWriter, copied
from ..capture.run import Run
from ..errors import Incomparable, TwinrunError, Unsupported
from ..runs.digest import Digest, digests_of
from ..runs.events import Event
from ..trace.comparison import Origin
from ..trace.online import Reference, TraceDiverged
from ..trace.site import Site
from .replicas import ReplicasDiffer, check_replicas, group_of
from .stopping import StopMark
from .values import digest_of_text, leaves, put, tensors_of

if TYPE_CHECKING:
    from .operations import OperationMode

__all__ = ["Trace", "trace"]

_OLDEST = (2, 4)
# What wrappers put into the names of modules.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_Items = list[tuple[str, torch.Tensor]]


def _path(name: str, wrapped: bool) -> str:
    parts = [p for p in name.split(".") if p not in _WRAPPERS]
    if wrapped and parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


class _Frame:
    """A module that is at work."""

    __slots__ = ("call", "phase", "sequence", "stops", "watched")

    def __init__(self, call: int, phase: str, watched: _Watched, sequence: int, stops: list) -> None:
        self.call, self.phase, self.watched, self.sequence, self.stops = call, phase, watched, sequence, stops


class _Watched:
    """A module of the model: its path and class, and the parameters and buffers that its own code uses."""

    __slots__ = ("buffers", "calls", "kind", "module", "parameters", "path", "root")

    def __init__(self, path: str, module: torch.nn.Module, root: bool) -> None:
        self.path, self.module, self.root = path, module, root
        self.kind = type(module).__name__
        self.calls = 0  # of this iteration
        self.parameters: list[tuple[str, torch.nn.Module, str]] = []
        self.buffers: list[tuple[str, torch.nn.Module, str]] = []


class _Node:
    """A node of the graph of gradients, between its two hooks."""

    __slots__ = ("call", "kind", "microbatch", "name", "path")

    def __init__(self, path: str, kind: str, name: str, microbatch: int) -> None:
        self.path, self.kind, self.name, self.microbatch, self.call = path, kind, name, microbatch, -1


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _compiling() -> bool:
    return torch.compiler.is_compiling()


class Trace:
    """A trace under way; `trace` makes it.

    Attributes
    ----------
    iteration : int
        The iteration under way, from `start` on.
    run : Run
        The run that it is captured into.
    problems : list of str
        What could not be traced so far. A comparison reports it, and never says 'same'.
    stopped : bool
        Whether the trace ended because of an error.

    Notes
    -----
    See `trace`.
    """

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        run: Run,
        *,
        own_run: bool,
        optimizers: Sequence[torch.optim.Optimizer],
        every: int,
        modules: Sequence[str],
        level: str,
        keep: Callable[[Site], bool] | None,
        start: int,
        raises: bool,
        rng: str,
        reference: Reference | None,
        on_divergence: Callable[[Origin], object] | str,
        replicas: int,
        group: Any,
    ) -> None:
        self.run = run
        self.iteration = start
        self.problems: list[str] = []
        self.stopped = False
        self._own_run = own_run
        self._models, self._optimizers = dict(models), list(optimizers)
        self._start, self._every, self._patterns, self._level = start, every, list(modules), level
        self._keep, self._raises, self._rng = keep, raises, rng
        self._reference, self._on_divergence, self._replicas = reference, on_divergence, replicas
        self._group = group
        self._diverged: Origin | None = None
        self._mark = StopMark.of_the_job() if reference is not None and on_divergence == "stop" else None
        # The iteration whose digests wait for the end of a CUDA graph's capture.
        self._unread: int | None = None
        self._writer = EventWriter(run.path, run.keeps_data)
        self._handles: list[Any] = []
        self._frames: list[_Frame] = []
        self._lock = threading.RLock()
        self._calls = 0
        self._begun = self._touched = False
        self._thread = threading.local()  # gradients are computed by other threads
        self._optimizing = ""
        self._steps: dict[tuple[str, int], int] = {}
        self._owners: dict[int, tuple[str, str]] = {}
        self._generators: dict[str, tuple[bytes, Digest, tuple]] = {}
        self._mode: OperationMode | None = None
        self._microbatch = 0
        self._told: set[str] = set()  # problems of replicas
        self._watched = self._modules()

    # ---- the model ----

    def _modules(self) -> list[_Watched]:
        watched: list[_Watched] = []
        for label, model in self._models.items():
            distributed = isinstance(model, torch.nn.parallel.DistributedDataParallel)
            mine: dict[int, _Watched] = {}
            nearest: dict[str, _Watched] = {}
            for name, module in model.named_modules():
                path = ".".join(p for p in (label, _path(name, distributed)) if p)
                parent = nearest.get(name.rpartition(".")[0])
                same = name != "" and parent is not None and path == parent.path
                if name == "" or (not same and any(fnmatch.fnmatchcase(path, p) for p in self._patterns)):
                    parent = mine[id(module)] = _Watched(path, module, name == "")
                    watched.append(parent)
                assert parent is not None
                nearest[name] = parent
                below = path[len(parent.path) :].lstrip(".")
                for kind, into in (
                    (module._parameters, parent.parameters),
                    (module._buffers, parent.buffers),
                ):
                    into.extend((f"{below}.{key}".lstrip("."), module, key) for key in kind)
                for key, p in module._parameters.items():
                    if p is not None:
                        self._owners.setdefault(id(p), (path, f"{path}.{key}".lstrip(".")))
        return watched

    # ---- beginning and end ----

    def __enter__(self) -> Trace:
        try:
            for w in self._watched:
                before, after = self._entering(w), self._leaving(w)
                self._handles.append(w.module.register_forward_pre_hook(before, with_kwargs=True))
                self._handles.append(
                    w.module.register_forward_hook(after, with_kwargs=True, always_call=True)
                )
            for model in self._models.values():
                for p in model.parameters():
                    if p.requires_grad:
                        self._handles.append(p.register_post_accumulate_grad_hook(self._accumulated))
            for number, optimizer in enumerate(self._optimizers):
                name = "" if len(self._optimizers) == 1 else f"{number}."
                self._handles.append(optimizer.register_step_pre_hook(self._stepping(name)))
                last = number == len(self._optimizers) - 1
                self._handles.append(optimizer.register_step_post_hook(self._stepped(name, last)))
            if self._level == "ops":
                from .operations import OperationMode

                self._mode = OperationMode(self)
                self._mode.__enter__()
        except BaseException:
            self._unhook()
            if self._own_run:
                self.run.close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        mode, self._mode = self._mode, None
        if mode is not None and mode.is_innermost():
            mode.__exit__(kind, error, trace)
        self._unhook()
        try:
            self._read_later()
            with self._guard("the last iteration"):
                if len(self._writer):
                    _check_no_graph_capture()
                self._commit(agree=error is None, last=True)
        finally:
            self._close(error is None)

    def _close(self, alone: bool) -> None:
        if not self._own_run:
            return
        try:
            self.run.close()
        except TwinrunError as e:
            if self._raises and alone:
                raise
            warnings.warn(f"twinrun: the trace could not be closed: {e}", RuntimeWarning, stacklevel=3)

    def _unhook(self) -> None:
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
        self._handles = []

    @property
    def _inside(self) -> bool:
        """Whether this thread is at work for the trace."""
        return getattr(self._thread, "inside", False)

    @_inside.setter
    def _inside(self, value: bool) -> None:
        self._thread.inside = value

    @property
    def _chosen(self) -> bool:
        """Whether this iteration is one of every so many."""
        return (self.iteration - self._start) % self._every == 0

    @property
    def active(self) -> bool:
        """Whether values are recorded now."""
        return not self.stopped and not self._inside and bool(self._handles) and self._chosen

    def records(self) -> bool:
        """Whether values are recorded now, and can be: the capture of a CUDA graph ends the trace."""
        if not self.active:
            return False
        if _capturing():
            with self._guard("a value"):
                _check_no_graph_capture()
        return self.active

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Nothing that the trace does may end the training, or be seen by modes and by the graph of
        gradients.
        """
        with self._lock:
            self._inside = True
            try:
                with _no_modes(), torch.no_grad():
                    yield
            except (TraceDiverged, ReplicasDiffer):  # the caller asked for it
                self.stopped = True
                raise
            except Exception as e:
                if self._raises:
                    self.stopped = True
                    raise
                self._stop(f"{what}: {type(e).__name__}: {e}")
            finally:
                self._inside = False

    def _stop(self, why: str) -> None:
        if self.stopped:
            return
        self.stopped = True
        text = f"iteration {self.iteration}: the trace stopped at {why}"
        self.problems.append(text)
        self._writer.problem(text)
        warnings.warn(f"twinrun: {text}; the training goes on", RuntimeWarning, stacklevel=4)
        self._frames.clear()
        if _capturing():
            # To read digests waits for the stream, which would end the capture of the graph: later.
            self._unread = self.iteration
        else:
            self._say()

    def _say(self) -> None:
        """What stopped the trace goes into the history."""
        with contextlib.suppress(Exception):
            found = self._captured()
            if found is not None:
                self._differs(found)

    def _read_later(self) -> None:
        """Reads what could not be read while a CUDA graph was captured."""
        if self._unread is not None and not _capturing():
            now, self.iteration, self._unread = self.iteration, self._unread, None
            try:
                with _no_modes(), torch.no_grad():
                    self._say()
            finally:
                self.iteration = now

    def step(self) -> None:
        """Ends an iteration. With `optimizer`, its `step` does that; an iteration without events
        does not count.

        Where an optimizer's step may be skipped, as `torch.amp.GradScaler` does, call it at the end
        of each iteration: after a step of the optimizer it does nothing.
        """
        if self._touched:
            self._end_iteration()

    def _end_iteration(self) -> None:
        """Iterations count in a trace that stopped, too: processes compare their replicas by this number."""
        self._touched = False
        self._read_later()
        try:
            with self._guard("the end of the iteration"):
                if len(self._writer):
                    _check_no_graph_capture()
                self._commit()
        finally:
            self.iteration += 1

    def _commit(self, agree: bool = True, last: bool = False) -> None:
        self._frames.clear()
        self._begun = self._touched = False
        self._calls = self._microbatch = 0
        for w in self._watched:
            w.calls = 0
        found = None if self.stopped else self._captured()
        if found is not None:
            self._differs(found)
        if agree and self._mark is not None and (self._chosen or last):
            self._agree(found, last)

    def _captured(self) -> Origin | None:
        """Captures the iteration. Gives the first divergence from the reference, once."""
        found = self._compared()
        self._writer.capture(lambda fields: self.run.capture(self.iteration, fields))
        self._diverged = self._diverged or found
        return found

    def _differs(self, found: Origin) -> None:
        assert self._reference is not None
        path = self._reference.path
        if callable(self._on_divergence):
            self._on_divergence(found)
        elif self._on_divergence == "stop" and self._mark is None:
            raise TraceDiverged.at(found, path)
        else:
            warnings.warn(f"twinrun: differs from {path}: {found}", RuntimeWarning, stacklevel=5)

    def _agree(self, found: Origin | None, last: bool) -> None:
        """Where processes work together, all of them end after the same iteration: see `StopMark`."""
        assert self._mark is not None and self._reference is not None
        if self.stopped and torch.cuda.is_initialized() and not _capturing():
            # Without digests that are read, the host may be ahead.
            torch.cuda.current_stream().synchronize()
        # Whether the others see a mark of the last iteration is chance: they end as they are.
        told = None if last else self._mark.since(self.iteration)
        waits = told is None and not last
        if waits and found is not None and self._mark.put(self.iteration, f"rank {_rank()}: {found}"):
            return
        if found is not None or (self._diverged is not None and not waits):
            assert self._diverged is not None
            raise TraceDiverged.at(self._diverged, self._reference.path)
        if told is not None:
            raise TraceDiverged(
                f"another process differs from its reference: {told}", where=self._reference.path
            )

    def _compared(self) -> Origin | None:
        """The first divergence from the reference, once; None where there is none in this iteration."""
        if self._reference is None or self._diverged is not None or not len(self._writer):
            return None
        try:
            return self._reference.first(self.iteration, *self._writer.events())
        except Incomparable as e:
            self.problems.append(f"iteration {self.iteration}: {e}")
            return None

    # ---- values ----

    def _event(
        self, phase: str, module: str, kind: str, operation: str, call: int, microbatch: int | None = None
    ) -> Event:
        if not self._begun:
            self._begun = True
            if self._rng == "all":
                self._begin()
        inner = self._frames[-1].call if self._frames else -1
        if inner == call and len(self._frames) > 1:
            inner = self._frames[-2].call
        elif inner == call:
            inner = -1
        number = self._microbatch if microbatch is None else microbatch
        return self._writer.add(Event(phase, number, module, kind, operation, call, inner, []))

    def _begin(self) -> None:
        event = self._writer.add(Event("begin", 0, "", "", "begin", -1, -1, []))
        for name, state in (("random", random.getstate()), ("numpy.random", np.random.get_state())):
            self._writer.known(
                event, name, digest_of_text(_state_text(state)), ("python", ()), out=False, role="rng"
            )

    def _new_call(self) -> int:
        self._calls += 1
        return self._calls - 1

    def _keeper(self, event: Event) -> Callable[[Any], Any] | None:
        if self._keep is None:
            return None
        site = Site(self.iteration, event.microbatch, event.phase, event.module, event.operation)
        return copied if self._keep(site) else None

    def _see(self, event: Event, name: str, what: Any, *, out: bool, role: str = "value") -> None:
        tensors: dict[str, torch.Tensor] = {}
        for label, one in leaves(name, what):
            if isinstance(one, torch.Tensor):
                put(tensors, label, one)
            else:
                self._setting(event, label, repr(one), out=out)
        self._writer.see(event, tensors, out=out, role=role, keep=self._keeper(event))

    def _setting(self, event: Event, name: str, text: str, *, out: bool = False) -> None:
        self._writer.known(event, name, digest_of_text(text), ("python", ()), out=out, role="setting")

    def _states_of_generators(self, event: Event) -> None:
        if self._rng == "none":
            return
        states = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states[f"cuda:{torch.cuda.current_device()}"] = torch.cuda.get_rng_state()
        for name, state in states.items():
            raw = state.numpy().tobytes()
            known = self._generators.get(name)
            if known is None or known[0] != raw:
                digest, *form = digests_of({name: state})[0]
                known = self._generators[name] = raw, digest, tuple(form)
            self._writer.known(event, name, known[1], known[2], out=False, role="rng")

    # ---- forward ----

    def _phase(self) -> str:
        return "recompute" if _in_backward() else "forward"

    def _entering(self, w: _Watched) -> Callable[..., None]:
        def before(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
            if _compiling():
                return
            self._touched = True
            if not self.records():
                return
            phase = self._phase()
            with self._guard(f"the input of {w.path or 'the model'}"):
                self._enter(w, phase, args, kwargs)

        return before

    def _enter(self, w: _Watched, phase: str, args: tuple, kwargs: dict) -> None:
        if phase == "forward":
            while self._frames and self._frames[-1].phase != "forward":
                self._frames.pop()  # a recomputation that ended early
            if w.root:
                self._microbatch = w.calls
                w.calls += 1
        stops = [t.grad_fn for t in tensors_of((args, kwargs)) if t.grad_fn is not None]
        call = self._new_call()
        event = self._event(phase, w.path, w.kind, "forward", call)
        self._frames.append(_Frame(call, phase, w, _sequence_number(), stops))
        self._setting(event, "settings", f"{_extra(w.module)} training={w.module.training}")
        self._see(event, "args", args, out=False)
        self._see(event, "kwargs", kwargs, out=False)
        self._see_owned(event, w.parameters, "parameter", False)
        self._see_owned(event, w.buffers, "buffer", False)
        self._states_of_generators(event)

    def _see_owned(self, event: Event, owned: list, role: str, out: bool) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, module, key in owned:
            t = (module._parameters if role == "parameter" else module._buffers).get(key)
            if t is not None:
                put(tensors, name, t.detach())
        self._writer.see(event, tensors, out=out, role=role, keep=self._keeper(event))

    def _leaving(self, w: _Watched) -> Callable[..., None]:
        def after(module: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            if _compiling() or not self.records():
                return
            grads = torch.is_grad_enabled()
            with self._guard(f"the output of {w.path or 'the model'}"):
                self._leave(w, output, grads)

        return after

    def _leave(self, w: _Watched, output: Any, grads: bool) -> None:
        at = next((i for i in range(len(self._frames) - 1, -1, -1) if self._frames[i].watched is w), None)
        if at is None:  # the trace began inside of it
            return
        frame = self._frames[at]
        del self._frames[at + 1 :]
        event = self._event(frame.phase, w.path, w.kind, "forward", frame.call)
        self._see(event, "output", output, out=True)
        if w.module.training:
            self._see_owned(event, w.buffers, "buffer", True)
        self._frames.pop()
        if grads:
            self._watch(frame, tensors_of(output))

    # ---- backward ----

    def _watch(self, frame: _Frame, outputs: list[torch.Tensor]) -> None:
        """Hooks for the nodes of the graph that a module's own code made."""
        stops = {id(n) for n in frame.stops}
        waiting = [t.grad_fn for t in outputs if t.requires_grad and t.grad_fn is not None]
        self._hook_nodes(waiting, stops, frame.sequence, frame.watched.path, frame.watched.kind)

    def _hook_nodes(self, waiting: list, stops: set[int], first: int, path: str, kind: str) -> None:
        met: dict[int, Any] = {}
        while waiting:
            node = waiting.pop()
            if id(node) in met or id(node) in stops:
                continue
            met[id(node)] = node  # it must live as long as its number is used
            name = node.name()
            if name.endswith("AccumulateGrad") or node._sequence_nr() < first:
                continue
            if "twinrun" not in node.metadata:
                node.metadata["twinrun"] = path
                one = _Node(path, kind, name, self._microbatch)
                node.register_prehook(self._before_node(one))
                node.register_hook(self._after_node(one))
            waiting.extend(n for n, _ in node.next_functions if n is not None)

    def _before_node(self, one: _Node) -> Callable[[tuple], None]:
        def before(gradients: tuple) -> None:
            if not self.records():
                return
            with self._guard(f"the gradient into {one.name} of {one.path or 'the model'}"):
                one.call = self._new_call()
                event = self._event("backward", one.path, one.kind, one.name, one.call, one.microbatch)
                self._see(event, "grad", list(gradients), out=False, role="gradient")

        return before

    def _after_node(self, one: _Node) -> Callable[[tuple, tuple], None]:
        def after(gradients: tuple, given: tuple) -> None:
            if not self.records() or one.call < 0:
                return
            with self._guard(f"the gradient out of {one.name} of {one.path or 'the model'}"):
                event = self._event("backward", one.path, one.kind, one.name, one.call, one.microbatch)
                self._see(event, "grad", list(gradients), out=True, role="gradient")
                one.call = -1

        return after

    def _accumulated(self, p: torch.nn.Parameter) -> None:
        if not self.records() or p.grad is None:
            return
        with self._guard("a gradient of a parameter"):
            path, name = self._owners.get(id(p), ("", "parameter"))
            event = self._event("backward", path, "", f"gradient of {name}", self._new_call())
            self._see(event, name, p.grad, out=True, role="gradient")

    # ---- optimizer ----

    def _each_parameter(
        self, optimizer: torch.optim.Optimizer, label: str
    ) -> Iterator[tuple[str, str, torch.Tensor, dict]]:
        for g, group in enumerate(optimizer.param_groups):
            for n, p in enumerate(group["params"]):
                path, name = self._owners.get(id(p), ("", f"{label}group{g}.{n}"))
                yield path, name, p, group

    def _stepping(self, label: str) -> Callable[..., None]:
        def before(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            self._optimizing = label or "optimizer"
            if self._replicas and (self.iteration - self._start) % self._replicas == 0:
                self._check_replicas(optimizer, label)
            if not self.records():
                return
            with self._guard("the optimizer's step"):
                self._optimizer_events(optimizer, label, out=False)

        return before

    def _replicated(self, optimizer: torch.optim.Optimizer, label: str) -> list[tuple[str, torch.Tensor]]:
        values: list[tuple[str, torch.Tensor]] = []
        for _, name, p, _ in self._each_parameter(optimizer, label):
            values.append((name, p))
            if p.grad is not None:
                values.append((f"{name}.grad", p.grad))
            for key, one in sorted(optimizer.state.get(p, {}).items(), key=lambda pair: str(pair[0])):
                if isinstance(one, torch.Tensor):
                    values.append((f"{name}.state.{key}", one))
        return values

    def _check_replicas(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Not within `_guard`: a process whose trace stopped must still answer the others."""
        with self._lock:
            self._inside = True
            try:
                _check_no_graph_capture()
                with _no_modes(), torch.no_grad():
                    problems = check_replicas(
                        lambda: self._replicated(optimizer, label), f"iteration {self.iteration}", self._group
                    )
            except ReplicasDiffer:  # the caller asked for it
                raise
            except Exception as e:
                if self._raises:
                    raise
                problems = [str(e) if isinstance(e, TwinrunError) else f"{type(e).__name__}: {e}"]
            finally:
                self._inside = False
        for text in problems:
            if text not in self._told:
                self._told.add(text)
                warnings.warn(f"twinrun: replicas: {text}", RuntimeWarning, stacklevel=4)
                self.problems.append(f"iteration {self.iteration}: replicas: {text}")
            self._writer.problem(f"iteration {self.iteration}: replicas: {text}")

    def _optimizer_events(self, optimizer: torch.optim.Optimizer, label: str, *, out: bool) -> None:
        name_of = f"{label}{type(optimizer).__name__}.step"
        if not out:
            self._steps.clear()
        for path, name, p, group in self._each_parameter(optimizer, label):
            key = (label, id(p))
            if not out:
                self._steps[key] = self._new_call()
            call = self._steps.get(key, -1)
            event = self._event("optimizer", path, "", f"{name_of} of {name}", call)
            if not out:
                settings = {k: v for k, v in group.items() if k != "params"}
                self._see(event, "settings", settings, out=False, role="setting")
                if p.grad is not None:
                    self._see(event, f"{name}.grad", p.grad, out=False, role="gradient")
            self._see(event, name, p, out=out, role="parameter")
            state = optimizer.state.get(p, {})
            self._see(event, f"{name}.state", dict(state), out=out, role="state")

    def _stepped(self, label: str, last: bool) -> Callable[..., None]:
        def after(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            self._optimizing = ""
            if self.records():
                with self._guard("the optimizer's step"):
                    self._optimizer_events(optimizer, label, out=True)
            if last:
                self._end_iteration()

        return after

    # ---- operations ----

    def operation_begins(self, func: Any, named: dict[str, Any]) -> Event | None:
        """An operation that is about to run: what it takes. For the dispatch mode."""
        from .operations import operands

        with self._guard(f"the arguments of {func}"):
            phase, module = self._place_of_operation()
            event = Event(phase, self._microbatch, module, "", str(func), self._new_call(), -1, [])
            if self._frames:
                event.enclosing = self._frames[-1].call
            tensors, plain = operands(named)
            if plain:
                self._setting(event, "settings", repr(plain))
            self._writer.see(event, tensors, out=False, keep=self._keeper(event))
            return event
        return None

    def operation_ends(self, event: Event | None, result: Any, written: dict[str, Any]) -> None:
        """What an operation gave. Its event comes after those that ran inside of it."""
        if event is None or self.stopped:
            return
        with self._guard(f"the results of {event.operation}"):
            if not self._begun:
                self._begun = True
                if self._rng == "all":
                    self._begin()
            self._see(event, "output", result, out=True)
            self._see(event, "written", written, out=True)
            self._writer.add(event)

    def _place_of_operation(self) -> tuple[str, str]:
        if self._optimizing:
            return "optimizer", ""
        inner = self._frames[-1] if self._frames else None
        if _in_backward():
            if inner is not None and inner.phase == "recompute":
                return "recompute", inner.watched.path
            node = torch._C._current_autograd_node()
            return "backward", "" if node is None else node.metadata.get("twinrun", "")
        return ("forward", inner.watched.path) if inner is not None else ("outside", "")

    # ---- what the caller names ----

    def record(self, name: str, value: Any) -> None:
        """Adds a value of the training's own code to the trace, such as the loss.

        Parameters
        ----------
        name : str
            What a comparison calls it.
        value : tensor, number, or container of them
            The value. Gradients through what made it are traced too.
        """
        if _compiling() or not self.records():
            return
        grads = torch.is_grad_enabled()
        with self._guard(f"the value {name!r}"):
            event = self._event("record", "", "", str(name), self._new_call())
            self._see(event, str(name), value, out=True)
            if grads:
                waiting = [t.grad_fn for t in tensors_of(value) if t.grad_fn is not None]
                self._hook_nodes(waiting, set(), 0, "", str(name))


def _no_modes() -> contextlib.AbstractContextManager:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _sequence_number() -> int:
    ask = getattr(torch.autograd, "_get_sequence_nr", None)
    return 0 if ask is None else ask()


def _extra(module: torch.nn.Module) -> str:
    try:
        return module.extra_repr()
    except Exception:  # it is the model's own code
        return ""


def _state_text(state: Any) -> str:
    if isinstance(state, np.ndarray):
        return f"{state.dtype}{state.tolist()}"
    if isinstance(state, tuple):
        return "(" + ",".join(_state_text(s) for s in state) + ")"
    return repr(state)


def _capturing() -> bool:
    """Whether this thread's work goes into a CUDA graph: nothing may wait for it, allocate or free memory."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _check_no_graph_capture() -> None:
    if _capturing():
        raise Unsupported(
            "a CUDA graph is captured, and nothing can be read meanwhile",
            fix="trace the model without CUDA graphs",
        )


def _check_version() -> None:
    found = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if found < _OLDEST:
        raise Unsupported(
            f"PyTorch {torch.__version__} lacks hooks that traces need",
            fix=f"install PyTorch {'.'.join(map(str, _OLDEST))} or newer",
        )


def _rank_path(run: str | os.PathLike[str]) -> str:
    path = os.fspath(run)
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return os.path.join(path, f"rank{dist.get_rank():05d}")
    return path


def _rank() -> int:
    dist = torch.distributed
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def trace(
    model: torch.nn.Module | Mapping[str, torch.nn.Module],
    run: Run | str | os.PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
    every: int = 1,
    modules: str | Iterable[str] = "*",
    level: str = "modules",
    escalate: Any = None,
    start: int = 0,
    rng: str = "torch",
    existing: str = "refuse",
    on_error: str = "warn",
    reference: str | os.PathLike[str] | None = None,
    on_divergence: Callable[[Origin], object] | str = "warn",
    replicas: bool | int = False,
    group: Any = None,
) -> Trace:
    """Traces a training: which values go into each module and come out, forwards and backwards.

    ::

        with twinrun.torch.trace(model, "runs/a", optimizer=optimizer) as trace:
            for batch in batches:
                ...  # the training, as it is: it calls optimizer.step(), which ends an iteration

    `twinrun compare runs/a runs/b` then names the operation at which two trainings part.

    Parameters
    ----------
    model : torch.nn.Module, or dict of str to torch.nn.Module
        The model; several have names.
    run : path or Run
        The folder of the history that is made, or a run with `keep_data=True` that is open. Where processes
        work together (torch.distributed), each makes a folder below it.
    optimizer : torch.optim.Optimizer or several, default None
        Its steps are traced, and the step of the last one ends an iteration. None: call `Trace.step`.
    every : int, default 1
        Every how many iterations are traced.
    modules : str or iterable of str, default '*'
        Globs of the paths of modules that are traced; the model itself always is.
    level : {'modules', 'ops'}
        'ops': every operation of PyTorch besides.
    escalate : True, TraceComparison, Site, (path, path) or iterable of Site, default None
        Keeps the data at these places; of two traces, at the place where they part first. True: of the trace
        that an earlier run left in `run`, and of `reference`; this one goes to `run.escalated`.
    start : int, default 0
        The number of the first iteration: of a training that is resumed, the one that comes next.
    rng : {'torch', 'all', 'none'}
        Which states of random number generators are traced: PyTorch's, on entry to each module;
        those of Python and NumPy too, at the beginning of each iteration; or none.
    existing : {'refuse', 'append', 'replace'}
        What happens where the folder holds a history.
    on_error : {'warn', 'raise'}
        What an error of the trace does: a warning, and the training goes on without it; or it is raised.
    reference : path, default None
        Another trace: each iteration is compared with the same iteration there, when it ends.
    on_divergence : callable, 'warn' or 'stop', default 'warn'
        What the first divergence from `reference` does: `on_divergence(origin)` is called; a
        warning; or `TraceDiverged` is raised, which ends the training. Where processes work
        together (torch.distributed), it is raised on all of them that have `on_divergence="stop"`,
        after the next iteration that is traced, so that none is left waiting; in the last
        iteration, only on those that differ.
    replicas : bool or int, default False
        Data-parallel processes compare parameters, gradients and states among themselves before
        each step of the optimizer, or before every so many: where they differ, `ReplicasDiffer` is
        raised on all processes.
    group : process group or dimension of a DeviceMesh, default None
        The processes that hold the same values, for `replicas`: with tensor or pipeline
        parallelism, the data-parallel group of this process. Every process of the job must trace
        with `replicas`, each with its own group. None: all processes.

    Returns
    -------
    Trace
        A context manager.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, or the folder holds a history.
    Unsupported
        This PyTorch is older than 2.4.

    Notes
    -----
    Values are digested exactly, bit by bit; no bit of the training changes. Inside of what `torch.compile`
    compiles nothing is traced, only what goes in and comes out; `level="ops"` sees no operation of it either.
    While a CUDA graph is captured nothing can be traced.
    """
    _check_version()
    if level not in ("modules", "ops"):
        raise TwinrunError(f"level must be 'modules' or 'ops', not {level!r}")
    if rng not in ("torch", "all", "none"):
        raise TwinrunError(f"rng must be 'torch', 'all' or 'none', not {rng!r}")
    if on_error not in ("warn", "raise"):
        raise TwinrunError(f"on_error must be 'warn' or 'raise', not {on_error!r}")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise TwinrunError(f"every must be a positive integer, not {every!r}")
    models = {"": model} if isinstance(model, torch.nn.Module) else dict(model)
    for name, one in models.items():
        if not isinstance(one, torch.nn.Module):
            raise TwinrunError(f"{name!r} is no torch.nn.Module", fix="give a model, or a dict of models")
    if not models:
        raise TwinrunError("there is no model to trace")
    optimizers = (
        []
        if optimizer is None
        else [optimizer]
        if isinstance(optimizer, torch.optim.Optimizer)
        else list(optimizer)
    )
    for one_optimizer in optimizers:
        if not isinstance(one_optimizer, torch.optim.Optimizer):
            raise TwinrunError(f"{type(one_optimizer).__name__!r} is no torch.optim.Optimizer")
    keep = None
    if escalate is True and not isinstance(run, Run):
        from ..trace.escalation import second_run

        run, sites = second_run(run, reference)
        reference = None  # both first runs were compared
        keep = sites.__contains__
    elif escalate is not None:
        from ..trace.escalation import sites_of

        sites = sites_of(escalate)
        keep = sites.__contains__
    if not callable(on_divergence) and on_divergence not in ("warn", "stop"):
        raise TwinrunError(f"on_divergence must be a function, 'warn' or 'stop', not {on_divergence!r}")
    if not isinstance(replicas, int) or replicas < 0:
        raise TwinrunError(f"replicas must be True, False or a number of iterations, not {replicas!r}")
    dist = torch.distributed
    if replicas and not (dist.is_available() and dist.is_initialized()):
        raise TwinrunError("replicas need torch.distributed", fix="call init_process_group first")
    if group is not None and not replicas:
        raise TwinrunError("group is for replicas", fix="give replicas=True, or leave group out")
    among = group_of(group) if replicas else None
    compared = None if reference is None else Reference(os.fspath(reference), _rank())
    first = step_number(start)
    own = not isinstance(run, Run)
    made = Run(_rank_path(run), existing=existing, background=True) if not isinstance(run, Run) else run
    try:
        return Trace(
            models,
            made,
            own_run=own,
            optimizers=optimizers,
            every=every,
            modules=[modules] if isinstance(modules, str) else list(modules),
            level=level,
            keep=keep,
            start=first,
            raises=on_error == "raise",
            rng=rng,
            reference=compared,
            on_divergence=on_divergence,
            replicas=int(replicas),
            group=among,
        )
    except BaseException:
        if own:
            made.close()
        raise
