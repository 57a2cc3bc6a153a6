"""Captures of several processes: each holds its part of what DTensor, FSDP2 or the caller divided."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import _core
from ..capture.run import CaptureFacts, Run
from ..errors import TwinrunError
from ..runs.containers import flattened, state_of
from ..runs.digest import digests_of
from ..runs.provenance import python_facts
from .placements import Held, Sharded, held_parts
from .replicas import ReplicasDiffer, group_of

__all__ = ["ParallelRun"]

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PATIENCE = timedelta(hours=1)  # of a process that waits for one that writes


class _Exchange:
    """How the processes of a run meet: by a group of their own, which nothing else uses."""

    def __init__(self, group: Any) -> None:
        ranks = dist.get_process_group_ranks(group_of(group) or dist.group.WORLD)
        # A thread that writes in the background must not meet the collectives of the training.
        self._group = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE, use_local_synchronization=True)
        self._first = ranks[0]
        self.rank, self.size = dist.get_rank(self._group), len(ranks)

    def minimum(self, values: list[int]) -> list[int]:
        t = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(t, dist.ReduceOp.MIN, group=self._group)
        return t.tolist()

    def broadcast(self, data: bytes) -> bytes:
        t = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        if t.numel():
            dist.broadcast(t, self._first, group=self._group)
        return t.numpy().tobytes()

    def all(self, mine: Any) -> list[Any]:
        """What each process has."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def ranks(self) -> _core.Ranks:
        """The same for the core."""
        return _core.Ranks(self.rank, self.size, minimum=self.minimum, broadcast=self.broadcast)


class ParallelRun(Run):
    """A run of several processes of torch.distributed, as one history.

    Every process makes it and captures the same steps. Each keeps its part of every tensor, with its place in
    the global one; what several processes hold alike is checked to be equal, and kept once. So runs that
    divide their tensors differently compare: `twinrun compare tp1 tp2`.

    Parameters
    ----------
    path : path
        The folder of the history.
    group : process group or dimension of a device mesh, default None
        The processes of the run; None: all.
    **settings
        As of `twinrun.Run`.
    """

    def __init__(self, path: str | os.PathLike[str], *, group: Any = None, **settings: Any) -> None:
        if not dist.is_initialized():
            raise TwinrunError("needs torch.distributed", where=path, fix="call init_process_group first")
        self._exchange = _Exchange(group)
        super().__init__(path, **settings)

    def _begun(self, settings: _core.SessionSettings) -> _core.Session:
        return _core.Session(self._path, settings, python_facts(), ranks=self._exchange.ranks())

    def capture(  # type: ignore[override]
        self,
        step: int,
        fields: object,
        *,
        sharded: Mapping[str, Sharded] | None = None,
        local: Iterable[str] = (),
    ) -> CaptureFacts:
        """Captures a step; every process calls it.

        Parameters
        ----------
        step : int
            Its number.
        fields : model, optimizer, or container of tensors
            Names of wrappers (DDP, torch.compile, checkpointing) are left out. Parts of DTensors have the
            places that their placements give.
        sharded : dict of str to Sharded, default None
            Globs of plain tensors that are parts of global ones, and how.
        local : iterable of str, default ()
            Globs of what each process has of its own: kept by each, compared rank by rank.

        Returns
        -------
        CaptureFacts
            What the capture cost.

        Raises
        ------
        ReplicasDiffer
            Processes hold different values where all must hold the same: nothing is captured.
        TwinrunError
            A tensor has no place (a partial sum), on any process; on all of them.
        """
        own: dict[str, object] = {}
        parts: list[Held] = []
        failed = ""
        digests: list[tuple[str, str]] = []
        try:
            own, parts = _divided(fields, dict(sharded or {}), [*local])
            found = digests_of({p.name: p.local for p in parts})
            digests = [(str(d), kind) for d, kind, _ in found]
        except TwinrunError as e:
            failed = str(e)
        except Exception as e:  # the others must not wait for this process
            failed = f"{type(e).__name__}: {e}"
        entries = [(p.key, own_digest) for p, own_digest in zip(parts, digests, strict=False)]
        told = self._exchange.all((failed, entries))
        problems = [(rank, why) for rank, (why, _) in enumerate(told) if why]
        if problems:
            rank, why = problems[0]
            raise TwinrunError(f"step {step} is not captured: process {rank}: {why}", where=self._path)
        holders = _holders(told, step)
        kept = dict(own)
        places = {}
        for p in parts:
            if holders[p.key] != self._exchange.rank or (0 in p.box[2] and 0 not in p.shape):
                continue  # another process has it, or there is nothing of it here
            kept[p.name] = p.local
            if p.shape:
                places[p.name] = p.shape, p.offset
        if not kept:  # every process of a history has a field: nothing of one that others hold
            some = next((p for p in parts if p.shape), None)
            if some is not None:
                kept[some.name] = some.local[:0]
                places[some.name] = some.shape, (0,) * len(some.shape)
        return super().capture(step, kept, global_place=places)


def _name_of(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _divided(
    fields: object, sharded: Mapping[str, Sharded], local: list[str]
) -> tuple[dict[str, object], list[Held]]:
    """What this process has of its own, and its parts of what all hold together."""
    if isinstance(fields, torch.nn.parallel.DistributedDataParallel):
        fields = fields.module
    own: dict[str, object] = {}
    parts: list[Held] = []
    for given, value in flattened("", state_of(fields)).items():
        name = _name_of(given)
        if any(fnmatch.fnmatchcase(name, g) for g in local):
            own[name] = value
            continue
        if not isinstance(value, torch.Tensor):
            array = value if isinstance(value, np.ndarray) else np.asarray(value)
            parts.append(Held(name, array.shape, (0,) * array.ndim, array))
            continue
        how = next((s for g, s in sharded.items() if fnmatch.fnmatchcase(name, g)), None)
        if how is not None and hasattr(value, "placements"):
            raise TwinrunError(
                "is a DTensor, which tells its own places", where=name, fix="leave it out of sharded"
            )
        t = value.detach()
        parts += held_parts(name, t) if how is None else how.parts(name, t)
    names = [p.name for p in parts] + [*own]
    if len(names) != len(set(names)):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise TwinrunError(f"two fields of the name {twice[0]!r}", fix="rename one")
    return own, parts


def _holders(told: list[tuple[str, list[tuple]]], step: int) -> dict[tuple, int]:
    """The process that keeps each box: of those that hold it the one that keeps the least so far; of numbers
    the first. Raises ReplicasDiffer where processes hold a box differently.
    """
    first: dict[tuple, int] = {}
    all_of: dict[tuple, list[int]] = {}
    known: dict[tuple, tuple[str, str]] = {}
    differ: dict[str, set[int]] = {}
    for rank, (_, entries) in enumerate(told):
        for key, digest in entries:
            all_of.setdefault(key, []).append(rank)
            if key not in first:
                first[key], known[key] = rank, digest
            elif known[key] != digest:
                differ.setdefault(key[0], {first[key]}).add(rank)
    if differ:
        names = tuple(differ)
        ranks = tuple(sorted(set().union(*differ.values())))
        said = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        error = ReplicasDiffer(
            f"step {step} is not captured: processes {', '.join(map(str, ranks))} hold different values of {said}, "
            "which all must hold alike",
            fix="name what each process has of its own with local=",
        )
        error.ranks, error.names = ranks, names
        raise error
    load = [0] * len(told)
    chosen = {}
    for key, ranks_of in all_of.items():
        rank = min(ranks_of, key=load.__getitem__) if key[1] else ranks_of[0]
        load[rank] += math.prod(key[3])
        chosen[key] = rank
    return chosen
