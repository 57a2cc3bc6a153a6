"""Restoring into arrays that share memory: it is what the step has, or an error before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.capture.shared_memory import Memory, check_fits
from twinrun.errors import TwinrunError

TORCH = "needs PyTorch: make test-torch"


def memory(name: str, x: np.ndarray) -> Memory:
    return Memory(name, -1, x.__array_interface__["data"][0], x.shape, x.strides, x.itemsize)


@st.composite
def views(draw, buffer: np.ndarray) -> np.ndarray:
    """Any view of a buffer: also one that overlaps itself."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(-3, 3)) * buffer.itemsize for _ in shape]
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    first, last = -low // buffer.itemsize, buffer.size - 1 - high // buffer.itemsize
    at = draw(st.integers(first, max(first, last)))
    return np.lib.stride_tricks.as_strided(buffer[at:], shape, strides)


@settings(max_examples=300)
@given(st.data())
def test_arrays_fit_where_writing_all_gives_all(data) -> None:
    buffer = np.zeros(40, np.int32)
    arrays = {str(n): data.draw(views(buffer)) for n in range(data.draw(st.integers(1, 3)))}
    # Often what one memory can hold.
    source = np.arange(40, dtype=np.int32) if data.draw(st.booleans()) else np.zeros(40, np.int32)
    base = buffer.__array_interface__["data"][0]
    values = {}
    for name, x in arrays.items():
        at = (x.__array_interface__["data"][0] - base) // 4
        values[name] = np.lib.stride_tricks.as_strided(source[at:], x.shape, x.strides).copy()
        if data.draw(st.integers(0, 3)) == 0 and x.size:
            values[name].reshape(-1)[data.draw(st.integers(0, x.size - 1))] += 1
    for name, x in arrays.items():
        for at in np.ndindex(x.shape):
            x[at] = values[name][at]
    fits = all(np.array_equal(x, values[name]) for name, x in arrays.items())
    try:
        check_fits([memory(n, x) for n, x in arrays.items()], lambda name: values[name])
        assert fits
    except TwinrunError:
        assert not fits


def captured(path: Path, **fields: np.ndarray) -> twinrun.Run:
    with twinrun.Run(path) as run:
        run.capture(1, fields)
    return twinrun.Run(path, existing="append")


def test_one_array_under_two_names(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(2, 3)
    target, other = np.full((2, 3), -1.0), np.full(3, -1.0)
    with captured(tmp_path / "tied", a=x, b=x, c=x[0]) as run:
        run.restore(1, {"a": target, "b": target, "c": other})
        assert np.array_equal(target, x) and np.array_equal(other, x[0])
    target[:], other[:] = -1, -1
    with (
        captured(tmp_path / "own", a=x, b=x + 1, c=x[0]) as run,
        pytest.raises(TwinrunError, match=r"shares the memory of '.*', and the step has other values there"),
    ):
        run.restore(1, {"c": other, "a": target, "b": target})
    assert (target == -1).all() and (other == -1).all()


def test_views_of_one_buffer(tmp_path: Path) -> None:
    u = np.arange(36.0).reshape(6, 6)
    with captured(tmp_path / "u", whole=u, inner=u[1:-1, 1:-1], columns=np.asfortranarray(u)) as run:
        back = np.zeros((6, 6))
        run.restore(1, {"whole": back, "inner": back[1:-1, 1:-1], "columns": back})
        assert np.array_equal(back, u)
        with pytest.raises(TwinrunError, match=r"shares the memory of '(whole|inner)'"):
            run.restore(1, {"whole": back, "inner": back[2:, 2:]})
        assert np.array_equal(back, u)


def test_an_array_that_overlaps_itself(tmp_path: Path) -> None:
    with captured(tmp_path / "w", w=np.arange(4.0).reshape(2, 2), h=np.array([[0.0, 1], [1, 2]])) as run:
        place = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 2), (8, 8))
        with pytest.raises(TwinrunError, match="memory among its elements"):
            run.restore(1, {"w": place})
        assert not place.any()
        run.restore(1, {"h": place})  # of a Hankel matrix, which fits
        assert place.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_numbers_of_8_bits_come_back(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch", reason=TORCH)
    x = torch.tensor([1.0, -2.0, 0.5]).to(getattr(torch, kind))
    with captured(tmp_path / "x", x=x) as run:
        back = torch.zeros(3).to(x.dtype)
        run.restore(1, {"x": back})
        assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))
        other = "float8_e5m2" if kind != "float8_e5m2" else "float8_e4m3fn"
        with pytest.raises(twinrun.errors.Incomparable, match=f"{kind} was captured, the array is {other}"):
            run.restore(1, {"x": torch.zeros(3).to(getattr(torch, other))})
    with captured(tmp_path / "u", x=np.zeros(3, np.uint8)) as run:
        with pytest.raises(twinrun.errors.Incomparable, match="u8 was captured, the array is"):
            run.restore(1, {"x": back})


def test_what_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with (
        captured(tmp_path / "x", x=np.zeros(3)) as run,
        pytest.raises(TwinrunError, match="no mapping of names"),
    ):
        run.restore(1, [np.zeros(3)])


@pytest.fixture
def one_process() -> Iterator[None]:
    """What `ParallelRun` needs, of this process alone."""
    torch = pytest.importorskip("torch", reason=TORCH)
    pytest.importorskip("torch.distributed.tensor", reason=TORCH)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["ParallelRun", "Run"])
def test_a_step_of_two_weights_does_not_go_into_a_tied_one(tmp_path: Path, how: str) -> None:
    import torch

    from twinrun.torch import ParallelRun

    def model(tied: bool) -> torch.nn.Module:
        made = torch.nn.ModuleDict({"e": torch.nn.Embedding(3, 2), "o": torch.nn.Linear(2, 3, bias=False)})
        if tied:
            made["o"].weight = made["e"].weight
        return made

    parallel = how == "ParallelRun"
    run, given = (ParallelRun, lambda m: {"m": m}) if parallel else (twinrun.Run, lambda m: m.state_dict())
    own, tied, other = model(False), model(True), model(True)
    before = other["e"].weight.detach().clone()
    for name, captured in (("own", own), ("tied", tied)):
        with run(tmp_path / name) as r:
            r.capture(1, given(captured))
    with (
        run(tmp_path / "own", existing="append") as r,
        pytest.raises(TwinrunError, match="shares the memory of"),
    ):
        r.restore(1, given(other))
    assert torch.equal(other["e"].weight, before)
    with run(tmp_path / "tied", existing="append") as r:
        r.restore(1, given(other))
    assert torch.equal(other["e"].weight, tied["e"].weight)


def test_autograd_is_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=TORCH)
    with captured(tmp_path / "w", w=np.array([100.0], np.float32)) as run:
        w = torch.tensor([2.0], requires_grad=True)
        y = (w * w).sum()
        run.restore(1, {"w": w})
        assert w.tolist() == [100.0] and w.grad is None
        with pytest.raises(RuntimeError, match="modified by an in"):
            y.backward()
        with torch.inference_mode():
            frozen = torch.zeros(1)
        run.restore(1, {"w": frozen})
        assert frozen.tolist() == [100.0]
        (w * w).sum().backward()
        assert w.grad.tolist() == [200.0]
