"""Workloads of identical tasks that start at one moment on the slots of this node, of mpirun, or of an allocation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import COMMAND, HANG, command
from ensemble_support import KillAt, in_child, lines, start_watch, within, write_study

from twinrun.ensemble.run import engines, runner
from twinrun.ensemble.run.engines import Running
from twinrun.ensemble.run.steps import cpus_of
from twinrun.ensemble.study import design
from twinrun.ensemble.study.design import Task
from twinrun.ensemble.study.study import parse_study
from twinrun.errors import TwinrunError

CORES = sorted(os.sched_getaffinity(0))
SUPPORT = Path(__file__).resolve().parents[2] / "support"
MANY = int(
    os.environ.get("TWINRUN_TEST_NODES", "12")
)  # nodes of a Slurm that is faked; docs/reference/ensemble.md has 256


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def check_workloads(found: list[dict], slots: int) -> None:
    """Tasks of a workload have each slot once, or in turn; no two of a slot overlap; no two workloads do."""
    workloads: dict[tuple, list[dict]] = {}
    for line in found:
        workloads.setdefault((line["block"], str(line["factors"])), []).append(line)
    before = 0.0
    for own in workloads.values():
        first = [x for x in own if x["released"] is not None]
        assert len(first) == min(slots, len(own))
        assert len({x["released"] for x in first}) == 1, "one moment for all"
        assert sorted(x["slot"] for x in first) == list(range(slots)) or len(own) < slots
        assert all(x["start"] >= x["released"] for x in first)
        assert min(x["start"] for x in own) >= before
        before = max(x["end"] for x in own)
        for slot in range(slots):
            mine = sorted((x for x in own if x["slot"] == slot), key=lambda x: x["start"])
            assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(mine))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_fewer_as_many_and_more_tasks_than_slots(tmp_path: Path, count: int) -> None:
    study = write_study(
        tmp_path, command=["echo", "{replica}"], replicas=count, repetitions=3, concurrency=3, warmup=1,
        engine={"share_cores": True}, factors={"x": {"levels": [1, 2], "variable": "X"}},
    )  # fmt: skip
    folder = tmp_path / "s"
    outcome = runner.run_study(study, folder)
    assert (outcome.done, outcome.failed) == (6 * count, 0)
    found = lines(folder)
    assert Counter(x["replica"] for x in found) == dict.fromkeys(range(count), 6)
    for line in found:
        own = folder / "output" / f"{line['task']}-1"
        assert (own / "stdout").read_text() == f"{line['replica']}\n"
        assert sorted(p.name for p in own.iterdir()) == ["agent", "stderr", "stdout"]
        assert line["node"] and line["cores"]
    check_workloads(found, 3)
    assert len(lines(folder, "warmup.jsonl")) == 2 * count


def test_a_free_slot_waits_for_no_record_of_another_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks have ended before the runner looks: the third begins before the second is recorded."""
    did: list[tuple[str, int]] = []
    start, keep = runner._Run._start, runner._Run._keep

    def started(self: runner._Run, task: Task, gated: bool) -> Running:
        did.append(("start", task.replica or 0))
        return start(self, task, gated)

    def kept(self: runner._Run, running: Running, record: dict) -> dict:
        line = keep(self, running, record)
        did.append(("keep", line["replica"]))
        return line

    def until_all_ended(self: runner._Run) -> None:
        for running in self._running:
            running.token.wait(timeout=HANG)

    monkeypatch.setattr(runner._Run, "_start", started)
    monkeypatch.setattr(runner._Run, "_keep", kept)
    monkeypatch.setattr(runner._Run, "_pause", until_all_ended)
    release = runner._Run._release

    def released(self: runner._Run, wave: list[Running]) -> None:
        release(self, wave)
        until_all_ended(self)

    monkeypatch.setattr(runner._Run, "_release", released)
    study = write_study(
        tmp_path, command=["true"], replicas=4, repetitions=1, concurrency=2, engine={"share_cores": True}
    )
    assert runner.run_study(study, tmp_path / "s").done == 4
    assert [what for what, _ in did] == ["start", "start", "keep", "start", "keep", "start", "keep", "keep"]


def test_tasks_begin_together(tmp_path: Path) -> None:
    """Each waits until all of its workload run: were they not at once, it would wait for ever."""
    script = f"touch {tmp_path}/{{block}}-{{replica}}; until [ $(ls {tmp_path} | grep -c '^{{block}}-') = 4 ]; do :; done"
    study = write_study(
        tmp_path,
        command=["/bin/sh", "-c", script],
        replicas=4,
        repetitions=2,
        time_limit=HANG / 2,
        engine={"share_cores": True},
    )
    assert runner.run_study(study, tmp_path / "s").failed == 0


def test_placement_is_drawn(tmp_path: Path) -> None:
    study = write_study(
        tmp_path, command=["true"], replicas=3, repetitions=6, concurrency=3, engine={"share_cores": True}
    )
    runner.run_study(study, tmp_path / "s")
    orders = {tuple(x["slot"] for x in lines(tmp_path / "s") if x["block"] == block) for block in range(6)}
    assert len(orders) > 1


