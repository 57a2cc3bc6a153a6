"""Sketches: digests that stay where the arrays are, and what two of them say. With GPUs: test_sketch_gpu.py."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import brute_force

import twinrun
from twinrun import _core
from twinrun.errors import DamagedFile, Incomparable, MissingFile, TwinrunError, Unsupported

CODES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
NO_GPU = _core.devices().reason


def sample(code: str, shape: tuple, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng([seed, *code.encode(), *shape])
    if code in ("c8", "c16"):
        return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(code)
    if code[0] == "f":
        x = np.asarray(rng.normal(size=shape))
        if x.size > 3:
            x.reshape(-1)[[0, 1, 2]] = np.nan, np.inf, -0.0
        return x.astype(code)
    return np.asarray(rng.integers(0, 2 if code == "?" else 100, shape)).astype(code)


def perturbed(x: np.ndarray, noise: float, changed: int, seed: int = 5) -> np.ndarray:
    """x with noise on every element, and `changed` elements that are another value."""
    rng = np.random.default_rng(seed)
    y = x.copy()
    if x.dtype.kind in "fc":
        y = (x + noise * rng.uniform(-1, 1, x.shape)).astype(x.dtype)
    flat = y.reshape(-1)
    for i in rng.integers(0, max(y.size, 1), changed if y.size else 0):
        flat[i] = not flat[i] if y.dtype.kind == "b" else flat[i] + 1
    return y


def pairs_of_arrays() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Fields of every type, from empty to many chunks, that agree, nearly agree and differ."""
    a, b = {}, {}
    for code in CODES:
        for shape in ((), (0,), (3, 0, 2), (1,), (1025,), (3, 5, 700)):
            for noise, changed in ((0.0, 0), (4e-4, 0), (4e-4, 3), (5e-3, 0)):
                name = f"{code}{list(shape)} {noise:g} {changed}"
                a[name] = sample(code, shape)
                b[name] = perturbed(a[name], noise, changed)
    return a, b


def staged(tmp_path: Path, a: Mapping, b: Mapping, **settings: object) -> twinrun.Comparison:
    """The CPU's comparison in three stages, through histories of the same arrays."""
    for name, fields in (("a", a), ("b", b)):
        with twinrun.Run(tmp_path / name, existing="replace", **settings) as run:
            run.capture(1, fields)
    method = "published" if settings.get("digest") == "published" else "staged"
    return twinrun.compare(
        tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method=method), device="cpu"
    )


def check_equal(found: twinrun.SketchComparison, truth: twinrun.Comparison) -> None:
    """Sketches say what the tree and the sketches of histories said."""
    assert [f.field for f in found.fields] == [f.field for f in truth.fields]
    for f, t in zip(found.fields, truth.fields, strict=True):
        assert (f.dtype, f.shape, f.elements, f.chunks) == (t.dtype, t.shape, t.elements, t.chunks)
        assert (f.atol, f.rtol) == (t.atol, t.rtol)
        assert f.proven_by_tree == t.proven_by_tree
        flagged = t.stages["tree"]["chunks_out"]
        assert f.chunks - f.chunks_by_tree == flagged
        assert f.chunks_proven + f.chunks_open == f.chunks
        assert f.same == (f.verdict == "same") == (f.chunks_open == 0)
        sketch = t.stages["sketch"]
        if sketch["ran"] and sketch["chunks_in"] == flagged:  # it may leave a few to the elements at once
            assert f.proven_by_cells == t.proven_by_cells
            assert f.chunks_open == sketch["chunks_out"]
        if not t.same:
            assert not f.same
        decides = (f.atol, f.rtol) == (0, 0) and t.method != "published"
        assert f.digests_decide == decides
        if decides:
            assert f.same == t.same, "exact digests that differ are a difference"
            assert f.verdict == ("same" if t.same else "different")
    assert found.same == all(f.same for f in found.fields)
    assert sorted([*found.open, *found.different]) == sorted(f.field for f in found.fields if not f.same)
    assert found.verdict == ("different" if found.different else "open" if found.open else "same")


