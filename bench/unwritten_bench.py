"""What it costs a trace of operations to know which memory was written.

    python3 bench/unwritten_bench.py [--device cuda]

A cache of keys and values, as generation has it, is written place by place, and read as a whole each time. It is made by
`empty`, whose memory nobody wrote, or by `zeros`: the trace has nothing to track then. Lines alternate; CPU seconds of all threads.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import twinrun.torch


class Cached(nn.Module):
    """Attention over a cache that grows by one place a call."""

    def __init__(self, make: Callable[..., torch.Tensor], places: int, width: int, device: str) -> None:
        super().__init__()
        self.project = nn.Linear(width, width, device=device)
        self.make = lambda: make((8, places, width), device=device)

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        """x: 8 items of `width`."""
        if place == 0:
            self.cache = self.make()  # under the trace, which sees it
        self.cache[:, place] = self.project(x)
        scores = torch.einsum("bpw,bw->bp", self.cache[:, : place + 1], x).softmax(-1)
        return torch.einsum("bp,bpw->bw", scores, self.cache[:, : place + 1])


def seconds(make: Callable[..., torch.Tensor], given: argparse.Namespace, path: Path | None) -> float:
    """CPU seconds of generating, with a trace of operations into `path`, or without one."""
    torch.manual_seed(1)
    model = Cached(make, given.places, given.width, given.device)
    x = torch.randn(8, given.width, device=given.device)

    def generate(step: Callable[[], object]) -> None:
        with torch.no_grad():
            for place in range(given.calls):
                model(x, place)
                step()

    start = time.process_time()
    if path is None:
        generate(lambda: None)
    else:
        with twinrun.torch.trace(model, path, level="ops", on_error="raise") as trace:
            generate(trace.step)
    return time.process_time() - start


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name, number in (("places", 4096), ("width", 256), ("calls", 20), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    lines = [
        (f"{how}, {'traced' if traced else 'untraced'}", make, traced)
        for traced in (False, True) for how, make in (("zeros", torch.zeros), ("empty", torch.empty))
    ]  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name, _, _ in lines}
    for number in range(given.rounds + 1):
        for name, make, traced in lines:
            path = folder / f"{number}-{name}" if traced else None
            taken = seconds(make, given, path)
            if number:  # the first round warms up
                found[name].append(taken / given.calls * 1e3)
    shutil.rmtree(folder)
    elements = 8 * given.places * given.width
    print(f"{given.device}, PyTorch {torch.__version__}, a cache of {elements:,} elements")
    print("| line | ms a call |\n|---|---:|")
    for name, each in found.items():
        each.sort()
        print(f"| {name} | {each[len(each) // 2]:.1f} ({each[0]:.1f} to {each[-1]:.1f}) |")


if __name__ == "__main__":
    main(sys.argv[1:])
