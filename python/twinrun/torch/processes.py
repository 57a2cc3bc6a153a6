"""The processes of a job that work together by `torch.distributed`: how many, and which one this is."""

from __future__ import annotations

import os

import torch

__all__ = ["is_distributed", "rank", "rank_path"]


def is_distributed() -> bool:
    """Whether this process has a process group, be it alone in it or not."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process in the job; 0 where it is alone."""
    return torch.distributed.get_rank() if is_distributed() else 0


def rank_path(run: str | os.PathLike[str]) -> str:
    """The folder of this process: the run's own, or one below it where processes work together."""
    path = os.fspath(run)
    if is_distributed() and torch.distributed.get_world_size() > 1:
        return os.path.join(path, f"rank{rank():05d}")
    return path
