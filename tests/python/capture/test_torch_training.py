"""Trainings of examples/pytorch/repeat.py: what is reported equals brute force, tensor by tensor, over what PyTorch saved."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from commands import HANG
from support import in_options
from torch_support import torch_or_skip

import twinrun

EXAMPLES = Path(__file__).parents[3] / "examples" / "pytorch"
PICTURES = ["--network", "pictures", "--width", "8", "--batch", "8", "--steps", "30", "--every", "10"]
PARTICLES = ["--side", "5", "--steps", "20", "--every", "10", "--atol", "1e-5"]
UNPACK = """
import pathlib, sys, numpy, torch
sys.path.insert(0, sys.argv[1])
from repeat import tensors
folder = pathlib.Path(sys.argv[2])
for path in folder.glob("*/pt/*.pt"):
    state = torch.load(path, map_location="cpu")
    into = folder / "unpacked" / path.parents[1].name
    into.mkdir(parents=True, exist_ok=True)
    numpy.savez(into / (path.name + ".npz"), **{name: tensor.numpy() for name, tensor in tensors(state)})
"""


@dataclass(frozen=True)
class Runs:
    """Trainings by name, and a way to start programs of the interpreter that has PyTorch."""

    folder: Path
    program: Callable[..., subprocess.CompletedProcess]

    def states(self, run: str) -> dict[int, dict[str, np.ndarray]]:
        """{step: {name: array}}, read by torch.load."""
        found = {}
        for path in sorted((self.folder / "unpacked" / run).iterdir()):
            with np.load(path) as arrays:
                found[int(path.name.split(".")[0].removeprefix("step-"))] = dict(arrays)
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("trainings")
    python, environment = torch_or_skip(folder)

    def program(*words: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [python, *map(str, words)], capture_output=True, text=True, timeout=HANG, env=environment
        )

    for name, options in {
        "pictures-1": [*PICTURES, "--deterministic"],
        "pictures-again": [*PICTURES, "--deterministic"],
        "pictures-2": [*PICTURES, "--threads", "2"],
        "particles-1": [*PARTICLES, "--threads", "1"],
        "particles-2": [*PARTICLES, "--threads", "2"],
    }.items():
        done = program(EXAMPLES / "repeat.py", folder / name, *options, "--device", "cpu")
        assert done.returncode == 0, done.stderr
    done = program("-c", UNPACK, EXAMPLES, folder)  # in one process: each takes as long to import torch
    assert done.returncode == 0, done.stderr
    return Runs(folder, program)


def differing(a: np.ndarray, b: np.ndarray, atol: float, rtol: float) -> tuple[np.ndarray, np.ndarray]:
    """Which elements differ, and |a - b|, of float32 and integer arrays without NaN."""
    apart = np.abs(a.astype("f8") - b.astype("f8"))
    if a.dtype.kind != "f":
        return a != b, apart
    return apart > atol + rtol * np.abs(a.astype("f8")), apart


@pytest.mark.parametrize("network", ["pictures", "particles"])
def test_report_equals_brute_force_by_name(runs: Runs, network: str) -> None:
    one, two = f"{network}-1", f"{network}-2"
    a, b = runs.states(one), runs.states(two)
    assert a and a.keys() == b.keys()
    least = max(np.abs(a[s][n].astype("f8") - b[s][n].astype("f8")).max() for s in a for n in a[s])
    if not least:
        pytest.skip("this PyTorch gives the same bits on one thread and on two")
    ways = {"history": {}, "history without metadata": {"use_metadata": False}, "pt": {}}
    for atol, rtol in ((0.0, 0.0), (1e-5, 0.0), (1e-7, 1e-4), (2 * least, 0.0)):
        for way, options in ways.items():
            kind = way.split()[0]
            found = twinrun.compare(
                runs.folder / one / kind,
                runs.folder / two / kind,
                atol=atol,
                rtol=rtol,
                **in_options(options),
            )
            said = {(f.step, f.field): f for f in found.fields}
            assert said.keys() == {(step, name) for step in a for name in a[step]}
            parted = []
            for step in a:
                for name, x in a[step].items():
                    f, (differs, apart) = said[step, name], differing(x, b[step][name], atol, rtol)
                    where = (way, atol, rtol, step, name)
                    assert (f.elements, f.different) == (x.size, differs.sum()), where
                    if f.max_abs_diff_is_bound:
                        assert f.max_abs_diff is not None and apart.max() <= f.max_abs_diff, where
                    else:
                        assert f.max_abs_diff == apart.max(), where
                    if differs.any():
                        parted.append(step)
                        first = np.unravel_index(np.argmax(differs), x.shape)
                        assert f.first_index == tuple(map(int, first)), where
                        assert (f.first_a, f.first_b) == (x[first], b[step][name][first]), where
                        assert f.rms_diff == pytest.approx(np.sqrt((apart[differs] ** 2).mean()), rel=1e-9)
            assert found.verdict == ("different" if parted else "same"), (way, atol, rtol)
            if parted:
                first_divergence = found.first_divergence
                assert first_divergence is not None and first_divergence["step"] == min(parted)
    assert not parted, "twice the largest difference is a tolerance that nothing exceeds"


def test_noise_within_the_tolerance_is_proven_from_metadata(runs: Runs) -> None:
    one, two = (runs.folder / f"particles-{threads}" / "history" for threads in (1, 2))
    if twinrun.compare(one, two, atol=0).same:
        pytest.skip("this PyTorch gives the same bits on one thread and on two")
    found = twinrun.compare(one, two)  # the tolerance of the capture
    exactly = twinrun.compare(one, two, atol=1e-5, options=twinrun.CompareOptions(use_metadata=False))
    assert found.same and exactly.same
    elements = [result.stages["elements"]["bytes_read"] for result in (found, exactly)]
    assert elements[0] < elements[1] / 3 and elements[1] >= 2 * exactly.bytes_compared
    assert found.bytes_read < exactly.bytes_read


def test_deterministic_algorithms_repeat_every_bit(runs: Runs) -> None:
    one, two = (runs.folder / name for name in ("pictures-1", "pictures-again"))
    for kind in ("history", "pt"):
        assert twinrun.compare(one / kind, two / kind, atol=0).same
    states, again = runs.states(one.name), runs.states(two.name)
    assert states.keys() == again.keys()
    for step, state in states.items():
        assert state.keys() == again[step].keys()
        assert all(state[name].tobytes() == again[step][name].tobytes() for name in state)
    conditions = twinrun.compare(one / "history", runs.folder / "pictures-2" / "history").conditions or []
    assert ("python", "torch_deterministic_algorithms", "True", "False") in conditions
    assert ("python", "torch_num_threads", "1", "2") in conditions


def test_what_is_captured_is_what_pytorch_saves(runs: Runs) -> None:
    for run in ("pictures-1", "particles-2"):
        history, files = (runs.folder / run / kind for kind in ("history", "pt"))
        result = twinrun.compare(history, files, atol=0, options=twinrun.CompareOptions(use_metadata=False))
        assert result.same and len(result.fields) > 200


def test_brute_force_program(runs: Runs, tmp_path: Path) -> None:
    one, two = runs.folder / "pictures-1", runs.folder / "pictures-2"
    program = EXAMPLES / "brute_force.py"
    done = runs.program(program, one, two, "--atol", "1e-4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("twinrun agrees with brute force on every tensor\n")
    # It can say otherwise: the history is another run's.
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(two / "pt", other / "pt")
    os.symlink(one / "history", other / "history")
    done = runs.program(program, one, other, "--atol", "1e-4")
    if twinrun.compare(one / "pt", two / "pt", atol=1e-4).same:
        pytest.skip("this PyTorch gives the same within 1e-4 on one thread and on two")
    assert done.returncode == 1, done.stdout
    assert "its history is not what PyTorch saved" in done.stdout and "verdict same" in done.stdout
