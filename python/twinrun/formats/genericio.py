"""GenericIO, the format of HACC: a header, then for every writing rank a block of each variable, followed by
its CRC-64.

A variable is one field. Its extents are the blocks of the ranks, in the order of ranks in the whole run. If a
file is split into `name#0`, `name#1`, … beside the map `name`, its parts are read as one. The header has the
magic bytes and the sizes and offsets of the tables of variables, ranks and blocks. It also states the size of
a record of each table, because later versions may have longer records.

Source: GenericIO.cxx of HACC's GenericIO library.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DamagedFile, FormatError, Unsupported
from .element_types import ITEMSIZE
from .files import MEND, open_regular, read_exact
from .model import Extent, Field, FileContent, Format, checked_shape, flag
from .naming import Place

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

LITTLE, BIG = b"HACC01L", b"HACC01B"
_CRC = 8
# Magic bytes and twelve numbers; later versions added origin, scale and blocks.
_GLOBAL = 8 + 8 * 12
_LONGEST_HEADER = 1 << 28  # bytes; a rank needs 48, and with a table of blocks 48 for each variable
_NAME = 256
_LANES_FROM = 1 << 16  # bytes: shorter data is summed by a plain loop
_PART = re.compile(r"(.+)#(\d+)")


@dataclass(frozen=True)
class _Variable:
    name: str
    dtype: str | None  # None if the core has no such type
    shape: tuple[int, ...]  # of an element
    size: int  # bytes of an element with all its parts
    reason: str = ""  # why the type is not supported


@dataclass(frozen=True)
class _Block:
    """The data of one variable from one rank.

    count: elements. size: bytes. filter: name of its compression, or ''.
    """

    path: str
    offset: int
    count: int
    size: int
    filter: str


@dataclass(frozen=True)
class _File:
    order: str
    variables: list[_Variable]
    blocks: list[tuple[int, list[_Block]]]  # (rank of the run, a block for each variable)
    scale: tuple[float, ...]
    has_box: bool


def crc64(data: bytes | memoryview) -> int:
    """CRC-64/XZ (ECMA-182, reflected).

    Long data is cut into lanes that numpy sums at the same time; a plain loop in Python takes a second for 10
    MB.
    """
    state = 2**64 - 1
    lanes = min(1 << 14, 1 << (len(data) // 64).bit_length() - 1) if len(data) >= _LANES_FROM else 0
    length = len(data) // lanes if lanes else 0
    if lanes:
        table = _crc_table()
        states: np.ndarray = np.zeros(lanes, np.uint64)
        states[0] = state
        columns = np.frombuffer(data, np.uint8, lanes * length).reshape(lanes, length).T
        for column in np.ascontiguousarray(columns):
            states = table[(states ^ column) & np.uint64(0xFF)] ^ (states >> np.uint64(8))
        zeros = length
        # Join neighbouring lanes. A CRC is linear: the sum of a lane and its right neighbour is the
        # state after the left lane and as many zero bytes as the right one has, XOR the state of
        # the right one.
        while states.size > 1:
            states = _shifted(states[::2], zeros) ^ states[1::2]
            zeros *= 2
        state = int(states[0])
    entries = _crc_list()
    for byte in memoryview(data)[lanes * length :]:
        state = entries[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ (2**64 - 1)


@functools.cache
def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        odd = (table & np.uint64(1)).astype(bool)
        table = (table >> np.uint64(1)) ^ np.where(odd, np.uint64(0xC96C5795D7870F42), np.uint64(0))
    return table


@functools.cache
def _crc_list() -> list[int]:
    return _crc_table().tolist()


def _shifted(states: np.ndarray, zeros: int) -> np.ndarray:
    """The CRC states after `zeros` more zero bytes.

    This is a linear operator on 64 bits. It is the operator of one byte to the power of `zeros`, by repeated
    squaring.
    """
    # Images of the 64 bits; first the identity.
    operator = np.uint64(1) << np.arange(64, dtype=np.uint64)
    # The operator of one zero byte.
    step = _crc_table()[(operator & np.uint64(0xFF)).astype(np.int64)] ^ (operator >> np.uint64(8))
    while zeros:
        if zeros & 1:
            operator = _apply(step, operator)
        zeros >>= 1
        if zeros:
            step = _apply(step, step)
    return _apply(operator, states)


def _apply(operator: np.ndarray, states: np.ndarray) -> np.ndarray:
    result = np.zeros(states.size, np.uint64)
    for bit in range(64):
        on = (states >> np.uint64(bit)) & np.uint64(1)
        result ^= on * operator[bit]
    return result


def open_genericio(path: str, verify: object = False) -> FileContent:
    """Opens a GenericIO file, or a map with all its parts.

    verify: also check the CRC of every block, which reads the whole file. The CRC of the header is always
    checked.
    """
    verify = flag(verify, "verify", path)
    first = _read_header(path)
    sources: list[str] = []
    parsed = [first]
    names = [v.name for v in first.variables]
    if "$partition" in names:
        column = names.index("$partition")
        kind = first.variables[column]
        if kind.dtype not in ("i32", "i64", "u32", "u64") or kind.shape != ():
            raise DamagedFile("its map of parts ($partition) does not hold integers", where=path)
        numbers: list[int] = []
        for _, blocks in first.blocks:
            block = blocks[column]
            if block.filter:
                raise Unsupported("its map of parts is compressed", where=path)
            file, _size = open_regular(path)
            with file:
                data = read_exact(file, block.offset, block.size, path, "its map of parts")
            code = ("<" if first.order == "little" else ">") + f"{kind.dtype[0]}{ITEMSIZE[kind.dtype]}"
            numbers += np.frombuffer(data, code).tolist()
        sources = [f"{path}#{number}" for number in sorted(set(numbers))]
        parsed = [_read_header(part) for part in sources]
        if not parsed:
            raise DamagedFile("its map of parts is empty", where=path)
        for part, source in zip(parsed, sources, strict=True):
            if (part.order, part.variables) != (parsed[0].order, parsed[0].variables):
                raise DamagedFile(f"has other variables than {os.path.basename(sources[0])}", where=source)
    content = FileContent(path, "genericio", sources=tuple(sources))
    entries = [entry for part in parsed for entry in part.blocks]
    entries.sort(key=lambda entry: entry[0])
    for at, variable in enumerate(parsed[0].variables):
        mine = [entry[1][at] for entry in entries]
        _add(content, variable, parsed[0].order, mine)
        if verify:
            for block in mine:
                _verify(block, variable.name)
    for new in content.fields.values():
        new.group = "particles"
        new.key = "id" if "id" in content.fields else None
    if parsed[0].has_box:
        where = sources[0] if sources else path
        for at, name in enumerate(("PhysOrigin", "PhysScale")):
            extents = (Extent(where, _GLOBAL + 24 * at, 3, 8),)
            content.add(Field(name, "f64", parsed[0].order, (3,), extents=extents))
    if all(length > 0 for length in parsed[0].scale):
        content.period = parsed[0].scale
    return content


def _add(content: FileContent, variable: _Variable, order: str, blocks: list[_Block]) -> None:
    filters = {b.filter for b in blocks if b.filter}
    if variable.dtype is None:
        content.skipped.append((variable.name, variable.reason))
        return
    if filters:
        content.skipped.append(
            (
                variable.name,
                f"compressed with {min(filters)!r}: write it with GENERICIO_COMPRESS=0 to compare it",
            )
        )
        return
    count = sum(b.count for b in blocks)
    item = ITEMSIZE[variable.dtype]
    shape = checked_shape((count, *variable.shape), item, content.path, f"variable {variable.name!r}")
    within = variable.size // item
    extents = tuple(Extent(b.path, b.offset, b.count * within, item) for b in blocks if b.count)
    content.add(Field(variable.name, variable.dtype, order, shape, extents=extents))


def _verify(block: _Block, name: str) -> None:
    file, _ = open_regular(block.path)
    with file:
        data = read_exact(file, block.offset, block.size + _CRC, block.path, f"variable {name!r}")
    # The sum is stored inverted, so the sum over the data and the stored sum is all ones.
    if crc64(data) != 2**64 - 1:
        raise DamagedFile(
            f"variable {name!r}: the CRC of its block at byte {block.offset} is wrong", where=block.path
        )


def _read_header(path: str) -> _File:
    """Reads the header of a file and checks its CRC and the places of all blocks."""
    file, size = open_regular(path)
    with file:
        if size < _GLOBAL:
            raise DamagedFile(f"{size} bytes are too few for a GenericIO header", where=path)
        start = read_exact(file, 0, _GLOBAL, path, "header")
        if start[:7] not in (LITTLE, BIG):
            raise DamagedFile("does not begin like a GenericIO file", where=path)
        order = "big" if start[:7] == BIG else "little"
        mark = ">" if order == "big" else "<"
        length = struct.unpack_from(mark + "Q", start, 8)[0]
        if length < _GLOBAL or length + _CRC > size:
            raise DamagedFile(f"its header claims {length} bytes, the file has {size}", where=path)
        if length > _LONGEST_HEADER:
            raise Unsupported(f"a header of {length} bytes, more than {_LONGEST_HEADER}", where=path)
        header = read_exact(file, 0, length + _CRC, path, "header")
    if crc64(header) != 2**64 - 1:
        raise DamagedFile("the CRC of its header is wrong", where=path)
    return _parse(path, size, header[:length], order, mark)


def _parse(path: str, size: int, header: bytes, order: str, mark: str) -> _File:
    """Parses a header. size: bytes of the file. mark: '<' or '>', its byte order. Raises DamagedFile."""
    length = len(header)
    (elements, _, _, _, nvars, vars_size, vars_start, nranks, ranks_size, ranks_start, global_size) = (
        struct.unpack_from(mark + "11Q", header, 16)
    )
    has_blocks = global_size >= _GLOBAL + 64 and length >= _GLOBAL + 64
    scale: tuple[float, ...] = (0.0, 0.0, 0.0)
    has_box = global_size >= _GLOBAL + 48 and length >= _GLOBAL + 48
    if has_box:
        scale = struct.unpack_from(mark + "3d", header, _GLOBAL + 24)
    blocks_size, blocks_start = (
        struct.unpack_from(mark + "2Q", header, _GLOBAL + 48) if has_blocks else (0, 0)
    )
    for what, start, item, least, count in (
        ("variables", vars_start, vars_size, _NAME + 16, nvars),
        ("ranks", ranks_start, ranks_size, 40, nranks),
        ("blocks", blocks_start, blocks_size, 48, nvars * nranks if blocks_size else 0),
    ):
        if count and (
            item < least or start < _GLOBAL or count * item > length or start > length - count * item
        ):
            raise DamagedFile(f"its table of {what} is not within its header", where=path)
    variables = [
        _variable(header[vars_start + i * vars_size :][:vars_size], mark, path) for i in range(nvars)
    ]
    if len({v.name for v in variables}) != len(variables):
        raise DamagedFile("two of its variables have the same name", where=path)
    blocks: list[tuple[int, list[_Block]]] = []
    total = 0
    for i in range(nranks):
        at = ranks_start + i * ranks_size
        count, begin = struct.unpack_from(mark + "2Q", header, at + 24)
        rank = struct.unpack_from(mark + "Q", header, at + 40)[0] if ranks_size >= 48 else i
        total += count
        mine = []
        for j, variable in enumerate(variables):
            name, bytes_ = "", count * variable.size
            if blocks_size:
                entry = blocks_start + (i * nvars + j) * blocks_size
                filters = header[entry : entry + 32]
                name = filters[:8].split(b"\0")[0].decode("ascii", "backslashreplace") or (
                    "?" if any(filters) else ""
                )
                begin, stored = struct.unpack_from(mark + "2Q", header, entry + 32)
                if not name and stored != bytes_:
                    raise DamagedFile(
                        f"rank {rank}: {variable.name!r} has {stored} bytes, not {bytes_}", where=path
                    )
                bytes_ = stored
            if begin < length or begin + bytes_ + _CRC > size:
                message = (
                    f"rank {rank}: {variable.name!r} needs {bytes_} bytes at {begin}, the file has {size}"
                )
                raise DamagedFile(
                    message, where=path, fix=f"the file is cut short or its header is wrong: {MEND}"
                )
            mine.append(_Block(path, begin, count, bytes_, name))
            begin += bytes_ + _CRC
        blocks.append((rank, mine))
    if total != elements:
        raise DamagedFile(f"its header says {elements} elements, but its ranks have {total}", where=path)
    return _File(order, variables, blocks, scale, has_box)


def _variable(record: bytes, mark: str, path: str) -> _Variable:
    name = record[:_NAME].split(b"\0")[0].decode("utf-8", "backslashreplace")
    flags, size = struct.unpack_from(mark + "2Q", record, _NAME)
    item = struct.unpack_from(mark + "Q", record, _NAME + 16)[0] if len(record) >= _NAME + 24 else size
    if not name or size == 0 or item == 0 or size % item or size > 1 << 32:
        raise DamagedFile(
            f"variable {name!r}: its header has elements of {size} bytes in parts of {item}, which cannot be",
            where=path,
        )
    kind = "f" if flags & 1 else "i" if flags & 2 else "u"
    dtype = f"{kind}{8 * item}"
    shape = (size // item,) if size != item else ()
    if dtype not in ITEMSIZE:
        return _Variable(name, None, shape, size, f"elements of {item} bytes are not supported")
    return _Variable(name, dtype, shape, size)


def _parts(path: str) -> list[str]:
    """The part files `name#0`, `name#1`, … beside the map `name`."""
    folder, base = os.path.split(path)
    try:
        return [
            os.path.join(folder, n)
            for n in os.listdir(folder or ".")
            if (m := _PART.fullmatch(n)) and m[1] == base
        ]
    except OSError as error:
        raise FormatError("its folder cannot be listed", where=path) from error


def _place(relative: str) -> Place | None:
    """The place of a file with HACC's names, m000p.full.mpicosmo.499: the last number is the step."""
    folder, base = os.path.split(relative)
    named = re.fullmatch(r"(.+)\.(\d{1,18})", base)
    return None if named is None else Place(int(named[2]), 0, f"{folder}/{named[1]}" if folder else named[1])


FORMAT = Format(
    "genericio",
    "GenericIO (HACC)",
    open_genericio,
    suffixes=(".gio",),
    magic=(LITTLE, BIG),
    options=frozenset({"verify"}),
    aside=frozenset({"verify"}),
    parts=_parts,
    place=_place,
)
