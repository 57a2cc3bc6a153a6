"""Analyses of ensembles against simulations with known answers: coverage, power, false alarms; then identities, then reports.

TWINRUN_SIMULATIONS multiplies the number of simulated studies (1).
"""

from __future__ import annotations

import heapq
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

import pandas as pd
from analysis_checks import FAST, MORE, write_study
from ensemble_simulation import FACTORIAL, lines, study
from scipy import stats

from twinrun.ensemble import Options, analyse
from twinrun.ensemble.analysis.changes import changes, gains
from twinrun.ensemble.analysis.compare import compare
from twinrun.ensemble.analysis.decompose import shapley
from twinrun.ensemble.analysis.factors import as_verified, factors
from twinrun.ensemble.analysis.findings import ANALYSES, analyse_frame
from twinrun.ensemble.analysis.load import load
from twinrun.ensemble.analysis.model import model_of
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.outcome import outcome
from twinrun.ensemble.analysis.periods import periods
from twinrun.ensemble.analysis.planning import planning, repetitions
from twinrun.ensemble.analysis.power import of_t_test
from twinrun.ensemble.analysis.regimes import regimes, schedule
from twinrun.ensemble.analysis.resampling import permutation_p, permuted
from twinrun.ensemble.analysis.result import FOUND, NONE, OPEN
from twinrun.ensemble.analysis.spread import (
    core_hours,
    makespan,
    spread,
)
from twinrun.ensemble.analysis.tail import mixture, tail
from twinrun.ensemble.analysis.time_of_day import time_of_day
from twinrun.ensemble.study.tasks import frame_of, load_tasks, usable
from twinrun.errors import DamagedFile, Incomparable, MissingFile, MissingPackage, TwinrunError, Unsupported
from twinrun.packages import check

pytestmark = pytest.mark.usefixtures("quick_collection")

# Found where it is, and not where it is not ------------------------------------------------------------------------------

