"""Runs of I/O studies on the ensemble's engine: none is lost or made twice, failures are kept, edited journals refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import COMMAND, HANG, check_error, command
from ensemble_support import KillAt, in_child, within

from twinrun.aggregate.studies import Journal, Plan, Size, Split, conduct, engine, journal, launch
from twinrun.aggregate.studies.launch import Stack
from twinrun.ensemble.run import local, runner, work
from twinrun.ensemble.study import attempts
from twinrun.ensemble.study import lines as study_lines
from twinrun.ensemble.study.design import orders
from twinrun.errors import DamagedFile, TwinrunError

# haccio as a program that logs its runs, and does what the file `mode` says: nothing more (""), or in the run of 200 particles and
# seed 1 what else is named there.
HACCIO = """#!{python} -IS
import json, math, os, signal, sys
words = sys.argv[1:]
given = dict(zip(words, words[1:]))
here = {here!r}
if "split" in words:
    what, many = "way", given["--ways"].split(",")
    run = given["--communicators"], given["--seed"]
else:
    what, many = "method", [b for a, b in zip(words, words[1:]) if a == "--method"]
    run = given["--particles"], given["--seed"]
with open(f"{{here}}/log", "a") as log:
    print(*run, file=log)
lines = [{{"kind": "run", "mpi": "Fake 1", "hosts": {{"h": 2}}, "rounds": 1}}]
for order, name in enumerate(many):
    lines.append({{"kind": "repetition", what: name, "order": order, "operation": "write", "begin": 1.0, "phases": {{}},
                   "bytes": 38, "seconds": 1e-9, "bytes_per_second": 1e9 + order + 10 * int(run[1])}})
mode = open(f"{{here}}/mode").read().strip() if run == ("200", "1") else ""
if mode == "wait":
    open(f"{{here}}/began", "w").close()
    open(f"{{here}}/go").read()
elif mode == "fail":
    sys.exit("haccio: no luck")
elif mode == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
elif mode == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()
elif mode == "noise":
    lines = ["noise"]
elif mode == "empty":
    lines = []
elif mode == "null":
    lines[1]["bytes_per_second"] = None
elif mode == "nan":
    lines[0]["hosts"] = math.nan
elif mode == "negative":
    lines[1]["bytes_per_second"] = -1.0
elif mode == "half":
    del lines[2]
elif mode == "keyless":
    del lines[1]["order"]
if "split" not in words:
    open(words[-1], "w").close()
with open(given["--json"], "w") as out:
    out.writelines((line if line == "noise" else json.dumps(line)) + "\\n" for line in lines)
"""
KILLS = int(os.environ.get("TWINRUN_TEST_KILLS", "16")) // 2  # moments at which the study is killed
RUNS = {f"{particles} {seed}": 1 for particles in (100, 200) for seed in (1, 2)}


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with haccio, mpiexec, and a folder `data` for its files."""
    haccio, mpiexec = tmp_path / "haccio", tmp_path / "mpiexec"
    haccio.write_text(HACCIO.format(python=sys.executable, here=str(tmp_path)))
    mpiexec.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    for program in (haccio, mpiexec):
        program.chmod(0o755)
    (tmp_path / "mode").touch()
    (tmp_path / "log").touch()
    (tmp_path / "data").mkdir()
    return tmp_path


def words(place: Path, *more: object) -> list[str]:
    """A study of two sizes, two blocks."""
    own = (
        "--program",
        place / "haccio",
        "--mpiexec",
        place / "mpiexec",
        "--folder",
        place / "data",
        "--ranks",
        2,
    )
    rest = ("--particles", "100,200", "--method", "a", "--method", "b", "--least", 2, "--most", 2)
    return [str(w) for w in ("aggregate", "study", "size", *own, *rest, "--journal", place / "journal", *more)]  # fmt: skip


def lines(place: Path) -> list[dict]:
    return [json.loads(line) for line in (place / "journal").read_text().splitlines()]


