"""twinrun verify: any single flipped bit is found; in a history in every file, padding included."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import check_error, command
from support import run_of_ranks

import twinrun
from twinrun.runs import histories
from twinrun.runs import verify as verification

STEP = "step-0000000001"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        for step in (1, 2):
            fields = {
                "x": rng.normal(size=3000),
                "n": np.arange(50),
                "c": rng.normal(size=(10, 20)).astype("f4").T,
            }
            run.capture(step, fields)
    return tmp_path / "run"


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def finds(subject: Path, path: Path, bit: int) -> bool:
    """Whether verify finds the flipped bit; the flip is undone, times too."""
    before = os.stat(path)
    flip(path, bit)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        problems, _ = twinrun.verify(subject)
    except twinrun.DamagedFile as e:
        problems = [str(e)]
    flip(path, bit)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for problem in problems:
        assert str(path) in problem or path.suffix == ".jsonl", problem
    return bool(problems)


def test_data(history: Path) -> None:
    path = history / STEP / "rank-00000.data"
    rng = np.random.default_rng(2)
    parts = [(0, 24000), (24000, 24400), (24448, 25248)]  # fields
    parts += [(24400, 24448), (25248, 28672)]  # padding
    for begin, end in parts:
        for bit in (begin * 8, end * 8 - 1, *rng.integers(begin * 8, end * 8, 30)):
            assert finds(history, path, int(bit)), bit
    assert path.stat().st_size == 28672
    assert twinrun.verify(history) == ([], 5)


def test_metadata(history: Path) -> None:
    path = history / STEP / "rank-00000.twm"
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    used = [i for i, byte in enumerate(content) if byte]
    # And some zeros that mean something.
    padding = [i for i, byte in enumerate(content) if not byte]
    bits = [
        *range(64 * 8),
        *(int(i) * 8 + int(rng.integers(8)) for i in rng.choice(used, 300, replace=False)),
        *(int(i) * 8 + int(rng.integers(8)) for i in rng.choice(padding, 300, replace=False)),
    ]
    for bit in bits:
        assert finds(history, path, bit), bit
    assert twinrun.verify(history) == ([], 5)


def test_manifest(history: Path) -> None:
    path = history / "manifest.jsonl"
    content = path.read_bytes()
    rng = np.random.default_rng(4)
    ends = [i * 8 + b for i, byte in enumerate(content) if byte == 10 for b in range(8)]
    for bit in [*ends, *map(int, rng.choice(len(content) * 8, 300, replace=False))]:
        assert finds(history, path, bit), bit
    assert twinrun.verify(history) == ([], 5)


@pytest.mark.parametrize("kind", ["one rank", "two ranks", "digests", "local"])
def test_every_byte_of_a_history(kind: str, tmp_path: Path) -> None:
    """A bit in each byte of the small files, and of every kind of place in the large ones."""
    rng = np.random.default_rng(7)

    def steps() -> dict:
        # Fields that fill a page, or a part of one; one beyond a page of digests.
        return {
            s: {"x": rng.normal(size=600), "page": np.arange(512.0), "t": 1.5, "none": np.zeros(0)}
            for s in (1, 2)
        }

    path = tmp_path / "run"
    settings = {"atol": 1e-3, "keep_data": kind != "digests"}
    if kind == "local":
        run_of_ranks(path, [steps(), steps()], local=tmp_path / "local", **settings)
        path = tmp_path / "local"
    else:
        run_of_ranks(path, [steps(), steps()], **settings) if kind == "two ranks" else captured(
            path, steps(), settings
        )
    files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".twinrun-"))
    assert twinrun.verify(path) == ([], len(files))
    assert {p.suffix for p in files} == {".jsonl", ".twm"} | ({".data"} if kind != "digests" else set())
    flips = 0
    for file in files:
        size = file.stat().st_size
        if file.suffix == ".jsonl":
            places = rng.choice(size, min(size, 60), replace=False)
            places = [*places, *(i for i, byte in enumerate(file.read_bytes()) if byte == 10)]
        else:
            # What is used lies at the beginning of pages, the padding at their ends.
            ends = [
                page + i
                for page in range(0, size, 4096)
                for i in (0, 7, 8, 704, 705, 4087, 4095)
                if page + i < size
            ]
            places = [*ends, *rng.integers(0, size, 40)]
        for at in places:
            assert finds(path, file, int(at) * 8 + int(rng.integers(8))), (file, at)
            flips += 1
    assert flips > 150
    assert twinrun.verify(path) == ([], len(files))


def captured(path: Path, steps: dict, settings: dict) -> None:
    with twinrun.Run(path, **settings) as run:
        for step, fields in steps.items():
            run.capture(step, fields)


def test_missing_files_of_several_ranks(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    for missing in ("rank-00001.jsonl", f"{STEP}/rank-00001.twm", f"{STEP}/rank-00001.data"):
        path = run_of_ranks(tmp_path / missing.replace("/", "-"), [{1: {"x": x}}, {1: {"x": x}}])
        assert twinrun.verify(path) == ([], 7)
        (path / missing).unlink()
        problems, _ = twinrun.verify(path)
        assert len(problems) == 1 and missing in problems[0], problems


@pytest.mark.parametrize("kind", ["npy", "npz", "strided"])
def test_indexed_files(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(5).normal(size=3000)
    path = tmp_path / {"npy": "x.npy", "npz": "x.npz", "strided": "x.dat"}[kind]
    options: dict = {}
    if kind == "npy":
        np.save(path, x)
        begin = 128
    elif kind == "npz":
        np.savez_compressed(path, x=x)
        begin = 200
    else:
        np.stack([x, x], axis=1).tofile(path)
        options = {"fields": "x:f64,y:f64"}
        begin = 0
    twinrun.index(path, atol=1e-3, options=options)
    rng = np.random.default_rng(6)
    if kind == "strided":
        (path.parent / "x.dat.json").write_text('{"fields": "x:f64,y:f64"}')
    end = path.stat().st_size - (300 if kind == "npz" else 0)
    for bit in rng.integers(begin * 8, end * 8, 40):
        assert finds(path, path, int(bit)), bit
    assert twinrun.verify(path) == ([], 2)


def test_the_command(history: Path, tmp_path: Path) -> None:
    done = command("verify", history)
    assert (done.status, done.last) == (0, "intact: 5 files")
    data = history / STEP / "rank-00000.data"
    flip(data, 12345)
    done = command("verify", history)
    assert done.status == 1 and done.err == ""
    assert (
        f"{data}: damaged: field 'x': 1 of its 1 MiB parts changed, the first is part 0: restore it"
        in done.out
    )
    assert done.last == "damaged: 1 problem in 5 files"
    flip(history / "manifest.jsonl", 77)
    check_error(command("verify", history), "manifest.jsonl: damaged: line 1")
    np.save(tmp_path / "x.npy", np.zeros(9))
    check_error(
        command("verify", tmp_path / "x.npy"),
        "has no metadata by which it could be verified; write metadata with 'twinrun index'",
    )


def test_a_missing_or_resized_data_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(9))
    twinrun.index(path)
    metadata = tmp_path / "x.npy.twm"
    for size in (100, 1000):
        os.truncate(path, size)
        done = command("verify", metadata)
        assert done.status == 1 and str(path) in done.out and done.err == ""
    path.unlink()
    done = command("verify", metadata)
    assert done.status == 1 and str(path) in done.out
    done = command("verify", tmp_path)
    assert done.status == 1


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    """Is told as any problem, once escaped, wherever it lies below the folder."""
    np.save(tmp_path / "x.npy", np.arange(9.0))
    assert command("index", tmp_path / "x.npy").status == 0
    name = os.fsdecode(b"\xff.npy")
    for suffix in ("", ".twm"):
        shutil.copy(tmp_path / f"x.npy{suffix}", tmp_path / f"{name}{suffix}")
    done = command("verify", tmp_path)
    assert done.status == 1 and "/\\udcff.npy.twm: its name is not UTF-8; rename it" in done.out
    check_error(command("verify", tmp_path / name), "/\\udcff.npy: its name is not UTF-8")


def test_many_problems_are_capped(tmp_path: Path) -> None:
    for i in range(30):
        np.save(tmp_path / f"x{i}.npy", np.zeros(9))
    twinrun.index(tmp_path)
    for i in range(30):
        os.truncate(tmp_path / f"x{i}.npy", 100)
    done = command("verify", tmp_path)
    assert (
        done.status == 1 and "… and 10 more" in done.out and done.last == "damaged: 30 problems in 60 files"
    )


# ---- of a history that is being written ----


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: object, name: str, work: object) -> list[int]:
    """Work that is done once, when a function is about to be called for the first time: as another
    process would.
    """
    calls: list[int] = []
    original = getattr(module, name)

    def call(*arguments: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            work()
        return original(*arguments, **more)

    monkeypatch.setattr(module, name, call)
    return calls


def x(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(size=2000), "n": np.arange(7)}


LEAVING = {
    "steps": ({"keep_steps": 2}, lambda run: run.capture(9, x(9))),
    "data": ({"keep_data_steps": 2}, lambda run: run.capture(9, x(9))),
    "all but one": ({"keep_steps": 1, "keep_data_steps": 1}, lambda run: run.capture(9, x(9))),
    "replaced": ({"replace_steps": True}, lambda run: [run.capture(s, x(s + 1)) for s in (0, 1)]),
}


@pytest.mark.parametrize("what", LEAVING)
def test_what_left_meanwhile_is_not_damaged(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, change = LEAVING[what]
    path = tmp_path / "run"
    with twinrun.Run(path, **settings) as run:
        for step in (0, 1):
            run.capture(step, x(step))
        calls = meanwhile(monkeypatch, verification, "_verify_step", lambda: change(run))
        problems, files = twinrun.verify(path)
        assert problems == [] and files >= 1 and calls


def test_damage_is_told_though_a_run_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with twinrun.Run(path, keep_steps=2) as run:
        for step in (0, 1):
            run.capture(step, x(step))
        data = path / STEP / "rank-00000.data"
        flip(data, 1000)
        (path / "step-0000000000" / "rank-00000.twm").unlink()
        meanwhile(monkeypatch, verification, "_verify_step", lambda: run.capture(2, x(2)))
        problems, _ = twinrun.verify(path)
        assert len(problems) == 1 and str(data) in problems[0], problems


def test_between_its_metadata_and_its_data_a_step_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with twinrun.Run(path, keep_steps=1) as run:
        run.capture(0, x(0))
        calls = meanwhile(monkeypatch, verification, "refs_of_metadata", lambda: run.capture(1, x(1)))
        assert twinrun.verify(path)[0] == [] and calls
    assert twinrun.verify(path) == ([], 3)


def test_a_record_that_is_compacted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with twinrun.Run(path, record="runs") as run:
        for step in range(4):
            run.capture(step, x(step // 2))
    original = twinrun._core.check_record
    rounds = []

    def check(*arguments: object) -> list:
        rounds.append(1)
        if len(rounds) > 1:
            return original(*arguments)
        twinrun.compact(path, keep_last=2)
        # As who read the journal before.
        return [SimpleNamespace(steps=[0], what="step-0000000000/rank-00000.twr: missing")]

    monkeypatch.setattr(twinrun._core, "check_record", check)
    assert twinrun.verify(path)[0] == [] and len(rounds) == 2
    rounds.append(1)
    monkeypatch.setattr(
        twinrun._core, "check_record", lambda *_: [SimpleNamespace(steps=[3], what="damaged")]
    )
    assert twinrun.verify(path)[0] == ["damaged: steps that need it: 3"]


@pytest.mark.parametrize("common", [False, True])
def test_a_comparison_tells_that_a_step_left(
    common: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with twinrun.Run(tmp_path / "b") as run:
        for step in (0, 1):
            run.capture(step, x(step))
    path = tmp_path / "a"
    with twinrun.Run(path, keep_steps=2) as run:
        for step in (0, 1):
            run.capture(step, x(step))
        meanwhile(monkeypatch, histories.HistorySubject, "listed_together", lambda: run.capture(2, x(2)))
        options = ("--common",) if common else ()
        done = command("compare", path, tmp_path / "b", *options)
    said = done.out + done.err
    assert "step 0 was removed from the history while it was read" in said
    assert "damaged" not in said and "missing" not in said
    # What left was not compared: it does not count as the same, unless what only one run has is
    # left out.
    assert done.status == (0 if common else 2), done
    if common:
        assert {f.step for f in twinrun.compare(path, tmp_path / "b", common=True).fields} == {1}


def test_show_tells_that_a_step_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    with twinrun.Run(path, keep_steps=1) as run:
        run.capture(0, x(0))
        meanwhile(monkeypatch, histories.HistorySubject, "metadata", lambda: run.capture(1, x(1)))
        check_error(command("show", path), "step 0 was removed from the history while it was read")


@pytest.mark.parametrize("setting", ["keep_steps", "keep_data_steps", "replace_steps"])
def test_a_writer_and_who_verifies_it(setting: str, tmp_path: Path) -> None:
    """Many rounds side by side: what is intact is never called damaged."""
    path = tmp_path / "run"
    with twinrun.Run(path, **{setting: True if setting == "replace_steps" else 2}) as run:
        run.capture(0, x(0))
        done = threading.Event()

        def write() -> None:
            try:
                for step in range(1, 120):
                    run.capture(step % 3 if setting == "replace_steps" else step, x(step))
            finally:
                done.set()

        writer = threading.Thread(target=write)
        writer.start()
        rounds, found = 0, []
        while not done.is_set() or rounds == 0:
            found += twinrun.verify(path, threads=1)[0]
            rounds += 1
        writer.join()
        assert found == [], (rounds, found[:3])
    assert twinrun.verify(path)[0] == []


@pytest.mark.parametrize("name", ["manifest.jsonl", "step-0000000002/rank-00000.data"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
def test_what_is_no_file_is_not_intact(name: str, kind: str, history: Path, tmp_path: Path) -> None:
    """No verb waits for it, and none takes what is left for a folder of files."""
    whole = tmp_path / "whole"
    shutil.copytree(history, whole)
    (history / name).unlink()
    if kind == "pipe":
        os.mkfifo(history / name)
    elif kind == "folder":
        (history / name).mkdir()
    else:  # a link to a device, or to nothing
        (history / name).symlink_to("/dev/zero" if kind == "device" else "not there")
    for verb in (
        ("verify", history),
        ("compare", history, whole),
        ("compare", whole, history),
        ("pack", history, tmp_path / "packed"),
        ("golden", "save", history, "-o", tmp_path / "golden"),
        ("index", history, "--atol", "1e-6"),
    ):
        done = command(*verb)
        assert done.status in (1, 2) and "Traceback" not in done.err and "internal" not in done.err, (
            verb,
            done,
        )
        if name == "manifest.jsonl":
            check_error(done, "manifest.jsonl: is not a regular file")


def test_metadata_of_another_file_proves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100.0))
    np.save(tmp_path / "y.npy", np.arange(100.0) + 1)
    twinrun.index(tmp_path / "x.npy")
    (tmp_path / "y.npy.twm").write_bytes((tmp_path / "x.npy.twm").read_bytes())
    found = twinrun.verify(tmp_path / "y.npy")
    assert not found and "y.npy was not checked" in found.problems[0]
    (tmp_path / "y.npy.twm").unlink()
    (tmp_path / "y.npy.twm").symlink_to(tmp_path / "x.npy.twm")
    assert len(twinrun.verify(tmp_path).problems) == 1
    assert twinrun.verify(tmp_path / "x.npy")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_history_without_its_manifest_is_not_intact(tmp_path: Path, ranks: int) -> None:
    run_of_ranks(tmp_path / "h", [{1: {"x": np.ones(50)}} for _ in range(ranks)])
    assert twinrun.verify(tmp_path / "h")
    (tmp_path / "h" / "manifest.jsonl").unlink()
    for path in (tmp_path / "h", tmp_path):
        found = twinrun.verify(path)
        assert [p for p in found.problems if "manifest.jsonl: missing" in p], found


@pytest.mark.parametrize("dtype", ["<i8", ">f8"])
def test_what_the_head_of_a_file_says_is_verified(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100.0))
    twinrun.index(path)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"'<f8'", f"'{dtype}'".encode()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = twinrun.verify(path)
    assert not found and "than when it was indexed" in found.problems[0]


def replaced(path: Path, old: bytes, new: bytes) -> None:
    """Edits a head in place; the size stays, and the time is set back."""
    content = path.read_bytes()
    assert len(old) == len(new) and content.count(old) >= 1, (path, old)
    before = path.stat()
    path.write_bytes(content.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def npy(path: Path) -> None:
    np.save(path, np.arange(50).astype("M8[s]"))


def npz(path: Path) -> None:
    np.savez(path, t=np.arange(50).astype("M8[s]"), x=np.arange(50.0))


def npz_edited(path: Path) -> None:
    """The same archive with other heads of its members: their checksums are right."""
    with np.load(path) as saved:
        arrays = dict(saved)
    before = path.stat()
    np.savez(path, **arrays | {"t": arrays["t"].astype("M8[ms]").view("i8")[:50].view("M8[D]")})
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as f:
        f["density"], f["pressure"] = np.arange(50.0), np.arange(50.0, 100)
        f["pressure"].attrs["units"] = "hPa"


def zarr_array(path: Path) -> None:
    path.mkdir()
    (path / ".zarray").write_text(
        '{"zarr_format": 2, "shape": [50], "chunks": [50], "dtype": "<M8[s]", "compressor": null, '
        '"fill_value": 0, "order": "C", "filters": null}'
    )
    (path / "0").write_bytes(np.arange(50).tobytes())


def netcdf(path: Path) -> None:
    scipy = pytest.importorskip("scipy.io")
    with scipy.netcdf_file(path, "w") as f:
        f.createDimension("n", 50)
        for name in ("density", "heights"):
            f.createVariable(name, "f4", ("n",))[:] = np.arange(50)
        f.variables["density"].units = "kg"


def safetensors(path: Path) -> None:
    head = b'{"w":{"dtype":"F8_E4M3","shape":[50],"data_offsets":[0,50]},"x":{"dtype":"F32","shape":[5],"data_offsets":[50,70]}}'
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(70))


def columns(path: Path) -> None:
    path.write_text("x,y\n" + "".join(f"{i},{i}.5\n" for i in range(50)))


def legacy(path: Path) -> None:
    head = b"# vtk DataFile Version 3.0\nt\nBINARY\nDATASET STRUCTURED_POINTS\nDIMENSIONS 5 2 1\nORIGIN 0 0 0\nSPACING 1 1 1\n"
    path.write_bytes(head + b"POINT_DATA 10\nSCALARS heat float 1\nLOOKUP_TABLE default\n" + bytes(40))


EDITS = {
    "npy, unit": ("x.npy", npy, "x.npy", b"'<M8[s]'", b"'<i8'   ", "field 'x' otherwise"),
    "npy, other unit": ("x.npy", npy, "x.npy", b"'<M8[s]'", b"'<M8[D]'", "field 'x' otherwise"),
    "npy, span": ("x.npy", npy, "x.npy", b"'<M8[s]'", b"'<m8[s]'", "field 'x' otherwise"),
    "npz, unit": ("x.npz", npz, "", b"", b"", "field 't' otherwise"),
    "npz, name": ("x.npz", npz, "x.npz", b"x.npy", b"y.npy", "no field 'x'"),
    "hdf5, name": ("x.h5", hdf5, "x.h5", b"density\0", b"densitx\0", "no field 'density'"),
    "hdf5, attribute": ("x.h5", hdf5, "x.h5", b"hPa", b"kPa", "(attributes)"),
    "zarr, unit": ("x.zarr", zarr_array, "x.zarr/.zarray", b'"<M8[s]"', b'"<M8[D]"', "field 'data' otherwise"),
    "zarr, type": ("x.zarr", zarr_array, "x.zarr/.zarray", b'"<M8[s]"', b'"<u8"   ', "field 'data' otherwise"),
    "zarr, order of one axis": ("x.zarr", zarr_array, "x.zarr/.zarray", b'"C"', b'"F"', ""),
    "netcdf, name": ("x.nc", netcdf, "x.nc", b"heights", b"weights", "no field 'heights'"),
    "netcdf, type": ("x.nc", netcdf, "x.nc", b"\0\0\0\x05\0\0\0\xc8", b"\0\0\0\x04\0\0\0\xc8", "otherwise"),
    "netcdf, attribute": ("x.nc", netcdf, "x.nc", b"kg", b"cg", "(attributes)"),
    "safetensors, kind": ("x.safetensors", safetensors, "x.safetensors", b"F8_E4M3", b"F8_E5M2", "field 'w' otherwise"),
    "safetensors, type": ("x.safetensors", safetensors, "x.safetensors", b'"F32"', b'"I32"', "field 'x' otherwise"),
    "safetensors, name": ("x.safetensors", safetensors, "x.safetensors", b'"x"', b'"y"', "no field 'x'"),
    "table, name": ("x.csv", columns, "x.csv", b"x,y", b"x,z", "no field 'y'"),
    "vtk, name": ("x.vtk", legacy, "x.vtk", b"heat", b"cold", "no field 'PointData/heat'"),
    "vtk, type": ("x.vtk", legacy, "x.vtk", b"float", b"int  ", "field 'PointData/heat' otherwise"),
    "vtk, attribute": ("x.vtk", legacy, "x.vtk", b"\nt\n", b"\nu\n", "(attributes)"),
}  # fmt: skip


def test_a_field_that_can_be_read_no_more_is_a_problem(tmp_path: Path) -> None:
    """Its elements are where they were; what HDF5 says of their place is not so."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    hdf5(path)
    with h5py.File(path) as file:
        offset, size = file["density"].id.get_offset(), file["density"].id.get_storage_size()
    twinrun.index(path)
    layout = offset.to_bytes(8, "little") + size.to_bytes(8, "little")
    replaced(path, layout, layout[:8] + (size + 8).to_bytes(8, "little"))
    found = twinrun.verify(path)
    assert len(found.problems) == 1 and "'density' needs 400 bytes" in found.problems[0], found


