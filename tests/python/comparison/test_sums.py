"""Runs that cut arrays otherwise, or order particles otherwise, compare by metadata: sums of digests."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import command
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun import _core

ATOL = 2.0**-10
SLOW = settings(max_examples=25)


def cut_up(x: np.ndarray, cuts: list[list[int]], fortran: bool) -> tuple[list[dict], list[dict]]:
    """One rank for every box of a grid of cuts; and the places of these boxes."""
    data, places = [], []
    for corner in itertools.product(*(range(len(c) - 1) for c in cuts)):
        box = tuple(slice(c[i], c[i + 1]) for c, i in zip(cuts, corner, strict=True))
        part = x[box]
        data.append({1: {"u": np.asfortranarray(part) if fortran else np.ascontiguousarray(part)}})
        places.append({"u": (x.shape, tuple(s.start for s in box))})
    return data, places


@st.composite
def cuttings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[list[int]]:
    return [
        sorted({0, n, *draw(st.lists(st.integers(1, max(n - 1, 1)), max_size=2)).__iter__()} | {n})
        if n > 1
        else [0, n]
        for n in shape
    ]


@st.composite
def placed_pairs(draw: st.DrawFn) -> tuple:
    """Two runs of one array: noise below the tolerance, and a few elements far beyond it; the cuttings of both."""
    shape = tuple(draw(st.sampled_from([(3000,), (60, 50), (12, 15, 17), (2, 1500), (1500, 2)])))
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "i4", "c8", "f2", "?"])))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    exact = dtype.kind in "ib"
    a = rng.integers(-1000, 1000, shape) if exact else rng.standard_normal(shape)
    a = a.astype(dtype)
    b = a.copy()
    if not exact and dtype.itemsize > 2 and draw(st.booleans()):
        b = (a + rng.uniform(-0.25 * ATOL, 0.25 * ATOL, shape)).astype(dtype)
    planted = [tuple(int(rng.integers(n)) for n in shape) for _ in range(draw(st.integers(0, 3)))]
    for at in planted:
        b[at] = ~b[at] if dtype.kind == "b" else b[at] + dtype.type(5)
    if dtype.kind == "f" and draw(st.booleans()):
        a.flat[7], b.flat[7] = np.nan, np.nan
        a.flat[11], b.flat[11] = np.inf, np.inf
        a.flat[13] = b.flat[13] = -0.0
    cut_a, cut_b = draw(cuttings(shape)), draw(cuttings(shape))
    return a, b, cut_a, cut_b, draw(st.booleans())


def brute_force(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which scalars differ."""
    if a.dtype.kind == "c":
        a, b = (np.ascontiguousarray(x).view(x.real.dtype).reshape(*x.shape, 2) for x in (a, b))
    if a.dtype.kind in "ib":
        return a != b
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    with np.errstate(invalid="ignore"):
        near = np.abs(wide_a - wide_b) <= ATOL
    return ~(near | (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b)))


