"""Bad input: each is one clear line on stderr, status 2, and never a verdict."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import HANG, cannot_compare, check_error, command, load_json
from support import in_options

import twinrun

STEP = "step-0000000010"


def capture(path: Path, steps: dict[int, dict], **options: object) -> Path:
    with twinrun.Run(path, atol=1e-6, **options) as run:
        for step, fields in steps.items():
            run.capture(step, fields)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that differ in one element, at step 10."""
    x = np.random.default_rng(3).normal(size=4000)
    y = x.copy()
    y[1234] += 1
    return (
        capture(tmp_path / "a", {10: {"x": x, "n": np.arange(7)}, 20: {"x": x, "n": np.arange(7)}}),
        capture(tmp_path / "b", {10: {"x": y, "n": np.arange(7)}, 20: {"x": x, "n": np.arange(7)}}),
    )


def test_missing_things(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    cannot_compare(a, tmp_path / "none", tmp_path, "none: no such file or folder; check the path")
    cannot_compare(tmp_path / "none", b, tmp_path, "none: no such file or folder; check the path")
    cannot_compare(a, a / STEP / "none.npy", tmp_path, "no such file or folder")
    (tmp_path / "empty").mkdir()
    cannot_compare(a, tmp_path / "empty", tmp_path, "empty: an empty folder; name a history")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8))
    cannot_compare(
        a,
        tmp_path / "pictures",
        tmp_path,
        "without data files of a known format; it has x.png; --format bytes",
    )
    for verb in ("show", "index", "verify", "log"):
        check_error(command(verb, tmp_path / "none"), "none")
    check_error(command("log", tmp_path / "empty"), "there is no manifest.jsonl")
    check_error(command("verify", tmp_path / "empty"), "has no metadata by which it could be verified")
    check_error(command("index", tmp_path / "empty"), "no data files of a known format")
    check_error(command("index", a), "is a history")


