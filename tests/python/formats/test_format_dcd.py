"""DCD files as their programs lay them out, and those that chemfiles and MDAnalysis write."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, mutations, no_false_same, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, Uncompared, Unsupported
from twinrun.formats import detect, open_file

ATOMS = 6


def record(data: bytes, order: str) -> bytes:
    mark = struct.pack(order + "i", len(data))
    return mark + data + mark


def positions(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(ATOMS, 3)).astype("f4")


def dcd(
    frames: int = 3,
    order: str = "<",
    kind: bytes = b"CORD",
    said: int | None = None,
    cell: tuple[float, ...] | None = (10, 90, 11, 90, 90, 12),
    fixed: int = 0,
    version: int = 24,
    change: tuple[int, int] | None = None,
) -> bytes:
    said = frames if said is None else said
    head = kind + struct.pack(order + "9i", said, 100, 50, 0, 0, 0, 0, 0, fixed)
    head += struct.pack(order + "f", 0.5) + struct.pack(order + "10i", cell is not None, *[0] * 8, version)
    found = record(head, order)
    found += record(struct.pack(order + "i", 1) + b"a title".ljust(80), order)
    found += record(struct.pack(order + "i", ATOMS), order)
    for number in range(frames):
        if cell is not None:
            found += record(np.array(cell, order + "f8").tobytes(), order)
        values = positions(number)
        if change is not None and change[0] == number:
            values[change[1], 2] += 1
        for axis in range(3):
            found += record(values[:, axis].astype(order + "f4").tobytes(), order)
    return found


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("cell", [None, (10, 90, 11, 90, 90, 12), (10, 0.5, 11, 0, 0, 12)])
def test_frames_of_both_byte_orders(tmp_path, order, cell):
    (tmp_path / "a.dcd").write_bytes(dcd(order=order, cell=cell))
    assert detect(tmp_path / "a.dcd").name == "dcd"
    with open_file(tmp_path / "a.dcd") as content:
        assert content.steps() == [100, 150, 200] and not content.skipped and not content.notes
        assert content.times[150] == pytest.approx(150 * 0.5 * 0.0488882129)
        for number, step in enumerate(content.steps()):
            check_field(content.fields[f"step-{step}/x"], positions(number), in_extents=True)
            if cell is not None:
                check_field(content.fields[f"step-{step}/box"], np.array(cell, "f8"), in_extents=True)
        assert content.period == ((10, 11, 12) if cell is not None and cell[1] == 90 else None)


def test_velocities_are_v(tmp_path):
    (tmp_path / "a.dcd").write_bytes(dcd(kind=b"VELD", frames=1))
    with open_file(tmp_path / "a.dcd") as content:
        assert list(content.fields) == ["box", "v"]


def test_a_difference_has_its_step_atom_and_axis(tmp_path):
    (tmp_path / "a.dcd").write_bytes(dcd())
    (tmp_path / "b.dcd").write_bytes(dcd(change=(1, 4), order=">"))
    result = twinrun.compare(tmp_path / "a.dcd", tmp_path / "b.dcd")
    found = [(f.step, f.field, f.different, f.first_index) for f in result.fields if f.different]
    assert found == [(150, "x", 1, (4, 2))]


def test_frames_that_the_header_promises_and_that_are_not_there(tmp_path):
    (tmp_path / "a.dcd").write_bytes(dcd(said=5))
    with pytest.raises(Uncompared, match="frames from 3 on"):
        twinrun.compare(tmp_path / "a.dcd", tmp_path / "a.dcd")
    assert twinrun.compare(tmp_path / "a.dcd", tmp_path / "a.dcd", common=True).same
    (tmp_path / "b.dcd").write_bytes(dcd(said=0))
    with open_file(tmp_path / "b.dcd") as content:
        assert "says 0 frames, and it has 3" in content.notes[0]


def test_what_is_refused(tmp_path):
    (tmp_path / "a.dcd").write_bytes(dcd(fixed=2))
    with pytest.raises(Unsupported, match="2 atoms are fixed"):
        open_file(tmp_path / "a.dcd")
    good = dcd()
    for cut in (10, 90, 100, 300, len(good) - 1, len(good) - 40):
        (tmp_path / "a.dcd").write_bytes(good[:cut])
        with pytest.raises(DamagedFile):
            open_file(tmp_path / "a.dcd", format="dcd")


def shown(path: Path) -> object:
    """The numbers of a file by numpy alone, if its records have their lengths."""
    data = path.read_bytes()
    order = "<" if data[:4] == b"T\0\0\0" else ">"
    found, at = [], 0
    while at < len(data):
        length = struct.unpack_from(order + "i", data, at)[0]
        assert data[at : at + 4] == data[at + 4 + length : at + 8 + length] and length >= 0
        found.append(data[at + 4 : at + 4 + length])
        at += length + 8
    return found


def test_damage_is_never_the_same(tmp_path):
    (tmp_path / "a.dcd").write_bytes(dcd())
    verdicts = no_false_same(tmp_path / "a.dcd", damaged_versions(dcd(), 8, flips=250), shown)
    assert verdicts["error"] >= 10 and verdicts["different"] >= 10


@settings(max_examples=200)
@given(st.data())
def test_mutations_end_in_format_errors(tmp_path, data):
    survives(tmp_path / "x.dcd", data.draw(mutations(dcd())), format="dcd")


def test_what_chemfiles_writes(tmp_path):
    chemfiles = pytest.importorskip("chemfiles")
    frame = chemfiles.Frame()
    for _ in range(ATOMS):
        frame.add_atom(chemfiles.Atom("C"), [0, 0, 0])
    frame.cell = chemfiles.UnitCell([10, 11, 12])
    with chemfiles.Trajectory(str(tmp_path / "a.dcd"), "w") as file:
        for number in range(3):
            frame.positions[:] = positions(number)
            file.write(frame)
    with open_file(tmp_path / "a.dcd") as content:
        assert len(content.steps()) == 3 and not content.skipped
        for number, step in enumerate(content.steps()):
            check_field(content.fields[f"step-{step}/x"], positions(number))


def test_what_mdanalysis_writes():
    """fixtures/mdanalysis/make.py wrote the file, and what MDAnalysis reads of it."""
    folder = Path(__file__).parent / "fixtures" / "mdanalysis"
    read = np.load(folder / "read.npz")
    with open_file(folder / "walk.dcd") as content:
        assert content.steps() == [10, 15]
        assert content.period == (10, 11, 12) and not content.skipped and not content.notes
        for step in content.steps():
            check_field(content.fields[f"step-{step}/x"], read[f"dcd {step} x"], in_extents=True)