@pytest.mark.parametrize("edit", EDITS)
def test_all_that_a_head_says_is_verified(edit: str, tmp_path: Path) -> None:
    """Elements are where they were; what they are, or are called, is something else."""
    name, make, edited, old, new, said = EDITS[edit]
    path = tmp_path / name
    make(path)
    twinrun.index(path)
    assert twinrun.verify(path)
    shutil.copytree(tmp_path, tmp_path / "whole")
    npz_edited(path) if not edited else replaced(tmp_path / edited, old, new)
    found = twinrun.verify(path)
    if not said:  # storage alone
        assert found
        return
    assert len(found.problems) == 1 and said in found.problems[0], found
    # Metadata by itself does not answer for such a file either.
    check_error(command("compare", f"{path}.twm", tmp_path / "whole" / f"{name}.twm"), name)
    done = command("compare", path, tmp_path / "whole" / name)  # with metadata beside it
    assert done.status in (1, 2), done
    if "otherwise" in said:
        check_error(done, "twinrun index")


def test_metadata_of_a_data_set_that_is_a_folder(tmp_path: Path) -> None:
    """Lies beside it, as that of a file does."""
    zarr_array(tmp_path / "x.zarr")
    twinrun.index(tmp_path / "x.zarr")
    assert twinrun.verify(tmp_path / "x.zarr") == ([], 2)
    flip(tmp_path / "x.zarr" / "0", 77)
    for path in ("x.zarr", "x.zarr.twm", "."):
        assert len(twinrun.verify(tmp_path / path).problems) == 1


