"""What events show of their values beside types, shapes and bits: kinds of containers, the order of keys,
whether a tensor requires gradients, strides. A text of an event has one line for each of these facts.

The bytes: spec/trace.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .digest import digest_of_text

__all__ = [
    "ARGUMENTS",
    "ATTRIBUTES",
    "CLASS",
    "GRAD",
    "KEYS",
    "OF_TENSORS",
    "OWN",
    "SAME",
    "STRIDES",
    "WEAK",
    "Fact",
    "Key",
    "arguments_line",
    "built",
    "canonical",
    "facts_of",
    "line",
    "lines",
    "of_modules",
    "own_facts",
    "own_line",
    "renamed",
    "texts_of",
]  # fmt: skip

CLASS = "class"
KEYS = "keys"
ATTRIBUTES = "attributes"
GRAD = "requires_grad"
STRIDES = "strides"
SAME = "same"
WEAK = "weak_type"
OWN = "own"  # of a module: its class, device and plain attributes
ARGUMENTS = "arguments"  # of an operation: the plain values that it takes
# What is told of tensors, and of nothing else.
OF_TENSORS = (GRAD, STRIDES, SAME, WEAK)

_OUT, _IN = ">", "<"
_LONG, _SHOWN = 300, 200  # characters of a text: beyond it, of its beginning

# (name of the value, what, text)
Fact = tuple[str, str, str]
# (whether it came out, name of the value, what)
Key = tuple[bool, str, str]


def _clean(text: str) -> str:
    """Without what ends a line or a part of it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def line(name: str, what: str, text: str, out: bool) -> str:
    """A fact as a line."""
    return f"{_OUT if out else _IN}{_clean(name)}\t{what}\t{_clean(text)}\n"


def lines(facts: Iterable[Fact], out: bool) -> str:
    """Facts as lines."""
    return "".join([line(name, what, text, out) for name, what, text in facts])


def facts_of(text: str) -> dict[Key, str]:
    """The facts of an event. What is no fact, as another version may write it, is one of its own."""
    found: dict[Key, str] = {}
    for one in text.split("\n"):
        if one:
            name, _, rest = one[1:].partition("\t")
            what, _, said = rest.partition("\t")
            key = one[0] == _OUT, name, what
            found[key] = f"{found[key]}; {said}" if key in found else said  # keys 1 and "1" look alike
    return found


def own_line(facts: Iterable[tuple[str, str]]) -> str:
    """What a module has of its own, by name, as a line. It went into the call, and belongs to no value."""
    return line("", OWN, "; ".join([f"{name}={said}" for name, said in facts]), False)


def arguments_line(plain: Iterable[tuple[str, str]]) -> str:
    """The plain values that an operation takes, by name, as a line; "" where they are long."""
    said = "; ".join([f"{name}={text.replace('; ', ', ')}" for name, text in plain])
    return line("", ARGUMENTS, said, False) if len(said) <= _LONG else ""


def own_facts(text: str) -> dict[str, str]:
    """What `own_line` or `arguments_line` made into a line, by name."""
    found: dict[str, str] = {}
    for one in text.split("; ") if text else ():
        name, _, said = one.partition("=")
        found[name] = said
    return found


def of_modules(text: str | None) -> str | None:
    """Of the facts of an event those of the module itself; None where nobody looked at it."""
    if text is None or f"\t{OWN}\t" not in text:
        return None
    return "".join([f"{one}\n" for one in text.split("\n") if one.startswith(f"{_IN}\t{OWN}\t")])


def renamed(text: str, new: Callable[[str], str]) -> str:
    """Facts whose values have other names."""
    found = facts_of(text)
    return "".join([line(new(name), what, said, out) for (out, name, what), said in found.items()])


def texts_of(one: object, name: str) -> list[Fact]:
    """The facts of a container, or of an object that is not looked into, without those of what it holds."""
    found: list[Fact] = [(name, CLASS, type(one).__name__)]
    if isinstance(one, Mapping):
        # The name of a value has its key as text: of one text alone it says all.
        if len(one) > 1 or any(type(key) is not str for key in one):
            found.append((name, KEYS, _short(", ".join(map(_key, one)))))
    elif (more := more_attributes(one)) != []:
        found.append((name, ATTRIBUTES, _short(", ".join(more))))
    return found


def more_attributes(one: object) -> list[str]:
    """The names of attributes of a data class that are no fields of it."""
    if not dataclasses.is_dataclass(one) or isinstance(one, type):
        return []
    fields = {field.name for field in dataclasses.fields(one)}
    return [name for name in getattr(one, "__dict__", {}) if name not in fields]


def _key(key: object) -> str:
    """A key as text: without the address of an object, which differs from run to run."""
    if type(key) is tuple:
        return f"({', '.join(map(_key, key))})"
    text = repr(key) if isinstance(key, (str, bytes, int, float)) else str(key)
    return text if " at 0x" not in text else type(key).__name__


def _short(text: str) -> str:
    return (
        text if len(text) <= _LONG else f"{text[:_SHOWN]}… ({len(text)} characters, {digest_of_text(text)})"
    )


def canonical(strides: Iterable[int], shape: Iterable[int]) -> str:
    """Strides as text. That of a dimension with one element says nothing: '-'."""
    said = [str(stride) if size != 1 else "-" for stride, size in zip(strides, shape, strict=True)]
    return f"({', '.join(said)}{',' if len(said) == 1 else ''})"


def built(name: str, what: Any, deepest: int = 20) -> list[Fact]:
    """The facts of nested containers, and of objects within them that are no values."""
    found: list[Fact] = []
    _build(name, what, found, deepest)
    return found


def _build(name: str, what: Any, found: list[Fact], deepest: int) -> None:
    if isinstance(what, Mapping):
        inner = [(f"{name}.{key}", one) for key, one in what.items()]
    elif isinstance(what, (list, tuple)):
        inner = [(f"{name}.{number}", one) for number, one in enumerate(what)]
    elif dataclasses.is_dataclass(what) and not isinstance(what, type):
        inner = [(f"{name}.{f.name}", getattr(what, f.name, None)) for f in dataclasses.fields(what)]
    else:
        return
    found += texts_of(what, name)
    if deepest:
        for label, one in inner:
            _build(label, one, found, deepest - 1)
