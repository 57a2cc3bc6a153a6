"""fixtures/vtk holds grids that VTK itself wrote as legacy files of versions 4.2 and 5.1, binary and as text."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, mutations, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError
from twinrun.formats import detect, open_file

FIXTURES = Path(__file__).parent / "fixtures" / "vtk"
ALL = sorted(p.name for p in FIXTURES.glob("legacy-*.vtk"))
SECTIONS = {
    "point": "PointData", "cell": "CellData", "field": "FieldData", "points": "Points", "cells": "Cells",
    "polys": "Polys", "coordinates": "Coordinates",
}  # fmt: skip
AXES = {"vti": (4, 3, 4), "vtr": (4, 2, 3), "vts": (2, 2, 3)}


def truth(kind: str, version: str) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    for label, array in np.load(FIXTURES / f"legacy-{kind}.npz").items():
        section, _, inner = label.partition("/")
        if kind in AXES and section in ("point", "cell", "points"):
            grid = tuple(n - 1 for n in AXES[kind]) if section == "cell" else AXES[kind]
            array = array.reshape(*grid, *array.shape[1:])
        result[SECTIONS[section] + (f"/{inner}" if inner else "")] = array
    for section in ("Cells", "Polys"):
        if f"{section}/offsets" in result:
            ends, corners = result[f"{section}/offsets"], result[f"{section}/connectivity"]
            starts = np.concatenate([[0], ends[:-1]])
            if version == "51":
                result[f"{section}/offsets"] = np.concatenate([[0], ends])
            else:
                del result[f"{section}/offsets"], result[f"{section}/connectivity"]
                lists = [np.concatenate([[b - a], corners[a:b]]) for a, b in zip(starts, ends, strict=True)]
                result[section] = np.concatenate(lists).astype("i4")
    if kind == "vti":
        result |= {"Origin": np.array([1.0, 0, 0]), "Spacing": np.array([0.5, 0.25, 1])}
    if "Cells/types" in result:
        result["Cells/types"] = result["Cells/types"].astype("i4")
    return result


def test_the_last_line_of_metadata_needs_no_line_end(tmp_path: Path) -> None:
    text = "# vtk DataFile Version 5.1\nt\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 2 1 1\nPOINT_DATA 2\n"
    for name, last in (("a.vtk", "DATA 1"), ("b.vtk", "DATA 2")):
        array = "VECTORS v float\n0 0 0 0 0 0\nMETADATA\nINFORMATION 1\n"
        (tmp_path / name).write_text(text + array + last)
    result = twinrun.compare(tmp_path / "a.vtk", tmp_path / "b.vtk")
    assert result.verdict == "different"


_LEGACY = """# vtk DataFile Version 5.1
names
ASCII
DATASET STRUCTURED_POINTS
DIMENSIONS 2 1 1
SPACING 1 1 1
ORIGIN 0 0 0
POINT_DATA 2
SCALARS {0} float 1
LOOKUP_TABLE default
1 2
FIELD FieldData 1
{1} 1 2 double
3 4
"""
_XML = """<?xml version="1.0"?>
<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt32">
<ImageData WholeExtent="0 1 0 0 0 0" Origin="0 0 0" Spacing="1 1 1"><Piece Extent="0 1 0 0 0 0"><PointData>
<DataArray type="Float32" Name="{0}" format="ascii">1 2</DataArray>
<DataArray type="Float64" Name="{1}" format="ascii">3 4</DataArray>
</PointData></Piece></ImageData></VTKFile>
"""


@pytest.mark.parametrize(
    ("encoded", "name"),
    [
        ("c%20float32", "c float32"),
        ("%20padded%20", "padded"),
        ("100%25", "100%"),
        ("a%22b", "a&quot;b"),
        ("%C3%A9nergie", "énergie"),
        ("100%", "100%"),
        ("50%zz", "50%zz"),
        ("plain", "plain"),
    ],
)
def test_names_are_those_of_xml(tmp_path, encoded, name):
    """VTK writes blanks and signs in names as %20 and the like, in legacy files only."""
    (tmp_path / "x.vtk").write_text(_LEGACY.format(encoded, f"2{encoded}"))
    (tmp_path / "x.vti").write_text(_XML.format(name, f"2{name}" if "padded" not in name else "2 padded"))
    with open_file(tmp_path / "x.vtk") as legacy, open_file(tmp_path / "x.vti") as xml:
        for label, values in {name.replace("&quot;", '"'): [1, 2]}.items():
            for content in (legacy, xml):
                assert content.fields[f"PointData/{label}"].elements().tolist() == values
        assert {n for n in legacy.fields if "PointData" in n} == {n for n in xml.fields if "PointData" in n}


@pytest.mark.parametrize("name", ALL)
def test_what_vtk_writes(name):
    assert len(ALL) == 20
    kind, version, mode = re.fullmatch(r"legacy-(vt.)-(\d+)-(\w+)\.vtk", name).groups()
    assert detect(FIXTURES / name).name == "vtk-legacy"
    with open_file(FIXTURES / name) as content:
        arrays = truth(kind, version)
        assert content.time == 0.75 and content.skipped == []
        if mode == "binary":
            check_content(content, arrays)
            assert {n for n, f in content.fields.items() if f.extents is None} <= {"Origin", "Spacing"}
            return
        assert sorted(content.fields) == sorted(arrays)
        for label, array in arrays.items():  # floats as many digits as VTK prints
            field = content.fields[label]
            assert (
                field.shape == array.shape and field.dtype == f"{array.dtype.kind}{8 * array.dtype.itemsize}"
            )
            assert np.allclose(field.elements().reshape(field.shape), array, rtol=1e-5)
            check_field(field, field.elements().reshape(field.shape), in_extents=False)


TEXT = """# vtk DataFile Version 2.0