def damaged_heads(path: Path, bits: int) -> None:
    """Several bytes of the magic are others."""
    content = path.read_bytes()
    path.write_bytes(bytes(b ^ 0x55 for b in content[:bits]) + content[bits:])


@pytest.mark.parametrize("content", [b"", b"a player's own words\n", bytes(5000)])
def test_a_file_that_is_only_called_as_metadata_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    own = tmp_path / "below" / "x.twm"
    own.write_bytes(content)
    check_error(command("verify", tmp_path), "has no metadata by which it could be verified")
    np.save(tmp_path / "x.npy", np.arange(9.0))
    twinrun.index(tmp_path / "x.npy")
    found = twinrun.verify(tmp_path)
    assert found == ([], 2) and found.notes == [f"{own}: not checked: twinrun did not write it"]
    done = command("verify", tmp_path)
    assert done.status == 0 and f"note: {own}: not checked" in done.out and done.last == "intact: 2 files"
    check_error(command("verify", own), "was not written by twinrun")
    # Beside a file that it would describe it may be what is left of metadata.
    (tmp_path / "below" / "x").touch()
    for path in (tmp_path, own, tmp_path / "below" / "x"):
        found = twinrun.verify(path)
        assert len(found.problems) == 1 and str(own) in found.problems[0] and not found.notes


