import builtins
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, process
from format_checks import (
    NAMES,
    SCALARS,
    SHAPES,
    array_of,
    check_content,
    check_field,
    mutations,
    not_numbers,
    same,
    survives,
    texts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingFile, MissingPackage, Unsupported
from twinrun.formats import detect, open_file

h5py = pytest.importorskip("h5py")

CODES = dict(zip(SCALARS, NAMES, strict=True))


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "deflated", "compact", "big cache"])
def test_every_type_order_and_shape(tmp_path, layout):
    arrays = {}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for code in SCALARS:
            for number, shape in enumerate(SHAPES):
                for order in "<>":
                    name = f"group{number}/{code.replace('?', 'bool')}_{'lb'[order == '>']}"
                    array = arrays[name] = array_of(order + code, shape)
                    if layout == "compact":
                        write_compact(file, name, array)
                        continue
                    chunked = layout != "contiguous" and array.size > 0 and shape
                    options = {"chunks": tuple(max(1, n - 1) for n in shape)} if chunked else {}
                    if chunked and layout == "deflated":
                        options |= {"compression": "gzip", "shuffle": True, "fletcher32": True}
                    file.create_dataset(name, data=array, **options)
    cache = {"cache": 1 << 30} if layout == "big cache" else {}
    with open_file(tmp_path / "x.h5", **cache) as content:
        assert content.format == "hdf5" and not content.skipped
        check_content(content, arrays)
        if layout == "contiguous":  # booleans are checked while they are read, unless there are none
            for name, array in arrays.items():
                assert (content.fields[name].extents is not None) == (
                    array.dtype.kind != "b" or not array.size
                )
        field = content.fields["group5/f4_l"]
        assert (field.extents is None) == (layout != "contiguous")
        for code, name in CODES.items():
            assert content.fields[f"group5/{code.replace('?', 'bool')}_b"].dtype == name
        if layout == "contiguous":
            assert content.fields["group5/f4_b"].byte_order == "big"


def write_compact(file, name, array):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    dataset = h5py.h5d.create(
        file.id,
        name.encode(),
        kind,
        h5py.h5s.create_simple(array.shape) if array.shape else h5py.h5s.create(h5py.h5s.SCALAR),
        plist,
        links,
    )
    h5py.Dataset(dataset)[...] = array


def test_user_block_and_detection(tmp_path):
    array = array_of("<f8", (10, 3))
    for block in (512, 4096):
        with h5py.File(tmp_path / "x.data", "w", userblock_size=block) as file:
            file["a"] = array
            file["null"] = h5py.Empty("f4")
        assert detect(tmp_path / "x.data").name == "hdf5"
        with open_file(tmp_path / "x.data") as content:
            check_content(content, {"a": array, "null": np.empty(0, "<f4")}, in_extents=True)


def test_a_user_block_that_is_too_long_is_not_called_the_same(tmp_path, monkeypatch):
    """The end of a long user block was not compared, so that a difference there was missed."""
    monkeypatch.setattr("twinrun.formats.hdf5._LONGEST_USER_BLOCK", 1024)
    for name, last in (("a.h5", b"x"), ("b.h5", b"y")):
        with h5py.File(tmp_path / name, "w", userblock_size=4096) as file:
            file["a"] = np.zeros(3)
        with open(tmp_path / name, "r+b") as raw:
            raw.seek(4095)
            raw.write(last)
    with pytest.raises(twinrun.Incomparable, match="a user block of 4096 bytes, more than 1024"):
        twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    with open_file(tmp_path / "a.h5") as content:
        assert content.skipped == [("@(user block)", "a user block of 4096 bytes, more than 1024")]


