import ast
import os

import numpy as np
import pytest
from commands import command
from format_checks import (
    NAMES,
    SCALARS,
    SHAPES,
    array_of,
    check_content,
    mutations,
    not_numbers,
    same,
    survives,
    texts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingFile, TwinrunError, Unsupported
from twinrun.formats import open_file
from twinrun.formats.facts import shown
from twinrun.formats.npy import _usual_header


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", SCALARS)
def test_every_type_order_and_shape(tmp_path, code, order, shape):
    array = array_of(order + code, shape)
    np.save(tmp_path / "x.npy", array)
    content = open_file(tmp_path / "x.npy")
    assert content.format == "npy" and content.one_array
    check_content(content, {"x": array}, in_extents=True)
    assert content.fields["x"].dtype == NAMES[SCALARS.index(code)]
    if array.itemsize > 1:
        assert content.fields["x"].byte_order == ("big" if order == ">" else "little")


def test_column_major_arrays_are_their_transpose(tmp_path):
    array = np.asfortranarray(array_of("<f4", (3, 4, 5)))
    np.save(tmp_path / "x.npy", array)
    field = open_file(tmp_path / "x.npy").fields["x"]
    assert field.fortran_order and field.shape == (5, 4, 3) and field.stored_shape == (3, 4, 5)
    check_content(open_file(tmp_path / "x.npy"), {"x": array}, in_extents=True)
    assert field.index(1) == (1, 0, 0)


def test_members_of_records(tmp_path):
    kind = np.dtype(
        [
            ("x", "<f4"),
            ("id", ">i8"),
            ("pos", "<f8", (3,)),
            ("name", "S5"),
            ("in", [("u", "?"), ("w", "<c8")]),
        ]
    )
    array = array_of(kind, (11,))
    np.save(tmp_path / "p.npy", array)
    content = open_file(tmp_path / "p.npy")
    assert not content.skipped and not_numbers(content) == {"p.name": "text (bytes)"}
    assert texts(content.fields["p.name"])[3] == shown(array["name"][3])
    assert content.facts["p@(members)"].text == "['x', 'id', 'pos', ['name', 'S5'], ['in', ['u', 'w']]]"
    expected = {"p.x": array["x"], "p.id": array["id"], "p.pos": array["pos"]}
    expected |= {"p.in.u": array["in"]["u"], "p.in.w": array["in"]["w"]}
    check_content(content, expected)
    assert content.fields["p.x"].extents[0].stride == kind.itemsize
    assert content.fields["p.pos"].shape == (11, 3)
    assert not content.one_array


def test_several_arrays_in_one_file(tmp_path):
    first, second = array_of("<f8", (4,)), array_of("<i4", (2, 2))
    with open(tmp_path / "m.npy", "wb") as file:
        np.save(file, first)
        np.save(file, second)
    check_content(open_file(tmp_path / "m.npy"), {"arr_0": first, "arr_1": second})


def test_objects_are_bytes_and_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trap"),)

    np.save(tmp_path / "o.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "t.npy", np.array(["a", "bc"]))
    content = open_file(tmp_path / "o.npy")
    assert not_numbers(content) == {"o": "pickled objects"} and not content.skipped
    assert content.fields["o"].elements()[-1] == ord(".")  # where a pickle ends
    content = open_file(tmp_path / "t.npy")
    assert not_numbers(content) == {"t": "text"} and texts(content.fields["t"]) == ["'a'", "'bc'"]
    assert not (tmp_path / "trap").exists()


def test_dates_are_their_integers(tmp_path):
    array = np.arange(5).astype("<M8[s]")
    np.save(tmp_path / "t.npy", array)
    field = open_file(tmp_path / "t.npy").fields["t"]
    assert field.dtype == "i64" and same(field.elements(), array.view("<i8"))
    assert field.unit == "M8[s]"
    np.save(tmp_path / "other.npy", array.view("<i8").view(">M8[25s]"))
    assert open_file(tmp_path / "other.npy").fields["other"].unit == "M8[25s]"


def write_npy(path, header: str, data: bytes = b"", version=(1, 0)) -> None:
    text = header.encode()
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes(version) + size + text + data)


@pytest.mark.parametrize(
    "shape",
    [
        "(-1,)",
        "(1 << 70,)",
        "(1e3,)",
        "(True,)",
        "[3]",
        "3",
        "(9223372036854775807, 9223372036854775807)",
        "(1000000000000,)",
    ],
)
def test_lying_shapes(tmp_path, shape):
    write_npy(tmp_path / "x.npy", f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}", bytes(12))
    with pytest.raises(DamagedFile, match=r"x\.npy"):
        open_file(tmp_path / "x.npy")


@pytest.mark.parametrize(
    "descr",
    [
        "'f9'",
        "7",
        "'<f4' * 9",
        "__import__('os')",
        "[('x',)]",
        "[('x', '<f4', -1)]",
        "'<U9999999999'",
        "(" * 900,
        "-" * 60000 + "1",
    ],
)
def test_hostile_types(tmp_path, descr):
    write_npy(
        tmp_path / "x.npy", f"{{'descr': {descr}, 'fortran_order': False, 'shape': (3,)}}", bytes(12), (2, 0)
    )
    with pytest.raises(FormatError):
        open_file(tmp_path / "x.npy")


def test_python_2_headers_are_read(tmp_path):
    write_npy(tmp_path / "x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (3L,)}", bytes(12))
    assert open_file(tmp_path / "x.npy").fields["x"].shape == (3,)


def test_truncated_extended_huge_and_missing(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100.0))
    good = (tmp_path / "x.npy").read_bytes()
    for size in (0, 5, 8, 9, 50, len(good) - 1):
        (tmp_path / "x.npy").write_bytes(good[:size])
        with pytest.raises(DamagedFile):
            open_file(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(good + b"\0")
    with pytest.raises(DamagedFile, match="1 bytes after"):
        open_file(tmp_path / "x.npy")
    write_npy(tmp_path / "x.npy", " " * 100_000, version=(2, 0))
    with pytest.raises(Unsupported, match="header of 100000"):
        open_file(tmp_path / "x.npy")
    write_npy(tmp_path / "x.npy", "{}", version=(9, 0))
    with pytest.raises(Unsupported, match="version"):
        open_file(tmp_path / "x.npy")
    with pytest.raises(MissingFile, match=r"gone\.npy"):
        open_file(tmp_path / "gone.npy")


@settings(max_examples=400)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.npy"
    kind = data.draw(st.sampled_from(["<f4", ">i8", "?", [("a", "<f4"), ("b", "<i8", (2,))]]))
    np.save(path, array_of(np.dtype(kind), (5, 3)))
    survives(path, data.draw(mutations(path.read_bytes())), format="npy")


def usual(descr: str, fortran: bool, shape: tuple) -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}" + " " * 20 + "\n"


