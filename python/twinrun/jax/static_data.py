"""What the nodes of a tree hold besides their leaves: static fields, which JAX takes for a part of the tree's
type. `jax.jit` compiles a program for each of them, so that a program may do something else for another one.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ..runs.plain_values import SAID, text_of

__all__ = ["Node", "key_of", "nodes_of", "static_of"]

_DEEPEST = 8
# Their nodes hold nothing else but the keys of their leaves, and those are in the leaves' names.
_ONLY_KEYS = (dict, list, tuple, collections.OrderedDict, type(None))
# What these packages have under a name is the same thing in each run of one version of them.
_LIBRARIES = ("builtins", "flax", "jax", "ml_dtypes", "numpy", "optax")
_NUMPY = (np.generic, np.ndarray)


class Node(NamedTuple):
    """A node of a tree whose class is none of Python's own containers.

    held: what it holds besides its leaves. keys: of what is within it.
    """

    name: str
    value: Any
    held: Any
    keys: tuple[object, ...]


def _plain(kind: type) -> bool:
    return kind in _ONLY_KEYS or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _has_others(structure: Any) -> bool:
    data = structure.node_data()
    return data is not None and (not _plain(data[0]) or any(map(_has_others, structure.children())))


def key_of(step: Any) -> object:
    """The key or the name of a step on the way to a leaf."""
    return getattr(step, "key", getattr(step, "idx", getattr(step, "name", step)))


def nodes_of(tree: Any, front: str) -> list[Node]:
    """The nodes of a tree that may hold more than leaves. Raises what JAX raises for the tree."""
    # Most trees have none. To look at each node by itself takes longer.
    return list(_nodes(tree, front)) if _has_others(jax.tree_util.tree_structure(tree)) else []


def _nodes(tree: Any, name: str) -> Iterator[Node]:
    inner, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda one: one is not tree)
    data = structure.node_data()
    if data is None:
        return
    keys = tuple(key_of(path[0]) for path, _ in inner)
    if not _plain(data[0]):
        yield Node(name, tree, data[1], keys)
    for key, (_, one) in zip(keys, inner, strict=True):
        if one is not None:
            yield from _nodes(one, f"{name}.{key}")


def static_of(node: Node) -> list[tuple[str, str | None]]:
    """What a node holds besides its leaves, by name; None for what it is not known to be."""
    try:
        return list(_parts(node.name, _named(node), _DEEPEST))
    except Exception:  # of code of the program's own, as of a property
        return [(node.name, None)]


class _Fields(NamedTuple):
    """Parts that have names. rest: what else there is."""

    fields: dict[str, Any]
    rest: Any = None


def _named(node: Node) -> Any:
    """What a node holds, with the names of fields where it says them or its class does."""
    held = node.held
    if held is None or (isinstance(held, tuple) and not held) or _says_keys(held, node.keys):
        return None
    if isinstance(held, dict) and type(held) is dict and all(type(key) is str for key in held):
        return _Fields(held)
    if not isinstance(held, tuple):
        return held
    if isinstance(node.value, collections.defaultdict) and len(held) == 2:
        return _Fields({"default_factory": held[0]})
    if dataclasses.is_dataclass(node.value):
        names = [f.name for f in dataclasses.fields(node.value) if f.name not in node.keys]
        found = {name: getattr(node.value, name) for name in names if hasattr(node.value, name)}
        if sorted(map(id, found.values())) == sorted(map(id, held)):
            return _Fields(found)
    if all(type(one) is tuple and len(one) == 2 and type(one[0]) is str for one in held):
        found = dict(held)
        return _Fields(found) if len(found) == len(held) else held
    # Modules of flax.nnx: names of what is within, and names and values of what is static.
    if len(held) == 3 and all(type(one) is tuple for one in held) and len(held[1]) == len(held[2]):
        if all(type(name) is str for name in held[1]) and len({*held[1]}) == len(held[1]):
            return _Fields(dict(zip(held[1], held[2], strict=True)), held[0])
    return held


def _says_keys(held: Any, keys: tuple[object, ...]) -> bool:
    """Whether these are the names of what is within, each of which is one text."""
    return type(held) in (list, tuple) and all(type(one) is str for one in held) and tuple(held) == keys


def _parts(name: str, held: Any, deepest: int) -> Iterator[tuple[str, str | None]]:
    if isinstance(held, _Fields):
        if held.rest is not None:
            yield from _parts(name, held.rest, deepest)
        for key, one in held.fields.items():
            yield from [(f"{name}.{key}", "None")] if one is None else _parts(f"{name}.{key}", one, deepest)
        return
    if held is None:
        return
    text = _text(held, deepest)
    if text is not None or not deepest:
        yield name, text
        return
    # What is known of it is compared; the rest is not.
    inner = _inner(held)
    if inner is None:
        yield name, None
        return
    yield name, f"{type(held).__name__} of {len(inner)}"
    for key, one in inner.items():
        if one is not None:
            yield from _parts(f"{name}.{key}", one, deepest - 1)
        else:
            yield f"{name}.{key}", "None"


def _inner(held: Any) -> dict[Any, Any] | None:
    """The parts of a container or a data class; None for anything else."""
    kind = type(held)
    if kind is dict or (isinstance(held, Mapping) and _of_library(kind.__module__)):
        held = dict(held)
        return held if all(type(key) in (str, int) for key in held) else None
    if kind in (list, tuple):
        return dict(enumerate(held))
    if isinstance(held, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, held, strict=True))
    if dataclasses.is_dataclass(held) and not isinstance(held, type):
        names = [f.name for f in dataclasses.fields(held)]
        if {*getattr(held, "__dict__", {})} <= {*names} and all(hasattr(held, name) for name in names):
            return {name: getattr(held, name) for name in names}
    return None


def _text(value: Any, deepest: int) -> str | None:
    """A value as text that says all of it; None where there is no such text."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return repr(value)
    if isinstance(value, enum.Enum):  # its value may be an object
        return f"{kind.__name__}.{value.name}"
    if kind in (set, frozenset) or isinstance(value, _NUMPY):
        return text_of(value)
    if isinstance(value, jax.Array):
        return None if isinstance(value, jax.core.Tracer) else text_of(np.asarray(value))
    if isinstance(value, np.dtype):
        return f"dtype {value.name} {value.str}" if value.names is None else None
    if kind in SAID or isinstance(value, jax.sharding.PartitionSpec):
        return repr(value)
    if isinstance(value, SAID):  # paths
        return repr(value) if kind.__module__.partition(".")[0] in ("pathlib", "datetime") else None
    if (name := _library_name(value)) is not None:
        return name
    inner = _inner(value) if deepest else None
    if inner is None:
        return None
    said = [(key, _text(one, deepest - 1)) for key, one in inner.items()]
    if any(text is None for _, text in said):
        return None
    if isinstance(value, Mapping):
        said.sort(key=lambda one: repr(one[0]))
    return f"{kind.__name__}({', '.join(f'{key!r}: {text}' for key, text in said)})"


def _of_library(package: str) -> bool:
    return package.partition(".")[0] in _LIBRARIES


def _library_name(value: Any) -> str | None:
    """The name of a function or class that a library has; None for others, whose code is not known."""
    package, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not callable(value) or type(package) is not str or type(name) is not str:
        return None
    if not _of_library(package):
        return None
    found: Any = sys.modules.get(package)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{package}.{name}" if found is value else None
