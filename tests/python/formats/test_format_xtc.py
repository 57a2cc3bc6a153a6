"""Trajectories that chemfiles writes, against what it was given, and one of MDAnalysis against what that reads."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, mutations, no_false_same, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, MissingPackage
from twinrun.formats import detect, open_file

chemfiles = pytest.importorskip("chemfiles")

STEPS = (100, 200, 300)


def positions(step: int, atoms: int) -> np.ndarray:
    """In nm, of three digits: as .xtc keeps them."""
    return np.round(np.random.default_rng(step).uniform(0, 3, (atoms, 3)), 3)


def write(
    path: Path,
    atoms: int = 40,
    steps: tuple[int, ...] = STEPS,
    change: tuple[int, int] | None = None,
    kind="XTC",
) -> None:
    """change: a step and an atom that lies elsewhere."""
    frame = chemfiles.Frame()
    for _ in range(atoms):
        frame.add_atom(chemfiles.Atom("C"), [0, 0, 0])
    frame.cell = chemfiles.UnitCell([30, 31, 32])
    with chemfiles.Trajectory(str(path), "w", kind) as file:
        for step in steps:
            frame.step = step
            frame["time"] = step * 0.5
            values = positions(step, atoms)
            if change is not None and change[0] == step:
                values[change[1]] += 0.25
            frame.positions[:] = values * 10
            file.write(frame)


@pytest.mark.parametrize("atoms", [3, 9, 10, 40, 2000])
def test_positions_are_those_that_were_written(tmp_path, atoms):
    write(tmp_path / "a.xtc", atoms)
    assert detect(tmp_path / "a.xtc").name == "xtc"
    with open_file(tmp_path / "a.xtc") as content:
        assert content.steps() == list(STEPS) and content.times == {s: s * 0.5 for s in STEPS}
        assert sorted({f.series for f in content.fields.values()}) == ["box", "x"]
        for step in STEPS:
            field = content.fields[f"step-{step}/x"]
            found = field.elements().reshape(field.shape)
            check_field(field, found)
            assert found.dtype == "f4" and field.group == "atoms"
            assert np.abs(found - positions(step, atoms)).max() < 0.0006
            box = content.fields[f"step-{step}/box"].elements().reshape(3, 3)
            assert np.allclose(np.diag(box), [3.0, 3.1, 3.2])


def test_positions_are_those_of_mdanalysis():
    """fixtures/mdanalysis/make.py wrote the file, and what MDAnalysis reads of it: the same bits."""
    folder = Path(__file__).parent / "fixtures" / "mdanalysis"
    read = np.load(folder / "read.npz")
    with open_file(folder / "walk.xtc") as content:
        assert content.steps() == [0, 10, 20, 30] and content.times[30] == 1.5
        for step in content.steps():
            for name in ("x", "box"):
                check_field(content.fields[f"step-{step}/{name}"], read[f"xtc {step} {name}"])
        assert content.facts["step-30/x@(precision)"].text == "2000.0"


def test_the_report_is_that_of_numpy(tmp_path):
    write(tmp_path / "a.xtc")
    write(tmp_path / "b.xtc", change=(200, 7))
    result = twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc", atol=0.1)
    found = [(f.step, f.field, f.different, f.first_index) for f in result.fields if f.different]
    assert found == [(200, "x", 3, (7, 0))] and result.verdict == "different"
    assert twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc", atol=0.3).same


def test_frames_are_steps_wherever_they_are_in_the_file(tmp_path):
    write(tmp_path / "a.xtc")
    write(tmp_path / "b.xtc", steps=(300, 100, 200))
    assert twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc").same


def test_without_the_package(tmp_path, monkeypatch):
    write(tmp_path / "few.xtc", 3)
    write(tmp_path / "many.xtc", 10)
    monkeypatch.setitem(sys.modules, "chemfiles", None)
    with open_file(tmp_path / "few.xtc") as content:  # these are not packed
        assert content.fields["step-100/x"].extents is not None
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[xtc\]'"):
        open_file(tmp_path / "many.xtc")


def shown(path: Path) -> object:
    found = []
    with chemfiles.Trajectory(str(path), "r", "XTC") as file:
        for number in range(file.nsteps):
            frame = file.read_step(number)
            found.append((frame.step, frame["time"], frame.cell.matrix.tolist(), frame.positions.tobytes()))
    return found


def test_damage_is_never_the_same(tmp_path):
    write(tmp_path / "a.xtc")
    good = (tmp_path / "a.xtc").read_bytes()
    versions = damaged_versions(good, 9, cuts=10, flips=30)
    verdicts = no_false_same(tmp_path / "a.xtc", versions, shown)
    assert verdicts["error"] >= 10 and verdicts["different"] >= 5


def test_a_file_that_was_cut_between_frames_lacks_steps(tmp_path):
    write(tmp_path / "a.xtc")
    write(tmp_path / "b.xtc", steps=STEPS[:2])
    result = twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc", common=True)
    assert result.same
    with pytest.raises(twinrun.TwinrunError, match="300"):
        twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc")


@functools.cache
def small(folder: Path) -> bytes:
    write(folder / "small.xtc", 5)
    return (folder / "small.xtc").read_bytes()


@settings(max_examples=100)
@given(st.data())
def test_mutations_end_in_format_errors(tmp_path, data):
    survives(tmp_path / "x.xtc", data.draw(mutations(small(tmp_path))), format="xtc")


def test_headers_that_contradict_themselves(tmp_path):
    write(tmp_path / "a.xtc", steps=STEPS[:1])
    good = (tmp_path / "a.xtc").read_bytes()
    for at, value, words in (
        (4, (1 << 20).to_bytes(4, "big"), "says so twice"),
        (88, (1 << 20).to_bytes(4, "big"), "are left"),
        (0, b"\0\0\7\xcc", "does not begin"),
    ):
        (tmp_path / "b.xtc").write_bytes(good[:at] + value + good[at + 4 :])
        with pytest.raises(DamagedFile, match=words):
            open_file(tmp_path / "b.xtc", format="xtc")


def test_a_file_that_is_written_again_in_its_place_shows_what_it_is_now(tmp_path):
    for name, change in (("a", None), ("b", None), ("c", (200, 7))):
        write(tmp_path / f"{name}.xtc", change=change)
    assert twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc").same
    with open(tmp_path / "b.xtc", "r+b") as file:
        file.truncate(0)
        file.write((tmp_path / "c.xtc").read_bytes())
    assert twinrun.compare(tmp_path / "a.xtc", tmp_path / "b.xtc").verdict == "different"
