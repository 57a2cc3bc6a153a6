"""Golden files of what is more than numbers in order: times, structs, archives, bytes, texts, large integers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from golden_checks import checked, hold_against_brute_force

import twinrun
from twinrun import golden


def test_empty_and_single_elements(tmp_path: Path) -> None:
    fields = {"none": np.zeros((0, 3)), "one": np.float64(2.5), "flag": np.array([True, False])}
    golden.save(fields, tmp_path / "golden", atol=1e-3)
    assert golden.check(tmp_path / "golden", fields).same
    assert golden.check(tmp_path / "golden", {**fields, "one": np.float64(2.6)}).verdict == "different"
    assert (
        golden.check(tmp_path / "golden", {**fields, "flag": np.array([True, True])}).verdict == "different"
    )


def test_column_major_arrays_are_indexed_as_the_user_does(tmp_path: Path) -> None:
    a = np.asfortranarray(np.random.default_rng(10).normal(size=(40, 30, 5)))
    b = a.copy(order="F")
    b[31, 2, 4] += 0.5
    field = checked(a, b, tmp_path, atol=1e-6)
    assert [e.index for e in field.listed if e.verdict == "different"] == [(31, 2, 4)]
    assert field.listed[0].b == b[31, 2, 4]


MOMENTS = [np.array([1, -(1 << 63)]).astype(kind) for kind in ("M8[s]", "M8[ms]", "m8[s]", "M8[25s]", "i8")]


@pytest.mark.parametrize("way", ["array", "masked", "struct", "npy", "npz", "indexed", "history"])
def test_units_of_time_are_kept(tmp_path: Path, way: str) -> None:
    def made(values: np.ndarray, folder: Path) -> object:
        folder.mkdir()
        if way == "masked":
            return {"t": np.ma.array(values, mask=[False, True])}
        if way == "struct":
            return {"t": values.view([("begin", values.dtype)])}
        if way in ("npy", "indexed"):
            np.save(folder / "t.npy", values)
            if way == "indexed":
                twinrun.index(folder)
            return folder / "t.npy"
        if way == "npz":
            np.savez(folder / "t.npz", t=values)
            return folder / "t.npz"
        if way == "history":
            with twinrun.Run(folder / "h") as run:
                run.capture(0, {"t": values})
            return folder / "h"
        return {"t": values}

    runs = [made(values, tmp_path / str(n)) for n, values in enumerate(MOMENTS)]
    for n, run in enumerate(runs):
        kept = tmp_path / f"golden-{n}"
        golden.save(run, kept)
        for m, other in enumerate(runs):
            assert bool(golden.check(kept, other)) == (n == m), (n, m)


def test_units_of_time_are_no_fields_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", MOMENTS[0])
    np.save(tmp_path / "b.npy", MOMENTS[0])
    facts = golden.save(tmp_path / "a.npy", tmp_path / "golden", fields=["a"])
    assert facts.fields == 1
    assert golden.check(tmp_path / "golden", tmp_path / "a.npy", fields=["a"])
    golden.save(tmp_path / "a.npy", tmp_path / "golden")
    assert golden.check(tmp_path / "golden", tmp_path / "b.npy")  # a single array, named after its file


def test_a_struct_saved_under_another_name(tmp_path: Path) -> None:
    rows = np.zeros(5, [("x", "f4"), ("sub", [("n", "i4"), ("m", "i4")])])
    other = rows.copy()
    other["sub"]["n"][2] = 3
    fewer, single = np.zeros(5, [("x", "f4")]), np.zeros(5, [("x", "f4")])
    for name, array in (
        ("a", rows),
        ("b.c", rows),
        ("other", other),
        ("fewer", fewer),
        ("single", single),
        ("plain", rows["x"].copy()),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    for saved in ("a", "b.c"):
        golden.save(tmp_path / f"{saved}.npy", tmp_path / f"golden {saved}")
        same = [n for n in ("a", "b.c", "other", "fewer", "plain")
                if golden.check(tmp_path / f"golden {saved}", tmp_path / f"{n}.npy")]  # fmt: skip
        assert same == ["a", "b.c"]
    golden.save(tmp_path / "fewer.npy", tmp_path / "golden fewer")
    assert golden.check(tmp_path / "golden fewer", tmp_path / "single.npy")
    assert not golden.check(tmp_path / "golden fewer", tmp_path / "plain.npy")


def test_a_folder_in_an_archive_counts(tmp_path: Path) -> None:
    for name, member in (("a", None), ("b", "one/"), ("c", "two/")):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(3.0))
        if member is not None:
            with zipfile.ZipFile(tmp_path / f"{name}.npz", "a") as archive:
                archive.writestr(member, "")
    for name in "abc":
        golden.save(tmp_path / f"{name}.npz", tmp_path / name)
        assert [n for n in "abc" if golden.check(tmp_path / name, tmp_path / f"{n}.npz")] == [name]


@pytest.mark.parametrize("other", ["F8_E5M2", "F8_E8M0", "U8"])
def test_bytes_of_another_kind(other: str, tmp_path: Path) -> None:
    for run, kind in (("a", "F8_E4M3"), ("b", other), ("again", "F8_E4M3")):
        header = json.dumps({"w": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
        made = tmp_path / f"{run}.safetensors"
        made.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    golden.save(tmp_path / "a.safetensors", tmp_path / "G", ignore_attributes=["*"])
    assert golden.check(tmp_path / "G", tmp_path / "again.safetensors").same
    assert golden.check(tmp_path / "G", tmp_path / "b.safetensors").verdict == "incomparable"
    golden.save(tmp_path / "b.safetensors", tmp_path / "G")
    assert golden.check(tmp_path / "G", tmp_path / "a.safetensors", ignore_attributes=["*"]).status == 2


def test_the_only_field_of_a_folder_has_a_name(tmp_path: Path) -> None:
    for run, name in (("a", "density"), ("b", "pressure"), ("c", "density")):
        (tmp_path / run).mkdir()
        np.save(tmp_path / run / f"{name}.npy", np.arange(3.0))
    golden.save(tmp_path / "a", tmp_path / "G")
    assert golden.check(tmp_path / "G", tmp_path / "c").same
    assert golden.check(tmp_path / "G", tmp_path / "b").verdict == "incomparable"
    golden.save(tmp_path / "a" / "density.npy", tmp_path / "G")  # a file is named by who names it
    assert golden.check(tmp_path / "G", tmp_path / "b" / "pressure.npy").same


@pytest.mark.parametrize(("then", "now", "status"), [
    ("1", "1", 0), ("1", "1.0", 0), ("1.0", "1", 0), ("1", "2.0", 1), ("1.0", "2", 1), ("1", "1.5", 2), ("1.5", "1", 1),
])  # fmt: skip
def test_integers_that_a_text_tells_as_fractions(then: str, now: str, status: int, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    for name, text in (("then", then), ("now", now)):
        (tmp_path / f"{name}.csv").write_text(f"a,b\n1,{text}\n2,3\n")
    golden.save(tmp_path / "then.csv", tmp_path / "G")
    assert golden.check(tmp_path / "G", tmp_path / "now.csv").status == status


@pytest.mark.parametrize("rtol", [0.0, 1e-310, 1e-40, 5e-16, 1e-12])
@pytest.mark.parametrize("atol", [0.001, 1.0, 7.0])
@pytest.mark.parametrize("dtype", ["i1", "i2", "u4"])
def test_integers_are_their_own_cells(tmp_path: Path, dtype: str, atol: float, rtol: float) -> None:
    """Also beside a relative part that is next to nothing: it took the cells of all of them."""
    a = np.arange(3000).astype(dtype)
    b = a.copy()
    b[[100, 1000, 1001, 2900]] += np.array([1, 2, 7, 8], dtype)
    assert (
        checked(a, a.copy(), tmp_path / "same", atol=atol, rtol=rtol, tolerate_integers=True).verdict
        == "same"
    )
    field = checked(a, b, tmp_path / "moved", atol=atol, rtol=rtol, tolerate_integers=True)
    assert field.undecided == 0 and field.verdict == "different"
    hold_against_brute_force(a, b, field)


def test_large_integers_beside_a_tiny_relative_part(tmp_path: Path) -> None:
    """Their tolerances are wider than atol, and known exactly."""
    a = np.arange(1, 500) * (1 << 49)
    b = a + np.arange(499) % 5
    field = checked(a, b, tmp_path, atol=1.0, rtol=2.0**-57, tolerate_integers=True)
    hold_against_brute_force(a, b, field)
    assert field.undecided == 0 and field.different_is_exact and 0 < field.different < 400