@pytest.mark.parametrize(
    "settings",
    [
        {"atol": 1e-3},
        {"atol": 1e-3, "residue_bits": 2},
        {"atol": 1e-3, "residue_bits": 0},
        {"atol": 1e-4, "rtol": 1e-3},
        {"rtol": 1e-2},
        {"atol": 1e-3, "chunk_bytes": 16384},
        {"atol": 1e-3, "digest": "published"},
        {},
    ],
    ids=str,
)
def test_sketches_say_what_staged_comparison_says(settings: dict, tmp_path: Path) -> None:
    a, b = pairs_of_arrays()
    found = twinrun.sketch(a, **settings).compare(twinrun.sketch(b, **settings))
    check_equal(found, staged(tmp_path, a, b, **settings))
    loaded = twinrun.sketch_of(tmp_path / "a", 1, device="cpu")
    for one, other in ((loaded, twinrun.sketch(b, **settings)), (twinrun.sketch(a, **settings), loaded)):
        again = one.compare(other)
        assert [f.field for f in again.fields] == list(a)
    again = loaded.compare(twinrun.sketch_of(tmp_path / "b", 1, device="cpu"))
    for f, g in zip(found.fields, again.fields, strict=True):
        assert np.array_equal(f.open_chunks, g.open_chunks)
        assert (f.proven_by_tree, f.proven_by_cells, f.cell) == (g.proven_by_tree, g.proven_by_cells, g.cell)
    assert found.fields[0].device == "cpu"


