"""action.yml: its script does what it says. The workflow engine itself is not at hand: env and outputs are set here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import HANG

import twinrun
from twinrun import golden

ROOT = Path(__file__).parents[3]


def script(step: str) -> str:
    """The lines of a step's `run`."""
    text = (ROOT / "action.yml").read_text()
    found = re.search(rf"- name: {re.escape(step)}\n.*?run: \|\n((?:        [^\n]*\n?|\n)+)", text, re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    ("bump", "options", "status", "verdict"),
    [
        (0.0, "", 0, "same"),
        (0.5, "", 1, "different"),
        (0.5, "--field other*", 2, "incomparable"),
        (0.999e-3, "--undecided pass", 0, "undecided"),
    ],
)
def test_the_check(tmp_path: Path, bump: float, options: str, status: int, verdict: str) -> None:
    x = np.linspace(0, 1, 200)
    golden.save({"x": x}, tmp_path / "golden files", atol=1e-3, keep_values=0)
    np.savez(tmp_path / "run.npz", x=x + bump * (np.arange(200) == 7))
    environment = {
        **os.environ,
        "GOLDEN": "golden files",
        "RUN": "run.npz",
        "OPTIONS": options,
        "JUNIT": "junit.xml",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(twinrun.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # As GitHub runs `shell: bash`.
    done = subprocess.run(
        [
            "bash",
            "--noprofile",
            "--norc",
            "-eo",
            "pipefail",
            "-c",
            script("Hold the run against the golden files"),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == status, done
    assert (tmp_path / "output").read_text() == f"verdict={verdict}\n"
    assert (tmp_path / "junit.xml").exists() and (tmp_path / "summary.md").exists()
    assert ("::error" in done.stdout) == (status != 0)


@pytest.mark.parametrize(
    ("wanted", "calls"),
    [
        ("twinrun", ["python3 -m pip install --quiet --only-binary twinrun twinrun"]),
        (
            "twinrun[hdf5]==0.1.0",
            ["python3 -m pip install --quiet --only-binary twinrun twinrun[hdf5]==0.1.0"],
        ),
        (
            "source",
            ["sudo apt-get update", "sudo apt-get install", "python3 -m pip install --quiet /the action"],
        ),
    ],
)
def test_a_compiler_is_installed_only_where_it_is_asked_for(
    tmp_path: Path, wanted: str, calls: list[str]
) -> None:
    for name in ("python3", "sudo"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> "$CALLS"\n')
        program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "WANTED": wanted,
        "SOURCE": "/the action",
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script("Install twinrun")]
    subprocess.run(command, env=environment, check=True, timeout=HANG)
    made = (tmp_path / "calls").read_text().splitlines()
    assert len(made) == len(calls) and all(map(str.startswith, made, calls)), made


def test_a_wheel_is_what_is_installed_unless_said_otherwise() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert action["inputs"]["install"]["default"] == "twinrun"


def test_inputs_reach_the_shell_as_variables_only() -> None:
    """What is put into a script's text is run: a file name must not be."""
    text = (ROOT / "action.yml").read_text()
    for step in ("Install twinrun", "Hold the run against the golden files"):
        assert "${{" not in script(step)
    assert set(re.findall(r"inputs\.(\w+)", text)) == {"golden", "run", "args", "junit", "install"}
