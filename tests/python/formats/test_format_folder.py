import json
import os
import random
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import twinrun
from twinrun.errors import FormatError, MissingFile
from twinrun.formats import naming
from twinrun.formats.folder import is_history, list_folder
from twinrun.formats.naming import Place, field_name, parse_path, place_among, times_among


@pytest.mark.parametrize(
    ("path", "step", "rank", "name"),
    [
        ("step-0000000010/x.f32", 10, 0, "x"),
        ("plt00010.h5", 10, 0, "plt"),
        ("out_250.npy", 250, 0, "out"),
        ("out.250.npy", 250, 0, "out"),
        ("dump.1000.bin", 1000, 0, "dump"),
        ("step-10/rank-00003/x.npy", 10, 3, "x"),
        ("rank3/step10/vx.f32", 10, 3, "vx"),
        ("rank-00001_step_20_x.npy", 20, 1, "x"),
        ("x_rank2.f32", None, 2, "x"),
        ("snap_010.3.hdf5", 10, 3, "snap"),
        ("snapshot_010.3", 10, 3, "snapshot"),
        ("dump.melt.1000", 1000, 0, "dump.melt"),
        ("out_250.7.h5", 250, 7, "out"),
        ("step-10/x.3.f32", 10, 3, "x"),
        ("0250/x.3.f32", 250, 3, "x"),
        ("250/x.f32", 250, 0, "x"),
        ("output_00010/part/x1.f32", 10, 0, "part/x1"),
        ("x1.f32", 1, 0, "x"),
        ("x.f32", None, 0, "x"),
        ("a/b/x.f32", None, 0, "a/b/x"),
        ("250.npy", 250, 0, ""),
        ("v_x-0010.npy", 10, 0, "v_x"),
        ("frankfurt7.npy", 7, 0, "frankfurt"),
        ("x.10.npy.gz", 10, 0, "x"),
        ("iter10_field2.npy", 10, 0, "iter10_field2".replace("iter10_", "")),
        ("epoch=3-step=1000.ckpt", 1000, 0, ""),
        ("checkpoints/epoch=3-step=1000-val_loss=0.25.ckpt", 1000, 0, "checkpoints"),
        ("model-epoch=12.ckpt", 12, 0, "model"),
        ("step=10-epoch=2.pt", 10, 0, ""),
        ("x_step=5_rank=2.npy", 5, 2, "x"),
        ("lr=0.25-step=10.npy", 10, 0, "lr=0.25"),
        ("99999999999999999999999.npy", None, 0, "99999999999999999999999"),
    ],
)
def test_step_rank_and_name(path, step, rank, name):
    assert parse_path(path) == Place(step, rank, name)


@pytest.mark.parametrize(
    ("paths", "places"),
    [
        # Numbers with a point, and whole ones beside them, are times.
        (["0/T.npy", "0.5/T.npy", "1/T.npy", "1.5/T.npy"], ["0/T", "0.5/T", "1/T", "1.5/T"]),
        (["0.8/p.npy", "1.1/p.npy"], ["0.8/p", "1.1/p"]),
        ([f"T_t={t / 2}.npy" for t in range(10)], [f"T_t={t / 2}" for t in range(10)]),
        ([f"out_{t / 4:.2f}.npz" for t in range(10)], [f"out_{t / 4:.2f}" for t in range(10)]),
        ([f"t{t / 10}.h5" for t in range(21)], [f"t{t / 10}" for t in range(21)]),
        (["out_1.npy", "out_1.25.npy"], ["out_1", "out_1.25"]),
        (["u2_0.25.npy", "u2_0.5.npy"], ["u2_0.25", "u2_0.5"]),
        (["out_t2.000e-03.npz", "out_t1.0e-02.npz"], ["out_t2.000e-03", "out_t1.0e-02"]),
        (["1e-05/x.npy", "0.001/x.npy"], ["1e-05/x", "0.001/x"]),
        (["out_2020-01-03.npz"], ["out_2020-01-03"]),
        (["wrfout_d01_2020-01-03_12:00:00"], ["wrfout_d01_2020-01-03_12:00:00"]),
        (["\ue000_0.25.npy", "\ue000_0.5.npy"], ["\ue000_0.25", "\ue000_0.5"]),
        # Beside a step or a rank that a word names.
        (["step_10/out_0.25.npz"], [(10, 0, "out_0.25")]),
        (["rank-3/0.5/T.npy", "rank-3/1/T.npy"], [(None, 3, "0.5/T"), (None, 3, "1/T")]),
        (["epoch=3-step=1000-val_loss=0.25.ckpt"], [(1000, 0, "")]),
        # A step and a rank: all ranks are there, or the step is padded.
        (
            [f"x_250.{r}.npy" for r in range(4)] + ["x_500.0.npy"],
            [(250, r, "x") for r in range(4)] + [(500, 0, "x")],
        ),
        (["snap_010.3.hdf5"], [(10, 3, "snap")]),
        (["out_1.0.npy", "out_2.0.npy"], [(1, 0, "out"), (2, 0, "out")]),
        (
            [f"x_{s}.{r}.npy" for s in (0, 250) for r in range(10)],
            [(s, r, "x") for s in (0, 250) for r in range(10)],
        ),
    ],
)
def test_times_in_names_are_no_steps(paths: list[str], places: list) -> None:
    times = times_among(paths)
    found = [place_among(path, times) for path in paths]
    assert found == [Place(None, 0, p) if isinstance(p, str) else Place(*p) for p in places]
    assert [place_among(path, {}) for path in paths] == [parse_path(path) for path in paths]


