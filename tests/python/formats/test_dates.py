"""Dates and time spans as text: dates as NumPy writes them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from twinrun.formats.dates import NOT_A_TIME, distance_text, time_text

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s", "7D", "100ns")


@given(
    unit=st.sampled_from(UNITS),
    value=st.integers(-(10**4), 10**4) | st.integers(-(2**55), 2**55) | st.just(NOT_A_TIME),
)
def test_dates_are_those_of_numpy(unit: str, value: int) -> None:
    coarse = unit in ("Y", "M", "W", "D", "h", "m", "7D")
    value = value if not coarse or value == NOT_A_TIME else value % 10**6 - 5 * 10**5
    if unit == "Y" and value != NOT_A_TIME:
        value %= 10**4
    assert time_text(value, f"M8[{unit}]") == str(np.array(value, np.int64).view(f"M8[{unit}]"))


def test_spans_have_their_unit() -> None:
    assert time_text(-3, "m8[25ms]") == "-75 ms" and time_text(1, "m8[D]") == "1 day"
    assert time_text(NOT_A_TIME, "m8[D]") == "NaT" and time_text(7, "m8") == "7"
    assert distance_text(2**64 - 1, "M8[ns]") == "18446744073709551615 ns"
    assert distance_text(2**64 - 1, "M8[W]") == "18446744073709551615 weeks"
    assert distance_text(0, "M8[Y]") == "0 years"
