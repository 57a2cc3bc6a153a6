"""What commands load before they answer: without the packages that take longer to import than the work takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

import twinrun
from twinrun.cli import _VERBS

# Packages, and modules of the standard library, of which each takes milliseconds to import.
HEAVY = frozenset(
    """numpy rich h5py msgspec jinja2 pandas pyarrow mpi4py ctypes hashlib tempfile subprocess zipfile pickle pickletools
    secrets csv decimal fractions pathlib traceback tomllib difflib xml.parsers.expat""".split()
)
# Modules of twinrun that small comparisons do not need.
OWN_HEAVY = frozenset(
    f"twinrun.{name}"
    for name in """runs.index runs.sketch runs.containers runs.in_memory runs.parts runs.verify comparison.differences
    comparison.parallel comparison.by_id comparison.ids comparison.sums comparison.tables capture report.html golden
    ensemble formats.hdf5 formats.pytorch formats.zarr formats.table formats.vtk_xml formats.lammps_dump formats.veloc""".split()
)
_PROGRAM = """
import json, os, sys
opened = []
sys.addaudithook(lambda event, what: opened.append(os.fspath(what[0])) if event == "open" and isinstance(what[0], str) else None)
report, *sys.argv = sys.argv[1:]
from twinrun.__main__ import main
try:
    main()
except SystemExit as e:
    status = e.code
with open(report, "w") as file:
    json.dump({"status": status, "modules": sorted(sys.modules), "opened": opened}, file)
"""


def loaded(folder: Path, *arguments: object) -> dict:
    """What a command imported and opened, and its status."""
    report = folder / "report.json"
    words = ["-c", _PROGRAM, report, "twinrun", *arguments]
    subprocess.run([sys.executable, *map(str, words)], check=True, stdout=subprocess.DEVNULL, timeout=HANG)
    return json.loads(report.read_text())


def heavy(found: dict, names: frozenset[str] = HEAVY | OWN_HEAVY) -> set[str]:
    return names & set(found["modules"])


@pytest.mark.parametrize("arguments", [[], ["--version"], ["--help"], *([verb, "--help"] for verb in _VERBS)])
def test_help_and_version_load_no_package_but_click(arguments, tmp_path):
    found = loaded(tmp_path, *arguments)
    assert found["status"] == 0
    assert heavy(found) == set()
    if arguments == ["--help"]:
        assert "twinrun._core" not in found["modules"]


def pair(folder: Path, kind: str) -> tuple[list[str], list[str]]:
    """Paths of two runs that differ, and options."""
    paths = []
    for name, error in (("a", 0.0), ("b", 1e-3)):
        x = np.linspace(1, 2, 1000)
        x[500] += error
        path = folder / f"{name}{kind}"
        if kind == ".npy":
            np.save(path, x)
        elif kind == ".raw":
            x.tofile(path)
        elif kind == ".safetensors":
            header = json.dumps({"x": {"dtype": "F64", "shape": [1000], "data_offsets": [0, 8000]}}).encode()
            path.write_bytes(len(header).to_bytes(8, "little") + header + x.tobytes())
        else:
            with twinrun.Run(str(path), atol=1e-6) as run:
                for step in range(3):
                    run.capture(step, {"x": x})
        paths.append(str(path))
    return paths, ["--dtype", "f64"] if kind == ".raw" else []


@pytest.mark.parametrize("kind", ["", ".npy", ".raw", ".safetensors"])
@pytest.mark.parametrize("status", [0, 1])
def test_a_small_comparison_loads_no_package_but_click(kind, status, tmp_path):
    (a, b), options = pair(tmp_path, kind)
    found = loaded(tmp_path, "compare", a, b if status else a, *options)
    assert found["status"] == status
    assert heavy(found) == set()
    # Python opens each side twice, to list its steps and to compare them, and each time to recognise it too: small reads of headers.
    # The core reads elements.
    assert sum(found["opened"].count(path) for path in {a, b}) <= (0 if kind == "" else 8)


def test_hdf5_needs_h5py_and_nothing_else(tmp_path):
    h5py = pytest.importorskip("h5py")
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(10.0)
    found = loaded(tmp_path, "compare", tmp_path / "a.h5", tmp_path / "b.h5")
    assert found["status"] == 0
    assert (
        heavy(found, frozenset({"rich", "msgspec", "jinja2", "pandas", "pyarrow", "twinrun.runs.index"}))
        == set()
    )


def test_options_offer_what_the_library_takes():
    from twinrun.aggregate import plan
    from twinrun.aggregate.studies import interference, size, split
    from twinrun.capture import record_options
    from twinrun.cli import choices
    from twinrun.comparison import choices as of_comparison
    from twinrun.comparison import matching, work
    from twinrun.ensemble.study import importing
    from twinrun.golden import writer

    assert (choices.PLACEMENTS, choices.LAYOUTS) == (plan.PLACEMENTS, plan.LAYOUTS)
    assert choices.METHODS == record_options.METHODS
    assert choices.GOLDEN_CHUNK == writer.CHUNK_BYTES
    assert choices.IMPORTED == importing.FORMATS
    assert choices.PARTICLES == size.PARTICLES
    assert choices.INTENSITIES == interference.INTENSITIES
    assert (choices.COMMUNICATORS, choices.SIZES) == (split.COMMUNICATORS, split.SIZES)
    assert (of_comparison.ALIGNMENTS, of_comparison.METHODS) == (matching.ALIGNMENTS, work.METHODS)
