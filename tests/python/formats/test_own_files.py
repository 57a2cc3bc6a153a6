"""Files of twinrun in a folder of data are passed over; those of others are not, whatever their names."""

from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun

OTHERS = [
    ".twinrun-data", ".twinrun", ".twinrunner.npy", ".twinrun/d.npy", ".twinrun-0123456789abcdef.npy",
    ".twinrun-" + "g" * 16, ".twinrun-" + "0" * 31, ".twinrun-demo.npy", ".twinrun-abcdefgh",
    ".twinrun-whatever/d.npy",
]  # fmt: skip
OWN = [".twinrun-" + "0" * 32, ".twinrun-0123456789abcdef.tmp", ".twinrun-demo"]


def folder_with(folder: Path, name: str, value: float) -> Path:
    (folder / name).parent.mkdir(parents=True)
    np.save(folder / "s-1.npy", np.arange(100.0))
    with open(folder / name, "wb") as f:
        np.save(f, np.arange(100.0) + value)
    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_are_compared(tmp_path: Path, name: str) -> None:
    a, b = folder_with(tmp_path / "a", name, 0), folder_with(tmp_path / "b", name, 1)
    assert twinrun.compare(a, a).verdict == "same"
    assert twinrun.compare(a, b).verdict == "different"
    done = command("compare", a, b)
    assert done.status == 1, done


@pytest.mark.parametrize("name", OWN)
def test_own_files_are_passed_over(tmp_path: Path, name: str) -> None:
    a, b = folder_with(tmp_path / "a", name, 0), folder_with(tmp_path / "b", name, 1)
    result = twinrun.compare(a, b)
    assert result.verdict == "same" and len(result.fields) == 1