def test_every_difference_lies_in_an_open_chunk() -> None:
    rng = np.random.default_rng(9)
    for turn in range(60):
        code = ("f4", "f8", "c8")[turn % 3]
        x = sample(code, (int(rng.integers(1, 9000)),), turn)
        y = perturbed(x, float(rng.choice([0, 1e-4, 9e-4])), int(rng.integers(0, 4)), turn)
        f = twinrun.sketch({"x": x}, atol=1e-3).compare(twinrun.sketch({"x": y}, atol=1e-3))["x"]
        differ = brute_force(x, y, 1e-3, 0.0)["different"]
        assert {i // f.chunk_elements for i in differ} <= set(f.open_chunks.tolist())
        assert f.proven_by_tree + sum(f.proven_by_cells) == f.elements - sum(
            min(f.chunk_elements, f.elements - c * f.chunk_elements) for c in f.open_chunks.tolist()
        )


def test_layouts_and_byte_orders() -> None:
    x = sample("f8", (30, 40, 5))
    views = [x, x.T, x[:, ::2], x.reshape(-1)[3::7], x.astype(">f8"), np.asfortranarray(x), x[:1]]
    a = twinrun.sketch({str(i): v for i, v in enumerate(views)}, atol=1e-3)
    b = twinrun.sketch({str(i): v.copy(order="K") for i, v in enumerate(views)}, atol=1e-3)
    result = a.compare(b)
    assert result.same and result["3"].shape == views[3].shape and result["1"].shape == (5, 40, 30)
    with pytest.raises(Incomparable, match="row-major in one sketch"):
        twinrun.sketch({"x": x}).compare(twinrun.sketch({"x": np.asfortranarray(x)}))


def test_wider_tolerances_and_settings_that_cannot_be_compared() -> None:
    x = sample("f4", (5000,))
    n = np.arange(3000)
    y = perturbed(x, 7e-4, 0)
    a, b = twinrun.sketch({"x": x, "n": n}, atol=1e-3), twinrun.sketch({"x": y, "n": n + 1}, atol=1e-3)
    for wider in (1e-3, 3e-3):
        result = a.compare(b, atol=wider)
        assert result.different == ["n"] and result.verdict == "different", "integers are exact"
        assert (result["x"].atol, result["n"].atol) == (wider, 0.0)
    assert a.compare(twinrun.sketch({"x": y + np.float32(0.01), "n": n}, atol=1e-3)).open == ["x"]
    with pytest.raises(Incomparable, match="field 'x'"):
        a.compare(b, atol=1e-6)
    for settings in ({"atol": 1e-3, "chunk_bytes": 8192}, {"atol": 1e-3, "residue_bits": 2}):
        with pytest.raises(Incomparable, match="field 'x'"):
            a.compare(twinrun.sketch({"x": y, "n": n}, **settings))
    with pytest.raises(Incomparable, match="made for different tolerances"):
        a.compare(twinrun.sketch({"x": y, "n": n}, atol=2e-3))
    nans = np.full(10, np.nan, "f4")
    one = twinrun.sketch({"x": nans}, atol=1e-3)
    assert one.compare(one).same
    with pytest.raises(Incomparable):
        one.compare(one, equal_nan=False)
    own = twinrun.sketch({"x": x, "n": n}, tolerances={"x": (1e-3, 1e-2), "n": 2})
    f = own.compare(own)
    assert [(r.atol, r.rtol) for r in f.fields] == [(1e-3, 1e-2), (2.0, 0.0)]
    with pytest.raises(Incomparable, match="'n': the metadata was made for a tolerance, and integers"):
        own.compare(own, atol=2e-3, rtol=1e-2)


def test_fields_must_agree() -> None:
    x = np.arange(12, dtype="f4")
    a = twinrun.sketch({"x": x, "y": x, "z": x})
    for other, message in (
        ({"x": x, "y": x}, "field 'z' of arrays: not there"),
        ({"x": x, "y": x, "z": x.astype("f8")}, "field 'z': f32 in the first run, f64 in the second"),
        ({"x": x, "y": x, "z": x.reshape(3, 4)}, "shape"),
    ):
        with pytest.raises(Incomparable, match=message):
            a.compare(twinrun.sketch(other))
    assert a.compare(twinrun.sketch({"x": x, "y": x}), fields=["[xy]"]).same
    assert a.compare(twinrun.sketch({"x": x}), fields="x").same
    with pytest.raises(Incomparable, match="no field to compare"):
        a.compare(a, fields=["nothing"])
    with pytest.raises(KeyError):
        a.compare(a)["nothing"]
    with pytest.raises(TwinrunError, match="is not a sketch"):
        a.compare({"x": x})
    assert a.names == ["x", "y", "z"] and a.device == "cpu" and "3 fields" in repr(a)
    assert a.bytes == 3 * 8, "exact: one digest a field"
    assert twinrun.sketch({"x": x}, atol=1e-3).bytes == 8 + 8 + 64, "and a block of residues"


def test_bad_arguments() -> None:
    x = np.zeros(4)
    for settings, message in (
        ({"residue_bits": 3}, "residue_bits"),
        ({"chunk_bytes": 1000}, "chunk size"),
        ({"digest": "md5"}, "digest"),
        ({"atol": -1.0}, "toleran"),
        ({"atol": float("nan")}, "toleran"),
        ({"tolerances": {"x": -1.0}}, "toleran"),
        ({"threads": -1}, "threads"),
        ({"digest": "published", "rtol": 1e-3}, "relative"),
    ):
        with pytest.raises(TwinrunError, match=message):
            twinrun.sketch({"x": x}, **settings)
    with pytest.raises(TwinrunError, match="mapping"):
        twinrun.sketch(x)
    with pytest.raises(TwinrunError, match="x: "):
        twinrun.sketch({"x": np.array([object()])})
    with pytest.raises(TwinrunError, match="two fields"):
        twinrun.sketch({"1": x, 1: x})
    assert twinrun.sketch({}).names == []


def test_sketches_of_histories(tmp_path: Path) -> None:
    x = sample("f4", (5000,))
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(10, {"x": x, "v": x})
        run.capture(20, {"x": x + np.float32(1), "v": x})
    now = twinrun.sketch({"x": perturbed(x, 4e-4, 0), "v": x}, atol=1e-3)
    assert twinrun.sketch_of(tmp_path / "run", 10, device="cpu").compare(now).same
    later = twinrun.sketch_of(tmp_path / "run", 20, device="cpu")
    assert later.compare(now).open == ["x"] and "step 20" in later.label
    # Some fields; a metadata file; data that is elsewhere.
    some = twinrun.sketch_of(tmp_path / "run", 10, device="cpu", fields="v")
    assert some.names == ["v"] and some.compare(now, fields=["v"]).same
    (file,) = (tmp_path / "run").glob("step-*10/*.twm")
    assert twinrun.sketch_of(file, device="cpu").compare(now).same
    for data in (tmp_path / "run").glob("step-*/*.data"):
        data.unlink()
    assert twinrun.sketch_of(str(tmp_path / "run"), 10, device="cpu").compare(now).same
    for arguments, error, message in (
        ((tmp_path / "run", 15), Incomparable, "step 15, rank 0: not there"),
        ((tmp_path / "run",), TwinrunError, "no step was given"),
        ((file, 10), TwinrunError, "no steps to choose"),
        ((tmp_path / "nothing", 1), MissingFile, "no such file or folder"),
        ((tmp_path / "run", "ten"), TwinrunError, "a step is an integer"),
    ):
        with pytest.raises(error, match=message):
            twinrun.sketch_of(*arguments, device="cpu")
    with pytest.raises(Incomparable, match="rank 3"):
        twinrun.sketch_of(tmp_path / "run", 10, rank=3, device="cpu")
    with pytest.raises(Incomparable, match="no field of these names"):
        twinrun.sketch_of(tmp_path / "run", 10, device="cpu", fields=["w"])


def test_damaged_metadata_is_found(tmp_path: Path) -> None:
    x = sample("f4", (50_000,))
    with twinrun.Run(tmp_path / "run", atol=1e-3, keep_data=False) as run:
        run.capture(1, {"x": x})
    (file,) = (tmp_path / "run").glob("step-*/*.twm")
    whole = file.read_bytes()
    facts = _core.Metadata(str(file))
    residues = facts.section(0, "residues")
    at = whole.index(residues[:64])
    for place in (at + 5000, 10):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedFile):
            twinrun.sketch_of(tmp_path / "run", 1, device="cpu")
    file.write_bytes(whole[:-1])
    with pytest.raises(DamagedFile):
        twinrun.sketch_of(tmp_path / "run", 1, device="cpu")
    shutil.rmtree(file.parent)
    with pytest.raises(MissingFile):
        twinrun.sketch_of(tmp_path / "run", 1, device="cpu")


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(3000, dtype="f4")
    a = twinrun.sketch({"x": x})
    assert a.to("cpu") is a
    for device in ("cuda:0,1", "gpu"):
        with pytest.raises(TwinrunError):
            a.to(device)
    if NO_GPU:
        with pytest.raises(Unsupported, match="no GPU can be used"):
            a.to("cuda:0")
        assert a.to("auto") is a
        with pytest.raises(Unsupported, match="cuda:0 cannot be used"):
            _core.move_sketches(list(a._fields.values()), 0)
    # Of two places.
    b = twinrun.sketch({"x": x})
    assert a.compare(b).same

    class Elsewhere:
        device = 1

    monkeypatch.setattr(b, "_fields", {**b._fields, "x": Elsewhere()})
    with pytest.raises(Incomparable, match=r"on cpu in arrays, on cuda:1 in arrays.*to\('cpu'\)"):
        a.compare(b)


