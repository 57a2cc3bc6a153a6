"""What PyTorch's modules take and give, as named values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..errors import TwinrunError
from ..runs.digest import digest_of_text

__all__ = [
    "Leaf", "digest_of_text", "is_plain", "leaves", "local_tensors", "memory_of", "plain_text", "put",
    "tensors_among", "tensors_of",
]  # fmt: skip

# In a PyTorch without collectives nothing is one.
try:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
except ImportError:
    AsyncCollectiveTensor = ()

# (name, value): a tensor, or a plain value of Python.
Leaf = tuple[str, Any]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OTHER_LEAVES = (*_PLAIN, torch.dtype, torch.device)
_DEEPEST = 20
# Looked up once: these are asked for with each value.
_TENSOR, _PARAMETER, _STRIDED = torch.Tensor, torch.nn.Parameter, torch.strided
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def plain_text(one: Any) -> str | None:
    """A plain value of Python as text; also a tensor on the meta device, which has a form and no values.
    None for other tensors.
    """
    if not isinstance(one, torch.Tensor):
        return repr(one)
    return f"meta {one.dtype} {tuple(one.shape)}" if one.is_meta else None


def leaves(
    name: str, what: Any, found: list[Leaf] | None = None, depth: int = 0, others: list[str] | None = None
) -> list[Leaf]:
    """The tensors and plain values in nested lists, mappings and data classes. Other objects are left out:
    their names come into `others`.
    """
    found = [] if found is None else found
    kind = type(what)
    # The types that most values have come first: to ask whether one is a Mapping takes longest.
    if kind is _TENSOR or kind is _PARAMETER or what is None:
        found.append((name, what))
    elif kind is not tuple and kind is not list and isinstance(what, (torch.Tensor, *_OTHER_LEAVES)):
        found.append((name, what))
    elif depth >= _DEEPEST:
        raise TwinrunError(f"more than {_DEEPEST} containers, one within the other", where=name)
    elif kind is not tuple and kind is not list and isinstance(what, Mapping):
        for key, one in what.items():
            leaves(f"{name}.{key}", one, found, depth + 1, others)
    elif isinstance(what, (list, tuple)):
        for number, one in enumerate(what):
            if type(one) is _TENSOR:  # most of them, without a call
                found.append((f"{name}.{number}", one))
            else:
                leaves(f"{name}.{number}", one, found, depth + 1, others)
    elif dataclasses.is_dataclass(what) and not isinstance(what, type):
        for field in dataclasses.fields(what):
            leaves(f"{name}.{field.name}", getattr(what, field.name, None), found, depth + 1, others)
    elif others is not None:
        others.append(name)
    return found


def put(into: dict[str, torch.Tensor], name: str, t: torch.Tensor) -> None:
    """Adds a tensor, under another name where two have one: keys 1 and "1" of a mapping look alike."""
    for label, one in local_tensors(name, t):
        free, again = label, 1
        while free in into:
            again += 1
            free = f"{label}#{again}"
        into[free] = one


def tensors_of(what: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, mappings and data classes."""
    return tensors_among(leaves("", what))


def tensors_among(found: Iterable[Leaf]) -> list[torch.Tensor]:
    """The tensors among tensors and plain values."""
    return [one for _, one in found if isinstance(one, _TENSOR)]


def is_plain(t: Any) -> bool:
    """Whether it is a tensor with values of its own, as most are: its only part is the tensor itself."""
    kind = type(t)
    return (
        (kind is _TENSOR or kind is _PARAMETER)
        and t.layout is _STRIDED
        and not _is_wrapped(t)
        and not t.is_nested
        and not t.is_meta
    )


def memory_of(t: torch.Tensor) -> int:
    """Where the memory begins that a tensor shares with its views; 0 for none."""
    return t.untyped_storage().data_ptr() if is_plain(t) else 0


def local_tensors(name: str, t: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A tensor as dense tensors of this process: parts of distributed, of sparse and of nested tensors
    have own names. What torch.func makes of a tensor (vmap, grad) is the tensor below, with all its items.
    """
    if is_plain(t):
        return [(name, t)]
    transforms = torch._C._functorch
    while transforms.is_functorch_wrapped_tensor(t):
        if transforms.is_batchedtensor(t):
            name = f"{name}@vmap{transforms.maybe_get_bdim(t)}"
        t = transforms.get_unwrapped(t)
    if isinstance(t, AsyncCollectiveTensor):  # a collective is under way: its values are those after it
        t = t.trigger_wait()
    local = getattr(t, "to_local", None)
    if local is not None and hasattr(t, "placements"):
        with torch.no_grad():
            return local_tensors(f"{name}@local", local())
    if t.layout is torch.sparse_coo:
        t = t.detach()
        return [(f"{name}.indices", t._indices()), (f"{name}.values", t._values())]
    if t.is_nested:
        return [
            pair for n, one in enumerate(t.detach().unbind()) for pair in local_tensors(f"{name}.{n}", one)
        ]
    return [(name, t)]
