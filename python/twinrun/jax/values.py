"""What functions take and give, as named values: arrays of JAX, which callbacks bring, and values that are
known without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from ..runs.gaps import NOT_LOOKED_INTO
from ..runs.plain_values import SAID, text_of
from ..runs.structure import CLASS, WEAK, Fact, built, lines, texts_of
from .static_data import key_of, nodes_of, static_of

__all__ = [
    "Missing",
    "Slot",
    "Text",
    "leaves_of",
    "slots_of",
    "slots_of_changed",
    "structure_of",
]

_CALLS = (("arg", CLASS), ("kwarg", CLASS))
_WRITABLE = (np.ndarray, set, bytearray)  # by whoever has them
_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


class Text(NamedTuple):
    """A value that is digested as text."""

    text: str


class Missing(NamedTuple):
    """Why a value has no digest."""

    why: str


class Slot(NamedTuple):
    """A value of an event.

    known: an array of NumPy, a `Text` or a `Missing`. None: a callback brings it, in the order of the slots.
    """

    name: str
    role: str
    known: np.ndarray | Text | Missing | None


def slots_of(
    tree: Any, front: str, role: str = "value", taken: Iterable[Slot] = ()
) -> tuple[list[Slot], list[Any]]:
    """(slots, arrays of JAX for a callback) of a tree. Never raises. An object that is not looked into has a
    setting in its place, which says so. Fields that JAX takes for a part of the tree's type are values, too.

    taken: slots whose names are in use.
    """
    names = {slot.name for slot in taken}
    slots: list[Slot] = []
    arrays: list[Any] = []

    def add(name: str, known: np.ndarray | Text | Missing | None, role: str = role) -> None:
        free, again = name, 1
        while free in names:  # keys 1 and "1" of a mapping look alike
            again += 1
            free = f"{name}#{again}"
        names.add(free)
        slots.append(Slot(free, role, known))

    if _holds_itself(tree):
        add(front, Missing("it holds itself"))
        return slots, arrays
    try:
        found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda one: one is None)[0]
    except Exception as e:  # keys that have no order
        add(front, Missing(f"{type(e).__name__}: {e}"))
        return slots, arrays
    for path, leaf in found:
        name = ".".join([front, *(str(key_of(k)) for k in path)])
        try:
            if isinstance(leaf, jax.Array):
                kind, array = _array(leaf)
                if kind:
                    add(f"{name}@type", Text(kind))
                add(name, None)
                arrays.append(array)
            elif (known := _known(leaf)) is not None:
                add(name, known)
            else:
                add(name, Text(NOT_LOOKED_INTO), "setting")
        except Exception as e:  # the program must not fail because of its trace
            add(name, Missing(f"{type(e).__name__}: {e}"))
    for name, text in _static(tree, front):
        if text is None:
            add(name, Text(NOT_LOOKED_INTO), "setting")
        else:
            add(name, Text(text))
    return slots, arrays


def leaves_of(tree: Any, front: str) -> dict[str, Any]:
    """{name: leaf} of a tree, by the names of its slots; copies of what can be written; a `Text` for a static
    field. Never raises.
    """
    if _holds_itself(tree):
        return {}
    try:
        found = jax.tree_util.tree_flatten_with_path(tree)[0]
    except Exception:
        return {}
    leaves = {".".join([front, *(str(key_of(k)) for k in path)]): _kept(leaf) for path, leaf in found}
    return {**leaves, **{name: Text(text) for name, text in _static(tree, front) if text is not None}}


def _holds_itself(tree: Any) -> bool:
    """Whether a list, tuple or mapping is within itself. JAX would follow it until Python's stack is full."""
    above: set[int] = set()
    under_way: list[tuple[int, Iterator[Any]]] = [(0, iter((tree,)))]
    while under_way:
        number, rest = under_way[-1]
        for item in rest:
            if isinstance(item, (list, tuple, dict)):
                if id(item) in above:
                    return True
                above.add(id(item))
                under_way.append((id(item), iter(item.values() if isinstance(item, dict) else item)))
                break
        else:
            under_way.pop()
            above.discard(number)
    return False