def of_kind(place: Path, kind: str) -> list[dict]:
    return [x for x in lines(place) if x["kind"] == kind]


def logged(place: Path) -> Counter:
    return Counter((place / "log").read_text().splitlines())


def check_whole(place: Path) -> None:
    """Every run is in the journal once, and nothing else is left."""
    found = [(x["condition"]["particles"], x["block"]) for x in of_kind(place, "run")]
    assert sorted(found) == [(100, 0), (100, 1), (200, 0), (200, 1)]
    assert os.listdir(place / "data") == [] and not (place / "journal.attempts").exists()


def test_a_study(place: Path) -> None:
    done = command(*words(place))
    assert done.status == 0 and "2 repetitions" in done.out, done
    check_whole(place)
    assert logged(place) == RUNS
    # The order is the one of all designs, and what the watcher measured is kept with each run.
    order = [[x["condition"]["particles"] for x in of_kind(place, "run") if x["block"] == b] for b in (0, 1)]
    assert order == [[(100, 200)[i] for i in row] for row in orders(2, 2, 1)]
    (environment,) = of_kind(place, "environment")
    sha256 = hashlib.sha256((place / "haccio").read_bytes()).hexdigest()
    assert environment["facts"]["haccio"] == {"path": str((place / "haccio").resolve()), "sha256": sha256}
    assert environment["facts"]["program"]["path"] == str((place / "mpiexec").resolve())
    for run in of_kind(place, "run"):
        assert run["environment"] == environment["name"]
        assert run["record"]["wall"] > 0 and run["record"]["node"] == environment["facts"]["host"]["name"]
    assert command(*words(place)).out == done.out and logged(place) == RUNS
    # Another haccio is another environment.
    (place / "haccio").write_text((place / "haccio").read_text() + "# rebuilt\n")
    assert command(*words(place, "--most", 3)).status == 0
    assert len(of_kind(place, "environment")) == 2
    assert [x["block"] for x in of_kind(place, "run") if x["environment"] != environment["name"]] == [2, 2]


# Interrupted ---------------------------------------------------------------------------------------------------------------


