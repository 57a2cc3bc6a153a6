"""The values file: elements of small arrays, kept beside their digests, so that a check knows both sides.

Its layout: spec/values.md. Nothing in it is trusted: checksums, and the digests of the values, say whether it
belongs to the metadata file beside it.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..errors import DamagedFile, FormatError, MissingFile, Unsupported
from ..formats.element_types import ITEMSIZE, storage_dtype
from ..formats.files import file_size
from ..marks import VALUES_MAGIC
from ..runs.arrays import ArrayView
from ..runs.fields import FieldRef

__all__ = [
    "KEEP_VALUES",
    "KeptValues",
    "is_values_file",
    "parsed_values",
    "read_values",
    "values_bytes",
    "values_name",
]

KEEP_VALUES = 64 * 1024  # bytes of the largest array that keeps its values, by default
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQQ")
_MOST_DIRECTORY = 1 << 28
_RESTORE = "restore it, or save again"


def values_name(metadata: str) -> str:
    """The name of the values file that belongs to a metadata file."""
    return metadata.removesuffix(".twm") + ".twv"


def is_values_file(path: str) -> bool:
    """Whether a regular file, no link, begins like a values file; it may be damaged behind that."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return file.read(len(VALUES_MAGIC)) == VALUES_MAGIC
    except OSError:
        return False


@dataclass(frozen=True)
class KeptValues:
    """The elements of one field: bytes, little-endian, row by row."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    def ref(self, name: str, where: str) -> FieldRef:
        """The elements as a field in memory."""
        array = np.frombuffer(bytearray(self.raw), storage_dtype(self.dtype)).reshape(self.shape)
        swap = sys.byteorder != "little" and ITEMSIZE[self.dtype] > 1
        address = array.__array_interface__["data"][0]
        memory = ArrayView(self.dtype, self.shape, address, array.itemsize, swap, False, array)
        return FieldRef(name, self.dtype, "little", self.shape, False, where, memory=memory)


def values_bytes(refs: Iterable[FieldRef], most: int, metadata: bytes) -> bytes | None:
    """The values file of these fields; None where no field is small enough.

    refs: read by row. most: bytes of the largest field that is kept, 0 for none. metadata: the
    content of the metadata file that it belongs to.
    """
    directory, values = [], []
    for ref in refs:
        size = ref.items * ref.itemsize
        if not most or size > most:
            continue
        raw = bytes(_core.read_source(ref.need_source(), 0, ref.items)) if ref.items else b""
        directory.append({"name": ref.name, "dtype": ref.dtype, "shape": list(ref.shape), "bytes": size})
        values.append(raw)
    if not directory:
        return None
    told = json.dumps(directory).encode()
    body = told + b"".join(values)
    size = _HEADER.size + len(body)
    head = _HEADER.pack(
        VALUES_MAGIC, _VERSION, 0, size, len(told), _core.xxh3(metadata), _core.xxh3(body), 0, 0
    )
    return head[:-8] + struct.pack("<Q", _core.xxh3(head[:-8])) + body


def read_values(path: str, metadata: bytes) -> dict[str, KeptValues]:
    """Reads a values file: {field: its elements}.

    metadata: the content of the metadata file that it must belong to. Raises MissingFile, DamagedFile,
    Unsupported.
    """
    try:
        if os.path.exists(path):
            file_size(path)  # reading a pipe would block
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise MissingFile("no such file", where=path, fix=_RESTORE) from None
    except OSError as e:
        raise FormatError.of_system(e, path) from None
    return parsed_values(content, path, metadata)


def parsed_values(content: bytes, path: str, metadata: bytes) -> dict[str, KeptValues]:
    """The bytes of a values file, as `read_values` gives them. path: for messages."""

    def need(true: bool, said: str) -> None:
        if not true:
            raise DamagedFile(said, where=path, fix=_RESTORE)

    need(len(content) >= _HEADER.size and content.startswith(VALUES_MAGIC), "is no values file")
    _, version, unused, size, told, belongs, behind, unused_too, checksum = _HEADER.unpack_from(content)
    need(_core.xxh3(content[: _HEADER.size - 8]) == checksum, "its header has another checksum than content")
    if version != _VERSION:
        raise Unsupported(
            f"has version {version}, and this twinrun reads version {_VERSION}",
            where=path,
            fix="update twinrun",
        )
    need(unused == unused_too == 0, "has a header that is not understood")
    need(size == len(content), f"has {len(content)} bytes, and should have {size}")
    need(told <= min(_MOST_DIRECTORY, size - _HEADER.size), "has a directory that is longer than the file")
    need(_core.xxh3(content[_HEADER.size :]) == behind, "has another checksum than content")
    need(_core.xxh3(metadata) == belongs, "holds the values of other golden digests than those beside it")
    try:
        directory = json.loads(content[_HEADER.size : _HEADER.size + told].decode("utf-8"))
    except (ValueError, RecursionError):
        directory = None
    need(isinstance(directory, list), "has a directory that is not understood")
    found: dict[str, KeptValues] = {}
    at = _HEADER.size + told
    for entry in directory:
        kept = _entry(entry)
        need(kept is not None, "has a directory that is not understood")
        assert kept is not None
        name, dtype, shape, count = kept
        need(name not in found, "has a field twice")
        need(count <= len(content) - at, "has values behind its end")
        found[name] = KeptValues(dtype, shape, content[at : at + count])
        at += count
    need(at == len(content), "has more bytes than values")
    return found


def _entry(entry: object) -> tuple[str, str, tuple[int, ...], int] | None:
    """(name, dtype, shape, bytes) of an entry of the directory; None where it has no meaning."""
    if not isinstance(entry, Mapping):
        return None
    name, dtype, shape, count = (entry.get(key) for key in ("name", "dtype", "shape", "bytes"))
    if not (isinstance(name, str) and isinstance(dtype, str) and dtype in ITEMSIZE and type(count) is int):
        return None
    if not isinstance(shape, list) or len(shape) > 32:
        return None
    if not all(type(n) is int and 0 <= n < 1 << 60 for n in shape):
        return None
    if math.prod(shape) * ITEMSIZE[dtype] != count:
        return None
    return name, dtype, tuple(shape), count
