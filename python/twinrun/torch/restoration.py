"""The values of a captured step, back in the models, optimizers and containers of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from ..capture.shared_memory import Memory, check_fits
from ..errors import Incomparable, TwinrunError
from ..formats.element_types import unit_of
from ..formats.texts import SUFFIX
from ..runs.arrays import bits_of_small, check_places, view
from ..runs.boxes import StepBoxes, Whole, values_of
from ..runs.containers import flattened, state_of
from ..runs.fields import FieldRef
from .division import States, divided, joined
from .optimizer_states import parameters_of, state_as_captured
from .placements import Held, Sharded
from .wrappers import plain_name, state_names

__all__ = ["Restoration"]

# Gives the new value of an entry of a container that holds no others, by its name and its value.
_Leaf = Callable[[str, Any], Any]


class _LiveStates(States):
    """The states of models and optimizers, by the objects that they are of: what is written into their
    tensors is written into the objects.
    """

    def __init__(self, boxes: StepBoxes, rank: int, ranks: int) -> None:
        self._boxes, self._rank, self._ranks = boxes, rank, ranks
        self.models: dict[int, tuple[Any, dict[str, str]]] = {}
        self.optimizers: dict[int, dict[str, Any]] = {}

    def of(self, name: str, what: Any) -> Any:
        if isinstance(what, torch.nn.Module):
            state = what.state_dict()
            names = state_names(what, state)
            self.models[id(what)] = state, names
            return {names[key]: value for key, value in state.items()}
        if isinstance(what, torch.optim.Optimizer):
            state = state_as_captured(self._boxes, (self._rank, self._ranks), name, what)
            self.optimizers[id(what)] = state
            return state
        return what


class Restoration:
    """A step on its way back. `check` first, which changes nothing; then `write`, then `finish`.

    rank, ranks: this process, and how many there are. Each raises TwinrunError where a value cannot be
    restored.
    """

    def __init__(self, boxes: StepBoxes, fields: Any, rank: int, ranks: int) -> None:
        self._boxes, self._fields, self._rank, self._ranks = boxes, fields, rank, ranks
        self._states = _LiveStates(boxes, rank, ranks)
        self._parts: list[Held] = []  # of tensors and arrays, which are written in place
        self._own: dict[str, tuple[Any, FieldRef]] = {}
        self._numbers: dict[str, np.ndarray] = {}  # of Python, by their names

    # ---- before anything is written ----

    def check(self, sharded: Mapping[str, Sharded] | None, local: list[str]) -> None:
        """Finds each value in the step, and where it goes."""
        own, parts = divided(self._fields, sharded, local, self._states)
        known: dict[str, Any] = {}
        self._walk("", self._fields, lambda name, value: known.setdefault(plain_name(name), value), False)
        in_place = {n for n, v in known.items() if _is_strided(v) or isinstance(v, np.ndarray)}
        for p in parts:
            if p.name.endswith(SUFFIX):
                self._check_text(p.name, p.local, known)
            elif p.name in in_place or p.name.rpartition(".")[0] in in_place:
                self._check_form(p.name, self._boxes.whole(p.name), p.shape, p.local)
                self._boxes.check_kept(p.name)
                _check_target(p.name, p.local)
                self._parts.append(p)
            elif p.name in known:
                self._numbers[p.name] = self._number(p.name)
            else:
                raise _not_written(p.name)
        for name, value in own.items():
            self._check_own(name, value, known, name in in_place)
        self._check_fixed("", self._fields)
        boxes = {p.name: (p.local, p) for p in self._parts} | {
            n: (into, ref) for n, (into, ref) in self._own.items()
        }

        def read(name: str) -> np.ndarray:
            into, of = boxes[name]
            return (
                values_of(of)
                if isinstance(of, FieldRef)
                else self._boxes.read(name, of.offset, tuple(into.shape))
            )

        memory = [_memory(name, into) for name, (into, _) in boxes.items()]
        check_fits([m for m in memory if m.address], read)  # tensors of the device "meta" have none

    def _check_fixed(self, name: str, what: Any) -> None:
        """Raises TwinrunError where a tuple that nothing holds would have to get another number."""
        found = self._numbers.get(plain_name(name))
        if found is not None and not np.array_equal(
            found, np.asarray(what), equal_nan=found.dtype.kind in "fc"
        ):
            raise _not_written(name)
        if isinstance(what, tuple):
            keys = getattr(what, "_fields", range(len(what)))
            for key, one in zip(keys, what, strict=True):
                self._check_fixed(joined(name, key), one)

    def _check_own(self, name: str, value: Any, known: Mapping[str, Any], in_place: bool) -> None:
        """What each process has of its own comes back where as many processes captured it."""
        if name.endswith(SUFFIX) and name not in self._boxes:
            raise _other_text(name)
        ref = self._boxes.own(name, self._rank, self._ranks)
        if name.endswith(SUFFIX):
            if not np.array_equal(values_of(ref), value):
                raise _other_text(name)
        elif in_place:
            self._check_form(
                name, Whole(ref.dtype, ref.kind, ref.unit, ref.user_shape), tuple(value.shape), value
            )
            _check_target(name, value)
            self._own[name] = value, ref
        elif name in known:
            self._numbers[name] = values_of(ref)
        else:
            raise _not_written(name)

    def _check_text(self, name: str, digests: Any, known: Mapping[str, Any]) -> None:
        """A text is compared, as only its digest was kept. None may become a number."""
        plain = name.removesuffix(SUFFIX)
        if name not in self._boxes and plain in self._boxes and known.get(plain, "") is None:
            self._numbers[plain] = self._number(plain)
            return
        whole = self._boxes.whole(name) if name in self._boxes else None
        if whole is None or whole.shape != digests.shape:
            raise _other_text(name)
        if not np.array_equal(self._boxes.read(name, (0,) * len(whole.shape), whole.shape), digests):
            raise _other_text(name)

    def _check_form(self, name: str, captured: Whole, shape: tuple[int, ...], into: Any) -> None:
        """Raises Incomparable where a tensor or an array has another type or shape than was captured."""
        like = (
            torch.empty(0, dtype=into.dtype, device=into.device)
            if isinstance(into, torch.Tensor)
            else into[:0]
            if into.ndim
            else into
        )
        bits, kind = bits_of_small(like)
        dtype, unit = view(name, bits).dtype, unit_of(into.dtype) if isinstance(into, np.ndarray) else None
        if (dtype, kind, unit) != (captured.dtype, captured.kind, captured.unit):
            was, now = (
                k or u or d
                for d, k, u in ((captured.dtype, captured.kind, captured.unit), (dtype, kind, unit))
            )
            raise Incomparable(f"{was} was captured, and here it is {now}", where=name)
        if captured.shape != shape:
            raise Incomparable(
                f"shape {list(captured.shape)} was captured, and here it is {list(shape)}", where=name
            )

    def _number(self, name: str) -> np.ndarray:
        whole = self._boxes.whole(name)
        return self._boxes.read(name, (0,) * len(whole.shape), whole.shape)

    # ---- writing ----

    def write(self) -> None:
        """Writes into tensors and arrays. Each is checked byte by byte before it is written."""
        for p in self._parts:
            _put(p.local, self._boxes.read(p.name, p.offset, tuple(p.local.shape)))
        for into, ref in self._own.values():
            _put(into, values_of(ref))

    def finish(self) -> None:
        """Hands the states to their models, optimizers and schedulers, and sets numbers of containers."""
        self._walk("", self._fields, self._restored, True)

    def _restored(self, name: str, value: Any) -> Any:
        found = self._numbers.get(plain_name(name))
        return value if found is None else _as_python(found, value)

    def _walk(self, name: str, what: Any, leaf: _Leaf, writes: bool) -> Any:
        """A container with the values that `leaf` gives. Without `writes` nothing changes, where `leaf` gives
        what it gets.
        """
        if isinstance(what, torch.nn.Module):
            state, names = self._states.models[id(what)]
            for key in list(state):
                state[key] = self._walk(joined(name, names[key]), state[key], leaf, writes)
            if writes:
                what.load_state_dict(state)
            return what
        if isinstance(what, torch.optim.Optimizer):
            self._walk_optimizer(name, what, leaf, writes)
            return what
        state = None if isinstance(what, (torch.Tensor, np.ndarray)) else state_of(what)
        if state is not None and state is not what:  # of a scheduler
            new = {key: self._walk(joined(name, key), one, leaf, writes) for key, one in state.items()}
            if writes:
                what.load_state_dict(new)
            return what
        if isinstance(what, MutableMapping):
            for key, one in list(what.items()):
                new = self._walk(joined(name, key), one, leaf, writes)
                if new is not one:
                    what[key] = new
            return what
        if isinstance(what, (list, tuple)) and [*flattened(name, what)] not in ([name], [name + SUFFIX]):
            return self._walk_sequence(name, what, leaf, writes)
        return leaf(name, what)

    def _walk_sequence(self, name: str, what: Any, leaf: _Leaf, writes: bool) -> Any:
        keys = getattr(what, "_fields", range(len(what)))
        new = [self._walk(joined(name, key), one, leaf, writes) for key, one in zip(keys, what, strict=True)]
        if all(n is one for n, one in zip(new, what, strict=True)):
            return what
        if isinstance(what, list):
            what[:] = new
            return what
        return type(what)(*new) if hasattr(what, "_fields") else type(what)(new)

    def _walk_optimizer(self, name: str, what: torch.optim.Optimizer, leaf: _Leaf, writes: bool) -> None:
        state = self._states.optimizers[id(what)]
        parameters = parameters_of(what)
        for number, entries in state["state"].items():
            for key, value in entries.items():
                new = self._walk(joined(name, f"state.{number}.{key}"), value, leaf, writes)
                if writes:
                    what.state[parameters[number]][key] = new
        for number, parameter in enumerate(parameters):
            if writes and number not in state["state"]:  # it had made no step
                what.state.pop(parameter, None)
        for number, group in enumerate(state["param_groups"]):
            for key, value in group.items():
                at = joined(name, f"param_groups.{number}.{key}")
                new = self._walk(at, value, leaf, writes)
                if key != "params":
                    if new is not value:
                        what.param_groups[number][key] = new
                elif not writes and not np.array_equal(self._number(plain_name(at)), value):
                    raise Incomparable(
                        "the groups of the optimizer hold other parameters than when it was captured",
                        where=at,
                    )
        for key, value in state.items():
            if key not in ("state", "param_groups"):
                self._walk(joined(name, key), value, leaf, False)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _not_written(name: str) -> TwinrunError:
    return TwinrunError(
        "cannot be restored in place",
        where=name or "fields",
        fix="leave it out of fields, or read it with load()",
    )


def _other_text(name: str) -> Incomparable:
    return Incomparable(
        "is another text, or another kind of value, than when it was captured: of texts only digests are kept",
        where=name.removesuffix(SUFFIX),
        fix="set it to what it was, or leave it out",
    )


def _check_target(name: str, into: Any) -> None:
    """Raises TwinrunError where a tensor or an array cannot be written."""
    if isinstance(into, torch.Tensor):
        check_places(name, into.shape, into.stride())
        return
    check_places(name, into.shape, into.strides)
    if not into.flags.writeable:
        raise TwinrunError("is read-only", where=name, fix="give an array that can be written")


def _memory(name: str, into: Any) -> Memory:
    if isinstance(into, torch.Tensor):
        item = into.element_size()
        strides = tuple(s * item for s in into.stride())
        return Memory(name, str(into.device), into.data_ptr(), tuple(into.shape), strides, item)
    address = into.__array_interface__["data"][0]
    return Memory(name, "cpu", address, into.shape, into.strides, into.itemsize)


def _put(into: Any, values: np.ndarray) -> None:
    """Writes the elements of a box, bit by bit."""
    if isinstance(into, torch.Tensor):
        if into.numel():
            raw = torch.from_numpy(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
            with torch.no_grad():
                into.detach().copy_(raw.view(into.dtype).reshape(into.shape))
        return
    into[...] = values.view(into.dtype.newbyteorder("="))


def _as_python(found: np.ndarray, like: Any) -> Any:
    """Numbers of Python, in containers as those that they replace."""
    if isinstance(like, np.generic):
        return found[()]
    return _shaped(found.tolist(), like)


def _shaped(value: Any, like: Any) -> Any:
    if isinstance(value, list):
        inner = like if isinstance(like, (list, tuple)) and len(like) == len(value) else [None] * len(value)
        made = [_shaped(one, other) for one, other in zip(value, inner, strict=True)]
        return tuple(made) if isinstance(like, tuple) else made
    # [1, 2.0] is kept as floats.
    whole = type(like) is int and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value
