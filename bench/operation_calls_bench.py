"""What one operation of PyTorch costs: untraced, under a dispatch mode that does nothing, and in a trace of operations.

    python3 bench/operation_calls_bench.py              # tiny tensors on the CPU: the host's work is all there is

Microseconds an operation, and what each adds to the end of its step. An operation in place is timed besides.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import twinrun.torch

_RUNS = 200  # of five operations each


class Nothing(TorchDispatchMode):
    """A mode that hands on what it sees."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Pure(torch.nn.Module):
    """Operations that leave what they take as it is."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Five operations a run."""
        for _ in range(_RUNS):
            torch.add(a, b)
            torch.mul(a, b)
            torch.sigmoid(torch.tanh(torch.mm(a, b)))


class InPlace(torch.nn.Module):
    """Operations that write what they take, as those of optimizers do."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Five operations a run."""
        for _ in range(_RUNS):
            a.mul_(0.5).add_(b, alpha=0.1).lerp_(b, 0.5).addcmul_(b, b, value=0.1).abs_()


def least(call: Callable[[], object], rounds: int) -> float:
    """Microseconds an operation, of the fastest round."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds) / (5 * _RUNS) * 1e6


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| us an operation | untraced | empty mode | traced | at the end |\n|---|---:|---:|---:|---:|")
    for model in (Pure(), InPlace()):
        a, b = (torch.rand(4, 4, device=given.device) for _ in range(2))
        plain = least(lambda model=model, a=a, b=b: model(a, b), given.rounds)
        with Nothing():
            empty = least(lambda model=model, a=a, b=b: model(a, b), given.rounds)
        folder = Path(tempfile.mkdtemp())
        try:
            with twinrun.torch.trace(model, folder / "trace", level="ops") as trace:
                pairs = [
                    (least(lambda model=model, a=a, b=b: model(a, b), 1), least(trace.step, 1))
                    for _ in range(given.rounds)
                ]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        traced, end = (min(each) for each in zip(*pairs, strict=True))
        print(f"| {type(model).__name__} | {plain:.1f} | {empty:.1f} | {traced:.1f} | {end:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
