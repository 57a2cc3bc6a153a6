"""The facts of each built-in format that are needed before its module is imported: names, suffixes,
first bytes.

Recognising a file must not import the readers of all formats. A function of a format imports its
module when it is called. `likely` shows from a few bytes that a file cannot be of a format, so that
the module is not imported.

The truth is `FORMAT` in each module; tests/python/formats/test_catalogue.py compares.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from .model import Format
from .texts import printable

__all__ = ["BUILT_IN", "has_hdf5_signature", "is_zarr_store"]

_HEAD = 264  # bytes that `likely` sees: those that GADGET's first record needs
_ZIP = b"PK\3\4"
_HDF5 = b"\x89HDF\r\n\x1a\n"


def _later(module: str, what: str) -> Callable[..., Any]:
    """A function of the FORMAT of a module, which is imported when the function is called."""

    @functools.cache
    def found() -> Callable[..., Any]:
        return getattr(importlib.import_module(f".{module}", __package__).FORMAT, what)

    def function(*args: object, **options: object) -> object:
        return found()(*args, **options)

    return function


def _never(path: str) -> bool:
    """What is only read where a user names the format: no file is looked at."""
    return False


def is_zarr_store(path: str) -> bool:
    """Whether a folder is one data set for xarray. Where no format is named, it is Zarr's."""
    return any(os.path.exists(os.path.join(path, name)) for name in ("zarr.json", ".zgroup", ".zmetadata"))


def _entry(
    module: str,
    name: str,
    title: str,
    *functions: str,
    likely: Callable[[bytes], bool] | None = None,
    **facts: Any,
) -> Format:
    """A format whose functions (`open`, and those that are named) are those of a module.

    likely: False for the first bytes of a file that `sniff` does not take.
    """
    asked: dict[str, Any] = {what: _later(module, what) for what in functions}
    if likely is not None:
        sniff = asked["sniff"]

        def sniff_likely(path: str, file: BinaryIO) -> bool:
            head = file.read(_HEAD)
            file.seek(0)
            return likely(head) and sniff(path, file)

        asked["sniff"] = sniff_likely
    return Format(name, title, _later(module, "open"), **asked, **facts)


def _zipped(head: bytes) -> bool:
    return head.startswith(_ZIP)


def _xml(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"<", b"")


def _gadget(head: bytes) -> bool:
    return any(head[:4] == struct.pack(mark + "I", size) for mark in "<>" for size in (8, 256))


def _lammps(head: bytes) -> bool:
    """Whether it may be a dump without a magic: step and atoms (i64), then the kind of the box (i32)."""
    return len(head) >= 24 and any(struct.unpack_from(mark + "i", head, 16)[0] in (0, 1, 2) for mark in "<>")


def _safetensors(head: bytes) -> bool:
    return head[8:9] == b"{"


def _veloc(head: bytes) -> bool:
    """Whether the number of regions may be one: each has an entry of 12 bytes, and a file has no
    2^52 bytes.
    """
    return len(head) < 8 or struct.unpack_from("<Q", head)[0] < 1 << 48


def has_hdf5_signature(path: str, file: BinaryIO) -> bool:
    """Looks for the signature after a user block, at 512, 1024, 2048, … (HDF5 file format, section II.A)."""
    at = 512
    while at < 1 << 26:
        file.seek(at)
        start = file.read(8)
        if start == _HDF5:
            return True
        if len(start) < 8:
            return False
        at *= 2
    return False


