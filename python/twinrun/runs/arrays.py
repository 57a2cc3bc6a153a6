"""Arrays of the caller as memory that the core reads: without a copy where the layout allows it, and never
copied to the host.

Arrays on GPUs are taken through DLPack or `__cuda_array_interface__` (PyTorch, CuPy, JAX, Numba, …): only
their address is needed; nothing here reads them.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import TwinrunError, Unsupported
from ..formats.element_types import ITEMSIZE, dtype_of, storage_dtype

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "ArrayView",
    "DeviceArrayView",
    "bits_of_small",
    "check_places",
    "is_on_device",
    "row_major",
    "stream_handle",
    "taken",
    "view",
    "writable",
]

# DLPack: the supported devices, and element types by (code, bits).
_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DLPACK_TYPES = {
    (2, 16): "f16", (4, 16): "bf16", (2, 32): "f32", (2, 64): "f64",
    (0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
    (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
    (6, 8): "bool", (5, 64): "c64", (5, 128): "c128",
}  # fmt: skip
# Streams that have numbers instead of handles, in both protocols.
_LEGACY_DEFAULT = 1
_THREAD_DEFAULT = 2


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


@dataclass(frozen=True)
class DeviceArrayView:
    """Memory of an array on a GPU, kept alive by `owner`.

    shape: as the core takes it; reversed for column-major arrays (fortran_order). strides: bytes, one for
    each dimension of `shape`; () where it is dense. device: its number. stream: handle of the stream whose
    earlier work makes the data; 0 is the device's default stream. array: what the caller gave. read_only:
    whether its library says that nobody may write.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: int
    stream: int
    swap: bool
    fortran_order: bool
    owner: object
    array: object
    read_only: bool = False

    @property
    def items(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def stream_handle(stream: object) -> int | None:
    """The handle of a stream: an int, or a stream of PyTorch, CuPy, Numba, or with `__cuda_stream__`.

    None where none is given.
    """
    if stream is None:
        return None
    handle: Any = stream
    if hasattr(stream, "__cuda_stream__"):  # (version of the protocol, handle)
        protocol = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]
    else:
        for attribute in ("cuda_stream", "ptr", "handle"):
            if hasattr(stream, attribute):
                handle = getattr(stream, attribute)
                break
    if hasattr(handle, "value"):  # of ctypes; None is null
        handle = handle.value or 0
    try:
        number = operator.index(handle) if hasattr(handle, "__index__") else int(handle)
    except (TypeError, ValueError):
        number = -1
    if isinstance(stream, (bool, float, str)) or not 0 <= number < 1 << 64:
        raise TwinrunError(
            f"{stream!r} is no stream",
            fix="give its handle as an integer, or a stream of PyTorch, CuPy or Numba",
        )
    return 0 if number == _LEGACY_DEFAULT else number


def _unsupported(name: str, what: object) -> TwinrunError:
    return TwinrunError(f"arrays of {what} are not supported", where=name, fix="convert it to a number type")


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether it is row-major without gaps, as numpy decides: dimensions of one element may have
    any stride.
    """
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _layout(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """(shape, strides, fortran_order) as the core takes them: no strides where the memory is dense."""
    if strides is None or 0 in shape or _contiguous(shape, strides, itemsize):
        return shape, (), False
    if len(shape) > 1 and _contiguous(shape[::-1], strides[::-1], itemsize):
        return shape[::-1], (), True
    return shape, strides, False


def _dlpack_device(array: object) -> tuple[int, int] | None:
    ask = getattr(array, "__dlpack_device__", None)
    if ask is None or not hasattr(array, "__dlpack__"):
        return None
    try:
        kind, number = ask()
    except Exception:  # on several devices at once, or of a kind that the protocol does not support
        return None
    return int(kind), int(number)


def is_on_device(array: object) -> bool:
    """Whether an array says that it lies outside the host's memory."""
    place = _dlpack_device(array)
    if place is not None:
        return place[0] not in _HOST
    try:
        return isinstance(getattr(array, "__cuda_array_interface__", None), dict)
    except Exception:  # a property that refuses
        return False


def _capsule(array: object, **options: object) -> object:
    try:
        return array.__dlpack__(max_version=(1, 0), **options)  # type: ignore[attr-defined]
    except TypeError:  # an older version of the protocol, without that argument
        return array.__dlpack__(**options)  # type: ignore[attr-defined]


