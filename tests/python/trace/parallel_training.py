"""A rank of a training of several processes: `parallel_training.py RANK RANKS DEVICE STORE FOLDER HOW`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from ranks import begin, end
from torch import nn

import twinrun
from twinrun.torch import ReplicasDiffer, trace


def main(rank: int, ranks: int, kind: str, store: str, folder: str, how: str) -> int:
    device = begin(rank, ranks, kind, store)
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    if how.startswith("fsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (ranks,))
        for part in (inner[0], inner[2]):
            fully_shard(part, mesh=mesh)
        model = fully_shard(inner, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator(device).manual_seed(rank)
    level = "ops" if "ops" in how.split() else "modules"
    on = {"replicas": how != "fsdp" and level == "modules", "on_error": "raise", "level": level}
    status = 0

    def train() -> None:
        for n in range(4):
            optimizer.zero_grad()
            x = torch.randn(6, 4, generator=data)
            if how == "wrong" and n == 2 and rank == 1:
                with torch.no_grad():
                    inner[2].bias[1] += 2**-20
            if "batch" in how.split() and n == 2 and rank == 1:
                x[3, 1] += 2**-10
            model(x).square().mean().backward()
            optimizer.step()

    if how.endswith("untraced"):
        train()
    else:
        try:
            with trace(model, f"{folder}/{how}", optimizer=optimizer, **on):
                train()
        except ReplicasDiffer as e:
            print(f"{n_of(e)} {e}", flush=True)
            status = 3
    values = {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in inner.named_parameters()}
    print("bits", *(str(d) for d in twinrun.digest(values).values()), flush=True)
    dist.destroy_process_group()
    return status


def n_of(e: ReplicasDiffer) -> str:
    return f"differ {e.ranks} {e.names[0]}"


if __name__ == "__main__":
    end(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
