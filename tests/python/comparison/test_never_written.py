"""Fields of which nothing was ever stored: one element decides, and the report is that of comparing all of them."""

from __future__ import annotations

import dataclasses
import functools
import math
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.comparison import ranges
from twinrun.comparison.field import FieldComparison
from twinrun.comparison.ranges import UNIFORM
from twinrun.runs.fields import FieldRef

h5py = pytest.importorskip("h5py")

# What says how it was found, and not what was found.
HOW = ("seconds", "stages", "reason", "io", "chunks")


def write(path, dtype, shape, fill, chunks=None, name="x"):
    """A data set without a stored element."""
    with h5py.File(path, "a") as file:
        file.create_dataset(name, shape, dtype, chunks=chunks, fillvalue=fill)


def by_brute_force(a, b, **options):
    """The comparison that reads every element."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FieldRef, "is_uniform", property(lambda ref: False))
        return twinrun.compare(a, b, partial=True, **options)


def check_alike(found: FieldComparison, wanted: FieldComparison) -> None:
    assert wanted.reason != UNIFORM == found.reason
    for field in dataclasses.fields(FieldComparison):
        if field.name in HOW:
            continue
        x, y = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in ("rms_diff", "rms_diff_all") and y is not None:  # sums are rounded
            assert x == pytest.approx(y, rel=1e-12, nan_ok=True), field.name
        elif isinstance(x, float) and math.isnan(x):
            assert math.isnan(y), field.name
        else:
            assert x == y, field.name


VALUES = {
    "f4": [0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 1e-3],
    "f8": [0.0, 1.5, 1.5000001, math.nan, math.inf],
    "c8": [0j, 1 + 1j, 1 - 2j, complex(math.nan, 1)],
    "i4": [0, 7, -7],
    "u8": [0, 7, 1 << 63],
    "?": [False, True],
}


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_report_is_that_of_all_elements(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("x")
    dtype = data.draw(st.sampled_from(sorted(VALUES)))
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    chunks = True if shape and data.draw(st.booleans()) else None
    for name in ("a", "b"):
        write(folder / f"{name}.h5", dtype, shape, data.draw(st.sampled_from(VALUES[dtype])), chunks)
    options = data.draw(st.sampled_from([{}, {"atol": 2.0}, {"rtol": 0.5}, {"ulp": 3}, {"equal_nan": False}, {"tolerate_integers": True, "atol": 8}]))  # fmt: skip
    period = data.draw(st.sampled_from([{}, {"period": "x=2"}]))
    if dtype in ("f4", "f8"):
        options |= period
    a, b = folder / "a.h5", folder / "b.h5"
    found, wanted = twinrun.compare(a, b, partial=True, **options), by_brute_force(a, b, **options)
    assert found.verdict == wanted.verdict
    assert len(found.fields) == len(wanted.fields) == 1
    check_alike(found.fields[0], wanted.fields[0])


def test_texts_that_were_never_written(tmp_path) -> None:
    for name, fill in (("a", b"one"), ("b", b"two")):
        write(tmp_path / f"{name}.h5", "S3", (4, 5), fill)
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    found = twinrun.compare(a, b)
    check_alike(found.fields[0], by_brute_force(a, b).fields[0])
    assert (found.fields[0].different, found.fields[0].first_a) == (20, "'one'")


def test_sizes_that_nobody_can_read(tmp_path) -> None:
    for name, fill in (("a", 3), ("b", 3), ("c", 7)):
        write(tmp_path / f"{name}.h5", "f4", (1 << 40,), fill, (1 << 20,), "huge")
        write(tmp_path / f"{name}.h5", "i1", (1 << 31, 1 << 31), 0, (1 << 10, 1 << 10), "byte")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert twinrun.compare(
        tmp_path / "a.h5", tmp_path / "b.h5", options=twinrun.CompareOptions(memory=64 << 20)
    )
    found = twinrun.compare(
        tmp_path / "a.h5", tmp_path / "c.h5", options=twinrun.CompareOptions(memory=64 << 20)
    )
    huge = next(f for f in found.fields if f.field == "huge")
    assert huge.different == huge.elements == 1 << 40 and huge.first_index == (0,)
    assert huge.histogram_different[huge.histogram_different.index(1 << 40)] == 1 << 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


CAST = {**VALUES, "f2": [0.0, 1.5, math.nan], "i2": [0, 7, -7], "i8": [0, 7, -7, (1 << 53) + 1, -(1 << 63)], "u8": [0, 7, 1 << 63, (1 << 64) - 1]}  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_report_of_two_types_is_that_of_all_elements(tmp_path_factory, data) -> None:
    """By value: in the wider of both types, or in two of 64 bits of which neither holds all of the other."""
    folder = tmp_path_factory.mktemp("x")
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    kinds = data.draw(st.lists(st.sampled_from(sorted(CAST)), min_size=2, max_size=2, unique=True))
    for name, kind in zip("ab", kinds, strict=True):
        write(folder / f"{name}.h5", kind, shape, data.draw(st.sampled_from(CAST[kind])))
    rule = data.draw(st.sampled_from([{}, {"atol": 2.0}, {"rtol": 0.5}, {"equal_nan": False}, {"tolerate_integers": True, "atol": 8}, {"atol": 0.5, "period": "x=2"}]))  # fmt: skip
    a, b = folder / "a.h5", folder / "b.h5"
    reports = []
    for run in (functools.partial(twinrun.compare, partial=True), by_brute_force):
        try:  # the fill values are of two types, too
            reports.append(run(a, b, types="values", ignore_attributes="(fill value)", **rule))
        except twinrun.Incomparable as error:
            reports.append(str(error))
    found, wanted = reports
    if isinstance(wanted, str):  # a complex number against an integer, a period of integers
        assert found == wanted
        return
    assert (found.verdict, found.problems) == (wanted.verdict, wanted.problems)
    assert len(found.fields) == len(wanted.fields)
    for one, other in zip(found.fields, wanted.fields, strict=True):
        check_alike(one, other)


@pytest.mark.parametrize(("of_a", "of_b"), [("f4", "f8"), ("i2", "f4"), ("i8", "u8"), ("f8", "i8")])
def test_sizes_of_two_types_that_nobody_can_read(tmp_path, of_a, of_b) -> None:
    for name, kind, fill in (("a", of_a, 3), ("b", of_b, 3), ("c", of_b, 7)):
        write(tmp_path / f"{name}.h5", kind, (1 << 20, 1 << 20), fill, (1 << 10, 1 << 10))
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    how = {"types": "values", "ignore_attributes": "(fill value)"}  # they are of two types, too
    same, other = twinrun.compare(a, b, **how), twinrun.compare(a, c, **how)
    assert same.same and same.fields[0].elements == 1 << 40 and same.fields[0].elements_read == 1 << 40
    field = other.fields[0]
    assert (field.different, field.first_index, field.max_abs_diff) == (1 << 40, (0, 0), 4.0)
    assert field.types is not None and field.reason == UNIFORM and other.bytes_read < 1 << 20


def test_stored_elements_of_another_type_against_none(tmp_path) -> None:
    write(tmp_path / "a.h5", "f4", (1000,), 2.5, (10,))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", (1000,), chunks=(10,), fillvalue=2.5, dtype="f8")[500] = 3.0
    for pair in (("a.h5", "b.h5"), ("b.h5", "a.h5")):
        found = twinrun.compare(*(tmp_path / name for name in pair), types="values").fields[0]
        assert (found.different, found.first_index) == (1, (500,)) and found.reason != UNIFORM


def test_stored_elements_against_none(tmp_path) -> None:
    write(tmp_path / "a.h5", "f8", (1000,), 2.5, (10,))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", data=np.full(1000, 2.5), chunks=(10,), fillvalue=2.5, maxshape=(1000,))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", (1000,), chunks=(10,), fillvalue=2.5, dtype="f8")[500] = 3.0
    assert twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5").same
    found = twinrun.compare(tmp_path / "a.h5", tmp_path / "c.h5").fields[0]
    assert (found.different, found.first_index) == (1, (500,)) and found.reason != UNIFORM


def test_all_methods_and_metadata(tmp_path) -> None:
    for name, fill in (("a", 1.0), ("b", 1.25)):
        write(tmp_path / f"{name}.h5", "f8", (3000,), fill, (100,))
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    for _ in range(2):
        for method in ("auto", "direct", "staged", "published"):
            for atol, different in ((0.5, 0), (0.1, 3000)):
                found = twinrun.compare(
                    a, b, options=twinrun.CompareOptions(method=method), atol=atol
                ).fields[0]
                assert (found.different, found.reason) == (different, UNIFORM)
        twinrun.index(a, b, atol=0.1)


def test_metadata_of_sizes_that_nobody_can_read(tmp_path) -> None:
    write(tmp_path / "a.h5", "f4", (1 << 40,), 3, (1 << 20,), "huge")
    write(tmp_path / "a.h5", "f4", (1 << 10,), 3, (1 << 10,), "x")
    with pytest.raises(twinrun.Unsupported, match=r"'huge'.*none of its 1099511627776 elements is stored"):
        twinrun.index(tmp_path / "a.h5")
    assert not (tmp_path / "a.h5.twm").exists()
    assert twinrun.index(tmp_path / "a.h5", fields="x")[0].fields == 1
    assert twinrun.compare(tmp_path / "a.h5", tmp_path / "a.h5")
    with pytest.raises(twinrun.Unsupported, match=r"'huge'.*none of its 1099511627776 elements is stored"):
        twinrun.golden.save(tmp_path / "a.h5", tmp_path / "golden")
    assert not (tmp_path / "golden").exists()


def test_references_without_fill_values_are_not_compared(tmp_path) -> None:
    """HDF5 leaves memory as it is, and makes references of it."""
    for name, never in (("a", True), ("b", True), ("c", False), ("d", False)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((999,))
            if never:
                plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            kind = h5py.h5t.py_create(h5py.ref_dtype, logical=True)
            h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((70000,)), plist)
    with pytest.raises(twinrun.TwinrunError, match="not defined what its references point at"):
        twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert twinrun.compare(tmp_path / "c.h5", tmp_path / "d.h5").same


@pytest.mark.parametrize("dtype", ["f8", "i4", [("a", "f4"), ("b", "i2", (3,))]], ids=str)
def test_numbers_without_fill_values_are_0(tmp_path, dtype) -> None:
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((9,))
        plist.set_fill_value(np.ones((), dtype))
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((70,)), plist)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.zeros(70, dtype)
    assert twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", ignore_attributes="*").same


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_of_zarr_without_chunks(tmp_path, version) -> None:
    zarr = pytest.importorskip("zarr")
    for name, fill in (("a", 3.5), ("b", 3.5), ("c", 4.0)):
        group = zarr.open_group(tmp_path / f"{name}.zarr", mode="w", zarr_format=version)
        group.create_array("x", shape=(20, 30), chunks=(7, 7), dtype="f8", fill_value=fill)
        group.create_array("huge", shape=(1 << 50,), chunks=(1 << 20,), dtype="f4", fill_value=1)
    a, b, c = (tmp_path / f"{name}.zarr" for name in "abc")
    assert twinrun.compare(a, b)
    found = twinrun.compare(a, c, fields="x").fields[0]
    check_alike(found, by_brute_force(a, c, fields="x").fields[0])
    with twinrun.formats.open_file(a) as content:
        assert content.fields["huge"].uniform and content.fields["huge"].elements(1 << 49, 2).tolist() == [
            1,
            1,
        ]
    zarr.open_group(c, mode="a")["x"][3, 3] = 5.0
    with twinrun.formats.open_file(c) as content:
        assert not content.fields["x"].uniform
    assert twinrun.compare(a, c, fields="x").fields[0].different == 600


def test_a_few_stored_elements_among_many(tmp_path, monkeypatch) -> None:
    """They are compared stretch by stretch, and the report is that of one comparison."""
    rng = np.random.default_rng(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (1000, 64), "f8", chunks=(50, 64), fillvalue=1)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        x = file.create_dataset("x", (1000, 64), "f8", chunks=(50, 64), fillvalue=1)
        x[400:420] = rng.integers(0, 3, (20, 64))
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    wanted = twinrun.compare(a, b).fields[0]
    monkeypatch.setattr(ranges, "_AT_ONCE", 1 << 16)
    found = twinrun.compare(a, b).fields[0]
    assert (
        found.different > 0
        and wanted.stages["elements"]["bytes_read"] == found.stages["elements"]["bytes_read"]
    )
    for field in dataclasses.fields(FieldComparison):
        if field.name not in HOW:
            x, y = getattr(found, field.name), getattr(wanted, field.name)
            assert x == (pytest.approx(y, rel=1e-12) if field.name.startswith("rms") else y), field.name
