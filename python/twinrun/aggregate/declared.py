"""Arrays as a rank declares them for an aggregate, and whether an array of numpy is what was declared."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

import numpy as np

from ..errors import TwinrunError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["Block", "Declared", "Variable", "c_blocks", "c_variables", "lengths", "number", "pointers"]

_ORDERS = {"C": 0, "F": 1}
_END = 1 << 63


class Variable(NamedTuple):
    """An array of this rank: `items` items of `item_bytes`, the first of which goes to `file_offset`.

    Strides are bytes from item to item, in the file and in memory; 0 means dense. Bytes go as they lie in
    memory, whatever the array's type is.
    """

    item_bytes: int
    items: int
    file_offset: int
    file_stride: int = 0
    memory_stride: int = 0


@dataclass(frozen=True)
class Block:
    """A block of a global array, and its place in an array of this rank.

    >>> Block("f8", global_shape=(100, 100), start=(50, 0), shape=(50, 100))
    Block(dtype='f8', global_shape=(100, 100), start=(50, 0), shape=(50, 100), order='C', ...)

    Parameters
    ----------
    dtype : dtype
        Of an item; any of numpy's, also structured ones, but none with objects. The array has this type.
        'V8', say, is untyped: the array then has any type of 8 bytes, or is a flat one of uint8.
    global_shape : tuple of int
        The whole array, which lies in the file without gaps.
    start, shape : tuple of int
        The block's first item in it, and its lengths.
    order : 'C' or 'F', default 'C'
        Which index runs fastest, in the file and in memory.
    file_offset : int, default 0
        Where the global array begins.
    local_shape, local_start : tuple of int, default None
        The array in memory, with its halo, and the block's first item in it. None: the block is the array.
    """

    dtype: DTypeLike
    global_shape: Sequence[int]
    start: Sequence[int]
    shape: Sequence[int]
    order: str = "C"
    file_offset: int = 0
    local_shape: Sequence[int] | None = None
    local_start: Sequence[int] | None = None


class CVariable(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("item_bytes", "items", "file_offset", "file_stride", "memory_stride")
    ]


_Lengths = ctypes.POINTER(ctypes.c_uint64)


class CBlock(ctypes.Structure):
    _fields_ = [
        ("item_bytes", ctypes.c_uint64),
        ("dimensions", ctypes.c_int),
        ("order", ctypes.c_int),
        ("file_offset", ctypes.c_uint64),
        *((name, _Lengths) for name in ("global_shape", "start", "shape", "local_shape", "local_start")),
    ]


def number(name: str, value: SupportsIndex) -> int:
    """A length or a place. Raises TwinrunError where it is none, as C would take another one for it."""
    try:
        got = operator.index(value)
    except TypeError:
        raise TwinrunError(f"{name} is {value!r:.60}, and no whole number") from None
    if got < 0:
        raise TwinrunError(f"{name} is {got}: lengths and places must not be negative")
    if got >= _END:
        raise TwinrunError(f"{name} is {got!s:.60}: lengths and places must be less than 2^63")
    return got


def lengths(name: str, values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Lengths or places, as C takes them."""
    return (ctypes.c_uint64 * max(len(values), 1))(*(number(name, value) for value in values))


@dataclass(frozen=True)
class Declared:
    """What the array of a variable or a block has to be."""

    bytes: int  # at least
    item_bytes: int
    memory_stride: int = 0
    # Of a block alone:
    dtype: np.dtype | None = None
    shape: tuple[int, ...] = ()
    order: str = "C"


def c_variables(variables: Iterable[Variable]) -> tuple[ctypes.Array[CVariable], list[Declared]]:
    """Variables for C, and what their arrays have to be."""
    own, declared = [], []
    for k, given in enumerate(variables):
        try:
            one = Variable(*given)
        except TypeError:
            raise TwinrunError(f"variable {k} is {given!r:.60}, and no Variable") from None
        values = [number(f"variable {k}: {name}", v) for name, v in zip(Variable._fields, one, strict=True)]
        item_bytes, items, _, _, stride = values
        own.append(CVariable(*values))
        needed = 0 if items == 0 else (items - 1) * (stride or item_bytes) + item_bytes
        declared.append(Declared(needed, item_bytes, stride))
    return (CVariable * max(len(own), 1))(*own), declared


def _item_type(k: int, given: DTypeLike) -> np.dtype:
    try:
        dtype = np.dtype(given)
    except TypeError as e:
        raise TwinrunError(f"block {k}: dtype {given!r:.60} is none of numpy's: {e}") from None
    if dtype.hasobject or dtype.kind in "OT":
        raise TwinrunError(
            f"block {k}: dtype {given!r:.60} has pointers to objects, which mean nothing in a file",
            fix="write numbers, or texts of a fixed length",
        )
    if dtype.subdtype is not None:
        raise TwinrunError(
            f"block {k}: dtype {given!r:.60} is an array itself",
            fix="name the type of its items, and give the block more dimensions",
        )
    if dtype.itemsize == 0:
        raise TwinrunError(f"block {k}: an item of {given!r:.60} has no bytes", fix="give its length")
    return dtype


