"""Attributes of files, as facts or as fields, and the notes on attributes that change the meaning of
values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from .element_types import dtype_of, storage_dtype
from .facts import Encoder
from .model import Field, FileContent, decoded

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["MEANING", "PLAIN", "add_attribute", "add_constant", "constant", "note_meaning"]

MEANING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
PLAIN = "convention=none reads it as plain HDF5"
_SHOWN = 8


def add_attribute(
    content: FileContent,
    owner: str,
    name: str,
    value: object,
    as_field: bool,
    encode: Encoder | None = None,
    kind: str = "",
    tell: Callable[[object], str] | None = None,
) -> None:
    """Adds an attribute to `content`: as a field `owner@name` if `as_field` and its value is numeric,
    otherwise as a fact.

    encode, kind, tell: as for `FileContent.say`.
    """
    if not (as_field and add_constant(content, f"{owner}@{name}", value)):
        content.say(owner, name, value, encode=encode, kind=kind, tell=tell)


def add_constant(content: FileContent, name: str, value: object) -> bool:
    """Adds a number or an array in memory as a field.

    Returns False, and adds nothing, if its type is not supported.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of several lengths, or integers of more than 64 bits
        return False
    known = None if array.dtype.names or array.dtype.subdtype else dtype_of(array.dtype)
    if known is None:
        return False
    code = known[0]
    if array.dtype.kind in "mM":
        array = array.view("i8")
    flat = np.ascontiguousarray(array).reshape(-1).astype(storage_dtype(code), copy=False)
    if flat.size == 0:
        content.add(Field(name, code, "little", array.shape, extents=()))
        return True

    def read(first: int, count: int) -> np.ndarray:
        return flat[first : first + count]

    content.add(
        Field(name, code, "little", array.shape, read=decoded(name, code, flat.size, content.path, read))
    )
    return True


def constant(name: str, value: np.generic, shape: tuple[int, ...], where: str) -> Field | None:
    """A field of shape `shape` whose elements all have one value.

    None if the value's type is not supported.
    """
    known = dtype_of(value.dtype)
    if known is None:
        return None
    size = int(np.prod(np.array(shape, dtype=object), initial=1))
    if size == 0:
        return Field(name, known[0], "little", shape, extents=())
    native = value.astype(storage_dtype(known[0]))

    def read(first: int, count: int) -> np.ndarray:
        return np.full(count, native)

    return Field(name, known[0], "little", shape, read=decoded(name, known[0], size, where, read))


_PLAIN = frozenset({"_FillValue nan", "missing_value nan"})


def note_meaning(content: FileContent, entries: Iterable[tuple[str, Mapping[str, object]]]) -> None:
    """Adds one note that lists the arrays with attributes such as scale_factor, and says that values are
    compared as stored.

    entries: (name of an array, its attributes).
    """
    said = []
    for name, attributes in entries:
        # NaN for what is missing, as in each file of xarray, makes no number mean another.
        told = (f"{w} {attributes[w]}" for w in MEANING if attributes.get(w) is not None)
        words = [said_of for said_of in told if said_of not in _PLAIN]
        if words:
            said.append(f"{name} ({', '.join(words)})")
    if said:
        more = f", and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
        content.notes.append(f"values are compared as stored: {', '.join(said[:_SHOWN])}{more}")
