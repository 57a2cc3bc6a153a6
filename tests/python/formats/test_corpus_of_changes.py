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
from corpus_hdf5 import HDF5, NETCDF, NETCDF4, VTKHDF
from corpus_samples import Sample, Write
from corpus_simulations import ADIOS, AMREX, GADGET, LAMMPS, LAMMPS_WORDS, OPENPMD, TRR, VTK, VTU
from corpus_tables import ARROW, FOLDER, LINKS, PARQUET, SHORT_ROW, TABLE

# ---- FITS, GRIB, DCD ----


def fits_file(folder: Path, change: str = "") -> None:
    fits = pytest.importorskip("astropy.io.fits")
    first = fits.PrimaryHDU(np.arange(6, dtype="f4") + (change == "value"))
    first.header["EXPTIME"] = (
        31.0 if change == "card" else 30.0,
        "minutes" if change == "comment" else "seconds",
    )
    first.header["HISTORY"] = "other" if change == "history" else "made"
    if change == "card more":
        first.header["MORE"] = 1
    image = np.arange(200, dtype="u2").reshape(10, 20) + np.uint16(change == "value of an image")
    name = "OTHER" if change == "name" else "SCI"
    second = fits.CompImageHDU(image, name=name) if change == "packed" else fits.ImageHDU(image, name=name)
    words = ["a", "c" if change == "text" else "b"]
    columns = [
        fits.Column(
            "n",
            "J",
            unit="s" if change == "unit" else "m",
            array=[1, 3 if change == "value of a column" else 2],
        ),
        fits.Column("word", "4A" if change == "width of texts" else "3A", array=words),
        fits.Column("flag", "L", array=[True, change == "flag"]),
    ]
    lists = np.empty(2, object)
    lists[:] = [np.array([1, 2], "i4"), np.array([4 if change == "list" else 3], "i4")]
    columns.append(fits.Column("lists", "PJ()", array=lists))
    if change == "order of columns":
        columns.reverse()
    units = [first, second, fits.BinTableHDU.from_columns(columns, name="ROWS")]
    if change == "order of units":
        units[1:] = units[:0:-1]
    if change == "unit more":
        units.append(fits.ImageHDU(name="EMPTY"))
    fits.HDUList(units).writeto(folder / "a.fits", checksum=change == "sums")


FITS = Sample(
    fits_file,
    {
        name: (lambda d, name=name: fits_file(d, name))
        for name in (
            "value", "card", "comment", "history", "card more", "value of an image", "name", "text", "unit", "value of a column",
            "width of texts", "flag", "list", "order of columns", "order of units", "unit more",
        )
    },
    {"packed": lambda d: fits_file(d, "packed"), "sums": lambda d: fits_file(d, "sums")},
    needs="astropy",
)  # fmt: skip


def grib(folder: Path, change: str = "") -> None:
    eccodes = pytest.importorskip("eccodes")
    messages = []
    for level in (500, 850):
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        keys = {
            "shortName": "t",
            "level": level,
            "step": 6,
            "bitmapPresent": 1,
            "missingValue": 9999,
            "bitsPerValue": 16,
        }
        values = np.arange(496.0)
        values[3] = 9999
        if level == 850:
            if change in ("value", "missing"):
                values[5] = 700 if change == "value" else 9999
            keys |= {
                "key": {"generatingProcessIdentifier": 77},
                "time": {"dataTime": 600},
                "grid": {"longitudeOfFirstGridPoint": 1},
                "parameter": {"shortName": "u"},
                "step": {"step": 12},
                "packed": {"bitsPerValue": 20},
            }.get(change, {})
        for key, value in keys.items():
            eccodes.codes_set(handle, key, value)
        eccodes.codes_set_values(handle, values)
        messages.append(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)
    if change == "message more":
        messages.append(messages[0])
    if change == "bytes between":
        messages.insert(1, b"hello")
    (folder / "a.grib2").write_bytes(b"".join(messages[::-1] if change == "order" else messages))


GRIB = Sample(
    grib,
    {
        name: (lambda d, name=name: grib(d, name))
        for name in ("value", "missing", "key", "time", "grid", "parameter", "step", "message more", "bytes between")
    },
    {"order": lambda d: grib(d, "order"), "packed": lambda d: grib(d, "packed")},
    needs="eccodes",
)  # fmt: skip


def dcd(folder: Path, order: str = "<", change: dict[int, bytes] | None = None) -> None:
    """change: bytes by their offset, of the file of this byte order."""

    def record(data: bytes) -> bytes:
        return struct.pack(order + "i", len(data)) + data + struct.pack(order + "i", len(data))

    head = b"CORD" + struct.pack(order + "9if10i", 2, 100, 50, 0, 0, 0, 0, 0, 0, 0.5, 1, *[0] * 8, 24)
    data = (
        record(head)
        + record(struct.pack(order + "i", 1) + b"a title".ljust(80))
        + record(struct.pack(order + "i", 4))
    )
    for step in range(2):
        data += record(np.array([10, 90, 11, 90, 90, 12], order + "f8").tobytes())
        data += b"".join(
            record((np.arange(4) + step + axis).astype(order + "f4").tobytes()) for axis in range(3)
        )
    for at, put in (change or {}).items():
        data = data[:at] + put + data[at + len(put) :]
    (folder / "a.dcd").write_bytes(data)


DCD = Sample(
    dcd,
    {
        "position": lambda d: dcd(d, change={268: struct.pack("<f", 9.0)}),
        "cell": lambda d: dcd(d, change={208: struct.pack("<d", 9.0)}),
        "step": lambda d: dcd(d, change={12: struct.pack("<i", 150)}),
        "time step": lambda d: dcd(d, change={44: struct.pack("<f", 0.25)}),
        "title": lambda d: dcd(d, change={100: b"A TITLE"}),
        "frames that it promises": lambda d: dcd(d, change={8: struct.pack("<i", 3)}),
    },
    {"byte order": lambda d: dcd(d, ">")},
)

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
        assert command("compare", first, second, "-q").status == done.status
        if report["verdict"] == "different":
            assert report["different"] or report["attributes"]
        else:
            assert (report.get("problems") or report["error"]) and done.err.startswith("twinrun: ")


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
