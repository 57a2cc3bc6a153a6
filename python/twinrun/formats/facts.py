"""Facts of files, and codes of non-numeric elements. Both always compare exactly.

A fact is an attribute (`x@units`) or other metadata that a format's library shows: names of dimensions,
targets of links, names of an enumeration's values. Names of facts that are not attributes are in parentheses:
`x@(dimensions)`.

A non-numeric element (a text, a struct, a list of any length) is compared by its code: 64 bits of a BLAKE2b
hash of its type and value. Two different elements have the same code with a probability of 2^-64.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..later import numpy_is_loaded

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np


__all__ = [
    "DIMENSIONS",
    "FILE",
    "MEANING",
    "NOT_COMPARED",
    "SUMMARY",
    "Fact",
    "code",
    "codes",
    "digest_of",
    "encoded",
    "shown",
    "summary",
    "title_of",
]

# Attributes that change the meaning of their array's numbers: names from the conventions CF, NUG
# (NetCDF) and openPMD.
MEANING = frozenset(
    """scale_factor add_offset _FillValue missing_value units calendar unitSI unitDimension timeUnitSI gridUnitSI
    gridGlobalOffset gridSpacing position axisLabels axisOrder dataOrder weightingPower macroWeighted _Unsigned valid_range
    valid_min valid_max flag_values flag_meanings flag_masks""".split()
)
# Names of fields in metadata files, which hold only fields: the code of all facts together, and the
# number of things that cannot be compared.
SUMMARY, NOT_COMPARED = "(attributes)", "(not compared)"
DIMENSIONS = "(dimensions)"  # fact: the names of the dimensions of an array, in the order of its axes
FILE = "(file)"  # fact: the file that a field comes from, if the field's name does not contain it
_MOST_SHOWN = 80  # characters
_DEEPEST = 64

Encoder = Callable[[object], "bytes | None"]


@dataclass(frozen=True)
class Fact:
    """An attribute, or other metadata of a file.

    Attributes
    ----------
    owner : str
        The field or group that it belongs to; '' for the file.
    name : str
        The name of the attribute, or a name in parentheses for other metadata.
    identity : bytes
        Two facts have the same value if these bytes and `kind` are equal; see `encoded`.
    text : str
        The value as text, for messages.
    meaning : bool
        Whether it changes the meaning of the owner's numbers, as a unit does.
    step : int or None
        The step that it belongs to; None for all steps of the file.
    order : tuple of str
        If the fact is the order of the owner's fields: their names. Only the order of fields that both runs
        have is compared; a field that one run lacks is reported as a missing field.
    kind : str
        The type of the value in the file, in words. Needed if several types of the format become the same
        Python value.
    between : bool
        Whether it counts only between files of two formats: the file's own format says the same in another
        fact. Metadata and golden files do not keep it.
    own : bool
        Whether no other format has its like, although it is an attribute: the format's library hides it, or
        keeps its own books in it.
    """

    owner: str
    name: str
    identity: bytes
    text: str
    meaning: bool = False
    step: int | None = None
    order: tuple[str, ...] = ()
    kind: str = ""
    between: bool = False
    own: bool = False

    @property
    def label(self) -> str:
        """'x@units', or '@history' for an attribute of the file."""
        return f"{self.owner}@{self.name}"

    @property
    def is_attribute(self) -> bool:
        """Whether it is an attribute."""
        return not (self.name.startswith("(") and self.name.endswith(")"))

    @property
    def has_counterparts(self) -> bool:
        """Whether other formats say the same under the same name: attributes, and names and sizes of
        dimensions. Other facts are specific to a format.
        """
        return not self.own and (
            self.is_attribute or self.name == DIMENSIONS or self.name.startswith("(dimension ")
        )

    @property
    def digest(self) -> str:
        """A hash of `identity` and `kind`: 32 hexadecimal digits."""
        import hashlib

        return hashlib.blake2b(self.identity + self.kind.encode(), digest_size=16).hexdigest()

    @classmethod
    def of(cls, owner: str, name: str, value: object, encode: Encoder | None = None) -> Fact:
        """The fact for a value.

        Raises TypeError if the value cannot be compared. encode: as for `encoded`.
        """
        identity = encoded(value, encode)
        return cls(owner, name, identity, shown(value), name in MEANING)


def summary(facts: Mapping[str, Fact]) -> int:
    """One code (64 bits) of all facts of a file."""
    kept = [(label, fact) for label, fact in sorted(facts.items()) if not fact.between]
    return code([[label, fact.identity + fact.kind.encode()] for label, fact in kept])


def _sized(mark: bytes, data: bytes) -> bytes:
    return mark + struct.pack("<Q", len(data)) + data


def encoded(value: object, encode: Encoder | None = None, depth: int = 0) -> bytes:
    """Canonical bytes of a value: two values of the same type are equal if and only if these bytes are equal.

    Storage does not count: byte order, padding, the width of texts, the order of a mapping's keys and of a
    struct's members. All NaNs are equal, whatever their sign and payload, and -0.0 equals 0.0, as in exact
    comparisons of fields.

    encode: called first; returns the bytes of a value of a type that only the caller knows, None for other
    values. Raises TypeError for a value that cannot be compared, or one nested more than 64 levels deep.
    """
    if depth > _DEEPEST:
        raise TypeError(f"nested more than {_DEEPEST} deep")
    if encode is not None and (own := encode(value)) is not None:
        return _sized(b"x", own)
    if value is None:
        return b"n"
    of_numpy = numpy_is_loaded()
    if of_numpy and isinstance(value, np.ma.MaskedArray):
        return _masked(value, encode, depth)
    if of_numpy and isinstance(value, (np.ndarray, np.generic)):
        made = _array(np.asarray(value), encode, depth)
        if type(value).__module__.split(".")[0] == "numpy" or isinstance(value, np.recarray):
            return made
        # Also for a quantity that is an array.
        unit = getattr(value, "unit", getattr(value, "units", None))
        return made if unit is None else _sized(b"q", made + encoded(str(unit)))
    if isinstance(value, bool):
        return b"?1" if value else b"?0"
    if isinstance(value, int):
        return _sized(b"i", str(value).encode())
    if isinstance(value, float):
        return b"f" + _float(value)
    if isinstance(value, complex):
        return b"c" + _float(value.real) + _float(value.imag)
    if isinstance(value, str):
        return _sized(b"t", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _sized(b"s", bytes(value))
    if isinstance(value, Mapping):
        parts = sorted(
            encoded(k, encode, depth + 1) + encoded(v, encode, depth + 1) for k, v in value.items()
        )
        return _sized(b"d", b"".join(parts))
    if isinstance(value, (list, tuple)):
        return _sized(b"l", b"".join(encoded(v, encode, depth + 1) for v in value))
    raise TypeError(f"a value of the type {type(value).__name__}")


def _masked(array: np.ma.MaskedArray, encode: Encoder | None, depth: int) -> bytes:
    """An array with its mask. What lies under the mask has no value; an array without masked
    elements is a plain one.
    """
    if array is np.ma.masked:
        return b"m"
    if array.dtype.names is not None:
        members = b"".join(encoded(array[name], encode, depth + 1) for name in array.dtype.names)
        plain = _array(np.zeros(array.shape, array.dtype), encode, depth)
        any_masked = any(np.ma.getmaskarray(array[name]).any() for name in array.dtype.names)
        return _sized(b"m", plain + members) if any_masked else _array(np.ma.getdata(array), encode, depth)
    mask = np.ma.getmaskarray(array)
    fill = np.asarray(array.fill_value)
    usual = np.asarray(np.ma.default_fill_value(array)).astype(fill.dtype)
    own_fill = b"" if fill.tobytes() == usual.tobytes() else encoded(fill, encode, depth + 1)
    data = np.array(np.ma.getdata(array))
    if not mask.any():
        made = _array(data, encode, depth)
        return made if not own_fill else _sized(b"m", made + own_fill)
    data[mask] = np.zeros((), data.dtype) if data.dtype.kind != "O" else None
    return _sized(b"m", _array(data, encode, depth) + _array(mask, encode, depth) + own_fill)


def _float(value: float) -> bytes:
    return struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)


def _plain(array: np.ndarray) -> bytes:
    """Little-endian bytes of numbers, with canonical NaNs, zeros and padding."""
    kind = array.dtype
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind.kind in "fc":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            flat = flat.astype(kind.newbyteorder("=")) + 0  # -0.0 becomes 0.0
        parts = flat.view(flat.real.dtype) if kind.kind == "c" else flat
        parts[np.isnan(parts)] = np.nan
        # x87's extended precision has 10 bytes, and 6 bytes of padding.
        if parts.dtype.itemsize == 16 and np.finfo(parts.dtype).nmant == 63:
            return np.ascontiguousarray(parts.view(np.uint8).reshape(-1, 16)[:, :10]).tobytes()
        flat = parts
    elif kind.kind == "b":
        return (flat.view(np.uint8) != 0).tobytes()
    return flat.astype(flat.dtype.newbyteorder("<")).tobytes()


def title_of(dtype: np.dtype, name: str) -> object:
    """The title of a struct's member, None if it has none."""
    return (*dtype.fields[name], None)[2]  # type: ignore[index]


