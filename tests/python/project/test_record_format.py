"""spec/record.md and its reader agree with each other, and with what twinrun wrote.

The writer below is the reader's opposite: it knows the format and nothing of twinrun, and finds equal chunks the plain way.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from twinrun_spec.metadata import FormatError
from twinrun_spec.record import (
    METHODS,
    Record,
    RecordError,
    fill_sparse,
    join_planes,
    location,
    parse,
    read_difference,
    unpack,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "record"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
CHUNK = 32
NO_BASE = 2**32 - 1

# ---- a writer ----


def xxh3(raw: bytes) -> int:
    return xxhash.xxh3_64_intdigest(raw)


def pack(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(raw)


def text(name: str) -> bytes:
    raw = name.encode()
    return struct.pack("<I", len(raw)) + raw


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def cut(raw: bytes) -> list[bytes]:
    return [raw[i : i + CHUNK].ljust(CHUNK, b"\0") for i in range(0, len(raw), CHUNK)]


@dataclass
class Draft:
    """A difference to be written. runs, bases: (begin, count, source, repeat, is new)."""

    ordinal: int = 0
    base: int = NO_BASE
    method: str = "runs"
    files: list = field(default_factory=list)
    segments: list = field(default_factory=list)  # name, file, offset, bytes, content
    chunks: int = 0  # of the image
    runs: list = field(default_factory=list)
    payload: list = field(default_factory=list)  # chunks
    bases: dict = field(default_factory=dict)  # chunk of payload: Location, bytes there
    kept: list = field(default_factory=list)
    packed: bool = False
    block_chunks: int = 4
    grouped: bool = False  # version 3: copies of list and tree by the ordinals of their sources, planes
    sparse: bool = False  # version 4: last signs, and sparse blocks; with grouped
    # What hostile files say instead.
    entries: bytes | None = None
    base_columns: bytes | None = None
    header: dict = field(default_factory=dict)
    block_flags: int = 0
    between: bytes = b""
    behind: bytes = b""


def columns(ordinal: int, runs: list, new: bool) -> bytes:
    heads, counts, ordinals, sources = bytearray(), bytearray(), bytearray(), bytearray()
    predicted: dict[int, int] = {}
    end = 0
    for begin, count, source, repeat, is_new in runs:
        one = is_new and new and count == 1
        heads += varint((begin - end) * 4 + (3 if one else 0 if is_new and new else 2 if repeat else 1))
        counts += b"" if one else varint(count - 1)
        end = begin + count
        if is_new and new:
            continue
        number = source % 2**40
        ordinals += varint(ordinal - source // 2**40)
        delta = number - predicted.get(source // 2**40, 0)
        sources += varint(2 * delta if delta >= 0 else -2 * delta - 1)
        predicted[source // 2**40] = number + (1 if repeat else count)
    parts = (heads, counts, ordinals, sources)
    return b"".join([*(varint(len(part)) for part in parts), *map(bytes, parts)])


def entries(draft: Draft) -> bytes:
    """The runs, which are those that the method can say."""
    if draft.method == "full" or draft.kept:
        return b""
    if draft.method == "runs":
        return columns(draft.ordinal, draft.runs, True)
    if draft.method == "basic":
        bits = sum(((1 << count) - 1) << begin for begin, count, *_ in draft.runs)
        return bits.to_bytes(-(-draft.chunks // 8), "little")
    depth = 0
    while 1 << depth < draft.chunks:
        depth += 1

    def number(begin: int, count: int) -> int:
        if draft.method == "list":
            return begin
        node = begin // count  # on its level
        return node + (1 << depth) // count - 1

    width = "I" if draft.ordinal % 2 == 0 else "Q"  # both are allowed
    new = [struct.pack("<" + width, number(b, c)) for b, c, _, _, is_new in draft.runs if is_new]
    copies = [
        struct.pack(f"<2{width}I", number(b, c), s % 2**40, s // 2**40)
        for b, c, s, _, is_new in draft.runs
        if not is_new
    ]
    if draft.grouped:
        groups: dict[bytes, list[bytes]] = {}
        for copy in copies:
            groups.setdefault(copy[-4:], []).append(copy[:-4])
        order = sorted(groups, key=lambda ordinal: struct.unpack("<I", ordinal))
        return b"".join(
            [
                struct.pack("<BQQ", struct.calcsize(width) + 128, len(new), len(copies)),
                *new,
                struct.pack("<I", len(groups)),
                *(ordinal + struct.pack("<Q", len(groups[ordinal])) for ordinal in order),
                *(copy for ordinal in order for copy in groups[ordinal]),
            ]
        )
    return struct.pack("<BQQ", struct.calcsize(width), len(new), len(copies)) + b"".join(new + copies)


def planes(raw: bytes, width: int, sign_last: bool = False) -> bytes:
    if sign_last:
        bits = 8 * width
        items = [int.from_bytes(raw[i : i + width], "little") for i in range(0, len(raw), width)]
        raw = b"".join(((x << 1 | x >> bits - 1) & 2**bits - 1).to_bytes(width, "little") for x in items)
    parts = [raw[j::width] for j in range(width)]
    kept = [min(part, pack(part), key=len) for part in parts]
    sizes = [len(k) + (2**31 if len(k) == len(part) else 0) for k, part in zip(kept, parts, strict=True)]
    return struct.pack(f"<{width}I", *sizes) + b"".join(kept)


def sparse(raw: bytes, width: int) -> bytes:
    gaps, items, zeros = bytearray(), [], 0
    for i in range(0, len(raw), width):
        if not any(raw[i : i + width]):
            zeros += 1
            continue
        gaps += b"\xff" * (zeros // 255) + bytes([zeros % 255])
        items.append(raw[i : i + width])
        zeros = 0
    parts = [bytes(gaps), *(b"".join(items)[j::width] for j in range(width))]
    kept = [min(part, pack(part), key=len) for part in parts]
    sizes = [len(k) + (2**31 if len(k) == len(part) else 0) for k, part in zip(kept, parts, strict=True)]
    return struct.pack(f"<{3 + width}I", len(items), len(gaps), *sizes) + b"".join(kept)


def joined(pairs: list, repeats: bool) -> list:
    """Runs from (chunk, source, is new), as long as they can be."""
    runs: list = []
    for chunk, source, is_new in pairs:
        if runs:
            begin, count, first, repeat, was_new = runs[-1]
            if chunk == begin + count and is_new == was_new:
                if source == first + count and not repeat:
                    runs[-1] = (begin, count + 1, first, False, is_new)
                    continue
                if repeats and source == first and (repeat or count == 1) and not is_new:
                    runs[-1] = (begin, count + 1, first, True, is_new)
                    continue
        runs.append((chunk, 1, source, False, is_new))
    return runs


def nodes(pairs: list, chunks: int) -> list:
    """The same as the largest nodes of the tree whose sources follow each other."""
    known = {chunk: (source, is_new) for chunk, source, is_new in pairs}
    runs, chunk = [], 0
    while chunk < chunks:
        if chunk not in known:
            chunk += 1
            continue
        source, is_new = known[chunk]
        count = 1
        while chunk % (2 * count) == 0 and all(
            known.get(chunk + i) == (source + i, is_new) for i in range(2 * count)
        ):
            count *= 2
        runs.append((chunk, count, source, False, is_new))
        chunk += count
    return runs


def encode(draft: Draft) -> bytes:
    blocks, body = [], b""
    for first in range(0, len(draft.payload), draft.block_chunks):
        part = draft.payload[first : first + draft.block_chunks]
        raw = plain = b"".join(part)
        flags = 0
        numbers = range(first, first + len(part))
        if any(n in draft.bases for n in numbers):
            base = b"".join(draft.bases[n][1] if n in draft.bases else bytes(CHUNK) for n in numbers)
            raw = bytes(x ^ y for x, y in zip(plain, base, strict=True))
            flags = 0x80
        if draft.packed and draft.grouped:
            coding = 1 + (first // draft.block_chunks + draft.ordinal) % (10 if draft.sparse else 4)
            width = 2 << (coding - 2) % 3
            if coding > 1:
                raw = sparse(raw, width) if coding > 7 else planes(raw, width, coding > 4)
            else:
                raw = pack(raw)
            flags |= coding
        elif draft.packed:
            raw, flags = pack(raw), flags | 1
        blocks.append(struct.pack("<IBQ", len(raw), flags | draft.block_flags, xxh3(raw)))
        body += raw
    said = entries(draft) if draft.entries is None else draft.entries
    bases = draft.base_columns
    if bases is None:
        pairs = [(n, at, False) for n, (at, _) in sorted(draft.bases.items())]
        bases = columns(draft.ordinal, joined(pairs, True), False) if pairs else b""
    index = struct.pack("<I", len(draft.files))
    kind = b"\0" if draft.grouped else b""  # a file: from version 2 on
    index += b"".join(text(name) + struct.pack("<Q", size) + kind for name, size in draft.files)
    index += struct.pack("<I", len(draft.segments))
    index += b"".join(text(s[0]) + struct.pack("<IQQQ", *s[1:]) for s in draft.segments)
    index += struct.pack("<Q", len(said)) + said + struct.pack("<Q", len(bases)) + bases
    index += struct.pack("<Q", len(blocks)) + b"".join(blocks)
    index += struct.pack("<Q", len(draft.kept)) + b"".join(struct.pack("<IQQ", *k) for k in draft.kept)
    index += draft.behind
    stored = pack(index) if draft.packed else index
    head = {
        "magic": b"TWRDIFF\n",
        "version": 4 if draft.sparse else 3 if draft.grouped else 1,
        "method": METHODS.index(draft.method),
        "chunk_bits": CHUNK.bit_length() - 1,
        "packed": draft.packed,
        "leftovers": bool(draft.kept),
        "ordinal": draft.ordinal,
        "base": draft.base,
        "offset": 128 + len(body + draft.between),
        "size": len(stored),
        "unpacked": len(index),
        "checksum": xxh3(stored),
        "payload": len(draft.payload),
        "block_chunks": draft.block_chunks,
    }
    header = struct.pack("<8sIBBBBIIQQQQQI52x", *{**head, **draft.header}.values())
    return header + struct.pack("<Q", xxh3(header)) + body + draft.between + stored


def content(raw: bytes) -> int:
    total = 0
    for i, chunk in enumerate(cut(raw), start=1):
        digest = xxhash.xxh3_128_digest(chunk)
        x = int.from_bytes(digest[8:], "big") + i * 0x9E3779B97F4A7C15 & 2**64 - 1
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & 2**64 - 1
        total += (x ^ x >> 32) + int.from_bytes(digest[:8], "big")
    return total & 2**64 - 1


class Writer:
    """Writes steps to a folder, and remembers them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drafts: dict[int, Draft] = {}
        self.steps: dict[int, dict[str, bytes]] = {}
        self.places: dict[int, dict[str, list[int]]] = {}  # the Locations of all chunks
        self.bytes_at: dict[int, bytes] = {}
        self.known: dict[bytes, int] = {}
        self.left: Path | None = None

    def step(self, ordinal: int, segments: dict[str, bytes], method: str, packed=False, xored=False) -> Draft:
        draft = Draft(ordinal, method=method, packed=packed)
        draft.grouped = ordinal % 4 > 1
        draft.sparse = ordinal % 4 > 2
        if self.places and method != "full":
            draft.base = max(self.places)
        before = self.places.get(draft.base, {})
        ends = [8, 0]
        for i, (name, raw) in enumerate(segments.items()):
            draft.segments.append(
                (name, i % 2, ends[i % 2], len(raw), 0 if method == "full" else content(raw))
            )
            ends[i % 2] += len(raw) + 3
        draft.files = [("data", ends[0]), ("more/of it", ends[1])]
        places: dict[str, list[int]] = {name: [] for name in segments}
        pairs = []
        for name, raw in segments.items():
            for chunk, there in zip_longest(cut(raw), before.get(name, [])[: len(cut(raw))]):
                at = there
                if there is None or self.bytes_at[there] != chunk:
                    at = self.known.get(chunk) if method in ("list", "tree", "runs") else None
                    pairs.append((draft.chunks, at, at is None))
                    if at is None:
                        at = location(ordinal, len(draft.payload))
                        pairs[-1] = (draft.chunks, at, True)
                        if xored and there is not None:
                            draft.bases[len(draft.payload)] = (there, self.bytes_at[there])
                        draft.payload.append(chunk)
                        self.known.setdefault(chunk, at)
                        self.bytes_at[at] = chunk
                places[name].append(at)
                draft.chunks += 1
        if method == "list":
            draft.runs = [(chunk, 1, at, False, is_new) for chunk, at, is_new in pairs]
        else:
            draft.runs = nodes(pairs, draft.chunks) if method == "tree" else joined(pairs, method == "runs")
        self.places[ordinal], self.steps[ordinal] = places, segments
        self.put(draft)
        return draft

    def put(self, draft: Draft) -> None:
        self.drafts[draft.ordinal] = draft
        (self.folder / str(draft.ordinal)).write_bytes(encode(draft))

    def drop(self, dropped: list[int]) -> None:
        """The other steps stand alone then, but for the payload that is left of those that go."""
        for ordinal in self.steps.keys() - dropped:
            draft, pairs, new = self.drafts[ordinal], [], 0
            for at in (at for places in self.places[ordinal].values() for at in places):
                pairs.append((len(pairs), at, at == location(ordinal, new)))
                new += pairs[-1][2]
            self.put(replace(draft, base=NO_BASE, method="runs", runs=joined(pairs, True)))
        needed: set[int] = set()
        queue = [
            at for o in self.steps.keys() - dropped for places in self.places[o].values() for at in places
        ]
        queue += [at for o in self.steps.keys() - dropped for at, _ in self.drafts[o].bases.values()]
        bases = {location(o, n): base for o, d in self.drafts.items() for n, base in d.bases.items()}
        while queue:
            at = queue.pop()
            if at not in needed and at >> 40 in dropped:
                needed.add(at)
                queue += [bases[at][0]] if at in bases else []
        for ordinal in dropped:
            (self.folder / str(ordinal)).unlink()
            del self.steps[ordinal], self.drafts[ordinal]
        if needed:
            order = sorted(needed)
            stretches = [
                (o >> 40, o % 2**40, n)
                for _, n, o, *_ in joined([(i, at, False) for i, at in enumerate(order)], False)
            ]
            self.left = self.folder / "left"
            self.left.write_bytes(
                encode(
                    Draft(
                        max(dropped),
                        payload=[self.bytes_at[at] for at in order],
                        bases={i: bases[at] for i, at in enumerate(order) if at in bases},
                        kept=stretches,
                        packed=True,
                    )
                )
            )

    def record(self, **options) -> Record:
        return Record(
            lambda o: self.folder / str(o) if o in self.steps else self.left or self.folder / str(o),
            **options,
        )

    def check(self) -> None:
        record = self.record()
        for ordinal, segments in self.steps.items():
            runs = record.map(ordinal)
            at = [run.source + (0 if run.repeat else i) for run in runs for i in range(run.count)]
            assert at == [at for places in self.places[ordinal].values() for at in places]
            assert [run.begin for run in runs] == [0, *(run.end for run in runs)][: len(runs)]
            files = [bytearray(size) for _, size in self.drafts[ordinal].files]
            for name, file, offset, size, _ in self.drafts[ordinal].segments:
                assert record.read_segment(ordinal, name) == segments[name]
                files[file][offset : offset + size] = segments[name]
            for (name, _), expected in zip(self.drafts[ordinal].files, files, strict=True):
                assert record.read_file(ordinal, name) == expected
            payload = self.drafts[ordinal].payload
            assert record.payload(location(ordinal, 0), len(payload)) == b"".join(payload)
            assert record.payload(location(ordinal, len(payload) // 2), len(payload) // 3) == b"".join(
                payload[len(payload) // 2 :][: len(payload) // 3]
            )


# ---- round trips ----


def chunk_of(symbol: int) -> bytes:
    """Of 0 zeros; of others something that packs and XORs well now and then."""
    return (
        bytes(CHUNK)
        if symbol == 0
        else struct.pack("<Q", symbol) * 2 + xxhash.xxh3_128_digest(bytes([symbol]))
    )


@st.composite
def stretches(draw) -> bytes:
    """Chunks that count up or repeat, the last one cut."""
    parts = draw(st.lists(st.tuples(st.integers(0, 24), st.integers(1, 6), st.integers(0, 1)), max_size=5))
    raw = b"".join(chunk_of(first + i * up) for first, count, up in parts for i in range(count))
    return raw[: max(0, len(raw) - draw(st.integers(0, CHUNK - 1)))]


@st.composite
def records(draw) -> list:
    steps: list = []
    for _ in range(draw(st.integers(1, 5))):
        ordinal = draw(st.integers(0, 2)) + (steps[-1][0] + 1 if steps else 0)
        segments = dict(steps[-1][1]) if steps and draw(st.booleans()) else {}
        names = draw(st.permutations(["rho", "", "größe"]))
        segments.update({name: draw(stretches()) for name in names[: draw(st.integers(0, 3))]})
        steps.append(
            (ordinal, segments, draw(st.sampled_from(METHODS)), draw(st.booleans()), draw(st.booleans()))
        )
    return steps


@given(records())
def test_what_is_written_is_read(steps):
    with TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        for step in steps:
            writer.step(*step)
        writer.check()


@given(records(), st.data())
def test_what_is_left_suffices(steps, data):
    with TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        for step in steps:
            writer.step(*step)
        writer.drop(
            data.draw(st.lists(st.sampled_from([step[0] for step in steps]), min_size=1, unique=True))
        )
        writer.check()


# ---- what twinrun wrote ----


def golden(name: str) -> Record:
    def locate(ordinal: int) -> Path:
        path = GOLDEN / name / f"{ordinal}.difference"
        return path if path.exists() else GOLDEN / name / "leftovers.difference"

    return Record(locate)


@pytest.mark.parametrize("name", [*METHODS, "packed", "leftovers"])
def test_golden_records_give_their_steps_back(name):
    record = golden(name)
    steps = [s for s in MANIFEST["steps"] if (GOLDEN / name / f"{s['ordinal']}.difference").exists()]
    assert len(steps) == (2 if name == "leftovers" else len(MANIFEST["steps"]))
    for step in steps:
        d = record.step(step["ordinal"])
        assert d.chunk_bytes == MANIFEST["chunk_bytes"]
        assert d.method == (name if name in METHODS else "runs")
        assert {s.name for s in d.segments} == step["segments"].keys()
        assert {f.name for f in d.files} == step["files"].keys()
        for read, known in ((record.read_segment, step["segments"]), (record.read_file, step["files"])):
            for part, expected in known.items():
                raw = read(step["ordinal"], part)
                assert len(raw) == expected["bytes"]
                assert xxhash.xxh3_64_hexdigest(raw) == expected["xxh3"], (step["ordinal"], part)


def test_golden_records_have_what_the_format_has():
    every = {name: [read_difference(p) for p in sorted((GOLDEN / name).iterdir())] for name in METHODS}
    every |= {
        name: [read_difference(p) for p in sorted((GOLDEN / name).iterdir())]
        for name in ("packed", "leftovers")
    }
    assert any(run.repeat for d in every["runs"] for run in d.runs)
    assert any(run.count > 1 and run.source >> 40 < d.ordinal for d in every["tree"] for run in d.runs)
    blocks = {(b.packed, b.xored) for d in every["packed"] for b in d.blocks}
    assert blocks == {(False, False), (True, False), (True, True)}
    assert any(d.packed for d in every["runs"]) and not any(d.packed for d in every["list"])
    (left,) = (d for d in every["leftovers"] if d.leftovers)
    assert len({k.ordinal for k in left.kept}) == 3 and len(left.kept) > 3 and left.bases
    assert any(d.bases for d in every["leftovers"] if not d.leftovers)
    directories = [[s.name for s in d.segments] for d in every["runs"]]
    assert len({tuple(d) for d in directories}) > 1


# ---- damage ----


def small(folder: Path, method: str, packed: bool) -> Writer:
    """Two steps; the second has new chunks, copies and XORed blocks, as far as its method has them."""
    writer = Writer(folder)
    count = [chunk_of(i) for i in range(1, 9)]
    writer.step(2, {"a": b"".join(count), "b": bytes(70)}, "runs")
    moved = [*count[:2], chunk_of(20), *count[2:6], chunk_of(21), *[count[0]] * 3]
    writer.step(3, {"a": b"".join(moved), "b": bytes(70)}, method, packed, xored=True)
    return writer


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_damaged_byte_is_found(tmp_path, method, packed):
    small(tmp_path, method, packed).check()
    raw = (tmp_path / "3").read_bytes()
    for at in range(len(raw)):
        for change in (1 << at % 8, 0xFF):
            with pytest.raises(ValueError):
                parse(raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :])
        with pytest.raises(ValueError):
            parse(raw[:at])
    with pytest.raises(ValueError):
        parse(raw + b"\0")


def reseal(raw: bytes, at: int, value: int) -> bytes:
    """Byte `at` of the index, or of the header, with checksums that are right."""
    offset = struct.unpack("<Q", raw[24:32])[0]
    changed = bytearray(raw)
    changed[at] = value
    changed[48:56] = struct.pack("<Q", xxh3(bytes(changed[offset:])))
    changed[120:128] = struct.pack("<Q", xxh3(bytes(changed[:120])))
    return bytes(changed)


@pytest.mark.parametrize("method", METHODS)
def test_what_hostile_files_say_is_an_error_or_harmless(tmp_path, method):
    writer = small(tmp_path, method, False)
    raw = (tmp_path / "3").read_bytes()
    offset = struct.unpack("<Q", raw[24:32])[0]
    read = 0
    for at in [*range(8, 48), *range(56, 72), *range(offset, len(raw))]:
        for value in {0, 1, raw[at] ^ 1, raw[at] ^ 0x80, 0xFF}:
            (tmp_path / "3").write_bytes(reseal(raw, at, value))
            record = writer.record(largest=1 << 16)
            try:
                for f in record.step(3).files:
                    record.read_file(3, f.name)
                read += 1
            except (RecordError, FileNotFoundError):  # the latter: another base
                pass
    assert read > 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (struct.pack("<2I", 2**31 + 4, 2**31 + 4) + bytes(7), "too early"),
        (struct.pack("<2I", 2**31 + 4, 2**31 + 4) + bytes(9), "behind the last plane"),
        (struct.pack("<2I", 2**31 + 3, 2**31 + 5) + bytes(8), "another size"),
        (struct.pack("<2I", 4, 2**31 + 4) + bytes(8), "packed bytes are damaged"),
        (struct.pack("<I", 2**31 + 4), "too early"),
    ],
)
def test_planes_that_cannot_be(raw, message):
    with pytest.raises(RecordError, match=message):
        join_planes(raw, 2, 8)


