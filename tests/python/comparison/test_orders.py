"""Row-major and column-major arrays are one array: every report equals brute force over the elements as the user indexes them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command
from support import run_of_ranks

import twinrun
from twinrun import golden
from twinrun.comparison.ranges import compare_part, put_together
from twinrun.comparison.settings import Settings
from twinrun.runs.fields import FieldRef
from twinrun.runs.opening import open_subject

SHAPES = [(7,), (5, 6), (1, 9), (9, 1), (3, 500), (500, 3), (4, 5, 6), (2, 1, 700), (33, 2, 3, 5)]
F = np.asfortranarray


def pair(shape: tuple[int, ...], seed: int, dtype: str = "f8") -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of few values, so that the largest difference is there often."""
    random = np.random.default_rng(seed)
    a = random.integers(0, 3, shape).astype(dtype)
    changed = random.random(shape) < (0.5 if seed % 2 else 0.02)
    b = np.where(changed, a + random.integers(0, 4, shape).astype(dtype), a).astype(dtype)
    if dtype.startswith("c"):
        a = a + 1j * random.integers(0, 2, shape)
    return a.astype(dtype), b


def scalars(x: np.ndarray) -> np.ndarray:
    """Row by row; complex numbers with a last axis of their parts."""
    x = np.ascontiguousarray(x)
    return x.view(x.real.dtype).reshape(*x.shape, 2) if x.dtype.kind == "c" else x


def expected(a: np.ndarray, b: np.ndarray, atol: float) -> dict:
    x, y = scalars(a).astype(np.float64), scalars(b).astype(np.float64)
    d = np.abs(x - y)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(d == 0, 0, d / np.abs(x))
    over = d > atol

    def first(mask: np.ndarray) -> tuple[int, ...] | None:
        at = np.argwhere(mask)
        return tuple(at[0].tolist()) if len(at) else None

    worst = relative[over].max(initial=0)
    return {
        "different": int(over.sum()),
        "first": first(over),
        "max_abs": first(d == d.max(initial=0)) if d.max(initial=0) else None,
        "max_rel": first(over & (relative == worst)),
        "listed": np.argwhere(over),
    }


