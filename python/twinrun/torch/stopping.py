"""How all processes of a job stop together, without a collective that one of them might not enter.

A process that wants to stop marks the store of the process group, and all stop at the end of the
next iteration. Between the two lies a collective of the training itself (the gradients are summed):
a process leaves it only after every other one entered it, so all of them see the mark at the same
place. Processes that do not look for it are not waited for.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .processes import is_distributed

__all__ = ["StopMark"]

_COUNT, _TEXT = "twinrun/stop/count", "twinrun/stop/text"


class StopMark:
    """A mark in a store that all processes of a job read. What fails there is no mark."""

    def __init__(self, store: Any) -> None:
        self._store = store
        # Marks of earlier traces do not count.
        self._before = int(store.add(_COUNT, 0))

    @classmethod
    def of_the_job(cls) -> StopMark | None:
        """The mark of this job; None where this process is alone."""
        dist = torch.distributed
        if not (is_distributed() and dist.get_world_size() > 1):
            return None
        try:
            return cls(dist.distributed_c10d._get_default_store())
        except Exception:  # a store of another kind: this process stops alone
            return None

    def put(self, iteration: int, text: str) -> bool:
        """Says that this process differs in an iteration. Gives whether the others can read it."""
        with contextlib.suppress(Exception):
            said = f"{iteration}\n{text}".encode("utf-8", "replace")
            self._store.set(_TEXT, said.decode())  # before it is counted
            self._store.add(_COUNT, 1)
            return True
        return False

    def since(self, iteration: int) -> str | None:
        """What a process said in an earlier iteration; None where none did."""
        with contextlib.suppress(Exception):
            if int(self._store.add(_COUNT, 0)) > self._before:
                number, _, text = self._store.get(_TEXT).decode("utf-8", "replace").partition("\n")
                return text if int(number) < iteration else None
        return None
