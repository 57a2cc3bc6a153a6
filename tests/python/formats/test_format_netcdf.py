import struct
from pathlib import Path

import numpy as np
import pytest
from format_checks import (
    array_of,
    check_content,
    check_field,
    mutations,
    not_numbers,
    same,
    survives,
    written_now,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import detect, netcdf, open_file

FILES = Path(__file__).parent / "fixtures" / "netcdf"
CODES = {"i8": ("i1", 1), "i16": ("i2", 3), "i32": ("i4", 4), "f32": ("f4", 5), "f64": ("f8", 6),
         "u8": ("u1", 7), "u16": ("u2", 8), "u32": ("u4", 9), "i64": ("i8", 10), "u64": ("u8", 11)}  # fmt: skip
CLASSIC = ["i8", "i16", "i32", "f32", "f64"]


def write(path, variables, records=3, version=1, attributes=(), numrecs=None, pad_end=True):
    """A second implementation of the format: {name: (type, shape, is record)}. Returns the arrays."""
    wide = version == 5

    def number(value):
        return struct.pack(">q" if wide else ">i", value)

    def text(value):
        raw = value.encode()
        return number(len(raw)) + raw + bytes(-len(raw) % 4)

    def tagged(tag, items):
        return struct.pack(">I", tag if items else 0) + number(len(items)) + b"".join(items)

    dimensions = [text("time") + number(0)]
    heads, spans = [], []
    for name, (code, shape, is_record) in variables.items():
        ids = [0] if is_record else []
        for size in shape:
            dimensions.append(text(f"d{len(dimensions)}") + number(size))
            ids.append(len(dimensions) - 1)
        kind, nc_type = CODES[code]
        listed = [
            text(n) + struct.pack(">I", t) + number(c) + raw + bytes(-len(raw) % 4)
            for n, t, c, raw in attributes
        ]
        head = text(name) + number(len(ids)) + b"".join(map(number, ids)) + tagged(0x0C, listed)
        heads.append(head + struct.pack(">I", nc_type))
        spans.append(int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize)
    offset_size = 4 if version == 1 else 8
    front = b"CDF" + bytes([version])
    front += struct.pack(
        ">Q" if wide else ">I", (records if numrecs is None else numrecs) % (1 << (64 if wide else 32))
    )
    front += tagged(0x0A, dimensions) + tagged(0, [])
    tail = (8 if wide else 4) + offset_size
    begin = len(front) + len(tagged(0x0B, [h + bytes(tail) for h in heads]))
    turns = [n for n, (_, _, r) in enumerate(variables.values()) if r]
    padded = [s + -s % 4 for s in spans]
    order = [n for n in range(len(heads)) if n not in turns] + turns
    begins, at = {}, begin
    for n in order:
        begins[n] = at
        at += padded[n]
    first = min((begins[n] for n in turns), default=at)
    stride = spans[turns[0]] if len(turns) == 1 else sum(padded[n] for n in turns)
    items = [
        h + struct.pack(">Q" if wide else ">I", padded[n]) + begins[n].to_bytes(offset_size, "big")
        for n, h in enumerate(heads)
    ]
    body = bytearray(first - begin + stride * records)
    arrays = {}
    for n, (name, (code, shape, is_record)) in enumerate(variables.items()):
        whole = (records, *shape) if is_record else shape
        array = arrays[name] = array_of(">" + CODES[code][0], whole, seed=n)
        parts = [array[r : r + 1] for r in range(records)] if is_record else [array]
        for r, part in enumerate(parts):
            place = begins[n] - begin + (r * stride if is_record else 0)
            body[place : place + spans[n]] = part.tobytes()
    data = front + tagged(0x0B, items) + bytes(body)
    if not pad_end and turns and records:
        data = data[: len(data) - (0 if len(turns) == 1 else -spans[turns[-1]] % 4)]
    path.write_bytes(data)
    return arrays


shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@settings(max_examples=150)
@given(st.data())
def test_any_variables_in_any_version(tmp_path, data):
    version = data.draw(st.sampled_from([1, 2, 5]))
    codes = st.sampled_from(list(CODES) if version == 5 else CLASSIC)
    listed = data.draw(st.lists(st.tuples(codes, shapes, st.booleans()), max_size=5))
    variables = {f"v{n}": v for n, v in enumerate(listed)}
    records = data.draw(st.sampled_from([0, 1, 2, 5, 9]))
    streaming = data.draw(st.booleans())
    path = tmp_path / "x.nc"
    arrays = write(
        path, variables, records, version, numrecs=-1 if streaming else None, pad_end=not streaming
    )
    old = netcdf._MOST_RECORD_EXTENTS
    netcdf._MOST_RECORD_EXTENTS = 4  # both ways to read records
    try:
        with open_file(path) as content:
            assert content.format == "netcdf" and not content.skipped
            check_content(content, arrays)
    finally:
        netcdf._MOST_RECORD_EXTENTS = old


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_scipy(tmp_path, version):
    arrays = {}
    with netcdf_file(tmp_path / "x.nc", "w", version=version) as file:
        file.history = "text"
        file.createDimension("time", None)
        file.createDimension("y", 3)
        file.createDimension("x", 5)
        for code in ("b", "h", "i", "f", "d"):
            for name, dimensions in {
                "plain": ("y", "x"),
                "line": ("time",),
                "grid": ("time", "y", "x"),
            }.items():
                variable = file.createVariable(f"{name}_{code}", code, dimensions)
                shape = tuple({"time": 4, "y": 3, "x": 5}[d] for d in dimensions)
                array = array_of(
                    np.dtype(">" + {"b": "i1", "h": "i2", "i": "i4", "f": "f4", "d": "f8"}[code]), shape
                )
                variable[:] = array
                arrays[variable._attributes.get("x", f"{name}_{code}")] = array
        file.createVariable("letters", "c", ("x",))[:] = np.frombuffer(b"hello", "S1")
        file.variables["plain_f"].scale_factor = 0.5
        file.variables["plain_f"].units = "m"
    with open_file(tmp_path / "x.nc") as content:
        check_content(content, arrays, in_extents=True)
        assert not content.skipped and not_numbers(content) == {"letters": "text"}
        assert content.fields["letters"].elements().tobytes() == b"hello"
        assert content.facts["plain_f@scale_factor"].meaning and not content.facts["@history"].meaning
        assert content.facts["plain_f@(dimensions)"].text == "['y', 'x']"
        assert content.notes == ["values are compared as stored: plain_f (scale_factor 0.5)"]
        assert len(content.fields["line_d"].extents) == 1 and len(content.fields["grid_f"].extents) == 4
        assert content.fields["line_d"].extents[0].stride > 8
    with open_file(tmp_path / "x.nc", attributes=True) as content:
        assert content.fields["plain_f@scale_factor"].elements().tolist() == [0.5]
        assert {"@history", "plain_f@units"} <= set(content.facts)
        assert "plain_f@scale_factor" not in content.facts


@pytest.mark.parametrize("kind", ["h", "b"])
def test_a_single_record_variable_has_no_padding(tmp_path, kind):
    with netcdf_file(tmp_path / "x.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        variable = file.createVariable("v", kind, ("time", "x"))
        variable[:] = np.arange(15).reshape(5, 3)
    with open_file(tmp_path / "x.nc") as content:
        check_field(
            content.fields["v"], np.arange(15, dtype=">i2" if kind == "h" else "i1").reshape(5, 3), True
        )
        assert len(content.fields["v"].extents) == 1


def check_library(folder):
    for kind, codes in {"classic": CLASSIC, "offset": CLASSIC, "data": list(CODES)}.items():
        path = folder / f"{kind}.nc"
        arrays = {}
        for name in codes:
            for label, shape in {"x": (3,), "t": (5,), "tx": (5, 3), "s": ()}.items():
                count = int(np.prod(shape, dtype=np.int64))
                arrays[f"{label}_{name}"] = (
                    (np.arange(count) + 65).astype(">" + CODES[name][0]).reshape(shape)
                )
        assert detect(path).name == "netcdf"
        with open_file(path) as content:
            check_content(content, arrays, in_extents=True)


def test_files_of_the_netcdf_library():
    check_library(FILES)


def test_files_of_the_netcdf_library_that_is_here(tmp_path):
    written_now(FILES, "all", "netCDF4", tmp_path)
    check_library(tmp_path)


def test_a_hundred_thousand_records(tmp_path):
    arrays = write(tmp_path / "x.nc", {"a": ("i16", (3,), True), "t": ("f64", (), True)}, 100_000)
    with open_file(tmp_path / "x.nc") as content:
        a = content.fields["a"]
        assert a.read is not None and len(content.fields["t"].extents) == 1
        assert same(a.elements(), arrays["a"].reshape(-1).astype("i2"))
        assert same(a.elements(149_999, 5), arrays["a"].reshape(-1)[149_999:150_004].astype("i2"))


def good(path, version=1):
    attributes = [("scale_factor", 6, 1, struct.pack(">d", 2.0)), ("units", 2, 3, b"mol")]
    variables = {"a": ("f32", (2, 3), False), "b": ("i16", (3,), True), "c": ("f64", (), True)}
    return write(path, variables, 3, version, attributes)


def test_damage_is_told(tmp_path):
    path = tmp_path / "x.nc"
    good(path)
    data = path.read_bytes()

    def after(text: bytes, change: bytes, skip: int = 0) -> bytes:
        at = data.index(text) + len(text) + skip
        return data[:at] + change + data[at + len(change) :]

    word = struct.Struct(">i").pack
    for damaged, words in [
        (data[:-1], "cut short"),
        (data[:40], "header ends"),
        (data[:4] + word(1 << 20) + data[8:], "cut short"),
        (b"CDF\x03" + data[4:], "not known|not recognised"),
        (after(b"time", word(-5)), "negative"),
        (after(b"time", word(7)), "cut short|b"),
        (after(b"\0\0\0\x01a\0\0\0", word(77)), "header ends|dimension"),
        (after(b"\0\0\0\x01a\0\0\0", word(1 << 30)), "dimensions"),
        (after(b"\0\0\0\x01a\0\0\0\0\0\0\x02", word(99)), "a dimension that the file lacks"),
        (after(b"scale_factor", word(99)), "unknown type 99"),
        (after(b"scale_factor", word(1 << 30), 4), "header ends"),
        (data.replace(b"\0\0\0\x01b\0\0\0", b"\0\0\0\x01a\0\0\0"), "two fields"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=words) as caught:
            open_file(path)
        assert str(caught.value).isprintable()
    with pytest.raises(DamagedFile, match="begin like"):
        path.write_bytes(b"PNG\x01" + data[4:])
        open_file(path, format="netcdf")


def test_a_header_without_end(tmp_path):
    path = tmp_path / "x.nc"
    with open(path, "wb") as file:  # sparse: two thousand million dimensions without a name
        file.write(b"CDF\x01" + struct.pack(">iii", 0, 0x0A, (1 << 31) - 1))
        file.truncate(1 << 36)
    with pytest.raises((DamagedFile, Unsupported)):
        open_file(path)


@settings(max_examples=300)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.nc"
    good(path, data.draw(st.sampled_from([1, 2, 5])))
    survives(path, data.draw(mutations(path.read_bytes())), format="netcdf", attributes=True)
