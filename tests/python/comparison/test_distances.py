"""Which of two runs is farther from a reference: by field, with the place, against plain arithmetic."""

import json
import math

import numpy as np
import pytest
from commands import command

import twinrun


def runs(tmp_path):
    rng = np.random.default_rng(8)
    exact = rng.normal(size=(3, 40, 5))
    old = exact.astype(np.float32)
    new = exact + rng.normal(size=exact.shape) * 1e-5
    for name, values in (("reference", exact), ("old", old), ("new", new)):
        with twinrun.Run(tmp_path / name) as run:
            for step in range(3):
                run.capture(step, {"x": values[step], "n": np.arange(4)})
    return exact, old.astype(np.float64), new


def test_the_largest_and_the_mean_distance_have_their_places(tmp_path):
    exact, old, new = runs(tmp_path)
    found = twinrun.compare_distances(tmp_path / "old", tmp_path / "new", tmp_path / "reference")
    assert found.verdict == "farther" and not found
    x = next(f for f in found.fields if f.field == "x")
    for mine, values in ((x.a, old), (x.b, new)):
        apart = np.abs(values - exact)
        at = np.unravel_index(apart.argmax(), apart.shape)
        assert mine.max == apart.max() and (mine.step, *mine.index) == tuple(map(int, at))
        assert (mine.value, mine.reference) == (values[at], exact[at])
        assert mine.rms == pytest.approx(math.sqrt((apart**2).mean()), rel=1e-12)
        assert mine.elements == exact.size and mine.infinite == 0
    assert x.farther and not x.closer
    n = next(f for f in found.fields if f.field == "n")
    assert not n.farther and not n.closer and n.b.max == 0
    # The other way round: the other run is closer.
    found = twinrun.compare_distances(tmp_path / "new", tmp_path / "old", tmp_path / "reference")
    assert found.verdict == "closer" and found


def test_a_factor_allows_more():
    r = {"x": np.zeros(4)}
    a, b = {"x": np.array([1.0, 0, 0, 0])}, {"x": np.array([0, 0, 1.5, 0])}
    assert twinrun.compare_distances(a, b, r).verdict == "farther"
    assert twinrun.compare_distances(a, b, r, factor=1.5).verdict == "as far"
    assert twinrun.compare_distances(a, b, r, factor=1.49).verdict == "farther"


def test_many_small_distances_count_as_well_as_a_large_one():
    r = {"x": np.zeros(4)}
    a, b = {"x": np.array([1.0, 0, 0, 0])}, {"x": np.full(4, 0.9)}
    found = twinrun.compare_distances(a, b, r)
    assert found.verdict == "farther" and found.fields[0].b.max < found.fields[0].a.max


def test_equal_distances_are_as_far_whatever_the_type():
    r = {"x": np.zeros(1000)}
    a = np.random.default_rng(1).random(1000).astype(np.float16)
    found = twinrun.compare_distances({"x": a}, {"x": a.astype(np.float64)}, r)
    assert found.verdict == "as far" and found.fields[0].a.max == found.fields[0].b.max
    # As far to the other side.
    assert twinrun.compare_distances({"x": a}, {"x": -a}, r).verdict == "as far"


def test_what_is_infinite_counts_more_than_any_number():
    r = {"x": np.array([0.0, 1, math.nan])}
    a = {"x": np.array([1e300, 1, math.nan])}
    b = {"x": np.array([0.0, math.nan, math.nan])}
    found = twinrun.compare_distances(a, b, r)
    assert found.verdict == "farther" and found.fields[0].b.infinite == 1
    assert found.fields[0].b.max == math.inf and found.fields[0].b.index == (1,)
    assert twinrun.compare_distances(b, a, r).verdict == "closer"
    # A NaN where the reference has one is right.
    assert twinrun.compare_distances(r, r, r).verdict == "as far"


