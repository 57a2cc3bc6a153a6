"""Run: capture in the background, tiers, retention, online comparison, and steps that come back."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import cannot_compare, check_error, command, load_json, process
from folders import looks
from histories import arrays, steps_of
from support import opened, run_of_ranks, sealed, step_files

import twinrun
from twinrun.capture.run import CaptureFacts, Divergence


def fields(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=3000),
        "n": rng.integers(0, 100, (20, 30)),
        "f": np.asfortranarray(rng.normal(size=(5, 7))),
    }


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[k], b[k]) and np.shape(a[k]) == np.shape(b[k]) for k in a
    )


# ---- in the background ----


@pytest.mark.parametrize("background", [False, True])
def test_without_data_none_is_written(tmp_path: Path, background: bool) -> None:
    with twinrun.Run(tmp_path / "a", atol=1e-3, keep_data=False, background=background) as run:
        assert run.capture(0, fields(0)).data_bytes == 0
    assert not list((tmp_path / "a").rglob("*.data"))


def test_arrays_may_change_as_soon_as_capture_returns(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "a", atol=1e-3) as run:
        for step in range(8):
            run.capture(step, fields(step))
    given = {name: x.copy(order="K") for name, x in fields(0).items()}
    with twinrun.Run(tmp_path / "b", atol=1e-3, background=True, memory="16 MiB", flush_threads=1) as run:
        for step in range(8):
            for name, x in fields(step).items():
                given[name][...] = x
            facts = run.capture(step, given)
            assert isinstance(facts, CaptureFacts) and facts.step == step and facts.divergence is None
            assert facts.data_bytes == sum(x.nbytes for x in given.values())
            assert 0 <= facts.waited_seconds <= facts.seconds and 0 <= facts.staged_bytes <= 16 << 20
            for x in given.values():
                x[...] = -1
        run.wait()
        assert (
            run.steps == list(range(8))
            and run.latest() == 7
            and run.latest(5) == 5
            and run.latest(-1) is None
        )
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", method="direct")
    assert result.same and {f.step for f in result.fields} == set(range(8))
    assert twinrun.verify(tmp_path / "b") == ([], 17)


def test_steps_are_committed_when_it_does_not_work_in_the_background(tmp_path: Path) -> None:
    run = twinrun.Run(tmp_path / "run")
    facts = run.capture(3, fields(0))
    assert steps_of(tmp_path / "run") == [3]
    assert facts.metadata_bytes == os.path.getsize(tmp_path / "run/step-0000000003/rank-00000.twm")
    with pytest.raises(twinrun.TwinrunError, match="captured already"):
        run.capture(3, fields(0))
    run.close()
    run.close()
    for call in (
        lambda: run.capture(4, fields(0)),
        lambda: run.steps,
        run.wait,
        run.latest,
        lambda: run.load(3),
    ):
        with pytest.raises(twinrun.TwinrunError, match="the run is closed"):
            call()


LARGE = {"x": np.zeros(100_000)}


@contextlib.contextmanager
def no_large_files() -> Iterator[None]:
    """The system refuses what LARGE needs; journals and small steps have room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_lost_step_is_told_once_and_later_ones_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = twinrun.Run(path, background=True)
    told: list[int] = []

    def lost(call: object, *arguments: object) -> twinrun.StepLost | None:
        try:
            call(*arguments)
        except twinrun.StepLost as e:
            told.extend(e.steps)
            assert all(f"step-{step:010}" in why for step, why in e.steps.items())
            assert str(path) in str(e) and "could not be committed" in str(e)
            return e
        return None

    lost(run.capture, 1, fields(1))
    with no_large_files():
        lost(run.capture, 2, LARGE)  # which may know already
        lost(run.wait)
    assert told == [2]
    assert lost(run.wait) is None
    with no_large_files():
        lost(run.capture, 4, LARGE)
        while run._session.facts.lost < 2:  # its thread has not tried yet
            threading.Event().wait(0.001)
    known = told == [2, 4]
    error = lost(run.capture, 5, fields(5))
    assert told == [2, 4] and (error is None) == known
    if error is not None:
        assert error.facts.step == 5  # was taken even so
    with no_large_files():
        lost(run.capture, 6, LARGE)
        lost(run.close)
    assert told == [2, 4, 6]
    assert steps_of(path) == [1, 5]