BUILT_IN = (
    _entry(
        "adios",
        "adios",
        "ADIOS2 BP",
        "is_folder",
        "parts",
        suffixes=(".bp",),
        options=frozenset({"attributes", "patience"}),
        aside=frozenset({"patience"}),
        many_steps=True,
    ),
    _entry("amrex", "amrex", "AMReX plotfile", "is_folder", options=frozenset({"place"}), order=10),
    _entry("dcp", "dcp", "torch.distributed.checkpoint", "is_folder"),
    _entry(
        "dcd",
        "dcd",
        "DCD trajectory",
        suffixes=(".dcd",),
        magic=(b"T\0\0\0CORD", b"\0\0\0TCORD", b"T\0\0\0VELD", b"\0\0\0TVELD"),
        many_steps=True,
    ),
    _entry(
        "fits",
        "fits",
        "FITS",
        suffixes=(".fits", ".fit", ".fts"),
        magic=(b"SIMPLE  =       ",),
        options=frozenset({"attributes", "patience"}),
        aside=frozenset({"patience"}),
    ),
    _entry(
        "gadget",
        "gadget",
        "GADGET-1/2 snapshot",
        "sniff",
        likely=_gadget,
        suffixes=(".gadget", ".gadget2"),
        options=frozenset({"blocks"}),
        order=60,
    ),
    _entry(
        "genericio",
        "genericio",
        "GenericIO (HACC)",
        "parts",
        "place",
        suffixes=(".gio",),
        magic=(b"HACC01L", b"HACC01B"),
        options=frozenset({"verify"}),
        aside=frozenset({"verify"}),
    ),
    _entry(
        "grib",
        "grib",
        "GRIB",
        suffixes=(".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".gb1", ".gb2"),
        magic=(b"GRIB",),
        options=frozenset({"patience"}),
        aside=frozenset({"patience"}),
        many_steps=True,
    ),
    _entry(
        "hdf5",
        "hdf5",
        "HDF5",
        sniff=has_hdf5_signature,
        suffixes=(".h5", ".hdf5", ".he5", ".h5part", ".vtkhdf", ".nc4"),
        magic=(_HDF5,),
        options=frozenset({"cache", "attributes", "convention"}),
        aside=frozenset({"cache"}),
        many_steps=True,
    ),
    _entry(
        "lammps_dump",
        "lammps",
        "LAMMPS dump",
        "sniff",
        likely=_lammps,
        suffixes=(".lammpstrj", ".lammpsbin", ".lammpsdump"),
        magic=(
            b"ITEM: TIMESTEP",
            b"ITEM: UNITS",
            b"ITEM: TIME\n",
            struct.pack("<q", -8) + b"DUMPATOM",
            struct.pack(">q", -8) + b"DUMPATOM",
            struct.pack("<q", -10) + b"DUMPCUST",
            struct.pack(">q", -10) + b"DUMPCUST",
        ),
        options=frozenset({"columns"}),
        order=80,
        many_steps=True,
    ),
    _entry(
        "netcdf",
        "netcdf",
        "NetCDF classic",
        suffixes=(".nc", ".cdf", ".nc3"),
        magic=(b"CDF\x01", b"CDF\x02", b"CDF\x05"),
        options=frozenset({"attributes"}),
    ),
    _entry("npy", "npy", "NumPy array", suffixes=(".npy",), magic=(b"\x93NUMPY",), one_array=True),
    _entry(
        "npz",
        "npz",
        "NumPy archive",
        "sniff",
        likely=_zipped,
        suffixes=(".npz",),
        options=frozenset({"verify"}),
        aside=frozenset({"verify"}),
    ),
    _entry("opaque", "bytes", "a file of any kind, as bytes", one_array=True, order=200),
    _entry(
        "pytorch",
        "pytorch",
        "PyTorch file",
        "sniff",
        likely=_zipped,
        suffixes=(".pt", ".pth", ".ckpt"),
        magic=(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19",),
        options=frozenset({"attributes"}),
    ),
    _entry(
        "raw",
        "raw",
        "raw binary, described by suffix, options or a sidecar",
        "claims",
        "sniff",
        suffixes=(".bin", ".raw", ".dat"),
        options=frozenset("arrays dtype fields name offset order partial printable record shape".split()),
        one_array=True,
        order=100,
    ),
    _entry(
        "safetensors", "safetensors", "safetensors", "sniff", likely=_safetensors, suffixes=(".safetensors",)
    ),
    _entry(
        "table",
        "table",
        "table: CSV, whitespace, Parquet",
        "sniff",
        "is_text",
        likely=printable,
        suffixes=(".csv", ".tsv", ".tab", ".parquet", ".pq"),
        magic=(b"PAR1",),
        order=90,
    ),
    _entry(
        "trr",
        "trr",
        "GROMACS trajectory",
        suffixes=(".trr",),
        magic=(struct.pack(">3i", 1993, 13, 12),),
        many_steps=True,
    ),
    _entry(
        "veloc",
        "veloc",
        "VELOC checkpoint",
        "sniff",
        "place",
        likely=_veloc,
        options=frozenset({"types", "meta", "verify"}),
        aside=frozenset({"meta", "verify"}),
        describers=frozenset({"veloc.json"}),
        order=90,
    ),
    _entry("vtk_legacy", "vtk-legacy", "VTK legacy file", suffixes=(".vtk",), magic=(b"# vtk DataFile ",)),
    _entry(
        "vtk_xml",
        "vtk",
        "VTK XML file",
        "sniff",
        "parts",
        likely=_xml,
        suffixes=tuple(
            f".{kind}{name}" for kind in ("", "p") for name in ("vtu", "vtp", "vti", "vtr", "vts")
        ),
        order=20,
    ),
    _entry(
        "xarray_engine",
        "xarray",
        "what xarray opens, by option engine",
        claims=_never,
        is_folder=is_zarr_store,
        options=frozenset({"engine", "attributes", "patience"}),
        aside=frozenset({"patience"}),
        order=95,
    ),
    _entry(
        "xtc",
        "xtc",
        "GROMACS compressed trajectory",
        suffixes=(".xtc",),
        magic=(struct.pack(">i", 1995), struct.pack(">i", 2023)),
        options=frozenset({"patience"}),
        aside=frozenset({"patience"}),
        many_steps=True,
    ),
    _entry(
        "zarr",
        "zarr",
        "Zarr",
        "sniff",
        "is_folder",
        likely=_zipped,
        suffixes=(".zarr",),
        options=frozenset({"attributes"}),
    ),
)
