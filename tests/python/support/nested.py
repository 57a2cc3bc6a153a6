"""Nested values as trees, and each single change of what holds their values."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

__all__ = ["Change", "Tree", "changes", "made", "trees"]

PairA = namedtuple("PairA", "first second")
PairB = namedtuple("PairB", "first second")


@dataclass
class RecordA:
    first: Any
    second: Any


@dataclass
class RecordB:
    first: Any
    second: Any


class ObjectA:
    pass


class ObjectB:
    pass


_FIELDS = ("first", "second")
_CLASSES: dict[str, Any] = {
    "list": list, "tuple": tuple, "dict": dict, "OrderedDict": OrderedDict, "PairA": PairA, "PairB": PairB,
    "RecordA": RecordA, "RecordB": RecordB, "ObjectA": ObjectA, "ObjectB": ObjectB,
}  # fmt: skip
# Of each class another one that holds values by the same names.
_OTHERS = {
    "list": "tuple",
    "dict": "OrderedDict",
    "PairA": "PairB",
    "RecordA": "RecordB",
    "ObjectA": "ObjectB",
}
_OTHERS |= {other: one for one, other in _OTHERS.items()}


@dataclass(frozen=True)
class Tree:
    """A value. kind: the name of a class, 'tensor' or 'plain'. keys: the names of what it holds.

    number: of a plain value or of a tensor's first element. needs: it requires gradients. turned: its strides are not row-major.
    more: names of attributes that are no fields.
    """

    kind: str
    keys: tuple[Any, ...] = ()
    inner: tuple[Tree, ...] = ()
    number: int = 0
    needs: bool = False
    turned: bool = False
    more: tuple[str, ...] = field(default=())


class Change(NamedTuple):
    """A tree with one change: the name of the value, and which fact tells it."""

    tree: Tree
    name: str
    what: str
    of_object: bool = False


def made(tree: Tree, tensor: Callable[[Tree], object] = lambda tree: float(tree.number)) -> Any:
    """The value of a tree. tensor: makes its tensors."""
    if tree.kind == "tensor":
        return tensor(tree)
    if tree.kind == "plain":
        return tree.number
    kind, inner = _CLASSES[tree.kind], [made(one, tensor) for one in tree.inner]
    if tree.kind in ("list", "tuple"):
        return kind(inner)
    if tree.kind in ("dict", "OrderedDict"):
        return kind(zip(tree.keys, inner, strict=True))
    value = kind(*inner)
    for name in tree.more:
        setattr(value, name, 0)
    return value


def changes(tree: Tree, name: str) -> Iterator[Change]:
    """Each single change, with the same values by the same names."""
    if tree.kind == "tensor":
        yield Change(replace(tree, needs=not tree.needs), name, "requires_grad")
        yield Change(replace(tree, turned=not tree.turned), name, "strides")
    elif tree.kind != "plain":
        yield Change(replace(tree, kind=_OTHERS[tree.kind]), name, "class", tree.kind.startswith("Object"))
        if tree.kind in ("dict", "OrderedDict") and len(tree.keys) > 1:
            turned = replace(tree, keys=tree.keys[::-1], inner=tree.inner[::-1])
            yield Change(turned, name, "keys")
        if tree.kind.startswith("Record"):
            yield Change(replace(tree, more=(*tree.more, "again")), name, "attributes")
        keys = _names(tree)
        for at, one in enumerate(tree.inner):
            for change in changes(one, f"{name}.{keys[at]}"):
                inner = (*tree.inner[:at], change.tree, *tree.inner[at + 1 :])
                yield change._replace(tree=replace(tree, inner=inner))


def _names(tree: Tree) -> tuple[Any, ...]:
    if tree.kind in ("list", "tuple"):
        return tuple(range(len(tree.inner)))
    # A named tuple is a tuple: its values have numbers.
    return (0, 1) if tree.kind.startswith("Pair") else tree.keys


def _nodes(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    several, two = st.lists(inner, max_size=3).map(tuple), st.tuples(inner, inner)
    keyed = st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", 7]), inner), max_size=3, unique_by=lambda pair: pair[0]
    )
    return st.one_of(
        st.builds(Tree, st.sampled_from(["list", "tuple"]), inner=several),
        st.builds(
            lambda kind, pairs: Tree(kind, tuple(k for k, _ in pairs), tuple(one for _, one in pairs)),
            st.sampled_from(["dict", "OrderedDict"]),
            keyed,
        ),
        st.builds(Tree, st.sampled_from(["PairA", "PairB", "RecordA", "RecordB"]), st.just(_FIELDS), two),
    )


def trees() -> st.SearchStrategy[Tree]:
    """Trees of some depth."""
    numbers, flags = st.integers(0, 3), st.booleans()
    leaves = st.one_of(
        st.builds(Tree, st.just("tensor"), number=numbers, needs=flags, turned=flags),
        st.builds(Tree, st.just("plain"), number=numbers),
        st.builds(Tree, st.sampled_from(["ObjectA", "ObjectB"])),
    )
    return st.recursive(leaves, _nodes, max_leaves=12)
