"""Arrays on GPUs: histories and comparisons are those of the same arrays on the host. Skipped where no GPU can be used."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json
from gpu_libraries import imported, library
from support import check_report, run_of_ranks

import twinrun
from twinrun import _core

NO_GPU = _core.devices().reason
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=f"no GPU can be used: {NO_GPU}")]
LIBRARIES = ["cupy", "torch", "jax", "numba"]
CODES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]


def sample(code: str, shape: tuple, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng([seed, *code.encode(), *shape])
    if code in ("c8", "c16"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(code)
    if code[0] == "f":
        x = np.asarray(rng.normal(size=shape) * 100)
        if x.size > 3:
            x.reshape(-1)[[0, 1, 2]] = np.nan, np.inf, -0.0
        return x.astype(code)
    return np.asarray(rng.integers(0, 2 if code == "?" else 100, shape)).astype(code)


def changed(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    if y.size:
        flat = y.reshape(-1)
        at = y.size // 2
        flat[at] = not flat[at] if y.dtype.kind == "b" else flat[at] + 1
    return y


def sections(path: Path) -> list[dict]:
    """Settings, counts and sections of every field of a history's only step; without the sums of data."""
    (folder,) = path.glob("step-*")
    metadata = _core.Metadata(str(folder / "rank-00000.twm"))
    keys = (
        "name",
        "dtype",
        "shape",
        "fortran_order",
        "nans",
        "tokens",
        "fine_exponent",
        "coarse_exponent",
        "cells",
        "chunks",
    )
    return [
        {k: getattr(f, k) for k in keys} | {s: metadata.section(i, s) for s in ("tree", "fine", "residues")}
        for i, f in enumerate(metadata.fields)
    ]


def check_captured(tmp_path: Path, on_host: dict, on_gpu: dict, **options: object) -> None:
    """A history of arrays on the GPU is that of the same arrays on the host."""
    for name, fields in (("host", on_host), ("gpu", on_gpu)):
        with twinrun.Run(tmp_path / name, atol=1e-3, existing="replace", **options) as run:
            facts = run.capture(7, fields)
            assert (facts.data_bytes > 0) == options.get("keep_data", True)
    assert sections(tmp_path / "host") == sections(tmp_path / "gpu")
    assert twinrun.verify(tmp_path / "gpu")[0] == []
    if options.get("keep_data", True):
        data = [
            next((tmp_path / n).glob("step-*")).joinpath("rank-00000.data").read_bytes()
            for n in ("host", "gpu")
        ]
        assert data[0] == data[1]
    assert twinrun.compare(tmp_path / "host", tmp_path / "gpu").same


