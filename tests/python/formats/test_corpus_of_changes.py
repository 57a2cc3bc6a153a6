"""A sample of each format that can be written here, changed in one thing at a time, whatever the format's own library shows.

An exact comparison with the changed one never ends in 0, and one with what is only stored otherwise does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from commands import command, load_json
from scipy.io import netcdf_file

h5py = pytest.importorskip("h5py")

Write = Callable[[Path], object]
STEPS = np.linspace(0.0, 1.0, 12).reshape(3, 4)


@dataclass
class Sample:
    """base: writes a run into an empty folder. changes, storage: write it in other ways, each by its own name."""

    base: Write
    changes: dict[str, Write] = field(default_factory=dict)
    storage: dict[str, Write] = field(default_factory=dict)
    needs: str = ""


def edited(base: Write, edit: Callable[[Path], object]) -> Write:
    def write(folder: Path) -> None:
        base(folder)
        edit(folder)

    return write


# ---- HDF5, and NetCDF-4 on top of it ----


def hdf5(folder: Path, **how: object) -> None:
    """how: options of create_dataset of `x`, or `order`."""
    order = how.pop("order", ("x", "whole", "text"))
    pair = np.dtype([("a", "i1"), ("b", "f8")], align=bool(how.pop("align", False)))
    with h5py.File(folder / "a.h5", "w") as file:
        for name in order:
            if name == "x":
                x = file.create_dataset("g/x", data=STEPS, **how)
                x.attrs["units"] = "m"
                x.attrs["scale_factor"] = 0.5
            elif name == "whole":
                file["whole"] = np.arange(5, dtype="i4")
            else:
                file.create_dataset("text", data=["one", "two", "three"], dtype=h5py.string_dtype())
        file.attrs["title"] = "a run"
        file.attrs["count"] = np.int32(7)
        file.attrs["axes"] = ["x", "y"]
        file.attrs.create("fixed", b"text", dtype="S8")
        file["an integer"] = np.dtype("i4")
        file["plain"] = np.arange(5, dtype="i4")
        file.attrs["odd"] = np.array([(1, 2.5)], [("n", "i4"), ("v", "f8")])
        file.create_dataset("fixed", data=np.array([b"ab", b"cd"]))
        file.create_dataset("filled", (4,), "f4", fillvalue=3.5)[0] = 1
        ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype("i4"))
        ragged[0], ragged[1] = [1, 2], [3]
        names = h5py.enum_dtype({"RED": 0, "BLUE": 1}, basetype="i1")
        file.create_dataset("colours", data=np.array([0, 1, 0]), dtype=names)
        member = np.dtype(
            [("v", "f8"), ("name", h5py.string_dtype()), ("tag", "S4"), ("more", h5py.vlen_dtype("f4"))]
        )
        rows = np.zeros(2, member)
        rows["v"], rows["tag"] = [1, 2], [b"p", b"q"]
        rows["name"] = ["first", "second"]
        rows["more"][0], rows["more"][1] = np.array([1.0], "f4"), np.array([2.0, 3.0], "f4")
        file.create_dataset("rows", data=rows)
        file.create_dataset("opaque", data=np.array([b"abcde", b"fghij"], "V5"))
        file.create_dataset("long", data=np.array([1, 2], np.longdouble))
        file.create_dataset("where", data=[file["whole"].ref, file["fixed"].ref], dtype=h5py.ref_dtype)
        file.create_dataset("part", data=[file["whole"].regionref[1:3]], dtype=h5py.regionref_dtype)
        file["scalar"] = "alone"
        file["pair"] = np.array([(1, 2.5), (3, 4.5)], pair)
        file["a type"] = np.dtype("f4")
        file.create_group("empty")
        file["soft"] = h5py.SoftLink("/g/x")
        file["hard"] = file["whole"]
        file["same"] = file["g"]
    with h5py.File(folder / "other.h5", "w") as file:
        file["y"] = np.arange(3.0)
        file["z"] = np.arange(3.0)
    with h5py.File(folder / "a.h5", "a") as file:
        file["far"] = h5py.ExternalLink("other.h5", "/y")


def in_hdf5(edit: Callable[[h5py.File], object], name: str = "a.h5", base: Write = hdf5) -> Write:
    def write(folder: Path) -> None:
        with h5py.File(folder / name, "a") as file:
            edit(file)

    return edited(base, write)


def set_item(path: str, index: object, value: object) -> Write:
    def edit(file: h5py.File) -> None:
        dataset = file[path]
        if index is None:
            dataset[...] = value
        else:
            dataset[index] = value

    return in_hdf5(edit)


def again(path: str, **how: object) -> Write:
    """Writes a dataset again in another way."""

    def edit(file: h5py.File) -> None:
        attributes = dict(file[path].attrs)
        del file[path]
        made = file.create_dataset(path, **how)
        made.attrs.update(attributes)

    return in_hdf5(edit)


def member(name: str, value: object) -> Write:
    def edit(file: h5py.File) -> None:
        rows = file["rows"][()]
        rows[name][1] = value
        file["rows"][...] = rows

    return in_hdf5(edit)


def link(path: str, to: object) -> Write:
    def edit(file: h5py.File) -> None:
        del file[path]
        file[path] = to(file) if callable(to) else to

    return in_hdf5(edit)


def attribute(path: str, name: str, value: object) -> Write:
    return in_hdf5(lambda f: f[path].attrs.__setitem__(name, value))


def fixed_text(
    size: int, pad: int = h5py.h5t.STR_NULLPAD, cset: int = h5py.h5t.CSET_ASCII
) -> h5py.h5t.TypeID:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(pad)
    kind.set_cset(cset)
    return kind


def narrow() -> h5py.h5t.TypeID:
    """Of 20 bits in 4 bytes."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(20)
    return kind


def typed(kind: h5py.h5t.TypeID, name: str = "fixed") -> Write:
    """The same value of an attribute of the file, of another type."""

    def edit(file: h5py.File) -> None:
        del file.attrs[name]
        value = np.array(b"text", "S8") if name == "fixed" else np.array(7, "i4")
        made = h5py.h5a.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
        made.write(
            value, mtype=None if kind.get_class() == h5py.h5t.INTEGER else kind
        )  # HDF5 converts integers only

    return in_hdf5(edit)


def enum(names: dict[str, int]) -> Write:
    return again("colours", data=np.array([0, 1, 0]), dtype=h5py.enum_dtype(names, basetype="i1"))


