"""Tensors of PyTorch, on the host and on a GPU, are compared by one call: what is found is what one by one finds."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from gpu_libraries import imported, library
from random_containers import odd_value
from test_lists import listed, one_by_one, outcome

import twinrun

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    library("torch")
    return imported("torch")


KINDS = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 complex128".split()
SHAPES = [(), (1,), (7,), (300,), (3, 5), (2, 3, 4), (0,), (2, 0), (5000,), (40, 50), (300_000,)]


def random_tensor(torch, random, kind, shape, device):
    values = random.integers(0, 2 if kind == "bool" else 100, shape) + (
        random.random(shape) if kind[0] in "fbc" else 0
    )
    tensor = torch.from_numpy(np.asarray(values)).to(getattr(torch, kind)).to(device)
    if tensor.ndim > 1 and random.random() < 0.3:
        tensor = tensor.t() if tensor.ndim == 2 else tensor[:, :, 1:]
    if tensor.ndim == 1 and tensor.numel() > 2 and random.random() < 0.2:
        tensor = tensor[:: random.integers(1, 3)]
    if kind.startswith("complex") and random.random() < 0.3:
        tensor = tensor.conj()
    if kind[0] in "fbc" and kind != "bool" and random.random() < 0.2:
        tensor = torch.nn.Parameter(tensor)
    return tensor


def changed(torch, random, tensor):
    other = tensor.detach().clone()
    if other.numel() and random.random() < 0.5:
        for _ in range(random.integers(1, 4)):
            at = tuple(int(random.integers(n)) for n in other.shape)
            other[at] = not other[at] if other.dtype == torch.bool else other[at] + random.choice([1, 3])
            if other.is_floating_point():
                other[at] = random.choice([np.nan, np.inf, 7.5])
    if tensor.ndim > 1 and tensor.stride() != other.stride():
        other = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(other)
    return other


@pytest.mark.parametrize("seed", range(60))
def test_tensors_are_compared_as_one_by_one(torch, seed):
    random = np.random.default_rng(seed)
    a: dict = OrderedDict() if seed % 2 else {}
    b: dict = {}
    for at in range(random.integers(1, 30)):
        kind, shape = random.choice(KINDS), SHAPES[random.integers(len(SHAPES))]
        device = "cpu" if random.random() < 0.2 else "cuda"
        x = random_tensor(torch, random, kind, shape, device)
        y = changed(torch, random, x)
        if random.random() < 0.02:
            y = y.cpu()
        into = (a, b)
        if random.random() < 0.3:
            into = a.setdefault("inner", {}), b.setdefault("inner", {})
        into[0][f"x{at}"], into[1][f"x{at}"] = x, y
        if random.random() < 0.1:
            into[0][f"odd{at}"] = into[1][f"odd{at}"] = odd_value(random)
    how = {
        "atol": random.choice([0.0, 1e-3, 2.0]),
        "rtol": random.choice([0.0, 1e-5]),
        "equal_nan": bool(random.integers(2)),
        "device": random.choice(["auto", "cuda", "cpu"]),
        "partial": True,
    }
    if random.random() < 0.3:
        how["ulp"] = int(random.integers(3))
    if seed % 6 == 5:
        a, b = list(a.values()), tuple(b.values())
    assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    assert outcome(twinrun.compare, a, a, **how) == outcome(one_by_one, a, a, **how)


def test_a_state_is_one_list(torch):
    x = torch.arange(6.0, device="cuda")
    taken = listed(
        {"a": x, "b": [x.cpu()], "t": x.reshape(2, 3).t(), "s": x[::2], "c": x.to(torch.complex64).conj()}
    )
    assert taken is not None and taken.any_on_device
    assert list(taken.arrays()) == ["a", "b.0", "t", "s", "c"] and list(taken.rest) == ["c"]


def test_models_and_optimizers_are_compared(torch):
    def trained(rate):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(30, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 2)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for _ in range(3):
            model(torch.ones(5, 30, device="cuda")).square().sum().backward()
            optimizer.step()
        return model, optimizer

    (model, optimizer), (again, its), (other, theirs) = trained(1e-3), trained(1e-3), trained(2e-3)
    for a, b in ((model, again), (optimizer, its), ({"m": model, "o": optimizer}, {"m": again, "o": its})):
        assert twinrun.compare(a, b).verdict == "same"
    for a, b in ((model, other), (optimizer, theirs), (model.state_dict(), other.state_dict())):
        assert twinrun.compare(a, b).verdict == "different"
        assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)
    result = twinrun.compare(optimizer, theirs)
    assert not next(f for f in result.fields if f.field == "param_groups.0.lr").same
    assert result.first is not None and list(result.differences())


def test_work_follows_the_current_stream(torch):
    stream = torch.cuda.Stream()
    a, b = torch.zeros(50_000_000, device="cuda"), torch.zeros(50_000_000, device="cuda")
    torch.cuda.synchronize()
    for last in range(1, 6):
        with torch.cuda.stream(stream):
            for _ in range(20):
                a.add_(1)
            b.copy_(a)
            b[-1] += last
            result = twinrun.compare({"x": a}, {"x": b}, atol=0.5)
        assert result.fields[0].different == 1 and result.fields[0].max_abs_diff == last


def test_gradients_and_memory_that_is_gone(torch):
    a = {"x": torch.ones(10, device="cuda", requires_grad=True), "y": torch.ones(3)}
    b = {"x": torch.zeros(10, device="cuda"), "y": torch.ones(3)}
    result = twinrun.compare(a, b)
    assert [part.count for part in result.differences()] == [10]
    del a
    with pytest.raises(twinrun.TwinrunError, match="gone"):
        list(result.differences())
