"""A Zarr store whose keys are objects elsewhere: its bytes come by ranges, and are those of one moment."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from ..errors import DamagedFile, Unsupported
from ..remote import RemoteStore
from .files import file_size
from .layout import Stored, add_other
from .model import FileContent

__all__ = ["Objects", "package_store"]

_LONGEST_METADATA = 1 << 26


class Objects:
    """A store of objects.

    Where the server lists no keys, its nodes are those of the consolidated metadata.
    """

    def __init__(self, store: RemoteStore, path: str) -> None:
        self.store, self.path = store, path
        self._nodes = None if store.keys is not None else _consolidated(self)

    def place(self, key: str) -> str:
        return self.store.place(key)

    def find(self, key: str) -> tuple[Stored, int] | None:
        """(where the bytes of a key are, their number); None if the key is not stored."""
        name = self.store.attach(key)
        return None if name is None else (Stored(name, 0), file_size(name))

    def get(self, key: str) -> bytes | None:
        return self.store.get(key, _LONGEST_METADATA)

    def below(self, key: str) -> list[str]:
        if self._nodes is None:
            return self.store.children(key)
        inside = f"{key}/" if key else ""
        return sorted(
            {n[len(inside) :].partition("/")[0] for n in self._nodes if n.startswith(inside)} - {""}
        )

    def has_chunks(self, prefix: str) -> bool:
        """Whether a key that begins so may be a chunk; also where the server lists no keys."""
        keys = self.store.keys
        return keys is None or any(
            key.startswith(prefix) and not key.rpartition("/")[2].startswith((".z", "zarr.json"))
            for key in keys
        )

    def identity(self, key: str) -> object:
        return key

    def others(self, content: FileContent, known: Callable[[str], bool]) -> None:
        """Adds the objects that are not part of Zarr. known: whether a key is."""
        if self.store.keys is None:
            content.notes.append("its server lists no objects: others beside those of Zarr are not compared")
        for key in self.store.keys or ():
            found = None if known(key) else self.find(key)
            if found is not None:
                add_other(content, key, *found)

    def close(self) -> None:
        """The objects stay open as long as the run that holds the store."""


def _consolidated(store: Objects) -> list[str]:
    """The keys of all nodes, by the consolidated metadata. Raises Unsupported where a group has none."""
    text = store.get("zarr.json")
    try:
        if text is not None:
            root = json.loads(text)
            merged = root.get("consolidated_metadata")
            if root.get("node_type") == "array":
                return []
            if merged is not None:
                return list(merged["metadata"])
        elif (text := store.get(".zmetadata")) is not None:
            return [key.rpartition("/")[0] for key in json.loads(text)["metadata"]]
        elif store.get(".zarray") is not None:
            return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile("its consolidated metadata cannot be read", where=store.path) from error
    raise Unsupported(
        "a web server lists no objects, and the group has no consolidated metadata",
        where=store.path,
        fix="write it by zarr.consolidate_metadata",
    )


def package_store(store: Objects) -> Any:
    """The store for the zarr package. Raises ImportError without it."""
    try:
        from zarr.abc.store import Store
    except ImportError:
        import zarr  # noqa: F401  version 2 takes mappings

        return _Mapping(store)
    return _asynchronous(Store)(store)


def _asynchronous(base: type) -> type:
    """The class of stores for version 3 of the package. base: its `Store`."""

    class Bytes(base):
        """Reads alone: what the package asks of a store."""

        supports_writes = supports_deletes = supports_partial_writes = False

        def __init__(self, store: Objects) -> None:
            super().__init__(read_only=True)
            self._objects = store

        @property
        def supports_listing(self) -> bool:
            return self._objects.store.keys is not None

        def __eq__(self, other: object) -> bool:
            return self is other

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            import asyncio

            data = await asyncio.to_thread(_requested, self._objects, key, byte_range)
            return None if data is None else prototype.buffer.from_bytes(data)

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> list[Any]:
            return [await self.get(key, prototype, part) for key, part in key_ranges]

        async def exists(self, key: str) -> bool:
            return self._objects.store.attach(key) is not None

        async def set(self, key: str, value: Any) -> None:
            raise NotImplementedError

        async def delete(self, key: str) -> None:
            raise NotImplementedError

        async def list(self) -> AsyncIterator[str]:
            for key in self._objects.store.keys or ():
                yield key

        async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
            for key in self._objects.store.keys or ():
                if key.startswith(prefix):
                    yield key

        async def list_dir(self, prefix: str) -> AsyncIterator[str]:
            for name in self._objects.below(prefix.strip("/")):
                yield name

    return Bytes


def _requested(store: Objects, key: str, part: Any) -> bytes | None:
    """The bytes of an object, or the part that the package asks for; None where there is no such object."""
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

    found = store.find(key)
    if found is None:
        return None
    where, size = found
    begin, end = 0, size
    if isinstance(part, RangeByteRequest):
        begin, end = part.start, min(part.end, size)
    elif isinstance(part, OffsetByteRequest):
        begin = part.offset
    elif isinstance(part, SuffixByteRequest):
        begin = max(0, size - part.suffix)
    return _range(where, begin, end)


def _range(where: Stored, begin: int, end: int) -> bytes:
    from ..remote import object_of

    found = object_of(where.path)
    assert found is not None
    return found.read(begin, end - begin) if end > begin else b""


class _Mapping(MutableMapping[str, bytes]):
    def __init__(self, store: Objects) -> None:
        self._store = store

    def __getitem__(self, key: str) -> bytes:
        found = self._store.find(key)
        if found is None:
            raise KeyError(key)
        return _range(found[0], 0, found[1])

    def __setitem__(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.store.keys or ())

    def __len__(self) -> int:
        return len(self._store.store.keys or ())
