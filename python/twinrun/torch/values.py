"""What PyTorch's modules take and give, as named values."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import UserList, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..runs.digest import digest_of_text
from ..runs.plain_values import SAID, text_of
from ..runs.structure import CLASS, GRAD, SAME, STRIDES, Fact, canonical, more_attributes, texts_of
from .readable import reads_plainly

__all__ = [
    "TOO_DEEP", "Leaf", "differentiates_forward", "digest_of_text", "facts_of_parts", "gradient_leaves", "is_plain", "leaves", "local_tensors", "memory_of",
    "memory_of_plain", "plain_text", "put", "same_tensors", "strides_of", "tangents_of", "tensors_among", "tensors_of",
]  # fmt: skip

# In a PyTorch without collectives nothing is one.
try:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
except ImportError:
    AsyncCollectiveTensor = ()

# (name, value): a tensor, or a plain value of Python.
Leaf = tuple[str, Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OTHER_LEAVES = (*_PLAIN, torch.dtype, torch.device, *SAID)
_LISTS = (list, tuple, deque, UserList)
_DEEPEST = 20
_CALLS = ("args", "kwargs")  # containers that PyTorch makes for each call
# Looked up once: these are asked for with each value.
_TENSOR, _PARAMETER, _STRIDED = torch.Tensor, torch.nn.Parameter, torch.strided
_transforms = torch._C._functorch
_is_wrapped = _transforms.is_functorch_wrapped_tensor
_is_zero = torch.Tensor._is_zerotensor


class _TooDeep(Exception):
    """Something lies in too many containers."""


class _Text:
    """A value of Python that is neither tensor nor plain, by what says all of it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


# In the place of what lies in more than 20 containers, one within the other.
TOO_DEEP = _Text(f"more than {_DEEPEST} containers, one within the other")


def plain_text(one: Any) -> str | None:
    """A plain value of Python as text; also a tensor on the meta device, which has a form and no values.
    None for other tensors.
    """
    if not isinstance(one, torch.Tensor):
        return repr(one)
    return f"meta {one.dtype} {tuple(one.shape)}" if one.is_meta else None


def leaves(
    name: str,
    what: Any,
    found: list[Leaf] | None = None,
    others: list[str] | None = None,
    facts: list[Fact] | None = None,
    attributes: list[str] | None = None,
) -> list[Leaf]:
    """The tensors and plain values in nested lists, mappings and data classes. Other objects are left out:
    their names come into `others`, and into `attributes` those of attributes of data classes that are no
    fields. What kinds of containers and objects there are comes into `facts`.
    """
    found = [] if found is None else found
    try:
        return _walked(name, what, found, 0, others, facts, attributes)
    except _TooDeep:  # nothing that holds itself is walked to its end
        found.append((name, TOO_DEEP))
        return found


def _walked(
    name: str,
    what: Any,
    found: list[Leaf],
    depth: int,
    others: list[str] | None,
    facts: list[Fact] | None,
    attributes: list[str] | None,
) -> list[Leaf]:
    kind = type(what)
    # The types that most values have come first: to ask whether one is a Mapping takes longest.
    if kind is _TENSOR or kind is _PARAMETER or what is None:
        found.append((name, what))
        return found
    if kind is not tuple and kind is not list and isinstance(what, (torch.Tensor, *_OTHER_LEAVES)):
        found.append((name, what))
        return found
    if depth >= _DEEPEST:
        raise _TooDeep
    if kind is not tuple and kind is not list and kind is not dict and _runs_code(what):
        if facts is not None:
            facts.append((name, CLASS, kind.__name__))
        if others is not None:
            others.append(name)
        return found
    if facts is not None:
        top = depth == 0 and name in _CALLS  # their class says nothing
        if kind is not tuple and kind is not list:
            facts += texts_of(what, name)[top:]
        elif not top:
            facts.append((name, CLASS, kind.__name__))
    if kind is not tuple and kind is not list and isinstance(what, Mapping):
        for key, one in what.items():
            _walked(f"{name}.{key}", one, found, depth + 1, others, facts, attributes)
    elif isinstance(what, _LISTS):
        for number, one in enumerate(what):
            if type(one) is _TENSOR:  # most of them, without a call
                found.append((f"{name}.{number}", one))
            else:
                _walked(f"{name}.{number}", one, found, depth + 1, others, facts, attributes)
    elif dataclasses.is_dataclass(what) and not isinstance(what, type):
        for field in dataclasses.fields(what):
            _walked(
                f"{name}.{field.name}",
                getattr(what, field.name, None),
                found,
                depth + 1,
                others,
                facts,
                attributes,
            )
        if attributes is not None:
            attributes += [f"{name}.{attribute}" for attribute in more_attributes(what)]
    elif isinstance(what, np.ndarray) and (parts := _parts_of(what)) is not None:
        found += [(name + label, part) for label, part in parts]
    elif (text := text_of(what, _OTHER_LEAVES)) is not None:
        found.append((name, _Text(text)))
    elif others is not None:
        others.append(name)
    return found


