"""fixtures/vtk holds the same grids as VTK itself writes them in all its encodings, and the arrays in them."""

import base64
import importlib.util
import os
import re
import shutil
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, mutations, not_numbers, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingPackage
from twinrun.formats import FileContent, detect, open_file, vtk_arrays
from twinrun.formats.folder import list_folder

FIXTURES = Path(__file__).parent / "fixtures" / "vtk"
SECTIONS = {
    "point": "PointData", "cell": "CellData", "field": "FieldData", "points": "Points", "cells": "Cells",
    "polys": "Polys", "coordinates": "Coordinates",
}  # fmt: skip
AXES = {"vti": (4, 3, 4), "vtr": (4, 2, 3), "vts": (2, 2, 3)}  # points, z first
has_lz4 = importlib.util.find_spec("lz4") is not None


def truth(name: str, kind: str) -> dict[str, np.ndarray]:
    """Arrays by the names of their fields, in the shapes that they have there."""
    result = {}
    for label, array in np.load(FIXTURES / f"{name}.npz").items():
        section, _, inner = label.partition("/")
        if kind in AXES and section in ("point", "cell", "points"):
            points = AXES[kind]
            grid = tuple(n - 1 for n in points) if section == "cell" else points
            array = array.reshape(*grid, *array.shape[1:])
        result[SECTIONS[section] + (f"/{inner}" if inner else "")] = array
    if kind == "vti":
        result |= {"Origin": np.zeros(3), "Spacing": np.array([0.5, 0.25, 1])}
        if "whole" not in name:
            result["Direction"] = np.eye(3).reshape(-1)
    return result


ALL = sorted(
    p.name for p in FIXTURES.iterdir() if re.fullmatch(r"\.vt[iprsu]", p.suffix) and "whole" not in p.name
)


@pytest.mark.parametrize("name", ALL)
def test_every_encoding_of_vtk(name):
    assert len(ALL) > 30
    if "lz4" in name and not has_lz4:
        pytest.skip("needs the Python package lz4")
    kind = name[-3:]
    assert detect(FIXTURES / name).name == "vtk"
    with open_file(FIXTURES / name) as content:
        arrays = truth(kind, kind)
        assert content.time == 0.75 and content.skipped == []
        if name.startswith("ascii"):  # floats as many digits as VTK prints
            assert sorted(content.fields) == sorted(arrays)
            for label, array in arrays.items():
                field = content.fields[label]
                assert (
                    field.shape == array.shape
                    and field.dtype == f"{array.dtype.kind}{8 * array.dtype.itemsize}"
                )
                assert np.allclose(field.elements().reshape(field.shape), array, rtol=1e-6)
                check_field(field, field.elements().reshape(field.shape), in_extents=False)
            return
        raw = name.startswith(("appended-plain", "appended.", "big.")) and "base64" not in name
        check_content(content, arrays)
        of_header = {"Origin", "Spacing", "Direction"}
        stored = [f for f in content.fields.values() if f.name not in of_header]
        assert {f.extents is not None for f in stored} == {raw}
        assert {f.byte_order for f in stored} == {"big" if "big" in name else "little"}


def test_lz4_that_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lz4.block", None)
    with (
        open_file(FIXTURES / "inline-lz4.vtu") as content,
        pytest.raises(MissingPackage, match=r"twinrun\[vtk\]"),
    ):
        content.fields["Points"].elements()


def without_pieces(content: FileContent) -> FileContent:
    """Without what each piece says for itself, which is there."""
    own = [name for name in content.fields if name.startswith("piece-")]
    assert own and all("/FieldData/" in name for name in own)
    for name in own:
        del content.fields[name]
    return content


def test_pieces_are_put_together():
    with open_file(FIXTURES / "whole.pvti") as content:
        arrays = {k: v for k, v in truth("whole.pvti", "vti").items() if not k.startswith("FieldData")}
        check_content(without_pieces(content), arrays, in_extents=False)
        assert [Path(s).name for s in content.sources] == [f"whole_{n}.vti" for n in range(4)]
    with open_file(FIXTURES / "whole.pvtu") as content:
        arrays = {
            k: np.concatenate([v] * 3)
            for k, v in truth("vtu", "vtu").items()
            if not k.startswith("FieldData")
        }
        check_content(without_pieces(content), arrays, in_extents=False)


def test_raw_pieces_stay_extents(tmp_path):
    for name in ("appended-plain.vtu", "appended-plain-wide.vtu"):
        shutil.copy(FIXTURES / name, tmp_path)
    text = (FIXTURES / "whole.pvtu").read_text().replace("big.vtu", "appended-plain-wide.vtu")
    (tmp_path / "x.pvtu").write_text(text.replace('<Piece Source="appended-zlib.vtu"/>', ""))
    with open_file(tmp_path / "x.pvtu") as content:
        arrays = {
            k: np.concatenate([v] * 2)
            for k, v in truth("vtu", "vtu").items()
            if not k.startswith("FieldData")
        }
        check_content(without_pieces(content), arrays, in_extents=True)


