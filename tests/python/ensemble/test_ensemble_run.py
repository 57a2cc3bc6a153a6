"""Runs of studies: nothing that finished is lost or run twice, whatever is killed; what tasks.jsonl says of each attempt."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import COMMAND, HANG, check_error, command, load_json
from ensemble_support import PYTHON, KillAt, in_child, lines, within, write_study

from twinrun.ensemble.run import engines, folder, local, runner, work
from twinrun.ensemble.study import attempts, record, removal
from twinrun.ensemble.study import lines as study_lines
from twinrun.ensemble.study.design import Task
from twinrun.ensemble.study.study import read_study
from twinrun.ensemble.watch.cores import list_of_numbers
from twinrun.errors import DamagedFile, Incomparable, MissingFile, TwinrunError

CORES = sorted(os.sched_getaffinity(0))
KILLS = int(os.environ.get("TWINRUN_TEST_KILLS", "16"))  # moments at which the runner is killed
KEYS = {
    "version", "task", "attempt", "block", "order", "repetition", "seed", "factors", "verified", "status", "exit", "signal",
    "submit", "start", "end", "wall", "user", "system", "run_queue_delay", "node", "cores", "engine", "context_switches",
    "page_faults", "max_memory_bytes", "io", "pressure", "frequency_hz", "temperature_c", "environment", "metrics", "profiles",
    "capture", "results",
}  # fmt: skip


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_a_study(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        command=shell("echo noise; echo rate: {speed}.5 rate: $VAR; echo '{{\"a\": {{\"b\": [1, {seed}]}}}}' > out.json; echo {n} > f.log"),
        repetitions=2,
        warmup=1,
        keep=["*.log"],
        factors={
            "speed": {"levels": ["slow", "fast"], "values": {"slow": 1, "fast": 2}},
            "n": {"levels": [1, 2], "match": "rate: (1|2)\\.5", "environment": {"VAR": "{n}e3", "OMP_NUM_THREADS": "{n}", "OMP_X": "{folder}"}},
        },
        metrics={
            "rate": {"regex": "rate: (\\S+)"},
            "first": {"regex": "rate: (\\S+)", "which": "first"},
            "seed": {"json": "a.b.1", "file": "out.json"},
            "none": {"regex": "nothing (\\d+)"},
        },
        record={"results": "out.json"},
    )  # fmt: skip
    folder = tmp_path / "s"
    outcome = runner.run_study(study, folder)
    assert (outcome.ended, outcome.done, outcome.total, outcome.failed) == ("complete", 8, 8, 0)
    found = lines(folder)
    planned = lines(folder, "plan.jsonl")
    assert len(lines(folder, "warmup.jsonl")) == 4
    assert [x["task"] for x in found] == list(range(8))
    for line, plan in zip(found, [p for p in planned if "warmup" not in p], strict=True):
        assert set(line) >= KEYS
        assert {k: line[k] for k in plan} == plan
        assert line["status"] == "ok" and line["engine"] == "local" and line["attempt"] == 1
        assert line["submit"] <= line["start"] <= line["end"]
        assert line["wall"] == pytest.approx(line["end"] - line["start"], abs=1e-4)
        speed, n = line["factors"]["speed"], line["factors"]["n"]
        assert line["metrics"] == {
            "rate": float(n) * 1e3,
            "first": {"slow": 1.5, "fast": 2.5}[speed],
            "seed": line["seed"],
        }
        assert line["metrics_missing"] == ["none"]
        assert line["results"] == {"a": {"b": [1, line["seed"]]}}
        assert line["verified"] == {"speed": None, "n": {"slow": "1", "fast": "2"}[speed]}
        assert line["contradicted"] == ([] if {"slow": "1", "fast": "2"}[speed] == n else ["n"])
        own = folder / "output" / f"{line['task']}-1"
        assert sorted(p.name for p in own.iterdir()) == ["agent", "f.log", "stderr", "stdout"]
        facts = load_json((folder / "environments" / f"{line['environment']}.json").read_text())
        assert facts["host"]["name"] == line["node"]
    assert len(list((folder / "environments").iterdir())) == 2, (
        "one for each level of what the environment holds"
    )
    # Nothing is left to do: nothing is done.
    before = (folder / "tasks.jsonl").read_bytes()
    assert runner.run_study(None, folder).done == 8
    assert (folder / "tasks.jsonl").read_bytes() == before


def test_failures_are_kept(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        command=shell(
            "case {how} in ok) ;; bad) exit 3;; kill) kill -9 $$;; slow) while :; do :; done;; esac"
        ),
        repetitions=1,
        time_limit=0.5,
        grace=0.1,
        factors={"how": {"levels": ["ok", "bad", "kill", "slow"]}},
    )
    folder = tmp_path / "s"
    outcome = runner.run_study(study, folder)
    assert (outcome.ended, outcome.done, outcome.failed) == ("complete", 4, 3)
    found = {x["factors"]["how"]: x for x in lines(folder)}
    assert {k: x["status"] for k, x in found.items()} == {
        "ok": "ok", "bad": "failed", "kill": "killed", "slow": "timeout",
    }  # fmt: skip
    assert found["bad"]["exit"] == 3 and found["kill"]["signal"] == 9
    # Again only if asked, and then each once more.
    runner.run_study(None, folder)
    assert len(lines(folder)) == 4
    assert runner.run_study(None, folder, retries=1).retried == 3
    again = lines(folder)
    assert Counter(x["factors"]["how"] for x in again) == {"ok": 1, "bad": 2, "kill": 2, "slow": 2}
    assert {(x["task"], x["attempt"]) for x in again} == {(x["task"], 1) for x in again} | {
        (x["task"], 2) for x in again if x["factors"]["how"] != "ok"
    }
    assert runner.status_of(folder)["by_status"] == {"ok": 1, "failed": 1, "killed": 1, "timeout": 1}


def test_retries_end_with_success(tmp_path: Path) -> None:
    study = write_study(tmp_path, command=shell("test {attempt} -ge 3"), repetitions=2, retries=5)
    outcome = runner.run_study(study, tmp_path / "s")
    assert (outcome.done, outcome.failed, outcome.retried) == (2, 0, 4)
    assert sorted((x["task"], x["attempt"], x["status"]) for x in lines(tmp_path / "s")) == [
        (t, a, "ok" if a == 3 else "failed") for t in (0, 1) for a in (1, 2, 3)
    ]


# Killed --------------------------------------------------------------------------------------------------------------------


OWN = tuple(
    m.__file__ for m in (runner, folder, work, record, attempts, removal, study_lines, engines, local)
)


def logging_study(folder: Path, tasks: int, **keys: object) -> tuple[Path, Path]:
    """A study whose tasks say in a file that they began and ended."""
    log = folder / "log"
    log.touch()
    script = f"echo begin {{task}} >> {log}; echo end {{task}} >> {log}"
    return write_study(folder, command=shell(script), repetitions=tasks, **keys), log


def check_once(folder: Path, log: Path, tasks: int) -> None:
    """Every task ran once, and has one line."""
    said = Counter(log.read_text().splitlines())
    assert said == {f"{what} {t}": 1 for t in range(tasks) for what in ("begin", "end")}
    assert sorted(x["task"] for x in lines(folder)) == list(range(tasks))
    assert all(x["status"] == "ok" and not x["interrupted"] for x in lines(folder))


def killed_at(folder: Path, study: Path, n: int) -> int:
    """Runs a study in a process that dies at its n-th call."""

    def work() -> None:
        sys.setprofile(KillAt(n, OWN))
        try:
            runner.run_study(study, folder)
        finally:
            sys.setprofile(None)

    return in_child(work)


@pytest.mark.parametrize("part", range(4))
def test_kill_of_the_runner_at_any_moment(part: int, tmp_path: Path) -> None:
    """Each task runs exactly once, whenever the runner dies, also twice: what runs then goes on, and is taken up."""
    counts = tmp_path / "counts"

    def count() -> None:
        study, _ = logging_study_in(tmp_path / "counted")
        counter = KillAt(0, OWN)
        sys.setprofile(counter)
        try:
            runner.run_study(study, tmp_path / "counted" / "s")
        finally:
            sys.setprofile(None)
        counts.write_text(str(counter.calls))

    def logging_study_in(folder: Path) -> tuple[Path, Path]:
        folder.mkdir()
        return logging_study(folder, 3)

    assert in_child(count) == 0
    calls = int(counts.read_text())
    rng = random.Random(part)
    for i in range(KILLS // 4):
        # Spread evenly, and moved a little each time.
        n = 1 + int((part + 4 * (i + rng.random())) / (4 * (KILLS // 4)) * calls) % calls
        place = tmp_path / f"{n}-{i}"
        study, log = logging_study_in(place)
        folder = place / "s"
        first = killed_at(folder, study, n)
        assert first == 0 or os.WTERMSIG(first) == signal.SIGKILL
        finished = {x["task"] for x in record.read_lines(folder / "tasks.jsonl")[0]}
        if i % 2:
            killed_at(folder, study, rng.randrange(1, calls))
        outcome = runner.run_study(study, folder)
        assert (outcome.ended, outcome.done) == ("complete", 3), n
        check_once(folder, log, 3)
        assert finished <= {x["task"] for x in lines(folder)}


def test_a_torn_line_costs_nothing(tmp_path: Path) -> None:
    """tasks.jsonl cut off at any byte of its last line: the attempt's record is gone by then, so the task runs again at worst."""
    study, _ = logging_study(tmp_path, 2)
    folder = tmp_path / "s"
    runner.run_study(study, folder)
    whole = (folder / "tasks.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first, first + 1, (first + len(whole)) // 2, len(whole) - 1):
        (folder / "tasks.jsonl").write_bytes(whole[:cut])
        assert runner.run_study(None, folder).done == 2
        found = lines(folder)
        assert found[0] == json.loads(whole[:first]) and [x["task"] for x in found] == [0, 1]
    (folder / "tasks.jsonl").write_bytes(whole[:first] + b"\0\0\0\n" + whole[first:])
    with pytest.raises(DamagedFile):
        runner.run_study(None, folder)


def test_a_record_without_a_line_is_kept(tmp_path: Path) -> None:
    """A runner that died before it appended, and the record that was torn while it was written."""
    study, log = logging_study(tmp_path, 2)
    folder = tmp_path / "s"

    class Stop(BaseException):
        pass

    def stop(progress: runner.Progress) -> None:
        raise Stop

    with pytest.raises(Stop):
        runner.run_study(study, folder, report=stop)
    (folder / "output" / "1-1").mkdir()
    (folder / "output" / "1-1" / "record.json.tmp").write_text('{"sta')
    assert runner.run_study(None, folder).done == 2
    assert Counter(log.read_text().splitlines())["end 0"] == 1
    assert {(x["task"], x["attempt"]) for x in lines(folder)} == {(0, 1), (1, 2)}


def test_kill_of_the_watcher(tmp_path: Path) -> None:
    """The attempt is kept as killed; the task and its children end with it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    study = write_study(
        tmp_path,
        command=shell(f"[ {{attempt}} = 2 ] || {{{{ (echo > {fifo}; exec cat {fifo}) & wait; }}}}"),
        repetitions=1,
    )
    folder = tmp_path / "s"

    pid = os.fork()
    if pid == 0:
        try:
            fifo.read_text()
            claim = json.loads((folder / "output" / "0-1" / "claim").read_text())
            os.kill(claim["pid"], signal.SIGKILL)
        finally:
            os._exit(0)
    outcome = runner.run_study(study, folder)
    os.waitpid(pid, 0)
    assert (outcome.ended, outcome.failed) == ("complete", 1)
    (line,) = lines(folder)
    assert line["status"] == "killed" and "watched" in line["reason"] and line["wall"] is None
    assert line["start"] and line["node"]
    wanted = f"TWINRUN_TASK_FOLDER={folder / 'output' / '0-1'}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert wanted not in Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            pass
    assert runner.run_study(None, folder, retries=1).failed == 0


def test_what_a_dead_watcher_left_has_ended_when_it_is_said_so(tmp_path: Path) -> None:
    environment = {**os.environ, "TWINRUN_TASK_FOLDER": str(tmp_path)}
    started = [
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment, start_new_session=True)
        for _ in range(40)
    ]
    try:
        assert engines.end_stragglers(tmp_path) == len(started)
        assert engines.end_stragglers(tmp_path) == 0
        assert all(one.wait(HANG) == -signal.SIGKILL for one in started)
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_one_runner_at_a_time(tmp_path: Path) -> None:
    study, log = logging_study(tmp_path, 1)
    with record.StudyFolder(tmp_path / "s", study):
        assert runner.status_of(tmp_path / "s")["runner_at_work"]
        check_error(command("ensemble", "run", study, "--folder", tmp_path / "s", "-q"), "another runner")
    assert not runner.status_of(tmp_path / "s")["runner_at_work"]
    assert log.read_text() == ""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c(times: int, tmp_path: Path) -> None:
    """Once: what runs is waited for. Twice: it is ended, kept as such, and run again."""
    began, go, log = tmp_path / "began", tmp_path / "go", tmp_path / "log"
    os.mkfifo(began)
    os.mkfifo(go)
    script = (
        f"if [ {{task}}-{{attempt}} = 0-1 ]; then echo > {began}; read x < {go}; fi; echo {{task}} >> {log}"
    )
    study = write_study(tmp_path, command=shell(script), repetitions=3)
    p = subprocess.Popen([*COMMAND, "ensemble", "run", str(study)], stderr=subprocess.PIPE, text=True)
    began.read_text()
    p.send_signal(signal.SIGINT)
    said = p.stderr.readline()
    assert "waiting for the 1 tasks" in said
    if times == 2:
        p.send_signal(signal.SIGINT)
    else:
        go.write_text("on\n")
    _, err = p.communicate(timeout=HANG)
    assert p.returncode == 2
    done = 1 if times == 1 else 0
    assert err.splitlines()[-1].startswith(
        f"twinrun: {tmp_path / 'study'}: interrupted: {done} of 3 tasks have run; "
    )
    (line,) = lines(tmp_path / "study")
    assert (line["status"], line["interrupted"]) == (("ok", False) if times == 1 else ("killed", True))
    again = command("ensemble", "run", tmp_path / "study")
    assert again.status == 0 and "3 of 3" in again.out
    assert Counter(log.read_text().split()) == {"0": 1, "1": 1, "2": 1}
    assert len(lines(tmp_path / "study")) == (3 if times == 1 else 4)


# Order, cores, stopping ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_tasks_at_once_share_no_core(tmp_path: Path) -> None:
    met = tmp_path / "met"
    met.mkdir()
    # The first task ends only when a second one has begun, so two overlap on a machine of any speed.
    program = f"""import os, time
print(sorted(os.sched_getaffinity(0)))
open(f"{met}/{{os.getpid()}}", "w").close()
end = time.monotonic() + 60
while len(os.listdir("{met}")) < 2 and time.monotonic() < end: time.sleep(0.001)"""
    study = write_study(
        tmp_path,
        command=[*PYTHON, program],
        repetitions=6,
        concurrency=2,
        engine={"cores_per_task": 1},
    )
    folder = tmp_path / "s"
    before = os.sched_getaffinity(0)
    assert runner.run_study(study, folder).done == 6
    assert os.sched_getaffinity(0) == before
    found = lines(folder)
    for line in found:
        assert len(line["cores"]) == 1
        assert json.loads((folder / "output" / f"{line['task']}-1" / "stdout").read_text()) == line["cores"]
    overlapping = 0
    for a in found:
        for b in found:
            if a["task"] < b["task"] and a["start"] < b["end"] and b["start"] < a["end"]:
                overlapping += 1
                assert not set(a["cores"]) & set(b["cores"])
    assert overlapping, "two ran at once"


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_cores_as_a_factor(tmp_path: Path) -> None:
    program = "import os\nos.sched_setaffinity(0, range(os.cpu_count()))\nimport time\nwhile time.process_time() < 0.6: pass"
    study = write_study(
        tmp_path,
        command=[*PYTHON, "{what}"],
        repetitions=1,
        factors={
            "cores": {"levels": ["all", "all-but-one"]},
            "what": {"levels": ["stays", "moves"], "values": {"stays": "", "moves": program}},
        },
    )
    runner.run_study(study, tmp_path / "s")
    for line in lines(tmp_path / "s"):
        wanted = CORES if line["factors"]["cores"] == "all" else CORES[1:]
        assert line["cores"] == wanted
        moved = line["factors"]["what"] == "moves" and wanted != CORES
        assert line["contradicted"] == (["cores"] if moved else [])
        assert (line["verified"]["cores"] == list_of_numbers(wanted)) is not moved


def test_cores_that_there_are_not(tmp_path: Path) -> None:
    study = write_study(tmp_path, command=["true"], concurrency=len(CORES) + 1)
    with pytest.raises(TwinrunError, match="more than the"):
        runner.run_study(study, tmp_path / "s")
    one_each = {
        "command": ["true"],
        "concurrency": len(CORES),
        "factors": {"cores": {"levels": ["all-but-one"]}},
    }
    with pytest.raises(TwinrunError, match="cannot be on this node"):
        runner.run_study(write_study(tmp_path / "b", **one_each), tmp_path / "b" / "s")


def test_stopping_rule(tmp_path: Path) -> None:
    """A metric that varies by 1% is known within 5% at the first look; one that varies by a factor of ten is not."""
    for name, script, ended, done in (
        ("calm", "echo v: 10.{seed}", "enough", 10),
        ("wild", "echo v: $(( (({seed} * 7919) % 13) * 100 + 1 ))", "complete", 14),
    ):
        study = write_study(
            tmp_path / name,
            command=shell(script + "; : {f}"),
            factors={"f": {"levels": ["a", "b"]}},
            metrics={"v": {"regex": "v: (\\S+)"}},
            stopping={"metric": "metrics.v", "precision": 0.05, "least": 5, "most": 7},
            concurrency=len(CORES),
        )
        folder = tmp_path / name / "s"
        outcome = runner.run_study(study, folder)
        assert (outcome.ended, len(lines(folder))) == (ended, done)
        assert runner.run_study(None, folder).ended == ended, "and it stays ended"
        assert len(lines(folder)) == done


def test_amend(tmp_path: Path) -> None:
    study, log = logging_study(tmp_path, 2)
    folder = tmp_path / "s"
    runner.run_study(study, folder)
    logging_study(tmp_path, 4)
    with pytest.raises(Incomparable, match="repetitions"):
        runner.run_study(study, folder)
    assert runner.run_study(study, folder, amend=True).done == 4
    check_once(folder, log, 4)
    assert read_study(folder / "study-1.toml").repetitions == 2
    logging_study(tmp_path, 4, seeds={"first": 9})
    with pytest.raises(Incomparable, match="task 0 has run"):
        runner.run_study(study, folder, amend=True)
    # A comment is no other study.
    logging_study(tmp_path, 4)
    study.write_text("# a comment\n" + study.read_text())
    assert runner.run_study(study, folder).done == 4


def test_estimate() -> None:
    def line(cell: str, wall: float | None, status: str = "ok") -> dict:
        return {"factors": {"f": cell}, "wall": wall, "status": status, "submit": 0.0, "start": 1.0}

    tasks = [Task(i, 0, i, {"f": "ab"[i % 2]}, 0, 0) for i in range(4)]
    assert runner.estimate(tasks, [], 1) is None
    known = [line("a", 9.0), line("b", 19.0), line("b", None, "killed"), line("b", 1.0, "failed")]
    assert runner.estimate(tasks, known, 1) == pytest.approx(10 + 20 + 10 + 20)
    assert runner.estimate(tasks, known, 2) == pytest.approx(30)
    assert runner.estimate(tasks[:2], known, 100) == pytest.approx(20), "no less than the longest"
    assert runner.estimate(tasks[:2], known, 1, {1: 15.0}) == pytest.approx(10 + 5)
    assert runner.estimate(tasks[:1], known[1:2], 1) == pytest.approx(20), "of another cell, if of none"


def test_mpirun(tmp_path: Path) -> None:
    mpirun = Path(sys.executable).parent / "mpirun"
    launcher = str(mpirun) if mpirun.exists() else __import__("shutil").which("mpirun")
    if launcher is None:
        pytest.skip("there is no mpirun")
    study = write_study(
        tmp_path,
        command=shell("echo rank"),
        repetitions=1,
        factors={"ranks": {"levels": [1, 3]}},
        engine={"kind": "mpirun", "launcher": [launcher], "ranks": "{ranks}"},
        time_limit=60,
    )
    runner.run_study(study, tmp_path / "s")
    for line in lines(tmp_path / "s"):
        assert (line["status"], line["engine"]) == ("ok", "mpirun")
        said = (tmp_path / "s" / "output" / f"{line['task']}-1" / "stdout").read_text()
        assert said == "rank\n" * int(line["factors"]["ranks"])


def test_minihacc(tmp_path: Path) -> None:
    """A simulation with threads: as many as were meant to run did run."""
    program = os.environ.get("TWINRUN_MINIHACC")
    if not program:
        pytest.skip("TWINRUN_MINIHACC names no program")
    study = write_study(
        tmp_path,
        command=[
            program,
            "--particles",
            "20000",
            "--steps",
            "30",
            "--quiet",
            "--threads",
            "{threads}",
            "--seed",
            "{seed}",
        ],
        repetitions=1,
        factors={"threads": {"levels": [1, 3]}},
        time_limit=60,
    )
    runner.run_study(study, tmp_path / "s")
    found = {x["factors"]["threads"]: x for x in lines(tmp_path / "s")}
    assert {k: x["status"] for k, x in found.items()} == {"1": "ok", "3": "ok"}
    assert found["3"]["verified"]["threads"] == "3" and not found["3"]["contradicted"]
    assert all(x["user"] > 0 and x["max_memory_bytes"] > 1 << 20 for x in found.values())


# The command line ----------------------------------------------------------------------------------------------------------


def test_commands(tmp_path: Path) -> None:
    study, _ = logging_study(tmp_path, 2, factors={"threads": {"levels": [1, 2]}})
    planned = command("ensemble", "plan", study)
    assert planned.status == 0 and "2 cells, 2 blocks, 4 tasks" in planned.out
    assert not (tmp_path / "study").exists()
    done = command("ensemble", "run", study)
    assert (done.status, done.out) == (0, f"{tmp_path / 'study'}: 4 of 4 tasks have run\n")
    assert len(done.err.splitlines()) == 4 and "4 of 4, about 0 s left" in done.err.splitlines()[-1]
    quiet = command("ensemble", "run", tmp_path / "study", "-q")
    assert quiet.status == 0 and quiet.err == ""
    said = load_json(command("ensemble", "status", tmp_path / "study", "--json").out)
    assert command("ensemble", "status", "--json", tmp_path / "study").status == 0
    done = command("ensemble", "status", tmp_path / "study", "--json", tmp_path / "status.json")
    assert done.status == 0 and "tasks have run" in done.out
    assert load_json((tmp_path / "status.json").read_text()).keys() == said.keys()
    assert (said["tasks"], said["ended"], said["by_status"]) == (4, 4, {"ok": 4})
    assert "4 of 4 tasks" in command("ensemble", "status", tmp_path / "study").out
    for arguments in (
        ("run", tmp_path / "none.toml"),
        ("run", tmp_path),
        ("status", tmp_path),
        ("export", tmp_path, "x"),
    ):
        check_error(command("ensemble", *arguments))
    with pytest.raises(MissingFile):
        runner.run_study(None, tmp_path / "nothing")


@pytest.mark.parametrize(
    "number, said", [(1, "1 attempt was interrupted"), (2, "2 attempts were interrupted")]
)
def test_attempts_are_counted(number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinrun.ensemble.run import runner

    found = {"study": "s", "ended": 3, "tasks": 3, "runner_at_work": False, "by_status": {"ok": 3}, "running": [],
             "interrupted_attempts": number, "contradicted": 0, "seconds_left": None}  # fmt: skip
    monkeypatch.setattr(runner, "status_of", lambda _: found)
    assert said in command("ensemble", "status", "s").out
