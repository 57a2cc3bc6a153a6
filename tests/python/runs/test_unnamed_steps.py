"""Whole steps that no journal names are not left out in silence: by whoever packs, saves, copies or compares a history."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import command
from support import run_of_ranks

import twinrun

LEFT_OUT = "step-0000000003 left out: no journal names it"


def cut(journal: Path, lines: int = 1) -> None:
    whole = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(whole[:-lines]))


@pytest.fixture
def history(tmp_path: Path) -> Path:
    with twinrun.Run(tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.capture(step, {"x": np.full(3000, step, "f4")})
    return tmp_path / "run"


def test_pack_and_golden_files_refuse_a_part(history: Path, tmp_path: Path) -> None:
    cut(history / "manifest.jsonl")
    for done in (
        command("pack", history, tmp_path / "rec"),
        command("golden", "save", history, "-o", tmp_path / "golden"),
    ):
        assert done.status == 2 and LEFT_OUT in done.err and "bring the journal back from a copy" in done.err
    assert not (tmp_path / "rec").exists() and not (tmp_path / "golden").exists()
    # Who names steps gets these.
    assert command("golden", "save", history, "-o", tmp_path / "some", "--steps", "1,2").status == 0
    with pytest.raises(twinrun.errors.DamagedFile, match=LEFT_OUT):
        twinrun.pack(history, tmp_path / "rec")


def test_log_and_compare_say_so(history: Path, tmp_path: Path) -> None:
    shutil.copytree(history, tmp_path / "whole")
    cut(history / "manifest.jsonl")
    assert LEFT_OUT in " ".join(command("log", history).out.split())
    assert LEFT_OUT not in command("log", tmp_path / "whole").out
    for path, folders in ((history, ["step-0000000003"]), (tmp_path / "whole", [])):
        assert json.loads(command("log", path, "--json", "-").out)["unnamed"] == folders
    result = twinrun.compare(history, history)
    assert result.verdict == "same" and any(LEFT_OUT in note for note in result.notes)
    with pytest.raises(twinrun.errors.Unmatched, match="not there"):
        twinrun.compare(history, tmp_path / "whole")
    result = twinrun.compare(tmp_path / "whole", tmp_path / "whole")
    assert not any("left out" in note for note in result.notes)


def test_what_a_replaced_step_left_is_named(history: Path, tmp_path: Path) -> None:
    """Later steps of the record need its difference, which stays in its folder; its metadata goes."""
    twinrun.pack(history, tmp_path / "rec")
    with twinrun.Run(history, existing="replace") as run:
        for step in (1, 2, 3):
            run.capture(step, {"x": np.full(3000, step + 10, "f4")})
    assert command("pack", "--update", history, tmp_path / "rec").status == 0
    assert list((tmp_path / "rec" / "step-0000000001").glob("*.twr"))
    done = command("verify", tmp_path / "rec")
    assert done.status == 0 and "note" not in done.out + done.err
    # Without the line that replaced it the step of the second time is left out, and said to be.
    cut(tmp_path / "rec" / "manifest.jsonl")
    assert "1 whole step there that no journal names" in command("verify", tmp_path / "rec").err


def ranks_of(count: int) -> list[dict[int, dict[str, object]]]:
    return [{step: {"x": np.full(2000, step + rank, "f4")} for step in (1, 2, 3)} for rank in range(count)]


def test_the_journal_of_one_rank_was_cut(tmp_path: Path) -> None:
    path = run_of_ranks(tmp_path / "run", ranks_of(2))
    assert command("pack", path, tmp_path / "before").status == 0
    cut(path / "rank-00001.jsonl")
    done = command("pack", path, tmp_path / "rec")
    assert done.status == 2 and LEFT_OUT in done.err


def test_flush_names_steps_that_stay(tmp_path: Path) -> None:
    run_of_ranks(tmp_path / "run", ranks_of(2), local=tmp_path / "node")
    parts = sorted((tmp_path / "node").glob("rank-*"))
    cut(parts[1] / "rank-00001.jsonl")
    done = command("flush", tmp_path / "node", "--to", tmp_path / "run")
    assert done.status == 2 and f"{parts[1]}: {LEFT_OUT}" in done.err
    assert str(parts[0]) not in done.err


def test_a_killed_run_is_packed_as_before(history: Path, tmp_path: Path) -> None:
    cut(history / "manifest.jsonl")
    # The mark that a writer leaves until the journal names the step.
    (history / "step-0000000003" / "rank-00000.begun").touch()
    assert command("pack", history, tmp_path / "rec").status == 0
    assert LEFT_OUT not in command("log", history).out


def test_a_copy_without_hidden_files_is_noted(history: Path) -> None:
    cut(history / "manifest.jsonl")
    for mark in history.glob("step-*/.twinrun-*"):
        mark.unlink()
    found = twinrun.verify(history)
    assert [note.partition(": ")[0] for note in found.notes] == [str(history / "step-0000000003")]
    assert "no mark of this history" in found.notes[0] and not found.problems


def test_a_folder_of_that_name_without_steps_of_ours_is_nothing(history: Path, tmp_path: Path) -> None:
    (history / "step-0000000009").mkdir()
    (history / "step-0000000009" / "mine.dat").write_bytes(b"mine")
    os.symlink(tmp_path, history / "step-0000000010")
    assert twinrun.verify(history).notes == []
    assert command("pack", history, tmp_path / "rec").status == 0


def test_a_missing_journal_is_why_steps_are_not_there(tmp_path: Path) -> None:
    for name in "ab":
        run_of_ranks(tmp_path / name, ranks_of(2))
    (tmp_path / "a" / "rank-00001.jsonl").unlink()
    for pair in ("ab", "ba"):
        with pytest.raises(twinrun.errors.Unmatched) as caught:
            twinrun.compare(*(tmp_path / name for name in pair))
        said = str(caught.value)
        assert "steps 1, 2, 3 of" in said and "not there; not every rank committed them: " in said
        assert "rank-00001.jsonl: missing" in said and "align" not in said
