"""Traces of programs of JAX: the function or module that differs is named."""

import collections
import contextlib
import dataclasses
import datetime
import functools
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: make test-jax")

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


def test_variables_of_flax_modules_are_what_they_take_and_write(tmp_path):
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Counting(nn.Module):
        times: float = 1.0

        @nn.compact
        def __call__(self, x):
            count = self.variable("cache", "count", lambda: jnp.zeros(3))
            count.value = count.value + self.times * x.sum()
            return 2 * x

    class Net(nn.Module):
        times: float = 1.0

        @nn.compact
        def __call__(self, x):
            x = nn.BatchNorm(use_running_average=True, name="norm")(x)
            x = Counting(self.times, name="counting")(x)
            return nn.Dropout(0.5, deterministic=False, name="dropout")(x)

    x = jnp.ones((3, 4))
    made = Net().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)

    def run(name, times=1.0, mean=0.0, seed=2):
        variables = {
            **made,
            "batch_stats": {"norm": {**made["batch_stats"]["norm"], "mean": jnp.full(4, mean)}},
        }
        with trace(tmp_path / name) as t:
            step = jax.jit(lambda v, key: Net(times).apply(v, x, mutable=["cache"], rngs={"dropout": key}))
            step(variables, jax.random.key(seed))
            t.step()
        assert not t.problems

    run("a")
    run("again")
    run("times", times=3.0)
    run("mean", mean=0.5)
    run("seed", seed=3)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "times").first_divergence
    assert (first.site.module, first.reason) == ("counting", "operation")
    assert [(v.name, v.out) for v in first.values] == [("cache.count", True)]
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "mean").first_divergence
    assert (first.site.module, first.reason) == ("norm", "input")
    assert [v.name for v in first.values] == ["batch_stats.mean"]
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "seed").first_divergence
    assert first.reason == "input" and [v.name for v in first.values] == ["rng.dropout"]


def test_what_a_function_writes_into_its_arguments_comes_out(tmp_path):
    def writes(given, array, value):
        given["count"] = given["count"] + value
        given["new"] = jnp.full(2, value)
        array[1] = value
        return jnp.ones(2)

    def run(name, value):
        with trace(tmp_path / name) as t:
            f = t.function(lambda given, array: writes(given, array, value), "writes")
            f({"count": jnp.zeros(3), "kept": jnp.ones(3)}, np.zeros(4))
            t.step()

    run("a", 1.0)
    run("again", 1.0)
    run("b", 2.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.module, first.reason) == ("writes", "operation")
    assert {v.name for v in first.values} == {"arg.0.count", "arg.0.new", "arg.1"}


def test_a_method_is_given_what_its_object_holds(tmp_path):
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")

    class Net(nnx.Module):
        def __init__(self, seed):
            self.layer = nnx.Linear(4, 4, rngs=nnx.Rngs(seed))
            self.seen = nnx.Variable(jnp.zeros(4))

        def __call__(self, x):
            self.seen.value = self.seen.value + x.sum()
            return self.layer(x)

    def run(name, seed, shift=0.0):
        net = Net(seed)
        with trace(tmp_path / name) as t:
            t.function(net.__call__, "net")(jnp.ones(4))
            net.seen.value = net.seen.value + shift
            t.record("seen", net.seen.value)
            t.step()
        assert not t.problems

    run("a", 0)
    run("again", 0)
    run("seed", 1)
    run("shift", 0, 1.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "seed").first_divergence
    if (
        jax.tree_util.tree_structure(Net(0)).num_leaves == 1
    ):  # an early Flax, into whose modules JAX does not look
        assert (first.reason, first.inputs_not_compared) == ("operation", 1)
        return
    assert (first.site.module, first.reason) == ("net", "input")
    assert all(v.name.startswith("self.layer.") for v in first.values)
    events = events_of(tmp_path / "a")
    assert any(v.out and v.name.startswith("self.seen") for event in events for v in event.values)