def _title(dtype: np.dtype, name: str, encode: Encoder | None) -> bytes:
    title = title_of(dtype, name)
    return b"" if title is None else _sized(b"h", encoded(title, encode))


def _array(array: np.ndarray, encode: Encoder | None, depth: int) -> bytes:
    """Canonical bytes of an array: type, shape and elements.

    Raises TypeError for a type that cannot be compared.
    """
    kind = array.dtype
    shape = ",".join(map(str, array.shape))
    if kind.names is not None:
        inner = b"".join(
            _sized(b"m", n.encode()) + _title(kind, n, encode) + _array(array[n], encode, depth + 1)
            for n in sorted(kind.names)
        )
        return _sized(b"a", f"struct[{shape}]".encode() + inner)
    if kind.kind == "O" or kind.kind == "T":
        inner = b"".join(encoded(v, encode, depth + 1) for v in array.reshape(-1).tolist())
        return _sized(b"a", f"any[{shape}]".encode() + inner)
    if kind.kind in "SU":
        inner = b"".join(encoded(v) for v in plain_items(array))
        return _sized(b"a", f"{kind.kind}[{shape}]".encode() + inner)
    if kind.kind in "fciub":
        return _sized(b"a", f"{kind.kind}{kind.itemsize}[{shape}]".encode() + _plain(array))
    if kind.kind in "mM":
        unit = kind.newbyteorder("=").str[1:]
        return _sized(b"a", f"{unit}[{shape}]".encode() + _plain(array.view(kind.str[0] + "i8")))
    if kind.kind == "V":
        return _sized(b"a", f"V{kind.itemsize}[{shape}]".encode() + array.tobytes())
    raise TypeError(f"elements of the type {kind}")