def test_what_the_body_raised_comes_first(tmp_path: Path) -> None:
    class Losing:
        def __init__(self, session: object) -> None:
            self.session = session

        def close(self) -> list:
            return [*self.session.close(), SimpleNamespace(step=7, reason="no room")]

    with pytest.raises(ZeroDivisionError) as raised, twinrun.Run(tmp_path / "a") as run:
        run._session = Losing(run._session)
        raise ZeroDivisionError
    if sys.version_info >= (3, 11):
        assert "step 7 could not be committed: no room" in raised.value.__notes__[0]
    with (
        pytest.raises(twinrun.StepLost, match="step 7 could not be committed: no room"),
        twinrun.Run(tmp_path / "b") as run,
    ):
        run._session = Losing(run._session)


def test_a_program_that_ends_without_close(tmp_path: Path) -> None:
    """What was captured is on storage, and what was lost is told."""
    program = """
import resource, sys, numpy, twinrun
from collections.abc import Iterator
from pathlib import Path
run = twinrun.Run(sys.argv[1], background=True, reference=sys.argv[2] or None, on_divergence=lambda d: None)
for step in range(3):
    if sys.argv[3] and step == 2:
        run.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        run.capture(step, {"x": numpy.full(1000, float(step) + 1)})
    except twinrun.StepLost as e:  # known already
        print(e, file=sys.stderr)
"""
    with twinrun.Run(tmp_path / "reference") as run:
        for step in range(3):
            run.capture(step, {"x": np.zeros(1000)})
    for name, reference, lose in (("a", "", ""), ("b", tmp_path / "reference", ""), ("c", "", "1")):
        done = process(tmp_path / name, reference, lose, python=("-c", program))
        assert done.status == 0, done
        assert steps_of(tmp_path / name) == ([0, 1] if lose else [0, 1, 2])
        assert ("step 2 could not be committed" in done.err) == bool(lose), done


def test_bad_settings_are_named(tmp_path: Path) -> None:
    for settings, said in (
        ({"memory": "1 MiB", "background": True}, "memory: at least 16 MiB"),
        ({"memory": "much"}, "setting memory = 'much': give a size"),
        ({"flusher": "pigeon"}, "thread, process or none"),
        ({"device_memory": 1 << 63}, f"setting device_memory = '{1 << 63}': give a size"),
        ({"local_limit": (1 << 62) + 1}, "setting local_limit = '4611686018427387905': give a size"),
        ({"memory": -1}, "setting memory = '-1': give a size"),
        ({"memory": True}, "setting memory = 'True': give a size"),
        ({"flush_threads": 0}, "setting flush_threads = '0': give 1 to 64"),
        ({"flush_threads": 65}, "setting flush_threads = '65': give 1 to 64"),
        ({"keep_steps": -1}, "setting keep_steps = '-1': give a number; 0: all"),
        ({"keep_steps": 1.5}, "setting keep_steps = '1.5': give a number; 0: all"),
        ({"record": twinrun.RecordOptions(level=20)}, "setting record_level = '20': give -7 to 19"),
        ({"settings": {"colour": "red"}}, "no setting of the name 'colour'; there are atol"),
        ({"settings": {"memory": 7}}, "must be text"),
        ({"reference": tmp_path / "nowhere"}, "nowhere"),
    ):
        with pytest.raises(twinrun.TwinrunError, match=said):
            twinrun.Run(tmp_path / "run", **settings)
    with twinrun.Run(tmp_path / "run", atol=1.0, settings={"atol": "0.5", "device_memory": "64 MiB"}) as run:
        run.capture(1, fields(1))
    assert opened(tmp_path / "run" / "manifest.jsonl")[0]["atol"] == 0.5


def test_provenance_of_python_is_kept(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, fields(1))
    facts = [
        line["provenance"] for line in opened(tmp_path / "run" / "manifest.jsonl") if "provenance" in line
    ]
    assert len(facts) == 1 and facts[0]["python"]["numpy"] == np.__version__
    assert facts[0]["host"]


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


# ---- several ranks ----


def test_several_ranks(tmp_path: Path) -> None:
    steps = [{s: fields(10 * rank + s) for s in (1, 2)} for rank in range(2)]
    a = run_of_ranks(tmp_path / "a", steps, atol=1e-3)
    b = run_of_ranks(tmp_path / "b", [steps[0], {1: steps[1][1], 2: fields(99)}], atol=1e-3)
    assert twinrun.verify(a) == ([], 3 + 8)
    assert command("compare", a, a).status == 0
    result = twinrun.compare(a, b)
    assert result.first_divergence["step"] == 2 and result.first_divergence["rank"] == 1
    log = load_json(command("log", a, "--json").out)
    assert [len(s["ranks"]) for s in log["steps"]] == [2, 2] and log["ranks"] == 2 and log["incomplete"] == []


