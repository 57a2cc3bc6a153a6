"""Facts of two files beside each other: equal values of two formats, and texts that show a difference.

Formats store one value in several ways. A text is bytes in NetCDF classic, a text of fixed or of any length
in HDF5, and JSON in Zarr; one number is an array of one element, or a scalar. Between files of two formats
such values are equal. JSON has no types of numbers: beside it, only their values count.

All is read from `Fact.identity`, the canonical bytes of a value (`facts.encoded`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from .facts import Fact

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["equal_between", "texts_apart"]

_SIZES = {b"n": 0, b"?": 1, b"f": 8, b"c": 16}  # bytes behind a mark; other marks have a length
_BEFORE, _WINDOW = 10, 60  # characters shown in front of a difference of two texts, and in all
_NOTHING = b"nothing, of "  # HDF5's values without elements, as `hdf5` encodes them
_KINDS = {"f": "float", "i": "integer", "u": "unsigned integer", "c": "complex number", "b": "boolean"}


def equal_between(x: Sequence[Fact], y: Sequence[Fact]) -> bool:
    """Whether files of two formats say the same. x, y: the values that the files of each run have."""
    a, b = (sorted({_plain(fact.identity) for fact in side}, key=lambda v: (v[1], v[0])) for side in (x, y))
    return len(a) == len(b) and all(
        va == vb and (ta == tb or "number" in (ta, tb)) for (ta, va), (tb, vb) in zip(a, b, strict=True)
    )


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


def _header(payload: bytes) -> tuple[str, int, bytes]:
    """(type, number of elements, elements) of an encoded array."""
    head, _, rest = payload.partition(b"]")
    kind, _, shape = head.decode("ascii", "replace").partition("[")
    count = 1
    for length in shape.split(",") if shape else ():
        count *= int(length)
    return kind, count, rest


def _texts(identity: bytes) -> list[bytes] | None:
    """The texts of a value that is a text or several; None for another value.

    Zeros at the end of a text of fixed length are no part of it.
    """
    mark, payload = _only(identity)
    if mark in (b"t", b"s"):
        return [payload.rstrip(b"\0")]
    if mark == b"x" and payload.startswith((_NOTHING + b"|S", _NOTHING + b"object")):
        return [b""]
    if mark == b"a":
        kind, _, payload = _header(payload)
        if kind not in ("S", "U", "any"):
            return None
    elif mark != b"l":
        return None
    inner = list(_items(payload))
    return [text.rstrip(b"\0") for _, text in inner] if inner and all(m in b"ts" for m, _ in inner) else None


def _text_of(identity: bytes) -> str | None:
    """A value that is one text; None for another value."""
    found = _texts(identity)
    return found[0].decode("utf-8", "backslashreplace") if found is not None and len(found) == 1 else None


def _plain(identity: bytes) -> tuple[str, bytes]:
    """(type, value) without what formats store in their own ways. Type 'number': one of JSON."""
    texts = _texts(identity)
    if texts is not None:
        return "text", b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    mark, payload = _only(identity)
    if mark == b"x" and payload.startswith(_NOTHING):
        try:
            found = np.dtype(payload[len(_NOTHING) :].decode())
        except (TypeError, UnicodeDecodeError):
            return "", identity
        return f"{found.kind}{found.itemsize}", b""
    if mark == b"a":
        kind, _, payload = _header(payload)
        if kind[:1] in "fiu":
            values = np.frombuffer(payload, f"<{kind}") if kind != "f16" else None
            return (kind, identity) if values is None else (kind, _numbers(values.tolist()))
    inner = list(_items(payload)) if mark == b"l" else [(mark, payload)]
    if all(m in (b"i", b"f") for m, _ in inner):
        return "number", _numbers(
            [int(value) if m == b"i" else struct.unpack("<d", value)[0] for m, value in inner]
        )
    return "", identity


def _numbers(values: Sequence[int | float]) -> bytes:
    """Numbers by their values: 1 and 1.0 are the same."""
    words = (str(int(v)) if isinstance(v, int) or v.is_integer() else v.hex() for v in values)
    return " ".join(words).encode()


def _kind(identity: bytes) -> str:
    """The type of a value in words; '' if it is not known."""
    texts = _texts(identity)
    if texts is not None:
        return "one text" if len(texts) == 1 else f"{len(texts)} texts"
    mark, payload = _only(identity)
    if mark == b"a":
        kind, count, _ = _header(payload)
        word = _KINDS.get(kind[:1]) if kind[1:].isdecimal() else None
        return f"{word} of {8 * int(kind[1:])} bits" if word and count == 1 else kind and f"{count} of {kind}"
    return {b"i": "integer", b"f": "float", b"?": "boolean", b"c": "complex number", b"l": "list"}.get(
        mark, ""
    )
