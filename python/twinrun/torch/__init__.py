"""Traces of PyTorch's models: which operation of a training is the first to differ from another run's.

>>> from twinrun.torch import trace
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tracer import Trace, trace

__all__ = ["Trace", "trace"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".tracer", __name__), name)