def test_a_step_that_not_every_rank_committed(tmp_path: Path) -> None:
    x = {s: fields(s) for s in (1, 2)}
    a = run_of_ranks(tmp_path / "a", [x, {1: x[1]}], atol=1e-3)
    assert steps_of(a) == [1]
    note = "step 2 is not part of the history: not every rank committed it"
    assert note in command("log", a).out
    done = command("compare", a, a)
    assert done.status == 0 and note in done.out
    assert twinrun.verify(a) == ([], 3 + 4)


def test_flush_of_two_ranks(tmp_path: Path) -> None:
    path, local = tmp_path / "run", tmp_path / "local"
    steps = [{s: fields(10 * rank + s) for s in (1, 2)} for rank in range(2)]
    run_of_ranks(path, steps, local=local, atol=1e-3)
    whole = run_of_ranks(tmp_path / "whole", steps, atol=1e-3)
    assert command("flush", local / "rank-00000").status == 0
    assert steps_of(path) == []
    assert "steps 1, 2 are not part of the history" in command("log", path).out
    done = command("flush", local)
    assert done.status == 0 and done.out.splitlines()[1].startswith("rank 1: 2 steps")
    assert twinrun.verify(path) == ([], 11)
    assert twinrun.compare(path, whole, method="direct").same


def test_log_says_how_long_and_where(tmp_path: Path) -> None:
    path = run_of_ranks(tmp_path / "a", [{1: fields(1)}, {1: fields(2)}], atol=1e-3)
    for rank, seconds in ((0, 0.25), (1, 0.75)):
        journal = path / f"rank-{rank:05}.jsonl"
        lines = opened(journal)
        lines[-1]["ranks"][0] |= {"blocked_seconds": seconds} | (
            {"divergence": "x from item 9 on\n"} if rank else {}
        )
        journal.write_text("".join(map(sealed, lines)))
    said = command("log", path).out
    assert "0.75 s" in said and "0.25 s" not in said
    assert "rank 1: x from item 9 on\\n" in said


# ---- back into arrays ----


def test_load_and_restore_give_back_what_was_captured(tmp_path: Path) -> None:
    given = arrays(3)
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(1, given)
        loaded = run.load(1)
        assert list(loaded) == list(given)
        for name, x in given.items():
            y = loaded[name]
            assert y.dtype == x.dtype.newbyteorder("=") and y.shape == x.shape and np.array_equal(x, y), name
        assert list(run.load(1, ["f8[5, 7]"])) == ["f8[5, 7]"] and run.load(1, []) == {}
        # Into arrays of every layout: dense, column-major, strided, backwards, byte-swapped.
        x = given["f8[5, 7]"]
        layouts = {
            "dense": np.empty(x.shape),
            "column-major": np.empty(x.shape, order="F"),
            "strided": np.full((10, 14), -1.0)[::2, ::2],
            "backwards": np.empty(x.shape)[::-1, ::-1],
            "swapped": np.empty(x.shape, x.dtype.newbyteorder("S")),
        }
        for name in ("f8[5, 7]", "f8[5, 7]F", "f8[5, 7]S", "f8[5, 7]R", "f8[5, 7]B"):
            for layout, into in layouts.items():
                into[...] = 0
                run.restore(1, {name: into})
                assert np.array_equal(into, given[name]), (name, layout)
        assert (layouts["strided"].base[1::2] == -1).all() and (layouts["strided"].base[:, 1::2] == -1).all()
        zero = np.empty(())
        run.restore(1, {"f8[]": zero, "f8[0]": np.empty(0)})
        assert zero == given["f8[]"]
        buffer = bytearray(given["u1[1025]"].size)
        run.restore(1, {"u1[1025]": memoryview(buffer)})
        assert bytes(buffer) == given["u1[1025]"].tobytes()


class Counted:
    """A session that counts its calls."""

    def __init__(self, session: object) -> None:
        self._session = session
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.calls.append(name)
        return getattr(self._session, name)


