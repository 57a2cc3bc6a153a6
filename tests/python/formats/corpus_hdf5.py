"""Samples of HDF5 and of NetCDF, each changed in one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from corpus_samples import STEPS, Sample, Write, copied, edited
from scipy.io import netcdf_file

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
