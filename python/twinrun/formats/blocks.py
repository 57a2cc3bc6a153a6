"""Reading a chunked N-D array in C order, so that each chunk is decoded about once.

A range of the flattened array crosses many chunks, and every chunk is crossed by many ranges. Therefore whole
bands are decoded and cached for the next reads: a band is a slab that is as thick as a chunk along one axis.
A single small read elsewhere decodes only the chunks that it touches.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np


__all__ = ["BandCache", "BandReader", "boxes", "plan_band"]

Box = tuple[slice, ...]
# Largest band of several chunks, in bytes and in chunks. Each chunk costs about 17 us in h5py 3.16,
# however small it is.
_SMALL_BAND = 16 << 20
_MANY_CHUNKS = 4096


class BandCache:
    """A least-recently-used cache of the bands of one file's arrays, at most `budget` bytes (at least 1 MiB).

    Not thread-safe itself: callers hold `lock`, which also guards the file of the format's library.
    """

    def __init__(self, budget: int) -> None:
        self.budget = max(budget, 1 << 20)
        self.lock = threading.RLock()
        self._bands: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._bytes = 0

    @property
    def largest_band(self) -> int:
        """Most bytes of a band: half of the budget, so that bands of two arrays that are read in turns both
        fit."""
        return self.budget // 2

    def get(self, key: tuple[int, int]) -> np.ndarray | None:
        band = self._bands.get(key)
        if band is not None:
            self._bands.move_to_end(key)
        return band

    def make_room(self, size: int) -> None:
        while self._bands and self._bytes + size > self.budget:
            _, old = self._bands.popitem(last=False)
            self._bytes -= old.nbytes

    def put(self, key: tuple[int, int], band: np.ndarray) -> None:
        self.make_room(band.nbytes)
        self._bands[key] = band
        self._bytes += band.nbytes

    def clear(self) -> None:
        self._bands.clear()
        self._bytes = 0


def plan_band(
    shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int, largest: int
) -> tuple[int, int]:
    """(axis, thickness) of the bands of an array, so that a band has at most `largest` bytes.

    A band has one index in the axes before `axis`, `thickness` indices in it, and all indices in the axes
    after it. It is as thick as one or more chunks if they fit, otherwise an even part of a chunk. The
    outermost possible axis is taken: a band of an inner axis would decode each chunk once for every index of
    the outer axes.
    """
    row = itemsize * math.prod(shape)
    for axis, (size, chunk) in enumerate(zip(shape, chunks, strict=True)):
        row = max(row // max(size, 1), 1)  # bytes of one index of this axis
        room = largest // row
        if room == 0 and axis < len(shape) - 1:
            continue
        room = max(room, 1)
        if room < chunk:
            return axis, min(-(-chunk // -(-chunk // room)), size)
        across = math.prod(-(-n // c) for n, c in zip(shape[axis + 1 :], chunks[axis + 1 :], strict=True))
        goal = max(1, min(min(room, _SMALL_BAND // row) // chunk, _MANY_CHUNKS // across))
        return axis, min(goal * chunk, size)
    return 0, 1


def boxes(first: int, count: int, shape: tuple[int, ...]) -> Iterator[Box]:
    """Cuts elements [first, first + count) of the flattened array into boxes, in C order.

    At most 2 for every axis.
    """
    if not shape:
        yield ()
        return
    while count > 0:
        # The largest box that begins at `first`: whole rows of the outermost axis whose inner
        # indices are zero.
        rest, inner, box = first, 1, []
        index = []
        for size in reversed(shape):
            rest, at = divmod(rest, size)
            index.append(at)
        index.reverse()
        axis = len(shape) - 1
        while axis > 0 and index[axis] == 0 and inner * shape[axis] <= count:
            inner *= shape[axis]
            axis -= 1
        length = min(shape[axis] - index[axis], count // inner)
        for other in range(len(shape)):
            if other < axis:
                box.append(slice(index[other], index[other] + 1))
            elif other == axis:
                box.append(slice(index[other], index[other] + length))
            else:
                box.append(slice(0, shape[other]))
        yield tuple(box)
        first += length * inner
        count -= length * inner


class BandReader:
    """Reads ranges of a flattened array, in C order, from a function that reads boxes.

    read_box: `read_box(box)` returns the elements of a box, a tuple of slices with one for each axis. It is
    called with the cache's lock held, so `read` is thread-safe.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        dtype: np.dtype,
        read_box: Callable[[Box], np.ndarray],
        cache: BandCache,
    ) -> None:
        self._shape, self._dtype, self._read_box, self._cache = shape, dtype, read_box, cache
        self._chunks = tuple(max(1, c) for c in chunks)
        # Where the last read ended. A read that continues there is taken as part of a sequential
        # pass.
        self._next = 0
        if shape:
            self._axis, self._thickness = plan_band(shape, self._chunks, dtype.itemsize, cache.largest_band)
            self._row = math.prod(shape[self._axis + 1 :])

    @property
    def reads_anywhere(self) -> bool:
        """Whether several processes may read a part each without decoding many chunks twice.

        True if bands consist of whole chunks and are small.
        """
        if not self._shape:
            return True
        whole = self._thickness % self._chunks[self._axis] == 0 or self._thickness == self._shape[self._axis]
        return whole and self._thickness * self._row * self._dtype.itemsize <= _SMALL_BAND

    def read(self, first: int, count: int) -> np.ndarray:
        """Elements [first, first + count) of the flattened array in C order, 1-D."""
        with self._cache.lock:
            if not self._shape:
                return np.asarray(self._read_box(())).reshape(1)
            out = np.empty(count, self._dtype)
            at, end = first, first + count
            sequential = first == self._next
            while at < end:
                key, begin, stop = self._band_of(at)
                band = self._cache.get((id(self), key))
                if band is None and not sequential and 2 * (end - at) < self._thickness * self._row:
                    self._read_boxes(at, end - at, out[at - first :])
                    at = end
                    break
                if band is None:
                    self._cache.make_room((stop - begin) * self._dtype.itemsize)
                    band = np.empty(stop - begin, self._dtype)
                    self._read_boxes(begin, stop - begin, band)
                    self._cache.put((id(self), key), band)
                here = min(end, stop) - at
                out[at - first : at - first + here] = band[at - begin : at - begin + here]
                at += here
            self._next = end
            return out

    def _read_boxes(self, first: int, count: int, out: np.ndarray) -> None:
        done = 0
        for box in boxes(first, count, self._shape):
            part = self._read_box(box).reshape(-1)
            out[done : done + part.size] = part
            done += part.size
        if done != count:
            raise ValueError(f"read {done} of {count} elements")

    def _band_of(self, position: int) -> tuple[int, int, int]:
        """(key, first, last + 1) of the band that holds element `position`."""
        outer, within = divmod(position, self._row * self._shape[self._axis])
        at = within // self._row
        chunk, size = self._chunks[self._axis], self._shape[self._axis]
        if self._thickness >= chunk:
            start = at // self._thickness * self._thickness
            stop = min(start + self._thickness, size)
        else:  # a band that is a part of a chunk never extends into the next chunk
            base = at // chunk * chunk
            start = base + (at - base) // self._thickness * self._thickness
            stop = min(start + self._thickness, base + chunk, size)
        begin = outer * self._row * size
        return begin + start * self._row, begin + start * self._row, begin + stop * self._row
