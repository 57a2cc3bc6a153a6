"""Writes the states of a small training run, for bench_record --data: a language model's parameters and Adam's two moments.

    python bench/optimizer_states.py FOLDER [--steps 20] [--rows 150000] [--seed 1] [--bf16]

step-N/rank-00000.bin, one file a step: the embedding (rows x 64 in f32, of which a batch touches a few hundred rows), then two
dense layers, each with its moments. With --bf16 the parameters are written in bf16, beside moments in f32. Needs PyTorch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    embedding = torch.nn.Embedding(a.rows, 64, sparse=True)
    dense = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1000))
    optimizers = [torch.optim.SparseAdam(list(embedding.parameters())), torch.optim.Adam(dense.parameters())]
    # Words come as Zipf has them.
    odds = 1.0 / torch.arange(1, a.rows + 1, dtype=torch.float64)
    for step in range(1, a.steps + 1):
        words = torch.multinomial(odds, 512, replacement=True)
        loss = torch.nn.functional.cross_entropy(dense(embedding(words)), words % 1000)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        folder = a.folder / f"step-{step:010}"
        folder.mkdir(parents=True)
        with open(folder / "rank-00000.bin", "wb") as file:
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        state = optimizer.state[p]
                        weights = p.detach().bfloat16().view(torch.int16) if a.bf16 else p.detach()
                        for t in (weights, state["exp_avg"], state["exp_avg_sq"]):
                            file.write(np.ascontiguousarray(t.numpy()).tobytes())


main()
