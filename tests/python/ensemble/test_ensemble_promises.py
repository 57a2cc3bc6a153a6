"""What a report claims or denies, held against simulated studies of known truth. docs/ensemble.md has the tables.

TWINRUN_SIMULATIONS multiplies the number of simulated studies (1).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")
pytest.importorskip("ruptures")

import pandas as pd
from ensemble_simulation import study
from scipy import stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.factors import variation_factors
from twinrun.ensemble.analysis.result import FOUND

MORE = int(os.environ.get("TWINRUN_SIMULATIONS", "1"))
FAST = Options(permutations=999, resamples=199)


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
    studies = 15 * MORE
    found = [variation_factors(varying(seed, 6, between), FAST).state for seed in range(studies)]
    assert found.count(FOUND) >= 0.85 * studies
    none = [variation_factors(varying(seed, 1, between), FAST).state for seed in range(2 * studies)]
    assert none.count(FOUND) <= stats.binom.ppf(0.999, 2 * studies, 0.05)
