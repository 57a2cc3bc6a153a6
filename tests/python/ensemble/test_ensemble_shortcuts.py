"""What analyses leave out to be quick changes no result: each shortcut beside the whole computation."""

from __future__ import annotations

import numpy as np
import pytest
from ensemble_rates import made

from twinrun.ensemble import Options
from twinrun.ensemble.analysis import power, serial, tail
from twinrun.ensemble.analysis.changes import best_stretch
from twinrun.ensemble.analysis.distributions import johnson, mixture, samples
from twinrun.ensemble.analysis.serial import Null, autoregression, with_before
from twinrun.ensemble.analysis.unequal import Uneven


def cubes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (rows**3).sum(axis=1), with_before(rows)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.95])
def test_series_that_are_not_looked_at_change_no_limit(memory: float) -> None:
    """Limits by all coefficients, drawn in the same order."""
    n, level, seed = 50, 0.01, 7
    values = autoregression(memory, 30, n, np.random.default_rng(1))
    measured = with_before(values)
    looked: list[int] = []

    def counted(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        looked.append(len(rows))
        return cubes(rows)

    null = Null(n, counted, lambda rows: rows, np.random.default_rng(seed))
    found = null.limits(measured, level)
    rng = np.random.default_rng(seed)
    every = serial._COEFFICIENTS
    limits = [np.quantile(cubes(autoregression(c, serial._LIMITS, n, rng))[0], 1 - level) for c in every[::2]]
    low = [np.quantile(cubes(autoregression(c, serial._SERIES, n, rng))[1], serial.LARGEST) for c in every]
    increasing = np.maximum.accumulate(np.array(low)) + 1e-9 * np.arange(len(low))
    taken = np.interp(measured + 1e-6, increasing, every)
    assert (null.coefficients(measured) == taken).all()
    assert (found == np.interp(taken, every[::2], limits)).all()
    assert null._rng.random() == rng.random(), "what is drawn next is the same"
    if memory == 0:
        assert looked.count(serial._LIMITS) < len(limits) and looked.count(serial._SERIES) < len(low)


@pytest.mark.parametrize("n", [6, 7, 30, 61])
@pytest.mark.parametrize("step", [0.0, 3.0])
def test_stretches_that_are_passed_over_are_none_of_the_best(n: int, step: float) -> None:
    z = np.random.default_rng(n).standard_normal((20, n))
    z[:, n // 3 : n // 2] += step
    best, _ = best_stretch(z)
    for row, found in zip(z - z.mean(axis=1, keepdims=True), best, strict=True):
        every = [
            row[a:b].sum() ** 2 * n / ((b - a) * (n - b + a)) / (2 if 0 < a and b < n else 1)
            for a in range(n)
            for b in range(a + 3, n + 1)
            if b - a <= n - 3
        ]
        assert found == pytest.approx(max(every), rel=1e-9)


def test_a_rough_search_finds_the_same_likelihood() -> None:
    rng = np.random.default_rng(3)
    x = 0.03 * rng.standard_normal((60, 200))
    x[:20, ::10] += 0.08
    x[40:] = np.sinh(x[40:] * 30) / 100
    assert np.abs(mixture(x, 0.3, rough=True)[0] - mixture(x, 0.3)[0]).max() < 1e-4
    assert np.abs(johnson(x, rough=True)[0] - johnson(x)[0]).max() < 1e-4


@pytest.mark.parametrize("shift", [-2.0, 0.0, 2.0])
def test_studies_that_are_not_simulated_change_no_decision(shift: float) -> None:
    """Shift: of the studies' own ratios, so that too few of them, some, and enough are found."""
    frame, _ = made(1, "normal", "replicas", 30)
    level, group = 0.01, tail.tail(frame, Options()).could_see.__self__  # type: ignore[union-attr]
    rng = np.random.default_rng(2)
    rows = 0.03 * rng.standard_normal((tail._STUDIES, 30))
    normal = rng.standard_normal((tail._STUDIES * tail._EACH, 30))
    fits = johnson(rows)[1]
    ratios = tail._ratio(samples(normal, np.repeat(fits, tail._EACH, axis=0)), rough=True)
    ratios = np.maximum(ratios, -30).reshape(tail._STUDIES, tail._EACH)
    centre, wide = ratios.mean(axis=1), ratios.std(axis=1, ddof=1) + 1e-9
    limit = np.quantile((ratios - centre[:, None]) / wide[:, None], 1 - level)
    own = centre + (limit + shift + rng.standard_normal(tail._STUDIES)) * wide
    whole = own > centre + limit * wide
    found = group._apart(own, fits, normal, level)
    enough = power.in_report(group.options.power)
    assert (found.mean() >= enough) == (whole.mean() >= enough) == (shift > 0)
    assert (found == whole).all() or found.mean() < enough


@pytest.mark.parametrize(("sizes", "columns"), [([2] * 12, 12), ([9, 9, 9], 3), ([1, 5, 12], 3)])
def test_what_groups_share_is_the_same_by_tasks_and_by_columns(sizes: list[int], columns: int) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.eye(len(sizes))[groups][:, :columns]
    matrix[:, 0] = 1
    whole = np.column_stack([matrix, np.random.default_rng(1).standard_normal(len(groups))])
    uneven = Uneven(whole, groups)
    parts = [uneven._q[groups == g].T @ uneven._q[groups == g] for g in range(len(sizes))]
    expected = [[float((a * b).sum()) for b in parts] for a in parts]
    assert uneven._shared() == pytest.approx(np.array(expected), abs=1e-12)
    variances = np.linspace(1, 4, len(sizes))
    own = np.linalg.qr(np.random.default_rng(2).standard_normal((len(groups), 4)))[0]
    pieces = [v * own[groups == g].T @ own[groups == g] for g, v in enumerate(variances)]
    each = np.array([(p**2).sum() for p in pieces])
    freedom = np.where(uneven._known, np.diag(uneven._holds), uneven.freedom)
    rest = float((sum(pieces) ** 2).sum()) - float((each * 2 / (freedom + 2)).sum())
    lost = float((each * 2 / freedom).sum() / each.sum())
    box = np.clip(np.trace(sum(pieces)) ** 2 / rest - lost, 1, 4)
    assert uneven.box(own, variances) == pytest.approx(box)


def test_no_more_studies_are_asked_for_than_decide() -> None:
    asked: list[int] = []

    def told(places: np.ndarray) -> np.ndarray:
        asked.extend(places)
        return places % 2 == 0

    assert power.narrowed(told, 0.8).mean() < power.in_report(0.8)
    assert asked == list(range(100))
    assert power.narrowed(lambda places: places != 3, 0.8).sum() == power.STUDIES - 1
