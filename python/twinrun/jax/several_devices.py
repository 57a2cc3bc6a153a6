"""Ordered callbacks in programs of several devices.

`jax.debug.callback` can be ordered on one device only. `jax.experimental.io_callback` can be ordered on
several, and cannot be differentiated. The primitive here is ordered on several devices, and differentiation,
`jax.checkpoint`, loops and `vmap` treat it as `jax.debug.callback`. A value that lies on several devices is
gathered on the first of them for it.

JAX has no public interface for effects. What is used here is tried once, with a program on all devices.
Where that fails, `refusal` says why, and no program of the caller's gets such a callback.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Refusal", "call", "in_parts", "refusal"]


class Refusal(NamedTuple):
    """Why callbacks would have no order, and what to do."""

    why: str
    fix: str


_ONE_DEVICE = (
    "let JAX see one device (on GPUs CUDA_VISIBLE_DEVICES=0), or call the function outside of jax.jit"
)


@functools.cache
def _primitive() -> Any:
    """The primitive, with its rules. Raises where this JAX lacks something of them."""
    from jax._src import callback as callbacks
    from jax._src import effects
    from jax._src.interpreters import partial_eval
    from jax._src.sharding_impls import ShardingContext
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    class Seen(effects.Effect):
        """Values are looked at, in the order of the program."""

        def __str__(self) -> str:
            return "TwinrunSeen"

    for kinds in (
        effects.ordered_effects,
        effects.shardable_ordered_effects,
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
        effects.partial_eval_kept_effects,
    ):
        kinds.add_type(Seen)
    effect = Seen()
    seen = Primitive("twinrun_seen")
    seen.multiple_results = True

    @seen.def_impl
    def _(*arrays: Any, callback: Callable[..., None]) -> tuple[()]:
        callback(*arrays)
        return ()

    @seen.def_effectful_abstract_eval
    def _(*avals: Any, callback: Callable[..., None]) -> Any:
        return [], {effect}

    def differentiated(primals: Any, tangents: Any, **params: Any) -> Any:
        return seen.bind(*primals, **params), []

    def transposed(cotangents: Any, *arrays: Any, **params: Any) -> Any:
        return [None] * len(arrays)

    def mapped(arrays: Any, axes: Any, *, callback: Callable[..., None]) -> Any:
        """Item by item, on the host: a program may not cut an axis that lies on several devices."""

        def each(*given: Any) -> None:
            found = [np.asarray(array) for array in given]
            sizes = {a.shape[axis] for a, axis in zip(found, axes, strict=True) if axis is not None}
            for i in range(next(iter(sizes))):
                callback(
                    *(a if axis is None else a.take(i, axis) for a, axis in zip(found, axes, strict=True))
                )

        seen.bind(*arrays, callback=each)
        return [], []

    def staged(saveable: Any, unknown: Any, computed: Any, equation: Any) -> Any:
        """Where a program is cut in two, as by jax.checkpoint: what jax.debug.callback does."""
        if any(unknown):
            missing = [v for v, there in zip(equation.invars, computed, strict=True) if not there]
            return None, equation, [], [], missing
        saved = saveable(seen, *(v.aval for v in equation.invars), **equation.params)
        return equation, None if saved and not all(computed) else equation, [], [], []

    def lowered(context: Any, *operands: Any, callback: Callable[..., None]) -> Any:
        def called(*arrays: Any) -> tuple[()]:
            callback(*arrays)
            return ()

        where = context.module_context.axis_context
        if not isinstance(where, ShardingContext):
            raise NotImplementedError("a program with a part for each device")
        _, token, _ = callbacks.emit_python_callback(
            context,
            called,
            context.tokens_in.get(effect),
            list(operands),
            context.avals_in,
            context.avals_out,
            has_side_effect=True,
            returns_token=True,
            sharding=callbacks._callback_op_sharding(where, None, context.avals_out),
        )
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
        return []

    ad.primitive_jvps[seen] = differentiated
    ad.primitive_transposes[seen] = transposed
    batching.primitive_batchers[seen] = mapped
    partial_eval.partial_eval_jaxpr_custom_rules[seen] = staged
    mlir.register_lowering(seen, lowered, cacheable=False)
    return seen


def call(callback: Callable[..., None], arrays: Sequence[Any]) -> None:
    """Has a program that JAX compiles hand values to a callback, in the order of the program."""
    types = [array.dtype for array in arrays]
    words = [_word_of(dtype) for dtype in types]

    def called(*given: Any) -> None:
        found = [np.asarray(array) for array in given]
        callback(
            *(
                a if word is None else a.view(dtype)
                for a, word, dtype in zip(found, words, types, strict=True)
            )
        )

    brought = [
        a if word is None else jax.lax.bitcast_convert_type(a, word)
        for a, word in zip(arrays, words, strict=True)
    ]
    _primitive().bind(*brought, callback=called)


def _word_of(dtype: Any) -> Any:
    """Integers for the bits of small floats: XLA may gather these as larger ones, and makes NaNs alike."""
    if (
        not jnp.issubdtype(dtype, jnp.floating)
        or dtype.itemsize > 2
        or jnp.finfo(dtype).bits != 8 * dtype.itemsize
    ):
        return None
    return jnp.uint8 if dtype.itemsize == 1 else jnp.uint16


def _failure() -> str | None:
    """What a program of all devices does wrong with such callbacks in loops, gradients and jax.checkpoint."""
    got: list[Any] = []

    def look(value: Any) -> None:
        call(lambda array: got.append(np.asarray(array).tolist()), [value])

    def loss(x: jax.Array) -> jax.Array:
        look(x)

        def body(sum_: jax.Array, one: jax.Array) -> tuple[jax.Array, None]:
            look(sum_)
            return sum_ + one, None

        sum_, _ = jax.lax.scan(body, jnp.zeros(()), jnp.arange(1.0, 3.0))
        y = x.sum() * sum_
        look(y)
        return y

    def within(x: jax.Array) -> jax.Array:
        got.append(in_parts())
        return x

    try:
        jax.eval_shape(jax.pmap(within), jnp.zeros((jax.device_count(), 1)))
        if got != [True]:
            return f"JAX {jax.__version__} does not tell a program with a part for each device from others"
        got.clear()
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("device",))
        placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        x = jax.device_put(jnp.arange(float(jax.device_count())), placed)
        jax.block_until_ready(jax.jit(jax.grad(loss))(x))
        jax.effects_barrier()
        expected = [np.asarray(x).tolist(), 0.0, 1.0, float(np.asarray(x).sum() * 3)]
        if got != expected:
            return f"a program of all devices brought {got} in place of {expected}"
        got.clear()
        jax.block_until_ready(jax.jit(jax.grad(jax.checkpoint(loss)))(x))
        jax.effects_barrier()
        if got != expected * (len(got) // 4) or not got:
            return f"a program of all devices with jax.checkpoint brought {got} in place of {expected}"
    except Exception as e:
        return _lacks(e)
    return None


def _lacks(error: Exception) -> str:
    return (
        f"it is compiled for a JAX of {jax.device_count()} devices, and JAX {jax.__version__} has nothing to order "
        f"its callbacks ({type(error).__name__}: {error})"
    )


def in_parts() -> bool:
    """Whether a program is made that has a part for each device, as within shard_map or pmap."""
    mesh = getattr(jax.sharding, "get_abstract_mesh", None)  # an early JAX has none
    return mesh is not None and bool(mesh().manual_axes)


@functools.cache
def _tried() -> str | None:
    """`_failure`, once. A thread of its own has no program under way that ours would become a part of."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_failure()), name="twinrun: callbacks")
    thread.start()
    thread.join()
    return found[0] if found else "its trial ended"


def refusal() -> Refusal | None:
    """Why the program that is made here cannot hand its values over in order; None: it can."""
    if jax.process_count() > 1:
        return Refusal(
            f"{jax.process_count()} processes compute it together, which orders no callbacks",
            "trace a program of one process, or call the function outside of jax.jit",
        )
    if in_parts():
        return Refusal(
            "within shard_map or pmap each device has values of its own, and their callbacks have no order",
            "trace the function that calls shard_map or pmap",
        )
    reason = _tried()
    return None if reason is None else Refusal(reason, _ONE_DEVICE)
