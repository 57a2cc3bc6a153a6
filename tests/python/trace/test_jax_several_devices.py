"""Programs of JAX on several devices: what is compiled is traced in its order, as on one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HANG

jax = pytest.importorskip("jax", reason="JAX is not installed: make test-jax")
if jax.__version_info__ < (0, 10):
    pytest.skip(f"JAX {jax.__version__}: several devices are tried with 0.10", allow_module_level=True)

import twinrun  # noqa: E402

# A step of a training with a loop, gradients and jax.checkpoint, of whole numbers: sums are exact in any order.
PROGRAM = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from twinrun.jax import trace

path, devices, wrong, remat = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "remat"
assert jax.device_count() == devices
mesh = Mesh(np.array(jax.devices()), ("d",))
over, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("d",), ()))
warnings.simplefilter("error", RuntimeWarning)
with trace(path) as t:
    layer = t.function(lambda w, x, extra: x @ w + extra, "layer")

    def loss(ws, x, extra):
        def body(x, w):
            return layer(w, x, extra), None

        x, _ = jax.lax.scan(body, x, ws)
        t.record("after", {"x": x})
        return t.function(lambda x: x.sum(), "sum")(x)

    step = jax.jit(jax.value_and_grad(jax.checkpoint(loss) if remat else loss))
    rng = np.random.default_rng(1)
    ws = jax.device_put(jnp.asarray(rng.integers(-2, 3, (3, 4, 4)), jnp.float32), whole)
    for n in range(4):
        x = jax.device_put(jnp.asarray(rng.integers(-9, 10, (8, 4)), jnp.float32), over)
        value, gradient = step(ws, x, jnp.float32(n == wrong))
        t.record("gradient", gradient)
        t.step()
    assert not t.problems, t.problems
print(float(value), float(np.asarray(gradient).sum()))
"""

# Where callbacks have no order: within shard_map, and where JAX lacks what they need.
REFUSED = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from twinrun.jax import several_devices, trace

