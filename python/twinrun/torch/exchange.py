"""How the processes of a run meet: over a connection of their own, which nothing else uses."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import _core
from ..errors import TwinrunError
from .modes import unseen
from .replicas import group_of

__all__ = ["Exchange"]

_PATIENCE = timedelta(hours=1)  # of a process that waits for one that writes
_HERE = torch.device("cpu")  # whatever the default device of the program is
_made: Counter[tuple[int, ...]] = Counter()  # how many exchanges of these processes were made


def _as_bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


class Exchange:
    """A connection of the processes of a group. Every one of them makes it, and no other process takes part.

    It is no group of `torch.distributed`: making one there counts in each process that does, and processes
    that count otherwise wait for one another forever in the next group.
    """

    def __init__(self, group: Any) -> None:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise _not_a_member()
        ranks = tuple(dist.get_process_group_ranks(group_of(group) or dist.group.WORLD))
        if dist.get_rank() not in ranks:
            raise _not_a_member()
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        _made[ranks] += 1
        # A thread that writes in the background must not meet the collectives of the training.
        members = hashlib.sha256(repr(ranks).encode()).hexdigest()
        store = dist.PrefixStore(
            f"twinrun/{members}/{_made[ranks]}", dist.distributed_c10d._get_default_store()
        )
        self._connection = dist.ProcessGroupGloo(store, self.rank, self.size, _PATIENCE)

    @unseen
    def minimum(self, values: list[int]) -> list[int]:
        """The smallest value of all processes at each place."""
        t = torch.tensor(values, dtype=torch.int64, device=_HERE)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._connection.allreduce([t], options).wait()
        return t.tolist()

    @unseen
    def broadcast(self, data: bytes) -> bytes:
        """The bytes of the first process; all give as many."""
        if not data:
            return data
        t = _as_bytes(data)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._connection.broadcast([t], options).wait()
        return t.numpy().tobytes()

    @unseen
    def all(self, mine: Any) -> list[Any]:
        """What each process has."""
        data = pickle.dumps(mine)
        sizes = self._gathered(torch.tensor([len(data)], dtype=torch.int64, device=_HERE))
        room = torch.zeros(max(int(n) for n in sizes), dtype=torch.uint8, device=_HERE)
        room[: len(data)] = _as_bytes(data)
        found = self._gathered(room)
        return [pickle.loads(t.numpy()[: int(n)].tobytes()) for t, n in zip(found, sizes, strict=True)]

    def _gathered(self, t: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(t) for _ in range(self.size)]
        self._connection.allgather([found], [t]).wait()
        return found

    def ranks(self) -> _core.Ranks:
        """The same for the core."""
        return _core.Ranks(self.rank, self.size, minimum=self.minimum, broadcast=self.broadcast)


def _not_a_member() -> TwinrunError:
    return TwinrunError(
        "this process is not in the group of the run", fix="make the run in the processes of the group only"
    )
