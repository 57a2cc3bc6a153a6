"""What a report claims or denies, held against simulated studies of known truth. docs/reference/ensemble.md has the tables.

TWINRUN_SIMULATIONS multiplies the number of simulated studies (1).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

import pandas as pd
from ensemble_rates import (
    CAUSES,
    cell,
    counted,
    covered,
    false_alarms,
    made,
    missed,
    pairs_claimed,
    planted,
    report,
    slow_groups_bound,
    slow_groups_found,
    worst_unseen,
)
from ensemble_simulation import study
from scipy import stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.blocks import blocks
from twinrun.ensemble.analysis.compare import compare
from twinrun.ensemble.analysis.deviations import ends, tasks_for, unseen
from twinrun.ensemble.analysis.factors import factors, variation_factors
from twinrun.ensemble.analysis.load import load
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.power import in_report
from twinrun.ensemble.analysis.result import FOUND, OPEN
from twinrun.ensemble.analysis.serial import Null, autoregression, with_before
from twinrun.ensemble.analysis.spread import spread
from twinrun.ensemble.analysis.tail import johnson, tail
from twinrun.ensemble.study.tasks import frame_of

MORE = int(os.environ.get("TWINRUN_SIMULATIONS", "1"))
FAST = Options(permutations=499, resamples=199)


def varying(seed: int, times: float, between: float) -> pd.DataFrame:
    """Twenty blocks of two tasks, one a level; `on` has `times` the deviation of `off`, which is 2%."""
    of_block = np.random.default_rng([seed, 1]).normal(0, between, 20)

    def planted(rng: np.random.Generator, line: dict) -> float:
        more = 0.02 * np.sqrt(times**2 - 1) * rng.standard_normal()
        return of_block[line["block"]] + (more if line["factors"]["checkpoint"] == "on" else 0.0)

    cells = [{"checkpoint": "off"}, {"checkpoint": "on"}]
    return study(seed, nodes=2, blocks=20, sigma=0.02, cells=cells, planted=planted).assign(node="one")


@pytest.mark.parametrize("between", [0.0, 0.03])
def test_what_makes_the_time_vary_is_found_with_one_task_a_cell_and_block(between: float) -> None:
    """Effects of blocks taken out first make both levels deviate alike: then none is found, and all are denied."""
    studies = 8 * MORE
    found = [bool(variation_factors(varying(seed, 6, between), FAST).found) for seed in range(studies)]
    assert sum(found) >= 0.75 * studies
    none = [bool(variation_factors(varying(seed, 1, between), FAST).found) for seed in range(2 * studies)]
    assert sum(none) <= stats.binom.ppf(0.999, 2 * studies, 0.05)


def sleeping(seed: int, counted: str) -> pd.DataFrame:
    """Tasks that only sleep, for 1 to 3 s: what they accumulate grows with their length by itself."""
    rng = np.random.default_rng(seed)
    frame = study(seed, nodes=4, blocks=10).assign(node="one")
    n = len(frame)
    frame["wall"] = rng.uniform(1, 3, n)
    length = frame["wall"] if counted == "by second" else 2.0  # of the task, or as much in each
    frame["run_queue_delay"] = rng.gamma(20, 0.001, n) * length
    frame["pressure.cpu_some"] = rng.gamma(20, 0.01, n) * length
    frame["context_switches.voluntary"] = rng.poisson(100 * length, n)
    frame["context_switches.involuntary"] = rng.poisson(50 * length, n)
    return frame


@pytest.mark.parametrize("counted", ["by second", "by task"])
def test_what_grows_with_the_length_of_a_task_is_no_load(counted: str) -> None:
    studies = 20 * MORE
    found = [load(sleeping(seed, counted), FAST) for seed in range(studies)]
    assert sum(bool(f.found) for f in found) <= stats.binom.ppf(0.999, studies, 0.05)
    if counted == "by task":
        assert all("tasks that only wait" in f.notes[0] for f in found)


def test_load_that_makes_tasks_longer_is_found() -> None:
    def planted(rng: np.random.Generator, line: dict) -> float:
        line["run_queue_delay"] = 10 * float(rng.uniform(0, 0.2))
        return line["run_queue_delay"] / 10

    assert sum("run-queue delay" in [c.what for c in load(study(seed, planted=planted), FAST).found] for seed in range(10)) == 10  # fmt: skip


def with_nodes(seed: int, effect: float) -> pd.DataFrame:
    """Each condition has a node of its own; one node is slower."""
    cells = [{"checkpoint": "off"}, {"checkpoint": "on"}]
    frame = study(seed, nodes=4, cells=cells)
    frame["node"] = np.where(frame["factors.checkpoint"] == "on", "b", "a")
    frame["wall"] *= np.where(frame["node"] == "b", 1 + effect, 1.0)
    return frame


@pytest.mark.parametrize("effect", [0.0, 0.16])
@pytest.mark.parametrize("analysis", [nodes, factors, variation_factors])
def test_a_condition_that_goes_with_the_node_is_neither_claimed_nor_denied(
    analysis: Callable, effect: float
) -> None:
    for seed in range(5):
        result = analysis(with_nodes(seed, effect), FAST)
        assert result.state == OPEN and not result.claims
        assert "checkpoint" in result.sentence and "cannot tell" in result.sentence
        assert "on each node" in result.sentence  # what to add


def test_a_block_that_goes_with_the_node_is_neither_claimed_nor_denied() -> None:
    frame = study(1)
    frame["node"] = [f"n{b % 3}" for b in frame["block"]]
    result = nodes(frame, FAST)
    assert result.state == OPEN and not result.claims and "each block had nodes of its own" in result.sentence


def test_conditions_that_share_nodes_are_told_from_them() -> None:
    frame = with_nodes(1, 0.16)
    frame["node"] = np.where(np.arange(len(frame)) % 3 == 0, "b", "a")
    assert nodes(frame, FAST).claims and factors(frame, FAST).state == FOUND


SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: 0.03 * rng.standard_normal(n),
    "t, 3 degrees": lambda rng, n: 0.03 * rng.standard_t(3, n),
    "lognormal delays": lambda rng, n: np.log1p(0.02 * rng.lognormal(0, 1, n)),
    "two modes": lambda rng, n: 0.02 * rng.standard_normal(n) + 0.1 * (rng.random(n) < 0.5),
}


def times(logarithms: np.ndarray) -> pd.DataFrame:
    return frame_of(
        {"task": k, "status": "ok", "wall": 10 * math.exp(y), "block": 0, "order": k}
        for k, y in enumerate(logarithms)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_studies_have_equal_tails(shape: str) -> None:
    studies = 20 * MORE
    alarms = 0
    for seed in range(studies):
        rng = np.random.default_rng([4, seed])
        pair = [times(SHAPES[shape](rng, 40)), times(SHAPES[shape](rng, 40) + 0.1)]
        alarms += "tail" in [c.what for c in compare(*pair, Options(permutations=199, resamples=99)).found]
    assert alarms <= stats.binom.ppf(0.999, studies, 0.05)


@pytest.mark.parametrize("tasks", [20, 60])
@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_equal_studies_whose_tasks_resemble_the_ones_before_do_not_differ(
    coefficient: float, tasks: int
) -> None:
    """With 0.8 four of five such pairs were said to differ, and with 0.5 one of eight."""
    studies = 40 * MORE
    alarms = pairs_claimed(coefficient, tasks, studies)
    assert alarms <= stats.binom.ppf(0.999, studies, 0.05)


def test_a_difference_beyond_what_such_tasks_do_is_found() -> None:
    rng = np.random.default_rng(7)
    y = 0.01 * autoregression(0.8, 2, 60, rng)
    found = compare(times(y[0]), times(y[1] + math.log(1.5)), FAST)
    assert [c.what for c in found.found] == ["location"]
    assert "ratio of times 1.5" in found.sentence and "[" not in found.sentence
    assert any("resemble the ones before" in note for note in found.notes)


def test_another_tail_is_found() -> None:
    found = 0
    for seed in range(10):
        rng = np.random.default_rng([5, seed])
        slow = 0.03 * rng.standard_normal(200) + 0.3 * (np.arange(200) % 20 == 0)
        found += "tail" in [
            c.what for c in compare(times(SHAPES["normal"](rng, 200)), times(slow), FAST).found
        ]
    assert found >= 9


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.3])
def test_kinds_of_tasks_that_are_not_named_hide_no_difference_of_blocks(ratio: float) -> None:
    """Each of 30 blocks has two tasks of each kind, and blocks differ by 3%. With 1.3 all reports denied any difference."""
    studies, held = 30 * MORE, 0
    for seed in range(studies):
        rng = np.random.default_rng([11, seed])
        kinds = np.concatenate([rng.permutation([0, 0, 1, 1]) for _ in range(30)])
        y = (
            math.log(ratio) * kinds
            + 0.01 * rng.standard_normal(120)
            + np.repeat(0.03 * rng.standard_normal(30), 4)
        )
        frame = times(y)
        frame["block"] = np.repeat(np.arange(30), 4)
        found = blocks(frame, FAST)
        held += found.facts["high"] >= 0.03
        if ratio == 1.3:
            assert found.state == OPEN and "by less than independent tasks would" in found.sentence
    assert held >= stats.binom.ppf(0.001, studies, 0.975)


# Whole reports; bench/ensemble_rates.py makes the tables ----------------------------------------------------------------


@pytest.mark.parametrize("noise", ["AR 0.8", "delays", "bimodal", "drift"])
def test_reports_claim_nothing_of_noise_that_is_not_mild(noise: str) -> None:
    """Each of these was taken for a change, an effect of blocks or a slow group in a third of reports and more."""
    studies = 8 * MORE
    count, which = false_alarms(noise, "blocks" if noise == "AR 0.8" else "replicas", 40, studies)
    assert count <= stats.binom.ppf(0.999, studies, 0.05), which


@pytest.mark.parametrize("design", ["factor", "nodes", "workloads"])
def test_reports_on_designs_claim_little_and_their_intervals_hold(design: str) -> None:
    """A row of the table of `bench/ensemble_rates.py grid`."""
    studies = 5 * MORE
    for noise in ("normal", "t3", "AR 0.5"):
        c = cell(noise, design, 10, studies)
        assert c.alarms <= stats.binom.ppf(0.999, studies, 0.05), c.which
        for name, given in c.given.items():
            assert c.held[name] >= stats.binom.ppf(0.001, given, 0.95), (name, c)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ("nodes", 0.12),
        ("blocks", 0.12),
        ("periods", 0.09),
        ("changes", 0.14),
        ("trend", 0.19),
        ("tail", 0.48),
    ],
)
def test_one_cause_is_one_finding(cause: str, effect: float) -> None:
    studies = 5 * MORE
    found = planted(cause, 40, studies, 1.0, math.log1p(effect))
    assert found.alone >= 0.75 * studies, found
    assert found.holds >= 0.75 * studies


def test_intervals_are_not_given_where_their_assumption_fails() -> None:
    for noise, n in (("AR 0.8", 40), ("delays", 200)):
        for seed in range(4):
            found = spread(made(seed, noise, "replicas", n)[0], FAST)
            assert "interval cannot be given" in found.sentence and math.isnan(found.facts["cov"]["high"])
    # And are, where it does not; with what was checked.
    given = [spread(made(seed, "normal", "replicas", 40)[0], FAST) for seed in range(10)]
    assert sum("independent of each other: a correlation" in g.sentence for g in given) >= 7
    few = spread(made(2, "normal", "replicas", 10)[0], FAST).sentence
    assert "so few tasks cannot show that they are independent" in few


def test_intervals_miss_as_rarely_as_stated() -> None:
    studies = 30 * MORE
    for noise in ("normal", "AR 0.8"):
        counts = missed(noise, "replicas", 40, studies)[1]
        for name in ("CoV", "deviation"):
            assert counts[f"{name} missed"] <= stats.binom.ppf(0.999, studies, 0.07), counts


@pytest.mark.parametrize(("noise", "n"), [("normal", 40), ("t3", 40), ("delays", 10), ("AR 0.8", 10)])
def test_intervals_hold_the_truth_where_so_few_cannot_show_a_tail_or_a_resemblance(
    noise: str, n: int
) -> None:
    """A third of those of t3 missed, and more of delays: a sample that hides its tail looks like a narrow one."""
    counts = covered(noise, n, 100 * MORE)
    given = 100 * MORE - counts["not given"]
    assert given >= 25 * MORE
    assert counts["held"] >= stats.binom.ppf(0.001, given, 0.95), counts


def test_the_upper_end_allows_for_the_worst_that_may_be_unseen() -> None:
    tails, alike = worst_unseen(40, 1500, np.random.default_rng(1))
    may = unseen(40, 40, 0.95)
    assert tails[0] == pytest.approx(may.tails, rel=0.12)
    assert alike[0] == pytest.approx(may.alike, rel=0.12)
    assert [unseen(n, n, 0.95).most for n in (5, 10, 40, 200, 1000, 10**5)] == sorted(
        (unseen(n, n, 0.95).most for n in (5, 10, 40, 200, 1000, 10**5)), reverse=True
    )
    assert unseen(40, 40, 0.99).tails > may.tails and unseen(10**6, 10**6, 0.95).most < 1.01


def test_the_tasks_that_a_verdict_takes_are_enough() -> None:
    for value, limit in ((0.02, 0.05), (0.04, 0.05), (0.06, 0.05), (0.3, 0.05)):
        n = tasks_for(value, limit, 0.95)
        low, high = ends(value, n - 1.0, unseen(n, n, 0.95), 0.95)
        assert low > limit or high <= limit
        low, high = ends(value, n - 2.0, unseen(n - 1, n - 1, 0.95), 0.95)
        assert n == 5 or low <= limit < high
    assert tasks_for(0.05, 0.05, 0.95) == 10**6


@pytest.mark.parametrize("analysis, design", [(factors, "factor"), (nodes, "nodes")])
def test_nothing_is_promised_that_no_order_can_show(analysis: Callable, design: str) -> None:
    """Five pairs have 32 orders, and two slow tasks are on one node in one of nine: a report promised 10% and 26%, and found none of 40."""
    cause = CAUSES[analysis.__name__][1]
    for seed in range(4):
        frame, rng = made(seed, "normal", design, 10)
        level = 0.05 / 5
        assert analysis(frame, FAST).could_see(level) == math.inf
        frame["wall"] *= np.exp(1.0 * cause(frame, rng))
        assert analysis(frame, FAST).p > level, "of an effect of 33 deviations"
    told = report(made(1, "normal", design, 10)[0], FAST)[analysis.__name__]
    assert told.state == OPEN
    assert "no effect, however large, is sure to be seen in a study like this" in told.sentence


@pytest.mark.parametrize(
    "analysis, design, n", [(factors, "factor", 24), (nodes, "nodes", 40), (blocks, "blocks", 20)]
)
def test_what_is_promised_is_found_in_another_study(analysis: Callable, design: str, n: int) -> None:
    """The deviation of the first is an estimate: its promise was kept by fewer than 80% where tasks are few."""
    studies, level, found = 20 * MORE, 0.05 / 9, 0
    for seed in range(studies):
        size = math.log1p(analysis(made(10**6 + seed, "normal", design, n)[0], FAST).could_see(level))
        assert math.isfinite(size)
        frame, rng = made(2 * 10**6 + seed, "normal", design, n)
        frame["wall"] *= np.exp(size * CAUSES[analysis.__name__][1](frame, rng))
        found += analysis(frame, Options(permutations=999, resamples=99)).p <= level
    assert stats.binom.ppf(0.001, studies, in_report(0.8)) <= found <= stats.binom.ppf(0.999, studies, 0.96)


@pytest.mark.parametrize("size", [10, 20, 40])
def test_a_drift_is_no_effect_of_blocks(size: int) -> None:
    """Two blocks of five, one after the other: a drift through both was an effect of blocks in one report of twelve."""
    found, studies = 0, 20 * MORE
    for seed in range(studies):
        frame = made(seed, "normal", "blocks", size)[0]
        frame["wall"] *= np.exp(np.linspace(0, 0.3, size))
        found += blocks(frame, FAST).p <= 0.05
    assert found <= stats.binom.ppf(0.999, studies, 0.05)
    frame = made(1, "normal", "blocks", size)[0]
    frame["wall"] *= np.where(frame["block"] % 2, 1.3, 1.0)
    told = blocks(frame, FAST)
    assert told.p <= 0.05 or size == 10, "two blocks and a drift cannot be told apart"


@pytest.mark.parametrize("seed", [6, 8, 12, 52, 80, 91])
def test_a_drift_of_tasks_that_begin_at_a_few_moments_is_no_period(seed: int) -> None:
    """Four workloads of ten tasks: a drift over four moments had high peaks, in 12 of 200 reports."""
    assert "periods" not in [a.name for a in report(made(seed, "drift", "workloads", 40)[0]).alarms]


def test_the_effect_of_a_node_has_its_size_where_blocks_are_small() -> None:
    """Blocks of two tasks on two of six nodes: the mean of a block holds half of what its slow node does."""
    effects, holds, studies = [], 0, 24 * MORE
    for seed in range(studies):
        frame = made(seed, "normal", "factor", 60)[0]
        rng = np.random.default_rng([8, seed])
        frame["node"] = [f"n{k}" for _ in range(30) for k in rng.permutation(6)[:2]]
        frame["wall"] *= np.where(frame["node"] == "n2", 1.3, 1.0)
        row = nodes(frame, FAST).table.set_index("node").loc["n2"]
        effects.append(row["against the rest"])
        holds += row["low"] <= 0.3 <= row["high"]
    assert np.median(effects) == pytest.approx(0.3, abs=0.01)
    assert holds >= stats.binom.ppf(0.001, studies, 0.95)


def test_intervals_of_nodes_hold_nothing_where_nothing_is_the_matter() -> None:
    """The means of residuals vary more than tasks that kept all of their freedom: 133 of 150 held."""
    studies, holds = 60 * MORE, 0
    for seed in range(60 * MORE):
        rows = nodes(made(seed, "bimodal", "nodes", 200)[0], Options(permutations=99, resamples=99)).table
        if rows.empty:  # this random order looks like none, and nothing is said of nodes
            studies -= 1
            continue
        holds += bool((rows["low"] <= 0).all() and (rows["high"] >= 0).all())
    assert holds >= stats.binom.ppf(0.005, studies, 0.95)


@pytest.mark.parametrize("seed", [33, 35, 105])
def test_two_equal_modes_are_no_slow_group(seed: int) -> None:
    """No skewed distribution fits two modes, so a small group fitted better than it, though one normal fits best."""
    found = tail(made(seed, "bimodal", "factor", 200)[0], FAST)
    bic = found.facts["bic"]
    assert bic["one normal"] < bic["two normals"] < bic["one Johnson SU"] + 1
    assert found.p == 1.0


def test_the_interval_of_four_slow_tasks_holds_how_slow_they_are() -> None:
    """Percentiles of four resampled tasks are too near to each other: 78 of 91 held."""
    studies, found, holds = 24 * MORE, 0, 0
    for seed in range(studies):
        frame = made(seed, "normal", "replicas", 40)[0]
        frame["wall"] *= np.where(np.arange(40) % 10 == 3, 1.4, 1.0)
        claim = tail(frame, Options(permutations=199, resamples=199)).claims[0]
        if claim.p <= 0.05:
            found += 1
            holds += claim.facts["low"] <= 0.4 <= claim.facts["high"]
    assert found >= 0.8 * studies
    assert holds >= stats.binom.ppf(0.01, found, 0.95)


def test_no_test_finds_a_small_slow_group_that_skewed_noise_may_be() -> None:
    level = 0.05 / 9
    bounds = [slow_groups_bound(n, level, 3000) for n in (40, 200, 400)]
    assert bounds == sorted(bounds) and bounds[0] < 0.15 and bounds[2] > 0.55
    studies = 12 * MORE
    found = slow_groups_found(200, level, studies)
    assert found <= stats.binom.ppf(0.999, studies, bounds[1])


def test_load_that_drifts_as_the_time_does_is_no_finding() -> None:
    """A test that takes tasks as independent claims it, at a level of 0.0045, in one of five."""
    studies, found = 24 * MORE, 0
    for seed in range(studies):
        frame, rng = made(seed, "AR 0.8", "replicas", 200)
        result = load(counted(frame, "AR 0.8", rng), FAST)
        assert len(result.claims) >= 25
        found += result.p <= 0.0045
    assert found <= stats.binom.ppf(0.999, studies, 0.01)


def test_a_slow_group_of_one_in_ten_is_found_from_some_hundreds_of_tasks() -> None:
    """10% slower, with a deviation of 3%: 40 tasks cannot show it, and the sentence names what they could."""
    for seed in range(3):
        frame, _ = made(seed, "normal", "replicas", 500)
        frame["wall"] *= np.where(np.arange(500) % 10 == 3, 1.1, 1.0)
        found = tail(frame, FAST)
        assert found.state == FOUND
        assert found.claims[0].facts["low"] < 0.1 < found.claims[0].facts["high"]
    few = tail(made(0, "normal", "replicas", 40)[0], FAST)
    assert few.seen > 0.15


def test_johnson_is_not_worse_than_scipy() -> None:
    rng = np.random.default_rng(1)
    for x in (0.03 * rng.standard_t(3, 100), np.log1p(0.02 * rng.lognormal(0, 1, 100))):
        told, fitted = johnson(x[None])
        place, width, gamma, delta = fitted[0]
        assert told[0] == pytest.approx(stats.johnsonsu.logpdf(x, gamma, delta, place, width).sum(), rel=1e-6)
        assert told[0] > stats.johnsonsu.logpdf(x, *stats.johnsonsu.fit(x)).sum() - 1.0


def test_a_null_takes_the_largest_coefficient_that_fits() -> None:
    """What a series of 0.6 leaves is taken for 0.6 or more in nineteen of twenty."""
    rng = np.random.default_rng(2)
    null = Null(60, lambda rows: (with_before(rows), with_before(rows)), lambda rows: rows, rng)
    taken = null.coefficients(with_before(autoregression(0.6, 400, 60, rng)))
    assert 0.9 <= (taken >= 0.6).mean() <= 0.98


def test_blocks_of_two_cannot_be_told_from_tasks_that_resemble_the_ones_before() -> None:
    assert sum(bool(blocks(made(seed, "AR 0.8", "factor", 40)[0], FAST).found) for seed in range(10)) <= 2
