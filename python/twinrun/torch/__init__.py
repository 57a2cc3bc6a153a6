"""Traces of PyTorch's models: which operation of a training is the first to differ from another run's.

>>> from twinrun.torch import trace
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..trace.online import TraceDiverged
    from .batch import BatchDependent, assert_batch_invariant
    from .capture import ParallelRun
    from .placements import Sharded
    from .replicas import ReplicasDiffer
    from .tracer import Trace, trace

__all__ = [
    "BatchDependent",
    "ParallelRun",
    "ReplicasDiffer",
    "Sharded",
    "Trace",
    "TraceDiverged",
    "assert_batch_invariant",
    "trace",
]
_PLACES = {
    "BatchDependent": "twinrun.torch.batch",
    "ParallelRun": "twinrun.torch.capture",
    "ReplicasDiffer": "twinrun.torch.replicas",
    "Sharded": "twinrun.torch.placements",
    "TraceDiverged": "twinrun.trace.online",
    "assert_batch_invariant": "twinrun.torch.batch",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "twinrun.torch.tracer")), name)
