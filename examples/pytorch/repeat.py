"""The same training twice: with deterministic algorithms its states are equal, without them they need not be.

python repeat.py runs/a
python repeat.py runs/b
twinrun compare runs/a/history runs/b/history
python brute_force.py runs/a runs/b

Two networks to choose from. `particles` passes messages along the edges of a graph, which index_add_ sums: on a GPU by
atomic additions, in whatever order they get there. `pictures` is a ResNet, whose convolutions cuDNN chooses.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import twinrun

# ---- particles in a box, and the force that their neighbours have on them ------------------------------------------------


class Messages(nn.Module):
    """One round of messages: each particle learns from the sum over its edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 3, width), nn.GELU(), nn.LayerNorm(width))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(
        self, h: torch.Tensor, source: torch.Tensor, target: torch.Tensor, apart: torch.Tensor
    ) -> torch.Tensor:
        ends = [h.index_select(0, source), h.index_select(0, target)]  # backward: index_add_
        message = self.edge(torch.cat([*ends, apart], dim=1))
        return h + self.node(torch.cat([h, torch.zeros_like(h).index_add_(0, target, message)], dim=1))


class Particles(nn.Module):
    """From masses and distances to forces."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = nn.Linear(1, width)
        self.rounds = nn.ModuleList(Messages(width) for _ in range(3))
        self.decode = nn.Linear(width, 3)

    def forward(
        self, mass: torch.Tensor, source: torch.Tensor, target: torch.Tensor, apart: torch.Tensor
    ) -> torch.Tensor:
        h = self.encode(mass)
        for round_ in self.rounds:
            h = round_(h, source, target, apart)
        return self.decode(h)


def boxes(side: int, count: int, rng: np.random.Generator) -> list[tuple[torch.Tensor, ...]]:
    """`count` periodic boxes of side³ particles near the points of a lattice, with 26 neighbours each: mass [n, 1],
    source [26 n], target [26 n], distances [26 n, 3] and forces [n, 3]."""
    at = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    around = [np.array(d) - 1 for d in np.ndindex(3, 3, 3) if d != (1, 1, 1)]
    made = []
    for _ in range(count):
        place = at + rng.uniform(-0.3, 0.3, at.shape)
        mass = rng.uniform(0.5, 1.5, (len(at), 1))
        source, apart, force = [], [], np.zeros_like(place)
        for step in around:
            other = np.ravel_multi_index(tuple(((at + step) % side).T), (side,) * 3)
            d = place[other] - place
            d -= side * np.round(d / side)
            force += mass[other] * d / ((d**2).sum(1, keepdims=True) + 0.01) ** 1.5
            source.append(other)
            apart.append(d)
        arrays = (mass, np.concatenate(source), np.tile(np.arange(len(at)), len(around)))
        arrays += (np.concatenate(apart), mass * force)
        made.append(
            tuple(torch.from_numpy(a.astype("f4") if a.dtype.kind == "f" else a.astype("i8")) for a in arrays)
        )
    return made


# ---- pictures of gratings, and which way they run -----------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.around = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(functional.relu(self.norm1(self.first(x)))))
        return functional.relu(y + self.around(x))


def pictures_network(width: int) -> nn.Module:
    """ResNet-18 for small pictures, if `width` is 64."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        for block in range(2):
            layers.append(Block(before, width << stage, 2 if stage and not block else 1))
            before = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def gratings(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [count, 3, 32, 32] of noisy gratings, and in which of ten directions each one runs."""
    y, x = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
    kind = rng.integers(0, 10, count)
    angle = (kind * np.pi / 10)[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, (count, 3))[:, :, None, None]
    waves = np.sin((np.cos(angle) * x + np.sin(angle) * y)[:, None] * 0.8 + phase)
    noisy = waves + rng.normal(0, 0.5, waves.shape)
    return torch.from_numpy(noisy.astype("f4")), torch.from_numpy(kind)


# ---- what is captured and saved -------------------------------------------------------------------------------------------


def tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in nested dicts and lists, named by their path: those names they have in a .pt file too."""
    if torch.is_tensor(value):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from tensors(entry, f"{name}.{key}" if name else str(key))


def save(state: dict[str, object], folder: Path, step: int, formats: list[str]) -> None:
    """A checkpoint as PyTorch's users write it, in each of `formats`: pt, safetensors, dcp."""
    for name in formats:
        path = folder / name / f"step-{step:06}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "pt":
            torch.save(state, path.with_suffix(".pt"))
        elif name == "safetensors":
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in tensors(state)}, path.with_suffix(".safetensors"))
        else:
            from torch.distributed import checkpoint

            checkpoint.save(state, checkpoint_id=str(path))


# ---- the training ---------------------------------------------------------------------------------------------------------


def made_deterministic(yes: bool) -> None:
    """As PyTorch's notes on reproducibility have it; else as fast as it can."""
    if yes:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(yes)
    torch.backends.cudnn.benchmark = not yes


def losses(options: argparse.Namespace) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """The network, and the loss of a step. Data comes from numpy: the same whatever the threads and the device."""
    rng = np.random.default_rng(1)
    if options.network == "particles":
        model = Particles(options.width).to(options.device)
        data = [tuple(t.to(options.device) for t in box) for box in boxes(options.side, 4, rng)]

        def loss(step: int) -> torch.Tensor:
            *given, force = data[step % len(data)]
            return functional.mse_loss(model(*given), force)
    else:
        model = pictures_network(options.width).to(options.device)
        x, kind = (t.to(options.device) for t in gratings(8 * options.batch, rng))

        def loss(step: int) -> torch.Tensor:
            some = slice(step % 8 * options.batch, (step % 8 + 1) * options.batch)
            return functional.cross_entropy(model(x[some]), kind[some])

    return model, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the run: history/ and a folder for each of --save")
    parser.add_argument("--network", choices=["particles", "pictures"], default="particles")
    parser.add_argument("--width", type=int, default=32, help="of the network; 64 makes pictures a ResNet-18")
    parser.add_argument("--side", type=int, default=8, help="particles: side³ of them in a box")
    parser.add_argument("--batch", type=int, default=64, help="pictures in a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="steps from capture to capture")
    parser.add_argument("--deterministic", action="store_true", help="only deterministic algorithms")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--atol", type=float, default=1e-6, help="differences up to this are noise")
    parser.add_argument("--save", default="pt", help="checkpoints besides the history: pt,safetensors,dcp")
    options = parser.parse_args()

    made_deterministic(options.deterministic)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model, loss = losses(options)
    exact = {}
    if options.network == "particles":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        exact = {f"optimizer.state.{i}.step": 0.0 for i, _ in enumerate(model.parameters())}  # it counts
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    formats = [name for name in options.save.split(",") if name]
    options.folder.mkdir(parents=True, exist_ok=True)
    with twinrun.Run(options.folder / "history", atol=options.atol, tolerances=exact) as run:
        for step in range(1, options.steps + 1):
            optimizer.zero_grad()
            now = loss(step)
            now.backward()
            optimizer.step()
            if step == 1 or step % options.every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                run.capture(step, dict(tensors(state)))  # on the GPU they are digested there
                save(state, options.folder, step, formats)
    print(f"loss {now.item():.9g}")


if __name__ == "__main__":
    main()
