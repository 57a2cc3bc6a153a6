"""twinrun tolerances: what it writes, and how it ends."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
import tomllib
from commands import command

import twinrun
from twinrun.comparison.proposal import propose
from twinrun.comparison.tolerances import read_tolerances


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Two runs of two steps."""
    made = []
    for run in range(2):
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        for step in (1, 2):
            np.save(folder / f"x-{step}.npy", np.arange(100.0) + run * step * 1e-6)
        made.append(folder)
    return made


def test_rules_of_whole_runs(runs: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    done = command("tolerances", *runs, "-o", tmp_path / "t.toml")
    assert done.status == 0 and not done.err
    assert command("compare", *runs, "--tolerances", tmp_path / "t.toml").status == 0


def test_a_damaged_step_is_not_left_out_in_silence(runs: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    damaged = runs[1] / "x-2.npy"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = command("tolerances", *runs, "-o", tmp_path / "t.toml")
    assert done.status == 2 and "x-2.npy" in done.err and done.err.startswith("twinrun: ")
    # What could be compared has its rules all the same, and the file names what could not.
    text = (tmp_path / "t.toml").read_text()
    assert "# Not compared: " in text and "x-2.npy" in text
    assert read_tolerances(tmp_path / "t.toml").find("x", 1) is not None
    assert len(propose(runs).problems) == 1


def test_a_field_of_one_run_alone_is_said(runs: list[pathlib.Path]) -> None:
    for step in (1, 2):
        np.save(runs[0] / f"y-{step}.npy", np.zeros(3))
    done = command("tolerances", *runs)
    assert done.status == 2 and "y" in done.err and "[[tolerance]]" in done.out


def test_what_is_said_of_each_field_is_so(tmp_path: pathlib.Path) -> None:
    made = []
    for run in range(2):
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        (folder / "same.txt").write_text("of both\n")
        (folder / "log.txt").write_text(f"run {run}\n")
        for step in (1, 2):
            np.save(folder / f"n-{step}.npy", np.arange(8) + run * (step == 2))
        made.append(folder)
    lines = command("tolerances", *made).out.splitlines()
    said = {lines[at + 2]: line for at, line in enumerate(lines[:-2]) if lines[at + 1] == "[[tolerance]]"}
    assert "differ, and have no tolerance" in said['field = "log.txt"']
    assert said['field = "same.txt"'].endswith("always equal")
    assert said['field = "same.txt"'].startswith("# 1 comparison of ")
    assert said['field = "n"'].endswith("max |a-b| 1 (step 2), in up to 100% of the elements; 1 step equal")


def two_files(folder: pathlib.Path, first: dict, second: dict) -> list[pathlib.Path]:
    """Two runs of one file each."""
    made = [folder / "a.npz", folder / "b.npz"]
    for path, fields in zip(made, (first, second), strict=True):
        np.savez(path, **fields)
    return made


def said_of(text: str) -> dict[str, str]:
    """By field, the comment above its rule."""
    rules = re.findall(r'^# (.*)\n\[\[tolerance\]\]\nfield = "(.*)"$', text, re.M)
    return {name: said for said, name in rules}


def test_the_advice_to_leave_out_what_has_no_tolerance_works(tmp_path: pathlib.Path) -> None:
    a, b = two_files(
        tmp_path,
        {"x": np.arange(3.0), "t": np.array(["a"]), "pos": np.array([1.0, 2.0])},
        {"x": np.arange(3.0) + 1e-6, "t": np.array(["b"]), "pos": np.array([1.0, np.nan])},
    )
    path = tmp_path / "t.toml"
    assert command("tolerances", a, b, "--period", "10", "-o", path).status == 0
    text = path.read_text()
    assert "# skip" not in text  # beside atol it would be refused
    place = r"^atol = 0\.0  # to leave the field out, write skip = true in place of this(\nperiod = .*  # and of this)?$"
    followed, count = re.subn(place, "skip = true", text, flags=re.M)
    assert count == 2
    path.write_text(followed)
    done = command("compare", a, b, "--tolerances", path)
    assert done.status == 0 and "left out on request: pos, t" in done.out


@pytest.mark.parametrize("period", ["10", "10,10,20", "pos=10x10x20", "vel=10"])
@pytest.mark.parametrize("by_step", [False, True])
def test_rules_have_the_period(tmp_path: pathlib.Path, period: str, by_step: bool) -> None:
    """Neighbours across the border of the box: without the period they are far apart."""
    for run, values in (("a", [0.01, 0.01, 0.01]), ("b", [9.99, 9.99, 9.99 if period == "10" else 19.99])):
        (tmp_path / run).mkdir()
        for step in (1, 2):
            np.savez(
                tmp_path / run / f"s-{step}.npz",
                pos=np.array([values] if "vel" not in period else [[0.01] * 3]),
                vel=np.array(values[:1] if "vel" in period else [1.0]),
            )
    path = tmp_path / "t.toml"
    more = ["--by-step"] if by_step else []
    assert (
        command("tolerances", tmp_path / "a", tmp_path / "b", "--period", period, "-o", path, *more).status
        == 0
    )
    periodic = {rule["field"] for rule in tomllib.loads(path.read_text())["tolerance"] if "period" in rule}
    assert periodic == {"vel" if "vel" in period else "pos"}
    assert command("compare", tmp_path / "a", tmp_path / "b", "--tolerances", path).status == 0


def test_a_period_that_only_some_steps_have_is_said(tmp_path: pathlib.Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        for step in (2, 3):
            np.save(tmp_path / run / f"pos-{step}.npy", np.zeros((4, step)))
    path = tmp_path / "t.toml"
    assert command("tolerances", tmp_path / "a", tmp_path / "b", "--period", "1,1,1", "-o", path).status == 0
    assert "# period: not the same in all comparisons; give --period when you compare" in path.read_text()
    assert command("compare", tmp_path / "a", tmp_path / "b", "--tolerances", path).status == 0


def test_advice_names_options_of_this_verb(tmp_path: pathlib.Path, runs: list[pathlib.Path]) -> None:
    for step in (1, 2):
        np.save(runs[0] / f"y-{step}.npy", np.zeros(3))
    done = command("tolerances", *runs)
    for text in (done.out, done.err):
        assert "compare the common ones with twinrun compare --common, or choose with --field" in text
    np.save(runs[1] / "x-2.npy", np.zeros(100, "f4"))
    assert "or twinrun compare --cast compares" in command("tolerances", *runs, "--field", "x").err
    for run, step in enumerate((1, 2)):
        (tmp_path / f"other{run}").mkdir()
        np.save(tmp_path / f"other{run}" / f"x-{step}.npy", np.zeros(3))
    done = command("tolerances", tmp_path / "other0", tmp_path / "other1")
    assert done.status == 2 and "twinrun compare --align time" in done.err
    # The verb that has them says them as before, and so does Python.
    said = command("compare", *runs, "--field", "y").err
    assert "with --common" in said and "twinrun compare" not in said
    with pytest.raises(twinrun.Incomparable, match="common=True"):
        propose(runs, fields=["y"])


HUGE = np.finfo(np.float64).max


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (1e308, -1e308, "|a-b| exceeds the largest number of f64, and so every atol"),
        (1.7e308, 0.0, "max |a-b| 1.7e+308, times 2, exceeds the largest number of f64, and so every atol"),
        (HUGE, 0.0, "max |a-b| 1.8e+308, times 2, exceeds the largest number of f64, and so every atol"),
        (np.nan, 0.0, "a NaN or an infinity met another value, which no tolerance allows"),
        (np.inf, -np.inf, "a NaN or an infinity met another value, which no tolerance allows"),
    ],
)
def test_no_tolerance_is_infinite(tmp_path: pathlib.Path, a: float, b: float, said: str) -> None:
    files = two_files(tmp_path, {"x": np.array([1.0, a])}, {"x": np.array([1.0, b])})
    path = tmp_path / "t.toml"
    assert command("tolerances", *files, "-o", path).status == 0
    assert said_of(path.read_text()) == {"x": f"1 comparison of f64: {said}"}
    assert [rule.atol for rule in read_tolerances(path).rules] == [0.0]
    assert command("compare", *files, "--tolerances", path).status == 1


def test_a_missing_value_against_another_value_is_pointed_out(tmp_path: pathlib.Path) -> None:
    a, b = np.linspace(280, 290, 50), np.linspace(280, 290, 50)
    b[3] += 0.25
    for value, said in ((None, False), (1e20, True)):
        b[7] = a[7] if value is None else value
        for name, x in (("a", a), ("b", b)):
            np.save(tmp_path / f"{name}.npy", x)
        text = command("tolerances", tmp_path / "a.npy", tmp_path / "b.npy").out
        assert (
            f"# The values there are {float(a[7])} and 1e+20, so that this passes nearly any value" in text
        ) == said
        assert ("Does one stand for a missing value?" in text) == said


def test_the_largest_tolerance_is_not_rounded_to_infinity(tmp_path: pathlib.Path) -> None:
    """One digit more than 1.7e308 is no number of f64."""
    files = two_files(tmp_path, {"x": np.array([HUGE])}, {"x": np.array([0.0])})
    path = tmp_path / "t.toml"
    assert command("tolerances", *files, "--margin", "1", "-o", path).status == 0
    assert [rule.atol for rule in read_tolerances(path).rules] == [HUGE]
    assert command("compare", *files, "--tolerances", path).status == 0


def test_what_is_no_number_is_called_by_its_kind(tmp_path: pathlib.Path) -> None:
    h5py = pytest.importorskip("h5py")
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for run, path in enumerate(files):
        with h5py.File(path, "w") as file:
            file["text"] = f"run {run}"
            file["same"] = "of both"
            file["wide"] = np.arange(3, dtype=np.longdouble) + run
            lists = np.empty(2, object)
            lists[:] = [np.array([1.0, 2.0 + run]), np.array([3.0])]
            file.create_dataset("lists", data=lists, dtype=h5py.vlen_dtype("f8"))
            file["n"] = np.arange(3, dtype="u8")
    said = said_of(command("tolerances", *files).out)
    assert said == {
        "text": "1 comparison of text: they differ, and have no tolerance",
        "same": "1 comparison of text: always equal",
        "wide": f"1 comparison of {np.dtype(np.longdouble).name}: they differ, and have no tolerance",
        "lists": "1 comparison of list: they differ, and have no tolerance",
        "n": "1 comparison of u64: always equal",
    }


def test_digests_of_texts_get_no_tolerance() -> None:
    """Texts in memory are compared by digests, whose distance means nothing."""
    runs = [{"t": np.array([text])} for text in ("a", "b")]
    text = propose(runs).toml()
    assert said_of(text) == {"t@text": "1 comparison of text: they differ, and have no tolerance"}
    assert "integers" not in text


def test_attributes_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    h5py = pytest.importorskip("h5py")
    files = [tmp_path / f"{name}.h5" for name in "abc"]
    for run, path in enumerate(files):
        with h5py.File(path, "w") as file:
            file["x[0]"] = np.arange(3.0)
            file["x[0]"].attrs["date"] = f"run {run}\n"
            file["x[0]"].attrs["origin"] = "of all"
            file.attrs["host"] = f"node {run // 2}"  # of the third run alone another
    path = tmp_path / "t.toml"
    done = command("tolerances", *files, "-o", path)
    assert done.status == 0 and not done.out
    assert done.err == (
        "note: 2 attributes differ, and have no tolerance: x[0]@date, @host; "
        "rules that leave them out are comments in the file\n"
    )
    text = path.read_text()
    assert "origin" not in text and len(read_tolerances(path).rules) == 1
    assert "\n# @host: 'node 0' against 'node 1'\n#[[tolerance]]\n" in text
    assert command("compare", files[0], files[2], "--tolerances", path).status == 1
    path.write_text(re.sub(r"^#(?! )", "", text, flags=re.M))
    done = command("compare", files[0], files[2], "--tolerances", path)
    assert done.status == 0 and "left out on request: @host, x[0]@date" in done.out
    assert list(propose(files).attributes) == ["x[0]@date", "@host"]
    assert twinrun.compare(files[0], files[1], tolerances=path).same


def test_equal_attributes_are_not_named(runs: list[pathlib.Path]) -> None:
    done = command("tolerances", *runs)
    assert not done.err and "ttribute" not in done.out
