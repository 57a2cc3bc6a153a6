"""Intervals of analyses of ensembles against simulations with known answers: as many hold the truth as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from analysis_checks import FAST, MORE, covered, least
from ensemble_simulation import FACTORIAL, study
from scipy import stats

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.compare import hodges_lehmann
from twinrun.ensemble.analysis.factors import factors
from twinrun.ensemble.analysis.nodes import variance_share
from twinrun.ensemble.analysis.planning import deviation
from twinrun.ensemble.analysis.spread import (
    quantile_interval,
    variation_interval,
)
from twinrun.ensemble.study.tasks import usable

pytestmark = pytest.mark.usefixtures("quick_collection")

# Coverage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("n", [12, 40])
def test_quantiles_are_covered(q: float, n: int) -> None:
    rng, studies = np.random.default_rng(1), 400 * MORE
    found = [quantile_interval(rng.lognormal(0, 0.3, n), q, 0.9) for _ in range(studies)]
    assert covered(found, float(np.exp(0.3 * stats.norm.ppf(q)))) >= least(0.9, studies)


@pytest.mark.parametrize("sigma", [0.03, 0.3])
def test_variation_is_covered(sigma: float) -> None:
    rng, studies = np.random.default_rng(2), 1000 * MORE
    found = [variation_interval(rng.lognormal(0, sigma, 20), None, Options())[1:3] for _ in range(studies)]
    share = covered(found, math.sqrt(math.expm1(sigma**2)))
    assert least(0.95, studies) <= share <= 0.98


def test_variation_of_blocks_is_covered() -> None:
    """Tasks of a block share most of their variance: their number alone does not tell how well it is known."""
    rng, studies = np.random.default_rng(3), 400 * MORE
    of_blocks, of_tasks = [], []
    labels = np.repeat(np.arange(20), 4)
    for _ in range(studies):
        x = np.exp(0.05 * rng.standard_normal(20)[labels] + 0.02 * rng.standard_normal(80))
        of_blocks.append(variation_interval(x, labels, Options())[1:3])
        of_tasks.append(variation_interval(x, None, Options())[1:3])
    truth = math.sqrt(math.expm1(0.05**2 + 0.02**2))
    assert covered(of_blocks, truth) >= least(0.95, studies)
    assert covered(of_tasks, truth) < 0.92


def test_variation_at_other_confidence() -> None:
    x = np.random.default_rng(4).lognormal(0, 0.03, 30)
    widths = []
    for confidence in (0.8, 0.95, 0.99):
        value, low, high, _ = variation_interval(x, None, Options(confidence=confidence))
        assert 0 < low < value < high
        widths.append(math.log(high / low))
    assert widths == sorted(widths)
    assert math.isnan(variation_interval(x[:4], None, Options())[1])  # too few
    assert math.isnan(variation_interval(np.full(20, 0.1), None, Options())[1])  # no spread but rounding


@pytest.mark.parametrize(("between", "truth"), [(0.0, 0.0), (0.03, 0.5), (0.06, 0.8)])
def test_variance_share_is_covered(between: float, truth: float) -> None:
    rng, studies = np.random.default_rng(4), 200 * MORE
    groups = np.repeat(np.arange(12), 4)
    found = [
        variance_share(between * rng.standard_normal(12)[groups] + 0.03 * rng.standard_normal(48), groups, 0.95)[1:]
        for _ in range(studies)
    ]  # fmt: skip
    assert covered(found, truth) >= least(0.95, studies)


@pytest.mark.parametrize("sizes", [(6, 9), (20, 30)])
def test_hodges_lehmann_is_covered_and_equivariant(sizes: tuple[int, int]) -> None:
    rng, studies = np.random.default_rng(5), 300 * MORE
    found = []
    for _ in range(studies):
        a, b = rng.standard_t(3, sizes[0]), rng.standard_t(3, sizes[1]) + 0.7
        value, low, high = hodges_lehmann(a, b, 0.9)
        found.append((low, high))
        assert low <= value <= high
    assert covered(found, 0.7) >= least(0.9, studies)
    # Not needlessly wide: coverage of a rank interval of these sizes is at most this.
    assert covered(found, 0.7) <= 0.97
    value, low, high = hodges_lehmann(a, b, 0.9)
    back = hodges_lehmann(b, a, 0.9)
    assert (value, low, high) == pytest.approx((-back[0], -back[2], -back[1]))


def test_hodges_lehmann_interval_belongs_to_the_exact_test() -> None:
    """A shift lies inside exactly if Mann and Whitney's exact test does not reject it."""
    rng = np.random.default_rng(6)
    for _ in range(10):
        a, b = rng.standard_normal(7), rng.standard_normal(9) + rng.normal()
        _, low, high = hodges_lehmann(a, b, 0.95)
        for shift in rng.uniform(low - 1, high + 1, 25):
            p = stats.mannwhitneyu(a, b - shift, method="exact").pvalue
            assert (p > 0.05) == (low < shift < high)


@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_effects_are_covered(noise: str) -> None:
    studies = 80 * MORE
    main, both = [], []
    for seed in range(studies):
        frame = study(
            seed, cells=FACTORIAL, noise=noise, planted=lambda _, line: 0.05 * (line["factors"]["checkpoint"] == "on") + 0.04 * line["block"]
        )  # fmt: skip
        effects = {e["term"]: e for e in factors(frame, Options(permutations=99)).facts["effects"]}
        main.append((effects["checkpoint"]["low"], effects["checkpoint"]["high"]))
        both.append((effects["checkpoint x cores"]["low"], effects["checkpoint x cores"]["high"]))
    assert covered(main, math.exp(0.05)) >= least(0.95, studies)
    assert covered(both, 1.0) >= least(0.95, studies)


def test_deviation_for_planning_is_covered() -> None:
    studies = 150 * MORE
    found = []
    for seed in range(studies):
        found.append(deviation(usable(study(seed, nodes=4, blocks=5, sigma=0.05, noise="heavy")), FAST)[1:3])
    assert covered(found, 0.05) >= least(0.9, studies)
