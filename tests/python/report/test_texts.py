"""Texts are compared by digests of them; no report takes those for numbers."""

from __future__ import annotations

import csv
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun
from twinrun.report.listing import write_differences

A = {"n": np.array(["a", "b", "c"]), "x": np.arange(3.0)}
B = {"n": np.array(["a", "x", "c"]), "x": np.arange(3.0)}


def _in_memory(folder: Path) -> twinrun.Comparison:
    return twinrun.compare(A, B)


def _captured(folder: Path) -> twinrun.Comparison:
    for name, fields in (("a", A), ("b", B)):
        with twinrun.Run(folder / name) as run:
            run.capture(0, fields)
    return twinrun.compare(folder / "a", folder / "b")


@pytest.mark.parametrize("made", [_in_memory, _captured])
def test_no_number_is_said_of_texts(tmp_path: Path, made) -> None:
    result = made(tmp_path)
    (text,) = [f for f in result.fields if f.field == "n@text"]
    assert text.kind == "text" and text.different
    known = (text.max_abs_diff, text.first_abs_diff, text.max_abs_index, text.rms_diff, text.max_rel_diff)
    assert known == (None, None, None, 0.0, 0.0) and not any(text.histogram)
    result.to_html(tmp_path / "report.html")
    said = [
        repr(text),
        text._repr_html_(),
        result._repr_html_(),
        str(result),
        (tmp_path / "report.html").read_text(),
    ]
    if made is _captured:
        junit = tmp_path / "report.xml"
        command("compare", tmp_path / "a", tmp_path / "b", "--junit", junit)
        said.append(junit.read_text())
        assert "n@text[1]: another text" in said[0] and "n@text[1]: another text" in said[-1]
    else:
        assert "n@text[1]: &#39;b&#39; against" in said[2] and (text.first_a, text.first_b) == ("'b'", "'x'")
    for report in said:
        assert "e+18" not in report and "e+19" not in report, report


def test_a_list_of_differences_has_no_distance_of_texts_and_dates(tmp_path: Path) -> None:
    a = A | {"t": np.array(["2020-01-01", "2020-01-02"], "M8[D]")}
    b = {"n": B["n"], "x": B["x"] + 1, "t": np.array(["2020-01-01", "NaT"], "M8[D]")}
    found = twinrun.compare(a, b)
    write_differences(found, tmp_path / "d.csv")
    with (tmp_path / "d.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["field"], row["abs_diff"]) for row in rows} == {("n@text", ""), ("t", ""), ("x", "1.0")}
    pq = pytest.importorskip("pyarrow.parquet")
    write_differences(found, tmp_path / "d.parquet")
    table = pq.read_table(tmp_path / "d.parquet").to_pylist()
    assert {(r["field"], r["abs_diff"]) for r in table} == {("n@text", None), ("t", None), ("x", 1.0)}


@pytest.mark.parametrize(
    "a, b",
    [
        ("é", "e\u0301"),
        ("x" * 500 + "1", "x" * 500 + "2"),
        ("x" * 500, "x" * 501),
        ("a\u00a0b", "a b"),
        ("", "x" * 999),
    ],
)
def test_texts_that_differ_are_shown_where_they_do(a: str, b: str) -> None:
    (field,) = twinrun.compare({"n": np.array([a])}, {"n": np.array([b])}).fields
    said = field.first_a, field.first_b
    assert said[0] != said[1] and max(map(len, said)) <= 201
    assert ascii(said[0]) != ascii(said[1]) and unicodedata.normalize("NFC", said[0]) != said[1]
