"""Objects of web servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import FormatError, TwinrunError, Unsupported
from .transport import Again, First, Transport, changed, fewer, missing, read_most, silent, whole_size

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Https"]

_PRINTED = "".join(map(chr, range(33, 127)))  # signs that a line of a request may hold


class Https(Transport):
    def first(self, count: int) -> First:
        status, headers, body = self._wait(lambda: self._get(0, count), count)
        if status == 416:  # no byte to give
            if headers.get("Content-Range", "").strip() != "bytes */0":
                raise Unsupported("its server gives no size", where=self.name, fix="download it first")
            return First(0, _tag(headers, self.name), b"")
        size = whole_size(headers, 0, count, self.name)
        if len(body) != min(size, count):
            raise fewer(self.name)
        return First(size, _tag(headers, self.name), body)

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        status, headers, body = self._wait(lambda: self._get(offset, count), count)
        if status == 416 or _tag(headers, self.name) != tag:
            raise changed(self.name)
        if whole_size(headers, offset, count, self.name) != size:
            raise changed(self.name)
        if len(body) != count:
            raise fewer(self.name)
        return body

    async def _get(self, offset: int, count: int) -> tuple[int, Mapping[str, str], bytes]:
        """(status 206 or 416, headers, body) of a range."""
        import asyncio

        import aiohttp

        address = self._address()
        session = await self.fs.set_session()
        options = dict(self.fs.kwargs)
        headers = dict(options.pop("headers", {}))
        headers |= {"Range": f"bytes={offset}-{offset + count - 1}", "Accept-Encoding": "identity"}
        # No limit of the whole: the slowest rate that is waited for gives one.
        options["timeout"] = aiohttp.ClientTimeout(None, sock_connect=self.limit, sock_read=self.limit)
        try:
            async with session.get(address, headers=headers, **options) as reply:
                if reply.status in (408, 429) or reply.status >= 500:
                    raise Again(f"its server answers with status {reply.status}")
                if reply.status == 206:
                    return 206, reply.headers.copy(), await self._body(reply, count)
                if reply.status == 416:
                    return 416, reply.headers.copy(), b""
                raise _refused(reply.status, self.name)
        except asyncio.TimeoutError:
            raise silent(self.limit) from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            raise Again from None
        except aiohttp.ClientError as error:
            raise self._odd(error) from None

    def _address(self) -> Any:
        """The URL that is asked for. Its query is sent as it was given: it may hold a signature of itself."""
        import yarl

        path, mark, query = self.path.partition("#")[0].partition("?")
        try:
            address = self.fs.encode_url(path)
            return yarl.URL(f"{address}?{quote(query, _PRINTED)}", encoded=True) if mark else address
        except ValueError:
            raise FormatError("is no URL", where=self.name, fix="check its host and port") from None

    def _odd(self, error: Exception) -> FormatError:
        """What the server did, by the class of the error: its words may hold secrets."""
        import aiohttp

        fix = "check the URL"
        if isinstance(error, aiohttp.TooManyRedirects):
            why = "its server leads from one address to the next, and to no object"
        elif "NonHttp" in type(error).__name__:
            why = "its server leads to an address that is not of the web"
            fix = "give that address, if you trust it"
        elif isinstance(error, aiohttp.InvalidURL):
            why = (
                "its server leads to an address that is no URL"
                if "Redirect" in type(error).__name__
                else "is no URL"
            )
        elif isinstance(error, aiohttp.ClientHttpProxyError):
            why, fix = f"its proxy answers with status {error.status}", "check the proxy"
        elif not isinstance(error, aiohttp.ClientResponseError):
            why = f"cannot be read ({type(error).__name__})"
        else:
            why = "its server's answer has damaged headers, or too long ones"
            fix = "check that the URL is of a web server, or download it first"
        return FormatError(why, where=self.name, fix=fix)

    async def _body(self, reply: aiohttp.ClientResponse, count: int) -> bytes:
        """The bytes of a range of `count`. What comes behind them is not read."""
        coding = reply.headers.get("Content-Encoding", "identity").strip().lower()
        try:
            if coding not in ("", "identity"):  # a range of other bytes than those of the object
                raise Unsupported(
                    f"its server gives encoded bytes ({coding:.20})", where=self.name, fix="download it first"
                )
            return await read_most(reply.content.read, count, self.name)
        except BaseException:
            reply.close()  # and not the rest of it for another request
            raise


def _refused(status: int, name: str) -> TwinrunError:
    if status in (404, 410):
        return missing(name)
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


def _tag(headers: Mapping[str, str], name: str) -> str:
    """What changes with every byte of the object: a strong validator of RFC 9110."""
    tag = headers.get("ETag", "").strip()
    if tag.startswith('"') and tag.strip('"'):  # an empty one tells nothing
        return tag
    then = _seconds(headers.get("Last-Modified"))
    if then is None:
        raise Unsupported(
            "its server gives no ETag and no Last-Modified: a change while it is read could not be seen",
            where=name,
            fix="download it first",
        )
    now = _seconds(headers.get("Date"))
    if now is None:
        raise Unsupported(
            "its server gives no ETag and no Date: a change while it is read could not be seen",
            where=name,
            fix="download it first",
        )
    # Of two changes within one second the second one has the same time.
    if now - then < 1:
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
