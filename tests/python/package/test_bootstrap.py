"""The bootstrap of all rooms: SciPy's intervals by unit numbers, and studentized ones."""

from __future__ import annotations

import numpy as np
import pytest

from twinrun import bootstrap

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_intervals_are_those_of_scipy(method: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.lognormal(size=30), rng.lognormal(size=20)
    how = {"confidence_level": 0.9, "n_resamples": 199, "method": method}
    wanted = stats.bootstrap(
        (x, y),
        lambda a, b, axis=-1: a.mean(axis=axis) - b.mean(axis=axis),
        rng=np.random.default_rng(2),
        **how,
    ).confidence_interval
    low, high = bootstrap.interval(
        [30, 20], lambda i, j: x[i].mean(axis=-1) - y[j].mean(axis=-1), confidence=0.9, resamples=199,
        rng=np.random.default_rng(2), method=method,
    )  # fmt: skip
    assert (low[0], high[0]) == pytest.approx((wanted.low, wanted.high))


def test_several_statistics_of_blocks_at_once() -> None:
    codes = np.repeat(list("abcdefghijkl"), 3)
    members = bootstrap.members_of(codes)
    assert [len(m) for m in members] == [3] * 12 and set(codes[members[2]]) == {"c"}
    x = np.random.default_rng(3).normal(size=36)
    of_blocks = np.array([x[m].mean() for m in members])
    low, high = bootstrap.interval(
        [12], lambda rows: np.stack([of_blocks[rows].mean(axis=-1), -of_blocks[rows].mean(axis=-1)]), confidence=0.95,
        resamples=499, rng=np.random.default_rng(4), method="percentile",
    )  # fmt: skip
    assert low.shape == high.shape == (2,)
    assert low[1] == pytest.approx(-high[0]) and low[0] < x.mean() < high[0]


def test_resamples_without_an_error_are_infinitely_far() -> None:
    statistic = np.concatenate([[0.0], np.linspace(-1, 1, 199)])
    error = np.ones(200)
    assert bootstrap.studentized(statistic, error, 0.95) == pytest.approx((-0.95, 0.95), abs=0.02)
    error[-20:] = 0
    low, high = bootstrap.studentized(statistic, error, 0.95)
    assert low == -np.inf and np.isfinite(high)