@pytest.mark.parametrize("count", [1, 8, 64])
def test_a_damaged_head_of_metadata_is_a_problem(count: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(9.0))
    twinrun.index(tmp_path / "x.npy")
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": np.arange(9.0)})
    twinrun.golden.save(tmp_path / "run", tmp_path / "golden")
    (tmp_path / "run" / "manifest.jsonl").unlink()
    for path in (
        tmp_path / "x.npy.twm",
        tmp_path / "run" / STEP / "rank-00000.twm",
        tmp_path / "golden" / "step_1_rank_0.twm",
    ):
        whole = path.read_bytes()
        before = twinrun.verify(tmp_path)
        assert not before.notes and not any(str(path) in p for p in before.problems)
        damaged_heads(path, count)
        found = twinrun.verify(tmp_path)
        assert len(found.problems) == len(before.problems) + 1 and not found.notes
        assert any(str(path) in p for p in found.problems), found
        path.write_bytes(whole[:5])  # cut
        assert any(str(path) in p for p in twinrun.verify(tmp_path).problems)
        path.write_bytes(whole)


@pytest.mark.parametrize("lost", [(0, 1), (1,)])
@pytest.mark.parametrize("emptied", [False, True])
def test_steps_of_lost_journals_are_a_problem(lost: tuple[int, ...], emptied: bool, tmp_path: Path) -> None:
    x = np.arange(1000.0)
    path = run_of_ranks(tmp_path / "run", [{s: {"x": x} for s in (1, 2)} for _ in range(2)])
    for rank in lost:
        journal = path / f"rank-{rank:05}.jsonl"
        journal.write_bytes(b"") if emptied else journal.unlink()
    problems, _ = twinrun.verify(path)
    assert len(problems) == len(lost), problems
    for rank, problem in zip(lost, problems, strict=True):
        assert f"rank-{rank:05}.jsonl" in problem and "step 1" in problem and "copy" in problem
    if len(lost) == 2:
        with pytest.raises(
            twinrun.errors.DamagedFile, match=r"rank-00000.jsonl: .* files of step 1 of rank 0 exist"
        ):
            twinrun.pack(path, tmp_path / "record")