def begin(place: Path) -> subprocess.Popen:
    """A study that waits in the run of 200 particles in the first block."""
    (place / "mode").write_text("wait")
    for name in ("began", "go"):
        os.mkfifo(place / name)
    study = subprocess.Popen(
        [*COMMAND, *words(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    (place / "began").read_text()
    return study


def test_a_run_that_outlives_a_killed_study_is_taken_up(place: Path) -> None:
    """SIGKILL leaves the run at work: the next command waits for it, starts no other beside it, and keeps its results."""
    study = begin(place)
    study.kill()
    study.wait(HANG)
    (attempt,) = (place / "journal.attempts").iterdir()
    again = subprocess.Popen(
        [*COMMAND, *words(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "1 attempts of an earlier runner still run" in again.stderr.readline()
    assert attempt.exists() and logged(place)["200 1"] == 1
    (place / "mode").write_text("")
    (place / "go").write_text("")
    out, err = again.communicate(timeout=HANG)
    assert again.returncode == 0 and "2 repetitions" in out, err
    assert logged(place) == RUNS
    check_whole(place)
    assert of_kind(place, "failure") == []


def test_a_run_that_ended_after_its_study_was_killed_is_kept(place: Path) -> None:
    study = begin(place)
    study.kill()
    study.wait(HANG)
    (attempt,) = (place / "journal.attempts").iterdir()
    held = os.open(attempt / "lock", os.O_RDWR)
    (place / "go").write_text("")
    fcntl.flock(held, fcntl.LOCK_EX)  # the watcher's, which ends after its record
    os.close(held)
    assert (attempt / "record.json").exists()
    assert command(*words(place)).status == 0
    assert logged(place) == RUNS
    check_whole(place)


OWN = tuple(m.__file__ for m in (engine, journal, launch, runner, local, work, attempts, study_lines))


def run_here(place: Path) -> None:
    stack = Stack.of(str(place / "haccio"), str(place / "mpiexec"))
    subject = Size(
        stacks=[stack], ranks=2, folder=place / "data", particles=(100, 200), methods=("a", "b"), seconds=HANG
    )
    with Journal(place / "journal", "size", {}) as kept:
        conduct(kept, subject, Plan(2, 2))


@pytest.mark.parametrize("part", range(KILLS))
def test_kill_of_the_runner_at_any_moment(part: int, place: Path) -> None:
    """Every run is made once and kept once, whenever the study dies, also twice; no file of theirs is left."""

    def work(n: int) -> int:
        kill = KillAt(n, OWN)

        def guarded() -> None:
            sys.setprofile(kill)
            try:
                run_here(place)
            finally:
                sys.setprofile(None)
            (place / "calls").write_text(str(kill.calls))

        return in_child(guarded)

    assert work(0) == 0
    calls = int((place / "calls").read_text())
    (place / "journal").unlink()
    (place / "log").write_text("")
    rng = random.Random(part)
    n = 1 + int((part + rng.random()) / KILLS * calls) % calls
    first = work(n)
    assert first == 0 or os.WTERMSIG(first) == signal.SIGKILL
    if part % 2:
        work(rng.randrange(1, calls))
    run_here(place)
    assert logged(place) == RUNS, n
    check_whole(place)


def test_a_line_whose_attempt_was_not_cleared_counts_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that dies between the line of a run and the end of its folder."""

    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(engine._Attempts, "clear", stop)
        run_here(place)
    assert len(of_kind(place, "run")) == 1 and len(os.listdir(place / "journal.attempts")) == 1
    run_here(place)
    assert logged(place) == RUNS
    check_whole(place)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c(times: int, place: Path) -> None:
    """Once: the run at work is waited for. Twice: it is ended, kept as interrupted, and made again."""
    study = begin(place)
    study.send_signal(signal.SIGINT)
    assert "waiting for the 1 tasks that run" in study.stderr.readline()
    (place / "mode").write_text("")
    if times == 2:
        study.send_signal(signal.SIGINT)
    else:
        (place / "go").write_text("")
    _, err = study.communicate(timeout=HANG)
    done = len(of_kind(place, "run"))
    said = f"twinrun: {place / 'journal'}: interrupted: {done} of at most 4 runs are kept; "
    assert study.returncode == 2 and err.splitlines()[-1].startswith(said), err
    assert not (place / "journal.attempts").exists() and os.listdir(place / "data") == []
    assert [x["interrupted"] for x in of_kind(place, "failure")] == [True] * (times - 1)
    assert command(*words(place)).status == 0
    assert logged(place) == {**RUNS, "200 1": times}
    check_whole(place)


def test_what_lies_where_attempts_would_is_left_alone(place: Path) -> None:
    there = place / "journal.attempts"
    there.write_text("mine")
    check_error(command(*words(place)), "is left alone")
    assert there.read_text() == "mine" and logged(place) == {}
    there.unlink()
    for name in ("0-1", "1-1"):
        (there / name).mkdir(parents=True)
        (there / name / "spec.json").write_text('{"data": "' + str(place) + '"}')
        (there / name / "precious").write_text("mine")
    assert command(*words(place)).status == 0
    assert logged(place) == RUNS
    for name in ("0-1", "1-1"):
        assert sorted(os.listdir(there / name)) == ["precious", "spec.json"]
    assert sorted(os.listdir(there)) == ["0-1", "1-1"]


# Failures --------------------------------------------------------------------------------------------------------------------

REASONS = {
    "fail": "ended with status 1: haccio: no luck",
    "die": "was ended by signal 11",
    "hang": "did not end within 1 s",
    "noise": "wrote an invalid result: line 1 of results.jsonl is not an object with a kind",
    "empty": "wrote an invalid result: there is no line of kind 'repetition'",
    "null": "wrote an invalid result: Expected `float`, got `null` - at `$.methods[...].rate`",
    "nan": "wrote an invalid result: line 1 of results.jsonl is not an object with a kind",
    "negative": "wrote an invalid result: Expected `float` > 0.0 - at `$.methods[...].rate`",
    "half": "wrote an invalid result: it has nothing of method b",
    "keyless": "wrote an invalid result: 'order' is missing",
}


@pytest.mark.parametrize("mode", list(REASONS))
def test_a_run_that_fails_is_kept_with_its_reason(mode: str, place: Path) -> None:
    (place / "mode").write_text(mode)
    # The run that fails is the first, so that the limit of time meets no other.
    seed = next(k for k in range(100) if orders(2, 1, k) == [[1, 0]])
    own = words(place, "--seed", seed)
    failed = command(*own, "--run-limit", 1 if mode == "hang" else HANG)
    check_error(failed, REASONS[mode])
    (failure,) = of_kind(place, "failure")
    assert REASONS[mode] in failure["reason"] and not failure["interrupted"]
    assert (failure["block"], failure["condition"]) == (0, {"stack": 0, "particles": 200})
    assert failure["record"]["start"] > 0 and "methods" not in failure
    assert os.listdir(place / "data") == [] and not (place / "journal.attempts").exists()
    # It is made again, and counts as a run only then.
    (place / "mode").write_text("")
    assert command(*own).status == 0
    assert logged(place) == {**RUNS, "200 1": 2}
    assert of_kind(place, "failure") == [failure]
    check_whole(place)


def test_a_folder_for_data_that_cannot_be_made_is_told(place: Path) -> None:
    (place / "mode").write_text("")
    stack = Stack.of(str(place / "haccio"), str(place / "mpiexec"))
    subject = Size(stacks=[stack], ranks=2, folder=place / "none", particles=(100,), methods=("a",))
    with (
        Journal(place / "journal", "size", {}) as kept,
        pytest.raises(TwinrunError, match=r"prepare 'mkdir .*' ended with status 1: mkdir: .*none"),
    ):
        conduct(kept, subject, Plan(2, 2))
    assert logged(place) == {}


# Journals --------------------------------------------------------------------------------------------------------------------


def edited(run: dict, **keys: object) -> bytes:
    return json.dumps({**run, **keys}).encode()


def test_an_edited_journal_is_refused(place: Path) -> None:
    """The line and what is wrong with it are said; the file stays as it is, and nothing runs."""
    assert command(*words(place)).status == 0
    whole = (place / "journal").read_bytes()
    text = whole.splitlines()
    at = next(i for i, line in enumerate(text) if b'"kind": "run"' in line)
    run = json.loads(text[at])
    methods = run["methods"]
    cases = [
        (edited(run, methods={**methods, "a": {**methods["a"], "rate": -5}}), "> 0.0 - at `$.methods[...].rate`"),
        (edited(run, methods={**methods, "a": {**methods["a"], "rate": "fast"}}), "Expected `float`, got `str`"),
        (edited(run, methods={"a": methods["a"]}), "it has nothing of method b"),
        (edited(run, mpi=None), "at `$.mpi`"),
        (edited({k: v for k, v in run.items() if k != "hosts"}), "missing required field `hosts`"),
        (edited(run, condition={"stack": 0, "particles": 300}), "which is none of this study"),
        (edited(run, condition=None), "Expected `object`, got `null` - at `$.condition`"),
        (edited(run, block=-1), "Expected `int` >= 0 - at `$.block`"),
        (edited(run, block="0"), "Expected `int`, got `str` - at `$.block`"),
        (edited(run, record={"wall": "long"}), "Expected `float | null`, got `str` - at `$.record.wall`"),
        (edited(run, record=7), "at `$.record`"),
        (edited(run, methods={**methods, "a": {**methods["a"], "rate": math.nan}}), "at `$.methods[...].rate`"),
        (edited(run, methods={**methods, "a": {**methods["a"], "rate": math.inf}}), "at `$.methods[...].rate`"),
        (edited(run, kind="walk"), "is not one of a study's journal"),
        (edited(run, kind="failure"), "is no failure of this study: Object missing required field"),
        (text[at][:-9], "is not one of a study's journal"),
    ]  # fmt: skip
    before = logged(place)
    for line, said in cases:
        (place / "journal").write_bytes(b"\n".join([*text[:at], line, *text[at + 1 :]]) + b"\n")
        after = (place / "journal").read_bytes()
        refused = command(*words(place))
        check_error(refused, said)
        assert f"{place / 'journal'}: line {at + 1} " in refused.err, refused
        assert (place / "journal").read_bytes() == after
    header = json.loads(text[0])
    for name in ("conditions", "facts"):
        del header[name]
        (place / "journal").write_bytes(b"\n".join([json.dumps(header).encode(), *text[1:]]) + b"\n")
        check_error(command(*words(place)), "line 1 is without conditions or facts")
    (place / "journal").write_bytes(whole + text[at] + b"\n")
    check_error(command(*words(place)), f"line {len(text) + 1} is a second one of block 1")
    assert logged(place) == before
    # A line that is taken out is a run that is made again.
    (place / "journal").write_bytes(b"\n".join([*text[:at], *text[at + 1 :]]) + b"\n")
    assert command(*words(place)).status == 0
    assert sum(logged(place).values()) == 5
    check_whole(place)


def test_a_journal_of_an_earlier_version_goes_on(place: Path) -> None:
    """Its lines have no records, and its order was drawn otherwise: what it has is not made again."""
    stack = Stack.of(str(place / "haccio"), str(place / "mpiexec"))
    conditions = {
        "stacks": [[*stack.mpiexec, stack.program]], "ranks": 2, "folder": str(place / "data"), "layout": "records",
        "synced": False, "particles": [100, 200], "methods": ["a", "b"], "operation": "write", "warmup": 1, "arguments": [], "seed": 1,
    }  # fmt: skip
    old = [{"kind": "study", "version": 1, "study": "size", "conditions": conditions, "facts": {"cores": 2}}]
    for order, (block, particles) in enumerate([(0, 200), (0, 100), (1, 200)]):
        methods = {m: {"rate": 5e8, "order": 0, "phases": {"write": 1.0}} for m in "ab"}
        line = {"block": block, "order": order % 2, "condition": {"stack": 0, "particles": particles}}
        old.append(
            {"kind": "run", **line, "mpi": "Old 1", "hosts": {"h": 2}, "begin": 0.0, "methods": methods}
        )
    text = "".join(json.dumps(x) + "\n" for x in old)
    (place / "journal").write_text(text)
    done = command(*words(place))
    assert done.status == 0 and "2 repetitions" in done.out, done
    assert logged(place) == {"100 2": 1}
    assert (place / "journal").read_text().startswith(text)
    check_whole(place)


def test_splits_write_no_files_and_say_what_is_missing(place: Path) -> None:
    stack = Stack.of(str(place / "haccio"), str(place / "mpiexec"))
    subject = Split(stacks=[stack], ranks=2, communicators=(100, 200), sizes=(2,), ways=("split", "group"))
    (place / "mode").write_text("half")
    with Journal(place / "journal", "split", {}) as kept:
        with pytest.raises(TwinrunError, match="it has nothing of way group"):
            conduct(kept, subject, Plan(2, 2))
        assert os.listdir(place / "data") == []
        (place / "mode").write_text("")
        conduct(kept, subject, Plan(2, 2))
        assert len(kept.runs) == 4
    text = (place / "journal").read_text().replace('"rounds": 1', '"rounds": "1"')
    (place / "journal").write_text(text)
    with (
        Journal(place / "journal", "split", {}) as kept,
        pytest.raises(DamagedFile, match=r"line \d is not a result of a run: .*rounds"),
    ):
        conduct(kept, subject, Plan(2, 2))