@pytest.mark.parametrize(
    "reference, run", [(math.nan, 1.0), (math.inf, 1.0), (-math.inf, math.nan), (1.0, math.nan)]
)
def test_nothing_but_infinite_distances_tells_nothing(tmp_path, reference, run):
    r, a, b = np.full((4, 5), reference), np.full((4, 5), run), np.full((4, 5), run)
    b[0, 0] = b[0, 0] * 2
    y = np.ones(3)
    found = twinrun.compare_distances({"x": a, "y": y}, {"x": b, "y": y}, {"x": r, "y": y})
    assert found.verdict == "incomparable" and not found and [f.field for f in found.fields] == ["y"]
    assert len(found.problems) == 1 and "'x': no element of either run" in found.problems[0]
    for name, values in (("r", r), ("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", values)
    a, b, r = (str(tmp_path / f"{name}.npy") for name in "abr")
    said = command("compare", a, b, "--closer-to", r)
    assert said.status == 2 and "nothing could be compared" in said.last


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["a", "b", "ab", "r"])
def test_a_distance_that_is_not_finite_is_said_plainly(tmp_path, wrong, where):
    for name, values in (("a", [1.0, 2, 2]), ("b", [1.0, 2, 3]), ("r", [1.0, 2, 2])):
        np.save(tmp_path / f"{name}.npy", np.array([values[0], wrong if name in where else 2, values[2]]))
    a, b, r = (str(tmp_path / f"{name}.npy") for name in "abr")
    said = command("compare", a, b, "--closer-to", r)
    lines = [line for line in said.out.splitlines() if "no finite distance" in line]
    amounts = {"a": "1 element of a and 0 of b", "b": "0 elements of a and 1 of b"}
    assert (
        lines and amounts.get(where, "1 element of a and 1 of b") in lines[0] and "(one at [1])" in lines[0]
    )
    assert "mean of their squares" not in said.out
    assert said.status == {"a": 0, "b": 1}.get(where, 2)
    assert ("which of them is farther is not known" in said.last) == (where in ("ab", "r"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex128])
def test_a_reference_full_of_nan_tells_nothing(tmp_path, dtype):
    """Not even of runs that are NaN where it is."""
    nothing = complex(math.nan, math.nan) if dtype is np.complex128 else math.nan
    nan, some = np.full((3, 5), nothing, dtype), np.full((3, 5), nothing, dtype)
    some[2, 4] = 1
    found = twinrun.compare_distances({"x": nan, "y": some}, {"x": nan, "y": some}, {"x": nan, "y": some})
    assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["y"]
    assert found.problems == ["field 'x': the reference holds nothing but NaN: nothing could be compared"]
    for name in "abr":
        with twinrun.Run(tmp_path / name) as run:
            for step in range(2):
                run.capture(step, {"x": nan if step == 0 else some})
    a, b, r = (str(tmp_path / name) for name in "abr")
    assert command("compare", a, b, "--closer-to", r).status == 0
    said = command("compare", a, b, "--closer-to", r, "--steps", "0")
    assert said.status == 2 and "nothing but NaN" in said.last
    # Fields without elements, and integers, are what they are.
    empty = {"x": np.zeros(0, dtype), "n": np.arange(3)}
    assert twinrun.compare_distances(empty, empty, empty).verdict == "as far"


def test_a_run_that_lacks_something_is_incomparable(tmp_path):
    r = {"x": np.zeros(3), "y": np.zeros(3)}
    found = twinrun.compare_distances(r, {"x": np.zeros(3)}, r)
    assert found.verdict == "incomparable" and not found and "'y'" in found.problems[0]
    found = twinrun.compare_distances({"x": np.zeros(3), "y": np.zeros(4)}, r, r)
    assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["x"]
    runs(tmp_path)
    with twinrun.Run(tmp_path / "short") as run:
        run.capture(0, {"x": np.zeros((40, 5)), "n": np.arange(4)})
    found = twinrun.compare_distances(
        tmp_path / "old", tmp_path / "short", tmp_path / "reference", common=True
    )
    # Of the steps that both have.
    assert found.verdict == "farther" and any("at the same steps" in note for note in found.notes)
    assert {f.b.step for f in found.fields} <= {0, None}
    found = twinrun.compare_distances(
        tmp_path / "old", tmp_path / "short", tmp_path / "reference", common=True, steps="0"
    )
    assert found.verdict == "farther"


def test_metadata_alone_tells_no_distances(tmp_path):
    for name in "abr":
        with twinrun.Run(tmp_path / name, keep_data_steps=1, atol=1e-3) as run:
            for step in range(2):
                run.capture(step, {"x": np.zeros(100)})
    found = twinrun.compare_distances(tmp_path / "a", tmp_path / "b", tmp_path / "r", steps="0:1")
    assert found.verdict == "incomparable"


