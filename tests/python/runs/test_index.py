"""twinrun index: metadata beside files of every format, kept while it is current, rebuilt when it is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from commands import cannot_compare, check_error, command, load_json

import twinrun
from twinrun import golden
from twinrun.golden.single import Reproducible
from twinrun.runs import index as indexing
from twinrun.runs.metadata import status_code

Fields = dict[str, np.ndarray]


def save_h5(path: Path, fields: Fields, **layout: object) -> None:
    with h5py.File(path, "w") as file:
        for name, x in fields.items():
            file.create_dataset(name, data=x, **layout)


def save_safetensors(path: Path, fields: Fields) -> None:
    pytest.importorskip("safetensors.numpy").save_file(fields, path)


FORMATS: dict[str, tuple[str, Callable[[Path, Fields], object]]] = {
    "raw": ("x.f64", lambda p, f: f["x"].tofile(p)),
    "npy": ("x.npy", lambda p, f: np.save(p, f["x"])),
    "npy, column-major": ("x.npy", lambda p, f: np.save(p, np.asfortranarray(f["x"].reshape(50, 40).T))),
    "npz": ("d.npz", lambda p, f: np.savez(p, **f)),
    "npz, deflated": ("d.npz", lambda p, f: np.savez_compressed(p, **f)),
    "hdf5": ("d.h5", save_h5),
    "hdf5, chunked": ("d.h5", lambda p, f: save_h5(p, f, chunks=True)),
    "hdf5, compressed": ("d.h5", lambda p, f: save_h5(p, f, compression="gzip", shuffle=True)),
    "safetensors": ("d.safetensors", save_safetensors),
}


def fields_of(step: int) -> Fields:
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=2000), "v": rng.normal(size=(20, 60)).astype("f4"), "id": np.arange(100)}


@pytest.mark.parametrize("kind", FORMATS)
def test_folders_with_a_planted_difference(kind: str, tmp_path: Path) -> None:
    name, save = FORMATS[kind]
    for run in ("a", "b"):
        for step in (10, 20, 30):
            folder = tmp_path / run / f"step-{step:04}"
            folder.mkdir(parents=True)
            fields = fields_of(step)
            if run == "b" and step >= 20:
                fields["x"][1234] += 0.5
            save(folder / name, fields)
    a, b = tmp_path / "a", tmp_path / "b"
    plain = command("compare", a, b, "--atol", "1e-6", "--json", "-")
    indexed = command("index", a, b, "--atol", "1e-6")
    assert indexed.status == 0 and len(indexed.out.splitlines()) == 6, indexed
    assert sum(name.endswith(".twm") for _, _, names in os.walk(a) for name in names) == 3
    staged = command("compare", a, b, "--json", "-")
    for done in (plain, staged):
        d = load_json(done.out)
        first = d["first_divergence"]
        at = [34, 30] if "column-major" in kind else [1234]
        assert (done.status, d["different"]) == (1, 2)
        assert (first["step"], first["field"], first["index"]) == (20, "x", at)
    assert {f["method"] for f in load_json(staged.out)["fields"]} == {"staged"}
    assert {f["method"] for f in load_json(plain.out)["fields"]} == {"direct"}
    assert command("compare", a, b, "--steps", "10").status == 0
    assert command("verify", a).status == 0
    shown = command("show", a, "--step", "20")
    assert shown.status == 0 and "1e-06, 4 bits" in shown.out


@pytest.mark.parametrize("kind", FORMATS)
def test_kept_while_current(kind: str, tmp_path: Path) -> None:
    name, save = FORMATS[kind]
    path = tmp_path / name
    metadata = Path(f"{path}.twm")
    save(path, fields_of(1))

    def index(**options: object) -> bool:
        before = metadata.stat().st_ino if metadata.exists() else None
        (facts,) = twinrun.index(path, **({"atol": 1e-6} | options))
        assert facts.fresh == (metadata.stat().st_ino != before)
        assert command("verify", path).status == 0
        return facts.fresh

    assert index()
    assert not index()
    for options in (
        {"atol": 1e-5},
        {"rtol": 1e-3},
        {"residue_bits": 2},
        {"chunk_bytes": 8192},
        {"digest": "published"},
    ):
        assert index(**options)
        assert not index(**options)
        assert index()
    assert index(refresh=True)
    time = path.stat().st_mtime_ns
    for later in (10**9, -(10**9)):  # touched, or restored from a backup: its content may be another
        os.utime(path, ns=(time, time + later))
        assert index()
        assert not index()
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[: len(whole) // 2])
    assert index()
    damaged = bytearray(whole)
    damaged[4096] ^= 1
    metadata.write_bytes(damaged)
    assert index()
    fields = fields_of(1)
    fields["x"][5] += 1
    save(path, fields)
    assert index()


def test_golden_files_and_histories_are_not_replaced(tmp_path: Path) -> None:
    """Their metadata has the name that metadata of a data file beside it would have."""
    x = np.arange(5.0)
    Reproducible(tmp_path, ["test"], update=True).check("plate", x)
    golden.save({"x": x}, tmp_path / "golden")
    with twinrun.Run(tmp_path / "history") as run:
        run.capture(1, {"x": x})
    (history,) = (tmp_path / "history").glob("step-*/rank-00000.twm")
    for metadata, kind in (
        (tmp_path / "test" / "plate.twm", "a golden file"),
        (tmp_path / "golden" / "rank_0.twm", "a golden file"),
        (history, "metadata of a history"),
    ):
        before = metadata.read_bytes()
        data = metadata.with_suffix("")
        with open(data, "wb") as file:
            np.save(file, x)
        for options in ({}, {"refresh": True}, {"fields": ["*"]}):
            with pytest.raises(twinrun.TwinrunError, match=f"is {kind}, which") as raised:
                twinrun.index(data, options={"format": "npy"}, **options)
            assert str(metadata) in str(raised.value)
        assert metadata.read_bytes() == before
        data.unlink()
    Reproducible(tmp_path, ["test"]).check("plate", x)
    assert golden.check(tmp_path / "golden", {"x": x}) and twinrun.verify(tmp_path / "history")


def test_a_part_of_the_fields(tmp_path: Path) -> None:
    path, other = tmp_path / "d.npz", tmp_path / "e.npz"
    fields = fields_of(1)
    np.savez(path, **fields)
    np.savez(other, **fields)
    done = command("index", path, other, "--field", "[xv]", "--atol", "1e-6")
    assert done.status == 0 and "2 fields" in done.out
    result = twinrun.compare(path, other)
    assert {f.field: f.method for f in result.fields} == {"x": "staged", "v": "staged", "id": "direct"}
    (facts,) = twinrun.index(path, atol=1e-6)  # all of them: what is there is not enough
    assert facts.fresh and facts.fields == 3
    check_error(command("index", path, "--field", "none"), "no field to index")


def test_two_arrays_with_different_names(tmp_path: Path) -> None:
    x = np.arange(100.0)
    for name in ("left", "right"):
        np.save(tmp_path / f"{name}.npy", x)
        (x * 1).tofile(tmp_path / f"{name}.f64")
    assert command("compare", tmp_path / "left.npy", tmp_path / "right.npy").status == 0
    assert command("compare", tmp_path / "left.npy", tmp_path / "right.f64").status == 0
    twinrun.index(tmp_path / "left.npy", tmp_path / "right.npy")
    result = twinrun.compare(tmp_path / "left.npy", tmp_path / "right.npy")
    assert result.same and result.fields[0].method == "staged"
    # Named arrays are another matter.
    np.savez(tmp_path / "one.npz", x=x)
    np.savez(tmp_path / "two.npz", y=x)
    cannot_compare(tmp_path / "one.npz", tmp_path / "two.npz", tmp_path, "field 'x'")
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare({"x": x}, {"y": x})


def test_raw_files_by_options(tmp_path: Path) -> None:
    a, b = tmp_path / "a.dat", tmp_path / "b.dat"
    x = np.random.default_rng(1).normal(size=(30, 50)).astype(">f4")
    y = x.copy()
    y[7, 9] += 1
    a.write_bytes(b"head" + x.tobytes())
    b.write_bytes(b"head" + y.tobytes())
    options = ("--dtype", ">f4", "--shape", "30x50", "--offset", "4")
    assert command("index", a, b, "--atol", "1e-3", *options).status == 0
    done = command("compare", a, b, "--atol", "1e-3", *options)
    assert done.status == 1 and "[7, 9]" in done.last
    # The metadata alone describes them too.
    done = command("compare", f"{a}.twm", f"{b}.twm")
    assert done.status == 1 and "[7, 9]" in done.last
    cannot_compare(a, b, tmp_path, "element type is not known")


def test_metadata_knows_the_options_that_it_was_made_with(tmp_path: Path) -> None:
    """It serves readings with the same options, and no other: the same digests are of other values there."""
    a, b = tmp_path / "a", tmp_path / "b"
    x = np.random.default_rng(3).normal(size=30_000).astype("f4")
    for folder in (a, b):
        folder.mkdir()
        x.tofile(folder / "x.5.bin")
    given = {"dtype": "f32", "shape": "300x100"}
    assert command("index", a, b, "--dtype", "f32", "--shape", "300x100").status == 0
    assert not twinrun.index(a, b, options={**given, "shape": (300, 100)})[0].fresh
    done = twinrun.compare(a, b, options={"dtype": "f32", "shape": [300, 100]})
    assert done.same and 0 < done.stages["tree"]["chunks_in"] and done.stages["elements"]["chunks_in"] == 0
    assert done.bytes_read < x.nbytes / 2 and not any("not used" in note for note in done.notes)
    for other in ({"dtype": "i32", "shape": "300x100"}, {**given, "order": "big"}, {"dtype": "f32"}):
        assert twinrun.index(b, options=other)[0].fresh
        done = twinrun.compare(a, b, options=given)
        assert done.same and sum("x.5.bin.twm is not used" in note for note in done.notes) == 1
        assert twinrun.verify(b)[0] == []


def test_options_that_give_other_values_under_the_same_name_and_type(tmp_path: Path) -> None:
    """Attributes `group@n` and a dataset `group@n`: what the options mean decides, not what fields look like."""
    for name, value in (("a.h5", 1.0), ("b.h5", 2.0)):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=np.zeros(5000), chunks=(1000,))
            file["x"].attrs["n"] = value
        twinrun.index(tmp_path / name, options={"attributes": "true"})
    for options in ({"attributes": True}, {"attributes": "true", "cache": "1000000"}):
        done = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", options=options)
        assert not done.same and not any("not used" in note for note in done.notes)
    done = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert sum("not used: made of hdf5 {" in note for note in done.notes) == 2


def test_metadata_alone_reads_its_data_as_it_was_indexed(tmp_path: Path) -> None:
    """Fields that are decoded are read again through the format, with the options of then."""
    for name, value in (("a.data", 1.0), ("b.data", 2.0)):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=np.zeros(5000), chunks=(1000,))
            file["x"].attrs["n"] = value
        twinrun.index(tmp_path / name, options={"format": "hdf5", "attributes": "yes"})
    done = twinrun.compare(tmp_path / "a.data.twm", tmp_path / "b.data.twm")
    assert [(f.field, f.different) for f in done.fields] == [("x", 0), ("x@n", 1)]
    assert twinrun.verify(tmp_path / "a.data") == ([], 2)


@pytest.mark.parametrize("suffix", [".nc", ".dat", ""])
def test_a_folder_whose_suffixes_do_not_tell(tmp_path: Path, suffix: str) -> None:
    """NetCDF-4 is HDF5 in a .nc: found out by its content wherever a folder is taken."""
    for run, last in (("a", 1.0), ("b", 2.0)):
        (tmp_path / run).mkdir()
        for step in (1, 2):
            with h5py.File(tmp_path / run / f"out_{step:04}{suffix}", "w") as file:
                file["t"] = np.append(np.zeros(99), last * (step == 2))
    for options in ((), ("--format", "hdf5")):
        done = command("compare", tmp_path / "a", tmp_path / "b", *options)
        assert done.status == 1 and "step 2" in done.last and "t[99]" in done.last
        assert command("golden", "save", tmp_path / "a", "-o", tmp_path / "golden", *options).status == 0
        assert command("golden", "check", tmp_path / "golden", tmp_path / "a", *options).status == 0
        assert command("golden", "check", tmp_path / "golden", tmp_path / "b", *options).status == 1
        assert command("index", tmp_path / "a", *options).status == 0
    assert (tmp_path / "a" / f"out_0001{suffix}.twm").exists()
    for verb in (
        ("compare", tmp_path / "a", tmp_path / "b"),
        ("index", tmp_path / "a"),
        ("golden", "check", tmp_path / "golden", tmp_path / "a"),
    ):
        done = command(*verb, "--format", "npz")
        assert done.status == 2 and "out_0001" in done.err + done.out
        done = command(*verb, "--format", "nonsense")
        assert done.status == 2 and "unknown format 'nonsense'" in done.err


def test_a_description_that_changes_after_the_file_was_indexed(tmp_path: Path) -> None:
    """The bytes are the same, and metadata of the old place would prove nothing about the new one."""
    for name, at in (("a", 0), ("b", 1500)):
        data = np.zeros(2000, "f4")
        data[1500] = at
        data.tofile(tmp_path / f"{name}.bin")
        description = {"dtype": "f32", "shape": [1000], "partial": True, "name": "x"}
        (tmp_path / f"{name}.bin.json").write_text(json.dumps(description))
        twinrun.index(tmp_path / f"{name}.bin")
        (tmp_path / f"{name}.bin.json").write_text(json.dumps({**description, "offset": 4000}))
    cannot_compare(tmp_path / "a.bin", tmp_path / "b.bin", tmp_path, "index it again")
    twinrun.index(tmp_path, refresh=True)
    assert not twinrun.compare(tmp_path / "a.bin", tmp_path / "b.bin").same


def after(metadata: Path, change: Callable[[], object], data: Path) -> None:
    """Changes data so that its status is newer than its metadata, on file systems with coarse clocks too."""
    change()
    while data.stat().st_ctime_ns <= metadata.stat().st_mtime_ns:
        os.utime(data, ns=(data.stat().st_atime_ns, data.stat().st_mtime_ns))


def save_text(path: Path, x: np.ndarray) -> None:
    rows = "".join(f"{v:06.0f},1\n" for v in x)
    path.write_text("a,b\n" + rows if path.suffix == ".csv" else rows.replace(",", " "))


@pytest.mark.parametrize("name", ["x.npy", "x.f64", "x.h5", "x.csv", "x.txt"])
def test_data_that_was_edited_and_has_its_time_again(tmp_path: Path, name: str) -> None:
    def save(path: Path, x: np.ndarray) -> None:
        writers = {
            ".npy": np.save,
            ".f64": lambda p, x: x.tofile(p),
            ".h5": lambda p, x: save_h5(p, {"x": x}),
        }
        writers.get(path.suffix, save_text)(path, x)

    values, changed = np.arange(5000.0), np.arange(5000.0)
    changed[1234] += 5
    a, b, copy = (tmp_path / run / name for run in ("a", "b", "copy"))
    for path in (a, b):
        path.parent.mkdir()
        save(path, values)
        twinrun.index(path)
    assert twinrun.compare(a, b).same
    shutil.copytree(b.parent, copy.parent, copy_function=shutil.copy2)  # with its times
    for path in (b, copy):
        metadata = Path(f"{path}.twm")
        before = path.stat()

        def edit(path: Path = path, before: os.stat_result = before) -> None:
            with open(path, "rb") as file:
                old = file.read()
            save(path, changed)
            assert path.stat().st_size == before.st_size and path.read_bytes() != old
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

        after(metadata, edit, path)
        with pytest.raises(twinrun.errors.Stale, match="changed since"):
            twinrun.compare(a, path)
        assert twinrun.index(path)[0].fresh
        assert twinrun.compare(a, path).fields[0].different == 1


def test_indexed_files_that_changed_their_names(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("x.npy", "y.npy", "ref.npy")]
    for path, value in zip(paths, (1.0, 2.0, 1.0), strict=True):
        np.save(path, np.full(3000, value))
        os.utime(path, ns=(10**18, 10**18))
    twinrun.index(*paths)

    def swap() -> None:
        os.rename(paths[0], tmp_path / "t.npy")
        os.rename(paths[1], paths[0])
        os.rename(tmp_path / "t.npy", paths[1])

    after(Path(f"{paths[0]}.twm"), swap, paths[0])
    with pytest.raises(twinrun.errors.Stale, match="changed since"):
        twinrun.compare(paths[2], paths[0])


def test_a_copy_with_its_times_is_read_to_make_sure(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "x.npy", np.arange(3000.0))
    twinrun.index(tmp_path / "a")
    copy = tmp_path / "b"
    metadata = copy / "x.npy.twm"
    shutil.copytree(tmp_path / "a", copy, copy_function=shutil.copy2)
    after(metadata, lambda: None, copy / "x.npy")
    found = twinrun.compare(tmp_path / "a", copy)
    assert found.same and sum("read to make sure" in note for note in found.notes) == 1


def replaced_in_place(path: Path, values: np.ndarray) -> None:
    """Other content, with the time of the old one."""
    before = path.stat()
    np.save(path, values)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("touched", [False, True])
def test_an_edit_at_once(tmp_path: Path, touched: bool) -> None:
    """Within a tick of the file system's clock, or before somebody touches the metadata."""
    np.save(tmp_path / "ref.npy", np.zeros(3000))
    for n in range(30):
        path = tmp_path / f"{n}.npy"
        np.save(path, np.zeros(3000))
        twinrun.index(path)
        replaced_in_place(path, np.ones(3000))
        if touched:
            later = path.stat().st_ctime_ns + 10**10
            os.utime(f"{path}.twm", ns=(later, later))
        with pytest.raises(twinrun.errors.Stale, match="changed since"):
            twinrun.compare(tmp_path / "ref.npy", path)


