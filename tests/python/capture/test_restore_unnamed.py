"""Restore of a record whose journal lost its end: what is named comes back, and the rest is an error."""

import os
from pathlib import Path

import numpy as np
import pytest
from commands import command
from support import run_of_ranks

import twinrun


@pytest.fixture(params=["packed", "history", "record"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A record of three steps."""
    path = tmp_path / "rec"
    arrays = [np.random.default_rng(step).normal(size=1000) for step in range(3)]
    if request.param == "packed":
        (tmp_path / "files").mkdir()
        for step, x in enumerate(arrays):
            x.tofile(tmp_path / "files" / f"x.{step}.dat")
        twinrun.pack(tmp_path / "files", path)
    else:
        recorded = request.param == "record"
        with twinrun.Run(path if recorded else tmp_path / "run", record="runs" if recorded else None) as run:
            for step, x in enumerate(arrays):
                run.capture(step, {"x": x})
        if not recorded:
            twinrun.pack(tmp_path / "run", path)
    return path


def cut(record: Path, how: str) -> None:
    manifest = record / "manifest.jsonl"
    whole = manifest.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    if how == "line":
        os.truncate(manifest, len(whole) - last)
    elif how == "part":
        os.truncate(manifest, len(whole) - 5)
    else:
        manifest.write_bytes(whole[:-20] + bytes(20))


@pytest.mark.parametrize("how", ["line", "part", "zeros"])
def test_a_step_that_no_journal_names_is_an_error(record: Path, tmp_path: Path, how: str) -> None:
    cut(record, how)
    done = command("restore", record, tmp_path / "out")
    assert done.status == 2 and "wrote" in done.out
    assert "step-0000000002 not restored: no journal names it" in done.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"step-0000000000", "step-0000000001"} <= names and "step-0000000002" not in names
    with pytest.raises(twinrun.errors.DamagedFile, match="step-0000000002 not restored"):
        twinrun.restore(record, tmp_path / "again")
    # Who names steps gets these.
    assert command("restore", record, tmp_path / "one", "--step", "1").status == 0
    done = command("restore", record, tmp_path / "two", "--step", "2")
    assert done.status == 2 and "step-0000000002 was not read: no journal names it" in done.err
    with pytest.raises(twinrun.errors.DamagedFile, match="step-0000000002 was not read: no journal names it"):
        twinrun.read_part(record, 2, "x")
    with pytest.raises(twinrun.errors.MissingFile, match="has no step 3; twinrun log lists the steps"):
        twinrun.read_part(record, 3, "x")


def test_where_no_journal_names_any_step(record: Path, tmp_path: Path) -> None:
    manifest = record / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().splitlines(keepends=True)[0])
    done = command("restore", record, tmp_path / "out")
    assert done.status == 2 and "step-0000000000, step-0000000001, step-0000000002 not restored" in done.err


def test_the_journal_of_one_rank_was_cut(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    run = run_of_ranks(tmp_path / "run", [{s: {"x": x + s} for s in (1, 2)} for _ in range(2)])
    twinrun.pack(run, tmp_path / "rec")
    journal = tmp_path / "rec" / "rank-00001.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    done = command("restore", tmp_path / "rec", tmp_path / "out")
    assert done.status == 2 and "step-0000000002 not restored" in done.err
