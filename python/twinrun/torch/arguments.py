"""What a module was given, and what is another value when it returns: modules may write into tensors and
containers of their caller, as a cache of keys and values does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .values import Leaf, plain_text

__all__ = ["Given", "changed", "given"]

_TENSOR = torch.Tensor


class Given(NamedTuple):
    """A value that a module was given.

    tensor: a weak reference, so that a tensor lives no longer than without a trace; None for a plain value.
    version: how often the tensor had been written; None where PyTorch does not count, as in inference mode.
    text: of a plain value.
    """

    name: str
    tensor: weakref.ref[torch.Tensor] | None
    version: int | None
    text: str | None


def given(found: Iterable[Leaf]) -> list[Given]:
    """What a module is given, before it runs."""
    return [_given(name, one) for name, one in found]


def _given(name: str, one: Any) -> Given:
    if not isinstance(one, _TENSOR):
        return Given(name, None, None, plain_text(one))
    return Given(name, weakref.ref(one), _version(one), None)


def _version(t: torch.Tensor) -> int | None:
    try:
        return t._version
    except RuntimeError:
        return None


def changed(before: Sequence[Given], after: Sequence[Leaf]) -> tuple[list[Leaf], list[str]]:
    """(what is another value than before, names of what is there no more).

    A write counts where PyTorch counts it: those through `.data` and of other libraries do not.
    """
    if len(before) == len(after) and all(map(_is_still, before, after)):  # most of them
        return [], []
    known: dict[str, list[Given]] = {}  # keys 1 and "1" of a mapping look alike
    for one in reversed(before):
        known.setdefault(one.name, []).append(one)
    found: list[Leaf] = []
    for leaf in after:
        same = known.get(leaf[0])
        if not same or not _is_still(same.pop(), leaf):
            found.append(leaf)
    return found, [one.name for left in known.values() for one in left]


def _is_still(one: Given, leaf: Leaf) -> bool:
    name, now = leaf
    if one.name != name:
        return False
    if not isinstance(now, _TENSOR):
        return one.tensor is None and one.text == plain_text(now)
    if one.tensor is None or one.tensor() is not now or one.version is None:
        return False
    return one.version == _version(now)
