"""Data that is equal in both runs though its digests differ is not what was digested: never `same`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from commands import command
from support import run_of_ranks

import twinrun

SHAPE = (32, 32, 32)


def blank(run: Path, begin: int = 0, end: int | None = None) -> None:
    """Bytes of all data files become zero, and the files keep their times, as where storage lost them."""
    for path in run.glob("step-*/*.data"):
        before = path.stat()
        data = bytearray(path.read_bytes())
        stop = len(data) if end is None else end
        data[begin:stop] = bytes(stop - begin)
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path, x: np.ndarray, ranks: int, **settings: object) -> Path:
    """A history of an array in slabs."""
    n = SHAPE[0] // ranks
    parts = [np.ascontiguousarray(x[r * n : (r + 1) * n]) for r in range(ranks)]
    return run_of_ranks(
        path,
        [{1: {"x": part}} for part in parts],
        places=[{"x": (SHAPE, (r * n, 0, 0))} for r in range(ranks)],
        **settings,
    )


@pytest.mark.parametrize("how", [{"atol": 1e-6}, {"atol": 1e-6, "residue_bits": 0}, {}])
@pytest.mark.parametrize(("of_a", "of_b"), [(1, 1), (1, 2), (2, 4)])
def test_of_any_cutting(tmp_path: Path, of_a: int, of_b: int, how: dict) -> None:
    x = np.random.default_rng(1).normal(size=SHAPE)
    y = x.copy()
    y[20, 3, 4] += 1
    a, b = cut(tmp_path / "a", x, of_a, **how), cut(tmp_path / "b", y, of_b, **how)
    same = cut(tmp_path / "c", x, of_b, **how)
    assert command("compare", a, b).status == 1
    for run in (a, b, same):
        blank(run)
    done = command("compare", a, b)
    assert done.status == 2 and "differ, and the data is equal" in done.out + done.err
    assert "twinrun verify" in done.out + done.err
    # What digests prove is not read. Who wants the data alone to be compared gets that.
    assert command("compare", a, same).status == 0
    assert command("compare", a, b, "--method", "direct").status == 0
    assert command("verify", a).status == 1


@pytest.mark.parametrize("alone", [False, True])
def test_of_particles(tmp_path: Path, alone: bool) -> None:
    """Where one run has an ID alone, its sums differ rightly."""
    random = np.random.default_rng(1)
    ids = random.permutation(20_000)
    values = random.normal(size=ids.size)
    other = values.copy()
    other[123] += 1
    left = slice(1, None) if alone else slice(None)
    for name, v, rows in (("a", values, slice(None)), ("b", other, left)):
        with twinrun.Run(tmp_path / name, atol=1e-6) as run:
            run.capture(1, {"v": v[rows], "id": ids[rows]}, ids={"v": "id"})
        blank(tmp_path / name, 0, 8 * v[rows].size)
    done = command("compare", tmp_path / "a", tmp_path / "b", "--key", "id")
    said = done.out + done.err
    assert done.status == (1 if alone else 2)
    assert ("sums of digests of both runs differ, and the data is equal" in said) is not alone
