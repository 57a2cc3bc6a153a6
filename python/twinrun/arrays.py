"""Arrays of the caller as memory that the core can read: no copy where the layout allows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from .errors import TwinrunError
from .formats.model import dtype_of

__all__ = ["ArrayView", "view"]


@dataclass(frozen=True)
class ArrayView:
    """Memory of an array: `items` elements, `stride` bytes apart, from `address` on, kept alive by `owner`.

    shape: as the core takes it; reversed for column-major arrays (fortran_order).
    """

    dtype: str
    shape: tuple[int, ...]
    address: int
    stride: int
    swap: bool
    fortran_order: bool
    owner: np.ndarray

    @property
    def items(self) -> int:
        """Number of elements."""
        return self.owner.size


def view(name: str, array: object) -> ArrayView:
    """The memory of a numpy array, or of anything that numpy takes for one.

    Contiguous (C or Fortran order) and 1-D strided arrays are used in place; others are copied once.
    Raises TwinrunError for types that have no numbers in them.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise TwinrunError(
            "has masked elements, which have no value", where=name, fix="fill them: array.filled(np.nan)"
        )
    a = np.asarray(array)
    kind = "bf16" if a.dtype.name == "bfloat16" else None
    if kind is None:
        known = dtype_of(a.dtype)
        if known is None:
            raise TwinrunError(
                f"arrays of {a.dtype} are not supported", where=name, fix="convert it to a number type"
            )
        kind, order = known
    else:
        order = sys.byteorder
    swap = order != sys.byteorder
    fortran = a.ndim > 1 and a.flags.f_contiguous and not a.flags.c_contiguous
    if fortran:
        a = a.T
    if a.ndim == 1 and a.size > 1 and a.strides[0] > a.itemsize:
        stride = a.strides[0]
    else:
        a = np.ascontiguousarray(a).reshape(a.shape)
        stride = a.itemsize
    return ArrayView(kind, a.shape, a.__array_interface__["data"][0], stride, swap, fortran, a)
