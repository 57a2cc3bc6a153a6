"""Callbacks that digest what goes into functions and Flax modules and what comes out, also under jax.jit."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import step_number
from ..capture.events import EventWriter, copied, refuse_later_steps
from ..capture.run import Run
from ..errors import TwinrunError
from ..runs.events import Event
from ..runs.gaps import NOT_LOOKED_INTO
from ..trace.escalation import KeptPlaces, second_run, sites_of
from ..trace.site import Site
from . import several_devices
from .module_facts import own_facts_of
from .tangents import watch
from .values import Missing, Slot, Text, leaves_of, slots_of, slots_of_changed, structure_of

__all__ = ["Trace", "trace"]

_active: list[Trace] = []  # callbacks of compiled functions find the trace under way here


class _Call:
    """A function or module at work."""

    __slots__ = ("enclosing", "kind", "microbatch", "name", "number")

    def __init__(self, name: str, kind: str, number: int, enclosing: int, microbatch: int) -> None:
        self.name, self.kind, self.number = name, kind, number
        self.enclosing, self.microbatch = enclosing, microbatch


class _Work:
    """A function or module at work: one call, or under vmap one for each item.

    Under vmap the callbacks of all items come before what follows in the program: those of all beginnings,
    and later those of all ends, in the order of items. place: of the call in the program.
    """

    __slots__ = ("calls", "ended", "place", "records")

    def __init__(self, place: int) -> None:
        self.place, self.ended = place, 0
        self.calls: list[_Call] = []
        self.records: dict[int, int] = {}  # by place, how many values were recorded

    def of_item(self, item: int) -> _Call:
        """The call of an item of what it calls."""
        return self.calls[item if item < len(self.calls) else -1]


@dataclass
class _Latest:
    """The events that came last, of one place: beginnings or ends of a function or module."""

    place: int
    name: str
    out: bool
    events: list[Event]
    told: int = 0  # of how many of them tangents came


def _read(value: Any) -> np.ndarray | Missing:
    """An array that a callback brought. Waits for it."""
    try:
        return np.asarray(value)
    except Exception as e:
        return Missing(f"{type(e).__name__}: {e}")


def _to_active(method: str, facts: tuple, slots: list[Slot]) -> Callable[..., None]:
    """A callback that hands values to the trace under way; it does nothing where there is none."""

    def called(*values: Any) -> None:
        if _active:
            # Read before the trace is locked: a program that makes them may wait for it.
            found = iter([_read(value) for value in values])
            told = [slot if slot.known is not None else slot._replace(known=next(found)) for slot in slots]
            _active[-1]._guarded(method, *facts, told)

    return called


def _tell_later(name: str, refusal: several_devices.Refusal, arrays: list[Any]) -> None:
    """Has a program with a part for each device tell later traces, too, that it is not traced."""

    def told(first: Any) -> None:
        if _active:
            _active[-1]._refused(name, refusal)

    for array in arrays:
        # Under jax.checkpoint XLA does not compile a callback that brings no value, or a constant.
        if isinstance(array, jax.core.Tracer) and array.size:
            jax.debug.callback(told, jax.lax.slice(array.ravel(), (0,), (1,)))
            return


def _digested(slot: Slot) -> Slot:
    """A slot as it is; one of an object that is not looked into has no digest."""
    if slot.role != "setting":
        return slot
    return slot._replace(role="value", known=Missing(NOT_LOOKED_INTO))


def _staged() -> bool:
    """Whether JAX makes a program here, instead of computing."""
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def _leaves_given(own: dict[str, Any], args: tuple, kwargs: dict) -> dict[str, Any]:
    fronts = [*own.items(), ("arg", args), ("kwarg", kwargs)]
    return {name: leaf for front, tree in fronts for name, leaf in leaves_of(tree, front).items()}


def _variables(module: Any) -> dict[str, Any]:
    """{name: value} of a module of flax.linen, without those of modules within: parameters by their own
    names, values of other collections (`batch_stats`, `cache`) with the collection's."""
    own = {}
    with contextlib.suppress(Exception):  # before it has any
        for collection, variables in module.variables.items():
            for name, value in variables.items():
                if not hasattr(value, "items"):
                    own[name if collection == "params" else f"{collection}.{name}"] = value
    return own


def _generators(module: Any) -> dict[str, Any]:
    """{name: key} of the random numbers that a module of flax.linen can draw from."""
    with contextlib.suppress(Exception):
        return {f"rng.{name}": lazy.rng for name, lazy in module.scope.rngs.items()}
    return {}


