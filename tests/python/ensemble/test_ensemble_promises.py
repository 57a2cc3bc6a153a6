"""What a report claims or denies, held against simulated studies of known truth. docs/ensemble.md has the tables.

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
pytest.importorskip("ruptures")

import pandas as pd
from ensemble_simulation import study
from scipy import stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.compare import compare
from twinrun.ensemble.analysis.factors import factors, variation_factors
from twinrun.ensemble.analysis.load import load
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.result import FOUND, OPEN
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
    found = [variation_factors(varying(seed, 6, between), FAST).state for seed in range(studies)]
    assert found.count(FOUND) >= 0.75 * studies
    none = [variation_factors(varying(seed, 1, between), FAST).state for seed in range(2 * studies)]
    assert none.count(FOUND) <= stats.binom.ppf(0.999, 2 * studies, 0.05)


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
    studies = 60 * MORE
    found = [load(sleeping(seed, counted), FAST) for seed in range(studies)]
    assert [f.state for f in found].count(FOUND) <= stats.binom.ppf(0.999, studies, 0.05)
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
    studies = 60 * MORE
    alarms = 0
    for seed in range(studies):
        rng = np.random.default_rng([4, seed])
        pair = [times(SHAPES[shape](rng, 40)), times(SHAPES[shape](rng, 40) + 0.1)]
        alarms += "tail" in [c.what for c in compare(*pair, Options(permutations=199, resamples=99)).found]
    assert alarms <= stats.binom.ppf(0.999, studies, 0.05)


def test_another_tail_is_found() -> None:
    found = 0
    for seed in range(10):
        rng = np.random.default_rng([5, seed])
        slow = 0.03 * rng.standard_normal(200) + 0.3 * (np.arange(200) % 20 == 0)
        found += "tail" in [
            c.what for c in compare(times(SHAPES["normal"](rng, 200)), times(slow), FAST).found
        ]
    assert found >= 9
