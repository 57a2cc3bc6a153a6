"""The files of a BP4 or BP5 folder, held against their index before ADIOS2 opens them.

The package waits without end for bytes that a cut file lacks, and takes an index that was cut for one of fewer steps. Here
every file must have the bytes that the index, and the metadata that it points to, say it has. Versions that are not known
are left to the package.

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
_MOST_GROUPS = 1_000_000  # of BP4's data that are looked at
_FIX = "copy all of the folder, or wait until its writer is done"


def looks_like(path: str) -> bool:
    """Whether a folder is of ADIOS2, whole or not."""
    if os.path.isfile(os.path.join(path, "md.idx")):
        with open(os.path.join(path, "md.idx"), "rb") as file:
            if file.read(len(_MARK)) == _MARK:
                return True
    there = sum(os.path.isfile(os.path.join(path, name)) for name in ("md.idx", "md.0", "mmd.0", "data.0"))
    return there >= (1 if path.rstrip("/").endswith(".bp") else 2)


def check_files(folder: str) -> list[tuple[str, str]]:
    """Raises DamagedFile where a file of the folder is missing or lacks bytes.

    Returns (name, reason) of what the index does not speak of: bytes of a step that was never finished.
    """
    index = _read(folder, "md.idx", _LONGEST_INDEX)
    if len(index) < _HEADER or index[: len(_MARK)] != _MARK:
        raise _cut(folder, "md.idx", f"{len(index)} bytes are no index")
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


def _behind(name: str, size: int, described: int) -> list[tuple[str, str]]:
    if size <= described:
        return []
    return [(name, f"{size - described} bytes of a step that was not finished: the index does not name it")]


# ---- BP5 ----


def _bp5(folder: str, index: bytes) -> list[tuple[str, str]]:
    at = _HEADER
    steps: list[tuple[tuple[int, ...], list[int]]] = []  # numbers of the record, subfile of each writer
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
            return []  # of a version that is not known
    for number in sorted({n for _, of_writers in steps for n in of_writers} | set(subfiles)):
        _size(folder, f"data.{number}")
    names = _descriptions(folder)
    file, size = _open(folder, "md.0")
    with file:
        described = max((n[0] + n[1] for n, _ in steps), default=0)
        if described > size:
            raise _cut(folder, "md.0", f"{size} bytes, and its steps need {described}")
        needed: dict[int, int] = {}  # bytes of each subfile
        begins: dict[int, int] = {}  # of what the steps behind have in each subfile
        for numbers, of_writers in reversed(steps):  # so that what follows in a subfile is known
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
                        return []  # not the layout that is known: nothing is said of the data
                    begins_now[subfile] = min(begins_now.get(subfile, 1 << 63), begin)
                    needed[subfile] = max(needed.get(subfile, 0), begin + length)
            begins.update(begins_now)
    for number, wanted in sorted(needed.items()):
        if _size(folder, f"data.{number}") < wanted:
            raise _cut(
                folder,
                f"data.{number}",
                f"{_size(folder, f'data.{number}')} bytes, and its steps need {wanted}",
            )
    return _behind("md.0", size, described)


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
    """Bytes of data of each writer in a step; None where its metadata is not laid out as known.

    The block: its length without this number, lengths of the writers' metadata, of their attributes; then both.
    A writer's metadata: 12 bytes of identifier, padding to 24; then numbers, of which the third is that of the data's bytes.
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
    if len(index) % _HEADER:
        raise _cut(folder, "md.idx", f"ends inside the record at byte {len(index) // _HEADER * _HEADER}")
    steps = [struct.unpack_from("<8Q", index, at) for at in range(_HEADER, len(index), _HEADER)]
    file, size = _open(folder, "md.0")
    with file:
        described = max((step[5] for step in steps), default=_HEADER)
        if described > size:
            raise _cut(folder, "md.0", f"{size} bytes, and its steps need {described}")
        groups = sum(
            struct.unpack("<Q", read_exact(file, step[2], 8, folder, "md.0"))[0]
            for step in steps
            if step[2] + 8 <= size
        )
    found, number = 0, 0
    while number == 0 or os.path.exists(os.path.join(folder, f"data.{number}")):
        walked = _groups(folder, f"data.{number}")
        if walked is None:
            return _behind("md.0", size, described)
        found += walked
        number += 1
    if found < groups:
        raise _cut(folder, "data", f"{found} groups in {number} files, and the index names {groups}")
    return _behind("md.0", size, described)


def _groups(folder: str, name: str) -> int | None:
    """Groups of data that a file holds, each as long as it says; None where they are laid out in a way that is not known."""
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
                raise _cut(folder, name, f"{size} bytes end inside the group at byte {at}")
            at += 4 + struct.unpack_from("<Q", start, 4)[0]
            found += 1
    return found
