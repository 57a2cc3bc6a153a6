"""The index of sub-files, PATH.twr-index: which files belong together, and where their bytes lie."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError, Unsupported

__all__ = ["Index", "Placed", "identity_of", "index_path", "read_index", "still_there"]

_FORMAT = "twinrun sub-files"
_LARGEST = 1 << 62
_LONGEST = 1 << 30  # bytes of an index that is read
_CHECKED = 3  # the version that ends with a checksum of all before it
_END = re.compile(rb',"checksum":"([0-9a-f]{16})"}\n\Z')


@dataclass(frozen=True)
class Placed:
    """Bytes of the whole file in one sub-file: `count` pieces of `width` bytes, `stride` bytes from one to
    the next, which lie one behind the other from `at` on.
    """

    file: int
    at: int
    offset: int
    width: int
    count: int
    stride: int

    @property
    def end(self) -> int:
        return self.offset + (self.count - 1) * self.stride + self.width

    @property
    def bytes(self) -> int:
        return self.width * self.count


@dataclass(frozen=True)
class Index:
    """PATH.twr-index: which files belong together, and where their bytes lie in the whole."""

    path: str
    text: bytes
    files: tuple[tuple[int, int, int], ...]  # bytes, inode, nanoseconds since 1970
    whole_bytes: int
    placed: tuple[Placed, ...]
    checked: bool  # whether the text has a checksum, which is right
    identity: tuple[int, int, int]  # of the index itself, as it was read

    def name(self, number: int) -> str:
        """The path of a sub-file."""
        return f"{self.path}.{number:05}"


def index_path(path: str) -> str:
    """The path of the index of the sub-files of `path`."""
    return f"{path}.twr-index"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _placed(document: dict[str, Any], files: list[tuple[int, int, int]], whole_bytes: int) -> list[Placed]:
    """The sets of the whole file. Raises ValueError where they are not what twinrun writes."""
    places = document["places"]
    if not isinstance(places, list) or len(places) != len(files):
        raise ValueError("one list of places for each file")
    placed = []
    for number, sets in enumerate(places):
        at = 0
        for offset, width, count, stride in sets:
            if not all(map(_is_count, (offset, width, count, stride))) or not width or not count:
                raise ValueError("a set of bytes")
            one = Placed(number, at, offset, width, count, stride)
            if stride < width or one.end > whole_bytes:
                raise ValueError("a set within the whole file")
            placed.append(one)
            at += one.bytes
        if at != files[number][0]:
            raise ValueError("as many bytes as the file has")
    if max((one.end for one in placed), default=0) != whole_bytes:
        raise ValueError("a whole file that ends with a set")
    if _core.first_overlap([(one.offset, one.width, one.count, one.stride) for one in placed]) is not None:
        raise ValueError("bytes that only one set has")
    return placed


def _why_no_index(path: str) -> MissingFile:
    """The error where there is no index, by what is there instead."""
    name = index_path(path)
    stem = re.sub(r"(\.twr-index|\.[0-9]{5,})\Z", "", path)
    if stem != path and os.path.lexists(index_path(stem)):
        return MissingFile("a file of several, and not their name", where=path, fix=f"name {stem}")
    if os.path.lexists(f"{path}.00000"):
        return MissingFile(
            "no index, although there are sub-files: their write did not end, or was told to make none",
            where=name,
            fix="write the files again",
        )
    if os.path.isfile(path):
        return MissingFile(
            "there is nothing to join: it is one file and has no sub-files, as where one node or one rank wrote it",
            where=path,
            fix="use the file itself",
        )
    return MissingFile("no index of sub-files", where=name, fix="name the path that the program wrote to")


def identity_of(about: os.stat_result) -> tuple[int, int, int]:
    """What tells a file from another one, and from itself after a change."""
    return about.st_size, about.st_ino, about.st_mtime_ns


def _text(path: str) -> tuple[bytes, tuple[int, int, int]]:
    """The text of the index, and which file it was."""
    name = index_path(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _why_no_index(path) from None
    except OSError as e:
        raise FormatError(f"cannot be opened: {e.strerror}", where=name) from e
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise FormatError("not an index of sub-files: no regular file", where=name)
        if about.st_size > _LONGEST:
            raise FormatError("not an index of sub-files: too large", where=name, fix="check the path")
        return file.read(), identity_of(about)


def _document(name: str, text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
        ours = isinstance(document, dict) and document.get("format") == _FORMAT
    except (ValueError, RecursionError):
        ours = False
    if not ours:
        raise FormatError("not an index of sub-files", where=name, fix="check the path")
    version = document.get("version")
    if isinstance(version, bool) or version not in (1, 2, _CHECKED):
        raise Unsupported(f"version {version!r} of an index", where=name, fix="update twinrun")
    return document


def _check_version(document: dict[str, Any], text: bytes) -> None:
    """Raises ValueError where the index says more or less than its version does."""
    if document["version"] == _CHECKED:
        end = _END.search(text)
        if end is None or int(end[1], 16) != _core.xxh3(text[: end.start()]):
            raise ValueError("checksum")
    elif "checksum" in document or ("whole" in document) != (document["version"] == 2):
        raise ValueError("version")


def read_index(path: str) -> Index:
    """The index of the sub-files of `path`.

    Raises
    ------
    MissingFile
        There is none.
    FormatError
        A file of that name is not an index, or a damaged one, or of a newer version.
    """
    name = index_path(path)
    text, identity = _text(path)
    document = _document(name, text)
    try:
        _check_version(document, text)
        files = [(a, b, c) for a, b, c in document["files"]]
        if not files or not all(
            _is_count(a) and isinstance(b, int) and isinstance(c, int) for a, b, c in files
        ):
            raise ValueError("files")
        if "whole" in document:
            whole_bytes = document["whole"]["bytes"]
            if not _is_count(whole_bytes):
                raise ValueError("bytes of the whole")
            placed = _placed(document["whole"], files, whole_bytes)
        else:
            whole_bytes, placed = 0, []
            for number, (length, _, _) in enumerate(files):
                if length:
                    placed.append(Placed(number, 0, whole_bytes, length, 1, length))
                whole_bytes += length
        if whole_bytes > _LARGEST:
            raise ValueError("bytes of the whole")
    except (ValueError, KeyError, TypeError) as e:
        raise DamagedFile("cut or altered", where=name, fix="remove it, and write the files again") from e
    checked = document["version"] == _CHECKED
    return Index(path, text, tuple(files), whole_bytes, tuple(placed), checked, identity)


def still_there(index: Index) -> bool:
    """Whether the index is the one that was read."""
    with contextlib.suppress(TwinrunError):
        now = read_index(index.path)
        return (now.text, now.identity) == (index.text, index.identity)
    return False