def test_members_of_compound_types(tmp_path):
    kind = np.dtype(
        [
            ("x", "<f4"),
            ("text", "S3"),
            ("pos", ">f8", (3,)),
            ("z", "<c16"),
            ("in", [("u", "<i2"), ("flag", "?")]),
        ]
    )
    array = array_of(kind, (40, 2))
    vlen = np.dtype([("x", "<f4"), ("s", h5py.string_dtype())])
    mixed = np.zeros(5, vlen)
    mixed["x"] = np.arange(5)
    mixed["s"] = "text"
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("plain", data=array)
        file.create_dataset("packed", data=array, chunks=(7, 1), compression="gzip")
        file.create_dataset("mixed", data=mixed)
        file.create_dataset("mixed_chunked", data=mixed, chunks=(2,))
        file.create_dataset("one", data=array[0, 0])
    with open_file(tmp_path / "x.h5") as content:
        members = {"x": array["x"], "pos": array["pos"], "z": array["z"]}
        members |= {"in.u": array["in"]["u"], "in.flag": array["in"]["flag"]}
        expected = {f"{d}.{m}": a for d in ("plain", "packed") for m, a in members.items()}
        expected |= {f"one.{m}": a[0, 0] for m, a in members.items()}
        expected |= {"mixed.x": mixed["x"], "mixed_chunked.x": mixed["x"]}
        check_content(content, expected)
        assert content.fields["plain.x"].extents[0].stride == kind.itemsize
        assert content.fields["plain.in.u"].extents is not None
        assert content.fields["plain.in.flag"].extents is None  # a boolean
        assert content.fields["mixed.x"].extents is None  # HDF5 does not tell where its elements lie
        assert content.fields["packed.x"].extents is None
        assert not content.skipped
        assert not_numbers(content) == dict.fromkeys(
            ("plain.text", "packed.text", "one.text", "mixed.s", "mixed_chunked.s"), "text"
        )
        assert texts(content.fields["mixed_chunked.s"]) == ["'text'"] * 5
        texts(content.fields["packed.text"])


def test_types_that_numpy_lays_out_otherwise(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple((6,))
        bits = h5py.Dataset(h5py.h5d.create(file.id, b"bits", h5py.h5t.STD_B8LE, space))
        bits[...] = np.arange(6, dtype="u1")
        brain = h5py.h5t.IEEE_F32LE.copy()  # bfloat16: the upper half of a float32
        brain.set_fields(15, 7, 8, 0, 7)
        brain.set_precision(16)
        brain.set_size(2)
        h5py.Dataset(h5py.h5d.create(file.id, b"brain", brain, space))[...] = np.arange(6, dtype="f4")
        file.create_dataset("scaled", data=np.arange(60), chunks=(7,), scaleoffset=True)
        file.create_dataset(
            "enum", data=np.arange(3), dtype=h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, basetype=">i2")
        )
        file.create_dataset("array", data=array_of("<f4", (5, 2, 3)), dtype="f4")
        arrays = h5py.h5t.array_create(h5py.h5t.IEEE_F64BE, (2, 3))
        h5py.Dataset(h5py.h5d.create(file.id, b"elements", arrays, space))[...] = np.arange(36.0).reshape(
            6, 2, 3
        )
    with open_file(tmp_path / "x.h5") as content:
        fields = content.fields
        assert fields["bits"].elements().tolist() == [0, 1, 2, 3, 4, 5] and fields["bits"].dtype == "u8"
        assert fields["brain"].elements().tolist() == [0, 1, 2, 3, 4, 5]
        check_field(fields["scaled"], np.arange(60), in_extents=False)
        check_field(fields["enum"], np.arange(3, dtype=">i2"), in_extents=True)
        check_field(fields["elements"], np.arange(36, dtype=">f8").reshape(6, 2, 3), in_extents=True)
        assert fields["elements"].byte_order == "big"


def test_elements_that_are_no_numbers(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["text"] = "hello"
        file["fixed"] = np.array([b"a", b"b"])
        file.create_dataset("ragged", (2,), dtype=h5py.vlen_dtype("i4"))
        file.create_dataset("opaque", data=np.zeros(2, "V5"))
        file.create_dataset("reference", data=file["text"].ref, dtype=h5py.ref_dtype)
        file.create_dataset("long", data=np.zeros(2, np.longdouble))
        file["a type"] = np.dtype("f4")
        file["x"] = np.arange(2)
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, {"x": np.arange(2)})
        assert not content.skipped
        assert not_numbers(content) == {
            "fixed": "text",
            "long": np.dtype(np.longdouble).name,
            "opaque": "opaque bytes",
            "ragged": "list",
            "reference": "reference",
            "text": "text",
        }
        assert texts(content.fields["fixed"]) == ["'a'", "'b'"]
        assert texts(content.fields["text"]) == ["'hello'"] and content.fields["text"].shape == ()
        assert content.facts["a type@(type)"].text == "'float of 32 bits'"


