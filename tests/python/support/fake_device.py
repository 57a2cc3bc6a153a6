"""Tensors on the fake device library (tests/support/fake_device), of a package that stands for PyTorch.

They offer themselves to C as PyTorch's do (DLPack's exchange interface), and to Python by `__cuda_array_interface__`. Only for a
process in which TWINRUN_CUDA_LIBRARY names the fake library.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types

import numpy as np
from dlpack_exchange import CUDA, Exchange, Function, capsule, describe, in_items

from twinrun import _core

ALLOCATE, WAIT_STREAM, FILL = 7, 13, 21  # in DeviceRuntime (src/core/device/device.hpp)


class Status(ctypes.Structure):
    _fields_ = (("failed", ctypes.c_bool), ("code", ctypes.c_int), ("text", ctypes.c_char * 248))


def _table(name: str) -> int:
    library = ctypes.CDLL(os.environ["TWINRUN_CUDA_LIBRARY"])
    find = library.twinrun_device_table
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p]
    version = _core.__version__.encode()
    return next(found for abi in range(1, 1000) if (found := find(name.encode(), abi, version)))


def _functions(table: str) -> ctypes.POINTER(ctypes.c_void_p):
    return ctypes.cast(_table(table), ctypes.POINTER(ctypes.c_void_p))


def _call(function: int, kinds: tuple[type, ...], *given: object) -> None:
    """Calls a function of the runtime by its number."""
    status = ctypes.CFUNCTYPE(Status, *kinds)(_functions("runtime")[function])(*given)
    assert not status.failed, status.text


def memory(count: int, device: int = 0) -> int:
    """The address of so many bytes on a device. They stay as long as the process."""
    address = ctypes.c_void_p()
    kinds = ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    _call(ALLOCATE, kinds, device, max(count, 1), ctypes.byref(address))
    assert address.value is not None
    return address.value


class Runtime:
    """Work of the package's own, in the default stream of the first device."""

    def fill(self, array: np.ndarray, byte: int) -> None:
        """Sets all bytes, after the stream's earlier work."""
        kinds = ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        _call(FILL, kinds, 0, array.__array_interface__["data"][0], byte, array.nbytes, None)

    def wait(self) -> None:
        """Until the stream's work is done."""
        _call(WAIT_STREAM, (ctypes.c_int, ctypes.c_void_p), 0, None)


def fail(fault: str) -> None:
    """Makes calls of the library fail, as TWINRUN_FAKE_DEVICE_FAIL says; '': none."""
    assert ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p)(_functions("fake")[0])(fault.encode())


class Tensor:
    """A tensor on a device, with a copy of an array, in the same strides where `strided`."""

    def __init__(self, array: np.ndarray, device: int = 0, strided: bool = False, skew: int = 0) -> None:
        self.device_number = device
        base = array.base if strided and isinstance(array.base, np.ndarray) else array
        self._block = memory(base.nbytes + 2 * skew, device) + skew
        there = np.frombuffer((ctypes.c_char * max(base.nbytes, 1)).from_address(self._block), np.uint8)
        there = there[: base.nbytes]
        there[:] = np.frombuffer(base.tobytes("A"), np.uint8)
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        self.set_(np.ndarray(array.shape, array.dtype, there.data, offset, array.strides))

    def set_(self, array: np.ndarray) -> None:
        """It lies there from now on."""
        self.array = array
        self._shape, self._strides = in_items(array)
        self.negative = False

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "strides": self.array.strides,
            "data": (self.array.__array_interface__["data"][0], False),
            "stream": 1,
            "version": 3,
        }

    def is_neg(self) -> bool:
        return self.negative

    def is_conj(self) -> bool:
        return False

    def has_names(self) -> bool:
        return False


@Function
def tensor_of(of: Tensor, into: ctypes.pointer) -> int:
    describe(into.contents, of.array, of._shape, of._strides, CUDA, of.device_number)
    return 0


EXCHANGE = Exchange(1, 3, None, None, None, None, ctypes.cast(tensor_of, ctypes.c_void_p), None)


def package() -> types.SimpleNamespace:
    """The package; whoever looks for PyTorch finds it from now on."""
    Tensor.__dlpack_c_exchange_api__ = capsule(EXCHANGE)
    made = types.SimpleNamespace(
        Tensor=Tensor,
        nn=types.SimpleNamespace(Parameter=type("Parameter", (), {})),
        strided=object(),
        cuda=types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=0)),
    )
    sys.modules["torch"] = made
    return made
