"""Traces of programs of JAX: the function or module that differs is named."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import twinrun  # noqa: E402
from twinrun.jax import trace  # noqa: E402


def program(path, wrong=None, steps=4, compiled=True, before=None, **options):
    """Three functions, one in the other, and gradients. wrong: the step from which `middle` is another one."""
    rng = np.random.default_rng(1)
    w = jnp.asarray(rng.normal(size=(4, 4)), jnp.float32)
    with trace(path, **options) as t:
        first = t.function(lambda x: jnp.tanh(x), "first")

        def of_middle(w, x, shift):
            return first(x) @ w + shift

        middle = t.function(of_middle, "middle")

        def loss(w, x, shift):
            y = middle(w, x, shift)
            t.record("y", {"y": y})
            return (y**2).mean()

        step = jax.value_and_grad(t.function(loss, "loss"))
        if compiled:
            step = jax.jit(step)
        for n in range(steps):
            if before is not None:
                before(n)
            x = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
            shift = jnp.float32(2**-20 if wrong is not None and n >= wrong else 0)
            value, grad = step(w, x, shift)
            w = w - 0.1 * grad
            t.record("gradient", grad)
            t.step()
    return float(value), t


@pytest.mark.parametrize("compiled", [True, False])
def test_equal_programs_are_the_same_and_another_value_is_named(tmp_path, compiled):
    for name in ("a", "b"):
        program(tmp_path / name, compiled=compiled)
    program(tmp_path / "c", wrong=2, compiled=compiled)
    same = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert same.verdict == "same" and same.events >= 4 * 8 and not same.problems
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert first.site.iteration == 2 and first.site.module == "loss" and first.reason == "input"
    assert [v.name for v in first.values] == ["arg.2"]


def test_a_function_that_does_something_else_is_named(tmp_path):
    def run(path, other):
        with trace(path) as t:
            inner = t.function(lambda x: x * (2 + other), "inner")
            outer = jax.jit(t.function(lambda x: inner(jnp.sin(x)) + 1, "outer"))
            for _ in range(2):
                outer(jnp.arange(5.0))
                t.step()

    run(tmp_path / "a", 0.0)
    run(tmp_path / "b", 2**-20)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    first = found.first_divergence
    assert (first.site.module, first.reason, first.site.iteration) == ("inner", "operation", 0)
    # The data of this place, and of no other.
    for name, other in (("a", 0.0), ("b", 2**-20)):
        with trace(tmp_path / f"{name}2", escalate=found) as t:
            inner = t.function(lambda x, other=other: x * (2 + other), "inner")
            outer = jax.jit(t.function(lambda x, inner=inner: inner(jnp.sin(x)) + 1, "outer"))
            for _ in range(2):
                outer(jnp.arange(5.0))
                t.step()
    value = twinrun.compare_traces(tmp_path / "a2", tmp_path / "b2").first_divergence.values[0]
    assert value.elements == 5 and value.different == 4 and value.first_index == [1]


def test_results_of_two_traced_programs_are_alike_and_values_are_those_of_an_untraced_one(tmp_path):
    a, b = program(tmp_path / "a")[0], program(tmp_path / "b")[0]
    assert a == b
    rng = np.random.default_rng(1)
    w = jnp.asarray(rng.normal(size=(4, 4)), jnp.float32)
    step = jax.value_and_grad(lambda w, x: ((jnp.tanh(x) @ w) ** 2).mean())
    for _ in range(4):
        value, grad = step(w, jnp.asarray(rng.normal(size=(3, 4)), jnp.float32))
        w = w - 0.1 * grad
    assert a == pytest.approx(float(value), rel=1e-5)


def test_a_loop_calls_a_function_in_its_order(tmp_path):
    def run(path, wrong):
        with trace(path) as t:
            body = t.function(lambda c, x: (c + x * jnp.where(c > 5, wrong, 1.0), c), "body")
            t_scan = jax.jit(lambda xs: jax.lax.scan(body, 0.0, xs))
            t_scan(jnp.arange(6.0))
            t.step()

    run(tmp_path / "a", 1.0)
    run(tmp_path / "b", 1.5)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert first.site.module == "body" and first.reason == "operation" and first.site.microbatch == 4


def test_an_error_of_the_trace_does_not_reach_the_program(tmp_path, monkeypatch):
    from twinrun.capture.events import EventWriter

    real = EventWriter.see

    def failing(self, event, *rest, **named):
        if event.module == "first":
            raise OSError("no space left")
        return real(self, event, *rest, **named)

    monkeypatch.setattr(EventWriter, "see", failing)
    with pytest.warns(RuntimeWarning, match="no space left"):
        value, t = program(tmp_path / "a")
    monkeypatch.setattr(EventWriter, "see", real)
    assert value == program(tmp_path / "b")[0] and t.problems
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.verdict == "incomparable"
    monkeypatch.setattr(EventWriter, "see", failing)
    with pytest.raises(OSError, match="no space"):
        program(tmp_path / "c", on_error="raise")


def test_types_of_jax_have_digests(tmp_path):
    with trace(tmp_path / "a") as t:
        for kind in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_, jnp.complex64, jnp.uint32):
            t.record(str(jnp.dtype(kind)), jnp.ones(3, kind))
        t.step()
    assert not t.problems
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a").verdict == "same"


def test_flax_modules_are_traced_by_themselves(tmp_path):
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Net(nn.Module):
        shift: float = 0.0

        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(8, name="up")(x))
            return nn.Dense(2, name="down")(x + self.shift)

    def run(path, shift=0.0, bump=0.0):
        net = Net(shift)
        x = jnp.ones((3, 4))
        variables = Net().init(jax.random.key(0), x)
        with trace(path) as t:
            step = jax.jit(jax.value_and_grad(lambda v, x: net.apply(v, x).sum()))
            for n in range(3):
                if bump and n == 1:
                    kernel = variables["params"]["down"]["kernel"]
                    variables["params"]["down"]["kernel"] = kernel.at[2, 1].add(bump)
                step(variables, x)
                t.step()

    run(tmp_path / "a")
    run(tmp_path / "b")
    run(tmp_path / "shift", shift=2**-10)
    run(tmp_path / "bump", bump=2**-10)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "same"
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "shift").first_divergence
    assert (first.site.module, first.reason) == ("down", "input")
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "bump").first_divergence
    assert (first.site.iteration, first.site.module, first.kind) == (1, "down", "Dense")
    assert [(v.name, v.role) for v in first.values] == [("kernel", "parameter")]