def test_links(tmp_path):
    array = array_of("<f4", (9,))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["b/y"] = array
        file["b/back"] = h5py.ExternalLink("x.h5", "/")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = array
        file["g/self"] = file["g"]
        file["g/up"] = h5py.SoftLink("/")
        file["alias"] = h5py.SoftLink("/g/x")
        file["hard"] = file["g/x"]
        file["nowhere"] = h5py.SoftLink("/none")
        file["round"] = h5py.SoftLink("/round")
        file["far"] = h5py.ExternalLink("other.h5", "/b")
        file["gone"] = h5py.ExternalLink("gone.h5", "/b")
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, dict.fromkeys(("alias", "far/y", "g/x", "hard"), array), in_extents=True)
        skipped = dict(content.skipped)
        assert sorted(skipped) == ["gone", "nowhere", "round"]
        links = {label: fact.text for label, fact in content.facts.items() if fact.name == "(link)"}
        assert {name.split("@")[0] for name in links} == {
            "alias",
            "far",
            "far/back",
            "g/self",
            "g/up",
            "g/x",
        }
        assert links["alias@(link)"] == "\"to '/g/x'\"" and "the same as" in links["g/self@(link)"]
        assert "gone.h5" in skipped["gone"] and "leads nowhere" in skipped["nowhere"]
        assert content.fields["far/y"].extents[0].path.endswith("other.h5")
        assert {os.path.basename(p) for p in content.files()} == {"x.h5", "other.h5"}


def test_names_that_are_no_utf8_are_skipped(tmp_path):
    for name, value in (("a", 0.0), ("b", 1.0)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(4.0)
            file.attrs["known"] = 3
            scalar = h5py.h5s.create(h5py.h5s.SCALAR)
            found = h5py.h5d.create(file.id, b"bad\xff", h5py.h5t.NATIVE_DOUBLE, scalar)
            found.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(value))
            h5py.h5g.create(file.id, b"group\xf0")
            h5py.h5a.create(file.id, b"at\xfe", h5py.h5t.NATIVE_DOUBLE, scalar)
    with open_file(tmp_path / "a.h5") as content:
        assert list(content.fields) == ["x"]
        assert {f.name for f in content.facts.values()} == {"known"}
        assert sorted(name for name, _ in content.skipped) == ["@at\\xfe", "bad\\xff", "group\\xf0"]
        assert all("not UTF-8" in why for _, why in content.skipped)
    found = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", partial=True)
    assert found.verdict == "incomparable" and len(found.problems) == 3


def test_all_verbs_say_which_names_are_skipped(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(3.0)
        file[b"bad\xff"] = np.arange(3.0)
    path = tmp_path / "x.h5"
    said = rf"{path}: 'bad\\xff' cannot be compared: its name is not UTF-8"
    with pytest.raises(twinrun.Incomparable) as error:
        twinrun.compare(path, path)
    assert str(error.value).startswith(said)
    for fresh in (True, False):
        (facts,) = twinrun.index(path)
        assert facts.fresh == fresh and facts.not_compared == (said,)
    for verb in ("index", "show", "index"):
        found = command(verb, path)
        assert found.status == 0 and f"not compared: {said}\n" in found.out, found.out
    assert "(not compared)' cannot be compared: the indexed file" in command("show", f"{path}.twm").out
    Path(f"{path}.twm").unlink()
    with h5py.File(path, "a") as file:
        for number in range(12):
            file[f"y{number}".encode() + b"\xff"] = 0
    found = command("show", path).out
    assert found.count("cannot be compared") == 10 and "not compared: 3 more\n" in found


def test_deep_groups(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file
        for _ in range(2000):
            group = group.create_group("g")
        group["x"] = np.arange(3)
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, {"g/" * 2000 + "x": np.arange(3)})


def test_external_storage_lies_beside_the_file(tmp_path, monkeypatch):
    array = array_of("<f4", (100,))
    (tmp_path / "raw1").write_bytes(b"12345678" + array.tobytes()[:201])
    (tmp_path / "raw2").write_bytes(array.tobytes()[201:])
    (tmp_path / "raw3").write_bytes(array.tobytes())
    monkeypatch.chdir(tmp_path)
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("cut", (100,), "f4", external=[("raw1", 8, 201), ("raw2", 0, h5py.h5f.UNLIMITED)])
        file.create_dataset("one", (100,), "f4", external=[("raw3", 0, h5py.h5f.UNLIMITED)])
    monkeypatch.chdir("/")
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, {"cut": array, "one": array})
        assert content.fields["one"].extents[0].path == str(tmp_path / "raw3")
        assert {os.path.basename(p) for p in content.files()} == {"x.h5", "raw1", "raw2", "raw3"}
    os.truncate(tmp_path / "raw2", 10)
    os.remove(tmp_path / "raw3")
    with open_file(tmp_path / "x.h5") as content:
        assert isinstance(content.fields["cut"].problem, DamagedFile)
        with pytest.raises(MissingFile, match=r"x\.h5: dataset 'one'.*raw3"):
            content.fields["one"].elements()


