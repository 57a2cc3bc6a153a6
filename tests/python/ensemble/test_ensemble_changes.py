"""Segments of series: against all partitions of short ones, and against `ruptures` on long ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from twinrun.ensemble.analysis.changes import segments


def price(z: np.ndarray, ends: list[int], penalty: float) -> float:
    parts = np.split(z, ends[:-1])
    return float(sum(((part - part.mean()) ** 2).sum() + penalty for part in parts))


def partitions(n: int, least: int, begin: int = 0) -> Iterator[list[int]]:
    if n - begin >= least:
        yield [n]
    for end in range(begin + least, n - least + 1):
        for rest in partitions(n, least, end):
            yield [end, *rest]


def prices(z: np.ndarray, penalty: float, least: int) -> Iterator[float]:
    """Of all partitions. Each part is priced once: there are thousands of partitions, and few parts."""
    n = len(z)
    part = {(i, j): price(z[i:j], [j - i], penalty) for i in range(n) for j in range(i + 1, n + 1)}
    for ends in partitions(n, least):
        yield sum(part[between] for between in pairwise([0, *ends]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=14),
    st.sampled_from([0.0, 0.3, 1.0, 4.0, 100.0]),
    st.integers(1, 4),
)
def test_no_partition_is_better(values: list[int], penalty: float, least: int) -> None:
    z = np.array(values, float)
    ends = segments(z, penalty, least)
    assert ends[-1] == len(z) and np.all(np.diff([0, *ends]) >= min(least, len(z)))
    if len(z) >= least:
        assert price(z, ends, penalty) <= min(prices(z, penalty, least)) + 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_another_library_finds_none_that_is_better(seed: int) -> None:
    ruptures = pytest.importorskip("ruptures")
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 129))
    z = rng.standard_normal(n) + np.repeat(rng.normal(0, 2, 4), -(-n // 4))[:n]
    penalty = float(rng.uniform(1, 12))
    theirs = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(z).predict(pen=penalty)
    ours = segments(z, penalty)
    assert price(z, ours, penalty) <= price(z, theirs, penalty) + 1e-9
