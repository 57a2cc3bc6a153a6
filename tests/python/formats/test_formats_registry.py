import os
import pickle

import numpy as np
import pytest

import twinrun.formats as package
from twinrun.errors import FormatError, MissingFile, MissingPackage, TwinrunError, one_line
from twinrun.formats import (
    Extent,
    Field,
    FileContent,
    Format,
    detect,
    formats,
    open_as,
    open_file,
    register,
)
from twinrun.formats.how import how_read, read_as


def test_formats_of_this_folder():
    found = list(formats())
    assert found == sorted(found, key=lambda name: (formats()[name].order, name))
    assert found[-2:] == [
        "raw",
        "bytes",
    ]  # one takes any file that has a description, the other is never found
    wanted = "amrex gadget genericio hdf5 lammps npy npz raw safetensors trr veloc vtk vtk-legacy"
    assert set(wanted.split()) <= set(found)


def test_content_beats_a_wrong_suffix(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    os.rename(tmp_path / "x.npy", tmp_path / "x.data")
    assert detect(tmp_path / "x.data").name == "npy"
    np.savez(tmp_path / "y.npz", a=np.arange(3))
    os.rename(tmp_path / "y.npz", tmp_path / "y.h5")
    assert detect(tmp_path / "y.h5").name == "npz"
    # A suffix that names the type is a promise: such numbers may begin with anything.
    (tmp_path / "z.u8").write_bytes((tmp_path / "x.data").read_bytes())
    assert detect(tmp_path / "z.u8").name == "raw"


def test_options_of_another_format(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(FormatError, match=r"npy has no option 'dtype'.*add format='raw'"):
        open_file(tmp_path / "x.npy", dtype="f32")
    assert open_file(tmp_path / "x.npy", format="raw", dtype="u8").fields["x"].dtype == "u8"
    (tmp_path / "x.unknown").write_bytes(bytes(8))
    assert open_file(tmp_path / "x.unknown", dtype="f32").fields["x"].shape == (2,)


def test_what_cannot_be_opened(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    os.symlink("loop", tmp_path / "loop")
    os.symlink("nowhere", tmp_path / "broken")
    os.mkfifo(tmp_path / "pipe.f32")
    for name, words in {
        "text.txt": "not recognised",
        "loop": "symbolic links",
        "broken": "is a symbolic link to nowhere, which is not there",
        "pipe.f32": "not a regular file",
        "gone.npy": "no such file",
        "text.txt/x.npy": "no such file",
        "\0": "null",
        ".": "is a folder",
    }.items():
        with pytest.raises(FormatError, match=words):
            open_file(os.path.join(tmp_path, name))
    with pytest.raises(FormatError, match="unknown format 'x'"):
        open_file(tmp_path / "text.txt", format="x")
    with pytest.raises(FormatError, match="is a folder"):
        open_file(tmp_path, format="npy")
    with pytest.raises(MissingFile):
        open_file(tmp_path / "gone", format="raw")


def test_a_folder_and_a_file_format_are_added_in_one_place(tmp_path, monkeypatch):
    def open_mine(path):
        content = FileContent(path, "mine")
        content.add(Field("x", "u8", "little", (2,), extents=(Extent(path, 4, 2, 1),)))
        return content

    monkeypatch.setattr(package, "_extra", {})
    register(Format("mine", "Mine", open_mine, magic=(b"MINE",)))
    (tmp_path / "a").write_bytes(b"MINE\x07\x08")
    assert open_file(tmp_path / "a").fields["x"].elements().tolist() == [7, 8]

    def is_plot(path):
        return os.path.isfile(os.path.join(path, "Header"))

    register(Format("plot", "Plot", lambda path: FileContent(path, "plot"), is_folder=is_plot))
    (tmp_path / "plt").mkdir()
    (tmp_path / "plt" / "Header").write_text("")
    assert open_file(tmp_path / "plt").format == "plot"


def test_messages_are_one_line_and_survive_a_worker_process():
    error = MissingPackage.of("h5py", "twinrun[hdf5]", where="a\nb.h5")
    assert str(error) == "a\\nb.h5: needs the Python package h5py; run: pip install 'twinrun[hdf5]'"
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back, MissingPackage) and str(back) == str(error) and back.fix == error.fix
    assert isinstance(error, FormatError) and isinstance(error, TwinrunError)
    assert one_line("a" * 5000).count("a") == 2000
    assert one_line("\x1b[0m\udc80") == "\\x1b[0m\\udc80"


def test_fields_hold_together():
    with pytest.raises(ValueError):
        Field("x", "f32", "little", (3,))
    with pytest.raises(ValueError):
        Field("x", "f32", "little", (3,), extents=(), read=lambda a, b: np.empty(b))
    with pytest.raises(ValueError):
        Field("x", "f32", "little", (3,), extents=(Extent("p", 0, 2, 4),))
    with pytest.raises(ValueError):
        Field("x", "f99", "little", (3,), extents=(Extent("p", 0, 3, 4),))


def test_extents_that_pass_the_end_of_a_file_that_shrank(tmp_path):
    np.arange(10.0).tofile(tmp_path / "x.f64")
    field = open_file(tmp_path / "x.f64").fields["x"]
    os.truncate(tmp_path / "x.f64", 40)
    with pytest.raises(FormatError, match="too early"):
        field.elements()
    os.remove(tmp_path / "x.f64")
    with pytest.raises(MissingFile):
        field.elements()


def test_how_a_file_was_read_is_one_text():
    raw, hdf5 = formats()["raw"], formats()["hdf5"]
    assert how_read(raw, {}) == "raw" and read_as("raw", "m") == ("raw", {})
    same = (
        {"dtype": "f32", "shape": "3x4", "offset": 16, "partial": True},
        {"shape": (3, 4), "dtype": " f32 ", "partial": "true", "offset": "16"},
        {"shape": [3, 4], "dtype": "f32", "partial": True, "offset": np.int64(16)},
    )
    texts = {how_read(raw, options) for options in same}
    assert texts == {'raw {"dtype": "f32", "offset": "16", "partial": "true", "shape": "3x4"}'}
    assert read_as(texts.pop(), "m") == (
        "raw",
        {"dtype": "f32", "offset": "16", "partial": "true", "shape": "3x4"},
    )
    assert (
        how_read(raw, {"dtype": np.float32})
        == how_read(raw, {"dtype": np.dtype("=f4")})
        == 'raw {"dtype": "float32"}'
    )
    assert how_read(raw, {"dtype": np.dtype(">f4")}) == 'raw {"dtype": ">f4"}'
    assert how_read(hdf5, {"cache": 5}) == "hdf5"  # nothing of what is read depends on it
    fields = [("x", "f32"), {"name": "y", "dtype": "f64", "offset": 8}]
    name, options = read_as(how_read(raw, {"fields": fields}), "m")
    assert (name, options) == (
        "raw",
        {"fields": [["x", "f32"], {"name": "y", "dtype": "f64", "offset": "8"}]},
    )
    for wrong in ("raw {", "raw []", "raw x", "raw " + "[" * 100_000):
        with pytest.raises(FormatError, match="how its data was read"):
            read_as(wrong, "m")


def test_options_that_were_recorded_read_the_same(tmp_path):
    np.arange(12, dtype=">f4").tofile(tmp_path / "x.bin")
    for options in (
        {"dtype": ">f4", "shape": (3, 4)},
        {"fields": [("x", ">f4"), {"name": "y", "dtype": "f32", "offset": 4}], "record": 8},
        {"dtype": np.float32, "order": "big", "offset": 8},
    ):
        first = open_file(tmp_path / "x.bin", **options)
        again = open_as(os.fspath(tmp_path / "x.bin"), first.how, "m")
        assert again.how == first.how
        assert {n: f.elements().tolist() for n, f in again.fields.items()} == {
            n: f.elements().tolist() for n, f in first.fields.items()
        }