def check(result: twinrun.Comparison, a: np.ndarray, b: np.ndarray, atol: float = 0.0) -> None:
    want = expected(a, b, atol)
    (f,) = result.fields
    assert (f.different, f.first_index) == (want["different"], want["first"])
    assert f.shape == a.shape
    if not f.max_abs_diff_is_bound:
        assert f.max_abs_index == want["max_abs"]
    assert f.max_rel_index == want["max_rel"]
    if want["first"] is not None:
        assert (f.first_a, f.first_b) == (scalars(a)[want["first"]], scalars(b)[want["first"]])
        listed = np.concatenate([part.index for part in result.differences()])
        np.testing.assert_array_equal(listed, want["listed"])  # in this order


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "c8"])
def test_arrays_in_memory(shape: tuple[int, ...], dtype: str) -> None:
    for seed, atol in itertools.product(range(4), (0.0, 1.5)):
        a, b = pair(shape, seed, dtype)
        held = a if dtype != "i4" else a.copy()
        tolerance = 0.0 if dtype == "i4" else atol
        fa, fb = F(held), F(b)  # held here: listing opens them again
        for x, y in ((a, b), (fa, b), (a, fb), (fa, fb)):
            check(twinrun.compare(x, y, atol=atol), a, b, tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_files_and_histories(shape: tuple[int, ...], tmp_path: Path) -> None:
    for seed in range(3):
        a, b = pair(shape, seed)
        of = {}
        for name, x in (("a", a), ("fa", F(a)), ("b", b), ("fb", F(b))):
            np.save(tmp_path / f"{name}{seed}.npy", x)
            with twinrun.Run(tmp_path / f"run-{name}{seed}", atol=1.5) as history:
                history.capture(3, {"x": x})
            of[name] = x
        for x, y in itertools.product(("a", "fa"), ("b", "fb")):
            check(twinrun.compare(tmp_path / f"{x}{seed}.npy", tmp_path / f"{y}{seed}.npy"), a, b)
            runs = [tmp_path / f"run-{n}{seed}" for n in (x, y)]
            check(twinrun.compare(*runs), a, b, 1.5)
            check(twinrun.compare(runs[0], {"x": of[y]}), a, b, 1.5)
            if x[0] == y[0]:
                check(twinrun.compare(*runs, options=twinrun.CompareOptions(method="staged")), a, b, 1.5)


def test_larger_than_a_chunk_and_several_threads(tmp_path: Path) -> None:
    """Differences in many chunks: the first by storage is not the first row by row."""
    a = np.zeros((300, 400))
    b = a.copy()
    b[299, 0] = b[5, 399] = b[6, 1] = 2.0
    b[5, 398] = 1.0
    for threads in (1, 4):
        x, y = F(a), F(b)
        result = twinrun.compare(x, y, threads=threads)
        check(result, a, b)
        assert result.fields[0].max_abs_index == (5, 399) and result.fields[0].first_index == (5, 398)


def test_ranges_compared_apart() -> None:
    """As ranks of a job do it: the first place is the first row by row of all of them, whatever their order."""
    a, b = pair((300, 40), 2)
    x, y = F(a), F(b)
    ref_a, ref_b = opened(x), opened(y)
    settings, size = Settings(), a.size
    cuts = [0, 2048, 8192, size]
    parts = [
        compare_part(ref_a, ref_b, (None, 0), settings, [(first, last - first)])
        for first, last in itertools.pairwise(cuts)
    ]
    for some in (parts, parts[::-1]):
        found = put_together(some)
        want = expected(a, b, 0.0)
        assert (found.first_index, found.different) == (want["first"], want["different"])
        assert found.max_abs_index == want["max_abs"] and found.max_rel_index == want["max_rel"]


def opened(array: np.ndarray) -> FieldRef:
    subject = open_subject(array)
    with subject.open(subject.places[0]) as fields:
        return fields["array"]


def test_bytes_of_another_order_and_strides() -> None:
    a, b = pair((6, 7, 8), 1)
    for y in (
        F(b).astype(">f8", order="F"),
        b.astype(">f8"),
        np.transpose(np.ascontiguousarray(b.T)),
        F(b)[::-1][::-1],
    ):
        x = F(a)
        check(twinrun.compare(x, y), a, b)


@pytest.mark.parametrize("orders", ["CF", "FF", "FC"])
def test_parts_of_a_global_array(orders: str, tmp_path: Path) -> None:
    """Two runs that cut an array otherwise, in either order of storage."""
    a, b = pair((12, 10), 1)
    for name, x, order, cuts in (("a", a, orders[0], 3), ("b", b, orders[1], 2)):
        rows = [slice(12 // cuts * rank, 12 // cuts * (rank + 1)) for rank in range(cuts)]
        run_of_ranks(
            tmp_path / name,
            [{1: {"x": np.array(x[r], order=order)}} for r in rows],
            places=[{"x": (x.shape, (r.start, 0))} for r in rows],
        )
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    check(result, a, b)
    assert result.fields[0].ranks is not None


def test_reports_tell_the_same_place(tmp_path: Path) -> None:
    a, b = np.zeros((5, 6)), np.zeros((5, 6))
    b[0, 5] = b[3, 0] = 1.0
    np.save(tmp_path / "a.npy", F(a))
    np.save(tmp_path / "b.npy", F(b))
    done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--json", tmp_path / "r.json", "--html",
                   tmp_path / "r.html", "--list-differences", tmp_path / "l.csv")  # fmt: skip
    assert done.status == 1 and "[0, 5]" in done.out
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["first_divergence"]["index"] == [0, 5]
    assert "[0, 5]" in (tmp_path / "r.html").read_text()
    rows = (tmp_path / "l.csv").read_text().splitlines()
    assert [row.split(",")[3] for row in rows[1:]] == ["0 5", "3 0"]


def test_golden_files_do_not_depend_on_the_order(tmp_path: Path) -> None:
    a, b = pair((40, 50), 3)
    golden.save({"x": a}, tmp_path / "rows", atol=0.5)
    golden.save({"x": F(a)}, tmp_path / "columns", atol=0.5)
    for name in ("rows", "columns"):
        assert golden.check(tmp_path / name, {"x": F(a)}).same
        assert golden.check(tmp_path / name, {"x": a}).same
        found = [golden.check(tmp_path / name, {"x": y}) for y in (b, F(b))]
        assert [c.verdict for c in found] == ["different"] * 2
        assert found[0].fields[0].listed == found[1].fields[0].listed
    assert (tmp_path / "rows" / "rank_0.twm").read_bytes() == (
        tmp_path / "columns" / "rank_0.twm"
    ).read_bytes()


def test_what_has_only_digests_is_not_compared_with_the_other_order(tmp_path: Path) -> None:
    a = np.ones((5, 6))
    for name, x in (("rows", a), ("columns", F(a))):
        with twinrun.Run(tmp_path / name, keep_data=False) as history:
            history.capture(1, {"x": x})
    said = r"column-major \(Fortran order\) in .*columns.*, of which only digests are kept, and row-major .* in .*rows"
    for one, other in (("rows", "columns"), ("columns", "rows")):
        with pytest.raises(twinrun.Incomparable, match=said) as caught:
            twinrun.compare(tmp_path / one, tmp_path / other)
        assert "step 1: field 'x': " in str(caught.value) and caught.value.fix == (
            "compare with the data at hand, or write both in one order"
        )
    # The data of the column-major run are enough.
    assert twinrun.compare(tmp_path / "rows", {"x": F(a)}, steps="1").same


def test_metadata_alone_says_why_orders_need_the_data(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for name, array in (("a", x), ("b", np.asfortranarray(x))):
        np.save(tmp_path / f"{name}.npy", array)
        twinrun.index(tmp_path / f"{name}.npy")
        (tmp_path / f"{name}.npy").unlink()
    with pytest.raises(
        twinrun.errors.Incomparable, match=r"only digests are kept.*; compare with the data at hand, or write"
    ):
        twinrun.compare(tmp_path / "a.npy.twm", tmp_path / "b.npy.twm")


def test_advice_without_data_names_what_was_asked_for(tmp_path: Path) -> None:
    x = np.arange(12.0)
    for name, array in (("a", x), ("b", x), ("c", x.astype(np.float32))):
        with twinrun.Run(tmp_path / name, keep_data=False) as run:
            run.capture(1, {"x": array})
    a, b, c = (tmp_path / name for name in "abc")
    for words, said in (
        ((a, b, "--no-metadata"), "; compare with the data at hand, or leave out --no-metadata"),
        ((a, b, "--method", "direct"), "; leave out --method direct, or compare with the data at hand"),
        ((a, c, "--cast"), "; compare with the data at hand: digests say nothing of numbers of two types"),
        ((a, b, "--closer-to", c), "; compare with the data at hand"),
        ((a, b, "--closer-to", b), "; compare with the data at hand: every element is read"),
    ):
        check_error(command("compare", *words, "-q"), said)