KEPT = 2**31


@pytest.mark.parametrize(
    ("numbers", "rest", "message"),
    [
        ((1, 1, KEPT + 1, KEPT + 1), b"", "too early"),
        ((5, 5, KEPT + 5, KEPT + 5, KEPT + 5), bytes(15), "more items"),
        ((2, 1, KEPT + 1, KEPT + 2, KEPT + 2), bytes(5), "more items"),
        ((1, 2, KEPT + 2, KEPT + 1, KEPT + 1), bytes(4), "more items"),
        ((2**32 - 1, 2**32 - 1, 0, 0, 0), b"", "more items"),
        ((1, 1, KEPT + 1, KEPT + 1, KEPT + 1), b"\x04ab", "do not fit"),
        ((2, 2, KEPT + 2, KEPT + 2, KEPT + 2), b"\x01\x02abcd", "do not fit"),
        ((1, 1, KEPT + 1, KEPT + 1, KEPT + 1), b"\xffab", "do not fit"),
        ((1, 1, KEPT + 1, KEPT + 1, KEPT + 2), b"\x00abc", "another size"),
        ((1, 1, KEPT + 1, KEPT + 1, KEPT + 1), b"\x00abc", "behind the last plane"),
        ((1, 1, 1, KEPT + 1, KEPT + 1), b"\x00ab", "packed bytes are damaged"),
    ],
)
def test_sparse_blocks_that_cannot_be(numbers, rest, message):
    with pytest.raises(RecordError, match=message):
        fill_sparse(struct.pack(f"<{len(numbers)}I", *numbers) + rest, 2, 8)


