"""Checkpoints of VELOC: u64 N; N times (i32 id, u64 bytes), packed; then the regions in ascending order of
ids, without padding.

`<name>-<rank>-<version>.dat` is the file of one rank. `<name>-agg-<version>.dat` has the files of all ranks
in sequence. Numbers have the byte order of the writing machine, which is assumed to be little-endian. The
file does not contain the types of regions: without `types` they are u8.

    types=0:f64,1:i32

or a file veloc.json in the same folder: {"types": {"0": "f64", "1": "i32"}}

Source: https://github.com/ECP-VeloC/VELOC.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .element_types import ITEMSIZE, parse_dtype
from .files import file_size, open_regular, read_exact, reading
from .model import Extent, Field, FileContent, Format, flag
from .naming import Place

SIDECAR = "veloc.json"
_ENTRY = struct.Struct("<iQ")
_MOST_REGIONS = 1_000_000
_MOST_RANKS = 10_000_000
_LONGEST_SIDECAR = 1 << 20
_NAME = re.compile(r"([A-Za-z0-9_.]+)-(\d{1,9}|agg)-(\d{1,18})\.dat")
_Region = tuple[int, int, int]  # id, first byte, bytes


def open_veloc(path: str, types: object = None, meta: object = None, verify: object = False) -> FileContent:
    """Opens a checkpoint of VELOC. Regions are fields `region-<id>`; in an aggregated file
    `rank-<rank>/region-<id>`.

    types: the types of regions, {id: dtype} or "id:dtype,…". meta: VELOC's metadata folder, with the map of
    an aggregated file and with checksums. verify: check the SHA-256 that VELOC writes with `chksum = true`;
    this reads the whole file.
    """
    verify = flag(verify, "verify", path)
    known = _types(types, path)
    file, size = open_regular(path)
    content = FileContent(path, "veloc")
    with file:
        named = _NAME.fullmatch(os.path.basename(path))
        if named is not None and named[2] == "agg":
            for rank, offset in enumerate(_offsets(file, size, path, meta)):
                regions, _ = _regions(file, offset, size, path, f"rank {rank}")
                _add(content, f"rank-{rank}/", regions, known)
        else:
            regions, end = _regions(file, 0, size, path, "the checkpoint")
            if end != size:
                raise DamagedFile(f"{size - end} bytes after its regions belong to none", where=path)
            _add(content, "", regions, known)
        if verify:
            _verify(file, size, path, meta)
    return content


def _regions(file: BinaryIO, offset: int, size: int, path: str, what: str) -> tuple[list[_Region], int]:
    """The regions of the checkpoint at `offset`, and the offset after it.

    what: names the checkpoint in messages.
    """
    if size - offset < 8:
        raise DamagedFile(f"{what}: no VELOC header at byte {offset}", where=path)
    (count,) = struct.unpack("<Q", read_exact(file, offset, 8, path, what))
    if count > (size - offset - 8) // _ENTRY.size:
        raise DamagedFile(
            f"{what}: its header claims {count} regions, more than fit into the file", where=path
        )
    if count > _MOST_REGIONS:
        raise Unsupported(f"{what}: more than {_MOST_REGIONS} regions", where=path)
    header = read_exact(file, offset + 8, count * _ENTRY.size, path, what)
    at = offset + 8 + len(header)
    regions: list[_Region] = []
    for id_, length in _ENTRY.iter_unpack(header):
        if regions and id_ <= regions[-1][0]:
            raise DamagedFile(f"{what}: region {id_} after region {regions[-1][0]}", where=path)
        if length > size - at:
            raise DamagedFile(f"{what}: region {id_} has {length} bytes, {size - at} are left", where=path)
        regions.append((id_, at, length))
        at += length
    return regions, at


def _offsets(file: BinaryIO, size: int, path: str, meta: object) -> list[int]:
    """The offset of each rank's checkpoint, from the headers.

    If there is a map in `meta`, checks that it agrees.
    """
    found: list[int] = []
    at = 0
    while at < size:
        if len(found) >= _MOST_RANKS:
            raise Unsupported(f"more than {_MOST_RANKS} ranks in one file", where=path)
        found.append(at)
        at = _regions(file, at, size, path, f"rank {len(found) - 1}")[1]
    map_path = None if meta is None else os.path.join(os.fspath(meta), os.path.basename(path))  # type: ignore[call-overload]
    if map_path is not None:
        map_file, map_size = open_regular(map_path)
        with map_file:
            if map_size != 8 * (len(found) + 1):
                message = f"has {map_size} bytes; a map of {len(found)} ranks has {8 * (len(found) + 1)}"
                raise DamagedFile(message, where=map_path)
            numbers = struct.unpack(
                f"<{len(found) + 1}q", read_exact(map_file, 0, map_size, map_path, "map of ranks")
            )
        if list(numbers) != [len(found), *found]:
            raise DamagedFile(f"contradicts the checkpoints in {os.path.basename(path)}", where=map_path)
    return found


def _add(content: FileContent, prefix: str, regions: list[_Region], types: dict[int, str]) -> None:
    for id_, offset, length in regions:
        name = f"{prefix}region-{id_}"
        dtype = types.get(id_, "u8")
        item = ITEMSIZE[dtype]
        if length % item:
            message = f"{name}: {length} bytes are not a multiple of {item}, the size of {dtype}"
            raise FormatError(message, where=content.path, fix="give the type of this region")
        count = length // item
        extents = (Extent(content.path, offset, count, item),) if count else ()
        content.add(Field(name, dtype, "little", (count,), extents=extents))


def _verify(file: BinaryIO, size: int, path: str, meta: object) -> None:
    name = os.path.basename(path) + ".chksum"
    beside = os.path.join(os.path.dirname(path) if meta is None else os.fspath(meta), name)  # type: ignore[call-overload]
    if file_size(beside) != 32:
        raise DamagedFile("is not a SHA-256 (32 bytes)", where=beside)
    sum_file, _ = open_regular(beside)
    with sum_file:
        expected = read_exact(sum_file, 0, 32, beside, "checksum")
    made = hashlib.sha256()
    for at in range(0, size, 1 << 24):
        made.update(read_exact(file, at, min(1 << 24, size - at), path, "the checkpoint"))
    if made.digest() != expected:
        raise DamagedFile(f"its SHA-256 is not the one in {beside}", where=path)


def _types(given: object, path: str) -> dict[int, str]:
    """{id of a region: type}, from the option `types` or, without it, from veloc.json beside the file."""
    where = path
    if given is None:
        where = os.path.join(os.path.dirname(path), SIDECAR)
        if not os.path.isfile(where):
            return {}
        file, size = open_regular(where)
        with file:
            if size > _LONGEST_SIDECAR:
                raise FormatError(f"a description of {size} bytes, more than {_LONGEST_SIDECAR}", where=where)
            text = read_exact(file, 0, size, where, "description")
        with reading(where, "JSON"):
            described = json.loads(text.decode("utf-8"))
        given = described.get("types") if isinstance(described, dict) else None
        if given is None:
            raise FormatError('must look like {"types": {"0": "f64"}}', where=where)
        if unknown := sorted(set(described) - {"types", "comment"}):
            raise FormatError(f"unknown key {unknown[0]!r:.40}", where=where, fix="known are comment types")
    if isinstance(given, str):
        pairs = [entry.partition(":") for entry in given.split(",") if entry.strip()]
        if not pairs or any(not colon for _, colon, _ in pairs):
            raise FormatError(f"types must look like 0:f64,1:i32, not {given!r:.60}", where=where)
        given = {name.strip(): dtype.strip() for name, _, dtype in pairs}
    if not isinstance(given, dict):
        raise FormatError("types must map ids of regions to types", where=where)
    result = {}
    for key, dtype in given.items():
        if not re.fullmatch(r"-?\d{1,10}", str(key)):
            raise FormatError(f"{key!r:.40} is not an id of a region", where=where)
        code, order = parse_dtype(dtype, where)
        if order == "big":
            raise FormatError(f"region {key}: VELOC's files are little-endian", where=where)
        result[int(key)] = code
    return result


def _sniff(path: str, file: BinaryIO) -> bool:
    """Whether the headers describe every byte of the file. There are no magic bytes."""
    named = _NAME.fullmatch(os.path.basename(path))
    size = file_size(path)
    try:
        if named is not None and named[2] == "agg":
            return bool(_offsets(file, size, path, None))
        regions, end = _regions(file, 0, size, path, "")
        return end == size and bool(regions)
    except FormatError:
        return False


def _place(relative: str) -> Place | None:
    """The place of `<name>-<rank>-<version>.dat`: the version is the step."""
    folder, base = os.path.split(relative)
    named = _NAME.fullmatch(base)
    if named is None:
        return None
    rank = 0 if named[2] == "agg" else int(named[2])
    return Place(int(named[3]), rank, f"{folder}/{named[1]}" if folder else named[1])


FORMAT = Format(
    "veloc",
    "VELOC checkpoint",
    open_veloc,
    sniff=_sniff,
    options=frozenset({"types", "meta", "verify"}),
    aside=frozenset({"meta", "verify"}),
    describers=frozenset({SIDECAR}),
    order=90,  # no magic bytes: asked after formats that have them, before raw
    place=_place,
)