HDF5 = Sample(
    hdf5,
    {
        "value": set_item("g/x", (1, 2), 9.0),
        "vlen text": set_item("text", 1, "tow"),
        "scalar text": set_item("scalar", (), "other"),
        "fixed text": set_item("fixed", 0, b"ax"),
        "list": set_item("ragged", 1, [4]),
        "longer list": set_item("ragged", 1, [3, 3]),
        "long double": set_item("long", 1, np.longdouble(2) + np.finfo(np.longdouble).eps * 2),
        "opaque": set_item("opaque", 1, np.void(b"fghik")),
        "member number": member("v", 3),
        "member vlen text": member("name", "Second"),
        "member fixed text": member("tag", b"r"),
        "member list": member("more", np.array([2.0, 4.0], "f4")),
        "reference": in_hdf5(lambda f: f["where"].__setitem__(0, f["fixed"].ref)),
        "region": in_hdf5(lambda f: f["part"].__setitem__(0, f["whole"].regionref[1:4])),
        "enum names": enum({"RED": 0, "GREEN": 1}),
        "enum order": enum({"RED": 1, "BLUE": 0}),
        "enum more": enum({"RED": 0, "BLUE": 1, "GREEN": 2}),
        "meaning": attribute("g/x", "scale_factor", 0.25),
        "units": attribute("g/x", "units", "km"),
        "text of a group": attribute("/", "title", "another run"),
        "number of a group": attribute("/", "count", np.int32(8)),
        "type of an attribute": attribute("/", "count", np.int64(7)),
        "shape of an attribute": attribute("/", "count", np.array([7], "i4")),
        "list of texts": attribute("/", "axes", ["x", "z"]),
        "struct as an attribute": attribute("/", "odd", np.array([(1, 2.75)], [("n", "i4"), ("v", "f8")])),
        "width of text of an attribute": typed(fixed_text(9)),
        "padding of text of an attribute": typed(fixed_text(8, h5py.h5t.STR_SPACEPAD)),
        "character set of an attribute": typed(fixed_text(8, cset=h5py.h5t.CSET_UTF8)),
        "bits of an attribute": typed(h5py.h5t.STD_B32LE, "count"),
        "precision of an attribute": typed(narrow(), "count"),
        "named type of an attribute": in_hdf5(lambda f: f.attrs.create("count", 7, dtype=f["an integer"])),
        "precision": again("plain", data=np.arange(5, dtype="i4"), dtype=h5py.Datatype(narrow())),
        "named type of a dataset": in_hdf5(
            lambda f: (f.__delitem__("plain"), f.create_dataset("plain", data=np.arange(5), dtype=f["an integer"]))
        ),
        "attribute more": attribute("g", "new", 1),
        "attribute less": in_hdf5(lambda f: f.attrs.__delitem__("title")),
        "attribute name": in_hdf5(lambda f: (f.attrs.__delitem__("title"), f.attrs.__setitem__("Title", "a run"))),
        "dataset more": in_hdf5(lambda f: f.__setitem__("more", 1.0)),
        "dataset less": in_hdf5(lambda f: f.__delitem__("whole")),
        "dataset name": in_hdf5(lambda f: f.move("whole", "part of it")),
        "group more": in_hdf5(lambda f: f.create_group("another")),
        "group less": in_hdf5(lambda f: f.__delitem__("empty")),
        "type": again("g/x", data=STEPS.astype("f4")),
        "sign": again("whole", data=np.arange(5, dtype="u4")),
        "shape": again("g/x", data=STEPS.reshape(4, 3)),
        "largest shape": again("g/x", data=STEPS, maxshape=(None, 4)),
        "fill value": again("filled", data=np.array([1, 3.5, 3.5, 3.5], "f4"), fillvalue=4.5),
        "width of text": again("fixed", data=np.array([b"ab", b"cd"], "S3")),
        "character set": again("text", data=["one", "two", "three"], dtype=h5py.string_dtype("ascii")),
        "text of fixed length": again("text", data=np.array([b"one", b"two", b"three"])),
        "named type": link("a type", np.dtype("f8")),
        "soft link": link("soft", h5py.SoftLink("/whole")),
        "soft link to an equal one": link("soft", h5py.SoftLink("/./g/x")),
        "soft link becomes a copy": link("soft", STEPS),
        "external link": link("far", h5py.ExternalLink("other.h5", "/z")),
        "hard link": link("hard", np.arange(5, dtype="i4")),
        "link that leads nowhere": link("soft", h5py.SoftLink("/none")),
        "file more": edited(hdf5, lambda d: (d / "notes.txt").write_text("hello")),
        "value in the other file": in_hdf5(lambda f: f["y"].__setitem__(0, 5), "other.h5"),
    },
    {
        "chunks": lambda d: hdf5(d, chunks=(1, 4)),
        "compression": lambda d: hdf5(d, chunks=(2, 4), compression="gzip", shuffle=True),
        "byte order": lambda d: hdf5(d, dtype=">f8"),
        "order of creation": lambda d: hdf5(d, order=("text", "whole", "x")),
        "checksums": lambda d: hdf5(d, chunks=True, fletcher32=True),
        "room at the end": in_hdf5(lambda f: (f.create_dataset("t", data=np.zeros(9999)), f.__delitem__("t"))),
        "padding of a struct": lambda d: hdf5(d, align=True),
        "byte order of an attribute": in_hdf5(lambda f: f.attrs.create("count", 7, dtype=">i4")),
    },
)  # fmt: skip


def netcdf4(folder: Path, names: tuple[str, str] = ("time", "x"), size: int = 3) -> None:
    """As the NetCDF library writes it: dimensions are scales."""
    with h5py.File(folder / "a.nc4", "w") as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.0"
        file.attrs["history"] = "made"
        time, x = names
        file[time] = np.arange(float(size))
        file[time].make_scale(time)
        file[time].attrs["units"] = "days since 2000-01-01"
        file[time].attrs["calendar"] = "standard"
        file.create_dataset(x, data=np.zeros(4, "f4")).make_scale(
            "This is a netCDF dimension but not a netCDF variable.         4"
        )
        t = file.create_dataset("t", data=np.arange(size * 4, dtype="i2").reshape(size, 4), fillvalue=-1)
        t.attrs["_FillValue"] = np.array([-1], "i2")
        t.attrs["scale_factor"] = 0.1
        t.dims[0].attach_scale(file[time])
        t.dims[1].attach_scale(file[x])


def in_netcdf4(edit: Callable[[h5py.File], object]) -> Write:
    return in_hdf5(edit, "a.nc4", netcdf4)


