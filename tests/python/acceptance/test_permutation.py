"""The test of distributions is exact, whatever the distribution, and its statistics are those of their definitions."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from twinrun.acceptance.permutation import _choices, _distances, _smirnov, arrangements, zscores
from twinrun.acceptance.permutation import test as judged_columns


def columns_of(seed: int, runs: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = 6
    if kind == "ties":
        return rng.integers(0, 3, (runs, count)).astype(float)
    if kind == "heavy":
        return rng.standard_cauchy((runs, count))
    if kind == "constant":
        made = rng.normal(size=(runs, count))
        made[:, 1:] = 7.0
        return made
    return rng.normal(size=(runs, count))


def choices(runs: int, new: int, most: int = 999) -> tuple[np.ndarray, bool]:
    return _choices(np.arange(runs) >= runs - new, most, 7)


def squares_of(table: np.ndarray) -> np.ndarray:
    return ((table[:, None, :] - table[None, :, :]) ** 2).mean(axis=2)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["normal", "heavy", "ties", "constant"]),
    new=st.sampled_from([1, 2, 3]),
)
def test_no_more_than_alpha_of_all_choices_are_rejected(seed, kind, new):
    """Each choice of new runs in turn is the real one: of N choices at most k have a p value of k / N or less."""
    runs = 6
    table = columns_of(seed, runs, kind)
    found = []
    for chosen in combinations(range(runs), new):
        order = [*(r for r in range(runs) if r not in chosen), *chosen]
        one = table[order]
        found.append(
            judged_columns(
                one, np.full(one.shape[1], 1e-9), [squares_of(one)], new, alpha=0.05, permutations=999, seed=1
            ).p
        )
    assert len(found) == arrangements(runs - new, new)
    for k, p in enumerate(sorted(found), 1):
        assert p >= k / len(found) - 1e-12


@pytest.mark.parametrize("new", [1, 3])
def test_order_of_runs_within_their_group_does_not_matter(new):
    table = columns_of(5, 7, "normal")
    base = judged_columns(table, np.zeros(6), [squares_of(table)], new, alpha=0.05, permutations=999, seed=1)
    for first in list(permutations(range(7 - new)))[1:40:7]:
        order = [*first, *range(7 - new, 7)]
        other = table[order]
        found = judged_columns(
            other, np.zeros(6), [squares_of(other)], new, alpha=0.05, permutations=999, seed=1
        )
        assert found.p == pytest.approx(base.p)
        assert found.by_kind == pytest.approx(base.by_kind)


def test_scores_are_differences_in_standard_errors_of_the_reference_runs():
    table = columns_of(3, 9, "normal")
    chosen, exact = choices(9, 2)
    assert exact and len(chosen) == 36 and chosen[0].tolist() == [False] * 7 + [True] * 2
    assert len({tuple(row) for row in chosen}) == 36
    found = zscores(table, np.full(6, 0.1), chosen)
    for row, pick in enumerate(chosen):
        new, rest = table[pick], table[~pick]
        error = np.sqrt(rest.var(axis=0, ddof=1) * (1 / 2 + 1 / 7) + 0.01)
        assert found[row] == pytest.approx(np.abs(new.mean(axis=0) - rest.mean(axis=0)) / error)


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_smirnov_is_scipys(kind):
    table = columns_of(11, 8, kind)
    chosen, _ = choices(8, 3)
    found = _smirnov(table, chosen)
    for row in range(0, len(chosen), 5):
        pick = chosen[row]
        assert found[row] == pytest.approx(sum(stats.ks_2samp(c[pick], c[~pick]).statistic for c in table.T))


def test_distances_are_ratios_of_means():
    square = squares_of(columns_of(2, 7, "normal"))
    chosen, _ = choices(7, 3)
    found = _distances([square], chosen)[:, 0]
    for row, pick in enumerate(chosen):
        own = square[np.ix_(~pick, ~pick)][np.triu_indices(4, 1)].mean()
        assert found[row] == pytest.approx(np.log(square[np.ix_(pick, ~pick)].mean() / own))


def test_random_choices_hold_the_real_one_first():
    chosen, exact = choices(30, 5, 200)
    assert not exact and chosen.shape == (201, 30)
    assert (chosen.sum(axis=1) == 5).all() and chosen[0, 25:].all()


def test_what_the_floor_covers_is_no_difference():
    """All reference runs are equal, and the new one is off by a rounding."""
    table = np.full((21, 3), 5.0)
    table[-1] += 1e-12
    found = judged_columns(table, np.full(3, 1e-9), [], 1, alpha=0.05, permutations=999, seed=1)
    assert found.scores.max() < 0.01
    far = judged_columns(table, np.full(3, 1e-15), [], 1, alpha=0.05, permutations=999, seed=1)
    assert far.scores.max() > 100


def test_each_run_in_the_place_of_the_new_one():
    table = columns_of(9, 8, "normal")
    square = squares_of(table)
    every = judged_columns(table, np.zeros(6), [square], 1, alpha=0.05, permutations=99, seed=1).singles
    for run in range(8):
        order = [*(k for k in range(8) if k != run), run]
        one = judged_columns(
            table[order], np.zeros(6), [square[np.ix_(order, order)]], 1, alpha=0.05, permutations=99, seed=1
        )
        assert every[run] == pytest.approx(one.p) == pytest.approx(one.singles[-1])
