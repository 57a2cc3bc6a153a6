"""Numbers for people: rounding never contradicts what is said of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from twinrun.words import estimate, significant

ENDS = st.tuples(*[st.floats(-1e-3, 1e-3) | st.floats(-0.9, 3)] * 2).map(sorted)


def side(x: float, mark: float) -> int:
    return (x > mark) - (x < mark)


@given(ENDS, st.sampled_from([0.0, 0.05, 1.0]))
def test_no_end_of_an_interval_is_rounded_onto_or_across_a_mark(ends, mark):
    low, high = (mark + x for x in ends)
    if any(x != mark and abs(x - mark) < 1e-11 for x in (low, high)):
        return  # closer than doubles are worth printing
    middle = (low + high) / 2
    value, first, last = estimate(middle, low, high, (mark,))
    assert side(float(first), mark) == side(low, mark) and side(float(last), mark) == side(high, mark)
    assert float(first) <= float(value) <= float(last)
    for x in (low, high):
        assert side(float(significant(x, 3, (mark,))), mark) == side(x, mark)


def test_an_interval_has_the_digits_that_it_deserves():
    assert estimate(1.4142, 1.3861, 1.4499) == ("1.41", "1.39", "1.45")
    assert estimate(1.0003, 1.0001, 1.0005) == ("1.0003", "1.0001", "1.0005")
    assert estimate(1.1, 1.004, 1.21) == ("1.100", "1.004", "1.210")
    assert estimate(1.0, 1.0, 1.0, least=3) == ("1.000", "1.000", "1.000")
    assert estimate(2.0, 0.5, math.inf) == ("2.00", "0.50", "inf")
    assert significant(5.0001, 3) == "5" and significant(5.0001, 3, (5,)) == "5.0001"
