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

from twinrun_spec.digest import BY_NAME, Rule, digest_array, rule_for, scalars, tree_nodes  # noqa: E402
from twinrun_spec.metadata import (  # noqa: E402
    DATA_SUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    PAGE_BYTES,
    RULES,
    SECTIONS,
    VERSION,
    DataFile,
    Extent,
    Field,
    Place,
)

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
    version: int = VERSION
    directory_tail: bytes = b""
    damage_fields: Callable = lambda fields: None  # after places and checksums are known
    damage_header: Callable = lambda values: None
    damage_sections: Callable = lambda raw, fields: None


def encode_field(f: Field) -> bytes:
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
    for p in f.places:
        out += struct.pack("<QQQQ", p.offset, p.length, p.sums_offset, p.sums_checksum)
    return out


def encode_directory(d: Draft) -> bytes:
    out = struct.pack("<IIqII", len(d.fields), len(d.data_files), d.step, d.rank, 0)
    out += b"".join(text(f.path) + struct.pack("<Qq", f.size, f.mtime_ns) for f in d.data_files)
    return out + b"".join(encode_field(f) for f in d.fields) + d.directory_tail


def encode(d: Draft, alignment: int = PAGE_BYTES, shared: bool = False) -> bytes:
    """alignment: of sections; 8 is the least that is allowed. shared: sections shorter than a page share pages, as in files
    that twinrun writes; earlier ones began a page with each section and field (4096)."""

    def up(n: int, to: int = alignment) -> int:
        return -(-n // to) * to

    d = copy.deepcopy(d)
    for f in d.fields:
        f.places = [Place(0, 0, 0, 0) for _ in SECTIONS]
    end = up(HEADER_BYTES + len(encode_directory(d)))
    parts = {}
    for f, contents in zip(d.fields, d.contents, strict=True):
        for place, content in zip(f.places, contents, strict=True):
            own = alignment if not shared or len(content) >= PAGE_BYTES else 8
            end = up(end, own)
            place.offset, place.length = end, len(content)
            parts[end] = parts.get(end, b"") + content
            end = up(end + len(content), own)
        for place, content in zip(f.places, contents, strict=True):
            pages = [content[i : i + PAGE_BYTES] for i in range(0, len(content), PAGE_BYTES)]
            sums = b"".join(struct.pack("<Q", checksum(page)) for page in pages)
            place.sums_offset, place.sums_checksum = end, checksum(sums)
            parts[end] = parts.get(end, b"") + sums
            end += len(sums)
        end = end if shared else up(end)
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
        order: str = "row-major", place: tuple | None = None, form: str = "") -> None:  # fmt: skip
    kind = BY_NAME[dtype]
    numbers = scalars(raw, kind, byte_order)
    made = digest_array(numbers, kind, atol, rtol, bits, chunk, published)
    rule = Rule() if published else rule_for(atol, rtol, bits)
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
    made("newer_version", "version 2", "metadata of version 2", version=2)
    made("version_zero", "version 0", "damaged metadata", version=0)
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


def _replaced(value, **changes):
    return type(value)(**{**vars(value), **changes})


def all_files() -> dict[str, bytes]:
    drafts, data = good()
    files = {"v1/values.bin": data}
    for name, draft in drafts.items():
        files[f"v1/{name}.twm"] = encode(draft, 8 if name == "packed" else PAGE_BYTES)
    for name in ("mixed", "small"):
        files[f"v1/{name}_shared.twm"] = encode(drafts[name], shared=True)
    base = copy.deepcopy(drafts["packed"])
    base.data_files[0].path = "../v1/values.bin"
    manifest = {}
    for name, (raw, spec, twinrun) in bad(base).items():
        files[f"bad/{name}.twm"] = raw
        manifest[f"{name}.twm"] = {"spec": spec, "twinrun": twinrun}
    files["bad/manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    return files


def main() -> int:
    files = all_files()
    if "--check" in sys.argv[1:]:
        wrong = [name for name, raw in files.items() if (HERE / name).read_bytes() != raw]
        print("\n".join(f"{name}: differs" for name in wrong) or "all as written")
        return 1 if wrong else 0
    for name, raw in files.items():
        (HERE / name).write_bytes(raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
