"""Tangents of forward derivatives, as of `jax.jvp`: a mark beside values that a function takes or gives.

The mark does nothing, and is nothing in a compiled program. Where JAX differentiates it, its rule hands over
the tangents of these values. JAX runs that rule in reverse mode, too, with tangents that it does not know:
what they are handed to becomes a part of the linear program. Where that is transposed, it is left out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import several_devices

__all__ = ["watch"]


@functools.cache
def _primitive() -> Any:
    """The primitive, with its rules; None where this JAX lacks something of them."""
    # JAX is asked whether there is a part for each device: shard_map has no rule for the mark.
    if not hasattr(jax.sharding, "get_abstract_mesh"):
        return None
    try:
        from jax._src.debugging import debug_effect
        from jax.extend.core import Primitive
        from jax.interpreters import ad, batching, mlir

        marked = Primitive("twinrun_tangents")
        marked.multiple_results = True
        marked.def_impl(lambda *arrays, told: [])
        # Without an effect JAX removes it from the gradient of compiled code.
        marked.def_effectful_abstract_eval(lambda *avals, told: ([], {debug_effect}))

        def differentiated(primals: Any, tangents: Any, *, told: Callable[..., None]) -> Any:
            marked.bind(*primals, told=told)  # for derivatives of this derivative
            told({at: one for at, one in enumerate(tangents) if type(one) is not ad.Zero})
            return [], []

        def mapped(arrays: Any, axes: Any, **params: Any) -> Any:
            marked.bind(*arrays, **params)  # all items at once
            return [], []

        ad.primitive_jvps[marked] = differentiated
        ad.primitive_transposes[marked] = lambda cotangents, *arrays, told: [None] * len(arrays)
        batching.primitive_batchers[marked] = mapped
        mlir.register_lowering(marked, lambda context, *operands, told: [])
    except Exception:  # an interface that JAX does not promise
        return None
    return marked


def _tell_jet() -> None:
    """Lets the mark pass through `jax.experimental.jet`, which refuses what it has no rule for."""
    jet = sys.modules.get("jax.experimental.jet")  # to import it takes time
    rules = getattr(jet, "jet_rules", None)
    if isinstance(rules, dict) and _primitive() is not None:
        rules.setdefault(_primitive(), lambda primals, series, **params: ([], []))


def watch(arrays: Sequence[Any], told: Callable[[dict[int, Any]], None]) -> None:
    """Has tangents of arrays told wherever the program that is made here is differentiated forwards.

    told: is called while JAX makes the derivative, with {number of the array: its tangent}.
    """
    # Others have no tangents: arrays that are there, and numbers that are not real or complex.
    _tell_jet()
    numbers = [
        at
        for at, array in enumerate(arrays)
        if isinstance(array, jax.core.Tracer) and jnp.issubdtype(array.dtype, jnp.inexact)
    ]
    if not numbers or _primitive() is None or several_devices.in_parts():
        return

    def told_of(found: dict[int, Any]) -> None:
        if found:
            told({numbers[at]: tangent for at, tangent in found.items()})

    _primitive().bind(*(arrays[at] for at in numbers), told=told_of)