ASCII
DATASET STRUCTURED_POINTS
DIMENSIONS 3 2 1
ORIGIN 0 0 0
SPACING 1 1 1
CELL_DATA 2
SCALARS owner int
LOOKUP_TABLE default
7 8
POINT_DATA 6
VECTORS v float
1 2 3 4 5 6
7 8 9 10 11 12 13 14 15 16 17 18
TENSORS t double
{tensors}
COLOR_SCALARS c 2
0 1 0 1 0 1 0 1 0 1 0 1
LOOKUP_TABLE table 1
0 0 0 1
FIELD more 2
x 1 6 float
1 2 3 4 5 6
y 2 6 short
1 2 3 4 5 6 7 8 9 10 11 12"""


def test_all_kinds_of_attributes(tmp_path):
    path = tmp_path / "x.vtk"
    path.write_text(TEXT.format(tensors=" ".join(map(str, range(54)))))
    with open_file(path) as content:
        check_content(
            content,
            {
                "Origin": np.zeros(3),
                "Spacing": np.ones(3),
                "CellData/owner": np.array([[[7, 8]]], "i4"),
                "PointData/v": np.arange(1, 19).reshape(1, 2, 3, 3).astype("f4"),
                "PointData/t": np.arange(54.0).reshape(1, 2, 3, 9),
                "PointData/c": np.tile([0, 1], 6).reshape(1, 2, 3, 2).astype("f4"),
                "PointData/x": np.arange(1, 7).reshape(1, 2, 3).astype("f4"),
                "PointData/y": np.arange(1, 13).reshape(1, 2, 3, 2).astype("i2"),
                "LOOKUP_TABLE/table": np.array([[0, 0, 0, 1]], "f4"),
            },
            in_extents=False,
        )
        assert not content.skipped and "@(title)" in content.facts


def test_what_an_array_is_for_is_compared(tmp_path):
    head = "# vtk DataFile Version 3.0\nx\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 2 1 1\nPOINT_DATA 2\n"
    kinds = ("SCALARS x float 3", "VECTORS x float", "NORMALS x float", "TEXTURE_COORDINATES x 3 float",
             "FIELD f 1\nx 3 2 float")  # fmt: skip
    for number, kind in enumerate(kinds):
        (tmp_path / f"{number}.vtk").write_text(f"{head}{kind}\n1 2 3 4 5 6\n")
    twinrun.index(tmp_path / "0.vtk")
    for a, b in itertools.product(range(len(kinds)), repeat=2):
        found = twinrun.compare(tmp_path / f"{a}.vtk", tmp_path / f"{b}.vtk")
        assert found.fields[0].different == 0
        assert [d.label for d in found.attributes] == ["PointData/x@(kind)"] * (a != b), (a, b)


HEAD = "# vtk DataFile Version 4.2\nx\n{}\nDATASET STRUCTURED_POINTS\nDIMENSIONS 3 1 1\nPOINT_DATA 3\n"
WORDS = ["one two", "", "é" * 60 + "%"]


def _with_ids(path: Path, binary: bool, ids: tuple[int, ...], words: list[str]) -> None:
    numbers = [np.array(v, ">i8") for v in (ids, (7, 8, 9))] + [np.array([1.5, 2.5, 3.5], ">f8")]
    heads = ["GLOBAL_IDS gid vtktypeint64", "PEDIGREE_IDS pid vtktypeint64", "FIELD f 2\nx 1 3 double"]
    made = HEAD.format("BINARY" if binary else "ASCII").encode()
    for head, array in zip(heads, numbers, strict=True):
        made += head.encode() + b"\n" + (array.tobytes() if binary else " ".join(map(str, array)).encode())
        made += b"\n"
    made += b"w 1 3 string\n"
    for word in (word.encode() for word in words):
        if not binary:
            made += word.replace(b"%", b"%25").replace(b" ", b"%20") + b"\n"
        elif len(word) < 64:
            made += bytes([3 << 6 | len(word)]) + word
        else:
            made += (2 << 14 | len(word)).to_bytes(2, "big") + word
    path.write_bytes(made + b"\nPEDIGREE_IDS names string\n" + (b"\xc1a" * 3 if binary else b"a\na\na\n"))


@pytest.mark.parametrize("binary", [True, False])
def test_ids_and_texts(binary, tmp_path):
    a, b = tmp_path / "a.vtk", tmp_path / "b.vtk"
    _with_ids(a, binary, (4, 5, 6), WORDS)
    with open_file(a) as content:
        assert content.fields["PointData/gid"].elements().tolist() == [4, 5, 6]
        assert content.fields["PointData/pid"].elements().tolist() == [7, 8, 9]
        assert content.fields["PointData/x"].elements().tolist() == [1.5, 2.5, 3.5]
        assert content.fields["PointData/w"].kind == content.fields["PointData/names"].kind == "text"
        assert "PointData/gid@(kind)" in content.facts and not content.skipped
    for ids, words, differs in (
        ((4, 5, 6), WORDS, None),
        ((4, 5, 7), WORDS, "PointData/gid"),
        ((4, 5, 6), ["one two", "", "é" * 60], "PointData/w"),
        ((4, 5, 6), ["one", "two", WORDS[2]], "PointData/w"),
    ):
        _with_ids(b, binary, ids, words)
        found = twinrun.compare(a, b)
        assert [f.field for f in found.fields if not f.same] == ([] if differs is None else [differs])
    for cut in (5, 60, 150, 190) if binary else (5,):
        b.write_bytes(a.read_bytes()[:-cut])
        with pytest.raises(FormatError):
            twinrun.compare(b, b)


def test_texts_of_both_modes_are_the_same(tmp_path):
    for binary in (True, False):
        _with_ids(tmp_path / f"{binary}.vtk", binary, (4, 5, 6), WORDS)
    assert twinrun.compare(tmp_path / "True.vtk", tmp_path / "False.vtk")


def test_bits_as_text(tmp_path):
    for name, bits in (("a", "1 0 1"), ("b", "1 1 1")):
        (tmp_path / f"{name}.vtk").write_text(
            f"{HEAD.format('ASCII')}SCALARS s bit 1\nLOOKUP_TABLE default\n{bits}\n"
        )
    with open_file(tmp_path / "a.vtk") as content:
        assert content.fields["PointData/s"].elements().tolist() == [1, 0, 1]
    assert twinrun.compare(tmp_path / "a.vtk", tmp_path / "b.vtk").different == 1


def test_numbers_across_pieces_of_text(tmp_path):
    """Long text is passed piece by piece; a number may lie across two."""
    x = np.random.default_rng(1).normal(size=200_000)
    path = tmp_path / "x.vtk"
    text = "\n".join(" ".join(map(repr, row)) for row in x.reshape(-1, 10).tolist())
    head = "# vtk DataFile Version 3.0\nx\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 200000 1 1\nPOINT_DATA 200000\n"
    path.write_text(f"{head}SCALARS x double\n{text}\nSCALARS y double 1\nLOOKUP_TABLE default\n{text}")
    with open_file(path) as content:
        for name in "xy":
            assert np.array_equal(content.fields[f"PointData/{name}"].elements(), x)


def test_contradictions(tmp_path):
    path = tmp_path / "x.vtk"
    good = TEXT.format(tensors=" ".join(map(str, range(54))))
    for old, new, words in (
        ("ASCII", "EBCDIC", "EBCDIC"),
        ("STRUCTURED_POINTS", "TREE", "TREE"),
        ("CELL_DATA 2", "CELL_DATA 3", "3 entries, the grid has 2"),
        ("CELL_DATA 2", "CELL_DATA x", "instead of a number"),
        ("VECTORS v float", "VECTORS v variant", "type 'variant'"),
        ("VECTORS v float", "WORDS v float", "not a section"),
        ("VECTORS v float", "VECTORS v", "lacks an argument"),
        ("11 12", "11", "1 number is missing"),
        ("# vtk", "# xyz", "does not begin"),
        ("x 1 6 float", "x 1 999999999 float", "999999999 numbers"),
        ("CELL_DATA 2", "a" * 5000, "a line of more than"),
    ):
        text = good.replace(old, new) if old != "11 12" else good[: good.rindex("12")]
        path.write_text(text)
        with pytest.raises(FormatError, match=words):
            open_file(path, format="vtk-legacy")
    path.write_text(good.replace("7 8\nPOINT", "7 8.5\nPOINT"))
    with open_file(path) as content, pytest.raises(DamagedFile, match="owner"):
        content.fields["CellData/owner"].elements()
    path.write_bytes((FIXTURES / "legacy-vti-42-binary.vtk").read_bytes()[:-30])
    with pytest.raises(FormatError):
        open_file(path)


@settings(max_examples=200)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    good = (FIXTURES / data.draw(st.sampled_from(ALL))).read_bytes()
    survives(tmp_path / "x.vtk", data.draw(mutations(good)), format="vtk-legacy")


def test_numbers_beyond_their_type_are_refused(tmp_path: Path) -> None:
    """They would all be read as infinity."""
    text = (
        "# vtk DataFile Version 3.0\nt\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 2 1 1\nORIGIN 0 0 0\n"
        "SPACING 1 1 1\nPOINT_DATA 2\nSCALARS u {} 1\nLOOKUP_TABLE default\n1.0\n{}\n"
    )
    path = tmp_path / "a.vtk"
    for kind, beyond in (("double", "1e400"), ("double", "-1e400"), ("float", "1e39")):
        path.write_text(text.format(kind, beyond))
        with (
            open_file(path) as content,
            pytest.raises(DamagedFile, match=f"{beyond} is too large for its type"),
        ):
            content.fields["PointData/u"].elements()
    for kind, value in (("double", "inf"), ("float", "-INF"), ("double", "1e39"), ("float", "1e-50")):
        path.write_text(text.format(kind, value))
        with open_file(path) as content:
            expected = np.array([1, float(value)], "f8" if kind == "double" else "f4")
            np.testing.assert_array_equal(content.fields["PointData/u"].elements(), expected)


def test_words_that_are_no_numbers(tmp_path: Path) -> None:
    """Python reads 1_0 as 10."""
    text = (
        "# vtk DataFile Version 3.0\nt\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 2 1 1\nORIGIN 0 0 0\n"
        "SPACING {} 1 1\nPOINT_DATA 2\nSCALARS u {} 1\nLOOKUP_TABLE default\n{}\n"
    )
    path = tmp_path / "a.vtk"
    for kind, word, said in (
        ("double", "1_0", "'1_0' is no number"),
        ("int", "1_0", "'1_0' is no whole number"),
        ("int", "0x10", "'0x10' is no whole number"),
    ):
        path.write_text(text.format("1", kind, f"2 {word}"))
        with open_file(path) as content, pytest.raises(DamagedFile, match=said):
            content.fields["PointData/u"].elements()
    path.write_text(text.format("1_0", "int", "1 2"))
    with pytest.raises(DamagedFile, match=r"a\.vtk: '1_0' is no number"), open_file(path):
        pass
    path.write_text(text.format("1", "int", "2"))
    with pytest.raises(DamagedFile, match="1 number is missing at its end"), open_file(path):
        pass