def test_whole_steps_that_a_cut_journal_does_not_name_are_noted(tmp_path: Path) -> None:
    """A journal that was restored from an older copy looks the same."""
    with twinrun.Run(tmp_path / "run") as run:
        for step in (1, 2):
            run.capture(step, {"x": np.arange(1000.0)})
    manifest = tmp_path / "run" / "manifest.jsonl"
    assert twinrun.verify(tmp_path / "run").notes == []
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:-1]))
    found = twinrun.verify(tmp_path / "run")
    assert not found and not found.problems and found.unnamed == [str(tmp_path / "run" / "step-0000000002")]
    assert [n for n in found.notes if "step-0000000002" in n and "does not name" in n]
    # What a run was still writing is nobody's step.
    begun = tmp_path / "run" / "step-0000000002" / "rank-00000.begun"
    begun.touch()
    found = twinrun.verify(tmp_path / "run")
    assert found and found.notes == []
    begun.unlink()
    assert twinrun.verify(tmp_path / "run").notes != []
    (tmp_path / "run" / "step-0000000002" / "rank-00000.data").unlink()
    assert twinrun.verify(tmp_path / "run").notes == []


def test_a_whole_step_that_a_later_attempt_supersedes_is_a_note_alone(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        for step in (1, 2):
            run.capture(step, {"x": np.arange(1000.0)})
    manifest = tmp_path / "run" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    with twinrun.Run(tmp_path / "run", existing="append") as run:
        run.capture(2, {"x": np.arange(1000.0)})
    found = twinrun.verify(tmp_path / "run")
    assert found and len(found.notes) == 1 and not found.unnamed


def test_a_path_in_metadata_that_is_no_text(tmp_path: Path) -> None:
    xxhash = pytest.importorskip("xxhash")
    data, path = tmp_path / "k.npz", tmp_path / "k.npz.twm"
    np.savez(data, x=np.arange(5.0))
    twinrun.index(data)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"k.npz", 64)] = 0xFF
    length = int.from_bytes(raw[24:32], "little")
    raw[32:40] = xxhash.xxh3_64_intdigest(bytes(raw[64 : 64 + length])).to_bytes(8, "little")
    # The header's checksum covers that of the directory.
    raw[56:64] = xxhash.xxh3_64_intdigest(bytes(raw[:56])).to_bytes(8, "little")
    path.write_bytes(raw)
    for words in (("show", path), ("verify", path), ("compare", path, path)):
        answer = command(*words)
        assert answer.status in (1, 2) and "is not UTF-8: index the data again" in answer.out + answer.err, (
            words
        )
    assert command("index", data).status == 0 and command("verify", path).status == 0