def test_every_later_change_changes_the_status(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for n in range(30):
        path.write_bytes(bytes([n]))
        status = indexing._settled_status([path.stat()], str(tmp_path))
        assert status != 0
        path.write_bytes(bytes([n + 1]))
        assert status_code([path.stat()]) != status
    now = path.stat()
    ahead = SimpleNamespace(st_dev=now.st_dev, st_ino=now.st_ino, st_ctime_ns=now.st_ctime_ns + 10**12)
    assert indexing._settled_status([ahead], str(tmp_path)) == 0
    assert sorted(os.listdir(tmp_path)) == ["x"]


def _tells_of_mapped_writes(path: Path) -> bool:
    """Whether the file system tells of a write to a page that was written to before the file was synced."""
    np.save(path, np.arange(3000.0))
    mapped = np.load(path, mmap_mode="r+")
    mapped[1500] = -1
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    before = path.stat().st_ctime_ns
    probe = path.with_suffix(".probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= before:  # the clock has moved
        probe.touch()
    mapped[1500] = -2
    return path.stat().st_ctime_ns != before


def test_a_file_that_its_program_has_mapped(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.arange(3000.0))
    mapped = np.load(tmp_path / "b.npy", mmap_mode="r+")
    mapped[1500] = 1500.0
    twinrun.index(tmp_path / "a.npy", tmp_path / "b.npy")
    mapped[1500] += 1
    try:
        seen = not twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").same
    except twinrun.errors.Stale:
        seen = True
    assert seen == _tells_of_mapped_writes(tmp_path / "c.npy")  # nothing does on tmpfs


def test_a_file_that_cannot_be_synced_is_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3000.0))
    synced = []

    def refuse(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        raise OSError(22, "injected")

    monkeypatch.setattr(os, "fsync", refuse)
    twinrun.index(tmp_path / "x.npy")
    assert (tmp_path / "x.npy").stat().st_ino in synced
    found = twinrun.compare(tmp_path / "x.npy", tmp_path / "x.npy")
    assert found.same and any("read to make sure" in note for note in found.notes)


def test_a_link_that_leads_to_another_file_now(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 2.0), ("ref.npy", 1.0)):
        with open(tmp_path / name, "wb") as file:
            np.save(file, np.full(3000, value))
        os.utime(tmp_path / name, ns=(10**18, 10**18))
    (tmp_path / "x.npy").symlink_to("one")
    twinrun.index(tmp_path / "x.npy")
    assert twinrun.compare(tmp_path / "ref.npy", tmp_path / "x.npy").same
    (tmp_path / "x.npy").unlink()
    (tmp_path / "x.npy").symlink_to("two")
    with pytest.raises(twinrun.errors.Stale, match="changed since"):
        twinrun.compare(tmp_path / "ref.npy", tmp_path / "x.npy")