NETCDF4 = Sample(
    netcdf4,
    {
        "value": in_netcdf4(lambda f: f["t"].__setitem__((0, 0), 5)),
        "scale_factor": in_netcdf4(lambda f: f["t"].attrs.__setitem__("scale_factor", 0.2)),
        "add_offset": in_netcdf4(lambda f: f["t"].attrs.__setitem__("add_offset", 1.0)),
        "_FillValue": in_netcdf4(lambda f: f["t"].attrs.__setitem__("_FillValue", np.array([-2], "i2"))),
        "units": in_netcdf4(lambda f: f["time"].attrs.__setitem__("units", "days since 2001-01-01")),
        "calendar": in_netcdf4(lambda f: f["time"].attrs.__setitem__("calendar", "noleap")),
        "history": in_netcdf4(lambda f: f.attrs.__setitem__("history", "made again")),
        "library": in_netcdf4(lambda f: f.attrs.__setitem__("_NCProperties", "version=2,netcdf=4.9.3")),
        "name of a dimension": lambda d: netcdf4(d, ("time", "y")),
        "dimensions swapped": in_netcdf4(lambda f: swap_scales(f)),
        "size of a dimension": lambda d: netcdf4(d, size=4),
    },
    {
        "ids of dimensions": in_netcdf4(lambda f: f["x"].attrs.__setitem__("_Netcdf4Dimid", np.int32(1))),
    },
)


def swap_scales(file: h5py.File) -> None:
    """Another dimension of the same size."""
    file.create_dataset("z", data=np.zeros(4, "f4")).make_scale("z")
    file["t"].dims[1].detach_scale(file["x"])
    file["t"].dims[1].attach_scale(file["z"])


# ---- NetCDF classic ----


def netcdf(
    folder: Path,
    change: str = "",
    version: int = 1,
    order: tuple[str, ...] = ("t", "words"),
    dimensions: tuple[str, ...] = ("time", "x", "n"),
) -> None:
    with netcdf_file(folder / "a.nc", "w", version=version) as file:
        file.title = b"another" if change == "title" else b"a run"
        file.factors = np.array([1, 2 + (change == "number")], "i4")
        if change == "attribute more":
            file.more = 1
        for name in dimensions:
            size = {"time": None, "x": 5 if change == "size" else 4, "n": 5}[name]
            file.createDimension("y" if change == "dimension" and name == "x" else name, size)
        across = ("time", "y" if change == "dimension" else "x")
        for name in order:
            if name == "t":
                code = "i" if change == "type" else "h"
                t = file.createVariable("u" if change == "name" else "t", code, across)
                count = 5 if change == "size" else 4
                t[:] = np.arange(3 * count).reshape(3, count) + (change == "value")
                t.scale_factor = 0.25 if change == "scale_factor" else 0.5
                t.add_offset = 2.0 if change == "add_offset" else 1.0
                t._FillValue = np.int16(-2 if change == "_FillValue" else -1)
                t.units = b"km" if change == "units" else b"m"
                if change != "attribute less":
                    t.long_name = b"length"
            else:
                words = file.createVariable("words", "c", ("n",))
                words[:] = np.frombuffer(b"hellO" if change == "text" else b"hello", "S1")
        if change == "variable more":
            file.createVariable("more", "d", ())[...] = 1


NETCDF = Sample(
    netcdf,
    {
        name: (lambda d, name=name: netcdf(d, name))
        for name in ("title", "number", "attribute more", "attribute less", "size", "dimension", "type", "name", "value",
                     "scale_factor", "add_offset", "_FillValue", "units", "text", "variable more")
    },
    {
        "64-bit offsets": lambda d: netcdf(d, version=2),
        "order of variables": lambda d: netcdf(d, order=("words", "t")),
        "order of dimensions": lambda d: netcdf(d, dimensions=("time", "n", "x")),
    },
)  # fmt: skip


# ---- NumPy ----


def npz(folder: Path, save: Callable = np.savez, **other: object) -> None:
    rows = np.zeros(3, [("v", "f8"), ("name", "U4"), ("sub", [("w", "i2")], (2,))])
    rows["name"] = ["a", "b", "c"]
    arrays: dict[str, object] = {
        "x": STEPS, "text": np.array(["one", "two"]), "bytes": np.array([b"p", b"q"]), "rows": rows,
        "long": np.array([1, 2], np.longdouble), "raw": np.array([b"abc", b"def"], "V3"),
        "when": np.array([0, 1], "M8[s]"), "objects": np.array([{"a": 1}, None], object), "flag": np.array(True),
    }  # fmt: skip
    arrays.update(other)
    save(folder / "a.npz", **{k: v for k, v in arrays.items() if v is not None})


def with_rows(**of: object) -> Write:
    rows = np.zeros(3, [("v", "f8"), ("name", "U4"), ("sub", [("w", "i2")], (2,))])
    rows["name"] = ["a", "b", "c"]
    for name, value in of.items():
        if name == "w":
            rows["sub"]["w"][1, 1] = value
        else:
            rows[name][1] = value
    return lambda d: npz(d, rows=rows)


def zip_member(folder: Path, name: str = "readme.txt", text: str = "hello") -> None:
    with zipfile.ZipFile(folder / "a.npz", "a") as archive:
        archive.writestr(name, text)


NPZ = Sample(
    npz,
    {
        "value": lambda d: npz(d, x=STEPS + (np.arange(12).reshape(3, 4) == 5)),
        "text": lambda d: npz(d, text=np.array(["one", "tow"])),
        "longer text": lambda d: npz(d, text=np.array(["one", "two more"])),
        "width of text": lambda d: npz(d, text=np.array(["one", "two"], "U7")),
        "text becomes bytes": lambda d: npz(d, text=np.array([b"one", b"two"])),
        "bytes": lambda d: npz(d, bytes=np.array([b"p", b"r"])),
        "member number": with_rows(v=1),
        "member text": with_rows(name="B"),
        "member of a struct in a struct": with_rows(w=1),
        "long double": lambda d: npz(
            d, long=np.array([1, np.longdouble(2) + np.finfo(np.longdouble).eps * 2])
        ),
        "untyped bytes": lambda d: npz(d, raw=np.array([b"abc", b"deg"], "V3")),
        "unit of time": lambda d: npz(d, when=np.array([0, 1], "M8[D]")),
        "objects": lambda d: npz(d, objects=np.array([{"a": 2}, None], object)),
        "array more": lambda d: npz(d, more=np.arange(2)),
        "array less": lambda d: npz(d, text=None),
        "type": lambda d: npz(d, x=STEPS.astype("f4")),
        "shape": lambda d: npz(d, x=STEPS.reshape(4, 3)),
        "boolean": lambda d: npz(d, flag=np.array(False)),
        "member that is no array": edited(npz, zip_member),
        "folder as a member": edited(npz, lambda d: zip_member(d, "notes/", "")),
    },
    {
        "compression": lambda d: npz(d, np.savez_compressed),
        "byte order": lambda d: npz(d, x=STEPS.astype(">f8"), text=np.array(["one", "two"]).astype(">U3")),
    },
)