@pytest.mark.parametrize("record", [None, "runs"])
def test_work_grows_with_the_number_of_fields_and_no_faster(record: str | None, tmp_path: Path) -> None:
    """As many questions to the core for many fields as for few; and so many fields that looking through all for each of them
    would not end."""
    calls = {}
    for n in (1, 20_000 if record is None else 5_000):
        given = {f"layer{i}.weight": np.full(3, float(i)) for i in range(n)}
        with twinrun.Run(tmp_path / f"run{n}", record=record) as run:
            run.capture(1, given)
            run._session = Counted(run._session)
            loaded = run.load(1)
            assert list(loaded) == list(given) and same(loaded, given)
            into = {name: np.zeros(3) for name in given}
            run.restore(1, into)
            assert same(into, given)
            calls[n] = run._session.calls
    few, many = calls.values()
    assert few == many and len(few) == 5  # each time: what is stored, and the bytes; and the end
    with twinrun.Run(tmp_path / "run1", existing="append", record=record) as run:
        with pytest.raises(twinrun.TwinrunError, match="no field of the name 'none'"):
            run.load(1, ["none"])


def test_restore_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, fields(1))
        read_only = np.empty(3000)
        read_only.flags.writeable = False
        for target, said in (
            (
                {"x": np.empty(2999)},
                "x: step 1: f64 of shape .3000. was captured, the array is f64 of shape .2999.",
            ),
            ({"x": np.empty(3000, "f4")}, "the array is f32"),
            ({"n": np.empty((30, 20), "i8")}, "shape"),
            ({"x": read_only}, "read-only"),
            ({"x": [0.0] * 3000}, "list is no array that can be written"),
            ({"y": np.empty(3)}, "no field of the name 'y'"),
        ):
            with pytest.raises(twinrun.TwinrunError, match=said):
                run.restore(1, target)
        with pytest.raises(twinrun.TwinrunError, match="step 2"):
            run.restore(2, {"x": np.empty(3000)})
        data = tmp_path / "run/step-0000000001/rank-00000.data"
        content = bytearray(data.read_bytes())
        content[5] ^= 1
        data.write_bytes(content)
        with pytest.raises(twinrun.DamagedFile, match="field 'x', items from 0 on"):
            run.load(1)
        with pytest.raises(twinrun.DamagedFile):
            run.restore(1, {"n": np.empty((20, 30), int), "x": np.empty(3000)})
        assert same(run.load(1, ["n"]), {"n": fields(1)["n"]})


def test_restart(tmp_path: Path) -> None:
    """A run that goes on from its newest step ends as the one that was never interrupted."""

    def advance(x: np.ndarray) -> None:
        x[...] = 3.9 * x * (1 - x)

    for name, stops in (("a", (6,)), ("b", (3, 6))):
        for stop in stops:
            x = np.linspace(0.1, 0.9, 1000)
            with twinrun.Run(tmp_path / name, atol=1e-9, existing="append", background=True) as run:
                last = run.latest()
                if last is not None:
                    run.restore(last, {"x": x})
                for step in range(0 if last is None else last + 1, stop):
                    advance(x)
                    run.capture(step, {"x": x})
    assert steps_of(tmp_path / "b") == list(range(6))
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", method="direct", atol=0.0).same


# ---- IDs and places ----


