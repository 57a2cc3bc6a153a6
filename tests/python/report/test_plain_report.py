"""The report that is written without Rich has the bytes that Rich writes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import twinrun
from twinrun.report.text import print_comparison, write_comparison

NAMES = st.text(st.sampled_from("ab_ .[]/:é漢\u200b\ta\u0301|*x…"), min_size=1, max_size=30)


def by_rich(result: twinrun.Comparison, details: bool) -> str:
    out = io.StringIO()
    print_comparison(Console(file=out, highlight=False, emoji=False, markup=False), result, details)
    return out.getvalue()


def check(result: twinrun.Comparison, details: bool = False) -> bool:
    """Whether the report was written without Rich; then it must be the same."""
    out = io.StringIO()
    written = write_comparison(out, result, details)
    assert out.getvalue() == (by_rich(result, details) if written else "")
    return written


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(NAMES, st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_the_bytes_are_those_of_rich(fields, details, common):
    a = {name: np.arange(size, dtype=float) for name, (size, _) in fields.items()}
    b = {
        name: x + (np.arange(x.size) < fields[name][1]) * 10.0 ** (fields[name][1] - 150)
        for name, x in a.items()
    }
    if common:
        b["only here"] = np.zeros(3)
    check(twinrun.compare(a, b, partial=True, common=common), details)


def test_usual_reports_need_no_rich(tmp_path):
    x = np.linspace(0, 1, 1000)
    for name, error in (("a", 0.0), ("b", 1e-3)):
        with twinrun.Run(str(tmp_path / name), atol=1e-6) as run:
            for step in range(50):
                run.capture(step, {"x": x + error * (step > 40), "velocity": x, "ids": np.arange(1000)})
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for pair in ((a, a), (a, b)):
        for details in (False, True):
            assert check(twinrun.compare(*pair, partial=True), details)
    assert check(twinrun.compare({"x": x}, {"x": x, "y": x}, partial=True))
    assert check(
        twinrun.compare({f"x{n}": x for n in range(60)}, {f"x{n}": x + (n % 7 == 0) for n in range(60)})
    )


def test_nothing_is_cut_where_there_is_no_terminal(monkeypatch):
    """Tables are as wide as their cells; sentences that do not fit are left to Rich, which wraps them."""
    name = "x" * 90
    result = twinrun.compare({name: np.zeros(3), "y": np.zeros(3)}, {name: np.ones(3), "y": np.ones(3)})
    assert check(result) and name in by_rich(result, False)
    many = {f"x{n}": np.zeros(2) for n in range(60)}
    result = twinrun.compare(many, {name: x + 1 for name, x in many.items()})
    assert check(result) and all(f"\n{name} " in by_rich(result, False) for name in many)
    agree = twinrun.compare(many, many)
    assert check(agree)
    monkeypatch.setenv("COLUMNS", "30")  # "… and 20 more fields, within the tolerance: --json has all"
    assert not check(agree)
    monkeypatch.delenv("COLUMNS")
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(variable, "1")
        assert not check(agree)
        monkeypatch.delenv(variable)


def test_texts_have_no_distance():
    """They are compared by digests, whose differences mean nothing."""
    result = twinrun.compare({"t": np.array(["a", "b"])}, {"t": np.array(["a", "c"])})
    for details in (False, True):
        out = io.StringIO()
        print_comparison(Console(file=out, width=200), result, details)
        (row,) = (line for line in out.getvalue().splitlines() if line.startswith("t@text "))
        assert "e+" not in row and "." not in row, row
        assert "first at t@text[1]: 'b' against 'c'" in out.getvalue()