def test_sets_and_keys_that_a_function_takes_away_come_out(tmp_path):
    def run(name, item, key):
        def writes(items, given, text):
            items.add(item)
            given.pop(key, None)
            text.extend(b"ab")
            return 1.0

        with trace(tmp_path / name) as t:
            t.function(writes, "writes")({0}, {"a": jnp.ones(2), "b": jnp.ones(2)}, bytearray(b"c"))
            t.step()

    run("a", 1, "a")
    run("again", 1, "a")
    run("item", 2, "a")
    run("key", 1, "none")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "item").first_divergence
    assert (first.reason, [v.name for v in first.values]) == ("operation", ["arg.0"])
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "key").verdict == "different"
    assert [v.name for v in events_of(tmp_path / "a")[-1].values] == ["output", "arg.0", "arg.2", "arg.1.a"]


def test_a_container_that_holds_itself_does_not_end_the_program(tmp_path):
    given = [1]
    given.append(given)
    within = {"a": [jnp.ones(2)]}
    within["b"] = (within,)
    shared = [2]  # twice, but not within itself
    with trace(tmp_path / "a") as t:
        assert t.function(lambda x: len(x), "list")(given) == 2
        assert t.function(lambda x: x["a"][0].sum(), "mapping")(within) == 2
        assert t.function(lambda x: x[0] is x[1], "shared")([shared, shared])
        assert float(jnp.ones(3).sum()) == 3
        t.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.verdict == "incomparable" and "it holds itself" in str(found.problems)
    assert "shared" not in str(found.problems)


