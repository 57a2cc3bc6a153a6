"""What a module of flax.linen has of its own beside its variables: its class, and the fields of its data
class, such as the `epsilon` of a norm or the `rate` of a dropout. Reading them runs no code of the module.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..runs.digest import digest_of_text
from ..runs.plain_values import SAID, text_of
from ..runs.structure import own_line

__all__ = ["own_facts_of"]

_MOST_BITS = 64
_LONG, _SHOWN = 80, 40  # characters of a fact: beyond it, of its beginning
_DEEPEST = 4
_OF_FLAX = ("parent", "name")  # where a module is: its path says it


def own_facts_of(module: Any) -> tuple[str, list[str]]:
    """(the plain fields of a module as a line of an event, the names of fields that it cannot hold)."""
    import flax.linen

    facts, left = [("class", type(module).__name__)], []
    fields = [f.name for f in dataclasses.fields(module) if f.name not in _OF_FLAX]
    for name, value in _parts(fields, vars(module), "", flax.linen.Module, _DEEPEST):
        text = _text(value)
        if text is not None:
            # "; " and "=" are what ends a fact and its name.
            facts.append((name.replace("; ", ", ").replace("=", ":"), _short(text.replace("; ", ", "))))
        else:
            left.append(name)
    return own_line(facts), left


def _parts(
    names: Any, values: Mapping[Any, Any], front: str, module: type, deepest: int
) -> Iterator[tuple[str, Any]]:
    """Fields by name, without modules, which have events of their own. What holds more comes in parts."""
    for key in names:
        if key not in values:
            continue
        name, value = f"{front}{key}", values[key]
        if isinstance(value, module):
            continue
        inner: Mapping[Any, Any] | None = None
        if isinstance(value, Mapping) and all(isinstance(k, (str, int)) for k in value):
            inner = value
        elif isinstance(value, (list, tuple)) and _text(value) is None:
            inner = dict(enumerate(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            yield name, type(value)
        if inner is None or not deepest:
            yield name, value
        else:
            yield from _parts(inner, inner, f"{name}.", module, deepest - 1)


def _text(value: Any) -> str | None:
    """A plain value as text; None for others. A function has its name: what it holds is not seen."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (np.generic, np.ndarray, set, frozenset)):
        return text_of(value)
    if value is None or isinstance(value, (bool, float, complex)):
        return str(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= _MOST_BITS else None
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, (bytes, *SAID)):
        return repr(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, (list, tuple)):
        parts = [_text(one) for one in value]
        told = [one for one in parts if one is not None]
        return f"({', '.join(told)}{',' if len(told) == 1 else ''})" if len(told) == len(parts) else None
    return str(value.__name__) if _has_name(value) else None


def _has_name(value: Any) -> bool:
    """Whether it is a function that its name tells, compiled or not. Those that were made within a
    function, as initializers, have one name for all; a lambda and a `functools.partial` have none.
    """
    # A module is a data class. To ask it for a name that it does not have would run its `setup`.
    if not callable(value) or dataclasses.is_dataclass(value):
        return False
    name, path = getattr(value, "__name__", None), getattr(value, "__qualname__", "")
    return isinstance(name, str) and name.isidentifier() and "<" not in str(path)


def _short(text: str) -> str:
    return (
        text if len(text) <= _LONG else f"{text[:_SHOWN]}… ({len(text)} characters, {digest_of_text(text)})"
    )
