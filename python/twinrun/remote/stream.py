"""An object as a file that Python reads."""

from __future__ import annotations

import io
import os

from .objects import RemoteObject

__all__ = ["RemoteStream"]


class RemoteStream(io.RawIOBase):
    """A file for readers that seek and read, such as h5py.

    Small reads are of whole blocks, which are kept.
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
        data = self.read_at(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read_at(self, offset: int, count: int) -> bytes:
        """As os.pread: fewer bytes at the end."""
        count = max(0, min(count, self.source.size - offset))
        return self.source.read_block(offset, count) if count else b""
