"""What other comparison tools are known to get wrong: each is a test here.

The published code of error-bounded Merkle comparison, and the traps of h5diff, nccmp, cprnc and plotfile differs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import cannot_compare, command, load_json

import twinrun

METHODS = ["auto", "staged", "direct", "published"]


def captured(folder: Path, digest: str = "linear", atol: float = 1e-3, **options: object) -> twinrun.Run:
    return twinrun.Run(folder, atol=atol, digest=digest, existing="replace", **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("atol", [0.0, 1e-3])
def test_identical_inputs(method: str, atol: float, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=300_000).astype("f4")
    for name in "ab":
        with captured(tmp_path / name, "published" if method == "published" else "linear", atol) as run:
            run.capture(1, {"x": x})
        x.tofile(tmp_path / f"{name}.f32")
    assert command("compare", tmp_path / "a", tmp_path / "b", "--method", method).status == 0
    assert command("compare", tmp_path / "a", tmp_path / "a", "--method", method).status == 0
    assert (
        command("compare", tmp_path / "a.f32", tmp_path / "b.f32", "--method", method, "--atol", atol).status
        == 0
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_tolerance_of_zero_flags_the_smallest_difference(method: str) -> None:
    a = np.random.default_rng(2).normal(size=20_000)
    for i in (0, 511, 512, 19_999):
        b = a.copy()
        b[i] = np.nextafter(b[i], 2.0)
        result = twinrun.compare(a, b, atol=0.0, options=twinrun.CompareOptions(method=method))
        assert result.different == 1 and result.first_divergence["index"] == [i]
    assert twinrun.compare(
        np.array([0.0]), np.array([-0.0]), atol=0.0, options=twinrun.CompareOptions(method=method)
    ).same
    assert not twinrun.compare(
        np.array([0.0]), np.array([5e-324]), atol=0.0, options=twinrun.CompareOptions(method=method)
    ).same


@pytest.mark.parametrize("method", ["staged", "published"])
def test_any_number_of_leaves(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """+1.0 planted anywhere is found, whatever the shape of the tree."""
    if os.access("/dev/shm", os.W_OK):  # where bringing thousands of temporary files to storage costs nothing
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    rng = np.random.default_rng(3)
    for leaves in (1, 2, 3, 5, 6, 7, 9, 11, 12, 13, 31, 33, 63, 65, 100):
        for part in (1024, 1):  # the last leaf full, or one element
            a = rng.normal(size=(leaves - 1) * 1024 + part).astype("f4")
            places = {0, a.size - 1, (leaves - 1) * 1024, *(int(i) for i in rng.integers(a.size, size=3))}
            for i in places:
                b = a.copy()
                b[i] += 1
                f = twinrun.compare(a, b, atol=1e-3, options=twinrun.CompareOptions(method=method)).fields[0]
                assert (f.different, f.first_index) == (1, (i,)), (leaves, part, i)


@pytest.mark.parametrize("method", METHODS)
def test_large_doubles_against_small_tolerances(method: str) -> None:
    """Doubles are compared as doubles: |x| ~ 1e10 against 1e-5, where f32 resolves 1024."""
    rng = np.random.default_rng(4)
    a = 1e10 * rng.normal(size=10_000)
    eps = 1e-5
    for factor in (0.4, 1.5, 9.5):
        b = a + factor * eps * rng.choice([-1, 1], a.size)
        truth = np.abs(a - b) > eps
        f = twinrun.compare(a, b, atol=eps, options=twinrun.CompareOptions(method=method)).fields[0]
        assert f.different == truth.sum()
        assert f.first_index == (None if not truth.any() else (int(truth.argmax()),))


@pytest.mark.parametrize("method", METHODS)
def test_matching_nan_in_chunks_that_are_read(method: str) -> None:
    a = np.random.default_rng(5).normal(size=8192)
    a[::7] = np.nan
    b = a.copy()
    b[5], b[4097] = b[5] + 1, b[4097] + 1
    assert not np.isnan(a[[5, 4097]]).any()
    f = twinrun.compare(a, b, atol=1e-6, options=twinrun.CompareOptions(method=method)).fields[0]
    assert (f.different, f.infinite, f.first_index) == (2, 0, (5,))
    assert abs(f.max_abs_diff - 1) < 1e-9
    differing = twinrun.compare(a, b, atol=1e-6, equal_nan=False).fields[0]
    assert differing.different == 2 + np.isnan(a).sum()


@pytest.mark.parametrize("method", METHODS)
def test_nan_and_infinity_against_numbers(method: str) -> None:
    """Different, infinitely, and never lost in a maximum; under any tolerance."""
    a, b = np.zeros(3000), np.zeros(3000)
    for i, (x, y) in enumerate(
        [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1e308), (-np.inf, np.inf), (np.nan, np.inf)]
    ):
        a[i * 500], b[i * 500] = x, y
    a[2900], b[2900] = np.inf, np.inf
    for atol in (0.0, 1e-3, 1e300):
        f = twinrun.compare(a, b, atol=atol, options=twinrun.CompareOptions(method=method)).fields[0]
        assert (f.different, f.infinite, f.first_index) == (5, 5, (0,))
        assert f.max_abs_diff == np.inf and f.max_rel_diff == np.inf
        assert f.histogram_different[-1] == 5


@pytest.mark.parametrize("method", METHODS)
def test_tiny_values_under_a_tiny_tolerance(method: str) -> None:
    a, b = np.full(600, 1e-20), np.full(600, 2e-20)
    assert not twinrun.compare(a, b, atol=1e-21, options=twinrun.CompareOptions(method=method)).same
    assert twinrun.compare(a, b, atol=2e-20, options=twinrun.CompareOptions(method=method)).same
    assert not twinrun.compare(a, b, atol=0.0, options=twinrun.CompareOptions(method=method)).same
    if method != "published":  # which knows no relative tolerance
        assert not twinrun.compare(a, b, rtol=1e-6, options=twinrun.CompareOptions(method=method)).same
        assert twinrun.compare(a, b, rtol=2.0, options=twinrun.CompareOptions(method=method)).same


def test_files_of_different_length(tmp_path: Path) -> None:
    """Neither hangs nor ignores a tail, in whichever order they are named."""
    x = np.arange(10_000.0)
    for suffix, save in (
        ("npy", np.save),
        ("f64", lambda p, v: v.tofile(p)),
        ("npz", lambda p, v: np.savez(p, x=v)),
    ):
        for name, n in (("long", 10_000), ("short", 9_999), ("empty", 0)):
            save(tmp_path / f"{name}.{suffix}", x[:n])
        for one in ("long", "short", "empty"):
            for other in ("long", "short", "empty"):
                paths = tmp_path / f"{one}.{suffix}", tmp_path / f"{other}.{suffix}"
                if one == other:
                    assert command("compare", *paths).status == 0
                else:
                    cannot_compare(*paths, tmp_path, "shape")
                    cannot_compare(*paths, tmp_path, "shape", options=("--method", "direct"))


def test_a_file_that_shrinks_between_planning_and_reading(tmp_path: Path) -> None:
    """A short read is an error, in every way to read."""
    x = np.random.default_rng(6).normal(size=1_000_000)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", x)
    for io in ("uring", "pread"):
        if io == "uring" and not twinrun._core.uring_available():
            continue
        for cache in ("buffered", "direct"):
            sources = []
            for name in "ab":
                path = str(tmp_path / f"{name}.npy")
                extent = twinrun._core.PathExtent(path, offset=128, stride=8, count=x.size)
                sources.append(twinrun._core.file_source("f64", "little", x.size, [extent], cache))
            os.truncate(tmp_path / "b.npy", 4_000_000)
            with pytest.raises(twinrun.TwinrunError, match=r"b\.npy"):
                twinrun._core.compare(
                    *map(twinrun._core.FieldSide, sources),
                    twinrun._core.Rule(),
                    twinrun._core.CompareOptions(method="direct", io=io, cache=cache),
                )
            np.save(tmp_path / "b.npy", x)


def test_a_decoder_that_fails_half_way(tmp_path: Path) -> None:
    """A chunk that cannot be decoded, or is short: never taken for zeros."""
    x = np.random.default_rng(7).normal(size=200_000)
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=(10_000,), compression="gzip")
            chunk = file["x"].id.get_chunk_info(13)
    assert command("compare", tmp_path / "a.h5", tmp_path / "b.h5").status == 0
    with open(tmp_path / "b.h5", "r+b") as file:
        file.seek(chunk.byte_offset + chunk.size // 2)
        file.write(bytes(64))
    cannot_compare(tmp_path / "a.h5", tmp_path / "b.h5", tmp_path, "b.h5", "'x'")


def test_missing_datasets_are_not_zero_differences(tmp_path: Path) -> None:
    for name, fields in (("a", "xy"), ("b", "x"), ("c", "pq")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for field in fields:
                file[field] = np.zeros(4)
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    cannot_compare(a, b, tmp_path, "field 'y' of", "not there")
    cannot_compare(b, a, tmp_path, "field 'y' of", "not there")
    cannot_compare(a, c, tmp_path, "fields 'x', 'y' of", "not there")


def test_nothing_compared_is_never_the_same(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    np.savez(tmp_path / "none.npz")
    with twinrun.Run(tmp_path / "run"):
        pass
    for name in ("empty.h5", "none.npz", "run"):
        cannot_compare(tmp_path / name, tmp_path / name, tmp_path)
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    cannot_compare(tmp_path / "x.npz", tmp_path / "x.npz", tmp_path, options=("--field", "y*"))
    cannot_compare(tmp_path / "x.npz", tmp_path / "x.npz", tmp_path, options=("--steps", "1"))


def test_millions_of_differences_are_counted_and_not_printed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2_000_000, "f4"))
    np.save(tmp_path / "b.npy", np.ones(2_000_000, "f4"))
    done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--json", tmp_path / "r.json")
    assert done.status == 1 and len(done.out) < 2000
    report = (tmp_path / "r.json").read_text()
    assert len(report) < 20_000 and load_json(report)["different"] == 2_000_000


def test_threads_and_memory_do_not_change_the_report() -> None:
    rng = np.random.default_rng(8)
    a = rng.normal(size=1_500_000)
    b = a + rng.normal(size=a.size) * 1e-6
    reports = []
    for threads, memory in ((1, 1 << 30), (2, 1), (3, 1 << 22), (16, 1 << 30)):
        f = twinrun.compare(
            a, b, atol=1e-6, threads=threads, options=twinrun.CompareOptions(memory=memory)
        ).fields[0]
        reports.append((f.different, f.first_index, f.max_abs_diff, f.max_abs_index, f.rms_diff, f.histogram))
    assert all(r == reports[0] for r in reports)
