"""A sample of each format that can be written here, changed in one thing at a time, whatever the format's own library shows.

An exact comparison with the changed one never ends in 0, and one with what is only stored otherwise does.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from commands import command, load_json

pytest.importorskip("h5py")

from corpus_arrays import (
    CONSOLIDATED2,
    CONSOLIDATED3,
    NPY,
    NPZ,
    RAW,
    RECORDS,
    SAFETENSORS,
    SMALL_FLOATS,
    STALE,
    TORCH,
    ZARR2,
    ZARR3,
)
from corpus_fields import DCD, FITS, GRIB
from corpus_hdf5 import HDF5, NETCDF, NETCDF4, VTKHDF
from corpus_samples import Sample, Write
from corpus_simulations import ADIOS, AMREX, GADGET, LAMMPS, LAMMPS_WORDS, OPENPMD, TRR, VTK, VTU
from corpus_tables import ARROW, FOLDER, LINKS, PARQUET, SHORT_ROW, TABLE

SAMPLES = {
    "arrow": ARROW, "fits": FITS, "grib": GRIB, "dcd": DCD,
    "hdf5": HDF5, "netcdf4": NETCDF4, "netcdf": NETCDF, "npz": NPZ, "npy": NPY, "structs": RECORDS, "safetensors": SAFETENSORS,
    "small floats": SMALL_FLOATS, "zarr 2": ZARR2, "consolidated 3": CONSOLIDATED3, "consolidated 2": CONSOLIDATED2, "stale": STALE,
     "zarr 3": ZARR3, "adios": ADIOS, "openpmd": OPENPMD, "vtu": VTU, "vtk": VTK,
    "lammps": LAMMPS, "words of lammps": LAMMPS_WORDS, "folder": FOLDER, "links": LINKS, "amrex": AMREX, "gadget": GADGET, "trr": TRR, "vtkhdf": VTKHDF, "pytorch": TORCH,
    "raw": RAW, "table": TABLE, "table with a short row": SHORT_ROW, "parquet": PARQUET,
}  # fmt: skip


CHANGES = [(f, c) for f, s in SAMPLES.items() for c in s.changes]


STORAGE = [(f, c) for f, s in SAMPLES.items() for c in s.storage]


def written(write: Write, folder: Path) -> Path:
    folder.mkdir(parents=True)
    write(folder)
    return folder


def sample(name: str) -> Sample:
    found = SAMPLES[name]
    if found.needs:
        pytest.importorskip(found.needs)
    return found


@pytest.mark.parametrize(("format", "change"), CHANGES, ids=[f"{f}: {c}" for f, c in CHANGES])
def test_a_change_is_never_the_same(tmp_path: Path, format: str, change: str) -> None:
    of = sample(format)
    a, b = written(of.base, tmp_path / "1" / "run"), written(of.changes[change], tmp_path / "2" / "run")
    for first, second in ((a, b), (b, a)):
        done = command("compare", first, second, "--json", tmp_path / "report.json")
        report = load_json((tmp_path / "report.json").read_text())
        assert done.status in (1, 2), done.out
        assert report["verdict"] == ("different" if done.status == 1 else "incomparable")
        assert not done.out or done.last.startswith(report["verdict"])
        if report["verdict"] == "different":
            assert report["different"] or report["attributes"]
        else:
            assert (report.get("problems") or report["error"]) and done.err.startswith("twinrun: ")
    # It compares as without the option, and prints less: in one direction.
    assert command("compare", b, a, "-q").status == done.status


@pytest.mark.parametrize(("format", "way"), STORAGE, ids=[f"{f}: {c}" for f, c in STORAGE])
def test_other_storage_is_the_same(tmp_path: Path, format: str, way: str) -> None:
    of = sample(format)
    a, b = written(of.base, tmp_path / "1" / "run"), written(of.storage[way], tmp_path / "2" / "run")
    for first, second in ((a, b), (b, a), (b, b)):
        done = command("compare", first, second)
        assert done.status == 0, done.out + done.err


@pytest.mark.parametrize("format", SAMPLES)
def test_the_same_again_is_the_same(tmp_path: Path, format: str) -> None:
    of = sample(format)
    a, b = written(of.base, tmp_path / "1" / "run"), written(of.base, tmp_path / "2" / "run")
    done = command("compare", a, b)
    assert done.status == 0, done.out + done.err
    assert "not compared" not in done.out


def test_every_sample_has_what_it_says() -> None:
    assert importlib.util.find_spec("h5py") and len(CHANGES) > 100 and len(STORAGE) > 20
