"""Numbers that the user names: by task, by time, by a command; and what the time's correlation with them claims."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from commands import command
from ensemble_rates import covaried
from ensemble_support import lines, write_study

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.covariates import covariates
from twinrun.ensemble.analysis.findings import ANALYSES, analyse_frame
from twinrun.ensemble.run import runner
from twinrun.ensemble.study.covariates import with_covariates
from twinrun.ensemble.study.study import parse_study
from twinrun.ensemble.study.tasks import frame_of
from twinrun.errors import DamagedFile, MissingFile, TwinrunError

FAST = Options(permutations=999, resamples=199)
STUDIES = int(os.environ.get("TWINRUN_TEST_STUDIES", "24"))


def tasks(n: int, seed: int, effect: float = 0.0, memory: float = 0.0) -> tuple[list[dict], np.ndarray]:
    """Tasks with 3% noise, and a covariate that adds `effect` of the time a deviation; both remember by `memory`."""
    rng = np.random.default_rng(seed)

    def series() -> np.ndarray:
        x = rng.normal(size=n)
        for k in range(1, n):
            x[k] = memory * x[k - 1] + np.sqrt(1 - memory**2) * x[k]
        return x

    given = series()
    wall = np.exp(0.03 * series() + effect * given)
    return [
        {"task": k, "block": k, "order": 0, "wall": float(wall[k]), "start": 10.0 * k, "end": 10.0 * k + 5, "factors": {}, "status": "ok",
         "covariates": {"room": float(given[k])}}
        for k in range(n)
    ], given  # fmt: skip


def test_by_task_and_by_time(tmp_path: Path) -> None:
    frame = frame_of(tasks(6, 1)[0]).drop(columns="covariates.room")
    path = tmp_path / "x.csv"
    path.write_text("task,a,words\n0,1.5,x\n2,2.5,y\n5,nan,z\n99,7,z\n")
    found = with_covariates(frame, path)
    assert found["covariates.a"].tolist()[0] == 1.5 and found["covariates.a"].tolist()[2] == 2.5
    assert (
        found["covariates.a"].isna().tolist() == [False, True, False, True, True, True]
        and "covariates.words" not in found
    )
    # By time: the mean of what was measured meanwhile, else the last value, if it is not too old.
    path.write_text("time,p\n0,1\n2,3\n8,10\n11,5\n14,7\n")
    found = with_covariates(frame, path)
    assert found["covariates.p"].tolist()[:3] == [2.0, 6.0, 7.0]  # 0 to 5; 10 to 15; the value of 14 at 20
    assert found["covariates.p"].isna().tolist() == [False, False, False, True, True, True]
    path.write_text("timestamp,p\n1970-01-01T00:00:01Z,4\n")
    assert with_covariates(frame, path)["covariates.p"].tolist() == [4.0] * 6


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("a,b\n1,2\n", DamagedFile, "needs a column task or time"),
        ("task,b,b\n1,2,3\n", DamagedFile, "names that differ"),
        ("task,b\n1\n", DamagedFile, "rows as long as the header"),
        ("task,b\n1,2\n1,3\n", DamagedFile, "names a task twice"),
        ("task,b\n77,2\n", TwinrunError, "no task has a value of 'b'"),
        ("task,room\n1,2\n", TwinrunError, "is there twice"),
        ("", DamagedFile, "needs a column"),
        ("task,b\n", DamagedFile, "has a header and no rows"),
        ("task,wall\n0,warm\n1,\n", DamagedFile, "has no column of numbers beside 'task'"),
        ("task\n0\n", DamagedFile, "has no column of numbers beside 'task'"),
        (
            f"task,b\n0,{'1' * 200_000}\n",
            DamagedFile,
            "is not a table of covariates: a cell that ends in line 2",
        ),
        (
            'task,b\n0,"1\n1,2\n',
            DamagedFile,
            "is not a table of covariates: line 3: a quotation mark is not closed",
        ),
        ("time,b\n1700000000000,1\n", DamagedFile, "column 'time': '1700000000000' is no moment"),
        (
            "task,b\nfirst,1\n",
            DamagedFile,
            "column 'task': 'first' is no number of a task, and no other row has one; write 0, 1",
        ),
        (
            "time,b\nyesterday,1\n",
            DamagedFile,
            "column 'time': 'yesterday' is no moment, .*; write seconds since 1970, or a date",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(error, match=said):
        with_covariates(frame_of(tasks(6, 1)[0]), path)
    with pytest.raises(MissingFile):
        with_covariates(frame_of(tasks(6, 1)[0]), tmp_path / "none")


def test_a_command_is_read_around_each_task(tmp_path: Path) -> None:
    count = f"echo x >> {tmp_path}/count; wc -l < {tmp_path}/count"
    study = write_study(
        tmp_path, command=["/bin/sh", "-c", f"for i in 1 2 3; do echo x >> {tmp_path}/count; done"], repetitions=3,
        covariates={
            "before": {"command": ["/bin/sh", "-c", count]},
            "came": {"command": ["/bin/sh", "-c", f"wc -l < {tmp_path}/count"], "difference": True},
            "fails": {"command": ["false"]},
            "words": {"command": ["echo", "many words"]},
            "none": {"command": ["/no/such/program"]},
            "infinite": {"command": ["echo", "1e999"]},
        },
    )  # fmt: skip
    runner.run_study(study, tmp_path / "s")
    for k, line in enumerate(lines(tmp_path / "s")):
        assert line["status"] == "ok"
        assert line["covariates"] == {
            "before": 4 * k + 1,
            "came": 3,
            "fails": None,
            "words": None,
            "none": None,
            "infinite": None,
        }


@pytest.mark.parametrize("missing", ["start", "end"])
def test_a_start_or_an_end_follows_from_the_time(missing: str, tmp_path: Path) -> None:
    made = [{k: v for k, v in line.items() if k != "covariates"} for line in tasks(6, 1)[0]]
    for line in made:
        line["end"] = line["start"] + line["wall"]
    path = tmp_path / "power.csv"
    path.write_text(
        "time,power\n" + "".join(f"{line['start'] + 0.5:.3f},{k}\n" for k, line in enumerate(made))
    )
    whole = with_covariates(frame_of(made), path)["covariates.power"]
    for line in made:
        line[missing] = None
    assert (
        with_covariates(frame_of(made), path)["covariates.power"].tolist() == whole.tolist() == list(range(6))
    )


def test_tasks_with_a_value_are_counted() -> None:
    made, _ = tasks(60, 3, effect=0.03)
    for k, line in enumerate(made):
        line["covariates"]["half"] = line["covariates"]["room"]
        if k % 2:
            line["covariates"]["room"] = line["covariates"]["half"] = None
    found = covariates(frame_of(made), FAST)
    assert found.tasks == 30 and "(30 of 60 tasks have a value; conditions taken out)" in found.sentence
    for line in made:
        line["covariates"]["half"] = float(line["task"])
    found = covariates(frame_of(made), FAST)
    assert "(30 to 60 of 60 tasks have a value; conditions taken out)" in found.sentence
    assert "of 30 tasks" in found.sentence


def test_names_are_checked() -> None:
    with pytest.raises(TwinrunError, match=r"covariates\.a\.command is missing"):
        parse_study({"command": "true", "covariates": {"a": {}}})
    with pytest.raises(TwinrunError, match="means nothing"):
        parse_study({"command": "true", "covariates": {"a": {"command": "cat {x}"}}})


def test_a_covariate_that_matters_is_found() -> None:
    made, _ = tasks(40, 3, effect=0.03)
    found = analyse_frame(frame_of(made), FAST)
    own = found["covariates"]
    assert (
        own.state == "found" and own.claims[0].facts["correlation"] > 0.4 and "a covariate" in found.headline
    )
    assert own.claims[0].facts["low"] < 0.7 < own.claims[0].facts["high"]
    # One cause is one finding.
    assert [a.name for a in found.alarms] == ["covariates"]


def test_without_covariates_there_is_no_such_analysis() -> None:
    made = [{k: v for k, v in line.items() if k != "covariates"} for line in tasks(20, 1)[0]]
    assert analyse_frame(frame_of(made), FAST).names == list(ANALYSES)
    few = covariates(frame_of(tasks(10, 1)[0]), FAST)
    assert few.state == "open" and "none has 16 tasks" in few.sentence


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_a_covariate_without_effect_is_seldom_found(memory: float) -> None:
    """Also where both drift slowly: by permutation alone 22 of 100 claim something at a memory of 0.5."""
    alarms = sum(
        covariates(frame_of(tasks(60, seed, memory=memory)[0]), Options(permutations=199)).p <= 0.05
        for seed in range(STUDIES)
    )
    assert alarms <= 0.05 * STUDIES + 2.4 * np.sqrt(0.05 * 0.95 * STUDIES)


def test_power_of_a_covariate() -> None:
    found = sum(
        covariates(frame_of(tasks(60, seed, effect=0.03)[0]), Options(permutations=199)).p <= 0.05
        for seed in range(20)
    )
    assert found >= 18


def test_the_correlation_that_is_promised_is_found() -> None:
    """Of 20 analyses whose covariate has the correlation that another study promises: 12 and more, of 80%."""
    level, found = 0.005, 0
    for seed in range(20):
        first = covariates(covaried(40, 100 + seed, 0.0, 0.0), FAST)
        promise = first.could_see(level)
        assert 0.3 < promise < 0.75
        if first.state == "open":
            assert f"one of {first.seen:.2f} could have been seen in 80% of studies" in first.sentence
        effect = promise / np.sqrt(1 - promise**2)
        found += covariates(covaried(40, 200 + seed, effect, 0.0), FAST).p <= level
    assert 12 <= found
    # Draws too few for the level cannot find anything; the report does not promise it.
    none = covariates(covaried(40, 1, 0.0, 0.0), Options(permutations=99))
    assert none.could_see(level) == np.inf


def test_a_report_takes_files(tmp_path: Path) -> None:
    made, given = tasks(40, 3, effect=0.03)
    folder = tmp_path / "kept"
    folder.mkdir()
    for line in made:
        del line["covariates"]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(x) + "\n" for x in made))
    path = tmp_path / "x.csv"
    path.write_text("task,room\n" + "".join(f"{k},{v}\n" for k, v in enumerate(given)))
    done = command("ensemble", "report", folder, "--covariate", path)
    assert done.status == 0 and "The time correlates with covariates: room: +0." in done.out
    refused = command("ensemble", "report", folder, "--covariate", path, "--json", path)
    assert refused.status == 2 and path.read_text().startswith("task,room")
