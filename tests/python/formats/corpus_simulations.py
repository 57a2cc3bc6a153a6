"""Samples of what simulations write, each changed in one thing at a time."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
from corpus_samples import Sample, beside, copied, patched, replaced

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