@given(
    st.sampled_from(["<f8", ">i4", "|b1", "|u1", "<U10", "<c16"]),
    st.booleans(),
    st.lists(st.integers(0, 10**18 - 1), max_size=6).map(tuple),
    st.data(),
)
def test_usual_headers_are_read_as_python_reads_them(descr, fortran, shape, data):
    text = usual(descr, fortran, shape)
    assert _usual_header(text) == ast.literal_eval(text.strip())
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from(list("0,() }{'L_xFe٣\n"))) + text[at + 1 :]
    found = _usual_header(changed)
    assert found is None or found == ast.literal_eval(changed.strip())


@pytest.mark.parametrize("point", [0x110000, 0x0201D11E, 0xFFFFFFFF])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("beside", ["", "é"])
def test_characters_that_unicode_lacks(point, order, beside, tmp_path):
    """NumPy makes U+1D11E of 0x0201D11E beside other characters; a flipped bit would be missed."""
    points = np.array([0x1D11E, *map(ord, beside)], f"{order}u4")
    good = points.copy().view(f"{order}U{points.size}")
    points[0] = point
    bad = points.view(f"{order}U{points.size}")
    for name, array in (("good", good), ("bad", bad)):
        np.save(tmp_path / f"{name}.npy", array)
    wrong = f"a text has the character {point:#x}, which Unicode does not have"
    ended = command("compare", tmp_path / "good.npy", tmp_path / "bad.npy")
    assert ended.status == 2 and wrong in ended.err, ended
    assert "bad.npy" in ended.err and "Error" not in ended.err
    with pytest.raises(TwinrunError, match=wrong):
        twinrun.compare({"x": good}, {"x": bad})
    struct = np.zeros(1, [("t", bad.dtype)])
    struct["t"] = bad
    with pytest.raises(TwinrunError, match=wrong):
        twinrun.compare({"x": struct}, {"x": struct})


def test_a_header_of_code_is_told_without_objects_of_python(tmp_path):
    text = "{'descr': len('<f8'), 'fortran_order': False, 'shape': (1,), }".ljust(117) + "\n"
    (tmp_path / "x.npy").write_bytes(
        b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text.encode() + bytes(8)
    )
    with pytest.raises(DamagedFile, match="its header lacks descr") as error:
        open_file(tmp_path / "x.npy")
    assert "ast" not in str(error.value)
