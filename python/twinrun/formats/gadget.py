"""Snapshots of GADGET-1 and -2 in their binary formats: Fortran records, each between two u32 with its
length.

The file has a header of 256 bytes, then a block for each quantity with the particles of all types in
sequence. In format 2 a record of 8 bytes with a label precedes every block. In format 1 the order of the
blocks defines their meaning. Byte order and precision follow from the lengths. Fields have the names of
GADGET's HDF5 snapshots: PartType1/Coordinates, PartType1/ParticleIDs. Every field is one extent.

A snapshot in several files is read file by file: `snap_010.3` is file 3 of step 10.

Source: V. Springel, "User guide for GADGET-2".
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .files import open_regular, read_exact
from .layout import Stored, bytes_field
from .model import Extent, Field, FileContent, Format, checked_shape

_HEADER = 256
_TYPES = 6
_MOST_BLOCKS = 10_000
_ALL = tuple(range(_TYPES))


@dataclass(frozen=True)
class _Kind:
    """A kind of block.

    name: its name in HDF5 snapshots. width: numbers for each particle. types: the types of particles in it;
    None for those that have no mass in the header. integer: unsigned integers, not floats.
    """

    name: str
    width: int = 1
    types: tuple[int, ...] | None = _ALL
    integer: bool = False


_KINDS = {
    "POS": _Kind("Coordinates", 3),
    "VEL": _Kind("Velocities", 3),
    "ID": _Kind("ParticleIDs", integer=True),
    "MASS": _Kind("Masses", types=None),
    "U": _Kind("InternalEnergy", types=(0,)),
    "RHO": _Kind("Density", types=(0,)),
    "HSML": _Kind("SmoothingLength", types=(0,)),
    "NE": _Kind("ElectronAbundance", types=(0,)),
    "NH": _Kind("NeutralHydrogenAbundance", types=(0,)),
    "SFR": _Kind("StarFormationRate", types=(0,)),
    "AGE": _Kind("StellarFormationTime", types=(4,)),
    "Z": _Kind("Metallicity", types=(0, 4)),
    "POT": _Kind("Potential"),
    "ACCE": _Kind("Acceleration", 3),
    "ENDT": _Kind("RateOfChangeOfEntropy", types=(0,)),
    "TSTP": _Kind("TimeStep"),
}
_OF_HEADER = {  # numbers of type f64 in the header: (offset, count)
    "MassTable": (24, 6), "Time": (72, 1), "Redshift": (80, 1), "BoxSize": (128, 1), "Omega0": (136, 1),
    "OmegaLambda": (144, 1), "HubbleParam": (152, 1),
}  # fmt: skip
# The first blocks of format 1 in order; further ones depend on GADGET's compile-time options.
_ORDER = ("POS", "VEL", "ID", "MASS", "U", "RHO", "HSML")


@dataclass(frozen=True)
class _Header:
    counts: tuple[int, ...]
    masses: tuple[float, ...]
    time: float
    files: int
    box: float
    flags: tuple[int, ...]


def open_gadget(path: str, blocks: object = None) -> FileContent:
    """Opens a snapshot, or one file of it.

    blocks: for format 1, the labels of the blocks after HSML in order: "POT ACCE ENDT TSTP". Format 2 has
    labels itself, so the option is an error there.
    """
    file, size = open_regular(path)
    content = FileContent(path, "gadget")
    with file:
        mark, labelled = _form(file, size, path)
        order = "little" if mark == "<" else "big"
        names = blocks.split() if isinstance(blocks, str) else list(blocks or ())  # type: ignore[call-overload]
        if labelled and names:
            raise FormatError(
                "a format 2 snapshot names its blocks itself", where=path, fix="leave the option blocks out"
            )
        records = _records(file, size, mark, labelled, path)
        header = _header(read_exact(file, records[0][1], _HEADER, path, "header"), mark, path)
    unlabelled = _expected(header, names)
    double = False  # unknown blocks are assumed to have the precision of the positions
    for number, (label, at, length) in enumerate(records[1:]):
        if not labelled:
            label = unlabelled[number] if number < len(unlabelled) else f"block-{number + 1}"
        _add(content, label, at, length, header, order, 8 if double else 4)
        if label == "POS":
            double = length == 24 * sum(header.counts)
    # The header is the same in all files of a snapshot, so only the first one adds its fields.
    if header.files <= 1 or not re.search(r"\.0*[1-9]\d*$", path):
        for name, (offset, count) in _OF_HEADER.items():
            extents = (Extent(path, records[0][1] + offset, count, 8),)
            content.add(Field(f"Header/{name}", "f64", order, (count,), extents=extents))
    for new in content.fields.values():
        if new.group is None:
            continue
        ids = f"{new.group}/ParticleIDs"
        new.key = ids if ids in content.fields else None
    content.time = header.time
    content.say("Header", "(counts and flags)", list(header.flags))
    if math.isfinite(header.box) and header.box > 0:
        content.period = (header.box,) * 3
    if header.files > 1:
        content.notes.append(
            f"one of the {header.files} files of its snapshot: name the folder to take all of them"
        )
    return content


def _form(file: BinaryIO, size: int, path: str) -> tuple[str, bool]:
    """('<' or '>' for the byte order, whether it is format 2)."""
    start = read_exact(file, 0, min(size, 20), path, "header")
    for mark in "<>":
        if len(start) < 20:
            break
        first = struct.unpack_from(mark + "I", start)[0]
        if first == _HEADER:
            return mark, False
        if first == 8 and start[4:8] == b"HEAD" and struct.unpack_from(mark + "I", start, 12)[0] == 8:
            return mark, True
    raise DamagedFile("does not begin like a GADGET snapshot", where=path)


def _records(file: BinaryIO, size: int, mark: str, labelled: bool, path: str) -> list[tuple[str, int, int]]:
    """(label, offset, length in bytes) of every block, the header first. Labels are '' in format 1."""
    found: list[tuple[str, int, int]] = []
    at = 0
    label = ""
    while at < size:
        if size - at < 8:
            raise DamagedFile(f"{size - at} bytes after the last block belong to none", where=path)
        (length,) = struct.unpack(mark + "I", read_exact(file, at, 4, path, "block"))
        if length > size - at - 8:
            message = f"a block at byte {at} has {length} bytes, but {size - at - 8} are left"
            raise DamagedFile(message, where=path, fix="is it cut short, or a block of more than 4 GiB?")
        (after,) = struct.unpack(mark + "I", read_exact(file, at + 4 + length, 4, path, "block"))
        if after != length:
            message = f"the block at byte {at} has length {length} before its data and {after} after it"
            raise DamagedFile(message, where=path, fix="is it a block of more than 4 GiB?")
        if labelled and not label:
            if length != 8:
                raise DamagedFile(f"a record of {length} bytes at byte {at}, instead of a label", where=path)
            label = (
                read_exact(file, at + 4, 4, path, "label").decode("ascii", "backslashreplace").strip(" \0")
            )
            if not label:
                raise DamagedFile(f"the label at byte {at} is empty", where=path)
        else:
            found.append((label, at + 4, length))
            label = ""
            if len(found) > _MOST_BLOCKS:
                raise Unsupported(f"more than {_MOST_BLOCKS} blocks", where=path)
        at += length + 8
    if label:
        raise DamagedFile(f"the file ends after the label {label!r}", where=path)
    if not found or found[0][2] != _HEADER:
        raise DamagedFile("its header does not have 256 bytes", where=path)
    return found


def _header(data: bytes, mark: str, path: str) -> _Header:
    counts = struct.unpack_from(mark + "6I", data)
    masses = struct.unpack_from(mark + "6d", data, 24)
    (time,) = struct.unpack_from(mark + "d", data, 72)
    files, box = struct.unpack_from(mark + "id", data, 124)
    flags = (*struct.unpack_from(mark + "9I", data, 88), *struct.unpack_from(mark + "9I", data, 160))
    return _Header(counts, masses, time, files, box, flags)


def _members(kind: _Kind, header: _Header) -> list[int]:
    """The types of particles that a block of this kind holds, in order."""
    if kind.types is None:
        return [t for t in _ALL if header.counts[t] and header.masses[t] == 0]
    return [t for t in kind.types if header.counts[t]]


def _expected(header: _Header, more: list[str]) -> list[str]:
    """Labels of the blocks of a format 1 snapshot, in order.

    GADGET does not write blocks without particles.
    """
    return [label for label in (*_ORDER, *more) if label not in _KINDS or _members(_KINDS[label], header)]


def _add(
    content: FileContent, label: str, at: int, length: int, header: _Header, order: str, item: int
) -> None:
    """Adds the fields of a block, one for each type of particles.

    at, length: its bytes. item: bytes of a float.
    """
    kind = _KINDS.get(label) or _guess(label, length, item, header)
    members = [] if kind is None else _members(kind, header)
    numbers = 0 if kind is None else kind.width * sum(header.counts[t] for t in members)
    if kind is None or numbers == 0 or length not in (4 * numbers, 8 * numbers):
        if label in _KINDS and length:
            message = f"block {label}: {length} bytes are neither {numbers} numbers of 4 nor of 8 bytes"
            raise DamagedFile(message, where=content.path)
        if length:
            # The length fits no types of particles: the meaning of the block is unknown.
            content.add(bytes_field(label, Stored(content.path, at), length))
        return
    item = length // numbers
    dtype = f"{'u' if kind.integer else 'f'}{8 * item}"
    for t in members:
        count = header.counts[t] * kind.width
        shape = (header.counts[t], kind.width) if kind.width > 1 else (header.counts[t],)
        checked_shape(shape, item, content.path, f"block {label}")
        extents = (Extent(content.path, at, count, item),)
        group = f"PartType{t}"
        content.add(Field(f"{group}/{kind.name}", dtype, order, shape, extents=extents, group=group))
        at += count * item


def _guess(label: str, length: int, item: int, header: _Header) -> _Kind | None:
    """The kind of an unknown block, by its length: floats for all particles, for gas, for stars, or for gas
    and stars.

    item: bytes of a float. None if no kind has this length.
    """
    for types in (_ALL, (0,), (4,), (0, 4)):
        count = sum(header.counts[t] for t in types)
        for width in (1, 3):
            if count and length == item * width * count:
                return _Kind(label, width, types)
    return None


def _sniff(path: str, file: BinaryIO) -> bool:
    start = file.read(4 + _HEADER + 4)
    for mark in "<>":
        if len(start) >= 20 and start[:8] == struct.pack(mark + "I", 8) + b"HEAD":
            return start[12:16] == start[:4]
        if len(start) == 264 and start[:4] == start[-4:] == struct.pack(mark + "I", _HEADER):
            return True
    return False


FORMAT = Format(
    "gadget",
    "GADGET-1/2 snapshot",
    open_gadget,
    suffixes=(".gadget", ".gadget2"),
    sniff=_sniff,
    options=frozenset({"blocks"}),
    order=60,
)