def test_virtual_datasets_and_their_missing_sources(tmp_path):
    array = array_of("<f4", (4, 10))
    layout = h5py.VirtualLayout((4, 10), "f4")
    for row in range(4):
        with h5py.File(tmp_path / f"part{row}.h5", "w") as file:
            file["x"] = array[row]
        layout[row] = h5py.VirtualSource(f"part{row}.h5", "x", (10,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, {"v": array}, in_extents=False)
        assert len(content.files()) == 5
    os.remove(tmp_path / "part2.h5")
    with open_file(tmp_path / "x.h5") as content, pytest.raises(MissingFile, match="part2"):
        content.fields["v"].elements()


def virtual(path, name, dataset):
    """Writes `v`, five elements of a dataset of another file."""
    layout = h5py.VirtualLayout((5,), "f4")
    layout[:] = h5py.VirtualSource(name, dataset, (5,))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("v", layout)


@pytest.mark.parametrize("verb", ["compare", "show", "index"])
def test_commands_on_virtual_datasets_end_with_their_status(verb, tmp_path):
    """HDF5 2.0 crashes at the end of a process that has not closed the creation list of one."""
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["x"] = np.arange(5, dtype="f4")
    virtual(tmp_path / "x.h5", "part.h5", "x")
    words = {"compare": [tmp_path / "x.h5"], "index": ["--atol", "1e-6"]}.get(verb, [])
    ended = process(verb, tmp_path / "x.h5", *words)
    assert ended.status == 0 and not ended.err, ended


def test_virtual_datasets_whose_sources_hold_no_such_dataset(tmp_path):
    """HDF5 would give fill values, which two runs have in common."""
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["y"] = np.arange(5, dtype="f4")
    virtual(tmp_path / "x.h5", "part.h5", "gone")
    virtual(tmp_path / "own.h5", ".", "gone")
    virtual(tmp_path / "above.h5", "x.h5", "v")
    for name in ("x.h5", "own.h5", "above.h5"):
        with (
            open_file(tmp_path / name) as content,
            pytest.raises(MissingFile, match=r"source 'gone' of .*not there"),
        ):
            content.fields["v"].elements()


def test_every_file_that_a_virtual_dataset_is_made_of_is_known(tmp_path):
    """Metadata is current only as long as these are: sources of sources, too."""
    with h5py.File(tmp_path / "deep.h5", "w") as file:
        file["x"] = np.arange(5, dtype="f4")
    virtual(tmp_path / "middle.h5", "deep.h5", "x")
    virtual(tmp_path / "x.h5", "middle.h5", "v")
    with open_file(tmp_path / "x.h5") as content:
        check_content(content, {"v": np.arange(5, dtype="f4")}, in_extents=False)
        assert [os.path.basename(p) for p in content.files()] == ["x.h5", "middle.h5", "deep.h5"]
    # A block for each file that is there: f-0.h5, f-1.h5, f-2.h5.
    for number in range(3):
        with h5py.File(tmp_path / f"f-{number}.h5", "w") as file:
            file["x"] = np.full(4, number, "f4")
    with h5py.File(tmp_path / "blocks.h5", "w", libver="latest") as file:
        whole = h5py.h5s.create_simple((12,), (h5py.h5s.UNLIMITED,))
        whole.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (4,), (4,))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_virtual(whole, b"f-%b.h5", b"x", h5py.h5s.create_simple((4,), (4,)))
        space = h5py.h5s.create_simple((12,), (h5py.h5s.UNLIMITED,))
        h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, plist)
    with open_file(tmp_path / "blocks.h5") as content:
        check_content(content, {"v": np.repeat(np.arange(3, dtype="f4"), 4)}, in_extents=False)
        assert [os.path.basename(p) for p in content.files()] == [
            "blocks.h5", "f-0.h5", "f-1.h5", "f-2.h5"
        ]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 3])
