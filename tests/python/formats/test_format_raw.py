import json

import numpy as np
import pytest
from format_checks import NAMES, SCALARS, array_of, check_content, mutations, survives
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, FormatError
from twinrun.formats import open_file


@pytest.mark.parametrize(("code", "name"), list(zip(SCALARS, NAMES, strict=True)))
def test_a_suffix_that_names_the_type(tmp_path, code, name):
    array = array_of("<" + code, (13,))
    array.tofile(tmp_path / f"vx_10.{name}")
    content = open_file(tmp_path / f"vx_10.{name}")
    assert content.format == "raw" and content.one_array
    check_content(content, {"vx": array}, in_extents=True)
    array.tofile(tmp_path / "y.bin")
    for order in ("little", "big"):
        swapped = array.view(array.dtype.newbyteorder(">" if order == "big" else "<"))
        check_content(open_file(tmp_path / "y.bin", dtype=name, order=order), {"y": swapped}, in_extents=True)


@pytest.mark.parametrize("text", ["100x3", "100,3", "(100, 3)", [100, 3], (100, 3)])
def test_shapes_and_offsets_as_people_write_them(tmp_path, text):
    array = array_of(">f8", (100, 3))
    (tmp_path / "x.dat").write_bytes(b"header 16 bytes." + array.tobytes())
    options = {"dtype": "f64", "order": "big", "offset": "16", "shape": text}
    check_content(open_file(tmp_path / "x.dat", **options), {"x": array})
    check_content(open_file(tmp_path / "x.dat", dtype=">f8", offset=16, shape=text, name="v"), {"v": array})


def test_a_0_d_array_and_an_empty_one(tmp_path):
    array = array_of("<f4", ())
    array.tofile(tmp_path / "x.bin")
    check_content(open_file(tmp_path / "x.bin", dtype="f32", shape="()"), {"x": array})
    (tmp_path / "y.f32").write_bytes(b"")
    check_content(open_file(tmp_path / "y.f32"), {"y": np.empty(0, "<f4")})


def test_a_description_beside_the_file(tmp_path):
    array = array_of("<f4", (4, 5))
    array.tofile(tmp_path / "x.raw")
    (tmp_path / "x.raw.json").write_text(json.dumps({"dtype": "float32", "shape": [4, 5], "comment": "grid"}))
    check_content(open_file(tmp_path / "x.raw"), {"x": array})
    check_content(open_file(tmp_path / "x.raw", dtype="u32"), {"x": array.view("<u4").reshape(-1)})


@pytest.mark.parametrize(
    "fields",
    [
        "x:f32, y:f64@8 ,id:>i8@16",
        [["x", "f32"], ["y", "f64", 8], ["id", ">i8", 16]],
        [
            {"name": "x", "dtype": "f32"},
            {"name": "y", "dtype": "f64", "offset": 8},
            {"name": "id", "dtype": ">i8", "offset": 16},
        ],
    ],
)
def test_records(tmp_path, fields):
    kind = np.dtype(
        {"names": ["x", "y", "id"], "formats": ["<f4", "<f8", ">i8"], "offsets": [0, 8, 16], "itemsize": 32}
    )
    array = array_of(kind, (9,))
    (tmp_path / "p.bin").write_bytes(b"1234" + array.tobytes())
    content = open_file(tmp_path / "p.bin", fields=fields, record=32, offset=4)
    check_content(content, {name: array[name] for name in kind.names}, in_extents=True)
    assert content.fields["id"].extents[0].stride == 32 and content.fields["id"].extents[0].offset == 20


def test_packed_records_in_a_grid(tmp_path):
    kind = np.dtype([("x", ">f4"), ("n", ">i2")])
    array = array_of(kind, (3, 4))
    array.tofile(tmp_path / "p.bin")
    content = open_file(tmp_path / "p.bin", fields="x:f32,n:i16", order="big", shape="3x4")
    check_content(content, {"x": array["x"], "n": array["n"]})


def test_arrays_one_after_another(tmp_path):
    x, y, z = array_of("<f4", (6,)), array_of(">i8", (2, 2)), array_of("?", (3,))
    (tmp_path / "s.dat").write_bytes(x.tobytes() + y.tobytes() + b"..." + z.tobytes())
    arrays = [
        {"name": "x", "dtype": "f32", "shape": [6]},
        {"name": "y", "dtype": "i64", "shape": "2x2", "order": "big"},
        {"name": "z", "dtype": "bool", "shape": 3, "offset": 59},
    ]
    (tmp_path / "s.dat.json").write_text(json.dumps({"arrays": arrays}))
    check_content(open_file(tmp_path / "s.dat"), {"x": x, "y": y, "z": z})


