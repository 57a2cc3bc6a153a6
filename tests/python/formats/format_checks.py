"""What every reader must pass: fields equal the arrays that were written, damage ends in FormatError."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import HANG
from hypothesis import strategies as st

import twinrun
from twinrun.errors import FormatError, TwinrunError
from twinrun.formats import Field, FileContent, open_file

SCALARS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
NAMES = ["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "c64", "c128"]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (5, 4), (2, 3, 4)]


def array_of(dtype: str | np.dtype, shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    """Numbers of every bit pattern that the type allows."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        flat = rng.integers(0, 2, count).astype(bool)
    elif dtype.names:
        flat = np.zeros(count, dtype)
        for number, name in enumerate(dtype.names):
            part = flat[name]
            part[...] = array_of(part.dtype, part.shape, seed + number)
    elif dtype.kind in "SUOV":
        flat = np.zeros(count, dtype)
    else:
        flat = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    return flat.reshape(shape)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bitwise, whatever the byte order."""
    a, b = (np.ascontiguousarray(x).astype(x.dtype.newbyteorder("="), copy=False) for x in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def plain_read(field: Field) -> np.ndarray:
    """The elements by nothing but reads of the file, one by one."""
    assert field.extents is not None
    raw = b""
    for extent in field.extents:
        with open(extent.path, "rb") as file:
            for number in range(extent.count):
                file.seek(extent.offset + number * extent.stride)
                raw += file.read(field.itemsize)
    order = ">" if field.byte_order == "big" else "<"
    code = "u2" if field.dtype == "bf16" else dict(zip(NAMES, SCALARS, strict=True))[field.dtype]
    return np.frombuffer(raw, order + code).reshape(field.shape)


def check_field(field: Field, array: np.ndarray, in_extents: bool | None = None) -> None:
    """`array`: as written, in its own order; stored column by column where the field says so."""
    expected = array.T if field.fortran_order else array
    assert field.shape == expected.shape
    assert field.stored_shape == array.shape
    assert field.problem is None
    if in_extents is not None:
        assert (field.extents is not None) == in_extents
    if field.extents is not None:
        assert same(plain_read(field), expected)
    flat = np.ascontiguousarray(expected).reshape(-1)
    whole = field.elements()
    assert whole.dtype.isnative and whole.flags.c_contiguous and whole.ndim == 1
    assert same(whole, flat)
    rng = random.Random(flat.size)
    for _ in range(8):
        first = rng.randint(0, flat.size)
        count = rng.randint(0, flat.size - first)
        assert same(field.elements(first, count), flat[first : first + count])
    position = rng.randrange(flat.size) if flat.size else None
    if position is not None:
        assert array[field.index(position)].tobytes() == expected.reshape(-1)[position].tobytes()


def written_now(fixtures: Path, what: str, package: str, folder: Path) -> None:
    """Writes `what` of a folder of fixtures again by the library that is here, else skips.

    In a process of its own: several of them bring an HDF5 of their own, or change where it looks for filters.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not here")
    command = [sys.executable, str(fixtures / "make.py"), str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


def not_numbers(content: FileContent) -> dict[str, str]:
    """What the fields are whose elements are no numbers, by name."""
    return {name: f.kind for name, f in content.fields.items() if f.kind is not None}


def texts(field: Field) -> list[str]:
    """Elements that are no numbers, for people. Their codes are equal where they are."""
    said = [field.tell(at) for at in range(field.size)]
    found = field.elements().tolist()
    assert len(found) == field.size and all(
        (found[a] == found[b]) == (said[a] == said[b]) for a in range(len(said)) for b in range(a)
    )
    return said


def check_content(
    content: FileContent, arrays: dict[str, np.ndarray], in_extents: bool | None = None
) -> None:
    """Exactly these arrays of numbers are there. What else is there `not_numbers` says."""
    assert sorted(n for n, f in content.fields.items() if f.kind is None) == sorted(arrays)
    for name, array in arrays.items():
        assert content.fields[name].name == name
        check_field(content.fields[name], array, in_extents)


@st.composite
def mutations(draw: st.DrawFn, good: bytes) -> bytes:
    """Damaged versions of `good`: bytes set, cut, doubled, put in; numbers that lie."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "extend", "number", "delete"]))
        if kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "extend":
            data += draw(st.binary(min_size=1, max_size=40))
        elif kind == "number":
            size = draw(st.sampled_from([2, 4, 8]))
            value = draw(st.sampled_from([0, 1, 1 << 15, 1 << 31, 1 << 62, (1 << 64) - 1])) % (1 << 8 * size)
            data[at : at + size] = value.to_bytes(size, sys.byteorder)
        else:
            del data[at : at + draw(st.integers(1, 16))]
    return bytes(data)


def survives(
    path: Path, data: bytes, opener: Callable[..., FileContent] = open_file, **options: object
) -> None:
    """Opening and reading `data` gives a result that is consistent in itself, or a FormatError of one line."""
    path.write_bytes(data)
    try:
        with opener(path, **options) as content:
            for field in content.fields.values():
                count = min(field.size, 1000)
                try:
                    assert field.elements(0, count).size == count
                    assert field.elements(field.size - count, count).size == count
                except FormatError as error:
                    assert str(error).isprintable()
                for extent in field.extents or ():
                    assert extent.count > 0 and extent.offset >= 0 and extent.stride >= field.itemsize
                    end = extent.offset + (extent.count - 1) * extent.stride + field.itemsize
                    assert end <= len(data), "an extent passes the end of the file"
    except FormatError as error:
        assert str(error).isprintable() and len(str(error)) < 2100


def damaged_versions(good: bytes, seed: int, cuts: int = 12, flips: int = 60) -> list[bytes]:
    """`good`, cut short at many places, and with one bit changed at many others."""
    rng = random.Random(seed)
    ends = {0, 1, len(good) - 1, *(rng.randrange(len(good)) for _ in range(cuts))}
    found = [good[:end] for end in sorted(ends)]
    for _ in range(flips):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        found.append(bytes(data))
    return found


def no_false_same(
    a: Path,
    versions: list[bytes],
    shown: Callable[[Path], object],
    **how: object,
) -> dict[str, int]:
    """Damaged copies of a file are never the same as it where the format's own library shows another content.

    shown: what the library shows of a file, for ==; it may raise. Returns how often each verdict was.
    """
    truth = shown(a)
    b = a.with_name("damaged" + a.suffix)
    verdicts: dict[str, int] = {}
    for data in versions:
        b.write_bytes(data)
        try:
            verdict = twinrun.compare(a, b, **how).verdict
        except TwinrunError as error:
            assert str(error).isprintable()
            verdict = "error"
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        if verdict == "same":
            try:
                found = shown(b)
            except Exception as error:
                raise AssertionError("same as a file that the library cannot read") from error
            assert found == truth, [
                at for at in range(len(data)) if data[at : at + 1] != a.read_bytes()[at : at + 1]
            ]
    return verdicts
