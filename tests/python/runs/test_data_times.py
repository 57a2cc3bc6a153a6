"""The times of a history's data files: metadata alone decides only where each is the one that was recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun

STEPS = (1, 2)


def _capture(path: Path, value: float, **settings: object) -> None:
    with twinrun.Run(path, atol=1e-6, **settings) as run:
        for step in STEPS:
            run.capture(step, {"x": np.full(5000, value + step)})
        run.wait()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two equal histories, and one of other numbers that is older."""
    for name, value in (("old", 5.0), ("a", 0.0), ("b", 0.0)):
        _capture(tmp_path / name, value)
    return tmp_path


def _data(run: Path, step: int = 1) -> Path:
    return run / f"step-{step:010}" / "rank-00000.data"


def _verdict(runs: Path) -> str:
    try:
        return twinrun.compare(runs / "a", runs / "b", partial=True).verdict
    except twinrun.TwinrunError as error:  # nothing could be compared
        assert "rank-00000.data" in str(error), error
        return "incomparable"


def _is_read(runs: Path) -> bool:
    """Whether the data was read, to make sure; it is the same."""
    result = twinrun.compare(runs / "a", runs / "b")
    assert result.same
    return any("read to make sure" in note for note in result.notes)


def _rename(old: Path, new: Path) -> None:
    old.replace(new)


@pytest.mark.parametrize("put", [_rename, shutil.copy2])
def test_an_older_file_that_took_the_place_of_the_data_is_never_the_same(
    runs: Path, put: Callable[[Path, Path], object]
) -> None:
    assert _verdict(runs) == "same"
    put(_data(runs / "old"), _data(runs / "b"))
    assert _verdict(runs) != "same"
    assert command("compare", runs / "a", runs / "b").status != 0
    assert command("compare", runs / "a", runs / "b", "--step", "1").status != 0


def test_the_file_of_another_step_is_never_the_same(runs: Path) -> None:
    os.replace(_data(runs / "b", 1), runs / "first")
    os.replace(_data(runs / "b", 2), _data(runs / "b", 1))
    os.replace(runs / "first", _data(runs / "b", 2))
    assert _verdict(runs) != "same"


@pytest.mark.parametrize("tick", [1, 100, 10**3, 10**6, 10**9, 2 * 10**9])
def test_a_copy_that_kept_its_times_is_not_read(runs: Path, tick: int) -> None:
    for step in STEPS:
        file = _data(runs / "b", step)
        time = file.stat().st_mtime_ns
        os.utime(file, ns=(time, time - time % tick))
    assert not _is_read(runs)


def test_a_copy_without_its_times_is_read(runs: Path) -> None:
    for step in STEPS:
        file = _data(runs / "b", step)
        time = file.stat().st_mtime_ns + 10**9
        for one in (file, file.with_suffix(".twm")):  # the metadata was copied after it
            os.utime(one, ns=(time, time))
    assert _is_read(runs)


def test_steps_that_came_from_another_tier_are_not_read(tmp_path: Path) -> None:
    _capture(tmp_path / "a", 0.0)
    _capture(tmp_path / "b", 0.0, local=tmp_path / "local")
    assert not _is_read(tmp_path)


def test_steps_that_were_restored_are_not_read(tmp_path: Path) -> None:
    _capture(tmp_path / "a", 0.0)
    command("pack", tmp_path / "a", tmp_path / "record")
    assert command("restore", tmp_path / "record", tmp_path / "b").status == 0
    assert not _is_read(tmp_path)
