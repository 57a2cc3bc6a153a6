"""Hypotheses against simulations with known answers; results beside time; noise in a study; nodes that tasks name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from commands import HANG, command
from ensemble_simulation import FACTORIAL, NOISES, lines, study
from ensemble_support import PYTHON, give_times, within, write_study
from ensemble_support import lines as lines_of
from scipy import stats

from twinrun.ensemble import Options, analyse
from twinrun.ensemble.analysis.factors import factors
from twinrun.ensemble.analysis.findings import analyse_frame
from twinrun.ensemble.analysis.hypotheses import hypotheses
from twinrun.ensemble.analysis.outcome import outcome
from twinrun.ensemble.run import runner
from twinrun.ensemble.study.document import Hypothesis
from twinrun.ensemble.study.results import compare_results
from twinrun.ensemble.study.study import parse_study
from twinrun.ensemble.study.tasks import frame_of
from twinrun.errors import DamagedFile, TwinrunError

pytestmark = pytest.mark.usefixtures("quick_collection")

FAST = Options(permutations=199, resamples=199)


# ---- hypotheses -----------------------------------------------------------------------------------------------------------


def factorial(seed: int, effect: float, **options: object):
    """Tasks of which those with checkpoint = on take 1 + effect times as long."""
    shift = float(np.log1p(effect))
    return study(
        seed,
        cells=FACTORIAL,
        planted=lambda _, line: shift * (line["factors"]["checkpoint"] == "on"),
        **options,
    )


def answers(frame, *named: Hypothesis) -> list[str]:
    return [row["answer"] for row in hypotheses(frame, named, FAST).facts["hypotheses"]]


H = Hypothesis
ON = "checkpoint"


@pytest.mark.parametrize(("effect", "hypothesis", "answer"), [
    (0.10, H(ON, "slower"), "supported"),
    (0.10, H(ON, "slower", by=0.05), "supported"),
    (0.10, H(ON, "slower", by=0.20), "refuted"),
    (0.10, H(ON, "faster"), "refuted"),
    (0.10, H(ON, "different"), "supported"),
    (0.10, H(ON, "different", by=0.30), "refuted"),
    (0.10, H(ON, "same", by=0.03), "refuted"),
    (-0.10, H(ON, "faster"), "supported"),
    (-0.10, H(ON, "smaller", by=0.05), "supported"),
    (-0.10, H(ON, "larger"), "refuted"),
    (0.10, H(ON, "faster", level="off", base="on"), "supported"),
    (0.0, H(ON, "same", by=0.05), "supported"),
    (0.0, H(ON, "slower", by=0.05), "refuted"),
    (0.10, H("cores", "same", by=0.05), "supported"),
    (0.10, H(ON, "slower", given={"cores": "all"}), "supported"),
])  # fmt: skip
def test_hypotheses_with_known_answers(effect: float, hypothesis: Hypothesis, answer: str) -> None:
    for seed in range(4):
        assert answers(factorial(seed, effect, sigma=0.02), hypothesis) == [answer]


@pytest.mark.parametrize("noise", list(NOISES))
def test_a_hypothesis_at_its_border_is_decided_as_rarely_as_stated(noise: str) -> None:
    """The truth is exactly what `slower by` and `same within` ask for: any answer is wrong one way or the other in 5% at most."""
    rounds = 100
    wrong = {"slower": 0, "same": 0}
    for seed in range(rounds):
        frame = factorial(1000 + seed, 0.05, noise=noise, blocks=4)
        for expect in wrong:
            answer = answers(frame, H(ON, expect, by=0.05))
            # slower: true ratio is 1.05: neither is shown. same: on the border, to be supported as rarely.
            wrong[expect] += answer != ["undecided"] if expect == "slower" else answer == ["supported"]
    for count in wrong.values():
        assert count <= stats.binom.ppf(0.999, rounds, 0.05)


def test_several_hypotheses_share_one_rate_of_false_answers() -> None:
    rounds, any_ = 100, 0
    for seed in range(rounds):
        frame = study(5000 + seed, cells=FACTORIAL, blocks=4)
        named = [H(f, "different", given=g) for f in ("checkpoint", "cores") for g in ({}, {"cores" if f == "checkpoint" else "checkpoint": "all" if f == "checkpoint" else "on"})]  # fmt: skip
        told = answers(frame, *named)
        any_ += "undecided" not in told or "supported" in told
    assert any_ <= stats.binom.ppf(0.999, rounds, 0.05)


def test_a_hypothesis_is_of_the_same_estimate_as_factors() -> None:
    frame = factorial(3, 0.2)
    (row,) = hypotheses(frame, [H(ON, "slower")], FAST).facts["hypotheses"]
    effect = next(e for e in factors(frame, FAST).facts["effects"] if e["term"] == ON)
    assert (row["ratio"], row["low"], row["high"]) == pytest.approx(
        (effect["value"], effect["low"], effect["high"])
    )


def test_what_cannot_be_tested_is_undecided_and_says_why() -> None:
    frame = factorial(1, 0.1)
    for h in (
        H(ON, "slower", metric="metrics.none"),
        H("other", "slower"),
        H(ON, "same", by=0.1, level="on", base="none"),
    ):
        made = hypotheses(frame, [h], FAST)
        (row,) = made.facts["hypotheses"]
        assert row["answer"] == "undecided" and row["why"] and row["why"] in made.sentence
        assert made.figure() is None
    few = frame.head(3)
    assert answers(few, H(ON, "slower")) == ["undecided"]


STUDY = {
    "command": ["x", "{a}"],
    "factors": {"a": {"levels": ["on", "off"]}, "b": {"levels": [1, 2, 3], "variable": "B"}},
}


@pytest.mark.parametrize(("entry", "said"), [
    ({}, "factor"), ({"factor": "c"}, "no factor"), ({"factor": "a", "expect": "nicer"}, "one of"),
    ({"factor": "a", "level": "maybe"}, "not a level"), ({"factor": "b"}, "3 levels"), ({"factor": "b", "level": 1}, "3 levels"),
    ({"factor": "a", "level": "on", "base": "on"}, "two levels"), ({"factor": "a", "given": {"b": "4"}}, "which does not exist"),
    ({"factor": "a", "given": {"a": "on"}}, "which does not exist"), ({"factor": "a", "expect": "same"}, "within"),
    ({"factor": "a", "by": -1}, "from 0"), ({"factor": "a", "sise": 1}, "not understood"), ({"factor": "a", "metric": "speed"}, "not measured"),
    ({"factor": "a", "level": ["on"]}, "must be"),
])  # fmt: skip
def test_wrong_hypotheses_are_errors(entry: dict, said: str) -> None:
    with pytest.raises(TwinrunError, match=said):
        parse_study({**STUDY, "hypotheses": [entry]})
    good = parse_study(
        {
            **STUDY,
            "hypotheses": [{"factor": "b", "level": 1, "base": "3", "given": {"a": "on"}, "metric": "user"}],
        }
    )
    assert good.hypotheses[0].level == "1" and good.hypotheses[0].given == {"a": "on"}


# ---- results beside time --------------------------------------------------------------------------------------------------

# Writes an array that depends on the seed and, at one level, differs in one element.
WRITES = """
import struct, sys
seed, level = int(sys.argv[1]), sys.argv[2]
if level == "none": sys.exit()
x = [float(seed + i) for i in range(100)]
if level == "other": x[7] += 0.25
if level == "near": x[7] += 1e-9
if level == "short": x.pop()
header = "{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }" % len(x)
header += " " * (63 - (len(header) + 10) % 64) + "\\n"
with open("out.npy", "wb") as file:
    file.write(b"\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(header)) + header.encode())
    file.write(struct.pack("<%dd" % len(x), *x))
    if level == "torn": file.truncate(200)
if level == "fails": sys.exit(1)
"""


def results_study(folder: Path, levels: list[str], **keys: object) -> Path:
    return write_study(
        folder, command=[*PYTHON, WRITES, "{seed}", "{level}"], repetitions=3, factors={"level": {"levels": levels}},
        **{"results": {"compare": "out.npy"}, **keys},
    )  # fmt: skip


def verdicts(folder: Path) -> dict[str, list]:
    found: dict[str, list] = {}
    for line in lines_of(folder):
        found.setdefault(line["factors"]["level"], []).append(line["results"] and line["results"]["verdict"])
    return found


def test_each_task_is_compared_with_the_first_of_its_seed(tmp_path: Path) -> None:
    path = results_study(tmp_path, ["a", "other", "near", "none", "fails", "short", "torn"], results={"compare": "out.npy", "atol": 1e-6},
                         design={"order": 4})  # fmt: skip
    with within(HANG):
        runner.run_study(path, tmp_path / "s")
    first: dict[int, dict] = {}
    for line in lines_of(tmp_path / "s"):
        level, results = line["factors"]["level"], line["results"]
        if level in ("none", "fails"):
            assert results is None
            continue
        if line["seed"] not in first:
            assert results == {"verdict": "reference", "reference": line["task"]}
            first[line["seed"]] = line
            continue
        reference = first[line["seed"]]
        assert results["reference"] == reference["task"]
        pair = {level, reference["factors"]["level"]}
        if "torn" in pair or "short" in pair:
            assert results["verdict"] == "undecided" and results["why"]
        elif "other" in pair:
            assert results["verdict"] == "different" and results["different_elements"] == 1
            assert results["max_abs_diff"] == pytest.approx(0.25)
        else:
            assert results["verdict"] == "same"
        assert not (tmp_path / "s" / "output" / f"{line['task']}-{line['attempt']}" / "out.npy").exists()
    assert sorted(p.name for p in (tmp_path / "s" / "results").iterdir()) == sorted(
        name for seed in first for name in (str(seed), f"{seed}.json")
    )


def test_a_reference_is_kept_beside_files_that_the_study_keeps(tmp_path: Path) -> None:
    path = results_study(tmp_path, ["a"], keep=["*.npy"])
    runner.run_study(path, tmp_path / "s")
    assert verdicts(tmp_path / "s") == {"a": ["reference"] * 3}  # a seed each
    assert all((tmp_path / "s" / "output" / f"{k}-1" / "out.npy").exists() for k in range(3))
    runner.run_study(results_study(tmp_path / "fixed", ["a"], seeds={"kind": "fixed"}), tmp_path / "t")
    assert verdicts(tmp_path / "t") == {"a": ["reference", "same", "same"]}


def test_a_given_reference(tmp_path: Path) -> None:
    path = results_study(
        tmp_path, ["a"], seeds={"kind": "fixed"}, results={"compare": "out.npy", "reference": "truth.npy"}
    )
    runner.run_study(path, tmp_path / "s")
    assert verdicts(tmp_path / "s") == {"a": ["undecided"] * 3}  # it is not there
    np.save(tmp_path / "truth.npy", np.arange(100.0) + 1)
    runner.run_study(path, tmp_path / "t")
    assert verdicts(tmp_path / "t") == {"a": ["same"] * 3}


def test_a_runner_that_died_after_it_moved_the_reference_takes_it_up(tmp_path: Path) -> None:
    """The line that was not written yet comes to be the same."""
    path = results_study(tmp_path, ["a"], seeds={"kind": "fixed"})
    folder = tmp_path / "s"
    runner.run_study(path, folder)
    wanted = lines_of(folder)
    record = folder / "output" / "0-1"
    # As it was just before the first line: the record in its folder, the results moved.
    text = (folder / "tasks.jsonl").read_text().splitlines(keepends=True)
    (folder / "tasks.jsonl").write_text("".join(text[1:]))
    (record / "spec.json").write_text(json.dumps({"submit": 0.5, "inode": record.stat().st_ino}))
    (record / "record.json").write_text(
        json.dumps(
            {"submit": 0.5, "status": "ok", "exit": 0, "wall": wanted[0]["wall"], "start": 1.0, "end": 2.0}
        )
    )
    (record / "claim").write_text("{}")
    with within(HANG):
        runner.run_study(path, folder)
    again = {line["task"]: line["results"] for line in lines_of(folder)}
    assert again == {line["task"]: line["results"] for line in wanted}


def test_comparing_never_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "b.npy").write_bytes(b"\x93NUMPY" + np.random.default_rng(1).bytes(50))
    (tmp_path / "c").mkdir()
    for other in ("b.npy", "c", "none"):
        found = compare_results(tmp_path / "a.npy", tmp_path / other)
        assert found["verdict"] == "undecided" and found["why"]


@pytest.mark.parametrize("entry", [{}, {"compare": ""}, {"compare": 1}, {"compare": "x", "atol": -0.5}, {"compare": "x", "tol": 1}, {"compare": "{zz}"}])  # fmt: skip
def test_wrong_results_are_errors(entry: dict) -> None:
    with pytest.raises(TwinrunError):
        parse_study({**STUDY, "results": entry})
    with pytest.raises(TwinrunError, match="one of them"):
        parse_study({**STUDY, "results": {"compare": "x"}, "record": {"results": "y"}})


def compared(verdict: str, **more: object) -> dict:
    return {"verdict": verdict, "reference": 0, **more}


def test_outcome_knows_comparisons() -> None:
    made = lines(1, nodes=8, blocks=5, planted=lambda rng, line: 0.2 * (line["task"] % 4 == 3))
    for line in made:
        slow = line["task"] % 4 == 3
        line["results"] = (
            compared("different", first_step=20 + line["task"], max_abs_diff=0.1 * line["task"])
            if slow
            else compared("same", max_abs_diff=1e-9)
        )
    made[0]["results"] = {"verdict": "reference", "reference": 0}
    made[1]["results"] = compared("undecided", why="x")
    found = outcome(frame_of(made))
    assert found.state == "found" and "10 of 38 tasks computed something else" in found.sentence
    assert "first at step 23, by at most 3.9" in found.sentence and "of 1 more" in found.sentence
    for line in made[2:]:
        line["results"] = compared("same", max_abs_diff=1e-9 * line["task"])
    same = outcome(frame_of(made))
    assert same.sentence.startswith(
        "38 tasks computed the same as the first task of their seed; whether all do cannot be decided; "
    )
    assert same.state == "open" and "of 1 more the results could not be compared" in same.sentence
    made[1]["results"] = compared("same")
    same = outcome(frame_of(made))
    assert (
        "All 39 tasks that were compared computed the same as the first" in same.sentence
        and same.state == "described"
    )
    assert "at 95% confidence at most 7.4% of such tasks do not" in same.sentence  # 0.05^(1/39)
    for line in made:
        line["results"]["reference"] = "/ref"
    assert "computed the same as the reference;" in outcome(frame_of(made)).sentence
    # A study's own word for it is a result as any other.
    for line in made:
        line["results"] = {"verdict": "passed"}
    assert "All 40 tasks computed the same within" in outcome(frame_of(made)).sentence


def test_tasks_without_results_leave_it_undecided() -> None:
    """Of 12 tasks, the first is the reference, 6 are the same, and 5 left none."""
    made = lines(1, nodes=4, blocks=3)
    for line in made:
        line["results"] = compared("same") if line["task"] < 7 else None
    made[0]["results"] = compared("reference")
    found = outcome(frame_of(made))
    assert found.state == "open" and found.facts["takes"]
    assert found.sentence == (
        "6 tasks computed the same as the first task of their seed; whether all do cannot be decided; "
        "5 more ended well and left no results."
    )
    for line in made[1:]:
        line["results"] = None
    alone = outcome(frame_of(made))
    assert alone.state == "open" and "no task was compared with another; 11 more" in alone.sentence


def test_a_difference_without_a_number_has_no_bound() -> None:
    made = lines(1, nodes=4, blocks=3)
    for line in made:
        line["results"] = compared("same", max_abs_diff=0.0)
    made[0]["results"] = compared("reference")
    for task, size in ((3, 2e-6), (5, None), (7, None)):
        made[task]["results"] = compared("different", max_abs_diff=size)
    sentence = outcome(frame_of(made)).sentence
    assert "3 of 11 tasks computed something else" in sentence
    assert "(by at most 2e-06 where that is known: in 2 it is not, or not finite)" in sentence


def test_capture_cost_and_what_was_computed(tmp_path: Path) -> None:
    """The study in examples/capture_cost, smaller: minihacc without capture, with digests, with data."""
    program = os.environ.get("TWINRUN_MINIHACC") or shutil.which("minihacc")
    if not program:
        pytest.skip("needs minihacc: make test builds it, or set TWINRUN_MINIHACC to the program")
    text = (Path(__file__).parents[3] / "examples" / "capture_cost" / "study.toml").read_text()
    for before, after in (
        ("exec minihacc", f"exec {program} --deterministic"),
        ("20000", "2000"),
        ("repetitions = 10", "repetitions = 3"),
    ):
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "study.toml").write_text(text)
    with within(HANG):
        runner.run_study(tmp_path / "study.toml", tmp_path / "s")
    for line in lines_of(tmp_path / "s"):
        assert line["status"] == "ok"
        if line["factors"]["capture"] == "off":
            assert line["results"] is None
        else:
            assert line["results"]["verdict"] in ("reference", "same")
    report = analyse(tmp_path / "s", FAST)
    assert "computed the same as the first task of their seed" in report["outcome"].sentence
    assert len(report["hypotheses"].facts["hypotheses"]) == 2


# ---- noise, nodes, counts -------------------------------------------------------------------------------------------------


def small(folder: Path, **keys: object) -> Path:
    return write_study(
        folder,
        **{
            "command": [*PYTHON, "pass", "{n}"],
            "repetitions": 1,
            "factors": {"n": {"levels": [1, 2]}},
            **keys,
        },
    )  # type: ignore[arg-type]


def test_noise_is_measured_before_and_after_once(tmp_path: Path) -> None:
    path = small(
        tmp_path,
        noise={"seconds": 0.6},
        factors={"n": {"levels": [1, 2]}, "cores": {"levels": ["all"]}},
        repetitions=8,
    )
    with within(HANG):
        runner.run_study(path, tmp_path / "s")
    before, after = ((tmp_path / "s" / "noise" / f"{when}.json") for when in ("before", "after"))
    walls = [x["start"] for x in lines_of(tmp_path / "s")]
    assert (
        json.loads(before.read_text())["started"]
        < min(walls)
        <= max(walls)
        < json.loads(after.read_text())["started"]
    )
    seen = (before.read_bytes(), after.read_bytes())
    runner.run_study(path, tmp_path / "s")
    assert seen == (before.read_bytes(), after.read_bytes())
    report = analyse(tmp_path / "s", FAST)
    assert report["noise"].state == "described" and "Before the study: On" in report["noise"].sentence
    assert report["noise"].state == "told" and not report["noise"].state != "told"  # its former name
    assert report["noise"].state != "open" and hash(report["noise"].state) == hash("described")
    report.to_html(tmp_path / "r.html")
    assert "Noise of the operating system" in (tmp_path / "r.html").read_text()
    after.write_text("{}")
    with pytest.raises(DamagedFile):
        analyse(tmp_path / "s", FAST)


@pytest.mark.parametrize("entry", [{"seconds": 0}, {"second": 1}, {"seconds": "x"}])
def test_wrong_noise_is_an_error(entry: dict) -> None:
    with pytest.raises(TwinrunError):
        parse_study({**STUDY, "noise": entry})
    with pytest.raises(TwinrunError, match="batch system"):
        parse_study({**STUDY, "noise": {}, "engine": {"kind": "psij"}})


def test_a_task_says_on_which_node_it_ran(tmp_path: Path) -> None:
    path = small(
        tmp_path, command=[*PYTHON, "import sys; open('where', 'w').write(sys.argv[1] + '\\nmore')", "{node}", "{n}"],
        design={"nodes": ["x1", "x2"]}, record={"node": "where"}, repetitions=2,
    )  # fmt: skip
    runner.run_study(path, tmp_path / "s")
    for line in lines_of(tmp_path / "s"):
        assert line["node"] == line["intended_node"] in ("x1", "x2")
    plain = small(tmp_path / "p", record={"node": "nothing"})
    runner.run_study(plain, tmp_path / "p" / "s")
    assert {x["node"] for x in lines_of(tmp_path / "p" / "s")} == {os.uname().nodename}


def test_a_metric_may_be_a_count(tmp_path: Path) -> None:
    path = small(tmp_path, command=[*PYTHON, "import sys; print('one\\n' * (int(sys.argv[1]) - 1))", "{n}"],
                 metrics={"ones": {"regex": "(one)", "which": "count"}, "none": {"regex": "(one)", "which": "count", "file": "nothing"}})  # fmt: skip
    runner.run_study(path, tmp_path / "s")
    for line in lines_of(tmp_path / "s"):
        assert line["metrics"] == {"ones": int(line["factors"]["n"]) - 1} and line["metrics_missing"] == [
            "none"
        ]


# ---- null studies as large as the worked one ------------------------------------------------------------------------------


def test_null_studies_raise_as_few_alarms_as_stated() -> None:
    """Eight cells in six blocks, as examples/gromacs: nothing is the matter in any of 120 of them.

    Reports that did not correct for their five tests would raise an alarm in 23%: 120 studies show that in 998 of 1000 runs.
    """
    cells = [
        {"checkpoint": a, "files": b, "cores": c}
        for a in ("on", "off")
        for b in ("on", "off")
        for c in ("all", "all-but-one")
    ]
    options = Options(permutations=199, resamples=99)
    names = ["factors", "variation_factors", "blocks", "periods", "changes"]
    rounds = int(os.environ.get("TWINRUN_SIMULATIONS", "1")) * 120
    alarms = 0
    for seed in range(rounds):
        frame = study(9000 + seed, nodes=8, blocks=6, cells=cells, noise=list(NOISES)[seed % 3])
        alarms += bool(analyse_frame(frame.assign(node="one"), options, only=names).alarms)
    assert alarms <= stats.binom.ppf(0.999, rounds, 0.05)


def test_the_report_of_a_folder_names_its_hypotheses(tmp_path: Path) -> None:
    path = small(
        tmp_path,
        repetitions=4,
        hypotheses=[{"factor": "n", "expect": "same", "by": 5.0, "text": "n does nothing"}],
    )
    runner.run_study(path, tmp_path / "s")
    rng = np.random.default_rng(1)
    give_times(tmp_path / "s", lambda _: float(np.exp(0.02 * rng.standard_normal())))
    done = command("ensemble", "report", tmp_path / "s")
    assert done.status == 0 and "n does nothing: supported" in done.out
    assert "; hypotheses: 1 of 1 supported; nothing else that was looked at is shown" in done.out
