"""What reading a step back takes, beside reading the same bytes plainly.

    python bench/restore_bench.py [--bytes N] [--repeat N] [--folder DIR] [--json FILE] [--package NAME=FOLDER]...

A history with one step of four arrays, and records with five steps of which each changes a tenth: as they are, and packed. Each round
starts one process a package; in it all lines run in turns: `Run.load`, `Run.restore`, `twinrun.restore`, `numpy.fromfile`, `readinto`
of an array that is there, the same read by all cores, and `cp`. Medians, by wall and by the processor's time of the process and its
children. The last column is the share of the line's ceiling, in the same round: the median, the smallest and the largest. Files stay in
the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

STEPS = 5
CODECS = {"record": "none", "packed": "zstd"}
COPY = "a copy by all cores"
CEILINGS = {
    "Run.restore": COPY,
    "Run.restore, record": COPY,
    "Run.restore, packed": COPY,
    "twinrun.restore, record": "cp",
    "twinrun.restore, packed": "cp",
}


def write(folder: Path, size: int) -> None:
    import twinrun

    rng = np.random.default_rng(1)
    arrays = {f"x{i}": rng.random(size // 16, dtype=np.float32) for i in range(4)}
    with twinrun.Run(folder / "plain", atol=1e-5) as run:
        run.capture(0, arrays)
    runs = {
        name: twinrun.Run(
            folder / name, atol=1e-5, record=twinrun.RecordOptions("runs", compress=codec, xor=False)
        )
        for name, codec in CODECS.items()
    }
    for step in range(STEPS):
        for x in arrays.values():
            at = step * (x.size // 10)
            x[at : at + x.size // 10] += 1
        for run in runs.values():
            run.capture(step, arrays)
    for run in runs.values():
        run.close()


def lines(folder: Path) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    import twinrun

    data = next((folder / "plain").glob("step-*/*.data"))
    plain = twinrun.Run(folder / "plain", existing="append", atol=1e-5)
    record, packed = (
        twinrun.Run(
            folder / name,
            existing="append",
            atol=1e-5,
            record=twinrun.RecordOptions("runs", compress=codec, xor=False),
        )
        for name, codec in CODECS.items()
    )
    into = {name: np.zeros_like(x) for name, x in plain.load(0).items()}
    whole = np.zeros(data.stat().st_size, np.uint8)
    out = folder / "out"

    def readinto() -> None:
        with open(data, "rb", buffering=0) as file:
            file.readinto(memoryview(whole))

    cores = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(cores)

    def read_together() -> None:
        with open(data, "rb", buffering=0) as file:
            view, share = memoryview(whole), -(-whole.size // cores)

            def read(begin: int) -> None:
                end = min(begin + share, whole.size)
                while begin < end:
                    begin += os.preadv(file.fileno(), [view[begin:end]], begin)

            list(pool.map(read, range(0, whole.size, share)))

    def clean() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()

    def nothing() -> None:
        pass

    return {
        "numpy.fromfile": (lambda: np.fromfile(data, np.uint8), nothing),
        "Run.load": (lambda: plain.load(0), nothing),
        "Run.load, record": (lambda: record.load(STEPS - 1), nothing),
        "readinto, an array that is there": (readinto, nothing),
        COPY: (read_together, nothing),
        "Run.restore": (lambda: plain.restore(0, into), nothing),
        "Run.restore, record": (lambda: record.restore(STEPS - 1, into), nothing),
        "Run.restore, packed": (lambda: packed.restore(STEPS - 1, into), nothing),
        "cp": (lambda: subprocess.run(["cp", data, out], check=True), clean),
        "twinrun.restore, record": (
            lambda: twinrun.restore(folder / "record", out, steps=[STEPS - 1]),
            clean,
        ),
        "twinrun.restore, packed": (
            lambda: twinrun.restore(folder / "packed", out, steps=[STEPS - 1]),
            clean,
        ),
    }


def measure(folder: Path) -> dict[str, list[float]]:
    def clocks() -> tuple[float, float]:
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), sum(used.ru_utime + used.ru_stime for used in spent)

    found: dict[str, list[float]] = {}
    all_lines = lines(folder)
    for round_number in range(3):
        for name, (work, clean) in all_lines.items():
            clean()
            wall, processor = clocks()
            kept = work()
            wall_end, processor_end = clocks()
            del kept
            if round_number:
                found.setdefault(name, []).extend([wall_end - wall, processor_end - processor])
    return found


def share(found: dict[str, list[float]], line: str) -> str:
    """What of its ceiling's rate a line reaches, round by round."""
    if line not in CEILINGS:
        return ""
    shares = [over / own for over, own in zip(found[CEILINGS[line]][::2], found[line][::2], strict=True)]
    return f"  {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) of {CEILINGS[line]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=int, default=256 << 20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder")
    parser.add_argument("--json")
    parser.add_argument("--package", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measure(Path(arguments.inside))))
        return 0
    packages = dict(each.split("=", 1) for each in arguments.package) or {"now": ""}
    folder = Path(tempfile.mkdtemp(prefix="twinrun-restore-", dir=arguments.folder))
    all_found: dict[str, dict[str, list[float]]] = {name: {} for name in packages}
    try:
        write(folder, arguments.bytes)
        size = next((folder / "plain").glob("step-*/*.data")).stat().st_size * 1e-9
        for _ in range(arguments.repeat):
            for name, package in packages.items():
                environment = dict(os.environ, PYTHONPATH=package) if package else dict(os.environ)
                command = [sys.executable, __file__, "--inside", str(folder)]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                for line, times in json.loads(done.stdout).items():
                    all_found[name].setdefault(line, []).extend(times)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in next(iter(all_found.values())):
        for name, found in all_found.items():
            wall, processor = found[line][::2], found[line][1::2]
            print(
                f"{line:34} {name:8} {size / statistics.median(wall):6.2f} GB/s (best {size / min(wall):5.2f})  "
                f"processor {statistics.median(processor) / size:.3f} s/GB{share(found, line)}"
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(all_found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