def test_errors_are_those_of_the_reader(tmp_path):
    assert issubclass(RecordError, ValueError) and issubclass(RecordError, FormatError)
    (tmp_path / "x").write_bytes(b"TWRDIFF\n")
    with pytest.raises(RecordError, match=r"x: it ends within its header"):
        read_difference(tmp_path / "x")


# Four chunks of one segment; the second one is a copy.
def draft(**changes) -> Draft:
    said = {
        "ordinal": 1,
        "base": 0,
        "files": [("f", 128)],
        "segments": [("a", 0, 0, 128, 0)],
        "chunks": 4,
        "runs": [(0, 1, location(1, 0), False, True), (1, 1, location(0, 5), False, False)],
        "payload": [chunk_of(1)],
    }
    return Draft(**{**said, **changes})


def of_columns(*parts: list[int]) -> bytes:
    packed = [b"".join(map(varint, part)) for part in parts]
    return b"".join([*(varint(len(part)) for part in packed), *packed])


def of_numbers(width: int, new: int, copies: int, *numbers: int, ordinal: int = 0) -> bytes:
    return (
        struct.pack("<BQQ", width, new, copies)
        + b"".join(struct.pack("<I" if width == 4 else "<Q", n) for n in numbers)
        + (struct.pack("<I", ordinal) if copies else b"")
    )


