"""Whether compressed bytes are whole, from the lengths that they state themselves.

Several libraries take these lengths for true: of a chunk that was cut short they read the memory behind it,
and give numbers that no file holds. Nothing of the package is imported: `xarray_worker` is not in it.

Sources: https://github.com/Blosc/c-blosc (README_CHUNK_FORMAT.rst), https://www.rfc-editor.org/rfc/rfc8878
(Zstandard), https://github.com/HDFGroup/hdf5_plugins (LZ4), https://github.com/kiyo-masui/bitshuffle.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

__all__ = [
    "NotWhole",
    "check_bitshuffle",
    "check_blosc",
    "check_bzip2",
    "check_lz4",
    "check_zstd",
    "guard_numcodecs",
]

_BLOSC_HEADER = 16
_COPIED = 2  # flag of Blosc: the bytes are as they were
_NEWEST_BLOSC = 2  # version of the format of c-blosc 1
_ZSTD = 0xFD2FB528
_BZIP2_END = 0x177245385090


class NotWhole(ValueError):
    """Compressed bytes contradict their own lengths. `files.reading` adds the file, and where in it."""


def check_blosc(data: bytes | memoryview) -> None:
    """Raises NotWhole unless bytes that c-blosc 1 compressed are whole."""
    if len(data) < _BLOSC_HEADER:
        raise NotWhole(f"Blosc: {len(data)} bytes, fewer than its header has")
    version, _, flags, _, plain, block, size = struct.unpack_from("<BBBBIII", data)
    if size != len(data):
        raise NotWhole(f"Blosc: {len(data)} bytes where its header says {size}")
    if not 1 <= version <= _NEWEST_BLOSC or flags >> 5 > 4:
        raise NotWhole(f"Blosc: version {version} with flags {flags:#04x} is not known")
    if flags & _COPIED:
        if size != plain + _BLOSC_HEADER:
            raise NotWhole(f"Blosc: {size} bytes, but {plain} were copied")
        return
    if plain and not 0 < block <= plain:
        raise NotWhole(f"Blosc: blocks of {block} bytes of {plain}")
    blocks = -(-plain // block) if plain else 0
    begin = _BLOSC_HEADER + 4 * blocks
    if begin > size:
        raise NotWhole(f"Blosc: {size} bytes are too few for {blocks} blocks")
    for start in struct.unpack_from(f"<{blocks}I", data, _BLOSC_HEADER):
        if not begin <= start <= size - 4:
            raise NotWhole(f"Blosc: a block at {start} of {size} bytes")


def check_lz4(data: bytes | memoryview) -> None:
    """As `check_blosc`, for HDF5's LZ4 filter: size, size of a block, then each block behind its length."""
    if len(data) < 12:
        raise NotWhole(f"LZ4: {len(data)} bytes, fewer than its header has")
    plain, block = struct.unpack_from(">QI", data)
    if block == 0:
        raise NotWhole("LZ4: blocks of 0 bytes")
    # A block that could not be made shorter is stored as it was, so that none is longer.
    if not _ends_with_blocks(data, 12, -(-plain // block)):
        raise NotWhole(f"LZ4: its blocks do not end where its {len(data)} bytes do")


def check_bitshuffle(data: bytes | memoryview, itemsize: int) -> None:
    """As `check_blosc`, for bitshuffle's filter with LZ4 or Zstandard. itemsize: of an element."""
    if len(data) < 12:
        raise NotWhole(f"bitshuffle: {len(data)} bytes, fewer than its header has")
    plain, block = struct.unpack_from(">QI", data)
    if itemsize < 1 or block < 8 * itemsize or block % (8 * itemsize):
        raise NotWhole(f"bitshuffle: blocks of {block} bytes")
    # Elements beyond the last 8 are copied behind the blocks.
    tail = plain % (8 * itemsize)
    last = plain - tail
    if not _ends_with_blocks(data, 12, -(-last // block), tail):
        raise NotWhole(f"bitshuffle: its blocks do not end where its {len(data)} bytes do")


def _ends_with_blocks(data: bytes | memoryview, at: int, blocks: int, tail: int = 0) -> bool:
    """Whether so many blocks, each behind its length, and `tail` bytes fill the data from `at` on."""
    if blocks > len(data) // 4:
        return False
    for _ in range(blocks):
        if at + 4 > len(data):
            return False
        at += 4 + struct.unpack_from(">I", data, at)[0]
    return at + tail == len(data)


def check_zstd(data: bytes | memoryview) -> None:
    """As `check_blosc`, for one frame of Zstandard."""
    try:
        magic, descriptor = struct.unpack_from("<IB", data)
        at = 5 + (0, 1, 2, 4)[descriptor & 3] + (not descriptor & 0x20)
        at += (bool(descriptor & 0x20), 2, 4, 8)[descriptor >> 6]
        last = magic != _ZSTD
        while not last:
            header = int.from_bytes(data[at : at + 3], "little")
            if at + 3 > len(data):
                break
            last, kind = bool(header & 1), header >> 1 & 3
            at += 3 + (1 if kind == 1 else header >> 3)  # kind 1: one byte, repeated
        whole = magic == _ZSTD and last and at + (4 if descriptor & 4 else 0) == len(data)
    except struct.error:
        whole = False
    if not whole:
        raise NotWhole(f"Zstandard: its frame does not end where its {len(data)} bytes do")


def check_bzip2(data: bytes | memoryview) -> None:
    """As `check_blosc`, for bzip2: its last bits are a mark and a checksum of 32 bits, then up to 7 zeros."""
    end = int.from_bytes(data[-11:], "big")
    if not any(end >> 32 + pad & (1 << 48) - 1 == _BZIP2_END for pad in range(8)):
        raise NotWhole(f"bzip2: {len(data)} bytes that do not end with its mark")


def guard_numcodecs() -> None:
    """Makes numcodecs refuse Blosc bytes that are not whole, as it refuses those of other codecs.

    All ways in which the zarr package decodes them lead here: both versions of Zarr, shards, filters. Its
    own objects cannot be replaced instead: it makes new ones for each kind of chunk.
    """
    try:
        blosc = importlib.import_module("numcodecs.blosc").Blosc
    except (ImportError, AttributeError):
        return  # without the codec, arrays that need it cannot be opened
    original = blosc.decode
    if getattr(original, "checks_length", False):
        return

    def decode(self: Any, buf: Any, out: Any = None) -> Any:
        view = memoryview(buf)
        check_blosc(view.cast("B") if view.contiguous else view.tobytes())
        return original(self, buf, out)

    decode.checks_length = True  # type: ignore[attr-defined]
    blosc.decode = decode
