"""An object as a file that Python reads."""

from __future__ import annotations

import io
import os

from .objects import RemoteObject

__all__ = ["RemoteStream"]


class RemoteStream(io.RawIOBase):
    """A file for readers that seek and read, such as h5py.

    Small reads are of whole blocks, which are kept. Libraries call `readinto`, and may hold locks
    meanwhile, so the thread that calls it makes the request itself: see `caller`.
    """

    def __init__(self, source: RemoteObject) -> None:
        self.source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.source.size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the begin of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = max(0, min(len(view), self.source.size - self._at))
        data = self.source.read_block(self._at, count, here=True) if count else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read_at(self, offset: int, count: int) -> bytes:
        """As os.pread: fewer bytes at the end."""
        count = max(0, min(count, self.source.size - offset))
        return self.source.read_block(offset, count) if count else b""
