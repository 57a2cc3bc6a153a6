"""Sketches of arrays on GPUs say what the CPU's staged comparison says. Skipped where no GPU can be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_libraries import library
from test_sketch import check_equal, pairs_of_arrays, perturbed, sample, staged

import twinrun
from twinrun import _core
from twinrun.errors import Incomparable

NO_GPU = _core.devices().reason
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=f"no GPU can be used: {NO_GPU}")]


def check_alike(found: twinrun.SketchComparison, other: twinrun.SketchComparison) -> None:
    """All but where it was found."""
    assert len(found.fields) == len(other.fields)
    for f, g in zip(found.fields, other.fields, strict=True):
        assert np.array_equal(f.open_chunks, g.open_chunks), f.field
        assert (f.proven_by_tree, f.proven_by_cells) == (g.proven_by_tree, g.proven_by_cells), f.field
        assert (f.chunks_by_tree, f.chunk_elements) == (g.chunks_by_tree, g.chunk_elements), f.field


@pytest.mark.parametrize(
    "settings",
    [
        {"atol": 1e-3},
        {"atol": 1e-3, "residue_bits": 2},
        {"atol": 1e-3, "residue_bits": 0},
        {"atol": 1e-4, "rtol": 1e-3},
        {"atol": 1e-3, "chunk_bytes": 16384},
        {"atol": 1e-3, "digest": "published"},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_gpu_sketches(name: str, settings: dict, tmp_path: Path) -> None:
    put = library(name)
    a, b = pairs_of_arrays()
    on_gpu = [twinrun.sketch({n: put(x) for n, x in side.items()}, **settings) for side in (a, b)]
    on_host = [twinrun.sketch(side, **settings) for side in (a, b)]
    assert on_gpu[0].device == "cuda:0" and on_gpu[0].bytes == on_host[0].bytes
    found = on_gpu[0].compare(on_gpu[1])
    check_equal(found, staged(tmp_path, a, b, **settings))
    assert found.fields[0].device == "cuda:0"
    check_alike(found, on_host[0].compare(on_host[1]))
    # From histories, from the host, and back.
    check_alike(found, on_gpu[0].compare(twinrun.sketch_of(tmp_path / "b", 1)))
    check_alike(found, on_gpu[0].compare(on_host[1].to("cuda:0")))
    check_alike(found, on_host[0].compare(on_gpu[1].to("cpu")))
    check_alike(found, twinrun.sketch_of(tmp_path / "a", 1, device="cuda").compare(on_gpu[1]))


def test_gpu_sketch_places() -> None:
    put = library("cupy")
    x = sample("f4", (5000,))
    a, b = twinrun.sketch({"x": put(x)}, atol=1e-3), twinrun.sketch({"x": x}, atol=1e-3)
    with pytest.raises(Incomparable, match="on cuda:0 in arrays, on cpu in arrays"):
        a.compare(b)
    assert a.to("cuda:0") is a and a.compare(b.to("cuda:0")).same and a.to("cpu").compare(b).same
    mixed = twinrun.sketch({"x": put(x), "y": x}, atol=1e-3)
    assert mixed.device == "cpu, cuda:0" and mixed.compare(mixed).same and mixed.to("cpu").device == "cpu"


def test_gpu_sketch_of_a_model(tmp_path: Path) -> None:
    """Many tensors of odd sizes, bf16 and parameters among them; a reference history checks the running job."""
    library("torch")
    import torch

    torch.manual_seed(3)
    layers = [torch.nn.Linear(7 * i + 1, 5 * i + 3, device="cuda") for i in range(1, 60)]
    model = torch.nn.Sequential(*layers)
    state = dict(model.named_parameters()) | {"half": torch.randn(777, 33, device="cuda").bfloat16()}
    with twinrun.Run(tmp_path / "reference", atol=1e-4, keep_data=False) as run:
        run.capture(5, state)
    reference = twinrun.sketch_of(tmp_path / "reference", 5)
    assert reference.device == "cuda:0"
    assert reference.compare(twinrun.sketch(state, atol=1e-4)).same
    with torch.no_grad():
        layers[17].weight[2, 3] += 1
        layers[30].bias += 3e-5
    found = reference.compare(twinrun.sketch(state, atol=1e-4))
    assert found.open == ["17.weight"]
    assert sum(found["30.bias"].proven_by_cells[1:]) > 0 or found["30.bias"].chunks_by_tree


def test_gpu_sketch_waits_for_streams() -> None:
    library("torch")
    import torch

    n = 3_000_000
    base = torch.arange(n, dtype=torch.float32, device="cuda")
    expected = twinrun.sketch({"x": base + 1}, atol=1e-3)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for given in (False, True):
        x = torch.zeros(n, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(300_000_000)
            torch.add(base, 1, out=x)
            made = None if given else twinrun.sketch({"x": x}, atol=1e-3)
        if given:
            made = twinrun.sketch({"x": x}, atol=1e-3, stream=side)
        x.zero_()  # it was read
        assert made.compare(expected).same


def test_gpu_sketch_memory_goes_back() -> None:
    put = library("cupy")
    x = put(sample("f4", (4_000_000,)))
    first = twinrun.sketch({"x": x}, atol=1e-3)
    for _ in range(5):
        assert twinrun.sketch({"x": x}, atol=1e-3).compare(first).same
    free = _core.devices().devices[0].free_bytes
    y = put(perturbed(sample("f4", (4_000_000,)), 4e-4, 0))
    for _ in range(200):
        last = twinrun.sketch({"x": y}, atol=1e-3)
        assert last.compare(first).same
    assert _core.devices().devices[0].free_bytes > free - (256 << 20)
