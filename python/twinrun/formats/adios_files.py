"""Checks the files of a BP4 or BP5 folder against their index before ADIOS2 opens them.

The adios2 package waits forever for the missing bytes of a truncated file, and takes a truncated index for
one of fewer steps. This check requires that every file has the bytes that the index and the metadata claim.
Unknown versions are not checked.

    md.idx   header of 64 bytes; BP5: records (type u8, length u64, content), BP4: records of eight u64
    md.0     metadata of all writers, step by step
    mmd.0    BP5: descriptions of the layout of metadata: two lengths u64, an identifier, a description
    data.N   the data of the writers of subfile N
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from ..errors import DamagedFile, Unsupported
from .files import open_regular, read_exact

__all__ = ["check_files", "looks_like"]

_HEADER = 64
_MARK = b"ADIOS-BP"
_LONGEST_INDEX = 1 << 30
_MOST_GROUPS = 1_000_000  # groups of a BP4 data file that are checked
_FIX = "copy the whole folder, or wait until its writer has finished"


def looks_like(path: str) -> bool:
    """Whether a folder is an ADIOS2 data set, complete or not."""
    if os.path.isfile(os.path.join(path, "md.idx")):
        with open(os.path.join(path, "md.idx"), "rb") as file:
            if file.read(len(_MARK)) == _MARK:
                return True
    there = sum(os.path.isfile(os.path.join(path, name)) for name in ("md.idx", "md.0", "mmd.0", "data.0"))
    return there >= (1 if path.rstrip("/").endswith(".bp") else 2)


def check_files(folder: str) -> list[tuple[str, str]]:
    """Raises DamagedFile if a file of the folder is missing or truncated.

    Returns (name, reason) of bytes that the index does not contain, which belong to a step that was never
    finished.
    """
    index = _read(folder, "md.idx", _LONGEST_INDEX)
    if len(index) < _HEADER or index[: len(_MARK)] != _MARK:
        raise _cut(folder, "md.idx", f"its {len(index)} bytes are not an index")
    big_endian, version = index[36], index[37]
    if big_endian or version not in (4, 5):
        return []
    return _bp4(folder, index) if version == 4 else _bp5(folder, index)


def _cut(folder: str, name: str, what: str) -> DamagedFile:
    return DamagedFile(f"{name}: {what}", where=folder, fix=_FIX)


def _open(folder: str, name: str) -> tuple[BinaryIO, int]:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        raise _cut(folder, name, "is missing from the data set")
    return open_regular(path)


def _read(folder: str, name: str, longest: int) -> bytes:
    file, size = _open(folder, name)
    with file:
        if size > longest:
            raise Unsupported(f"{name}: {size} bytes, more than {longest}", where=folder)
        return read_exact(file, 0, size, folder, name)


def _size(folder: str, name: str) -> int:
    file, size = _open(folder, name)
    file.close()
    return size


def _unfinished(name: str, size: int, described: int) -> list[tuple[str, str]]:
    """The entry for `skipped` if a file has more bytes than the index describes."""
    if size <= described:
        return []
    return [(name, f"{size - described} bytes of an unfinished step, which is not in the index")]


# ---- BP5 ----


def _bp5(folder: str, index: bytes) -> list[tuple[str, str]]:
    """Checks a BP5 folder; see `check_files`."""
    at = _HEADER
    # Numbers of the record, subfile of each writer.
    steps: list[tuple[tuple[int, ...], list[int]]] = []
    subfiles: list[int] = []
    while at < len(index):
        if len(index) - at < 9:
            raise _cut(folder, "md.idx", f"ends inside the record at byte {at}")
        kind, length = struct.unpack_from("<BQ", index, at)
        if length % 8 or length > len(index) - at - 9:
            raise _cut(folder, "md.idx", f"ends inside the record at byte {at}")
        numbers = struct.unpack_from(f"<{length // 8}Q", index, at + 9)
        at += 9 + length
        if kind == ord("w") and length >= 32 and len(numbers) == 3 + numbers[0]:
            subfiles = list(numbers[3:])
        elif (
            kind == ord("s")
            and len(numbers) >= 3
            and len(numbers) == 3 + len(subfiles) * (1 + 2 * numbers[2])
        ):
            steps.append((numbers, subfiles))
        else:
            return []  # an unknown version
    for number in sorted({n for _, of_writers in steps for n in of_writers} | set(subfiles)):
        _size(folder, f"data.{number}")
    names = _descriptions(folder)
    file, size = _open(folder, "md.0")
    with file:
        described = max((n[0] + n[1] for n, _ in steps), default=0)
        if described > size:
            raise _cut(folder, "md.0", f"has {size} bytes, but its steps need {described}")
        needed: dict[int, int] = {}  # bytes of each subfile
        begins: dict[int, int] = {}  # for each subfile, where the data of later steps begins
        for numbers, of_writers in reversed(steps):  # backwards, so that `begins` is known
            block = read_exact(file, numbers[0], numbers[1], folder, "md.0")
            begins_now: dict[int, int] = {}
            for writer, used in enumerate(_data_of_writers(block, len(of_writers), names)):
                flushes = numbers[2]
                place = numbers[3 + writer * (1 + 2 * flushes) :][: 1 + 2 * flushes]
                parts = [(place[2 * n], place[2 * n + 1]) for n in range(flushes)]
                if used is not None:
                    parts.append((place[-1], used - sum(length for _, length in parts)))
                subfile = of_writers[writer]
                for begin, length in reversed(parts):
                    if length == 0:
                        continue
                    if length < 0 or begin + length > begins.get(subfile, 1 << 63):
                        return []  # an unknown layout: the data is not checked
                    begins_now[subfile] = min(begins_now.get(subfile, 1 << 63), begin)
                    needed[subfile] = max(needed.get(subfile, 0), begin + length)
            begins.update(begins_now)
    for number, least in sorted(needed.items()):
        if _size(folder, f"data.{number}") < least:
            raise _cut(
                folder,
                f"data.{number}",
                f"has {_size(folder, f'data.{number}')} bytes, but its steps need {least}",
            )
    return _unfinished("md.0", size, described)


def _descriptions(folder: str) -> set[bytes]:
    """Identifiers of the layouts of metadata."""
    content = _read(folder, "mmd.0", _LONGEST_INDEX)
    names = set()
    at = 0
    while at < len(content):
        if len(content) - at < 16:
            raise _cut(folder, "mmd.0", f"ends inside the description at byte {at}")
        first, second = struct.unpack_from("<2Q", content, at)
        if first + second > len(content) - at - 16:
            raise _cut(folder, "mmd.0", f"ends inside the description at byte {at}")
        names.add(content[at + 16 : at + 16 + first])
        at += 16 + first + second
    return names


def _data_of_writers(block: bytes, writers: int, names: set[bytes]) -> list[int | None]:
    """Number of data bytes of each writer in a step; None if the layout of its metadata is unknown.

    block: u64 length of the rest, u64 lengths of the metadata of each writer, u64 lengths of their
    attributes, then metadata and attributes. The metadata of a writer is an identifier of 12 bytes, padding
    to 24 bytes, then u64 numbers; the third of these is the number of data bytes.
    """
    head = 8 * (1 + 2 * writers)
    if len(block) < head or struct.unpack_from("<Q", block)[0] != len(block) - 8:
        return [None] * writers
    found: list[int | None] = []
    at = head
    for length in struct.unpack_from(f"<{writers}Q", block, 8):
        known = length >= 48 and at + length <= len(block) and block[at : at + 12] in names
        found.append(struct.unpack_from("<Q", block, at + 40)[0] if known else None)
        at += length
    return found


# ---- BP4 ----


def _bp4(folder: str, index: bytes) -> list[tuple[str, str]]:
    """Checks a BP4 folder; see `check_files`."""
    if len(index) % _HEADER:
        raise _cut(folder, "md.idx", f"ends inside the record at byte {len(index) // _HEADER * _HEADER}")
    steps = [struct.unpack_from("<8Q", index, at) for at in range(_HEADER, len(index), _HEADER)]
    file, size = _open(folder, "md.0")
    with file:
        described = max((step[5] for step in steps), default=_HEADER)
        if described > size:
            raise _cut(folder, "md.0", f"has {size} bytes, but its steps need {described}")
        groups = sum(
            struct.unpack("<Q", read_exact(file, step[2], 8, folder, "md.0"))[0]
            for step in steps
            if step[2] + 8 <= size
        )
    found, number = 0, 0
    while number == 0 or os.path.exists(os.path.join(folder, f"data.{number}")):
        walked = _groups(folder, f"data.{number}")
        if walked is None:
            return _unfinished("md.0", size, described)
        found += walked
        number += 1
    if found < groups:
        raise _cut(folder, "data", f"{found} groups in {number} files, but the index names {groups}")
    return _unfinished("md.0", size, described)


def _groups(folder: str, name: str) -> int | None:
    """Number of complete groups of data in a file; None if their layout is unknown.

    Raises DamagedFile if one is truncated.
    """
    file, size = _open(folder, name)
    with file:
        if size < _HEADER:
            raise _cut(folder, name, f"ends inside the header at byte {size}")
        at = _HEADER if read_exact(file, 0, len(_MARK), folder, name) == _MARK else 0
        found = 0
        while at < size:
            if found >= _MOST_GROUPS:
                return None
            start = read_exact(file, at, min(12, size - at), folder, name)
            if not b"[PGI".startswith(start[:4]):
                return None
            if len(start) < 12 or struct.unpack_from("<Q", start, 4)[0] > size - at - 4:
                raise _cut(folder, name, f"ends at byte {size}, inside the group at byte {at}")
            at += 4 + struct.unpack_from("<Q", start, 4)[0]
            found += 1
    return found
