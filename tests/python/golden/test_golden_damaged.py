"""A history whose data changed behind twinrun's back is damaged: it makes no golden files, and does not fail a check."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support import run_of_ranks

import twinrun
from twinrun import golden
from twinrun.errors import DamagedFile


def _changed_behind(path: Path, at: int) -> None:
    """Flips a bit and sets the time back, as a failing disk or a careless copy does."""
    times = os.stat(path)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _history(folder: Path, end: float = 1.0) -> Path:
    with twinrun.Run(folder) as run:
        for step in (0, 1):
            run.capture(step, {"x": np.linspace(0, end, 1000) + step, "id": np.arange(1000, dtype="i8")})
    return folder


def _data(history: Path) -> Path:
    return history / "step-0000000001" / "rank-00000.data"


@pytest.mark.parametrize("key", [None, "id"])
def test_no_golden_files_of_damaged_data(tmp_path: Path, key: str | None) -> None:
    run = _history(tmp_path / "run")
    _changed_behind(_data(run), 80)
    with pytest.raises(DamagedFile, match=r"does not hold what its metadata .* says"):
        golden.save(run, tmp_path / "golden", key=key)
    assert not (tmp_path / "golden" / "golden.json").exists()
    # what is left out is not read
    golden.save(run, tmp_path / "golden", steps="0", key=key)


@pytest.mark.parametrize("keep_values", [0, 65536])
@pytest.mark.parametrize("key", [None, "id"])
def test_a_check_tells_damage_from_difference(tmp_path: Path, key: str | None, keep_values: int) -> None:
    run = _history(tmp_path / "run")
    golden.save(run, tmp_path / "golden", key=key, keep_values=keep_values)
    assert golden.check(tmp_path / "golden", run).verdict == "same"
    _changed_behind(_data(run), 80)
    result = golden.check(tmp_path / "golden", run)
    assert result.verdict == "incomparable"
    assert len(result.problems) == 1 and "changed or damaged" in str(result.problems[0]), result.problems
    assert all(field for field in result.fields)


def test_a_difference_of_a_sound_history_is_one(tmp_path: Path) -> None:
    golden.save(_history(tmp_path / "a"), tmp_path / "golden")
    result = golden.check(tmp_path / "golden", _history(tmp_path / "b", 1.1))
    assert result.verdict == "different" and not result.problems


def test_damage_of_one_rank_hides_no_difference_of_another(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 1000)
    run_of_ranks(tmp_path / "a", [{1: {"x": x}}, {1: {"x": x}}])
    golden.save(tmp_path / "a", tmp_path / "golden")
    run_of_ranks(tmp_path / "b", [{1: {"x": x}}, {1: {"x": x + 1}}])
    _changed_behind(_data(tmp_path / "b"), 80)
    result = golden.check(tmp_path / "golden", tmp_path / "b")
    assert [(p.rank, p.field) for p in result.problems] == [(0, "x")]
    assert [(f.rank, f.verdict) for f in result.fields] == [(1, "different")]


@pytest.mark.parametrize("keep_values", [0, 65536])
@pytest.mark.parametrize("key", [None, "id"])
def test_damage_within_the_tolerance_is_damage(tmp_path: Path, key: str | None, keep_values: int) -> None:
    run = _history(tmp_path / "run")
    golden.save(run, tmp_path / "golden", key=key, keep_values=keep_values, atol=1e-3)
    _changed_behind(_data(run), 80)  # the lowest bit of a float
    result = golden.check(tmp_path / "golden", run)
    assert result.status == 2
    assert [p.field for p in result.problems] == ["x"] and "changed or damaged" in result.problems[0].text
    assert golden.check(tmp_path / "golden", run, fields="id").same
