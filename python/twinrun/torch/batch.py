"""`assert_batch_invariant`: whether what a model gives for an item depends on the items beside it."""

from __future__ import annotations

import contextlib
import fnmatch
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ..arguments import names_given
from ..errors import Incomparable, TwinrunError
from ..runs.digest import digests_of
from ..words import number
from .model import hook_after, hook_before, kind_of, modules_of
from .values import leaves, put

__all__ = ["BatchDependent", "assert_batch_invariant"]

_Tensors = dict[str, torch.Tensor]
_Key = tuple[str, int]  # the path of a module, and which of its calls


class BatchDependent(AssertionError):
    """What a model gives for an item depends on the batch in which the item is.

    Attributes
    ----------
    module : str
        The first module whose inputs for an item agree and whose outputs differ; '' for the model
        itself. Where code between modules made the difference, the module whose forward holds that
        code.
    kind : str
        Its class.
    item : int
        The first item for which they differ.
    size : int
        How many items ran together, where the result is another one than in the whole batch.
    value : str
        Which of its outputs; `max_abs_diff` is the largest |a - b| in it, None where they are no
        numbers to subtract.

    Parameters
    ----------
    report : str
        The message.
    """

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.module = self.kind = self.value = ""
        self.item, self.size = -1, 0
        self.max_abs_diff: float | None = None


class _Call(NamedTuple):
    """A call of a module. outer: the calls around it, the innermost first."""

    key: _Key
    kind: str
    ins: Any
    outs: Any
    outer: tuple[_Key, ...]


_See = Callable[[_Key, str, _Tensors], Any]


def _tensors(name: str, what: Any) -> _Tensors:
    found: _Tensors = {}
    for label, one in leaves(name, what):
        if isinstance(one, torch.Tensor):
            put(found, label, one.detach())
    return found


def _size(inputs: Any) -> int:
    for _, one in leaves("inputs", inputs):
        if isinstance(one, torch.Tensor) and one.dim() > 0:
            return one.shape[0]
    raise TwinrunError("there is no tensor in the inputs whose first dimension is the batch")


def _cut(what: Any, size: int, start: int, end: int, copies: dict[int, torch.Tensor]) -> Any:
    """The inputs of some items: of tensors whose first dimension is the batch. They are copies, since
    the model may change what it takes. copies: those made so far, by the id of a tensor.
    """
    if isinstance(what, torch.Tensor):
        if id(what) not in copies:
            batched = what.dim() > 0 and what.shape[0] == size
            copies[id(what)] = (what[start:end] if batched else what).clone()
        return copies[id(what)]
    if isinstance(what, Mapping):
        return {key: _cut(one, size, start, end, copies) for key, one in what.items()}
    if isinstance(what, tuple) and hasattr(what, "_fields"):
        return type(what)(*(_cut(one, size, start, end, copies) for one in what))
    if isinstance(what, (list, tuple, deque)):
        return type(what)(_cut(one, size, start, end, copies) for one in what)
    return what


def _call(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Gives what brings buffers and generators back to where they were; at the end they are there."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    on_gpu = torch.cuda.is_initialized()
    states = torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None

    def back() -> None:
        for b, kept in buffers:
            b.copy_(kept)
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1])

    with torch.no_grad():
        try:
            yield back
        finally:
            back()