def _runs_code(what: Any) -> bool:
    """Whether a container is read by code of the program's own."""
    return isinstance(what, (Mapping, *_LISTS)) and not reads_plainly(type(what))


def gradient_leaves(gradients: Iterable[torch.Tensor | None]) -> list[Leaf]:
    """The same of the gradients that a node of the graph takes or gives: each is a tensor or None."""
    return [(f"grad.{number}", one) for number, one in enumerate(gradients)]


def _parts_of(array: np.ndarray) -> list[Leaf] | None:
    """An array of NumPy as a tensor, and its mask if it has one: what a mask covers has no value."""
    if not isinstance(array, np.ma.MaskedArray):
        values = _tensor_of(array)
        return None if values is None else [("", values)]
    mask = np.ma.getmaskarray(array)
    values = None if mask.dtype != bool else _tensor_of(np.where(mask, array.dtype.type(0), array.data))
    return None if values is None else [("", values), (".mask", torch.from_numpy(mask.copy()))]


def _tensor_of(array: np.ndarray) -> torch.Tensor | None:
    """The values of an array of NumPy, in this machine's byte order; None where PyTorch has no such type."""
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        return None


def strides_of(t: torch.Tensor) -> str:
    """The strides of a plain tensor as text; '' where it is row-major."""
    return "" if t.is_contiguous() else canonical(t.stride(), t.shape)


def facts_of_parts(name: str, t: torch.Tensor, parts: Iterable[Leaf]) -> list[Fact]:
    """What code may ask a tensor for that others make up. Not all kinds of them can be asked."""
    kind = type(t)
    usual = kind is _TENSOR or kind is _PARAMETER or kind is AsyncCollectiveTensor
    facts: list[Fact] = [] if usual else [(name, CLASS, kind.__name__)]
    with contextlib.suppress(Exception):
        facts.append((name, GRAD, str(t.requires_grad)))
        facts += [(n, STRIDES, strides) for n, p in parts if is_plain(p) and (strides := strides_of(p))]
    return facts


def same_tensors(found: Sequence[Leaf]) -> list[Fact]:
    """Which values are one and the same tensor: code may ask for that, as attention does of its arguments."""
    first: dict[int, str] = {}  # by the id of a tensor: what it is called first
    return [
        (name, SAME, known)
        for name, one in found
        if isinstance(one, _TENSOR) and (known := first.setdefault(id(one), name)) is not name
    ]


def put(into: dict[str, torch.Tensor], name: str, t: torch.Tensor) -> list[Leaf]:
    """Adds a tensor, under another name where two have one: keys 1 and "1" of a mapping look alike. Gives its
    parts, with the names that they would have had.
    """
    parts = local_tensors(name, t)
    for label, one in parts:
        free, again = label, 1
        while free in into:
            again += 1
            free = f"{label}#{again}"
        into[free] = one
    return parts


