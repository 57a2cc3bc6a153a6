"""Digests of PyTorch's tensors, and as the hash function of its DebugMode."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import twinrun  # noqa: E402

KINDS = [
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8", "uint8", "int16", "int32",
    "int64", "bool", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(kind: str) -> None:
    dtype = getattr(torch, kind, None)
    if dtype is None:
        pytest.skip(f"PyTorch {torch.__version__} has no {kind}")
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if kind == "bool" else 256, (12 * size,), dtype=torch.uint8)
    t = raw.view(dtype).reshape(3, 4)
    d = twinrun.digest(t)
    assert d == twinrun.digest(t.clone()) == twinrun.digest(t.t().contiguous().t())
    assert d != twinrun.digest(t.t()) and d != twinrun.digest(t.reshape(-1))
    changed = raw.clone()
    changed[-1] ^= 1
    assert d != twinrun.digest(changed.view(dtype).reshape(3, 4))
    # Another library may have taught numpy the type, which PyTorch then does not know of.
    if kind in np.sctypeDict and np.dtype(kind).isbuiltin == 1:
        assert d == twinrun.digest(t.numpy())


def test_what_a_tensor_carries_does_not_matter() -> None:
    t = torch.randn(4, 6)
    assert (
        twinrun.digest(t)
        == twinrun.digest(t.clone().requires_grad_())
        == twinrun.digest(torch.nn.Parameter(t))
    )
    c = torch.randn(5, dtype=torch.complex64)
    assert twinrun.digest(c.conj()) == twinrun.digest(c.conj().resolve_conj()) != twinrun.digest(c)
    assert twinrun.digest(c.conj().imag) == twinrun.digest(c.conj().resolve_conj().imag)
    assert twinrun.digest(torch.ones(1).expand(3, 4)) == twinrun.digest(torch.ones(3, 4))
    with torch.inference_mode():
        assert twinrun.digest(t * 1) == twinrun.digest(t)


def test_models_and_lists() -> None:
    model = torch.nn.Linear(3, 2)
    found = twinrun.digest(model)
    assert list(found) == ["weight", "bias"] and found["bias"] == twinrun.digest(model.bias)
    assert twinrun.digest([model.weight, model.bias]) == list(found.values())


def test_tensors_without_values() -> None:
    for wrong in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(twinrun.TwinrunError):
            twinrun.digest(wrong)


@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors(layout: str) -> None:
    parts = [torch.ones(3, 4), torch.ones(2, 4)]
    nested = torch.nested.nested_tensor(parts, layout=getattr(torch, layout))
    with pytest.raises(twinrun.TwinrunError, match=r"nested tensors have no digest; give their parts"):
        twinrun.digest(nested)
    assert twinrun.digest(list(nested.unbind())) == twinrun.digest(parts)


def test_tensors_without_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def read(x):
        with pytest.raises(twinrun.TwinrunError, match="values cannot be read"):
            twinrun.digest(x)
        return x

    torch.func.vmap(read)(torch.ones(3, 4))
    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(twinrun.TwinrunError, match="without memory"):
        twinrun.digest(fake)
    with pytest.raises(twinrun.TwinrunError, match="uninitialized"):
        twinrun.digest(torch.nn.LazyLinear(3).weight)
    assert twinrun.digest(torch._efficientzerotensor(3, 4)) == twinrun.digest(torch.zeros(3, 4))


FOOLED = [
    (torch.ones(4), torch.zeros(4)),
    (torch.tensor([1.0, 2, 3]), torch.tensor([3.0, 2, 1])),
    (torch.tensor([5.0, 5, 1]), torch.tensor([7.0, 7, 1])),
    (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2)),
    (torch.ones(2), torch.ones(2, dtype=torch.float64)),
]


@pytest.mark.skipif(
    not hasattr(torch, "hash_tensor"), reason=f"PyTorch {torch.__version__} has no hash_tensor"
)
@pytest.mark.parametrize("a, b", FOOLED)
def test_what_fools_hash_tensor(a, b) -> None:
    assert torch.hash_tensor(a.double()) == torch.hash_tensor(b.double())
    assert twinrun.digest(a) != twinrun.digest(b)


def test_is_a_hash_function_of_debug_mode() -> None:
    debug_mode = pytest.importorskip("torch.utils._debug_mode", reason="this PyTorch has no DebugMode")
    mode = debug_mode.DebugMode
    if not hasattr(mode, "log_tensor_hashes"):
        pytest.skip(f"PyTorch {torch.__version__}: DebugMode hashes no tensors")

    def run(x):
        with mode() as seen, mode.log_tensor_hashes(hash_fn=twinrun.digest, hash_inputs=True):
            torch.nn.functional.relu(x).sum()
        return seen

    x = torch.tensor([1.0, 2.0, 3.0])
    a, again, b = run(x), run(x.clone()), run(x.flip(0))
    assert [op.log["hash"] for op in a.operators] == [op.log["hash"] for op in again.operators]
    assert "hash" in a.debug_string()
    check = getattr(mode, "check_hash_mismatches", None)
    if check is not None:
        assert not check(a.logs, again.logs)
        found = check(a.logs, b.logs)
        assert found and "relu" in str(found[0])
        # The sum is the same, and DebugMode's own two hashes see no difference at all.
        flipped = x.flip(0)
        for usual in ("norm", "hash_tensor"):
            with mode() as one, mode.log_tensor_hashes(hash_fn=usual):
                torch.nn.functional.relu(x).sum()
            with mode() as other, mode.log_tensor_hashes(hash_fn=usual):
                torch.nn.functional.relu(flipped).sum()
            assert not check(one.logs, other.logs)
