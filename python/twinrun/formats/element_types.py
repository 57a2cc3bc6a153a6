"""Types of elements by the names of the core, such as f32: sizes, numpy types that hold them, scalars.

Elements of complex types are two scalars, real and imaginary part.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from ..errors import FormatError

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "COMPLEX",
    "FLOATING",
    "INTEGERS",
    "ITEMSIZE",
    "dtype_of",
    "parse_dtype",
    "scalar_bytes",
    "scalar_values",
    "scalars_of",
    "storage_dtype",
    "unit_of",
    "widened",
]

# Element types of the core and the numpy types that hold them. numpy has no bf16: its bits are held
# as u16.
_STORAGE = {
    "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8",
    "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8",
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8",
    "bool": "?", "c64": "c8", "c128": "c16",
}  # fmt: skip
ITEMSIZE = {name: 1 if code == "?" else int(code[1:]) for name, code in _STORAGE.items()}
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
COMPLEX = frozenset({"c64", "c128"})
FLOATING = COMPLEX | {"f16", "bf16", "f32", "f64"}
_FROM_NUMPY = {code: name for name, code in _STORAGE.items() if name != "bf16"}


def storage_dtype(dtype: str, byte_order: str = sys.byteorder) -> np.dtype:
    """The numpy type that holds elements of `dtype` in `byte_order`; for bf16 it is u16."""
    return np.dtype((">" if byte_order == "big" else "<") + _STORAGE[dtype])


def dtype_of(dtype: np.dtype) -> tuple[str, str] | None:
    """(name, byte order) of a numpy scalar type; None if the core has no such type.

    Dates and time spans (numpy's kinds M and m) are i64.
    """
    order = {">": "big", "<": "little", "|": "little", "=": sys.byteorder}[dtype.byteorder]
    if dtype.kind in "mM":
        return "i64", order
    code = "?" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    name = _FROM_NUMPY.get(code)
    return None if name is None else (name, order)


def unit_of(dtype: np.dtype) -> str | None:
    """The unit of dates and time spans, such as 'M8[s]'; None for other types.

    Dates are compared as integers, which is only valid if both fields have the same unit.
    """
    return dtype.newbyteorder("=").str[1:] if dtype.kind in "mM" else None


def scalars_of(dtype: str) -> int:
    """How many scalars an element has: 2 of complex types, else 1."""
    return 2 if dtype in COMPLEX else 1


def scalar_bytes(dtype: str) -> int:
    """Bytes of a scalar."""
    return ITEMSIZE[dtype] // scalars_of(dtype)


def widened(bits: np.ndarray) -> np.ndarray:
    """Numbers of type bf16, held as their bits, as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def scalar_values(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes in native order as scalars: bf16 as float32, complex numbers as pairs, booleans as bytes."""
    values = raw.view(np.uint8 if dtype == "bool" else storage_dtype(dtype))
    if dtype == "bf16":
        return widened(values)
    return values.view(values.real.dtype) if dtype in COMPLEX else values


def parse_dtype(text: object, where: str) -> tuple[str, str | None]:
    """(name, byte order) from f32, bf16, float32, '<f4', '>i8' or a numpy type. Byte order is None if not
    given.

    The number in a name of this project counts bits, the number in a numpy code counts bytes: 'i8' is an
    int8, '<i8' is an int64. Therefore a numpy code is only accepted with its byte order in front.

    Raises FormatError for an unknown type; `where` is for the message.
    """
    if isinstance(text, str) and text.strip().lower() in ITEMSIZE:
        return text.strip().lower(), None
    if not isinstance(text, str) and isinstance(text, (np.dtype, type)):
        known = dtype_of(np.dtype(text))
        if known is not None:
            return known[0], known[1] if np.dtype(text).byteorder in "<>" else None
    if isinstance(text, str):
        code = text.strip()
        if re.fullmatch(
            r"[<>|=][a-z?][0-9]{0,2}|(float|int|uint|complex)[0-9]{1,3}|bfloat16|half|float|double", code
        ):
            if code == "bfloat16":
                return "bf16", None
            try:
                known = dtype_of(np.dtype(code))
            except TypeError:
                known = None
            if known is not None:
                return known[0], known[1] if code[0] in "<>" else None
    raise FormatError(f"unknown type {text!r}", where=where, fix="use one of " + " ".join(ITEMSIZE))
