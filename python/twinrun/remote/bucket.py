"""Objects that are written into a bucket, each with a mark by which it is known again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..errors import FormatError, MissingFile, Unsupported
from ..urls import without_secrets
from .objects import RemoteObject
from .store import download
from .transport import Again, Conflict, Taken, Transport, Unanswered, listed, time_limit, wait
from .writes import Held, Writes

__all__ = ["Bucket", "Held", "Taken"]

_PART = 16 << 20  # bytes of one request
_CONFLICTS = 3  # uploads in parts that begin again
_CONFLICT = "the store says that another write of it is under way"
_MOST_PARTS = 9_000  # of one object; S3 takes 10,000
_LEAST_RATE = 10_000  # bytes a second, of the slowest store that is waited for
_SHORT = 10.0  # seconds of a request to a store that was silent before
_STILL = "the store still gives no answer, after {seconds:.3g} s"
# Errors of connections, of aiohttp and botocore. A write that is repeated finds what it wrote.
_PASSING = {"ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError"}
# Variables that say where a store is.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
}
_Value = TypeVar("_Value")


class Bucket:
    """The objects below a URL, for writing. Each call that writes names what it replaces."""

    def __init__(self, url: str) -> None:
        """Raises MissingPackage where a package is missing, Unsupported for stores that are only read."""
        from .gs_writes import GsWrites
        from .protocols import file_system  # with asyncio
        from .s3_writes import S3Writes

        self.name = without_secrets(url).rstrip("/")
        ways: dict[str, type[Writes]] = {"s3": S3Writes, "s3a": S3Writes, "gs": GsWrites, "gcs": GsWrites}
        way = ways.get(url.partition("://")[0].lower())
        if way is None:
            raise Unsupported("twinrun writes to s3:// and gs:// only", where=self.name)
        # Keys may have them, and other URLs end there: two prefixes would have one name.
        if any(c in "?#" or not c.isprintable() for c in url):
            raise Unsupported(
                "a bucket that is written has no ?, # or control characters in its URL",
                where=self.name,
                fix="choose another prefix",
            )
        fs, path, self._kind = file_system(url)
        # Bucket and keys; one slash at the end of the URL means nothing.
        parts = url.partition("://")[2].removesuffix("/").split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise Unsupported(
                "a bucket that is written has no empty part, . or .. in its URL: nobody could read it by this URL",
                where=without_secrets(url),
                fix="write one slash between two names",
            )
        self._fs, self._path = fs, fs._strip_protocol(path).rstrip("/")
        self._writes = way(fs)
        self._answers = True  # or the last request had no answer: then the next one is a short try

    @property
    def store(self) -> str:
        """Where the store is, if it is not the usual one of its kind; without secrets."""
        variables = _ENDPOINTS["s3" if "s3" in type(self._fs).__name__.lower() else "gs"]
        told = [getattr(self._fs, "endpoint_url", None), *map(os.environ.get, variables)]
        return without_secrets(next(filter(None, told), ""))

    def place(self, key: str) -> str:
        """The name of an object, for messages."""
        return f"{self.name}/{key}"

    def head(self, key: str) -> Held | None:
        """What is there; None: nothing."""

        async def look() -> Held | None:
            try:
                return await self._writes.head(f"{self._path}/{key}")
            except FileNotFoundError:
                return None

        return self._wait(look, key, 0, "cannot be read")

    def sizes(self) -> dict[str, int]:
        """The objects that are there, and their bytes."""

        async def find() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = await self._fs._find(self._path, detail=True)
            except FileNotFoundError:
                return {}
            return {name.removeprefix(f"{self._path}/"): int(info["size"]) for name, info in found.items()}

        return listed(self._fs, self._once(find), self.name, "cannot be listed")

    def get(self, key: str) -> bytes | None:
        """All bytes of an object; None: there is none."""
        try:
            found = self._object(key)
        except MissingFile:
            return None
        return found.read(0, found.size) if found.size else b""

    def download(self, key: str, path: str) -> None:
        """Writes an object into a file. Raises MissingFile if there is none."""
        download(self._object(key), path)

    def put(self, key: str, content: bytes | str, mark: str, replaces: str | None) -> str:
        """Writes an object: bytes, or the content of the file of this name. Returns its tag.

        replaces: the tag of the object that is there; None: none is. Raises Taken if another one is there.
        """
        path = f"{self._path}/{key}"
        size = len(content) if isinstance(content, bytes) else os.stat(content).st_size
        if size > _PART and isinstance(content, str):
            for _ in range(_CONFLICTS):
                with contextlib.suppress(Conflict):
                    return self._put_parts(path, key, content, size, mark, replaces)
            raise FormatError(_CONFLICT, where=self.place(key), fix="try again")
        if isinstance(content, str):
            with open(content, "rb") as file:
                content = file.read()
        body = content

        async def write() -> str:
            try:
                return await self._writes.put(path, body, mark, replaces)
            except Conflict:
                raise Again(_CONFLICT) from None

        return self._wait(write, key, size)

    def _put_parts(
        self, path: str, key: str, file_name: str, size: int, mark: str, replaces: str | None
    ) -> str:
        """As `put` of a large file. The object appears with the last request."""
        length = max(_PART, -(-size // _MOST_PARTS) + 0xFFFFF & ~0xFFFFF)
        upload = self._wait(lambda: self._writes.begin(path, mark, replaces), key, 0)
        try:
            with open(file_name, "rb") as file:
                at = 0
                while part := file.read(length):
                    last = at + len(part) == size
                    self._wait(lambda: upload.add(part, at, size), key, len(part))  # noqa: B023
                    at += len(part)
                    if last:
                        break
            if at != size:
                raise FormatError("was changed while it was uploaded", where=file_name)
            return self._wait(lambda: upload.end(replaces), key, 0)
        except BaseException:
            with contextlib.suppress(Exception):
                self._wait(upload.abandon, key, 0)
            raise

    def remove(self, key: str) -> None:
        """Removes an object. One that is not there is no error."""

        async def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                await self._writes.remove(f"{self._path}/{key}")

        self._wait(remove, key, 0, "cannot be removed")

    def _object(self, key: str) -> RemoteObject:
        name = self.place(key)
        how: Transport = self._kind(self._fs, f"{self._path}/{key}", name)
        return RemoteObject(name, how)

    def _wait(
        self,
        work: Callable[[], Awaitable[_Value]],
        key: str,
        count: int,
        failure: str = "cannot be written",
    ) -> _Value:
        limit = time_limit() if self._answers else min(time_limit(), _SHORT)
        how: dict[str, Any] = {} if self._answers else {"attempts": 1, "lateness": _STILL}
        seconds = limit + count / _LEAST_RATE
        try:
            found = wait(self._fs, self._once(work), self.place(key), seconds, failure=failure, **how)
        except Unanswered:
            self._answers = False
            raise
        self._answers = True
        return found

    @staticmethod
    def _once(work: Callable[[], Awaitable[_Value]]) -> Callable[[], Awaitable[_Value]]:
        """One attempt, whose passing errors are told from others."""

        async def once() -> _Value:
            try:
                return await work()
            except Exception as error:
                if {kind.__name__ for kind in type(error).__mro__} & _PASSING:
                    raise Again from None
                raise

        return once
