"""DLPack's exchange interface, by which tensors offer themselves to C: its structures, for packages that stand for PyTorch."""

from __future__ import annotations

import ctypes

import numpy as np

CPU, CUDA, OTHER = 1, 2, 13  # types of devices
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # by numpy's kinds


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


# int tensor_of(object, DLTensor* into)
Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


def capsule(exchange: Exchange, name: bytes = b"dlpack_exchange_api") -> object:
    """What a class of tensors has as `__dlpack_c_exchange_api__`. The exchange must outlive it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(exchange), name, None)


def describe(
    into: DLTensor, array: np.ndarray, shape: object, strides: object, device_type: int, device: int = 0
) -> None:
    """Says where an array lies, and what it is. shape, strides: arrays of c_int64 that outlive `into`."""
    into.data, into.byte_offset = array.__array_interface__["data"][0], 0
    into.device_type, into.device, into.dimensions = device_type, device, array.ndim
    into.code, into.bits, into.lanes = CODES[array.dtype.kind], array.itemsize * 8, 1
    into.shape, into.strides = shape, strides


def in_items(array: np.ndarray) -> tuple[object, object]:
    """Shape and strides of an array in items, as DLPack has them."""
    many = ctypes.c_int64 * max(1, array.ndim)
    return many(*array.shape), many(*(s // array.itemsize for s in array.strides))
