"""Values of Python and NumPy in a trace that are no arrays for a digest: what says all of them, as text."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import hashlib
import pathlib
import uuid
from typing import Any

import numpy as np

__all__ = ["SAID", "text_of"]

# Their `repr` says all of them.
SAID = (
    range, bytearray, enum.Enum, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta,
    pathlib.PurePath, uuid.UUID,
)  # fmt: skip
_IN_SETS = (bool, int, float, complex, str, bytes, type(None), *SAID)


def text_of(what: Any, in_sets: tuple[type, ...] = ()) -> str | None:
    """A set of plain values, or an array or number of NumPy, as text. None for others.

    in_sets: further types whose `repr` says all of a value.
    """
    if isinstance(what, (set, frozenset)):
        is_plain = all(isinstance(one, (*_IN_SETS, *in_sets)) for one in what)
        return f"{{{', '.join(sorted(map(repr, what)))}}}" if is_plain else None
    if isinstance(what, np.generic):
        kind = what.dtype.newbyteorder("=")
        # (A format would round a longdouble to float64.)
        return f"{kind.str} {what!s}" if kind.kind in "biufcmM" else None
    if type(what) is not np.ndarray or what.dtype.kind not in "biufcmMSU":
        return None
    kind = what.dtype.newbyteorder("=")
    # Of a longdouble some bytes say nothing, and text says all of a number.
    if kind.kind in "fc" and kind.itemsize > (8 if kind.kind == "f" else 16):
        data = "\n".join(map(str, what.ravel())).encode()
    else:
        data = what.astype(kind).tobytes()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{kind.str} {what.shape} {digest}"