def test_a_folder_reads_pieces_once(tmp_path):
    for step in (10, 20):
        text = (FIXTURES / "whole.pvti").read_text()
        for n in range(4):
            shutil.copy(FIXTURES / f"whole_{n}.vti", tmp_path / f"part_{step}_{n}.vti")
            text = text.replace(f"whole_{n}", f"part_{step}_{n}")
        (tmp_path / f"out_{step}.pvti").write_text(text)
    listing = list_folder(tmp_path)
    assert [(f.step, f.rank, f.relative) for f in listing.files] == [
        (10, 0, "out_10.pvti"),
        (20, 0, "out_20.pvti"),
    ]
    assert len(listing.ignored) == 8 and all("part of out_" in why for _, why in listing.ignored)


def vtu(array: str, points: int = 2, more: str = "", head: str = "") -> str:
    return (
        f'<?xml version="1.0"?>{head}<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian"{more}>'
        f'<UnstructuredGrid><Piece NumberOfPoints="{points}" NumberOfCells="0"><PointData>{array}</PointData>'
        "</Piece></UnstructuredGrid></VTKFile>"
    )


def test_a_whole_is_known_by_its_content(tmp_path):
    for name in ("whole.pvti", *(f"whole_{n}.vti" for n in range(4))):
        shutil.copy(FIXTURES / name, tmp_path)
    (tmp_path / "whole.pvti").rename(tmp_path / "whole.xml")
    shutil.copy(FIXTURES / "ascii.vtp", tmp_path / "poly.pvtu")
    listing = list_folder(tmp_path)
    assert [f.relative for f in listing.files] == ["poly.pvtu", "whole.xml"]
    assert {why for _, why in listing.ignored} == {"a part of whole.xml, and read with it"}


def test_white_space_in_base64(tmp_path):
    values = np.arange(30, dtype="<f8")
    path = tmp_path / "x.vtu"
    plain = base64.b64encode(struct.pack("<I", values.nbytes) + values.tobytes()).decode()
    packed = zlib.compress(values.tobytes())
    head = struct.pack("<4I", 1, values.nbytes, 0, len(packed))
    both = base64.b64encode(head).decode() + base64.b64encode(packed).decode()
    for text, more in ((plain, ""), (both, ' compressor="vtkZLibDataCompressor"')):
        for width in (7, 32, 1000):
            broken = "\n  ".join(text[i : i + width] for i in range(0, len(text), width))
            array = f'<DataArray type="Float64" Name="x" format="binary">\n {broken} \n</DataArray>'
            path.write_text(vtu(array, 30, more))
            with open_file(path) as content:
                check_content(content, {"PointData/x": values}, in_extents=False)


