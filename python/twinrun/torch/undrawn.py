"""Containers of the program's own classes: reading one may run its code, such as that of a batch which draws
random numbers for what is asked for. Afterwards the generators are as they were.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

__all__ = ["generators_kept", "reads_plainly"]

_OF_PYTHON = (
    dict, OrderedDict, defaultdict, Counter, UserDict, MappingProxyType, list, tuple, deque, UserList, Mapping,
    MutableMapping, Sequence,
)  # fmt: skip
_READ_BY = ("__iter__", "__getitem__", "__len__", "keys", "items")


@functools.lru_cache(maxsize=1024)
def reads_plainly(kind: type) -> bool:
    """Whether all of a container of this class is read by Python's own code."""
    return all(
        any(getattr(kind, name, None) is getattr(known, name, None) for known in _OF_PYTHON)
        for name in _READ_BY
    )


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """A context that leaves PyTorch's, Python's and NumPy's generators as it found them. Of GPUs: the one of
    the current device.
    """
    cuda = torch.cuda.default_generators[torch.cuda.current_device()] if torch.cuda.is_initialized() else None
    kept = [(g, g.get_state()) for g in (torch.default_generator, cuda) if g is not None]
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        for generator, state in kept:
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numpy)