class ImpossibleText(TypeError):
    """A text that Python cannot hold; its message needs no name of a class."""


def plain_items(array: np.ndarray) -> list[Any]:
    """The elements of an array, in the order of storage, as Python's values.

    Raises TypeError for a text with a character that Unicode does not have. NumPy itself makes another
    character of it, or ends in a SystemError.
    """
    flat = array.reshape(-1)
    if flat.dtype.kind == "U" and flat.dtype.itemsize and flat.size:
        points = np.ascontiguousarray(flat).view(flat.dtype.str[0] + "u4")
        if (largest := int(points.max())) > sys.maxunicode:
            raise ImpossibleText(f"a text has the character {largest:#x}, which Unicode does not have")
    return flat.tolist()


def digest_of(value: object, size: int, encode: Encoder | None = None) -> bytes:
    """A BLAKE2b hash of `size` bytes of a value.

    Equal values have equal hashes; raises TypeError as `encoded`.
    """
    import hashlib

    return hashlib.blake2b(encoded(value, encode), digest_size=size).digest()


def code(value: object, encode: Encoder | None = None) -> int:
    """The code of one element: 64 bits of its hash."""
    return int.from_bytes(digest_of(value, 8, encode), "little")


def codes(rows: Iterable[object], encode: Encoder | None = None) -> np.ndarray:
    """The codes of elements: an array of u64, one for each item of `rows`."""
    if isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "SUOT":
        rows = plain_items(rows)
    return np.array([code(row, encode) for row in rows], np.uint64)


def shown(value: object, most: int = _MOST_SHOWN) -> str:
    """A value as text for messages, on one line, cut to `most` characters."""
    of_numpy = numpy_is_loaded()
    if isinstance(value, (bytes, bytearray)):  # also numpy's texts of bytes
        try:
            text = repr(bytes(value).decode("utf-8"))
        except UnicodeDecodeError:
            text = "0x" + bytes(value[:most]).hex()
    elif of_numpy and isinstance(value, np.void) and value.dtype.names is None:
        text = "0x" + value.tobytes()[:most].hex()
    elif of_numpy and isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.names is None:
            item = plain_items(array)[0]
            text = shown(item, most) if isinstance(item, (str, bytes)) else str(value)
        else:
            few = plain_items(array.reshape(-1)[:most])
            text = str([_brief(v, most) for v in few] if array.ndim else few[0])
            text = text.replace('"', "") if array.dtype.kind in "SUO" else text
            if array.ndim > 1:
                text += f" of shape {list(array.shape)}"
    elif isinstance(value, str):
        text = repr(value)
    else:
        text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _brief(value: object, most: int) -> object:
    return shown(value, most) if isinstance(value, (bytes, str, np.ndarray)) else value
