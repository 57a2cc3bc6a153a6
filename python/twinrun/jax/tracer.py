"""Callbacks that digest what goes into functions and Flax modules and what comes out, also under jax.jit."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import numpy as np

from ..capture.events import EventWriter, copied
from ..capture.run import Run
from ..errors import TwinrunError
from ..runs.events import Event
from ..trace.escalation import sites_of
from ..trace.site import Site

__all__ = ["Trace", "trace"]

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)
_active: list[Trace] = []  # callbacks of compiled functions find the trace under way here


class _Call:
    """A function or module at work."""

    __slots__ = ("enclosing", "kind", "microbatch", "name", "number")

    def __init__(self, name: str, kind: str, number: int, enclosing: int, microbatch: int) -> None:
        self.name, self.kind, self.number = name, kind, number
        self.enclosing, self.microbatch = enclosing, microbatch


def _leaves(tree: Any, front: str) -> tuple[list[str], list[Any]]:
    """Names and values of the arrays and numbers in a tree; others are left out."""
    names, values = [], []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, (jax.Array, *_NUMBERS)):
            keys = (str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)
            names.append(".".join([front, *keys]))
            values.append(leaf)
    return names, values


def _to_active(method: str, *facts: Any) -> Callable[..., None]:
    """A callback that hands values to the trace under way; it does nothing where there is none."""

    def called(*values: Any) -> None:
        if _active:
            _active[-1]._guarded(method, *facts, values)

    return called


def _seen(method: str, facts: tuple, values: list[Any]) -> None:
    jax.debug.callback(_to_active(method, *facts), *values, ordered=True)


class Trace:
    """A trace under way; `trace` makes it.

    Attributes
    ----------
    iteration : int
        The iteration under way.
    run : Run
        The run that it is captured into.
    problems : list of str
        What could not be traced so far. A comparison reports it, and never says 'same'.

    Notes
    -----
    See `trace`.
    """

    def __init__(self, run: Run, own_run: bool, keep: frozenset[Site], start: int, raises: bool) -> None:
        self.run, self.iteration = run, start
        self.problems: list[str] = []
        self._own_run, self._keep, self._raises = own_run, keep, raises
        self._writer = EventWriter(run.path, run.keeps_data)
        self._lock = threading.RLock()
        self._stack: list[_Call] = []
        self._calls = 0
        self._began: dict[str, int] = {}  # how often an outermost call of this name began in this iteration
        self._error: BaseException | None = None
        self._exit = contextlib.ExitStack()

    # ---- for the program ----

    def function(self, f: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """A function whose arguments and results are traced, also where it is compiled.

        Parameters
        ----------
        f : callable
            The function, of trees of arrays.
        name : str, default None
            Its name in the trace; None for its own.

        Returns
        -------
        callable
            The same function, with callbacks. Compile this one: `jax.jit(trace.function(f))`.
        """
        called: str = name or str(getattr(f, "__name__", "function"))

        @functools.wraps(f)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self._entry(called, type(f).__name__ if name is None else "function", {}, args, kwargs)
            result = f(*args, **kwargs)
            self._leave(called, result)
            return result

        return traced

    def record(self, name: str, value: Any) -> None:
        """Traces a value of the program's own; also within a compiled function.

        Parameters
        ----------
        name : str
            What it is called.
        value : tree of arrays
            The value.
        """
        names, values = _leaves(value, "value")
        _seen("_take_record", (name, names), values)

    def step(self) -> None:
        """Ends an iteration: waits for what is under way, and captures what was seen.

        Raises
        ------
        TwinrunError
            Something could not be traced or captured, with `on_error="raise"`.
        """
        jax.effects_barrier()
        with self._lock:
            try:
                if self._stack:
                    self._problem(f"{self._stack[-1].name} began and did not end")
                    self._stack.clear()
                for said in self.problems:
                    self._writer.problem(said)
                self._writer.capture(lambda fields: self.run.capture(self.iteration, fields))
            except Exception as e:
                self._failed(e)
            self.iteration += 1
            self._began.clear()
            self._calls = 0
        if self._raises and self._error is not None:
            error, self._error = self._error, None
            raise error

    def __enter__(self) -> Trace:
        _active.append(self)
        with contextlib.suppress(ImportError):
            import flax.linen

            self._exit.enter_context(flax.linen.intercept_methods(self._intercepted))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            jax.effects_barrier()
        try:
            if len(self._writer):  # an iteration that no step() ended
                self.step()
        finally:
            self._exit.close()
            _active.remove(self)
            if self._own_run:
                self.run.close()

    # ---- where callbacks are made ----

    def _intercepted(self, call: Callable[..., Any], args: tuple, kwargs: dict, context: Any) -> Any:
        """A method of a Flax module."""
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        module = context.module
        path = ".".join(map(str, module.path))
        own = {}
        with contextlib.suppress(Exception):  # before it has any
            for name, value in module.variables.get("params", {}).items():
                if not hasattr(value, "items"):  # the others belong to modules within
                    own[name] = value
        self._entry(path, type(module).__name__, own, args, kwargs)
        result = call(*args, **kwargs)
        self._leave(path, result)
        return result

    def _entry(self, name: str, kind: str, parameters: dict[str, Any], args: tuple, kwargs: dict) -> None:
        own = _leaves(parameters, "parameter")
        given, named = _leaves(args, "arg"), _leaves(kwargs, "kwarg")
        facts = (name, kind, [n.removeprefix("parameter.") for n in own[0]], [*given[0], *named[0]])
        _seen("_take_entry", facts, [*own[1], *given[1], *named[1]])

    def _leave(self, name: str, result: Any) -> None:
        names, values = _leaves(result, "output")
        _seen("_take_exit", (name, names), values)

    # ---- where callbacks arrive, in the order of execution ----

    def _guarded(self, method: str, *facts: Any) -> None:
        with self._lock:
            try:
                getattr(self, method)(*facts)
            except Exception as e:  # the program must not fail because of its trace
                self._failed(e)

    def _failed(self, error: Exception) -> None:
        self._error = self._error or error
        self._problem(f"{type(error).__name__}: {error}")
        if not self._raises:
            warnings.warn(f"twinrun: {self.problems[-1]}", RuntimeWarning, stacklevel=3)

    def _problem(self, text: str) -> None:
        self.problems.append(f"iteration {self.iteration}: {text}")

    def _take_entry(
        self, name: str, kind: str, parameters: list[str], names: list[str], values: tuple
    ) -> None:
        microbatch = self._stack[-1].microbatch if self._stack else self._began.get(name, 0)
        if not self._stack:
            self._began[name] = microbatch + 1
        call = _Call(name, kind, self._calls, self._stack[-1].number if self._stack else -1, microbatch)
        self._calls += 1
        self._stack.append(call)
        event = self._event("forward", call, name)
        n = len(parameters)
        self._see(event, parameters, values[:n], out=False, role="parameter")
        self._see(event, names, values[n:], out=False)

    def _take_exit(self, name: str, names: list[str], values: tuple) -> None:
        if not self._stack or self._stack[-1].name != name:
            self._problem(f"{name or 'the model'} ended where another function is at work")
            return
        call = self._stack.pop()
        self._see(self._event("forward", call, name), names, values, out=True)

    def _take_record(self, name: str, names: list[str], values: tuple) -> None:
        number, microbatch = (self._stack[-1].number, self._stack[-1].microbatch) if self._stack else (-1, 0)
        event = self._writer.add(Event("record", microbatch, "", "", name, -1, number, []))
        self._see(event, names, values, out=True)

    def _event(self, phase: str, call: _Call, module: str) -> Event:
        return self._writer.add(
            Event(phase, call.microbatch, module, call.kind, "forward", call.number, call.enclosing, [])
        )

    def _see(self, event: Event, names: list[str], values: Any, *, out: bool, role: str = "value") -> None:
        site = Site(self.iteration, event.microbatch, event.phase, event.module, event.operation)
        arrays = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        self._writer.see(event, arrays, out=out, role=role, keep=copied if site in self._keep else None)


def trace(
    run: Run | str | os.PathLike[str],
    *,
    escalate: Any = None,
    start: int = 0,
    existing: str = "refuse",
    on_error: str = "warn",
) -> Trace:
    """Traces a program of JAX: which values go into functions and Flax modules and come out.

    ::

        with twinrun.jax.trace("runs/a") as trace:
            step = jax.jit(trace.function(train_step))   # compiled here, with callbacks
            for batch in batches:
                state, loss = step(state, batch)
                trace.step()                             # ends an iteration

    `twinrun compare runs/a runs/b` then names the function or module at which two programs part. Modules of
    flax.linen are traced by themselves, with their parameters.

    Parameters
    ----------
    run : path or Run
        The folder of the history that is made, or a run with `keep_data=True` that is open.
    escalate : TraceComparison, Site, (path, path) or iterable of Site, default None
        Keeps the data at these places; of two traces, at the place where they part first.
    start : int, default 0
        The number of the first iteration.
    existing : {'refuse', 'append', 'replace'}
        What happens where the folder holds a history.
    on_error : {'warn', 'raise'}
        What an error of the trace does: a warning, or `Trace.step` raises it.

    Returns
    -------
    Trace
        A context manager.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, or the folder holds a history.

    Notes
    -----
    Functions that were compiled before the trace began have no callbacks. Callbacks keep XLA from fusing
    operations across them, so that a traced program may round otherwise than an untraced one; two traced
    ones are alike.
    """
    if on_error not in ("warn", "raise"):
        raise TwinrunError(f"on_error must be 'warn' or 'raise', not {on_error!r}")
    keep = frozenset[Site]() if escalate is None else sites_of(escalate)
    own = not isinstance(run, Run)
    made = Run(os.fspath(run), existing=existing) if not isinstance(run, Run) else run
    try:
        return Trace(made, own, keep, int(start), on_error == "raise")
    except BaseException:
        if own:
            made.close()
        raise