def test_virtual_datasets_that_are_made_of_themselves(length, tmp_path):
    """HDF5 reads such sources without end, or zeros."""
    for number in range(length):
        virtual(tmp_path / f"{number}.h5", f"{(number + 1) % length}.h5", "v")
    with open_file(tmp_path / "0.h5") as content:
        assert list(content.fields) == ["v"]
        with pytest.raises(Unsupported, match="made of itself"):
            content.fields["v"].elements()


def test_external_files_are_never_those_of_the_working_folder(tmp_path, monkeypatch):
    """What only HDF5 can convert it reads itself, and it looks for external files where it runs: those of another run, perhaps."""
    narrow = h5py.h5t.STD_U32LE.copy()
    narrow.set_precision(20)
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        monkeypatch.chdir(tmp_path / run)
        np.full(10, 1 if run == "a" else 2, "<u4").tofile("raw")
        with h5py.File("x.h5", "w") as file:
            for name, kind in (("narrow", narrow), ("plain", h5py.h5t.STD_U32LE)):
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_external(b"raw", 0, 40)
                h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((10,)), plist)
        layout = h5py.VirtualLayout((10,), "u4")
        layout[:] = h5py.VirtualSource("x.h5", "plain", (10,))
        with h5py.File("v.h5", "w") as file:
            file.create_virtual_dataset("v", layout)
    monkeypatch.chdir(tmp_path / "a")
    for run, value in (("a", 1), ("b", 2)):
        for name, dataset in (("x.h5", "plain"), ("x.h5", "narrow"), ("v.h5", "v")):
            with open_file(tmp_path / run / name) as content:
                if dataset == "plain" or run == "a":
                    assert content.fields[dataset].elements().tolist() == [value] * 10
                else:
                    with pytest.raises(Unsupported, match=r"'raw'.* working folder"):
                        content.fields[dataset].elements()
    os.truncate("raw", 12)  # HDF5 would read zeros there
    with open_file("x.h5") as content, pytest.raises(DamagedFile, match="ends before byte 40"):
        content.fields["narrow"].elements()


