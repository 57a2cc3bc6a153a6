"""Samples of files of arrays: NumPy, safetensors, Zarr, PyTorch, raw; each changed in one thing at a time."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from corpus_samples import STEPS, Sample, Write, beside, edited

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
