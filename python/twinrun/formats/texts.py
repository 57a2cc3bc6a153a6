"""Digests of texts and other non-numeric values: 128 bits of a BLAKE2b hash of each value.

A field of digests has type u64 and a last axis of 2, so that texts of any length compare element by element.
Its name ends in `@text`; tolerances never apply to such a field. The hash covers the type too (see
`facts.encoded`): the text '1', the number 1, the bytes b'1' and None are four different values.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import _core
from ..later import numpy_is_loaded
from .facts import digest_of, encoded, plain_items

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "MASK",
    "SUFFIX",
    "column_name",
    "encode_object",
    "is_beyond",
    "names_to_choose",
    "never_tolerated",
    "object_text",
    "printable",
    "real_number",
    "repr_is_complete",
    "text_array",
    "text_digests",
]

SUFFIX = _core.TEXT_LABEL
MASK = _core.MASK_LABEL  # of a field of bool: True where an element of the other field has no value
_BYTES = 16
_CONTROLS = bytes(b for b in (*range(32), 127) if b not in b"\t\n\r\f")
_FIRST = 256
_EXACT_PACKAGES = ("pandas", "cftime")
_PLAIN = (str, bytes, bytearray, bool, int, float, complex)
_BASES = (*_PLAIN, dict, list, tuple)
_AS_PYTHON = ("b1", "i8", "f8", "c16")  # numpy types with the same values as Python's numbers


def never_tolerated(name: str) -> bool:
    """Whether no tolerance may apply to a field that is not floating: digests of texts, masks, shapes, places
    of sparse arrays and other labels, recognised by the field's name.

    >>> never_tolerated("m@indices"), never_tolerated("T@coords.level"), never_tolerated("T")
    (True, True, False)
    """
    return _core.never_tolerated(name)


def names_to_choose(name: str) -> list[str]:
    """The names by which a field can be chosen: its own, and those of the field of which it tells. That
    of a mask may be digests of texts.

    >>> names_to_choose("T@units"), names_to_choose("a/x@mask"), names_to_choose("x@2/y")
    (['T@units', 'T'], ['a/x@mask', 'a/x@text', 'a/x'], ['x@2/y'])
    """
    found = [name]
    own = name.removesuffix(MASK)
    if own not in ("", name) and not own.endswith(SUFFIX):
        found = [name, f"{own}{SUFFIX}"]
    while True:
        owner, mark, label = found[-1].rpartition("@")
        if not (mark and owner and label) or "/" in label:
            return found
        found.append(owner)


def column_name(name: str) -> str:
    """The field name for a column of a table.

    A column that is itself called `x@mask` is not a mask: it becomes `x@mask#`.
    """
    return name + "#" if never_tolerated(name.rstrip("#")) else name


@functools.cache
def _exact() -> tuple[type, ...]:
    """Classes whose repr() shows the whole value, except a unit of time."""
    import datetime
    import decimal
    import fractions
    import pathlib
    import uuid

    return (
        datetime.date,
        datetime.time,
        datetime.timedelta,
        datetime.tzinfo,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        pathlib.PurePath,
        range,
        slice,
    )


def repr_is_complete(kind: type) -> bool:
    """Whether repr() shows the whole value of a class's objects, so that equal texts mean equal values."""
    known = issubclass(kind, _exact()) or kind.__module__.split(".")[0] in _EXACT_PACKAGES
    return known and kind.__repr__ is not object.__repr__


def encode_object(value: object) -> bytes | None:
    """An encoder for `facts.encoded` that knows more Python objects: dates, decimals, paths, enumerations,
    subclasses.

    A numpy text or number is equal to the Python value of the same type and bits. An object of another class,
    also of a subclass of a Python type, is only equal to objects of that class. Returns None for values that
    it does not know.
    """
    kind = type(value)
    if numpy_is_loaded() and isinstance(value, np.generic):
        return (
            encoded(value.item()) if value.dtype.kind in "SU" or value.dtype.str[1:] in _AS_PYTHON else None
        )
    if kind in _PLAIN:
        return encoded(value)
    if repr_is_complete(kind):
        own = repr(value)
        unit = getattr(value, "unit", "ns")  # repr() of pandas' times does not show the unit
        of_unit = "" if unit == "ns" else f"[{unit}]"
        if len(own) < 10_000:
            return f"{kind.__qualname__}{of_unit}:{own}".encode("utf-8", "surrogatepass")
        return None
    base: Any = next((b for b in _BASES if isinstance(value, b)), None)
    if base is None or kind in (base, OrderedDict):
        return None
    # str(value) of an enumeration may be another text than its value.
    plain: object = str.__str__(value) if base is str else base(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}:".encode("utf-8", "surrogatepass") + encoded(plain, encode_object)


def object_text(value: object) -> str:
    """A value as text for messages: its repr(), with the class or the unit of time if repr() does not show
    it."""
    kind = type(value)
    if numpy_is_loaded() and isinstance(value, np.generic):
        if value.dtype.kind in "SU" or value.dtype.str[1:] in _AS_PYTHON:
            return repr(value.item())  # they are equal to these
    elif isinstance(value, _BASES) and kind not in _BASES:
        return f"{value!r} of the class {kind.__qualname__}"
    unit = getattr(value, "unit", "ns") if repr_is_complete(kind) else "ns"
    return repr(value) if unit == "ns" else f"{value!r} in units of {unit}"


def text_digests(values: Iterable[object]) -> np.ndarray:
    """Digests of values of any type: u64 of shape (n, 2). Raises TypeError if a value cannot be compared."""
    made = bytearray()
    known: dict[object, bytes] = {}
    for value in values:
        text = type(value) is str
        digest = known.get(value) if text else None
        if digest is None:
            digest = digest_of(value, _BYTES, encode_object)
            if text and len(known) < 10_000:
                known[value] = digest
        made += digest
    return np.frombuffer(bytes(made), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def text_array(array: np.ndarray) -> np.ndarray:
    """Digests of an array of texts or objects: u64 of shape `(*array.shape, 2)`.

    Raises TypeError as `text_digests`.
    """
    flat = array.reshape(-1)
    # tolist() would turn elements of type void into bytes
    return text_digests(list(flat) if array.dtype.kind == "V" else plain_items(flat)).reshape(*array.shape, 2)


def real_number(word: str | bytes) -> float:
    """The number that a word of a file is. Raises ValueError for what is none, as 1_0, which Python reads."""
    if (b"_" if isinstance(word, bytes) else "_") in word:  # type: ignore[operator]
        raise ValueError(f"{word!r:.40} is no number")
    return float(word)


def is_beyond(word: bytes, number: float) -> bool:
    """Whether a word is a number that is too large for its type, in which it became the infinity `number`."""
    return math.isinf(number) and not word.lstrip(b"+-").lower().startswith(b"inf")


def _has_controls(text: bytes) -> bool:
    return len(text.translate(None, _CONTROLS)) != len(text)


def printable(head: bytes) -> bool:
    """Whether bytes are readable text: UTF-8 without control characters.

    The last character may be cut short.
    """
    # Numbers have such characters early: most of them are known by their first bytes.
    if not head or _has_controls(head[:_FIRST]) or _has_controls(head):
        return False
    for cut in range(4):
        try:
            head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return False
