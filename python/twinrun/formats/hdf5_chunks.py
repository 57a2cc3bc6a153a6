"""Whether the stored chunks of HDF5 datasets are whole: several filters trust the lengths in them.

HDF5 hands a filter the number of bytes that its index has for a chunk. Filters that do not look at it read
the memory behind a chunk that is too short, and some give what they have so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from .blocks import Box
from .compressed import NotWhole, check_bitshuffle, check_blosc, check_bzip2, check_lz4, check_zstd

__all__ = ["ChunkCheck"]

_SHUFFLE, _FLETCHER32 = 2, 3
_CHECKS: dict[int, Callable[[bytes], None]] = {
    307: check_bzip2, 32001: check_blosc, 32004: check_lz4, 32015: check_zstd,
}  # fmt: skip
_SUM_BYTES = 4
_BITSHUFFLE = 32008
_COMPRESSED_BITSHUFFLE = (2, 3)  # LZ4, Zstandard


class ChunkCheck:
    """Checks the chunks of a dataset that a box touches, before HDF5 decodes them."""

    def __init__(self, h5py: Any, dataset: Any, plist: Any) -> None:
        self._dataset = dataset.id
        self._chunks: tuple[int, ...] = ()
        if plist.get_layout() != h5py.h5d.CHUNKED or not plist.get_nfilters():
            return
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        self._filters = [(int(code), tuple(settings)) for code, _, settings, _ in filters]
        others = {code for code, _ in self._filters} - {_SHUFFLE, _FLETCHER32}
        # Of gzip and its like the bytes need no look.
        self._reads = not others or bool(others & {_BITSHUFFLE, *_CHECKS})
        self._summed = sum(
            1 << number for number, (code, _) in enumerate(self._filters) if code == _FLETCHER32
        )
        if self._reads or self._summed:
            self._chunks = tuple(plist.get_chunk())
            self._shape = tuple(dataset.shape)
            self._itemsize = dataset.id.get_type().get_size()

    def __call__(self, box: Box) -> None:
        """Raises NotWhole if a chunk of the box is not whole."""
        if not self._chunks:
            return
        ranges = (
            range(s.start // c * c, s.stop, c) for s, c in zip(box, self._chunks, strict=True) if s.stop > 0
        )
        for corner in itertools.product(*ranges):
            found = self._dataset.get_chunk_info_by_coord(corner)
            if found.byte_offset is None or not found.size:
                continue  # never written: HDF5 gives its fill value
            # libhdf5 would read what lies before such a chunk.
            if self._summed & ~found.filter_mask and found.size < _SUM_BYTES:
                raise NotWhole(
                    f"the chunk at {corner}: {found.size} bytes, and its checksum has {_SUM_BYTES}"
                )
            if not self._reads:
                continue
            mask, data = self._dataset.read_direct_chunk(corner)
            try:
                self._check(corner, mask, data)
            except NotWhole as problem:
                raise NotWhole(f"the chunk at {corner}: {problem}") from None

    def _check(self, corner: tuple[int, ...], mask: int, data: bytes) -> None:
        plain = math.prod(self._chunks) * self._itemsize
        over = any(at + c > n for at, c, n in zip(corner, self._chunks, self._shape, strict=True))
        if over and len(data) == plain:
            return  # HDF5 can be told not to filter chunks beyond the edge
        applied = [f for number, f in enumerate(self._filters) if not mask >> number & 1]
        while applied and applied[-1][0] in (_FLETCHER32, _SHUFFLE):
            if applied.pop()[0] == _FLETCHER32:  # HDF5 checks the sum of what lies before its 4 bytes
                data = data[:-_SUM_BYTES]
        if not applied:
            if len(data) != plain:
                raise NotWhole(f"{len(data)} bytes; a chunk has {plain}")
            return
        # What lies below the outermost compression is known only after it.
        code, settings = applied[-1]
        if code == _BITSHUFFLE:
            if len(settings) > 4 and settings[4] in _COMPRESSED_BITSHUFFLE:
                check_bitshuffle(data, settings[2])
            elif len(applied) == 1 and len(data) != plain:
                raise NotWhole(f"{len(data)} bytes; a chunk has {plain}")
        elif code in _CHECKS:
            _CHECKS[code](data)