def test_ids_make_the_order_in_memory_irrelevant(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ids = rng.permutation(5000)[:1000].astype(np.int64)
    position = rng.normal(size=(1000, 3))
    mass = rng.normal(size=1000)
    by = {"position": "id", "mass": "id"}
    for name in ("a", "b", "c"):
        order = np.arange(1000) if name == "a" else rng.permutation(1000)
        as_given = np.asfortranarray if name == "c" else np.ascontiguousarray
        with twinrun.Run(tmp_path / name, atol=1e-6) as run:
            run.capture(
                1, {"position": as_given(position[order]), "id": ids[order], "mass": mass[order]}, ids=by
            )
            back = run.load(1)
            rising = np.argsort(ids)
            assert np.array_equal(back["id"], ids[rising])
            assert np.array_equal(back["position"], position[rising]) and np.array_equal(
                back["mass"], mass[rising]
            )
    for other in ("b", "c"):
        assert twinrun.compare(tmp_path / "a", tmp_path / other, method="direct", atol=0.0).same
    with twinrun.Run(tmp_path / "d") as run:
        for wrong in ({"position": "nobody"}, {"nobody": "id"}):
            with pytest.raises(twinrun.TwinrunError, match="ids names 'nobody'"):
                run.capture(1, {"position": position, "id": ids}, ids=wrong)
        with pytest.raises(twinrun.TwinrunError):
            run.capture(1, {"position": position, "id": ids[:-1]}, ids={"position": "id"})


def test_the_place_in_the_global_array_is_kept(tmp_path: Path) -> None:
    """By the specification's reader: slowest dimension first, as the shape."""
    x = np.arange(12.0).reshape(3, 4)
    with twinrun.Run(tmp_path / "run") as run:
        place = ((30, 4), (6, 0))
        run.capture(1, {"c": x, "f": np.asfortranarray(x), "none": x}, global_place={"c": place, "f": place})
        with pytest.raises(twinrun.TwinrunError):
            run.capture(2, {"c": x}, global_place={"c": ((30, 4), (28, 0))})
        with pytest.raises(twinrun.TwinrunError, match="global_place names 'd'"):
            run.capture(2, {"c": x}, global_place={"d": place})
    from twinrun_spec.metadata import parse_file

    found = {f.name: f for f in parse_file(tmp_path / "run/step-0000000001/rank-00000.twm").fields}
    assert (
        found["c"].shape == (3, 4)
        and found["c"].global_shape == (30, 4)
        and found["c"].global_offset == (6, 0)
    )
    assert (
        found["f"].shape == (4, 3)
        and found["f"].global_shape == (4, 30)
        and found["f"].global_offset == (0, 6)
    )
    assert found["none"].global_shape is None


def test_byte_swapped_arrays_keep_shape_and_order(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    swapped = x.dtype.newbyteorder("S")
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(
            1,
            {"c": x.astype(swapped), "f": np.asfortranarray(x.astype(swapped)), "s": x.astype(swapped)[:, 1]},
        )
        back = run.load(1)
    assert (
        np.array_equal(back["c"], x) and np.array_equal(back["f"], x) and np.array_equal(back["s"], x[:, 1])
    )


# ---- against a reference ----


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_online_comparison(background: bool, stop: bool, tmp_path: Path) -> None:
    def state(step: int, run: str) -> dict:
        x = np.random.default_rng(step).normal(size=20_000)
        if run == "b":
            x += 1e-4 * np.random.default_rng(99).uniform(-1, 1, x.size)  # within the tolerance
            if step >= 3:
                x[9000:] += 0.1
        return {"time": float(step), "x": x}

    with twinrun.Run(tmp_path / "a", atol=1e-3) as run:
        for step in range(5):
            run.capture(step, state(step, "a"))
    told: list[Divergence] = []
    settings = {"reference": tmp_path / "a", "on_divergence": told.append, "background": background}
    with twinrun.Run(tmp_path / "b", atol=1e-3, stop_on_divergence=stop, **settings) as run:
        for step in range(6):  # the reference has no step 5
            facts = run.capture(step, state(step, "b"))
            if stop:
                assert (facts.divergence is not None) == (step in (3, 4))
                assert told[-1:] == ([facts.divergence] if facts.divergence else told[-1:])
    assert sorted(d.step for d in told) == [3, 4]
    chunk = 4096 // 8
    for d in told:
        assert (d.rank, d.field, d.fields, d.reason) == (0, "x", 1, "")
        assert d.first_item == 9000 // chunk * chunk and d.chunks == d.chunks_in_all - 9000 // chunk
        assert str(d) == d.text and "x from item" in str(d)
    assert "x from item" in command("log", tmp_path / "b").out
    log = load_json(command("log", tmp_path / "b", "--json").out)
    assert [bool(s["ranks"][0]["divergence"]) for s in log["steps"]] == [False] * 3 + [True] * 2 + [False]
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", steps="0:4").first_divergence["step"] == 3


def test_a_reference_with_another_unit_or_another_field(tmp_path: Path) -> None:
    steps = {
        "times": {"t": np.arange(5).astype("M8[s]"), "x": np.ones(5)},
        "numbers": {"t": np.arange(5), "x": np.ones(5)},
        "days": {"t": np.arange(5).astype("M8[D]"), "x": np.ones(5)},
        "less": {"t": np.arange(5).astype("M8[s]")},
    }
    for name, captured in steps.items():
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, captured)
    for reference in steps:
        for name, captured in steps.items():
            told: list[Divergence] = []
            options = {"reference": tmp_path / reference, "on_divergence": told.append}
            with twinrun.Run(tmp_path / f"{name} as {reference}", **options) as run:
                run.capture(1, captured)
            assert len(told) == (name != reference), (name, reference)
            assert all(d.reason for d in told)


def test_an_error_in_the_callback_is_told_and_loses_nothing(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "a") as run:
        run.capture(1, {"x": np.zeros(10)})
    caught: list = []
    before, sys.unraisablehook = sys.unraisablehook, lambda told: caught.append(told.exc_type)
    try:
        with twinrun.Run(tmp_path / "b", reference=tmp_path / "a", on_divergence=lambda d: 1 / 0) as run:
            run.capture(1, {"x": np.ones(10)})
    finally:
        sys.unraisablehook = before
    assert caught == [ZeroDivisionError]
    assert steps_of(tmp_path / "b") == [1]


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


def test_threads_that_capture_into_runs_of_their_own(tmp_path: Path) -> None:
    def work(number: int) -> None:
        with twinrun.Run(tmp_path / str(number), background=True, memory="16 MiB") as run:
            for step in range(5):
                run.capture(step, fields(step))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert steps_of(tmp_path / str(number)) == list(range(5))


def test_a_killed_process_leaves_whole_steps(tmp_path: Path) -> None:
    program = """
import os, sys, numpy, twinrun
run = twinrun.Run(sys.argv[1], background=True)
for step in range(100):
    run.capture(step, {"x": numpy.full(100_000, float(step))})
    if step == 5:
        run.wait()
        print("now", flush=True)
"""
    path = tmp_path / "run"
    victim = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout.readline() == "now\n"
    victim.kill()
    victim.wait()
    victim.stdout.close()
    steps = steps_of(path)
    assert steps[:6] == list(range(6)) and steps == list(range(len(steps)))
    assert twinrun.verify(path)[0] == []
    with twinrun.Run(path, existing="append") as run:
        assert np.array_equal(run.load(5)["x"], np.full(100_000, 5.0))


def test_the_package_brings_the_process_that_flushes(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", background=True, local=tmp_path / "local", flusher="process") as run:
        run.capture(3, fields(3))
    history = twinrun._core.open_history(str(tmp_path / "run"))
    assert [step.step for step in history.steps] == [3]


@pytest.mark.parametrize("keep_data", [True, False])
def test_units_of_time_are_kept(tmp_path: Path, keep_data: bool) -> None:
    kinds = ("M8[s]", "M8[ms]", "m8[s]", "i8")
    values = [np.array([1, -(1 << 63)]).astype(kind) for kind in kinds]
    names = [tmp_path / str(n) for n in range(len(kinds))]
    for name, array in zip(names, values, strict=True):
        with twinrun.Run(name, keep_data=keep_data) as run:
            run.capture(1, {"t": array, "parts": array.view([("begin", array.dtype)]), "x": np.zeros(2)})
    for n, a in enumerate(names):
        for m, b in enumerate(names):
            if n == m:
                assert twinrun.compare(a, b).same
                assert {f.field for f in twinrun.compare(a, b).fields} == {"t", "parts.begin", "x"}
            else:
                with pytest.raises(twinrun.TwinrunError, match="units of time must agree"):
                    twinrun.compare(a, b)
    for m, array in enumerate(values):
        there = twinrun.sketch({"t": array})
        here = twinrun.sketch_of(names[0], 1, fields=["t"])
        assert here.names == there.names == ["t"]
        if m:
            with pytest.raises(twinrun.TwinrunError, match="units of time must agree"):
                here.to("cpu").compare(there, fields="t")
        else:
            assert here.compare(there)


def test_a_history_of_times_and_arrays_of_them(tmp_path: Path) -> None:
    seconds = np.array([1, 2], "M8[s]")
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(1, {"t": seconds})
        assert list(run.load(1)) == ["t"]
        with pytest.raises(twinrun.TwinrunError, match=r"M8\[s\] was captured"):
            run.restore(1, {"t": np.zeros(2, "M8[ms]")})
        back = np.zeros(2, "M8[s]")
        run.restore(1, {"t": back})
        assert (back == seconds).all()
        numbers = np.zeros(2, "i8")
        run.restore(1, {"t": numbers})
        assert numbers.tolist() == [1, 2]
    assert list(twinrun.Run(tmp_path / "h", existing="append").load(1, ["t"])) == ["t"]


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