def of_groups(sizes: list[tuple[int, int]], *copies: int, said: int | None = None) -> dict:
    """A draft's changes: chunk 0 is new, and groups of copies (ordinal, how many)."""
    said = sum(size for _, size in sizes) if said is None else said
    raw = struct.pack("<BQQII", 4 + 128, 1, said, 0, len(sizes))
    raw += b"".join(struct.pack("<IQ", *size) for size in sizes)
    return {"grouped": True, "entries": raw + b"".join(struct.pack("<I", n) for n in copies)}


BIG = 2**39
LIST = {"method": "list"}
TREE = {"method": "tree"}
LEFT = {"base": NO_BASE, "files": [], "segments": [], "chunks": 0, "runs": [], "kept": [(1, 0, 1)]}
RULES = {
    "magic": ({"header": {"magic": b"TWRDIFX\n"}}, "not a difference"),
    "version 0": ({"header": {"version": 0}}, "version 0"),
    "version 5": ({"header": {"version": 5}}, "version 5"),
    "method": ({"header": {"method": 5}}, "method"),
    "small chunks": ({"header": {"chunk_bits": 4}}, "size of chunks"),
    "large chunks": ({"header": {"chunk_bits": 17}}, "size of chunks"),
    "packed": ({"header": {"packed": 2}}, "flags"),
    "flag": ({"header": {"leftovers": 2}}, "flags"),
    "ordinal": ({"header": {"ordinal": 2**24}}, "no earlier"),
    "base": ({"base": 1}, "no earlier"),
    "offset": ({"header": {"offset": 127}}, "truncated"),
    "offset far": ({"header": {"offset": 2**63}}, "truncated"),
    "size": ({"header": {"size": 1}}, "longer"),
    "unpacked": ({"header": {"unpacked": 1}}, "size of the index"),
    "unpacked far": ({"packed": True, "header": {"unpacked": 2**63}}, "size of the index"),
    "other unpacked": ({"packed": True, "header": {"unpacked": 100}}, "another size"),
    "more unpacked": ({"packed": True, "header": {"unpacked": 1000}}, "another size"),
    "not packed": ({"header": {"packed": 1}}, "packed bytes are damaged"),
    "payload": ({"header": {"payload": BIG + 1}}, "size of the payload"),
    "payload not there": ({"header": {"payload": 9}}, "number of blocks"),
    "payload of a block": ({"header": {"payload": 2}}, "another size than its chunks"),
    "no block": ({"header": {"block_chunks": 0}}, "size of the payload"),
    "large block": ({"block_chunks": 2**19 + 1}, "size of the payload"),
    "between": ({"between": b"\0"}, "do not end where"),
    "behind": ({"behind": b"\0"}, "behind the index"),
    "segment twice": ({"segments": [("a", 0, 0, 128, 0), ("a", 0, 0, 0, 0)]}, "twice"),
    "file twice": ({"files": [("f", 128), ("f", 128)]}, "twice"),
    "way out": ({"files": [("a/../f", 128)]}, "no name"),
    "root": ({"files": [("/f", 128)]}, "no name"),
    "no name": ({"files": [("", 128)]}, "no name"),
    "zero": ({"files": [("f\0", 128)]}, "no name"),
    "long name": ({"files": [("f" * 4097, 128)]}, "too long"),
    "no file": ({"segments": [("a", 1, 0, 128, 0)]}, "in no file"),
    "past file": ({"segments": [("a", 0, 1, 128, 0)]}, "in no file"),
    "past 64 bits": ({"segments": [("a", 0, 2**64 - 1, 128, 0)]}, "in no file"),
    "overlap": ({"segments": [("a", 0, 0, 64, 0), ("b", 0, 63, 64, 0)]}, "overlap"),
    "too many": ({"files": [("f", 2**62)], "segments": [("a", 0, 0, 2**62, 0)]}, "too many"),
    "codec": ({"block_flags": 11, "grouped": True, "sparse": True}, "unknown way"),
    "last signs before version 4": ({"block_flags": 5, "grouped": True}, "unknown way"),
    "sparse before version 4": ({"block_flags": 8, "grouped": True}, "unknown way"),
    "planes before version 3": ({"block_flags": 2}, "unknown way"),
    "a hole": ({"base": NO_BASE, "entries": of_columns([0, 5], [0, 1], [1], [0])}, "chunks are missing"),
    "no base": ({"base": NO_BASE}, "missing|different numbers"),
    "full": ({"method": "full", "runs": []}, "full step"),
    "full with entries": ({"method": "full", "entries": b"\0"}, "full step"),
    "bits": ({"method": "basic", "entries": b"\1\0"}, "number of bits"),
    "bit behind": ({"method": "basic", "entries": b"\x10"}, "pass the end"),
    "bit too many": ({"method": "basic", "entries": b"\3"}, "different numbers"),
    "width": ({**LIST, "entries": of_numbers(4, 1, 0, 0).replace(b"\4", b"\5", 1)}, "another size"),
    "count": ({**LIST, "entries": of_numbers(4, 2**62, 0, 0)}, "another size"),
    "order": ({**LIST, "entries": of_numbers(4, 2, 0, 1, 0)}, "out of order"),
    "twice": ({**LIST, "entries": of_numbers(8, 1, 1, 0, 0, 0)}, "overlap"),
    "chunk": ({**LIST, "entries": of_numbers(8, 1, 0, 4)}, "pass the end"),
    "groups before version 3": (
        {**LIST, "entries": of_numbers(4 + 128, 1, 0, 0)},
        "another size",
    ),
    "group count": ({**LIST, **of_groups([(0, 1)], 1, 0, said=2)}, "number of copies"),
    "group cut": ({**LIST, **of_groups([(0, 2)], 1, 0, 2, said=2)}, "number of copies"),
    "group long": ({**LIST, **of_groups([(0, 1)], 1, 0, 2)}, "number of copies"),
    "group sum": ({**LIST, **of_groups([(0, 3)], 1, 0, 2, 0, said=2)}, "number of copies"),
    "group empty": ({**LIST, **of_groups([(0, 1), (1, 0)], 1, 0)}, "without copies"),
    "group order": ({**LIST, **of_groups([(1, 1), (0, 1)], 1, 0, 2, 0)}, "groups out of order"),
    "group twice": ({**LIST, **of_groups([(0, 1), (0, 1)], 1, 0, 2, 0)}, "groups out of order"),
    "group within": ({**LIST, **of_groups([(0, 2)], 2, 0, 1, 0)}, "entries out of order"),
    "group overlap": ({**LIST, **of_groups([(0, 1), (1, 1)], 1, 0, 1, 0)}, "overlap"),
    "group ordinal": ({**LIST, **of_groups([(2**24, 1)], 1, 0)}, "no difference has"),
    "group later": ({**LIST, **of_groups([(2, 1)], 1, 0)}, "comes later"),
    "source": ({**LIST, "entries": of_numbers(8, 1, 1, 0, 1, BIG)}, "no difference has"),
    "later source": ({**LIST, "entries": of_numbers(8, 1, 1, 0, 1, 0, ordinal=2)}, "comes later"),
    "own source": ({**LIST, "entries": of_numbers(8, 1, 1, 0, 1, 1, ordinal=1)}, "comes later"),
    "source before": ({**LIST, "entries": of_numbers(8, 1, 1, 1, 0, 0, ordinal=1)}, "comes later"),
    "node of a source": ({**TREE, "entries": of_numbers(8, 1, 1, 3, 2, BIG - 1)}, "no difference has"),
    "node": ({**TREE, "entries": of_numbers(4, 1, 0, 7)}, "tree does not have"),
    "nodes": ({**TREE, "entries": of_numbers(4, 2, 0, 1, 3)}, "out of order"),
    "node and leaf": ({**TREE, "entries": of_numbers(4, 1, 1, 1, 4, 0)}, "overlap"),
    "node out": (
        {**TREE, "entries": of_numbers(4, 1, 0, 0), "segments": [("a", 0, 0, 96, 0)]},
        "pass the end",
    ),
    "columns": ({"entries": b"\0" * 3}, "ends too early"),
    "column": ({"entries": b"\2\0\0\0" + b"\0"}, "ends too early"),
    "column left": ({"entries": of_columns([0], [0, 0], [], [])}, "too long"),
    "column short": ({"entries": of_columns([0, 0], [0], [], [])}, "ends too early"),
    "column behind": ({"entries": of_columns([0], [0], [], []) + b"\0"}, "too long"),
    "one new base": ({"base_columns": of_columns([3], [], [], [])}, "unknown kind"),
    "gap": ({"entries": of_columns([2**64 - 4], [0], [], [])}, "pass the end"),
    "length": ({"entries": of_columns([0], [2**64 - 1], [], [])}, "pass the end"),
    "varint": ({"entries": b"\x0b\0\0\0" + b"\x80" * 10 + b"\0"}, "64 bits"),
    "varint value": ({"entries": b"\x0a\0\0\0" + b"\xff" * 9 + b"\2"}, "64 bits"),
    "far back": ({"entries": of_columns([0, 1], [0, 0], [2], [0])}, "no earlier"),
    "below 0": ({"entries": of_columns([0, 1], [0, 0], [1], [1])}, "no difference has"),
    "above": ({"entries": of_columns([0, 1], [0, 0], [1], [2 * BIG])}, "no difference has"),
    "own": ({"entries": of_columns([0, 1], [0, 1], [0], [0])}, "comes later"),
    "new bases": ({"base_columns": of_columns([0], [0], [], [])}, "unknown kind"),
    "own bases": ({"base_columns": of_columns([1], [0], [0], [0])}, "no earlier"),
    "bases behind": ({"base_columns": of_columns([1], [1], [1], [0])}, "pass the end"),
    "leftovers without": ({"header": {"leftovers": 1}}, "leftovers without"),
    "kept by a step": ({**LEFT, "header": {"leftovers": 0}}, "leftovers without"),
    "kept later": ({**LEFT, "kept": [(2, 0, 1)]}, "impossible leftovers"),
    "kept none": ({**LEFT, "kept": [(0, 0, 0), (1, 0, 1)]}, "impossible leftovers"),
    "kept far": ({**LEFT, "kept": [(0, BIG, 1)]}, "impossible leftovers"),
    "kept twice": ({**LEFT, "kept": [(0, 0, 2), (0, 1, 1)]}, "impossible leftovers"),
    "kept more": ({**LEFT, "kept": [(0, 0, 2)]}, "number of leftovers"),
    "kept image": ({**LEFT, "entries": b"\0"}, "describe an image"),
    "kept base": ({**LEFT, "base": 0}, "describe an image"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_checked(rule):
    changes, message = RULES[rule]
    with pytest.raises(RecordError, match=message):
        parse(encode(draft(**changes)))


def test_the_drafts_that_the_rules_change_are_right():
    assert len(parse(encode(draft())).runs) == 2
    assert parse(encode(draft(**LEFT))).kept
    for entries_of in (of_numbers(8, 1, 1, 0, 1, 0, ordinal=1), of_numbers(4, 1, 1, 0, 3, 7)):
        assert len(parse(encode(draft(method="list", entries=entries_of))).runs) == 2
    # Of a node: a copy of two chunks behind a new one.
    (first, second) = parse(encode(draft(method="tree", entries=of_numbers(4, 1, 1, 3, 2, 9)))).runs
    assert (first.begin, first.count, second.begin, second.count) == (0, 1, 2, 2)


# ---- differences that contradict each other ----


WIDE = {
    "segments": [("a", 0, 0, 64, 0)],
    "payload": [bytes(64)],
    "header": {"chunk_bits": 6},
}
ONE_COPY = {"segments": [("a", 0, 0, 32, 0)], "runs": [(0, 1, location(2, 0), False, False)]}


def change(writer: Writer, ordinal: int, **changes) -> None:
    writer.put(replace(writer.drafts[ordinal], **changes))


CONTRADICTIONS: dict[str, tuple[Callable[[Writer], None], str]] = {
    "another content": (
        lambda w: change(w, 3, segments=[(*s[:4], s[4] + 1) for s in w.drafts[3].segments]),
        "not what was recorded",
    ),
    "another ordinal": (lambda w: (w.folder / "2").write_bytes(encode(w.drafts[3])), "is not difference 2"),
    "a base of leftovers": (
        lambda w: (w.folder / "2").write_bytes(encode(Draft(2, payload=[chunk_of(1)], kept=[(2, 0, 1)]))),
        "only leftovers",
    ),
    "no segment in the base": (
        lambda w: change(w, 2, segments=[("z", *s[1:]) if s[0] == "b" else s for s in w.drafts[2].segments]),
        "that its base does not have",
    ),
    "a source that is not there": (
        lambda w: change(
            w, 3, runs=[(*w.drafts[3].runs[0][:2], location(2, 9), False, False), *w.drafts[3].runs[1:]]
        ),
        "is not there|different numbers",
    ),
    "a source of another size": (
        lambda w: [
            (w.folder / "2").write_bytes(encode(draft(ordinal=2, base=NO_BASE, method="full", **WIDE))),
            w.put(draft(ordinal=3, base=NO_BASE, files=[("f", 32)], chunks=1, payload=[], **ONE_COPY)),
        ],
        "than what copies from it",
    ),
    "a base of another size": (
        lambda w: (w.folder / "2").write_bytes(encode(replace(Draft(2), header={"chunk_bits": 6}))),
        "another size",
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_contradictions_are_found(tmp_path, what):
    writer = small(tmp_path, "list", False)
    make, message = CONTRADICTIONS[what]
    make(writer)
    with pytest.raises(RecordError, match=message):
        for name in ("a", "b"):
            writer.record().read_segment(3, name)


def test_a_segment_that_is_not_there_is_no_damage(tmp_path):
    record = small(tmp_path, "runs", False).record()
    with pytest.raises(KeyError):
        record.read_segment(3, "z")
    with pytest.raises(KeyError):
        record.read_file(3, "z")


def test_chunks_xored_in_a_circle_are_found(tmp_path):
    bases = {0: (location(1, 0), chunk_of(2)), 1: (location(0, 0), chunk_of(1))}
    circle = Draft(2, payload=[chunk_of(1), chunk_of(2)], kept=[(0, 0, 1), (1, 0, 1)], bases=bases)
    (tmp_path / "x").write_bytes(encode(circle))
    record = Record(lambda _: tmp_path / "x")
    with pytest.raises(RecordError, match="not older"):
        record.payload(location(1, 0), 1)
    with pytest.raises(RecordError, match="chunk 1 of difference 1 is not there"):
        record.payload(location(1, 0), 2)


def test_few_bytes_that_stand_for_very_many_are_refused(tmp_path):
    many = 2**38
    d = draft(
        base=NO_BASE,
        files=[("f", many * CHUNK), ("empty", 2**63)],
        segments=[("a", 0, 0, many * CHUNK, 0)],
        entries=of_columns([0, 2], [0, many - 2], [0], [0]),
    )
    (tmp_path / "1").write_bytes(encode(d))
    record = Record(lambda _: tmp_path / "1")
    assert [run.count for run in record.map(1)] == [1, many - 1]
    for read in (lambda: record.read_segment(1, "a"), lambda: record.read_file(1, "f")):
        with pytest.raises(RecordError, match="more than the 268435456 that are allowed"):
            read()
    with pytest.raises(RecordError, match="allowed"):
        record.read_file(1, "empty")
    with pytest.raises(RecordError, match="allowed"):
        record.payload(location(1, 0), many)


def test_an_index_that_unpacks_to_very_much_is_refused(monkeypatch):
    raw = (GOLDEN / "packed" / "0.difference").read_bytes()
    unpacked = struct.unpack("<Q", raw[40:48])[0]
    monkeypatch.setattr("twinrun_spec.record.LARGEST", unpacked)
    assert parse(raw).packed
    monkeypatch.setattr("twinrun_spec.record.LARGEST", unpacked - 1)
    with pytest.raises(RecordError, match="more than this reader takes"):
        parse(raw)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    assert parse(encode(draft())).runs
    raw = (GOLDEN / "packed" / "0.difference").read_bytes()
    with pytest.raises(ModuleNotFoundError, match="zstandard"):
        parse(raw)


def test_packed_bytes_are_one_frame_and_nothing_else() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(range(200)))
    assert unpack(packed, 200) == bytes(range(200))
    for wrong in (packed + b"x", packed + packed, packed[:-1], b"", packed[:-4] + b"\0" * 4 + packed[-4:]):
        with pytest.raises(RecordError):
            unpack(wrong, 200)
    for size in (199, 201, 0):
        with pytest.raises(RecordError):
            unpack(packed, size)
    empty = zstandard.ZstdCompressor().compress(b"")
    assert unpack(empty, 0) == b""