def test_numbers_as_text(tmp_path):
    path = tmp_path / "x.vtu"
    cases = {
        ("Int8", "-128 127"): np.array([-128, 127], "i1"),
        ("UInt64", "0 18446744073709551615"): np.array([0, 2**64 - 1], "u8"),
        ("Int64", "-9223372036854775808\n\t9007199254740993"): np.array([-(2**63), 2**53 + 1], "i8"),
        ("Float64", "nan -inf"): np.array([np.nan, -np.inf]),
        ("Float32", "1e-45 0.1"): np.array([1e-45, 0.1], "f4"),
    }
    for (kind, text), array in cases.items():
        path.write_text(vtu(f'<DataArray type="{kind}" Name="x" format="ascii">{text}</DataArray>'))
        with open_file(path) as content:
            check_content(content, {"PointData/x": array}, in_extents=False)
    for kind, text, words in (
        ("Int8", "1 128", "128 is too large for its type, i8"),
        ("Int8", "1 " + "9" * 5000, "9 is too large for its type, i8"),
        ("Int8", "1 2.5", "'2.5' is no whole number"),
        ("Int32", "1 0x10", "'0x10' is no whole number"),
        ("Int32", "1_0 2", "'1_0' is no whole number"),
        ("Float64", "1 x", "'x' is no number"),
        ("Float32", "2 1_0", "'1_0' is no number"),
        ("Float64", "1 2 3", "has 3 numbers; 2 are"),
        ("Float64", "1", "2 numbers in 1 bytes"),
    ):
        path.write_text(vtu(f'<DataArray type="{kind}" Name="x" format="ascii">{text}</DataArray>'))
        with pytest.raises(DamagedFile, match=words), open_file(path) as content:
            content.fields["PointData/x"].elements()
    path.write_text(vtu('<Array type="String" Name="s" format="ascii">1 2</Array>'))
    assert not_numbers(open_file(path)) == {"PointData/s": "text"}
    path.write_text(vtu('<DataArray type="Bit" Name="s" format="ascii">1 0</DataArray>'))
    assert open_file(path).skipped[0][0] == "PointData/s"


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (vtu("<DataArray type='Int8' Name='&b;'/>", head=BOMB), "document type"),
        (vtu("", head='<!DOCTYPE x SYSTEM "/etc/passwd">'), "document type"),
        (vtu("<DataArray type='Int8' Name='x' format='ascii'>1 <![CDATA[2]]></DataArray>"), "document type"),
        (vtu("<DataArray type='Int8' Name='x' format='ascii'>1 <i/> 2</DataArray>"), "interrupted"),
        (vtu("&undefined;"), "XML is damaged"),
        (vtu("<DataArray type='Int8' Name='x' format='appended' offset='0'/>"), "no appended data"),
        (vtu("<DataArray type='Int8' Name='x' format='hex'/>"), "format 'hex'"),
        (vtu("<DataArray type='Int8' Name='x' format='binary'>AAAA</DataArray>"), "cut short"),
        (vtu("<DataArray type='Int8' Name='x' format='binary'>AgAA*</DataArray>"), "base64"),
        (
            vtu("<DataArray type='Int8' Name='x' format='binary'>AwAAAAECAw==</DataArray>"),
            "has 3 bytes; 2 elements",
        ),
        (vtu("", points=-1), "NumberOfPoints='-1'"),
        (vtu("", more=' compressor="rar"'), "rar"),
        (vtu("", more=' header_type="UInt16"'), "header type"),
        ("<html></html>", "not <VTKFile>"),
        ('<VTKFile type="HyperTreeGrid"><HyperTreeGrid/></VTKFile>', "HyperTreeGrid"),
        (
            '<VTKFile type="P"><PUnstructuredGrid><Piece Source="../x.vtu"/></PUnstructuredGrid></VTKFile>',
            "outside",
        ),
        (
            '<VTKFile type="P"><PUnstructuredGrid><Piece Source="/x.vtu"/></PUnstructuredGrid></VTKFile>',
            "outside",
        ),
        ('<VTKFile type="I"><ImageData><Piece Extent="0 1 0 1"/></ImageData></VTKFile>', "six numbers"),
        ('<VTKFile type="I"><ImageData><Piece Extent="9 1 0 1 0 1"/></ImageData></VTKFile>', "ends before"),
        ("<VTKFile>" * 100, "more XML"),
        (" ", "XML is damaged"),
        ("", "is empty"),
    ],
)
def test_hostile_and_odd_xml(tmp_path, text, words):
    path = tmp_path / "x.vtu"
    path.write_text(text)
    with pytest.raises(FormatError, match=words), open_file(path) as content:
        for field in content.fields.values():
            field.elements()


def test_blocks_that_lie(tmp_path):
    path = tmp_path / "x.vtu"
    values = np.arange(1000, dtype="<i4")
    packed = zlib.compress(values.tobytes())

    def write(*numbers: int, data: bytes = packed) -> None:
        head = base64.b64encode(struct.pack(f"<{len(numbers)}I", *numbers)).decode()
        array = f"<DataArray type='Int32' Name='x' format='binary'>{head}{base64.b64encode(data).decode()}</DataArray>"
        path.write_text(vtu(array, 1000, ' compressor="vtkZLibDataCompressor"'))

    write(1, 4000, 0, len(packed))
    with open_file(path) as content:
        check_content(content, {"PointData/x": values})
    for numbers, words in {
        (1 << 30, 4000, 0, 1): "blocks, more than fit",
        (1, 1 << 31, 0, len(packed)): "compressed blocks of",
        (1, 4000, 4001, len(packed)): "the last of 4001",
        (1, 4004, 0, len(packed)): "4004 bytes; 1000 elements",
        (1, 4000, 0, 1 << 30): "compressed blocks",
        (2, 2000, 0, len(packed), 5): "decompressed; its header says 2000",
        (1, 4000, 0, len(packed) - 9): "its header says 4000|incomplete",
        (0, 0, 0): "has 0 bytes; 1000 elements",
    }.items():
        write(*numbers)
        with pytest.raises(DamagedFile, match=words), open_file(path) as content:
            content.fields["PointData/x"].elements()
    write(1, 4000, 0, len(packed), data=packed[:50] + b"\xff\xff" + packed[52:])
    with open_file(path) as content, pytest.raises(DamagedFile, match="block 0"):
        content.fields["PointData/x"].elements()


