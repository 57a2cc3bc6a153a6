"""What a user of a state sees: `twinrun.compare` and `twinrun.sketch` of thousands of arrays in memory, beside NumPy and PyTorch.

    .venv/bin/python bench/state_bench.py            # a minute; --quick: seconds
    .venv/bin/python bench/state_bench.py --library torch

All lines of a state run interleaved; each is timed as a whole call, with everything that Python does. "reading" reads both
states once (`max` of the bytes of one after the other): what no comparison can beat.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import Effort, Timing, interleave, write_results

import twinrun

ATOL = 1e-6


def state(sizes: list[int], seed: int) -> dict[str, np.ndarray]:
    """float32 arrays of N(0, 1), named as in a model."""
    random = np.random.default_rng(seed)
    return {f"layers.{at}.weight": random.standard_normal(n, np.float32) for at, n in enumerate(sizes)}


def states(quick: bool) -> dict[str, list[int]]:
    """Elements of each array, by the name of the state."""
    few = 20 if quick else 1
    random = np.random.default_rng(1)
    mixed = np.minimum(2.0 ** random.normal(11, 3, 2000 // few), 1 << 22).astype(int) + 1
    return {
        "2,000 of 1 KiB": [256] * (2000 // few),
        "2,000 of mixed sizes": mixed.tolist(),
        "16 of 16 MiB": [(4 << 20) // few] * 16,
    }


def lines(library: str, a: dict, b: dict) -> list[tuple[str, Callable[[], bool]]]:
    """(name, call) of each way; every call says whether nothing differs."""
    found: list[tuple[str, Callable[[], bool]]] = []

    def add(name: str, call: Callable[[], bool]) -> None:
        found.append((name, call))

    add("twinrun.compare, exact", lambda: twinrun.compare(a, b).same)
    add("twinrun.compare, atol", lambda: twinrun.compare(a, b, atol=ATOL).same)
    if library == "numpy":
        add("np.array_equal", lambda: all(np.array_equal(a[k], b[k]) for k in a))
        add("np.allclose", lambda: all(np.allclose(a[k], b[k], rtol=0, atol=ATOL) for k in a))
        raw = [x.view(np.uint32) for x in (*a.values(), *b.values())]
        add("reading", lambda: sum(int(x.max()) for x in raw) > 0)
    else:
        import torch

        add("torch.equal", lambda: all(torch.equal(a[k], b[k]) for k in a))
        add("torch.allclose", lambda: all(torch.allclose(a[k], b[k], rtol=0, atol=ATOL) for k in a))
    add("twinrun.sketch, atol", lambda: twinrun.sketch(b, atol=ATOL) is not None)
    return found


def two_histories(folder: str, quick: bool) -> tuple[list[int], list[tuple[str, Callable[[], bool]]]]:
    """Elements of each field of two captured histories of one step, and the line that compares them."""
    sizes = [256] * (250 if quick else 5000)
    for name in "ab":
        with twinrun.Run(f"{folder}/{name}", atol=ATOL) as run:
            run.capture(0, state(sizes, 2))
    call = lambda: twinrun.compare(f"{folder}/a", f"{folder}/b").same  # noqa: E731
    return sizes, [("twinrun.compare of paths", call)]


def same_answer(name: str, first: bool, later: bool) -> None:
    """Ends the benchmark where a line changes its mind."""
    if first != later:
        raise SystemExit(f"{name}: said {first}, and then {later}")


def table(name: str, sizes: list[int], timings: dict[str, Timing[bool]]) -> str:
    """In Markdown: microseconds an array, and GB/s of one state."""
    count, data = len(sizes), 4 * sum(sizes)
    rows = [
        f"**{name}** ({count} arrays, {data / 1e6:.1f} MB)",
        "",
        "| line | us an array | GB/s |",
        "|---|---:|---:|",
    ]
    for line, timing in timings.items():
        each = sorted(s / count * 1e6 for s in timing.seconds)
        middle = each[len(each) // 2]
        rows.append(
            f"| {line} | {middle:.2f} ({each[0]:.2f} to {each[-1]:.2f}) | {data / (middle * count * 1e-6) / 1e9:.2f} |"
        )
    return "\n".join([*rows, ""])


def main(arguments: list[str]) -> None:
    """Measures and prints; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, three repetitions")
    parser.add_argument("--library", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    effort = Effort(3, 3, 0) if given.quick else Effort(5, 21, 2)
    results = {}
    for name, sizes in states(given.quick).items():
        a, b = state(sizes, 2), state(sizes, 2)
        if given.library == "torch":
            import torch

            a, b = ({k: torch.from_numpy(x) for k, x in s.items()} for s in (a, b))  # type: ignore[misc]
        timings = interleave(lines(given.library, a, b), effort, lambda: None, True, same_answer)
        wrong = [line for line, timing in timings.items() if not timing.outcome]
        if wrong:
            raise SystemExit(f"{', '.join(wrong)}: equal states were called different")
        print(table(name, sizes, timings), flush=True)
        results[name] = {line: timing.seconds for line, timing in timings.items()}
    with tempfile.TemporaryDirectory() as folder:
        sizes, ways = two_histories(folder, given.quick)
        timings = interleave(ways, effort, lambda: None, True, same_answer)
        print(table("two histories, warm", sizes, timings), flush=True)
        results["histories"] = {line: timing.seconds for line, timing in timings.items()}
    if given.json is not None:
        write_results(given.json, results)


if __name__ == "__main__":
    main(sys.argv[1:])