how = sys.argv[2]
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("d")))
with warnings.catch_warnings(record=True) as said, trace(sys.argv[1]) as t:
    warnings.simplefilter("always")
    doubled = t.function(lambda x: x * 2, "doubled")
    if how == "eager":
        part = jax.shard_map(doubled, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        assert float(part(x).sum()) == 56
    elif how == "checkpoint":
        part = jax.shard_map(doubled, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        assert jax.jit(jax.grad(jax.checkpoint(lambda x: (part(x) ** 2).sum())))(x)[3] == 24
    elif how == "no_jit":
        with jax.disable_jit():
            assert float(jax.pmap(doubled)(x.reshape(2, 4)).sum()) == 56
    elif how == "shard_map":
        part = jax.shard_map(doubled, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        assert float(jax.jit(part)(x).sum()) == 56
    elif how == "pmap":
        assert float(jax.pmap(doubled)(x.reshape(2, 4)).sum()) == 56
    else:
        from jax._src import callback
        def broken(*args, **kwargs):
            raise ValueError("no such callback")
        callback._callback_op_sharding = broken
        assert float(jax.jit(doubled)(x).sum()) == 56 and float(jax.jit(doubled)(x[:4]).sum()) == 12
    assert float(doubled(x).sum()) == 56
    t.record("x", x)
    t.step()
print([str(w.message) for w in said if w.category is RuntimeWarning])
"""


# The same compiled program in two traces: the second one hears of it too.
LATER = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec
from twinrun.jax import trace

mesh = Mesh(np.array(jax.devices()), ("d",))
warnings.simplefilter("ignore")
with trace(sys.argv[1] + "1") as t:
    f = t.function(lambda x: x * 2, "doubled")
    part = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")))
    part(jnp.arange(8.0))
    t.step()
with trace(sys.argv[1] + "2") as t:
    part(jnp.arange(8.0))
    t.record("x", 1)
    t.step()
"""

# Bits of NaNs that lie on the second device, and vmap over an axis that lies on both.
BITS = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from twinrun.jax import trace

bits = np.full(8, 0x7FC0, np.uint16)
bits[6] ^= int(sys.argv[2])
mesh = jax.make_mesh((2,), ("d",))  # explicit: a program may not cut its axis
with jax.set_mesh(mesh), trace(sys.argv[1]) as t:
    x = jax.device_put(bits.view(jnp.bfloat16), NamedSharding(mesh, PartitionSpec("d")))
    jax.jit(t.function(lambda x: jnp.zeros(2), "whole"))(x)
    jax.jit(jax.vmap(t.function(lambda x: 2 * x, "item")))(x.reshape(4, 2))
    jax.vmap(t.function(lambda x: 2 * x, "eager"))(x.reshape(4, 2))
    t.step()
    assert not t.problems, t.problems
"""

# Forward derivatives of values that lie on both devices, and a gradient.
TANGENTS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from twinrun.jax import trace

x = jnp.arange(4.0)
if jax.device_count() > 1:
    x = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d")))
with trace(sys.argv[1]) as t:
    f = t.function(lambda x: x * x, "f")
    jax.jit(lambda x, v: jax.jvp(jax.jit(f), (x,), (v,)))(x, float(sys.argv[2]) * x)
    t.step()
    jax.jit(jax.grad(lambda x: f(x).sum()))(x)
    t.step()
    assert not t.problems, t.problems
"""


def run(program: str, *words: object, devices: int = 2) -> str:
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, **flags},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("remat", ["plain", "remat"])
def test_a_program_of_several_devices_has_the_events_and_values_of_one_device(tmp_path, remat):
    said = {
        (name, n): run(PROGRAM, tmp_path / f"{name}{n}", n, wrong, remat, devices=n)
        for n in (1, 2, 4)
        for name, wrong in (("right", -1), ("wrong", 2))
    }
    for name in ("right", "wrong"):
        assert said[name, 1] == said[name, 2] == said[name, 4]
    for n in (2, 4):
        found = twinrun.compare_traces(tmp_path / "right1", tmp_path / f"right{n}")
        # Each step: 3 layers and the sum, which begin and end in one event each, and a record; the gradient.
        assert found.same and found.events >= 4 * 6, found
        found = twinrun.compare_traces(tmp_path / f"right{n}", tmp_path / f"wrong{n}")
        assert found.verdict == "different"
        assert (found.first_divergence.site.iteration, found.first_divergence.site.module) == (2, "layer")
        alone = twinrun.compare_traces(tmp_path / "right1", tmp_path / "wrong1").first_divergence
        assert (found.first_divergence.site, found.first_divergence.reason) == (alone.site, alone.reason)


@pytest.mark.parametrize("how", ["shard_map", "pmap", "broken", "eager", "checkpoint", "no_jit"])
def test_callbacks_that_would_have_no_order_are_left_out_and_a_warning_says_so(tmp_path: Path, how: str):
    assert run(REFUSED, tmp_path / "a", how).count("doubled is not traced: ") == 1
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.verdict == "incomparable" and found.events == 3  # of what was not compiled


def test_a_program_that_is_not_traced_says_so_in_every_trace(tmp_path: Path):
    run(LATER, tmp_path / "a")
    for n in (1, 2):
        found = twinrun.compare_traces(tmp_path / f"a{n}", tmp_path / f"a{n}")
        assert found.verdict == "incomparable" and "doubled is not traced" in found.problems[0]


def test_every_bit_of_every_device_is_seen(tmp_path: Path):
    run(BITS, tmp_path / "a", 0)
    run(BITS, tmp_path / "again", 0)
    run(BITS, tmp_path / "b", 1)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.first_divergence.site.module == "whole" and found.first_divergence.reason == "input"


def test_tangents_of_several_devices_are_those_of_one(tmp_path: Path):
    for name, factor, devices in (("one", 1, 1), ("two", 1, 2), ("other", 2, 2)):
        run(TANGENTS, tmp_path / name, factor, devices=devices)
    assert twinrun.compare_traces(tmp_path / "one", tmp_path / "two").same
    found = twinrun.compare_traces(tmp_path / "two", tmp_path / "other")
    assert [v.name for v in found.first_divergence.values] == ["arg.0@tangent"]
    assert found.first_divergence.site.iteration == 0 and found.different_values == 2