def test_what_is_left_over_is_an_error_unless_said(tmp_path):
    np.arange(10, dtype="<f4").tofile(tmp_path / "x.f32")
    with pytest.raises(DamagedFile, match="8 bytes after"):
        open_file(tmp_path / "x.f32", shape="8")
    assert open_file(tmp_path / "x.f32", shape="8", partial=True).fields["x"].shape == (8,)
    (tmp_path / "x.f32").write_bytes(bytes(41))
    with pytest.raises(DamagedFile, match="not a multiple of 4"):
        open_file(tmp_path / "x.f32")


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f33"},
        {"dtype": "object"},
        {"dtype": None},
        {"dtype": "O8"},
        {"dtype": "f32", "fields": "x:f32"},
        {"dtype": "f32", "order": "middle"},
        {"dtype": "f32", "offset": -4},
        {"dtype": "f32", "offset": "1e3"},
        {"dtype": "f32", "offset": 44},
        {"dtype": "f32", "shape": "-1x3"},
        {"dtype": "f32", "shape": "3xtwo"},
        {"dtype": "f32", "shape": 2.5},
        {"dtype": "f32", "shape": [True]},
        {"dtype": "f32", "shape": "11"},
        {"dtype": "f32", "shape": [1 << 62, 1 << 62]},
        {"dtype": "f32", "shape": "999999999999999999x99999999999999999"},
        {"dtype": "f32", "shape": [1] * 65},
        {"fields": "x"},
        {"fields": ""},
        {"fields": "x:f32,x:f32"},
        {"fields": "x:f32", "record": 2},
        {"fields": "x:f32", "record": 0},
        {"fields": "x:f32@-4"},
        {"fields": "x:f32", "record": 7},
        {"arrays": []},
        {"arrays": [{"name": "x"}]},
        {"arrays": [{"name": "x", "dtype": "f32", "shape": [20]}]},
        {"arrays": [{"name": "x", "dtype": "f32", "shape": [1], "offset": 99}]},
    ],
)  # fmt: skip
def test_descriptions_that_cannot_be(tmp_path, options):
    np.arange(10, dtype="<f4").tofile(tmp_path / "x.bin")
    with pytest.raises(FormatError, match=r"x\.bin") as caught:
        open_file(tmp_path / "x.bin", **options)
    assert str(caught.value).isprintable()


def test_unknown_types_and_missing_descriptions_say_what_to_do(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(8))
    with pytest.raises(FormatError, match=r"dtype f32.*x\.bin\.json"):
        open_file(tmp_path / "x.bin")
    (tmp_path / "x.bin.json").write_text('{"dtyp": "f32"}')
    with pytest.raises(FormatError, match="unknown key 'dtyp'"):
        open_file(tmp_path / "x.bin")
    for text in ("", "[]", "{", "[" * 100_000, '{"dtype": "f32", "shape": [1e99]}', "\xff"):
        (tmp_path / "x.bin.json").write_text(text, encoding="latin-1")
        with pytest.raises(FormatError, match=r"x\.bin\.json"):
            open_file(tmp_path / "x.bin")


@settings(max_examples=300)
@given(st.data())
def test_damaged_descriptions_end_in_format_errors(tmp_path, data):
    description = data.draw(
        st.sampled_from(
            [
                {"dtype": "f32", "shape": [4, 5], "order": "big"},
                {"fields": [["x", "f32"], ["y", "f64", 8]], "record": 16},
                {"arrays": [{"name": "x", "dtype": "f32", "shape": [20]}]},
            ]
        )
    )
    (tmp_path / "x.bin.json").write_bytes(data.draw(mutations(json.dumps(description).encode())))
    survives(tmp_path / "x.bin", bytes(80))


@pytest.mark.parametrize("partial", ["yes", "true", "false", "no", 1, 0, None, [], {}])
def test_a_sidecar_says_true_or_false_in_json(tmp_path, partial):
    """A word is no boolean: "no" would be as true as "yes" elsewhere."""
    np.zeros(10, "f4").tofile(tmp_path / "x.bin")
    description = {"dtype": "f32", "shape": [8], "partial": partial}
    (tmp_path / "x.bin.json").write_text(json.dumps(description))
    with pytest.raises(FormatError, match=r"x\.bin\.json: partial must be true or false"):
        open_file(tmp_path / "x.bin")
    (tmp_path / "x.bin.json").write_text(json.dumps({**description, "partial": True}))
    assert open_file(tmp_path / "x.bin").fields["x"].shape == (8,)


def test_partial_as_an_option_is_a_word(tmp_path):
    np.zeros(10, "f4").tofile(tmp_path / "x.bin")
    for word in (True, "true", "Yes", "1", "on"):
        assert open_file(tmp_path / "x.bin", dtype="f32", shape="8", partial=word).fields["x"].shape == (8,)
    for word in (False, "false", "no", "0"):
        with pytest.raises(DamagedFile, match="are not described"):
            open_file(tmp_path / "x.bin", dtype="f32", shape="8", partial=word)
    with pytest.raises(FormatError, match="partial must be true or false"):
        open_file(tmp_path / "x.bin", dtype="f32", shape="8", partial="perhaps")


@pytest.mark.parametrize("before", [0, 255, 4092, 4094, 4095, 8191])
def test_text_is_told_by_all_of_the_sample(tmp_path, before):
    # A character at a place where the sample is cut is text, and a control character anywhere is not.
    path = tmp_path / "x.f32"
    text = b"a" * before + "€ü\n".encode() + b"b" * 5000
    path.write_bytes(text[: len(text) // 4 * 4])
    with pytest.raises(FormatError, match="holds text"):
        open_file(path)
    for no_text in (b"\x01", b"\xff"):
        path.write_bytes(b"a" * before + no_text + b"b" * (8195 - before))
        with open_file(path) as content:
            assert content.fields["x"].shape == (2049,)