def test_nothing_in_common_and_no_meaning():
    with pytest.raises(twinrun.TwinrunError):
        twinrun.compare_distances({"x": np.zeros(3)}, {"y": np.zeros(3)}, {"z": np.zeros(3)})
    with pytest.raises(twinrun.TwinrunError, match="factor"):
        twinrun.compare_distances({"x": np.zeros(3)}, {"x": np.zeros(3)}, {"x": np.zeros(3)}, factor=0)


def test_on_the_command_line(tmp_path):
    exact = np.linspace(0, 1, 30).reshape(5, 6)
    np.save(tmp_path / "r.npy", exact)
    np.save(tmp_path / "a.npy", exact.astype(np.float32))
    np.save(tmp_path / "b.npy", exact.astype(np.float16))
    a, b, r = (str(tmp_path / f"{name}.npy") for name in "abr")
    report = tmp_path / "out.json"
    said = command("compare", a, b, "--closer-to", r, "--json", str(report))
    assert said.status == 1, said
    assert "farther: b is farther from" in said.last
    document = json.loads(report.read_text())
    assert (
        document["verdict"] == "farther"
        and document["fields"][0]["b"]["max"] == np.abs(exact - exact.astype(np.float16)).max()
    )
    assert command("compare", b, a, "--closer-to", r, "-q").status == 0
    assert command("compare", a, b, "--closer-to", r, "-q", "--farther-by", "1e9").status == 0
    said = command("compare", a, b, "--closer-to", r, "--atol", "1")
    assert said.status == 2 and "--atol has no meaning" in said.out + said.err
    assert command("compare", a, b, "--farther-by", "2").status == 2
    assert command("compare", a, b, "--cast", "--bisect").status == 1
    assert command("compare", a, a, "--cast").status == 0
    said = command("compare", r, a, "--cast", "--atol", "1e-7")
    assert said.status == 0 and "f64 against f32" in said.out + said.err


def test_no_report_replaces_the_reference(tmp_path):
    for name in "abr":
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    a, b, r = (str(tmp_path / f"{name}.npy") for name in "abr")
    before = (tmp_path / "r.npy").read_bytes()
    assert command("compare", a, b, "--closer-to", r, "--json", r).status == 2
    assert (tmp_path / "r.npy").read_bytes() == before


@pytest.mark.parametrize("large", [1e160, 1e300, 1e-160, 5e-324])
def test_distances_without_squares_are_incomparable(large):
    a, b = np.full(9, large), np.full(9, large)
    found = twinrun.compare_distances({"x": a, "y": a}, {"x": b, "y": b}, {"x": a * 0, "y": a})
    assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["y"]
    assert "for the mean of their squares" in found.problems[0]


def test_common_leaves_out_what_one_run_lacks():
    reference = {"x": np.zeros(3), "y": np.zeros(3)}
    a, b = {"x": np.ones(3), "y": np.ones(3)}, {"x": np.ones(3) / 2}
    assert twinrun.compare_distances(a, b, reference).verdict == "incomparable"
    found = twinrun.compare_distances(a, b, reference, common=True)
    assert found.verdict == "closer" and [f.field for f in found.fields] == ["x"]
    assert any("'y'" in note for note in found.notes)


def test_it_is_said_which_of_three_runs_are_one(tmp_path):
    for name, values in (("a", [1.0]), ("b", [2.0])):
        np.save(tmp_path / f"{name}.npy", np.array(values))
    (tmp_path / "link.npy").symlink_to("a.npy")
    a, b, link = (str(tmp_path / f"{name}.npy") for name in ("a", "b", "link"))
    for given, pair, named in (
        ((a, b, a), "a and the reference", a),
        ((b, a, link), "b and the reference", a),
        ((a, link, b), "a and b", a),
    ):
        said = f"{pair} are the same path: {named}; name three different runs"
        assert twinrun.compare_distances(*given).notes == [said]
        assert f"twinrun: {said}" in command("compare", given[0], given[1], "--closer-to", given[2]).out
    assert twinrun.compare_distances(a, np.array([3.0]), b).notes == []
