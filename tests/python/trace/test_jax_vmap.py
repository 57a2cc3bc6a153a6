"""Traces of `jax.vmap`: the item that differs is named, and the function whose own code made it differ."""

import threading

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: make test-jax")

import jax.numpy as jnp  # noqa: E402

import twinrun  # noqa: E402
from twinrun.jax import trace  # noqa: E402

ITEMS = 4
X = jnp.arange(2.0 * ITEMS).reshape(ITEMS, 2)


def noise(item, wrong):
    """Something that one item of the second run adds."""
    return jnp.where(jnp.arange(ITEMS) == item, 1e-3 * wrong, 0.0)


def found(tmp_path, program, compiled):
    for name, wrong in (("a", 0), ("b", 1)):
        with trace(tmp_path / name) as t:
            f = program(t, wrong)
            (jax.jit(f) if compiled else f)(X)
            t.step()
    result = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "different" and not result.problems
    assert len(result.origins) == 1, result.origins
    return result.origins[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("item", range(ITEMS))
def test_the_item_whose_code_differs(tmp_path, item, compiled):
    def program(t, wrong):
        n = noise(item, wrong)
        held = t.function(lambda x, i: jnp.sin(x) + n[i.astype(int)], "f")
        return lambda x: jax.vmap(held)(x, jnp.arange(1.0 * ITEMS))

    first = found(tmp_path, program, compiled)
    assert (first.site.module, first.reason) == ("f", "operation")
    assert (first.call, first.calls) == (item + 1, ITEMS)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("item", range(ITEMS))
def test_the_item_whose_input_differs(tmp_path, item, compiled):
    def program(t, wrong):
        f = t.function(jnp.sin, "f")
        return lambda x: jax.vmap(f)(x + noise(item, wrong)[:, None])

    first = found(tmp_path, program, compiled)
    assert (first.site.module, first.reason, first.module) == ("f", "input", "")
    assert (first.call, first.calls) == (item + 1, ITEMS)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("item", range(ITEMS))
def test_the_code_of_the_outer_function(tmp_path, item, where):
    """Of a function that calls another one for each item."""

    def program(t, wrong):
        n = noise(item, wrong)
        inner = t.function(jnp.sin, "inner")

        def of_outer(x, i):
            own = n[i.astype(int)]
            return inner(x + own) if where == "before" else inner(x) + own

        outer = t.function(of_outer, "outer")
        return lambda x: jax.vmap(outer)(x, jnp.arange(1.0 * ITEMS))

    first = found(tmp_path, program, True)
    if where == "before":
        assert (first.site.module, first.reason, first.module) == ("inner", "input", "outer")
    else:
        assert (first.site.module, first.reason, first.module) == ("outer", "operation", "outer")
    assert (first.call, first.calls) == (item + 1, ITEMS)


@pytest.mark.parametrize("item", range(ITEMS))
def test_code_between_two_functions(tmp_path, item):
    def program(t, wrong):
        f, g = t.function(jnp.sin, "f"), t.function(jnp.cos, "g")
        return lambda x: jax.vmap(g)(jax.vmap(f)(x) + noise(item, wrong)[:, None])

    first = found(tmp_path, program, True)
    assert (first.site.module, first.reason, first.module) == ("g", "input", "")


def test_a_function_that_calls_itself(tmp_path):
    def program(t, wrong):
        def of_f(x, depth):
            return f(x * 2, depth - 1) if depth else x + noise(2, wrong)[:, None][0]

        f = t.function(of_f, "f")
        return lambda x: jax.vmap(lambda one: f(one, 2))(x + noise(1, wrong)[:, None])

    first = found(tmp_path, program, True)
    assert (first.site.module, first.reason) == ("f", "input") and first.call == 2


def test_vmap_within_a_function_of_vmap_is_no_place_that_is_known(tmp_path):
    with trace(tmp_path / "a") as t:
        inner = t.function(jnp.sin, "inner")
        outer = t.function(lambda x: jax.vmap(inner)(x).sum(), "outer")
        jax.jit(jax.vmap(outer))(X)
        t.step()
    same = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert same.verdict == "incomparable" and "which items of outer called inner" in same.problems[0]


def test_calls_that_overlap_in_threads_accuse_nobody(tmp_path):
    for name, wrong in (("a", 0.0), ("b", 1e-3)):
        with trace(tmp_path / name) as t:
            begun, inside = threading.Event(), threading.Event()
            threads = []

            def of_f(x, first, begun=begun, inside=inside, threads=threads):
                if first:
                    begun.set()
                    inside.wait()
                else:
                    inside.set()
                    threads[0].join()
                return x * 2

            f = t.function(of_f, "f")
            threads.append(threading.Thread(target=f, args=(X + wrong, True)))
            threads[0].start()
            begun.wait()
            f(X + 1, False)
            t.step()
    result = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "different" and result.problems
    assert not any(o.reason == "operation" for o in result.origins)