def _current_device(array: object) -> contextlib.AbstractContextManager:
    """Makes the tensor's device current: PyTorch exports tensors of its current device only."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.cuda.device(array.device)
    return contextlib.nullcontext()


def _dlpack_type(name: str, facts: _core.DlpackFacts) -> str:
    code, bits, lanes = facts.code, facts.bits, facts.lanes
    known = _DLPACK_TYPES.get((code, bits)) if lanes == 1 else None
    if known is None:
        raise _unsupported(
            name, f"DLPack's type {code} with {bits} bits" + (f" x {lanes}" if lanes != 1 else "")
        )
    return known


def _from_dlpack(name: str, array: object, stream: int | None) -> DeviceArrayView:
    # The producer makes the named stream wait for the work that makes the data. The protocol allows
    # no 0; a thread's default stream is not known to all producers: the legacy stream then waits
    # for the data, and the core for the other stream.
    asked = _LEGACY_DEFAULT if stream in (None, 0, _THREAD_DEFAULT) else stream
    with _current_device(array):
        capsule = _capsule(array, stream=asked)
    facts = _core.dlpack_facts(capsule)
    if facts.device_type not in _CUDA:
        raise TwinrunError("changed its device while it was taken", where=name)
    dtype = _dlpack_type(name, facts)
    size = ITEMSIZE[dtype]
    strides = None if facts.strides is None else tuple(s * size for s in facts.strides)
    if strides is not None and any(abs(s) >= 1 << 62 for s in strides):
        # CuPy divides a negative stride by the item size as if it were unsigned; its other
        # interface is correct.
        raise ValueError(f"DLPack names impossible strides: {strides}")
    shape, strides, fortran = _layout(tuple(facts.shape), strides, size)
    return DeviceArrayView(
        dtype,
        shape,
        strides,
        facts.address,
        facts.device,
        stream or 0,
        False,
        fortran,
        capsule,
        array,
        facts.read_only,
    )


def _number_of_device(name: str, array: object, address: int) -> int:
    """The device of an address; the interface does not name it."""
    if address:
        number = _core.device_of(address)
        if number is not None:
            if number < 0:
                raise TwinrunError("its address is not in a device's memory", where=name, fix="was it freed?")
            return number
    said = getattr(array, "device", None)
    for attribute in ("id", "index"):
        number = getattr(said, attribute, None)
        if isinstance(number, int):
            return number
    return 0


def _from_cuda_array_interface(
    name: str, array: object, interface: dict, stream: int | None
) -> DeviceArrayView:
    if interface.get("mask") is not None:
        raise TwinrunError("has a mask, and masked elements have no value", where=name, fix="fill them")
    typestr = str(interface["typestr"])
    try:
        dtype = np.dtype(typestr)
    except TypeError:
        raise _unsupported(name, repr(typestr)) from None
    known = dtype_of(dtype)
    if known is None and dtype.str[1:] == "V2" and str(getattr(array, "dtype", "")).endswith("bfloat16"):
        known = "bf16", "big" if typestr[0] == ">" else "little"
    if known is None:
        raise _unsupported(name, repr(typestr))
    kind, order = known
    given = interface.get("strides")
    shape, strides, fortran = _layout(
        tuple(map(int, interface["shape"])), None if given is None else tuple(map(int, given)), ITEMSIZE[kind]
    )
    address = int(interface["data"][0] or 0)
    # The producer's stream; without one there is nothing to wait for, and the default stream works.
    if stream is None:
        stream = stream_handle(interface.get("stream")) or 0
    device = _number_of_device(name, array, address)
    swap = order != sys.byteorder and ITEMSIZE[kind] > 1
    read_only = bool(interface["data"][1])
    return DeviceArrayView(
        kind, shape, strides, address, device, stream, swap, fortran, array, array, read_only
    )


def _plain_tensor(array: object) -> object:
    """Tensors of PyTorch without what no protocol supports: gradients, pending conjugation and negation."""
    if type(getattr(array, "requires_grad", None)) is bool and hasattr(array, "detach"):
        array = array.detach()
        for pending, resolve in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
            if getattr(array, pending, bool)():
                array = getattr(array, resolve)()
    return array


def _device_view(name: str, array: object, stream: int | None) -> DeviceArrayView | None:
    """The view of an array on a GPU; None where it lies elsewhere."""
    place = _dlpack_device(array)
    refused: Exception | None = None
    if place is not None and place[0] in _CUDA:
        # DLPack comes first: it names the device, supports bf16, and orders the data before our
        # reads.
        try:
            return _from_dlpack(name, array, stream)
        except TwinrunError:
            raise
        except Exception as e:
            refused = e
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except Exception as e:
        interface, refused = None, refused or e
    if isinstance(interface, dict):
        return _from_cuda_array_interface(name, array, interface, stream)
    if place is not None and place[0] not in (*_HOST, *_CUDA):
        raise TwinrunError(
            f"is on a device of DLPack's kind {place[0]}, and only CUDA's are supported",
            where=name,
            fix="copy it to the host",
        )
    if refused is not None:
        raise TwinrunError(f"cannot be taken: {refused}", where=name) from None
    return None


class _Exported:
    """Host memory of a DLPack capsule, for numpy, which has no bf16: its bits."""

    def __init__(self, capsule: object, facts: _core.DlpackFacts) -> None:
        self._capsule = capsule
        strides = facts.strides
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<u2" if sys.byteorder == "little" else ">u2",
            "shape": tuple(facts.shape),
            "strides": None if strides is None else tuple(2 * s for s in strides),
            "data": (facts.address, facts.read_only),
        }


def _without_mask(name: str, array: np.ndarray, what: str, fix: str) -> np.ndarray:
    """The array as one of numpy's own class. Raises TwinrunError where it has masked elements."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise TwinrunError(what, where=name, fix=fix)
    return np.asarray(array)


