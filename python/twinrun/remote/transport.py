"""Ranges of an object of a store. Connections and credentials are fsspec's.

Each way gives the bytes of a range together with what tells whether the object is still the one that was
opened. No message here holds words of a library: these repeat URLs, with their secrets.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ..errors import FormatError, MissingFile, TwinrunError, Unsupported

__all__ = [
    "Again",
    "Conflict",
    "First",
    "Taken",
    "Transport",
    "Unanswered",
    "changed",
    "fewer",
    "listed",
    "missing",
    "read_most",
    "silent",
    "time_limit",
    "wait",
    "whole_size",
]

_ATTEMPTS = 4
_PAUSE = 0.2  # seconds before the second attempt; doubled each time
_TIMEOUT = "TWINRUN_REMOTE_TIMEOUT"
_TIME_LIMIT = 60.0  # seconds
_MORE = 30.0  # seconds, for pauses between attempts and a busy machine
_LEAST_RATE = 10_000  # bytes a second, of the slowest store that is waited for
_LISTINGS = 10  # limits of time in which a store lists its objects, a thousand an answer
_CHECK = "check the URL and the credentials, and try again"
# Errors of botocore, which need not be there.
_KNOWN = {
    "NoCredentialsError": (
        "there are no credentials for its store",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "PartialCredentialsError": (
        "the credentials for its store are not whole",
        "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "ProfileNotFound": ("AWS_PROFILE names no profile", "check it, and ~/.aws/config"),
    "EndpointConnectionError": ("the store cannot be reached", "check the network and AWS_ENDPOINT_URL"),
    "FlexibleChecksumError": (
        "the bytes that came do not have the checksum that the store tells",
        "try again; if that does not help, restore the object from a copy",
    ),
    "ParamValidationError": ("the bucket has no proper name", "check the URL"),
}
_Value = TypeVar("_Value")


class First(NamedTuple):
    """The begin of an object. tag: tells it from what it may be replaced with."""

    size: int
    tag: str
    bytes: bytes


class Again(Exception):
    """The store cannot answer now. why, fix: what a message says after the last attempt."""

    def __init__(self, why: str = "the store does not answer", fix: str = "try again") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


class Unanswered(FormatError):
    """The store gave no answer, or no whole one, in any attempt."""


class Taken(Exception):
    """An object was not written: the condition of the write does not hold."""


class Conflict(Exception):
    """An object was not written, as another write of it was under way: the store asks to try again."""


def _kind(error: Exception) -> str:
    """The store's code of an error, or its class. Texts of libraries may hold secrets; codes are words."""
    reply = getattr(error.__cause__ or error, "response", None)
    code = reply.get("Error", {}).get("Code", "") if isinstance(reply, dict) else ""
    return code if re.fullmatch(r"[A-Za-z.]{1,60}", str(code)) else type(error).__name__


def _status(error: Exception) -> int | None:
    """The HTTP status of the store's answer, if an error of botocore tells it."""
    reply = getattr(error.__cause__ or error, "response", None)
    facts = reply.get("ResponseMetadata") if isinstance(reply, dict) else None
    status = facts.get("HTTPStatusCode") if isinstance(facts, dict) else None
    return status if type(status) is int and 100 <= status <= 999 else None


def _told(error: Exception) -> str:
    status = _status(error)
    return _kind(error) if status is None else f"HTTP status {status}, {_kind(error)}"


def _advice(error: Exception) -> str:
    """What to do about an error that has no entry in `_KNOWN`."""
    status = _status(error)
    if status is not None and (status >= 500 or status == 429):
        return "the store has a fault or is busy: try again later"
    return _CHECK


def changed(name: str) -> FormatError:
    return FormatError(
        "was changed while it was read", where=name, fix="compare it again when nothing writes it"
    )


def fewer(name: str) -> FormatError:
    """Of an object that is what it was: its answer ended early."""
    return FormatError(
        "its server gave fewer bytes than it was asked for",
        where=name,
        fix="try it again, or download it first",
    )


def missing(name: str, error: Exception | None = None, what: str = "no such object") -> MissingFile:
    """error: what the store said."""
    if error is not None and _kind(error) == "NoSuchBucket":
        return MissingFile(
            "there is no such bucket", where=name, fix="check its name, AWS_ENDPOINT_URL and the region"
        )
    return MissingFile(what, where=name, fix="check the URL and the credentials")


def time_limit() -> float:
    """Seconds that a store may be silent. Raises TwinrunError where the environment names none."""
    told = os.environ.get(_TIMEOUT, "").strip()
    if not told:
        return _TIME_LIMIT
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise TwinrunError(f"{_TIMEOUT}={told} is no number of seconds", fix="give one above 0, such as 60")
    return seconds


