"""Five small models, and a training of each that is the same bit for bit whenever it runs."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

import twinrun
from twinrun.torch import trace

# cuBLAS has one order of additions with a workspace of its own; it looks at this when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

ITERATIONS = 4
MICROBATCHES = 2


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        return self.head(self.drop(self.pool(x).flatten(1)))

    @staticmethod
    def batch(g):
        return (torch.randn(4, 3, 8, 8, generator=g),), torch.randint(5, (4,), generator=g)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(0.1)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length, dtype=torch.bool)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2)) / (c // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:t, :t], float("-inf"))
        return self.proj((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, 2, length)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    checkpointed = False

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Layer(16, 6) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            if self.checkpointed:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x).mean(1))

    @staticmethod
    def batch(g):
        return (torch.randint(20, (4, 6), generator=g),), torch.randint(5, (4,), generator=g)


class GraphLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, x, source, target):
        gathered = torch.zeros_like(x).index_add(0, target, self.message(x)[source])
        return torch.tanh(self.update(torch.cat([x, gathered], dim=1)))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, source, target):
        for layer in self.layers:
            x = layer(x, source, target)
        return self.head(self.norm(x))

    @staticmethod
    def batch(g):
        edges = torch.randint(12, (2, 60), generator=g)
        return (torch.randn(12, 8, generator=g), edges[0], edges[1]), torch.randint(5, (12,), generator=g)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens):
        x, _ = self.lstm(self.embed(tokens))
        return self.head(self.drop(x[:, -1]))

    @staticmethod
    def batch(g):
        return (torch.randint(20, (4, 6), generator=g),), torch.randint(5, (4,), generator=g)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.inp(x)
        weight, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                y = y.index_add(0, row, expert(x[row]) * weight[row, slot, None])
        return self.head(x + y)

    @staticmethod
    def batch(g):
        return (torch.randn(16, 8, generator=g),), torch.randint(5, (16,), generator=g)


MODELS = {"cnn": Cnn, "transformer": Transformer, "graph": Graph, "lstm": Lstm, "moe": Mixture}


class Training:
    """A training that a fault may change: `before` at the beginning of an iteration, `batch` and `backward` within it."""

    def __init__(self, kind: str, device: str = "cpu") -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.device = torch.device(device)
        self.model = MODELS[kind]().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.generator = torch.Generator().manual_seed(2)
        self.loss = nn.CrossEntropyLoss()
        self.before: Callable[[Training, int], None] = lambda t, i: None
        self.batches: Callable[[int, list], list] = lambda i, batches: batches
        self.between: Callable[[Training, int], None] = lambda t, i: None
        self.losses: list[float] = []
        self.iteration = 0

    def run(self, traced=None, first: int = 0, last: int = ITERATIONS) -> None:
        for i in range(first, last):
            batches = [self.model.batch(self.generator) for _ in range(MICROBATCHES)]
            self.optimizer.zero_grad()
            self.iteration = i
            self.before(self, i)
            for inputs, target in self.batches(i, [self.there(batch) for batch in batches]):
                loss = self.loss(self.model(*inputs), target)
                if traced is not None:
                    traced.record("loss", loss)
                loss.backward()
                self.losses.append(loss.item())
            self.between(self, i)
            self.optimizer.step()

    def there(self, batch: tuple) -> tuple:
        """A batch on the device of the model."""
        inputs, target = batch
        return tuple(x.to(self.device) for x in inputs), target.to(self.device)

    def bits(self) -> dict[str, str]:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "rng": {"torch": torch.get_rng_state()},
            "device": {"rng": torch.cuda.get_rng_state()} if self.device.type == "cuda" else {},
            "losses": {"all": torch.tensor(self.losses, dtype=torch.float64)},
        }
        return {name: str(d) for name, d in twinrun.digest(state).items()}


@contextlib.contextmanager
def same_bits_on_a_gpu() -> Iterator[None]:
    """Sums in one order, and products in full precision, unless a fault says otherwise."""
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with (
        warnings.catch_warnings(),
        torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False),
    ):
        # The gradient of a pooling has no deterministic kernel; that of our sizes adds nothing up.
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The order of additions of some kernels follows the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def traced_training(kind: str, path, plant=None, device: str = "cpu", **options) -> Training:
    """Trains a model under a trace; `plant` changes the training first."""
    with one_thread():
        training = Training(kind, device)
        if plant is not None:
            plant(training)
        options.setdefault("on_error", "raise")
        options.setdefault("rng", "all")
        last = options.pop("last", ITERATIONS)
        with trace(training.model, path, optimizer=training.optimizer, **options) as traced:
            training.run(traced, last=last)
        return training


class Full:
    """A run whose disk is full."""

    def __init__(self, run) -> None:
        self._run, self.path, self.keeps_data = run, run.path, True

    def capture(self, step, fields, **options):
        raise OSError(28, "No space left on device")

    def close(self):
        self._run.close()
