#!/usr/bin/env python3
"""Two runs that cut an array otherwise, or hold particles in another order on other ranks: by metadata, and by elements.

    bench/recut_table.py [--megabytes 512] [--repeat 5] [--folder DIR] [--cold] [--json FILE]

Lines of a case are interleaved in rotating order; medians with the smallest and largest time. numpy is what reading and
comparing both arrays takes where they lie in one piece each, in one order: what no cutting can be faster than without metadata.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from measure import interleave_cached, write_results

import twinrun

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python" / "support"))
from support import run_of_ranks

ATOL = 1e-6
Found = tuple[str, int, int]  # verdict, elements that differ, bytes read


def boxes(shape: tuple[int, ...], grid: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """The boxes of an even grid of ranks."""
    cuts = [np.linspace(0, n, g + 1).astype(int).tolist() for n, g in zip(shape, grid, strict=True)]
    for corner in itertools.product(*(range(g) for g in grid)):
        yield tuple(slice(c[i], c[i + 1]) for c, i in zip(cuts, corner, strict=True))


def cut(path: Path, u: np.ndarray, grid: tuple[int, ...]) -> None:
    parts = list(boxes(u.shape, grid))
    data = [{0: {"u": np.ascontiguousarray(u[box])}} for box in parts]
    places = [{"u": (u.shape, tuple(s.start for s in box))} for box in parts]
    run_of_ranks(path, data, places=places, atol=ATOL)
    np.save(path.with_suffix(".npy"), u)


def spread(path: Path, x: np.ndarray, ranks: int, seed: int) -> None:
    home = np.random.default_rng(seed).integers(0, ranks, len(x))
    data = [{0: {"id": rows + 1, "x": x[rows]}} for rows in (np.flatnonzero(home == r) for r in range(ranks))]
    run_of_ranks(path, data, ids={"x": "id"}, atol=ATOL)
    np.save(path.with_suffix(".npy"), x)


def make_cases(folder: Path, size: int) -> dict[str, tuple[Path, Path, dict]]:
    random = np.random.default_rng(3)
    side = round((size / 8) ** (1 / 3)) // 8 * 8
    u = random.standard_normal((side, side, side))
    x = random.standard_normal((size // 24, 3))
    cases: dict[str, tuple[Path, Path, dict]] = {}
    for change in ("equal", "noise of 10% of the tolerance", "one element differs"):
        for title, array, make, of_a, of_b in (
            ("planes: 8 ranks against 6", u, cut, (8, 1, 1), (6, 1, 1)),
            ("boxes: 2x2x2 ranks against 3x2x1", u, cut, (2, 2, 2), (3, 2, 1)),
            ("particles: 4 ranks against 6", x, spread, (4, 1), (6, 2)),
        ):
            b = array.copy()
            if change.startswith("noise"):
                b += random.uniform(-0.1 * ATOL, 0.1 * ATOL, b.shape)
            if change.startswith("one"):
                b.flat[b.size // 3] += 1
            paths = [folder / f"{len(cases)}{side}" for side in "ab"]
            for path, values, how in zip(paths, (array, b), (of_a, of_b), strict=True):
                make(path, values, how) if make is cut else make(path, values, *how)
            cases[f"{title}, {change}"] = (*paths, {"key": "id"} if make is spread else {})
    return cases


def by_twinrun(a: Path, b: Path, use_metadata: bool = True, **how: object) -> Found:
    options = twinrun.CompareOptions(use_metadata=use_metadata)
    result = twinrun.compare(a, b, atol=ATOL, options=options, **how)
    read = sum(stage["bytes_read"] for f in result.fields for stage in f.stages.values())
    return result.verdict, sum(f.different for f in result.fields), read


def by_numpy(a: Path, b: Path) -> Found:
    x, y = (np.load(path.with_suffix(".npy")) for path in (a, b))
    different = int((np.abs(x - y) > ATOL).sum())
    return "different" if different else "same", different, x.nbytes + y.nbytes


def check(key: str, first: Found, later: Found) -> None:
    if first[:2] != later[:2]:
        raise SystemExit(f"{key}: {first} and then {later}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--cold", action="store_true", help="empty the page cache before each run")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cases = make_cases(Path(folder), int(options.megabytes * 1e6))
        for title, (a, b, how) in cases.items():
            files = [
                p for root in (a, b) for p in (*root.rglob("*"), root.with_suffix(".npy")) if p.is_file()
            ]
            lines: list[tuple[str, Callable[[], Found]]] = [
                ("numpy, arrays in one piece", lambda a=a, b=b: by_numpy(a, b)),
                ("elements", lambda a=a, b=b, how=how: by_twinrun(a, b, use_metadata=False, **how)),
                ("metadata", lambda a=a, b=b, how=how: by_twinrun(a, b, **how)),
            ]
            timings = interleave_cached(lines, options.repeat, files, options.cold, check)
            if len({t.outcome[:2] for t in timings.values() if t.outcome is not None}) != 1:
                raise SystemExit(f"{title}: lines disagree: {[t.outcome for t in timings.values()]}")
            print(f"\n{title}{', cold' if options.cold else ''}\n")
            print(
                "| | seconds: median (min to max) | bytes read, of both runs' | against elements |\n|---|---|---|---|"
            )
            whole = sum(os.path.getsize(p.with_suffix(".npy")) for p in (a, b))
            elements = sorted(timings["elements"].seconds)[options.repeat // 2]
            for key, timing in timings.items():
                middle = sorted(timing.seconds)[options.repeat // 2]
                print(
                    f"| {key} | {middle:.3g} ({min(timing.seconds):.3g} to {max(timing.seconds):.3g}) "
                    f"| {100 * timing.outcome[2] / whole:.3g}% | {elements / middle:.2f}x |"
                )
            results[title] = {k: {"seconds": t.seconds, "outcome": t.outcome} for k, t in timings.items()}
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main()