def test_the_tolerance_of_a_capture_holds_for_rows_that_lie_either_way(tmp_path: Path) -> None:
    """A part of one column or one row is row- and column-major: turning it keeps the tolerance that it was captured for."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((60, 50))
    b = a + rng.uniform(-0.25 * ATOL, 0.25 * ATOL, a.shape)
    for name, x, cut in (("a", a, [[0, 60], [0, 1, 50]]), ("b", b, [[0, 1, 60], [0, 50]])):
        data, places = cut_up(x, cut, fortran=True)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert result.same and {f.atol for f in result.fields} == {ATOL}


@SLOW
@given(case=placed_pairs())
def test_any_cutting_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, case: tuple) -> None:
    a, b, cut_a, cut_b, fortran = case
    tmp_path = tmp_path_factory.mktemp("cut")
    for name, x, cut in (("a", a, cut_a), ("b", b, cut_b)):
        data, places = cut_up(x, cut, fortran)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL)
    whole = tmp_path / "whole"
    with twinrun.Run(whole, atol=ATOL) as run:
        run.capture(1, {"u": np.asfortranarray(a) if fortran else a})
    wanted = brute_force(a, b)
    where = [tuple(int(i) for i in at) for at in np.argwhere(wanted)]
    results = [twinrun.compare(tmp_path / "a", tmp_path / "b")]
    if len(data) > 1:
        results.append(twinrun.compare(whole, tmp_path / "b"))
    for result in results:
        assert sum(f.different for f in result.fields) == len(where)
        for f in result.fields:
            if f.ranks is None:  # both happen to be cut alike
                continue
            one_order = max(x.ndim - x.shape.count(1) for x in (a,)) < 2 or not fortran
            if where and one_order:
                assert f.first_index == where[0]
            if "sums" in f.reason and not where:
                assert f.elements_read == 0
    shutil.rmtree(tmp_path)


def test_noise_is_proven_by_metadata_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 48, 40))
    y = x + rng.uniform(-0.5 * ATOL, 0.5 * ATOL, x.shape)
    for name, u, cut, kept in (
        ("a", x, [[0, 30, 64], [0, 48], [0, 7, 40]], True),
        ("b", y, [[0, 64], [0, 16, 32, 48], [0, 40]], False),
    ):
        data, places = cut_up(u, cut, False)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL, keep_data=kept)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    [f] = result.fields
    assert result.same and f.method == "staged" and f.elements_read == 0
    assert sum(f.proven_by_cells) + f.proven_by_tree == x.size == f.elements
    assert np.abs(x - y).max() <= f.max_abs_diff <= ATOL
    assert f.stages["tree"]["bytes_read"] + f.stages["sketch"]["bytes_read"] < 0.2 * 2 * x.nbytes
    # Where metadata does not decide, the data is needed: that is said, and nothing passes for the same.
    data, places = cut_up(
        np.where(np.arange(x.size).reshape(x.shape) == 99, x + 1, x), [[0, 64], [0, 48], [0, 20, 40]], False
    )
    run_of_ranks(tmp_path / "c", data, places=places, atol=ATOL)
    with pytest.raises(twinrun.errors.Incomparable, match="only its metadata is available"):
        twinrun.compare(tmp_path / "b", tmp_path / "c")
    [f] = twinrun.compare(tmp_path / "a", tmp_path / "c").fields
    assert f.different == 1 and f.first_index == (0, 2, 19) and f.elements_read < x.size // 4


def test_other_tolerances_prove_what_they_can(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((4000,))
    y = x + rng.uniform(-0.5 * ATOL, 0.5 * ATOL, x.shape)
    for name, u, cut in (("a", x, [[0, 1000, 4000]]), ("b", y, [[0, 4000]])):
        data, places = cut_up(u, cut, False)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL)
    for atol in (ATOL / 4, ATOL, 8 * ATOL, 1.0):
        [f] = twinrun.compare(tmp_path / "a", tmp_path / "b", atol=atol).fields
        assert f.different == int((np.abs(x - y) > atol).sum())
    [f] = twinrun.compare(tmp_path / "a", tmp_path / "b", atol=8 * ATOL).fields
    assert f.elements_read == 0
    [f] = twinrun.compare(
        tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method="direct")
    ).fields
    assert f.method == "direct" and "elements" in f.reason


@st.composite
def particle_pairs(draw: st.DrawFn) -> tuple:
    """Particles of two runs by ID: (ids, {field: rows}) of both, and over how many ranks each is spread."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = draw(st.sampled_from([1, 50, 3000]))
    first = draw(st.sampled_from([0, 1, 1000]))
    ids = first + rng.permutation(n if draw(st.booleans()) else 2 * n)[:n]
    x = rng.standard_normal((n, draw(st.sampled_from([1, 2, 3])))).astype(draw(st.sampled_from(["f4", "f8"])))
    m = rng.integers(0, 100, n).astype("i2")
    noise = rng.uniform(-0.3 * ATOL, 0.3 * ATOL, x.shape) if draw(st.booleans()) else 0
    ids_b, x_b, m_b = ids.copy(), (x + noise).astype(x.dtype), m.copy()
    for _ in range(draw(st.integers(0, 2))):
        x_b[rng.integers(n), 0] += 5
    if draw(st.booleans()):
        m_b[rng.integers(n)] += 1
    kind = draw(st.sampled_from(["alike", "alike", "lost", "born", "doubled", "doubled in both"]))
    if kind == "lost" and n > 1:
        ids_b, x_b, m_b = ids_b[1:], x_b[1:], m_b[1:]
    if kind == "born":
        ids_b = np.append(ids_b, ids.max() + 1)
        x_b, m_b = np.append(x_b, x_b[:1], axis=0), np.append(m_b, m_b[:1])
    if kind.startswith("doubled") and n > 1:
        ids_b[0] = ids_b[1]
    if kind == "doubled in both" and n > 1:
        ids = ids_b.copy()
    return (
        (ids, x, m),
        (ids_b, x_b, m_b),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        int(rng.integers(1 << 30)),
    )


