"""Reports for people: the study's name, the conditions first, what undecided analyses would take, nothing that is no number."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

import pandas as pd
from commands import command
from ensemble_support import write_study

from twinrun.ensemble import Options, analyse
from twinrun.ensemble.analysis.findings import ANALYSES, analyse_frame
from twinrun.ensemble.analysis.needs import takes
from twinrun.ensemble.analysis.result import ASSUMED
from twinrun.ensemble.intervals import Interval
from twinrun.ensemble.study.tasks import frame_of
from twinrun.report.ensemble import conditions_table, seconds, table_of

FAST = Options(permutations=199, resamples=199)


def lines(blocks: int, seed: int = 1, spread: float = 0.03) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [
        {"task": 2 * b + k, "block": b, "order": k, "attempt": 1, "seed": 1, "repetition": b, "factors": {"how": how}, "status": "ok",
         "start": float(2 * b + k), "end": 2.0 * b + k + 1, "wall": float(np.exp(spread * rng.normal())) * (1.2 if how == "slow" else 1.0),
         "node": "n", "cores": [0]}
        for b in range(blocks) for k, how in enumerate(("slow", "fast") if b % 2 else ("fast", "slow"))
    ]  # fmt: skip


def study_of(tmp_path: Path, made: list[dict]) -> Path:
    folder = tmp_path / "kept"
    write_study(
        folder,
        command=["true", "{how}"],
        name="sorts & <more>",
        factors={"how": {"levels": ["slow", "fast"]}},
    )
    (folder / "tasks.jsonl").write_text("".join(json.dumps(x) + "\n" for x in made))
    return folder


def test_the_order_of_a_report(tmp_path: Path) -> None:
    found = analyse(study_of(tmp_path, lines(30)), FAST)
    said = found.lines()
    assert said[0] == "sorts & <more>" and said[2].startswith("condition") and said[-1] == found.headline
    # The first level of the study is the base, whatever its name.
    assert re.match(r"how = slow +30 .*\[.*\] .* 1$", said[3])
    assert re.match(r"how = fast +30 .*\[.*\] .*0\.8\d+ +\[0\.8\d+, 0\.8\d+\]$", said[4])
    words = [line.split()[0] for line in said[6:-2]]
    assert words == sorted(words, key=["found", "nothing", "measured", "undecided"].index)
    assert len(words) == len(found.analyses) and words.count("undecided") > 3
    for line in said[6:-2]:
        assert not line.startswith("undecided") or ("; to decide: " in line and len(line) < 200)
    assert sum("; to decide: " in line for line in found.lines(verbose=True)) == 0


def test_the_page(tmp_path: Path) -> None:
    found = analyse(study_of(tmp_path, lines(30)), FAST)
    found.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<h1>sorts &amp; &lt;more&gt;: is the time reproducible?</h1>" in text
    assert text.index('id="conditions"') < text.index('href="#factors"') < text.index('id="undecided"')
    folded = [a for a in found.analyses if a.state == "open"]
    assert text.count("<summary>") == len(folded)
    for a in folded:
        assert f'<details id="{a.name}">' in text
    for a in found.analyses:
        if a.figure() is not None and a.name != "conditions":
            assert text.count(f">{a.title}</text>") == 0, "the heading says it"


@pytest.mark.parametrize("blocks", [1, 2, 6, 30])
def test_nothing_that_is_no_number(tmp_path: Path, blocks: int) -> None:
    folder = study_of(tmp_path, lines(blocks))
    found = analyse(folder, FAST)
    found.to_html(tmp_path / "r.html")
    found.to_json(tmp_path / "r.json")
    said = "\n".join([*found.lines(), *found.lines(verbose=True), (tmp_path / "r.html").read_text()])
    assert not re.search(r"[-\s\[>]inf\b|\bnan\b|\[\?|\?\]", said)
    document = json.loads((tmp_path / "r.json").read_text())
    assert {a["name"]: a["takes"] for a in document["analyses"]} == {
        a.name: takes(a, FAST) or None for a in found.analyses
    }


def test_every_undecided_analysis_says_what_it_takes() -> None:
    for made in (lines(1), lines(3), lines(12), [{"task": k, "wall": 1.0} for k in range(20)]):
        found = analyse_frame(frame_of(made), FAST)
        for a in found.analyses:
            assert bool(takes(a, FAST)) == (a.state == "open"), a.name


def test_numbers_of_tasks_grow_as_the_effect_falls() -> None:
    found = analyse_frame(frame_of(lines(12, spread=0.2)), FAST)
    blocks = found["blocks"]
    assert blocks.state == "open"

    def tasks(matters: float) -> int:
        return int(re.search(r"about (\d+) tasks", takes(blocks, Options(matters=matters)))[1])

    assert tasks(0.01) == pytest.approx(4 * tasks(0.02), rel=0.01)
    assert tasks(10.0) == 2 * blocks.tasks, "more than these, at least"


def test_texts() -> None:
    assert (
        seconds(0.012345) == "12.35 ms" and seconds(1234.0) == "1234 s" and seconds(5e-6, "ms") == "0.005000"
    )
    assert Interval(0.5, 0.0, float("inf"), 3).text() == "0.5 (no interval)"
    assert table_of(pd.DataFrame({"a": [float("-inf"), 1.0], "b": [float("nan"), "x"]})).rows == [
        ("", ""),
        ("1", "x"),
    ]
    frame = pd.DataFrame(
        {
            "condition": ["a"],
            "n": [1],
            "median": [2.0],
            "low": [float("nan")],
            "high": [3.0],
            "CoV": [float("nan")],
        }
    )
    assert conditions_table(frame, 0.9, "metrics.bw").rows == [("a", "1", "2", "not known", "")]


def test_another_value_is_no_time(tmp_path: Path) -> None:
    made = [{**x, "metrics": {"bw": 100 / x["wall"]}} for x in lines(30)]
    done = command("ensemble", "report", study_of(tmp_path, made), "--value", "metrics.bw")
    assert (
        "median of metrics.bw" in done.out
        and "larger than how = slow" in done.out
        and " ms" not in done.out.split("\n\n")[1]
    )


def test_every_claim_says_what_it_rests_on() -> None:
    """Its n, its interval, and the assumption."""
    found = analyse_frame(frame_of(lines(30)), FAST)
    claimed = [a for a in found.analyses if a.found]
    assert "factors" in [a.name for a in claimed]
    for a in claimed:
        assert re.search(r"\d+ tasks", a.sentence) and re.search(r"\[\S+, \S+\]", a.sentence)
        assert a.sentence.endswith(f"; {ASSUMED[a.name]}.")
    others = [a for a in found.analyses if not a.found and a.name in ASSUMED]
    assert others and all(ASSUMED[a.name] not in a.sentence for a in others)
    tests = {a.name for a in found.analyses if a.claims}
    assert tests <= set(ASSUMED)
    assert {*ANALYSES, "covariates", "hypotheses", "compare"} - set(ASSUMED) == {
        "conditions", "spread", "makespan", "decompose", "regimes", "planning",
    }  # fmt: skip
