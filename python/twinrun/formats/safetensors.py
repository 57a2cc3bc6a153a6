"""safetensors: the length of the header as u64, a JSON header, then the tensors. Parsed here, without the
package.

The checks are those of the safetensors package: all tensors are within the file, do not overlap and leave no
hole.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
import struct
from typing import BinaryIO, NoReturn

from ..errors import DamagedFile, Unsupported
from .element_types import ITEMSIZE
from .files import open_regular, read_exact, reading
from .layout import Stored, bytes_field
from .model import Extent, Field, FileContent, Format, checked_shape

# About 300,000 tensors. The package's limit is 100 MB, but parsed JSON needs ten times the memory
# of its text.
_LONGEST_HEADER = 1 << 25

_DTYPES = {
    "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "BOOL": "bool", "C64": "c64",
    "I8": "i8", "I16": "i16", "I32": "i32", "I64": "i64", "U8": "u8", "U16": "u16", "U32": "u32", "U64": "u64",
}  # fmt: skip


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def open_safetensors(path: str) -> FileContent:
    """Opens a .safetensors file without reading a tensor.

    Elements of types that the core does not have, such as 8-bit floats, become bytes; the texts of
    `__metadata__` become facts.
    """
    file, size = open_regular(path)
    with file:
        if size < 8:
            raise DamagedFile(f"{size} bytes are too few for a safetensors header", where=path)
        (length,) = struct.unpack("<Q", read_exact(file, 0, 8, path, "header"))
        if length > size - 8:
            raise DamagedFile(f"its header claims {length} bytes, {size - 8} are left", where=path)
        if length > _LONGEST_HEADER:
            raise Unsupported(f"a header of {length} bytes, more than {_LONGEST_HEADER}", where=path)
        text = read_exact(file, 8, length, path, "header")
    if not text.startswith(b"{"):
        raise DamagedFile("its header does not begin with {: not a safetensors file", where=path)
    with reading(path, "header"):
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_no_constant)

    content = FileContent(path, "safetensors")
    data, data_size = 8 + length, size - 8 - length
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            _say_texts(content, entry)
            continue
        dtype, shape, begin, end = _entry(name, entry, data_size, path)
        ranges.append((begin, end, name))
        code = _DTYPES.get(dtype)
        if code is None:  # a type that the core does not have
            sizes = checked_shape(shape, 1, path, f"tensor {name!r}")
            new = bytes_field(name, Stored(path, data + begin), end - begin, f"{dtype:.40}")
            new.told_shape = sizes if math.prod(sizes) == end - begin else None
            content.add(new)
            content.say(name, "(shape)", shape)
            continue
        sizes = checked_shape(shape, ITEMSIZE[code], path, f"tensor {name!r}")
        count = math.prod(sizes)
        if count * ITEMSIZE[code] != end - begin:
            message = (
                f"tensor {name!r}: {sizes} of {dtype} takes {count * ITEMSIZE[code]} bytes, not {end - begin}"
            )
            raise DamagedFile(message, where=path)
        extents = (Extent(path, data + begin, count, ITEMSIZE[code]),) if count else ()
        content.add(Field(name, code, "little", sizes, extents=extents))

    at = 0
    for begin, end, name in sorted(ranges):
        if begin != at:
            trouble = (
                "overlaps the one before" if begin < at else f"leaves a hole of {begin - at} bytes before it"
            )
            raise DamagedFile(f"tensor {name!r} {trouble}", where=path)
        at = end
    if at != data_size:
        raise DamagedFile(f"{data_size - at} bytes after the last tensor belong to none", where=path)
    return content


def _say_texts(content: FileContent, entry: object) -> None:
    for word, value in entry.items() if isinstance(entry, dict) else (("__metadata__", entry),):
        content.say("", word, value)
    if entry == {}:  # the package distinguishes empty metadata from none
        content.say("", "(metadata)", "empty")


def texts_of_header(path: str, texts: dict[str, str] | None) -> FileContent:
    """The facts of a file without its tensors. texts: its `__metadata__`."""
    content = FileContent(path, "safetensors")
    if texts is not None:
        _say_texts(content, texts)
    return content


def _entry(name: str, entry: object, data_size: int, path: str) -> tuple[str, list[object], int, int]:
    """(dtype, shape, begin, end) of a tensor's description in the header.

    Raises DamagedFile if it is invalid.
    """
    if not isinstance(entry, dict):
        raise DamagedFile(f"tensor {name!r}: its description is not a JSON object", where=path)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not isinstance(offsets, list)
        or len(offsets) != 2
    ):
        raise DamagedFile(
            f"tensor {name!r}: its dtype, shape or data_offsets is missing or invalid", where=path
        )
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= data_size:
        raise DamagedFile(f"tensor {name!r}: its bytes are not within the file", where=path)
    return dtype, shape, begin, end


def _sniff(path: str, file: BinaryIO) -> bool:
    start = file.read(9)
    if len(start) < 9 or start[8:9] != b"{":
        return False
    (length,) = struct.unpack_from("<Q", start)
    file.seek(0, 2)
    return 2 <= length <= file.tell() - 8


FORMAT = Format("safetensors", "safetensors", open_safetensors, suffixes=(".safetensors",), sniff=_sniff)
