"""Studies of which little can be said: all failed, one task, equal times, unknown nodes, clocks that were set. A clear line each."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from commands import HANG, command
from ensemble_support import lines as lines_of
from ensemble_support import within, write_study

from twinrun.ensemble import Options, analyse, load_tasks
from twinrun.ensemble.analysis.findings import Findings
from twinrun.ensemble.run import children, runner
from twinrun.ensemble.run.engines import WATCH
from twinrun.ensemble.study.tasks import frame_of, usable
from twinrun.ensemble.watch import attempt

FAST = Options(permutations=199, resamples=199)
HOUR = 3600.0


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def tasks(n: int = 40, **more: object) -> list[dict]:
    rng = np.random.default_rng(1)
    return [
        {"version": 1, "task": k, "attempt": 1, "block": k // 2, "order": k % 2, "repetition": k // 2, "seed": 1, "factors": {"how": "ab"[k % 2]},
         "status": "ok", "start": 1.7e9 + 2 * k, "end": 1.7e9 + 2 * k + 1, "wall": 1 + 0.03 * rng.normal(), "node": "n1", "cores": [0],
         "engine": "local", **more}
        for k in range(n)
    ]  # fmt: skip


def report(tmp_path: Path, made: list[dict], *only: str) -> Findings:
    """The report of these tasks. Nothing of it may warn, whatever the tasks are."""
    folder = tmp_path / "study"
    write_study(folder, command=["true", "{how}"], factors={"how": {"levels": ["a", "b"]}})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(x) + "\n" for x in made))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = analyse(folder, FAST, only=only or None)
        lines = found.lines()
    if found.remarks:
        assert lines[2 : 2 + len(found.remarks)] == found.remarks, "at the top"
    assert found.document()["remarks"] == found.remarks
    assert not re.search(r"\bnan\b|[-\s\[>]inf\b|\[\?", "\n".join([*lines, *found.lines(verbose=True)]))
    return found


def test_a_study_with_nothing_to_remark(tmp_path: Path) -> None:
    assert report(tmp_path, tasks(), "spread").remarks == []


def test_all_tasks_fail(tmp_path: Path) -> None:
    made = [{**x, "status": "failed" if x["task"] % 2 else "timeout", "exit": 3} for x in tasks(8)]
    found = report(tmp_path, made)
    assert found.remarks == [
        "No task ended well (attempts: 4 timeout, 4 failed), so nothing is said of the time. The folder output has what each printed."
    ]
    assert found.verdict == "undecided" and not found.alarms and "nothing could be tested" in found.headline
    assert all(a.state == "open" for a in found.analyses if a.name != "makespan")


def test_remarks_are_on_the_page(tmp_path: Path) -> None:
    made = [{**x, "wall": 3.0, "node": "<n>" if x["task"] else None} for x in tasks(4)]
    found = report(tmp_path, made)
    assert len(found.remarks) == 2
    found.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert all(f"<p>{r}</p>" in text for r in found.remarks)


def test_all_tasks_of_a_real_study_fail(tmp_path: Path) -> None:
    study = write_study(tmp_path, command=["false"], repetitions=3)
    assert runner.run_study(study, tmp_path / "s").failed == 3
    done = command("ensemble", "report", tmp_path / "s")
    assert "No task ended well (attempts: 3 failed), so nothing is said of the time." in done.out


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    study = write_study(tmp_path, command=["no-such-program"], repetitions=3)
    assert runner.run_study(study, tmp_path / "s").failed == 3
    done = command("ensemble", "report", tmp_path / "s")
    assert (
        "(attempts: 3 failed), so nothing is said of the time. Most say: no-such-program cannot be started: No such file"
        in done.out
    )


def test_a_covariate_without_numbers(tmp_path: Path) -> None:
    study = write_study(
        tmp_path, command=["true"], repetitions=3, covariates={"room": {"command": ["echo", "warm"]}}
    )
    assert runner.run_study(study, tmp_path / "s").failed == 0
    assert (
        "The covariate room has a number for 0 of 3 tasks: for the others its command failed or printed none, or its table has none."
        in analyse(tmp_path / "s", FAST, only=["spread"]).remarks
    )


def test_one_task(tmp_path: Path) -> None:
    found = report(tmp_path, tasks(1))
    assert found.remarks == ["One task ended well: one time does not tell how times vary."]
    assert found.verdict == "undecided" and not found.alarms


@pytest.mark.parametrize("n", [2, 10, 40])
def test_equal_times_deny_nothing(tmp_path: Path, n: int) -> None:
    """As of a batch system that counts whole seconds: the tasks differ by less than that, and by how much nobody knows."""
    found = report(tmp_path, [{**x, "wall": 3.0, "end": x["start"] + 3} for x in tasks(n)])
    assert found.remarks == [
        f"All {n} tasks have the same value of wall, 3: they differ by less than was recorded, so nothing is said of what makes them differ."
    ]
    assert found.verdict == "undecided"
    assert {a.state for a in found.analyses} <= {"open", "described"}


def test_times_of_nothing(tmp_path: Path) -> None:
    found = report(tmp_path, [{**x, "wall": 0.0} for x in tasks(8)])
    assert found.remarks == [
        "No task has a value of wall above 0, though 8 ended well, so nothing is said of it."
    ]


def test_unknown_nodes(tmp_path: Path) -> None:
    some = [{**x, "node": None if x["task"] % 4 == 0 else f"n{x['task'] % 3}"} for x in tasks()]
    found = report(tmp_path, some, "nodes")
    assert found.remarks == [
        "10 of 40 tasks do not tell on which node they ran: nodes are analysed without them."
    ]
    assert found["nodes"].tasks == 30
    none = report(tmp_path, tasks(node=None), "nodes")
    assert none.remarks == ["None of 40 tasks tells on which node it ran: nothing is said of nodes."]
    assert none["nodes"].state == "open"


def set_back(made: list[dict], by: float, first: int) -> list[dict]:
    """The same tasks, the clock set back before the first of them that is named."""
    moved = [{**x, "start": x["start"] - by, "end": x["end"] - by} if x["task"] >= first else x for x in made]
    return moved


def with_clock(made: list[dict]) -> list[dict]:
    return [
        {
            **x,
            "clock": {
                "boot": f"b-{x['node']}",
                "seconds": x["start"] - 1.6e9 + (50 if x["node"] == "n2" else 0),
            },
        }
        for x in made
    ]


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_clock_that_was_set_does_not_change_the_order(tmp_path: Path, by: float) -> None:
    right = with_clock(tasks())
    rng = np.random.default_rng(2)
    moved = set_back(right, by, 25)
    looked = ("trend", "changes", "periods", "makespan", "spread")
    found = report(tmp_path, [moved[k] for k in rng.permutation(40)], *looked)
    way = "back" if by > 0 else "forward"
    assert found.remarks == [
        f"While the study ran, the clock of n1 was set {way} by 3600 s before task 25. Starts and ends are those of a clock that nobody set."
    ]
    frame = load_tasks(tmp_path / "study")
    good = usable(frame)
    assert good["task"].tolist() == list(range(40))
    assert np.allclose(good["start"] - good["start"].iloc[0], 2 * np.arange(40), atol=1e-3)
    assert np.allclose(good["end"] - good["start"], 1.0, atol=1e-3)
    assert good["read.start"].tolist() == [x["start"] for x in moved]
    # As of the study whose clock nobody set.
    same = report(tmp_path, right, *looked)
    assert same.remarks == []
    for name in looked:
        assert found[name].p == same[name].p and found[name].state == same[name].state, name
    assert found["makespan"].table["makespan"].max() == pytest.approx(3.0, abs=1e-3)


def test_clocks_of_nodes_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """Nodes that started at other moments have other differences between their two clocks, and no step."""
    made = with_clock([{**x, "node": f"n{1 + x['task'] % 2}"} for x in tasks()])
    assert report(tmp_path, made, "spread").remarks == []
    one = [
        {**x, "start": x["start"] - 10, "end": x["end"] - 10} if x["node"] == "n2" and x["task"] > 30 else x
        for x in made
    ]
    assert (
        report(tmp_path, one, "spread")
        .remarks[0]
        .startswith("While the study ran, the clock of n2 was set back by 10 s before task 31.")
    )


def test_a_clock_that_is_slowly_corrected_is_left(tmp_path: Path) -> None:
    made = [{**x, "start": x["start"] + 0.001 * x["task"]} for x in with_clock(tasks())]
    assert report(tmp_path, made, "spread").remarks == []


def test_without_a_second_clock_nothing_is_said_by_time(tmp_path: Path) -> None:
    """Studies of before: the numbers of tasks tell that a clock went back, and not by how much."""
    found = report(tmp_path, set_back(tasks(), HOUR, 25), "periods", "time_of_day", "makespan", "trend")
    assert found.remarks[0].startswith(
        "Task 25 began 3598 s before the task that was started before it: a clock was set back"
    )
    assert usable(load_tasks(tmp_path / "study"))["task"].tolist() == list(range(40))
    for name in ("periods", "time_of_day", "makespan"):
        assert found[name].state == "open" and not found[name].claims
    assert found["trend"].claims, "the order is known"
    # A task that is repeated runs later than its number says.
    again = tasks()
    again[3] |= {"attempt": 2, "start": again[-1]["start"] + 500, "end": again[-1]["end"] + 500}
    assert report(tmp_path, again, "spread").remarks == []


def test_without_starts_tasks_are_in_the_order_of_blocks() -> None:
    """`order` is the place in the block: by it alone, all first tasks of blocks came before all second ones."""
    made = [{**x, "start": None, "end": None} for x in tasks(8)]
    assert usable(frame_of([made[k] for k in (5, 1, 7, 3, 0, 2, 6, 4)]))["task"].tolist() == list(range(8))


def test_a_real_study_whose_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes back by an hour while the fourth task runs: no duration changes, and no order."""
    flag = tmp_path / "flag"
    watch = tmp_path / "watch.py"
    watch.write_text(
        "import os, runpy, time\nread = time.time\n"
        f"time.time = lambda: read() - (3600.0 if os.path.exists({os.fspath(flag)!r}) else 0.0)\n"
        f"runpy.run_path({os.fspath(WATCH)!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(children, "WATCH", watch)
    study = write_study(
        tmp_path,
        command=["/bin/sh", "-c", f"test {{task}} -lt 3 || : > {flag}"],
        repetitions=6,
    )
    assert runner.run_study(study, tmp_path / "s").failed == 0
    read = {x["task"]: x for x in lines_of(tmp_path / "s")}
    assert read[4]["start"] < read[3]["start"] - HOUR / 2
    assert all(
        0 < x["wall"] < HANG and x["end"] - x["start"] == pytest.approx(x["wall"], abs=1e-4)
        for x in read.values()
    )
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert {x["clock"]["boot"] for x in read.values()} == {boot.read_text().strip()}
    seconds = [read[k]["clock"]["seconds"] for k in range(6)]
    assert seconds == sorted(seconds)
    done = command("ensemble", "report", tmp_path / "s")
    assert re.search(r"the clock of \S+ was set back by 3600 s before task 4\.", done.out)
    good = usable(load_tasks(tmp_path / "s"))
    assert good["task"].tolist() == list(range(6)) and good["start"].is_monotonic_increasing


def test_a_task_does_not_wait_for_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's node names a moment that, by this node's clock, comes in an hour; and then that clock is set back."""
    now = [1000.0, 5.0]  # the time of day, and a clock that nobody sets

    def waited(seconds: float) -> None:
        now[1] += max(seconds, 0.001)
        now[0] -= 100.0

    monkeypatch.setattr(attempt, "time", SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[1]))
    waiting = attempt.Attempt.__new__(attempt.Attempt)
    waiting.folder, waiting.spec = os.fspath(tmp_path), {"gate": 0.01}
    waiting._signals = SimpleNamespace(asked=False, wait=waited)  # type: ignore[assignment]
    (tmp_path / "gate").write_text(json.dumps({"begin": 1000.0 + HOUR}))
    assert waiting._at_gate() == 1000.0 + HOUR
    assert 5.0 < now[1] <= 5.0 + 11
