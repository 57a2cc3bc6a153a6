"""How objects of Google's store are read and written, by file systems that play gcsfs: no test has such a store."""

import pytest

from twinrun import FormatError, MissingFile

_asyn = pytest.importorskip(
    "fsspec.asyn", reason="objects of stores need fsspec: pip install 'twinrun[remote]'"
)


class Store:
    """One object in generations, of which only the last one is there. asked: of each read."""

    def __init__(self, content: bytes) -> None:
        self.loop = _asyn.get_loop()
        self.content, self.generation = content, 1
        self.asked: list[tuple[int, int, str]] = []

    def invalidate_cache(self) -> None:
        pass

    async def _info(self, path: str) -> dict:
        if path != "bucket/x.npy":
            raise FileNotFoundError(path)
        return {"type": "file", "size": len(self.content), "generation": str(self.generation)}

    async def _cat_file(self, path: str, start: int, end: int, generation: str) -> bytes:
        self.asked.append((start, end, generation))
        if generation != str(self.generation):
            raise FileNotFoundError(path)
        return self.content[start:end]


def test_each_read_names_the_generation() -> None:
    from twinrun.remote.gs import Gs
    from twinrun.remote.objects import BLOCK, RemoteObject

    content = bytes(range(256)) * 1000
    store = Store(content)
    found = RemoteObject("gs://bucket/x.npy", Gs(store, "bucket/x.npy", "gs://bucket/x.npy"))
    assert found.size == len(content)
    assert found.read(100_000, 300) == content[100_000:100_300]
    assert store.asked == [(0, BLOCK, "1"), (100_000, 100_300, "1")]
    assert found.read(10, 20) == content[10:30]  # of the first block, which is kept
    store.generation = 2
    with pytest.raises(FormatError, match="was changed while it was read"):
        found.read(100_000, 300)
    with pytest.raises(MissingFile, match="no such object"):
        RemoteObject("gs://bucket/y", Gs(store, "bucket/y", "gs://bucket/y"))
    empty = Store(b"")
    assert RemoteObject("gs://bucket/x.npy", Gs(empty, "bucket/x.npy", "x")).size == 0


class Writable:
    """Objects by path, in generations. refuse: the condition of the next write does not hold."""

    def __init__(self) -> None:
        self.loop = _asyn.get_loop()
        self.objects: dict[str, tuple[int, bytes, dict]] = {}
        self.refuse = False

    def invalidate_cache(self) -> None:
        pass

    async def _info(self, path: str) -> dict:
        if path not in self.objects:
            raise FileNotFoundError(path)
        generation, content, metadata = self.objects[path]
        return {"type": "file", "size": len(content), "generation": str(generation), "metadata": metadata}

    async def _pipe_file(self, path: str, content: bytes, metadata: dict, mode: str, **_: object) -> None:
        if mode == "create" and (path in self.objects or self.refuse):
            error = RuntimeError("at least one of the pre-conditions you specified did not hold")
            error.code = 412
            raise error
        generation = self.objects[path][0] + 1 if path in self.objects else 1
        self.objects[path] = generation, content, metadata

    async def _rm_file(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]


def test_writes_name_what_they_replace() -> None:
    from fsspec.asyn import sync

    from twinrun.remote import Held, Taken
    from twinrun.remote.gs_writes import GsWrites

    store = Writable()
    writes = GsWrites(store)

    def put(content: bytes, replaces: str | None) -> str:
        return sync(store.loop, writes.put, "bucket/x", content, "id writer digest", replaces)

    assert put(b"one", None) == "1"
    assert sync(store.loop, writes.head, "bucket/x") == Held(3, "1", "id writer digest")
    assert store.objects["bucket/x"] == (1, b"one", {"twinrun": "id writer digest"})
    with pytest.raises(Taken):
        put(b"two", None)
    with pytest.raises(Taken):
        put(b"two", "7")
    assert put(b"two", "1") == "2"
    store.objects["bucket/x"] = 3, b"of somebody", {}
    assert sync(store.loop, writes.head, "bucket/x").mark == ""
    with pytest.raises(Taken):
        put(b"three", "2")
    sync(store.loop, writes.remove, "bucket/x")
    for call in (lambda: sync(store.loop, writes.head, "bucket/x"), lambda: put(b"two", "3")):
        with pytest.raises((FileNotFoundError, Taken)):
            call()
    store.refuse = True
    with pytest.raises(Taken):
        put(b"one", None)
    assert store.objects == {}
