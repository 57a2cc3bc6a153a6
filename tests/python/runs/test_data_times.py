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


def _cut_times(runs: Path, tick: int) -> None:
    for step in STEPS:
        file = _data(runs / "b", step)
        time = file.stat().st_mtime_ns
        os.utime(file, ns=(time, time - time % tick))


@pytest.mark.parametrize("tick", [1, 100, 10**3])
def test_a_copy_that_kept_its_times_is_not_read(runs: Path, tick: int) -> None:
    _cut_times(runs, tick)
    assert not _is_read(runs)


@pytest.mark.parametrize("tick", [10**6, 10**9, 2 * 10**9])
def test_a_copy_with_times_that_files_may_share_is_read(runs: Path, tick: int) -> None:
    # Where a clock ticks in whole milliseconds, times may be multiples of one: nothing is cut off them.
    if not all(_data(runs / "b", step).stat().st_mtime_ns // 1000 % 1000 for step in STEPS):
        pytest.skip("the times of these files are whole milliseconds")
    _cut_times(runs, tick)
    assert _is_read(runs)


def test_archives_with_whole_seconds_hide_no_exchange(runs: Path) -> None:
    _cut_times(runs, 10**9)
    shutil.copystat(_data(runs / "b"), _data(runs / "old"))  # a run of the same second
    os.replace(_data(runs / "old"), _data(runs / "b"))
    assert _verdict(runs) != "same"


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


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    """Two equal histories that come from records."""
    for name in "ab":
        _capture(tmp_path / f"record-{name}", 0.0, record="runs")
        assert command("restore", tmp_path / f"record-{name}", tmp_path / name).status == 0
    return tmp_path


def test_steps_that_came_from_a_record_are_not_read(restored: Path) -> None:
    assert not _is_read(restored)


def test_steps_of_a_record_are_never_exchanged_for_older_ones(restored: Path) -> None:
    shutil.copy2(_data(restored / "b", 1), _data(restored / "b", 2))
    assert _verdict(restored) != "same"


def _shared_data(run: Path) -> Path:
    return run / "step-0000000001" / "group.data"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Two equal histories and one of other numbers, with files that ranks share."""
    for name, value in (("old", 5.0), ("a", 0.0), ("b", 0.0)):
        _capture(tmp_path / name, value, settings={"shared_files": "one"})
    return tmp_path


def test_shared_files_are_not_read(shared: Path) -> None:
    assert not _is_read(shared)


def test_a_shared_file_between_the_recorded_time_and_that_of_the_metadata_is_read(shared: Path) -> None:
    data = _shared_data(shared / "b")
    time = data.stat().st_mtime_ns + 10**6
    shutil.copyfile(_shared_data(shared / "old"), data)
    os.utime(data, ns=(time, time))
    os.utime(data.with_name("rank-00000.twm"), ns=(time + 1, time + 1))
    with pytest.raises(twinrun.TwinrunError, match=r"group\.data"):
        twinrun.compare(shared / "a", shared / "b")