PLANTED: dict[str, tuple[Callable, dict]] = {
    "nodes": (lambda _, line: 0.1 * (line["node"] == "n03"), {}),
    "blocks": (lambda _, line: 0.08 * (line["block"] in (1, 4)), {}),
    "factors": (
        lambda _, line: 0.08 * (line["factors"] == {"checkpoint": "on", "cores": "all"}),
        {"cells": FACTORIAL},
    ),
    "variation_factors": (
        lambda rng, line: 0.12 * rng.standard_normal() * (line["factors"]["checkpoint"] == "on"),
        {"cells": FACTORIAL, "blocks": 8},
    ),
    "tail": (lambda rng, line: 0.3 * (line["task"] % 10 == 3), {"nodes": 10}),
    "periods": (lambda _, line: 0.04 * math.sin(2 * math.pi * line["start"] / 170), {}),
    "trend": (lambda _, line: 0.15 * line["task"] / 48, {}),
    "changes": (lambda _, line: 0.07 * (line["task"] >= 30), {}),
    "load": (lambda _, line: 0.03 * line["run_queue_delay"], {}),
    "scaling": (
        lambda rng, line: 0.5 * rng.standard_normal() / line["factors"]["size"] ** 0.7,
        {"cells": [{"size": s} for s in (10, 20, 40, 80)], "sigma": 0.0, "blocks": 12},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_causes_are_found(name: str) -> None:
    planted, options = PLANTED[name]
    studies = 10
    made = [ANALYSES[name](study(seed, planted=planted, **options), FAST) for seed in range(studies)]
    found = [a for a in made if a.found]
    assert len(found) >= 9
    assert found[0].state == FOUND


@pytest.mark.parametrize("name", PLANTED)
def test_no_cause_no_claim(name: str) -> None:
    """Each analysis alone, at 5%. A state takes the claims that hold; where there are none also what could have been seen, which is
    simulated: so one is asked for.
    """
    options = {k: v for k, v in PLANTED[name][1].items() if k != "sigma"}
    studies = 20 * MORE
    noises = ("normal", "skewed")
    made = [
        ANALYSES[name](
            study(10**6 + seed, noise=noises[seed % 2], **options), Options(permutations=199, resamples=99)
        )
        for seed in range(studies)
    ]
    claims = [bool(a.found) for a in made]
    assert sum(claims) <= stats.binom.ppf(0.999, studies, 0.05)
    assert made[claims.index(False)].state in (NONE, OPEN)


def test_false_alarms_of_whole_reports() -> None:
    """Studies in which nothing is the matter: at most 5% of reports claim anything at all, within Monte Carlo error."""
    studies = 30 * MORE
    tests = [n for n in ANALYSES if n not in ("spread", "makespan", "decompose", "regimes", "planning")]
    alarms: dict[str, int] = {}
    reports = 0
    for seed in range(studies):
        noise = ("normal", "heavy", "skewed")[seed % 3]
        found = analyse_frame(
            study(2 * 10**6 + seed, blocks=4, cells=FACTORIAL, noise=noise),
            Options(permutations=999),
            only=tests,
        ).alarms
        reports += bool(found)
        for a in found:
            alarms[a.name] = alarms.get(a.name, 0) + 1
    assert reports <= stats.binom.ppf(0.99, studies, 0.05), alarms


def test_a_bad_node_is_named_with_its_effect_and_not_in_place_of_another() -> None:
    hits = 0
    for seed in range(10):
        result = nodes(study(seed, nodes=24, blocks=3, planted=PLANTED["nodes"][0]), FAST)
        named = [c.facts["node"] for c in result.found]
        hits += named == ["n03"]
        if "n03" in named:
            row = result.table[result.table["node"] == "n03"].iloc[0]
            assert row["low"] < row["against the rest"] < row["high"]
    assert hits >= 8


def test_one_fast_run_acquits_no_node() -> None:
    """A small effect is missed with few runs; the sentence then says what could have been seen, which is more than the effect."""
    result = nodes(
        study(1, nodes=16, blocks=3, sigma=0.05, planted=lambda _, line: 0.02 * (line["node"] == "n03")), FAST
    )
    assert result.state == OPEN
    assert result.seen > 0.05
    assert "cannot be decided" in result.sentence and "could have been seen" in result.sentence


def test_smallest_detectable_node_effect_has_its_power() -> None:
    """A node slower by the effect that is told is found in about 80% of studies (Benjamini-Hochberg gains, permutation costs)."""
    effect = float(np.median([nodes(study(seed, nodes=12, blocks=4), FAST).seen for seed in range(50, 59)]))
    found = sum(
        any(c.facts["node"] == "n03" for c in nodes(study(seed, nodes=12, blocks=4, planted=lambda _, line: math.log1p(effect) * (line["node"] == "n03")), FAST).found)
        for seed in range(40)
    )  # fmt: skip
    assert 24 <= found <= 39


def test_rare_slow_tasks_make_no_bad_node() -> None:
    """Slow tasks that strike nodes at random are a tail, and no node's fault."""
    named = 0
    for seed in range(20):
        frame = study(seed, nodes=16, blocks=3, planted=lambda rng, line: 0.4 * (rng.random() < 0.06))
        named += bool(nodes(frame, FAST).found)
    assert named <= 4


def test_tail_names_the_slow_tasks() -> None:
    frame = study(3, nodes=10, planted=PLANTED["tail"][0])
    result = tail(frame, FAST)
    slow = set(result.table.loc[result.table["slow group"], "task"])
    assert slow == {k for k in range(60) if k % 10 == 3}
    assert result.facts["slower"] == pytest.approx(math.expm1(0.3), abs=0.08)


def test_change_point_is_placed() -> None:
    for seed in range(5):
        points = changes(study(seed, planted=lambda _, line: 0.08 * (line["task"] >= 30)), FAST).facts[
            "points"
        ]
        assert any(abs(p - 30) <= 3 for p in points)


def test_period_is_told() -> None:
    facts = periods(study(3, blocks=10, planted=PLANTED["periods"][0]), FAST).facts
    assert facts["period"] == pytest.approx(170, rel=0.03)
    assert facts["amplitude"] == pytest.approx(0.04, abs=0.02)


def test_the_level_that_matters_most_is_named() -> None:
    """Of a factor with four levels the sentence tells the two largest effects, not the first of the alphabet."""
    frame = study(5, blocks=10)
    levels = np.array(["base", "a", "b", "z"])[np.arange(len(frame)) % 4]
    frame["factors.kind"] = levels
    frame["wall"] *= np.where(levels == "z", 1.5, np.where(levels == "b", 1.2, 1.0))
    sentence = factors(frame, FAST).sentence
    assert "kind: z / a" in sentence and sentence.index("z / a") < sentence.index("b / a"), sentence


def test_load_that_drifts_is_no_period() -> None:
    """Tasks that resemble the ones before: high peaks everywhere low, and nothing that comes back."""
    found = 0
    for seed in range(40):
        frame = study(seed, blocks=10)
        random = np.random.default_rng(seed)
        drift = [0.0]
        for _ in range(len(frame) - 1):
            drift.append(0.8 * drift[-1] + random.normal(0, 0.05))
        frame["wall"] *= np.exp(drift)
        claims = periods(frame, FAST).claims
        found += bool(claims) and claims[0].p <= 0.05
    # 5% of 40 are 2; as many as 7 have a chance of 0.3%. By permutation alone 30 of them are taken for a period.
    assert found < 7


def test_nodes_in_turn_are_no_period() -> None:
    made = lines(4, nodes=6, blocks=10)
    for k, line in enumerate(made):
        line["node"] = f"n{k % 6}"
        line["wall"] *= 1.2 if k % 6 == 2 else 1.0
    frame = frame_of(made)
    assert periods(frame, FAST).state != FOUND
    assert nodes(frame, FAST).found[0].facts["node"] == "n2"


def test_time_of_day() -> None:
    def week(amplitude: float, seed: int) -> pd.DataFrame:
        made = lines(seed, nodes=4, blocks=21)
        for k, line in enumerate(made):
            line["start"] = 1.7e9 + 7200.0 * k
            hour = line["start"] % 86400 / 3600
            line["wall"] *= math.exp(amplitude * math.cos(2 * math.pi * (hour - 15) / 24))
        return frame_of(made)

    strong = time_of_day(week(0.04, 1), FAST)
    assert strong.state == FOUND
    assert strong.claims[0].facts["low"] <= 0.04 <= strong.claims[0].facts["high"]
    assert float(re.search(r"slowest at ([0-9.]+) h", strong.sentence)[1]) == pytest.approx(15, abs=2)
    assert sum(bool(time_of_day(week(0.0, seed), FAST).found) for seed in range(20)) <= 4
    hour = time_of_day(study(1), FAST)
    assert hour.state == OPEN and not hour.claims


def test_interaction_alone_and_cells() -> None:
    frame = study(5, cells=FACTORIAL, blocks=10, sigma=0.02, planted=lambda _, line: 0.1 * (line["factors"] == {"checkpoint": "on", "cores": "all-but-one"}))  # fmt: skip
    result = factors(frame, FAST)
    assert "checkpoint x cores" in [c.what for c in result.found]
    effect = next(e for e in result.facts["effects"] if e["term"] == "checkpoint x cores")
    assert effect["low"] <= math.exp(0.1) <= effect["high"]
    cells = {c["case"]: c for c in result.facts["cells"]}
    assert set(cells) == {"YY", "YN", "NY", "NN"}
    assert cells["YY"]["median"] == max(c["median"] for c in cells.values())


def test_factors_with_unequal_cells_equal_statsmodels() -> None:
    import statsmodels.formula.api as smf
    from statsmodels.stats.anova import anova_lm

    frame = usable(study(8, cells=FACTORIAL).drop(index=[1, 5, 6, 20, 33]))
    result = factors(frame, Options(permutations=99))
    table = frame.rename(columns={"factors.checkpoint": "a", "factors.cores": "b"})
    reference = anova_lm(smf.ols("np.log(wall) ~ C(block, Sum) + C(a, Sum) * C(b, Sum)", table).fit(), typ=3)
    for term, row in (
        ("checkpoint", "C(a, Sum)"),
        ("cores", "C(b, Sum)"),
        ("checkpoint x cores", "C(a, Sum):C(b, Sum)"),
    ):
        mine = result.table[result.table["term"] == term].iloc[0]
        # Cells that are not of equal size have a variance each (`unequal`): nearly the same.
        assert mine["F"] == pytest.approx(reference.loc[row, "F"], rel=0.1)
        assert mine["p of F"] == pytest.approx(reference.loc[row, "PR(>F)"], rel=0.2)


def test_aliased_interactions_are_said() -> None:
    # A half fraction: c = a b.
    cells = [{"a": a, "b": b, "c": a * b} for a in (-1, 1) for b in (-1, 1)]
    result = factors(study(1, cells=cells, blocks=4), FAST)
    assert {c.what for c in result.claims} == {"a", "b", "c"}
    assert any("a x b" in note and "b x c" in note for note in result.notes)


def test_conditions_that_were_not_met_are_left_out() -> None:
    made = lines(1, cells=FACTORIAL)
    for line in made:
        line["verified"] = dict(line["factors"])
    made[3]["verified"]["checkpoint"] = {"on": "off", "off": "on"}[made[3]["factors"]["checkpoint"]]
    made[4]["verified"]["cores"] = "0-15"  # another word for a level contradicts nothing
    made[5]["verified"] = None
    good, left_out = as_verified(usable(frame_of(made)))
    made[7]["contradicted"] = ["cores"]
    assert as_verified(usable(frame_of(made)))[1] == 2
    assert left_out == 1 and 3 not in set(good["task"]) and len(good) == len(made) - 1


def test_load_is_not_fooled_by_drift() -> None:
    """Time and load both grow with the order; neither makes the other."""

    def drift(rng: np.random.Generator, line: dict) -> float:
        line["run_queue_delay"] = line["task"] / 10 + float(rng.gamma(2))
        return 0.002 * line["task"]

    assert sum(bool(load(study(seed, planted=drift), FAST).found) for seed in range(20)) <= 4


def test_two_studies() -> None:
    base, same = study(1, blocks=5), study(3, blocks=5)
    assert compare(base, same, FAST).state == NONE
    moved = compare(base, study(3, blocks=5, planted=lambda *_: 0.05), FAST)
    assert [c.what for c in moved.found] == ["location"]
    assert moved.claims[0].facts["low"] <= math.exp(0.05) <= moved.claims[0].facts["high"]
    wider = compare(base, study(3, blocks=5, sigma=0.09), FAST)
    assert "spread" in [c.what for c in wider.found]
    assert wider.claims[1].facts["low"] <= 3 <= wider.claims[1].facts["high"]
    with pytest.raises(Incomparable):
        compare(study(1, cells=[{"a": 1}]), study(1, cells=[{"a": 2}]), FAST)
    assert compare(base.head(3), same, FAST).state == OPEN


def test_two_equal_studies_raise_no_alarm() -> None:
    studies = 60 * MORE
    found = 0
    for seed in range(studies):
        noise = ("normal", "heavy", "skewed")[seed % 3]
        found += bool(compare(study(seed, blocks=4, noise=noise), study(9999 + seed, blocks=4, noise=noise), Options(permutations=499, resamples=199)).found)  # fmt: skip
    assert found <= stats.binom.ppf(0.999, studies, 0.05)


def test_other_results() -> None:
    made = lines(1)
    for line in made:
        odd = line["task"] % 8 == 0
        line["results"] = {"digest": "b" if odd else "a"}
        line["wall"] *= 1.2 if odd else 1.0
    result = outcome(frame_of(made), FAST)
    assert result.state == FOUND and result.found[0].facts["tasks"] == 6
    for line in made:
        line["results"] = {"digest": "a"}
    assert "All 48 tasks computed the same" in outcome(frame_of(made), FAST).sentence
    assert "recorded none" in outcome(study(1), FAST).sentence


# Identities --------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 2**31))
def test_permutations_stay_in_blocks(block: list[int], seed: int) -> None:
    labels, values = np.array(block), np.arange(len(block))
    for row in permuted(values, labels, 5, np.random.default_rng(seed)):
        assert sorted(row) == list(values)
        assert (labels[row] == labels).all()


def test_permutation_p_values_are_valid() -> None:
    """Under the null P(p <= x) <= x, early stopping included."""
    rng = np.random.default_rng(1)
    p = np.array(
        [
            permutation_p(rng.standard_normal(1), lambda n: rng.standard_normal((n, 1)), 999)[0]
            for _ in range(1500)
        ]
    )
    for x in (0.01, 0.05, 0.2, 0.5):
        assert (p <= x).mean() <= x + 3.1 * math.sqrt(x * (1 - x) / len(p))
    assert permutation_p(np.array([9.0]), lambda n: rng.standard_normal((n, 1)), 999)[0] == pytest.approx(
        1 / 1000
    )
    # Nothing but ties: the data are as extreme as all draws.
    assert permutation_p(np.array([0.0]), lambda n: np.zeros((n, 1)), 999)[0] == 1


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_shapley_shares_add_up(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((3, 30, k + 1))
    data[..., 0] += data[..., 1:].sum(axis=2)
    found = shapley(data)
    for m in range(3):
        reference = stats.pearsonr(data[m, :, 0], data[m, :, 1]).statistic ** 2
        assert found[k, m] == pytest.approx(reference)
        x = np.column_stack([np.ones(30), data[m, :, 1:]])
        left = data[m, :, 0] - x @ np.linalg.lstsq(x, data[m, :, 0], rcond=None)[0]
        assert found[2 * k, m] == pytest.approx(
            1 - (left**2).sum() / ((data[m, :, 0] - data[m, :, 0].mean()) ** 2).sum()
        )
    assert found[:k].sum(axis=0) == pytest.approx(found[2 * k])
    assert (found[:k] >= -1e-9).all()


def test_shapley_with_parts_that_add_up() -> None:
    """Collinear with the whole: all of the variance, shared by symmetry where parts are alike."""
    rng = np.random.default_rng(1)
    parts = rng.standard_normal((1, 4000, 2))
    found = shapley(np.concatenate([parts.sum(axis=2, keepdims=True), parts], axis=2))
    assert found[:2].ravel() == pytest.approx([0.5, 0.5], abs=0.03)
    assert found[-1] == pytest.approx(1)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 15))
def test_schedule_is_list_scheduling(seed: int, n: int, slots: int) -> None:
    times = np.random.default_rng(seed).uniform(1, 2, (3, n))
    for row, found in zip(times, schedule(times, slots), strict=True):
        free = [0.0] * slots
        for t in row:
            heapq.heappush(free, heapq.heappop(free) + t)
        assert found == pytest.approx(max(free))


def test_core_hours() -> None:
    def part(cores: list) -> pd.DataFrame:
        times = [(0.0, 3600.0), (0.0, 1800.0), (1800.0, 3600.0)]
        return frame_of(
            [
                {"task": k, "start": a, "end": b, "cores": c, "node": "n"}
                for k, ((a, b), c) in enumerate(zip(times, cores, strict=True))
            ]
        )

    assert core_hours(part([[0, 1], [2, 3], [2, 3]])) == pytest.approx((3600, 4, 0, 4))
    assert core_hours(part([[0, 1], [2, 3], [4, 5]])) == pytest.approx((3600, 6, 2, 6))
    assert core_hours(part([None, None, None])) == pytest.approx((3600, 2, 0, 2))


def test_failed_attempts_are_in_the_picture_but_not_in_the_times() -> None:
    made = lines(1)
    made[5] |= {"status": "timeout", "wall": 1000.0}
    made.append({**made[5], "status": "ok", "attempt": 2, "wall": 10.0})
    made[6] |= {"status": "killed"}
    frame = frame_of(made)
    assert len(usable(frame)) == len(made) - 2
    text = spread(frame, FAST).sentence
    assert "1 timeout" in text and "1 killed" in text and "47 tasks" in text
    assert makespan(frame, FAST).tasks == len(made)


@pytest.mark.parametrize("effect", [0.01, 0.05, 0.2])
def test_repetitions_are_the_fewest_that_have_the_power(effect: float) -> None:
    """Also where an effect is many deviations large, against simulated studies."""
    rng = np.random.default_rng(1)
    many, rest = 20_000, 0.012  # studies, and four times the error of a share of them
    before = 2
    for sigma in (
        0,
        0.0005,
        0.001,
        0.002,
        0.003,
        0.004,
        0.005,
        0.0055,
        0.006,
        0.007,
        0.008,
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.5,
    ):
        n = repetitions(effect, sigma, 0.05, 0.8)
        assert n >= before  # more noise takes no fewer
        before = n
        if sigma:
            for tasks in {n, max(n - 1, 2)}:
                # Means and variances of normal samples are independent, and their distributions are known.
                mean = math.log1p(effect) / sigma + rng.standard_normal(many) * math.sqrt(2 / tasks)
                error = np.sqrt(rng.chisquare(2 * tasks - 2, many) / (2 * tasks - 2) * 2 / tasks)
                share = (np.abs(mean / error) >= stats.t.ppf(0.975, 2 * tasks - 2)).mean()
                assert share >= 0.8 - rest if tasks == n else share < 0.8 + rest, (sigma, n)
                exact = of_t_test(math.log1p(effect) / sigma * math.sqrt(tasks / 2), 0.05, 2 * tasks - 2)
                assert abs(exact - share) < rest


def test_the_power_of_a_t_test_is_the_noncentral_distribution() -> None:
    for freedom in (2, 3, 10, 100, 5000):
        for level in (0.05, 1e-3):
            limit = stats.t.ppf(1 - level / 2, freedom)
            for effect in (0, 0.5, 2, 4):
                other = stats.nct.sf(limit, freedom, effect) + stats.nct.sf(limit, freedom, -effect)
                assert abs(of_t_test(effect, level, freedom) - other) < 2e-6
    assert abs(of_t_test(1e9, 0.05, 2) - 1) < 1e-12


@pytest.mark.parametrize("alpha", [1e-4, 0.05, 0.3])
def test_one_repetition_less_is_too_few(alpha: float) -> None:
    for effect in (0.001, 0.03, 0.8):
        for sigma in (0.002, 0.05, 0.7):
            for power in (0.35, 0.8, 0.999):
                n = repetitions(effect, sigma, alpha, power)
                size = math.log1p(effect) / sigma
                few, enough = (
                    of_t_test(size * math.sqrt(k / 2), alpha, 2 * k - 2) for k in (max(n - 1, 2), n)
                )
                assert n == 10**6 or enough >= power, (effect, sigma, power)
                assert n == 2 or few < power, (effect, sigma, power)


def test_repetitions_have_their_power() -> None:
    for effect, sigma in ((0.05, 0.03), (0.05, 0.08), (0.2, 0.1)):
        n = repetitions(effect, sigma, 0.05, 0.8)
        x = np.random.default_rng(1).standard_normal((2, 4000, n)) * sigma
        p = stats.ttest_ind(x[0], x[1] + math.log1p(effect), axis=1).pvalue
        assert (p <= 0.05).mean() >= 0.78
    assert repetitions(0.01, 1e-9, 0.05, 0.8) == 2
    assert repetitions(0.01, 0.0, 0.05, 0.8) == 2
    assert repetitions(1e-9, 0.5, 0.05, 0.8) == 10**6  # as many as are looked for
    rows = planning(study(1)).facts["rows"]
    assert all(r["repetitions"] <= r["to be safe"] for r in rows)
    assert [r["repetitions"] for r in rows] == sorted((r["repetitions"] for r in rows), reverse=True)


def test_regimes() -> None:
    result = regimes(study(1, nodes=16, sigma=0.1), FAST)
    rows = {r["slots"]: r for r in result.facts["rows"]}
    n = result.facts["rows"][0]["tasks"]
    assert rows[2 * n]["makespan"] == rows[n]["makespan"] >= rows[n // 2]["makespan"] / 2
    assert rows[2 * n]["slots unused"] > 0.5 > rows[n]["slots unused"] > rows[n // 8]["slots unused"]
    assert rows[n]["lost to variation"] > rows[n // 8]["lost to variation"] > 0
    assert result.facts["slower_than_all"] == 0.5


def test_gains_are_those_of_brute_force() -> None:
    z = np.random.default_rng(1).standard_normal((2, 14))
    for row, found in zip(z, gains(z), strict=True):
        total = ((row - row.mean()) ** 2).sum()
        best = 0.0
        for a in range(14):
            for b in range(a + 3, 15):
                if b - a > 11:
                    continue
                inside = np.zeros(14, dtype=bool)
                inside[a:b] = True
                gain = total - sum(((row[m] - row[m].mean()) ** 2).sum() for m in (inside, ~inside))
                best = max(best, gain if a == 0 or b == 14 else gain / 2)
        assert found == pytest.approx(best)


def test_mixture_against_its_likelihood() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(90), rng.standard_normal(10) + 8])
    gain, share, low, high, s = (float(v[0]) for v in mixture(x))
    assert (share, low, high, s) == pytest.approx((0.1, 0, 8, 1), abs=0.5)
    two = np.log((1 - share) * stats.norm.pdf(x, low, s) + share * stats.norm.pdf(x, high, s)).sum()
    assert gain == pytest.approx(two - stats.norm.logpdf(x, x.mean(), x.std()).sum(), abs=1e-3)


@pytest.mark.parametrize("name", ["factors", "nodes", "blocks", "changes", "tail", "periods"])
def test_units_do_not_matter(name: str) -> None:
    """Seconds or milliseconds: the same p values. Not so for tests that a logarithm had to be taken of twice."""
    frame = study(1, cells=FACTORIAL)
    a = ANALYSES[name](frame, FAST)
    b = ANALYSES[name](frame.assign(wall=frame["wall"] * 1000), FAST)
    assert [c.p for c in a.claims] == pytest.approx([c.p for c in b.claims], rel=0.05)


def test_model_tells_condition_from_block() -> None:
    frame = usable(study(1, cells=FACTORIAL))
    model = model_of(frame, np.log(frame["wall"].to_numpy()), ["factors.checkpoint", "factors.cores"])
    assert [t.name for t in model.terms] == ["checkpoint", "cores", "checkpoint x cores"]
    assert np.linalg.matrix_rank(model.matrix) == model.matrix.shape[1]


def test_load_tasks(tmp_path: Path) -> None:
    made = lines(1, cells=FACTORIAL)
    frame = load_tasks(write_study(tmp_path / "a", made))
    assert len(frame) == 48 and frame["wall"].tolist() == [line["wall"] for line in made]
    assert frame["factors.cores"].tolist() == [line["factors"]["cores"] for line in made]
    assert frame["cores.count"].tolist() == [2] * 48
    # Torn: killed while it wrote.
    assert len(load_tasks(write_study(tmp_path / "b", made, '\n{"task": 4, "wa'))) == 48
    damaged = write_study(tmp_path / "c", made)
    text = (damaged / "tasks.jsonl").read_text()
    (damaged / "tasks.jsonl").write_text("nonsense\n" + text)
    with pytest.raises(DamagedFile, match="line 1"):
        load_tasks(damaged)
    with pytest.raises(Unsupported, match="version 2"):
        load_tasks(write_study(tmp_path / "d", [{**made[0], "version": 2}]))
    with pytest.raises(MissingFile):
        load_tasks(tmp_path / "nowhere")
    with pytest.raises(TwinrunError, match="no task has ended"):
        load_tasks(write_study(tmp_path / "e", [], ""))
    with pytest.raises(TwinrunError, match="metrics"):
        usable(frame, "metrics.ns_per_day")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 9])