def _as_numpy(
    name: str,
    array: object,
    masked: tuple[str, str] = (
        "has masked elements, which have no value",
        "fill them: array.filled(np.nan)",
    ),
) -> tuple[np.ndarray, str | None]:
    """The array, and 'bf16' where it holds the bits of bf16.

    masked: what is wrong with masked elements, and what to do. An object that is no masked array may give
    one to numpy, which loses the mask where it is asked for a plain array.
    """
    try:
        made = np.asanyarray(array)
    except MemoryError:
        raise
    except Exception as e:
        place = _dlpack_device(array)
        if place is not None and place[0] in _HOST:
            with contextlib.suppress(BufferError, RuntimeError, TypeError):
                capsule = _capsule(array)
                facts = _core.dlpack_facts(capsule)
                if _dlpack_type(name, facts) == "bf16":
                    if 0 in facts.shape:
                        return np.empty(facts.shape, np.uint16), "bf16"
                    return np.asarray(_Exported(capsule, facts)), "bf16"
        raise TwinrunError(f"cannot be taken for an array: {e}", where=name) from None
    return _without_mask(name, made, *masked), None


def _host_view(name: str, array: object) -> ArrayView:
    a, kind = _as_numpy(name, array)
    if a.dtype.name == "bfloat16":
        kind = "bf16"
    order: str = sys.byteorder
    if kind is None:
        known = dtype_of(a.dtype)
        if known is None:
            raise _unsupported(name, a.dtype)
        kind, order = known
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


def view(name: str, array: object, stream: object = None) -> ArrayView | DeviceArrayView:
    """The memory of a numpy array, of anything that numpy converts, or of an array on a GPU.

    On the host contiguous (C or Fortran order) and 1-D strided arrays are used in place; others are copied
    once. On a GPU all are used in place. stream: the stream whose work makes the data, if it is not the one
    that the array names. Raises TwinrunError for types that are not numbers.
    """
    if isinstance(array, np.ndarray):
        return _host_view(name, array)
    array = _plain_tensor(array)
    return _device_view(name, array, stream_handle(stream)) or _host_view(name, array)


def bits_of_small(array: Any) -> tuple[Any, str | None]:
    """An array of 8-bit floating-point numbers as its bytes, and the name of their type; others as they are,
    and None.
    """
    try:
        named = str(getattr(array, "dtype", "")).removeprefix("torch.")
    except Exception:  # an object of another package may raise anything: it is no such array
        return array, None
    if not named.startswith("float8_"):
        return array, None
    if isinstance(array, np.ndarray):  # of ml_dtypes
        return array.view(np.uint8), named
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return array, None
    return array.detach().view(torch.uint8), named


