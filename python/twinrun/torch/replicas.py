"""Data-parallel processes hold the same parameters: they are compared among themselves while a training runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..errors import TwinrunError
from ..runs.digest import digests_of
from .values import put

__all__ = ["ReplicasDiffer", "check_replicas"]


class ReplicasDiffer(TwinrunError):
    """Data-parallel processes hold different values where all must hold the same.

    Attributes
    ----------
    ranks : tuple of int
        The processes that are not of the majority; all, where there is none.
    names : tuple of str
        What differs, in the order of parameters.

    Parameters: see `TwinrunError`.
    """

    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def check_replicas(values: Sequence[tuple[str, torch.Tensor]], where: str) -> None:
    """Compares values among all processes by their digests. Every process must call it, with the same values.

    A part of a distributed tensor is no replica, and is left out. Raises ReplicasDiffer on every process.
    """
    whole: dict[str, torch.Tensor] = {}
    for name, t in values:
        if not hasattr(t, "placements"):
            put(whole, name, t.detach())
    names = list(whole)
    numbers = b"".join(int(d).to_bytes(16, "big") for d, _, _ in digests_of(whole))
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    size = torch.tensor([len(names)], device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    counts = [int(s) for s in sizes]
    if len(set(counts)) > 1:
        raise ReplicasDiffer(
            f"ranks hold {counts} values", where=where, fix="every rank trains the same parameters"
        )
    if not names:
        return
    mine = torch.frombuffer(bytearray(numbers), dtype=torch.uint8).to(device)
    every = [torch.empty_like(mine) for _ in counts]
    dist.all_gather(every, mine)
    rows = [t.cpu().numpy().reshape(-1, 16) for t in every]
    differing: dict[str, tuple[int, ...]] = {}
    for at, name in enumerate(names):
        held = [row[at].tobytes() for row in rows]
        (usual, times), *others = Counter(held).most_common()
        if others:
            # Where two values are held equally often, nobody knows which of them is right.
            tied = others[0][1] == times
            differing[name] = tuple(r for r, h in enumerate(held) if tied or h != usual)
    if differing:
        ranks = tuple(sorted({r for odd in differing.values() for r in odd}))
        first = next(iter(differing))
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        error = ReplicasDiffer(
            f"{first}{more}: ranks {', '.join(map(str, ranks))} hold other values than the rest"
            if len(ranks) < len(rows)
            else f"{first}{more}: ranks hold different values",
            where=where,
            fix="look for a faulty device or a collective that went wrong; the optimizer has not stepped",
        )
        error.ranks, error.names = ranks, tuple(differing)
        raise error
