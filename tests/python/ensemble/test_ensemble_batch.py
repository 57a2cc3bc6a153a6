"""Studies on batch systems, by PSI/J: its executor for this node, and a Slurm of our own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HANG
from ensemble_support import in_child, lines, within, write_study

from twinrun.ensemble.run import runner
from twinrun.ensemble.run.engines import WATCH
from twinrun.ensemble.study import record
from twinrun.errors import TwinrunError

pytest.importorskip("psij")
SUPPORT = Path(__file__).resolve().parents[2] / "support"


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def write(folder: Path, executor: str, **keys: object) -> tuple[Path, Path]:
    """A study whose tasks append to a file what they do."""
    log = folder / "log"
    folder.mkdir(parents=True, exist_ok=True)
    log.touch()
    engine = {"kind": "psij", "executor": executor, "poll": 1, **keys.pop("engine", {})}
    study = write_study(
        folder,
        command=["/bin/sh", "-c", f"echo {{task}} >> {log}; echo host: $(uname -n); exit {{code}}"],
        factors={"code": {"levels": [0, 3]}},
        engine=engine,
        time_limit=60,
        **keys,
    )
    return study, log


def test_on_this_node(tmp_path: Path) -> None:
    study, log = write(tmp_path, "local", repetitions=2, concurrency=2)
    outcome = runner.run_study(study, tmp_path / "s")
    assert (outcome.done, outcome.failed) == (4, 2)
    assert Counter(log.read_text().split()) == {str(i): 1 for i in range(4)}
    for line in lines(tmp_path / "s"):
        assert line["engine"] == "psij:local" and line["exit"] == int(line["factors"]["code"])
        assert line["status"] == ("ok" if line["exit"] == 0 else "failed")
        assert line["user"] is not None and line["io"] is not None


def die_after_submission(study: Path, folder: Path) -> None:
    """Runs a study in a process that is killed right after it submitted its first job."""

    def die() -> None:
        from twinrun.ensemble.run import batch

        start = batch.BatchEngine.start

        def start_and_die(self: object, *arguments: object) -> None:
            start(self, *arguments)
            os.kill(os.getpid(), 9)

        batch.BatchEngine.start = start_and_die
        runner.run_study(study, folder)

    assert os.WTERMSIG(in_child(die)) == 9


def test_a_runner_that_dies_loses_no_job(tmp_path: Path) -> None:
    """The job's record is found, and nothing runs twice."""
    study, log = write(tmp_path, "local", repetitions=2)
    folder = tmp_path / "s"
    die_after_submission(study, folder)
    assert runner.run_study(None, folder).done == 4
    assert Counter(log.read_text().split()) == {str(i): 1 for i in range(4)}
    assert sorted(x["task"] for x in lines(folder)) == list(range(4))


def test_a_job_that_comes_late_runs_nothing(tmp_path: Path) -> None:
    """A submission of which nothing is known is withdrawn: should the job ever start, it finds that."""
    study, log = write(tmp_path, "local", repetitions=1)
    folder = tmp_path / "s"
    with record.StudyFolder(folder, study) as opened:
        late = opened.attempts.folder(0, opened.attempts.new(0))
    (late / "spec.json").write_text(json.dumps({"command": ["/bin/sh", "-c", f"echo late >> {log}"]}))
    assert runner.run_study(None, folder).done == 2
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-I", "-S", str(WATCH), str(late)])
    assert "late" not in log.read_text()
    assert {(x["task"], x["attempt"]) for x in lines(folder)} == {(0, 2), (1, 1)}


def test_unknown_executors(tmp_path: Path) -> None:
    study, _ = write(tmp_path, "punchcards", repetitions=1)
    with pytest.raises(TwinrunError, match="knows no executor"):
        runner.run_study(study, tmp_path / "s")


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four nodes, each cell on each node."""
    if not (SUPPORT / "slurm.py").exists():
        pytest.skip("there is no tests/support/slurm.py")
    monkeypatch.syspath_prepend(str(SUPPORT))
    slurm = pytest.importorskip("slurm")
    with tempfile.TemporaryDirectory(prefix="twinrun-slurm-") as short:
        try:
            place = Path(short) / "slurm"
            place.mkdir()
            running = slurm.Slurm.start(place, nodes=4)
        except slurm.Skipped as e:
            pytest.skip(str(e))
        with running:
            for name, value in running.environment.items():
                monkeypatch.setenv(name, value)
            nodes = list(running.names)
            study, log = write(
                Path(short) / "study", "slurm", repetitions=4, concurrency=4, design={"nodes": nodes}
            )
            folder = Path(short) / "study" / "s"
            outcome = runner.run_study(study, folder)
            assert (outcome.done, outcome.failed) == (8, 4)
            assert Counter(log.read_text().split()) == {str(i): 1 for i in range(8)}
            found = lines(folder)
            for line in found:
                assert line["engine"] == "psij:slurm" and line["node"] == line["intended_node"]
            assert Counter((x["factors"]["code"], x["node"]) for x in found) == {
                (c, n): 1 for c in ("0", "3") for n in nodes
            }
            # And again, with a runner that dies.
            study, log = write(Path(short) / "dies", "slurm", repetitions=1)
            folder = Path(short) / "dies" / "s"
            die_after_submission(study, folder)
            assert runner.run_study(None, folder).done == 2
            assert Counter(log.read_text().split()) == {"0": 1, "1": 1}
            assert sorted((x["task"], x["attempt"]) for x in lines(folder)) == [(0, 1), (1, 1)]
            # A job that is cancelled by another hand is kept as killed.
            script = "scancel $SLURM_JOB_ID; while :; do :; done"
            study = write_study(
                Path(short) / "cancelled",
                command=["/bin/sh", "-c", script],
                repetitions=1,
                time_limit=60,
                engine={"kind": "psij", "executor": "slurm", "poll": 1},
            )
            outcome = runner.run_study(study, Path(short) / "cancelled" / "s")
            assert (outcome.done, outcome.failed) == (1, 1)
            (line,) = lines(Path(short) / "cancelled" / "s")
            assert line["status"] == "killed" and not line["interrupted"]