def test_the_first_difference_is_that_of_the_smallest_number(tmp_path: Path) -> None:
    """Of folders that are called by times, and of groups in one file."""
    for run in ("a", "b"):
        for time in ("0", "0.5", "1", "2.5", "10"):
            folder = tmp_path / run / time
            folder.mkdir(parents=True)
            np.save(folder / "T.npy", np.zeros(3) if run == "a" or float(time) < 1 else np.arange(3.0))
        with h5py.File(tmp_path / f"{run}.h5", "w") as file:
            for step in range(4, 14):
                for name in "uv":
                    file[f"step_{step}/{name}"] = np.zeros(3) + (run == "b" and step >= 6)
    found = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert [f.field for f in found.fields if not f.same] == ["1/T", "2.5/T", "10/T"]
    assert {(f.step, f.rank) for f in found.fields} == {(None, 0)}
    in_a_file = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert [f.field for f in in_a_file.fields if not f.same][:3] == ["step_6/u", "step_6/v", "step_7/u"]


def test_a_name_of_numbers_only():
    assert field_name("/runs/step-3/250.npy") == "data"


def fields_of(listing, options=None):
    result = {}
    for file in listing.files:
        with file.open(options) as content:
            for name, field in file.fields(content).items():
                assert (file.step, file.rank, name) not in result and field.name == name
                result[file.step, file.rank, name] = field.elements()
    return result


def test_a_folder_of_steps(tmp_path):
    for step in (9, 10, 100):
        for rank in (0, 1):
            folder = tmp_path / f"step-{step}" / f"rank-{rank:05}"
            folder.mkdir(parents=True)
            np.full(4, step + rank, "<f4").tofile(folder / "x.f32")
            np.save(folder / "y.npy", np.full(2, step))
            (folder / "x.f32.twm").write_bytes(b"\x89TWM\r\n\x1a\n")
            (folder / "x.f32.json").write_text(json.dumps({"dtype": "f32"}))
            (folder / ".hidden.npy").write_bytes(b"")
    (tmp_path / "log.txt").write_text("text")
    (tmp_path / "note.json").write_text("{}")
    (tmp_path / "unknown.bin").write_bytes(bytes(8))
    (tmp_path / "words.dat").write_text("some words, and no table\nmore\n")
    listing = list_folder(tmp_path)
    assert listing.steps() == [None, 9, 10, 100]
    assert [(f.step, f.rank, f.prefix) for f in listing.data()] == [
        (s, r, n) for s in (9, 10, 100) for r in (0, 1) for n in ("x", "y")
    ]
    hidden = [f"step-{s}/rank-{r:05}/.hidden.npy" for s in (9, 10, 100) for r in (0, 1)]
    assert not listing.ignored
    assert sorted(name for name, _ in listing.unknown) == sorted(
        [*hidden, "log.txt", "note.json", "unknown.bin", "words.dat"]
    )
    assert [f.format for f in listing.files if f.step is None] == ["bytes"] * 10
    assert "dtype" not in dict(listing.unknown)["words.dat"]
    assert "unknown.bin.json" in dict(listing.unknown)["unknown.bin"]
    found = fields_of(listing)
    assert found[10, 1, "x"].tolist() == [11] * 4 and found[100, 0, "y"].tolist() == [100] * 2
    with_options = list_folder(tmp_path, {"dtype": "f32"})
    assert "unknown.bin" in [f.relative for f in with_options.files]
    assert fields_of(with_options, {"dtype": "f32"})[None, 0, "unknown"].size == 2


