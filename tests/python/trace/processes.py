"""Several processes of one job, and what each of them said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HANG

CHECKS = Path(__file__).with_name("parallel_checks.py")
DEVICE = "TWINRUN_TEST_JOB_DEVICE"  # where processes of a job compute: cpu, or cuda
# Where a test runs: on the host, and on GPUs with their own libraries.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def needs_a_gpu(number: int = 1) -> None:
    """Skips a test that needs as many GPUs, each for a process."""
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < number:
        pytest.skip(f"needs {number} GPU{'s' * (number > 1)}, and PyTorch finds {found or 'none'}")


def ended(
    program: Path, folder: Path, number: int, *scenarios: str, statuses: tuple[int, ...] = (0,)
) -> list[tuple[int, str]]:
    """Exit status and output of each process. They take RANK RANKS DEVICE STORE FOLDER SCENARIO... ."""
    device = os.environ.get(DEVICE, "cpu")
    if device == "cuda":
        needs_a_gpu(number)
    store = folder / f"store{len([*folder.glob('store*')])}"
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(r), str(number), device, str(store), str(folder), *scenarios],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(number)
    ]
    told = []
    try:
        for p in started:
            out, err = p.communicate(timeout=HANG)
            assert p.returncode in statuses, err
            told.append((p.returncode, out))
    finally:
        for p in started:
            p.kill()
            p.wait()
    return told


def job(program: Path, folder: Path, number: int, *scenarios: str) -> list[str]:
    """What each process printed."""
    return [out for _, out in ended(program, folder, number, *scenarios)]


def checked(tmp_path: Path, number: int, *checks: str) -> list[dict[str, str]]:
    """What each process said of each check of parallel_checks.py."""
    told = []
    for out in job(CHECKS, tmp_path, number, *checks):
        lines = [line.split(": ", 1) for line in out.splitlines()]
        told.append({name: said for name, said in lines if name in checks})
    assert all(list(one) == list(checks) for one in told), told
    return told
