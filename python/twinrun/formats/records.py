"""Bytes of records: the same part of each, at a stride."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile
from ..remote import RemoteStream
from .files import open_regular, read_exact

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["gather", "read_records"]


def read_records(path: str, offset: int, stride: int, count: int, size: int) -> np.ndarray:
    """Reads `size` bytes at each of `offset`, `offset + stride`, …: an array of u8 of shape (count, size).

    Never reads past the last record. Raises FormatError if the file cannot be read or is too short.
    """
    file, _ = open_regular(path)
    with file:
        return gather(lambda at, length: _pread(file, path, at, length), offset, stride, count, size)


def gather(
    read_bytes: Callable[[int, int], object], offset: int, stride: int, count: int, size: int
) -> np.ndarray:
    """As `read_records`, from `read_bytes(offset, count)`. Reads at most 16 MiB at a time, or one record."""
    result = np.empty((count, size), np.uint8)
    # Records that are close together are read along with the bytes between them, others one by one.
    step = max(1, (1 << 24) // max(stride, 1)) if stride < 1 << 16 or stride == size else 1
    for start in range(0, count, step):
        n = min(step, count - start)
        span = (n - 1) * stride + size
        block = np.frombuffer(read_bytes(offset + start * stride, span), np.uint8)  # type: ignore[call-overload]
        if block.size != span:  # as_strided would read past its end
            raise ValueError(f"read {block.size} of {span} bytes")
        if stride == size:
            result[start : start + n] = block.reshape(n, size)
        else:
            result[start : start + n] = np.lib.stride_tricks.as_strided(block, (n, size), (stride, 1))
    return result


def _pread(file: BinaryIO, path: str, offset: int, count: int) -> bytes | bytearray:
    if isinstance(file, RemoteStream):
        return read_exact(file, offset, count, path, "records")
    buffer = bytearray(count)
    view = memoryview(buffer)
    done = 0
    while done < count:
        got = os.preadv(file.fileno(), [view[done:]], offset + done)
        if got == 0:
            raise DamagedFile(f"ends at byte {offset + done}, {count - done} bytes too early", where=path)
        done += got
    return buffer