@pytest.mark.parametrize("keep_data", [True, False])
@pytest.mark.parametrize("digest", ["linear", "published"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_gpu_capture(name: str, digest: str, keep_data: bool, tmp_path: Path) -> None:
    put = library(name)
    shapes = [(1,), (7,), (1025,), (5, 7), (2, 3, 700)] + ([] if name == "numba" else [(), (0,), (3, 0, 2)])
    fields = {f"{code}{list(shape)}": sample(code, shape) for code in CODES for shape in shapes}
    check_captured(
        tmp_path, fields, {n: put(x) for n, x in fields.items()}, digest=digest, keep_data=keep_data
    )


@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_gpu_layouts(name: str, tmp_path: Path) -> None:
    put = library(name)
    for code in ("f4", "f8", "u1", "c16"):
        x = sample(code, (60, 50, 40))
        d = put(x)
        views = [
            lambda a: a.T,
            lambda a: a[:, ::3, :],
            lambda a: a[5:, 3:, 1:],
            lambda a: a[:, :, 7],
            lambda a: a.reshape(-1)[3::7],
            lambda a: a[2],
            lambda a: a.swapaxes(0, 1),
            lambda a: a[:1, :, :1],
        ]
        if name == "cupy":
            views.append(lambda a: a[::-1, :, ::-2])
        on_host = {str(i): f(x) for i, f in enumerate(views)}
        on_gpu = {str(i): f(d) for i, f in enumerate(views)}
        library_of = imported(name)
        wide = np.broadcast_to(x[0], (7, 50, 40))
        on_host["wide"] = wide
        on_gpu["wide"] = (
            d[0].expand(wide.shape) if name == "torch" else library_of.broadcast_to(d[0], wide.shape)
        )
        check_captured(tmp_path, on_host, on_gpu)
        for i in on_host:
            f = twinrun.compare(on_host[i], on_gpu[i], atol=1e-3).fields[0]
            assert f.different == 0


@pytest.mark.parametrize(
    ("name", "method"),
    [*(("cupy", m) for m in ("auto", "direct", "staged", "published")), ("torch", "direct"), ("jax", "auto"), ("numba", "auto")],
)  # fmt: skip
def test_gpu_compare(name: str, method: str) -> None:
    put = library(name)
    for code in CODES:
        for shape in ((1,), (1025,), (3, 700)):
            a = sample(code, shape)
            b = changed(a)
            da, db = put(a), put(b)
            for x, y, device in (
                (da, db, "cuda"),
                (da, db, "auto"),
                (da, db, "cpu"),
                (a, db, "cuda"),
                (da, b, "auto"),
            ):
                result = twinrun.compare(
                    x, y, atol=1e-3, options=twinrun.CompareOptions(method=method), device=device
                )
                check_report(result.fields[0], a, b)
                if device == "cuda" and method == "direct":
                    assert result.device.startswith("cuda")
                if device == "cpu":
                    assert result.device == "cpu"


@pytest.mark.parametrize("code", ["f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_gpu_ulps_and_periods(code: str, order: str, tmp_path: Path) -> None:
    """Compared where the arrays are, with the numbers of the same comparison on the CPU: also of files and of mixed sides."""
    put = library("cupy")
    rng = np.random.default_rng(7)
    a = np.array(rng.uniform(0, 10, (70_001, 3)).astype(code), order=order)
    b = np.array(np.nextafter(a, np.inf, dtype=code), order=order)
    b[rng.random(a.shape) < 0.01] += 10
    b[rng.random(a.shape) < 0.001] -= 1
    b[5, 1] = np.nan
    np.save(tmp_path / "a.npy", a)
    rules = [
        {"ulp": 1},
        {"ulp": 0, "atol": 0.5},
        {"period": "*=10x10x0", "atol": 0.05},
        {"period": "*=10x20x10", "ulp": 2, "atol": 1e-3},
    ]
    for rule in rules:
        on_host = twinrun.compare(a, b, device="cpu", **rule)
        host = on_host.fields[0]
        assert on_host.device == "cpu" and 0 < host.different < a.size
        for x, y, device in ((put(a), put(b), "auto"), (a, put(b), "cuda"), (tmp_path / "a.npy", b, "cuda")):
            there = twinrun.compare(x, y, device=device, **rule)
            assert there.device.startswith("cuda:")
            f = there.fields[0]
            for name in (
                "different",
                "first_index",
                "max_abs_diff",
                "max_rel_diff",
                "histogram",
                "histogram_different",
                "period",
            ):
                assert getattr(f, name) == getattr(host, name), name
    wrapped = a.copy(order="K")
    wrapped[::3] += 10
    same = twinrun.compare(put(a), put(wrapped), period="*=10", atol=0.05)
    assert same.same and same.device.startswith("cuda:")


def parts(
    whole: np.ndarray, cuts: list[list[int]], put: Callable[[np.ndarray], object]
) -> tuple[list[dict], list[dict]]:
    """Captures of every box between the cuts of each axis, a rank each, and the boxes' places. Views of one array on the GPU."""
    there = put(whole)
    ranks, places = [], []
    for box in itertools.product(*(itertools.pairwise(at) for at in cuts)):
        ranks.append({1: {"u": there[tuple(slice(*at) for at in box)]}})
        places.append({"u": (whole.shape, tuple(begin for begin, _ in box))})
    return ranks, places


def sums_of(path: Path) -> list[tuple[object, bytes]]:
    """Of every rank's only field: what its sums say of, and the sums."""
    files = [_core.Metadata(str(p)) for p in sorted(path.glob("step-*/rank-*.twm"))]
    names = ("kind", "height", "buckets", "smallest_id", "largest_id")
    said = [m.fields[0].sums for m in files]
    return [
        (s and {name: getattr(s, name) for name in names}, m.section(0, "sums"))
        for s, m in zip(said, files, strict=True)
    ]


@pytest.mark.parametrize("settings", [{}, {"keep_data": False}, {"device_memory": "64 MiB", "background": True},
                                      {"device_memory": "64 MiB", "background": True, "keep_data": False}])  # fmt: skip
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_gpu_parts_of_global_arrays(name: str, settings: dict, tmp_path: Path) -> None:
    """Cut in different ways, runs compare by metadata alone, as those of arrays on the host do."""
    put = library(name)
    atol = 1e-3
    rng = np.random.default_rng(11)
    a = rng.standard_normal((48, 40, 96))
    b = a + rng.uniform(-0.5 * atol, 0.5 * atol, a.shape)
    # The chunks of the first two ranks are those of the whole; the third begins within one.
    cut_a, cut_b = [[0, 16, 29, 48], [0, 40], [0, 96]], [[0, 48], [0, 13, 40], [0, 33, 96]]
    for run, x, cuts in (("a", a, cut_a), ("b", b, cut_b)):
        for where, putting in (("gpu", put), ("host", np.asarray)):
            ranks, places = parts(x, cuts, putting)
            chosen = settings if where == "gpu" else {"keep_data": settings.get("keep_data", True)}
            run_of_ranks(tmp_path / f"{where}-{run}", ranks, places=places, atol=atol, **chosen)
        found = sums_of(tmp_path / f"gpu-{run}")
        assert found == sums_of(tmp_path / f"host-{run}")
        assert all(facts is not None and facts["kind"] == "place" for facts, _ in found)
    for x, y in (("gpu-a", "gpu-b"), ("gpu-a", "host-b")):
        result = twinrun.compare(tmp_path / x, tmp_path / y)
        [f] = result.fields
        assert result.same and f.method == "staged" and f.elements_read == 0
        assert sum(f.proven_by_cells) + f.proven_by_tree == a.size == f.elements
    if not settings.get("keep_data", True):
        return
    b[17, 20, 50] += 1
    ranks, places = parts(b, cut_b, put)
    run_of_ranks(tmp_path / "c", ranks, places=places, atol=atol, **settings)
    [f] = twinrun.compare(tmp_path / "gpu-a", tmp_path / "c").fields
    assert f.different == 1 and f.first_index == (17, 20, 50) and f.elements_read < a.size // 4


@pytest.mark.parametrize("settings", [{}, {"device_memory": "64 MiB"}, {"residue_bits": 0}])
def test_gpu_arrays_change_while_they_are_digested(settings: dict, tmp_path: Path) -> None:
    """Work that is put into the stream after the call waits for the digests."""
    library("torch")
    import torch

    state = {f"x{at}": torch.zeros(3_000_000 if at == 3 else 50_000, device="cuda") for at in range(40)}
    with (
        twinrun.Run(tmp_path / "gpu", atol=1e-3, keep_data=False, background=True, **settings) as run,
        twinrun.Run(tmp_path / "host", atol=1e-3, keep_data=False, **settings_of_host(settings)) as host,
    ):
        for step in range(8):
            run.capture(step, state)
            for x in state.values():
                x.add_(1)
            host.capture(step, {name: np.full(x.shape, step, np.float32) for name, x in state.items()})
            if step % 3 == 2:  # memory that is released is used again
                state = {name: torch.full_like(x, step + 1) for name, x in state.items()}
    result = twinrun.compare(tmp_path / "gpu", tmp_path / "host")
    assert result.same and len(result.fields) == 8 * len(state)


def test_gpu_memory_that_is_released_is_not_used_before_it_is_digested(tmp_path: Path) -> None:
    """Memory of another stream, which PyTorch would give to that stream's next array at once."""
    library("torch")
    import torch

    side, own = torch.cuda.Stream(), torch.cuda.current_stream()
    with twinrun.Run(tmp_path / "gpu", atol=1e-3, keep_data=False, background=True) as run:
        for step in range(6):
            with torch.cuda.stream(side):
                state = {f"x{at}": torch.full((2_000_000,), float(step), device="cuda") for at in range(30)}
            own.wait_stream(side)
            run.capture(step, state)
            del state
            with torch.cuda.stream(side):
                other = [torch.full((2_000_000,), 99.0, device="cuda") for _ in range(30)]
            del other
    with twinrun.Run(tmp_path / "host", atol=1e-3, keep_data=False) as host:
        for step in range(6):
            x = np.full(2_000_000, step, np.float32)
            host.capture(step, {f"x{at}": x for at in range(30)})
    assert twinrun.compare(tmp_path / "gpu", tmp_path / "host").same


def settings_of_host(settings: dict) -> dict:
    return {name: value for name, value in settings.items() if name != "device_memory"}


def test_gpu_large_arrays(tmp_path: Path) -> None:
    """Many slices, few and many differences; against files and a history too."""
    put = library("cupy")
    n = 20_000_003
    a = np.random.default_rng(2).normal(size=n).astype("f4")
    b = a + np.random.default_rng(3).uniform(-5e-4, 5e-4, n).astype("f4")
    for i in (5, 1_048_577, n - 1):
        b[i] += 1
    exact = np.abs(a.astype("f8") - b.astype("f8")) > 1e-3
    da, db = put(a), put(b)
    np.save(tmp_path / "a.npy", a)
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(5, {"array": da})
    truth = twinrun.compare(a, b, atol=1e-3, device="cpu").fields[0]
    assert truth.different == exact.sum()
    for x in (a, da, tmp_path / "a.npy", tmp_path / "run"):
        for y in (b, db):
            for method in ("auto", "direct"):
                other = {"array": y} if isinstance(x, Path) and x.name == "run" else y
                f = twinrun.compare(
                    x, other, atol=1e-3, options=twinrun.CompareOptions(method=method), device="cuda"
                ).fields[0]
                assert (f.different, f.first_index) == (truth.different, truth.first_index)
                assert f.max_rel_diff == truth.max_rel_diff
                assert f.histogram_different == truth.histogram_different
                if f.elements_read == f.elements:
                    assert (f.max_abs_diff, f.histogram) == (truth.max_abs_diff, truth.histogram)


def test_gpu_torch(tmp_path: Path) -> None:
    """What only tensors have: bf16, gradients, conjugation, parameters."""
    library("torch")
    import torch

    x = torch.randn(3, 1000, dtype=torch.float32)
    for tensor in (x.to(torch.bfloat16), x.to(torch.bfloat16).T, x.to(torch.float16), x.double()):
        other = tensor.clone()
        other[1, 1] += 1
        for gradient in (False, True):
            host, moved, on_gpu = (
                t.clone().requires_grad_(gradient) for t in (tensor, tensor.cuda(), other.cuda())
            )
            check_captured(tmp_path, {"x": host}, {"x": moved})
            assert twinrun.compare(host, moved).same
            assert twinrun.compare(host, on_gpu).fields[0].different == 1
    c = torch.randn(500, dtype=torch.complex64).cuda()
    assert twinrun.compare(c.conj(), c.conj().resolve_conj()).same
    assert not twinrun.compare(c.conj(), c).same
    assert twinrun.compare(c.conj().imag, -c.imag).same
    module = torch.nn.Linear(40, 30).cuda()
    state = module.state_dict()
    assert twinrun.compare(dict(module.named_parameters()), state).same
    with pytest.raises(twinrun.TwinrunError, match=r"array@indices"):
        twinrun.compare(torch.eye(4).cuda().to_sparse(), torch.eye(4))
    eight = torch.arange(4.0).cuda().to(torch.float8_e4m3fn)  # bytes, unless numbers are asked for
    with pytest.raises(twinrun.TwinrunError, match="types must agree"):
        twinrun.compare(eight, np.arange(4, dtype="f4"))
    assert twinrun.compare(eight, np.arange(4, dtype="f4"), types="values").same
    assert not twinrun.compare(eight, np.arange(4, dtype="f4") + 1, types="values").same


def test_gpu_streams_of_torch(tmp_path: Path) -> None:
    """Arrays that a stream is still busy making: a long kernel lies before what makes them."""
    library("torch")
    import torch

    n = 3_000_000
    host = np.arange(n, dtype="f4")
    expected = host + 1
    side = torch.cuda.Stream()
    base = torch.from_numpy(host).cuda()
    torch.cuda.synchronize()
    for given in (False, True):
        for turn in range(3):
            x = torch.zeros(n, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(300_000_000)  # 0.15 s or more
                torch.add(base, 1, out=x)
                if not given:  # it is the current stream: tensors say so
                    result = (
                        twinrun.compare(x, expected)
                        if turn
                        else twinrun.compare(x, torch.from_numpy(expected).cuda())
                    )
            if given and turn < 2:
                result = twinrun.compare(x, expected, stream=side if turn else side.cuda_stream)
            elif given:
                with twinrun.Run(tmp_path / "run", existing="replace") as run:
                    run.capture(1, {"x": x}, stream=side)
                result = twinrun.compare(tmp_path / "run", {"x": expected}, steps="1")
            assert result.same


@pytest.mark.parametrize("kind", ["non-blocking", "blocking", "default", "thread's default"])
def test_gpu_streams_of_cupy(kind: str) -> None:
    library("cupy")
    import cupy

    stream = {
        "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
        "blocking": cupy.cuda.Stream,
        "default": lambda: cupy.cuda.Stream.null,
        "thread's default": lambda: cupy.cuda.Stream.ptds,
    }[kind]()
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n) {} }',
        "spin",
    )
    n = 3_000_000
    base = cupy.arange(n, dtype="f4")
    expected = np.arange(n, dtype="f4") + 1
    for given in (False, True):
        x = cupy.zeros(n, "f4")
        cupy.cuda.Device().synchronize()
        with stream:
            spin((1,), (1,), (np.int64(300_000_000),))
            cupy.add(base, 1, out=x)
            if not given:
                result = twinrun.compare(x, expected)
        if given:
            result = twinrun.compare(x, expected, stream=stream)
        assert result.same


def test_gpu_two_threads() -> None:
    put = library("cupy")
    a = [sample("f8", (700_001,), seed) for seed in range(2)]
    b = [x.copy() for x in a]
    for i, y in enumerate(b):
        y[1000 * (i + 1)] += 1
    pairs = [(put(x), put(y)) for x, y in zip(a, b, strict=True)]

    def work(i: int) -> list[tuple]:
        found = []
        for turn in range(20):
            x, y = pairs[i] if turn % 2 else (a[i], pairs[i][1])
            f = twinrun.compare(x, y, atol=1e-3, device="cuda").fields[0]
            found.append((f.different, f.first_index))
        return found

    with ThreadPoolExecutor(2) as pool:
        for i, found in enumerate(pool.map(work, range(2))):
            assert found == [(1, (1000 * (i + 1),))] * 20


@pytest.mark.parametrize("name", LIBRARIES)
def test_gpu_differences_are_listed_as_on_the_host(name: str) -> None:
    put = library(name)
    a = sample("f4", (300, 400))
    b = np.where(np.random.default_rng(1).random(a.shape) < 0.1, a + 1, a)
    on_host = list(twinrun.compare(a, b, atol=0.5).differences())
    x, y = put(a), put(b)
    on_device = list(twinrun.compare(x, y, atol=0.5).differences())
    for part in ("index", "a", "b", "abs_diff"):
        both = (np.concatenate([getattr(d, part) for d in side]) for side in (on_host, on_device))
        np.testing.assert_array_equal(*both)


def test_gpu_command_line(tmp_path: Path) -> None:
    done = command("show", "--devices")
    assert done.status == 0 and "cuda:0" in done.out and "GPUDirect Storage" in done.out
    assert "GPUs: cuda:0" in command("show", "--system").out
    a = sample("f4", (3_000_000,))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", changed(a))
    documents = []
    for device in ("cpu", "cuda", "cuda:0"):
        report = tmp_path / "r.json"
        done = command(
            "compare", tmp_path / "a.npy", tmp_path / "b.npy", "--device", device, "--json", report, "-v"
        )
        assert done.status == 1 and ("device: cuda:0" in done.out) == (device != "cpu")
        d = load_json(report.read_text())
        assert d["device"].startswith("cpu" if device == "cpu" else "cuda:0")
        documents.append((d["first_divergence"], d["different"], d["fields"][0]["histogram"]))
    assert documents[0] == documents[1] == documents[2]
    number = len(_core.devices().devices)
    check_error(command("compare", "a", "b", "--device", f"cuda:{number}"), f"there is no cuda:{number}")
    storage = _core.devices().direct_storage
    if storage.available:
        done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--device", "cuda", "--io", "gds")
        assert done.status == 1
