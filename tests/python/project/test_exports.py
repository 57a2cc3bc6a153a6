"""What the shared libraries of the package show: nothing of what is linked into them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import twinrun._core as core

HERE = Path(core.__file__).parent
FAKE = Path(os.environ.get("TWINRUN_FAKE_DEVICE", ""))

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")


def shown(library: Path) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1].partition("@@")[0] for line in done.stdout.splitlines()}
    return names - {"__bss_start", "_edata", "_end", "_init", "_fini"}


def test_the_module_shows_what_python_looks_for() -> None:
    assert shown(Path(core.__file__)) == {"PyInit__core"}


@pytest.mark.parametrize("library", [HERE / "libtwinrun_cuda.so", FAKE], ids=["gpus", "fake"])
def test_a_library_for_devices_shows_its_table(library: Path) -> None:
    if not library.is_file():
        pytest.skip(f"{library.name or 'TWINRUN_FAKE_DEVICE'} is not here")
    assert shown(library) == {"twinrun_device_table"}
