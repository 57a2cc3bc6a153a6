"""Histories that are moved, copied, linked and mixed while runs go on: no committed step is lost, and none is another run's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import command
from folders import looks

import twinrun

ZERO, ONE = np.zeros(3), np.ones(3)


def captured(path: Path, steps: dict[int, np.ndarray], **options: object) -> None:
    with twinrun.Run(path, **options) as run:
        for step, x in steps.items():
            run.capture(step, {"x": x})


def value(path: Path, step: int, **options: object) -> float:
    with twinrun.Run(path, existing="append", **options) as run:
        return float(run.load(step)["x"][0])


@pytest.mark.parametrize("there", [False, True])
def test_replacing_one_history_keeps_the_local_steps_of_another(there: bool, tmp_path: Path) -> None:
    local = tmp_path / "local"
    captured(tmp_path / "a", {1: ZERO}, local=local, flusher="none")
    if there:
        captured(tmp_path / "b", {1: ONE})
    with pytest.raises(twinrun.TwinrunError, match="holds steps of another run"):
        twinrun.Run(tmp_path / "b", local=local, existing="replace")
    assert value(tmp_path / "a", 1, local=local, flusher="none") == 0
    if there:
        assert value(tmp_path / "b", 1) == 1
    # Its own steps are what is to be replaced.
    captured(tmp_path / "a", {2: ONE}, local=local, flusher="none", existing="replace")
    with twinrun.Run(tmp_path / "a", existing="append", local=local, flusher="none") as run:
        assert run.steps == [2]


def test_a_local_copy_that_was_captured_again_elsewhere_does_not_count(tmp_path: Path) -> None:
    run, node_1, node_2 = tmp_path / "run", tmp_path / "node-1", tmp_path / "node-2"
    captured(run, {1: ZERO, 2: ZERO}, local=node_1)
    captured(run, {1: ONE}, local=node_2, existing="append", replace_steps=True)
    captured(run, {2: ONE}, existing="append", replace_steps=True)
    for step in (1, 2):
        assert value(run, step) == value(run, step, local=node_1) == value(run, step, local=node_2) == 1


def test_local_steps_of_a_history_that_was_here_before(tmp_path: Path) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    for again in ("replaced", "begun anew"):
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(local, ignore_errors=True)
        captured(run, {1: ZERO}, local=local)
        if again == "begun anew":
            shutil.rmtree(run)
        captured(run, {1: ONE}, existing="replace")
        with pytest.raises(twinrun.TwinrunError, match="holds steps of another run"):
            twinrun.Run(run, existing="append", local=local)
        done = command("flush", local)
        assert done.status == 2 and "is not the history that" in done.err
        assert value(run, 1) == 1
        assert command("flush", local, "--to", tmp_path / again).status == 0
        assert value(tmp_path / again, 1) == 0


def test_two_steps_of_one_number_are_told(tmp_path: Path) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    captured(run, {1: ZERO, 2: ZERO}, local=local, flusher="none")
    captured(run, {2: ONE, 3: ONE}, existing="append")
    done = command("flush", local)
    assert done.status == 2 and "has another step 2" in done.err + done.out
    with pytest.raises(twinrun.TwinrunError, match="its step 2 is not the one"):
        twinrun.Run(run, existing="append", local=local)
    assert [value(run, step) for step in (1, 2, 3)] == [0, 1, 1]
    captured(tmp_path / "other", {2: ONE})
    assert command("flush", local, "--to", tmp_path / "other").status == 2
    assert command("flush", local, "--to", tmp_path / "new").status == 0
    assert value(tmp_path / "new", 2) == 0


def test_parts_of_two_runs_make_no_history(tmp_path: Path) -> None:
    local, other = tmp_path / "local", tmp_path / "other"
    captured(tmp_path / "a", {1: ZERO}, local=local, flusher="none")
    captured(tmp_path / "b", {1: ONE}, local=other, flusher="none")
    shutil.copytree(other / "rank-00000", local / "rank-00001")
    done = command("flush", local, "--to", tmp_path / "new")
    assert done.status == 2 and "is a part of another run than" in done.err
    assert not (tmp_path / "new").exists()
    # Each goes to its own where that is there.
    assert command("flush", local).status == 0
    assert value(tmp_path / "a", 1) == 0 and value(tmp_path / "b", 1) == 1


def test_another_history_at_its_path(tmp_path: Path) -> None:
    """A run whose folder was moved away writes into no other one that came there."""
    a, b = tmp_path / "a", tmp_path / "b"
    captured(b, {3: ONE, 9: ONE})
    before = looks(b)
    run = twinrun.Run(a)
    run.capture(1, {"x": ZERO})
    os.rename(a, tmp_path / "moved")
    os.rename(b, a)
    for step in (2, 3, 4, 3):
        with pytest.raises(twinrun.TwinrunError, match="was moved or replaced"):
            run.capture(step, {"x": ZERO})
    run.close()
    assert looks(a) == before
    assert value(tmp_path / "moved", 1) == 0 and value(a, 3) == 1
    assert twinrun.verify(a)[0] == []


@pytest.mark.parametrize("steps", [[1, 2], [8]])
def test_a_manifest_of_another_run_is_told(steps: list[int], tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    captured(a, {1: ZERO, 2: ZERO})
    captured(b, dict.fromkeys(steps, ONE))
    for path in (a, b):
        assert not twinrun.verify(path)[0] and "another history" not in command("log", path).out
    shutil.copy(b / "manifest.jsonl", a / "manifest.jsonl")
    shutil.copytree(b / "step-0000000008", a / "step-0000000008") if steps == [8] else None
    said = "step-0000000001 and 1 more beside its manifest.jsonl: of another history"
    problems = twinrun.verify(a).problems
    assert f"{a}: {said}" in "\n".join(problems)
    note = said if steps == [8] else said.replace(" and 1 more", "")
    assert f"note: {note}" in command("log", a).out
    compared = command("compare", a, a)
    assert f"{a}: {note}" in compared.out if steps == [8] else compared.status == 2
    assert json.loads(command("log", a, "--json").out)["others"][0] == "step-0000000001"


@pytest.mark.parametrize("what", ["removed", "emptied"])
def test_a_manifest_that_is_gone(what: str, tmp_path: Path) -> None:
    run = twinrun.Run(tmp_path / "run")
    run.capture(1, {"x": ZERO})
    manifest = tmp_path / "run/manifest.jsonl"
    if what == "removed":
        manifest.unlink()
    else:
        manifest.write_bytes(b"")
    with pytest.raises(twinrun.TwinrunError):
        run.capture(2, {"x": ZERO})
    run.close()
    assert not manifest.exists() or manifest.read_bytes() == b""


def test_a_copy_of_links_stays_as_it_is(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    captured(a, {1: ZERO, 2: ZERO})
    shutil.copytree(a, b, copy_function=os.link)
    before = looks(b)
    captured(a, {3: ONE}, existing="append", keep_steps=1)
    assert looks(b) == before
    assert value(b, 1) == 0 and value(a, 3) == 1
    assert twinrun.verify(b)[0] == [] and twinrun.verify(a)[0] == []


def test_a_step_of_another_history_in_the_place_of_ones_own(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        captured(path, {1: ZERO, 2: ZERO if path == a else ONE})
    shutil.rmtree(b / "step-0000000002")
    os.rename(a / "step-0000000002", b / "step-0000000002")
    before = looks(b / "step-0000000002")
    captured(b, {2: ONE}, existing="append", replace_steps=True)
    captured(b, {3: ONE}, existing="append", keep_steps=1)
    captured(b, {4: ONE}, existing="replace")
    assert looks(b / "step-0000000002") == before
    assert value(b, 4) == 1


def test_a_manifest_that_is_a_link(tmp_path: Path) -> None:
    captured(tmp_path / "b", {2: ONE})
    mine = tmp_path / "mine"
    (mine / "step-0000000002").mkdir(parents=True)
    (mine / "step-0000000002/rank-00000.data").write_text("mine")
    (mine / "manifest.jsonl").symlink_to(tmp_path / "b/manifest.jsonl")
    before = looks(tmp_path)
    for existing in ("refuse", "append", "replace"):
        with pytest.raises(twinrun.TwinrunError, match="not a regular file"):
            twinrun.Run(mine, existing=existing)
    assert looks(tmp_path) == before


def test_steps_of_a_history_that_was_replaced_have_another_way(tmp_path):
    history, local = tmp_path / "history", tmp_path / "local"
    with twinrun.Run(history, local=local, flusher="none") as run:
        run.capture(1, {"x": np.arange(9.0)})
    with twinrun.Run(history, existing="replace") as run:
        run.capture(1, {"x": np.zeros(9)})
    with pytest.raises(twinrun.TwinrunError, match=r"replaced since: .*flush --to"):
        twinrun.Run(history, local=local, existing="append")