def test_the_number_of_tasks_as_a_factor(tmp_path: Path) -> None:
    study = write_study(tmp_path, command=["true"], repetitions=2, factors={"replicas": {"levels": [1, 3]}})
    runner.run_study(study, tmp_path / "s")
    found = lines(tmp_path / "s")
    assert Counter(x["factors"]["replicas"] for x in found) == {"1": 2, "3": 6}
    check_workloads(found, min(3, len(CORES)))
    pytest.importorskip("pandas")
    report = command("ensemble", "report", tmp_path / "s")
    assert "4 workloads of 8 attempts" in report.out and "of the median of its condition" in report.out


def test_slots_of_a_node() -> None:
    def at_once(**keys: object) -> int:
        return parse_study({"command": "true", **keys}).concurrency

    assert at_once() == 1
    assert at_once(replicas=10_000) == len(CORES)
    assert at_once(replicas=10_000, engine={"cores_per_task": len(CORES)}) == 1
    assert at_once(replicas=7, engine={"share_cores": True}) == 7
    assert at_once(replicas=7, engine={"kind": "srun"}) == 7
    assert at_once(replicas=7, concurrency=3) == 3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"replicas": 0}, "replicas must be an integer from 1"),
        ({"factors": {"replicas": {"levels": ["many"]}}}, "factors.replicas.levels must be numbers of tasks"),
        ({"replicas": 2, "factors": {"replicas": {"levels": [1, 2]}}}, "replicas and a factor of that kind"),
        ({"replicas": 2, "design": {"nodes": ["a"]}}, "design.nodes sends single tasks to nodes"),
    ],
)
def test_what_cannot_be(keys: dict, said: str) -> None:
    with pytest.raises(TwinrunError, match=said):
        parse_study({"command": "true", **keys})


def test_a_longer_study_begins_as_a_shorter_one() -> None:
    def planned(repetitions: int) -> list[dict]:
        keys = {"command": "true", "repetitions": repetitions, "factors": {"replicas": {"levels": [2, 3]}}}
        return [t.json() for t in design.plan(parse_study(keys))]

    assert planned(4)[: len(planned(2))] == planned(2)
    assert [x["task"] for x in planned(4)] == list(range(20))


@pytest.mark.parametrize("moment", range(1, 60, 4))
def test_a_runner_that_dies_leaves_no_task_at_the_gate(tmp_path: Path, moment: int) -> None:
    """Whoever goes on opens it."""
    study = write_study(
        tmp_path,
        command=["/bin/sh", "-c", f"echo {{task}} >> {tmp_path}/log"],
        replicas=3,
        repetitions=2,
        engine={"share_cores": True},
    )
    folder = tmp_path / "s"

    def die() -> None:
        sys.setprofile(KillAt(moment * 20, {runner.__file__, engines.__file__}))
        runner.run_study(study, folder)

    in_child(die)
    assert runner.run_study(study, folder).done == 6
    assert Counter((tmp_path / "log").read_text().split()) == {str(k): 1 for k in range(6)}


def test_a_task_that_waits_can_be_stopped(tmp_path: Path) -> None:
    watch = start_watch(tmp_path, ["true"], gate=0.005)
    while not (tmp_path / "ready").exists():
        assert watch.poll() is None
    (tmp_path / "stop").touch()
    watch.terminate()
    watch.wait(timeout=HANG)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "killed" and record["interrupted"] and record["wall"] is None


def test_the_gate_opens_at_its_moment(tmp_path: Path) -> None:
    watch = start_watch(tmp_path, ["true"], gate=0.005)
    while not (tmp_path / "ready").exists():
        assert watch.poll() is None
    moment = time.time() + 0.3
    engines.open_gate(tmp_path, moment)
    engines.open_gate(tmp_path, moment + 1000)  # once
    watch.wait(timeout=HANG)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "ok" and record["released"] == moment <= record["start"]


def test_a_replica_that_cannot_begin_holds_up_no_other(tmp_path: Path) -> None:
    study = write_study(
        tmp_path,
        command=["true"],
        prepare=["/bin/sh", "-c", "exit {replica}"],
        replicas=2,
        repetitions=2,
        engine={"share_cores": True},
    )
    outcome = runner.run_study(study, tmp_path / "s")
    assert (outcome.done, outcome.failed) == (4, 2)
    assert Counter((x["replica"], x["status"]) for x in lines(tmp_path / "s")) == {
        (0, "ok"): 2,
        (1, "failed"): 2,
    }


