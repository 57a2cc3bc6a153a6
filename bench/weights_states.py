"""Writes states of a language model's training, and steps of which few elements change, for bench_record and bench_payload.

    python bench/weights_states.py FOLDER [--steps 60] [--width 384] [--layers 3] [--kept 5] [--seed 1]

A byte-level transformer is trained on Python's own sources. In FOLDER, each with step-N/rank-00000.bin:

- `bf16-weights`: all parameters in bf16, every 15 steps: hardly an element stays as it is
- `adam-f32`: parameters and both moments in f32, of the last steps
- `tuned-bf16`: parameters in bf16, while training goes on at a rate so low that most of them round to what they were
- `rl-ulp`: the last parameters in bf16; in each step 3% of them, at random places, move by one unit of the last place
- `rl-new`: the same, and each takes the value of another one

Needs PyTorch.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import numpy as np
import torch

SHARE = 0.03  # of elements that change in a step


class Model(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, width)
        self.place = torch.nn.Embedding(128, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.embed(x) + self.place.weight[: x.shape[1]]
        for layer in self.layers:
            y = layer(y, src_mask=mask, is_causal=True)
        return self.head(y)


class Training:
    def __init__(self, width: int, layers: int) -> None:
        text = b"".join(p.read_bytes() for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.model = Model(width, layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self) -> float:
        at = torch.randint(len(self.text) - 129, (4,))
        x = torch.stack([self.text[i : i + 129] for i in at.tolist()])
        loss = torch.nn.functional.cross_entropy(self.model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def bf16(self) -> np.ndarray:
        parts = [p.detach().bfloat16().view(torch.int16).flatten() for p in self.model.parameters()]
        return torch.cat(parts).numpy().view(np.uint16)

    def adam(self) -> np.ndarray:
        parts = []
        for p in self.model.parameters():
            state = self.optimizer.state[p]
            parts += [p.detach().flatten(), state["exp_avg"].flatten(), state["exp_avg_sq"].flatten()]
        return torch.cat(parts).numpy()


def write(folder: Path, step: int, values: np.ndarray) -> None:
    folder = folder / f"step-{step:010}"
    folder.mkdir(parents=True, exist_ok=True)
    values.tofile(folder / "rank-00000.bin")


def change(weights: np.ndarray, rng: np.random.Generator, new: bool) -> np.ndarray:
    at = np.flatnonzero(rng.random(weights.size) < SHARE)
    changed = weights.copy()
    if new:
        changed[at] = weights[rng.integers(weights.size, size=at.size)]
    else:
        changed[at] += np.where(rng.random(at.size) < 0.5, np.uint16(1), np.uint16(0xFFFF))
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--kept", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2e-6, help="of training for tuned-bf16")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    training = Training(a.width, a.layers)
    for step in range(1, a.steps + 1):
        loss = training.step()
        if step % 15 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
            write(a.folder / "bf16-weights", step, training.bf16())
        if step > a.steps - a.kept:
            write(a.folder / "adam-f32", step, training.adam())
    for group in training.optimizer.param_groups:
        group["lr"] = a.rate
    last = training.bf16()
    for step in range(1, a.kept + 1):
        training.step()
        now = training.bf16()
        print(f"tuned-bf16, step {step}: {np.mean(now != last):.4f} of the elements changed", flush=True)
        write(a.folder / "tuned-bf16", step, now)
        last = now
    for name in ("rl-ulp", "rl-new"):
        rng = np.random.default_rng(a.seed)
        weights = last
        for step in range(1, a.kept + 1):
            write(a.folder / name, step, weights)
            weights = change(weights, rng, name == "rl-new")


main()
