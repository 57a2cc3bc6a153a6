"""Replicas share the moment at which they begin: what it does to all of them is no effect of a condition, of blocks or
of time.
"""

from __future__ import annotations

import statistics

import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from ensemble_simulation import workloads

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.factors import factors, variation_factors
from twinrun.ensemble.analysis.findings import analyse_frame
from twinrun.ensemble.analysis.hypotheses import hypotheses
from twinrun.ensemble.analysis.moments import SILENT, shared_moments
from twinrun.ensemble.analysis.scaling import scaling
from twinrun.ensemble.study.document import Hypothesis

FAST = Options(permutations=199, resamples=199)
TWO = [({"mode": name}, 8) for name in ("off", "on")]
SIZES = [({"replicas": str(n)}, n) for n in (2, 4, 8)]

pytestmark = pytest.mark.usefixtures("quick_collection")


def test_a_moment_is_no_effect_of_a_condition() -> None:
    """With single tasks as units, a third and more of these studies claimed an effect."""
    studies = [workloads(seed, TWO, 10) for seed in range(20)]
    assert sum(factors(frame, FAST).p < 0.05 for frame in studies) <= 3
    assert sum(variation_factors(frame, FAST).p < 0.05 for frame in studies) <= 3
    named = [Hypothesis(factor="mode", expect="different", level="on", base="off")]
    told = [hypotheses(frame, named, FAST).facts["hypotheses"][0]["answer"] for frame in studies]
    assert told.count("undecided") >= 17


def test_an_effect_of_a_condition_is_found_in_means_of_workloads() -> None:
    held = 0
    for seed in range(10):
        found = factors(workloads(seed, TWO, 10, effect=0.15), FAST)
        assert found.p < 0.05, found.sentence
        (effect,) = found.facts["effects"]
        held += effect["low"] < 1.1618 < effect["high"]
        assert "160 tasks as 20 workloads in 10 blocks" in found.sentence
        assert any("means of 20 workloads are compared" in note for note in found.notes)
    assert held >= 8


def test_nothing_is_claimed_of_time_where_moments_differ() -> None:
    """Reports on such studies claimed blocks (15 of 20), periods (3) and variation by the number of replicas (half)."""
    for cells, blocks in ((TWO, 10), (SIZES, 8)):
        for seed in range(2):
            found = analyse_frame(workloads(seed, cells, blocks), FAST)
            assert [a.name for a in found.alarms if a.name in SILENT] == []
            assert "began at one moment resemble each other" in found["blocks"].sentence
            assert found.takes("periods") == "a study of one condition, in which each workload is a block"
            (remark,) = [x for x in found.remarks if "began at one moment" in x]
            assert "means of workloads are compared, and nothing is said of blocks" in remark


def test_moments_are_estimated_and_are_not_seen_where_none_differ() -> None:
    found = [shared_moments(workloads(seed, TWO, 10)) for seed in range(10)]
    assert all(x is not None for x in found)
    assert 0.024 < statistics.median(x.deviation for x in found if x is not None) < 0.036
    assert sum(shared_moments(workloads(seed, TWO, 10, between=0.0)) is not None for seed in range(40)) <= 5
    # Of one condition each workload is a block, and what blocks do is looked at as ever.
    assert shared_moments(workloads(1, TWO[:1], 10)) is None
    assert analyse_frame(workloads(1, TWO[:1], 10), FAST, only=["blocks"])["blocks"].found


def test_how_many_run_at_once_is_no_size_of_a_problem() -> None:
    assert scaling(workloads(1, SIZES, 8, between=0.0), FAST).claims == ()
    sizes = [({"size": str(n)}, 4) for n in (100, 200, 400)]
    assert scaling(workloads(1, sizes, 8, between=0.0), FAST).claims != ()