def c_blocks(blocks: Iterable[Block], keep: list[object]) -> tuple[ctypes.Array[CBlock], list[Declared]]:
    """Blocks for C, and what their arrays have to be. keep: gets what C's structures point to."""
    own, declared = [], []
    for k, block in enumerate(blocks):
        if not isinstance(block, Block):
            raise TwinrunError(f"block {k} is {block!r:.60}, and no Block")
        dtype = _item_type(k, block.dtype)
        names = ("global_shape", "start", "shape", "local_shape", "local_start")
        given = {name: getattr(block, name) for name in names}
        if not all(isinstance(v, Sequence | np.ndarray) or v is None for v in given.values()):
            raise TwinrunError(f"block {k}: shapes and places are tuples of numbers: {block}")
        if any(v is not None and len(v) != len(block.global_shape) for v in given.values()):
            raise TwinrunError(
                f"shapes and places of a block have as many numbers as its global shape: {block}"
            )
        if block.order not in _ORDERS:
            raise TwinrunError(f"block {k}: order is {block.order!r}, and may be C or F")
        arrays = [None if v is None else lengths(f"block {k}: {name}", v) for name, v in given.items()]
        keep += arrays
        own.append(
            CBlock(
                dtype.itemsize,
                len(block.global_shape),
                _ORDERS[block.order],
                number(f"block {k}: file_offset", block.file_offset),
                *(None if array is None else ctypes.cast(array, _Lengths) for array in arrays),
            )
        )
        shape = tuple(map(operator.index, block.shape if block.local_shape is None else block.local_shape))
        declared.append(
            Declared(dtype.itemsize * math.prod(shape), dtype.itemsize, 0, dtype, shape, block.order)
        )
    return (CBlock * max(len(own), 1))(*own), declared


def _strided_items(array: np.ndarray, declared: Declared) -> bool:
    """Whether the array's first axis is the declared items at their declared distance in memory."""
    return (
        array.ndim > 0
        and array.size > 0
        and array.strides[0] == declared.memory_stride
        and array[0].nbytes == declared.item_bytes
        and bool(array[0].flags.c_contiguous)
        and (array.shape[0] - 1) * array.strides[0] + declared.item_bytes >= declared.bytes
    )


def _check_variable(name: str, array: np.ndarray, declared: Declared) -> None:
    if array.flags.c_contiguous or array.flags.f_contiguous:
        if array.nbytes < declared.bytes:
            raise TwinrunError(f"{name} has {array.nbytes} bytes, and {declared.bytes} are declared")
    elif not _strided_items(array, declared):
        raise TwinrunError(
            f"{name} is not contiguous, and its items are not as far apart as memory_stride says",
            fix="give a contiguous array, or declare the distance of its items as memory_stride",
        )


def _check_block(name: str, array: np.ndarray, declared: Declared, writes: bool) -> None:
    dtype = declared.dtype
    untyped = dtype is not None and dtype.type is np.void and dtype.names is None
    flat = untyped and array.dtype == np.uint8 and array.ndim == 1 and array.nbytes == declared.bytes
    if not (array.dtype == dtype or flat or (untyped and array.dtype.itemsize == declared.item_bytes)):
        raise TwinrunError(
            f"{name} has the type {array.dtype!s:.60}, and its block {dtype!s:.60}",
            fix="declare the array's type, or convert the array by astype",
        )
    count = math.prod(declared.shape)
    if not (
        flat or array.shape == declared.shape or (array.size == count and (array.ndim == 1 or count == 1))
    ):
        raise TwinrunError(
            f"{name} has the shape {array.shape}, and its block {declared.shape}",
            fix="give an array of the block's shape (local_shape, where it has one), or a flat one of as many items",
        )
    order = declared.order
    if array.flags.c_contiguous if order == "C" else array.flags.f_contiguous:
        return
    other = array.flags.c_contiguous or array.flags.f_contiguous
    copy = "ascontiguousarray" if order == "C" else "asfortranarray"
    way = f"give numpy.{copy} of it" if writes else f"read into one made with order={order!r}, and copy it"
    declare = f", or declare order={'F' if order == 'C' else 'C'!r}" if other else ""
    raise TwinrunError(
        f"{name} is {'contiguous in the other order' if other else 'not contiguous'}, and its block has "
        f"order={order!r}",
        fix=way + declare,
    )


def pointers(
    arrays: Sequence[np.ndarray], declared: Sequence[Declared], writes: bool
) -> ctypes.Array[ctypes.c_void_p]:
    """The arrays for C. Raises TwinrunError where one is not what was declared."""
    if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence):
        raise TwinrunError("arrays are not a list of arrays of numpy", fix="write [array]")
    if len(arrays) != len(declared):
        raise TwinrunError(f"{len(arrays)} arrays are given, and {len(declared)} are declared")
    for k, (array, one) in enumerate(zip(arrays, declared, strict=True)):
        name = f"array {k}"
        if not isinstance(array, np.ndarray):
            fix = "give numpy.asarray of it" if writes else "read into an array of numpy"
            raise TwinrunError(f"{name} is no array of numpy", fix=fix)
        if isinstance(array, np.ma.MaskedArray):
            raise TwinrunError(
                f"{name} is a masked array, and a file has no mask", fix="give array.filled(...)"
            )
        if array.dtype.hasobject or array.dtype.kind in "OT":
            raise TwinrunError(f"{name} has pointers to objects, which mean nothing in a file")
        if not writes and not array.flags.writeable:
            raise TwinrunError(f"{name} is read-only")
        if one.dtype is None:
            _check_variable(name, array, one)
        else:
            _check_block(name, array, one, writes)
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
