"""Records that Python captures of a state which changes a little: the call, the time until a step is committed, and its bytes.

    .venv/bin/python bench/state_records.py                      # arrays of NumPy, a minute; --quick: seconds
    python3 bench/state_records.py --device cuda                 # tensors of PyTorch on a GPU, 4.3 GB

Before each round one place of each array changes: `--changed` of its elements (1: all). All ways then capture the same state, in
rotating order; each has a folder of its own in memory. "memory" copies the state and waits: what is read and written at least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import write_results

import twinrun

ATOL = 1e-6
WAYS: dict[str, dict] = {
    "full data": {"residue_bits": 0},
    "record": {"residue_bits": 0, "record": "runs"},
    "record, compress none": {
        "residue_bits": 0,
        "record": twinrun.RecordOptions("runs", compress="none", xor=False),
    },
    "record, xor off": {"residue_bits": 0, "record": twinrun.RecordOptions("runs", xor=False)},
    "record, residues of 4 bits": {"residue_bits": 4, "record": "runs"},
    "record, exact": {"atol": 0.0, "record": "runs"},
}


def sizes_of(count: int, elements: int) -> list[int]:
    """Elements of each array: mixed sizes that sum up to about `elements`."""
    drawn = 2.0 ** np.random.default_rng(1).normal(0, 2, count)
    return [max(1, int(n)) for n in drawn * (elements / drawn.sum())]


def made(device: str, sizes: list[int]) -> tuple[dict, Callable[[float, int], None], Callable[[], object]]:
    """A state of float32, what changes a share of it at a round, and what copies it."""
    if device == "cuda":
        import torch

        gpu = {f"layers.{at}.weight": torch.randn(n, device="cuda") for at, n in enumerate(sizes)}

        def change_there(share: float, number: int) -> None:
            for one in gpu.values():
                n = max(1, int(share * one.numel()))
                first = (number * 7919 * n) % (one.numel() - n + 1)
                one[first : first + n] += 0.125
            torch.cuda.synchronize()

        def copy_there() -> None:
            for one in gpu.values():
                one.clone()
            torch.cuda.synchronize()

        return gpu, change_there, copy_there
    random = np.random.default_rng(2)
    state = {f"layers.{at}.weight": random.standard_normal(n, np.float32) for at, n in enumerate(sizes)}

    def change(share: float, number: int) -> None:
        for one in state.values():
            n = max(1, int(share * one.size))
            first = (number * 7919 * n) % (one.size - n + 1)
            one[first : first + n] += np.float32(0.125)

    return state, change, lambda: [one.copy() for one in state.values()]


def bytes_in(folder: str) -> int:
    """Of all files."""
    return sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files)


def main() -> None:
    """Measures and prints; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the data")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--arrays", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=0, help="of the state; default 4.29 GB, on CPUs 268 MB")
    parser.add_argument("--changed", type=float, default=0.01, help="share of each array that changes")
    parser.add_argument("--rounds", type=int, default=5, help="steps after the first one")
    parser.add_argument("--only", default="", help="only ways whose name has this in it")
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args()
    size = given.bytes or (1 << 32 if given.device == "cuda" else 1 << 28)
    sizes = sizes_of(given.arrays, size // (400 if given.quick else 4))
    state, change, copy = made(given.device, sizes)
    memory = Path("/dev/shm")
    more = {"device_memory": "12 GiB"} if given.device == "cuda" else {}
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        runs = {}
        for name, how in WAYS.items():
            if given.only in name:
                options = {"atol": ATOL, "background": True, "memory": "8 GiB", **more, **how}
                runs[name] = twinrun.Run(f"{folder}/{len(runs)}", **options)
        for number in range(given.rounds + 1):
            if number:
                change(given.changed, number)
            names = [*runs]
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run, kept = runs[name], found.setdefault(name, {})
                before = bytes_in(run.path)
                start = time.perf_counter()
                run.capture(number, state)
                called = time.perf_counter()
                run.wait()
                for what, value in (
                    ("call", called - start),
                    ("committed", time.perf_counter() - start),
                    ("bytes", bytes_in(run.path) - before),
                ):
                    kept.setdefault(what, []).append(value)
            start = time.perf_counter()
            copy()
            found.setdefault("memory", {}).setdefault("call", []).append(time.perf_counter() - start)
        for run in runs.values():
            run.close()
    total = 4 * sum(sizes)
    print(
        f"**{len(sizes)} arrays, {total / 1e6:.0f} MB, {given.changed:.0%} change** (ms; median, least, most)\n"
    )
    print(
        "| way | call | committed | bytes of a step | first step | its bytes |\n|---|---:|---:|---:|---:|---:|"
    )
    for name, kept in found.items():
        cells = [name]
        for what in ("call", "committed"):
            later = [1e3 * s for s in kept.get(what, [])[1:]]
            cells.append(
                f"{statistics.median(later):.1f} ({min(later):.1f} to {max(later):.1f})" if later else ""
            )
        if "bytes" in kept:
            cells += [
                f"{statistics.median(kept['bytes'][1:]) / 1e6:.1f} MB",
                f"{1e3 * kept['committed'][0]:.0f}",
                f"{kept['bytes'][0] / 1e6:.1f} MB",
            ]
        print("| " + " | ".join(cells) + " |")
    if given.json is not None:
        write_results(given.json, {n: dict(kept) for n, kept in found.items()})


if __name__ == "__main__":
    main()