def _run(
    model: torch.nn.Module, watched: list[tuple[str, torch.nn.Module]], inputs: Any, see: _See
) -> list[_Call]:
    """Runs the model. Gives the calls of its modules in the order in which they ended, with what
    `see` made of them.
    """
    done: list[_Call] = []
    at_work: list[tuple[_Key, Any]] = []
    times: dict[str, int] = {}
    handles = []

    def entering(path: str) -> Callable[..., None]:
        def before(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
            if torch.compiler.is_compiling():
                return
            key = path, times.get(path, 0)
            times[path] = key[1] + 1
            at_work.append((key, see(key, "in", _tensors("args", (args, kwargs)))))

        return before

    def leaving(path: str) -> Callable[..., None]:
        def after(module: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            key, ins = at_work.pop()
            outer = tuple(k for k, _ in reversed(at_work))
            outs = see(key, "out", _tensors("output", output))
            done.append(_Call(key, kind_of(module), ins, outs, outer))

        return after

    try:
        for path, module in watched:
            handles.append(hook_before(module, entering(path)))
            handles.append(hook_after(module, leaving(path)))
        _call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return done


class _Layout(NamedTuple):
    """Where the items lie in a tensor: in which dimension, and how many entries of it each has."""

    dimension: int
    each: int


def _layout(whole: tuple[int, ...], some: tuple[int, ...], size: int, few: int) -> _Layout | None:
    """From the shapes in the whole batch and in a batch of a few items; None where no dimension is
    that of items.
    """
    if len(whole) != len(some):
        return None
    other = [d for d in range(len(whole)) if whole[d] != some[d]]
    if len(other) != 1 or whole[other[0]] % size or some[other[0]] * size != whole[other[0]] * few:
        return None
    return _Layout(other[0], whole[other[0]] // size)


def _items(t: torch.Tensor, layout: _Layout, size: int, start: int, end: int) -> list[torch.Tensor]:
    """Items of a tensor: one after the other, or, where each has several entries, turn by turn."""
    d, each = layout
    found = [t.narrow(d, start * each, (end - start) * each)]
    if each > 1:
        turns = t.unflatten(d, (each, size)).narrow(d + 1, start, end - start)
        found.append(turns.flatten(d, d + 1))
    return found


def _digests(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [int(d) for d, _, _ in digests_of({str(n): t for n, t in enumerate(tensors)})]


def _shapes(key: _Key, way: str, tensors: _Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items()}


class _Whole:
    """The run of the whole batch: digests of the items of each value."""

    def __init__(
        self, size: int, parts: list[tuple[int, int]], few: int, shapes: dict[tuple[_Key, str], dict]
    ) -> None:
        self.size, self.parts, self.few, self.shapes = size, parts, few, shapes

    def __call__(self, key: _Key, way: str, tensors: _Tensors) -> dict[str, list[list[int]]]:
        found: dict[str, list[list[int]]] = {}
        alone = self.shapes.get((key, way), {})
        for name, t in tensors.items():
            layout = _layout(tuple(t.shape), alone[name], self.size, self.few) if name in alone else None
            if layout is not None:
                found[name] = [_digests(_items(t, layout, self.size, *part)) for part in self.parts]
        return found


def _differing(whole: dict[str, list[list[int]]], some: dict[str, int], part: int) -> str | None:
    """The first value that is another one; None where all agree."""
    return next((n for n, d in whole.items() if n in some and some[n] not in d[part]), None)


def assert_batch_invariant(
    model: torch.nn.Module,
    inputs: Any,
    *,
    sizes: Iterable[int] = (1,),
    modules: str | Iterable[str] = "*",
) -> tuple[str, ...]:
    """Raises `BatchDependent` where what a model gives for an item depends on the batch in which the item is.

    ::

        twinrun.torch.assert_batch_invariant(model.eval(), torch.randn(8, 16))

    Parameters
    ----------
    model : torch.nn.Module
        The model, in the mode in which it is (`eval`, usually: dropout and batch normalisation in
        training depend on the batch, and are named).
    inputs : tensor, list, tuple or mapping
        A batch of two items or more: what the model takes, its arguments, or its arguments by name.
        The first dimension of the first tensor is the batch, and that of every tensor where it is
        as long.
    sizes : iterable of int, default (1,)
        How many items run together; each is compared with the whole batch.
    modules : str or iterable of str, default '*'
        Globs of the paths of modules that are looked at; the model itself always is.

    Returns
    -------
    tuple of str
        The modules whose outputs were compared, in their order; '' is the model.

    Raises
    ------
    BatchDependent
        An output for an item differs in a bit. It has the module, the item and the amount.
    Incomparable
        No output of the model has a dimension of items.
    TwinrunError
        A parameter has no meaning, or there are fewer than two items.

    Notes
    -----
    The model runs once as a whole and once for each part, without gradients. Buffers and states of
    random number generators are those of before in each run, and afterwards. Each run takes its own
    copy of the inputs. A module of TorchScript is looked at as a whole. The dimension of items
    of a value is the one that is as many times longer in the whole batch; values without one, such
    as a mean over the batch, are not compared.
    """
    patterns = names_given(modules, "modules")
    size = _size(inputs)
    wanted = list(sizes)
    for one in wanted:
        if isinstance(one, bool) or not isinstance(one, int) or one < 1:
            raise TwinrunError(f"sizes must be positive integers, not {one!r}")
    few = min(wanted, default=size)
    if few >= size:
        raise TwinrunError(
            "there is nothing to compare", fix="give a batch of two items or more, and a smaller size"
        )
    watched = [
        (path, module)
        for path, module, within in modules_of(model)
        if path == "" or (not within and any(fnmatch.fnmatchcase(path, p) for p in patterns))
    ]
    parts = [
        (at, min(at + n, size))
        for n in dict.fromkeys(min(n, size) for n in wanted)
        for at in range(0, size, n)
    ]
    with _unchanged(model) as back:

        def run(start: int, end: int, see: _See) -> list[_Call]:
            back()
            return _run(model, watched, _cut(inputs, size, start, end, {}), see)

        shapes: dict[tuple[_Key, str], dict] = {}
        for call in run(0, few, _shapes):
            shapes[call.key, "in"], shapes[call.key, "out"] = call.ins, call.outs
        whole = run(0, size, _Whole(size, parts, few, shapes))
        compared = {call.key: call for call in whole if call.outs}
        if ("", 0) not in compared:
            raise Incomparable(
                "no output of the model has a dimension of items",
                fix="give a model that returns a value for each item, such as its logits",
            )
        found: tuple[_Call, int, str] | None = None
        for number_of_part, (start, end) in enumerate(parts):
            some = {
                call.key: call
                for call in run(
                    start, end, lambda key, way, t: dict(zip(t, _digests(t.values()), strict=True))
                )
            }
            at = _first(whole, some, number_of_part)
            if at is not None:
                found = at[0], number_of_part, at[1]
                break
        if found is not None:
            raise _error(found, parts, shapes, size, few, run)
    return tuple(dict.fromkeys(key[0] for key in compared))


def _first(whole: list[_Call], some: dict[_Key, _Call], part: int) -> tuple[_Call, str] | None:
    """The first call whose outputs for a part of the items differ, or the one around it that made
    its inputs differ.
    """
    by_key = {call.key: call for call in whole}
    for call in whole:
        other = some.get(call.key)
        value = None if other is None else _differing(call.outs, other.outs, part)
        if value is None or other is None:
            continue
        if _differing(call.ins, other.ins, part) is None:
            return call, value
        for key in call.outer:
            around, alone = by_key[key], some.get(key)
            if alone is not None and _differing(around.ins, alone.ins, part) is None:
                return around, _differing(around.outs, alone.outs, part) or ""
        return call, value
    return None


def _error(
    found: tuple[_Call, int, str],
    parts: list[tuple[int, int]],
    shapes: dict,
    size: int,
    few: int,
    run: Callable,
) -> BatchDependent:
    """The error, with the amount: the values are made once more and kept."""
    call, part, value = found
    start, end = parts[part]
    kept: list[torch.Tensor] = []

    def keep(key: _Key, way: str, tensors: _Tensors) -> None:
        if key == call.key and way == "out" and value in tensors:
            kept.append(tensors[value].clone())

    run(0, size, keep)
    run(start, end, keep)
    item, apart = start, None
    if len(kept) == 2:
        layout = _layout(tuple(kept[0].shape), shapes[call.key, "out"][value], size, few)
        assert layout is not None
        for one in range(start, end):
            alone = _items(kept[1], layout, end - start, one - start, one - start + 1)
            within = _items(kept[0], layout, size, one, one + 1)
            if not set(_digests(alone)) & set(_digests(within)):
                item = one
                if not alone[0].is_complex():
                    apart = (alone[0].double() - within[0].double()).abs().max().item()
                break
    together = "alone" if end - start == 1 else f"in a batch of {end - start}"
    amount = "" if apart is None else f", |a-b| up to {number(apart)}"
    name = call.key[0] or "the model"
    error = BatchDependent(
        f"{name} ({call.kind}): its inputs for item {item} agree, and {value or 'what it gives to its own modules'} is "
        f"another one {together} than in the batch of {size}{amount}"
    )
    error.module, error.kind, error.item, error.size, error.value = (
        call.key[0],
        call.kind,
        item,
        end - start,
        value,
    )
    error.max_abs_diff = apart
    return error
