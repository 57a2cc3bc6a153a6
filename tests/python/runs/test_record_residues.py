"""Residues of steps that a record keeps: what users see of them. Bytes and faults: tests/core/history/record_residues_test.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun.errors import DamagedFile, MissingFile

ROOT = Path(__file__).parents[3]
ATOL = 1e-6


def states(noise: float = 0.0, steps: int = 4) -> list[dict[str, np.ndarray]]:
    """Of each step; a hundredth of the values changes from step to step."""
    random = np.random.default_rng(1)
    x = random.standard_normal(200_000).astype(np.float32)
    small = {f"small{n}": random.standard_normal(n) for n in (1, 100, 3000)}
    far = np.linspace(0, noise, x.size, dtype=np.float32)
    found = []
    for _ in range(steps):
        first = random.integers(0, x.size - 2000)
        x[first : first + 2000] += np.float32(0.5)
        found.append({"x": x + far, **{name: a + noise / 2 for name, a in small.items()}})
    return found


def captured(path: Path, noise: float = 0.0, **how: object) -> Path:
    with twinrun.Run(path, atol=ATOL, background=False, **how) as run:  # type: ignore[arg-type]
        for number, state in enumerate(states(noise)):
            run.capture(number, state)
    return path


def sizes(path: Path, suffix: str) -> list[int]:
    return [p.stat().st_size for p in sorted(path.rglob(f"*.{suffix}"))]


def test_a_step_costs_what_changed(tmp_path: Path) -> None:
    record, plain = captured(tmp_path / "record", record="runs"), captured(tmp_path / "plain")
    residues = 200_000 // 2
    for with_them, without in zip(sizes(plain, "twm"), sizes(record, "twm"), strict=True):
        assert with_them - without >= residues
    for bytes_of_step in sizes(record, "twr")[1:]:
        assert bytes_of_step < residues / 3


def test_they_prove_what_elements_would_say(tmp_path: Path) -> None:
    a = captured(tmp_path / "a", record="runs")
    near = captured(tmp_path / "near", noise=0.3 * ATOL, record="runs")
    far = captured(tmp_path / "far", noise=3 * ATOL, record="runs")
    plain = captured(tmp_path / "plain", noise=0.3 * ATOL)
    for other in (near, plain):
        found = twinrun.compare(a, other)
        assert found.same
        # Where few chunks differ, their elements are no more bytes than their residues.
        assert "metadata proves" in str(found)
    assert not twinrun.compare(a, far).same


def test_a_sketch_of_a_step(tmp_path: Path) -> None:
    record = captured(tmp_path / "record", record="runs")
    near = captured(tmp_path / "near", noise=0.3 * ATOL)
    found = twinrun.sketch_of(record, 2, device="cpu")
    assert found.compare(twinrun.sketch_of(near, 2, device="cpu"))
    assert found.compare(twinrun.sketch(states()[2], atol=ATOL))
    # The file of the step alone does not say where its record is.
    with pytest.raises(MissingFile, match="residues are in the record: name the record and a step"):
        twinrun.sketch_of(record / "step-0000000002" / "rank-00000.twm")


def test_files_come_back_as_the_run_would_have_written_them(tmp_path: Path) -> None:
    record, plain = captured(tmp_path / "record", record="runs"), captured(tmp_path / "plain")
    back = tmp_path / "back"
    twinrun.restore(record, back)
    assert twinrun.verify(back).problems == []
    assert sizes(back, "twm") == sizes(plain, "twm")
    twinrun.pack(back, tmp_path / "again")
    assert sizes(tmp_path / "again", "twm") == sizes(record, "twm")
    assert twinrun.verify(tmp_path / "again").problems == []
    assert twinrun.compare(tmp_path / "again", plain).same


def test_damage_is_found(tmp_path: Path) -> None:
    record = captured(tmp_path / "record", record="runs", residue_bits=4)
    assert twinrun.verify(record).problems == []
    # A metadata file with the residues of another record.
    other = captured(tmp_path / "other", noise=0.5 * ATOL, record="runs")
    name = "step-0000000002/rank-00000.twr"
    (record / name).write_bytes((other / name).read_bytes())
    assert any(name in problem for problem in twinrun.verify(record).problems)
    with pytest.raises(DamagedFile):
        twinrun.compare(record, captured(tmp_path / "near", noise=0.3 * ATOL), steps="2")


def test_restoring_checks_the_metadata(tmp_path: Path) -> None:
    record = captured(tmp_path / "record", record="runs")
    name = record / "step-0000000001" / "rank-00000.twm"
    whole = name.read_bytes()
    for at in range(4100, len(whole), len(whole) // 40):
        name.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedFile, match=r"rank-00000\.twm"):
            twinrun.restore(record, tmp_path / f"back{at}", steps=[1])
    name.write_bytes(whole)
    twinrun.restore(record, tmp_path / "back", steps=[1])


def test_what_is_no_field_cannot_be_read(tmp_path: Path) -> None:
    record = captured(tmp_path / "record", record="runs")
    assert twinrun.read_part(record, 1, "small1") == states()[1]["small1"].tobytes()
    for name in ("rank-00000.residues", "rank-00000.data"):
        with pytest.raises(MissingFile, match=name):
            twinrun.read_part(record, 1, name)


def test_a_metadata_file_without_its_end_is_damaged(tmp_path: Path) -> None:
    record, plain = captured(tmp_path / "record", record="runs"), captured(tmp_path / "plain")
    name = "step-0000000002/rank-00000.twm"
    without = (record / name).stat().st_size
    whole = (plain / name).read_bytes()
    assert without < len(whole)
    (plain / name).write_bytes(whole[:without])
    assert any("rank-00000.twm" in problem for problem in twinrun.verify(plain).problems)
    found = twinrun.verify(plain / name).problems
    assert len(found) == 1
    assert "its residues are not in it" in found[0]
    with pytest.raises(DamagedFile, match="is not the file that the manifest names"):
        twinrun.compare(plain, record, steps="2")


def test_the_reader_of_the_specification_agrees(tmp_path: Path) -> None:
    record = captured(tmp_path / "record", record=twinrun.RecordOptions("runs", compress="none", xor=False))
    sys.path.insert(0, str(ROOT / "spec" / "reader"))
    try:
        from twinrun_spec import metadata as spec
        from twinrun_spec import record as differences
    finally:
        sys.path.remove(str(ROOT / "spec" / "reader"))
    found = differences.Record(lambda ordinal: record / f"step-{ordinal:010}" / "rank-00000.twr")
    for step, state in enumerate(states()):
        path = record / f"step-{step:010}" / "rank-00000.twm"
        residues = found.read_file(step, "rank-00000.residues")
        metadata = spec.parse_file(path, residues)
        assert spec.check_sections(metadata) == []
        assert {f.name for f in metadata.fields} == state.keys()
        with pytest.raises(spec.FormatError, match="residues may be in its record"):
            spec.parse_file(path)
        # the data as the record gives it back, beside the whole metadata
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        (folder / "rank-00000.twm").write_bytes(spec.join(path.read_bytes(), residues))
        (folder / "rank-00000.data").write_bytes(found.read_file(step, "rank-00000.data"))
        if step == 3:  # it is slow
            assert spec.verify(folder / "rank-00000.twm") == []
