"""Facts of two files beside each other: equal values of two formats, and texts that show a difference.

Formats store one value in several ways. A text is bytes in NetCDF classic, a text of fixed or of any length
in HDF5, and JSON in Zarr; one number is an array of one element, or a scalar. Between files of two formats
such values are equal. JSON has no types of numbers: beside it, only their values count.

All is read from `Fact.identity`, the canonical bytes of a value (`facts.encoded`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from .facts import Fact

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["equal_between", "texts_apart"]

_SIZES = {b"n": 0, b"?": 1, b"f": 8, b"c": 16}  # bytes behind a mark; other marks have a length
_BEFORE, _WINDOW = 10, 60  # characters shown in front of a difference of two texts, and in all
_NOTHING = b"nothing, of "  # HDF5's values without elements, as `hdf5` encodes them
_NUMBERS = ("f", "i", "u")
_HEADER = re.compile(rb"([ -~]{1,40}?)\[([0-9,]*)\]")
_KINDS = {"f": "float", "i": "integer", "u": "unsigned integer", "c": "complex number", "b": "boolean"}


class _Value(NamedTuple):
    """A value without what formats store in their own ways.

    kind: 'text', 'boolean', 'number' (of JSON) or the type of an array's elements; '' for any other value,
    whose `data` is its identity. shape: () also of an array of one element.
    """

    data: bytes
    kind: str
    shape: tuple[int, ...] = ()

    def equals(self, other: _Value) -> bool:
        """Whether the values are equal. Beside a number of JSON the type of a number does not count."""
        kinds = {self.kind, other.kind}
        of_json = "number" in kinds and all(kind == "number" or kind[:1] in _NUMBERS for kind in kinds)
        return self.data == other.data and self.shape == other.shape and (self.kind == other.kind or of_json)


def equal_between(x: Sequence[Fact], y: Sequence[Fact]) -> bool:
    """Whether files of two formats say the same. x, y: the values that the files of each run have."""
    a, b = (sorted({_value(fact.identity) for fact in side}) for side in (x, y))
    return len(a) == len(b) and all(va.equals(vb) for va, vb in zip(a, b, strict=True))


def texts_apart(x: Fact, y: Fact) -> tuple[str, str]:
    """Both values as texts that differ, also where their beginnings are the same."""
    if x.text != y.text:
        return x.text, y.text
    a, b = _text_of(x.identity), _text_of(y.identity)
    if a is not None and b is not None and a != b:
        at = next(i for i, (one, other) in enumerate(zip_longest(a, b)) if one != other)
        return _part(a, at), _part(b, at)
    kinds = x.kind or _kind(x.identity), y.kind or _kind(y.identity)
    if kinds[0] == kinds[1] or not all(kinds):
        kinds = f"digest {x.digest[:12]}", f"digest {y.digest[:12]}"
    return f"{x.text} ({kinds[0]})", f"{y.text} ({kinds[1]})"


def _part(text: str, at: int) -> str:
    """A part of a text around a place, and which place that is."""
    first = max(0, at - _BEFORE)
    part = repr(text[first : first + _WINDOW])[1:-1]
    end = "…" if len(text) > first + _WINDOW else ""
    return f"'{'…' if first else ''}{part}{end}' (from character {first} of {len(text)})"


def _items(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(mark, payload) of encoded values that follow one another."""
    at = 0
    while at < len(data):
        mark = data[at : at + 1]
        at += 1
        size = _SIZES.get(mark)
        if size is None:
            size = struct.unpack_from("<Q", data, at)[0]
            at += 8
        yield mark, data[at : at + size]
        at += size


def _only(identity: bytes) -> tuple[bytes, bytes]:
    return next(_items(identity), (b"", b""))


def _header(payload: bytes) -> tuple[str, tuple[int, ...], bytes]:
    """(type, shape, elements) of an encoded array; the type is '' where it is not known."""
    found = _HEADER.match(payload)
    if found is None:
        return "", (), payload
    shape = tuple(int(length) for length in found[2].split(b",") if length)
    return found[1].decode("ascii"), shape, payload[found.end() :]