def _kept(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, _WRITABLE) else leaf


def slots_of_changed(
    before: dict[str, Any], after: dict[str, Any], role: str = "value", taken: Iterable[Slot] = ()
) -> tuple[list[Slot], list[Any]]:
    """What a function wrote into what it was given, as slots_of() has it; both are of leaves_of()."""
    slots: list[Slot] = []
    arrays: list[Any] = []
    for name, leaf in after.items():
        was = before.get(name)
        if name in before and (leaf is was or _unwritten(leaf, was)):
            continue
        if isinstance(leaf, Text):
            slots.append(Slot(name, role, leaf))
            continue
        more, found = slots_of(leaf, name, role, [*taken, *slots])
        slots, arrays = [*slots, *more], [*arrays, *found]
    gone = sorted(before.keys() - after.keys())
    return [*slots, *(Slot(name, role, Text("removed")) for name in gone)], arrays


def _unwritten(leaf: Any, was: Any) -> bool:
    """Whether both are values that can be written in place, and are equal in every bit."""
    if isinstance(leaf, np.ndarray) and type(leaf) is type(was):
        same = (leaf.dtype, leaf.shape) == (was.dtype, was.shape) and leaf.dtype != object
        return same and leaf.tobytes() == was.tobytes()
    return isinstance(leaf, (*_WRITABLE, Text)) and type(leaf) is type(was) and bool(leaf == was)


def _static(tree: Any, front: str) -> list[tuple[str, str | None]]:
    """What nodes of a tree hold besides their leaves, by names of values; None for what is not known."""
    try:
        return [(f"{name}@static", text) for node in nodes_of(tree, front) for name, text in static_of(node)]
    except Exception:  # not known
        return [(f"{front}@static", None)]


def structure_of(tree: Any, front: str, *, out: bool) -> str:
    """What holds the values of a tree, as an event has it. Never raises."""
    found: list[Fact] = []
    if _holds_itself(tree):
        return lines([(front, "structure", "not known")], out)
    try:
        # The arguments of each call have a tuple and a mapping of their own.
        found += [fact for fact in built(front, tree) if fact[:2] not in _CALLS]
        told = {name for name, _, _ in found}
        for node in nodes_of(tree, front):
            if node.name not in told:
                found += texts_of(node.value, node.name)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False):  # a typed key has none
                found.append((".".join([front, *(str(key_of(k)) for k in path)]), WEAK, "True"))
        return lines(found, out)
    except Exception:  # the program must not fail because of its trace
        return lines([(front, "structure", "not known")], out)


def _array(leaf: jax.Array) -> tuple[str, jax.Array]:
    """(its type where the array alone does not tell it, an array that a callback can bring)."""
    if not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted():
        raise ValueError("the array was deleted: its memory was donated")
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), jax.random.key_data(leaf)
    return "", leaf


def _known(leaf: Any) -> np.ndarray | Text | Missing | None:
    """A value of Python or NumPy as it is: JAX would round it to 32 bits. None for other objects."""
    if leaf is None or isinstance(leaf, (str, bytes, *SAID)):
        return Text(repr(leaf))
    if not isinstance(leaf, _NUMBERS):
        text = text_of(leaf)
        return None if text is None else Text(text)
    if isinstance(leaf, np.ma.MaskedArray):
        return Missing("masked arrays have no digest")
    if isinstance(leaf, (np.generic, np.ndarray)) and leaf.dtype.kind in "mM":
        text = text_of(leaf)
        return None if text is None else Text(text)
    array = np.array(leaf)  # a copy: the caller may change it before the event
    if array.dtype.kind == "O" and isinstance(leaf, int):  # more than 64 bits
        return Text(repr(leaf))
    if array.dtype.kind in "SU":
        return Text(f"{array.dtype.str} {array.shape} {array.tolist()!r}")
    return array
