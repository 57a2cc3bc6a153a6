"""twinrun tolerances: what it writes, and how it ends."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from commands import command

from twinrun.comparison.proposal import propose
from twinrun.comparison.tolerances import read_tolerances


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Two runs of two steps."""
    made = []
    for run in range(2):
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        for step in (1, 2):
            np.save(folder / f"x-{step}.npy", np.arange(100.0) + run * step * 1e-6)
        made.append(folder)
    return made


def test_rules_of_whole_runs(runs: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    done = command("tolerances", *runs, "-o", tmp_path / "t.toml")
    assert done.status == 0 and not done.err
    assert command("compare", *runs, "--tolerances", tmp_path / "t.toml").status == 0


def test_a_damaged_step_is_not_left_out_in_silence(runs: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    damaged = runs[1] / "x-2.npy"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = command("tolerances", *runs, "-o", tmp_path / "t.toml")
    assert done.status == 2 and "x-2.npy" in done.err and done.err.startswith("twinrun: ")
    # What could be compared has its rules all the same, and the file names what could not.
    text = (tmp_path / "t.toml").read_text()
    assert "# Not compared: " in text and "x-2.npy" in text
    assert read_tolerances(tmp_path / "t.toml").find("x", 1) is not None
    assert len(propose(runs).problems) == 1


def test_a_field_of_one_run_alone_is_said(runs: list[pathlib.Path]) -> None:
    for step in (1, 2):
        np.save(runs[0] / f"y-{step}.npy", np.zeros(3))
    done = command("tolerances", *runs)
    assert done.status == 2 and "y" in done.err and "[[tolerance]]" in done.out


def test_what_is_said_of_each_field_is_so(tmp_path: pathlib.Path) -> None:
    made = []
    for run in range(2):
        folder = tmp_path / f"run{run}"
        folder.mkdir()
        (folder / "same.txt").write_text("of both\n")
        (folder / "log.txt").write_text(f"run {run}\n")
        for step in (1, 2):
            np.save(folder / f"n-{step}.npy", np.arange(8) + run * (step == 2))
        made.append(folder)
    lines = command("tolerances", *made).out.splitlines()
    said = {lines[at + 2]: line for at, line in enumerate(lines[:-2]) if lines[at + 1] == "[[tolerance]]"}
    assert "differ, and have no tolerance" in said['field = "log.txt"']
    assert said['field = "same.txt"'].endswith("always equal")
    assert said['field = "same.txt"'].startswith("# 1 comparison of ")
    assert said['field = "n"'].endswith("max |a-b| 1 (step 2), in up to 100% of the elements; 1 step equal")
