import json
import struct

import numpy as np
import pytest
from format_checks import (
    NAMES,
    SCALARS,
    SHAPES,
    array_of,
    check_content,
    mutations,
    not_numbers,
    plain_read,
    survives,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import open_file


def write(path, header, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_files_of_the_package_itself(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    arrays = {
        f"layer.{code}.{number}": array_of(code, shape)
        for code in [c for c in SCALARS if c not in ("c16", "?")]
        for number, shape in enumerate(SHAPES)
    }
    arrays["flags"] = array_of("?", (6,))
    package.save_file(arrays, tmp_path / "x.safetensors", metadata={"format": "np"})
    with open_file(tmp_path / "x.safetensors") as content:
        assert content.format == "safetensors" and not content.skipped
        check_content(content, arrays, in_extents=True)
        for code, name in zip(SCALARS, NAMES, strict=True):
            if f"layer.{code}.1" in arrays:
                assert content.fields[f"layer.{code}.1"].dtype == name


def test_bf16_is_read_and_8_bit_floats_are_bytes(tmp_path):
    header = {
        "w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "q": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [8, 11]},
        "__metadata__": {"k": "v"},
    }
    bits = np.arange(4, dtype="<u2").reshape(2, 2)
    write(tmp_path / "x.safetensors", header, bits.tobytes() + b"abc")
    content = open_file(tmp_path / "x.safetensors")
    assert content.fields["w"].dtype == "bf16"
    assert (plain_read(content.fields["w"]) == bits).all()
    assert (content.fields["w"].elements() == bits.reshape(-1)).all()
    assert not content.skipped and not_numbers(content) == {"q": "F8_E4M3"}
    assert content.fields["q"].elements().tobytes() == b"abc"
    assert content.facts["q@(shape)"].text == "[3]" and content.facts["@k"].text == "'v'"


def tensor(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_empty_metadata_is_not_none(tmp_path):
    files = [tmp_path / f"{n}.safetensors" for n in range(3)]
    for file, metadata in zip(files, ({}, {"__metadata__": {}}, {"__metadata__": {"k": ""}}), strict=True):
        write(file, {"a": tensor(), **metadata}, bytes(8))
    for a in files:
        for b in files:
            assert twinrun.compare(a, b).same == (a == b)


@pytest.mark.parametrize(
    "header",
    [
        {"a": tensor(end=16)},
        {"a": tensor(begin=8, end=0)},
        {"a": tensor(begin=-8, end=0)},
        {"a": tensor(shape=(3,))},
        {"a": tensor(shape=(-2,))},
        {"a": tensor(shape=(1 << 62, 1 << 62))},
        {"a": tensor(shape=(2.0,))},
        {"a": tensor(shape=(True, 2))},
        {"a": tensor(end=4, shape=(1,))},
        {"a": tensor(begin=4, end=8, shape=(1,))},
        {"a": tensor(), "b": tensor()},
        {"a": tensor(), "b": tensor(begin=4, end=8, shape=(1,))},
        {"a": 3},
        {"a": {"dtype": "F32"}},
        {"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.0]}},
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": {}, "a": {}}',
        b'{"a": ' + b"[" * 100_000,
        b'{"\xff": 1}',
        b"{",
        b"[]",
        b"",
    ],
)
def test_hostile_headers(tmp_path, header):
    write(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(DamagedFile, match=r"x\.safetensors"):
        open_file(tmp_path / "x.safetensors", format="safetensors")


def test_lengths_that_lie(tmp_path):
    path = tmp_path / "x.safetensors"
    for length in (1, 1 << 20, 1 << 63, (1 << 64) - 1):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(DamagedFile):
            open_file(path)
    for size in range(8):
        path.write_bytes(bytes(size))
        with pytest.raises(DamagedFile):
            open_file(path)
    with open(path, "wb") as file:  # a sparse file: its header is really that long
        file.write(struct.pack("<Q", 1 << 35))
        file.truncate(1 << 36)
    with pytest.raises(Unsupported, match="header of"):
        open_file(path)


def test_names_cannot_write_to_the_terminal(tmp_path):
    write(tmp_path / "x.safetensors", {"\x1b[2Jevil\n": tensor(end=16)}, bytes(8))
    with pytest.raises(FormatError) as caught:
        open_file(tmp_path / "x.safetensors")
    assert str(caught.value).isprintable()


@settings(max_examples=400)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.safetensors"
    header = {"a": tensor(), "b": tensor("BF16", (2, 2), 8, 16), "c": tensor("U8", (0,), 16, 16)}
    write(path, header, bytes(16))
    survives(path, data.draw(mutations(path.read_bytes())), format="safetensors")
