"""Every operation of PyTorch as an event: a dispatch mode, which sees them forwards and backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ..runs.events import KERNELS, Event
from ..runs.gaps import OF_TYPE, ROOM, UNDER_WAY, UNWRITTEN, WRITTEN
from ..runs.structure import arguments_line
from .generators import Generators
from .guard import Guard
from .kernels import Kernels
from .modes import can_leave_uncompiled, compiling, in_backward, leave_uncompiled
from .node_gradients import module_of_node
from .operands import Known, Pools, operands, same_objects
from .position import Position
from .recorder import Recorder
from .unwritten import UnwrittenMemory, written_words
from .values import is_plain, memory_of, memory_of_plain, tensors_of

__all__ = ["OperationEvents", "OperationMode"]

# They give memory that nobody wrote: their outputs are no values.
_UNWRITTEN = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "empty_quantized",
    "set_",
    "resize_as_",
}
_RESIZES = {"resize_", "resize_as_"}  # fmt: skip
# They write their first argument without reading it.
_FILLS = {
    "zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_",
    "cauchy_", "log_normal_", "eye_", "resize_", "set_", "resize_as_", "_foreach_copy_", "_foreach_zero_",
}  # fmt: skip
# Outputs and arguments that are room to work in, for the operation's own gradient: parts of it are
# never written.
_ROOM_OUT = {
    "mkldnn_rnn_layer": {3}, "_cudnn_rnn": {3, 4}, "miopen_rnn": {3, 4}, "cudnn_batch_norm": {3},
    "_batch_norm_with_update": {3}, "_batch_norm_no_update": {3},
    "_scaled_dot_product_flash_attention": {8}, "_scaled_dot_product_cudnn_attention": {8},
    "_flash_attention_forward": {4},
}  # fmt: skip
_ROOM_IN = {"workspace", "reserve", "reserveSpace", "weight_buf", "save_var_transform"}
# Arguments that are written and not read, beside the first.
_FILLED = {"rrelu_with_noise": {"noise"}, "rrelu_with_noise_": {"noise"}}
# Collectives give tensors whose values come later, when the program waits for them. They are seen
# where they are used.
_COLLECTIVES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
_LATER = {"fsdp.all_gather_copy_in"}  # what it gives has room for what other processes send
_PASSED = {"detach", "alias", "_record_function_enter_new", "_record_function_exit", "_record_function_enter"}
# Operations that leave what they take as it is. A schema does not always tell: that of
# `native_batch_norm` does not say that it writes the running mean. PyTorch's core operations and
# those of single elements do tell, and these are known.
_TELLS = [getattr(torch.Tag, name) for name in ("core", "pointwise") if hasattr(torch.Tag, name)]
# They draw random numbers. Attention does where its `dropout_p` is not 0.
_DRAWS = getattr(torch.Tag, "nondeterministic_seeded", None)
_PURE = {
    "_unsafe_view", "cat", "stack", "slice_backward", "select_backward",
    "_softmax_backward_data", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip


class _Schema:
    """What the schema of an operation says: whether it is a view, which arguments it writes, and whether its
    values come later. pure: it leaves all that it takes as it is. apart: all that it takes is digested before
    it runs. plans: what is known of its calls. pools: events to use again.
    """

    __slots__ = (
        "apart", "arguments", "fills", "func", "later", "name", "passed", "plans", "pools", "pure", "random", "room",
        "room_in", "unwritten", "whole_name", "writes",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        self.func = func  # it lives as long as its number is used
        self.plans, self.pools = _core.OperationPlans(), Pools()
        name = self.name = func.__name__.split(".")[0]
        self.whole_name = str(func)
        schema = func._schema
        self.arguments = [a.name for a in schema.arguments]  # PyTorch makes them anew when it is asked
        writes = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        views = [a.name for a in schema.arguments if a.alias_info is not None and not a.alias_info.is_write]
        outs = [a.name for a in schema.arguments if a.is_out]
        self.writes = writes
        self.passed = name in _PASSED or (bool(views) and not writes)
        self.unwritten = name in _UNWRITTEN
        self.fills = set(outs) | _ROOM_IN | ({writes[0]} if name in _FILLS and writes else set())
        self.fills |= _FILLED.get(name, set())
        self.fills &= set(self.arguments)
        self.room_in = [n for n in self.arguments if n in _ROOM_IN and n not in writes]
        self.room: set[int] = _ROOM_OUT.get(name, set())
        namespace = getattr(func, "namespace", "")
        self.later = namespace in _COLLECTIVES or f"{namespace}.{name}" in _LATER
        self.passed = self.passed or (self.later and name == "wait_tensor")
        if self.later:
            received = name.startswith("recv")
            self.fills |= {a.name for a in schema.arguments if received or "output" in a.name}
        told = namespace == "aten" and (name in _PURE or any(tag in func.tags for tag in _TELLS))
        self.pure = told and not (writes or self.fills or self.later or self.unwritten or self.room)
        self.random = "generator" in self.arguments or _DRAWS in func.tags
        self.apart = not (self.fills or self.later or self.unwritten or self.room_in or name in _RESIZES)

    def draws(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether a call draws random numbers. Only of those that may it is asked."""
        return "dropout_p" not in self.arguments or bool(self.named(args, kwargs).get("dropout_p"))

    def given(self, result: Any) -> Any:
        """What a call gave, without room to work in."""
        if self.room and isinstance(result, (tuple, list)):
            return [None if n in self.room else one for n, one in enumerate(result)]
        return result

    def named(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        named = dict(zip(self.arguments, args, strict=False))
        if kwargs:
            named.update(kwargs)
        return named


class _Begun(NamedTuple):
    """An operation that is about to run: what is known of those like it, and digests of what it takes."""

    known: Known
    structure: str
    digests: _core.OperationCall
    phase: str
    module: str
    call: int


class OperationEvents:
    """The events of operations: what they take, and what they give."""

    def __init__(self, guard: Guard, position: Position, recorder: Recorder, generators: Generators) -> None:
        self._guard, self._position, self._recorder = guard, position, recorder
        self._generators = generators
        self._memory = UnwrittenMemory()

    def at_once(self) -> bool:
        """Whether what an operation takes may be digested together with what it gives: no part of it is
        memory that nobody wrote, and no data is kept.
        """
        return not self._memory.rooms and not self._recorder.keeps_any

    def not_seen(self) -> None:
        """An operation runs that has no event: what memory it writes is not known."""
        self._memory.forget()

    def allocated(self, name: str, result: Any, before: int) -> None:
        """An operation gave memory that nobody wrote. before: bytes of it that were there."""
        with self._guard.work("new memory"):
            for t in tensors_of(result):
                if name != "set_":
                    self._memory.allocated(t, before // t.element_size())

    def ran(self, func: Any, schema: _Schema | None, named: dict[str, Any], result: Any) -> None:
        """An operation wrote memory. schema: None where it is not known what it writes."""
        if not len(self._memory):
            return
        with self._guard.work(("the memory of", str(func))):
            if schema is None:
                self._memory.ran(func, "", named, set(), [], result)
            else:
                self._memory.ran(func, schema.name, named, schema.fills, schema.writes, result)

    def _see(self, event: Event, tensors: Mapping[str, torch.Tensor], *, out: bool) -> None:
        """Adds tensors to an event, without what nobody wrote in them."""
        if not len(self._memory):
            self._recorder.see_operands(event, tensors, out=out)
            return
        seen: dict[str, torch.Tensor] = {}
        for label, t in tensors.items():
            mask = self._memory.mask(t)
            if mask is None:
                seen[label] = t
            elif bool(mask.any()):
                seen[f"{label}{WRITTEN}"] = written_words(t, mask)
            else:
                self._recorder.setting(event, label, UNWRITTEN, out=out)
                self._recorder.setting(event, f"{label}{OF_TYPE}", f"{t.dtype} {tuple(t.shape)}", out=out)
        self._recorder.see_operands(event, seen, out=out)

    def begin(self, name: str, named: dict[str, Any]) -> Event | None:
        """An operation that is about to run: what it takes. None where the trace stops at it."""
        with self._guard.work(("the arguments of", name)):
            event = self._event(name)
            self._see_taken(event, named)
            return event
        return None

    def _event(self, name: str) -> Event:
        position, recorder = self._position, self._recorder
        phase, module = self._place(in_backward())
        if phase == "backward":
            recorder.gradient_seen()
        enclosing = position.enclosing(-1)
        values, call = recorder.new_values(), position.new_call()
        return Event(phase, position.microbatch, module, "", name, call, enclosing, values, "")

    def _see_taken(self, event: Event, named: dict[str, Any]) -> None:
        tensors, plain = operands(named)
        if plain:
            self._recorder.setting(event, "settings", repr(plain))
            event.structure = f"{event.structure}{arguments_line(plain)}"
        self._see(event, tensors, out=False)

    def has_room(self, event: Event | None, name: str, room: Any) -> None:
        """An operation takes room to work in, of which parts were never written: it is not digested."""
        if event is not None and isinstance(room, torch.Tensor):
            with self._guard.work(("the arguments of", event.operation)):
                self._recorder.setting(event, name, ROOM)

    def draws(self, event: Event | None, named: dict[str, Any]) -> None:
        """An operation draws random numbers: the state of the generator goes into it."""
        if event is None or self._guard.stopped:
            return
        with self._guard.work(("the generator of", event.operation)):
            device = named.get("device")
            if device is None:
                device = next((t.device for t in tensors_of(named)), torch.device("cpu"))
            self._generators.add_drawn(event, named.get("generator"), torch.device(device))

    def keeps(self, event: Event | None) -> bool:
        """Whether this is a place whose data is kept."""
        return event is not None and self._recorder.keeps(event)

    def end(self, event: Event | None, result: Any, written: dict[str, Any]) -> None:
        """What an operation gave. Its event comes after those that ran inside of it."""
        if event is None or self._guard.stopped:
            return
        with self._guard.work(("the results of", event.operation)):
            self._recorder.ensure_begun()
            with self._recorder.together():
                self._see_given(event, "output", result)
                if written:
                    self._see_given(event, "written", written)
            self._recorder.add(event)

    def raised(self, event: Event | None, error: Exception) -> None:
        """An operation raised: the training may go on."""
        if event is not None:
            self.end(event, f"raised {type(error).__name__}", {})

    def whole(self, schema: _Schema, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """An operation that ran and left what it took as it was: all is digested in one batch."""
        what = "what goes through", schema.whole_name
        if self._guard.light(what, self._by_plan, schema, args, kwargs, result) is False:
            self.note(result)
            self._anew(schema.whole_name, schema.named(args, kwargs), result)

    def _by_plan(self, schema: _Schema, args: tuple, kwargs: dict[str, Any], result: Any) -> bool:
        """The same by what is known of operations like it. False: nothing was done."""
        recorder, backward = self._recorder, in_backward()
        phase, module = self._place(backward)
        if not recorder.begun or (backward and recorder.gradient_due()):
            return False
        call = schema.plans.call(args, kwargs, result)
        if call is None:
            return False
        found = self._find(schema, schema.plans, call, (args, kwargs), (("output", result),))
        if found is None:
            return False
        known, structure = found
        event = recorder.see_again(known.event(schema.whole_name), call, self._guard.unseen)
        if backward:
            if phase == "backward":
                recorder.gradient_seen()
            given = (result,) if isinstance(result, torch.Tensor) else result or ()
            self._guard.thread.given.update([memory_of_plain(t) for t in given if t is not None])
        self._put(event, phase, module, self._position.new_call(), structure)
        return True

    def before(self, schema: _Schema, args: tuple, kwargs: dict[str, Any]) -> _Begun | None:
        """What an operation takes that may change it, by what is known of operations like it.

        None: nothing was done.
        """
        what = "the arguments of", schema.whole_name
        return self._guard.light(what, self._before, schema, args, kwargs)

    def _before(self, schema: _Schema, args: tuple, kwargs: dict[str, Any]) -> _Begun | None:
        recorder, backward = self._recorder, in_backward()
        phase, module = self._place(backward)
        if len(self._memory) or not recorder.begun or (backward and recorder.gradient_due()):
            return None
        call = schema.plans.call(args, kwargs, None)
        found = None if call is None else self._find(schema, schema.plans, call, (args, kwargs), ())
        if call is None or found is None or not recorder.started(call, self._guard.unseen):
            return None
        if phase == "backward":
            recorder.gradient_seen()
        return _Begun(*found, call, phase, module, self._position.new_call())

    def after(self, begun: _Begun, schema: _Schema, given: Any, written: dict[str, Any]) -> None:
        """What such an operation gave and wrote."""
        if self._guard.stopped:
            return
        what = "the results of", schema.whole_name
        if self._guard.light(what, self._after, begun, schema, given, written) is False:
            self.end(self.taken(begun, schema), given, written)

    def _after(self, begun: _Begun, schema: _Schema, given: Any, written: dict[str, Any]) -> bool:
        """False: nothing was done."""
        recorder, then = self._recorder, begun.known.then
        call = None if len(self._memory) else then.call((given, *written.values()), {}, None)
        if call is None:
            return False
        found = self._find(
            schema, then, call, ((), {}), (("output", given), ("written", written)), begun.known
        )
        if found is None or not recorder.started(call, self._guard.unseen):
            return False
        known, structure = found
        event = recorder.add_again(known.event(schema.whole_name), (begun.digests, call))
        self._put(event, begun.phase, begun.module, begun.call, f"{begun.structure}{structure}")
        return True

    def _put(self, event: Event, phase: str, module: str, call: int, structure: str) -> None:
        position = self._position
        event.phase, event.microbatch, event.module = phase, position.microbatch, module
        event.call, event.enclosing = call, position.enclosing(-1)
        event.structure = structure

    def taken(self, begun: _Begun, schema: _Schema) -> Event | None:
        """The event of an operation that began, with what it took: for `end`, or `raised`."""
        with self._guard.work(("the arguments of", schema.whole_name)):
            recorder, known = self._recorder, begun.known
            event = Event("", 0, "", "", schema.whole_name, -1, -1, recorder.new_values(), "")
            event.values += [one for one in known.values if not isinstance(one, int)]
            recorder.see_started(event, [name for name, _ in known.names], begun.digests)
            self._put(event, begun.phase, begun.module, begun.call, begun.structure)
            return event
        return None

    def _strides(self, names: list[tuple[str, bool]], tensors: list[torch.Tensor]) -> str:
        strides = self._recorder.strides
        each = zip(tensors, names, strict=True)
        return "".join([strides(name, t, out) for t, (name, out) in each if not t.is_contiguous()])

    def note(self, result: Any, has_values: bool = True) -> None:
        """Within a node of the graph of gradients: where the tensors lie that an operation gave."""
        if not in_backward():
            return
        known = self._guard.thread.given
        try:
            if has_values and type(result) is torch.Tensor:  # most of them
                known.add(memory_of(result))
                return
            memory = {memory_of(t) for t in tensors_of(result)}
        except Exception as e:
            if not self._guard.failed("where gradients lie", e):
                raise
            return
        if has_values:
            known |= memory
        else:
            known -= memory

    def _find(
        self,
        schema: _Schema,
        plans: _core.OperationPlans,
        call: _core.OperationCall,
        taken: tuple[tuple, dict[str, Any]],
        given: Sequence[tuple[str, Any]],
        before: Known | None = None,
    ) -> tuple[Known, str] | None:
        """(what is known of operations like this one, the structure of what is looked at); None where it must
        be looked at each time.

        taken: arguments. given: by name. before: what is known of the arguments, where `taken` has none.
        """
        known: Any = call.known
        if known is None:
            known = self._known(schema, plans, call, schema.named(*taken), given, before)
        if known is False:
            return None
        if call.is_usual:
            return known, known.arguments
        tensors = call.arrays
        # The core takes no tensor whose values are elsewhere.
        if call.missing and not all(map(is_plain, tensors)):
            return None
        names = known.names if before is None else known.names[len(before.names) :]
        return known, f"{known.arguments}{self._strides(names, tensors)}"

    def _known(
        self,
        schema: _Schema,
        plans: _core.OperationPlans,
        call: _core.OperationCall,
        taken: dict[str, Any],
        given: Sequence[tuple[str, Any]],
        before: Known | None,
    ) -> Known | Literal[False]:
        """What is known from now on. False: values have names of their own making, or a long text."""
        found = call.arrays
        if not all(map(is_plain, found)):
            return False  # the next one may have others
        recorder = self._recorder
        tensors, plain = operands(taken)
        texts = [recorder.short_setting("settings", repr(plain))] if plain else []
        names = [(name, False) for name in tensors] if before is None else [*before.names]
        values: list[Any] = [] if before is None else [*before.values]
        all_tensors = [*tensors.values()]
        for name, value in given:
            tensors, others = operands({name: value})
            said = [recorder.short_setting(label, text, out=True) for label, text in others]
            texts += said
            values += [*said, *range(len(names), len(names) + len(tensors))]
            names += [(label, True) for label in tensors]
            all_tensors += tensors.values()
        if before is None:  # settings come first where all is known at once
            values = [*texts, *range(len(names))]
        known: Known | Literal[False] = False
        if None not in texts and same_objects(all_tensors, found):
            arguments = arguments_line(plain) if plain else ""
            known = Known(schema.pools.of(names, values), names, values, arguments, _core.OperationPlans())
        plans.keep(call, known)
        return known

    def _anew(self, name: str, named: dict[str, Any], result: Any) -> None:
        with self._guard.work(("what goes through", name)):
            event, recorder = self._event(name), self._recorder
            recorder.ensure_begun()
            taken, plain = operands(named)
            if plain:
                recorder.setting(event, "settings", repr(plain))
                event.structure = f"{event.structure}{arguments_line(plain)}"
            given, plain = operands({"output": result})
            for label, text in plain:
                recorder.setting(event, label, text, out=True)
            recorder.see_both(event, taken, given)
            recorder.add(event)

    def _see_given(self, event: Event, name: str, given: Any) -> None:
        tensors, plain = operands({name: given})
        for label, text in plain:
            self._recorder.setting(event, label, text, out=True)
        self._see(event, tensors, out=True)

    def _place(self, backward: bool) -> tuple[str, str]:
        """(phase, module) of an operation that runs now. backward: whether gradients are computed."""
        if self._position.optimizing:
            return "optimizer", ""
        inner = self._position.innermost()
        if backward:
            if inner is not None and inner.phase == "recompute":
                return "recompute", inner.watched.path
            return "backward", module_of_node()
        return ("forward", inner.watched.path) if inner is not None else ("outside", "")


class OperationMode(TorchDispatchMode):
    """Hands operations to a trace. Views are left out: what they show is seen where it is used.

    Operations of higher order (`cond`, `flex_attention`) are events as a whole: what runs inside of them
    is not seen.
    """

    # Without it PyTorch refuses operations of higher order under this mode.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch wraps `__torch_dispatch__`, so that nothing of it is compiled. That takes longer
        than what this mode does of most operations: `leave_uncompiled` says it once.
        """
        return not can_leave_uncompiled()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays compiled: else it ran without, or was refused, under this mode."""
        return True

    def __init__(self, guard: Guard, events: OperationEvents) -> None:
        super().__init__()
        self._guard, self._events, self._thread = guard, events, guard.thread
        # By the id of the operation: PyTorch hashes operations by a function in Python.
        self._schemas: dict[int, _Schema] = {}
        self._kernels = Kernels()

    def is_innermost(self) -> bool:
        """Whether leaving this mode would leave no other one. One that stays does nothing: its
        trace has ended.
        """
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        return _get_current_dispatch_mode() is self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._thread.inside:  # work of the trace itself
            return func(*args, **kwargs)
        schema = self._schemas.get(id(func))
        if schema is not None and schema.passed and not types:  # whether the trace records or not
            return func(*args, **kwargs)
        if not self._guard.records() or compiling():
            self._events.not_seen()
            return func(*args, **kwargs)
        if types:  # subclasses
            if any(issubclass(t, FakeTensor) for t in types):
                return func(*args, **kwargs)  # shapes only, as DTensor asks for: it writes no memory
            if any(t is not torch.Tensor and t is not torch.nn.Parameter and hasattr(t, "__torch_dispatch__")
                   and t.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for t in types):  # fmt: skip
                return NotImplemented  # its own operations come here again
        if schema is None:
            if not hasattr(func, "_schema"):
                return self._higher_order(func, args, kwargs)
            schema = self._schemas[id(func)] = _Schema(func)
        if schema.passed:
            return func(*args, **kwargs)
        draws = schema.random and schema.draws(args, kwargs)
        if schema.pure and not draws and self._events.at_once():
            try:
                result = func(*args, **kwargs)
            except Exception as e:
                self._events.raised(self._events.begin(schema.whole_name, schema.named(args, kwargs)), e)
                raise
            self._events.whole(schema, args, kwargs, result)
            return result
        if schema.apart and not draws and self._events.at_once():
            begun = self._events.before(schema, args, kwargs)
            if begun is not None:
                return self._changing(begun, schema, func, args, kwargs)
            if self._guard.stopped:
                return func(*args, **kwargs)
        named = schema.named(args, kwargs)
        taken = {n: v for n, v in named.items() if n not in schema.fills} if schema.fills else named
        seen = self._events.begin(schema.whole_name, taken)
        if draws:
            self._events.draws(seen, named)
        for room in schema.room_in:
            self._events.has_room(seen, room, named.get(room))
        before = _bytes_of(named.get("self")) if schema.name in _RESIZES else 0
        try:
            if seen is not None and self._events.keeps(seen):
                result, ran = self._kernels.ran(lambda: func(*args, **kwargs))
                seen.kind = f"{KERNELS}{ran}" if ran else ""
            else:
                result = func(*args, **kwargs)
        except Exception as e:
            self._events.raised(seen, e)
            raise
        if schema.unwritten:
            self._events.note(result, has_values=False)
            self._events.allocated(schema.name, result, before)
        else:
            self._events.ran(func, schema, named, result)
            if schema.later:
                self._events.end(seen, UNDER_WAY, {})
                return result
            given = schema.given(result)
            self._events.note(given)
            written = {n: named[n] for n in schema.writes if n in named}
            self._events.end(seen, given, written)
        return result

    def _changing(
        self, begun: _Begun, schema: _Schema, func: Any, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        """Runs an operation that may change what it takes, which has digests already."""
        events = self._events
        try:
            result = func(*args, **kwargs)
        except Exception as e:
            events.raised(events.taken(begun, schema), e)
            raise
        named = schema.named(args, kwargs)
        events.ran(func, schema, named, result)
        given = schema.given(result)
        events.note(given)
        events.after(begun, schema, given, {n: named[n] for n in schema.writes if n in named})
        return result

    def _higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        named = {**{str(n): one for n, one in enumerate(args)}, **kwargs}
        seen = self._events.begin(str(func), named)
        result = func(*args, **kwargs)
        self._events.ran(func, None, named, result)
        self._events.end(seen, result, {})
        return result


def _bytes_of(t: Any) -> int:
    return t.untyped_storage().nbytes() if isinstance(t, torch.Tensor) and t.layout is torch.strided else 0


leave_uncompiled(OperationMode.__torch_dispatch__)
