"""Orders in which conditions, or nodes, cannot be told from the time: nothing is claimed of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

import pandas as pd
from scipy import stats

from twinrun.ensemble import Options, analyse, load_tasks
from twinrun.ensemble.analysis.blocks import blocks
from twinrun.ensemble.analysis.changes import changes
from twinrun.ensemble.analysis.conditions import conditions
from twinrun.ensemble.analysis.factors import factors, variation_factors
from twinrun.ensemble.analysis.hypotheses import hypotheses
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.order import in_stretches
from twinrun.ensemble.analysis.remarks import remarks
from twinrun.ensemble.analysis.result import FOUND, OPEN
from twinrun.ensemble.analysis.trend import trend
from twinrun.ensemble.study.document import Hypothesis
from twinrun.ensemble.study.importing import import_tasks
from twinrun.ensemble.study.tasks import frame_of

FAST = Options(permutations=499, resamples=199)
N = 60


def imported(
    folder: Path, levels: Sequence[str], added: np.ndarray, *, start: bool = True, column: str = "version"
) -> pd.DataFrame:
    """Tasks one after another, as a CSV has them. added: to logarithms of the time, beside noise of 2%."""
    rng = np.random.default_rng(len(levels))
    rows, now = [f"{column},{'start,' if start else ''}wall"], 1.7e9
    for level, y in zip(levels, 0.02 * rng.standard_normal(len(levels)) + added, strict=True):
        wall = 10 * math.exp(y)
        rows.append(f"{level},{f'{now:.3f},' if start else ''}{wall:.6f}")
        now += wall + 1
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tasks.csv"
    path.write_text("\n".join(rows) + "\n")
    import_tasks([path], folder / "s")
    return load_tasks(folder / "s")


HALVES = ["old"] * (N // 2) + ["new"] * (N // 2)
DRIFT = np.linspace(0, 0.1, N)


def in_random_order(levels: Sequence[str]) -> list[str]:
    return [str(v) for v in np.random.default_rng(3).permutation(levels)]


def test_one_condition_after_the_other_is_not_told_from_a_drift(tmp_path: Path) -> None:
    frame = imported(tmp_path, HALVES, DRIFT)
    for analysis in (factors, variation_factors):
        found = analysis(frame, FAST)
        assert found.state == OPEN and not found.claims
        assert "one level of version ran after another" in found.sentence and "random order" in found.sentence
    assert (
        "One level of version ran after another: what differs may be the time" in conditions(frame).sentence
    )
    assert any("cannot be told from what version does" in said for said in remarks(frame, FAST))
    named = hypotheses(frame, [Hypothesis(factor="version", expect="different", by=0.01)], FAST)
    assert "undecided, one level ran after the other" in named.sentence
    assert not blocks(frame, FAST).claims
    report = analyse(tmp_path / "s", FAST)
    assert report.takes("factors") == "tasks in random order"
    assert report.takes("blocks") == "blocks of tasks that ran together"
    assert "factors" not in [a.name for a in report.alarms]


def test_conditions_in_random_order_are_told_from_a_drift(tmp_path: Path) -> None:
    levels = in_random_order(HALVES)
    effect = 0.1 * np.array([level == "new" for level in levels])
    found = factors(imported(tmp_path, levels, DRIFT + effect), FAST)
    (row,) = found.facts["effects"]
    # The base is `new`, the first in order of letters.
    assert found.state == FOUND and row["low"] <= math.exp(-0.1) <= row["high"]


def test_one_node_after_the_other_is_not_told_from_a_drift(tmp_path: Path) -> None:
    frame = imported(tmp_path, HALVES, DRIFT, column="node")
    found = nodes(frame, FAST)
    assert found.state == OPEN and not found.claims and "one node after another" in found.sentence
    levels = in_random_order(HALVES)
    slow = 0.1 * np.array([level == "new" for level in levels])
    assert nodes(imported(tmp_path / "random", levels, slow, column="node"), FAST).state == FOUND


def test_tasks_at_one_time_have_no_order() -> None:
    lines = [
        {
            "task": k,
            "status": "ok",
            "wall": 10.0,
            "start": 0.01 * k,
            "end": 0.01 * k + 10,
            "node": f"n{k // 30}",
        }
        for k in range(60)
    ]
    assert in_stretches(frame_of(lines), ["node"]) == []
    one_by_one = [{**line, "start": 11.0 * k, "end": 11.0 * k + 10} for k, line in enumerate(lines)]
    assert in_stretches(frame_of(one_by_one), ["node"]) == ["node"]


def test_blocks_may_have_few_of_the_nodes() -> None:
    """Neighbours are of one node more often there than they would be without blocks; within them they are not."""
    rng = np.random.default_rng(5)
    lines = []
    for block in range(12):
        for node in rng.permutation([f"n{block % 4}"] * 4 + [f"n{(block + 1) % 4}"] * 4):
            k = len(lines)
            lines.append(
                {
                    "task": k,
                    "status": "ok",
                    "wall": 10.0,
                    "start": 11.0 * k,
                    "block": block,
                    "order": k,
                    "node": str(node),
                }
            )
    assert in_stretches(frame_of(lines), ["node"]) == []
    assert in_stretches(frame_of([{**line, "block": 0} for line in lines]), ["node"]) == ["node"]
    # Blocks that have one after the other.
    lines.sort(key=lambda line: (line["block"], line["node"]))
    lines = [{**line, "start": 11.0 * k} for k, line in enumerate(lines)]
    assert in_stretches(frame_of(lines), ["node"]) == ["node"]


def test_the_n_th_run_of_each_condition_as_block_n_is_no_block_in_time(tmp_path: Path) -> None:
    """Also where the file says so: the script ran all of one, then all of the other."""
    rng = np.random.default_rng(1)
    rows = ["version,block,start,wall"]
    for k, level in enumerate(HALVES):
        wall = 10 * math.exp(0.02 * rng.standard_normal() + DRIFT[k])
        rows.append(f"{level},{k % (N // 2)},{1.7e9 + 12 * k},{wall:.6f}")
    path = tmp_path / "tasks.csv"
    path.write_text("\n".join(rows) + "\n")
    import_tasks([path], tmp_path / "s")
    found = factors(load_tasks(tmp_path / "s"), FAST)
    assert found.state == OPEN and "ran after another" in found.sentence


def test_random_orders_are_seldom_taken_for_stretches() -> None:
    studies, taken = 300, 0
    for seed in range(studies):
        names = np.random.default_rng(seed).permutation(["a", "b", "c"] * 10)
        lines = [
            {"task": k, "status": "ok", "wall": 1.0, "start": 2.0 * k, "node": n} for k, n in enumerate(names)
        ]
        taken += bool(in_stretches(frame_of(lines), ["node"]))
    assert taken <= stats.binom.ppf(0.999, studies, 0.005)


def test_an_unknown_order_has_no_first_and_last_task(tmp_path: Path) -> None:
    frame = imported(tmp_path, HALVES, DRIFT, start=False)
    for analysis in (trend, changes, blocks):
        found = analysis(frame, FAST)
        assert (
            found.state == OPEN
            and not found.claims
            and "order the conditions ran is not known" in found.sentence
        )
    # One command has the order of its rows.
    assert trend(imported(tmp_path / "one", ["old"] * N, DRIFT, start=False), FAST).state == FOUND


@pytest.mark.parametrize("halves", [False, True])
def test_a_drift_has_an_interval_without_0_that_holds_it(halves: bool) -> None:
    """Also where conditions ran one after another: what they take of the line is no part of the drift."""
    claims = held = 0
    studies = 40
    for seed in range(studies):
        rng = np.random.default_rng([9, seed])
        y = 0.03 * rng.standard_normal(40) + np.linspace(0, 0.1, 40)
        lines = [
            {"task": k, "status": "ok", "wall": 10 * math.exp(v), "start": 20.0 * k,
             "factors": {"a": str(k // 20 if halves else 0)}} for k, v in enumerate(y)
        ]  # fmt: skip
        (claim,) = trend(frame_of(lines), FAST).claims
        low, high = claim.facts["low"], claim.facts["high"]
        held += low <= math.expm1(0.1) <= high
        claims += claim.p <= 0.05
        assert claim.p > 0.05 or low * high > 0
    assert claims >= (4 if halves else 30)
    assert held >= stats.binom.ppf(0.001, studies, 0.95)
