"""A small network trained with PyTorch, captured while it learns: parameters, gradients and the optimizer's state.

python train.py runs/a --threads 1
python train.py runs/b --threads 2
twinrun compare runs/a runs/b
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import twinrun


def data(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in 16 dimensions, and a function of them to learn."""
    x = torch.randn(samples, 16, generator=generator)
    return x, torch.sin(3 * x).sum(dim=1, keepdim=True)


def network(width: int) -> nn.Module:
    """Two hidden layers. With more threads, LayerNorm's gradients are sums in another order."""
    hidden = [
        nn.Linear(16, width),
        nn.LayerNorm(width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.GELU(),
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All tensors that the next step depends on, under the names of the state_dict."""
    fields = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            fields[f"grad/{name}"] = parameter.grad
        for key, value in optimizer.state[parameter].items():
            if (
                torch.is_tensor(value) and value.dim() > 0
            ):  # Adam: exp_avg, exp_avg_sq; not its count of steps
                fields[f"{key}/{name}"] = value
    return fields


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("history", help="folder for the captured run")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps from capture to capture")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--order", type=int, default=0, help="seed of the order in which samples are seen")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--atol", type=float, default=1e-6, help="differences up to this are noise")
    parser.add_argument("--reference", help="stop where the run parts from this history")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x, y = data(4096, torch.Generator().manual_seed(1))
    x, y = x.to(options.device), y.to(options.device)
    model = network(64).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(options.order)

    with twinrun.Run(
        options.history,
        atol=options.atol,
        reference=options.reference,
        stop_on_divergence=options.reference is not None,  # capture() compares before it returns
    ) as run:
        for step in range(1, options.steps + 1):
            batch = torch.randperm(len(x), generator=order)[:64].to(options.device)
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1 or step % options.every == 0:
                facts = run.capture(step, state(model, optimizer))  # tensors on a GPU are digested there
                if facts.divergence is not None:
                    print(f"step {step}: {facts.divergence.field} parts from {options.reference}")
                    break
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
