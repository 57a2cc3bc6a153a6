#!/usr/bin/env python3
"""Two HDF5 files against each other: h5diff, numpy (h5py and allclose), twinrun direct and with metadata, warm and cold.

    bench/hdf5_table.py [--gigabytes 1] [--repeat 5] [--folder DIR] [--h5diff PROGRAM] [--cold] [--json FILE]

Lines of a case are interleaved in rotating order; medians with the smallest and largest time. A line that finds something else
than the others is marked. Cold: the files' pages are dropped before each run, and looked for.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from measure import interleave_cached, write_results

import twinrun

ATOL = 1e-3
FIELDS = 4


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def make_cases(folder: Path, size: int) -> dict[str, tuple[Path, Path]]:
    """Pairs of files: the same; a thousandth of the chunks differ; every element off by 1% of the tolerance."""
    random = np.random.default_rng(1)
    count = size // 4 // FIELDS
    base = {f"field{i}": random.standard_normal(count, np.float32) for i in range(FIELDS)}
    reference = folder / "reference.h5"
    write(reference, base)
    cases = {}
    sparse, noise = {}, {}
    for name, values in base.items():
        changed = values.copy()
        chunks = random.choice(count // 1024, max(1, count // 1024 // 1000), replace=False)
        changed[chunks * 1024 + 17] += 1
        sparse[name] = changed
        noise[name] = values + random.uniform(-ATOL / 100, ATOL / 100, count).astype(np.float32)
    for title, arrays in (
        ("identical", base),
        ("0.1% of 4 KiB chunks differ", sparse),
        ("noise of 1% of the tolerance", noise),
    ):
        path = folder / f"{len(cases)}.h5"
        write(path, arrays)
        cases[title] = (reference, path)
        for file in (reference, path):
            twinrun.index(file, atol=ATOL)
    return cases


def h5diff(program: str, a: Path, b: Path) -> bool:
    done = subprocess.run(
        [program, "-q", f"--delta={ATOL}", str(a), str(b)], check=False, capture_output=True
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.decode())
    return done.returncode == 0


def by_numpy(a: Path, b: Path) -> bool:
    with h5py.File(a) as x, h5py.File(b) as y:
        found = [
            np.allclose(x[n][...], y[n][...], rtol=0, atol=ATOL) for n in x
        ]  # every field, as the others do
        return all(found)


def found_the_same(key: str, first: bool, later: bool) -> None:
    if first != later:
        raise RuntimeError(f"{key}: found something else this time")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--h5diff", default=shutil.which("h5diff"))
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cases = make_cases(Path(folder), int(options.gigabytes * 1e9))
        results = {}
        for state in ("warm", *(("cold",) if options.cold else ())):
            for title, (a, b) in cases.items():
                files = [a, b, Path(f"{a}.twm"), Path(f"{b}.twm")]
                lines: list[tuple[str, Callable[[], bool]]] = [
                    ("numpy: h5py, allclose", lambda a=a, b=b: by_numpy(a, b)),
                    (
                        "twinrun, direct",
                        lambda a=a, b=b: (
                            twinrun.compare(
                                a, b, atol=ATOL, options=twinrun.CompareOptions(use_metadata=False)
                            ).same
                        ),
                    ),
                    ("twinrun, metadata", lambda a=a, b=b: twinrun.compare(a, b).same),
                ]
                if options.h5diff:
                    lines.insert(0, ("h5diff -q", lambda a=a, b=b: h5diff(options.h5diff, a, b)))
                timings = interleave_cached(lines, options.repeat, files, state == "cold", found_the_same)
                verdicts = {t.outcome for t in timings.values()}
                size = a.stat().st_size
                print(
                    f"\n{title}, {state}, {size / 1e9:.2f} GB a file{'' if len(verdicts) == 1 else '  VERDICTS DIFFER'}\n"
                )
                print(
                    "| | seconds: median (min to max) | GB/s of one file | against h5diff | against numpy |\n|---|---|---|---|---|"
                )
                medians = {key: sorted(t.seconds)[len(t.seconds) // 2] for key, t in timings.items()}
                for key, timing in timings.items():
                    middle = medians[key]
                    against = [
                        f"{medians[other] / middle:.2f}x" if other in medians else ""
                        for other in ("h5diff -q", "numpy: h5py, allclose")
                    ]
                    print(
                        f"| {key} | {middle:.3g} ({min(timing.seconds):.3g} to {max(timing.seconds):.3g}) | {size / middle / 1e9:.3g} "
                        f"| {against[0]} | {against[1]} |"
                    )
                results[f"{title}, {state}"] = {
                    k: {"seconds": t.seconds, "same": t.outcome} for k, t in timings.items()
                }
        if options.json:
            write_results(options.json, results)


if __name__ == "__main__":
    main()