class Opaque:
    """An object that says nothing of itself."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    def __hash__(self):
        return hash(self.value)


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float
    names: tuple = ()


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["scale"])
@dataclasses.dataclass
class Given:
    x: jax.Array
    scale: object


@jax.tree_util.register_pytree_node_class
class Plain:
    def __init__(self, x, scale):
        self.x, self.scale = x, scale

    def tree_flatten(self):
        return (self.x,), self.scale

    @classmethod
    def tree_unflatten(cls, scale, inner):
        return cls(*inner, scale)


@jax.tree_util.register_pytree_node_class
class Alike(Plain):
    """As Plain, and another class."""


# What is static, and the same for another value, by what is known of it.
TOLD = [
    (1.0, 2.0), (1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), ((1, ("a",)), (1, ("b",))), ([1], (1,)),
    ({"a": 1}, {"a": 2}), (np.ones(2), np.full(2, 2.0)), (np.dtype("float32"), np.dtype("bfloat16")),
    (jnp.float32, jnp.bfloat16), (jnp.sin, jnp.cos), (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST),
    ({1, 2}, {1, 3}), (Settings(0.1), Settings(0.2)), (Settings(0.1, ("a",)), Settings(0.1, ("b",))),
    (None, 1.0), (Path("a"), Path("b")), (jax.sharding.PartitionSpec("a"), jax.sharding.PartitionSpec("b")),
    ((Opaque(1), 1.0), (Opaque(1), 2.0)), (jnp.ones(2), jnp.zeros(2)),
]  # fmt: skip
NOT_KNOWN = [
    (Opaque(1.0), Opaque(2.0)), (lambda x: x, lambda x: -x), (Opaque, Settings),
    (functools.partial(max, 1), functools.partial(max, 2)), (Settings(Opaque(1)), Settings(Opaque(2))),
]  # fmt: skip


def static_runs(tmp_path, held, how):
    """Traces of values with static data: two with the first, and one with the second."""

    def run(name, scale):
        with trace(tmp_path / name) as t:
            if how == "record":
                t.record("given", {"g": scale})
            elif how == "argument":
                t.function(lambda given: 1.0, "f")(scale)
            elif how == "result":
                t.function(lambda x: scale, "f")(1.0)
            else:
                jax.jit(t.function(lambda given: 1.0, "f"))(scale)
            t.step()
        assert not t.problems
        return tmp_path / name

    return [run(name, scale) for name, scale in (("a", held[0]), ("again", held[0]), ("b", held[1]))]


@pytest.mark.parametrize("how", ["record", "argument", "result"])
@pytest.mark.parametrize("kind", [Given, Plain])
@pytest.mark.parametrize("scales", TOLD, ids=range(len(TOLD)))
def test_static_data_that_is_known_is_compared(tmp_path, scales, kind, how):
    a, again, b = static_runs(tmp_path, [kind(jnp.ones(2), scale) for scale in scales], how)
    found = twinrun.compare_traces(a, b)
    assert found.verdict == "different" or (None in scales and found.verdict == "incomparable")
    named = [v.name for v in found.first_divergence.values]
    assert named and all("@static" in name for name in named)
    assert kind is Plain or all("scale" in name for name in named)
    if "Opaque" not in str(scales):
        found = twinrun.compare_traces(a, again)
        assert found.same and not found.notes


@pytest.mark.parametrize("how", ["record", "argument", "result"])
@pytest.mark.parametrize("kind", [Given, Plain])
@pytest.mark.parametrize("scales", NOT_KNOWN, ids=range(len(NOT_KNOWN)))
def test_static_data_that_is_not_known_is_no_value_that_agrees(tmp_path, scales, kind, how):
    a, again, b = static_runs(tmp_path, [kind(jnp.ones(2), scale) for scale in scales], how)
    for other in (again, b):
        found = twinrun.compare_traces(a, other)
        if how == "record":
            assert found.verdict == "incomparable" and "@static was not digested" in str(found.problems)
        else:
            assert found.same and "object" in str(found.notes)


def test_static_data_of_libraries_is_compared(tmp_path):
    from jax.experimental import sparse

    def matrix(n):
        return sparse.BCOO((jnp.ones(1), jnp.zeros((1, 1), int)), shape=(n,))

    def partial(f):
        return jax.tree_util.Partial(f, 1.0)

    pairs = {
        "shape": (matrix(3), matrix(4)), "partial": (partial(jnp.sin), partial(jnp.cos)),
        "defaultdict": (collections.defaultdict(list, a=1.0), collections.defaultdict(dict, a=1.0)),
    }  # fmt: skip
    with contextlib.suppress(ImportError):
        from flax import linen, nnx, struct

        @struct.dataclass
        class Config:
            x: jax.Array
            rate: float = struct.field(pytree_node=False, default=1.0)

        pairs["struct"] = Config(jnp.ones(2)), Config(jnp.ones(2), 2.0)
        pairs["partitioned"] = tuple(linen.Partitioned(jnp.ones(2), (name,)) for name in "ab")
        drops = [nnx.Dropout(rate, rngs=nnx.Rngs(0)) for rate in (0.4, 0.5)]
        if jax.tree_util.tree_structure(drops[0]).num_leaves > 1:  # JAX looks into modules
            pairs["dropout"] = tuple(drops)
    for name, pair in pairs.items():
        for how in ("record", "argument", "compiled"):
            (tmp_path / name / how).mkdir(parents=True)
            a, again, b = static_runs(tmp_path / name / how, pair, how)
            assert twinrun.compare_traces(a, again).same, (name, how)
            found = twinrun.compare_traces(a, b)
            assert found.verdict == "different", (name, how)
            assert all("@static" in v.name for v in found.first_divergence.values)


def test_a_registered_static_value_is_a_value(tmp_path):
    register = getattr(jax.tree_util, "register_static", None)
    if register is None:
        pytest.skip("an early JAX")
    told = register(dataclasses.make_dataclass("Told", [("rate", float)], frozen=True))
    opaque = register(type("Untold", (Opaque,), {}))
    for name, kind, verdicts in (("a", told, ("same", "different")), ("b", opaque, ("incomparable",) * 2)):
        (tmp_path / name).mkdir()
        a, again, b = static_runs(tmp_path / name, (kind(1.0), kind(2.0)), "record")
        assert tuple(twinrun.compare_traces(a, other).verdict for other in (again, b)) == verdicts


def test_classes_of_nodes_are_told(tmp_path):
    a, again, b = static_runs(tmp_path, (Plain(jnp.ones(2), 1.0), Alike(jnp.ones(2), 1.0)), "record")
    assert not twinrun.compare_traces(a, again).structure
    found = twinrun.compare_traces(a, b)
    assert [str(d) for d in found.structure] == ["value.g is a Plain in a and an Alike in b"]


def test_static_data_that_a_function_writes_comes_out(tmp_path):
    def run(name, scale):
        def writes(given):
            given.scale = scale
            return 1.0

        with trace(tmp_path / name) as t:
            t.function(writes, "writes")(Given(jnp.ones(2), 0.0))
            t.step()

    run("a", 1.0)
    run("again", 1.0)
    run("b", 2.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.reason, [v.name for v in first.values]) == ("operation", ["arg.0.scale@static"])


def test_a_typed_key_hides_nothing_of_what_holds_it(tmp_path):
    key = jax.random.key(0)
    a, again, b = static_runs(tmp_path, ({"p": key, "q": 1.0}, {"q": 1.0, "p": key}), "record")
    assert twinrun.compare_traces(a, again).same
    told = [str(d) for d in twinrun.compare_traces(a, b).structure]
    assert told == ["value.g has its keys in another order: 'p', 'q' in a and 'q', 'p' in b"]


def events_of(path):
    from twinrun.trace.reading import TraceSubject

    return TraceSubject(path).events(0, 0)[0]


# Values that JAX would round to 32 bits, or that are no arrays of it.
PAIRS = {
    "float": (0.1, 0.1 + 1e-12), "numpy's float": (np.float64(0.1), np.float64(0.1 + 1e-12)),
    "batch": (np.array([0.1, 0.2]), np.array([0.1, 0.2 + 1e-12])), "ids": (np.array([1]), np.array([1 + 2**32])),
    "count": (2**40, 2**40 + 1), "huge": (2**70, 2**70 + 1), "unsigned": (2**63, 2**63 + 1),
    "complex": (0.1j, (0.1 + 1e-12) * 1j), "complex128": (np.array([1e-300j]), np.array([0j])), "tiny": (1e-300, 0.0),
    "text": ("relu", "gelu"), "bytes": (b"a", b"b"), "texts": (np.array(["a"]), np.array(["b"])), "none": (None, 0),
    "type": (np.float32(2), np.float64(2)), "integer": (np.int32(3), np.int64(3)), "bool": (True, 1),
    "nested": ({"lr": [1e-3, "x"]}, {"lr": [1e-3 + 1e-12, "x"]}), "keys": ({1: 2.0, 2: 3.0}, {1: 2.0, 2: 4.0}),
    "key": (jax.random.key(0), jax.random.key(1)),
    "kind of key": (jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg")),
    "date": (datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)), "decimal": (Decimal("0.1"), Decimal("0.10")),
    "set": ({3, 1, 2}, {3, 1, 4}), "sets": ({"s": {"a", "b"}}, {"s": {"a", "c"}}), "path": (Path("a"), Path("b")),
    "when": (np.datetime64("2026-01-02"), np.datetime64("2026-01-03")),
    "times": (np.array([1], "m8[s]"), np.array([1], "m8[ms]")), "range": (range(3), range(4)),
}  # fmt: skip


@pytest.mark.parametrize("how", ["record", "argument", "result", "compiled"])
def test_values_are_digested_as_they_are(tmp_path, how):
    def run(path, which):
        with trace(path) as t:
            for name, pair in PAIRS.items():
                value = pair[which]
                if how == "record":
                    t.record(name, value)
                elif how == "argument":
                    t.function(lambda x: 1.0, name)(value)
                elif how == "result":
                    t.function(lambda x, value=value: value, name)(1.0)
                else:  # a constant of the program
                    f = t.function(lambda x, y: x, name)
                    jax.jit(lambda x, f=f, value=value: f(x, value))(1.0)
                t.step()
        assert not t.problems

    for path, which in (("a", 0), ("again", 0), ("b", 1)):
        run(tmp_path / path, which)
    again = twinrun.compare_traces(tmp_path / "a", tmp_path / "again")
    assert again.verdict == "same" and again.values >= len(PAIRS)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    differing = {iteration for (iteration, _), (_, different) in found.by_module.items() if different}
    assert [name for n, name in enumerate(PAIRS) if n not in differing] == []


class Cache:
    """An object that a trace does not look into."""

    def __init__(self, value: float) -> None:
        self.value = value


def test_an_object_that_is_not_looked_into_is_no_value_that_agrees(tmp_path):
    def run(path, value, how):
        given = Cache(value)
        with trace(path) as t:
            if how == "record":
                t.record("cache", {"kept": given, "count": 3})
            else:
                t.function(lambda x, given: x * given.value, "step")(jnp.ones(2), given)
            t.step()
        assert not t.problems

    for how in ("record", "argument"):
        for name, value in (("a", 2.0), ("b", 2.0), ("c", 3.0)):
            run(tmp_path / f"{how}{name}", value, how)
    recorded = twinrun.compare_traces(tmp_path / "recorda", tmp_path / "recordc")
    assert recorded.verdict == "incomparable" and "not looked into" in str(recorded.problems)
    alike = twinrun.compare_traces(tmp_path / "argumenta", tmp_path / "argumentb")
    assert alike.same and "does not look into" in str(alike.notes)
    other = twinrun.compare_traces(tmp_path / "argumenta", tmp_path / "argumentc")
    assert other.first_divergence.inputs_not_compared == 1 and "inputs agree" not in str(other)


def test_two_keys_that_look_alike_are_two_values(tmp_path):
    @jax.tree_util.register_pytree_with_keys_class
    class Pair:
        def __init__(self, *values):
            self.values = values

        def tree_flatten_with_keys(self):
            keys = (jax.tree_util.DictKey("1"), jax.tree_util.DictKey(1))
            return list(zip(keys, self.values, strict=True)), None

        @classmethod
        def tree_unflatten(cls, _, values):
            return cls(*values)

    for name, first in (("a", 1.0), ("b", 2.0)):
        with trace(tmp_path / name) as t:
            t.record("pair", Pair(first, 3.0))
            t.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and found.values == 2


def test_what_has_no_digest_does_not_end_the_program(tmp_path):
    """It is a problem of both traces: nothing that follows from it is said to have equal inputs."""

    def run(path, factor):
        with trace(path) as t:
            step = t.function(lambda x, given: x * factor, "step")
            gone = jnp.ones(3)
            gone.delete()
            for given in (np.ma.masked_array([1.0], [True]), {1: 0, "x": 1}, gone):
                step(jnp.ones(2), given)
            t.step()

    run(tmp_path / "a", 2.0)
    run(tmp_path / "b", 3.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a").verdict == "incomparable"
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and {o.reason for o in found.origins} == {"unknown"}
    assert "inputs agree" not in str(found) and "arg.1" in str(found)


def test_a_typed_key_leaves_the_culprit_its_name(tmp_path):
    def run(path, rate):
        with trace(path) as t:
            noise = t.function(lambda k: jax.random.normal(k, (2,)), "noise")
            step = t.function(jax.jit(lambda w, n: w - rate * n), "step")
            w = jnp.ones(2)
            for n in range(2):
                w = step(w, noise(jax.random.key(n)))
                t.step()
        assert not t.problems

    run(tmp_path / "a", 1e-3)
    run(tmp_path / "b", 2e-3)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.module, first.reason, first.site.iteration) == ("step", "operation", 0)


def test_events_come_in_the_order_of_the_program(tmp_path):
    """What is recorded after a compiled program that takes long comes after its events."""
    with trace(tmp_path / "a") as t:
        long = jax.jit(t.function(lambda x: jax.lax.fori_loop(0, 30, lambda _, y: jnp.sin(y @ y), x), "long"))
        for n in range(4):
            y = long(jnp.ones((200, 200)))
            t.record("number", n)
            t.record("y", y)
            t.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.same
    from twinrun.trace.reading import TraceSubject

    subject = TraceSubject(tmp_path / "a")
    for n in range(4):
        events = subject.events(0, n)[0]
        assert [e.module or e.operation for e in events] == ["long", "long", "number", "y"]


def test_a_second_run_keeps_the_data_of_the_place(tmp_path):
    def run(path, shift, **options):
        with trace(path, **options) as t:
            f = t.function(lambda x: x + shift, "f")
            f(jnp.arange(4.0))
            t.step()

    a, b = tmp_path / "a", tmp_path / "b"
    run(a, 0.0)
    run(b, 0.5)
    run(a, 0.0, escalate=True, reference=b)
    run(b, 0.5, escalate=True, reference=a)
    value = twinrun.compare_traces(f"{a}.escalated", f"{b}.escalated").first_divergence.values[0]
    assert (value.different, value.max_abs_diff) == (4, 0.5)
    with warnings.catch_warnings(record=True) as said:  # a program without the place
        warnings.simplefilter("always")
        with trace(a, escalate=True, reference=b, existing="replace") as t:
            t.record("z", 1)
            t.step()
    assert any("did not come to iteration" in str(w.message) for w in said)
    missed = twinrun.compare_traces(f"{a}.escalated", f"{a}.escalated")
    assert missed.verdict == "incomparable" and "did not come to" in missed.problems[0]
    with pytest.raises(twinrun.TwinrunError, match="needs the other trace"):
        trace(a, escalate=True)
    with pytest.raises(twinrun.TwinrunError, match="reference is for escalate=True"):
        trace(tmp_path / "c", reference=b)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            lambda x: {"p": x, "q": 2 * x},
            lambda x: {"q": 2 * x, "p": x},
            "arg.0 has its keys in another order: 'p', 'q' in a and 'q', 'p' in b",
        ),
        (lambda x: [x, 2 * x], lambda x: (x, 2 * x), "arg.0 is a list in a and a tuple in b"),
        (
            lambda x: [x, jnp.asarray(2.0)],
            lambda x: [x, 2 * jnp.ones(())],
            "arg.0.1 has weak_type True in a and False in b",
        ),
    ],
)
def test_a_function_that_looks_at_what_holds_its_values_is_not_blamed_without_a_hint(
    tmp_path, one, other, told, compiled
):
    def looks(given):
        inner = (
            given.values() if isinstance(given, dict) else given if isinstance(given, list) else given[::-1]
        )
        total = jnp.zeros(3)
        for n, v in enumerate(inner):
            total = total * 1.1 + v * (1 + n * v.weak_type)
        return total

    def run(name: str, give, look) -> str:
        with trace(tmp_path / name) as t:
            # Not a compiled function of a dictionary: JAX sorts its keys.
            inner = t.function(look, "inner")
            outer = lambda x: inner(give(x))  # noqa: E731
            (jax.jit(outer) if compiled else outer)(jnp.arange(3.0) / 7)
            t.step()
        return str(tmp_path / name)

    found = twinrun.compare_traces(run("a", one, looks), run("b", other, looks))
    first = found.first_divergence
    assert (first.site.module, first.reason) == ("inner", "operation")
    assert f"inputs agree in value, but {told}; outputs differ: output" in str(first)
    blind = [run(name, give, lambda given: jnp.ones(3)) for name, give in (("c", one), ("d", other))]
    found = twinrun.compare_traces(*blind)
    assert found.same and [str(d) for d in found.structure] == [told]
    assert not twinrun.compare_traces(blind[0], blind[0]).structure


@pytest.mark.parametrize(
    "how", ["jvp", "compiled", "jacfwd", "of a gradient", "of a compiled gradient", "linearize"]
)
def test_tangents_are_compared(tmp_path, how):
    x = jnp.arange(3.0)

    def run(name, v):
        with trace(tmp_path / name) as t:
            f = t.function(lambda x: jnp.sin(x), "f")
            if how == "jvp":
                jax.jvp(f, (x,), (v * x,))
            elif how == "compiled":
                jax.jit(lambda x, v: jax.jvp(jax.jit(f), (x,), (v,)))(x, v * x)
            elif how == "jacfwd":
                jax.jacfwd(lambda y: f(y * v))(x / v)
            elif how == "of a gradient":
                jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (v * x,))
            elif how == "of a compiled gradient":
                jax.jvp(jax.grad(jax.jit(lambda x: f(x).sum())), (x,), (v * x,))
            else:
                jax.linearize(f, x)[1](v * x)
            t.step()
        assert not t.problems

    run("a", 1.0)
    run("again", 1.0)
    run("b", 2.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    if not hasattr(jax.sharding, "get_abstract_mesh"):
        pytest.skip("an early JAX, whose tangents are not traced")
    first = found.first_divergence
    assert found.verdict == "different" and {v.name for v in first.values} == {"arg.0@tangent"}
    assert first.site.module == "f" or first.site.operation == "tangents of f"


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("how", ["plain", "loop", "checkpoint"])
def test_gradients_have_no_tangents(tmp_path, how, compiled):
    """In reverse mode JAX differentiates forwards, too, with tangents that it does not know."""

    def run(name):
        with trace(tmp_path / name) as t:
            f = t.function(lambda x: jnp.sin(x), "f")
            once = {
                "plain": f,
                "loop": lambda x: jax.lax.scan(lambda c, v: (f(c) * v, None), x, jnp.arange(3.0))[0],
                "checkpoint": jax.checkpoint(f),
            }[how]
            gradient = jax.grad(lambda x: once(x).sum())
            t.record("gradient", (jax.jit(gradient) if compiled else gradient)(jnp.arange(3.0)))
            t.step()
        assert not t.problems

    run("a")
    run("again")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    names = {v.name for event in events_of(tmp_path / "a") for v in event.values}
    # An early JAX calls nothing in a loop that it differentiates.
    assert names == {"arg.0", "output", "value"} or (how == "loop" and names == {"value"})


def test_fields_of_flax_modules_are_told(tmp_path):
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    @dataclasses.dataclass(frozen=True)
    class Config:
        width: int = 4
        act: object = nn.relu

    class Net(nn.Module):
        eps: float = 1e-6
        kind: object = jnp.float32
        config: Config = Config()
        scales: tuple = (1.0, 2.0)
        table: object = None
        inner: nn.Module | None = None
        given: object = None

        @nn.compact
        def __call__(self, x):
            return x if self.inner is None else self.inner(x)

    def run(name, **fields):
        with trace(tmp_path / name) as t:
            jax.jit(Net(**fields).apply)({}, jnp.ones((2, 4)))
            t.step()
        assert not t.problems
        return tmp_path / name

    a = run("a")
    assert twinrun.compare_traces(a, run("again")).same
    for name, fields, told in (
        ("eps", {"eps": 1e-3}, "its eps is 1e-06 in a and 0.001 in b"),
        ("kind", {"kind": jnp.bfloat16}, "its kind is float32 in a and bfloat16 in b"),
        ("config", {"config": Config(8)}, "its config.width is 4 in a and 8 in b"),
        ("act", {"config": Config(act=nn.gelu)}, "its config.act is relu in a and gelu in b"),
        ("scales", {"scales": (1.0, 3.0)}, "its scales is (1.0, 2.0) in a and (1.0, 3.0) in b"),
        ("table", {"table": np.float32(2)}, "its table is None in a and <f4 2.0 in b"),
        ("precision", {"table": jax.lax.Precision.HIGH}, "its table is None in a and Precision.HIGH in b"),
    ):
        found = twinrun.compare_traces(a, run(name, **fields))
        assert found.same and [str(d) for d in found.structure] == [told]
    # Modules have events of their own, also those of a list. What is not looked into is counted.
    drop = nn.Dropout(0.5, deterministic=True)
    for inner in (run("inner", inner=drop), run("list", given=[drop, drop])):
        assert not any(v.role == "setting" for event in events_of(inner) for v in event.values)
    for what in (Cache, lambda value: functools.partial(max, value)):
        given = [run(f"{what}{value}", given=what(value)) for value in (1.0, 2.0)]
        found = twinrun.compare_traces(*given)
        assert found.same and "1 value that is an object that a trace does not look" in str(found.notes)


def test_fields_of_a_norm_are_a_hint_where_its_output_differs(tmp_path):
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")
    x = jnp.arange(6.0).reshape(2, 3)
    made = nn.LayerNorm().init(jax.random.key(0), x)
    for name, fields in (("a", {}), ("b", {"epsilon": 1e-3})):
        with trace(tmp_path / name) as t:
            jax.jit(nn.LayerNorm(**fields).apply)(made, x)
            t.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert first.reason == "operation"
    assert "inputs agree in value, but its epsilon is 1e-06 in a and 0.001 in b" in str(first)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("flax", [True, False])
def test_an_exception_that_is_caught_makes_traces_incomparable(tmp_path, compiled, flax):
    def wrong(x):
        raise ValueError("no")

    def function(t):
        if not flax:
            return t.function(wrong, "wrong")
        nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

        class Wrong(nn.Module):
            def __call__(self, x):
                return wrong(x)

        return functools.partial(Wrong().apply, {})

    def run(name):
        with trace(tmp_path / name) as t:
            f = function(t)
            t.record("before", 1)
            with pytest.raises(ValueError, match="no"):
                (jax.jit(f) if compiled else f)(jnp.ones(2))
            if compiled:
                t.step()
        return tmp_path / name

    found = twinrun.compare_traces(run("a"), run("b"))
    assert found.verdict == "incomparable"
    assert not compiled or "raised ValueError while JAX made a program of it" in str(found.problems)


def test_an_exception_after_the_last_step_is_kept(tmp_path):
    def wrong(x):
        raise ValueError("no")

    for name in ("a", "b"):
        with trace(tmp_path / name) as t:
            t.record("before", 1)
            t.step()
            with pytest.raises(ValueError, match="no"):
                jax.jit(t.function(wrong, "wrong"))(1.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "incomparable"
