"""What digests and traces cost a training: steps of a GPT with and without them, interleaved.

    python3 bench/training_bench.py                 # 1.56 billion parameters in bfloat16, on a GPU of 80 GB or more
    python3 bench/training_bench.py --layers 4 --width 256 --heads 4 --device cpu --steps 1 --rounds 3

    python3 bench/training_bench.py --apart --only trace    # where the host is shared: the least of single steps, in parts

All lines train one model in turn, so that each does the same work. A line's time is that of a step within the training, with all that
its digests or its trace do, until the GPU is idle. How long a trace takes to begin and to end is a column of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from measure import Effort, interleave, write_results
from torch import nn
from torch.nn import functional

import twinrun
import twinrun.torch


class Block(nn.Module):
    """Attention and two layers, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: batch, tokens, width."""
        batch, tokens, width = x.shape
        parts = self.attention(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the tokens' weights."""

    def __init__(self, words: int, tokens: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each next token."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        scores = self.norm(x) @ self.words.weight.t()
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Parts:
    """Milliseconds of single steps, in parts. The GPU is idle before and after each."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._began = self._last = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = self._last = time.perf_counter()

    def end(self, part: str) -> None:
        """A part ends; the next one begins."""
        now = time.perf_counter()
        self.found.setdefault(part, []).append((now - self._last) * 1e3)
        self._last = now

    def end_step(self) -> None:
        """The GPU is idle again."""
        self.end("waiting")
        self.found.setdefault("all", []).append((self._last - self._began) * 1e3)


class Training:
    """One model, its optimizer and its batch. parts: where its steps are timed in parts."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.parts: Parts | None = None
        torch.manual_seed(1)
        self.device = given.device
        kind = torch.bfloat16
        self.model = Gpt(given.words, given.tokens, given.width, given.heads, given.layers).to(
            self.device, kind
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, fused=True if self.device == "cuda" else None
        )
        self.batch = torch.randint(given.words, (given.batch, given.tokens), device=self.device)

    def step(self, before_optimizer: Callable[[], object] = lambda: None) -> torch.Tensor:
        """One training step."""
        loss = self.model(self.batch)
        self._ends("forward")
        loss.backward()
        self._ends("backward")
        before_optimizer()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._ends("optimizer")
        return loss

    def _ends(self, part: str) -> None:
        if self.parts is not None:
            self.parts.end(part)

    def states(self) -> dict[str, torch.Tensor]:
        """Parameters, their gradients and the optimizer's states, by name."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter.detach()
            if parameter.grad is not None:
                found[f"{name}.grad"] = parameter.grad
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.ndim:
                    found[f"{name}.{key}"] = value
        return found

    def wait(self) -> None:
        """Until the GPU is idle."""
        if self.device == "cuda":
            torch.cuda.synchronize()


class Took(NamedTuple):
    """Seconds of the steps, and of what came before and after them."""

    steps: float
    around: float


def hashes(training: Training) -> object:
    """PyTorch's own: one XOR of 64 bits a tensor."""
    return [torch.hash_tensor(t) for t in training.states().values()]


@contextlib.contextmanager
def lines(training: Training, steps: int) -> Iterator[list[tuple[str, Callable[[], Took]]]]:
    """(name, call) of each way to train `steps` steps."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))

    def taken(step: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            if training.parts is None:
                step()
                continue
            training.wait()
            training.parts.begin()
            step()
            training.parts.end("end of the iteration")
            training.wait()
            training.parts.end_step()
        training.wait()
        return time.perf_counter() - start

    def plain() -> Took:
        return Took(taken(training.step), 0)

    def with_digests() -> Took:
        kept: list = []
        seconds = taken(lambda: training.step(lambda: kept.append(twinrun.digest(training.states()))))
        start = time.perf_counter()
        assert all(int(d) >= 0 for digests in kept for d in digests.values())
        return Took(seconds, time.perf_counter() - start)

    def with_hashes() -> Took:
        return Took(taken(lambda: training.step(lambda: hashes(training))), 0)

    def traced(**how: object) -> Callable[[], Took]:
        def run() -> Took:
            path = folder / "trace"
            shutil.rmtree(path, ignore_errors=True)
            start = time.perf_counter()
            with twinrun.torch.trace(training.model, path, **how) as trace:

                def step() -> None:
                    training.step()
                    trace.step()  # after a step of an optimizer that is traced it does nothing

                seconds = taken(step)
            return Took(seconds, time.perf_counter() - start - seconds)

        return run

    found: list[tuple[str, Callable[[], Took]]] = [
        ("untraced", plain),
        ("twinrun.digest of all states", with_digests),
        ("trace, modules", traced()),
        ("trace, modules and the optimizer", traced(optimizer=training.optimizer)),
        ("trace, operations", traced(level="ops")),
    ]
    if hasattr(torch, "hash_tensor"):
        found.insert(2, ("torch.hash_tensor of all states", with_hashes))
    try:
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_parts(training: Training, chosen: list[tuple[str, Callable[[], Took]]], rounds: int) -> None:
    """Runs all lines in turn, and prints the least and the median of their steps. The first round does not count."""
    found = {name: Parts() for name, _ in chosen}
    for counts in [False] + [True] * rounds:
        for name, call in chosen:
            training.parts = found[name] if counts else Parts()
            call()
    named = list(found["untraced"].found)
    print(f"| least; median ms | {' | '.join(named)} |\n|---|{'---:|' * len(named)}")
    for name, parts in found.items():
        cells = [sorted(parts.found[part]) for part in named]
        print(f"| {name} | {' | '.join(f'{c[0]:.1f}; {c[len(c) // 2]:.1f}' for c in cells)} |")


def main(arguments: list[str]) -> None:
    """Measures and prints; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    for name, number in (("layers", 48), ("width", 1600), ("heads", 25), ("tokens", 1024), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--words", type=int, default=50257, help="size of the vocabulary")
    parser.add_argument("--steps", type=int, default=10, help="steps of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="only lines whose name has this in it, and the untraced one"
    )
    parser.add_argument("--apart", action="store_true", help="time each step by itself, in parts")
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    training = Training(given)
    training.step()
    states = training.states()
    bytes_ = sum(t.numel() * t.element_size() for t in states.values())
    parameters = sum(p.numel() for p in training.model.parameters())
    print(
        f"{parameters / 1e9:.2f} billion parameters, {len(states)} states without gradients, {bytes_ / 1e9:.1f} GB"
    )
    around: dict[str, list[float]] = {}
    with lines(training, given.steps) as found:
        chosen = [x for x in found if given.only in x[0] or x[0] == "untraced"]
        if given.apart:
            print_parts(training, chosen, given.rounds)
            return
        timings = interleave(
            chosen,
            Effort(given.rounds, given.rounds, 0),
            training.wait,
            True,
            lambda name, a, b: around.setdefault(name, [a.around]).append(b.around),
            lambda took: took.steps,
        )
    base = sorted(timings["untraced"].seconds)[len(timings["untraced"].seconds) // 2]
    print("| line | ms a step | times the untraced | ms before and after all |\n|---|---:|---:|---:|")
    for name, timing in timings.items():
        each = sorted(s / given.steps * 1e3 for s in timing.seconds)
        middle = each[len(each) // 2]
        ratio = middle / (base / given.steps * 1e3)
        outside = sorted(around.get(name, [timing.outcome.around if timing.outcome else 0]))
        print(
            f"| {name} | {middle:.1f} ({each[0]:.1f} to {each[-1]:.1f}) | {ratio:.3f} "
            f"| {outside[len(outside) // 2] * 1e3:.0f} |"
        )
    if training.device == "cuda":
        print(f"most memory on the device: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if given.json is not None:
        write_results(given.json, {name: timing.seconds for name, timing in timings.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
