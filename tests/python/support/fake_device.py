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

from twinrun import _core

CUDA = 2
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
ALLOCATE, WAIT_STREAM, FILL = 7, 13, 21  # in DeviceRuntime (src/core/device/device.hpp)


class Status(ctypes.Structure):
    _fields_ = (("failed", ctypes.c_bool), ("code", ctypes.c_int), ("text", ctypes.c_char * 248))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("tensor_of", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


def _table(name: str) -> int:
    library = ctypes.CDLL(os.environ["TWINRUN_CUDA_LIBRARY"])
    find = library.twinrun_device_table
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p]
    version = _core.__version__.encode()
    return next(found for abi in range(1, 1000) if (found := find(name.encode(), abi, version)))


def memory(count: int, device: int = 0) -> int:
    """The address of so many bytes on a device. They stay as long as the process."""
    function = ctypes.cast(_table("runtime"), ctypes.POINTER(ctypes.c_void_p))[ALLOCATE]
    allocate = ctypes.CFUNCTYPE(Status, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))
    address = ctypes.c_void_p()
    status = allocate(function)(device, max(count, 1), ctypes.byref(address))
    assert not status.failed, status.text
    assert address.value is not None
    return address.value


class Runtime:
    """Work of the package's own, in the default stream of the first device."""

    def __init__(self) -> None:
        self._functions = ctypes.cast(_table("runtime"), ctypes.POINTER(ctypes.c_void_p))

    def fill(self, array: np.ndarray, byte: int) -> None:
        """Sets all bytes, after the stream's earlier work."""
        kinds = ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        address = array.__array_interface__["data"][0]
        status = ctypes.CFUNCTYPE(Status, *kinds)(self._functions[FILL])(0, address, byte, array.nbytes, None)
        assert not status.failed, status.text

    def wait(self) -> None:
        """Until the stream's work is done."""
        status = ctypes.CFUNCTYPE(Status, ctypes.c_int, ctypes.c_void_p)(self._functions[WAIT_STREAM])(
            0, None
        )
        assert not status.failed, status.text


def fail(fault: str) -> None:
    """Makes calls of the library fail, as TWINRUN_FAKE_DEVICE_FAIL says; '': none."""
    function = ctypes.cast(_table("fake"), ctypes.POINTER(ctypes.c_void_p))[0]
    assert ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p)(function)(fault.encode())


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
        self._shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        self._strides = (ctypes.c_int64 * max(1, array.ndim))(*(s // array.itemsize for s in array.strides))
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


Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


@Function
def tensor_of(of: Tensor, into: ctypes.pointer) -> int:
    to, array = into.contents, of.array
    to.data, to.byte_offset = array.__array_interface__["data"][0], 0
    to.device_type, to.device, to.dimensions = CUDA, of.device_number, array.ndim
    to.code, to.bits, to.lanes = CODES[array.dtype.kind], array.itemsize * 8, 1
    to.shape, to.strides = of._shape, of._strides
    return 0


EXCHANGE = Exchange(1, 3, None, None, None, None, ctypes.cast(tensor_of, ctypes.c_void_p), None)


def package() -> types.SimpleNamespace:
    """The package; whoever looks for PyTorch finds it from now on."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Tensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(EXCHANGE), b"dlpack_exchange_api", None)
    made = types.SimpleNamespace(
        Tensor=Tensor,
        nn=types.SimpleNamespace(Parameter=type("Parameter", (), {})),
        strided=object(),
        cuda=types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=0)),
    )
    sys.modules["torch"] = made
    return made
