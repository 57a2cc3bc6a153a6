"""Texts and other values that are no numbers, as numbers that are equal where they are: 128 bits of each value's BLAKE2b.

A field of them has the type u64 and a last axis of 2, whatever the length of the texts, so that any two compare element by
element. Its name ends in `@text`, by which no tolerance ever holds for it. What a digest was made of says its kind too: the
text '1', the number 1, the bytes b'1' and None are four values.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import hashlib
import math
import pathlib
import uuid
from collections.abc import Iterable

import numpy as np

__all__ = ["SUFFIX", "never_tolerated", "spelled", "text_array", "text_digests"]

SUFFIX = "@text"
_EXACT_LABELS = (SUFFIX, "@mask", "@shape")
_BYTES = 16
# Objects whose repr() tells all of their value.
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
_DEEPEST = 20


def never_tolerated(name: str) -> bool:
    """Whether a field agrees only where it is equal, whatever integers are allowed: digests of texts, masks and shapes, by its name."""
    return name.endswith(_EXACT_LABELS)


def _number(value: float) -> str:
    return "nan" if math.isnan(value) else repr(value + 0.0)  # -0.0 is 0.0


def spelled(value: object, depth: int = 0) -> str:
    """A text that two values share only where they are equal and of one kind. Raises TypeError where there is none."""
    if isinstance(value, str):
        return "s" + str(value)
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return f"b{bool(value)}"
    if isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64):
        return f"i{int(value)}"
    if isinstance(value, float):
        return "f" + _number(value)
    if isinstance(value, np.floating) and value.dtype.itemsize <= 8:
        return "f" + _number(float(value))
    if isinstance(value, complex):
        return f"c{_number(value.real)},{_number(value.imag)}"
    if isinstance(value, (bytes, bytearray)):
        return "x" + bytes(value).hex()
    if isinstance(value, np.void) and value.dtype.names is None:
        return "x" + value.tobytes().hex()
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return f"t{value.dtype.newbyteorder('=').str[1:]}{value.astype(np.int64)}"
    if isinstance(value, dict) and depth < _DEEPEST:
        return "d" + spelled(sorted((spelled(k), spelled(v, depth + 1)) for k, v in value.items()), depth + 1)
    if isinstance(value, (tuple, list)) and depth < _DEEPEST:
        parts = [spelled(v, depth + 1) for v in value]
        return "(" + "".join(f"{len(p)}:{p}" for p in parts) + ")"
    kind = type(value)
    if isinstance(value, _EXACT) or kind.__module__.split(".")[0] in _EXACT_PACKAGES:
        own = repr(value)
        if kind.__repr__ is not object.__repr__ and len(own) < 10_000:
            return f"o{kind.__qualname__}:{own}"
    raise TypeError(f"values of type {kind.__module__}.{kind.__qualname__} cannot be compared")


def text_digests(values: Iterable[object]) -> np.ndarray:
    """(n, 2) u64 of values that `spelled` takes. Raises what it raises."""
    made = bytearray()
    known: dict[object, bytes] = {}
    for value in values:
        text = type(value) is str
        digest = known.get(value) if text else None
        if digest is None:
            spelling = "s" + value if type(value) is str else spelled(value)
            digest = hashlib.blake2b(spelling.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()
            if text and len(known) < 10_000:
                known[value] = digest
        made += digest
    return np.frombuffer(bytes(made), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def text_array(array: np.ndarray) -> np.ndarray:
    """The digests of an array of texts or objects: u64 of its shape and a last axis of 2."""
    return text_digests(array.reshape(-1).tolist()).reshape(*array.shape, 2)


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
