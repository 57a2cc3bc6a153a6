"""Objects that are written into stores with the interface of S3."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from .transport import Conflict, Taken
from .writes import MARK, Held, Upload, Writes

__all__ = ["S3Writes"]


class S3Writes(Writes):
    """The store checks the condition of a write itself, where it can."""

    async def head(self, path: str) -> Held:
        found = await self.fs._call_s3("head_object", **self._place(path))
        marks = {name.lower(): value for name, value in found.get("Metadata", {}).items()}
        return Held(int(found["ContentLength"]), str(found["ETag"]), str(marks.get(MARK, "")))

    async def put(self, path: str, content: bytes, mark: str, replaces: str | None) -> str:
        reply = await self.checked(
            "put_object", replaces, **self._place(path), Body=content, Metadata={MARK: mark}
        )
        return str(reply["ETag"])

    async def begin(self, path: str, mark: str, replaces: str | None) -> Upload:
        place = self._place(path)
        reply = await self.fs._call_s3("create_multipart_upload", **place, Metadata={MARK: mark})
        return _Parts(self, {**place, "UploadId": reply["UploadId"]})

    async def remove(self, path: str) -> None:
        await self.fs._call_s3("delete_object", **self._place(path))

    async def checked(self, call: str, replaces: str | None, **options: Any) -> Mapping[str, Any]:
        """The reply to a request that writes under a condition. Some stores know no conditions."""
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        try:
            return await self._call(call, **options, **condition)
        except FileExistsError:
            raise Taken from None
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return await self._call(call, **options)
            if _has(error, ("ConditionalRequestConflict", "409")):
                raise Conflict from None
            if _has(error, ("PreconditionFailed", "412")):
                raise Taken from None
            raise

    async def _call(self, call: str, **options: Any) -> Mapping[str, Any]:
        reply: Mapping[str, Any] = await self.fs._call_s3(call, **options)
        return reply

    def _place(self, path: str) -> dict[str, str]:
        bucket, key, _ = self.fs.split_path(path)
        return {"Bucket": bucket, "Key": key}


class _Parts(Upload):
    def __init__(self, writes: S3Writes, place: dict[str, str]) -> None:
        self._writes, self._place = writes, place
        self._parts: list[dict[str, Any]] = []

    async def add(self, part: bytes, at: int, size: int) -> None:
        number = len(self._parts) + 1
        reply = await self._writes.fs._call_s3("upload_part", **self._place, PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": reply["ETag"]})

    async def end(self, replaces: str | None) -> str:
        reply = await self._writes.checked(
            "complete_multipart_upload", replaces, **self._place, MultipartUpload={"Parts": self._parts}
        )
        return str(reply["ETag"])

    async def abandon(self) -> None:
        await self._writes.fs._call_s3("abort_multipart_upload", **self._place)


def _has(error: Exception, codes: tuple[str, ...]) -> bool:
    """Whether the store gave one of these codes."""
    reply = getattr(error.__cause__, "response", None) or {}
    return str(reply.get("Error", {}).get("Code", "")) in codes
