"""What a user of a state sees: `twinrun.compare` and `twinrun.sketch` of thousands of arrays in memory, beside NumPy and PyTorch.

    .venv/bin/python bench/state_bench.py            # a minute; --quick: seconds
    .venv/bin/python bench/state_bench.py --library torch
    .venv/bin/python bench/state_bench.py --captures        # captures of digests alone, too
    .venv/bin/python bench/state_bench.py --device cuda    # states on a GPU, of up to 19 GB each

All lines of a state run interleaved; each is timed as a whole call, with everything that Python does. "reading" reads both
states once (`max`, or PyTorch's `sum` of all of each): what no comparison can beat.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from measure import Effort, Timing, interleave, write_results

import twinrun

ATOL = 1e-6
# Bytes of the largest state whose data is captured: a few steps must fit into memory.
LARGEST = 10 << 30


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


def device_states(quick: bool) -> dict[str, tuple[str, list[int]]]:
    """Type and elements of each tensor, by the name of the state."""
    width, layers, few = (160, 4, 10) if quick else (1600, 48, 1)
    layer = [(width,) * 2, (width, 3 * width), (3 * width,), (width, width), (width,), (width,) * 2]
    layer += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    every = [(50257 // few, width), (1024, width), (width,) * 2, *layer * layers]
    sizes: list[int] = []
    for shape in every:
        sizes += (
            [width, width] if shape == (width,) * 2 else [int(np.prod(shape))]
        )  # weight and bias of a norm
    random = np.random.default_rng(1)
    mixed = np.minimum(2.0 ** random.normal(13, 4, 10_000 // few), 1 << 24).astype(int) + 1
    return {
        "GPT-2 XL, parameters and two moments, float32": ("float32", sizes * 3),
        "GPT-2 XL, parameters and two moments, bfloat16": ("bfloat16", sizes * 3),
        "10,000 of mixed sizes, float32": ("float32", mixed.tolist()),
        "2,000 of 1 KiB, float32": ("float32", [256] * (2000 // few)),
    }


def on_device(kind: str, sizes: list[int]) -> tuple[list, list[dict]]:
    """Two equal states and one in which every element differs: what they lie in, and their tensors."""
    import torch

    places = np.cumsum([0, *((n + 255) // 256 * 256 for n in sizes)])
    whole = torch.randn(int(places[-1]), dtype=getattr(torch, kind), device="cuda")
    flat = [whole, whole.clone(), whole * 1.01]
    made = [
        {
            f"layers.{at}.weight": one[first : first + n]
            for at, (first, n) in enumerate(zip(places, sizes, strict=False))
        }
        for one in flat
    ]
    torch.cuda.synchronize()
    return flat, made


def as_list(made: dict) -> list:
    """The arrays of a state as a list."""
    return [*made.values()]


def nested(made: dict) -> dict[str, dict[str, object]]:
    """A state as dictionaries of three arrays each, as an optimizer has it."""
    items = [*made.items()]
    return {f"state.{at}": dict(items[at : at + 3]) for at in range(0, len(items), 3)}


def device_lines(flat: list, made: list[dict], left: list) -> list[tuple[str, Callable[[], bool]]]:
    """(name, call); every call ends when its answer is there, but those that say "the call": their results go to `left`."""
    import torch

    a, b, other = made
    lists, dicts = [*map(as_list, made[:2])], [*map(nested, made[:2])]

    def leave(result: object) -> bool:
        left.append(result)
        return True

    return [
        ("twinrun.compare, exact", lambda: twinrun.compare(a, b).same),
        ("twinrun.compare, atol", lambda: twinrun.compare(a, b, atol=ATOL).same),
        ("twinrun.compare, exact, lists", lambda: twinrun.compare(*lists).same),
        ("twinrun.compare, exact, dicts of dicts", lambda: twinrun.compare(*dicts).same),
        ("twinrun.compare, all differ", lambda: not twinrun.compare(a, other, atol=ATOL).same),
        ("torch.equal", lambda: all(torch.equal(a[k], b[k]) for k in a)),
        ("torch.allclose", lambda: all(torch.allclose(a[k], b[k], rtol=0, atol=ATOL) for k in a)),
        ("reading", lambda: sum(float(one.view(torch.float32).sum()) for one in flat[:2]) != 1.5),
        ("twinrun.sketch, atol", lambda: twinrun.sketch(b, atol=ATOL) is not None),
        ("twinrun.sketch, exact", lambda: twinrun.sketch(b) is not None),
        ("twinrun.compare, wait=False: the call", lambda: leave(twinrun.compare(a, b, wait=False))),
        ("twinrun.sketch, wait=False: the call", lambda: leave(twinrun.sketch(b, atol=ATOL, wait=False))),
    ]


@contextlib.contextmanager
def captures(
    state: dict, data: int, synchronize: Callable[[], None]
) -> Iterator[tuple[list, Callable[[], None]]]:
    """Lines of captures into memory, where there is a folder for that; and what to do before each run.

    "the call" ends when `capture` returns, "committed" when its step is on storage. The newest step stays: its pages are used
    again, as storage's are not.
    """
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        contextlib.ExitStack() as stack,
    ):
        found: list[tuple[str, Callable[[], bool]]] = []
        runs: list[twinrun.Run] = []
        for name, how in (
            ("atol", {"atol": ATOL, "residue_bits": 0, "keep_data": False}),
            ("atol, 4 bits", {"atol": ATOL, "residue_bits": 4, "keep_data": False}),
            ("exact", {"residue_bits": 0, "keep_data": False}),
            ("data, exact", {"residue_bits": 0, "memory": 4 << 30}),
        ):
            if how.get("keep_data", True) and data > LARGEST:
                continue
            for background in (False, True):
                path = f"{folder}/{len(runs)}"
                run = stack.enter_context(twinrun.Run(path, background=background, keep_steps=1, **how))
                steps = itertools.count()
                runs.append(run)

                def call(run: twinrun.Run = run, steps: Iterator[int] = steps) -> bool:
                    return run.capture(next(steps), state).step >= 0

                def committed(run: twinrun.Run = run, call: Callable[[], bool] = call) -> bool:
                    done = call()
                    run.wait()
                    return done

                if background:
                    found.append((f"capture, {name}, background: the call", call))
                    found.append((f"capture, {name}, background: committed", committed))
                else:
                    found.append((f"capture, {name}: committed", call))

        def before() -> None:
            synchronize()
            for run in runs:
                run.wait()

        yield found, before


@contextlib.contextmanager
def storage_ceilings(data: int) -> Iterator[list[tuple[str, Callable[[], bool]]]]:
    """Lines that write as many bytes as a state and its residues of 4 bits have, where captures go: what no capture can beat."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        block = np.random.default_rng(3).bytes(4 << 20)

        def write(total: int, writers: int, together: bool) -> bool:
            names = [f"{folder}/{0 if together else w}" for w in range(writers)]
            files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in names]
            share = total // writers // len(block)

            def one(w: int) -> None:
                for at in range(share):
                    os.pwrite(files[w], block, (at + (w * share if together else 0)) * len(block))

            with concurrent.futures.ThreadPoolExecutor(writers) as pool:
                list(pool.map(one, range(writers)))
            for file in files:
                os.close(file)
            return True

        found: list[tuple[str, Callable[[], bool]]] = []
        cores = len(os.sched_getaffinity(0))
        for what, total in (("residues of 4 bits", data // 8), ("the data", data)):
            if total > LARGEST:
                continue
            for writers, together in (
                (1, True),
                (min(4, cores), True),
                (min(4, cores), False),
                (cores, False),
            ):
                name = f"writing {what}, {writers} threads, {'one file' if together else 'a file each'}"
                found.append((name, lambda t=total, w=writers, o=together: write(t, w, o)))
        yield found


def copies_to_host(flat: object) -> list[tuple[str, Callable[[], bool]]]:
    """Copying the bytes of a state's residues of 4 bits, and a part of its data, from the GPU to page-locked memory."""
    import torch

    whole = flat.view(torch.uint8)  # type: ignore[attr-defined]
    residues = whole[: whole.numel() // 8]
    to = torch.empty(residues.numel(), dtype=torch.uint8, pin_memory=True)

    def copy() -> bool:
        to.copy_(residues, non_blocking=True)
        torch.cuda.synchronize()
        return True

    return [("copying residues of 4 bits to the host", copy)]


def lines(library: str, a: dict, b: dict) -> list[tuple[str, Callable[[], bool]]]:
    """(name, call) of each way; every call says whether nothing differs."""
    found: list[tuple[str, Callable[[], bool]]] = []
    lists, dicts = (as_list(a), as_list(b)), (nested(a), nested(b))

    def add(name: str, call: Callable[[], bool]) -> None:
        found.append((name, call))

    add("twinrun.compare, exact", lambda: twinrun.compare(a, b).same)
    add("twinrun.compare, atol", lambda: twinrun.compare(a, b, atol=ATOL).same)
    add("twinrun.compare, exact, lists", lambda: twinrun.compare(*lists).same)
    add("twinrun.compare, exact, dicts of dicts", lambda: twinrun.compare(*dicts).same)
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


def table(name: str, sizes: list[int], timings: dict[str, Timing[bool]], item: int = 4) -> str:
    """In Markdown: microseconds an array, and GB/s of one state."""
    count, data = len(sizes), item * sum(sizes)
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


def capture_table(
    name: str,
    sizes: list[int],
    state: dict,
    effort: Effort,
    synchronize: Callable[[], None],
    item: int = 4,
    copies: Sequence[tuple[str, Callable[[], bool]]] = (),
) -> dict[str, list[float]]:
    """Measures and prints captures of a state beside what storage and link take; the seconds of each line."""
    with (
        captures(state, item * sum(sizes), synchronize) as (found, before),
        storage_ceilings(item * sum(sizes)) as ceilings,
    ):
        timings = interleave([*found, *ceilings, *copies], effort, before, True, same_answer)
    print(table(f"{name}, captures", sizes, timings, item), flush=True)
    return {line: timing.seconds for line, timing in timings.items()}


def main(arguments: list[str]) -> None:
    """Measures and prints; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, three repetitions")
    parser.add_argument("--library", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    parser.add_argument("--captures", action="store_true", help="captures of digests alone, too")
    parser.add_argument("--only", default="", help="only states on a GPU whose name has this in it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args(arguments)
    effort = Effort(3, 3, 0) if given.quick else Effort(5, 21, 2)
    results = {}
    if given.device == "cuda":
        import torch

        for name, (kind, sizes) in device_states(given.quick).items():
            if given.only not in name:
                continue
            flat, made = on_device(kind, sizes)
            item = 2 if kind == "bfloat16" else 4
            left: list = []

            def before(left: list = left) -> None:
                left.clear()  # which waits
                torch.cuda.synchronize()

            timings = interleave(device_lines(flat, made, left), effort, before, True, same_answer)
            left.clear()
            print(table(name, sizes, timings, item), flush=True)
            if wrong := [line for line, timing in timings.items() if not timing.outcome]:
                raise SystemExit(f"{', '.join(wrong)}: a wrong answer")
            results[name] = {line: timing.seconds for line, timing in timings.items()}
            if given.captures:
                small = Effort(3, effort.most, effort.seconds)
                results[name] |= capture_table(
                    name, sizes, made[1], small, torch.cuda.synchronize, item, copies_to_host(flat[0])
                )
            del flat, made, timings  # the next state needs their memory
            torch.cuda.empty_cache()
        if given.json is not None:
            write_results(given.json, results)
        return
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
        if given.captures:
            results[name] |= capture_table(name, sizes, b, effort, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        sizes, ways = two_histories(folder, given.quick)
        timings = interleave(ways, effort, lambda: None, True, same_answer)
        print(table("two histories, warm", sizes, timings), flush=True)
        results["histories"] = {line: timing.seconds for line, timing in timings.items()}
    if given.json is not None:
        write_results(given.json, results)


if __name__ == "__main__":
    main(sys.argv[1:])
