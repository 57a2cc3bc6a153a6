"""A journal that lost the end of its last line: verify names the step's folder, which is still there."""

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
    assert found  # a line that was cut is ignored
    assert [note.partition(": ")[0] for note in found.notes] == [str(path / "step-0000000002")]
    done = command("verify", path)
    assert done.status == 0 and f"note: {path}/step-0000000002: not checked" in done.out