def npy(folder: Path, array: np.ndarray | None = None) -> None:
    np.save(folder / "words.npy", np.array(["one", "two"]) if array is None else array)


def records(folder: Path, inner: tuple[str, ...] = ("u", "v"), width: int = 3, **how: bool) -> None:
    member = np.dtype([(name, "i4" if name == "u" else "f8") for name in inner], **how)
    whole = np.zeros(2, np.dtype([("n", "i1"), ("in", member), ("t", f"S{width}")], **how))
    whole["in"]["u"], whole["in"]["v"], whole["t"] = 1, 2.5, b"ab"
    np.save(folder / "rows.npy", whole)


RECORDS = Sample(
    records,
    {
        "order of members of a member": lambda d: records(d, ("v", "u")),
        "width of a text": lambda d: records(d, width=4),
    },
    {"padding": lambda d: records(d, align=True)},
)
NPY = Sample(
    npy,
    {
        "text": lambda d: npy(d, np.array(["one", "tow"])),
        "width": lambda d: npy(d, np.array(["one", "two"], "U9")),
        "type": lambda d: npy(d, np.array([1, 2])),
    },
    {"byte order": lambda d: npy(d, np.array(["one", "two"], ">U3"))},
)


# ---- safetensors ----


def safetensors(folder: Path, metadata: dict[str, str] | None = None, **other: object) -> None:
    from safetensors.numpy import save_file

    tensors = {"x": STEPS.astype("f4"), "n": np.arange(3)}
    tensors.update(other)  # type: ignore[arg-type]
    save_file(
        tensors, folder / "a.safetensors", {"format": "pt", "loss": "1.5"} if metadata is None else metadata
    )


def small_floats(
    folder: Path, raw: bytes = b"\x01\x02\x03", shape: tuple[int, ...] = (3,), kind: str = "F8_E4M3"
) -> None:
    header = json.dumps({"q": {"dtype": kind, "shape": shape, "data_offsets": [0, len(raw)]}}).encode()
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw)


SAFETENSORS = Sample(
    safetensors,
    {
        "value": lambda d: safetensors(d, n=np.array([0, 1, 3])),
        "metadata": lambda d: safetensors(d, {"format": "pt", "loss": "1.25"}),
        "metadata less": lambda d: safetensors(d, {"format": "pt"}),
        "tensor more": lambda d: safetensors(d, more=np.arange(2)),
        "type": lambda d: safetensors(d, n=np.arange(3, dtype="i4")),
    },
    {"order": lambda d: safetensors(d, {"loss": "1.5", "format": "pt"})},
    needs="safetensors",
)
SMALL_FLOATS = Sample(
    small_floats,
    {
        "value": lambda d: small_floats(d, b"\x01\x02\x04"),
        "type": lambda d: small_floats(d, kind="F8_E5M2"),
        "shape": lambda d: small_floats(d, shape=(1, 3)),
    },
    {"again": small_floats},
)


# ---- Zarr ----


def zarr(folder: Path, version: int = 3, where: str = "a.zarr", **how: object) -> None:
    import zarr as package

    change = str(how.pop("change", ""))
    order = how.pop("order", ("x", "text"))
    group = package.open_group(folder / where, mode="w", zarr_format=version)
    group.attrs["title"] = "another" if change == "title" else "a run"
    group.attrs["nested"] = {"a": [1, 2, {"b": "deep" if change != "nested" else "deeper"}]}
    values = STEPS + (change == "value")
    for name in order:
        if name == "x":
            settings = {"chunks": (2, 4), "fill_value": 1.0 if change == "fill value" else 0.0, **how}
            if version == 3:
                settings["dimension_names"] = ("time", "y" if change == "dimension" else "x")
            x = group.create_array(
                "deep/y" if change == "name" else "deep/x",
                shape=STEPS.shape,
                dtype="f4" if change == "type" else how.get("dtype", "f8"),
                **{k: v for k, v in settings.items() if k != "dtype"},
            )
            x[...] = values
            x.attrs["scale_factor"] = 0.25 if change == "scale_factor" else 0.5
            if change != "units less":
                x.attrs["units"] = "km" if change == "units" else "m"
        else:
            text = group.create_array("text", shape=(2,), dtype="U5", chunks=(2,))
            text[...] = np.array(["one", "tow" if change == "text" else "two"])
    if change == "array more":
        group.create_array("more", shape=(1,), dtype="i4")
    if change == "group more":
        group.create_group("empty")


_ZARR_CHANGES = ("title", "nested", "value", "fill value", "name", "type", "scale_factor", "units", "units less", "text",
                 "array more", "group more")  # fmt: skip


def zipped(folder: Path) -> None:
    zarr(folder, where="made")
    with zipfile.ZipFile(folder / "a.zarr", "w") as archive:
        for path in sorted(p for p in (folder / "made").rglob("*") if p.is_file()):
            archive.write(path, path.relative_to(folder / "made").as_posix())
    shutil.rmtree(folder / "made")


ZARR3 = Sample(
    zarr,
    {
        **{name: (lambda d, name=name: zarr(d, change=name)) for name in (*_ZARR_CHANGES, "dimension")},
        "unknown file": lambda d: beside(zarr, "a.zarr/deep/notes.txt")(d),
        "unknown file in an array": lambda d: beside(zarr, "a.zarr/deep/x/c/notes")(d),
        "unknown folder": lambda d: beside(zarr, "a.zarr/more/0.0")(d),
        "metadata of nothing": lambda d: beside(zarr, "a.zarr/more/.zattrs", b"{}")(d),
    },
    {
        "chunks": lambda d: zarr(d, chunks=(1, 2)),
        "compression": lambda d: zarr(d, compressors=None),
        "shards": lambda d: zarr(d, chunks=(1, 2), shards=(2, 4)),
        "order": lambda d: zarr(d, order=("text", "x")),
        "zip archive": zipped,
    },
    needs="zarr",
)
ZARR2 = Sample(
    lambda d: zarr(d, 2),
    {name: (lambda d, name=name: zarr(d, 2, change=name)) for name in _ZARR_CHANGES},
    {
        "chunks": lambda d: zarr(d, 2, chunks=(1, 2)),
        "compression": lambda d: zarr(d, 2, compressors=None),
        "byte order": lambda d: zarr(d, 2, dtype=">f8"),
    },
    needs="zarr",
)


