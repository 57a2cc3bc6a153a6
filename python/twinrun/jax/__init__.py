"""Traces of programs of JAX: which function or Flax module is the first to differ from another run's.

>>> from twinrun.jax import trace
"""

from __future__ import annotations

from .tracer import Trace, trace

__all__ = ["Trace", "trace"]