def test_arrays_may_change_and_sketches_outlive_them() -> None:
    x = sample("f8", (100_000,))
    kept = twinrun.sketch({"x": x}, atol=1e-3)
    same = twinrun.sketch({"x": x.copy()}, atol=1e-3)
    x[:] = 0
    del x
    gc.collect()
    assert kept.compare(same).same
    result = kept.compare(twinrun.sketch({"x": np.ones(100_000)}, atol=1e-3))
    del kept, same
    gc.collect()
    assert result["x"].chunks_open == result["x"].open_chunks.size == 196


def test_threads_share_a_sketch() -> None:
    x = sample("f4", (200_000,))
    a = twinrun.sketch({"x": x}, atol=1e-3)
    b = twinrun.sketch({"x": perturbed(x, 4e-4, 2)}, atol=1e-3)
    start = threading.Barrier(4)

    def work(_: int) -> list[tuple]:
        start.wait()
        return [(f.chunks_open, f.proven_by_cells) for f in (a.compare(b)["x"] for _ in range(10))]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert all(r == results[0] for r in results) and len(set(map(str, results[0]))) == 1


def test_own_tolerances_are_not_for_what_compares_exactly() -> None:
    """Booleans and dates; integers have the tolerance that names them."""
    day = np.array(["2024-01-01"], "M8[D]")
    a = {"n": np.array([1]), "b": np.array([True]), "t": day, "x": np.array([1.0])}
    b = {"n": np.array([2]), "b": np.array([False]), "t": day + 1, "x": np.array([2.0])}
    own = dict.fromkeys(a, 1000.0)
    of_a, of_b = (twinrun.sketch(fields, tolerances=own) for fields in (a, b))
    assert of_a.compare(of_b, fields=["x"]).verdict == "same"
    assert of_a.compare(of_b, fields=["n"]).verdict == "same"
    for name in ("b", "t"):
        assert of_a.compare(of_b, fields=[name]).verdict == "different"
        assert of_a.compare(twinrun.sketch(a, tolerances=own), fields=[name]).verdict == "same"
