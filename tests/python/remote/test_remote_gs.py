"""How objects of Google's store are read, by a file system that plays gcsfs: there is no such store for tests."""

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
