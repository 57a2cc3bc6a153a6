"""Runs that kept exact digests only: what differs is different, with the chunks that differ in place of elements."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import command, load_json
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.report.document import document

CHUNK = 4096  # bytes


def captured(path: Path, steps: list[dict], *, keep_data: bool = False, **options: object) -> Path:
    with twinrun.Run(path, keep_data=keep_data, existing="replace", **options) as run:
        for step, fields in enumerate(steps):
            run.capture(step, fields)
    return path


def chunks_of(a: np.ndarray, b: np.ndarray) -> list[int]:
    """The chunks of memory that differ, by brute force."""
    order = "F" if a.flags.f_contiguous and not a.flags.c_contiguous else "C"
    differ = (a != b).ravel(order)
    each = CHUNK // a.itemsize
    return [at for at in range(-(-differ.size // each)) if differ[at * each : (at + 1) * each].any()]


def last_index(a: np.ndarray, chunk: int) -> tuple[int, ...]:
    order = "F" if a.flags.f_contiguous and not a.flags.c_contiguous else "C"
    last = min((chunk + 1) * (CHUNK // a.itemsize), a.size) - 1
    return tuple(map(int, np.unravel_index(last, a.shape, order)))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    x = np.arange(100_000, dtype="f4")
    y = x.copy()
    y[[5, 6, 90_000]] += 1
    n = np.arange(10)
    return captured(tmp_path / "a", [{"x": x, "n": n}]), captured(tmp_path / "b", [{"x": y, "n": n}])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_as_many_chunks_as_brute_force_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    kind = data.draw(st.sampled_from(["f4", "f8", "f2", "i2", "u8", "?", "c8", "c16"]))
    shape = data.draw(st.sampled_from([(), (1,), (5000,), (70, 90), (3, 40, 50), (0,)]))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    a = np.asarray((random.normal(size=shape) * 100).astype(kind), order=data.draw(st.sampled_from("CF")))
    b = a.copy(order="K")
    for _ in range(data.draw(st.integers(0, 3))):
        if b.size:
            at = np.unravel_index(random.integers(b.size), b.shape)
            b[at] = not b[at] if kind == "?" else b[at] + 1
    found = twinrun.compare(captured(folder / "a", [{"x": a}]), captured(folder / "b", [{"x": b}]))
    (field,) = found.fields
    differ = chunks_of(a, b)
    assert found.problems == []
    assert (found.verdict == "different") == bool(differ) == (not field.same)
    assert field.different == found.different == len(differ)
    assert field.different_is_exact == (not differ)
    assert field.elements_read == 0
    if not differ:
        assert field.first_chunk is None and field.max_abs_diff == 0
        return
    assert (field.first_index, field.max_abs_diff, field.rms_diff_all) == (None, None, None)
    assert not field.max_abs_diff_is_bound
    assert field.first_chunk is not None
    whole = field.first_chunk[1]
    assert (whole[:-1] if a.dtype.kind == "c" else whole) == last_index(a, differ[0])
    # The same elements with their data: the first difference lies there, and there are no fewer.
    with_data = twinrun.compare({"x": a}, {"x": b})
    assert with_data.different >= field.different


def test_every_report_says_so(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page, facts, cases = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "r.xml"
    done = command("compare", *runs, "--html", page, "--json", facts, "--junit", cases, "-v")
    assert done.status == 1, done.err
    said = "different: first at step 0, x[0] to [1023]: exact digests of 2 of 98 chunks differ; which elements, only the data could say"
    assert said in done.out.replace("\n", " ")
    assert "≥ 2" in done.out
    assert "exact digests of 2 of 98 chunks differ" in page.read_text()
    assert "[0] to [1023]" in page.read_text()
    assert "at least 2 of 100000 elements differ, first at step 0, x[0] to [1023]" in cases.read_text()
    found = load_json(facts.read_text())
    assert found["verdict"] == "different"
    assert found["first_divergence"]["first_chunk"] == [[0], [1023]]
    assert (found["first_divergence"]["index"], found["first_divergence"]["a"]) == (None, None)
    assert "first difference: a =" not in done.out
    assert "≥ 2 of 100,000 differ, max |a − b| ?" in page.read_text()
    by_name = {f["field"]: f for f in found["fields"]}
    assert (by_name["x"]["different_is_exact"], by_name["x"]["first_chunk"]) == (False, [[0], [1023]])
    assert (by_name["n"]["different_is_exact"], by_name["n"]["first_chunk"]) == (True, None)


def test_in_python(runs: tuple[Path, Path]) -> None:
    found = twinrun.compare(*runs)
    assert not found and found.verdict == "different"
    first = found.first
    assert first is not None and first is found.worst
    assert first.place() == "step 0, rank 0, x[0] to [1023]"
    assert "at least 2 of 100000 elements differ" in repr(first)
    assert "≥ 2 of 100,000" in first._repr_html_() and "≥ 2" in found._repr_html_()
    assert math.isnan(found.to_pandas().set_index("field").loc["x", "max_abs_diff"])
    assert found.to_arrow().column("different_is_exact").to_pylist() == [False, True]
    with pytest.raises(twinrun.Incomparable, match="digests say that elements differ, and not which"):
        list(found.differences())
    with pytest.raises(twinrun.TwinrunError, match="elements differ, and not which: there is no map"):
        found.plot("map")
    with pytest.raises(twinrun.TwinrunError, match="field 'n' has no elements that differ: there is no map"):
        found.plot("map", field="n")
    drawn = [text.get_text() for axes in found.plot("growth").axes for text in axes.texts]
    assert drawn == ["they differ, and by how much is not known"]
    assert (first.max_rel_diff, first.rms_diff) == (None, None)
    assert found.to_arrow().column("first_chunk").to_pylist() == [[[0], [1023]], None]
    assert json.dumps(document(found))


def test_a_part_of_a_global_array_and_several_ranks(tmp_path: Path) -> None:
    paths = []
    for name, extra in (("a", 0), ("b", 1)):
        with twinrun.Run(tmp_path / name, keep_data=False) as run:
            x = np.arange(4096, dtype="f8")
            x[4000] += extra
            run.capture(0, {"x": x}, global_place={"x": ((8192,), (4096,))})
        paths.append(tmp_path / name)
    found = twinrun.compare(*paths)
    assert found.verdict == "different" and found.first is not None
    assert found.first.first_chunk == ((3584,), (4095,))
    assert found.first.place() == "step 0, rank 0, x[7680] to [8191]"


def test_workers_that_share_a_field_agree(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=3_000_000)
    y = x.copy()
    y[[1_000_000, 2_900_000, 2_900_001]] += 1
    runs = captured(tmp_path / "a", [{"x": x}]), captured(tmp_path / "b", [{"x": y}])
    with ThreadPoolExecutor(3) as pool:
        shared = twinrun.compare(*runs, executor=pool)
    alone = twinrun.compare(*runs)
    assert shared.verdict == "different" and shared.first is not None
    assert shared.first.first_chunk == ((999_936,), (1_000_447,))
    assert [(f.different, f.first_chunk) for f in shared.fields] == [
        (f.different, f.first_chunk) for f in alone.fields
    ]


@pytest.mark.parametrize("options", [{"atol": 1e-3}, {"ulp": 4}, {"equal_nan": False}])
def test_what_digests_cannot_decide_is_incomparable(runs: tuple[Path, Path], options: dict) -> None:
    found = twinrun.compare(*runs, **options, partial=True)
    if options.get("equal_nan") is False:  # no NaN is there: equal digests prove, and others differ
        assert found.verdict == "different"
        return
    assert found.verdict == "incomparable"
    (problem,) = found.problems
    assert "the metadata cannot decide from element 0 on, and the data is not at hand" in problem
    assert all(f.same for f in found.fields)


def test_equal_values_of_other_bits_are_the_same(tmp_path: Path) -> None:
    x = np.array([0.0, np.nan, 1.0] * 2000, "f4")
    y = x.copy()
    y[0] = -0.0
    y.view("u4")[1] |= 0x80000005
    for digest in ("linear", "published"):
        a = captured(tmp_path / "a", [{"x": x}], digest=digest)
        b = captured(tmp_path / "b", [{"x": y}], digest=digest)
        found = twinrun.compare(a, b)
        assert found.verdict == "same" and found.different == 0


def test_published_digests_never_say_different(tmp_path: Path) -> None:
    x = np.arange(3000, dtype="f4")
    a = captured(tmp_path / "a", [{"x": x}], digest="published")
    b = captured(tmp_path / "b", [{"x": x + 1}], digest="published")
    found = twinrun.compare(a, b, partial=True)
    assert found.verdict == "incomparable" and found.different == 0


def test_texts_dates_and_booleans(tmp_path: Path) -> None:
    one = {
        "t": np.array(["a", "b", "c"]),
        "d": np.array(["2026-01-01"], "M8[D]"),
        "m": np.array([True, False]),
    }
    other = {
        "t": np.array(["a", "x", "c"]),
        "d": np.array(["2026-01-02"], "M8[D]"),
        "m": np.array([True, True]),
    }
    found = twinrun.compare(captured(tmp_path / "a", [one]), captured(tmp_path / "b", [other]))
    assert found.verdict == "different"
    assert all(not f.same and not f.different_is_exact for f in found.fields)
    assert all(text for text in map(str, (found, *(f.place() for f in found.fields))))
    assert found.first is not None and "exact digests of 1 of 1 chunk differ" in str(found)


def test_one_run_with_its_data(runs: tuple[Path, Path], tmp_path: Path) -> None:
    y = np.arange(100_000, dtype="f4")
    y[99_999] = 0
    kept = captured(tmp_path / "c", [{"x": y, "n": np.arange(10)}], keep_data=True)
    found = twinrun.compare(runs[0], kept)
    assert found.verdict == "different" and found.first is not None
    assert found.first.first_chunk == ((99_328,), (99_999,))


def test_a_study_counts_such_results_as_different(runs: tuple[Path, Path]) -> None:
    from twinrun.ensemble.study.results import compare_results

    found = compare_results(*runs)
    assert (found["verdict"], found["first_field"], found["different_elements"]) == ("different", "x", 2)
    assert found["max_abs_diff"] is None


def test_the_picture_says_where_sizes_are_unknown(tmp_path: Path) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        with twinrun.Run(tmp_path / name, keep_data_steps=1) as run:
            for step in (1, 2, 3):
                run.capture(step, {"x": np.arange(100.0) * factor})
        paths.append(tmp_path / name)
    found = twinrun.compare(*paths)
    assert [f.different_is_exact for f in found.fields] == [False, False, True]
    (axes,) = found.plot("growth").axes
    assert "of 1 to 2 some differ by an unknown amount" in axes.get_xlabel()
