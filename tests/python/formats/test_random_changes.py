"""Random content in the formats of the field, written twice: with one thing changed it is never the same, stored otherwise it always is.

Files by themselves, metadata and golden files must all say so. test_corpus_of_changes.py has the changes that somebody thought of.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

import twinrun
from twinrun import golden

zarr = pytest.importorskip("zarr")
safetensors = pytest.importorskip("safetensors.numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pandas")

Rng = np.random.Generator
Attributes = dict[tuple[str, str], object]  # (array or '', name)
_NUMBERS = "i1 i2 i4 i8 u1 u2 u4 u8 f4 f8".split()


@dataclass
class Content:
    """What a file is to hold."""

    arrays: dict[str, np.ndarray]
    attributes: Attributes = field(default_factory=dict)

    def of(self, owner: str) -> dict[str, object]:
        return {name: value for (o, name), value in self.attributes.items() if o == owner}


def some_array(rng: Rng, code: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, n = np.dtype(code), math.prod(shape)
    if kind.kind in "US":
        letters = list("abcé" if kind.kind == "U" else "abcd")
        flat = np.array(["".join(rng.choice(letters, rng.integers(1, 4))) for _ in range(n)], kind)
    elif kind.kind == "b":
        flat = rng.random(n) < 0.5
    elif kind.kind in "iu":
        flat = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, n, dtype=kind, endpoint=True)
    elif kind.kind in "mM":
        flat = rng.integers(-1000, 10**6, n).view(kind)
    elif kind.kind == "c":
        flat = (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(kind)
    else:
        flat = rng.normal(size=n).astype(kind)
        for value, share in ((np.nan, 0.1), (0, 0.1), (np.inf, 0.05)):
            flat[rng.random(n) < share] = value
    return flat.reshape(shape)


def some_text(rng: Rng) -> str:
    return "".join(rng.choice(list("abcm/s"), rng.integers(1, 6)))


def typed_attribute(rng: Rng) -> object:
    """Of HDF5 and NetCDF."""
    return [
        np.int32(rng.integers(99)), np.float64(rng.normal()), some_text(rng).encode(), np.arange(3, dtype="i2"),
        np.float32(rng.normal()), np.array([1.0, rng.normal()]), np.int16(3),
    ][rng.integers(7)]  # fmt: skip


def json_attribute(rng: Rng) -> object:
    return [
        int(rng.integers(-9, 9)), float(rng.normal()), some_text(rng), [1, 2, int(rng.integers(9))],
        {"a": int(rng.integers(9)), "b": [some_text(rng)]}, True, None,
    ][rng.integers(7)]  # fmt: skip


# ---- writers: rng is None for the plain way ----


def shuffled(rng: Rng | None, entries: dict) -> dict:
    keys = list(entries)
    if rng is not None:
        rng.shuffle(keys)
    return {key: entries[key] for key in keys}


def chance(rng: Rng | None, share: float = 0.5) -> bool:
    return rng is not None and bool(rng.random() < share)


def stored(rng: Rng | None, array: np.ndarray) -> np.ndarray:
    """In another byte order, sometimes."""
    return array.astype(array.dtype.newbyteorder(">")) if chance(rng) and array.dtype.kind != "S" else array


def chunks(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(rng.integers(1, n + 1)) for n in shape)


def write_npz(path: Path, content: Content, rng: Rng | None) -> None:
    arrays = {n: stored(rng, a) for n, a in shuffled(rng, content.arrays).items()}
    if chance(rng):
        arrays = {n: np.asfortranarray(a) for n, a in arrays.items()}
    (np.savez_compressed if chance(rng) else np.savez)(path, **arrays)


def write_hdf5(path: Path, content: Content, rng: Rng | None) -> None:
    with h5py.File(path, "w", libver="latest" if chance(rng) else None, track_order=chance(rng)) as file:
        for name, array in shuffled(rng, content.arrays).items():
            how: dict[str, object] = {}
            if chance(rng) and array.size:
                how = {"chunks": chunks(rng, array.shape), "shuffle": chance(rng), "fletcher32": chance(rng)}
                how["compression"] = "gzip" if chance(rng) else None
            file.create_dataset(name, data=stored(rng, array), **how)
        for (owner, name), value in shuffled(rng, content.attributes).items():
            (file[owner] if owner else file).attrs[name] = value


def write_netcdf(path: Path, content: Content, rng: Rng | None) -> None:
    with netcdf_file(path, "w", version=2 if chance(rng) else 1) as file:
        for name, array in content.arrays.items():
            for axis, size in enumerate(array.shape):
                file.createDimension(f"{name}{axis}", size)
        for name, array in shuffled(rng, content.arrays).items():
            made = file.createVariable(
                name, array.dtype.str[1:], tuple(f"{name}{i}" for i in range(array.ndim))
            )
            made[...] = array
            for key, value in content.of(name).items():
                setattr(made, key, value)
        for key, value in content.of("").items():
            setattr(file, key, value)


def write_zarr(path: Path, content: Content, rng: Rng | None, version: int = 3) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, array in shuffled(rng, content.arrays).items():
        how: dict[str, object] = {"chunks": array.shape if rng is None else chunks(rng, array.shape)}
        if chance(rng):
            how["compressors"] = None
        if version == 2:
            how["order"] = "F" if chance(rng) else "C"
        elif chance(rng):
            how["shards"] = tuple(n * int(rng.integers(1, 3)) for n in how["chunks"])  # type: ignore[union-attr]
        data = stored(rng, array) if version == 2 else array
        made = group.create_array(name, shape=array.shape, dtype=data.dtype, **how)
        made[...] = data
        made.attrs.update(shuffled(rng, content.of(name)))
    group.attrs.update(content.of(""))
    if chance(rng, 0.3):
        zarr.consolidate_metadata(str(path))


def write_safetensors(path: Path, content: Content, rng: Rng | None) -> None:
    metadata = {f"{owner}.{name}": value for (owner, name), value in content.attributes.items()}
    safetensors.save_file(shuffled(rng, content.arrays), path, metadata=shuffled(rng, metadata) or None)


def write_parquet(path: Path, content: Content, rng: Rng | None) -> None:
    def told(owner: str) -> dict | None:
        return {name: str(value) for name, value in content.of(owner).items()} or None

    arrays = {n: pa.array(a.tolist() if a.dtype.kind == "U" else a) for n, a in content.arrays.items()}
    if chance(rng):
        arrays = {
            n: a.cast(pa.large_string()) if pa.types.is_string(a.type) else a for n, a in arrays.items()
        }
    kinds = [pa.field(name, array.type, metadata=told(name)) for name, array in arrays.items()]
    how: dict[str, object] = {}
    if rng is not None:
        how = {
            "compression": str(rng.choice(["none", "gzip", "zstd"])),
            "row_group_size": int(rng.integers(1, 20)),
        }
        how |= {"use_dictionary": chance(rng), "write_statistics": chance(rng)}
        how["data_page_version"] = str(rng.choice(["1.0", "2.0"]))
    pq.write_table(pa.table(list(arrays.values()), schema=pa.schema(kinds, metadata=told(""))), path, **how)


def write_csv(path: Path, content: Content, rng: Rng | None) -> None:
    def cell(value: np.generic) -> str:
        if value.dtype.kind == "f":
            return f"{value:.17e}" if chance(rng) and np.isfinite(value) else repr(float(value))
        return f'"{value}"' if chance(rng) and value.dtype.kind == "U" else str(value)

    end = "\r\n" if chance(rng) else "\n"
    rows = zip(*content.arrays.values(), strict=True)
    lines = [",".join(content.arrays), *(",".join(map(cell, row)) for row in rows)]
    path.write_text(end.join(lines) + ("" if chance(rng) else end), encoding="utf-8", newline="")


_VTK = dict(zip(_NUMBERS, "char short int vtktypeint64 unsigned_char unsigned_short unsigned_int vtktypeuint64 float double".split(), strict=True))  # fmt: skip


def write_vtk(path: Path, content: Content, rng: Rng | None) -> None:
    text, rows = chance(rng), len(next(iter(content.arrays.values())))
    made = f"# vtk DataFile Version 3.0\nt\n{'ASCII' if text else 'BINARY'}\nDATASET STRUCTURED_POINTS\n".encode()
    made += f"DIMENSIONS {rows} 1 1\nORIGIN 0 0 0\nSPACING 1 1 1\nPOINT_DATA {rows}\n".encode()
    made += f"FIELD FieldData {len(content.arrays)}\n".encode()
    for name, array in content.arrays.items():
        made += f"{name} 1 {rows} {_VTK[array.dtype.str[1:]]}\n".encode()
        words = " ".join(repr(n) for n in array.tolist()).encode()
        made += (words if text else array.astype(array.dtype.newbyteorder(">")).tobytes()) + b"\n"
    path.write_bytes(made)


@dataclass(frozen=True)
class Kind:
    """A format. flat: its arrays have one axis, and an order."""

    file: str
    write: Callable[[Path, Content, Rng | None], None]
    types: tuple[str, ...]
    attribute: Callable[[Rng], object] | None = None
    flat: bool = False


KINDS = {
    "npz": Kind("a.npz", write_npz, (*_NUMBERS, "?", "f2", "c8", "c16", "M8[s]", "m8[ms]", "U3", "S4")),
    "hdf5": Kind("a.h5", write_hdf5, (*_NUMBERS, "?", "f2", "c8", "c16", "S4"), typed_attribute),
    "netcdf": Kind("a.nc", write_netcdf, ("i1", "i2", "i4", "f4", "f8"), typed_attribute),
    "zarr 2": Kind("a.zarr", lambda p, c, r: write_zarr(p, c, r, 2), (*_NUMBERS, "?", "f2", "c8", "M8[s]", "U3", "S4"), json_attribute),
    "zarr 3": Kind("a.zarr", write_zarr, (*_NUMBERS, "?", "f2", "c8"), json_attribute),
    "safetensors": Kind("a.safetensors", write_safetensors, (*_NUMBERS, "?", "f2"), some_text),
    "parquet": Kind("a.parquet", write_parquet, (*_NUMBERS, "?", "M8[s]", "m8[ms]", "U3"), some_text, True),
    "csv": Kind("a.csv", write_csv, ("f8", "i8", "U3"), None, True),
    "vtk": Kind("a.vtk", write_vtk, tuple(_NUMBERS), None, True),
}  # fmt: skip


def some_content(rng: Rng, kind: Kind) -> Content:
    made = Content({})
    rows = int(rng.integers(2, 30))
    for name in rng.permutation(["x", "y", "zz", "p"])[: int(rng.integers(2, 5))].tolist():
        shape = (rows,) if kind.flat else tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(1, 4))))
        code = kind.types[0] if not made.arrays else str(rng.choice(kind.types))  # a table has numbers
        made.arrays[name] = some_array(rng, code, shape)
    for owner in ["", *made.arrays] if kind.attribute is not None else []:
        for name in ["units", "version", "v"][: int(rng.integers(0, 4))]:
            made.attributes[owner, name] = kind.attribute(rng)
    return made


# ---- one thing that is another ----


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")


def changed(rng: Rng, kind: Kind, content: Content) -> tuple[str, Content]:
    """What was changed, and the content with it."""
    arrays, attributes = dict(content.arrays), dict(content.attributes)
    name = str(rng.choice(list(arrays)))
    ways = ["value", "value", "name", "more", "less"] + ["type"] * (kind.file != "a.csv")
    ways += ["order"] * (kind.file in ("a.csv", "a.parquet")) + ["shape"] * (not kind.flat)
    ways += ["attribute", "attribute's name", "attribute less"] * bool(attributes)
    way = str(rng.choice(ways))
    if way == "value":
        while equal(arrays[name], content.arrays[name]):
            at = int(rng.integers(arrays[name].size))
            arrays[name] = arrays[name].copy()
            arrays[name].reshape(-1)[at] = some_array(rng, arrays[name].dtype.str, (1,))[0]
    elif way == "type":
        own = arrays[name].dtype
        others = [code for code in kind.types if np.dtype(code) != own]
        code = str(rng.choice(others))
        arrays[name] = some_array(rng, code, arrays[name].shape)
    elif way == "name":
        arrays = {("other" if n == name else n): a for n, a in arrays.items()}
        attributes = {("other" if o == name else o, key): v for (o, key), v in attributes.items()}
    elif way == "more":
        arrays["more"] = arrays[name].copy()
    elif way == "less":
        del arrays[name]
        attributes = {(o, key): v for (o, key), v in attributes.items() if o != name}
    elif way == "order":
        arrays = dict(reversed(arrays.items()))
    elif way == "shape":
        arrays[name] = arrays[name][None]
    else:
        keys = list(attributes)
        key = keys[int(rng.integers(len(keys)))]
        value = attributes.pop(key)
        if way == "attribute":
            attributes[key] = value
            while repr(attributes[key]) == repr(value):
                assert kind.attribute is not None
                attributes[key] = kind.attribute(rng)
        elif way == "attribute's name":
            attributes[key[0], "other"] = value
    return f"{way} of {name}", Content(arrays, attributes)


def rewritten(rng: Rng, content: Content) -> Content:
    """The same numbers: -0.0 and 0.0, and NaNs of other bits."""
    arrays = {name: array.copy() for name, array in content.arrays.items()}
    for array in arrays.values():
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            flat[(flat == 0) & (rng.random(flat.size) < 0.5)] = -0.0
            flat.view(f"u{array.dtype.itemsize}")[np.isnan(flat) & (rng.random(flat.size) < 0.5)] |= 3
    return replace(content, arrays=arrays)


def verdicts(a: Path, b: Path, folder: Path) -> dict[str, str]:
    """By the files, with metadata beside them, by metadata of one, and by golden files."""

    def of(x: object, y: object) -> str:
        try:
            return twinrun.compare(x, y, partial=True).verdict
        except twinrun.TwinrunError:
            return "incomparable"

    found = {"files": of(a, b)}
    golden.save(a, folder / "golden")
    found["golden files"] = golden.check(folder / "golden", b).verdict
    twinrun.index(a, b)
    assert twinrun.verify(a) and twinrun.verify(b)
    return found | {
        "with metadata": of(a, b),
        "metadata": of(f"{a}.twm", b),
        "both": of(f"{a}.twm", f"{b}.twm"),
    }


@pytest.mark.parametrize("other", ["changed", "stored otherwise"])
@pytest.mark.parametrize("format", KINDS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_content(format: str, other: str, seed: int) -> None:
    rng, kind = np.random.default_rng(seed), KINDS[format]
    content = some_content(rng, kind)
    what, second = changed(rng, kind, content) if other == "changed" else ("", rewritten(rng, content))
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr, about types that its version 3 has no name for
        folder = Path(made)
        a, b = folder / "a" / kind.file, folder / "b" / kind.file
        for path in (a, b):
            path.parent.mkdir()
        kind.write(a, content, None)
        kind.write(b, second, rng if other == "stored otherwise" else None)
        found = verdicts(a, b, folder)
    if other == "changed":
        assert "same" not in found.values(), (what, found)
    else:
        assert set(found.values()) == {"same"}, found
