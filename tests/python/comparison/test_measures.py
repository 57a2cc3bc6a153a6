"""Units in the last place, periods, and the list of differing elements, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun import _core
from twinrun.comparison.differences import abs_diff
from twinrun.comparison.settings import Decision
from twinrun.report import html
from twinrun.runs.arrays import taken


def source(values: np.ndarray) -> _core.Source:
    view = taken("x", values)
    return _core.memory_source(view.dtype, view.items, view.address, view.stride, view.swap, view.owner)


def compare(a: np.ndarray, b: np.ndarray, method: str = "direct", **asked: object) -> dict:
    rule = _core.Rule(**asked)
    sides = [_core.FieldSide(source(x)) for x in (a, b)]
    found = _core.compare(*sides, rule, _core.CompareOptions(method=method))
    facts = {name: getattr(found, name) for name in dir(found) if name[0] != "_"}
    listed = _core.list_differences(source(a), source(b), 0, a.size, rule)
    assert listed.size == found.different
    assert found.first == (int(listed[0]) if listed.size else None)
    return {**facts, "listed": listed.tolist()}


def steps_between(a: float, b: float, kind: type) -> int:
    """How many values of the type one passes from a to b, by counting: at most 100."""
    low, high = (kind(min(a, b)), kind(max(a, b)))
    for n in range(101):
        if low == high:
            return n
        low = np.nextafter(low, kind(np.inf))
        if low == 0:
            low = kind(0.0)  # -0 is no value of its own
    return 101


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@given(data=st.data())
@settings(max_examples=150)
def test_ulps_count_representable_values(kind: type, data: st.DataObject) -> None:
    width = np.dtype(kind).itemsize * 8
    a = kind(data.draw(st.floats(width=width, allow_nan=False, allow_infinity=False)))
    away = data.draw(st.integers(-60, 60))
    b = a
    for _ in range(abs(away)):
        b = np.nextafter(b, kind(math.copysign(np.inf, away)))
    allowed = data.draw(st.integers(0, 60))
    found = compare(np.array([a]), np.array([b]), ulps=allowed)
    if np.isinf(b):
        assert found["different"] == 1
        return
    assert found["different"] == (steps_between(a, b, kind) > allowed)
    assert found["max_abs"] == pytest.approx(abs(float(a) - float(b)), rel=1e-15)


def test_ulps_of_bfloat16_are_its_own() -> None:
    bits = np.array([0x3F80, 0x0001, 0x8001, 0x7F80, 0x7FC0], np.uint16)
    other = np.array([0x3F82, 0x8001, 0x0002, 0x7F7F, 0x3F80], np.uint16)
    make = lambda x: _core.memory_source("bf16", x.size, x.ctypes.data, 2, False, x)  # noqa: E731
    for allowed, expected in ((1, [0, 1, 2, 3, 4]), (2, [2, 3, 4]), (3, [3, 4])):
        rule = _core.Rule(ulps=allowed)
        assert _core.list_differences(make(bits), make(other), 0, 5, rule).tolist() == expected


def test_means_leave_out_infinite_differences() -> None:
    """Those that a tolerance allows, too: |a - b| of large numbers may exceed every float64."""
    large = 1.7e308
    a, b = {"x": np.array([0.0, 0, large, 0])}, {"x": np.array([3.0, 0, -large, 0])}
    for infinite, rule in ((1, {}), (0, {"rtol": 3}), (0, {"rtol": 1, "atol": large}), (1, {"atol": 1e308})):
        result = twinrun.compare(a, b, **rule)
        field = result.fields[0]
        assert field.infinite == infinite and field.max_abs_diff == math.inf
        assert field.rms_diff_all == math.sqrt(9 / 3), rule
        group = html._Group()
        group.add(field)
        assert group.rms == math.sqrt(9 / 3), rule
    nothing = html._Group()
    nothing.add(twinrun.compare({"x": [np.nan]}, {"x": [1.0]}).fields[0])
    assert nothing.rms == 0.0


def test_infinities_and_nan_are_nobodys_neighbours() -> None:
    largest = np.finfo(np.float64).max
    a = np.array([largest, np.nan, np.inf, np.nan, -0.0])
    b = np.array([np.inf, 1.0, -np.inf, np.nan, 0.0])
    assert compare(a, b, ulps=2**62)["listed"] == [0, 1, 2]
    assert compare(a, b, period=[1.0])["listed"] == [0, 1, 2]


def test_ulps_and_a_tolerance_each_forgive() -> None:
    a = np.array([1.0, 1e-20, 1.0])
    b = np.array([np.nextafter(1.0, 2), 2e-20, 1.1])
    assert compare(a, b)["different"] == 3
    assert compare(a, b, ulps=1)["listed"] == [1, 2]
    assert compare(a, b, ulps=1, atol=1e-15)["listed"] == [2]


def on_circle(a: float, b: float, period: float, atol: float, rtol: float) -> bool:
    apart = abs(Fraction(a) - Fraction(b)) % Fraction(period)
    return min(apart, Fraction(period) - apart) > Fraction(atol) + Fraction(rtol) * abs(Fraction(a))


@given(
    period=st.floats(1e-3, 1e6),
    places=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.integers(-2, 2)), min_size=1, max_size=20
    ),
    atol=st.sampled_from([0.0, 1e-12, 1e-3, 0.1]),
    rtol=st.sampled_from([0.0, 1e-9, 1e-2]),
)
@settings(max_examples=300)
def test_the_shorter_way_round_exactly(
    period: float, places: list[tuple[float, float, int]], atol: float, rtol: float
) -> None:
    a = np.array([x * period for x, _, _ in places])
    # Half of them at the threshold, some turns away: rounding may not decide.
    b = np.array([
        x * period + k * period + (atol + rtol * abs(x * period)) * (1 if y > 0 else -1) if k % 2 else y * period
        for x, y, k in places
    ])  # fmt: skip
    found = compare(a, b, atol=atol, rtol=rtol, period=[period])
    expected = [i for i in range(a.size) if on_circle(a[i], b[i], period, atol, rtol)]
    # A pair that agrees on the straight line agrees.
    straight = compare(a, b, atol=atol, rtol=rtol)["listed"]
    assert found["listed"] == [i for i in expected if i in straight]
    shortest = [
        float(min(d, Fraction(period) - d))
        for d in (abs(Fraction(x) - Fraction(y)) % Fraction(period) for x, y in zip(a, b, strict=True))
    ]
    assert found["max_abs"] == pytest.approx(max(shortest), rel=1e-9, abs=1e-9 * period)


@given(
    a=st.floats(-10, 10),
    b=st.one_of(st.floats(-10, 10), st.floats(-1e15, 1e15)),
    period=st.one_of(st.floats(0.3, 50), st.sampled_from([1.0, 0.3, 3.0])),
    swapped=st.booleans(),
)
def test_distances_of_many_turns_are_exact(a: float, b: float, period: float, swapped: bool) -> None:
    """a - b is rounded where b has many turns, and what it loses may be much on the circle."""
    if swapped:
        a, b = b, a
    apart = abs(Fraction(a) - Fraction(b)) % Fraction(period)
    exact = float(min(apart, Fraction(period) - apart))
    found = abs_diff(
        np.array([a]), np.array([b]), np.zeros(1, np.uint64), Decision(0.0, 0.0, period=(period,))
    )
    assert found[0] == pytest.approx(exact, rel=1e-15, abs=0)


def test_the_largest_difference_on_a_circle_is_the_exact_one() -> None:
    """1e15 + 0.125 less 0.1 is a whole number of turns in float64."""
    a, b = np.array([0.1, 1.0, 2.0]), np.array([1e15 + 0.125, 1.0, 2.25])
    exact = float(Fraction(1, 8) - Fraction(0.1))
    field = twinrun.compare({"x": a[:2]}, {"x": b[:2]}, atol=1e-3, period="x=1").fields[0]
    assert field.different == 1 and field.first_abs_diff == exact
    assert field.max_abs_diff == field.max_abs_diff_at_least == exact
    assert (field.max_abs_index, field.max_abs_a, field.max_abs_b) == ((0,), a[0], b[0])
    field = twinrun.compare({"x": a}, {"x": b}, atol=1e-3, period="x=1").fields[0]
    assert (field.max_abs_diff, field.max_abs_index) == (0.25, (2,))
    field = twinrun.compare({"x": a[1:]}, {"x": a[1:]}, period="x=1").fields[0]
    assert field.same and field.max_abs_diff == 0


def test_each_component_has_its_period() -> None:
    a = np.array([[0.1, 0.1, 0.1], [9.9, 19.9, 0.0]])
    b = np.array([[9.9, 19.9, 9.9], [0.1, 0.1, 30.0]])
    rule = {"atol": 0.3, "period": [10.0, 20.0, 0.0]}
    assert compare(a.reshape(-1), b.reshape(-1), **rule)["listed"] == [2, 5]
    columns = compare(a.T.copy().reshape(-1), b.T.copy().reshape(-1), component_stride=2, **rule)
    assert columns["listed"] == [4, 5]


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8", "c8", ">f8", "?"])
def test_read_source_gives_native_elements(dtype: str) -> None:
    values = np.arange(1000).astype(dtype)[::3]
    got = _core.read_source(source(values), 7, 100)
    assert got.tobytes() == values[7:107].astype(values.dtype.newbyteorder("=")).tobytes()


@given(
    a=st.lists(st.floats(), min_size=1, max_size=300),
    seed=st.integers(0, 1000),
    first=st.integers(0, 50),
    atol=st.sampled_from([0.0, 1e-6, 1.0]),
)
@settings(max_examples=100)
def test_the_list_is_brute_force(a: list[float], seed: int, first: int, atol: float) -> None:
    random = np.random.default_rng(seed)
    x = np.array(a)
    y = np.where(random.random(x.size) < 0.2, random.normal(size=x.size), x)
    first = min(first, x.size)
    expected = [
        i
        for i in range(first, x.size)
        if not (
            (math.isnan(x[i]) and math.isnan(y[i]))
            or x[i] == y[i]
            or (
                math.isfinite(x[i]) and math.isfinite(y[i])
                and abs(Fraction(x[i]) - Fraction(y[i])) <= Fraction(atol)
            )
        )
    ]  # fmt: skip
    rule = _core.Rule(atol=atol)
    assert _core.list_differences(source(x), source(y), first, x.size - first, rule).tolist() == expected
