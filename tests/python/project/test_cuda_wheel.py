"""The wheel of the library for GPUs: what is in it, and that the package finds it. A library that only plays a device stands for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

import twinrun

ROOT = Path(__file__).resolve().parents[3]
FAKE = Path(os.environ.get("TWINRUN_FAKE_DEVICE", ""))

pytestmark = pytest.mark.skipif(
    not FAKE.is_file(), reason="needs TWINRUN_FAKE_DEVICE, a target of CMake: make test builds it"
)


def pack(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "tools/cuda_wheel.sh", *words, folder]
    environment = {**os.environ, "PYTHON": sys.executable, "NO_AUDIT": "1", "PIP_NO_INDEX": "1"}
    return subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=HANG)


@pytest.fixture(scope="module", params=["12", "13"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    done = pack(folder, FAKE, request.param)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    assert done.stdout == f"{path.name}: {path.stat().st_size} bytes\n"
    return path


def test_the_library_alone_is_in_it(wheel: Path) -> None:
    toolkit = wheel.name.removeprefix("twinrun_cuda")[:2]
    assert wheel.name == f"twinrun_cuda{toolkit}-{twinrun.__version__}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        facts = f"twinrun_cuda{toolkit}-{twinrun.__version__}.dist-info"
        assert [name for name in names if not name.startswith(facts)] == [
            f"twinrun_cuda{toolkit}/libtwinrun_cuda.so"
        ]
        assert archive.read(f"twinrun_cuda{toolkit}/libtwinrun_cuda.so") == FAKE.read_bytes()
        assert {f"{facts}/licenses/LICENSE", f"{facts}/licenses/NOTICE"} <= set(names)
        metadata = archive.read(f"{facts}/METADATA").decode()
    assert f"\nName: twinrun-cuda{toolkit}\n" in metadata
    assert f"\nRequires-Dist: twinrun=={twinrun.__version__}\n" in metadata
    assert "@" not in metadata


def test_the_package_finds_it(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*install, str(site), str(wheel)], check=True, timeout=HANG)
    # The package without the library that a build may have put beside its module.
    ignored = shutil.ignore_patterns("libtwinrun_cuda.so", "__pycache__")
    shutil.copytree(Path(twinrun.__file__).parent, site / "twinrun", ignore=ignored)
    environment = {k: v for k, v in os.environ.items() if k != "TWINRUN_CUDA_LIBRARY"}
    environment |= {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "twinrun", *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG
        )

    x = np.arange(1000.0)
    np.save(tmp_path / "a.npy", x)
    x[500] += 1
    np.save(tmp_path / "b.npy", x)
    (library,) = site.glob("twinrun_cuda*/libtwinrun_cuda.so")
    shown = run("show", "--devices")
    assert shown.returncode == 0 and str(library) in shown.stdout, shown
    done = run("compare", "a.npy", "b.npy", "--atol", "0.5", "--device", "cuda")
    assert done.returncode == 1 and "first at a[500]" in done.stdout, done
    # Without it there is no device, and the message says what to install.
    library.unlink()
    done = run("compare", "a.npy", "b.npy", "--atol", "0.5", "--device", "cuda")
    assert done.returncode == 2 and "pip install twinrun-cuda13" in done.stderr, done


def test_what_is_no_library_for_devices_is_refused(tmp_path: Path) -> None:
    nothing = pack(tmp_path, tmp_path / "nothing.so", "13")
    assert nothing.returncode == 2 and "is not there: build the target twinrun_cuda" in nothing.stderr
    other = pack(tmp_path, sys.executable, "13")
    assert other.returncode == 2 and "is no library for GPUs" in other.stderr
    # A library that shows more than it should: that of any program, with the two texts that are looked for.
    shows = tmp_path / "shows.c"
    shows.write_text("void *twinrun_device_table(void) { return 0; }\nint of_another(void) { return 1; }\n")
    if (compiler := shutil.which("cc")) is not None and shutil.which("nm") is not None:
        library = tmp_path / "shows.so"
        subprocess.run([compiler, "-shared", "-fPIC", str(shows), "-o", str(library)], check=True)
        more = pack(tmp_path, library, "13")
        assert more.returncode == 2 and "shows more than twinrun_device_table: of_another" in more.stderr
        library.unlink()
    shows.unlink()
    toolkit = pack(tmp_path, FAKE, "11")
    assert toolkit.returncode == 2 and "12 or 13" in toolkit.stderr
    assert list(tmp_path.iterdir()) == []
