"""Statistics and distances of runs: those of all elements at once, however they are cut, and exact where they are small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.acceptance.growth import floors, grown, rate, saturated, smallest_relative
from twinrun.acceptance.samples import sample_of
from twinrun.errors import Incomparable


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    offset=st.sampled_from([0.0, 1e6]),
)
def test_pieces_do_not_matter(seed, cuts, offset):
    x = np.random.default_rng(seed).normal(offset, 1.0, (4, 300))
    found = sample_of(np.split(x, sorted(cuts), axis=1), 4, 3, 1, "x", 0.0)
    assert found.elements == 300
    assert found.values[:, 0] == pytest.approx(x.mean(axis=1), rel=1e-12)
    assert found.values[:, 1] == pytest.approx(x.std(axis=1), rel=1e-7)
    expected = ((x[:, None] - x[None]) ** 2).mean(axis=2)
    assert found.squares == pytest.approx(expected, rel=1e-9)
    assert found.size == pytest.approx(np.sqrt((x[:3] ** 2).mean()))


def test_differences_in_the_last_digit_are_seen():
    x = np.tile(np.linspace(1e8, 2e8, 1000), (3, 1))
    x[2] = np.nextafter(x[2], np.inf)
    found = sample_of([x], 3, 2, None, "x", 2.0**-53)
    assert found.squares[0, 1] == 0
    assert found.distances[0, 2] == pytest.approx(np.sqrt(((x[2] - x[0]) ** 2).mean()), rel=1e-9)
    assert found.distances[0, 2] > 0 and found.values[2, 0] > found.values[0, 0]


def test_what_is_no_number():
    x = np.arange(40.0).reshape(4, 10)
    x[:, 3] = np.nan  # land in every run
    clean = sample_of([x], 4, 3, None, "x", 0.0)
    assert clean.elements == 9 and not clean.broken
    x[3, 5] = np.inf
    assert sample_of([x], 4, 3, None, "x", 0.0).broken == {3: 1}
    x[1, 6] = np.nan
    with pytest.raises(Incomparable, match="not numbers"):
        sample_of([x], 4, 3, None, "x", 0.0)


def test_values_whose_squares_are_infinite_are_an_error():
    x = np.random.default_rng(1).normal(0, 1, (4, 10)) * 1e200
    with pytest.raises(Incomparable, match="too large"):
        sample_of([x], 4, 3, None, "x", 0.0)


def samples_with(distances: list[float], runs: int = 5, size: float = 1.0) -> list:
    """A field whose runs differ by so much at each step."""
    rng = np.random.default_rng(4)
    base = rng.normal(0, size, 2000)
    return [
        sample_of([base + d * rng.normal(0, 1, (runs, 2000))], runs, runs - 1, step, "x", 2.0**-53)
        for step, d in enumerate(distances)
    ]


def test_differences_have_settled_at_their_largest_and_not_before():
    assert saturated(samples_with([1e-12, 1e-6, 0.1, 0.6, 0.7]), 4, 0.05) == [False, False, False, True, True]
    assert saturated(samples_with([1e-12, 1e-9, 1e-6]), 4, 0.05) == [False] * 3
    assert saturated(samples_with([0.0, 0.0]), 4, 0.05) == [False] * 2


def test_the_bound_of_growth():
    found = grown(samples_with([1e-9])[0], 4, 10.0, 0.0)
    assert found.ratio == pytest.approx(1, rel=0.2) and found.new[0] < found.bound and found.alarms == []
    rng = np.random.default_rng(4)
    x = np.ones((5, 100)) + 1e-9 * rng.normal(0, 1, (5, 100))
    x[4] += 1e-7
    assert grown(sample_of([x], 5, 4, 0, "x", 0.0), 4, 10.0, 0.0).ratio > 10
    x[4], x[2] = x[2].copy(), x[4].copy()  # a reference run is off: leaving it out finds it
    assert grown(sample_of([x], 5, 4, 0, "x", 0.0), 4, 10.0, 0.0).alarms == [2]


def test_rounding_of_terms_that_cancel_is_allowed_where_reference_runs_are_equal():
    """Forces on a lattice: 1e-15 at the first step, 20 later."""
    rng = np.random.default_rng(8)
    first = np.tile(rng.normal(0, 1e-15, 100), (5, 1))
    first[4] = rng.normal(0, 1e-15, 100)
    later = rng.normal(0, 20, 100) * (1 + 1e-14 * rng.normal(0, 1, (5, 100)))
    made = [sample_of([x], 5, 4, step, "f", 2.0**-53) for step, x in enumerate((first, later))]
    smallest = smallest_relative([made], 4)
    assert 1e-15 < smallest < 1e-13
    low = floors(made, 4, 10.0, smallest)
    one = grown(made[0], 4, 10.0, low[0])
    assert one.new[0] <= one.bound and one.ratio == 0
    first[4] += 1e-9
    made[0] = sample_of([first], 5, 4, 0, "f", 2.0**-53)
    one = grown(made[0], 4, 10.0, floors(made, 4, 10.0, smallest)[0])
    assert one.new[0] > one.bound and one.ratio > 10


def test_integers_have_no_rounding():
    x = np.tile(np.arange(50.0), (5, 1))
    x[4, 7] += 1
    made = [sample_of([x], 5, 4, 0, "n", 0.0)]
    one = grown(made[0], 4, 10.0, floors(made, 4, 10.0, 1e-3)[0])
    assert one.new[0] > one.bound == 0


def test_the_rate_of_growth():
    assert rate([0, 10, 20], [1e-9, 1e-8, 1e-7]) == pytest.approx(10**0.1)
    assert np.isnan(rate([0, 10], [1.0, 2.0])) and np.isnan(rate([0, 1, 2], [0.0, 0.0, 1.0]))
