"""What reports say: each number holds, has its n, and names what it takes for granted."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

import pandas as pd
from commands import command
from ensemble_rates import made, slow_groups_tests, slow_groups_told
from ensemble_simulation import lines, study

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.conditions import conditions_of
from twinrun.ensemble.analysis.factors import factors
from twinrun.ensemble.analysis.findings import analyse_frame
from twinrun.ensemble.analysis.model import left_over
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.regimes import regimes, schedule
from twinrun.ensemble.analysis.result import Judge
from twinrun.ensemble.analysis.spread import makespan
from twinrun.ensemble.analysis.tail import _Group, mixture, tail
from twinrun.ensemble.study.tasks import frame_of
from twinrun.report.ensemble import conditions_table, seconds

FAST = Options(permutations=199, resamples=199)


def two(
    n: int, names: tuple[str, str] = ("a", "b"), slower: float = 1.0, spread: float = 0.2
) -> pd.DataFrame:
    """Two commands in n blocks."""
    rng = np.random.default_rng(1)
    return frame_of(
        {"task": k, "block": k // 2, "order": k % 2, "status": "ok", "factors": {"command": names[k % 2]},
         "wall": math.exp(spread * rng.normal()) * (slower if k % 2 else 1)}
        for k in range(2 * n)
    )  # fmt: skip


def one(times: list[float] | np.ndarray, **more: object) -> pd.DataFrame:
    return frame_of(
        {"task": k, "block": k, "order": 0, "status": "ok", "wall": float(x), **more}
        for k, x in enumerate(times)
    )


# -- commands and conditions


def test_an_interval_says_what_it_takes_for_granted() -> None:
    few = conditions_of(two(12, slower=2), FAST).sentences(0.02)[0]
    assert few.endswith(
        "slower than a (12 blocks, taken as independent of each other: fewer than 30 cannot show whether they are)."
    )
    many = conditions_of(two(40, slower=2), FAST)
    assert many.sentences(0.02)[0].endswith(
        f"slower than a (40 blocks, tested for independence: p = {many.against[0].resemblance.p:.2g})."
    )


def test_a_rough_number_of_blocks_has_two_digits() -> None:
    said = conditions_of(two(8), FAST).sentences(0.002)[0]
    blocks = re.search(r"about (\d+) blocks would measure it within 0.2%", said)[1]
    assert len(blocks) > 3 and set(blocks[2:]) == {"0"}


def test_long_and_empty_commands() -> None:
    frame = two(8, ("", "x" * 5000))
    frame.attrs["name"] = "the study"
    found = conditions_of(frame, FAST)
    assert [row.name for row in found.rows] == ["(empty)", "x" * 5000]
    assert all(len(line) < 400 for line in found.sentences(0.02))
    assert all(len(line) < 700 for line in analyse_frame(frame, FAST).lines())


def test_times_of_nanoseconds() -> None:
    assert seconds(1.006e-7) == "100.6 ns"
    table = conditions_table(conditions_of(one([1e-7] * 6), FAST).table(), 0.95)
    assert table.head[2] == "median (ns)" and table.rows[0][2] == "100.0"


def test_a_variation_above_the_time_itself_has_no_exponent() -> None:
    table = conditions_table(conditions_of(one([1.0, 1.0, 1.0, 9.0]), FAST).table(), 0.95)
    assert table.rows[0][4] == "133%"


def test_a_makespan_may_be_shorter_than_rounds_of_medians() -> None:
    """39 tasks on 19 slots: the third round has one task."""
    said = regimes(one(list(np.linspace(1.0, 1.2, 39)), start=0.0), FAST).sentence
    assert re.search(r"fewer \(19 slots\) [\d.]+ s, [\d.]+% shorter, ", said), said


def test_unknown_nodes_are_not_said_to_be_one() -> None:
    assert (
        nodes(one([1.0, 1.1, 1.2]), FAST).sentence
        == "Whether nodes differ cannot be decided: no task tells on which node it ran."
    )
    known = one([1.0, 1.1, 1.2], node="n")
    assert nodes(known, FAST).sentence.endswith("all 3 tasks with a known node ran on one.")


# -- bounds


@pytest.mark.parametrize("seed", range(6))
def test_what_is_denied_is_a_bound(seed: int) -> None:
    """A bound that is rounded to the nearest number may be below what it bounds."""
    frame = study(seed, nodes=2, blocks=40, sigma=0.01)
    found = nodes(frame, FAST)
    said = re.search(r"No node is off by more than ([\d.]+)% \(at 95% confidence", found.sentence)
    assert found.state == "none"
    assert float(said[1]) >= 100 * max(found.table["high"].max(), -found.table["low"].min()) - 1e-9
    found = factors(two(40, spread=0.02), FAST)
    assert found.state == "none" and "(95% confidence of each effect; 80 tasks" in found.sentence
    said = re.search(r"by more than ([\d.]+)%", found.sentence)
    effects = [e for c in found.claims for e in c.facts["effects"]]
    assert float(said[1]) >= 100 * max(max(abs(e["low"] - 1), abs(e["high"] - 1)) for e in effects) - 1e-9


def test_a_verdict_without_an_interval_says_why() -> None:
    rng = np.random.default_rng(1)
    long = one(10 * np.exp(0.03 * rng.standard_t(1.5, 40)))
    assert (
        "(no interval: single tasks lie far from all others"
        in analyse_frame(long, FAST, only=["spread"]).headline
    )
    few = analyse_frame(one([1.0, 1.1, 1.2]), FAST, only=["spread"])
    assert "(no interval: too few tasks), 3 tasks" in few.headline
    known = analyse_frame(one(10 + 0.1 * rng.standard_normal(40)), FAST, only=["spread"])
    assert "no interval" not in known.headline and known["spread"].facts["no_interval"] is None


def test_the_verdict_names_every_claim() -> None:
    rng = np.random.default_rng(1)
    before, now = (one(10 * np.exp(0.01 * rng.standard_normal(40) + y)) for y in (0.0, 0.1))
    found = analyse_frame(now, FAST, only=["spread"], against=before)
    assert [a.name for a in found.alarms] == ["compare"]
    assert "; it differs from the earlier study (location) (at most" in found.headline
    assert "nothing" not in found.headline
    made = lines(1, nodes=8, blocks=5, planted=lambda _, line: 0.2 * (line["task"] % 4 == 3))
    for line in made:
        line["results"] = {"verdict": "different" if line["task"] % 4 == 3 else "same", "reference": "r"}
    found = analyse_frame(frame_of(made), FAST, only=["spread", "outcome"])
    assert "; shown to matter: what the tasks computed (at most" in found.headline


# -- makespan


def test_a_simulated_makespan_is_that_of_new_tasks() -> None:
    """Times that are drawn with replacement make it too small: by 0.6% of that of 20 such tasks on 20 slots."""
    rng, n, studies = np.random.default_rng(1), 20, 60
    for slots in (10, 20):
        truth = schedule(10 + 0.3 * rng.standard_normal((20_000, n)), slots).mean()
        found = [
            next(
                r
                for r in regimes(one(10 + 0.3 * rng.standard_normal(n)), FAST).facts["rows"]
                if r["slots"] == slots
            )["makespan"]
            for _ in range(studies)
        ]
        error = np.std(found, ddof=1) / math.sqrt(studies)
        assert abs(np.mean(found) - truth) < 3 * error < 0.005 * truth


def test_makespan_has_no_interval_that_misses() -> None:
    """The slowest of as many new tasks is slower than all measured ones in half of workloads, whatever the distribution."""
    result = regimes(one(10 + np.random.default_rng(1).lognormal(0, 1, 40)), FAST)
    assert not {"low", "high"} & set(result.table) and result.facts["slower_than_all"] == 0.5
    assert "in 50% of workloads the slowest of 40 new ones is slower than all 40" in result.sentence
    assert "[" not in result.sentence


def test_blocks_of_one_attempt_have_no_makespan() -> None:
    frame = one([1.0, 1.5, 1.2])
    frame["start"], frame["end"] = [0.0, 10.0, 20.0], [1.0, 11.5, 21.2]
    result = makespan(frame, FAST)
    assert (
        result.state == "open" and "each block has one attempt, which waits for no other" in result.sentence
    )


# -- slow tasks that stand out


def test_slow_tasks_that_stand_out_are_described() -> None:
    """Four of 40 tasks are 10% slower: no test can tell whether they are a group, and the report does not keep them secret."""
    frame, _ = made(0, "normal", "replicas", 40)
    frame["wall"] *= np.where(np.arange(40) % 10 == 3, 1.12, 1.0)
    found = analyse_frame(frame, FAST)
    assert not found.alarms and found["tail"].state == "open"
    line = next(x for x in found.lines() if "Some tasks take longer" in x)
    assert re.match(
        r"measured   Some tasks take longer: 4 of 40 took [\d.]+% to [\d.]+% longer than the mean of the others\. This may be a group of slow "
        r"tasks, or a long tail: not told apart \(p = [\d.]+\)\. Even the best test needs about \d+ tasks to tell such a group from such a tail\.$",
        line,
    )
    slow = found["tail"].table.loc[found["tail"].table["slow group"], "task"]
    assert set(slow) == {3, 13, 23, 33}
    told = found["tail"].description
    assert line.endswith(told) and found["tail"].sentence != told
    [analysis] = [a for a in found.document()["analyses"] if a["name"] == "tail"]
    assert analysis["description"] == told and analysis["state"] == "open"


def test_a_description_is_on_the_page(tmp_path: Path) -> None:
    frame, _ = made(0, "normal", "replicas", 40)
    frame["wall"] *= np.where(np.arange(40) % 10 == 3, 1.12, 1.0)
    found = analyse_frame(frame, FAST, only=["spread", "trend", "changes", "tail"])
    assert found["tail"].description
    found.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert f'<li><a href="#tail">Slow tail</a>: {found["tail"].description}</li>' in text
    found.to_json(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["analyses"][0]["description"] is None


def test_a_group_that_is_shown_is_not_described_as_well() -> None:
    frame = study(3, nodes=10, planted=lambda _, line: 0.3 * (line["task"] % 10 == 3))
    found = tail(frame, FAST)
    assert found.state == "found" and not found.description
    found.judge = Judge(1e-9)
    assert not found.found and found.description.startswith(
        "Some tasks take longer: 6 of 60, what conditions"
    )


def test_the_best_test_needs_the_tasks_that_are_told() -> None:
    """One task in ten, 10% slower, beside 3%: 400 tasks have 77% of such studies found, as docs/reference/ensemble.md says."""

    def needed(apart: float) -> float:
        frame = one(np.ones(20))
        group = _Group(frame, left_over(frame, "wall", blocks=False), Options(), 0, 0.1, 0, apart, 0.03, 0, 0, np.zeros(4), np.random.default_rng(1))  # fmt: skip
        return group.needed(0.05 / 9)

    assert 380 <= needed(math.log(1.1)) <= 520
    assert needed(0.18) < needed(0.15) < needed(0.12) < needed(math.log(1.1)) < needed(0.08)
    assert needed(0.05) == math.inf


def test_one_normal_distribution_in_twenty_has_tasks_that_stand_out() -> None:
    rng = np.random.default_rng(1)
    for n in (12, 60):
        share = (mixture(rng.standard_normal((2000, n)), 0.3)[0] > 2.2).mean()
        assert 0.03 < share < 0.065
    claimed, described = slow_groups_told("normal", 40, 30)
    assert claimed == 0 and described <= 6
    claimed, described = slow_groups_told("slow", 100, 12)
    assert claimed + described >= 9


def test_tests_that_take_noise_for_normal_claim_groups_of_any_skewed_noise() -> None:
    """So none of them can close the gap to what is known of normal noise."""
    found = slow_groups_tests(40, 0.05 / 9, 400)
    slow, delays, skewed = found["two normals against one, by likelihood"]
    assert slow > 0.25 and delays > 0.9 and skewed > 0.2
    slow, _, skewed = found["best, if all but normal noise were excluded"]
    assert 0.4 < slow < 0.6 and skewed > 0.25
    assert found["generalized ESD"][1] > 0.6 and found["Silverman's number of modes"][0] < 0.1


# -- what users import


def test_a_report_of_a_table_with_times_of_zero_and_failed_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = [f"{10 + k % 3},ok" for k in range(12)] + ["0,ok"] + ["3,failed"] * 5 + [",timeout"]
    path.write_text("wall,status\n" + "\n".join(rows) + "\n")
    done = command("ensemble", "report", path)
    assert done.status == 0, done.err
    assert (
        "6 of 19 attempts (5 failed, 1 timeout) are in no time here; 12 of 19 tasks ended well. If slow tasks are those that fail, "
        "times look shorter than they are." in done.out
    )
    assert "1 attempts have a value of wall of 0 or less, and are left out: effects are ratios." in done.out


def test_a_report_of_a_table_without_times_names_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("name|bw_value|bw_unit\n" + "T|10.5|GB/s\n" * 3)
    done = command("ensemble", "report", path)
    assert "3 ended well, so nothing is said of it. Other columns: metrics.bw (--value NAME)." in done.out
    assert "to decide" in done.out and "?; to decide" not in done.out


def test_tables_have_no_folder_of_outputs(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("wall,status\n1,failed\n")
    done = command("ensemble", "report", path)
    assert "so nothing is said of the time." in done.out and "The folder output" not in done.out
    path.write_text("wall\n1\n")
    assert "The task does not tell on which node it ran" in command("ensemble", "report", path).out