class Transport:
    """How one object is read. name: for messages."""

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self.fs, self.path, self.name = fs, path, name
        self.limit = time_limit()

    def first(self, count: int) -> First:
        """The first bytes, at most `count`."""
        raise NotImplementedError

    def read(self, offset: int, count: int, size: int, tag: str) -> bytes:
        """A range of the object with this size and tag. Raises FormatError if it is another one by now."""
        raise NotImplementedError

    def mark(self, tag: str) -> str:
        """The mark of the object with this tag; "": it has none, or the store tells none."""
        return ""

    def here(self, offset: int, count: int, size: int, tag: str) -> bytes:
        """As `read`, for a caller that may hold a lock: no other thread is waited for."""
        from .caller import in_this_thread

        with in_this_thread(self.fs) as own:
            return type(self)(own, self.path, self.name).read(offset, count, size, tag)

    def _wait(self, work: Callable[[], Awaitable[_Value]], count: int) -> _Value:
        """As `wait`. count: bytes that the work brings."""
        return wait(self.fs, work, self.name, self.limit + count / _LEAST_RATE)


def silent(seconds: float) -> Again:
    """For a connection on which nothing came."""
    return Again(
        f"the store sent nothing for {seconds:.3g} s", f"try again, or set {_TIMEOUT} to more seconds"
    )


def wait(
    fs: Any,
    work: Callable[[], Awaitable[_Value]],
    name: str,
    seconds: float,
    attempts: int = _ATTEMPTS,
    failure: str = "cannot be read",
    lateness: str = "the store gave no whole answer within {seconds:.3g} s",
) -> _Value:
    """The result of `work`, which runs in the loop of the file system.

    It is tried again where the store cannot answer now, or did not within `seconds`. name, failure,
    lateness: for messages.
    """
    import asyncio

    late = Again(
        lateness.format(seconds=seconds),
        f"try again, or set {_TIMEOUT} to more seconds",
    )

    async def once() -> _Value:
        try:
            return await asyncio.wait_for(work(), seconds)
        except asyncio.TimeoutError:
            raise late from None

    async def several() -> _Value:
        for number in range(attempts - 1):
            try:
                return await once()
            except Again:
                await asyncio.sleep(_PAUSE * 2**number)
        return await once()

    try:
        return _result(fs.loop, several, attempts * seconds + _MORE)
    except (TwinrunError, Taken, Conflict, KeyboardInterrupt, MemoryError):
        raise
    except Again as error:
        raise Unanswered(error.why, where=name, fix=error.fix) from None
    except asyncio.TimeoutError:  # fsspec's thread does not run
        raise Unanswered(late.why, where=name, fix=late.fix) from None
    except FileNotFoundError as error:
        raise missing(name, error) from None
    except PermissionError:
        why, fix = "the store refuses access: check the credentials", "try again"
    except Exception as error:
        why, fix = _KNOWN.get(type(error).__name__, (f"{failure} ({_told(error)})", _advice(error)))
    raise FormatError(why, where=name, fix=fix) from None


def listed(
    fs: Any, work: Callable[[], Awaitable[_Value]], name: str, failure: str = "cannot be read"
) -> _Value:
    """As `wait`, for a list of objects, which takes many answers: all attempts have one limit of time."""
    import asyncio

    async def several() -> _Value:
        for number in range(_ATTEMPTS - 1):
            with suppress(Again):
                return await work()
            await asyncio.sleep(_PAUSE * 2**number)
        return await work()

    lateness = (
        f"the store did not end its list of objects within {{seconds:.3g}} s, {_LISTINGS} times {_TIMEOUT}"
    )
    return wait(fs, several, name, _LISTINGS * time_limit(), 1, failure, lateness)


def _result(loop: Any, work: Callable[[], Awaitable[_Value]], most: float) -> _Value:
    """What `work` gives in a loop. most: seconds; then fsspec's thread stands still."""
    from fsspec.asyn import sync

    from .caller import CallersLoop

    return loop.result(work) if isinstance(loop, CallersLoop) else sync(loop, work, timeout=most)


async def read_most(read: Callable[[int], Awaitable[bytes]], count: int, name: str) -> bytes:
    """All bytes of an answer. Raises FormatError where it has more than `count`, which are not read."""
    parts, left = [], count + 1
    while left and (part := await read(left)):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise FormatError(
            "its server gave more bytes than it was asked for", where=name, fix="download it first"
        )
    return b"".join(parts)


def whole_size(headers: Mapping[str, str], offset: int, count: int, name: str) -> int:
    """The size of the whole object. Raises FormatError if the reply is of another range than this one, which
    may go beyond the end.
    """
    told = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", headers.get("Content-Range", "").strip())
    if told is None:
        raise Unsupported("its server gives no size", where=name, fix="download it first")
    begin, last, size = map(int, told.groups())
    if (begin, last) != (offset, min(offset + count, size) - 1):
        raise FormatError(
            "its server gave other bytes than it was asked for", where=name, fix="download it first"
        )
    return size
