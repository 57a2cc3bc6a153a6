"""Reads the index of sub-files, and the whole file that they are: spec/sub-files.md."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import xxhash

from twinrun_spec.metadata import FormatError

__all__ = ["Index", "parse", "whole"]

END = re.compile(rb',"checksum":"([0-9a-f]{16})"\}\n')
LONGEST = 1 << 30
LARGEST = 1 << 62


@dataclass(frozen=True)
class Index:
    """files: bytes, inode and time of each. places: the sets of each, or None where files lie one behind the other."""

    files: list[list[int]]
    bytes: int
    places: list[list[list[int]]] | None


def whole(path: str) -> bytes:
    """All bytes of the whole file at `path`."""
    with open(f"{path}.twr-index", "rb") as file:
        index = parse(file.read(LONGEST + 1))
    parts = []
    for number, entry in enumerate(index.files):
        name, length = f"{path}.{number:05}", entry[0]
        if not os.path.isfile(name):
            raise FormatError(f"{name}: not there, or no regular file")
        about = os.stat(name)
        found = [about.st_size, about.st_ino, about.st_mtime_ns]
        if found != entry and found in index.files:
            raise FormatError(f"{name}: the file of another entry")
        with open(name, "rb") as file:
            parts.append(file.read())
        if len(parts[-1]) != length:
            raise FormatError(f"{name}: {len(parts[-1])} bytes, and the index says {length}")
    if index.places is None:
        return b"".join(parts)
    result = bytearray(index.bytes)
    for part, sets in zip(parts, index.places, strict=True):
        at = 0
        for offset, width, count, stride in sets:
            for i in range(count):
                begin = offset + i * stride
                result[begin : begin + width] = part[at : at + width]
                at += width
    return bytes(result)


def parse(text: bytes) -> Index:
    """The index that `text` is. Raises FormatError where it breaks a rule."""
    if len(text) > LONGEST:
        raise FormatError("index: longer than 2^30 bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError("index: not JSON") from None
    if not isinstance(document, dict) or document.get("format") != "twinrun sub-files":
        raise FormatError("index: another format")
    version = document.get("version")
    if type(version) is not int or version not in (1, 2, 3):
        raise FormatError(f"index: version {version!r}")
    if version == 3:
        end = END.fullmatch(text[-len(b',"checksum":"0123456789abcdef"}\n') :])
        if end is None or int(end[1], 16) != xxhash.xxh3_64_intdigest(text[: -len(end[0])]):
            raise FormatError("index: checksum")
    elif "checksum" in document or ("whole" in document) != (version == 2):
        raise FormatError("index: not what its version says")
    files = document.get("files")
    if not _lists(files, 3) or not files:
        raise FormatError("index: files")
    if any(length < 0 for length, _, _ in files):
        raise FormatError("index: a negative length")
    if "whole" not in document:
        return Index(files, sum(length for length, _, _ in files), None)
    return _with_places(files, document["whole"])


def _with_places(files: list[list[int]], value: Any) -> Index:
    if not isinstance(value, dict) or type(value.get("bytes")) is not int:
        raise FormatError("index: the whole")
    length, places = value["bytes"], value.get("places")
    if not 0 <= length <= LARGEST or not isinstance(places, list) or len(places) != len(files):
        raise FormatError("index: the whole")
    taken: list[tuple[int, int]] = []  # of each piece: begin, end
    for (own, _, _), sets in zip(files, places, strict=True):
        if not _lists(sets, 4):
            raise FormatError("index: sets")
        for offset, width, count, stride in sets:
            if offset < 0 or width < 1 or count < 1 or stride < width:
                raise FormatError("index: a set")
            if offset + (count - 1) * stride + width > length:
                raise FormatError("index: a set behind the end of the whole")
        if sum(width * count for _, width, count, _ in sets) != own:
            raise FormatError("index: sets of more or fewer bytes than their file")
        for offset, width, count, stride in sets:
            taken += [(offset + i * stride, offset + i * stride + width) for i in range(count)]
    taken.sort()
    if any(begin < end for (_, end), (begin, _) in pairwise(taken)):
        raise FormatError("index: a byte in two sets")
    if length != (taken[-1][1] if taken else 0):
        raise FormatError("index: the whole does not end with a set")
    return Index(files, length, places)


def _lists(value: Any, numbers: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == numbers and all(type(n) is int for n in one) for one in value
    )
