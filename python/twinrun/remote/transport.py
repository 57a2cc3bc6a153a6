"""Ranges of an object over https, s3 and gs. Connections and credentials are fsspec's.

Each way gives the bytes of a range together with what tells whether the object is still the one that was
opened. No message here holds words of a library: these repeat URLs, with their secrets.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..errors import FormatError, MissingFile, MissingPackage, TwinrunError, Unsupported
from ..urls import without_secrets

__all__ = ["First", "Transport", "changed", "transport"]

_ATTEMPTS = 4
_PAUSE = 0.2  # seconds before the second attempt; doubled each time
_Value = TypeVar("_Value")


class First(NamedTuple):
    """The begin of an object. tag: tells it from what it may be replaced with."""

    size: int
    tag: str
    bytes: bytes


class _Again(Exception):
    """The store cannot answer now."""


def changed(name: str) -> FormatError:
    return FormatError(
        "was changed while it was read", where=name, fix="compare it again when nothing writes it"
    )


def _missing(name: str) -> MissingFile:
    return MissingFile("no such object", where=name, fix="check the URL and the credentials")


class Transport:
    """How one object is read. name: for messages."""

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self.fs, self.path, self.name = fs, path, name

    def first(self, count: int) -> First:
        """The first bytes, at most `count`."""
        raise NotImplementedError

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        """A range of the object with this size and tag. Raises FormatError if it is another one by now."""
        raise NotImplementedError

    def _wait(self, work: Callable[[], Awaitable[_Value]]) -> _Value:
        """The result of `work`, which runs in fsspec's loop.

        It is tried again where the store cannot answer now.
        """
        import asyncio

        from fsspec.asyn import sync

        async def attempts() -> _Value:
            for number in range(_ATTEMPTS):
                try:
                    return await work()
                except _Again:
                    if number + 1 == _ATTEMPTS:
                        raise
                    await asyncio.sleep(_PAUSE * 2**number)
            raise AssertionError

        try:
            return sync(self.fs.loop, attempts)
        except (TwinrunError, KeyboardInterrupt, MemoryError):
            raise
        except _Again:
            why = "the store does not answer"
        except FileNotFoundError:
            raise _missing(self.name) from None
        except PermissionError:
            why = "the store refuses access: check the credentials"
        except Exception as error:
            why = f"cannot be read ({type(error).__name__})"
        raise FormatError(why, where=self.name, fix="try again") from None


# ---- https ----


class _Https(Transport):
    def first(self, count: int) -> First:
        status, headers, body = self._wait(lambda: self._get(0, count))
        if status == 416:  # no byte to give
            if headers.get("Content-Range", "").strip() != "bytes */0":
                raise Unsupported("its server gives no size", where=self.name, fix="download it first")
            return First(0, _tag(headers, self.name), b"")
        size = _size(headers, 0, len(body), self.name)
        if len(body) != min(size, count):
            raise changed(self.name)
        return First(size, _tag(headers, self.name), body)

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        status, headers, body = self._wait(lambda: self._get(offset, count))
        if status == 416 or len(body) != count or _tag(headers, self.name) != tag:
            raise changed(self.name)
        if _size(headers, offset, count, self.name) != size:
            raise changed(self.name)
        return body

    async def _get(self, offset: int, count: int) -> tuple[int, Mapping[str, str], bytes]:
        """(status 206 or 416, headers, body) of a range."""
        import asyncio

        import aiohttp

        session = await self.fs.set_session()
        options = dict(self.fs.kwargs)
        headers = dict(options.pop("headers", {}))
        headers |= {"Range": f"bytes={offset}-{offset + count - 1}", "Accept-Encoding": "identity"}
        try:
            async with session.get(self.fs.encode_url(self.path), headers=headers, **options) as reply:
                if reply.status in (408, 429) or reply.status >= 500:
                    raise _Again
                if reply.status == 206:
                    return 206, reply.headers.copy(), await reply.read()
                if reply.status == 416:
                    return 416, reply.headers.copy(), b""
                raise _refused(reply.status, self.name)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError):
            raise _Again from None
        except aiohttp.InvalidURL:
            raise FormatError("is no URL", where=self.name, fix="check it") from None


def _refused(status: int, name: str) -> TwinrunError:
    if status in (404, 410):
        return _missing(name)
    if status in (401, 403):
        return FormatError(
            f"its server refuses access (status {status})",
            where=name,
            fix="check the credentials; a signed URL may have expired",
        )
    if status == 200:
        return Unsupported(
            "its server gives whole objects only, and no ranges", where=name, fix="download it first"
        )
    return FormatError(f"its server answers with status {status}", where=name, fix="check the URL")


def _size(headers: Mapping[str, str], offset: int, count: int, name: str) -> int:
    """The size of the whole object. Raises FormatError if the reply is of another range."""
    told = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", headers.get("Content-Range", "").strip())
    if told is None:
        raise Unsupported("its server gives no size", where=name, fix="download it first")
    begin, last, size = map(int, told.groups())
    if (begin, last) != (offset, offset + count - 1) or last >= size:
        raise FormatError(
            "its server gave other bytes than it was asked for", where=name, fix="download it first"
        )
    return size


def _tag(headers: Mapping[str, str], name: str) -> str:
    """What changes with every byte of the object: a strong validator of RFC 9110."""
    tag = headers.get("ETag", "").strip()
    if tag.startswith('"'):
        return tag
    then = _seconds(headers.get("Last-Modified"))
    if then is None:
        raise Unsupported(
            "its server gives no ETag and no Last-Modified: a change while it is read could not be seen",
            where=name,
            fix="download it first",
        )
    now = _seconds(headers.get("Date"))
    # Of two changes within one second the second one has the same time.
    if now is None or now - then < 1:
        raise FormatError(
            "was written within the last second, and its server gives no ETag: a further change could not be seen",
            where=name,
            fix="try again in a few seconds",
        )
    return headers["Last-Modified"]


def _seconds(text: str | None) -> float | None:
    import email.utils

    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (TypeError, ValueError):
        return None


# ---- s3 ----


class _S3(Transport):
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
            size = _size({"Content-Range": reply["ContentRange"]}, 0, reply["ContentLength"], self.name)
            return First(size, str(reply["ETag"]), await _body(reply))

        found = self._wait(get)
        if len(found.bytes) != min(found.size, count):
            raise changed(self.name)
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
            if _size({"Content-Range": reply["ContentRange"]}, offset, count, self.name) != size:
                raise changed(self.name)
            return await _body(reply)

        found = self._wait(get)
        if len(found) != count:
            raise changed(self.name)
        return found

    @property
    def _place(self) -> dict[str, str]:
        bucket, key, version = self.fs.split_path(self.path)
        return {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})

    async def _get(self, offset: int, count: int, **more: str) -> Any:
        return await self.fs._call_s3(
            "get_object", **self._place, Range=f"bytes={offset}-{offset + count - 1}", **more
        )


async def _body(reply: Any) -> bytes:
    try:
        return await reply["Body"].read()
    except OSError:
        raise _Again from None
    finally:
        reply["Body"].close()


# ---- gs ----


class _Gs(Transport):
    """The generation of an object stands for its content: a read names it."""

    def first(self, count: int) -> First:
        async def get() -> First:
            self.fs.invalidate_cache()
            facts = await self.fs._info(self.path)
            if facts.get("type") != "file":
                raise FileNotFoundError
            tag, size = str(facts["generation"]), int(facts["size"])
            return First(size, tag, await self._range(0, min(count, size), tag) if size else b"")

        return self._wait(get)

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        try:
            found = self._wait(lambda: self._range(offset, count, tag))
        except MissingFile:
            raise changed(self.name) from None
        if len(found) != count:
            raise changed(self.name)
        return found

    async def _range(self, offset: int, count: int, tag: str) -> bytes:
        return await self.fs._cat_file(self.path, start=offset, end=offset + count, generation=tag)


_BY_PROTOCOL: dict[str, tuple[type[Transport], str]] = {
    "http": (_Https, "aiohttp"),
    "https": (_Https, "aiohttp"),
    "s3": (_S3, "s3fs"),
    "s3a": (_S3, "s3fs"),
    "gs": (_Gs, "gcsfs"),
    "gcs": (_Gs, "gcsfs"),
}


def file_system(url: str) -> tuple[Any, str, type[Transport]]:
    """fsspec's file system of a URL, the path in it, and how objects there are read."""
    protocol = url.partition("://")[0].lower()
    kind, package = _BY_PROTOCOL[protocol]
    name = without_secrets(url)
    try:
        import fsspec
    except ImportError:
        raise MissingPackage.of("fsspec", "twinrun[remote]", where=name) from None
    if importlib.util.find_spec(package) is None:
        extra = "twinrun[remote]" if package != "gcsfs" else "gcsfs"
        raise MissingPackage.of(package, extra, where=name)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        raise FormatError(
            f"cannot be opened ({type(error).__name__})", where=name, fix="check the URL and the credentials"
        ) from None
    return fs, path, kind


def transport(url: str, name: str) -> Transport:
    """How the object of a URL is read.

    Raises MissingPackage where fsspec or a package of the store is missing.
    """
    fs, path, kind = file_system(url)
    return kind(fs, path, name)
