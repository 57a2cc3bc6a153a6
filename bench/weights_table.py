"""Packing of weights by records, ZipNN and zstd, on the same bytes in turns: part of the size, and GB/s of the processor's time.

    python bench/weights_table.py FOLDER --program build/release/bin/bench_payload [--rounds 3]

FOLDER: what weights_states.py wrote. Needs zipnn and zstandard from PyPI. Every codec has one thread; medians over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import zipnn
import zstandard

WORKLOADS = {
    "bf16-weights": "bfloat16",
    "adam-f32": "float32",
    "tuned-bf16": "bfloat16",
    "rl-ulp": "bfloat16",
    "rl-new": "bfloat16",
}


def steps_of(folder: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(folder.glob("step-*/*"))]


def rates(pack, unpack, steps: list[bytes]) -> tuple[float, float, float]:
    shares, packing, reading = [], [], []
    for raw in steps:
        begin = time.process_time()
        packed = pack(bytearray(raw))
        middle = time.process_time()
        back = unpack(packed)
        end = time.process_time()
        if bytes(back) != raw:
            raise SystemExit("other bytes came back")
        shares.append(len(packed) / len(raw))
        packing.append(len(raw) / (middle - begin) * 1e-9)
        reading.append(len(raw) / (end - middle) * 1e-9)
    return statistics.mean(shares), statistics.median(packing), statistics.median(reading)


def record_rates(program: str, folder: Path) -> dict[str, tuple[float, ...]]:
    done = subprocess.run(
        [program, "--rounds", "1", "--data", f"x={folder}"], check=True, capture_output=True, text=True
    )
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    return {f"record, {line[1]}": tuple(map(float, line[2:])) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    zstd, unzstd = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    for name, kind in WORKLOADS.items():
        steps = steps_of(a.folder / name)
        mixed = [
            (np.frombuffer(x, np.uint8) ^ np.frombuffer(y, np.uint8)).tobytes()
            for x, y in itertools.pairwise(steps)
        ]
        nn = zipnn.ZipNN(method="huffman", bytearray_dtype=kind, threads=1)
        found: dict[str, list[tuple[float, ...]]] = {}
        for _ in range(a.rounds):
            for line, value in record_rates(a.program, a.folder / name).items():
                found.setdefault(line, []).append(value)
            for suffix, bytes_of in (("alone", steps[1:]), ("xor", mixed)):
                found.setdefault(f"ZipNN, {suffix}", []).append(rates(nn.compress, nn.decompress, bytes_of))
                found.setdefault(f"zstd -1, {suffix}", []).append(
                    rates(lambda raw: zstd.compress(bytes(raw)), unzstd.decompress, bytes_of)
                )
        for line in sorted(found, key=lambda line: (line.endswith("xor"), line)):
            share, packing, reading = (statistics.median(values) for values in zip(*found[line], strict=True))
            print(f"| {name} | {line} | {100 * share:.2f}% | {packing:.2f} | {reading:.2f} |", flush=True)


main()