def _leaves(items: bytes) -> tuple[tuple[int, ...], list[tuple[bytes, bytes]]] | None:
    """(shape, values) of a list, or of lists of equal length within lists; None for others."""
    inner = list(_items(items))
    if not any(mark == b"l" for mark, _ in inner):
        return (len(inner),), inner
    parts = [_leaves(payload) if mark == b"l" else None for mark, payload in inner]
    first = parts[0]
    if first is None or any(part is None or part[0] != first[0] for part in parts):
        return None
    return (len(inner), *first[0]), [value for part in parts if part is not None for value in part[1]]


def _texts(identity: bytes) -> tuple[tuple[int, ...], list[bytes]] | None:
    """(shape, texts) of a value that is a text or several; None for another value.

    Zeros at the end of a text of fixed length are no part of it.
    """
    mark, payload = _only(identity)
    if mark in (b"t", b"s"):
        return (), [payload.rstrip(b"\0")]
    if mark == b"x" and payload.startswith((_NOTHING + b"|S", _NOTHING + b"object")):
        return (), [b""]
    if mark == b"a":
        kind, shape, payload = _header(payload)
        if kind not in ("S", "U", "any"):
            return None
        inner = list(_items(payload))
    else:
        leaves = _leaves(payload) if mark == b"l" else None
        if leaves is None:
            return None
        shape, inner = leaves
    if not inner or any(m not in (b"t", b"s") for m, _ in inner):
        return None
    return shape, [text.rstrip(b"\0") for _, text in inner]


def _text_of(identity: bytes) -> str | None:
    """A value that is one text; None for another value."""
    found = _texts(identity)
    one = found is not None and len(found[1]) == 1
    return found[1][0].decode("utf-8", "backslashreplace") if found is not None and one else None


def _value(identity: bytes) -> _Value:
    """The value, without what formats store in their own ways."""
    texts = _texts(identity)
    if texts is not None:
        joined = b"".join(struct.pack("<Q", len(text)) + text for text in texts[1])
        return _Value(joined, "text", _plain_shape(texts[0]))
    other = _Value(identity, "")
    mark, payload = _only(identity)
    if mark == b"x" and payload.startswith(_NOTHING):
        try:
            found = np.dtype(payload[len(_NOTHING) :].decode())
        except Exception:  # of a struct it is no text that NumPy reads
            return other
        return _Value(b"", f"{found.kind}{found.itemsize}", (0,))
    if mark == b"a":
        kind, shape, payload = _header(payload)
        if kind == "b1":
            return _Value(payload, "boolean", _plain_shape(shape))
        if kind[:1] not in _NUMBERS or not kind[1:].isdecimal() or kind == "f16":
            return other
        values = np.frombuffer(payload, f"<{kind}")
        return _Value(_numbers(values.tolist()), kind, _plain_shape(shape))
    leaves = _leaves(payload) if mark == b"l" else ((), [(mark, payload)])
    if leaves is None:
        return other
    shape, inner = leaves
    if inner and all(m == b"?" for m, _ in inner):
        return _Value(bytes(value == b"1" for _, value in inner), "boolean", _plain_shape(shape))
    if all(m in (b"i", b"f") for m, _ in inner):
        numbers = [int(value) if m == b"i" else struct.unpack("<d", value)[0] for m, value in inner]
        return _Value(_numbers(numbers), "number", _plain_shape(shape))
    return other


def _plain_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return () if shape == (1,) else shape


def _numbers(values: Sequence[int | float]) -> bytes:
    """Numbers by their values: 1 and 1.0 are the same."""
    words = (str(int(v)) if isinstance(v, int) or v.is_integer() else v.hex() for v in values)
    return " ".join(words).encode()


def _kind(identity: bytes) -> str:
    """The type of a value in words; '' if it is not known."""
    texts = _texts(identity)
    if texts is not None:
        return "one text" if len(texts[1]) == 1 else f"{len(texts[1])} texts"
    mark, payload = _only(identity)
    if mark == b"a":
        kind, shape, _ = _header(payload)
        count = math.prod(shape)
        word = _KINDS.get(kind[:1]) if kind[1:].isdecimal() else None
        return f"{word} of {8 * int(kind[1:])} bits" if word and count == 1 else kind and f"{count} of {kind}"
    return {b"i": "integer", b"f": "float", b"?": "boolean", b"c": "complex number", b"l": "list"}.get(
        mark, ""
    )