def test_metadata_without_the_status_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an earlier version, or of a file system whose clock is too coarse: the data is read to make sure."""
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros(3000))
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "_settled_status", lambda *_: 0)
        twinrun.index(tmp_path / "a.npy", tmp_path / "b.npy")
    found = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy")
    assert found.same and sum("may have been touched" in note for note in found.notes) == 2
    replaced_in_place(tmp_path / "b.npy", np.ones(3000))
    with pytest.raises(twinrun.errors.Stale, match="changed since"):
        twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy")
    assert [facts.fresh for facts in twinrun.index(tmp_path / "a.npy", tmp_path / "b.npy")] == [True, True]
    assert twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").fields[0].different == 3000


def test_a_file_that_changes_while_it_is_indexed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1 << 22))

    def progress(*_: object) -> None:
        os.utime(path)

    try:
        twinrun.index(path, progress=progress, threads=1)
    except twinrun.Stale as e:
        assert "was changed while it was indexed" in str(e)
        assert os.listdir(tmp_path) == ["x.npy"]


def test_many_paths_and_a_bad_one(tmp_path: Path) -> None:
    """What was done before a bad file stays; the error names the bad one."""
    np.save(tmp_path / "a.npy", np.zeros(5))
    (tmp_path / "b.npy").write_bytes(b"\x93NUMPY but not really")
    np.save(tmp_path / "c.npy", np.zeros(5))
    check_error(command("index", *(tmp_path / f"{n}.npy" for n in "abc")), "b.npy")
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "a.npy.twm", "b.npy", "c.npy"]


def test_metadata_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(5))
    (tmp_path / "x.npy.twm").mkdir()
    check_error(command("index", path), "x.npy.twm")
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.twm"]


def save_small_floats(path: Path, kind: str) -> None:
    header = json.dumps({"w": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")


@pytest.mark.parametrize("data", ["there", "gone"])
@pytest.mark.parametrize(
    "pair", ["M8[s] i8", "m8[s] i8", "M8[s] m8[s]", "F8_E4M3 F8_E5M2", "F8_E4M3 F8_E8M0"]
)
def test_metadata_alone_tells_what_the_same_bytes_are(pair: str, data: str, tmp_path: Path) -> None:
    files = {}
    for run, kind in zip("abc", (*pair.split(), pair.split()[0]), strict=True):
        (tmp_path / run).mkdir()
        files[run] = tmp_path / run / ("w.safetensors" if kind[0] == "F" else "w.npy")
        if kind[0] == "F":
            save_small_floats(files[run], kind)
        else:
            np.save(files[run], np.arange(4).view(kind))
    alone = {run: f"{path}.twm" for run, path in files.items()}
    twinrun.index(*files.values())
    if data == "gone":
        for path in files.values():
            path.unlink()
    assert twinrun.compare(alone["a"], alone["c"]).same
    said = "must agree"
    cannot_compare(alone["a"], alone["b"], tmp_path, said)
    if data == "there":
        cannot_compare(alone["a"], files["b"], tmp_path, said)
        assert command("compare", alone["a"], str(files["c"])).status == 0
        assert not any(f.fresh for f in twinrun.index(*files.values()))


def test_a_field_that_has_the_name_of_a_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"t": np.arange(3), "t@unit.M8[s]": np.empty(0, bool)})
    with pytest.raises(twinrun.TwinrunError, match="metadata keeps the unit or the kind"):
        twinrun.index(tmp_path / "a.npz")