def spread(path: Path, particles: tuple, ranks: int, seed: int, **how: object) -> Path:
    """Each particle on some rank, in any order; of one ID those that come first, first."""
    ids, x, m = particles
    rng = np.random.default_rng(seed)
    home = rng.integers(0, ranks, ids.max() + 1)[ids]
    data = []
    for rank in range(ranks):
        own = np.flatnonzero(home == rank)
        order = rng.permutation(own.size)
        own = own[order]
        rows = own[np.lexsort((own, rng.integers(0, 1 << 30, ids.max() + 1)[ids[own]]))]
        data.append({1: {"id": ids[rows], "x": x[rows], "m": m[rows]}})
    return run_of_ranks(path, data, ids={"x": "id", "m": "id"}, **how)


@SLOW
@given(case=particle_pairs())
def test_particles_equal_brute_force_by_id(tmp_path_factory: pytest.TempPathFactory, case: tuple) -> None:
    a, b, ranks_a, ranks_b, seed = case
    tmp_path = tmp_path_factory.mktemp("ids")
    spread(tmp_path / "a", a, ranks_a, seed, atol=ATOL)
    spread(tmp_path / "b", b, ranks_b, seed + 1, atol=ATOL)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", key="id")
    by_elements = twinrun.compare(
        tmp_path / "a",
        tmp_path / "b",
        key="id",
        options=twinrun.CompareOptions(use_metadata=False),
        atol=ATOL,
    )
    found = {f.field: f for f in result.fields}
    for f in by_elements.fields:
        mine = found.pop(f.field)
        assert (mine.different, mine.elements, mine.first_id, mine.first_index, mine.infinite) == (
            f.different, f.elements, f.first_id, f.first_index, f.infinite
        )  # fmt: skip
        assert mine.max_abs_diff >= f.max_abs_diff or mine.max_abs_diff == pytest.approx(f.max_abs_diff)
    assert not found and result.verdict == by_elements.verdict
    # And by hand, where every ID comes once.
    if np.unique(a[0]).size == a[0].size and np.unique(b[0]).size == b[0].size:
        common, at_a, at_b = np.intersect1d(a[0], b[0], return_indices=True)
        wanted = {
            "id": a[0].size + b[0].size - 2 * common.size,
            "x": int((np.abs(a[1][at_a].astype("f8") - b[1][at_b].astype("f8")) > ATOL).sum()),
            "m": int((a[2][at_a] != b[2][at_b]).sum()),
        }
        assert {f.field: f.different for f in result.fields} == wanted
    shutil.rmtree(tmp_path)


