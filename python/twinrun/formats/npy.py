"""NumPy .npy files: a text header, then the array in the layout of memory. Read without numpy.load, and never
unpickled.

A file of several arrays in sequence (numpy.save on an open file) has the fields arr_0, arr_1, …

Source: numpy.lib.format.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, Unsupported
from .element_types import ITEMSIZE
from .files import MEND, open_regular, read_exact, reading
from .layout import Stored, array_fields, bytes_field, plain_field, say_type
from .model import FileContent, Format, checked_shape
from .naming import field_name

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

MAGIC = b"\x93NUMPY"
PICKLED = "pickled objects"
_LONGEST_HEADER = 1 << 16  # numpy itself writes hundreds of bytes and reads 10,000
_MOST_ARRAYS = 10_000
# Types that need no NumPy, by the text that NumPy writes for them.
_PLAIN = {
    f"{mark}{kind}{size}": (f"{name}{8 * size}", order)
    for mark, order in (("<", "little"), (">", "big"))
    for kind, name, sizes in (
        ("f", "f", (2, 4, 8)),
        ("i", "i", (2, 4, 8)),
        ("u", "u", (2, 4, 8)),
        ("c", "c", (8, 16)),
    )
    for size in sizes
} | {"|b1": ("bool", "little"), "|i1": ("i8", "little"), "|u1": ("u8", "little")}


@dataclass(frozen=True)
class Header:
    """The header of an array.

    descr: the type, as the header writes it. plain: type and byte order of numbers that the core
    reads, None for other types.
    shape: in C order of the bytes, so reversed if `fortran_order`. bytes_before: of the header. bytes_data:
    of the array.
    """

    descr: object
    plain: tuple[str, str] | None
    shape: tuple[int, ...]
    fortran_order: bool
    bytes_before: int
    bytes_data: int

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """The type. NumPy is imported for it."""
        return np.lib.format.descr_to_dtype(self.descr)  # type: ignore[arg-type]

    @property
    def pickled(self) -> bool:
        """Whether its elements are Python objects."""
        return self.plain is None and self.dtype.hasobject


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
        header: Any = _usual_header(text)
        if header is None:
            text = re.sub(r"(\d)L\b", r"\1", text)  # Python 2 wrote (3L, 4L)
            try:
                header = ast.literal_eval(text.strip())
            except ValueError:  # its message shows an object of Python
                header = None
        if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
            raise DamagedFile(f"{what}: its header lacks descr, fortran_order or shape", where=where)
        if not isinstance(header["shape"], tuple) or not isinstance(header["fortran_order"], bool):
            raise DamagedFile(f"{what}: shape or fortran_order in its header is invalid", where=where)
        descr = header["descr"]
        plain = _PLAIN.get(descr) if isinstance(descr, str) else None
        dtype = None if plain is not None else np.lib.format.descr_to_dtype(descr)
    itemsize = ITEMSIZE[plain[0]] if plain is not None else dtype.itemsize  # type: ignore[union-attr]
    shape = checked_shape(header["shape"], itemsize, where, what)
    fortran = header["fortran_order"] and len(shape) > 1
    bytes_data = math.prod(shape) * itemsize
    made = Header(descr, plain, shape[::-1] if fortran else shape, fortran, begin + length, bytes_data)
    if bytes_data > size - begin - length and not made.pickled:
        message = (
            f"{what}: {shape} of {made.dtype} needs {bytes_data} bytes, {size - begin - length} are left"
        )
        raise DamagedFile(message, where=where, fix=f"the file is cut short or its header is wrong: {MEND}")
    return made


_USUAL = (
    r"\{'descr': '([<>|][a-zA-Z]\d{1,2})', 'fortran_order': (True|False), "
    r"'shape': \(((?:(?:0|[1-9]\d{0,17}),)?|(?:0|[1-9]\d{0,17})(?:, (?:0|[1-9]\d{0,17}))+)\), \}\s*"
)


def _usual_header(text: str) -> dict[str, object] | None:
    """The header, where NumPy wrote it: what `ast.literal_eval` finds, in a tenth of its time. None
    for others.
    """
    found = re.fullmatch(_USUAL, text, re.ASCII)
    if found is None:
        return None
    shape = tuple(map(int, filter(None, found[3].split(","))))
    return {"descr": found[1], "fortran_order": found[2] == "True", "shape": shape}


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
            if header.pickled:
                break  # the end of a pickle is only known after unpickling
            at += header.bytes_before + header.bytes_data
    for number, (header, offset) in enumerate(found):
        name = field_name(path) if len(found) == 1 else f"arr_{number}"
        if header.pickled:  # never unpickled
            content.add(bytes_field(name, Stored(path, offset), size - offset, PICKLED))
            continue
        if header.plain is not None:
            content.add(
                plain_field(name, header.plain, header.shape, Stored(path, offset), header.fortran_order)
            )
            continue
        say_type(content, name, header.dtype)
        fields, skipped = array_fields(
            name, header.dtype, header.shape, Stored(path, offset), header.fortran_order
        )
        for field in fields:
            content.add(field)
        content.skipped += skipped
    only = found[0][0]
    content.one_array = len(found) == 1 and (only.plain is not None or only.dtype.names is None)
    content.array_name = field_name(path) if len(found) == 1 else None
    return content


FORMAT = Format("npy", "NumPy array", open_npy, suffixes=(".npy",), magic=(MAGIC,), one_array=True)
