"""Run: capture in the background, tiers, retention, online comparison, and steps that come back."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from capture_checks import fields
from commands import command, load_json, process
from histories import steps_of
from support import opened, run_of_ranks, sealed

import twinrun
from twinrun.capture.facts import CaptureFacts, Divergence

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
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method="direct"))
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
    assert twinrun.compare(path, whole, options=twinrun.CompareOptions(method="direct")).same


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


def test_masks_come_back(tmp_path: Path) -> None:
    x = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    with twinrun.Run(tmp_path / "r") as run:
        run.capture(0, {"x": x})
        into = np.ma.masked_array([9.0, 9.0, 9.0])
        run.restore(0, {"x": into})
        assert into.mask.tolist() == [False, True, False] and into.compressed().tolist() == [1.0, 3.0]
        with pytest.raises(twinrun.errors.Incomparable, match="captured with a mask; give a masked array"):
            run.restore(0, {"x": np.zeros(3)})
        values, mask = np.zeros(3), np.zeros(3, bool)
        run.restore(0, {"x": values, "x@mask": mask})
        assert mask.tolist() == [False, True, False]
