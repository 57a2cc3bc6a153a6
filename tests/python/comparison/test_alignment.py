"""Steps that only one run has, other cadences, restarts: aligned by number or by time, and said."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
from commands import command, load_json

import twinrun
from twinrun import formats
from twinrun.errors import Incomparable, Unmatched
from twinrun.formats.model import Field, FileContent, Format


def open_series(path: str) -> FileContent:
    """Test format: lines `step time value`, each an array of three elements."""
    content = FileContent(path, "series")
    for line, text in enumerate(pathlib.Path(path).read_text().splitlines()):
        step, time, value = text.split()
        array = np.full(3, float(value))
        content.add(
            Field(
                f"x@{line}", "f64", "little", (3,), read=lambda first, count, a=array: a[first : first + count],
                step=int(step), series="x",
            )
        )  # fmt: skip
        content.times[int(step)] = float(time)
    return content


@pytest.fixture(autouse=True)
def series_format() -> Iterator[None]:
    formats.register(Format("series", "for tests", open_series, suffixes=(".series",), many_steps=True))
    yield
    del formats._extra["series"]


def series(path: pathlib.Path, *lines: tuple[int, float, float]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{step} {time!r} {value!r}\n" for step, time, value in lines))
    return str(path)


def test_a_file_of_several_steps(tmp_path: pathlib.Path) -> None:
    a = series(tmp_path / "a.series", (0, 0.0, 1.0), (10, 0.1, 2.0), (20, 0.2, 3.0))
    b = series(tmp_path / "b.series", (0, 0.0, 1.0), (10, 0.1, 2.0), (20, 0.2, 3.5))
    found = twinrun.compare(a, b)
    assert [(f.step, f.field, f.same) for f in found.fields] == [
        (0, "x", True),
        (10, "x", True),
        (20, "x", False),
    ]
    assert [f.step for f in twinrun.compare(a, b, steps="10:").fields] == [10, 20]


def test_other_cadences_share_steps(tmp_path: pathlib.Path) -> None:
    a = series(tmp_path / "a.series", *((s, s * 0.5, s) for s in range(0, 50, 10)))
    b = series(tmp_path / "b.series", *((s, s * 0.5, s) for s in range(0, 50, 20)))
    with pytest.raises(Unmatched, match="steps 10, 30"):
        twinrun.compare(a, b)
    found = twinrun.compare(a, b, partial=True)
    assert (
        found.verdict == "incomparable" and not found.same and [f.step for f in found.fields] == [0, 20, 40]
    )
    common = twinrun.compare(a, b, common=True)
    assert common.same and any("steps 10, 30" in note for note in common.notes)


def test_steps_of_the_same_time(tmp_path: pathlib.Path) -> None:
    a = series(tmp_path / "a.series", (0, 0.0, 1.0), (10, 0.1 + 0.2, 2.0), (20, 0.6, 3.0))
    b = series(tmp_path / "b.series", (0, 0.0, 1.0), (5, 0.15, 9.0), (15, 0.3, 2.0), (30, 0.6, 4.0))
    with pytest.raises(Unmatched):
        twinrun.compare(a, b)
    with pytest.raises(Unmatched, match="step 5 "):
        twinrun.compare(a, b, align="time")
    found = twinrun.compare(a, b, align="time", common=True)
    assert [(f.step, f.same) for f in found.fields] == [(0, True), (10, True), (20, False)]
    assert any("aligned by time: step 10 with 15, 20 with 30" in note for note in found.notes)


def test_no_time_is_no_alignment(tmp_path: pathlib.Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x_10.npy", np.ones(3))
    with pytest.raises(Incomparable, match="has no time"):
        twinrun.compare(tmp_path / "a", tmp_path / "b", align="time")


def test_a_step_written_twice(tmp_path: pathlib.Path) -> None:
    a = series(tmp_path / "a.series", (0, 0.0, 1.0), (10, 0.1, 2.0), (20, 0.2, 3.0))
    b = series(tmp_path / "b.series", (0, 0.0, 1.0), (10, 0.1, 7.0), (10, 0.1, 2.0), (20, 0.2, 3.0))
    found = twinrun.compare(a, b)
    assert found.same
    assert any("step 10 is in the file several times" in note for note in found.notes)
    swapped = series(tmp_path / "c.series", (0, 0.0, 1.0), (10, 0.1, 2.0), (10, 0.1, 7.0), (20, 0.2, 3.0))
    assert not twinrun.compare(a, swapped).same


def test_folders_of_such_files(tmp_path: pathlib.Path) -> None:
    for name, value in (("a", 2.0), ("b", 3.0)):
        series(tmp_path / name / "thermo.series", (0, 0.0, 1.0), (10, 0.1, value))
        series(tmp_path / name / "other.series", (0, 0.0, 1.0), (10, 0.1, 1.0))
    found = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert [(f.step, f.field, f.same) for f in found.fields] == [
        (0, "other/x", True), (0, "thermo/x", True), (10, "other/x", True), (10, "thermo/x", False),
    ]  # fmt: skip


def test_one_unreadable_file_leaves_the_rest_compared(tmp_path: pathlib.Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in (1, 2, 3):
            np.save(tmp_path / name / f"x_{step}.npy", np.arange(100.0) + (step == 3 and name == "b"))
    broken = tmp_path / "b" / "x_2.npy"
    broken.write_bytes(broken.read_bytes()[:300])
    report = tmp_path / "report.json"
    done = command("compare", tmp_path / "a", tmp_path / "b", "--json", report)
    assert done.status == 2 and "x_2.npy" in done.err
    document = load_json(report.read_text())
    assert document["verdict"] == "incomparable"
    assert [(f["step"], f["verdict"]) for f in document["fields"]] == [(1, "same"), (3, "different")]
    assert document["first_divergence"]["step"] == 3
    assert "x_2.npy" in document["problems"][0]
    assert done.out.splitlines()[-1].startswith("incomparable: 1 thing could not be compared")
    with pytest.raises(twinrun.TwinrunError, match="x_2"):
        twinrun.compare(tmp_path / "a", tmp_path / "b")
    # What cannot be read is never "only in one run".
    assert command("compare", tmp_path / "a", tmp_path / "b", "--common").status == 2


# ---- ranks that one run has lost


def of_ranks(path: pathlib.Path, places: dict[tuple[int, int], dict[str, np.ndarray]]) -> pathlib.Path:
    """A folder of .npz files; places: {(step, rank): fields}."""
    path.mkdir()
    for (step, rank), fields in places.items():
        np.savez(path / f"out_{step:05}.{rank}.npz", **fields)
    return path


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("own", [False, True])
def test_a_lost_rank_is_not_left_out_as_what_only_one_run_has(
    tmp_path: pathlib.Path, own: bool, where: str
) -> None:
    """own: the lost rank's fields are no other's, so that they look like fields that only one run has."""
    x = np.arange(5.0)
    whole = {(s, r): {"y" if own and r else "x": x} for s in (1, 2) for r in (0, 1)}
    part = {place: fields for place, fields in whole.items() if place != (2, 1)}
    a = of_ranks(tmp_path / "a", part if where == "a" else whole)
    b = of_ranks(tmp_path / "b", part if where == "b" else whole)
    for fields in (None, ["x", "y"], ["y" if own else "x"]):
        found = twinrun.compare(a, b, common=True, partial=True, fields=fields)
        assert found.verdict == "incomparable" and any("step 2, rank 1" in p for p in found.problems), fields
        with pytest.raises(Incomparable, match="rank"):
            twinrun.compare(a, b, common=True, fields=fields)
    done = command("compare", a, b, "--common")
    assert done.status == 2 and "step 2, rank 1" in done.err and "--ranks" in done.err
    # What is named is compared, and no more; a rank that is named and lost is lost.
    assert twinrun.compare(a, b, ranks="0").same
    assert command("compare", a, b, "--ranks", "0").status == 0
    assert twinrun.compare(a, b, ranks="1", steps="1").same
    assert command("compare", a, b, "--common", "--ranks", "1").status == 2
    assert command("compare", a, b, "--common", "--ranks", "0:1").status == 2
    assert command("compare", a, b, "--ranks", "7").status == 2
    # A step that only one run has is one.
    only = of_ranks(tmp_path / "c", {place: f for place, f in whole.items() if place[0] == 1})
    assert twinrun.compare(only, tmp_path / ("b" if where == "a" else "a"), common=True).same


@pytest.mark.parametrize("fields", [None, "x"])
def test_a_field_that_only_one_run_has_may_lie_on_a_lost_rank_too(
    tmp_path: pathlib.Path, fields: str | None
) -> None:
    """The first run lost rank 0 of step 2, and its rank 1 has no x there."""
    x, y = {"x": np.zeros(3)}, {"y": np.zeros(2)}
    places = {(s, r): x | y for s in (1, 2) for r in (0, 1)}
    a = of_ranks(tmp_path / "a", {(1, 0): x | y, (1, 1): x | y, (2, 1): y})
    b = of_ranks(tmp_path / "b", places)
    for pair in ((a, b), (b, a)):
        found = twinrun.compare(*pair, fields=fields, common=True, partial=True)
        assert found.verdict == "incomparable" and any("step 2, rank 0" in p for p in found.problems)


def test_particles_that_only_a_lost_rank_had_are_not_left_out(tmp_path: pathlib.Path) -> None:
    x = np.arange(5.0)
    whole = {(1, 0): {"gas/id": np.arange(5), "gas/x": x}, (1, 1): {"star/id": np.arange(5), "star/x": x}}
    a = of_ranks(tmp_path / "a", whole)
    b = of_ranks(tmp_path / "b", {(1, 0): whole[1, 0]})
    found = twinrun.compare(a, b, key="id", common=True, partial=True)
    assert found.verdict == "incomparable" and "star/id" in found.problems[0]
    assert twinrun.compare(a, b, key="id", ranks="0").same


def test_differences_are_listed_of_the_ranks_that_were_compared(tmp_path: pathlib.Path) -> None:
    x = np.arange(5.0)
    a = of_ranks(tmp_path / "a", {(1, r): {"x": x} for r in range(3)})
    b = of_ranks(tmp_path / "b", {(1, r): {"x": x + 1} for r in (1, 2)})
    found = twinrun.compare(a, b, ranks="1:")
    assert found.different == 10 and [f.rank for f in found.fields] == [1, 2]
    assert sum(part.count for part in found.differences()) == 10
