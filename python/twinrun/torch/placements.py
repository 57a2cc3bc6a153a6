"""Where the part of a process lies in a global tensor: by the placements of a DTensor, or as the caller
says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..errors import TwinrunError
from .replicas import group_of

__all__ = ["Held", "Sharded", "held_parts"]

Interval = tuple[int, int]  # [begin, end)


@dataclass(frozen=True)
class Held:
    """A part of a global tensor.

    shape, offset: of the global tensor, and where the part begins in it. local: the part; an array where the
    value is no tensor.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    local: Any

    @property
    def key(self) -> tuple:
        """Name and box."""
        return (self.name, *self.box)

    @property
    def box(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shape of the global tensor, offset, and shape of the part."""
        return self.shape, self.offset, tuple(self.local.shape)


class Sharded:
    """How a plain tensor of each process lies in a global one: for shardings that no DTensor tells.

    >>> qkv = twinrun.torch.Sharded(0, (64, 16, 16), group=mesh["tp"])  # doctest: +SKIP

    Parameters
    ----------
    dim : int
        The dimension that is divided.
    sizes : int or sequence of int
        Its global size; or, of fused tensors (query, key and value; gate and up), that of each of them. Each
        is divided by itself, as `torch.chunk` does it, and each process holds its pieces of all one after
        another. Each becomes a field of its own: `name.0`, `name.1`, …
    group : process group or dimension of a device mesh, default None
        The processes that divide it; None: each process holds all of it.
    """

    def __init__(self, dim: int, sizes: int | Sequence[int], group: Any = None) -> None:
        self.dim = int(dim)
        self.sizes = (int(sizes),) if isinstance(sizes, int) else tuple(map(int, sizes))
        if not self.sizes or min(self.sizes) < 0:
            raise TwinrunError(f"sizes must be sizes of a dimension, not {sizes!r}")
        self._whole = group is None
        self._group = group_of(group)

    def parts(self, name: str, t: torch.Tensor) -> list[Held]:
        """The parts of this process. Raises TwinrunError where the tensor has another size."""
        if not -t.ndim <= self.dim < t.ndim:
            raise TwinrunError(
                f"has {t.ndim} dimensions, and is said to be divided along {self.dim}", where=name
            )
        dim = self.dim % t.ndim
        ranks = 1 if self._whole else dist.get_world_size(self._group)
        rank = 0 if self._whole else dist.get_rank(self._group)
        if rank < 0:
            raise TwinrunError("this process is not in the group that divides it", where=name)
        pieces = [_chunk(size, ranks, rank) for size in self.sizes]
        here = sum(end - begin for begin, end in pieces)
        if t.shape[dim] != here:
            raise TwinrunError(
                f"has {t.shape[dim]} elements along dimension {dim} in process {rank} of {ranks}, and sizes "
                f"{list(self.sizes)} give it {here}",
                where=name,
                fix="give the global sizes",
            )
        found, at = [], 0
        for number, ((begin, end), size) in enumerate(zip(pieces, self.sizes, strict=True)):
            shape = tuple(size if d == dim else n for d, n in enumerate(t.shape))
            offset = tuple(begin if d == dim else 0 for d in range(t.ndim))
            own = name if len(self.sizes) == 1 else f"{name}.{number}"
            found.append(Held(own, shape, offset, t.narrow(dim, at, end - begin)))
            at += end - begin
        return found


def _chunk(size: int, ranks: int, rank: int) -> Interval:
    """What torch.chunk gives to a process: the last ones may have less, or nothing."""
    step = -(-size // ranks)
    return min(rank * step, size), min((rank + 1) * step, size)


def _taken(held: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """Elements [begin, end) of intervals that follow one another; adjacent ones are joined."""
    found: list[Interval] = []
    for low, high in held:
        n = high - low
        first, last = max(begin, 0), min(end, n)
        if first < last:
            if found and found[-1][1] == low + first:
                found[-1] = found[-1][0], low + last
            else:
                found.append((low + first, low + last))
        begin, end = begin - n, end - n
    return found


def _intervals(name: str, size: int, splits: Sequence[tuple[int, int, int]]) -> list[Interval]:
    """What a process holds of a dimension.

    splits: (processes, number of this one, split factor) of each dimension of the mesh that divides it. A
    factor k divides each of k equal pieces, as FSDP2 does with what tensor parallelism divided before.
    """
    held: list[Interval] = [(0, size)]
    later = [math.prod(ranks for ranks, _, _ in splits[at + 1 :]) for at in range(len(splits))]
    strided = [(at, split) for at, split in enumerate(splits) if split[2] > 1]
    if all(split[2] == later[at] for at, split in strided):
        # What they divide was divided by all that come after them: in that order, each piece is one
        # interval, also where sizes are uneven.
        first = [split for split in splits if split[2] == 1]
        splits = [*first, *((ranks, rank, 1) for _, (ranks, rank, _) in reversed(strided))]
    for ranks, rank, factor in splits:
        length = sum(high - low for low, high in held)
        mine: list[Interval] = []
        for piece in range(factor):
            low, high = _chunk(length, factor, piece)
            begin, end = _chunk(high - low, ranks, rank)
            mine += _taken(held, low + begin, low + end)
        held = _taken(mine, 0, size)
    return held


def held_parts(name: str, t: torch.Tensor) -> list[Held]:
    """The part that this process holds of a DTensor; [] where it is not in its mesh. Of other tensors all.

    Raises TwinrunError where the placements give no box: partial sums, several boxes.
    """
    if not hasattr(t, "placements"):
        if type(t).__name__ == "ShardedTensor":
            raise TwinrunError("is a ShardedTensor", where=name, fix="use DTensor, or give its local part")
        return [Held(name, tuple(t.shape), (0,) * t.ndim, t)]
    mesh: Any = t.device_mesh
    at = mesh.get_coordinate()
    splits: list[list[tuple[int, int, int]]] = [[] for _ in t.shape]
    for number, p in enumerate(t.placements):
        if p.is_replicate():
            continue
        label = ((mesh.mesh_dim_names or {}) and repr(mesh.mesh_dim_names[number])) or str(number)
        if p.is_partial():
            raise TwinrunError(
                f"is {p} on dimension {label} of its mesh: each process holds a summand, and no part of the tensor",
                where=name,
                fix="redistribute it to Replicate or Shard first",
            )
        if not hasattr(p, "dim"):
            raise TwinrunError(f"has the placement {p}, which is not known", where=name)
        if at is not None:
            if dist.get_rank(mesh.get_group(number)) != at[number]:
                raise TwinrunError(
                    f"the processes of dimension {label} of its mesh are not in ascending order: PyTorch divides "
                    "tensors in another order than the mesh names",
                    where=name,
                    fix="make the mesh of ascending ranks",
                )
            factor = int(getattr(p, "split_factor", 1))
            splits[p.dim % t.ndim].append((mesh.size(number), at[number], factor))
    if at is None:
        return []
    with torch.no_grad():
        local = t.to_local()
    held = [_intervals(name, size, own) for size, own in zip(t.shape, splits, strict=True)]
    boxes = math.prod(len(intervals) for intervals in held)
    if boxes > 1:
        raise TwinrunError(
            f"this process holds {boxes} boxes of it: {t.placements}",
            where=name,
            fix="redistribute it so that each process holds one",
        )
    shape = tuple(sum(high - low for low, high in intervals) for intervals in held)
    if shape != tuple(local.shape):
        raise TwinrunError(
            f"its part has shape {list(local.shape)}, and its placements say {list(shape)}",
            where=name,
            fix="give its local part with twinrun.torch.Sharded",
        )
    offset = tuple(intervals[0][0] if intervals else 0 for intervals in held)
    return [Held(name, tuple(t.shape), offset, local)]