def test_holes_between_pieces(tmp_path):
    for n in range(4):
        shutil.copy(FIXTURES / f"whole_{n}.vti", tmp_path)
    text = (FIXTURES / "whole.pvti").read_text()
    for changed, words in (
        (text.replace('<Piece Extent="3 5 0 2 1 3" Source="whole_3.vti"/>', ""), "leave holes"),
        (text.replace('WholeExtent="2 5', 'WholeExtent="2 6'), "leave holes"),
        (text.replace('WholeExtent="2 5', 'WholeExtent="3 5'), "beyond the whole extent"),
        (text.replace("whole_3", "gone"), "no such file"),
    ):
        (tmp_path / "x.pvti").write_text(changed)
        with pytest.raises(FormatError, match=words):
            open_file(tmp_path / "x.pvti")


def test_pieces_that_contradict_each_other(tmp_path):
    for n in range(4):
        shutil.copy(FIXTURES / f"whole_{n}.vti", tmp_path)
    shutil.copy(FIXTURES / "whole.pvti", tmp_path)
    with open_file(tmp_path / "whole_1.vti") as content:
        (extent,) = content.fields["PointData/temperature"].extents
    data = bytearray((tmp_path / "whole_1.vti").read_bytes())
    data[extent.offset] ^= 1  # its first point is the neighbour's last
    (tmp_path / "whole_1.vti").write_bytes(data)
    with open_file(tmp_path / "whole.pvti") as content:
        with pytest.raises(DamagedFile, match="different values"):
            content.fields["PointData/temperature"].elements()
        content.fields["PointData/velocity"].elements()
        assert "piece-1/FieldData/TimeValue" in content.fields and not content.skipped


def test_threads_that_ask_for_one_block_decode_it_once():
    cache, calls, again = vtk_arrays.Cache(), [], threading.Event()

    def make():
        calls.append(None)
        if len(calls) > 1:
            again.set()
        again.wait(0.5)  # room for a second one, which must not come
        return b"block"

    with ThreadPoolExecutor(4) as pool:
        assert [f.result() for f in [pool.submit(cache.get, (1, 2), make) for _ in range(4)]] == [
            b"block"
        ] * 4
    assert len(calls) == 1 and not cache._in_progress


def test_a_small_cache(monkeypatch):
    monkeypatch.setattr(vtk_arrays, "KEPT", 100)
    with open_file(FIXTURES / "appended-zlib.vtu") as content:
        check_content(content, truth("vtu", "vtu"), in_extents=False)


@settings(max_examples=400)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    names = [n for n in ALL if has_lz4 or "lz4" not in n]
    good = (FIXTURES / data.draw(st.sampled_from(names))).read_bytes()
    survives(tmp_path / "x.vtu", data.draw(mutations(good)), format="vtk")


@settings(max_examples=60)
@given(st.data())
def test_damaged_pieces(tmp_path, data):
    for n in range(4):
        shutil.copy(FIXTURES / f"whole_{n}.vti", tmp_path)
    shutil.copy(FIXTURES / "whole.pvti", tmp_path)
    path = tmp_path / data.draw(st.sampled_from(["whole_0.vti", "whole_1.vti", "whole.pvti"]))
    path.write_bytes(data.draw(mutations(path.read_bytes())))
    try:
        with open_file(tmp_path / "whole.pvti") as content:
            for field in content.fields.values():
                count = min(field.size, 1000)
                assert field.elements(0, count).size == count
    except FormatError as error:
        assert str(error).isprintable()
    assert os.path.exists(path)


def pieces(*descriptions: tuple[str, str]) -> str:
    """A grid of pieces with two points each: attributes of their PointData, and of its array."""
    text = "".join(
        f'<Piece NumberOfPoints="2" NumberOfCells="0"><PointData {active}>'
        f'<DataArray type="Float32" Name="v" NumberOfComponents="2" format="ascii" {names}>1 2 3 4</DataArray>'
        "</PointData></Piece>"
        for active, names in descriptions
    )
    return f'<VTKFile type="UnstructuredGrid"><UnstructuredGrid>{text}</UnstructuredGrid></VTKFile>'


@pytest.mark.parametrize(
    "other",
    [
        ('Vectors="w"', 'ComponentName0="x"'),
        ("", 'ComponentName0="x"'),
        ('Vectors="v"', 'ComponentName0="y"'),
        ('Vectors="v"', ""),
    ],
)
def test_what_a_later_piece_says_is_compared_too(tmp_path, other):
    usual = ('Vectors="v"', 'ComponentName0="x"')
    for name, content in (
        ("a", (usual, usual)),
        ("b", (usual, other)),
        ("c", (usual,)),
        ("d", (usual, other)),
    ):
        (tmp_path / f"{name}.vtu").write_text(pieces(*content))
    assert twinrun.compare(tmp_path / "a.vtu", tmp_path / "b.vtu").verdict == "different"
    assert twinrun.compare(tmp_path / "b.vtu", tmp_path / "d.vtu").verdict == "same"
    assert open_file(str(tmp_path / "a.vtu")).facts == open_file(str(tmp_path / "c.vtu")).facts
