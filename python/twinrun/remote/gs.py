"""Objects of Google's store."""

from __future__ import annotations

from ..errors import MissingFile
from .gs_writes import GsWrites
from .transport import First, Transport, changed, fewer

__all__ = ["Gs"]


class Gs(Transport):
    """The generation of an object stands for its content: a read names it."""

    def first(self, count: int) -> First:
        async def get() -> First:
            self.fs.invalidate_cache()
            facts = await self.fs._info(self.path)
            if facts.get("type") != "file":
                raise FileNotFoundError
            tag, size = str(facts["generation"]), int(facts["size"])
            return First(size, tag, await self._range(0, min(count, size), tag) if size else b"")

        return self._wait(get, count)

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        try:
            found = self._wait(lambda: self._range(offset, count, tag), count)
        except MissingFile:
            raise changed(self.name) from None
        if len(found) != count:
            raise fewer(self.name)
        return found

    def mark(self, tag: str) -> str:
        found = self._wait(lambda: GsWrites(self.fs).head(self.path), 0)
        return found.mark if found.tag == tag else ""

    async def _range(self, offset: int, count: int, tag: str) -> bytes:
        return await self.fs._cat_file(self.path, start=offset, end=offset + count, generation=tag)