def consolidated(version: int, edit: Callable[[dict], object] | None = None) -> Write:
    """With the metadata of all that is in it in one place, and edited there."""

    def write(folder: Path) -> None:
        import zarr as package

        zarr(folder, version)
        package.consolidate_metadata(folder / "a.zarr", zarr_format=version)
        path = folder / "a.zarr" / ("zarr.json" if version == 3 else ".zmetadata")
        document = json.loads(path.read_text())
        if edit is not None:
            edit(document["consolidated_metadata"]["metadata"] if version == 3 else document["metadata"])
        path.write_text(json.dumps(document))

    return write


CONSOLIDATED3 = Sample(
    zarr,
    {
        "attribute": consolidated(3, lambda m: m["deep/x"]["attributes"].update(units="km")),
        "attribute more": consolidated(3, lambda m: m["deep"].update(attributes={"more": 1})),
        "fill value": consolidated(3, lambda m: m["deep/x"].update(fill_value=9.0)),
        "member less": consolidated(3, lambda m: m.pop("text")),
        "member more": consolidated(3, lambda m: m.update(more=m["text"])),
    },
    {"consolidated": consolidated(3)},
    needs="zarr",
)
CONSOLIDATED2 = Sample(
    lambda d: zarr(d, 2),
    {
        "attribute": consolidated(2, lambda m: m["deep/x/.zattrs"].update(units="km")),
        "attribute of the group": consolidated(2, lambda m: m[".zattrs"].update(title="another")),
        "attributes less": consolidated(2, lambda m: m.pop("deep/x/.zattrs")),
        "member less": consolidated(2, lambda m: m.pop("text/.zarray")),
    },
    {"consolidated": consolidated(2)},
    needs="zarr",
)
STALE = Sample(
    consolidated(3, lambda m: m.pop("text")),
    {"more stale": consolidated(3, lambda m: m.clear())},
    needs="zarr",
)


# ---- ADIOS2 ----


def adios(folder: Path, change: str = "", blocks: int = 1) -> None:
    import adios2

    with adios2.Stream(str(folder / "a.bp"), "w") as stream:
        for step in stream.steps(2):
            at = step.current_step()
            for block in range(blocks):
                n = 4 // blocks
                part = np.arange(4.0)[block * n : (block + 1) * n] + at + (change == "value" and at == 1)
                stream.write("x", part, [4], [block * n], [n])
            stream.write("label", f"step {at}" + ("!" if change == "text" and at == 1 else ""))
            if at == 0:
                stream.write_attribute("units", "km" if change == "attribute of a variable" else "m", "x")
                stream.write_attribute("title", "another" if change == "attribute" else "a run")
                stream.write_attribute("list", ["a", "c" if change == "list" else "b"])
                stream.write_attribute("numbers", np.array([1.0, 3.0 if change == "numbers" else 2.0]))
                if change == "attribute more":
                    stream.write_attribute("more", 1)
                if change == "variable more":
                    stream.write("more", np.arange(2.0), [2], [0], [2])


