"""The training of `twinrun demo --pytorch`: a small network learns a function.

`python -m twinrun.cli.training FOLDER --threads N` trains it and captures parameters, gradients and
the optimizer's averages. The gradients of a normalized layer are sums over the batch, which threads
share: their order depends on how many threads there are. Nothing else differs between runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

from ..capture.run import Run

__all__ = ["main", "network", "state"]


def network(width: int = 64) -> nn.Module:
    """Two hidden layers, each normalized."""
    hidden = [nn.Linear(16, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*hidden, nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 1))


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All tensors that the next step depends on, under the names of the state_dict."""
    fields = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            fields[f"grad/{name}"] = parameter.grad
        for key, value in optimizer.state[parameter].items():
            # Adam's averages, not its count of steps
            if torch.is_tensor(value) and value.dim() > 0:
                fields[f"{key}/{name}"] = value
    return fields


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the network and captures steps into a history, which replaces one that is there."""
    parser = argparse.ArgumentParser(prog="python -m twinrun.cli.training")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--capture", default="1,100,200,300,400")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--atol", type=float, default=1e-6)
    given = parser.parse_args(arguments)
    wanted = {int(step) for step in given.capture.split(",")}

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    x = torch.randn(4096, 16)
    y = torch.sin(3 * x).sum(dim=1, keepdim=True)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Run(given.folder, atol=given.atol, existing="replace") as run:
        for step in range(1, given.steps + 1):
            batch = torch.randperm(len(x))[:64]
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in wanted:
                run.capture(step, state(model, optimizer))


if __name__ == "__main__":
    main()
