"""One state on one GPU, and the same state over several: whole calls of `compare`, `sketch`, `digest` and captures, interleaved.

    python3 bench/devices_bench.py                 # on all GPUs of the machine, and on each smaller power of two
    python3 bench/devices_bench.py --gigabytes 1   # of the state; 12 by default

The state is float32 tensors of 16 MiB. Over several GPUs they lie in turn on each, as layers of a pipeline or shards do. Reading is
PyTorch's sum of all of both states, begun on all GPUs at once.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Effort, interleave, write_results

import twinrun

ATOL = 1e-6
ITEMS = 4 << 20  # of a tensor


def placed(tensors: int, devices: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """What two equal states lie in, and their tensors by name."""
    flat: list[torch.Tensor] = []
    states: list[dict[str, torch.Tensor]] = [{}, {}]
    for device in range(devices):
        numbers = range(device, tensors, devices)
        torch.manual_seed(device)
        whole = torch.randn(len(numbers) * ITEMS, device=f"cuda:{device}")
        for state, one in zip(states, (whole, whole.clone()), strict=True):
            flat.append(one)
            for at, number in enumerate(numbers):
                state[f"layers.{number}.weight"] = one[at * ITEMS : (at + 1) * ITEMS]
    return flat, [dict(sorted(s.items())) for s in states]


def settle(devices: int) -> None:
    """Waits for all work of these GPUs."""
    for device in range(devices):
        torch.cuda.synchronize(device)


def read(flat: list[torch.Tensor]) -> bool:
    """All of both states, once."""
    return sum(float(s) for s in [one.sum() for one in flat]) != 1.5


def digested(state: dict[str, torch.Tensor]) -> bool:
    """Digests of all tensors, to the end."""
    return len([str(d) for d in twinrun.digest(state).values()]) == len(state)


def lines(
    devices: int, tensors: int, folder: str, runs: list[twinrun.Run]
) -> list[tuple[tuple[str, int], Callable[[], bool]]]:
    """((what, GPUs), call); every call ends when its answer is there."""
    flat, (a, b) = placed(tensors, devices)
    small = {name: t.clone() for name, t in itertools.islice(b.items(), max(1, tensors // 8))}
    steps = itertools.count()
    run = twinrun.Run(f"{folder}/record-{devices}", record=twinrun.RecordOptions())
    runs.append(run)

    def captured() -> bool:
        for tensor in itertools.islice(small.values(), 4):
            tensor[: ITEMS // 2].add_(1)
        settle(devices)
        done = run.capture(next(steps), small).step >= 0
        run.wait()
        return done

    return [
        (("reading both", devices), lambda: read(flat)),
        (("compare, exact", devices), lambda: twinrun.compare(a, b).same),
        (("compare, atol", devices), lambda: twinrun.compare(a, b, atol=ATOL).same),
        (("sketch, atol", devices), lambda: twinrun.sketch(b, atol=ATOL) is not None),
        (("sketch, exact", devices), lambda: twinrun.sketch(b) is not None),
        (("digest", devices), lambda: digested(b)),
        (("capture into a record, an eighth", devices), captured),
    ]


def main(arguments: list[str]) -> None:
    """Measures and prints; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    most = torch.cuda.device_count()
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    tensors = max(8, round(given.gigabytes * 1e9 / (4 * ITEMS)))
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        runs: list[twinrun.Run] = []
        made = [line for n in counts for line in lines(n, tensors, folder, runs)]
        timings = interleave(
            made, Effort(given.rounds, given.rounds, 0), lambda: settle(most), True, lambda *_: None
        )
        for run in runs:
            run.close()
    if wrong := [name for name, timing in timings.items() if not timing.outcome]:
        raise SystemExit(f"{wrong}: a wrong answer")
    data = tensors * 4 * ITEMS
    print(f"{torch.cuda.get_device_name()}, {most} of them; {tensors} tensors, {data / 1e9:.1f} GB\n")
    print(
        "| line |"
        + "".join(f" {n} GPU{'s' * (n > 1)}, ms |" for n in counts)
        + "".join(f" 1 / {n} |" for n in counts[1:])
    )
    print("|---|" + "---:|" * (2 * len(counts) - 1))
    for what in dict.fromkeys(name for name, _ in timings):
        times = [sorted(1e3 * s for s in timings[what, n].seconds) for n in counts]
        middle = [one[len(one) // 2] for one in times]
        cells = [f" {m:.2f} ({one[0]:.2f} to {one[-1]:.2f}) |" for m, one in zip(middle, times, strict=True)]
        print(f"| {what} |" + "".join(cells) + "".join(f" {middle[0] / m:.2f} |" for m in middle[1:]))
    if given.json is not None:
        write_results(given.json, {f"{what}, {n}": timing.seconds for (what, n), timing in timings.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
