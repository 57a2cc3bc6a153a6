"""Records whose difference files were changed or exchanged after they were written: never *same* by metadata alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun

STEPS = (1, 2, 3)


def _data(step: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).random(5000)
    x[: 10 * step] += step
    return x


def _capture(path: Path, seed: int, **settings: object) -> None:
    with twinrun.Run(path, atol=1e-6, **settings) as run:
        for step in STEPS:
            run.capture(step, {"x": _data(step, seed)})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A history, a record of the same numbers, and a record of others."""
    _capture(tmp_path / "plain", 0)
    _capture(tmp_path / "record", 0, record="runs")
    _capture(tmp_path / "other", 1, record="runs")
    return tmp_path


def _difference(run: Path, step: int) -> Path:
    return run / f"step-{step:010}" / "rank-00000.twr"


def _make_newer(path: Path, run: Path) -> None:
    """As any change after the run does; file systems' clocks are coarse."""
    written = (run / "manifest.jsonl").stat().st_mtime_ns
    os.utime(path, ns=(written + 10**6, written + 10**6))


def _verdict(a: Path, b: Path, **options: object) -> str:
    try:
        return twinrun.compare(a, b, partial=True, **options).verdict
    except twinrun.TwinrunError as error:  # nothing could be compared
        assert "rank-00000.twr" in str(error), error
        return "incomparable"


def test_metadata_alone_decides_where_nothing_was_changed(runs: Path) -> None:
    result = twinrun.compare(runs / "plain", runs / "record")
    assert (result.verdict, result.notes) == ("same", [])
    assert twinrun.verify(runs / "record").problems == []


@pytest.mark.parametrize("step", STEPS)
def test_a_difference_of_another_run(runs: Path, step: int) -> None:
    record = runs / "record"
    shutil.copyfile(_difference(runs / "other", step), _difference(record, step))
    _make_newer(_difference(record, step), record)
    for options in ({}, {"use_metadata": False}):
        assert _verdict(runs / "plain", record, **options) == "incomparable"
        assert _verdict(record, runs / "plain", **options) == "incomparable"
    problems = twinrun.verify(record).problems
    assert problems and all(str(record) in problem for problem in problems)


def test_verify_needs_no_times(runs: Path) -> None:
    record = runs / "record"
    before = _difference(record, 3).stat()
    shutil.copyfile(_difference(runs / "other", 3), _difference(record, 3))
    os.utime(_difference(record, 3), ns=(before.st_atime_ns, before.st_mtime_ns))
    (problem,) = twinrun.verify(record).problems
    assert str(record) in problem and "'x'" in problem, problem


@pytest.mark.parametrize("place", [200, 3000, 20_000, -1])
def test_a_flipped_bit(runs: Path, place: int) -> None:
    record = runs / "record"
    file = _difference(record, 1)
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 16
    file.write_bytes(content)
    _make_newer(file, record)
    assert _verdict(runs / "plain", record) == "incomparable"
    assert _verdict(record, record) == "incomparable"
    assert twinrun.verify(record).problems


def test_a_copy_is_read_and_is_the_same(runs: Path) -> None:
    record = runs / "record"
    for step in STEPS:
        _make_newer(_difference(record, step), record)
    result = twinrun.compare(runs / "plain", record)
    assert result.verdict == "same"
    assert any("read to make sure" in str(note) for note in result.notes)
    assert twinrun.verify(record).problems == []


def test_from_c(runs: Path) -> None:
    program = os.environ.get("TWINRUN_COMPARE_C")
    if not program:
        pytest.skip("TWINRUN_COMPARE_C names no program")
    record = runs / "record"

    def verdict() -> str:
        done = subprocess.run(
            [program, runs / "plain", record], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    assert verdict().startswith("same")
    shutil.copyfile(_difference(runs / "other", 2), _difference(record, 2))
    _make_newer(_difference(record, 2), record)
    assert not verdict().startswith("same"), verdict()


def test_the_command(runs: Path) -> None:
    record = runs / "record"
    shutil.copyfile(_difference(runs / "other", 2), _difference(record, 2))
    _make_newer(_difference(record, 2), record)
    report = runs / "report.json"
    assert command("compare", runs / "plain", record, "--json", report).status == 2
    assert json.loads(report.read_text())["verdict"] == "incomparable"
    assert command("verify", record).status == 1
