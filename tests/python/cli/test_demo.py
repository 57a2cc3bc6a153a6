"""The demonstration from the package alone: no compiler, no program beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun
from twinrun.cli.particles import moved


@pytest.fixture(autouse=True)
def without_the_program(monkeypatch):
    monkeypatch.delenv("TWINRUN_MINIHACC", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_the_number_of_threads_is_what_parts_the_runs():
    """The same number gives the same bits; another one other sums, by rounding alone at first."""
    two, again, three = (list(moved_copies(96, 40, threads)) for threads in (2, 2, 3))
    for (s, x, v), (_, y, w) in zip(two, again, strict=True):
        assert np.array_equal(x, y) and np.array_equal(v, w), s
    first = next(s for (s, x, v), (_, y, w) in zip(two, three, strict=True) if not np.array_equal(v, w))
    assert first <= 10
    _, v, w = two[first - 1][0], two[first - 1][2], three[first - 1][2]
    assert np.abs(v - w).max() <= 64 * np.finfo(np.float32).eps * np.abs(v).max()


def moved_copies(particles: int, steps: int, threads: int):
    for step, x, v in moved(particles, steps, threads):
        yield step, x.copy(), v.copy()


def test_demo(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = command("demo", "--folder", folder)
    assert done.status == 0, done
    assert done.last.startswith("different: first at step ") and "the runs first part at step " in done.out
    assert "growth of the largest |a-b|" in done.out and "--threads 3" in done.out
    assert (folder / "report.html").stat().st_size > 10_000
    assert not twinrun.compare(folder / "run-a", folder / "run-b")
    assert twinrun.verify(folder / "run-a")
    # A second one replaces what is its own, and nothing else.
    (folder / "report.html").write_text("of somebody else")
    again = command(
        "demo",
        "--folder",
        folder,
        "--deterministic",
        "--steps",
        "10",
        "--particles",
        "64",
        "--capture",
        "5,10",
    )
    assert again.status == 0 and again.last.startswith("same: 2 fields, 2 steps"), again
    assert (folder / "report.html").read_text() == "of somebody else"
    assert (folder / "report-1.html").stat().st_size > 10_000


def test_demo_refuses(tmp_path: Path) -> None:
    check_error(
        command("demo", "--folder", tmp_path, "--simulation", "minihacc"),
        "the simulation 'minihacc' is not built",
    )
    for steps in ("0", "11", "x", "5,,6"):
        check_error(
            command("demo", "--folder", tmp_path, "--steps", "10", "--capture", steps),
            "is no list of steps from 1 to 10",
        )
    with twinrun.Run(tmp_path / "run-a") as run:
        run.capture(1, {"x": np.zeros(3)})
    check_error(command("demo", "--folder", tmp_path), "a history is there already")
    assert twinrun.verify(tmp_path / "run-a")
