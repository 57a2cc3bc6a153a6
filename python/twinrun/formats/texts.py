"""Texts and other values that are no numbers, as numbers that are equal where they are: 128 bits of each value's BLAKE2b.

A field of them has the type u64 and a last axis of 2, whatever the length of the texts, so that any two compare element by
element. Its name ends in `@text`, by which no tolerance ever holds for it. What a digest is made of (`facts.encoded`) says its
kind too: the text '1', the number 1, the bytes b'1' and None are four values.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from .facts import digest_of, encoded

__all__ = [
    "MASK",
    "SUFFIX",
    "column_name",
    "in_words",
    "never_tolerated",
    "printable",
    "spelled",
    "tells_itself",
    "text_array",
    "text_digests",
]

SUFFIX = "@text"
MASK = "@mask"  # of the name of a field that says which elements of another one have no value
_EXACT_LABELS = (SUFFIX, MASK, "@shape")
_BYTES = 16
# Objects whose repr() tells all of their value, but for a unit of time.
_EXACT = (
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
_EXACT_PACKAGES = ("pandas", "cftime")
_PLAIN = (str, bytes, bytearray, bool, int, float, complex)
_BASES = (*_PLAIN, dict, list, tuple)
_AS_PYTHON = ("b1", "i8", "f8", "c16")  # numpy's numbers that are Python's, to the bit


def never_tolerated(name: str) -> bool:
    """Whether a field agrees only where it is equal, whatever integers are allowed: digests of texts, masks and shapes, by its name."""
    return name.endswith(_EXACT_LABELS)


def column_name(name: str) -> str:
    """What a column of a table is called as a field: one of the name `x@mask`, say, is no mask of x and is called `x@mask#`."""
    return name + "#" if name.rstrip("#").endswith(_EXACT_LABELS) else name


def tells_itself(kind: type) -> bool:
    """Whether repr() of objects of a class tells all of their value."""
    known = issubclass(kind, _EXACT) or kind.__module__.split(".")[0] in _EXACT_PACKAGES
    return known and kind.__repr__ is not object.__repr__


def spelled(value: object) -> bytes | None:
    """What a value is made of, as `facts.encoded` asks for it.

    numpy's texts, and its numbers of the same bits, are Python's here. Other classes count, also those made of Python's.
    """
    kind = type(value)
    if isinstance(value, np.generic):
        return (
            encoded(value.item()) if value.dtype.kind in "SU" or value.dtype.str[1:] in _AS_PYTHON else None
        )
    if kind in _PLAIN:
        return encoded(value)
    if tells_itself(kind):
        own = repr(value)
        unit = getattr(value, "unit", "ns")  # pandas' times: repr() leaves it out
        of_unit = "" if unit == "ns" else f"[{unit}]"
        if len(own) < 10_000:
            return f"{kind.__qualname__}{of_unit}:{own}".encode("utf-8", "surrogatepass")
        return None
    base: Any = next((b for b in _BASES if isinstance(value, b)), None)
    if base is None or kind in (base, OrderedDict):
        return None
    plain: object = (
        str.__str__(value) if base is str else base(value)
    )  # an enumeration may print itself otherwise
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}:".encode("utf-8", "surrogatepass") + encoded(plain, spelled)


def in_words(value: object) -> str:
    """A value for people, with what its repr() leaves out of its type."""
    kind = type(value)
    if isinstance(value, _BASES) and kind not in _BASES and not isinstance(value, np.generic):
        return f"{value!r} of the class {kind.__qualname__}"
    unit = getattr(value, "unit", "ns") if tells_itself(kind) else "ns"
    return repr(value) if unit == "ns" else f"{value!r} in units of {unit}"


def text_digests(values: Iterable[object]) -> np.ndarray:
    """(n, 2) u64 of values of any type. Raises TypeError where one cannot be compared."""
    made = bytearray()
    known: dict[object, bytes] = {}
    for value in values:
        text = type(value) is str
        digest = known.get(value) if text else None
        if digest is None:
            digest = digest_of(value, _BYTES, spelled)
            if text and len(known) < 10_000:
                known[value] = digest
        made += digest
    return np.frombuffer(bytes(made), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def text_array(array: np.ndarray) -> np.ndarray:
    """The digests of an array of texts or objects: u64 of its shape and a last axis of 2."""
    flat = array.reshape(-1)
    # numpy would make bytes of elements without a type
    return text_digests(list(flat) if array.dtype.kind == "V" else flat.tolist()).reshape(*array.shape, 2)


def printable(head: bytes) -> bool:
    """Whether bytes are text that a person could read: UTF-8 (the last character may be cut) without control characters."""
    if not head or any(b < 32 and b not in b"\t\n\r\f" for b in set(head)) or 127 in head:
        return False
    for cut in range(4):
        try:
            head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return False
