"""spec/record.md: decode a difference, check it, and read steps back from the differences of a record."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import xxhash

from twinrun_spec.metadata import FormatError

MAGIC = b"TWRDIFF\n"
VERSION = 4  # 1 has no links and no folders, 2 no groups of entries and no planes, 3 no last signs, no sparse blocks
MOST_CODING = {1: 1, 2: 1, 3: 4, 4: 10}  # by version
KINDS = ("file", "link", "folder")
HEADER_BYTES = 128
METHODS = ("full", "basic", "list", "tree", "runs")
NO_BASE = 2**32 - 1
MOST_ORDINALS = 2**24
MOST_CHUNKS = 2**39  # of a payload, and of an image
LARGEST_BLOCK = 2**24
LAYOUTS = {2: "H", 4: "I", 8: "Q"}  # of items, by their bytes
LONGEST_TEXT = 4096
MOST_UNPACKED = 4096  # times the packed size of an index
LARGEST = 2**28  # what this reader makes at once; not of the format


class RecordError(FormatError, ValueError):
    """The bytes are no difference of this version, or the differences of a record contradict each other."""


@dataclass(frozen=True)
class Run:
    begin: int
    count: int
    source: int  # a Location
    repeat: bool = False

    @property
    def end(self) -> int:
        return self.begin + self.count

    @property
    def span(self) -> int:
        """Chunks at the source."""
        return 1 if self.repeat else self.count

    def part(self, begin: int, end: int) -> Run:
        return Run(begin, end - begin, self.source + (0 if self.repeat else begin - self.begin), self.repeat)


@dataclass
class RecordFile:
    name: str  # bytes that are not UTF-8: as os.fsdecode has them
    size: int
    kind: str = "file"
    to: str = ""  # of a link


@dataclass
class Segment:
    name: str
    file: int
    offset: int
    size: int
    content: int


@dataclass
class Block:
    offset: int  # in the difference's file
    size: int
    coding: int
    xored: bool
    checksum: int

    @property
    def packed(self) -> bool:
        return self.coding > 0

    @property
    def width(self) -> int:
        """Of the items: bytes."""
        return 2 << (self.coding - 2) % 3 if self.coding > 1 else 1


@dataclass
class Kept:
    ordinal: int
    first: int
    count: int


@dataclass
class Difference:
    raw: bytes
    method: str
    chunk_bytes: int
    packed: bool
    leftovers: bool
    ordinal: int
    base: int | None
    payload_chunks: int
    block_chunks: int
    version: int = VERSION
    files: list[RecordFile] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    bases: list[Run] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    _last: tuple[int, bytes] = (-1, b"")  # the block that was unpacked last

    @cached_property
    def firsts(self) -> list[int]:
        """The first chunk of each segment, and the end."""
        return list(accumulate((-(-s.size // self.chunk_bytes) for s in self.segments), initial=0))

    @cached_property
    def _stretches(self) -> tuple[list[Kept], list[int], list[int]]:
        """Of the payload: stretches, the Location of the first chunk of each, and its place in this file."""
        kept = self.kept or [Kept(self.ordinal, 0, self.payload_chunks)]
        places = list(accumulate((k.count for k in kept), initial=0))
        return kept, [location(k.ordinal, k.first) for k in kept], places

    @property
    def seal(self) -> str:
        """`difference_xxh3` of history.md: the checksum of the header, as journals have it."""
        return f"{struct.unpack('<Q', self.raw[HEADER_BYTES - 8 : HEADER_BYTES])[0]:016x}"

    @cached_property
    def ordinals(self) -> set[int]:
        """Of the differences that this file can be opened for."""
        return {k.ordinal for k in self.kept} if self.leftovers else {self.ordinal}

    def position(self, at: int) -> int:
        """The number among the file's chunks of the one that lies at this Location."""
        kept, starts, places = self._stretches
        i = bisect_right(starts, at) - 1
        if i < 0 or at - starts[i] >= kept[i].count:
            raise RecordError(f"chunk {number_of(at)} of difference {ordinal_of(at)} is not there")
        return places[i] + at - starts[i]

    @cached_property
    def _base_starts(self) -> list[int]:
        return [run.begin for run in self.bases]

    def base_of(self, position: int) -> int | None:
        """The Location of what a chunk of the file was XORed with."""
        if not self.blocks[position // self.block_chunks].xored:
            return None
        i = bisect_right(self._base_starts, position) - 1
        if i < 0 or position >= self.bases[i].end:
            return None
        return self.bases[i].part(position, position + 1).source

    def chunks_of(self, number: int) -> int:
        return min(self.block_chunks, self.payload_chunks - number * self.block_chunks)

    def block(self, number: int) -> bytes:
        """The chunks of a block as they were kept, before an XOR is undone."""
        if self._last[0] != number:
            b = self.blocks[number]
            raw = self.raw[b.offset : b.offset + b.size]
            size = self.chunks_of(number) * self.chunk_bytes
            if b.coding > 7:
                raw = fill_sparse(raw, b.width, size)
            elif b.coding > 1:
                raw = join_planes(raw, b.width, size, b.coding > 4)
            elif b.packed:
                raw = unpack(raw, size)
            self._last = number, raw
        return self._last[1]


def location(ordinal: int, number: int) -> int:
    return ordinal << 40 | number


def ordinal_of(at: int) -> int:
    return at >> 40


def number_of(at: int) -> int:
    return at & (2**40 - 1)


def unpack(packed: bytes, size: int) -> bytes:
    """Exactly `size` bytes from a Zstandard frame, with nothing behind it. No more than that are made, whatever the frame says."""
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        return _unpack_with_package(packed, size)
    frame = zstd.ZstdDecompressor()
    try:
        unpacked = frame.decompress(packed, size + 1)
    except (zstd.ZstdError, EOFError) as error:
        raise RecordError(f"packed bytes are damaged: {error}") from None
    _check_frame(len(unpacked) == size, frame.eof and not frame.unused_data)
    return unpacked


def _unpack_with_package(packed: bytes, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ModuleNotFoundError(
            "these bytes are packed: install zstandard from PyPI, or use Python 3.14"
        ) from None
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        unpacked = zstandard.ZstdDecompressor().stream_reader(packed).read(size + 1)
        _check_frame(len(unpacked) == size, True)
        # Unpacked once more, as only this says what lies behind the frame. It holds `size` bytes.
        frame.decompress(packed)
    except zstandard.ZstdError as error:
        raise RecordError(f"packed bytes are damaged: {error}") from None
    _check_frame(True, frame.eof and not frame.unused_data)
    return unpacked


def _check_frame(has_size: bool, is_whole: bool) -> None:
    if not has_size:
        raise RecordError("packed bytes have another size than they should")
    if not is_whole:
        raise RecordError("packed bytes are not one frame: they are cut, or more bytes follow")


def take_plane(cursor: Cursor, said: int, size: int) -> bytes:
    plane = cursor.take(said & 2**31 - 1)
    if said < 2**31:
        return unpack(plane, size)
    if len(plane) != size:
        raise RecordError("a plane of another size than its items say")
    return plane


def join_planes(raw: bytes, width: int, size: int, sign_last: bool = False) -> bytes:
    """The `size` bytes whose planes these are."""
    cursor = Cursor(raw)
    joined = bytearray(size)
    for j, said in enumerate(cursor.numbers(f"{width}I")):
        joined[j::width] = take_plane(cursor, said, size // width)
    if cursor.left:
        raise RecordError("bytes behind the last plane")
    if sign_last:
        top = 8 * width - 1
        layout = f"<{size // width}{LAYOUTS[width]}"
        joined[:] = struct.pack(layout, *(x >> 1 | (x & 1) << top for x in struct.unpack(layout, joined)))
    return bytes(joined)


def fill_sparse(raw: bytes, width: int, size: int) -> bytes:
    """The `size` bytes whose items that are not zero these are."""
    cursor = Cursor(raw)
    items = size // width
    count, gap_bytes, of_gaps, *of_planes = cursor.numbers(f"{3 + width}I")
    if count > items or not count <= gap_bytes <= count + items // 255:
        raise RecordError("more items than a block has")
    gaps = take_plane(cursor, of_gaps, gap_bytes)
    planes = [take_plane(cursor, said, count) for said in of_planes]
    if cursor.left:
        raise RecordError("bytes behind the last plane")
    filled = bytearray(size)
    values = iter(zip(*planes, strict=True))
    at = done = 0
    for gap in gaps:
        at += gap
        if gap == 255:
            continue
        if at >= items or done == count:
            raise RecordError("gaps that do not fit the items of a block")
        filled[at * width : (at + 1) * width] = bytes(next(values))
        at, done = at + 1, done + 1
    if done != count or at > items:
        raise RecordError("gaps that do not fit the items of a block")
    return bytes(filled)


class Cursor:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, count: int) -> bytes:
        if count > len(self.raw) - self.at:
            raise RecordError("the index ends too early")
        self.at += count
        return self.raw[self.at - count : self.at]

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def number(self, layout: str) -> int:
        return self.numbers(layout)[0]

    def text(self) -> str:
        length = self.number("I")
        if length > LONGEST_TEXT:
            raise RecordError("a text is too long")
        return self.take(length).decode("utf-8", "surrogateescape")

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value >= 2**64:
            raise RecordError("a number of more than 64 bits")
        return value

    @property
    def left(self) -> int:
        return len(self.raw) - self.at


# ---- one file ----


def read_difference(path: str | os.PathLike[str]) -> Difference:
    """A difference, all of whose checksums and rules are kept. Raises RecordError."""
    try:
        return parse(Path(path).read_bytes())
    except RecordError as error:
        raise RecordError(f"{os.fspath(path)}: {error}") from None


def parse(raw: bytes) -> Difference:
    d, index = _parse_header(raw)
    cursor = Cursor(index)
    for _ in range(cursor.number("I")):
        d.files.append(RecordFile(cursor.text(), cursor.number("Q")))
        if d.version > 1:
            kind = cursor.number("B")
            if kind >= len(KINDS):
                raise RecordError("neither a file nor a link nor a folder")
            d.files[-1].kind = KINDS[kind]
            d.files[-1].to = cursor.text() if KINDS[kind] == "link" else ""
    for _ in range(cursor.number("I")):
        d.segments.append(Segment(cursor.text(), *cursor.numbers("IQQQ")))
    _check_directory(d)
    entries = cursor.take(cursor.number("Q"))
    bases = cursor.take(cursor.number("Q"))
    offset = HEADER_BYTES
    for _ in range(cursor.number("Q")):
        size, flags, checksum = cursor.numbers("IBQ")
        coding = flags & 0x7F
        if coding > MOST_CODING[d.version]:
            raise RecordError("a block is packed in an unknown way")
        d.blocks.append(Block(offset, size, coding, bool(flags & 0x80), checksum))
        offset += size
    for _ in range(cursor.number("Q")):
        d.kept.append(Kept(*cursor.numbers("IQQ")))
    if cursor.left:
        raise RecordError("bytes behind the index")
    _check_payload(d, offset)
    if d.leftovers:
        if entries or d.base is not None:
            raise RecordError("leftovers that describe an image")
    else:
        d.runs = _parse_entries(d, entries)
    if bases:
        d.bases = _parse_columns(bases, d.ordinal, d.payload_chunks, None)
    for number, block in enumerate(d.blocks):
        if xxhash.xxh3_64_intdigest(raw[block.offset : block.offset + block.size]) != block.checksum:
            raise RecordError(f"the checksum of payload block {number} is wrong")
    return d


def _parse_header(raw: bytes) -> tuple[Difference, bytes]:
    if raw[:8] != MAGIC:
        raise RecordError("not a difference of a record")
    if len(raw) < HEADER_BYTES:
        raise RecordError("it ends within its header")
    version, method, chunk_bits, packed, leftovers, ordinal, base = struct.unpack("<IBBBBII", raw[8:24])
    offset, size, unpacked, checksum, payload_chunks, block_chunks = struct.unpack("<QQQQQI", raw[24:68])
    if xxhash.xxh3_64_intdigest(raw[:120]) != struct.unpack("<Q", raw[120:128])[0]:
        raise RecordError("the header's checksum is wrong")
    if not 1 <= version <= VERSION:
        raise RecordError(f"version {version}, this reader knows 1 to {VERSION}")
    if method >= len(METHODS):
        raise RecordError("the method does not exist")
    if not 5 <= chunk_bits <= 16:
        raise RecordError("impossible size of chunks")
    if packed > 1 or leftovers > 1:
        raise RecordError("unknown flags")
    if ordinal >= MOST_ORDINALS or (base != NO_BASE and base >= ordinal):
        raise RecordError("its base is no earlier difference")
    if not HEADER_BYTES <= offset <= len(raw) or size != len(raw) - offset:
        raise RecordError("it is truncated, or longer than it says")
    if unpacked > size * MOST_UNPACKED if packed else unpacked != size:
        raise RecordError("impossible size of the index")
    if payload_chunks > MOST_CHUNKS or not 1 <= block_chunks <= LARGEST_BLOCK >> chunk_bits:
        raise RecordError("impossible size of the payload")
    index = raw[offset:]
    if xxhash.xxh3_64_intdigest(index) != checksum:
        raise RecordError("the index's checksum is wrong")
    if unpacked > LARGEST:
        raise RecordError(f"an index of {unpacked} bytes is more than this reader takes")
    d = Difference(raw, METHODS[method], 1 << chunk_bits, bool(packed), bool(leftovers), ordinal,
                   None if base == NO_BASE else base, payload_chunks, block_chunks, version)  # fmt: skip
    return d, unpack(index, unpacked) if packed else index


def _check_directory(d: Difference) -> None:
    for names in ([f.name for f in d.files], [s.name for s in d.segments]):
        if len(set(names)) != len(names):
            raise RecordError("a name is there twice")
    for f in d.files:
        if "\0" in f.name or any(part in ("", ".", "..") for part in f.name.split("/")):
            raise RecordError(f"{f.name!r} is no name of a file")
        if f.kind != "file" and f.size:
            raise RecordError(f"{f.name!r} is no file, and has bytes")
        if f.kind == "link" and (not f.to or "\0" in f.to):
            raise RecordError(f"{f.name!r} is a link that says nothing")
    for s in d.segments:
        if (
            s.file >= len(d.files)
            or d.files[s.file].kind != "file"
            or s.offset + s.size > d.files[s.file].size
        ):
            raise RecordError(f"segment '{s.name}' lies in no file")
    if d.firsts[-1] > MOST_CHUNKS:
        raise RecordError("too many chunks")
    placed = sorted((s.file, s.offset, s.offset + s.size) for s in d.segments if s.size)
    for (file, _, end), (other, begin, _) in pairwise(placed):
        if file == other and begin < end:
            raise RecordError("segments overlap")


def _check_payload(d: Difference, end: int) -> None:
    if d.leftovers != bool(d.kept):
        raise RecordError("leftovers without chunks, or a step with some alone")
    last = 0
    for k in d.kept:
        first = location(k.ordinal, k.first)
        if k.ordinal > d.ordinal or k.count == 0 or k.first + k.count > MOST_CHUNKS or first < last:
            raise RecordError("impossible leftovers")
        last = first + k.count
    if d.kept and sum(k.count for k in d.kept) != d.payload_chunks:
        raise RecordError("another number of leftovers than the header says")
    if len(d.blocks) != -(-d.payload_chunks // d.block_chunks):
        raise RecordError("another number of blocks than the payload has")
    for number, block in enumerate(d.blocks):
        if not block.packed and block.size != d.chunks_of(number) * d.chunk_bytes:
            raise RecordError(f"payload block {number} has another size than its chunks")
    if end != struct.unpack("<Q", d.raw[24:32])[0]:
        raise RecordError("the blocks do not end where the index begins")


# ---- entries: each parser yields (begin, count, source or None for new, repeat) ----

Entry = tuple[int, int, int | None, bool]


def _parse_entries(d: Difference, raw: bytes) -> list[Run]:
    chunks = d.firsts[-1]
    if d.method == "runs":
        return _parse_columns(raw, d.ordinal, chunks, d.payload_chunks, d.base is None)
    if d.method == "full":
        if raw or d.payload_chunks != chunks:
            raise RecordError("a full step with entries, or not all of its chunks")
        entries = [(0, chunks, None, False)] if chunks else []
    elif d.method == "basic":
        entries = _parse_bits(raw, chunks)
    else:
        entries = _parse_numbers(raw, chunks, d.method == "tree", d.version)
    return _check_runs(entries, d.ordinal, chunks, d.payload_chunks, d.base is None)


def _parse_bits(raw: bytes, chunks: int) -> list[Entry]:
    if len(raw) != -(-chunks // 8):
        raise RecordError("another number of bits than of chunks")
    return [
        (8 * i + bit, 1, None, False) for i, byte in enumerate(raw) for bit in range(8) if byte >> bit & 1
    ]


def _parse_numbers(raw: bytes, chunks: int, tree: bool, version: int) -> list[Entry]:
    cursor = Cursor(raw)
    width, new, copies = cursor.numbers("BQQ")
    grouped = version > 2 and width & 128 != 0
    width -= 128 if grouped else 0
    least = new * width + copies * (2 * width + (0 if grouped else 4))
    if width not in (4, 8) or cursor.left < least or (not grouped and cursor.left > least):
        raise RecordError("entries of another size than their number says")
    word = "I" if width == 4 else "Q"
    depth = max(chunks - 1, 0).bit_length()

    def place(number: int) -> tuple[int, int]:
        if not tree:
            return number, 1
        level = (number + 1).bit_length() - 1
        if level > depth:
            raise RecordError("a node that the tree does not have")
        return (number + 1 - (1 << level)) << (depth - level), 1 << (depth - level)

    fresh: list[Entry] = [(*place(cursor.number(word)), None, False) for _ in range(new)]
    groups: list[tuple[int | None, int]] = [(None, copies)]  # ordinal of all their sources, copies
    if grouped:
        groups = [cursor.numbers("IQ") for _ in range(cursor.number("I"))]
        if sum(size for _, size in groups) != copies or cursor.left != copies * 2 * width:
            raise RecordError("groups of another number of copies")
        if any(a[0] >= b[0] for a, b in pairwise(groups)) or any(size == 0 for _, size in groups):
            raise RecordError("groups out of order, or without copies")
    parts = [fresh]
    for group, size in groups:
        parts.append([])
        for _ in range(size):
            number, source = cursor.numbers(word * 2)
            ordinal = cursor.number("I") if group is None else group
            if source >= MOST_CHUNKS or ordinal >= MOST_ORDINALS:
                raise RecordError("a source that no difference has")
            parts[-1].append((*place(number), location(ordinal, source), False))
    for part in parts:
        if any(a[0] >= b[0] for a, b in pairwise(part)):
            raise RecordError("entries out of order")
    return sorted((entry for part in parts for entry in part), key=lambda entry: entry[0])


def _parse_columns(
    raw: bytes, ordinal: int, chunks: int, payload: int | None, whole: bool = False
) -> list[Run]:
    """payload: its chunks; None: the bases of blocks, where there is nothing new."""
    cursor = Cursor(raw)
    sizes = [cursor.varint() for _ in range(4)]
    heads, counts, ordinals, sources = (Cursor(cursor.take(size)) for size in sizes)
    entries: list[Entry] = []
    predicted: dict[int, int] = {}
    end = 0
    while heads.left:
        gap, kind = divmod(heads.varint(), 4)
        begin, count = end + gap, 1 if kind == 3 else counts.varint() + 1
        end = begin + count
        if kind in (0, 3) and payload is not None:
            entries.append((begin, count, None, False))
        elif kind in (1, 2):
            back, delta = ordinals.varint(), sources.varint()
            if back > ordinal or (back == 0 and payload is None):
                raise RecordError("a source in no earlier difference")
            delta = -(delta >> 1) - 1 if delta & 1 else delta >> 1
            number = (predicted.get(back, 0) + delta) % 2**64
            predicted[back] = number + (1 if kind == 2 else count)
            if predicted[back] > MOST_CHUNKS:
                raise RecordError("a source that no difference has")
            entries.append((begin, count, location(ordinal - back, number), kind == 2))
        else:
            raise RecordError("a run of unknown kind")
    if any(column.left for column in (cursor, counts, ordinals, sources)):
        raise RecordError("a column that is too long")
    return _check_runs(entries, ordinal, chunks, payload or 0, whole)


def _check_runs(entries: list[Entry], ordinal: int, chunks: int, payload: int, whole: bool) -> list[Run]:
    runs: list[Run] = []
    end = new = 0
    for begin, count, source, repeat in entries:
        if begin < end or begin + count > chunks:
            raise RecordError("runs overlap, or pass the end of the image")
        if whole and begin != end:
            raise RecordError("chunks are missing, and there is no base")
        end = begin + count
        if source is None:
            runs.append(Run(begin, count, location(ordinal, new)))
            new += count
            continue
        run = Run(begin, count, source, repeat)
        if number_of(source) + run.span > MOST_CHUNKS:
            raise RecordError("a source that no difference has")
        if source + run.span > location(ordinal, new):
            raise RecordError("a copy of what comes later")
        runs.append(run)
    if new != payload or (whole and end != chunks):
        raise RecordError("the runs and the payload have different numbers of chunks")
    return runs


# ---- a record ----


class Record:
    """Steps of a record. locate gives the file that has the difference of an ordinal, or what is left of it.

    largest: bytes that one call may give; a few bytes of a record can stand for very many. seals: what
    `difference_xxh3` of history.md says of an ordinal; those that are not in it may be any file.
    """

    def __init__(
        self,
        locate: Callable[[int], str | os.PathLike[str]],
        largest: int = LARGEST,
        seals: Mapping[int, str] | None = None,
    ) -> None:
        self.locate, self.largest, self.seals = locate, largest, seals or {}
        self._known: dict[str, Difference] = {}

    def difference(self, ordinal: int) -> Difference:
        path = os.fspath(self.locate(ordinal))
        d = self._known.get(path)
        if d is None:
            d = self._known[path] = read_difference(path)
        if ordinal not in d.ordinals:
            raise RecordError(f"{path}: is not difference {ordinal}")
        if self.seals.get(ordinal, d.seal) != d.seal:
            raise RecordError(f"{path}: is not the difference {ordinal} that the journal names")
        return d

    def step(self, ordinal: int) -> Difference:
        d = self.difference(ordinal)
        if d.leftovers:
            raise RecordError(f"of difference {ordinal} only leftovers are there")
        return d

    def map(self, ordinal: int) -> list[Run]:
        """Runs that cover the image of the step, in ascending order."""
        d = self.step(ordinal)
        # Chunks that are looked for: begin in the image, number, begin in the image of d.
        gaps = [(0, d.firsts[-1], 0)] if d.firsts[-1] else []
        found, gaps = _find(gaps, d.runs)
        while gaps:  # then there is a base: without one, the runs cover the image
            base = self.step(d.base)
            if base.chunk_bytes != d.chunk_bytes:
                raise RecordError("a base with chunks of another size")
            more, gaps = _find(list(_to_base(gaps, d, base)), base.runs)
            found += more
            d = base
        return sorted(found, key=lambda run: run.begin)

    def read_segment(self, ordinal: int, name: str) -> bytes:
        """The bytes of a segment, checked. Raises KeyError where the step has no such segment."""
        number = {s.name: i for i, s in enumerate(self.step(ordinal).segments)}[name]
        return self._read(ordinal, [number])[0]

    def read_file(self, ordinal: int, name: str) -> bytes:
        """The bytes of a file. Raises KeyError where the step has no such file."""
        d = self.step(ordinal)
        number = {f.name: i for i, f in enumerate(d.files)}[name]
        self._check_size(d.files[number].size)
        raw = bytearray(d.files[number].size)
        wanted = [i for i, s in enumerate(d.segments) if s.file == number]
        for i, content in zip(wanted, self._read(ordinal, wanted), strict=True):
            raw[d.segments[i].offset : d.segments[i].offset + len(content)] = content
        return bytes(raw)

    def _read(self, ordinal: int, wanted: list[int]) -> list[bytes]:
        """The segments of these numbers."""
        d, runs = self.step(ordinal), self.map(ordinal)
        starts = [run.begin for run in runs]
        self._check_size(sum(d.segments[i].size for i in wanted))
        contents = []
        for i in wanted:
            segment, first, end = d.segments[i], d.firsts[i], d.firsts[i + 1]
            own = runs[max(bisect_right(starts, first) - 1, 0) : bisect_right(starts, end - 1)]
            parts = (
                [run.part(max(run.begin, first), min(run.end, end)) for run in own] if segment.size else []
            )
            raw = self._gather(parts, d.chunk_bytes)[: segment.size]
            if segment.content and content_checksum(raw, d.chunk_bytes) != segment.content:
                raise RecordError(f"segment '{segment.name}' of step {ordinal} is not what was recorded")
            contents.append(raw)
        return contents

    def payload(self, at: int, count: int) -> bytes:
        """Chunks of payload from a Location on."""
        return self._gather([Run(0, count, at)], self.difference(ordinal_of(at)).chunk_bytes)

    def _check_size(self, size: int) -> None:
        if size > self.largest:
            raise RecordError(f"{size} bytes are more than the {self.largest} that are allowed")

    def _gather(self, runs: list[Run], chunk_bytes: int) -> bytes:
        self._check_size(sum(run.count for run in runs) * chunk_bytes)
        known = self._chunks((run.source + i for run in runs for i in range(run.span)), chunk_bytes)
        parts = []
        for run in runs:
            parts += [known[run.source + i] for i in range(run.span)] * (run.count if run.repeat else 1)
        return b"".join(parts)

    def _chunks(self, locations: Iterable[int], chunk_bytes: int) -> dict[int, bytes]:
        """The chunks at these Locations.

        The newest come first: what a chunk was XORed with is older, so each block is unpacked once.
        """
        wanted: dict[int, dict[int, int]] = {}  # ordinal: position in the file: Location

        def want(at: int) -> None:
            position = self.difference(ordinal_of(at)).position(at)
            wanted.setdefault(ordinal_of(at), {})[position] = at

        for at in locations:
            want(at)
        chunks: dict[int, bytes] = {}
        bases: dict[int, int] = {}
        while wanted:
            ordinal = max(wanted)
            d = self.difference(ordinal)
            if d.chunk_bytes != chunk_bytes:
                raise RecordError(f"difference {ordinal} has chunks of another size than what copies from it")
            for position, at in sorted(wanted.pop(ordinal).items(), reverse=True):
                number, place = divmod(position, d.block_chunks)
                chunks[at] = d.block(number)[place * chunk_bytes : (place + 1) * chunk_bytes]
                base = d.base_of(position)
                if base is not None:
                    if ordinal_of(base) >= ordinal:
                        raise RecordError("a chunk was XORed with one that is not older")
                    bases[at] = base
                    want(base)
        for at in sorted(bases):  # the oldest first
            chunks[at] = bytes(x ^ y for x, y in zip(chunks[at], chunks[bases[at]], strict=True))
        return chunks


Gap = tuple[int, int, int]


def _find(gaps: list[Gap], runs: list[Run]) -> tuple[list[Run], list[Gap]]:
    """Runs for what of the gaps `runs` have, at the gaps' places; and the gaps that are left."""
    found, left = [], []
    starts = [run.begin for run in runs]
    for begin, count, at in gaps:
        shift, end = begin - at, at + count
        for run in runs[max(bisect_right(starts, at) - 1, 0) : bisect_right(starts, end - 1)]:
            if run.end <= at:
                continue
            if run.begin > at:
                left.append((at + shift, run.begin - at, at))
                at = run.begin
            part = run.part(at, min(run.end, end))
            found.append(replace(part, begin=at + shift))
            at = part.end
        if at < end:
            left.append((at + shift, end - at, at))
    return found, left


def _to_base(gaps: list[Gap], d: Difference, base: Difference) -> Iterator[Gap]:
    """The gaps, at the places that their chunks have in the base's image."""
    firsts, base_firsts = d.firsts, base.firsts
    places = {s.name: i for i, s in enumerate(base.segments)}
    for begin, count, at in gaps:
        shift, end = begin - at, at + count
        while at < end:
            s = bisect_right(firsts, at) - 1
            stop = min(end, firsts[s + 1])
            there = places.get(d.segments[s].name)
            if there is None or stop - firsts[s] > base_firsts[there + 1] - base_firsts[there]:
                raise RecordError(f"chunks of segment '{d.segments[s].name}' that its base does not have")
            yield at + shift, stop - at, base_firsts[there] + at - firsts[s]
            at = stop


def content_checksum(raw: bytes, chunk_bytes: int) -> int:
    total = 0
    for number, begin in enumerate(range(0, len(raw), chunk_bytes)):
        chunk = raw[begin : begin + chunk_bytes].ljust(chunk_bytes, b"\0")
        high, low = divmod(xxhash.xxh3_128_intdigest(chunk), 2**64)
        x = (low + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 % 2**64
        total += (x ^ x >> 32) + high
    return total % 2**64
