"""The catalogue of formats says what the modules of formats say."""

from __future__ import annotations

import dataclasses
import importlib
import io
import pkgutil

import numpy as np
import pytest

import twinrun.formats
from twinrun.formats.catalogue import BUILT_IN
from twinrun.formats.layout import Stored, array_fields, plain_field
from twinrun.formats.model import Format
from twinrun.formats.npy import _PLAIN

FUNCTIONS = ("open", "claims", "sniff", "is_folder", "place", "parts", "is_text")


def modules() -> dict[str, Format]:
    found = {}
    for info in pkgutil.iter_modules(twinrun.formats.__path__):
        own = getattr(importlib.import_module(f"twinrun.formats.{info.name}"), "FORMAT", None)
        if isinstance(own, Format):
            found[own.name] = own
    return found


def test_every_format_is_listed_as_its_module_says():
    listed, own = {f.name: f for f in BUILT_IN}, modules()
    assert len(listed) == len(BUILT_IN)
    assert set(listed) == set(own)
    for name, format in own.items():
        for part in dataclasses.fields(Format):
            ours, theirs = getattr(listed[name], part.name), getattr(format, part.name)
            if part.name in FUNCTIONS:
                assert (ours is None) == (theirs is None), (name, part.name)
            elif part.name in ("suffixes", "magic"):
                assert sorted(ours) == sorted(theirs), (name, part.name)
            else:
                assert ours == theirs, (name, part.name)


def heads() -> list[bytes]:
    """First bytes of files: of each kind that `likely` tells apart, and of none."""
    random = np.random.default_rng(5)
    found = [
        b"",
        b"\0" * 300,
        b" \n" * 200,
        b"  <VTKFile type='x'>",
        b"1 2 3\n4 5 6\n7 8 9\n",
        b"a,b\n1,2\n3,4\n",
    ]
    found += [
        b"\x08\0\0\0HEAD\x08\x01\0\0\x08\x01\0\0\x08\0\0\0" + b"\0" * 300,
        b"\0\x01\0\0" + b"\0" * 256 + b"\0\x01\0\0",
    ]
    found += [b"PK\3\4" + b"\0" * 22 + b"\5\0\0\0a.npy", b"PK\3\4" + b"\0" * 22 + b"\x0a\0\0\0x/data.pkl"]
    found += [(2).to_bytes(8, "little") + b"{}", (40).to_bytes(8, "little") + b"{}"]
    found += [(1).to_bytes(8, "little") + b"\0\0\0\0" + (4).to_bytes(8, "little") + b"abcd"]
    for mark in ("<", ">"):
        ints = np.array([3, 2], f"{mark}i8").tobytes() + np.array([0] * 7, f"{mark}i4").tobytes()
        tail = np.array([0, 1] * 3, f"{mark}f8").tobytes() + np.array([5, 1, 10], f"{mark}i4").tobytes()
        found.append(ints + tail + np.zeros(10, f"{mark}f8").tobytes())
    found += [b"\xc3\xa4 1\n" * 200, ("ä" * 131 + "b" * 3 + "ä" * 200).encode()]
    found += [random.bytes(int(n)) for n in random.integers(1, 600, 40)]
    return found + [text[:cut] for text in found[:16] for cut in (8, 24, 263, 264, 265)]


@pytest.mark.parametrize("name", [f.name for f in BUILT_IN if f.sniff is not None])
def test_what_the_catalogue_rules_out_the_module_does_not_take(name, tmp_path):
    listed, own = next(f for f in BUILT_IN if f.name == name), modules()[name]
    path = tmp_path / "file"
    taken = 0
    for head in heads():
        path.write_bytes(head)
        asked = []
        for format in (listed, own):
            with open(path, "rb", buffering=0) as file:
                asked.append(bool(format.sniff(str(path), file)))
        assert asked[0] == asked[1], head
        taken += asked[1]
    assert taken or name in ("hdf5", "zarr", "raw", "pytorch")  # the others are among these heads


def test_a_signature_after_a_user_block_is_found():
    hdf5 = next(f for f in BUILT_IN if f.name == "hdf5")
    assert hdf5.sniff("x", io.BytesIO(b"\0" * 1024 + hdf5.magic[0]))
    assert not hdf5.sniff("x", io.BytesIO(b"\0" * 1025 + hdf5.magic[0]))


@pytest.mark.parametrize("descr", sorted(_PLAIN))
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("fortran", [False, True])
def test_plain_types_are_read_as_numpy_reads_them(descr, shape, fortran):
    fields, skipped = array_fields("x", np.dtype(descr), shape, Stored("file", 128), fortran)
    assert (fields, skipped) == ([plain_field("x", _PLAIN[descr], shape, Stored("file", 128), fortran)], [])