def test_missing_step(pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.zeros(3)
    longer = capture(tmp_path / "longer", {10: {"x": x}, 20: {"x": x}, 30: {"x": x}})
    shorter = capture(tmp_path / "shorter", {10: {"x": x}, 20: {"x": x}})
    for one, other in ((longer, shorter), (shorter, longer)):
        line = cannot_compare(
            one, other, tmp_path, "step 30 of", "not there; compare the common ones with --common"
        )
        assert f"twinrun: {shorter}: " in line
    assert command("compare", longer, shorter, "--steps", ":20").status == 0
    none = capture(tmp_path / "no-steps", {})
    cannot_compare(none, none, tmp_path, "no steps were committed")
    shutil.rmtree(pair[1] / STEP)  # listed in the manifest, and gone
    cannot_compare(*pair, tmp_path, STEP, "no such file")
    assert command("verify", pair[1]).status == 1


def test_missing_data_or_metadata_of_a_step(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    for name in ("rank-00000.data", "rank-00000.twm"):
        aside = tmp_path / name
        shutil.move(b / STEP / name, aside)
        cannot_compare(a, b, tmp_path, name)
        assert command("verify", b).status == 1
        shutil.move(aside, b / STEP / name)
    assert command("compare", a, b).status == 1


@pytest.mark.parametrize("kind", ["history", "npz", "h5"])
def test_other_shape_type_or_fields(kind: str, tmp_path: Path) -> None:
    def save(name: str, fields: dict) -> Path:
        if kind == "history":
            return capture(tmp_path / name, {1: fields})
        path = tmp_path / f"{name}.{kind}"
        if kind == "npz":
            np.savez(path, **fields)
        else:
            with h5py.File(path, "w") as file:
                for key, value in fields.items():
                    file[key] = value
        return path

    x = np.arange(12.0)
    a = save("a", {"x": x, "y": x})
    for name, fields, said in (
        ("shape", {"x": x.reshape(3, 4), "y": x}, "field 'x': shape [12] in"),
        ("length", {"x": x[:11], "y": x}, "field 'x': shape [12] in"),
        ("dtype", {"x": x.astype("f4"), "y": x}, "field 'x': f64 in"),
        ("sign", {"x": x, "y": x.astype("i8")}, "field 'y': f64 in"),
        ("fewer", {"x": x}, "field 'y' of"),
        ("more", {"x": x, "y": x, "z": x}, "field 'z' of"),
        ("renamed", {"x": x, "yy": x}, "field 'y' of"),
    ):
        b = save(name, fields)
        cannot_compare(a, b, tmp_path, said)
        cannot_compare(b, a, tmp_path)
        cannot_compare(a, b, tmp_path, said, options=("--method", "direct"))
    assert command("compare", a, tmp_path / f"fewer{a.suffix}", "--field", "x").status == 0


@pytest.mark.parametrize("keep", [0, 1, 100, 4095, 4096, 32000, 32767])
def test_truncated_history_data(keep: int, pair: tuple[Path, Path], tmp_path: Path) -> None:
    data = pair[1] / STEP / "rank-00000.data"
    assert data.stat().st_size == 32768
    os.truncate(data, keep)
    for method in ("auto", "direct"):
        cannot_compare(
            *pair,
            tmp_path,
            str(data),
            "truncated: 32768 bytes",
            "restore the history from a copy",
            options=("--method", method),
        )
    verified = command("verify", pair[1])
    assert verified.status == 1 and f"{data}: damaged: {keep} bytes, the manifest says 32768" in verified.out


def truncations(size: int) -> list[int]:
    return sorted({0, 1, 7, size // 3, size // 2, size - 1})


@pytest.mark.parametrize("suffix", ["npy", "npz", "deflated.npz", "f64", "h5", "gzip.h5", "safetensors"])
@pytest.mark.parametrize("indexed", [False, True])
def test_truncated_files(suffix: str, indexed: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(4).normal(size=2000)
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        save_as(path, x)
    for path in paths if indexed else ():
        twinrun.index(path)
    assert command("compare", *paths).status == 0
    whole = paths[1].read_bytes()
    for size in truncations(len(whole)):
        paths[1].write_bytes(whole[:size])
        if suffix == "f64" and size % 8 == 0 and not indexed:
            cannot_compare(*paths, tmp_path, "shape [2000] in")  # a raw file is as long as it is
        else:
            cannot_compare(*paths, tmp_path, paths[1].name)
    if not indexed:
        paths[1].write_bytes(whole)
        assert command("compare", *paths).status == 0


def save_as(path: Path, x: np.ndarray) -> None:
    """Writes x under the name 'x' in the format that the suffix names."""
    if path.name.endswith(".deflated.npz"):
        np.savez_compressed(path, x=x)
    elif path.suffix == ".npz":
        np.savez(path, x=x)
    elif path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".f64":
        x.tofile(path)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=x, compression="gzip" if ".gzip" in path.name else None)
    else:
        pytest.importorskip("safetensors.numpy").save_file({"x": x}, path)


def test_any_flipped_bit_of_metadata(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Header, directory, tree, fine digests, residues, checksums, padding: an error, or the right result."""
    rng = np.random.default_rng(5)
    a, b = pair
    place = b / STEP / "rank-00000.twm"
    whole = place.read_bytes()
    bits = list(range(64 * 8))
    for page in range(0, len(whole), 4096):
        used = [i for i in range(page, min(page + 4096, len(whole))) if whole[i]]
        bits += [
            int(i) * 8 + int(rng.integers(8)) for i in rng.choice(used, min(24, len(used)), replace=False)
        ]
        bits += [int(i) for i in rng.integers(page * 8, (page + 4096) * 8, 8)]
    errors = 0
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.write_bytes(damaged)
        try:
            result = twinrun.compare(a, b, steps="10")
        except twinrun.TwinrunError as e:
            errors += 1
            assert str(place) in str(e) and "\n" not in str(e), str(e)
            continue
        assert result.different == 1 and result.first_divergence["index"] == [1234], bit
    assert errors > 64 * 8
    place.write_bytes(whole)
    assert command("compare", *pair).status == 1
    damaged = bytearray(whole)
    damaged[20] ^= 1
    place.write_bytes(damaged)
    cannot_compare(*pair, tmp_path, str(place), "header's checksum is wrong", "index the data again")


# Fewer for HDF5, which h5py opens again each time: the metadata has the same format.
@pytest.mark.parametrize(
    ("suffix", "bits"), [("npy", 300), ("h5", 100), ("gzip.h5", 100)], ids=["npy", "h5", "gzip.h5"]
)
def test_any_flipped_bit_of_indexed_metadata(suffix: str, bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=5000)
    y = x.copy()
    y[17] += 1
    a, b = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    save_as(a, x)
    save_as(b, y)
    twinrun.index(a, b, atol=1e-3)
    place = Path(f"{b}.twm")
    whole = place.read_bytes()
    for bit in rng.choice(len(whole) * 8, bits, replace=False):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.write_bytes(damaged)
        try:
            result = twinrun.compare(a, b)
        except twinrun.DamagedFile as e:
            assert str(place) in str(e)
            continue
        assert result.different == 1, bit
    for size in (0, 1, 63, 64, 100, 4096, len(whole) - 1):
        place.write_bytes(whole[:size])
        cannot_compare(a, b, tmp_path, str(place))
    place.write_bytes(whole + b"\0")
    cannot_compare(a, b, tmp_path, str(place), "truncated or extended")


def test_metadata_of_a_newer_version(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5.0))
    twinrun.index(tmp_path / "x.npy")
    place = tmp_path / "x.npy.twm"
    head = bytearray(place.read_bytes())
    head[8:12] = (99).to_bytes(4, "little")
    head[56:64] = twinrun._core.xxh3(bytes(head[:56])).to_bytes(8, "little")
    place.write_bytes(head)
    cannot_compare(tmp_path / "x.npy", tmp_path / "x.npy", tmp_path, "version 99", "upgrade twinrun")


@pytest.mark.parametrize("suffix", ["npy", "deflated.npz", "gzip.h5"])
def test_metadata_older_than_its_data(suffix: str, tmp_path: Path) -> None:
    x = np.random.default_rng(7).normal(size=5000)
    a, b = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for path in (a, b):
        save_as(path, x)
        twinrun.index(path, atol=1e-6)
    now = os.stat(b).st_mtime_ns
    # Only the times changed: later, or earlier as after a restore. Goes on, and says so.
    for later in (3_600_000_000_000, -3_600_000_000_000):
        os.utime(b, ns=(now, now + later))
        done = command("compare", a, b)
        assert done.status == 0 and "and the same content" in done.out and str(b) in done.out
    # The content changed: not one comparison may take the old digests for it, whatever the times say.
    y = x.copy()
    y[4321] = -y[4321]
    size = b.stat().st_size
    save_as(b, y)
    if b.stat().st_size == size:
        for later in (3_600_000_000_000, -3_600_000_000_000, 1):
            os.utime(b, ns=(now, now + later))
            cannot_compare(
                a,
                b,
                tmp_path,
                f"{b}.twm: older than its data file {b}",
                "index it again with 'twinrun index'",
            )
    else:
        cannot_compare(a, b, tmp_path, str(b), "index it again")
    twinrun.index(b, atol=1e-6)
    assert command("compare", a, b).status == 1


def test_metadata_that_describes_other_fields(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    save_as(path, np.arange(600.0))
    other = tmp_path / "y.h5"
    save_as(other, np.arange(600.0))
    twinrun.index(path)
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(600, dtype="i8")
    cannot_compare(
        path, other, tmp_path, "describes field 'x' otherwise than its data file does", "twinrun index"
    )


def test_metadata_of_another_file(tmp_path: Path) -> None:
    """A copied or renamed metadata file does not answer for data that it was not made from."""
    x = np.random.default_rng(8).normal(size=3000)
    y = x.copy()
    y[5] += 1
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(a, x)
    np.save(b, y)
    os.utime(b, ns=(a.stat().st_atime_ns, a.stat().st_mtime_ns))
    twinrun.index(a, atol=1e-6)
    shutil.copy(f"{a}.twm", f"{b}.twm")
    cannot_compare(a, b, tmp_path, f"{b}.twm: older than its data file {b}")
    assert twinrun.index(b, atol=1e-6)[0].fresh
    assert command("compare", a, b).status == 1
    # Renamed together: the same content, so it holds.
    c = tmp_path / "c.npy"
    b.rename(c)
    Path(f"{b}.twm").rename(f"{c}.twm")
    done = command("compare", a, c)
    assert done.status == 1 and "the same content" in done.out


def test_metadata_alone_after_its_data_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.gzip.h5"
    save_as(path, np.arange(600.0))
    twinrun.index(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("other", data=np.arange(6000.0), compression="gzip")
    metadata = Path(f"{path}.twm")
    cannot_compare(metadata, metadata, tmp_path, str(metadata))
    found = command("verify", path)
    assert found.status == 1 and found.err == ""
    path.unlink()
    done = command("compare", metadata, metadata)
    assert done.status == 0 and "only its metadata is compared" in done.out


def test_manifest_damaged_or_hostile(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    manifest = b / "manifest.jsonl"
    whole = manifest.read_text()
    lines = whole.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if STEP in line)
    manifest.write_text(whole.replace(STEP, "step-0000000020", 1))
    cannot_compare(a, b, tmp_path, f"{manifest}: damaged: line {at + 1}: its checksum is wrong")
    for text, said in (
        ("", "empty"),
        (lines[0][:20], "line 1: it is not complete"),
        ("\n", "line 1"),
        ("{}\n", "line 1"),
        (whole + "x\n", f"line {len(lines) + 1}"),
        (whole + whole, f"line {len(lines) + 1}"),
        ("\0" * 1000, "line 1: it is not complete"),
        ("\xff" * 10 + "\n", "line 1"),
    ):
        manifest.write_bytes(text.encode("latin-1"))
        cannot_compare(a, b, tmp_path, str(manifest), said)
        check_error(command("log", b), str(manifest))
        check_error(command("verify", b), str(manifest))

    def seal(text: str) -> str:
        return f'{text[:-1]},"xxh3":"{twinrun._core.xxh3(text[:-1].encode()):016x}"}}\n'

    for body in (
        '{"step":10,"folder":"../a/' + STEP + '","ranks":[]}',
        '{"step":10,"folder":"..","ranks":[]}',
        '{"step":1e99,"folder":"x","ranks":[]}',
        '{"step":10,"folder":7,"ranks":[]}',
        '{"step":10,"folder":"x","ranks":[{}]}',
        '{"step":10,"folder":"x","ranks":3}',
        '{"drop":10}',
        '{"drop_data":10}',
        '{"provenance":{"host":7}}',
        "[[[[[[[[[]]]]]]]]]",
        '"text"',
        "{}",
    ):
        manifest.write_text(lines[0] + seal(body))
        cannot_compare(a, b, tmp_path, f"{manifest}: damaged: line 2")
    manifest.write_text(seal('{"twinrun_history":99}'))
    cannot_compare(a, b, tmp_path, "a history of version 99", "upgrade twinrun")


def test_a_step_of_another_history(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Data and metadata of a step swapped together: each fits the other, and not the manifest."""
    a, b = pair
    shutil.rmtree(b / STEP)
    shutil.copytree(a / STEP, b / STEP)
    cannot_compare(a, b, tmp_path, "is not the file that the manifest names")


def test_unreadable_filter(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["fine"] = np.arange(3)
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(299, h5py.h5z.FLAG_OPTIONAL, (1,))
        dataset = h5py.h5d.create(file.id, b"odd", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((4,)), plist)
        dataset.write_direct_chunk((0,), bytes(16))
    cannot_compare(path, path, tmp_path, str(path), "dataset 'odd'", "filter 299")
    check_error(command("index", path), str(path), "filter 299")
    assert os.listdir(tmp_path).count("x.h5.twm") == 0
    assert command("compare", path, path, "--field", "fine").status == 0


def test_two_files_with_the_same_field(tmp_path: Path) -> None:
    """One of them must not be dropped silently: the other would answer for both."""
    for run, value in (("a", 0.0), ("b", 1.0)):
        folder = tmp_path / run
        folder.mkdir()
        save_as(folder / "sim_0010.h5", np.full(9, value))
        np.save(folder / "x_0010.npy", np.zeros(9))
    cannot_compare(tmp_path / "a", tmp_path / "b", tmp_path, "field 'x'", "rename one of them")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.npy")
    np.save(bad, np.arange(3.0))
    for arguments in (("compare", bad, bad), ("index", bad), ("verify", bad), ("show", bad)):
        check_error(command(*arguments), "x\\udcff.npy: its name is not UTF-8; rename it")
    check_error(command("index", tmp_path), "is not UTF-8")


def test_unwritable_json(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "r.json", tmp_path, "/proc/r.json", "/dev/full"):
        check_error(
            command("compare", pair[0], pair[0], "--json", path), str(path), "cannot write the JSON report"
        )
    check_error(
        command("compare", pair[0], tmp_path / "x", "--json", tmp_path / "none" / "r.json"), "no such file"
    )


def test_unwritable_picture(pair: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for path in (tmp_path / "none" / "p.png", tmp_path / "p.parchment"):
        check_error(command("compare", *pair, "--picture", path), str(path), "cannot write the picture")


def test_capture_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    x = np.zeros(3)
    with twinrun.Run(tmp_path / "r") as run:
        run.capture(1, {"x": x})
        for step, fields, said in (
            (1, {"x": x}, "captured already"),
            (2, {}, "no fields"),
            (2, {"x": np.zeros(2, np.longdouble)}, "not supported"),
            (2, {"x": np.array([object()])}, "x: cannot be compared: a value of the type object"),
            (2, {"x": x, "t": [{1, 2}]}, "t.0: .*not supported"),
            (2, {1: x, "1": x}, "two fields of the name '1'"),
            (2, {"\udcff": x}, "not UTF-8"),
            (2, {"n" * 65537: x}, "its name has 65537 bytes, more than 65536: give it a shorter one"),
            (1.5, {"x": x}, "a step is an integer"),
            ("2", {"x": x}, "a step is an integer"),
            (1 << 70, {"x": x}, "64 bits"),
        ):
            with pytest.raises(twinrun.TwinrunError, match=said):
                run.capture(step, fields)
        run.capture(np.int32(2), {"x": x})
        assert run.steps == [1, 2]
    with pytest.raises(twinrun.TwinrunError, match="the run is closed"):
        run.capture(3, {"x": x})
    for options in (
        {"residue_bits": 3},
        {"residue_bits": -1},
        {"chunk_bytes": 0},
        {"chunk_bytes": 5000},
        {"chunk_bytes": 1 << 40},
        {"digest": "sha"},
        {"atol": -1.0},
        {"atol": np.nan},
        {"rtol": np.inf},
        {"threads": -1},
        {"existing": "burn"},
    ):
        with pytest.raises(twinrun.TwinrunError):
            twinrun.Run(tmp_path / "q", **options)
        assert not (tmp_path / "q").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(twinrun.TwinrunError, match="file"):
        twinrun.Run(tmp_path / "file")


def test_arguments_of_the_api(tmp_path: Path) -> None:
    x = np.zeros(3)
    for options in (
        {"method": "magic"},
        {"io": "floppy"},
        {"cache": "warm"},
        {"threads": 1 << 40},
        {"memory": -1},
        {"memory": 1 << 80},
        {"residue_bits": 5},
        {"chunk_bytes": 1},
        {"atol": -1},
        {"rtol": np.nan},
        {"steps": "1:2:3"},
    ):
        with pytest.raises(twinrun.TwinrunError):
            twinrun.compare(x, x, **in_options(options))
    with pytest.raises(twinrun.TwinrunError):
        twinrun.compare({}, {})
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(x, np.zeros(4))
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare({"x": x}, {"y": x})
    with pytest.raises(twinrun.TwinrunError):
        twinrun.compare("text", 3)


# ---- no space left -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"may not mount a small file system here: {made.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def fill_up(path: Path) -> None:
    """Takes all the space that is left."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(file, bytes(4096))
    finally:
        os.close(file)


def test_no_space_to_capture(small_disk: Path) -> None:
    path = small_disk / "run"
    x = np.random.default_rng(9).normal(size=5000)
    with twinrun.Run(path) as run:
        run.capture(1, {"x": x})
        disk = os.statvfs(path)
        fits = disk.f_bavail * disk.f_frsize - 4096
        for size in (1 << 21, fits):  # the data does not fit, or its metadata
            with pytest.raises(twinrun.TwinrunError, match=r"(?i)no space left"):
                run.capture(2, {"x": np.zeros(size // 8)})
            assert sorted(os.listdir(path)) == ["manifest.jsonl", "step-0000000001"]
            assert twinrun.verify(path) == ([], 3)
        assert run.steps == [1]
        run.capture(2, {"x": x})
    assert [s["step"] for s in load_json(command("log", path, "--json").out)["steps"]] == [1, 2]
    assert twinrun.verify(path) == ([], 5)
    assert command("compare", path, path).status == 0


def test_no_space_to_start_a_history(small_disk: Path) -> None:
    fill_up(small_disk / "fill")
    with pytest.raises(twinrun.TwinrunError, match=r"(?i)no space left"):
        twinrun.Run(small_disk / "run")
    (small_disk / "fill").unlink()
    with twinrun.Run(small_disk / "run", existing="append") as run:  # what was left is no obstacle
        run.capture(1, {"x": np.zeros(3)})
    assert command("compare", small_disk / "run", small_disk / "run").status == 0


def test_no_space_to_index(small_disk: Path) -> None:
    path = small_disk / "x.npy"
    np.save(path, np.random.default_rng(10).normal(size=125_000))
    check_error(command("index", path, "--atol", "1e-3"), str(small_disk), "no space left")
    assert os.listdir(small_disk) == ["x.npy"]


def test_no_space_for_the_report(small_disk: Path, pair: tuple[Path, Path]) -> None:
    report = small_disk / "r.json"
    fill_up(small_disk / "fill")
    check_error(command("compare", pair[0], pair[0], "--json", report), str(report), "No space left")
    assert os.listdir(small_disk) == ["fill"]


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The same without a file system of its own: a write fails half way."""
    np.save(tmp_path / "x.npy", np.zeros(100_000))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    script = (
        "import sys, numpy, twinrun\nrun = twinrun.Run(sys.argv[1])\nrun.capture(1, {'x': numpy.zeros(9)})\n"
    )
    script += "try: run.capture(2, {'x': numpy.zeros(9999)})\nexcept twinrun.TwinrunError as e: print(e)\n"
    script += "run.capture(3, {'x': numpy.zeros(9)})"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done
    assert done.stdout.count("\n") == 1 and "file too large" in done.stdout
    assert sorted(os.listdir(tmp_path / "run")) == ["manifest.jsonl", "step-0000000001", "step-0000000003"]
    assert twinrun.verify(tmp_path / "run") == ([], 5)


def test_choices_are_listed_in_one_line() -> None:
    done = command("completion")
    assert "Choose from: bash, zsh, fish" in check_error(done)


def test_what_matched_nothing_is_told_in_words_of_the_caller() -> None:
    x = {"x": np.zeros(3)}
    notes = twinrun.compare(x, x, leave_out="zz*").notes
    assert [note for note in notes if "zz*" in note] == ["leave_out zz* matched no field"]


def test_no_ids_for_golden_files(tmp_path: Path) -> None:
    with pytest.raises(twinrun.Incomparable, match="key='auto' finds no particles"):
        twinrun.golden.save({"x": np.zeros(3), "n": np.arange(3)}, tmp_path / "golden", atol=0, key="auto")
