"""spec/metadata.md: decode a metadata file, check it, and compute it again from the data."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import xxhash

from twinrun_spec.digest import (
    DTYPES,
    INDEX_LIMIT,
    LARGEST_CHUNK,
    SMALLEST_CHUNK,
    Buckets,
    DType,
    P,
    Rule,
    Sums,
    digest_array,
    id_indices,
    id_stride,
    node_count,
    place_indices,
    rule_for,
    rule_of,
    scalars,
    sum_up,
    tree_nodes,
)

MAGIC = b"\x89TWM\r\n\x1a\n"
VERSIONS = (1, 2, 3, 4)
HEADER_BYTES = 64
PAGE_BYTES = 4096
DATA_SUM_BYTES = 1 << 20
LARGEST_DIRECTORY = 1 << 28
LONGEST_TEXT = 1 << 16
MOST_DIMENSIONS = 32
SECTIONS = ("tree", "fine", "residues", "data_sums", "sums")  # the last one: from version 2 on
SECTIONS_OF = {1: SECTIONS[:4], 2: SECTIONS, 3: SECTIONS, 4: SECTIONS}
SUM_BYTES = 24
SUMS_BY = ("nothing", "place", "ids")
# binary32: from version 3 on. The last two: from version 4 on.
RULES = ("tokens", "absolute", "relative", "binary32", "words", "integers")
RULES_OF = {1: RULES[:3], 2: RULES[:3], 3: RULES[:4], 4: RULES}


class FormatError(Exception):
    """The bytes are no metadata file of these versions."""


@dataclass
class DataFile:
    path: str
    size: int
    mtime_ns: int


@dataclass
class Extent:
    file: int
    offset: int
    stride: int
    count: int


@dataclass
class Place:
    offset: int
    length: int
    sums_offset: int
    sums_checksum: int

    @property
    def sums_length(self) -> int:
        return -(-self.length // PAGE_BYTES) * 8


@dataclass
class Field:
    name: str
    format: str
    dtype: DType
    byte_order: str
    order: str
    published: bool
    rule: Rule
    atol: float
    rtol: float
    chunk_bytes: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    global_offset: tuple[int, ...] | None
    nans: int
    tokens: int
    largest_sampled: float
    extents: list[Extent]
    places: list[Place] = field(default_factory=list)
    # Of version 2.
    key: str = ""
    sums_by: str = "nothing"
    height: int = 0
    bucket_count: int = 0
    smallest_id: int = 0
    largest_id: int = 0

    @property
    def buckets(self) -> Buckets:
        return Buckets(self.dtype.block_scalars, self.blocks_per_chunk, self.height)

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def chunks(self) -> int:
        return -(-self.items * self.dtype.item_bytes // self.chunk_bytes)

    @property
    def blocks_per_chunk(self) -> int:
        return self.chunk_bytes // 4096

    def section_bytes(self, section: str) -> int:
        if section == "tree":
            return node_count(self.chunks) * (16 if self.published else 8)
        if section == "fine":
            return 0 if self.published or self.rule.coarse_shift == 0 else self.chunks * 8
        if section == "residues":
            whole, rest = divmod(self.items * self.dtype.pair, self.dtype.block_scalars)
            bits = self.rule.residue_bits
            return sum(
                -(-n * bits // 512) * 64 * times
                for n, times in ((self.dtype.block_scalars, whole), (rest, 1))
            )
        if section == "sums":
            return self.bucket_count * SUM_BYTES
        return -(-self.items * self.dtype.item_bytes // DATA_SUM_BYTES) * 8


@dataclass
class Metadata:
    raw: bytes
    version: int
    step: int
    rank: int
    data_files: list[DataFile]
    fields: list[Field]
    head_bytes: int  # header and directory

    def section(self, f: Field, name: str) -> bytes:
        place = f.places[SECTIONS.index(name)]
        return self.raw[place.offset : place.offset + place.length]

    def sums(self, f: Field) -> list[tuple[int, int, int]]:
        """Bucket, coarse and fine sum, as they stand there."""
        if self.version == 1:
            return []
        words = _words(self.section(f, "sums"))
        return list(zip(words[::3], words[1::3], words[2::3], strict=True))


class Cursor:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, count: int) -> bytes:
        if count > len(self.raw) - self.at:
            raise FormatError("the directory ends too early")
        self.at += count
        return self.raw[self.at - count : self.at]

    def number(self, layout: str):
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0]

    def text(self) -> str:
        length = self.number("I")
        if length > LONGEST_TEXT:
            raise FormatError("a text is too long")
        return self.take(length).decode("utf-8", "surrogateescape")


def parse(raw: bytes) -> Metadata:
    """Decodes and checks header and directory. Raises FormatError."""
    if raw[:8] != MAGIC:
        raise FormatError("not a metadata file")
    if len(raw) < HEADER_BYTES:
        raise FormatError("it ends within its header")
    version, _, file_bytes, length, checksum, _, _, own = struct.unpack("<IIQQQQQQ", raw[8:HEADER_BYTES])
    if own != xxhash.xxh3_64_intdigest(raw[: HEADER_BYTES - 8]):
        raise FormatError("the header's checksum is wrong")
    if version not in VERSIONS:
        raise FormatError(f"version {version}, this reader knows {', '.join(map(str, VERSIONS))}")
    if file_bytes != len(raw):
        raise FormatError(
            f"it should have {file_bytes} bytes and has {len(raw)}: residues may be in its record"
        )
    if length > LARGEST_DIRECTORY or HEADER_BYTES + length > len(raw):
        raise FormatError("the directory lies outside the file")
    body = raw[HEADER_BYTES : HEADER_BYTES + length]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise FormatError("the directory's checksum is wrong")
    cursor = Cursor(body)
    fields, files = cursor.number("I"), cursor.number("I")
    step, rank, _ = cursor.number("q"), cursor.number("I"), cursor.number("I")
    data_files = [DataFile(cursor.text(), cursor.number("Q"), cursor.number("q")) for _ in range(files)]
    metadata = Metadata(raw, version, step, rank, data_files, [], HEADER_BYTES + length)
    for _ in range(fields):
        metadata.fields.append(_parse_field(cursor, metadata))
    if cursor.at != len(body):
        raise FormatError("the directory is longer than its content")
    return metadata


def parse_file(path: str | os.PathLike[str], residues: bytes = b"") -> Metadata:
    """residues: of a step's metadata that are in a record: Record.read_file(ordinal, "rank-R.residues")."""
    raw = Path(path).read_bytes()
    return parse(join(raw, residues) if residues else raw)


