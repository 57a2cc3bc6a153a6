"""How a process of a job begins, on the host with Gloo or on a GPU of its own with NCCL, and how it ends."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist


def begin(rank: int, ranks: int, kind: str, store: str) -> torch.device:
    """Makes the default group, and what is made from now on lies on the device of this process.

    kind: cpu or cuda.
    """
    torch.set_num_threads(1)
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    dist.init_process_group(
        "gloo" if kind == "cpu" else "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=600),
    )
    return device


def end(status: int) -> NoReturn:
    """Ends this process without what Python does at its end.

    PyTorch keeps groups and their threads until then, also after `destroy_process_group`. If a thread lets go of
    a tensor that late, Python ends the thread within a destructor: "terminate called without an active exception"
    (https://github.com/pytorch/pytorch/issues/190489).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def here() -> str:
    """The kind of device on which the processes compute."""
    return torch.get_default_device().type
