"""Arrays with a constant stride along each axis, and arrays that are joined from parts.

If the elements of an array, in C order, have one constant stride, the array is an extent. Otherwise it is
read box by box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import DamagedFile, FormatError
from .blocks import BandCache, BandReader, Box
from .element_types import ITEMSIZE, storage_dtype
from .layout import Decoded, Stored
from .model import Extent, Field, decoded
from .records import gather, read_records

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["Part", "Strided", "field_of_parts", "field_of_strided", "run_of"]


@dataclass(frozen=True)
class Strided:
    """An array whose element (i, j, …) is at byte `offset + itemsize * (i * strides[0] + j * strides[1] + …)`
    of the source.

    dtype, byte_order: as in `Field`. shape: no axis is 0. strides: in elements, none is negative. The caller
    has checked that every element is within the source.
    """

    source: Stored | Decoded
    offset: int
    dtype: str
    byte_order: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def stride(self) -> int | None:
        """The distance from one element to the next in C order, in elements.

        None if it is not constant, or 0.
        """
        step, inner = 0, 1
        for size, stride in reversed(list(zip(self.shape, self.strides, strict=True))):
            if size == 1:
                continue
            if step == 0:
                step = stride
            if stride != step * inner or stride == 0:
                return None
            inner *= size
        return step or 1

    def read_box(self, box: Box) -> np.ndarray:
        """The elements of a box, in native byte order."""
        size = ITEMSIZE[self.dtype]
        lengths = [b.stop - b.start for b in box]
        offset = self.offset + size * sum(b.start * s for b, s in zip(box, self.strides, strict=True))
        # Read in the order of the file: largest stride first. An axis of stride 0 is read once,
        # then repeated.
        axes = sorted(range(len(box)), key=lambda a: -self.strides[a])
        walked = [a for a in axes if lengths[a] > 1 and self.strides[a] > 0]
        run, records, stride = 1, 1, 0
        rest = list(walked)
        if rest and self.strides[rest[-1]] == 1:
            run = lengths[rest.pop()]
            while rest and self.strides[rest[-1]] == run:
                run *= lengths[rest.pop()]
        if rest:
            axis = rest.pop()
            records, stride = lengths[axis], self.strides[axis]
        parts = [
            self._records(offset + size * sum(i * self.strides[a] for i, a in zip(index, rest, strict=True)),
                          (stride if records > 1 else run) * size, records, run * size)
            for index in np.ndindex(*(lengths[a] for a in rest))
        ]  # fmt: skip
        flat = np.concatenate(parts) if len(parts) > 1 else parts[0]
        elements = flat.reshape(-1).view(storage_dtype(self.dtype, self.byte_order))
        found = elements.reshape([lengths[a] for a in walked])
        order = sorted(range(len(walked)), key=lambda k: walked[k])
        found = found.transpose(order).reshape([n if a in walked else 1 for a, n in enumerate(lengths)])
        return np.broadcast_to(found, lengths).astype(storage_dtype(self.dtype), copy=False)

    def _records(self, offset: int, stride: int, count: int, size: int) -> np.ndarray:
        if stride < size:  # overlapping records: read each separately
            return np.concatenate([self._records(offset + n * stride, size, 1, size) for n in range(count)])
        if isinstance(self.source, Stored):
            return read_records(self.source.path, self.source.offset + offset, stride, count, size)
        return gather(self.source.read_bytes, offset, stride, count, size)

    def extents(self) -> tuple[Extent, ...] | None:
        """The array as one extent; None if its stride is not constant, or its bytes must be decoded."""
        stride = self.stride()
        if stride is None or not isinstance(self.source, Stored):
            return None
        size = ITEMSIZE[self.dtype]
        return (
            Extent(self.source.path, self.source.offset + self.offset, math.prod(self.shape), stride * size),
        )


def field_of_strided(name: str, array: Strided, where: str, cache: BandCache) -> Field:
    """The field of an array: an extent if possible, otherwise read through `cache`.

    where: the file, for messages.
    """
    extents = array.extents()
    if extents is not None:
        return Field(name, array.dtype, array.byte_order, array.shape, extents=extents)
    native = storage_dtype(array.dtype)
    reader = BandReader(array.shape, (1,) * len(array.shape), native, array.read_box, cache)
    read = decoded(name, array.dtype, math.prod(array.shape), where, reader.read)
    return Field(name, array.dtype, array.byte_order, array.shape, read=read)


@dataclass(frozen=True)
class Part:
    """A box of a larger array: the index at which it begins, and its elements."""

    start: tuple[int, ...]
    array: Strided


def field_of_parts(
    name: str, dtype: str, shape: tuple[int, ...], parts: Sequence[Part], where: str, cache: BandCache
) -> Field:
    """The field of an array that consists of parts, in any order.

    The field has extents if each part is an extent and a run of the whole array in C order. Otherwise it is
    read through `cache`. Raises DamagedFile if a part is outside of the array or their sizes do not add up to
    it; reading raises it if they do not tile the array.
    """
    what = f"field {name!r:.80}"
    for part in parts:
        ends = zip(part.start, part.array.shape, shape, strict=True)
        if any(first < 0 or first + size > whole for first, size, whole in ends):
            raise DamagedFile(f"{what}: a part extends beyond its shape {shape}", where=where)
    total = math.prod(shape)
    if sum(math.prod(p.array.shape) for p in parts) != total:
        raise DamagedFile(f"{what}: its parts do not add up to its {total} elements", where=where)
    if total == 0:
        return Field(name, dtype, "little", shape, extents=())
    parts = sorted(parts, key=lambda p: p.start)
    order = parts[0].array.byte_order
    if all(p.array.byte_order == order for p in parts):
        extents: list[Extent] = []
        at = 0
        for part in parts:
            first = 0
            for index, size in zip(part.start, shape, strict=True):
                first = first * size + index
            pieces = part.array.extents() if first == at and _is_run(part.array.shape, shape) else None
            if pieces is None:
                break
            extents += pieces
            at += math.prod(part.array.shape)
        else:
            return Field(name, dtype, order, shape, extents=tuple(extents))

    starts = np.array([p.start for p in parts], np.int64).reshape(len(parts), -1)
    stops = starts + np.array([p.array.shape for p in parts], np.int64).reshape(len(parts), -1)

    def read_box(box: Box) -> np.ndarray:
        first = np.array([b.start for b in box], np.int64)
        last = np.array([b.stop for b in box], np.int64)
        result = np.empty(tuple(last - first), storage_dtype(dtype))
        covered = np.zeros(result.shape, bool)
        for at in np.flatnonzero(((starts < last) & (stops > first)).all(axis=1)):
            low, high = np.maximum(starts[at], first), np.minimum(stops[at], last)
            target = tuple(slice(a, b) for a, b in zip(low - first, high - first, strict=True))
            inside = tuple(
                slice(int(a), int(b)) for a, b in zip(low - starts[at], high - starts[at], strict=True)
            )
            result[target] = parts[at].array.read_box(inside)
            covered[target] = True
        if not covered.all():
            raise DamagedFile(f"{what}: its parts overlap and leave holes", where=where)
        return result

    # Bands as thick as the thinnest part along the first axis, so that each part is read in few
    # pieces.
    chunks = (min(int(n) for n in (stops - starts)[:, 0]),) + (1,) * (len(shape) - 1) if shape else ()
    reader = BandReader(shape, chunks, storage_dtype(dtype), read_box, cache)
    return Field(name, dtype, order, shape, read=decoded(name, dtype, total, where, reader.read))


def _is_run(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a box of shape `part` is one run of elements, in C order, of an array of shape `whole`."""
    axis = 0
    while axis < len(part) and part[axis] == 1:
        axis += 1
    return part[axis + 1 :] == whole[axis + 1 :]


def run_of(field: Field, first: int, shape: tuple[int, ...]) -> Field:
    """The elements of a field from `first` on, in C order, as a field of shape `shape` and the same name.

    The caller has checked that the field has these elements and can be read.
    """
    count = math.prod(shape)
    if count == 0:
        return replace(field, shape=shape, extents=(), read=None)
    if field.read is not None:
        whole = field.read

        def read(start: int, size: int) -> np.ndarray:
            if start < 0 or size < 0 or start + size > count:
                raise FormatError(
                    f"elements {start} to {start + size} were requested of field {field.name!r}, which has {count}"
                )
            return whole(first + start, size)

        tell = field.tell
        moved = None if tell is None else lambda position: tell(first + position)
        return replace(field, shape=shape, read=read, tell=moved)
    extents = []
    at = first
    for extent in field.extents or ():
        if at < extent.count and count:
            here = min(extent.count - at, count)
            extents.append(Extent(extent.path, extent.offset + at * extent.stride, here, extent.stride))
            count -= here
            at = 0
        else:
            at -= extent.count
    return replace(field, shape=shape, extents=tuple(extents))
