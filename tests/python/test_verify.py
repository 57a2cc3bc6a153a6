"""twinrun verify: any single flipped bit in what a checksum covers is found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun

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
    size = 0
    for begin, length in ((0, 24000), (24576, 400), (28672, 800)):  # what lies between is padding
        for bit in (begin * 8, (begin + length) * 8 - 1, *rng.integers(begin * 8, (begin + length) * 8, 30)):
            assert finds(history, path, int(bit)), bit
        size = begin + length
    assert path.stat().st_size - size < 4096
    assert twinrun.verify(history) == ([], 5)


def test_metadata(history: Path) -> None:
    path = history / STEP / "rank-00000.twm"
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    used = [i for i, byte in enumerate(content) if byte]  # padding is zeros
    bits = [
        *range(64 * 8),
        *(int(i) * 8 + int(rng.integers(8)) for i in rng.choice(used, 300, replace=False)),
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
    assert done.last == "damaged: 1 problems in 5 files"
    flip(history / "manifest.jsonl", 77)
    check_error(command("verify", history), "manifest.jsonl: damaged: line 1")
    np.save(tmp_path / "x.npy", np.zeros(9))
    check_error(
        command("verify", tmp_path / "x.npy"), "no metadata to verify it by; make some with 'twinrun index'"
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
