"""Writes the golden files of this folder from the specification alone. See README.md."""

from __future__ import annotations

import copy
import json
import math
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "spec" / "reader"))

from twinrun_spec.digest import (  # noqa: E402
    BY_NAME,
    INDEX_LIMIT,
    LARGEST_CHUNK,
    Buckets,
    P,
    Rule,
    digest_array,
    id_indices,
    place_indices,
    rule_of,
    scalars,
    sum_up,
    tree_nodes,
)
from twinrun_spec.metadata import (  # noqa: E402
    DATA_SUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    PAGE_BYTES,
    RULES,
    SECTIONS_OF,
    SUM_BYTES,
    SUMS_BY,
    DataFile,
    Extent,
    Field,
    Place,
)

RESIDUES = SECTIONS_OF[1].index("residues")
MTIME = 1_700_000_000_000_000_000


def checksum(raw: bytes) -> int:
    return xxhash.xxh3_64_intdigest(raw)


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<I", len(raw)) + raw


@dataclass
class Draft:
    """A metadata file before it has bytes; damages change it, or the bytes."""

    step: int = 0
    rank: int = 0
    data_files: list[DataFile] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    contents: list[list[bytes]] = field(default_factory=list)  # by field and section
    version: int = 1
    directory_tail: bytes = b""
    damage_fields: Callable = lambda fields: None  # after places and checksums are known
    damage_header: Callable = lambda values: None
    damage_sections: Callable = lambda raw, fields: None


def encode_field(f: Field, version: int) -> bytes:
    r = f.rule
    out = text(f.name) + text(f.format)
    out += struct.pack("<8B", f.dtype.number, f.byte_order == "big", f.order == "column-major", f.published,
                       RULES.index(r.kind), r.residue_bits, r.coarse_shift, f.global_shape is not None)  # fmt: skip
    out += struct.pack("<iiddd", r.widest, r.fine_exponent, r.key_origin, f.atol, f.rtol)
    out += struct.pack("<II", f.chunk_bytes, len(f.shape))
    for numbers in (f.shape, f.global_shape or (), f.global_offset or ()):
        out += struct.pack(f"<{len(numbers)}Q", *numbers)
    out += struct.pack("<QQdI", f.nans, f.tokens, f.largest_sampled, len(f.extents))
    for e in f.extents:
        out += struct.pack("<IQQQ", e.file, e.offset, e.stride, e.count)
    places = [struct.pack("<QQQQ", p.offset, p.length, p.sums_offset, p.sums_checksum) for p in f.places]
    out += b"".join(places[:4])
    if version >= 2:
        by = SUMS_BY.index(f.sums_by) if isinstance(f.sums_by, str) else f.sums_by
        out += text(f.key) + struct.pack("<BBH", by, f.height, 0)
        out += struct.pack("<QQQ", f.bucket_count, f.smallest_id, f.largest_id) + places[4]
    return out


def encode_directory(d: Draft) -> bytes:
    out = struct.pack("<IIqII", len(d.fields), len(d.data_files), d.step, d.rank, 0)
    out += b"".join(text(f.path) + struct.pack("<Qq", f.size, f.mtime_ns) for f in d.data_files)
    return out + b"".join(encode_field(f, d.version) for f in d.fields) + d.directory_tail