def beside(base: Write, name: str, data: bytes = b"hello") -> Write:
    """The same with one file more in it."""

    def edit(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    return edited(base, edit)


ADIOS = Sample(
    adios,
    {
        **{
            name: (lambda d, name=name: adios(d, name))
            for name in ("value", "text", "attribute", "attribute of a variable", "list", "numbers", "attribute more",
                         "variable more")
        },
        "unknown file": beside(adios, "a.bp/notes.txt"),
    },
    {"blocks": lambda d: adios(d, blocks=2)},
    needs="adios2",
)  # fmt: skip


# ---- openPMD ----


def openpmd(folder: Path, change: str = "") -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file.attrs.update({"openPMD": "1.1.0", "basePath": "/data/%T/", "meshesPath": "fields/"})
        file.attrs["date"] = "2001" if change == "date" else "2000"
        for step in (10, 20):
            one = file.create_group(f"data/{step}")
            one.attrs["time"] = step * (2.0 if change == "time" else 1.0)
            one.attrs["timeUnitSI"] = 2.0 if change == "timeUnitSI" else 1.0
            one["fields/E/x"] = np.arange(4.0) + (change == "value" and step == 20)
            one["fields/E"].attrs["unitDimension"] = np.arange(7.0) + (change == "unitDimension")
            one["fields/E/x"].attrs["unitSI"] = 2.0 if change == "unitSI" and step == 20 else 1.0
            constant = one.create_group("fields/E/y")
            constant.attrs.update(
                {"value": 2.0 if change == "constant" else 1.0, "shape": [4], "unitSI": 1.0}
            )
            if change == "unit of a constant":
                constant.attrs["unitSI"] = 2.0


OPENPMD = Sample(
    openpmd,
    {
        name: (lambda d, name=name: openpmd(d, name))
        for name in ("date", "time", "timeUnitSI", "value", "unitDimension", "unitSI", "constant", "unit of a constant")
    },
    {"again": openpmd},
)  # fmt: skip


# ---- VTK ----


def vtu(folder: Path, change: str = "", form: str = "ascii", order: str = "LittleEndian") -> None:
    def numbers(values: list[float], kind: str, name: str, more: str = "") -> str:
        if form == "ascii":
            text = " ".join(map(str, values))
        else:
            import base64

            raw = np.array(
                values,
                ("<" if order == "LittleEndian" else ">")
                + {"Float64": "f8", "Int64": "i8", "UInt8": "u1"}[kind],
            )
            size = struct.pack("<I" if order == "LittleEndian" else ">I", raw.nbytes)
            text = base64.b64encode(size + raw.tobytes()).decode()
        return f'<DataArray type="{kind}" Name="{name}" format="{form}" {more}>{text}</DataArray>'

    v = 3.0 if change == "value" else 2.0
    word = "other" if change == "text" else "water"
    codes = " ".join(str(ord(c)) for c in word) + " 0"
    point = "speed" if change == "name" else "velocity"
    names = (
        f'NumberOfComponents="2" ComponentName0="{"u" if change != "component" else "w"}" ComponentName1="v"'
    )
    text = f"""<?xml version="1.0"?><VTKFile type="UnstructuredGrid" version="1.0" byte_order="{order}"><UnstructuredGrid>
<FieldData>{numbers([0.5], "Float64", "TimeValue", 'NumberOfTuples="1"')}
<Array type="String" Name="what" NumberOfTuples="1" format="ascii">{codes}</Array></FieldData>
<Piece NumberOfPoints="2" NumberOfCells="1"><PointData Vectors="{"none" if change == "active array" else point}">{numbers([1, v, 3, 4], "Float64", point, names)}</PointData>
<Points>{numbers([0, 0, 0, 1, 0, 0], "Float64", "Points", 'NumberOfComponents="3"')}</Points>
<Cells>{numbers([0, 1], "Int64", "connectivity")}{numbers([2], "Int64", "offsets")}{numbers([3], "UInt8", "types")}</Cells>
</Piece></UnstructuredGrid></VTKFile>"""
    (folder / "a.vtu").write_text(text)


VTU = Sample(
    vtu,
    {
        name: (lambda d, name=name: vtu(d, name))
        for name in ("value", "text", "name", "component", "active array")
    },
    {
        "binary": lambda d: vtu(d, form="binary"),
        "byte order": lambda d: vtu(d, form="binary", order="BigEndian"),
    },
)


def vtk(folder: Path, change: str = "", binary: bool = False) -> None:
    v = [1.0, 3.0 if change == "value" else 2.0]
    colours = [0, 0, 0, 255, 255 if change != "colour" else 254, 0, 0, 255]

    def numbers(values: list, kind: str) -> bytes:
        if binary:
            return np.array(values, kind).tobytes() + b"\n"
        values = [c / 255 for c in values] if kind == ">u1" else values
        return " ".join(map(repr, values)).encode() + b"\n"

    table = "other" if change == "lookup table" else "rainbow"
    parts = [
        b"# vtk DataFile Version 3.0\n",
        b"another\n" if change == "title" else b"a run\n",
        b"BINARY\n" if binary else b"ASCII\n",
        b"DATASET STRUCTURED_POINTS\nDIMENSIONS 2 1 1\n",
        f"ORIGIN {1 if change == 'origin' else 0} 0 0\nSPACING 1 1 1\nPOINT_DATA 2\n".encode(),
        f"SCALARS t double 1\nLOOKUP_TABLE {table}\n".encode(),
        numbers(v, ">f8"),
        b"LOOKUP_TABLE rainbow 2\n",
        numbers(colours, ">u1"),
    ]
    (folder / "a.vtk").write_bytes(b"".join(parts))


VTK = Sample(
    lambda d: vtk(d, binary=True),
    {
        name: (lambda d, name=name: vtk(d, name, True))
        for name in ("value", "colour", "lookup table", "title", "origin")
    },
    {"again": lambda d: vtk(d, binary=True)},
)


# ---- LAMMPS, and files of no format ----


def lammps(folder: Path, change: str = "", words: str = "element") -> None:
    bounds = "ff pp pp" if change == "boundary" else "pp pp pp"
    units = "metal" if change == "units" else "lj"
    text = "".join(
        f"ITEM: UNITS\n{units}\nITEM: TIMESTEP\n{step}\nITEM: TIME\n{step * (2.0 if change == 'time' else 1.0)}\n"
        f"ITEM: NUMBER OF ATOMS\n2\nITEM: BOX BOUNDS {bounds}\n0 {2 if change == 'box' else 1}\n0 1\n0 1\n"
        f"ITEM: ATOMS id {words} x\n1 {'He' if change == 'element' and step else 'H'} 0.5\n2 O "
        f"{0.5 if change == 'value' else 0.25}\n"
        for step in (0, 10)
    )
    (folder / "a.lammpstrj").write_text(text)


LAMMPS = Sample(
    lammps,
    {
        name: (lambda d, name=name: lammps(d, name))
        for name in ("boundary", "units", "time", "box", "element", "value")
    },
    {"again": lammps},
)
LAMMPS_WORDS = Sample(
    lambda d: lammps(d, words="el"), {"another word": lambda d: lammps(d, "element", words="el")}
)


def folder_of_files(folder: Path) -> None:
    """Data of two steps beside files that are no data."""
    for step in (10, 20):
        np.save(folder / f"x_{step}.npy", STEPS + step)
    (folder / "log.txt").write_text("all is well\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "notes").write_bytes(bytes(range(256)))
    (folder / ".hidden").write_text("kept")
    (folder / "x_10.npy.json").write_text("{}")


def linked_folders(folder: Path, to: str = "p", loop: str = ".", as_path: bool = False) -> None:
    for name in "pq":
        (folder / name).mkdir()
        np.save(folder / name / "a.npy", STEPS + (name == "q"))
    for name, target in (("latest", to), ("loop", loop)):
        (folder / name).symlink_to((folder / target).resolve() if as_path else target)


LINKS = Sample(
    linked_folders,
    {
        "where a link leads": lambda d: linked_folders(d, "q"),
        "where a loop leads": lambda d: linked_folders(d, loop="q"),
        "link less": edited(linked_folders, lambda d: (d / "latest").unlink()),
    },
    {"absolute links": lambda d: linked_folders(d, as_path=True)},
)
FOLDER = Sample(
    folder_of_files,
    {
        "value": edited(folder_of_files, lambda d: np.save(d / "x_20.npy", STEPS)),
        "text of an unknown file": edited(folder_of_files, lambda d: (d / "log.txt").write_text("all is Well\n")),
        "length of an unknown file": edited(folder_of_files, lambda d: (d / "log.txt").write_text("all is well")),
        "byte of an unknown file": edited(folder_of_files, lambda d: (d / "deep/notes").write_bytes(bytes(256))),
        "unknown file more": edited(folder_of_files, lambda d: (d / "deep/more").write_text("")),
        "unknown file less": edited(folder_of_files, lambda d: (d / "log.txt").unlink()),
        "unknown file elsewhere": edited(folder_of_files, lambda d: (d / "log.txt").rename(d / "deep/log.txt")),
        "hidden file": edited(folder_of_files, lambda d: (d / ".hidden").write_text("lost")),
        "file called like metadata": edited(folder_of_files, lambda d: (d / "x_10.npy.twm").write_text("my own")),
        "file called like metadata of nothing": edited(folder_of_files, lambda d: (d / "mine.twm").write_text("my own")),
        "file beside data": edited(folder_of_files, lambda d: (d / "x_10.npy.json").write_text("[]")),
        "link that leads nowhere": edited(folder_of_files, lambda d: (d / "log2").symlink_to("none")),
        "pipe": edited(folder_of_files, lambda d: os.mkfifo(d / "pipe")),
        "step more": edited(folder_of_files, lambda d: np.save(d / "x_30.npy", STEPS)),
        "link to a folder": edited(folder_of_files, lambda d: (d / "latest").symlink_to("deep")),
    },
    {
        "empty folder": edited(folder_of_files, lambda d: (d / "nothing").mkdir()),
        "link to the same": edited(
            folder_of_files, lambda d: ((d / "log.txt").rename(d.parent / "log"), (d / "log.txt").symlink_to(d.parent / "log"))
        ),
    },
)  # fmt: skip


# ---- tables ----


def table(folder: Path, columns: tuple[str, ...] = ("a", "b"), last: str = "1,2", text: str = "") -> None:
    """Longer than what is looked at first, to know its layout."""
    rows = "".join(f"{n},{n}.5\n" for n in range(20000))
    (folder / "a.csv").write_text(text or ",".join(columns) + "\n" + rows + last + "\n")


def frame(folder: Path, columns: tuple[str, ...] = ("a", "b"), **how: object) -> None:
    import pandas

    pandas.DataFrame({name: np.arange(5) for name in columns}).to_parquet(folder / "a.parquet", **how)


TABLE = Sample(
    table,
    {
        "value": lambda d: table(d, last="1,3"),
        "order of columns": lambda d: table(d, ("b", "a")),
        "row more": lambda d: table(d, last="1,2\n1,2"),
        "short row": lambda d: table(d, last="1"),
        "long row": lambda d: table(d, last="1,2,"),
    },
    {"empty line": lambda d: table(d, last="1,2\n"), "quotes": lambda d: table(d, last='"1","2"')},
    needs="pandas",
)
SHORT_ROW = Sample(
    lambda d: table(d, last="1"), {"an empty cell": lambda d: table(d, last="1,")}, needs="pandas"
)
PARQUET = Sample(
    frame,
    {"order of columns": lambda d: frame(d, ("b", "a")), "column more": lambda d: frame(d, ("a", "b", "c"))},
    {"compression": lambda d: frame(d, compression="gzip")},
    needs="pyarrow",
)


# ---- raw files ----


def raw(folder: Path, header: bytes = b"\x01head", between: bytes = b"\0\0", **more: object) -> None:
    x, y = np.arange(9.0, dtype="f4").tobytes(), np.arange(4, dtype="i2").tobytes()
    arrays = [{"name": "x", "dtype": "f32", "shape": [9]},
              {"name": "y", "dtype": "i16", "shape": [4], "offset": 5 + len(x) + 2}]  # fmt: skip
    (folder / "a.bin").write_bytes(header + x + between + y)
    (folder / "a.bin.json").write_text(json.dumps({"offset": 5, "arrays": arrays, **more}))
    (folder / "b.bin").write_bytes(header + x)
    (folder / "b.bin.json").write_text(json.dumps({"offset": 5, "dtype": "f32"}))


RAW = Sample(
    raw,
    {
        "header": lambda d: raw(d, b"\x01Head"),
        "bytes between arrays": lambda d: raw(d, between=b"\0\1"),
    },
    {"a comment": lambda d: raw(d, comment="how it was written")},
)


# ---- formats of which there are fixtures ----

FIXTURES = Path(__file__).parent / "fixtures"


def copied(name: str, to: str = "") -> Write:
    def write(folder: Path) -> None:
        source, target = FIXTURES / name, folder / (to or Path(name).name)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)

    return write


def replaced(base: Write, file: str, old: bytes, new: bytes) -> Write:
    """The same with other bytes, the first time that they come."""

    def edit(folder: Path) -> None:
        data = (folder / file).read_bytes()
        assert old in data
        (folder / file).write_bytes(data.replace(old, new, 1))

    return edited(base, edit)


def patched(base: Write, file: str, at: int, new: bytes) -> Write:
    def edit(folder: Path) -> None:
        data = bytearray((folder / file).read_bytes())
        assert data[at : at + len(new)] != new
        data[at : at + len(new)] = new
        (folder / file).write_bytes(data)

    return edited(base, edit)


_plotfile = copied("amrex/a/plt00042")
AMREX = Sample(
    _plotfile,
    {
        "time": replaced(_plotfile, "plt00042/Header", b"\n0.25\n", b"\n0.26\n"),
        "step": replaced(_plotfile, "plt00042/Header", b"42 84", b"43 84"),
        "cell size": replaced(_plotfile, "plt00042/Header", b"0.125 0.125 0.125", b"0.125 0.125 0.126"),
        "name": replaced(_plotfile, "plt00042/Header", b"velocity", b"velocitx"),
        "unknown file": beside(_plotfile, "plt00042/WarpXHeader"),
        "unknown file of a level": beside(_plotfile, "plt00042/Level_0/Cell_D_00077"),
    },
    {"how it was built": beside(_plotfile, "plt00042/job_info")},
)
_snapshot = copied("gadget/snapshot_002")
GADGET = Sample(
    _snapshot,
    {
        "flag": patched(_snapshot, "snapshot_002", 20 + 88, b"\x05"),
        "time": patched(_snapshot, "snapshot_002", 20 + 72, b"\x05"),
    },
)
_trajectory = copied("gromacs/argon.trr")
TRR = Sample(
    _trajectory,
    {
        "time": patched(_trajectory, "argon.trr", 24 + 52, struct.pack(">f", 7.0)),
        "lambda": patched(_trajectory, "argon.trr", 24 + 56, struct.pack(">f", 0.5)),
    },
)


def in_vtkhdf(edit: Callable[[h5py.File], object]) -> Write:
    return in_hdf5(edit, "grid_steps.vtkhdf", copied("hdf5/grid_steps.vtkhdf"))


def longer(file: h5py.File, name: str) -> None:
    """With a row more, which no step refers to."""
    rows = file["VTKHDF"][name][()]
    attributes = dict(file["VTKHDF"][name].attrs)
    del file["VTKHDF"][name]
    file["VTKHDF"].create_dataset(
        name, data=np.concatenate([rows, rows[:1]]), maxshape=(None, *rows.shape[1:])
    )
    file["VTKHDF"][name].attrs.update(attributes)


VTKHDF = Sample(
    copied("hdf5/grid_steps.vtkhdf"),
    {
        "time": in_vtkhdf(lambda f: f["VTKHDF/Steps/Values"].__setitem__(1, 77.0)),
        "attribute": in_vtkhdf(lambda f: f["VTKHDF/PointData/p"].attrs.__setitem__("unit", "m")),
        "value": in_vtkhdf(lambda f: f["VTKHDF/PointData/p"].__setitem__(14, 77.0)),
        "more of the steps": in_vtkhdf(lambda f: f.__setitem__("VTKHDF/Steps/foo", np.arange(3))),
        "rows of no step": in_vtkhdf(lambda f: longer(f, "PointData/p")),
        "time of no step": in_vtkhdf(lambda f: longer(f, "Steps/Values")),
    },
)


def torch(folder: Path, root: dict | None = None) -> None:
    """As torch.save writes what is no tensor."""
    import pickle

    value = (
        {"epoch": 3, "name": "run", "lr": [0.1, None], "flags": {"on": True, 2: b"x"}, "none": []}
        if root is None
        else root
    )
    with zipfile.ZipFile(folder / "a.pt", "w") as file:
        file.writestr("x/data.pkl", pickle.dumps(value, 2))


def values(**other: object) -> dict:
    return {"epoch": 3, "name": "run", "lr": [0.1, None], "flags": {"on": True, 2: b"x"}, "none": [], **other}


TORCH = Sample(
    torch,
    {
        name: (lambda d, root=root: torch(d, root))
        for name, root in {
            "number": values(epoch=4),
            "type of a number": values(epoch=3.0),
            "text": values(name="ran"),
            "nothing": values(lr=[0.1, 0]),
            "boolean": values(flags={"on": False, 2: b"x"}),
            "bytes": values(flags={"on": True, 2: b"y"}),
            "more": values(more=None),
            "list becomes tuple": values(lr=(0.1, None)),
            "key becomes text": values(flags={"on": True, "2": b"x"}),
            "empty list more": values(more=[]),
            "empty list becomes mapping": values(none={}),
            "empty list less": {k: v for k, v in values().items() if k != "none"},
            "empty list gets an entry": values(none=[None]),
        }.items()
    },
    {"order": lambda d: torch(d, dict(reversed(values().items())))},
)


# ---- types of Parquet ----


def arrow(folder: Path, metadata: dict[str, str] | None = None, **other: tuple[object, str]) -> None:
    """other: (values, type as an expression) of columns in place of the base's."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "when": ([[1000]], "pa.list_(pa.timestamp('ms'))"),
        "floats": ([[1.5]], "pa.list_(pa.float32())"),
        "ints": ([[1]], "pa.list_(pa.int32())"),
        "none": ([[]], "pa.list_(pa.string())"),
        "pair": ([[1, 2]], "pa.list_(pa.int32(), 2)"),
        "struct": ([{"x": 1, "y": 2}], "pa.struct([('x', pa.int32()), ('y', pa.int32())])"),
        "null member": ([{"x": None}], "pa.struct([('x', pa.int32())])"),
        "map": ([[("k", 1)]], "pa.map_(pa.string(), pa.int32())"),
        "money": ([1], "pa.decimal128(10, 1)"),
        "bytes": ([b"ab"], "pa.binary(2)"),
        "nothing": ([None], "pa.null()"),
        "word": (["a"], "pa.string()"),
        "blob": ([b"a"], "pa.binary()"),
        "kind": (["a"], "pa.dictionary(pa.int32(), pa.string())"),
        "missing": ([None], "pa.int64()"),
    } | other
    if columns["missing"] is None:  # what looks like the mask of a column
        columns["missing"] = ([0], "pa.int64()")
        columns["missing@mask"] = ([True], "pa.bool_()")
    arrays = {name: pa.array(values, eval(kind, {"pa": pa})) for name, (values, kind) in columns.items()}
    made = pa.table(arrays).replace_schema_metadata({"run": "1"})
    at = made.schema.get_field_index("word")
    made = made.set_column(
        at, made.schema.field(at).with_metadata({"units": "m"} | (metadata or {})), made.column(at)
    )
    pq.write_table(made, folder / "a.parquet")


def as_arrow(**other: tuple[object, str]) -> Write:
    return lambda folder: arrow(folder, **other)


ARROW = Sample(
    arrow,
    {
        "unit in a list": as_arrow(when=([[1000000]], "pa.list_(pa.timestamp('us'))")),
        "width of floats in a list": as_arrow(floats=([[1.5]], "pa.list_(pa.float64())")),
        "width of integers in a list": as_arrow(ints=([[1]], "pa.list_(pa.int64())")),
        "sign of integers in a list": as_arrow(ints=([[1]], "pa.list_(pa.uint32())")),
        "empty list of another type": as_arrow(none=([[]], "pa.list_(pa.float64())")),
        "list of any length": as_arrow(pair=([[1, 2]], "pa.list_(pa.int32())")),
        "width of a member": as_arrow(struct=([{"x": 1, "y": 2}], "pa.struct([('x', pa.int64()), ('y', pa.int32())])")),
        "order of members": as_arrow(struct=([{"x": 1, "y": 2}], "pa.struct([('y', pa.int32()), ('x', pa.int32())])")),
        "member that is null": as_arrow(**{"null member": ([{"x": None}], "pa.struct([('x', pa.string())])")}),
        "member that is never null": as_arrow(
            struct=([{"x": 1, "y": 2}], "pa.struct([pa.field('x', pa.int32(), False), ('y', pa.int32())])")
        ),
        "values of a map": as_arrow(map=([[("k", 1)]], "pa.map_(pa.string(), pa.int64())")),
        "precision of a decimal": as_arrow(money=([1], "pa.decimal128(12, 1)")),
        "width of a decimal": as_arrow(money=([1], "pa.decimal256(40, 1)")),
        "binary of any length": as_arrow(bytes=([b"ab"], "pa.binary()")),
        "null of a type": as_arrow(nothing=([None], "pa.string()")),
        "text as binary": as_arrow(word=([b"a"], "pa.binary()")),
        "dictionary": as_arrow(kind=(["a"], "pa.string()")),
        "order of a dictionary": as_arrow(kind=(["a"], "pa.dictionary(pa.int32(), pa.string(), True)")),
        "mask as a column": as_arrow(missing=None),
        "units": lambda d: arrow(d, {"units": "km"}),
        "metadata of a column": lambda d: arrow(d, {"more": "1"}),
    },
    {
        "width of offsets": as_arrow(
            word=(["a"], "pa.large_string()"), blob=([b"a"], "pa.large_binary()"), ints=([[1]], "pa.large_list(pa.int32())")
        ),
        "integers of a dictionary": as_arrow(kind=(["a"], "pa.dictionary(pa.int8(), pa.string())")),
        "name of an element": as_arrow(ints=([[1]], "pa.list_(pa.field('item', pa.int32()))")),
    },
    needs="pyarrow",
)  # fmt: skip

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
