"""TWINRUN_CUDA_ARCHITECTURES=here: what CMake compiles kernels for, by the GPUs that nvidia-smi lists."""

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import HANG

ROOT = Path(__file__).resolve().parents[3]
NVCC = "compute_75\ncompute_80\ncompute_90\ncompute_100"


def program(path: Path, prints: str) -> Path:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ("9.0", "90-real"),
        ("10.0\n10.0", "100-real"),
        ("8.0\n9.0", "80-real;90-real"),
        # Too old to be used.
        ("7.5", "80"),
        ("7.5\n9.0", "90-real"),
        # Newer than the compiler: what is compiled for everybody has PTX for it.
        ("9.0\n12.0", ""),
        # No GPU, or none that says what it can.
        ("No devices were found", "80"),
        ("[N/A]", "80"),
    ],
)
def test_kernels_are_for_the_gpus_that_are_there(tmp_path: Path, listed: str, chosen: str) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    script = tmp_path / "here.cmake"
    script.write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        f'set(CMAKE_CUDA_COMPILER "{program(tmp_path / "nvcc", NVCC)}")\n'
        f'set(TWINRUN_NVIDIA_SMI "{program(tmp_path / "nvidia-smi", listed)}")\n'
        f'include("{ROOT}/cmake/TwinrunArchitecturesHere.cmake")\n'
        'twinrun_architectures_here(chosen)\nmessage("chosen: ${chosen}")\n'
    )
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == f"chosen: {chosen}".strip()
