"""What golden checks say of texts, dates and ulp: what `compare` says, and no distance where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import command, load_json

import twinrun
from twinrun import golden
from twinrun.golden.words import element_text
from twinrun.report.github import summary
from twinrun.report.golden import golden_document
from twinrun.report.junit import junit_text


def reports(result: golden.GoldenCheck) -> str:
    return junit_text(result) + summary(result)


@pytest.mark.parametrize("kept", ["64K", "0"])
def test_texts_have_no_distance(tmp_path: Path, kept: str) -> None:
    (tmp_path / "a.csv").write_text("k,x\naa,1.5\nbb,2.5\n")
    (tmp_path / "b.csv").write_text("k,x\naa,1.5\ncc,2.5\n")
    command("golden", "save", tmp_path / "a.csv", "-o", tmp_path / "g", "--keep-values", kept)
    answer = command(
        "golden",
        "check",
        tmp_path / "g",
        tmp_path / "b.csv",
        "--json",
        tmp_path / "j",
        "--junit",
        tmp_path / "x",
    )
    assert answer.status == 1
    assert answer.out.count("k@text[1] = 'cc': is not what it was\n") == 2  # the element, and the verdict
    assert "|a-b| " not in answer.out.split("tolerance", 1)[1] and "e+1" not in answer.out
    assert "of the kind: text" in (tmp_path / "x").read_text()
    field = next(f for f in load_json((tmp_path / "j").read_text())["fields"] if f["field"] == "k@text")
    assert (field["kind"], field["at_least"], field["at_most"]) == ("text", 0.0, None)
    assert all((e["at_least"], e["at_most"]) == (0.0, "inf") for e in field["listed"])


@pytest.mark.parametrize("kept", [1 << 16, 0])
def test_texts_that_the_run_does_not_say(tmp_path: Path, kept: int) -> None:
    """A history keeps digests of texts only."""
    for name in "ab":
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, {"k@text": np.array([[1, 2], [3, 4 if name == "a" else 2**63]], np.uint64)})
    golden.save(tmp_path / "a", tmp_path / "g", keep_values=kept)
    result = golden.check(tmp_path / "g", tmp_path / "b")
    assert result.fields[0].kind == "text" and result.fields[0].different == 1
    text = reports(result)
    assert "k@text[1]: another text" in text and "a-b" not in text and "e+1" not in text
    assert golden_document(result)["first_divergence"]["text"] == "k@text[1]: another text"


def test_a_table_shows_no_distance_of_kinds(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", k=np.array(["one", "two"]))
    np.savez(tmp_path / "b.npz", k=np.array(["one", "TWO"]))
    golden.save(tmp_path / "a.npz", tmp_path / "g")
    out = command("golden", "check", tmp_path / "g", tmp_path / "b.npz").out
    assert out.splitlines()[1].split() == ["k", "1", "2", "0"]  # different, of, tolerance


@pytest.mark.parametrize("kept", [1 << 16, 0])
def test_dates_are_dates(tmp_path: Path, kept: int) -> None:
    t = np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "M8[D]")
    later = t + np.array([0, 3, 0], "m8[D]")
    golden.save({"t": t}, tmp_path / "g", keep_values=kept)
    result = golden.check(tmp_path / "g", {"t": later})
    text = reports(result)
    said = "2021-01-04, was 2021-01-01: |a-b| = 3 days > 0" if kept else "2021-01-04: |a-b| is 3 days > 0"
    assert f"t[1] = {said}".replace(">", "&gt;") in text
    assert "max |a-b|: 3 days" in text or "max |a-b|: at least 3 days, at most 3 days" in text
    assert "%" not in text and result.fields[0].unit == "M8[D]"


@pytest.mark.parametrize("kept", [1 << 16, 0])
def test_no_time_is_not_a_number(tmp_path: Path, kept: int) -> None:
    t = np.array(["2020-01-01", "2021-01-01"], "M8[ns]")
    golden.save({"t": t}, tmp_path / "g", keep_values=kept)
    text = reports(golden.check(tmp_path / "g", {"t": np.array(["NaT", "2021-01-01"], "M8[ns]")}))
    assert ("t[0] = NaT, was 2020-01-01T" if kept else "t[0] = NaT: is not what it was") in text
    assert "9223372036854775808" not in text and "e+1" not in text


def test_ulp_says_how_many(tmp_path: Path) -> None:
    x = np.array([1.0, 2.0])
    y = x.copy()
    for _ in range(5):
        y[0] = np.nextafter(y[0], 9)
    np.savez(tmp_path / "a.npz", x=x)
    np.savez(tmp_path / "b.npz", x=y)
    golden.save(tmp_path / "a.npz", tmp_path / "g")
    check = ("golden", "check", tmp_path / "g", tmp_path / "b.npz", "--ulp")
    assert "|a-b| = 1.11e-15 (5 ulp) > 3 ulp" in command(*check, "3").out
    assert "agree within 5 ulp with" in command(*check, "5").out


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", [{"atol": 1e-3}, {"rtol": 1e-3}])
def test_no_tolerance_reaches_what_is_no_number(tmp_path: Path, value: float, how: dict) -> None:
    """Digests know only that the golden value was another one: no distance to it is just above the tolerance."""
    u = np.ones(9000)
    golden.save({"u": u}, tmp_path / "g", keep_values=0, **how)
    v = u.copy()
    v[77] = value
    result = golden.check(tmp_path / "g", {"u": v})
    (field,) = result.fields
    first = field.first
    assert first.index == (77,) and first.at_least == first.at_most == np.inf
    assert field.at_least == field.at_most == np.inf
    said = f"u[77] = {value}: was another value, and {value} is within the tolerance of no other"
    assert said in reports(result) and "at least" not in said
    document = golden_document(result)["fields"][0]
    assert (document["at_least"], document["at_most"]) == ("inf", "inf")
    np.savez(tmp_path / "run.npz", u=v)
    answer = command("golden", "check", tmp_path / "g", tmp_path / "run.npz")
    assert answer.status == 1 and said in answer.out and "|a-b| is at least" not in answer.out


def test_a_number_in_place_of_nan_differs(tmp_path: Path) -> None:
    u = np.ones(9000)
    u[77] = np.nan
    golden.save({"u": u}, tmp_path / "g", keep_values=0, atol=1e-3)
    assert golden.check(tmp_path / "g", {"u": u}).same
    (field,) = golden.check(tmp_path / "g", {"u": np.ones(9000)}).fields
    assert field.verdict == "different" and field.first.index == (77,)


def test_a_difference_reads_as_more_than_the_tolerance(tmp_path: Path) -> None:
    """However near it is: 0.5 and the float64 below it are alike in 15 digits."""
    a, b = {"x": np.zeros(3)}, {"x": np.array([0, 0.5, 0])}
    tolerance = float(np.nextafter(0.5, 0))
    golden.save(a, tmp_path / "g", atol=tolerance)
    assert (
        first_text(golden.check(tmp_path / "g", b)) == "x[1] = 0.5, was 0: |a-b| = 0.5 > 0.4999999999999999"
    )
    assert "|a-b| = 0.5 > 0.4999999999999999" in str(twinrun.compare(a, b, atol=tolerance))
    assert "|a-b| = 0.5 > 0.4\n" in str(twinrun.compare(a, b, atol=0.4)) + "\n"
    # of digests: a value that has no cell is known to differ, and no more
    u = np.ones(9000)
    golden.save({"u": u}, tmp_path / "u", atol=1e-3, keep_values=0)
    u[5] = 1e300
    found = golden.check(tmp_path / "u", {"u": u})
    assert first_text(found) == "u[5] = 1e+300: |a-b| is more than 0.001"


def first_text(result: golden.GoldenCheck) -> str:
    (field,) = result.fields
    return element_text(field.first, field)
