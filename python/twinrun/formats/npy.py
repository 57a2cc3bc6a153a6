"""NumPy .npy files: a text header, then the array in the layout of memory. Read without numpy.load, and never
unpickled.

A file of several arrays in sequence (numpy.save on an open file) has the fields arr_0, arr_1, …

Source: numpy.lib.format.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import DamagedFile, Unsupported
from .files import open_regular, read_exact, reading
from .layout import Stored, array_fields, bytes_field, say_type
from .model import FileContent, Format, checked_shape
from .naming import field_name

MAGIC = b"\x93NUMPY"
PICKLED = "pickled objects"
_LONGEST_HEADER = 1 << 16  # numpy itself writes hundreds of bytes and reads 10,000
_MOST_ARRAYS = 10_000


@dataclass(frozen=True)
class Header:
    """The header of an array.

    shape: in C order of the bytes, so reversed if `fortran_order`. bytes_before: of the header. bytes_data:
    of the array.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran_order: bool
    bytes_before: int
    bytes_data: int


def parse_header(read: Callable[[int, int], bytes], size: int, where: str, what: str) -> Header:
    """Parses the header of an array. read: `read(offset, count)` returns bytes of it. size: bytes that can be
    read.

    Raises DamagedFile if the header is invalid or the array needs more bytes, Unsupported for an unknown
    version. what: names the array in messages.
    """
    if size < 10:
        raise DamagedFile(f"{what}: {size} bytes are too few for an npy header", where=where)
    start = read(0, min(size, 12))
    if start[:6] != MAGIC:
        raise DamagedFile(f"{what} does not begin like an npy array", where=where)
    version = (start[6], start[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise Unsupported(f"{what}: npy version {version[0]}.{version[1]} is not known", where=where)
    begin = 10 if version == (1, 0) else 12
    if size < begin:
        raise DamagedFile(f"{what}: {size} bytes are too few for an npy header", where=where)
    (length,) = struct.unpack_from("<H" if version == (1, 0) else "<I", start, 8)
    if length > size - begin:
        raise DamagedFile(f"{what}: its header claims {length} bytes, {size - begin} are left", where=where)
    if length > _LONGEST_HEADER:
        raise Unsupported(f"{what}: a header of {length} bytes, more than {_LONGEST_HEADER}", where=where)
    with reading(where, f"{what}: header"):
        text = read(begin, length).decode("utf-8" if version == (3, 0) else "latin-1")
        text = re.sub(r"(\d)L\b", r"\1", text)  # Python 2 wrote (3L, 4L)
        header = ast.literal_eval(text.strip())
        if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
            raise DamagedFile(f"{what}: its header lacks descr, fortran_order or shape", where=where)
        if not isinstance(header["shape"], tuple) or not isinstance(header["fortran_order"], bool):
            raise DamagedFile(f"{what}: shape or fortran_order in its header is invalid", where=where)
        dtype = np.lib.format.descr_to_dtype(header["descr"])
    shape = checked_shape(header["shape"], dtype.itemsize, where, what)
    fortran = header["fortran_order"] and len(shape) > 1
    bytes_data = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and bytes_data > size - begin - length:
        message = f"{what}: {shape} of {dtype} needs {bytes_data} bytes, {size - begin - length} are left"
        raise DamagedFile(message, where=where, fix="the file is cut short or its header is wrong")
    return Header(dtype, shape[::-1] if fortran else shape, fortran, begin + length, bytes_data)


def open_npy(path: str) -> FileContent:
    """Opens a .npy file. Its field is named after the file: `out` for out_250.npy."""
    file, size = open_regular(path)
    content = FileContent(path, "npy", one_array=True)
    found: list[tuple[Header, int]] = []
    with file:
        at = 0
        while at < size or not found:
            what = "the file" if not found else f"the array at byte {at}"
            if found and read_exact(file, at, min(size - at, 6), path, what) != MAGIC:
                raise DamagedFile(f"{size - at} bytes after the array do not belong to an array", where=path)
            if len(found) >= _MOST_ARRAYS:
                raise Unsupported(f"more than {_MOST_ARRAYS} arrays in one file", where=path)

            def read(offset: int, count: int, base: int = at, what: str = what) -> bytes:
                return read_exact(file, base + offset, count, path, what)

            header = parse_header(read, size - at, path, what)
            found.append((header, at + header.bytes_before))
            if header.dtype.hasobject:
                break  # the end of a pickle is only known after unpickling
            at += header.bytes_before + header.bytes_data
    for number, (header, offset) in enumerate(found):
        name = field_name(path) if len(found) == 1 else f"arr_{number}"
        if header.dtype.hasobject:  # never unpickled
            content.add(bytes_field(name, Stored(path, offset), size - offset, PICKLED))
            continue
        say_type(content, name, header.dtype)
        fields, skipped = array_fields(
            name, header.dtype, header.shape, Stored(path, offset), header.fortran_order
        )
        for field in fields:
            content.add(field)
        content.skipped += skipped
    content.one_array = len(found) == 1 and found[0][0].dtype.names is None
    content.array_name = field_name(path) if len(found) == 1 else None
    return content


FORMAT = Format("npy", "NumPy array", open_npy, suffixes=(".npy",), magic=(MAGIC,), one_array=True)