def test_space_that_was_never_written(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("fill", (5,), "f4", fillvalue=7)
        file.create_dataset("huge", (1 << 40, 1 << 20), "f4", chunks=(64, 64), fillvalue=3)
    with open_file(tmp_path / "x.h5") as content:
        assert content.fields["fill"].elements().tolist() == [7] * 5
        assert content.fields["huge"].elements((1 << 59) + 5, 3).tolist() == [3, 3, 3]
        assert content.fields["huge"].elements(0, 3).tolist() == [3, 3, 3]
        with pytest.raises(FormatError):
            content.fields["huge"].elements()


def test_filters_that_are_not_there_are_named(tmp_path, monkeypatch):
    pytest.importorskip("hdf5plugin")
    # netCDF4 names its own plugins there when it is imported; they are for the HDF5 that it brings along.
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    script = """
import sys, numpy as np, h5py, hdf5plugin
with h5py.File(sys.argv[1], "w") as file:
    file.create_dataset("g/z", data=np.arange(1000.0), chunks=(100,), **hdf5plugin.Blosc())
    file["fine"] = np.arange(3)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(299, h5py.h5z.FLAG_OPTIONAL, (1,))
    dataset = h5py.h5d.create(file.id, b"odd", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((4,)), plist)
    dataset.write_direct_chunk((0,), bytes(16))
"""
    path = tmp_path / "x.h5"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    with open_file(path) as content:  # hdf5plugin is found without the user naming it
        check_field(content.fields["g/z"], np.arange(1000.0), in_extents=False)
        assert isinstance(content.fields["odd"].problem, Unsupported)
        with pytest.raises(Unsupported, match="dataset 'odd': is compressed with HDF5 filter 299"):
            content.fields["odd"].elements()
        check_field(content.fields["fine"], np.arange(3))
    script = """
import sys
sys.modules["hdf5plugin"] = None
from twinrun.formats import open_file
content = open_file(sys.argv[1])
assert content.fields["fine"].elements().tolist() == [0, 1, 2]
try:
    content.fields["g/z"].elements()
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, env=environment
    )
    assert done.stdout.startswith("MissingPackage"), done
    assert (
        "dataset 'g/z': is compressed with HDF5 filter 32001 (blosc); run: pip install hdf5plugin"
        in done.stdout
    )


def test_without_h5py_the_pip_command_is_named(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = 1
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[hdf5\]'"):
        open_file(tmp_path / "x.h5")


def test_nothing_is_opened_as_python(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.void(b"cos\nsystem\n."))
    monkeypatch.setattr(builtins, "eval", None)
    with open_file(tmp_path / "x.h5") as content:
        assert not_numbers(content) == {"x": "opaque bytes"}
        assert texts(content.fields["x"]) == ["0x" + b"cos\nsystem\n.".hex()]


def test_reads_from_several_threads_and_after_closing(tmp_path):
    array = array_of("<u4", (60, 50, 40))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "ab":
            file.create_dataset(name, data=array, chunks=(9, 11, 13), compression="lzf")
    wrong = []
    with open_file(tmp_path / "x.h5") as content:

        def work(name):
            for at in range(0, array.size, 7001):
                count = min(7001, array.size - at)
                if not same(content.fields[name].elements(at, count), array.reshape(-1)[at : at + count]):
                    wrong.append(at)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        field = content.fields["a"]
    assert not wrong
    with pytest.raises(FormatError, match="closed"):
        field.elements(0, 1)
    content.close()


def test_a_damaged_chunk_and_a_file_cut_short(tmp_path):
    array = array_of("<f4", (1000,))
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=(100,), fletcher32=True)
        offset = file["x"].id.get_chunk_info(3).byte_offset
    data = bytearray(path.read_bytes())
    data[offset + 7] ^= 1
    path.write_bytes(data)
    with open_file(path) as content, pytest.raises(DamagedFile, match="'x'"):
        content.fields["x"].elements()
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            open_file(path)


# Only damage that the HDF5 library itself survives can be asked of us; a file is opened in this process.
@settings(max_examples=150)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = array_of("<f4", (5, 3))
        file.create_dataset("g/b", data=np.arange(40), chunks=(7,), compression="gzip")
        file["c"] = array_of([("p", "<f4"), ("q", "<i8")], (3,))
    good = path.read_bytes()
    survives(path, data.draw(mutations(good)), format="hdf5")


def opaque(path: Path, place: str, data: bytes, tag: bytes) -> None:
    """Two times two opaque bytes with a tag: an attribute or a data set, by themselves, as an array, or as a member."""
    h5t = h5py.h5t
    kind = h5t.create(h5t.OPAQUE, 2)
    kind.set_tag(tag)
    held = np.frombuffer(data, "V2")
    if "array" in place:
        kind, held = h5t.array_create(kind, (2,)), held.reshape(1, 2)
    if "member" in place:
        inner, outer = h5t.create(h5t.COMPOUND, 10), h5t.create(h5t.COMPOUND, 12)
        inner.insert(b"n", 0, h5t.STD_I64BE)
        inner.insert(b"raw", 8, kind)
        outer.insert(b"deep", 0, inner)
        outer.insert(b"m", 10, h5t.STD_I16LE)
        records = np.zeros(2, [("deep", [("n", ">i8"), ("raw", "V2")]), ("m", "<i2")])
        records["deep"]["raw"], records["m"] = held, [3, 4]
        kind, held = outer, records
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3.0)
        space = h5py.h5s.create_simple((len(held),))
        if "attribute" in place:
            h5py.h5a.create(file["x"].id, b"o", kind, space).write(held, mtype=kind)
        else:
            made = h5py.h5d.create(file.id, b"o", kind, space)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, held, mtype=kind)


@pytest.mark.parametrize("what", ["", "array", "member"])
@pytest.mark.parametrize("where", ["attribute", "data set"])
def test_opaque_bytes_with_a_tag(where: str, what: str, tmp_path: Path) -> None:
    """HDF5 converts none to those without, which h5py asks for: they are compared as bytes and tag."""
    place = f"{where} {what}"
    for name, data, tag in (
        ("a", b"abcd", b"t"),
        ("b", b"abcd", b"t"),
        ("c", b"abce", b"t"),
        ("d", b"abcd", b"T"),
    ):
        opaque(tmp_path / f"{name}.h5", place, data, tag)
    for other, status in (("b", 0), ("c", 1), ("d", 1)):
        done = command("compare", tmp_path / "a.h5", tmp_path / f"{other}.h5")
        assert done.status == status, done
    twinrun.index(tmp_path / "a.h5")
    assert twinrun.verify(tmp_path / "a.h5")
    assert command("compare", tmp_path / "a.h5", tmp_path / "c.h5").status == 1


def test_references_are_told_by_what_they_refer_to(tmp_path):
    for name, target in (("a", "one"), ("b", "two")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["one"], file["two"] = np.arange(4), np.arange(4)
            part = slice(0, 2) if target == "one" else slice(1, 3)
            file.create_dataset("whole", data=[file[target].ref], dtype=h5py.ref_dtype)
            file.create_dataset("part", data=[file["one"].regionref[part]], dtype=h5py.regionref_dtype)
            file["one"].attrs["to"] = file[target].ref
            file["one"].attrs["all"] = np.array([file[target].ref] * 2, h5py.ref_dtype)
            kind = [("to", h5py.ref_dtype), ("n", "i4")]
            file.create_dataset("struct", data=np.array([(file[target].ref, 1)], kind))
    found = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    told = {f.field: (f.first_a, f.first_b) for f in found.fields if not f.same}
    assert told["whole"] == ("reference to /one", "reference to /two")
    assert told["part"] == (
        "reference to /one at [[[0], [1]]]",
        "reference to /one at [[[1], [2]]]",
    )
    assert told["struct.to"] == told["whole"]
    assert [d.text() for d in found.attributes] == [
        "one@all: ['reference to /one', 'reference to /one'] against ['reference to /two', 'reference to /two']",
        "one@to: reference to /one against reference to /two",
    ]


def test_a_null_dataspace_is_called_one(tmp_path: Path) -> None:
    for name, value in (("a", h5py.Empty("f4")), ("b", np.zeros(3, "f4"))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = value
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    check_error(command("compare", a, b), f"field 'x': shape null (no elements) in {a}, [3] in {b}")
    check_error(command("compare", b, a), f"field 'x': shape [3] in {b}, null (no elements) in {a}")
    (line,) = (line for line in command("show", a).out.splitlines() if line.startswith("x "))
    assert line.split()[:3] == ["x", "f32", "null"]
    assert command("compare", a, a).status == 0


def filters_that_trust_lengths():
    """Settings of `create_dataset` by name."""
    plugin = pytest.importorskip("hdf5plugin")
    made = {f"Blosc {name}": plugin.Blosc(cname=name) for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")}
    made |= {f"Blosc2 {name}": plugin.Blosc2(cname=name) for name in ("lz4", "zstd")}
    made |= {f"bitshuffle {name}": plugin.Bitshuffle(cname=name) for name in ("none", "lz4", "zstd")}
    made |= {"LZ4": plugin.LZ4(), "blocks of LZ4": plugin.LZ4(nbytes=4096), "Zstd": plugin.Zstd()}
    made |= {"bzip2": plugin.BZip2(), "LZ4 and sum": dict(plugin.LZ4()) | {"fletcher32": True}}
    return made | {"gzip": {"compression": "gzip"}, "shuffle": {"shuffle": True}, "sum": {"fletcher32": True}}


@pytest.mark.parametrize("filters", [{"compression": "gzip"}, {"shuffle": True}, {"compression": "lzf"}])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_chunk_that_is_shorter_than_its_checksum(tmp_path, filters: dict, size: int) -> None:
    """libhdf5 ends the process at it."""
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            x = file.create_dataset("x", data=np.arange(300.0), chunks=(100,), fletcher32=True, **filters)
            if name == "b":
                x.id.write_direct_chunk((100,), b"x" * size, 0)
    for verb in (["compare", tmp_path / "a.h5"], ["index"]):
        done = subprocess.run(
            [sys.executable, "-m", "twinrun", *verb, tmp_path / "b.h5"],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert (
            done.returncode == 2
            and f"the chunk at (100,): {size} bytes, and its checksum has 4" in done.stderr
        )


def test_cut_and_longer_chunks_give_no_other_numbers(tmp_path):
    pytest.importorskip("hdf5plugin")
    # In a process of its own, in which nobody has imported netCDF4, whose plugins would be taken.
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {k: v for k, v in os.environ.items() if k != "HDF5_PLUGIN_PATH"} | {"PYTHONPATH": path}
    script = "import sys, pathlib, test_format_hdf5 as t; t.check_changed_chunks(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def check_changed_chunks(tmp_path):
    """Reads chunks that were cut short, or made longer, of every filter."""
    rng = np.random.default_rng(0)
    arrays = [rng.random(4000), rng.integers(0, 10**6, 4000), np.arange(4003) * 8, np.zeros(4000)]
    for name, how in filters_that_trust_lengths().items():
        for array in arrays:
            path = tmp_path / "x.h5"
            with h5py.File(path, "w") as file:
                chunk = file.create_dataset("x", data=array, chunks=(1000,), **how).id.read_direct_chunk(
                    (3000,)
                )[1]
            with open_file(path) as content:
                np.testing.assert_array_equal(content.fields["x"].elements(), array, err_msg=name)
            for cut in (*range(-8, 0), *range(1, 9)):
                with h5py.File(path, "r+") as file:
                    changed = chunk[:cut] if cut < 0 else chunk + bytes(range(1, cut + 1))
                    file["x"].id.write_direct_chunk((3000,), changed)
                try:
                    with open_file(path) as content:
                        found = content.fields["x"].elements()
                except FormatError as problem:
                    assert "field 'x'" in str(problem), (name, cut, problem)
                    continue
                np.testing.assert_array_equal(found, array, err_msg=f"{name}, {cut}")


def booleans(path, raw, **how):
    """Writes booleans of such bytes: as elements, as members of structs, and in arrays in these."""
    pair = np.zeros(len(raw), [("t", "?"), ("n", "i4"), ("pad", "?", (2,))])
    with h5py.File(path, "w") as file:
        for name, array in (("x", np.zeros(len(raw), "?")), ("pair", pair)):
            stored = array["t"] if name == "pair" else array
            stored.view("i1")[:] = raw
            if name == "pair":
                array["pad"].view("i1")[:, 1] = raw
            file.create_dataset(name, data=array, **how)


@pytest.mark.parametrize("how", [{}, {"chunks": (2,)}])
def test_booleans_of_other_bytes_are_never_the_same(tmp_path, how):
    for name, raw in (("a", [0, 1, 1]), ("b", [0, 2, 1]), ("c", [0, -1, 1])):
        booleans(tmp_path / f"{name}.h5", raw, **how)
    good = twinrun.compare(tmp_path / "a.h5", tmp_path / "a.h5")
    assert good.verdict == "same"
    for name, number in (("b", 2), ("c", -1)):
        with open_file(tmp_path / f"{name}.h5") as content:
            for field in ("x", "pair.t", "pair.pad"):
                assert content.fields[field].dtype == "bool"
                with pytest.raises(DamagedFile, match=f"an element is {number}, which is neither FALSE"):
                    content.fields[field].elements()
            assert content.fields["pair.n"].elements().tolist() == [0, 0, 0]
        with pytest.raises(DamagedFile, match="neither FALSE"):
            twinrun.compare(tmp_path / "a.h5", tmp_path / f"{name}.h5")
