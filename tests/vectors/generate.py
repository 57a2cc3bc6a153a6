"""Writes the test vectors of this folder, with the specification's reader only. See README.md."""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "spec" / "reader"))

from twinrun_spec.digest import (  # noqa: E402
    DTYPES,
    DType,
    P,
    Rule,
    digest_array,
    rule_for,
    rule_of,
    scalars,
    splitmix64,
    tree_nodes,
)

ABSOLUTE = (1e-3, 0.37, 300.0)
RELATIVE = ((1e-6, 1e-6), (0.0, 0.1))


def special_f64() -> list[int]:
    """Bits of float64."""
    values = [0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 2.0**-1022, 2.0**-1000, 1.0e-308, 1.7976931348623157e308]
    values += [
        -1.7976931348623157e308,
        1e30,
        -1e30,
        2.0**53,
        2.0**53 + 2,
        5e-4,
        -5e-4,
        float("inf"),
        float("-inf"),
    ]
    for e in (
        -10,
        -13,
        -14,
        -2,
        -5,
        -6,
        8,
        5,
        4,
    ):  # cells of the rules here: around their edges and the largest of them
        for q in (1, -1, 2**59, -(2**59)):
            bits = struct.unpack("<Q", struct.pack("<d", q * 2.0**e))[0]
            values += [struct.unpack("<d", struct.pack("<Q", bits + d))[0] for d in (-1, 0, 1)]
    bits = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in values]
    nans = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFDEADBEEF00001]
    return bits + nans + [0x4E614E, 0x2B496E66, 0x2D496E66]


def special(dtype: DType) -> bytes:
    size = dtype.scalar_bytes
    if dtype.form in ("signed", "unsigned", "bool"):
        top = 1 << 8 * size
        around = [
            0,
            1,
            2,
            3,
            5,
            100,
            top // 2,
            top // 4,
            top - 1,
            top - 2,
            top - 100,
            1 << 24,
            1 << 31,
            1 << 53,
            1 << 63,
        ]
        around += [splitmix64(i) >> (64 - 8 * size) for i in range(12)]
        if size == 8:
            around += [(1 << 64) - (1 << 53), 3 << 53, 1 << 58, 1 << 59, (1 << 53) - 300]
        words = [(w + d) % top for w in around for d in (-1, 0, 1)]
        return b"".join(w.to_bytes(size, "little") for w in words)
    words64 = special_f64()
    if size == 8:
        return b"".join(w.to_bytes(8, "little") for w in words64)
    # narrower ones: the same where they fit, and their own edges
    out = b""
    for w in words64:
        value = struct.unpack("<d", struct.pack("<Q", w))[0]
        try:
            single = struct.pack("<f", value)
            out += {4: single, 2: single[2:] if dtype.form == "bfloat" else struct.pack("<e", value)}[size]
        except OverflowError:
            pass
    exponent = {"f16": 5, "bf16": 8}.get(dtype.name, 8)
    fraction = 8 * size - 1 - exponent
    infinity = ((1 << exponent) - 1) << fraction
    own = [
        1,
        2,
        (1 << fraction) - 1,
        1 << fraction,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity | (1 << fraction) // 2,
    ]
    own += [3 << (fraction - 2), 5 << (fraction - 3), 9 << (fraction - 4)]
    return out + b"".join((w | s << (8 * size - 1)).to_bytes(size, "little") for w in own for s in (0, 1))


def noise(dtype: DType, count: int, seed: int) -> bytes:
    generator = random.Random(seed)
    size = dtype.scalar_bytes
    if dtype.form in ("signed", "unsigned", "bool"):
        span = 8 * size if dtype.form != "bool" else 1
        words = [generator.getrandbits(generator.randint(1, span)) for _ in range(count)]
        if dtype.form == "signed":
            words = [(w if generator.random() < 0.5 else -w) % (1 << 8 * size) for w in words]
        return b"".join(w.to_bytes(size, "little") for w in words)
    values = [generator.gauss(0, 1) * 10.0 ** generator.randint(-4, 4) for _ in range(count)]
    if dtype.form == "bfloat":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    letter = {2: "e", 4: "f", 8: "d"}[size]
    return b"".join(struct.pack("<" + letter, v) for v in values)


