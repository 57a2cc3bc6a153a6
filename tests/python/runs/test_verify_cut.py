"""A journal that lost the end of its last line: verify names the step's folder, which is still there."""

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun


@pytest.mark.parametrize("kind", ["history", "record", "packed"])
def test_a_step_that_the_journal_does_not_name_is_a_note(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "packed":
        (tmp_path / "files").mkdir()
        for step in range(3):
            np.random.default_rng(step).normal(size=1000).tofile(tmp_path / "files" / f"x.{step}.dat")
        assert command("pack", tmp_path / "files", path).status == 0
    else:
        with twinrun.Run(path, record="runs" if kind == "record" else None) as run:
            for step in range(3):
                run.capture(step, {"x": np.random.default_rng(step).normal(size=1000)})
    found = twinrun.verify(path)
    assert found and not found.notes
    os.truncate(path / "manifest.jsonl", (path / "manifest.jsonl").stat().st_size - 5)
    found = twinrun.verify(path)
    assert not found and not found.problems  # a line that was cut is ignored
    assert [note.partition(": ")[0] for note in found.notes] == [str(path / "step-0000000002")]
    assert found.unnamed == [str(path / "step-0000000002")]
    done = command("verify", path)
    assert done.status == 2 and f"note: {path}/step-0000000002: not checked" in done.out
    assert done.last.startswith("not checked: 1 step that no journal names; intact: ")
    assert "1 whole step there that no journal names" in done.err


def cut_record(path: Path) -> tuple[Path, Path]:
    """A record of other programs' files, whose journal lost its last line; and the folder of that step."""
    (path / "files").mkdir()
    for step in range(3):
        np.random.default_rng(step).normal(size=1000).tofile(path / "files" / f"x.{step}.dat")
    twinrun.pack(path / "files", path / "record")
    manifest = path / "record" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    return path / "record", path / "record" / "step-0000000002"


@pytest.mark.parametrize("left", ["begun", "short", "empty", "header", "unmarked", "locked"])
def test_what_a_pack_at_work_or_killed_has_is_a_note_alone(tmp_path: Path, left: str) -> None:
    record, folder = cut_record(tmp_path)
    difference = folder / "rank-00000.twr"
    whole = difference.read_bytes()
    with open(record / "manifest.jsonl", "rb") as journal:
        if left == "begun":
            (folder / "rank-00000.begun").touch()
        elif left == "short":
            difference.write_bytes(whole[:-1])
        elif left == "empty":
            difference.write_bytes(b"")
        elif left == "header":
            difference.write_bytes(whole[:70] + b"?" + whole[71:])
        elif left == "unmarked":
            next(folder.glob(".twinrun-*")).unlink()
        else:
            fcntl.flock(journal, fcntl.LOCK_EX)
        found = twinrun.verify(record)
        assert found and len(found.notes) == 1 and found.unnamed == []
        assert command("verify", record).status == 0
        assert command("restore", record, tmp_path / "back").status == 0


def test_a_step_that_is_packed_again_is_named(tmp_path: Path) -> None:
    record, _ = cut_record(tmp_path)
    twinrun.pack(tmp_path / "files", record, append=True)
    assert twinrun.verify(record)
    assert len(twinrun.restore(record, tmp_path / "back")) == 3


def test_a_compacted_record_has_no_unnamed_steps(tmp_path: Path) -> None:
    """Differences in other files than at first, and those of steps that left."""
    (tmp_path / "files").mkdir()
    x = np.random.default_rng(1).normal(size=5000)
    for step in range(6):
        x[: 100 * step] = step
        x.tofile(tmp_path / "files" / f"x.{step}.dat")
    record = tmp_path / "record"
    twinrun.pack(tmp_path / "files", record)
    twinrun.compact(record, keep_last=3)
    assert (found := twinrun.verify(record)) and not found.notes
    assert len(twinrun.restore(record, tmp_path / "back")) == 3
    manifest = record / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(line for line in lines if b'"step":5' not in line))
    assert twinrun.verify(record).unnamed == [str(record / "step-0000000005")]
