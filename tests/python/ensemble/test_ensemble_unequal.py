"""Groups with one mean and different noise: no claim of another mean, and intervals that hold the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.blocks import blocks
from twinrun.ensemble.analysis.factors import factors
from twinrun.ensemble.analysis.hypotheses import hypotheses
from twinrun.ensemble.analysis.model import model_of
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.terms import TermTest, effect_of
from twinrun.ensemble.analysis.unequal import against_rest, two_groups
from twinrun.ensemble.study.document import Hypothesis
from twinrun.ensemble.study.tasks import frame_of

_STUDIES = 60
_OPTIONS = Options(permutations=499)


def study(y: np.ndarray, **groups: np.ndarray) -> pd.DataFrame:
    """Tasks with these logarithms of times. groups: node, block, cond."""
    lines: list[dict[str, Any]] = []
    for k, value in enumerate(y):
        at = {name: of[k] for name, of in groups.items()}
        lines.append({
            "task": k, "attempt": 1, "block": int(at.get("block", 0)), "order": k, "status": "ok",
            "node": f"n{at['node']}" if "node" in at else None, "wall": float(np.exp(value)),
            "factors": {"cond": str(at["cond"])} if "cond" in at else {},
        })  # fmt: skip
    return frame_of(lines)


def noise(seed: int, deviations: np.ndarray) -> np.ndarray:
    return deviations * np.random.default_rng([seed, 7]).standard_normal(len(deviations))


def most(share: float) -> int:
    """What fewer than one in a thousand runs of this test exceed, at this rate."""
    return int(stats.binom.isf(1e-3, _STUDIES, share))


NODES = {
    "eight runs each": np.repeat(np.arange(8), 8),
    "three runs among ten": np.repeat(np.arange(8), [10, 10, 10, 3, 10, 10, 10, 10]),
    "three runs each": np.repeat(np.arange(16), 3),
}
CONDITIONS = {
    "30 and 6": np.array(["A"] * 30 + ["B"] * 6),
    "30, 6 and 6": np.array(["A"] * 30 + ["B"] * 6 + ["C"] * 6),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_varies_more_is_no_slow_node(name: str) -> None:
    node = NODES[name]
    deviation = np.where(node == 3, 0.08, 0.01)
    found = [nodes(study(noise(s, deviation), node=node), _OPTIONS) for s in range(_STUDIES)]
    assert sum(a.p <= 0.05 for a in found) <= most(0.06)
    rows = [a.table.set_index("node").loc["n3"] for a in found]
    assert sum(not r["low"] <= 0 <= r["high"] for r in rows) <= most(0.05)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_that_varies_more_is_no_slow_condition(name: str) -> None:
    cond = CONDITIONS[name]
    deviation = np.where(cond == "B", 0.1, 0.02)
    found = [factors(study(noise(s, deviation), cond=cond), _OPTIONS) for s in range(_STUDIES)]
    assert sum(a.p <= 0.05 for a in found) <= most(0.06)
    first = [a.facts["effects"][0] for a in found]
    assert sum(not e["low"] <= 1 <= e["high"] for e in first) <= most(0.06)


def test_a_hypothesis_on_a_condition_that_varies_more_is_undecided() -> None:
    cond = CONDITIONS["30 and 6"]
    deviation = np.where(cond == "B", 0.1, 0.02)
    named = Hypothesis(factor="cond", level="B", base="A", expect="different")
    said = [
        hypotheses(study(noise(s, deviation), cond=cond), [named], _OPTIONS).sentence for s in range(_STUDIES)
    ]
    assert sum("undecided" not in s for s in said) <= most(0.06)


def test_a_block_that_varies_more_is_no_other_block() -> None:
    block = np.repeat(np.arange(8), [10] * 7 + [3])
    deviation = np.where(block == 7, 0.1, 0.02)
    found = [blocks(study(noise(s, deviation), block=block), _OPTIONS) for s in range(_STUDIES)]
    assert sum(a.p <= 0.05 for a in found) <= most(0.05)


def test_means_that_differ_are_found_beside_equal_noise() -> None:
    node, cond = NODES["eight runs each"], CONDITIONS["30 and 6"]
    slow = [
        nodes(study(noise(s, np.full(64, 0.01)) + 0.02 * (node == 3), node=node), _OPTIONS) for s in range(40)
    ]
    assert sum(a.p <= 0.05 for a in slow) >= 32
    other = [
        factors(study(noise(s, np.full(36, 0.02)) + 0.04 * (cond == "B"), cond=cond), _OPTIONS)
        for s in range(40)
    ]
    assert sum(a.p <= 0.05 for a in other) >= 32


def test_two_conditions_are_tested_as_by_welch() -> None:
    cond = CONDITIONS["30 and 6"]
    y = noise(1, np.where(cond == "B", 0.1, 0.02))
    model = model_of(study(y, cond=cond), y, ["factors.cond"])
    welch = stats.ttest_ind(y[cond == "B"], y[cond == "A"], equal_var=False)
    test = TermTest(model, model.terms[0].where)
    assert test.f(test.without((y - y.mean())[None]))[0] == pytest.approx(welch.statistic**2)
    contrast = model.row({"factors.cond": "B"}) - model.row({"factors.cond": "A"})
    effect = effect_of(model, contrast, model.terms[0].where)
    assert effect.value / effect.error == pytest.approx(welch.statistic)
    assert effect.freedom == pytest.approx(welch.df, rel=0.25)  # Welch's own of 1951, not Satterthwaite's
    both = two_groups(y[cond == "B"], y[cond == "A"])
    assert (both.value / both.error, both.freedom) == pytest.approx((welch.statistic, welch.df))
    assert both.ends(0.95) == pytest.approx(tuple(welch.confidence_interval(0.95)))


def test_groups_that_vary_alike_have_the_classical_test() -> None:
    cond = np.tile(["A", "B", "C"], 12)
    block = np.repeat(np.arange(12), 3)
    y = noise(2, np.full(36, 0.02))
    model = model_of(study(y, cond=cond, block=block), y, ["factors.cond"])
    test = TermTest(model, model.terms[0].where)
    rest = np.delete(model.matrix, model.terms[0].where, axis=1)
    squares = [
        float(((y - m @ np.linalg.lstsq(m, y, rcond=None)[0]) ** 2).sum()) for m in (rest, model.matrix)
    ]
    classical = (squares[0] - squares[1]) / 2 / (squares[1] / model.freedom)
    assert test.f(test.without((y - y.mean())[None]))[0] == pytest.approx(classical)
    assert test.limit(0.05) == pytest.approx(stats.f.isf(0.05, 2, model.freedom))


def test_a_node_with_its_own_variance_is_tested_as_by_welch() -> None:
    node = NODES["three runs among ten"]
    y = noise(4, np.where(node == 3, 0.3, 0.01))
    member = (node[:, None] == np.arange(8)).astype(float)
    _, _, freedom, p = against_rest(y[None], member)
    welch = stats.ttest_ind(y[node == 3], y[node != 3], equal_var=False)
    assert (p[0, 3], freedom[0, 3]) == pytest.approx((welch.pvalue, welch.df))
