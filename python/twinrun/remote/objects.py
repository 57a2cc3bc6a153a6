"""Objects that are open. They have names like files, by which formats and the core read them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from .. import _core
from ..errors import MissingFile
from ..urls import numbered, without_secrets

if TYPE_CHECKING:
    from .transport import Transport

__all__ = ["RemoteObject", "attach", "detach", "enter", "enter_as", "object_of"]

BLOCK = 32 << 10  # bytes: headers are read in such blocks, each once
_KEPT = 256  # blocks of one object
_MOST_OF_HEADER = 4 * BLOCK  # bytes: larger reads are of elements
_PIECE = 8 << 20  # bytes


class RemoteObject:
    """One object. Reads are of the content that it had when it was opened, or raise FormatError."""

    def __init__(self, name: str, how: Transport, size: int | None = None, tag: str = "") -> None:
        """size, tag: as a listing told them; None: the object is asked."""
        self.name, self._how = name, how
        # By the time of their last use. There is no lock: the reader may hold h5py's, for which
        # a thread that frees objects waits, wherever it is. At worst, a block is asked for twice.
        self._blocks: dict[int, bytes] = {}
        self._bringing = threading.Lock()
        self._whole: BinaryIO | None = None
        if size is None:
            first = how.first(BLOCK)
            size, tag = first.size, first.tag
            self._blocks[0] = first.bytes
        self.size, self._tag = size, tag

    def is_same(self, other: RemoteObject) -> bool:
        """Whether both are the same content of the same URL."""
        mine, yours = self._how, other._how
        return (mine.path, self.size, self._tag) == (yours.path, other.size, other._tag)

    def has(self, size: int | None, tag: str) -> bool:
        """Whether it is the content with this size and tag."""
        return (self.size, self._tag) == (size, tag)

    @property
    def tag(self) -> str:
        return self._tag

    def mark(self) -> str:
        """What twinrun wrote beside its content; "": nothing, or it is another object by now."""
        return self._how.mark(self._tag)

    def rename(self, name: str) -> None:
        self.name = self._how.name = name

    def read(self, offset: int, count: int, here: bool = False) -> bytes:
        """Exactly these bytes. No others are asked for.

        here: the calling thread asks, as it may hold a lock.
        """
        if self._whole is not None:
            return os.pread(self._whole.fileno(), count, offset)
        kept = self._known(offset, count)
        return kept if kept is not None else self._asked(offset, count, here)

    def read_block(self, offset: int, count: int, here: bool = False) -> bytes:
        """As `read`, by whole blocks, which are kept: for headers, which are read in small pieces."""
        if count >= _MOST_OF_HEADER or self._whole is not None:
            return self.read(offset, count, here)
        first, last = offset // BLOCK, (offset + count - 1) // BLOCK
        parts = b"".join(self._block(number, here) for number in range(first, last + 1))
        return parts[offset - first * BLOCK :][:count]

    def bring(self) -> None:
        """Downloads the object, once, into a temporary file: for formats that read all of it, some more than
        once.
        """
        import tempfile

        with self._bringing:
            if self._whole is not None:
                return
            whole = tempfile.TemporaryFile(prefix="twinrun-remote-")
            at = 0
            while at < self.size:
                block = self._known(at, min(BLOCK, self.size - at))  # header
                at += whole.write(block if block else self._piece(at))
            whole.flush()
            self._whole = whole

    def _piece(self, at: int) -> bytes:
        return self._asked(at, min(_PIECE, self.size - at), False)

    def _asked(self, offset: int, count: int, here: bool) -> bytes:
        ask = self._how.here if here else self._how.read
        return ask(offset, count, self.size, self._tag)

    def _known(self, offset: int, count: int) -> bytes | None:
        """Bytes that lie in one block that is kept, None if they do not."""
        number = offset // BLOCK
        block = self._blocks.get(number)
        begin = offset - number * BLOCK
        return block[begin : begin + count] if block is not None and begin + count <= len(block) else None

    def _block(self, number: int, here: bool) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            begin = number * BLOCK
            block = self._asked(begin, min(BLOCK, self.size - begin), here)
        self._blocks[number] = block  # the last one to go
        while len(self._blocks) > _KEPT:
            with suppress(RuntimeError, StopIteration):  # another thread was there
                self._blocks.pop(next(iter(self._blocks)), None)
        return block


_objects: dict[str, RemoteObject] = {}
_held: dict[str, int] = {}  # how often an object was entered
_lock = threading.RLock()  # again where garbage is collected: copies that go detach objects
_told = False


def object_of(name: str) -> RemoteObject | None:
    """The open object of a name; None: it is a path of this machine."""
    return _objects.get(name) if _objects else None


def _range(name: str, offset: int, count: int) -> bytes:
    found = _objects.get(name)
    if found is None:
        raise MissingFile("the object was closed", where=name, fix="compare it again")
    return found.read(offset, count)


def attach(url: str, ends: str = "", name: str | None = None) -> str:
    """Opens the object of a URL. Returns the name by which it is read, until `detach`.

    ends: added to the path in the URL. name: of the object; None takes the URL's.

    Raises MissingFile if there is none, MissingPackage where fsspec or a package of the store is missing.
    """
    from .protocols import transport  # with asyncio

    if ends:
        path, mark, query = url.partition("?") if url.lower().startswith("http") else (url, "", "")
        url = path + ends + mark + query
    if name is None:
        name = without_secrets(url)
    return enter(RemoteObject(name, transport(url, name)))


def enter(new: RemoteObject) -> str:
    """Makes an object known, under its name or, if another object has it, a numbered one."""
    with _lock:
        _tell_core()
        name, number = new.name, 2
        while (old := _objects.get(name)) is not None:
            if old.is_same(new):
                _held[name] += 1
                return name
            name, number = numbered(new.name, number), number + 1
        new.rename(name)
        _objects[name], _held[name] = new, 1
        _core.add_remote_file(name, new.size)
    return name


def enter_as(path: str, found: RemoteObject) -> None:
    """Makes an object known by another name too: a path of this machine, where there is no file."""
    with _lock:
        _tell_core()
        _objects[path], _held[path] = found, 1
        _core.add_remote_file(path, found.size)


def _tell_core() -> None:
    global _told
    if not _told:
        _core.set_range_reader(_range)
        _told = True


def detach(*names: str) -> None:
    """Forgets objects that nobody else has entered."""
    with _lock:
        for name in names:
            if name in _objects:
                _held[name] -= 1
                if not _held[name]:
                    del _objects[name], _held[name]
                    _core.remove_remote_file(name)