def particles(n: int, seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    return np.arange(1, n + 1), rng.standard_normal((n, 3)), rng.integers(0, 9, n).astype("i2")


def test_permuted_particles_are_proven_without_reading_any(tmp_path: Path) -> None:
    ids, x, m = particles(20000, 3)
    spread(tmp_path / "a", (ids, x, m), 3, 1, atol=ATOL, keep_data=False)
    spread(tmp_path / "b", (ids, x, m), 5, 2, atol=ATOL, keep_data=False)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", key="id")
    assert result.same and [f.field for f in result.fields] == ["id", "x", "m"]
    assert all(f.method == "staged" and f.elements_read == 0 for f in result.fields)
    assert result.fields[0].particles["matched"] == ids.size and result.fields[0].particles["moved"] is None
    # The key that the capture named is what 'auto' means.
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", key="auto").same


def test_noise_of_particles_needs_ids_and_residues_only(tmp_path: Path) -> None:
    ids, x, m = particles(20000, 4)
    moved = x + np.random.default_rng(9).uniform(-0.5 * ATOL, 0.5 * ATOL, x.shape)
    spread(tmp_path / "a", (ids, x, m), 3, 1, atol=ATOL)
    spread(tmp_path / "b", (ids, moved, m), 4, 2, atol=ATOL)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", key="id")
    of_x = next(f for f in result.fields if f.field == "x")
    assert result.same and of_x.elements_read == 0 and sum(of_x.proven_by_cells) == x.size
    assert np.abs(x - moved).max() <= of_x.max_abs_diff <= ATOL


def test_doubled_ids_are_never_proven_by_sums(tmp_path: Path) -> None:
    """Rows of one ID that add up to the same: {1, 3} in one run, {2, 2} in the other."""
    ids, x, m = particles(2000, 5)
    ids[0] = ids[1]
    a, b = x.copy(), x.copy()
    a[0], a[1] = ATOL * 64, ATOL * 192
    b[0], b[1] = ATOL * 128, ATOL * 128
    spread(tmp_path / "a", (ids, a, m), 2, 1, atol=ATOL)
    spread(tmp_path / "b", (ids, b, m), 3, 2, atol=ATOL)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", key="id")
    assert {f.field: f.different for f in result.fields}["x"] == 6


def test_files_in_another_order_and_number(tmp_path: Path) -> None:
    ids, x, m = particles(60000, 6)
    moved = x + np.random.default_rng(9).uniform(-0.4 * ATOL, 0.4 * ATOL, x.shape)
    rng = np.random.default_rng(2)
    for name, values, files in (("a", x, 2), ("b", moved, 3)):
        (tmp_path / name).mkdir()
        order = rng.permutation(ids.size)
        for rank, rows in enumerate(np.array_split(order, files)):
            np.savez(tmp_path / name / f"part_rank{rank}.npz", id=ids[rows], x=values[rows], m=m[rows])
    with_key = {"key": "id", "atol": ATOL}
    before = twinrun.compare(tmp_path / "a", tmp_path / "b", **with_key)
    for name in ("a", "b"):
        facts = twinrun.index(tmp_path / name, atol=ATOL, key="id")
        assert [f.fresh for f in facts] == [True] * len(facts)
        assert not any(f.fresh for f in twinrun.index(tmp_path / name, atol=ATOL, key="id"))
        assert not any(f.fresh for f in twinrun.index(tmp_path / name, atol=ATOL))
    after = twinrun.compare(tmp_path / "a", tmp_path / "b", **with_key)
    assert before.same and after.same
    read = {f.field.rsplit("/")[-1]: f.elements_read for f in after.fields}
    assert read["x"] == read["m"] == 0
    with pytest.raises(twinrun.errors.Incomparable, match="IDs"):
        twinrun.index(tmp_path / "a", key="no such field", refresh=True)


def test_sums_that_do_not_cover_the_array_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(8).standard_normal(20000)
    for name, cut in (("a", [[0, 9000, 20000]]), ("b", [[0, 11000, 20000]])):
        data, places = cut_up(x, cut, False)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL)
    real = _core.read_sums

    def without_last(*args: object) -> _core.BucketSums:
        s = real(*args)
        return _core.BucketSums(s.buckets[:-1], s.coarse[:-1], s.fine[:-1], s.height)

    def with_another(*args: object) -> _core.BucketSums:
        s = real(*args)
        columns = ((s.buckets, 1 << 40), (s.coarse, 1), (s.fine, 1))
        return _core.BucketSums(*(np.append(c, np.uint64(more)) for c, more in columns), s.height)

    monkeypatch.setattr(_core, "read_sums", without_last)
    with pytest.raises(twinrun.errors.DamagedFile, match="no sums of digests"):
        twinrun.compare(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(_core, "read_sums", with_another)
    with pytest.raises(twinrun.errors.DamagedFile, match="beyond the array"):
        twinrun.compare(tmp_path / "a", tmp_path / "b")


def test_a_run_on_one_rank_needs_no_place(tmp_path: Path) -> None:
    x = np.random.default_rng(8).standard_normal((300, 70))
    with twinrun.Run(tmp_path / "serial", atol=ATOL) as run:
        run.capture(1, {"u": x})
    data, places = cut_up(x, [[0, 100, 300], [0, 30, 70]], False)
    run_of_ranks(tmp_path / "parallel", data, places=places, atol=ATOL)
    for a, b in (("serial", "parallel"), ("parallel", "serial")):
        [f] = twinrun.compare(tmp_path / a, tmp_path / b).fields
        assert f.same and f.elements_read == 0 and f.elements == x.size


def test_show_names_places_and_keys(tmp_path: Path) -> None:
    ids, x, _ = particles(100, 1)
    with twinrun.Run(tmp_path / "run", atol=ATOL) as run:
        run.capture(
            1,
            {"id": ids, "x": x, "u": np.zeros((30, 40))},
            ids={"x": "id"},
            global_place={"u": ((60, 40), (30, 0))},
        )
    shown = command("show", tmp_path / "run")
    assert shown.status == 0
    said = " ".join(shown.out.split())
    assert "30x40 of 60x40, at 30,0" in said and "sums by id" in said and "sums by place" in said


def test_a_device_that_is_asked_for_is_used_or_told(tmp_path: Path) -> None:
    x = np.random.default_rng(8).standard_normal(20000)
    y = x.copy()
    y[777] += 1
    for name, u, cut in (("a", x, [[0, 9000, 20000]]), ("b", y, [[0, 11000, 20000]])):
        data, places = cut_up(u, cut, False)
        run_of_ranks(tmp_path / name, data, places=places, atol=ATOL)
    if any(d.usable for d in _core.devices().devices):
        [f] = twinrun.compare(tmp_path / "a", tmp_path / "b", device="cuda").fields
        assert f.device.startswith("cuda") and f.different == 1
    else:
        with pytest.raises(twinrun.TwinrunError, match=r"GPU|cuda|device"):
            twinrun.compare(tmp_path / "a", tmp_path / "b", device="cuda")