def tensors_of(what: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, mappings and data classes."""
    return tensors_among(leaves("", what))


def tensors_among(found: Iterable[Leaf]) -> list[torch.Tensor]:
    """The tensors among tensors and plain values."""
    return [one for _, one in found if isinstance(one, _TENSOR)]


def differentiates_forward() -> bool:
    """Whether tensors may carry tangents now."""
    return forward_ad._current_level >= 0


def tangents_of(found: Iterable[Leaf]) -> tuple[list[Leaf], list[str]]:
    """(what forward differentiation (`torch.func.jvp`) carries beside tensors, the names of what cannot be
    read), each named by its tensor.
    """
    tangents: list[Leaf] = []
    unknown: list[str] = []
    for name, one in found:
        if not isinstance(one, _TENSOR):
            continue
        name = f"{name}@tangent"
        # Below another transform, as of `jvp(grad(f))`, PyTorch does not give it.
        hidden = _has_inner_gradients(one)
        try:
            tangent = (
                None if hidden and _transforms.is_batchedtensor(one) else forward_ad.unpack_dual(one).tangent
            )
        except RuntimeError:
            tangent, hidden = None, True
        if tangent is not None:
            tangents.append((name, tangent))
        if hidden:
            unknown.append(name if tangent is None else f"{name}@tangent")
    return tangents, unknown


def _has_inner_gradients(t: torch.Tensor) -> bool:
    """Whether a transform that differentiates is below the innermost one that holds a tensor."""
    if not _is_wrapped(t):
        return False
    t = _transforms.get_unwrapped(t)
    while _is_wrapped(t):
        if _transforms.is_gradtrackingtensor(t):
            return True
        t = _transforms.get_unwrapped(t)
    return False


def is_plain(t: Any) -> bool:
    """Whether it is a tensor with values of its own, as most are: its only part is the tensor itself."""
    kind = type(t)
    return (
        (kind is _TENSOR or kind is _PARAMETER)
        and t.layout is _STRIDED
        and not _is_wrapped(t)
        and not t.is_nested
        and not t.is_meta
        and not _is_zero(t)
    )


def memory_of(t: torch.Tensor) -> int:
    """Where the memory begins that a tensor shares with its views; 0 for none."""
    return memory_of_plain(t) if is_plain(t) else 0


def memory_of_plain(t: torch.Tensor) -> int:
    """The same of a plain tensor."""
    at, offset = t.data_ptr(), t.storage_offset()
    if not at:  # it has no elements, though its storage may have some
        return t.untyped_storage().data_ptr()
    return at - offset * t.element_size() if offset else at


def local_tensors(name: str, t: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A tensor as dense tensors of this process: parts of distributed, of sparse and of nested tensors
    have own names. What torch.func makes of a tensor (vmap, grad) is the tensor below, with all its items.
    """
    if is_plain(t):
        return [(name, t)]
    while _is_wrapped(t):
        if _transforms.is_batchedtensor(t):
            name = f"{name}@vmap{_transforms.maybe_get_bdim(t)}"
        t = _transforms.get_unwrapped(t)
    if _is_zero(t):  # it has no memory: backward passes make it for gradients that are zero
        return [(name, torch.zeros(t.shape, dtype=t.dtype, device=t.device))]
    if isinstance(t, AsyncCollectiveTensor):  # a collective is under way: its values are those after it
        t = t.trigger_wait()
    local = getattr(t, "to_local", None)
    if local is not None and hasattr(t, "placements"):
        with torch.no_grad():
            return local_tensors(f"{name}@local", local())
    if t.layout is torch.sparse_coo:
        t = t.detach()
        size = torch.tensor(t.shape, dtype=torch.int64)  # its parts do not tell
        return [(f"{name}.indices", t._indices()), (f"{name}.values", t._values()), (f"{name}.size", size)]
    if t.is_nested:
        return [
            pair for n, one in enumerate(t.detach().unbind()) for pair in local_tensors(f"{name}.{n}", one)
        ]
    return [(name, t)]
