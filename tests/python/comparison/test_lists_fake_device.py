"""Tensors on devices are compared from the moment that the first of them are known: on the fake device library, which any machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HANG

LIBRARY = os.environ.get("TWINRUN_FAKE_DEVICE_LIBRARY", "")
CASES = Path(__file__).with_name("fake_device_cases.py")


@pytest.mark.skipif(not LIBRARY, reason="needs TWINRUN_FAKE_DEVICE_LIBRARY: make test gives it")
def test_states_on_the_fake_device(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--disable-plugin-autoload",
        "-o",
        f"cache_dir={tmp_path / 'cache'}",
        "--basetemp",
        str(tmp_path / "cases"),
        str(CASES),
    ]
    environment = {**os.environ, "TWINRUN_CUDA_LIBRARY": LIBRARY, "TWINRUN_FAKE_DEVICES": "2"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0 and "passed" in done.stdout and "skipped" not in done.stdout, (
        done.stdout + done.stderr
    )
