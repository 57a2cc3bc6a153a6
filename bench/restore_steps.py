"""What reading any step of a long record takes, beside its first step.

    python bench/restore_steps.py [--steps 1000] [--elements 2097152] [--rounds 7] [--folder DIR]

Weights in bf16, of which 3% take another one's value in each step. Prints the record's part of all bytes, and for some steps the
time of `twinrun.read_part` as a multiple of that of the first step, medians of rounds in which all steps take turns. Then the processor's time to open the record and read 64 bytes of its last step.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

SHARE = 0.03


def write(folder: Path, steps: int, elements: int) -> dict[int, bytes]:
    """Makes the record, and gives what some of its steps have."""
    import twinrun

    rng = np.random.default_rng(1)
    normal = rng.standard_normal(elements).astype(np.float32) * 0.02
    weights = (normal.view(np.uint32) >> 16).astype(np.uint16)
    wanted = {0, 1, steps // 2, *range(max(0, steps - 17), steps)}
    kept = {}
    options = twinrun.RecordOptions("runs", compress="zstd", xor=True)
    with twinrun.Run(folder, atol=0, record=options) as run:
        for step in range(steps):
            run.capture(step, {"weights": weights})
            if step in wanted:
                kept[step] = weights.tobytes()
            at = np.flatnonzero(rng.random(elements) < SHARE)
            weights[at] = weights[rng.integers(elements, size=at.size)]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--elements", type=int, default=1 << 21)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder")
    a = parser.parse_args()
    import twinrun

    folder = Path(tempfile.mkdtemp(prefix="twinrun-steps-", dir=a.folder))
    try:
        kept = write(folder / "record", a.steps, a.elements)
        size = sum(p.stat().st_size for p in folder.rglob("*.twr"))
        print(f"{a.steps} steps: {100 * size / (a.steps * a.elements * 2):.2f}% of their bytes")
        times: dict[int, list[float]] = {step: [] for step in kept}
        for _ in range(a.rounds):
            for step, expected in kept.items():
                begin = time.perf_counter()
                got = twinrun.read_part(folder / "record", step, "weights")
                times[step].append(time.perf_counter() - begin)
                if got != expected:
                    raise SystemExit(f"step {step}: other bytes")
        first = statistics.median(times[0])
        for step, taken in times.items():
            middle = statistics.median(taken)
            print(f"step {step:6}: {middle * 1e3:6.2f} ms, {middle / first:5.2f} times the first one")
        few: list[float] = []
        for _ in range(a.rounds):
            begin = time.process_time()
            got = twinrun.read_part(
                folder / "record", a.steps - 1, "weights", offset=a.elements, count=64, threads=1
            )
            few.append(time.process_time() - begin)
            if got != kept[a.steps - 1][a.elements : a.elements + 64]:
                raise SystemExit("64 bytes: other bytes")
        print(f"64 bytes of the last step: {min(few) * 1e3:.2f} ms of the processor, best of {a.rounds}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