def join(raw: bytes, residues: bytes) -> bytes:
    """The whole metadata file of which a record has the residues."""
    if len(raw) < HEADER_BYTES:
        raise FormatError("it ends within its header")
    # zeros in place of residues, anywhere: the directory says where they belong
    size = struct.unpack_from("<Q", raw, 16)[0]
    if size != len(raw) + len(residues):
        raise FormatError(f"it should have {size} bytes and has {len(raw) + len(residues)}, with residues")
    places = [f.places[SECTIONS.index("residues")] for f in parse(raw + bytes(len(residues))).fields]
    begin = min((place.offset for place in places if place.length), default=len(raw))
    return raw[:begin] + residues + raw[begin:]


def _parse_field(cursor: Cursor, metadata: Metadata) -> Field:
    name, form = cursor.text(), cursor.text()

    def wrong(what: str) -> FormatError:
        return FormatError(f"field '{name}': {what}")

    def choice(values, what: str):
        number = cursor.number("B")
        if number >= len(values) or values[number] is None:
            raise wrong(f"{what} {number} does not exist")
        return values[number]

    dtype = choice([DTYPES.get(i) for i in range(16)], "dtype")
    byte_order = choice(("little", "big"), "byte order")
    order = choice(("row-major", "column-major"), "array order")
    published = choice((False, True), "digest kind")
    kind = choice(RULES_OF[metadata.version], "cell kind")
    residue_bits, coarse_shift = cursor.number("B"), cursor.number("B")
    placed = choice((False, True), "placement")
    widest, fine_exponent, origin = cursor.number("i"), cursor.number("i"), cursor.number("d")
    rule = Rule(kind, residue_bits, coarse_shift, widest, fine_exponent, origin)
    atol, rtol = cursor.number("d"), cursor.number("d")
    chunk_bytes, dimensions = cursor.number("I"), cursor.number("I")
    if dimensions > MOST_DIMENSIONS:
        raise wrong("too many dimensions")

    def numbers() -> tuple[int, ...]:
        return tuple(cursor.number("Q") for _ in range(dimensions))

    shape = numbers()
    global_shape, global_offset = (numbers(), numbers()) if placed else (None, None)
    if placed:
        inside = all(o + n <= g for o, n, g in zip(global_offset, shape, global_shape, strict=True))
        if dimensions == 0 or not inside:
            raise wrong("it lies outside its global array")
    nans, tokens, largest = cursor.number("Q"), cursor.number("Q"), cursor.number("d")
    if math.prod(shape) > 2**58 // dtype.item_bytes:
        raise wrong("impossible shape")
    if not SMALLEST_CHUNK <= chunk_bytes <= LARGEST_CHUNK or chunk_bytes & (chunk_bytes - 1):
        raise wrong("impossible chunk size")
    extents = []
    for _ in range(cursor.number("I")):
        e = Extent(cursor.number("I"), *(cursor.number("Q") for _ in range(3)))
        if (
            e.file >= len(metadata.data_files)
            or e.stride < dtype.item_bytes
            or e.offset + e.stride * e.count >= 2**64
        ):
            raise wrong("impossible extent")
        extents.append(e)
    if extents and sum(e.count for e in extents) != math.prod(shape):
        raise wrong("its extents do not cover it")

    def place() -> Place:
        return Place(*(cursor.number("Q") for _ in range(4)))

    places = [place() for _ in SECTIONS_OF[1]]

    f = Field(name, form, dtype, byte_order, order, published, rule, atol, rtol, chunk_bytes, shape, global_shape,
              global_offset, nans, tokens, largest, extents, places)  # fmt: skip
    if metadata.version >= 2:
        f.key, f.sums_by = cursor.text(), choice(SUMS_BY, "kind of sums")
        f.height, _ = cursor.number("B"), cursor.number("H")
        f.bucket_count, f.smallest_id, f.largest_id = (cursor.number("Q") for _ in range(3))
        places.append(place())
        if not _possible_sums(f):
            raise wrong("impossible sums")
    try:
        expected = (
            rule_for(atol, rtol, residue_bits)
            if kind == "tokens"
            else rule_of(dtype, atol, rtol, residue_bits)
        )
    except ValueError as error:
        raise wrong(str(error)) from None
    if published and (rule != Rule() or rtol != 0):
        raise wrong("a published digest with cells or a relative tolerance")
    if not published and (rule != expected or math.copysign(1, origin) < 0):
        raise wrong("cells that do not follow from the tolerance")
    for section, place in zip(SECTIONS_OF[metadata.version], places, strict=True):
        if place.length != f.section_bytes(section) and not (section == "data_sums" and place.length == 0):
            raise wrong(f"section {section} has another size than its settings imply")
        for start, length in ((place.offset, place.length), (place.sums_offset, place.sums_length)):
            if start % 8 or start < metadata.head_bytes or start + length > len(metadata.raw):
                raise wrong(f"section {section} lies outside its part of the file")
    return f


