"""The report equals brute force, in every method, for every type, tolerance and layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import check_report

import twinrun

FLOATS = ["f2", "f4", "f8", "c8", "c16"]
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
METHODS = ["staged", "direct", "published"]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-45, -1e-45, 5e-324, -5e-324, 1.0]


def make_pair(rng: np.random.Generator, code: str, shape: tuple[int, ...], atol: float, kind: str) -> tuple:
    """Two arrays that differ as `kind` says."""
    dtype = np.dtype(code)
    n = int(np.prod(shape))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
        b = a.copy()
        at = rng.random(n) < {"same": 0, "sparse": 0.002, "noise": 0.5, "wild": 1}[kind]
        b[at] ^= np.array(1, dtype) if kind != "wild" else np.array(5, dtype)
        return a.reshape(shape), b.reshape(shape)
    if dtype.kind == "b":
        a = rng.random(n) < 0.5
        b = a ^ (rng.random(n) < {"same": 0, "sparse": 0.002, "noise": 0.5, "wild": 0.9}[kind])
        return a.reshape(shape), b.reshape(shape)
    parts = 2 * n if dtype.kind == "c" else n
    x = rng.normal(size=parts) * 10.0 ** rng.integers(-2, 3)
    noise = rng.uniform(-1, 1, parts) * (atol or 1e-6)
    scale = {"same": 0.0, "sparse": 40.0, "noise": 0.9, "wild": 3.0}[kind]
    y = x + noise * scale * (rng.random(parts) < 0.002 if kind == "sparse" else 1.0)
    if kind != "same":
        for v in SPECIAL:
            if parts:
                with np.errstate(over="ignore"):
                    x[rng.integers(parts)] = v
                    y[rng.integers(parts)] = v
    real = {"c8": "f4", "c16": "f8"}.get(code, code)
    with np.errstate(over="ignore", under="ignore"):
        a, b = x.astype(real), y.astype(real)
    if dtype.kind == "c":
        a, b = a.view(dtype), b.view(dtype)
    return a.reshape(shape), b.reshape(shape)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", FLOATS + INTEGERS)
def test_report_equals_brute_force(method: str, code: str) -> None:
    rng = np.random.default_rng([METHODS.index(method), *code.encode()])
    for shape in [(), (0,), (1,), (3, 0, 2), (7,), (1023,), (1024,), (1025,), (41, 53), (3, 5, 700)]:
        for kind in ("same", "sparse", "noise", "wild"):
            atol = float(rng.choice([0.0, 1e-3, 0.37, 1e-7, 2.0**-10]))
            a, b = make_pair(rng, code, shape, atol, kind)
            result = twinrun.compare(
                a,
                b,
                atol=atol,
                options=twinrun.CompareOptions(method=method),
                tolerate_integers=bool(rng.random() < 0.5),
            )
            check_report(result.fields[0], a, b)
            assert result.same == (result.fields[0].different == 0)


@settings(max_examples=150)
@given(data=st.data())
def test_any_tolerance_any_values(data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(FLOATS + INTEGERS))
    n = data.draw(st.integers(0, 1500))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    atol = data.draw(st.sampled_from([0.0, 5e-324, 1e-300, 1e-20, 1e-7, 1e-3, 0.1, 1.0, 3.0, 1e6, 1e300]))
    rtol = data.draw(st.sampled_from([0.0, 0.0, 1e-16, 1e-12, 1e-6, 1e-2, 0.5, 3.0]))
    method = data.draw(
        st.sampled_from(["staged", "direct", "published"] if rtol == 0 else ["staged", "direct"])
    )
    bits = data.draw(st.sampled_from([0, 2, 4]))
    chunk = data.draw(st.sampled_from([4096, 8192, 65536]))
    kind = data.draw(st.sampled_from(["same", "sparse", "noise", "wild"]))
    equal_nan = data.draw(st.booleans())
    a, b = make_pair(rng, code, (n,), atol if atol < 1e200 else 1.0, kind)
    if method == "published" and not equal_nan:
        method = "direct"
    if method == "staged" and not equal_nan:
        method = "direct"
    result = twinrun.compare(
        a, b, atol=atol, rtol=rtol, options=twinrun.CompareOptions(method=method, residue_bits=bits, chunk_bytes=chunk), equal_nan=equal_nan,
        tolerate_integers=True,
    )  # fmt: skip
    check_report(result.fields[0], a, b, equal_nan)


def test_python_overhead_path_is_inline() -> None:
    a = np.zeros(512)
    result = twinrun.compare(a, a)
    assert result.fields[0].method == "direct"
    assert result.fields[0].io == "pread"


@pytest.mark.parametrize("io", ["uring", "pread"])
@pytest.mark.parametrize("cache", ["buffered", "direct"])
def test_files_of_many_slices(tmp_path, io: str, cache: str) -> None:
    """Files larger than a slice: every thread, every way to read, small memory."""
    if io == "uring" and not twinrun._core.uring_available():
        pytest.skip("this kernel or container forbids io_uring")
    rng = np.random.default_rng(5)
    n = 3_000_017
    a = rng.normal(size=n).astype(np.float32)
    b = a.copy()
    b[::7] += np.float32(3e-4)
    for i in (5, 1_048_577, n - 1):
        b[i] += 1
    a.tofile(tmp_path / "a.f32")
    b.tofile(tmp_path / "b.f32")
    truth = np.abs(a.astype(float) - b.astype(float))
    for name in "ab":
        twinrun.index(tmp_path / f"{name}.f32", atol=1e-3, io=io)
    for method in ("auto", "direct"):
        for memory in (1 << 20, 1 << 30):
            result = twinrun.compare(
                tmp_path / "a.f32",
                tmp_path / "b.f32",
                atol=1e-3,
                options=twinrun.CompareOptions(method=method, io=io, cache=cache, memory=memory),
                threads=3,
            )
            f = result.fields[0]
            assert f.different == int((truth > 1e-3).sum()) == 3
            assert f.first_index == (5,)
            assert f.max_abs_diff == truth.max()
            assert f.method == ("staged" if method == "auto" else "direct")
            if method == "auto":
                assert f.stages["elements"]["chunks_in"] == f.stages["elements"]["chunks_out"] == 3
            else:
                assert f.io == ("io_uring" if io == "uring" else "pread")


def test_noise_below_the_tolerance_reads_no_elements(tmp_path) -> None:
    rng = np.random.default_rng(6)
    a = rng.normal(size=500_000).astype(np.float32)
    for share in (0.01, 0.4):
        b = (a + rng.uniform(-share, share, a.size).astype(np.float32) * np.float32(1e-3)).astype(np.float32)
        for name, x in (("a", a), ("b", b)):
            with twinrun.Run(tmp_path / f"{name}{share}", atol=1e-3) as run:
                run.capture(0, {"x": x})
        f = twinrun.compare(tmp_path / f"a{share}", tmp_path / f"b{share}").fields[0]
        assert f.same
        assert f.elements_read == 0 and f.stages["elements"]["bytes_read"] == 0
        assert f.max_abs_diff_is_bound and f.max_abs_diff_at_least <= np.abs(a - b).max() <= f.max_abs_diff


def test_wider_tolerance_than_captured_uses_the_metadata(tmp_path) -> None:
    rng = np.random.default_rng(8)
    a = rng.normal(size=50_000)
    b = a + rng.uniform(-1, 1, a.size) * 3e-5
    for name, x in (("a", a), ("b", b)):
        with twinrun.Run(tmp_path / name, atol=1e-5) as run:
            run.capture(1, {"x": x})
    for atol in (1e-5, 2e-5, 6e-5, 1e-3, 5e-6, 1e-9, 0.0):
        f = twinrun.compare(tmp_path / "a", tmp_path / "b", atol=atol).fields[0]
        check_report(f, a, b)
        assert f.method == ("staged" if atol >= 5e-6 else "direct")


def test_one_sided_metadata_of_a_small_field_is_left_alone(tmp_path) -> None:
    a = np.arange(1000.0)
    b = a.copy()
    b[77] += 1e-3
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    twinrun.index(tmp_path / "a.npy", atol=1e-6)
    f = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").fields[0]
    assert f.method == "direct" and "small" in f.reason and f.atol == 1e-6
    assert f.different == 1 and f.first_index == (77,)


def test_the_published_method_makes_its_digests_where_others_are_at_hand(tmp_path) -> None:
    a = np.random.default_rng(2).normal(size=20_000)
    b = a.copy()
    b[7777] += 1
    for name, x in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", x)
    twinrun.index(tmp_path / "a.npy", atol=1e-6)
    for index_b in (False, True):
        if index_b:
            twinrun.index(tmp_path / "b.npy", atol=1e-6, digest="published")
        f = twinrun.compare(
            tmp_path / "a.npy",
            tmp_path / "b.npy",
            atol=1e-6,
            options=twinrun.CompareOptions(method="published"),
        ).fields[0]
        assert f.method == "published" and f.different == 1 and f.first_index == (7777,)


def test_one_sided_metadata_builds_the_other_and_says_so(tmp_path) -> None:
    rng = np.random.default_rng(9)
    a = rng.normal(size=400_000)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a)
    neither = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy", atol=1e-6).fields[0]
    assert neither.method == "direct" and "no metadata" in neither.reason
    twinrun.index(tmp_path / "a.npy", atol=1e-6)
    one = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").fields[0]
    assert one.method == "staged" and "on the fly" in one.reason and one.same
    assert one.stages["build"]["bytes_read"] >= a.nbytes
    assert not (tmp_path / "b.npy.twm").exists()
    (tmp_path / "a.npy.twm").unlink()
    both = twinrun.compare(
        tmp_path / "a.npy", tmp_path / "b.npy", atol=1e-6, options=twinrun.CompareOptions(method="staged")
    ).fields[0]
    assert both.stages["build"]["ran"] is True and both.stages["build"]["bytes_read"] >= 2 * a.nbytes


def test_resolution_is_warned_about() -> None:
    a = np.full(5000, 1e10, np.float32)
    result = twinrun.compare(a, a, atol=1e-7)
    assert any("below what f32 resolves" in w for w in result.fields[0].warnings)
    assert not twinrun.compare(a, a, atol=1e4).fields[0].warnings


def test_column_major_and_strided_and_big_endian() -> None:
    rng = np.random.default_rng(10)
    base = rng.normal(size=(37, 29))
    changed = base.copy()
    changed[11, 3] += 1
    changed[30, 20] += 2
    for convert in (np.asfortranarray, lambda x: x.astype(">f8"), lambda x: np.repeat(x, 2, axis=1)[:, ::2]):
        result = twinrun.compare(convert(base), convert(changed), atol=1e-3)
        f = result.fields[0]
        assert f.different == 2
        assert f.max_abs_index == (30, 20)
        assert f.first_index in ((11, 3), (30, 20))
    records = np.zeros(1000, np.dtype([("x", "f4"), ("id", "i8"), ("v", "f8")]))
    other = records.copy()
    other["v"][77] = 1
    assert twinrun.compare(records["v"], other["v"]).fields[0].first_index == (77,)
    assert twinrun.compare(records["x"], other["x"]).same


def test_names_and_units_that_only_look_the_same() -> None:
    one, other = np.ones(3), np.zeros(3)
    with pytest.raises(twinrun.TwinrunError, match="two fields of the name"):
        twinrun.compare(
            {1: one, "1": one}, {1: other, "1": one}
        )  # the last one of a name would hide the first
    seconds, days = np.arange(3).astype("M8[s]"), np.arange(3).astype("M8[D]")
    assert twinrun.compare(seconds, seconds.astype(">M8[s]")).same
    with pytest.raises(twinrun.TwinrunError, match=r"M8\[s\] in the first run, M8\[D\] in the second"):
        twinrun.compare(seconds, days)  # the same integers
    with pytest.raises(twinrun.TwinrunError, match=r"M8\[s\] in the first run, plain numbers in the second"):
        twinrun.compare(np.array(["NaT"], "M8[s]"), np.array([-(1 << 63)]))


@given(
    dtype=st.sampled_from(["f4", "<f8", ">f8", "i2", "u8", "?", "c8", "f2"]),
    shape=st.sampled_from([(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 3, 2)]),
    order=st.sampled_from(["C", "F", "strided"]),
    atol=st.sampled_from([None, 0.5]),
    seed=st.integers(0, 1 << 16),
)
def test_arrays_alone_are_compared_as_those_of_a_container(dtype, shape, order, atol, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, shape).astype(dtype)
    b = np.array(a)
    if b.size and seed % 3:
        b.flat[rng.integers(b.size)] = 1
    a, b = (np.asfortranarray(x) if order == "F" else x for x in (a, b))
    if order == "strided" and a.ndim == 1:
        a, b = np.repeat(a, 2)[::2], np.repeat(b, 2)[::2]
    alone = twinrun.compare(a, b, atol=atol)
    together = twinrun.compare({"array": a}, {"array": b}, atol=atol)
    assert alone.verdict == together.verdict
    for name in ("field", "dtype", "shape", "elements", "different", "first_index", "max_abs_diff", "reason"):
        assert getattr(alone.fields[0], name) == getattr(together.fields[0], name), name
    assert alone.fields[0].different == np.count_nonzero(
        a != b if atol is None or a.dtype.kind not in "fc" else abs(a - b) > atol
    )
