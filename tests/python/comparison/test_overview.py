"""One row a field: where it parts, where it leaves the tolerance, how it grows. Compared with what numpy says of the same arrays."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pty
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from commands import COMMAND, HANG, command
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.comparison.overview import of_fields, scale_of, sparkline, tolerance_note, where_they_part
from twinrun.comparison.words import verdict_line
from twinrun.report.text import write_comparison

ATOL = 1e-3
SIZES = st.sampled_from([0.0, 1e-9, 1e-5, 9e-4, 2e-3, 0.5, math.inf, math.nan])


@pytest.fixture(scope="module")
def steps_of(tmp_path_factory):
    """Compares folders of files, one file a step: {field: |a - b| by step}."""
    base = tmp_path_factory.mktemp("overview")

    def compared(growth: dict[str, list[float]], atol: float | None = ATOL) -> twinrun.Comparison:
        steps = len(next(iter(growth.values())))
        for name in "ab":
            folder = base / name
            folder.mkdir(exist_ok=True)
            for old in folder.iterdir():
                old.unlink()
            for step in range(steps):
                values = {f: np.full(4, 1.0) for f in growth}
                if name == "b":
                    for f, sizes in growth.items():
                        values[f][2] += sizes[step]
                np.savez(folder / f"out_{step}.npz", **values)
        return twinrun.compare(base / "a", base / "b", atol=atol)

    return compared


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.dictionaries(
            st.sampled_from(["p", "q", "r"]), st.lists(SIZES, min_size=n, max_size=n), min_size=1
        )
    )
)
def test_where_fields_part_and_leave_the_tolerance(steps_of, growth):
    c = steps_of(growth)
    found = {o.name: o for o in of_fields(c)}
    assert set(found) == set(growth)
    for name, sizes in growth.items():
        one = found[name]
        a, b = 1.0, 1.0 + np.array(sizes)
        diff = np.where(np.isfinite(b), np.abs(b - a), np.inf)
        first = next((s for s, d in enumerate(diff) if d > 0), None)
        above = next((s for s, d in enumerate(diff) if d > ATOL), None)
        assert (None if one.parts is None else one.parts.step) == first and one.surely
        assert (None if one.above is None else one.above.step) == above
        assert len(one.steps_above) == sum(diff > ATOL) and one.same == (above is None)
        assert one.largest.max_abs_diff == diff.max()
        line = sparkline(one, list(range(len(sizes))), scale_of(found.values()), 40)
        assert len(line) == len(sizes)
        for sign, d in zip(line, diff, strict=True):
            assert sign in ("·" if d == 0 else "▁▂▃▄" if d <= ATOL else "▅▆▇█")
    first = min((o.parts.step for o in found.values() if o.parts), default=None)
    if first is not None:
        assert of_fields(c)[0].parts.step == first
    said = where_they_part(c, of_fields(c))
    beyond = first is not None and any(
        o.parts and o.parts.step == first and not o.parts.different for o in of_fields(c)[:1]
    )
    assert bool(said) == beyond and (not beyond or f"at step {first}: " in said)


def test_a_sign_stands_for_the_largest_of_its_steps(steps_of):
    c = steps_of({"x": [0.0] * 30 + [1e-9] + [0.0] * 29})
    (one,) = of_fields(c)
    line = sparkline(one, list(range(60)), scale_of([one]), 10)
    assert line == "·····▁····"


def test_what_is_nearly_equal_looks_equal(steps_of):
    """The scale has a decade at least: rounding is no growth."""
    c = steps_of({"x": [0.0, 1e-9, 1.01e-9, 0.1, 0.1000001, 0.0999999], "y": [0.0] * 5 + [5e-324]})
    found = {o.name: o for o in of_fields(c)}
    assert sparkline(found["x"], list(range(6)), scale_of([found["x"]]), 40) == "·▁▁███"
    growing = {o.name: o for o in of_fields(steps_of({"x": [0.1, 0.2, 0.5, 2.0, 10.0]}))}
    assert sparkline(growing["x"], list(range(5)), scale_of(growing.values()), 40) == "▅▅▆▇█"
    assert sparkline(found["y"], list(range(6)), scale_of([found["y"]]), 40)[:5] == "·····"


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-300, 1e290), st.floats(-1e290, 1e290))
def test_the_tolerance_that_is_named_passes(size, base):
    a, b = {"x": np.array([base, 0.0])}, {"x": np.array([base + size, size])}
    c = twinrun.compare(a, b)
    note = tolerance_note(c)
    if c.same:
        assert note == ""
        return
    assert note.startswith("no tolerance was given: values must be equal; atol ")
    named = float(note.split("; atol ")[1].split()[0])
    assert twinrun.compare(a, b, atol=named).same
    assert named <= 1.02 * c.fields[0].max_abs_diff


def test_on_a_circle_no_tolerance_is_named():
    """Which element is farthest off follows from a - b as float64 rounds it: another one may be farther."""
    a, b = {"pos": [4.522427979982325]}, {"pos": [6506069476.8224268]}
    c = twinrun.compare(a, b, period="pos=7.1")
    assert "no tolerance was given" in tolerance_note(c) and "would pass" not in tolerance_note(c)
    exact = abs(Fraction(a["pos"][0]) - Fraction(b["pos"][0])) % Fraction(7.1)
    assert c.fields[0].max_abs_diff == float(min(exact, Fraction(7.1) - exact))
    assert not twinrun.compare(a, b, period="pos=7.1", atol=4.38e-07).same
    # Whatever else differs, the tolerance would hold for it and for the circle.
    c = twinrun.compare({**a, "x": [0.0]}, {**b, "x": [1.0]}, period="pos=7.1")
    assert "would pass" not in str(c)
    c = twinrun.compare({**a, "x": [0.0]}, {**a, "x": [1.0]}, period="pos=7.1")
    assert "would pass" in str(c)


def test_what_is_said_of_a_tolerance(tmp_path: Path):
    ints = twinrun.compare({"n": np.arange(3)}, {"n": np.array([0, 1, 4])})
    assert tolerance_note(ints).endswith("; atol 2.01 tolerate_integers=True would pass")
    infinite = twinrun.compare({"x": np.zeros(2)}, {"x": np.array([0, np.nan])})
    assert tolerance_note(infinite).endswith(
        "; no atol would pass: some |a-b| is no finite number (a NaN, an infinity, or an overflow)"
    )
    assert tolerance_note(twinrun.compare(np.zeros(2), np.ones(2), atol=0)) == ""
    assert tolerance_note(twinrun.compare(np.zeros(2), np.zeros(2))) == ""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.linspace(0, 1, 5000))
    files = [str(tmp_path / f"{name}.npy") for name in "ab"]
    twinrun.index(*files, atol=1e-4)
    said = command("compare", *files).out
    assert (
        "no tolerance was given: that of the runs' metadata holds, 0.0001; --atol and --rtol replace it"
        in said
    )
    assert "metadata holds" not in command("compare", *files, "--atol", "1e-4").out


def test_integers_that_a_tolerance_does_not_hold_for_are_said():
    a, b = {"n": np.arange(3), "x": np.zeros(3)}, {"n": np.array([0, 1, 4]), "x": np.full(3, 0.5)}
    said = "integers and booleans must be equal: tolerate_integers=True applies the tolerance to them"
    assert tolerance_note(twinrun.compare(a, b, atol=10)) == said
    assert tolerance_note(twinrun.compare(a, b, atol=10, tolerate_integers=True)) == ""
    assert tolerance_note(twinrun.compare({"x": a["x"]}, {"x": b["x"]}, atol=0.1)) == ""
    assert tolerance_note(twinrun.compare({"n": a["n"]}, {"n": a["n"]}, atol=0.1)) == ""
    texts = ({"n": np.array(["a"])}, {"n": np.array(["b"])})
    assert tolerance_note(twinrun.compare(*texts, atol=0.1)) == ""


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_distances_in_ulp_are_said(dtype: str):
    one, two = np.ones(3, dtype), np.ones(3, dtype)
    part = two.real if dtype[0] == "c" else two
    part[1] = np.nextafter(np.nextafter(part[1], part.dtype.type(2)), part.dtype.type(2))
    said = verdict_line(twinrun.compare({"x": one}, {"x": two}, ulp=1))
    assert " (2 ulp) > 1 ulp" in said, said
    assert "ulp" not in verdict_line(twinrun.compare({"x": one}, {"x": two}))


def test_metadata_that_hides_an_earlier_parting_is_said(tmp_path: Path):
    """Equal coarse digests leave room for small differences: the first one that is seen may not be the first."""
    x = np.linspace(0, 1, 5000)
    for name in "ab":
        with twinrun.Run(tmp_path / name, atol=1e-3) as run:
            for step, shift in ((1, 0.0), (2, 4e-4), (3, 0.1)):
                run.capture(step, {"x": x + shift * (name == "b")})
    (one,) = of_fields(twinrun.compare(tmp_path / "a", tmp_path / "b"))
    assert one.parts.step == 2 and not one.surely and one.above.step == 3
    c = twinrun.compare(tmp_path / "a", tmp_path / "b")
    said = where_they_part(c, of_fields(c))
    assert said.endswith(
        "; metadata leaves open whether they part before: options=CompareOptions(method='direct') tells"
    )
    assert "≤ 2" in command("compare", tmp_path / "a", tmp_path / "b").out
    (exact,) = of_fields(
        twinrun.compare(tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method="direct"))
    )
    assert exact.parts.step == 2 and exact.surely


def test_nothing_is_earlier_than_the_first_step(tmp_path: Path):
    """Another field may part at the same step, and none before it."""
    x = np.linspace(0, 1, 5000)
    for name in "ab":
        with twinrun.Run(tmp_path / name, atol=1e-3) as run:
            for step, of_x, of_y in ((1, 4e-4, 1e-7), (2, 0.1, 4e-4)):
                second = name == "b"
                run.capture(step, {"x": x + of_x * second, "y": x + of_y * second})
    c = twinrun.compare(tmp_path / "a", tmp_path / "b")
    found = {o.name: o for o in of_fields(c)}
    assert found["x"].surely and not found["y"].surely and found["y"].open.step == 1
    said = where_they_part(c, of_fields(c))
    assert "at step 1: " in said and ", at x," in said and "before" not in said


def on_a_terminal(columns: int, *arguments: object) -> list[str]:
    """The lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [*COMMAND, *map(str, arguments)], stdout=theirs, stderr=subprocess.DEVNULL, check=False, timeout=HANG,
            env=os.environ | {"TERM": "dumb", "COLUMNS": str(columns), "LINES": "50", "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # all is read, and the other end is closed
                break
            if not part:
                break
            text += part
    finally:
        os.close(ours)
    return text.decode().replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_names_keep_their_place_before_bars_do(columns, tmp_path: Path):
    names = [f"magnetic_field_{axis}_of_species_{n}" for axis in "xyz" for n in (1, 2)]
    for run, error in (("a", 0.0), ("b", 1e-3)):
        (tmp_path / run).mkdir()
        for step in range(30):
            np.savez(tmp_path / run / f"s_{step}.npz", **{n: np.full(9, 1.0) + error * step for n in names})
    lines = on_a_terminal(columns, "compare", tmp_path / "a", tmp_path / "b", "--atol", "1e-2")
    table = [line for line in lines if line.split("  ")[0] in names]
    assert [line.split()[0] for line in table] == names
    if columns >= 80:
        assert all(len(line) <= columns for line in table)
    assert ("growth" in lines[0]) == (columns >= 80)
    assert lines[-1].startswith("different: first at step ")
    assert not any("rank" in line for line in lines)


def test_notes_of_a_kind_are_one_line():
    notes = [
        f"runs/{run}/out_{n}.nc: dimension '{d}' has no values"
        for run in "ab"
        for n in range(4)
        for d in "xyt"
    ]
    c = dataclasses.replace(twinrun.compare(np.zeros(2), np.zeros(2)), notes=["of its own", *notes])
    for details, count in ((False, 2), (True, 25)):
        out = io.StringIO()
        assert write_comparison(out, c, details)
        assert out.getvalue().count("note: ") == count, out.getvalue()
    out = io.StringIO()
    write_comparison(out, c)
    assert "note: runs/a/out_0.nc: dimension 'x' has no values (and 23 more like it: -v)\n" in out.getvalue()


def test_notes_of_two_files_are_one_line():
    """Also where nothing but the file's name, without a digit or a folder, tells them apart."""
    notes = [f"{name}: values are compared as stored: T (scale_factor 0.5)" for name in ("old.nc", "new.nc")]
    c = dataclasses.replace(twinrun.compare(np.zeros(2), np.zeros(2)), notes=notes)
    out = io.StringIO()
    write_comparison(out, c, False)
    assert out.getvalue().count("note: ") == 1 and "(and 1 more like it: -v)" in out.getvalue()


def test_a_field_without_a_step_has_none_in_the_table(tmp_path: Path) -> None:
    """A file that belongs to no step, beside files of two steps."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in (1, 2):
            np.save(tmp_path / name / f"x-{step}.npy", np.zeros(4))
        (tmp_path / name / "notes.txt").write_text(name)
    said = str(twinrun.compare(tmp_path / "a", tmp_path / "b"))
    (row,) = (line for line in said.split("\n") if line.startswith("notes.txt"))
    assert row.split()[1:4] == ["-", "-", "1/1"]
    assert "None" not in said
