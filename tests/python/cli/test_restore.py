"""twinrun restore: what its options mean together."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A record of other programs' files."""
    (tmp_path / "files").mkdir()
    for step in range(3):
        (tmp_path / "files" / f"x_{step}.dat").write_text(f"{step}")
    twinrun.pack(tmp_path / "files", tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """A record of captured steps."""
    with twinrun.Run(tmp_path / "captured", record="runs") as run:
        for step in range(3):
            run.capture(step, {"x": np.arange(100.0) + step})
    return tmp_path / "captured"


def test_a_step_that_is_named_twice_is_restored_once(packed: Path, captured: Path, tmp_path: Path) -> None:
    twice = ("--step", "1", "--step", "1")
    done = command("restore", packed, tmp_path / "out", *twice)
    assert done.status == 0 and done.last.startswith("wrote 1 file below"), done
    assert command("restore", packed, tmp_path / "flat", *twice, "--flat").status == 0
    assert (tmp_path / "flat" / "x_1.dat").read_text() == "1"
    assert command("restore", captured, tmp_path / "back", *twice).status == 0
    assert len(twinrun.restore(packed, tmp_path / "again", steps=[2, 0, 2])) == 2
    assert command("restore", captured, tmp_path / "x", *twice, "--field", "x").status == 0


@pytest.mark.parametrize("steps", [(), ("--step", "1")])
def test_flat_of_captured_steps_is_an_error(captured: Path, tmp_path: Path, steps: tuple[str, ...]) -> None:
    done = command("restore", captured, tmp_path / "out", *steps, "--flat")
    check_error(done, "has captured steps, which come back as a history; leave out --flat, which is for")
    assert not (tmp_path / "out").exists()
    with pytest.raises(twinrun.TwinrunError, match="leave out flat=True, which is for files"):
        twinrun.restore(captured, tmp_path / "out", flat=True)
    words = ("--step", "1", "--field", "x", "--flat")
    check_error(command("restore", captured, tmp_path / "x", *words), "--flat has no effect with --field")


def test_flat_names_a_step_that_is_not_there(captured: Path, tmp_path: Path) -> None:
    done = command("restore", captured, tmp_path / "out", "--step", "7", "--flat")
    assert done.status == 2 and done.err.endswith("has no step 7; twinrun log lists the steps\n"), done


def test_two_runs_do_not_become_one_history(captured: Path, tmp_path: Path) -> None:
    """Neither with the steps that they differ in, nor with others."""
    with twinrun.Run(tmp_path / "other", record="runs") as run:
        for step in range(3):
            run.capture(step, {"x": np.arange(100.0) - step - 1})
    out = tmp_path / "out"
    assert command("restore", captured, out, "--step", "0").status == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for steps in ((), ("--step", "1"), ("--step", "0"), ("--step", "2", "--step", "0")):
        done = command("restore", tmp_path / "other", out, *steps)
        check_error(
            done, "out: has another step 0 than the record: of another run, or an older version of it"
        )
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert command("restore", captured, out).status == 0


def test_a_history_of_other_processes_is_noted(captured: Path, tmp_path: Path) -> None:
    """No step of the same number shows that it is another run."""
    code = """if True:
        import sys, numpy as np, twinrun
        with twinrun.Run(sys.argv[1], record="runs") as run:
            run.capture(7, {"x": np.arange(100.0)})
    """
    subprocess.run([sys.executable, "-c", code, tmp_path / "other"], check=True)
    out = tmp_path / "out"
    assert "note" not in command("restore", captured, out, "--step", "0").err
    assert "note" not in command("restore", captured, out, "--step", "1").err
    done = command("restore", tmp_path / "other", out)
    assert done.status == 0 and "note: " in done.err and "are they of one run?" in done.err
