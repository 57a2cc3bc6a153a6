"""Folders of torch.distributed.checkpoint: `.metadata` lists for each tensor its boxes and their files.

`.metadata` is a pickle, read by `pickles`, which runs no code. Each box is an archive of torch.save within a
.distcp file. The boxes of a tensor are joined to the global tensor, so the number of ranks that wrote it, and
how they cut it, do not matter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from ..errors import DamagedFile, FormatError, Unsupported
from .blocks import BandCache
from .element_types import ITEMSIZE
from .files import file_size, open_regular, read_exact, reading
from .layout import Stored, add_others, bytes_field
from .model import Field, FileContent, Format, checked_shape, unreadable
from .pickles import Global, Opaque, Pairs, load
from .pytorch import DTYPES, SMALL, TensorFile, Walker
from .strided import Part, field_of_parts

METADATA = ".metadata"
_CACHE_BYTES = 128 << 20
_MOST_BOXES = 10_000_000
_LONGEST_METADATA = 1 << 28


def open_dcp(path: str) -> FileContent:
    """Opens a folder of torch.distributed.checkpoint.

    Fields have the fully qualified names of the tensors.
    """
    place = os.path.join(path, METADATA)
    file, size = open_regular(place)
    with file:
        if size > _LONGEST_METADATA:
            raise Unsupported(f"{size} bytes of metadata, more than {_LONGEST_METADATA}", where=place)
        root = load(read_exact(file, 0, size, place, "metadata"), place, "metadata")
    if not isinstance(root, Opaque) or not str(root.maker).endswith(".metadata.Metadata"):
        raise DamagedFile("is not the metadata of torch.distributed.checkpoint", where=place)
    with reading(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(".distcp"))
    content = FileContent(path, "dcp", sources=(place, *(os.path.join(path, name) for name in names)))
    with reading(place):
        stored = _storage(root.member("storage_data"), place)
        cache = BandCache(_CACHE_BYTES)
        for name, entry in _pairs(root.member("state_dict_metadata"), "state_dict_metadata", place):
            kind = entry.maker.name if isinstance(entry, Opaque) and isinstance(entry.maker, Global) else ""
            if kind == "TensorStorageMetadata":
                new = _field(path, place, name, entry, stored, cache, content)
                if new is not None:
                    content.add(new)
            else:
                _add_value(content, path, place, name, stored)
    add_others(content, path, lambda name: name == METADATA or name in names)
    return content


def _add_value(
    content: FileContent,
    folder: str,
    place: str,
    name: str,
    stored: dict[tuple[str, tuple[int, ...] | None], Opaque],
) -> None:
    """Adds a value that is not a tensor, as the bytes that torch.save wrote for it."""
    info = stored.get((name, None))
    if info is None:
        content.skipped.append((name, "its metadata names no place for this value"))
        return
    where, offset, length = _place_of(folder, place, f"value {name!r:.80}", info)
    content.add(bytes_field(name, Stored(where, offset), length))


def _pairs(value: Any, what: str, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Pairs):
        raise DamagedFile(f"its metadata lacks {what}", where=where)
    for key, entry in value.last():
        if not isinstance(key, str):
            raise DamagedFile(f"a name in {what} is not a text", where=where)
        yield key, entry


def _numbers(value: Any, what: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise DamagedFile(f"{what} is not a list of numbers", where=where)
    return checked_shape(value, 0, where, what)


def _storage(value: Any, where: str) -> dict[tuple[str, tuple[int, ...] | None], Opaque]:
    """{(name, offset of the box in its tensor, None for other values): where it is stored}."""
    if not isinstance(value, Pairs):
        raise DamagedFile("its metadata lacks storage_data", where=where)
    result: dict[tuple[str, tuple[int, ...] | None], Opaque] = {}
    if len(value) > _MOST_BOXES:
        raise Unsupported(f"more than {_MOST_BOXES} boxes", where=where)
    for key, entry in value:
        name = key.member("fqn") if isinstance(key, Opaque) else None
        offset = key.member("offset") if isinstance(key, Opaque) else None
        if not isinstance(name, str) or not isinstance(entry, Opaque):
            raise DamagedFile("a box without a name or a place in storage_data", where=where)
        result[name, None if offset is None else _numbers(offset, f"a place in {name!r:.80}", where)] = entry
    return result


def _field(
    folder: str,
    place: str,
    name: str,
    entry: Opaque,
    stored: dict[tuple[str, tuple[int, ...] | None], Opaque],
    cache: BandCache,
    content: FileContent,
) -> Field | None:
    """The field of a tensor; None, and an entry in `skipped`, if its type is not supported."""
    what = f"tensor {name!r:.80}"
    properties = entry.member("properties")
    dtype = properties.state if isinstance(properties, Opaque) else None
    if isinstance(dtype, Pairs):  # written by a version without TensorProperties.__getstate__
        dtype = dtype.find("dtype")
    elif isinstance(dtype, tuple) and dtype:
        dtype = dtype[0]
    if not isinstance(dtype, Global):
        raise DamagedFile(f"{what} has no type", where=place)
    code = DTYPES.get(dtype.name) or SMALL.get(dtype.name)
    if code is None:
        content.skipped.append((name, f"elements of type {dtype.name!r:.40} are not supported"))
        return None
    shape = checked_shape(_numbers(entry.member("size"), what, place), ITEMSIZE[code], place, what)
    if math.prod(shape) == 0:
        return Field(name, code, "little", shape, extents=())
    chunks = entry.member("chunks")
    if not isinstance(chunks, list):
        raise DamagedFile(f"{what} has no list of boxes", where=place)
    try:
        parts = []
        for chunk in chunks:
            start = _numbers(chunk.member("offsets") if isinstance(chunk, Opaque) else None, what, place)
            sizes = _numbers(chunk.member("sizes"), what, place)
            if len(start) != len(shape) or len(sizes) != len(shape):
                raise DamagedFile(f"{what}: a box has another number of dimensions", where=place)
            if math.prod(sizes) == 0:
                continue
            info = stored.get((name, start)) or (stored.get((name, None)) if not any(start) else None)
            if info is None:
                raise DamagedFile(f"{what}: its metadata names no place for the box at {start}", where=place)
            parts.append(_part(folder, place, what, code, start, sizes, info))
        new = field_of_parts(name, code, shape, parts, place, cache)
        new.kind = dtype.name if dtype.name in SMALL else None
        return new
    except FormatError as problem:  # for example a missing file of one rank; other tensors can be read
        return unreadable(name, code, "little", shape, problem)


def _part(
    folder: str,
    place: str,
    what: str,
    code: str,
    start: tuple[int, ...],
    sizes: tuple[int, ...],
    info: Opaque,
) -> Part:
    """One box of a tensor. Raises FormatError if its type or shape is not that of the metadata."""
    path, offset, length = _place_of(folder, place, what, info)
    tensors = TensorFile(path, offset, length)
    try:
        walker = Walker(path)
        found = list(walker.walk("", tensors.root))
        if len(found) != 1:
            reason = (
                walker.skipped[0][1] if walker.skipped else f"its box holds {len(found)} tensors, not one"
            )
            raise Unsupported(f"{what}: {reason}", where=path)
        tensor = found[0][1]
        if tensor.dtype != code or tensor.shape != sizes:
            message = f"{what}: {tensor.shape} of {tensor.dtype}, but its metadata says {sizes} of {code}"
            raise DamagedFile(message, where=path)
        array = tensors.strided(tensor, what)
        if array is None or not isinstance(array.source, Stored):
            raise Unsupported(f"{what} is compressed", where=path)
        return Part(start, array)
    finally:
        tensors.archive.close()


def _place_of(folder: str, place: str, what: str, info: Opaque) -> tuple[str, int, int]:
    """(file, offset, length in bytes) of a stored value.

    Raises FormatError if the file does not have these bytes.
    """
    relative, offset, length = info.member("relative_path"), info.member("offset"), info.member("length")
    if not isinstance(relative, str) or type(offset) is not int or type(length) is not int or length < 0:
        raise DamagedFile(f"{what}: its place lacks a file, an offset or a length", where=place)
    if relative != os.path.basename(relative) or relative in ("", ".", ".."):
        raise DamagedFile(f"{what}: the file {relative!r:.80} is not beside the metadata", where=place)
    if info.member("transform_descriptors"):
        raise Unsupported(f"{what} was transformed, for example compressed, when it was written", where=place)
    path = os.path.join(folder, relative)
    size = file_size(path)
    if offset < 0 or offset + length > size:
        raise DamagedFile(
            f"{what} needs bytes {offset} to {offset + length}; the file has {size}", where=path
        )
    return path, offset, length


def _is_folder(path: str) -> bool:
    place = os.path.join(path, METADATA)
    if not os.path.isfile(place):
        return False
    with reading(path):
        return any(name.endswith(".distcp") for name in os.listdir(path))


FORMAT = Format("dcp", "torch.distributed.checkpoint", open_dcp, is_folder=_is_folder)
