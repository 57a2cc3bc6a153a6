"""Objects of stores with the interface of S3."""

from __future__ import annotations

from typing import Any

from .s3_writes import S3Writes
from .transport import Again, First, Transport, changed, fewer, read_most, silent, whole_size

__all__ = ["S3"]


class S3(Transport):
    def first(self, count: int) -> First:
        def nothing_there(error: Exception) -> bool:
            return "InvalidRange" in repr(error) or "416" in repr(error)

        async def get() -> First:
            try:
                reply = await self._get(0, count)
            except Exception as error:
                if not nothing_there(error):
                    raise
                facts = await self.fs._call_s3("head_object", **self._place)
                return First(int(facts["ContentLength"]), str(facts["ETag"]), b"")
            body = await self._body(reply, count)
            return First(whole_size(_range(reply), 0, count, self.name), str(reply["ETag"]), body)

        found = self._wait(get, count)
        if len(found.bytes) != min(found.size, count):
            raise fewer(self.name)
        return found

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        async def get() -> bytes:
            try:
                reply = await self._get(offset, count, IfMatch=tag)
            except Exception as error:
                text = repr(error)
                if any(
                    word in text for word in ("PreconditionFailed", "pre-conditions", "InvalidRange", "412")
                ):
                    raise changed(self.name) from None
                raise
            if str(reply["ETag"]) != tag:
                raise changed(self.name)
            if whole_size(_range(reply), offset, count, self.name) != size:
                raise changed(self.name)
            return await self._body(reply, count)

        found = self._wait(get, count)
        if len(found) != count:
            raise fewer(self.name)
        return found

    def mark(self, tag: str) -> str:
        found = self._wait(lambda: S3Writes(self.fs).head(self.path), 0)
        return found.mark if found.tag == tag else ""

    @property
    def _place(self) -> dict[str, str]:
        bucket, key, version = self.fs.split_path(self.path)
        return {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})

    async def _get(self, offset: int, count: int, **more: str) -> Any:
        return await self.fs._call_s3(
            "get_object", **self._place, Range=f"bytes={offset}-{offset + count - 1}", **more
        )

    async def _body(self, reply: Any, count: int) -> bytes:
        """The bytes of a range of `count`. What comes behind them is not read."""
        import asyncio

        import aiohttp
        from botocore.exceptions import HTTPClientError, IncompleteReadError  # type: ignore[import-untyped]

        try:
            return await read_most(reply["Body"].read, count, self.name)
        except asyncio.TimeoutError:
            raise silent(self.limit) from None
        except (OSError, HTTPClientError, IncompleteReadError, aiohttp.ClientError):
            raise Again from None
        finally:
            reply["Body"].close()


def _range(reply: Any) -> dict[str, str]:
    return {"Content-Range": str(reply.get("ContentRange", ""))}