def test_few_tasks_decide_nothing_and_break_nothing(count: int) -> None:
    made = lines(1, cells=FACTORIAL)[:count] or [{**lines(1)[0], "status": "failed"}]
    found = analyse_frame(frame_of(made), FAST)
    assert not found.alarms
    assert count >= 5 or found.verdict == "undecided"
    assert all(s.endswith(".") for s in found.sentences)


@pytest.mark.parametrize("wall", [10.0, 1e-300])
def test_tasks_that_are_all_alike(wall: float) -> None:
    made = [{**line, "wall": wall} for line in lines(1, cells=FACTORIAL)]
    found = analyse_frame(frame_of(made), FAST)
    assert not found.alarms
    json.dumps(found.document(), allow_nan=False)


def test_columns_that_are_not_there() -> None:
    made = [{"task": k, "wall": 1 + 0.01 * (k % 7)} for k in range(30)]
    found = analyse_frame(frame_of(made), FAST)
    assert len(found.sentences) == len(ANALYSES)


def test_report(tmp_path: Path) -> None:
    made = lines(1, cells=FACTORIAL, planted=PLANTED["nodes"][0])
    for line in made:
        line["node"] = f"{line['node']}<script>alert(1)</script>$x$\x1b[31m"
    folder = write_study(tmp_path / "my study", made)
    found = analyse(folder, FAST)
    assert [a.name for a in found.analyses] == list(ANALYSES)
    assert "nodes" in [a.name for a in found.alarms] and "the node" in found.headline
    assert found.lines()[-1] == found.headline
    found.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<script" not in text and "\x1b" not in text
    # Nothing is fetched: addresses appear as names of XML namespaces only.
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", text)
    assert not re.findall(r"url\((?!#)|@import", text)
    assert text.index(
        "cannot be decided" if found.verdict == "undecided" else found.headline[:20]
    ) < text.index("<h2")
    assert text.count("<svg") == sum(a.draw is not None for a in found.analyses)
    for a in found.analyses:
        assert a.title.rstrip("?") in text
    found.to_html(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == text
    found.to_json(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["verdict"] == found.verdict and document["alarms"] == [a.name for a in found.alarms]
    assert [a["sentence"] for a in document["analyses"]] == found.sentences
    assert set(found.tables) >= {"spread", "nodes", "factors"}
    again = analyse(folder, FAST)
    assert again.sentences == found.sentences
    short = analyse(folder, FAST, only=["spread"])
    with pytest.raises(TwinrunError, match="cannot write"):
        short.to_html(tmp_path / "no" / "r.html")


def test_a_report_demands_more_than_its_parts() -> None:
    """Holm over analyses: a claim that its own analysis just makes is not the report's."""
    frame = study(1, planted=lambda _, line: 0.1 * (line["node"] == "n03"))
    found = analyse_frame(frame, FAST)
    tested = [a for a in found.analyses if a.p is not None]
    for a in tested:
        assert a.judged_by.multiplier >= 1
        assert a.judged_by.adjusted(a.p) >= a.p
    smallest = min(tested, key=lambda a: a.p)
    assert smallest.judged_by.multiplier == pytest.approx(len(tested))


@pytest.mark.parametrize(
    ("sigma", "verdict"), [(0.01, "reproducible"), (0.15, "not reproducible"), (0.05, "undecided")]
)
def test_verdict(sigma: float, verdict: str) -> None:
    assert analyse_frame(study(3, sigma=sigma), FAST, only=["spread"]).verdict == verdict


@pytest.mark.parametrize("package", ["pandas", "statsmodels"])
def test_a_missing_package_is_one_clear_error(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"{package}.*pip install 'twinrun\[ensemble\]'"):
        check()


def test_options_are_checked() -> None:
    for bad in ({"confidence": 1.0}, {"power": 0.0}, {"matters": -1.0}, {"permutations": 5}):
        with pytest.raises(TwinrunError):
            Options(**bad)


def test_an_effect_that_is_found_is_not_printed_as_none() -> None:
    """Where its interval does not hold 1, the printed interval does not either."""
    rng = np.random.default_rng(1)
    made = []
    for block in range(20):
        for level, ratio in (("A", 1.0), ("B", 1.0002)):
            made.append(
                {"task": len(made), "status": "ok", "wall": float(ratio * np.exp(1e-4 * rng.normal())), "block": block,
                 "factors": {"c": level}}
            )  # fmt: skip
    found = factors(frame_of(made), FAST)
    effect = found.facts["effects"][0]
    assert found.state == FOUND and effect["low"] > 1
    printed = re.search(r"c: B / A = (\S+) \[(\S+), (\S+)\]", found.sentence)
    assert printed is not None
    value, low, high = map(float, printed.groups())
    assert 1 < low <= value <= high
    assert max(abs(low - effect["low"]), abs(high - effect["high"])) < 1e-4


def test_what_is_said_to_bound_a_share_bounds_it() -> None:
    from twinrun.ensemble.analysis.model import at_least

    for share in np.random.default_rng(4).lognormal(-4, 3, 5000):
        said = float(at_least(share).removesuffix("%")) / 100
        assert share * (1 - 1e-7) <= said <= share * 1.11, share
    assert (at_least(0.0), at_least(0.02), at_least(0.05), at_least(1.0), at_least(1.001)) == (
        "0%",
        "2%",
        "5%",
        "100%",
        "101%",
    )
