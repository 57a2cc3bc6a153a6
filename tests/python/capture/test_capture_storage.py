"""Run on storage: tiers, retention, and steps that are brought on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from capture_checks import fields, same
from commands import cannot_compare, check_error, command
from folders import looks
from histories import steps_of
from support import run_of_ranks, step_files

import twinrun

# ---- what is kept, and where ----


@pytest.mark.parametrize("name", ["group.notes", "group.data.1", "group.data.000001", "group.data.x"])
def test_not_all_that_is_named_like_a_group_file_is_one(tmp_path, name):
    path = tmp_path / "history"
    with twinrun.Run(path) as run:
        run.capture(1, {"x": np.arange(100.0)})
    (folder,) = path.glob("step-*1")
    notes = folder / name
    notes.write_bytes(b"my notes" * 512)
    with twinrun.Run(path, existing="replace"):
        pass
    with twinrun.Run(path, existing="append"):
        pass
    assert notes.read_bytes() == b"my notes" * 512


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("record", "kept"), [(None, {"keep_steps": 1}), (None, {}), ("runs", {})])
def test_a_step_that_is_captured_again_past_the_local_tier_is_the_newest(tmp_path, background, record, kept):
    path = tmp_path / "history"
    small, large = np.arange(5000.0), np.arange(1e6, 1e6 + 40000)
    for attempt in range(5):
        with twinrun.Run(
            path, existing="replace", local=tmp_path / "local", local_limit="200 KiB", background=background,
            replace_steps=True, record=record, **kept,
        ) as run:  # fmt: skip
            run.capture(1, {"x": small})
            run.capture(2, {"x": small + 1})
            run.capture(1, {"x": large})
            run.wait()
            assert (run.load(1)["x"] == large).all()
            steps = [1] if kept else [1, 2, 3]
            if not kept:
                run.capture(
                    3, {"x": small}
                )  # of a record: nothing new, and its content was the old attempt's
        with twinrun.Run(path, existing="append", record=record) as run:
            assert run.steps == steps, attempt
            assert (run.load(1)["x"] == large).all()
            if not kept:
                assert (run.load(2)["x"] == small + 1).all()
                assert (run.load(3)["x"] == small).all()
        assert not twinrun.verify(path).problems


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kept", ["keep_steps", "keep_data_steps"])
def test_a_step_that_goes_past_the_local_tier_stays_the_newest(tmp_path, background, kept):
    path = tmp_path / "history"
    large = np.full(40000, 2.0)
    for attempt in range(5):  # whichever comes to the history first
        with twinrun.Run(
            path, existing="replace", local=tmp_path / "local", local_limit="200 KiB", background=background,
            **{kept: 1},
        ) as run:  # fmt: skip
            run.capture(1, {"x": np.full(15000, 1.0)})
            run.capture(2, {"x": large})  # more than the tier may hold
        with twinrun.Run(path, existing="append") as run:
            assert 2 in run.steps, attempt
            assert (run.load(2)["x"] == large).all()


def test_retention(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "a", atol=1e-3, keep_steps=3, keep_data_steps=1) as run:
        for step in range(6):
            run.capture(step, fields(step))
        run.wait()
        assert run.steps == [3, 4, 5]
    with twinrun.Run(tmp_path / "b", atol=1e-3) as run:
        for step in range(6):
            run.capture(step, fields(step))
    assert steps_of(tmp_path / "a") == [3, 4, 5]
    files = {step: step_files(tmp_path / f"a/step-{step:010}") for step in (3, 4, 5)}
    assert [len(files[step]) for step in (3, 4, 5)] == [1, 1, 2]
    assert twinrun.verify(tmp_path / "a") == ([], 1 + 3 + 1)
    # Metadata still answers where the runs agree.
    assert command("compare", tmp_path / "a", tmp_path / "b", "--steps", "3:5").status == 0
    cannot_compare(
        tmp_path / "a",
        tmp_path / "b",
        tmp_path,
        "only its metadata is available",
        options=("--steps", "3", "--no-metadata"),
    )
    with twinrun.Run(tmp_path / "a", atol=1e-3, existing="append") as run:
        assert same(run.load(5), fields(5))
        with pytest.raises(twinrun.TwinrunError, match="only its metadata was kept"):
            run.load(3)
        with pytest.raises(twinrun.TwinrunError, match="step 0: this rank has not committed it"):
            run.load(0)


def test_shared_files_of_one_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    steps = [{"x": rng.normal(size=700 * (n + 1)), "y": np.arange(n)} for n in range(3)]
    for name, settings in (("own", {}), ("shared", {"shared_files": "one"})):
        with twinrun.Run(tmp_path / name, settings=settings) as run:
            for number, arrays_of_step in enumerate(steps):
                run.capture(number, arrays_of_step)
    assert step_files(tmp_path / "shared" / "step-0000000001") == ["group.data", "rank-00000.twm"]
    assert command("verify", tmp_path / "shared").status == 0
    assert command("compare", tmp_path / "own", tmp_path / "shared").status == 0
    file = tmp_path / "shared" / "step-0000000001" / "group.data"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # of the padding
    file.write_bytes(content)
    assert command("verify", tmp_path / "shared").status != 0


def test_a_step_is_captured_again(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", replace_steps=True) as run:
        run.capture(1, fields(1))
        run.capture(1, fields(2))
        assert run.steps == [1] and same(run.load(1), fields(2))
    assert twinrun.verify(tmp_path / "run") == ([], 3)


@pytest.mark.parametrize("parts", ["the rank's folder", "the tier's folder", "moved"])
def test_flush(parts: str, tmp_path: Path) -> None:
    path, local = tmp_path / "run", tmp_path / "local"
    with twinrun.Run(path, atol=1e-3, local=local, flusher="none") as run:
        for step in range(3):
            run.capture(step, fields(step))
        assert same(run.load(2), fields(2))  # from where it is
    assert steps_of(path) == []
    assert twinrun.verify(local) == ([], 7) == twinrun.verify(local / "rank-00000")
    assert "rank 0's part, on a node-local tier" in command("log", local / "rank-00000").out
    from_where = local / "rank-00000" if parts == "the rank's folder" else local
    options = ()
    if parts == "moved":
        path.rename(tmp_path / "elsewhere")
        path = tmp_path / "elsewhere"
        options = ("--to", path)
    done = command("flush", from_where, *options)
    assert (done.status, done.err) == (0, "") and done.out.startswith("rank 0: 3 steps, "), done
    assert steps_of(path) == [0, 1, 2] and twinrun.verify(path) == ([], 7)
    again = command("flush", from_where, *options)
    assert again.status == 0 and "0 steps" in again.out and "3 were there already" in again.out


def test_steps_are_not_brought_into_the_tier_itself(tmp_path: Path) -> None:
    path, local = tmp_path / "run", tmp_path / "local"
    run_of_ranks(path, [{1: fields(1)}, {1: fields(2)}], local=local)
    (tmp_path / "link").symlink_to("local")
    before = looks(tmp_path)
    for source, to in (
        (local, local),
        (local, tmp_path / "link"),
        (tmp_path / "link", local),
        (local, local / "rank-00001"),
        (local / "rank-00000", local / "rank-00000"),
        (local / "rank-00000", local / "rank-00000/history"),
    ):
        check_error(command("flush", source, "--to", to), "read here", "--to")
        assert looks(tmp_path) == before
    assert command("flush", local, "--to", local / "history").status == 0
    assert twinrun.verify(local / "history").problems == []


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("t", "t"),
        ("t/rank-00000", "t"),
        ("t/rank-00001", "t"),
        ("t/rank-00000/run", "./t"),
        ("t/rank-00000", "link"),
    ],
)
@pytest.mark.parametrize("as_setting", [False, True])
def test_a_history_does_not_lie_in_its_own_tier(
    path: str, local: str, as_setting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("t")
    with pytest.raises(twinrun.TwinrunError, match=r"node-local tier.*separate folders"):
        twinrun.Run(path, **({"settings": {"local": local}} if as_setting else {"local": local}))
    assert os.listdir(tmp_path) == ["link"]
    with twinrun.Run("t/run", local="t") as run:  # beside the ranks' folders there is room
        run.capture(1, fields(1))
    assert twinrun.verify("t/run").problems == []


def test_a_run_does_not_replace_its_reference(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, fields(1))
    (tmp_path / "link").symlink_to("run")
    before = looks(tmp_path)
    for path, reference in (("run", "run"), ("link", "run"), ("run", "link")):
        with pytest.raises(twinrun.TwinrunError, match="cannot be replaced"):
            twinrun.Run(tmp_path / path, existing="replace", reference=tmp_path / reference)
        assert looks(tmp_path) == before


def test_where_nobody_brings_steps_on(tmp_path: Path) -> None:
    path, local = tmp_path / "run", tmp_path / "local"
    with twinrun.Run(path, local=local, flusher="none") as run:
        for step in range(3):
            run.capture(step, fields(step))
        run.wait()
        assert run.steps == run.local_steps == [0, 1, 2] and run.latest() == 2
    assert steps_of(path) == []
    # Going on finds them; and says so only of what is there.
    with twinrun.Run(path, local=local, flusher="none", existing="append") as run:
        assert run.latest() == 2 and same(run.load(2), fields(2))
        with pytest.raises(twinrun.TwinrunError, match="captured already"):
            run.capture(1, fields(1))
        run.capture(3, fields(3))
    # Another history may have the folder once all of it is at home.
    with pytest.raises(twinrun.TwinrunError, match="twinrun flush"):
        twinrun.Run(tmp_path / "another", local=local)
    assert not (tmp_path / "another").exists()
    assert command("flush", local).status == 0
    with twinrun.Run(path, local=local, flusher="none", existing="append") as run:
        assert run.steps == [0, 1, 2, 3] and run.local_steps == []
    with twinrun.Run(tmp_path / "another", local=local) as run:
        run.capture(0, fields(0))
    assert steps_of(path) == [0, 1, 2, 3] and steps_of(tmp_path / "another") == [0]
    assert twinrun.verify(path)[0] == []


def test_flush_leaves_damaged_steps_and_says_so(tmp_path: Path) -> None:
    path, local = tmp_path / "run", tmp_path / "local"
    with twinrun.Run(path, local=local, flusher="none") as run:
        for step in range(3):
            run.capture(step, fields(step))
    data = local / "rank-00000" / "step-0000000001" / "rank-00000.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    done = command("flush", local)
    assert done.status == 2 and "2 steps" in done.out
    assert (
        done.err.startswith("twinrun: ")
        and "step 1 could not be brought over" in done.err
        and str(data) in done.err
    )
    assert steps_of(path) == [0, 2] and data.exists()


def test_flush_of_what_is_not_there(tmp_path: Path) -> None:
    check_error(command("flush", tmp_path / "none"), "no such folder")
    check_error(command("flush", tmp_path), "no part of a history")
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, fields(1))
    check_error(command("flush", tmp_path / "run"), "a whole history")


def test_a_process_that_flushes(tmp_path: Path) -> None:
    program = shutil.which("twinrun_flush") or ""
    settings = {"flush_program": program} if program else {}
    try:
        run = twinrun.Run(tmp_path / "run", local=tmp_path / "local", flusher="process", settings=settings)
    except twinrun.TwinrunError as e:
        assert "twinrun_flush" in str(e)  # not installed: the message says what is missing
        return
    with run:
        run.capture(1, fields(1))
    assert steps_of(tmp_path / "run") == [1]


def test_the_package_brings_the_process_that_flushes(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", background=True, local=tmp_path / "local", flusher="process") as run:
        run.capture(3, fields(3))
    history = twinrun._core.open_history(str(tmp_path / "run"))
    assert [step.step for step in history.steps] == [3]


@pytest.mark.parametrize("flusher", ["thread", "process", "none"])
def test_steps_that_left_do_not_come_back_from_another_tier(flusher: str, tmp_path: Path) -> None:
    """Jobs of one history on two nodes, in turn: what the first node still has of steps that left is not the newest."""
    path = tmp_path / "run"

    def job(node: str, steps: range, settings: str = flusher) -> list[int]:
        options = {"local": tmp_path / node, "flusher": settings} if node else {}
        with twinrun.Run(path, existing="append", keep_steps=3, **options) as run:
            for step in steps:
                run.capture(step, {"x": np.arange(1000.0) + step})
            run.wait()
            return list(run.steps)

    assert job("a", range(6)) == [3, 4, 5]
    if flusher == "none":
        assert command("flush", tmp_path / "a").status == 0
    assert job("b", range(6, 9), "thread") == [6, 7, 8]
    assert job("a", range(0)) == [6, 7, 8]
    assert command("flush", tmp_path / "a").status in (0, 2)  # the tier may be gone
    assert steps_of(path) == [6, 7, 8]
    assert job("a", range(9, 10), "thread") == [7, 8, 9]
    assert job("b", range(0), "thread") == job("", range(0)) == [7, 8, 9]
    # Captured again, a step that left is another attempt, and comes.
    assert job("a", range(4, 5), "thread") == [4, 8, 9]
    assert (path / "step-0000000004.1").is_dir() and twinrun.verify(path).problems == []
    with twinrun.Run(path, existing="append") as run:
        assert [run.load(step)["x"][0] for step in run.steps] == [4, 8, 9]


def test_steps_that_come_late_are_not_the_newest(tmp_path: Path) -> None:
    """What another run left on its tier, and never brought over, does not put out what was captured after it."""
    path = tmp_path / "run"
    for node, steps in (("a", range(3)), ("", range(9, 10))):
        options = {"local": tmp_path / node, "flusher": "none"} if node else {}
        with twinrun.Run(path, existing="append", keep_steps=2, **options) as run:
            for step in steps:
                run.capture(step, {"x": np.arange(1000.0) + step})
            run.wait()
    for _ in range(2):
        with twinrun.Run(path, existing="append", keep_steps=2, local=tmp_path / "a") as run:
            run.wait()
            assert list(run.steps) == [2, 9]
    # The usual crash: what is on the tier is newer than what is in the history.
    with twinrun.Run(path, existing="append", keep_steps=2, local=tmp_path / "b", flusher="none") as run:
        for step in (11, 12):
            run.capture(step, {"x": np.arange(1000.0) + step})
        run.wait()
    with twinrun.Run(path, existing="append", keep_steps=2, local=tmp_path / "b") as run:
        run.wait()
        assert list(run.steps) == [11, 12]