def write_h5(path, array):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"] = array


def test_content_says_what_a_file_of_a_folder_is(tmp_path):
    """Suffixes are shared: .nc is NetCDF classic and HDF5, .bin is raw and a zip archive of tensors."""
    kinds = {
        "hdf5": ("h5", "hdf5", "nc", "nc4", "bin", "dat", "npy", "pt", "data"),
        "npy": ("npy", "nc", "dat", "bin", "h5", "ckpt"),
        "npz": ("npz", "pt", "ckpt", "zip", "bin"),
    }
    wanted = {}
    for kind, suffixes in kinds.items():
        for suffix in [*(f".{s}" for s in suffixes), ""]:
            path = tmp_path / f"{kind}-file{suffix}"
            with open(path, "wb") as file:
                if kind == "npy":
                    np.save(file, np.arange(3))
                elif kind == "npz":
                    np.savez(file, x=np.arange(3))
            if kind == "hdf5":
                write_h5(path, np.arange(3))
            wanted[path.name] = kind
    listing = list_folder(tmp_path)
    assert {f.relative: f.format for f in listing.files} == wanted
    assert listing.ignored == []


def test_what_is_not_readable_is_taken_by_its_name(tmp_path):
    """A file that is empty or cut short is not passed over: opening it says what is wrong."""
    (tmp_path / "a.nc").write_bytes(b"")
    (tmp_path / "b.h5").write_bytes(bytes(100))
    os.symlink("gone", tmp_path / "c.npy")
    os.mkfifo(tmp_path / "d.npz")
    listing = list_folder(tmp_path)
    assert [f.relative for f in listing.files] == ["a.nc", "b.h5"]
    assert listing.unreadable == [("c.npy", "a link that leads nowhere"), ("d.npz", "not a regular file")]
    for file in listing.files:
        with pytest.raises(FormatError):
            file.open()


def test_a_format_that_is_forced_holds_for_every_file(tmp_path):
    for name in ("x.npy", "y.log", "z"):
        np.save(tmp_path / "saved.npy", np.arange(3.0))
        os.rename(tmp_path / "saved.npy", tmp_path / name)
    options = {"format": "raw", "dtype": "u8"}
    listing = list_folder(tmp_path, options)
    assert {(f.relative, f.format) for f in listing.files} == {(n, "raw") for n in ("x.npy", "y.log", "z")}
    size = os.path.getsize(tmp_path / "z")
    assert {a.size for a in fields_of(listing, options).values()} == {size}
    assert {f.format for f in list_folder(tmp_path).files} == {"npy"}
    with pytest.raises(FormatError, match="unknown format 'x'"):
        list_folder(tmp_path, {"format": "x"})
    with pytest.raises(FormatError, match="format npy has no option 'dtype'"):
        list_folder(tmp_path, {"format": "npy", "dtype": "f32"})
    with pytest.raises(FormatError, match="no format has an option 'dtpye'"):
        list_folder(tmp_path, {"dtpye": "f32"})


