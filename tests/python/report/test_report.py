"""Reports: the verdict's line, the table, the JSON, the growth picture."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from commands import command, load_json

import twinrun
from twinrun.comparison.words import verdict_line
from twinrun.outputs import save_figure
from twinrun.report import document, write_json
from twinrun.report.picture import growth, save_growth
from twinrun.words import byte_size, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234567, "1.23 MB"),
        (10**13, "10 TB"),
        (10**19, "1e+07 TB"),
    ],
)
def test_byte_size(value: int, text: str) -> None:
    assert byte_size(value) == text


def test_number() -> None:
    assert [number(v) for v in (None, 12345678, 0.123456, math.inf, math.nan)] == [
        "?",
        "12345678",
        "0.123",
        "inf",
        "nan",
    ]


@pytest.mark.parametrize(
    ("a", "b", "options", "line"),
    [
        ([0.0, 1.0], [0.0, 1.5], {}, "different: first at array[1]: 1 against 1.5, |a-b| = 0.5 > 0 (50%)"),
        ([0.0], [1.0], {"atol": 0.25, "rtol": 0.5}, "different: first at array[0]: 0 against 1, |a-b| = 1 > 0.25 + 0.5 |a|"),
        ([0.0], [1.0], {"rtol": 0.5}, "different: first at array[0]: 0 against 1, |a-b| = 1 > 0.5 |a|"),
        ([math.nan], [1.0], {"atol": 9.0}, "different: first at array[0]: nan against 1"),
        ([math.inf], [-math.inf], {}, "different: first at array[0]: inf against -inf"),
        ([[1, 2], [3, 4]], [[1, 2], [7, 4]], {}, "different: first at array[1, 0]: 3 against 7, |a-b| = 4 > 0 (133%)"),
        (1.0, 2.0, {}, "different: first at array: 1 against 2, |a-b| = 1 > 0 (100%)"),
        ([1 + 2j], [1 + 3j], {}, "different: first at array[0, 1]: 2 against 3, |a-b| = 1 > 0 (50%)"),
        ([1.0], [1.0], {}, "same: 1 field, 1 step, 1 element (8 B a run) agree"),
        ([1.0, 2.0], [1.0, 2.0], {"atol": 0.5}, "same: 1 field, 1 step, 2 elements (16 B a run) agree within 0.5"),
    ],
)  # fmt: skip
def test_verdict_line(a: object, b: object, options: dict, line: str) -> None:
    assert verdict_line(twinrun.compare(np.array(a), np.array(b), **options)) == line


def test_the_document_follows_the_result(tmp_path: Path) -> None:
    a = np.array([0.0, 1.0, np.nan, np.inf])
    b = np.array([0.0, 1.5, 1.0, np.inf])
    result = twinrun.compare(a, b)
    write_json(str(tmp_path / "r.json"), document(result))
    d = load_json((tmp_path / "r.json").read_text())
    (f,) = d["fields"]
    assert (d["verdict"], d["different"], f["verdict"], f["different"]) == ("different", 2, "different", 2)
    assert d["first_divergence"] == {
        "step": None, "rank": 0, "field": "array", "index": [1], "a": 1.0, "b": 1.5, "abs_diff": 0.5
    }  # fmt: skip
    assert (f["max_abs_diff"], f["max_abs_index"], f["max_abs_a"]) == ("inf", [2], "nan")
    assert len(f["histogram"]) == len(d["histogram_edges"]) + 3
    assert sum(f["histogram"]) == 4 and sum(f["histogram_different"]) == 2


def test_json_replaces_a_link_or_writes_into_a_pipe(tmp_path: Path) -> None:
    """A regular file is replaced whole; what cannot be renamed over is written to."""
    write_json("/dev/null", {"x": 1})
    target = tmp_path / "r.json"
    target.write_text("old")
    write_json(str(target), {"x": 1})
    assert load_json(target.read_text()) == {"x": 1}
    assert target.stat().st_mode & 0o777 == 0o644


def test_growth_and_its_picture(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=2000)
    for run in ("a", "b"):
        with twinrun.Run(tmp_path / run, atol=1e-3) as history:
            for step in (1, 2, 3):
                shift = 0.0 if run == "a" else (1e-5, 2e-3, 0.5)[step - 1]
                history.capture(step, {"x": x + shift, "constant": x})
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    lines = growth(result)
    assert [p[0] for p in lines["x"]] == [1, 2, 3]
    for (_, low, high, exact), truth in zip(lines["x"], (1e-5, 2e-3, 0.5), strict=True):
        assert low <= truth * (1 + 1e-9) and high >= truth * (1 - 1e-9)
        assert exact == (truth > 1e-3)
    pytest.importorskip("matplotlib")
    for suffix in ("png", "svg"):
        save_growth(result, str(tmp_path / f"p.{suffix}"))
        assert (tmp_path / f"p.{suffix}").stat().st_size > 1000
    same = twinrun.compare(tmp_path / "a", tmp_path / "a")
    save_growth(same, str(tmp_path / "none.png"))
    done = command("compare", tmp_path / "a", tmp_path / "b", "--picture", tmp_path / "q.png")
    assert done.status == 1 and (tmp_path / "q.png").exists()


def test_a_bound_is_marked_as_one(tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=20_000)
    for run, shift in (("a", 0.0), ("b", 2e-4)):
        with twinrun.Run(tmp_path / run, atol=1e-3) as history:
            history.capture(1, {"x": x + shift})
    done = command("compare", tmp_path / "a", tmp_path / "b", "--json", tmp_path / "r.json")
    (f,) = load_json((tmp_path / "r.json").read_text())["fields"]
    assert done.status == 0 and "≤ " in done.out
    assert (
        f["max_abs_diff_is_bound"]
        and f["max_abs_diff_at_least"] <= 2.1e-4
        and 1.9e-4 <= f["max_abs_diff"] <= 1e-3
    )
    assert f["elements_read"] == 0


def test_a_difference_just_above_the_tolerance_is_seen_to_be_larger() -> None:
    a, b = np.array([0.0]), np.array([np.nextafter(1e-5, 1)])
    line = verdict_line(twinrun.compare(a, b, atol=1e-5))
    assert "|a-b| = 1e-05 >" not in line and line.endswith("> 1e-05")
    assert float(line.split("|a-b| = ")[1].split(" >")[0]) > 1e-5


def test_no_table_of_no_fields(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, value in (("a", 1), ("b", 2)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.attrs["t"] = value
            file["nowhere"] = h5py.SoftLink("/none")
    done = command("compare", tmp_path / "a.h5", tmp_path / "b.h5")
    assert done.status == 2 and "@t: 1 against 2" in done.out, done.out
    assert "device:" not in done.out and "max |a-b|" not in done.out


def test_where_files_are_is_said_beside_the_verdict(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    page = tmp_path / "report.html"
    done = command("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--html", page)
    assert done.err == f"wrote {page}\n" and done.last.startswith("same: ") and page.exists()
    assert command("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--html", page, "-q").err == ""


def test_progress_of_steps_never_goes_back(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in range(4):
            np.savez(tmp_path / name / f"s_{step}.npz", x=np.arange(3000.0), y=np.arange(10.0))
    told: list[tuple[int, int]] = []
    twinrun.compare(
        tmp_path / "a", tmp_path / "b", progress=lambda _, done, total: told.append((done, total))
    )
    assert len(told) >= 4 and len({total for _, total in told}) == 1
    assert [d for d, _ in told] == sorted(d for d, _ in told) and told[-1][0] == told[-1][1]


def test_a_result_is_three_lines_and_its_text_the_report(tmp_path: Path) -> None:
    a = {f"x{n}": np.arange(5.0) for n in range(1000)}
    b = {name: x + (name == "x7") * 0.5 for name, x in a.items()}
    result = twinrun.compare(a, b, atol=0.1)
    lines = repr(result).splitlines()
    assert len(lines) == 3 and lines[0].startswith("<Comparison of ") and "1000 fields, 1 step" in lines[1]
    assert lines[2] == f"  {verdict_line(result)}>" and len(repr(result)) < 600
    for name, x in (("a", a), ("b", b)):
        np.savez(tmp_path / name, **{k: x[k] for k in ("x7", "x8")})
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    assert str(twinrun.compare(*files, atol=0.1)) + "\n" == command("compare", *files, "--atol", "0.1").out
    odd = twinrun.compare({"漢": np.zeros(2)}, {"漢": np.ones(2)})  # not without Rich
    assert str(odd).splitlines()[-1] == verdict_line(odd) and "漢" in str(odd)


def test_the_worst_place_and_files_of_a_result(tmp_path: Path) -> None:
    for run in "ab":
        with twinrun.Run(tmp_path / run, atol=1e-3) as history:
            for step, error in ((1, 0.0), (2, 0.5), (3, 0.25)):
                history.capture(step, {"x": np.zeros(50), "y": np.full(50, error * (run == "b"))})
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert (result.worst.step, result.worst.field, result.worst.max_abs_diff) == (2, "y", 0.5)
    assert (
        twinrun.compare(tmp_path / "a", tmp_path / "a", options=twinrun.CompareOptions(method="direct")).worst
        is None
    )
    assert twinrun.compare(np.zeros(3), np.zeros(3)).worst is None
    result.to_html(tmp_path / "page.html")
    command("compare", tmp_path / "a", tmp_path / "b", "--html", tmp_path / "cli.html")
    assert (
        (tmp_path / "page.html").read_text().count("<svg")
        == (tmp_path / "cli.html").read_text().count("<svg")
        > 0
    )
    pytest.importorskip("matplotlib")
    assert {line.get_label() for line in result.plot().axes[0].lines} >= {"y"}


def test_any_name_is_drawn_without_a_warning(tmp_path: Path) -> None:
    """Control characters, formulas of matplotlib that are none, scripts that its font does not have."""
    pytest.importorskip("matplotlib")
    names = ["u\x01\tv", "a\rb", "$x^$", "$\\frac$", "速度"]
    for run, shift in (("a $^$", 0.0), ("b", 1.0)):
        with twinrun.Run(tmp_path / run) as history:
            for step in (1, 2):
                history.capture(step, {name: np.zeros(3) + shift for name in names})
    result = twinrun.compare(tmp_path / "a $^$", tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("png", "svg"):
            save_growth(result, str(tmp_path / f"p.{suffix}"))
        save_figure(result.plot("map"), tmp_path / "map.png")
    done = command("compare", tmp_path / "a $^$", tmp_path / "b", "--picture", tmp_path / "q.png")
    assert done.err == f"wrote {tmp_path / 'q.png'}\n"
