"""Statistics and distances of runs: those of all elements at once, however they are cut, and exact where they are small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.acceptance.growth import floors, grown, rate, saturated
from twinrun.acceptance.samples import Unequal, sample_of
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


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    exponent=st.sampled_from([-1060, -1000, -600, -401, -10, 10, 401, 600, 1021]),
)
def test_the_size_of_values_changes_no_digit(seed, cuts, exponent):
    """Squares of numbers below 1e-162 are 0 in float64, and those of numbers above 1e154 infinite."""
    x = np.round(np.random.default_rng(seed).normal(0, 1.0, (4, 60)) * 2**10) * 2.0**-10
    one = sample_of(np.split(x, sorted(cuts), axis=1), 4, 3, 1, "x", 0.0)
    found = sample_of(np.split(np.ldexp(x, exponent), sorted(cuts), axis=1), 4, 3, 1, "x", 0.0)
    found = found.in_units(exponent)
    assert found.values == pytest.approx(one.values, rel=1e-12, abs=1e-12)
    assert found.squares == pytest.approx(one.squares, rel=1e-12)
    assert found.size == pytest.approx(one.size, rel=1e-12)


def test_pieces_of_very_different_sizes():
    x = np.random.default_rng(3).normal(0, 1, (4, 90)) * np.repeat([1e-200, 1e250, 1.0], 30)
    found = sample_of(np.split(x, 3, axis=1), 4, 3, 1, "x", 0.0)
    expected = sample_of([x / 2.0**830], 4, 3, 1, "x", 0.0)
    assert found.in_units(830).squares == pytest.approx(expected.squares, rel=1e-9)
    assert found.in_units(830).values[:, :2] == pytest.approx(expected.values[:, :2], rel=1e-9)


def test_differences_that_exceed_float64_are_finite_in_units():
    x = 1.7e308 * np.random.default_rng(1).uniform(-1, 1, (4, 10))
    found = sample_of([x], 4, 3, None, "x", 0.0)
    assert np.isfinite(found.squares).all() and found.size > 0 and not found.equal


def test_what_differs_from_equal_reference_runs():
    x = np.tile([0.0, 1.0, -6e23, np.nan], (5, 1))
    assert sample_of([x], 5, 3, 0, "x", 2.0**-53).unequal == {}
    x[3, 1] += 2.0**-52  # two units of rounding
    x[4, 1] += 2.0**-20
    found = sample_of(np.split(x, 2, axis=1), 5, 3, 0, "x", 2.0**-53)
    assert found.equal
    assert found.unequal == {3: Unequal(2.0**-52, 0.0, 1), 4: Unequal(2.0**-20, 2.0**-20, 1)}
    x[3, 0] = 5e-324  # no element is of a size whose rounding this could be
    assert sample_of([x], 5, 3, 0, "x", 2.0**-53).unequal[3].beyond == 5e-324
    x[2, 0] = 5e-324  # a reference run
    found = sample_of([x], 5, 3, 0, "x", 2.0**-53)
    assert not found.equal and found.unequal == {}


def test_another_value_that_is_no_number_is_counted():
    x = np.ones((5, 4))
    x[:, :3] = np.nan, np.inf, -np.inf
    assert not sample_of([x], 5, 3, 0, "x", 0.0).broken
    x[3, :3] = np.inf, -np.inf, -np.inf
    x[4, 1] = np.nan
    assert sample_of([x], 5, 3, 0, "x", 0.0).broken == {3: 2, 4: 1}
    x[1, 1] = np.nan  # reference runs have either: none is wrong
    assert sample_of([x], 5, 3, 0, "x", 0.0).broken == {3: 2}


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_large_integers_are_compared_exactly(kind):
    """float64 holds no odd number above 2**53."""
    x = np.full((5, 3), 2**62, kind)
    x[4, 1] += np.array(1, kind)
    found = sample_of([x], 5, 4, 0, "n", 0.0)
    assert found.equal and found.unequal == {4: Unequal(1.0, 1.0, 1)}
    assert found.distances[0, 4] == pytest.approx(3**-0.5)
    x[1, 2] -= np.array(2, kind)
    found = sample_of([x], 5, 4, 0, "n", 0.0)
    assert not found.equal and found.distances[0, 1] == pytest.approx(2 * 3**-0.5)
    far = np.array([[np.iinfo(kind).min], [np.iinfo(kind).max]], kind)
    assert sample_of([far], 2, 1, 0, "n", 0.0).distances[0, 1] == pytest.approx(2.0**64)


def test_equal_elements_in_unknown_orders():
    rng = np.random.default_rng(2)
    base = rng.normal(0, 1, 200)
    x = np.array([rng.permutation(base) for _ in range(5)])
    assert sample_of([x], 5, 4, 0, "x", 2.0**-53, matched=False).unequal == {}
    x[4, :100] += 0.5
    found = sample_of(np.split(x, 4, axis=1), 5, 4, 0, "x", 2.0**-53, matched=False)
    assert found.equal and found.unequal[4].beyond == pytest.approx(0.25, rel=0.3)
    x[2, 7] = np.nextafter(x[2, 7], np.inf)
    assert not sample_of([x], 5, 4, 0, "x", 2.0**-53, matched=False).equal


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
    one = grown(made[0], 4, 10.0, floors(made)[0])
    assert one.new[0] <= one.bound and one.ratio == 0 and one.beyond == []
    first[4] += 1e-9
    made[0] = sample_of([first], 5, 4, 0, "f", 2.0**-53)
    one = grown(made[0], 4, 10.0, floors(made)[0])
    assert one.new[0] > one.bound and one.ratio > 10 and one.beyond == [0]
    # nothing shows terms that cancel in a field that all reference runs hold equal at every step
    one = grown(made[0], 4, 10.0, floors(made[:1])[0])
    assert one.beyond == [0]


def test_integers_have_no_rounding():
    x = np.tile(np.arange(50.0), (5, 1))
    x[4, 7] += 1
    made = [sample_of([x], 5, 4, 0, "n", 0.0)]
    one = grown(made[0], 4, 10.0, floors(made)[0])
    assert one.new[0] > one.bound == 0 and one.beyond == [0] and one.ratio == np.inf


def test_the_rate_of_growth():
    assert rate([0, 10, 20], [1e-9, 1e-8, 1e-7]) == pytest.approx(10**0.1)
    assert np.isnan(rate([0, 10], [1.0, 2.0])) and np.isnan(rate([0, 1, 2], [0.0, 0.0, 1.0]))
