"""What CMake says last: a line for each part, and why a part is left out."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import HANG

ROOT = Path(__file__).resolve().parents[3]


def summary(folder: Path, *options: str) -> dict[str, str]:
    """The state of each part, after a configuration with these options."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    command = ["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *options]
    for part in ("TESTS", "FUZZ", "APPS", "BENCH"):
        command.append(f"-DTWINRUN_BUILD_{part}=OFF")
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.split("-- twinrun 0", 1)[1].splitlines()[1:]
    found = (re.fullmatch(r"--   (.{22})((?:in|left out).*)", line) for line in lines)
    return {match[1].rstrip(): match[2] for match in found if match}


PARTS = {"libtwinrun", "Python module", "Fortran", "MPI", "VELOC's interface", "aggregation", "MPI-IO", "HDF5 driver", "GPUs", "io_uring",
         "Zstandard", "tests", "apps", "bench", "fuzz"}  # fmt: skip


def test_what_is_switched_off_says_by_what(tmp_path: Path) -> None:
    names = ("FORTRAN", "MPI", "CUDA", "URING", "ZSTD")
    found = summary(tmp_path, *(f"-DTWINRUN_{name}=OFF" for name in names))
    assert set(found) == PARTS
    assert found.pop("libtwinrun") == "in: C, C++"
    assert found.pop("Python module").startswith("left out: TWINRUN_BUILD_PYTHON=OFF")
    for part, name in {"Fortran": "FORTRAN", "MPI": "MPI", "MPI-IO": "MPI", "HDF5 driver": "MPI", "GPUs": "CUDA", "io_uring": "URING",
                       "Zstandard": "ZSTD", "tests": "BUILD_TESTS", "fuzz": "BUILD_FUZZ"}.items():  # fmt: skip
        assert found[part] == f"left out: TWINRUN_{name}=OFF"


def test_what_is_not_found_says_what_to_install(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        "-DTWINRUN_CUDA=OFF",
        "-DTWINRUN_MPI=OFF",
        "-DCMAKE_DISABLE_FIND_PACKAGE_Liburing=ON",
        "-DCMAKE_DISABLE_FIND_PACKAGE_Zstd=ON",
    )
    assert set(found) == PARTS
    assert found["io_uring"] == "left out: liburing was not found (liburing-dev): reads go through pread"
    assert found["Zstandard"] == "left out: libzstd was not found (libzstd-dev): records are not packed"


def test_without_libtwinrun_its_parts_are_out(tmp_path: Path) -> None:
    found = summary(tmp_path, "-DTWINRUN_BUILD_LIBRARY=OFF", "-DTWINRUN_CUDA=OFF")
    assert found["libtwinrun"] == "left out: TWINRUN_BUILD_LIBRARY=OFF"
    assert found["Fortran"] == found["MPI"] == "left out: it belongs to libtwinrun"