def row_major(v: ArrayView | DeviceArrayView) -> ArrayView | DeviceArrayView:
    """The same array with its first dimension slowest: a copy on the host, strides on a GPU."""
    if not v.fortran_order:
        return v
    if isinstance(v, DeviceArrayView):
        strides = v.strides or tuple(np.empty(v.shape, storage_dtype(v.dtype)).strides)
        return replace(v, shape=v.shape[::-1], strides=strides[::-1], fortran_order=False)
    a = np.ascontiguousarray(v.owner.T)
    address = a.__array_interface__["data"][0]
    return replace(v, shape=a.shape, address=address, stride=a.itemsize, fortran_order=False, owner=a)


def taken(name: str, array: object, stream: object = None) -> ArrayView | DeviceArrayView:
    """As `view`; but an array on a GPU that cannot be used is copied to the host by its own library.

    Raises Unsupported where that library cannot.
    """
    v = view(name, array, stream)
    if isinstance(v, ArrayView):
        return v
    reason = _core.device_problem(v.device)
    if not reason:
        return v
    try:
        a = np.asarray(v.array)
    except Exception:  # most libraries refuse, so that no copy to the host happens by mistake
        a = np.asarray(None)
    if a.dtype == object:
        raise Unsupported(
            f"is on cuda:{v.device}, which cannot be used: {reason}", where=name, fix="copy it to the host"
        )
    return _host_view(name, a)


def _read_only(name: str) -> TwinrunError:
    return TwinrunError("is read-only", where=name, fix="give an array that can be written")


def check_places(name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raises TwinrunError where elements of an array lie in one place, as those of an expanded one."""
    if 0 not in shape and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
        raise TwinrunError(
            "has several elements in one place of memory, as expanded arrays have",
            where=name,
            fix="give a copy of it, or the array that was expanded",
        )


def _check_target(name: str, array: object, taken: np.ndarray) -> None:
    """Raises TwinrunError where what is written into `taken` would not be seen in the array."""
    if taken.size == 0:
        return
    check_places(name, taken.shape, taken.strides)
    if isinstance(array, np.ndarray):
        return
    # Each copy lies elsewhere, as the first one is still there.
    if _address(_as_numpy(name, array)[0]) != _address(taken):
        raise TwinrunError(
            f"{type(array).__name__} gives numpy a copy, so it cannot be written",
            where=name,
            fix="give a numpy array",
        )


def _address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def writable(name: str, array: object) -> tuple[np.ndarray, str] | DeviceArrayView:
    """Memory to write into: on the host (array, element type), on a GPU the dense view of the array.

    Raises TwinrunError where the array cannot be written, or only a copy could be.
    """
    if isinstance(array, np.generic):
        raise TwinrunError(
            f"is a scalar of numpy ({type(array).__name__}), which is read-only",
            where=name,
            fix="give an array: np.array(value)",
        )
    if isinstance(array, bytes):
        raise _read_only(name)
    if not isinstance(array, np.ndarray):
        given, array = array, _plain_tensor(array)
        if array is not given and (getattr(given, "is_conj", bool)() or getattr(given, "is_neg", bool)()):
            raise TwinrunError(
                "is a tensor with a pending conjugation or negation, of which only a copy could be written",
                where=name,
                fix="give the tensor that it is a view of",
            )
        on_device = _device_view(name, array, None)
        if on_device is not None:
            if on_device.read_only:
                raise _read_only(name)
            if on_device.strides or on_device.swap:
                raise TwinrunError("must be dense to be written", where=name)
            return on_device
        if not any(hasattr(array, a) for a in ("__array_interface__", "__dlpack__", "__buffer__")):
            try:
                memoryview(array)  # type: ignore[arg-type]
            except TypeError:
                raise TwinrunError(
                    f"{type(array).__name__} is no array that can be written",
                    where=name,
                    fix="give a numpy array",
                ) from None
    hides = "has masked elements, which would hide what is written", "give its data: array.data"
    a, kind = _as_numpy(name, array, hides)
    if a.dtype.name == "bfloat16":
        kind = "bf16"
    if kind is None:
        known = dtype_of(a.dtype)
        if known is None:
            raise _unsupported(name, a.dtype)
        kind = known[0]
    if not a.flags.writeable:
        raise _read_only(name)
    _check_target(name, array, a)
    return a, kind