def make(dtype: DType, seed: int) -> dict:
    block = dtype.block_scalars
    inputs = {
        "special": special(dtype),
        "noise": noise(dtype, 150, seed),
        "blocks": noise(dtype, block + 4, seed + 1),
    }
    if dtype.pair == 2:
        inputs["special"] = inputs["special"][: len(inputs["special"]) // dtype.item_bytes * dtype.item_bytes]
    numbers = {name: scalars(raw, dtype) for name, raw in inputs.items()}
    cases = []

    def add(
        name: str, count: int, atol: float, rtol: float, bits: int, chunk: int = 4096, published: bool = False
    ):
        rule = rule_for(atol, rtol, bits)
        put(name, count, atol, rtol, bits, chunk, published, rule)
        of_type = rule_of(dtype, atol, rtol, bits)
        if of_type != rule and not published:
            put(name, count, atol, rtol, bits, chunk, published, of_type)

    def put(
        name: str, count: int, atol: float, rtol: float, bits: int, chunk: int, published: bool, rule: Rule
    ) -> None:
        made = digest_array(numbers[name][:count], dtype, atol, rtol, bits, chunk, published, rule)
        cases.append(
            {
                "input": name,
                "count": count,
                "kind": "published" if published else "linear",
                "cells": rule.kind,
                "atol": atol.hex(),
                "rtol": rtol.hex(),
                "bits": bits,
                "chunk_bytes": chunk,
                "fine": [hex(leaf[0]) for leaf in made.leaves] if published else [hex(d) for d in made.fine],
                "coarse": [hex(leaf[1] if published else leaf) for leaf in made.leaves],
                "residues": made.residues.hex(),
                "nans": made.nans,
                "tokens": made.tokens,
            }
        )

    absolute = ABSOLUTE + ((1e-310, 5e-324, 1.5e308) if dtype.name == "f64" else ())
    for name in ("special", "noise"):
        count = len(numbers[name])
        add(name, count, 0.0, 0.0, 0)
        for bits in (0, 2, 4):
            for atol in absolute:
                add(name, count, atol, 0.0, bits)
            for atol, rtol in RELATIVE:
                add(name, count, atol, rtol, bits)
        for atol in (0.0, *absolute):
            add(name, count, atol, 0.0, 0, published=True)
    step = dtype.pair
    for count in (step, 7 + 7 % step, 8, 8 + step, block - step, block):
        add("blocks", count, 0.37, 0.0, 4)
    for chunk in (4096, 8192):
        add("blocks", block + 2, 0.37, 0.0, 2, chunk)
        add("blocks", block + 2, 1e-6, 1e-6, 4, chunk)
        add("blocks", block + 2, 0.0, 0.0, 0, chunk)
        add("blocks", block + 2, 0.37, 0.0, 0, chunk, True)
    return {"dtype": dtype.name, "inputs": {name: raw.hex() for name, raw in inputs.items()}, "cases": cases}


def rules() -> dict:
    generator = random.Random(3)
    tolerances = [
        (0.0, 0.0),
        (5e-324, 0.0),
        (1e-310, 0.0),
        (1.7e308, 0.0),
        (1.0, 0.0),
        (2.0**-10, 0.0),
        (0.0, 1e300),
    ]
    tolerances += [
        (0.0, 1.7e308),
        (1e-3, 1.7e308),
        (1e300, 1e-300),
        (1e-300, 1e-16),
        (0.0, 1e-15),
        (0.0, 5e-324),
    ]
    tolerances += [(1e-320, 1e-3), (5.0, 1e-12), (1e-12, 0.1), (0.0, 0.5), (0.0, 1.0), (3.0, 7.0)]
    tolerances += [(10.0 ** generator.uniform(-300, 300), 0.0) for _ in range(40)]
    tolerances += [(10.0 ** generator.uniform(-30, 3), 10.0 ** generator.uniform(-15, 1)) for _ in range(40)]
    cases = []
    for atol, rtol in tolerances:
        for bits in (0, 2, 4):
            rule = rule_for(atol, rtol, bits)
            case = {"atol": atol.hex(), "rtol": rtol.hex(), "bits": bits}
            cases.append(case | {k: v.hex() if isinstance(v, float) else v for k, v in vars(rule).items()})
    return {"cases": cases}


def trees() -> dict:
    cases = []
    for count in (0, 1, 2, 3, 4, 5, 7, 8, 11, 16, 33):
        for blocks in (1, 4, 256):
            words = [splitmix64(1000 * count + i) for i in range(2 * count)]
            linear = [w % P for w in words[:count]]
            pairs = list(zip(words[::2], words[1::2], strict=True))
            for kind, leaves in (("linear", linear), ("published", pairs)):
                if kind == "published" and blocks > 1:
                    continue  # takes no notice of it
                nodes = tree_nodes(leaves, blocks, kind == "published")
                flat = [
                    [w for node in part for w in node] if kind == "published" else part
                    for part in (leaves, nodes)
                ]
                cases.append({"kind": kind, "blocks_per_chunk": blocks, "leaves": [hex(w) for w in flat[0]], "nodes": [hex(w) for w in flat[1]]})  # fmt: skip
    return {"cases": cases}


def text_of(content: dict) -> str:
    """JSON with a line a case."""
    head = {k: v for k, v in content.items() if k != "cases"}
    lines = [f"{json.dumps(k)}: {json.dumps(v)}," for k, v in head.items() if k != "inputs"]
    if "inputs" in head:
        inputs = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head["inputs"].items())
        lines.append('"inputs": {\n' + inputs + "\n},")
    cases = ",\n".join("  " + json.dumps(case) for case in content["cases"])
    return "{\n" + "\n".join(lines) + '\n"cases": [\n' + cases + "\n]}\n"


def all_files() -> dict[str, str]:
    files = {f"{d.name}.json": text_of(make(d, 10 * d.number)) for d in DTYPES.values()}
    return files | {"rules.json": text_of(rules()), "tree.json": text_of(trees())}


def main() -> int:
    if "--check" in sys.argv[1:]:
        wrong = [name for name, text in all_files().items() if (HERE / name).read_text() != text]
        print("\n".join(f"{name}: differs" for name in wrong) or "all as written")
        return 1 if wrong else 0
    for name, text in all_files().items():
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