def _possible_sums(f: Field) -> bool:
    if f.sums_by == "nothing":
        return (f.height, f.bucket_count, f.smallest_id, f.largest_id) == (0, 0, 0, 0)
    if f.published or f.chunk_bytes << f.height > LARGEST_CHUNK or f.bucket_count > f.items * f.dtype.pair:
        return False
    if f.sums_by == "place":
        return f.global_shape is not None and f.smallest_id == f.largest_id == 0
    if f.key == "" or f.shape == () or f.smallest_id > f.largest_id:
        return False
    stride = id_stride(f.items * f.dtype.pair // max(f.shape[0], 1))
    return stride <= f.buckets.scalars and f.largest_id < INDEX_LIMIT // stride


def check_sections(metadata: Metadata) -> list[str]:
    """Everything that can be checked without data."""
    problems = []
    used = [(0, metadata.head_bytes, "the directory")]
    for f in metadata.fields:
        for section, place in zip(SECTIONS_OF[metadata.version], f.places, strict=True):
            where = f"field '{f.name}', section {section}"
            used.append((place.offset, place.offset + place.length, where))
            used.append((place.sums_offset, place.sums_offset + place.sums_length, where + ", checksums"))
            sums = metadata.raw[place.sums_offset : place.sums_offset + place.sums_length]
            if xxhash.xxh3_64_intdigest(sums) != place.sums_checksum:
                problems.append(f"{where}: the checksum of its checksums is wrong")
                continue
            content = metadata.section(f, section)
            for page, known in enumerate(_words(sums)):
                part = content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
                if xxhash.xxh3_64_intdigest(part) != known:
                    problems.append(f"{where}: the checksum of page {page} is wrong")
        problems += _check_content(metadata, f)
    names = [f.name for f in metadata.fields]
    problems += [f"field '{name}': twice" for name in sorted({n for n in names if names.count(n) > 1})]
    end, before = 0, ""
    for start, stop, where in sorted(u for u in used if u[0] != u[1]):
        if start < end:
            problems.append(f"{where}: overlaps {before}")
        elif any(metadata.raw[end:start]):
            problems.append(f"the padding before {where} is not zero")
        end, before = max(end, stop), where
    if any(metadata.raw[end:]):
        problems.append("the padding at the end is not zero")
    return problems


def _check_content(metadata: Metadata, f: Field) -> list[str]:
    """Rules that the content of sections keeps whatever the data is."""
    problems = []
    nodes = _nodes(metadata, f)
    leaves = nodes[len(nodes) - f.chunks :]
    if nodes != tree_nodes(leaves, f.blocks_per_chunk, f.published):
        problems.append(f"field '{f.name}': the tree does not follow from its leaves")
    fine = list(_words(metadata.section(f, "fine")))
    if not f.published and any(d >= P for d in nodes + fine):
        problems.append(f"field '{f.name}': a digest is not reduced")
    sums = metadata.sums(f)
    numbers = [bucket for bucket, _, _ in sums]
    if any(a >= b for a, b in pairwise(numbers)):
        problems.append(f"field '{f.name}': the buckets of its sums do not ascend")
    if any(bucket * f.buckets.scalars >= INDEX_LIMIT for bucket in numbers):
        problems.append(f"field '{f.name}': a bucket of its sums lies beyond every index")
    if any(coarse >= P or fine >= P for _, coarse, fine in sums):
        problems.append(f"field '{f.name}': a sum is not reduced")
    return problems


def verify(
    path: str | os.PathLike[str], elements: dict[str, bytes] | None = None, residues: bytes = b""
) -> list[str]:
    """What is wrong with a metadata file and its data; empty: everything equals what the data gives.

    elements: for fields without extents, their items packed densely, by field name. residues: as for parse_file.
    """
    try:
        metadata = parse_file(path, residues)
    except (FormatError, OSError) as error:
        return [str(error)]
    problems = check_sections(metadata)
    contents: dict[int, bytes] = {}
    for number, known in enumerate(metadata.data_files):
        try:
            contents[number] = (Path(path).parent / known.path).read_bytes()
        except OSError as error:
            problems.append(str(error))
            continue
        if len(contents[number]) != known.size:
            problems.append(
                f"{known.path}: {known.size} bytes when it was indexed, {len(contents[number])} now"
            )
    found: dict[str, bytes | None] = {}
    for f in metadata.fields:
        if f.extents or f.items == 0:
            found[f.name] = _gather(f, contents)
        else:
            found[f.name] = (elements or {}).get(f.name)
    for f in metadata.fields:
        raw = found[f.name]
        if raw is None:
            problems.append(f"field '{f.name}': not verified, its elements could not be read")
        elif len(raw) != f.items * f.dtype.item_bytes:
            problems.append(f"field '{f.name}': the elements given have another size")
        else:
            problems += [f"field '{f.name}': {p}" for p in _compare(metadata, f, raw)]
            problems += [f"field '{f.name}': {p}" for p in _compare_sums(metadata, f, raw, found)]
    return problems


def _gather(f: Field, contents: dict[int, bytes]) -> bytes | None:
    parts = []
    size = f.dtype.item_bytes
    for e in f.extents:
        data = contents.get(e.file)
        if e.count == 0:
            continue
        if data is None or e.offset + (e.count - 1) * e.stride + size > len(data):
            return None
        if e.stride == size:
            parts.append(data[e.offset : e.offset + e.count * size])
        else:
            parts += [data[at : at + size] for at in range(e.offset, e.offset + e.count * e.stride, e.stride)]
    return b"".join(parts)


def _compare(metadata: Metadata, f: Field, raw: bytes) -> list[str]:
    problems = []
    numbers = scalars(raw, f.dtype, f.byte_order)
    made = digest_array(
        numbers, f.dtype, f.atol, f.rtol, f.rule.residue_bits, f.chunk_bytes, f.published, f.rule
    )
    nodes = _nodes(metadata, f)
    for chunk, (known, right) in enumerate(zip(nodes[len(nodes) - f.chunks :], made.leaves, strict=True)):
        if known != right:
            problems.append(f"the digest of chunk {chunk} is wrong")
    fine = metadata.section(f, "fine")
    for chunk, (known, right) in enumerate(zip(_words(fine), made.fine, strict=False)):
        if known != right:
            problems.append(f"the fine digest of chunk {chunk} is wrong")
    if metadata.section(f, "residues") != made.residues:
        problems.append("the residues are wrong")
    if (f.nans, f.tokens) != (made.nans, made.tokens):
        problems.append(f"{made.nans} NaNs and {made.tokens} tokens, the file says {f.nans} and {f.tokens}")
    largest = max((abs(x) for x in numbers if math.isfinite(x)), default=0)
    if not 0 <= f.largest_sampled <= largest:
        problems.append("largest_sampled is larger than every element")
    sums = metadata.section(f, "data_sums")
    parts = [raw[i : i + DATA_SUM_BYTES] for i in range(0, len(raw), DATA_SUM_BYTES)]
    if sums and list(_words(sums)) != [xxhash.xxh3_64_intdigest(part) for part in parts]:
        problems.append("a checksum of the data is wrong")
    return problems


def _compare_sums(metadata: Metadata, f: Field, raw: bytes, found: dict[str, bytes | None]) -> list[str]:
    """The sums, again from the elements and, by ID, from those of the key."""
    if f.sums_by == "nothing":
        return []
    numbers = scalars(raw, f.dtype, f.byte_order)
    problems = []
    if f.sums_by == "place":
        assert f.global_shape is not None and f.global_offset is not None
        indices = place_indices(f.shape, f.global_shape, f.global_offset, f.dtype.pair)
    else:
        key = next((k for k in metadata.fields if k.name == f.key), None)
        of_key = found.get(f.key)
        if key is None or of_key is None:
            return [f"sums not verified, the IDs '{f.key}' could not be read"]
        if key.dtype.form not in ("signed", "unsigned") or key.shape != f.shape[:1]:
            return [f"'{f.key}' are no IDs of its rows"]
        ids = [int(i) for i in scalars(of_key, key.dtype, key.byte_order)]
        if (f.smallest_id, f.largest_id) != (min(ids, default=0), max(ids, default=0)):
            problems.append("the smallest or the largest ID is wrong")
        indices = id_indices(ids, len(numbers) // len(ids) if ids else 0)
    if indices is None:
        return [*problems, "sums of indices that are too large"]
    right = sum_up(indices, numbers, f.rule, f.buckets)
    known: Sums = {bucket: (coarse, fine) for bucket, coarse, fine in metadata.sums(f)}
    if right.keys() != known.keys():
        problems.append("the sums are of other buckets than its elements")
    problems += [
        f"the sums of bucket {b} are wrong"
        for b in sorted(right.keys() & known.keys())
        if right[b] != known[b]
    ]
    return problems


def _nodes(metadata: Metadata, f: Field) -> list:
    words = list(_words(metadata.section(f, "tree")))
    return list(zip(words[::2], words[1::2], strict=True)) if f.published else words


def _words(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def describe(metadata: Metadata) -> str:
    lines = [
        f"version {metadata.version}, step {metadata.step}, rank {metadata.rank}, {len(metadata.raw)} bytes"
    ]
    lines += [f"data file {d.path}: {d.size} bytes" for d in metadata.data_files]
    for f in metadata.fields:
        kind = "published" if f.published else f.rule.kind
        shape = " x ".join(map(str, f.shape)) or "scalar"
        lines.append(
            f"field '{f.name}': {f.dtype.name} {shape}, {f.byte_order}-endian, {kind}, atol {f.atol}, rtol {f.rtol}, "
            f"{f.rule.residue_bits} residue bits, {f.chunks} chunks of {f.chunk_bytes} bytes, {f.nans} NaNs, "
            f"{f.tokens} tokens"
        )
        if f.key:
            lines.append(f"  key '{f.key}'")
        if f.sums_by != "nothing":
            lines.append(
                f"  sums by {f.sums_by}: {f.bucket_count} buckets of {f.chunk_bytes << f.height} bytes"
            )
    return "\n".join(lines)