def test_ctrl_c_lets_a_workload_end(tmp_path: Path) -> None:
    script = f"kill -INT $RUNNER; echo {{task}} >> {tmp_path}/log"
    study = write_study(
        tmp_path, command=["/bin/sh", "-c", script], replicas=2, repetitions=2, engine={"share_cores": True}
    )
    done = subprocess.run(
        ["/bin/sh", "-c", 'export RUNNER=$$; exec "$@"', "sh", *COMMAND, "ensemble", "run", str(study), "-q"],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    # The second signal ends what runs, if it comes before that has ended.
    assert done.returncode == 2 and "interrupted" in done.stderr
    assert command("ensemble", "status", tmp_path / "study").status == 0


def test_ranks_of_mpirun(tmp_path: Path) -> None:
    launcher = tmp_path / "launch"
    launcher.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    launcher.chmod(0o755)
    study = write_study(
        tmp_path, command=["echo", "rank"], replicas=2, repetitions=2,
        engine={"kind": "mpirun", "launcher": [str(launcher)], "ranks": 2, "share_cores": True},
    )  # fmt: skip
    assert runner.run_study(study, tmp_path / "s").failed == 0
    found = lines(tmp_path / "s")
    assert {x["engine"] for x in found} == {"mpirun"}
    check_workloads(found, 2)


def test_cpus_of_an_allocation() -> None:
    assert cpus_of("4(x2),8") == [4, 4, 8]
    assert cpus_of("16") == [16]
    with pytest.raises(ValueError, match="no"):
        cpus_of("no")


def test_steps_need_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    study = write_study(tmp_path, command=["true"], engine={"kind": "srun"})
    with pytest.raises(TwinrunError, match="needs an allocation of Slurm"):
        runner.run_study(study, tmp_path / "s")


def test_steps_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four nodes of two cores: fewer, as many, and more tasks than slots."""
    monkeypatch.syspath_prepend(str(SUPPORT))
    slurm = pytest.importorskip("slurm")
    with tempfile.TemporaryDirectory(prefix="twinrun-slurm-") as short:
        place = Path(short) / "slurm"
        place.mkdir()
        try:
            running = slurm.Slurm.start(place, nodes=4, cpus=2)
        except slurm.Skipped as e:
            pytest.skip(str(e))
        with running:
            study = write_study(
                Path(short), command=["uname", "-n"], repetitions=2, time_limit=60, engine={"kind": "srun"},
                factors={"replicas": {"levels": [3, 8, 10]}},
            )  # fmt: skip

            def salloc(*words: object) -> subprocess.CompletedProcess:
                return subprocess.run(
                    ["salloc", "--quiet", "-N4", "--ntasks-per-node=2", *map(str, words)],
                    env=running.environment, capture_output=True, text=True, timeout=HANG,
                )  # fmt: skip

            done = salloc(*COMMAND, "ensemble", "run", study, "--folder", Path(short) / "s", "-q")
            assert done.returncode == 0, f"{done.stdout}{done.stderr}{running.logs()}"
            found = lines(Path(short) / "s")
            assert Counter((x["status"], x["engine"]) for x in found) == {("ok", "srun"): 42}
            check_workloads(found, 8)
            for line in found:
                said = (Path(short) / "s" / "output" / f"{line['task']}-1" / "stdout").read_text().strip()
                assert said == line["node"]
            # Fewer tasks than slots spread over the nodes at random; as many have two a node.
            assert all(x["slot"] < 8 and x["node"] == f"n{x['slot'] % 4}" for x in found)
            study = write_study(
                Path(short), command=["true"], concurrency=9, engine={"kind": "srun"}, replicas=9
            )
            done = salloc(*COMMAND, "ensemble", "run", study, "--folder", Path(short) / "t", "-q")
            assert done.returncode == 2 and "more than the allocation's 8 slots" in done.stderr


def test_fewer_as_many_and_more_tasks_than_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))
    slurm = pytest.importorskip("slurm")
    sizes = [MANY // 2, MANY, MANY * 3 // 2]
    with tempfile.TemporaryDirectory(prefix="twinrun-slurm-") as short:
        place = Path(short) / "slurm"
        place.mkdir()
        try:
            running = slurm.Slurm.start(place, nodes=MANY, cpus=1)
        except slurm.Skipped as e:
            pytest.skip(str(e))
        with running:
            study = write_study(
                Path(short), command=["uname", "-n"], repetitions=2, engine={"kind": "srun"},
                factors={"replicas": {"levels": sizes}},
            )  # fmt: skip
            done = subprocess.run(
                ["salloc", "--quiet", f"-N{MANY}", "--ntasks-per-node=1", *COMMAND, "ensemble", "run", str(study), "--folder", f"{short}/s", "-q"],
                env=running.environment, capture_output=True, text=True, timeout=10 * HANG,
            )  # fmt: skip
            assert done.returncode == 0, f"{done.stdout}{done.stderr}{running.logs()}"
            found = lines(Path(short) / "s")
            assert [x["status"] for x in found] == ["ok"] * 2 * sum(sizes)
            check_workloads(found, MANY)
            for line in found:
                said = (Path(short) / "s" / "output" / f"{line['task']}-1" / "stdout").read_text().strip()
                assert said == line["node"]
            for size in sizes:
                placed = []
                for block in range(2):
                    own = [x for x in found if x["block"] == block and x["factors"]["replicas"] == str(size)]
                    assert len(own) == size and len({x["node"] for x in own}) == min(size, MANY)
                    placed.append({x["replica"]: x["node"] for x in own})
                # The same nodes by another replica: placement is drawn anew.
                assert placed[0] != placed[1]
