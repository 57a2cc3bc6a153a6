"""Objects that are written into Google's store."""

from __future__ import annotations

from .transport import Taken, changed
from .writes import MARK, Held, Upload, Writes

__all__ = ["GsWrites"]

_KIND = "application/octet-stream"


class GsWrites(Writes):
    """The store checks that nothing is there. That an object is the one to replace is checked before."""

    async def head(self, path: str) -> Held:
        self.fs.invalidate_cache()
        found = await self.fs._info(path)
        if found.get("type") != "file":
            raise FileNotFoundError
        return Held(
            int(found["size"]), str(found["generation"]), str((found.get("metadata") or {}).get(MARK, ""))
        )

    async def put(self, path: str, content: bytes, mark: str, replaces: str | None) -> str:
        mode = await self._mode(path, replaces)
        try:
            await self.fs._pipe_file(
                path, content, metadata={MARK: mark}, mode=mode, chunksize=1 << 30, content_type=_KIND
            )
        except Exception as error:
            raise _taken(error) from error.__cause__
        return await self._written(path, mark)

    async def begin(self, path: str, mark: str, replaces: str | None) -> Upload:
        from gcsfs.core import initiate_upload

        bucket, key, _ = self.fs.split_path(path)
        mode = await self._mode(path, replaces)
        place = await initiate_upload(self.fs, bucket, key, _KIND, {MARK: mark}, mode=mode)
        return _Chunks(self, path, mark, place)

    async def remove(self, path: str) -> None:
        await self.fs._rm_file(path)

    async def _mode(self, path: str, replaces: str | None) -> str:
        if replaces is None:
            return "create"
        try:
            now = (await self.head(path)).tag
        except FileNotFoundError:
            raise Taken from None
        if now != replaces:
            raise Taken
        return "overwrite"

    async def _written(self, path: str, mark: str) -> str:
        """The tag of what was written."""
        found = await self.head(path)
        if found.mark != mark:
            raise changed(path)
        return found.tag


class _Chunks(Upload):
    def __init__(self, writes: GsWrites, path: str, mark: str, place: str) -> None:
        self._writes, self._path, self._mark, self._place = writes, path, mark, place

    async def add(self, part: bytes, at: int, size: int) -> None:
        from gcsfs.core import upload_chunk

        try:
            await upload_chunk(self._writes.fs, self._place, part, at, size, _KIND)
        except Exception as error:
            raise _taken(error) from error.__cause__

    async def end(self, replaces: str | None) -> str:
        return await self._writes._written(self._path, self._mark)

    async def abandon(self) -> None:
        await self._writes.fs._call("DELETE", self._place.replace("&ifGenerationMatch=0", ""))


def _taken(error: Exception) -> Exception:
    """Taken, if an error says that an object is there already; otherwise the error."""
    there = isinstance(error, FileExistsError) or str(getattr(error, "code", "")) == "412"
    return Taken() if there else error