def encode(d: Draft, alignment: int = PAGE_BYTES, shared: bool = False, apart: bool = False) -> bytes:
    """alignment: of sections; 8 is the least that is allowed. shared: sections shorter than a page share pages, and sums come
    last, as in files that twinrun writes; earlier ones began a page with each section and field (4096). apart: shared, with the
    residues of all fields behind their other sections, as twinrun does now."""
    shared = shared or apart

    def up(n: int, to: int = alignment) -> int:
        return -(-n // to) * to

    d = copy.deepcopy(d)
    for f in d.fields:
        f.places = [Place(0, 0, 0, 0) for _ in SECTIONS_OF[d.version]]
    end = up(HEADER_BYTES + len(encode_directory(d)))
    parts = {}

    def put_sums(place: Place, content: bytes) -> None:
        nonlocal end
        pages = [content[i : i + PAGE_BYTES] for i in range(0, len(content), PAGE_BYTES)]
        sums = b"".join(struct.pack("<Q", checksum(page)) for page in pages)
        place.sums_offset, place.sums_checksum = end, checksum(sums)
        parts[end] = parts.get(end, b"") + sums
        end += len(sums)

    last = []
    for f, all_contents in zip(d.fields, d.contents, strict=True):
        contents = all_contents
        if shared and d.version >= 2 and f.sums_by != "nothing":
            last.append((f.places[4], contents[4]))
            contents = [*contents[:4], b""]
        for place, content in zip(f.places, contents, strict=True):
            if apart and place is f.places[RESIDUES]:
                continue
            own = alignment if not shared or len(content) >= PAGE_BYTES else 8
            end = up(end, own)
            place.offset, place.length = end, len(content)
            parts[end] = parts.get(end, b"") + content
            end = up(end + len(content), own)
        for place, content in zip(f.places, contents, strict=True):
            put_sums(place, content)
        end = end if shared else up(end)
    if apart:
        large = any(len(contents[RESIDUES]) >= PAGE_BYTES for contents in d.contents)
        end = up(end, PAGE_BYTES if large else 64)
        for f, contents in zip(d.fields, d.contents, strict=True):
            place, content = f.places[RESIDUES], contents[RESIDUES]
            is_large = len(content) >= PAGE_BYTES
            place.offset, place.length = up(end) if is_large else end, len(content)
            parts[place.offset] = parts.get(place.offset, b"") + content
            end = up(place.offset + len(content), PAGE_BYTES if is_large else 64)
    for place, content in last:
        end = up(end)
        place.offset, place.length = end, len(content)
        parts[end] = parts.get(end, b"") + content
        end += len(content)  # a multiple of 8
        put_sums(place, content)
    raw = bytearray(up(end))
    for offset, content in parts.items():
        raw[offset : offset + len(content)] = content
    d.damage_sections(raw, d.fields)
    d.damage_fields(d.fields)
    body = encode_directory(d)
    values = {"version": d.version, "file_bytes": len(raw), "length": len(body), "checksum": checksum(body)}
    d.damage_header(values)
    header = MAGIC + struct.pack("<IIQQQQQ", values["version"], 0, values["file_bytes"], values["length"], values["checksum"], 0, 0)  # fmt: skip
    raw[:HEADER_BYTES] = header + struct.pack("<Q", checksum(header))
    raw[HEADER_BYTES : HEADER_BYTES + len(body)] = body
    return bytes(raw)


def add(d: Draft, name: str, dtype: str, shape: tuple, raw: bytes, extents: list[Extent], atol: float, rtol: float = 0.0,
        bits: int = 4, chunk: int = 4096, published: bool = False, byte_order: str = "little",
        order: str = "row-major", place: tuple | None = None, form: str = "", key: str = "",
        ids: list[int] | None = None, height: int | None = None) -> None:  # fmt: skip
    """ids: of the rows, for a field with a key. height: of the sums, else the one that twinrun takes."""
    kind = BY_NAME[dtype]
    numbers = scalars(raw, kind, byte_order)
    of_type = rule_of(kind, atol, rtol, bits, d.version)
    rule = Rule() if published else of_type
    made = digest_array(numbers, kind, atol, rtol, bits, chunk, published, rule)
    nodes = tree_nodes(made.leaves, chunk // 4096, published)
    words = [w for node in nodes for w in node] if published else nodes
    data_sums = [checksum(raw[i : i + DATA_SUM_BYTES]) for i in range(0, len(raw), DATA_SUM_BYTES)]
    fine = made.fine if rule.coarse_shift else []
    d.contents.append([struct.pack(f"<{len(w)}Q", *w) if isinstance(w, list) else w for w in (words, fine, made.residues, data_sums)])  # fmt: skip
    sampled = numbers[::1021] if dtype not in ("i64", "u64") else []
    largest = max((abs(x) for x in sampled if math.isfinite(x)), default=0.0)
    global_shape, global_offset = place or (None, None)
    d.fields.append(Field(name, form, kind, byte_order, order, published, rule, atol, rtol, chunk, shape, global_shape,
                          global_offset, made.nans, made.tokens, float(largest), extents))  # fmt: skip
    if d.version >= 2:
        d.fields[-1].key = key
        d.contents[-1].append(sums_section(d.fields[-1], numbers, ids, height))


def sums_section(f: Field, numbers: list, ids: list[int] | None, height: int | None) -> bytes:
    """The section sums of a field; says in the field what it holds."""
    row = 1
    if f.key:
        row = len(numbers) // len(ids) if ids else 0
        indices = id_indices(ids, row) if ids else None
    elif f.global_shape is not None and f.global_shape != f.shape:
        indices = place_indices(f.shape, f.global_shape, f.global_offset, f.dtype.pair)
    else:
        indices = None
    if indices is None or f.published:
        return b""
    if height is None:
        height = planned_height(f, indices, row)
        if height is None:
            return b""
    f.sums_by, f.height = "ids" if f.key else "place", height
    if f.key:
        f.smallest_id, f.largest_id = min(ids), max(ids)
    sums = sum_up(indices, numbers, f.rule, f.buckets)
    f.bucket_count = len(sums)
    return b"".join(struct.pack("<QQQ", bucket, *sums[bucket]) for bucket in sorted(sums))


def planned_height(f: Field, indices: list[int], row: int) -> int | None:
    """The one that twinrun takes (spec/digest.md, section 11)."""
    data = max(len(indices) * f.dtype.scalar_bytes, 4096)
    height = 0
    while f.chunk_bytes << height <= LARGEST_CHUNK:
        buckets = Buckets(f.dtype.block_scalars, f.blocks_per_chunk, height)
        share = 8 if f.chunk_bytes << height == LARGEST_CHUNK else 64
        count = len({i // buckets.scalars for i in indices})
        if buckets.scalars >= row and count * SUM_BYTES * share <= data:
            return height
        height += 1
    return None


def good() -> tuple[dict[str, Draft], bytes]:
    random_numbers = random.Random(1)
    values = [random_numbers.gauss(0, 1) for _ in range(1200)]
    values[5], values[1100], values[1101], values[7] = float("nan"), float("inf"), float("-inf"), -0.0
    density = struct.pack("<1200f", *values)
    # an array of structures: 4 bytes, a big-endian complex64, 4 bytes
    momentum = [
        struct.pack(">2f", random_numbers.gauss(0, 100), random_numbers.uniform(-1, 1)) for _ in range(60)
    ]
    structures = b"".join(b"\x11" * 4 + item + b"\x22" * 4 for item in momentum)
    ids = [random_numbers.getrandbits(random_numbers.randint(1, 64)) - 2**63 for _ in range(40)]
    ids += [2**53, 2**53 + 1, -(2**53) - 1, 0]
    packed_ids = struct.pack("<44q", *ids)
    wide = struct.pack("<520d", *[random_numbers.gauss(0, 1) for _ in range(520)])
    time = struct.pack("<d", 12.5)
    parts = {"density": density, "structures": structures, "ids": packed_ids, "wide": wide, "time": time}
    at, data = {}, b""
    for name, raw in parts.items():
        at[name] = len(data)
        data += raw + bytes(-len(raw) % 16)
    files = [DataFile("values.bin", len(data), MTIME)]

    mixed = Draft(500, 3, files)
    add(mixed, "density", "f32", (3, 400), density, [Extent(0, at["density"], 4, 1200)], 1e-3)
    add(mixed, "momentum", "c64", (12, 5), b"".join(momentum), [Extent(0, at["structures"] + 4, 16, 60)], 1e-6, 1e-6, 2,
        8192, byte_order="big", order="column-major", place=((24, 10), (12, 0)))  # fmt: skip
    pieces = [Extent(0, at["ids"] + 8 * 20, 8, 24), Extent(0, at["ids"], 8, 20)]
    add(mixed, "ids", "i64", (44,), packed_ids[160:] + packed_ids[:160], pieces, 0.0)

    small = Draft(-1, 0, files)
    add(
        small, "published", "f64", (520,), wide, [Extent(0, at["wide"], 8, 520)], 1e-3, 0.0, 0, published=True
    )
    add(small, "time", "f64", (), time, [Extent(0, at["time"], 8, 1)], 0.0)
    add(small, "nothing", "u16", (4, 0, 7), b"", [], 2.0)

    packed = Draft(7, 1, files)
    add(packed, "time", "f64", (), time, [Extent(0, at["time"], 8, 1)], 0.25)
    return {"mixed": mixed, "small": small, "empty": Draft(), "packed": packed}, data


def good_sums() -> tuple[dict[str, Draft], bytes]:
    """Of version 2: parts by place and by ID."""
    random_numbers = random.Random(2)

    def noise(count: int) -> list[float]:
        values = [random_numbers.gauss(0, 1) for _ in range(count)]
        for special in (float("nan"), float("inf"), float("-inf"), -0.0, 1e30):
            values[random_numbers.randrange(count)] = special
        return values

    ids = random_numbers.sample(range(100, 900), 200)
    far = [7 + 5000 * i for i in range(40)]
    parts = {
        "density": struct.pack("<1200f", *noise(1200)),
        "momentum": struct.pack(">1040f", *noise(1040)),
        "energy": struct.pack("<900d", *noise(900)),
        "cells": struct.pack("<64H", *(random_numbers.getrandbits(16) for _ in range(64))),
        "id": struct.pack("<200q", *ids),
        "velocity": struct.pack("<600f", *noise(600)),
        "far_id": struct.pack(">40I", *far),
        "charge": struct.pack("<40d", *noise(40)),
        "ion": struct.pack("<4i", 3, -1, 2, 0),
        "mass": struct.pack("<4d", *noise(4)),
        "key": struct.pack("<4H", 3, 5, 1000, 0),
        "x": struct.pack("<4d", 1.5, -2.25, 1e9, 0.0),
    }
    at, data = {}, b""
    for name, raw in parts.items():
        at[name] = len(data)
        data += raw + bytes(-len(raw) % 16)
    files = [DataFile("values.bin", len(data), MTIME)]

    def put(d: Draft, name: str, dtype: str, shape: tuple, *args, **more) -> None:
        raw = parts[name]
        size = BY_NAME[dtype].item_bytes
        extents = [Extent(0, at[name], size, len(raw) // size)]
        add(d, name, dtype, shape, raw, extents, *args, **more)

    placed = Draft(40, 1, files, version=2)
    put(placed, "density", "f32", (3, 400), 1e-3, place=((9, 1000), (4, 300)))
    put(placed, "momentum", "c64", (2, 26, 10), 1e-6, 1e-6, 2, 8192, byte_order="big", order="column-major",
        place=((4, 26, 20), (1, 0, 10)))  # fmt: skip
    put(placed, "energy", "f64", (900,), 0.0, 1e-5, 4, 4096, place=((10**9,), (123456789,)), height=4)
    put(placed, "cells", "u16", (8, 8), 0.0, place=((8, 8), (0, 0)))  # all of it: no sums
    add(placed, "nothing", "u16", (4, 0), b"", [], 2.0, place=((8, 6), (4, 3)))

    particles = Draft(41, 2, files, version=2)
    put(particles, "velocity", "f32", (200, 3), 1e-3, key="id", ids=ids)
    put(particles, "id", "i64", (200,), 0.0, key="id", ids=ids)
    put(particles, "far_id", "u32", (40,), 0.0, byte_order="big", key="far_id", ids=far)
    put(particles, "charge", "f64", (40,), 1e-3, key="far_id", ids=far, place=((90,), (10,)))
    put(particles, "ion", "i32", (4,), 0.0, key="ion", ids=[3, -1, 2, 0])  # a negative one: no sums
    put(particles, "mass", "f64", (4,), 0.5, 0.0, 0, key="ion", ids=[3, -1, 2, 0])

    small = Draft(42, 0, files, version=2)
    put(small, "x", "f64", (4,), 0.25, key="key", ids=[3, 5, 1000, 0], height=0)
    put(small, "key", "u16", (4,), 0.0, key="key", ids=[3, 5, 1000, 0], height=1)
    return {"placed": placed, "particles": particles, "small": small}, data


def good_exact() -> tuple[dict[str, Draft], bytes]:
    """Of version 3: exact digests of binary32 numbers."""
    random_numbers = random.Random(3)
    singles = [random_numbers.gauss(0, 1) * 10.0 ** random_numbers.randint(-20, 20) for _ in range(1300)]
    singles[3:11] = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-45, -1e-45, 3.4e38]
    halves = [random_numbers.gauss(0, 1) for _ in range(70)]
    halves[1:6] = [float("nan"), float("inf"), -0.0, 6e-8, 65504.0]
    ids = random_numbers.sample(range(30, 300), 60)
    single = struct.pack("<1300f", *singles)
    # NaNs of other bits are the same NaN.
    single = single[:12] + struct.pack("<I", 0xFFC12345) + single[16:]
    parts = {
        "single": single,
        "half": struct.pack("<70e", *halves),
        "brain": b"".join(struct.pack("<f", x)[2:] for x in halves),
        "wave": struct.pack(">1300f", *singles),
        "double": struct.pack("<100d", *singles[:100]),
        "count": struct.pack("<50i", *(random_numbers.getrandbits(31) for _ in range(50))),
        "density": struct.pack("<1200f", *singles[:1200]),
        "id": struct.pack("<60q", *ids),
        "velocity": struct.pack("<180f", *singles[:180]),
    }
    at, data = {}, b""
    for name, raw in parts.items():
        at[name] = len(data)
        data += raw + bytes(-len(raw) % 16)
    files = [DataFile("values.bin", len(data), MTIME)]

    def put(d: Draft, name: str, dtype: str, shape: tuple, *args, **more) -> None:
        raw = parts[name]
        size = BY_NAME[dtype].item_bytes
        extents = [Extent(0, at[name], size, len(raw) // size)]
        add(d, name, dtype, shape, raw, extents, *args, **more)

    exact = Draft(43, 0, files, version=3)
    put(exact, "single", "f32", (13, 100), 0.0)
    put(exact, "half", "f16", (70,), 0.0, bits=2)
    put(exact, "brain", "bf16", (7, 10), 0.0, chunk=8192)
    put(exact, "wave", "c64", (650,), 0.0, byte_order="big")
    put(exact, "double", "f64", (100,), 0.0)
    put(exact, "count", "i32", (50,), 0.0)
    put(exact, "density", "f32", (1200,), 1e-3)

    parted = Draft(44, 1, files, version=3)
    put(parted, "density", "f32", (3, 400), 0.0, place=((9, 1000), (4, 300)))
    put(parted, "velocity", "f32", (60, 3), 0.0, key="id", ids=ids)
    put(parted, "id", "i64", (60,), 0.0, key="id", ids=ids)
    return {"exact": exact, "parted": parted}, data


def good_words() -> tuple[dict[str, Draft], bytes]:
    """Of version 4: exact digests of 64-bit scalars and of integers."""
    random_numbers = random.Random(4)
    doubles = [random_numbers.gauss(0, 1) * 10.0 ** random_numbers.randint(-200, 200) for _ in range(700)]
    doubles[3:12] = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324, -5e-324, 1.7e308, 1.0]
    # NaNs of other bits are the same NaN.
    double = struct.pack("<700d", *doubles)
    double = double[:24] + struct.pack("<Q", 0xFFF8123456789ABC) + double[32:]
    signed = [random_numbers.getrandbits(64) - 2**63 for _ in range(90)]
    signed[2:7] = [0, -1, 2**63 - 1, -(2**63), 2**53 + 1]
    ids = random_numbers.sample(range(30, 300), 60)
    parts = {
        "double": double,
        "wave": struct.pack(">700d", *doubles),
        "signed": struct.pack("<90q", *signed),
        "unsigned": struct.pack("<90Q", *(x % 2**64 for x in signed)),
        "count": struct.pack("<1100i", *(random_numbers.getrandbits(32) - 2**31 for _ in range(1100))),
        "label": random_numbers.randbytes(200),
        "mask": bytes(random_numbers.choice((0, 1, 2, 255)) for _ in range(77)),
        "single": struct.pack("<60f", *(random_numbers.gauss(0, 1) for _ in range(60))),
        "density": struct.pack("<600d", *doubles[:600]),
        "id": struct.pack("<60q", *ids),
    }
    at, data = {}, b""
    for name, raw in parts.items():
        at[name] = len(data)
        data += raw + bytes(-len(raw) % 16)
    files = [DataFile("values.bin", len(data), MTIME)]

    def put(d: Draft, name: str, dtype: str, shape: tuple, *args, **more) -> None:
        raw = parts[name]
        size = BY_NAME[dtype].item_bytes
        extents = [Extent(0, at[name], size, len(raw) // size)]
        add(d, name, dtype, shape, raw, extents, *args, **more)

    words = Draft(45, 0, files, version=4)
    put(words, "double", "f64", (7, 100), 0.0)
    put(words, "wave", "c128", (350,), 0.0, byte_order="big")
    put(words, "signed", "i64", (90,), 0.0, bits=2)
    put(words, "unsigned", "u64", (9, 10), 0.0, chunk=8192)
    put(words, "count", "i32", (1100,), 0.0)
    put(words, "label", "u8", (200,), 0.0)
    put(words, "mask", "bool", (77,), 0.0)
    put(words, "single", "f32", (60,), 0.0)
    put(words, "density", "f64", (600,), 1e-3)

    parted = Draft(46, 1, files, version=4)
    put(parted, "density", "f64", (3, 200), 0.0, place=((9, 1000), (4, 300)))
    put(parted, "id", "i64", (60,), 0.0, key="id", ids=ids)
    put(parted, "count", "i32", (11, 100), 0.0, place=((60, 100), (40, 0)))
    return {"words": words, "parted": parted}, data


def with_first_field(base: Draft, version: int, changes: dict) -> bytes:
    """The file with other facts of its first field, as one of this version."""

    def damage(fields: list[Field]) -> None:
        for key, value in changes.items():
            setattr(fields[0], key, value)

    d = copy.deepcopy(base)
    d.damage_fields = damage
    d.damage_header = lambda values: values.update(version=version)
    return encode(d, 8)


def bad_exact(base: Draft) -> dict[str, tuple[bytes, str, str | None]]:
    """Damages to the first field of version 3, which is exact f32."""

    def with_field(version: int = 3, **changes) -> bytes:
        return with_first_field(base, version, changes)

    other = "cells that do not follow from the tolerance"
    return {
        "exact_of_version_2": (with_field(2), "cell kind 3 does not exist", "a type that does not exist"),
        "exact_with_tolerance": (with_field(atol=0.5), other, other),
        "exact_with_bits": (with_field(rule=Rule("binary32", 2)), other, other),
        "exact_of_integers": (with_field(dtype=BY_NAME["i32"]), other, other),
    }


def bad_words(base: Draft) -> dict[str, tuple[bytes, str, str | None]]:
    """Damages to the first field of version 4, which is exact f64."""

    def with_field(version: int = 4, **changes) -> bytes:
        return with_first_field(base, version, changes)

    other = "cells that do not follow from the tolerance"
    return {
        "words_of_version_3": (with_field(3), "cell kind 4 does not exist", "a type that does not exist"),
        "words_with_bits": (with_field(rule=Rule("words", 4)), other, other),
        "words_of_complex_singles": (with_field(dtype=BY_NAME["c64"]), other, other),
        "integers_of_doubles": (with_field(rule=Rule("integers")), other, other),
        "binary32_of_doubles": (with_field(rule=Rule("binary32")), other, other),
    }


def bad(base: Draft) -> dict[str, tuple[bytes, str, str | None]]:
    """Name: bytes, what the specification's reader says, what twinrun says."""
    whole = encode(base, 8)
    out: dict[str, tuple[bytes, str, str | None]] = {}

    def flipped(raw: bytes, at: int) -> bytes:
        return raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]

    def made(name: str, spec: str, twinrun: str | None, **changes) -> None:
        d = copy.deepcopy(base)
        for key, value in changes.items():
            setattr(d, key, value)
        out[name] = (encode(d, 8), spec, twinrun)

    def with_field(name: str, spec: str, twinrun: str | None, **changes) -> None:
        def damage(fields: list[Field]) -> None:
            for key, value in changes.items():
                setattr(fields[0], key, value)

        made(name, spec, twinrun, damage_fields=damage)

    out["no_bytes"] = (b"", "not a metadata file", "not a twinrun metadata file")
    out["text_mode"] = (
        whole.replace(b"\r\n", b"\n", 1),
        "not a metadata file",
        "not a twinrun metadata file",
    )
    out["header_cut"] = (whole[:40], "ends within its header", "ends within its header")
    out["header_bit"] = (flipped(whole, 17), "header's checksum", "header's checksum")
    out["directory_bit"] = (flipped(whole, 90), "directory's checksum", "directory's checksum")
    out["truncated"] = (whole[:-1], "it should have", "truncated or extended")
    out["extended"] = (whole + b"\0", "it should have", "truncated or extended")
    made("newer_version", "version 5", "metadata of version 5", damage_header=lambda v: v.update(version=5))
    made("version_zero", "version 0", "damaged metadata", damage_header=lambda v: v.update(version=0))
    made("directory_outside", "directory lies outside", "directory lies outside",
         damage_header=lambda v: v.update(length=len(whole)))  # fmt: skip
    made(
        "directory_tail",
        "longer than its content",
        "another length than its content",
        directory_tail=b"\0" * 8,
    )
    with_field("dtype", "dtype 16 does not exist", "has a type that does not exist",
               dtype=_replaced(base.fields[0].dtype, number=16))  # fmt: skip
    with_field("rule", "do not follow from the tolerance", "do not follow from the tolerance",
               rule=_replaced(base.fields[0].rule, widest=8))  # fmt: skip
    with_field("tolerance", "finite and not negative", "finite and not negative", atol=-1.0)
    with_field("not_a_number", "finite and not negative", "finite and not negative", rtol=float("nan"))
    with_field(
        "published_with_cells", "published digest with cells", "published digest with cells", published=True
    )
    with_field("chunk_size", "impossible chunk size", "impossible chunk size", chunk_bytes=5000)
    with_field(
        "extent_beyond", "impossible extent", "impossible extent", extents=[Extent(0, 2**64 - 4, 8, 1)]
    )
    with_field("extent_short", "do not cover it", "do not cover it", extents=[Extent(0, 0, 8, 0)])
    with_field("extent_file", "impossible extent", "impossible extent", extents=[Extent(1, 0, 8, 1)])

    def place(**changes) -> Callable:
        def damage(fields: list[Field]) -> None:
            for key, value in changes.items():
                setattr(fields[0].places[0], key, value)

        return damage

    made("section_size", "another size", "another size", damage_fields=place(length=16))
    made("section_outside", "outside its part", "outside its part", damage_fields=place(offset=2**63))
    made(
        "section_over_directory",
        "outside its part",
        "outside its part",
        damage_fields=place(offset=HEADER_BYTES),
    )
    made(
        "section_unaligned",
        "outside its part",
        "outside its part",
        damage_fields=place(sums_offset=len(whole) - 12),
    )

    def in_section(section: int, sums: bool) -> Callable:
        def damage(raw: bytearray, fields: list[Field]) -> None:
            p = fields[0].places[section]
            raw[p.sums_offset if sums else p.offset] ^= 1

        return damage

    made("page_bit", "checksum of page 0", "wrong checksum of page 0", damage_sections=in_section(0, False))
    made(
        "sums_bit", "checksum of its checksums", "checksum of checksums", damage_sections=in_section(2, True)
    )

    def padding(raw: bytearray, fields: list[Field]) -> None:
        raw[fields[0].places[0].offset - 1] = 1

    padded = copy.deepcopy(base)
    padded.fields[0].format = "raw"  # so that some padding follows the directory
    padded.damage_sections = padding
    out["padding"] = (encode(padded, 8), "padding", None)

    wrong = copy.deepcopy(base)
    leaf = struct.unpack("<Q", wrong.contents[0][0])[0]
    wrong.contents[0][0] = struct.pack("<Q", leaf ^ 2)
    out["wrong_digest"] = (encode(wrong, 8), "digest of chunk 0 is wrong", None)
    wrong.contents[0][0] = struct.pack("<Q", 2**61)
    out["digest_not_reduced"] = (encode(wrong, 8), "not reduced", None)
    return out


def bad_sums(base: Draft) -> dict[str, tuple[bytes, str, str | None]]:
    """The same for what version 2 adds. base: its first field has sums of two buckets by the IDs of the second."""
    out: dict[str, tuple[bytes, str, str | None]] = {}
    whole = encode(base, 8)
    first = base.fields[0]
    assert first.bucket_count == 2 and first.height == 0

    def made(name: str, spec: str, twinrun: str | None, damage: Callable) -> None:
        d = copy.deepcopy(base)
        d.damage_fields = damage
        out[name] = (encode(d, 8), spec, twinrun)

    def with_field(name: str, spec: str, twinrun: str | None, **changes) -> None:
        def damage(fields: list[Field]) -> None:
            for key, value in changes.items():
                setattr(fields[0], key, value)

        made(name, spec, twinrun, damage)

    def with_place(name: str, spec: str, twinrun: str | None, **changes) -> None:
        def damage(fields: list[Field]) -> None:
            for key, value in changes.items():
                setattr(fields[0].places[4], key, value)

        made(name, spec, twinrun, damage)

    impossible = "impossible sums"
    with_field("sums_kind", "kind of sums 3 does not exist", impossible, sums_by=3)
    with_field("sums_height", impossible, impossible, height=9)
    with_field("sums_height_overflow", impossible, impossible, height=255)
    with_field("sums_many", impossible, impossible, bucket_count=5)
    with_field("sums_overflow", impossible, impossible, bucket_count=(2**64 + 48) // 24)
    with_field("sums_published", impossible, impossible, published=True)
    with_field("sums_without_place", impossible, impossible, sums_by="place", smallest_id=0, largest_id=0)
    with_field("sums_without_key", impossible, impossible, key="")
    with_field("sums_of_no_kind", impossible, impossible, sums_by="nothing")
    with_field("sums_ids_turned", impossible, impossible, smallest_id=1000, largest_id=0)
    with_field("sums_ids_large", impossible, impossible, largest_id=INDEX_LIMIT)
    # A row of 1024 scalars does not fit into a bucket of 512.
    with_field("sums_rows_across", impossible, impossible, shape=(1, 1024), extents=[])
    with_field("sums_ids_wrong", "smallest or the largest ID is wrong", None, largest_id=999)
    with_field("sums_key_missing", "could not be read", None, key="yek")
    with_place("sums_size", "another size", "another size", length=24)
    with_place("sums_outside", "outside its part", "outside its part", offset=2**63)
    with_place("sums_over_directory", "outside its part", "outside its part", offset=HEADER_BYTES)
    with_place("sums_unaligned", "outside its part", "outside its part", sums_offset=len(whole) - 12)

    def flip(at_sums: bool) -> bytes:
        def damage(raw: bytearray, fields: list[Field]) -> None:
            p = fields[0].places[4]
            raw[p.sums_offset if at_sums else p.offset + 16] ^= 1

        d = copy.deepcopy(base)
        d.damage_sections = damage
        return encode(d, 8)

    out["sums_page_bit"] = (flip(False), "checksum of page 0", "wrong checksum of page 0")
    out["sums_sums_bit"] = (flip(True), "checksum of its checksums", "checksum of checksums")

    (a, coarse_a, fine_a), (b, coarse_b, fine_b) = struct.iter_unpack("<QQQ", base.contents[0][4])

    def with_sums(name: str, spec: str, twinrun: str | None, *sums: tuple[int, int, int]) -> None:
        d = copy.deepcopy(base)
        d.contents[0][4] = b"".join(struct.pack("<QQQ", *s) for s in sums)
        d.fields[0].bucket_count = len(sums)
        out[name] = (encode(d, 8), spec, twinrun)

    beyond = INDEX_LIMIT // first.buckets.scalars
    refused = "impossible sums of field 'x'"
    with_sums("sums_turned", "do not ascend", refused, (b, coarse_b, fine_b), (a, coarse_a, fine_a))
    with_sums("sums_twice", "do not ascend", refused, (a, coarse_a, fine_a), (a, coarse_b, fine_b))
    with_sums("sums_beyond", "beyond every index", refused, (a, coarse_a, fine_a), (beyond, coarse_b, fine_b))
    with_sums("sums_not_reduced", "not reduced", refused, (a, coarse_a + P, fine_a), (b, coarse_b, fine_b))
    with_sums("sums_fine_not_reduced", "not reduced", refused, (a, coarse_a, fine_a), (b, coarse_b, P))
    last = beyond - 1
    with_sums("sums_elsewhere", "other buckets", None, (a, coarse_a, fine_a), (last, coarse_b, fine_b))
    with_sums("sums_too_few", "other buckets", None, (a, coarse_a, fine_a))
    wrong = f"sums of bucket {b} are wrong"
    with_sums("sums_wrong_coarse", wrong, None, (a, coarse_a, fine_a), (b, (coarse_b + 1) % P, fine_b))
    with_sums("sums_wrong_fine", wrong, None, (a, coarse_a, fine_a), (b, coarse_b, (fine_b + 1) % P))
    return out


def _replaced(value, **changes):
    return type(value)(**{**vars(value), **changes})


def all_files() -> dict[str, bytes]:
    drafts, data = good()
    files = {"v1/values.bin": data}
    for name, draft in drafts.items():
        files[f"v1/{name}.twm"] = encode(draft, 8 if name == "packed" else PAGE_BYTES)
    for name in ("mixed", "small"):
        files[f"v1/{name}_shared.twm"] = encode(drafts[name], shared=True)
    files["v1/small_apart.twm"] = encode(drafts["small"], apart=True)
    base = copy.deepcopy(drafts["packed"])
    base.data_files[0].path = "../v1/values.bin"
    drafts, data = good_sums()
    files["v2/values.bin"] = data
    for name, draft in drafts.items():
        files[f"v2/{name}.twm"] = encode(draft, 8)
        files[f"v2/{name}_shared.twm"] = encode(draft, shared=True)
    files["v2/placed_apart.twm"] = encode(drafts["placed"], apart=True)
    base_of_sums = copy.deepcopy(drafts["small"])
    base_of_sums.data_files[0].path = "../v2/values.bin"
    drafts, data = good_exact()
    files["v3/values.bin"] = data
    for name, draft in drafts.items():
        files[f"v3/{name}.twm"] = encode(draft, 8)
        files[f"v3/{name}_shared.twm"] = encode(draft, shared=True)
    files["v3/exact_apart.twm"] = encode(drafts["exact"], apart=True)
    base_of_exact = copy.deepcopy(drafts["exact"])
    base_of_exact.data_files[0].path = "../v3/values.bin"
    drafts, data = good_words()
    files["v4/values.bin"] = data
    for name, draft in drafts.items():
        files[f"v4/{name}.twm"] = encode(draft, 8)
        files[f"v4/{name}_shared.twm"] = encode(draft, shared=True)
    files["v4/words_apart.twm"] = encode(drafts["words"], apart=True)
    base_of_words = copy.deepcopy(drafts["words"])
    base_of_words.data_files[0].path = "../v4/values.bin"
    manifest = {}
    damaged = bad(base) | bad_sums(base_of_sums) | bad_exact(base_of_exact) | bad_words(base_of_words)
    for name, (raw, spec, twinrun) in damaged.items():
        files[f"bad/{name}.twm"] = raw
        manifest[f"{name}.twm"] = {"spec": spec, "twinrun": twinrun}
    files["bad/manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    return files


def main() -> int:
    files = all_files()
    if "--check" in sys.argv[1:]:
        wrong = [n for n, raw in files.items() if not (HERE / n).exists() or (HERE / n).read_bytes() != raw]
        print("\n".join(f"{name}: differs" for name in wrong) or "all as written")
        return 1 if wrong else 0
    for name, raw in files.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_bytes(raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