def test_a_format_of_folders_that_is_forced(tmp_path):
    (tmp_path / "step-1" / "x.zarr").mkdir(parents=True)
    (tmp_path / "step-1" / "x.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "log.txt").write_text("text")
    listing = list_folder(tmp_path / "step-1", {"format": "zarr"})
    assert [(f.relative, f.format) for f in listing.files] == [("x.zarr", "zarr")]
    listing = list_folder(tmp_path, {"format": "amrex"})
    assert listing.data() == []
    assert ("log.txt", "a file, and amrex is a format of folders") in listing.unknown


def test_what_describes_other_files_is_no_data(tmp_path):
    (tmp_path / "veloc.json").write_text('{"types": {"0": "f64"}}')
    for options in (None, {"format": "veloc"}):  # nothing that it describes: it is compared as what it is
        listing = list_folder(tmp_path, options)
        assert listing.data() == listing.ignored == []
        assert [f.format for f in listing.files] == ["bytes"]


def test_files_of_several_arrays_are_prefixed_where_there_are_several_kinds(tmp_path):
    for step in (1, 2):
        np.savez(tmp_path / f"plt{step:05}.npz", x=np.arange(3), y=np.arange(2))
    assert set(fields_of(list_folder(tmp_path))) == {(s, 0, n) for s in (1, 2) for n in "xy"}
    np.savez(tmp_path / "grid00002.npz", x=np.arange(3))
    found = set(fields_of(list_folder(tmp_path)))
    assert found == {(s, 0, f"plt/{n}") for s in (1, 2) for n in "xy"} | {(2, 0, "grid/x")}


def test_records_beside_other_files_are_prefixed(tmp_path):
    for name in ("atoms", "cells"):
        np.zeros(3, [("x", "<f4"), ("y", "<f4")]).tofile(tmp_path / f"{name}.5.bin")
    options = {"fields": "x:f32,y:f32"}
    found = fields_of(list_folder(tmp_path, options), options)
    assert set(found) == {(5, 0, f"{f}/{m}") for f in ("atoms", "cells") for m in "xy"}


def test_the_same_name_twice(tmp_path):
    np.arange(3.0).tofile(tmp_path / "x.f64")
    np.save(tmp_path / "x.npy", np.arange(3.0))
    assert set(fields_of(list_folder(tmp_path))) == {(None, 0, "x.f64"), (None, 0, "x.npy")}
    np.save(tmp_path / "x_1.npy", np.arange(3))
    np.save(tmp_path / "x_01.npy", np.arange(3))
    with pytest.raises(FormatError, match=r"x_01\.npy.*x_1\.npy"):
        list_folder(tmp_path)


def test_links_loops_and_odd_files(tmp_path):
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "x.npy", np.arange(3))
    os.symlink("..", tmp_path / "a" / "up")
    os.symlink("a", tmp_path / "b")
    os.symlink("loop", tmp_path / "loop")
    os.symlink("gone", tmp_path / "gone.npy")
    os.mkfifo(tmp_path / "pipe")
    listing = list_folder(tmp_path)
    assert [(f.relative, f.leads_to) for f in listing.files] == [("a/up", "."), ("a/x.npy", None), ("b", "a")]
    reasons = dict(listing.unreadable)
    assert sorted(reasons) == ["gone.npy", "loop", "pipe"] and "leads nowhere" in reasons["gone.npy"]


def test_many_links_do_not_multiply(tmp_path):
    for level in range(30):
        (tmp_path / f"d{level}").mkdir()
        for name in "ab":
            os.symlink(f"../d{level + 1}", tmp_path / f"d{level}" / name)
    (tmp_path / "d30").mkdir()
    files = list_folder(tmp_path).files
    assert len(files) == 60 and {f.leads_to for f in files} == {f"d{level + 1}" for level in range(30)}


def test_missing_folders_and_histories(tmp_path):
    with pytest.raises(MissingFile, match="no such folder"):
        list_folder(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="not a folder"):
        list_folder(tmp_path / "file")
    assert not is_history(tmp_path)
    (tmp_path / "manifest.jsonl").write_text("")
    assert is_history(tmp_path)


def test_usual_names_are_parsed_as_the_rules_say(monkeypatch):
    words = "rank proc mpi step iter it plt chk ckpt snap dump out output frame epoch gen field x ts Field OUT time_step output_x snapper"
    own = random.Random(1)
    paths = []
    for _ in range(20_000):
        stem = own.choice(["", "-", "_", "__", "-_"]).join(
            own.choice(words.split()) + own.choice(["", "_", "-"]) for _ in range(own.randrange(1, 4))
        )
        number = own.choice(["0", "1", "345", "00012", "9" * 18, "1" * 19])
        if own.random() < 0.4:
            number += own.choice("._") + own.choice(["0", "3", "00017", "9" * 18, "1" * 19])
        suffix = own.choice([".npy", ".h5", ".ckpt", ".gz", ".f32", ".Npy", "", ".npy.gz"])
        paths.append(stem + own.choice("-_.") * own.randrange(0, 3) + number + suffix)
    parse = parse_path.__wrapped__
    quick = [parse(path) for path in paths]
    assert sum(naming._usual()[0].fullmatch(path) is not None for path in paths) > 1000
    monkeypatch.setattr(naming, "_usual", lambda: (re.compile("$^"), re.compile("")))
    assert [parse(path) for path in paths] == quick


@pytest.mark.parametrize("name", ["x.npy", "sub/x.npy", "run.2/x.npy"])
def test_metadata_beside_a_file_of_a_folder_is_used(tmp_path, name):
    for run in "ab":
        for file in (name, "other.npy"):
            path = tmp_path / run / file
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.arange(1000.0))
    assert not list_folder(tmp_path / "a").has_metadata
    for run in "ab":
        twinrun.index(tmp_path / run / name, atol=1e-3)
        assert list_folder(tmp_path / run).has_metadata
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", atol=1e-3)
    assert result.same
    assert sorted(f.method for f in result.fields) == ["direct", "staged"]
