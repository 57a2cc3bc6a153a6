"""The objects below a URL, by keys with slashes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, MissingFile, Unsupported
from ..urls import call_copies, forget_copies, numbered, without_secrets
from .objects import RemoteObject, detach, enter, enter_as, object_of
from .writes import Mark

if TYPE_CHECKING:
    from .transport import Transport

__all__ = ["RemoteStore", "below", "forget_store", "store_of"]

# What tells that a URL is a folder: of histories, golden files, Zarr.
_MARKERS = ("manifest.jsonl", "golden.json", "zarr.json", ".zgroup", ".zarray")
# Objects that are looked for below the name of an object.
_FOLDERS = {"manifest.jsonl": "there is a history", "golden.json": "there are golden files"}
_NOTHING = "nothing there"
_MOST_OBJECTS = 1_000_000


class RemoteStore:
    """Objects below a URL.

    keys: as the store lists them; None where it lists nothing, as most web servers do. They are listed again
    if a journal is newer: what it names was there before it.
    """

    def __init__(
        self,
        url: str,
        fs: Any,
        path: str,
        kind: type[Transport],
        keys: dict[str, Any] | None,
        listed: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """listed: lists the keys again."""
        # On the web, each object below has the query of the URL. Keys of buckets may have any sign.
        path, mark, query = path.partition("?") if keys is None else (path, "", "")
        self._query, self._path = mark + query, path.rstrip("/")
        self._fs, self._kind = fs, kind
        self.name, self.keys = without_secrets(url).rstrip("/"), keys
        self._listed = listed
        self._names: dict[str, str | None] = {}
        self._lock = threading.RLock()  # again where garbage is collected: see `Copies`

    def place(self, key: str) -> str:
        """The name of an object, for messages."""
        return f"{self.name}/{key}" if key else self.name

    def attach(self, key: str) -> str | None:
        """Opens an object; None: there is none. Returns the name by which formats and the core read it."""
        with self._lock:
            if key in self._names:
                return self._names[key]
        # Without the lock: fsspec's thread answers, and may free copies that close this store.
        name = self._opened(key)
        with self._lock:
            if key not in self._names:
                self._names[key] = name
                return name
            first = self._names[key]
        if name is not None:
            detach(name)
        return first

    def _opened(self, key: str) -> str | None:
        name, size, tag = self.place(key), None, ""
        if self.keys is not None:
            if key not in self.keys:
                return None
            size, tag = _facts(self.keys[key])
        how = self._kind(self._fs, f"{self._path}/{key}{self._query}", name)
        try:
            if self._listed is not None and key.endswith(".jsonl"):
                found = RemoteObject(name, how)  # as it is now: a run may be writing it
                if not found.has(size, tag):
                    self.keys = self._listed()
                return enter(found)
            return enter(RemoteObject(name, how, size, tag))
        except MissingFile:
            if self.keys is not None:  # it was listed
                raise
            return None

    def mark(self, key: str) -> Mark:
        """The mark of the object as it was opened."""
        name = self.attach(key)
        found = None if name is None else object_of(name)
        return Mark.read("" if found is None else found.mark())

    def tag(self, key: str) -> str:
        """The tag of an object, as a word of a mark; "": there is none."""
        name = self.attach(key)
        found = None if name is None else object_of(name)
        return "" if found is None else Mark.tag_word(found.tag)

    def get(self, key: str, most: int) -> bytes | None:
        """All bytes of an object; None: there is none. Raises Unsupported if there are more than `most`."""
        name = self.attach(key)
        found = None if name is None else object_of(name)
        if found is None:
            return None
        if found.size > most:
            raise Unsupported(f"{found.size} bytes, more than {most}", where=self.place(key))
        return found.read(0, found.size) if found.size else b""

    def children(self, key: str) -> list[str]:
        """The names of folders below a key. Only of stores that list their keys."""
        inside = f"{key}/" if key else ""
        below = (k[len(inside) :] for k in self.keys or () if k.startswith(inside))
        return sorted({k.partition("/")[0] for k in below if "/" in k})

    def close(self) -> None:
        """Forgets the objects that were opened."""
        with self._lock:
            names, self._names = self._names, {}
        detach(*(name for name in names.values() if name is not None))


def _facts(info: Any) -> tuple[int | None, str]:
    """(size, tag) of a listed object; (None, "") where the listing does not tell both."""
    tag = info.get("generation") or info.get("ETag")
    return (None, "") if tag is None or info.get("size") is None else (int(info["size"]), str(tag))


# ---- what a URL is ----


def below(url: str, format: str | None = None) -> RemoteStore | None:
    """The store of a URL that stands for a folder; None: it is an object.

    format: its format, if that is known.

    Raises MissingFile if there is nothing, MissingPackage where a package is missing.
    """
    from .protocols import file_system  # with asyncio

    fs, path, kind = file_system(url)
    name = without_secrets(url)
    if url.partition("://")[0].lower() in ("http", "https"):
        return _on_web(url, fs, path, kind, format)
    if not url.endswith("/") and _is_object(fs, path, name):
        if format is None:
            _check_alone(fs, path, name)
        return None

    def listed() -> dict[str, Any]:
        found = _found(fs, path, name)
        root = fs._strip_protocol(path).rstrip("/")
        keys = {k[len(root) + 1 :]: info for k, info in found.items() if k.startswith(root + "/")}
        return _checked(keys, name)

    return RemoteStore(url, fs, path, kind, listed(), listed)


def _is_object(fs: Any, path: str, name: str) -> bool:
    from .transport import missing, time_limit, wait

    async def info() -> bool:
        fs.invalidate_cache()
        try:
            return bool((await fs._info(path))["type"] == "file")
        except FileNotFoundError as error:
            raise missing(name, error, _NOTHING) from None

    return wait(fs, info, name, time_limit())


def _check_alone(fs: Any, path: str, name: str) -> None:
    """Raises FormatError if an object has the name of a history, or of golden files: either may be meant."""
    from .transport import time_limit, wait

    async def there(marker: str) -> bool:
        try:
            return bool((await fs._info(f"{path}/{marker}"))["type"] == "file")
        except FileNotFoundError:
            return False

    for marker, what in _FOLDERS.items():
        if wait(fs, partial(there, marker), name, time_limit()):
            raise FormatError(
                f"is an object, and {what} below this name too",
                where=name,
                fix=f"for what is below write a slash at the end ({name}/), for the object give its format, or rename it",
            )


def _found(fs: Any, path: str, name: str) -> dict[str, Any]:
    """What the store lists below a path."""
    from .transport import listed, missing

    async def find() -> dict[str, Any]:
        fs.invalidate_cache()
        try:
            return dict(await fs._find(path, detail=True))
        except FileNotFoundError as error:
            raise missing(name, error, _NOTHING) from None

    return listed(fs, find, name)


def _checked(keys: dict[str, Any], name: str) -> dict[str, Any]:
    """Keys that are names below a folder, and nothing else. Markers of empty folders are left out."""
    found = {k: info for k, info in keys.items() if k and not k.endswith("/")}
    if not found:
        from .transport import missing

        raise missing(name, what=_NOTHING)
    if len(found) > _MOST_OBJECTS:
        raise Unsupported(f"more than {_MOST_OBJECTS} objects", where=name, fix="name a part of them")
    for key in found:
        _check_key(key, name)
    return found


def _check_key(key: str, name: str) -> None:
    """Raises FormatError unless a key is a path below a folder. name: of the whole, for the message."""
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise FormatError(f"an object is named {key!r:.80}, which is no path", where=name)


def _on_web(url: str, fs: Any, path: str, kind: type[Transport], format: str | None) -> RemoteStore | None:
    """As `below`. A web server does not tell: the name does, or an object that only such folders have."""
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    ends = os.path.splitext(last)[1]
    if not (url.partition("?")[0].endswith("/") or ends == ".zarr" or format == "zarr"):
        if ends or format is not None:
            return None
    store = RemoteStore(url, fs, path, kind, None)
    for marker in _MARKERS:
        if store.attach(marker) is not None:
            return store
    if url.partition("?")[0].endswith("/") or ends == ".zarr":
        raise MissingFile(
            "neither a history nor golden files nor a Zarr store",
            where=store.name,
            fix="name an object; a web server does not say what is in a folder",
        )
    return None


# ---- stores by name, for formats that are folders ----

_stores: dict[str, RemoteStore] = {}


def store_of(name: str) -> RemoteStore | None:
    """The open store of a name; None: it is a path of this machine, or an object."""
    return _stores.get(name) if _stores else None


def enter_store(store: RemoteStore) -> str:
    """Makes a store known, under its name or, if that is taken, a numbered one."""
    name, number = store.name, 2
    while _stores.setdefault(name, store) is not store:
        name, number = numbered(store.name, number), number + 1
    return name


def forget_store(name: str) -> None:
    found = _stores.pop(name, None)
    if found is not None:
        found.close()


# ---- copies ----


class Copies:
    """A temporary folder with copies of objects of a store, which goes with this object.

    Objects that stand in have no copy there: the core reads ranges of them by the names of such copies.
    """

    def __init__(self, store: RemoteStore) -> None:
        import tempfile

        self._store = store
        self.folder = tempfile.mkdtemp(prefix="twinrun-remote-")
        call_copies(self.folder, store.name)
        self._stand_ins: set[str] = set()
        self._end = weakref.finalize(self, _remove, self.folder, store, self._stand_ins)
        self._there: set[str] = set()
        self._lock = threading.Lock()

    def bring(self, keys: Iterable[str]) -> None:
        """Copies objects. One that is not there is left out."""
        with self._lock:
            for key in keys:
                if key not in self._there:
                    self._copy(key)
                    self._there.add(key)

    def stand_in(self, key: str) -> None:
        """Lets the core read ranges of an object. One that is not there is left out."""
        with self._lock:
            if key in self._there:
                return
            found, target = self._found(key)
            if found is not None:
                self._stand_ins.add(target)
                enter_as(target, found)
            self._there.add(key)

    def _found(self, key: str) -> tuple[RemoteObject | None, str]:
        """An object, and the path that stands for it here."""
        _check_key(key, self._store.name)  # a file on a web server may name it
        name = self._store.attach(key)
        return None if name is None else object_of(name), os.path.join(self.folder, *key.split("/"))

    def _copy(self, key: str) -> None:
        found, target = self._found(key)
        if found is None:
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        download(found, target + ".part")
        os.replace(target + ".part", target)

    def close(self) -> None:
        self._end()


_PIECE = 8 << 20


def download(found: RemoteObject, path: str) -> None:
    """Writes the content of an object into a new file, or over an old one."""
    with open(path, "wb") as out:
        for at in range(0, found.size, _PIECE):
            out.write(found.read(at, min(_PIECE, found.size - at)))


def _remove(folder: str, store: RemoteStore, stand_ins: set[str]) -> None:
    import shutil

    detach(*stand_ins)
    store.close()
    forget_copies(folder)
    shutil.rmtree(folder, ignore_errors=True)


def top_level(store: RemoteStore) -> list[str]:
    """The keys of objects that lie in no folder below."""
    return [key for key in store.keys or () if "/" not in key]