def _own_of(module: Any) -> tuple[str, list[Slot]]:
    """(facts of a module of flax.linen, slots of those of its fields that are not looked into)."""
    try:
        facts, left = own_facts_of(module)
    except Exception:  # the program must not fail because of its trace
        return "", [Slot("@static", "setting", Text(NOT_LOOKED_INTO))]
    return facts, [Slot(f"{name}@static", "setting", Text(NOT_LOOKED_INTO)) for name in left]


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
        self._own_run, self._keep, self._raises = own_run, KeptPlaces(keep), raises
        self._writer = EventWriter(run.path, run.keeps_data, keep)
        self._lock = threading.RLock()
        self._stack: list[_Work] = []
        self._places = itertools.count()
        self._calls = 0
        self._latest: _Latest | None = None
        self._told = 0  # problems that steps have
        self._began: dict[str, int] = {}  # how often an outermost call of this name began in this iteration
        self._error: BaseException | None = None
        self._untraced: set[str] = set()
        self._exit = contextlib.ExitStack()

    # ---- for the program ----

    def function(self, f: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """A function whose arguments and results are traced, also where it is compiled.

        Parameters
        ----------
        f : callable
            The function, of trees of arrays. What the object of a method holds is an input too (`self.…`).
            What the function writes into its arguments comes out under their names (`arg.0.…`).
        name : str, default None
            Its name in the trace; None for its own.

        Returns
        -------
        callable
            The same function, with callbacks. Compile this one: `jax.jit(trace.function(f))`.
        """
        called: str = name or str(getattr(f, "__name__", "function"))
        owner = getattr(f, "__self__", None)  # of a method: what it holds is given to it too
        own = {} if owner is None or isinstance(owner, (types.ModuleType, type)) else {"self": owner}

        @functools.wraps(f)
        def traced(*args: Any, **kwargs: Any) -> Any:
            given = own, args, kwargs
            before = _leaves_given(*given)
            place = self._entry(called, type(f).__name__ if name is None else "function", own, args, kwargs)
            with self._marking_errors(called):
                result = f(*args, **kwargs)
            self._leave(called, place, result, before, _leaves_given(*given))
            return result

        return traced

    def record(self, name: str, value: Any) -> None:
        """Traces a value of the program's own; also within a compiled function.

        Parameters
        ----------
        name : str
            What it is called.
        value : tree of arrays, numbers and texts
            The value.
        """
        structure = structure_of(value, "value", out=True)
        self._seen("_take_record", (str(name), structure, next(self._places)), *slots_of(value, "value"))

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
                    self._problem(f"{self._stack[-1].calls[0].name or 'the model'} began and did not end")
                    self._stack.clear()
                for said in self.problems[self._told :]:  # earlier steps have the others
                    self._writer.problem(said)
                self._told, self._latest = len(self.problems), None
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
        with contextlib.suppress(Exception):  # of a program that was begun before
            jax.effects_barrier()  # its events are not of this trace
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
            # An iteration that no step() ended.
            if len(self._writer) or (error is None and len(self.problems) > self._told):
                self.step()
        finally:
            self._exit.close()
            _active.remove(self)
            if self._own_run:
                self.run.close()
        if error is None:
            self._keep.warn_of_others()

    # ---- where callbacks are made ----

    def _intercepted(self, call: Callable[..., Any], args: tuple, kwargs: dict, context: Any) -> Any:
        """A method of a Flax module."""
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        module = context.module
        path = ".".join(map(str, module.path))
        before = _variables(module)
        given = {**before, **_generators(module)}
        place = self._entry(path, type(module).__name__, given, args, kwargs, _own_of(module))
        with self._marking_errors(path):
            result = call(*args, **kwargs)
        self._leave(path, place, result, before, _variables(module))
        return result

    @contextlib.contextmanager
    def _marking_errors(self, name: str) -> Iterator[None]:
        """Marks a function that raises while JAX makes a program of it: where the caller catches the
        exception, JAX may have thrown the program away, and with it the callback that says that it began.
        """
        try:
            yield
        except Exception as e:
            with contextlib.suppress(Exception):
                if _active and _staged():
                    _active[-1]._guarded("_take_error", name, type(e).__name__)
            raise

    def _entry(
        self,
        name: str,
        kind: str,
        parameters: dict[str, Any],
        args: tuple,
        kwargs: dict,
        own: tuple[str, Sequence[Slot]] = ("", ()),
    ) -> int:
        """The number of this place in the program. own: facts of what is called, and slots of what it has
        besides.
        """
        slots, arrays = slots_of(parameters, "", "parameter")
        slots = [slot._replace(name=slot.name.removeprefix(".")) for slot in slots]
        slots += own[1]
        structure = own[0]
        for front, given in (("arg", args), ("kwarg", kwargs)):
            more, found = slots_of(given, front, taken=slots)
            slots, arrays = [*slots, *more], [*arrays, *found]
            structure += structure_of(given, front, out=False)
        place = next(self._places)
        self._seen("_take_entry", (name, kind, structure, place), slots, arrays)
        self._watch(name, False, slots, arrays)
        return place

    def _leave(
        self, name: str, place: int, result: Any, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """place: what `_entry` gave. before, after: what it was given and may have written into."""
        structure = structure_of(result, "output", out=True)
        slots, arrays = slots_of(result, "output")
        more, found = slots_of_changed(before, after, taken=slots)
        slots, arrays = [*slots, *more], [*arrays, *found]
        self._seen("_take_exit", (name, structure, place), slots, arrays)
        self._watch(name, True, slots, arrays)

    def _watch(self, name: str, out: bool, slots: list[Slot], arrays: list[Any]) -> None:
        """Has the tangents of values seen where JAX differentiates them forwards."""
        brought = [slot for slot in slots if slot.known is None]

        def told(tangents: dict[int, Any]) -> None:
            found = [brought[at]._replace(name=f"{brought[at].name}@tangent") for at in tangents]
            self._seen("_take_tangents", (name, out), found, list(tangents.values()))

        try:
            watch(arrays, told)
        except Exception as e:  # the program must not fail because of its trace
            with self._lock:
                self._failed(e)

    def _seen(self, method: str, facts: tuple, slots: list[Slot], arrays: list[Any]) -> None:
        """Has values seen where the program gets to this place. The program never fails because of it."""
        called = _to_active(method, facts, slots)
        try:
            made = any(isinstance(array, jax.core.Tracer) for array in arrays)
            if jax.device_count() > 1 and (made or _staged() or several_devices.in_parts()):
                if (refusal := several_devices.refusal()) is None:
                    several_devices.call(called, arrays)
                    return
                self._refused(facts[0], refusal)
                if method == "_take_entry" and several_devices.in_parts():
                    _tell_later(facts[0], refusal, arrays)
                return
            if not threading.current_thread().name.startswith("Dummy-"):  # within a callback of JAX
                jax.effects_barrier()  # what was begun before has its events before this one
            jax.debug.callback(called, *arrays, ordered=True)
        except Exception as e:
            self._guarded(method, *facts, [s._replace(known=Missing(str(e))) for s in slots])

    def _refused(self, name: str, refusal: several_devices.Refusal) -> None:
        """A compiled program of several devices that can have no ordered callbacks."""
        name = name or "the model"
        with self._lock:
            if name in self._untraced:
                return
            self._untraced.add(name)
            self._failed(TwinrunError(f"{name} is not traced: {refusal.why}", fix=refusal.fix))

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

    def _take_entry(self, name: str, kind: str, structure: str, place: int, slots: list[Slot]) -> None:
        # A place that is passed again before the call ended: the next item of vmap.
        again = bool(self._stack) and self._stack[-1].place == place and not self._stack[-1].ended
        if not again:
            self._stack.append(_Work(place))
        work, around = self._stack[-1], self._stack[-2] if len(self._stack) > 1 else None
        item = len(work.calls)
        if around is None:
            microbatch = work.calls[0].microbatch if item else self._began.get(name, 0)
            self._began[name] = microbatch + 1
            enclosing = -1
        else:
            enclosing, microbatch = around.of_item(item).number, around.calls[0].microbatch
        call = _Call(name, kind, self._calls, enclosing, microbatch)
        self._calls += 1
        work.calls.append(call)
        self._see(self._event_of(call, place, False, structure), slots, out=False)

    def _take_exit(self, name: str, structure: str, place: int, slots: list[Slot]) -> None:
        if not self._stack or self._stack[-1].place != place:
            self._problem(f"{name or 'the model'} ended where another function is at work")
            return
        work, around = self._stack[-1], self._stack[-2] if len(self._stack) > 1 else None
        call = work.calls[work.ended]
        work.ended += 1
        if work.ended == len(work.calls):
            self._stack.pop()
            if around is not None and 1 < len(work.calls) != len(around.calls) > 1:
                within = around.calls[0].name or "the model"
                self._problem(f"it is not known which items of {within} called {name or 'the model'}")
        self._see(self._event_of(call, place, True, structure), slots, out=True)

    def _event_of(self, call: _Call, place: int, out: bool, structure: str) -> Event:
        """The event of a beginning or an end, after those of other items there."""
        event = self._event("forward", call, call.name, structure)
        latest = self._latest
        if latest is None or (latest.place, latest.out) != (place, out) or latest.told:
            self._latest = _Latest(place, call.name, out, [event])
        else:
            latest.events.append(event)
        return event

    def _take_tangents(self, name: str, out: bool, slots: list[Slot]) -> None:
        """Tangents come right after their values; those of `jax.linearize`, when its function is called."""
        latest = self._latest
        if latest is not None and (latest.name, latest.out) == (name, out):
            self._see(latest.events[latest.told % len(latest.events)], slots, out=out)
            latest.told += 1
        else:
            self._take_record(f"tangents of {name or 'the model'}", "", -1, slots)

    def _take_error(self, name: str, kind: str) -> None:
        self._problem(f"{name or 'the model'} raised {kind} while JAX made a program of it")

    def _take_record(self, name: str, structure: str, place: int, slots: list[Slot]) -> None:
        self._latest = None
        number, microbatch = -1, 0
        if self._stack:
            work = self._stack[-1]
            item = work.records[place] = work.records.get(place, -1) + 1
            call = work.calls[item % len(work.calls)]
            number, microbatch = call.number, call.microbatch
        event = self._writer.add(Event("record", microbatch, "", "", name, -1, number, [], structure))
        # Of a value of the program's own nothing may be left out.
        self._see(event, [_digested(slot) for slot in slots], out=True)

    def _event(self, phase: str, call: _Call, module: str, structure: str) -> Event:
        facts = phase, call.microbatch, module, call.kind, "forward", call.number, call.enclosing
        return self._writer.add(Event(*facts, [], structure))

    def _see(self, event: Event, slots: list[Slot], *, out: bool) -> None:
        site = Site(self.iteration, event.microbatch, event.phase, event.module, event.operation)
        keep = copied if self._keep.meets(site) else None
        try:
            for role in ("parameter", "value"):
                arrays = {
                    s.name: s.known for s in slots if s.role == role and isinstance(s.known, np.ndarray)
                }
                self._writer.see(event, arrays, out=out, role=role, keep=keep)
            for name, role, known in slots:
                if isinstance(known, Text):
                    self._writer.text(event, name, known.text, out=out, role=role)
                elif isinstance(known, Missing):
                    self._writer.missing(event, name, known.why, out=out, role=role)
        except Exception as e:
            seen = {v.name for v in event.values}
            for name, role, _ in slots:
                if name not in seen:
                    self._writer.missing(event, name, f"{type(e).__name__}: {e}", out=out, role=role)
            raise


def trace(
    run: Run | str | os.PathLike[str],
    *,
    escalate: Any = None,
    start: int = 0,
    existing: str = "refuse",
    on_error: str = "warn",
    reference: str | os.PathLike[str] | None = None,
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
    escalate : True, TraceComparison, Site, (path, path) or iterable of Site, default None
        Keeps the data at these places; of two traces, at the place where they part first. True: of the trace
        that an earlier run left in `run`, and of `reference`; this one goes to `run.escalated`.
    start : int, default 0
        The number of the first iteration.
    existing : {'refuse', 'append', 'replace'}
        What happens where the folder holds a history.
    on_error : {'warn', 'raise'}
        What an error of the trace does: a warning, or `Trace.step` raises it.
    reference : path, default None
        The other trace, for `escalate=True`.

    Returns
    -------
    Trace
        A context manager.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, the folder holds a history, or the run has a step from `start` on.

    Notes
    -----
    Functions that were compiled before the trace began have no callbacks. Callbacks keep XLA from fusing
    operations across them, so that a traced program may round otherwise than an untraced one; two traced
    ones are alike. Values of Python and NumPy are digested as they are, also where JAX would round them to 32
    bits. In a compiled program a value that lies on several devices is gathered on the first of them. A
    program of several processes and a function within `shard_map` or `pmap` are not traced, and a warning
    says so.
    """
    if on_error not in ("warn", "raise"):
        raise TwinrunError(f"on_error must be 'warn' or 'raise', not {on_error!r}")
    if reference is not None and escalate is not True:
        raise TwinrunError(
            "reference is for escalate=True", fix="leave it out, or compare the traces afterwards"
        )
    keep = frozenset[Site]()
    if escalate is True and not isinstance(run, Run):
        run, keep = second_run(run, reference)
    elif escalate is not None:
        keep = sites_of(escalate)
    own = not isinstance(run, Run)
    number = step_number(start)
    made = Run(os.fspath(run), existing=existing) if not isinstance(run, Run) else run
    try:
        refuse_later_steps(made.path, made.steps, number)
        return Trace(made, own, keep, number, on_error == "raise")
    except BaseException:
        if own:
            made.close()
        raise
