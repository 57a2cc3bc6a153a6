"""Exact tests: do the new runs belong to the distribution of the reference runs?

If they do, which runs are called new is arbitrary, and every choice of as many runs out of all is
as likely. A statistic of the real choice is held against the same statistic of all choices (or of
many, drawn at random), so that no distribution of the data is assumed, and dependences between
fields and steps are kept. Five statistics look for five kinds of difference; the sum of their
inverse p values (a harmonic mean) is again held against that of all choices, so that the report has
one rate of false alarms.

They take up the published ensemble tests: standardised means and principal components (CESM-ECT:
Baker et al., GMD 8, 2015; Milroy et al., GMD 11, 2018; Price-Broncucia et al., GMD 18, 2025), and
Kolmogorov-Smirnov statistics over all fields (Mahajan et al., ICCS 2017). Their thresholds, which
need normal scores and hundreds of runs, are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

__all__ = ["Tested", "arrangements", "test", "zscores"]

_COLUMNS = 256  # statistics that are handled at a time
_EXPLAINED = 0.95  # share of the variance that the components hold, as in Price-Broncucia et al.
_NOTHING = 1e-12  # of variances of columns whose variance over all runs is 1
_TIE = 1e-9  # relative: equal statistics must not differ by rounding


@dataclass
class Tested:
    """p: of the whole test. by_kind: the p value of each statistic alone. ways: choices of new
    runs, the real one included; exact: whether these are all there are. scores: (columns,) the
    standardised difference of each column. adjusted: its p value, corrected for all columns.
    threshold: of scores, at alpha. components: how many.
    loadings: (columns,) of the component that is farthest off. ratios: of each field's distances,
    new to reference against reference to reference. singles: with one new run, the p value of each
    run in its place, in the order of the rows.
    """

    p: float
    by_kind: dict[str, float]
    ways: int
    exact: bool
    scores: np.ndarray
    adjusted: np.ndarray
    threshold: float
    components: int
    loadings: np.ndarray
    ratios: np.ndarray
    singles: np.ndarray | None


def arrangements(references: int, new: int) -> int:
    """In how many ways new runs can be chosen out of all."""
    return math.comb(references + new, new)


def _choices(real: np.ndarray, most: int, seed: int) -> tuple[np.ndarray, bool]:
    """(ways, runs) whether a run is called new; the first row is the real choice. And whether these
    are all.
    """
    runs, new = real.size, int(real.sum())
    total = math.comb(runs, new)
    if total <= most + 1:
        chosen = np.zeros((total, runs), bool)
        for row, one in enumerate(combinations(range(runs), new)):
            chosen[row, list(one)] = True
        at = int((chosen == real).all(axis=1).argmax())
        chosen[[0, at]] = chosen[[at, 0]]
        return chosen, True
    rng = np.random.default_rng(seed)
    drawn = np.argsort(rng.random((most, runs)), axis=1)[:, :new]
    chosen = np.zeros((most + 1, runs), bool)
    chosen[0] = real
    np.put_along_axis(chosen[1:], drawn, True, axis=1)
    return chosen, False


def _in_own_order(columns: np.ndarray, squares: Sequence[np.ndarray]) -> np.ndarray:
    """The runs in an order that follows from their values alone: the results of rounding do not
    know which are new.
    """
    keys = [*(square.sum(axis=1) for square in squares[:1]), *columns.T[:8]]
    return np.lexsort(keys) if keys else np.arange(columns.shape[0])


def zscores(columns: np.ndarray, floors: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(ways, columns): the difference between the means of both groups, in its standard error by
    the reference group.

    floors: what is never a difference, in the unit of each column.
    """
    new = chosen[0].sum()
    rest = chosen.shape[1] - new
    pick = chosen.astype(np.float64)
    mean_new = pick @ columns / new
    mean_rest = (columns.sum(axis=0) - new * mean_new) / rest
    squares = (columns**2).sum(axis=0) - pick @ columns**2
    variance = _variance(squares, mean_rest, rest)
    error = np.sqrt(variance * (1 / new + 1 / rest) + floors**2)
    return _ratio(np.abs(mean_new - mean_rest), error)


def _variance(squares: np.ndarray, mean: np.ndarray, count: int) -> np.ndarray:
    """Of columns of order 1: what rounding leaves of equal values is 0."""
    found = (squares - count * mean**2) / (count - 1)
    return np.where(found < _NOTHING, 0.0, found)


def _ratio(difference: np.ndarray, error: np.ndarray) -> np.ndarray:
    """0 / 0 is not a difference. The columns are of order 1, so that 1e-12 is rounding."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = difference / error
    return np.where(difference <= 1e-12, 0.0, np.nan_to_num(found, nan=0.0, posinf=math.inf))


def _alone(columns: np.ndarray, floors: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(ways,): how far the run that is farthest off lies from the reference group, over all columns."""
    new = chosen[0].sum()
    rest = chosen.shape[1] - new
    pick = chosen.astype(np.float64)
    sums = pick @ columns
    mean = (columns.sum(axis=0) - sums) / rest
    squares = (columns**2).sum(axis=0) - pick @ columns**2
    error = np.sqrt(_variance(squares, mean, rest) * (1 + 1 / rest) + floors**2)
    farthest = np.zeros(len(chosen))
    for run in range(chosen.shape[1]):
        rows = np.flatnonzero(chosen[:, run])
        off = _ratio(np.abs(columns[run] - mean[rows]), error[rows]).max(axis=1)
        farthest[rows] = np.maximum(farthest[rows], off)
    return farthest


def _smirnov(columns: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(ways,): the sum over columns of the largest distance between the two empirical distributions."""
    new = chosen[0].sum()
    rest = chosen.shape[1] - new
    order = np.argsort(columns, axis=0, kind="stable")
    ranked = np.take_along_axis(columns, order, axis=0)
    # Not within ties.
    ends = np.vstack([ranked[1:] > ranked[:-1], np.zeros((1, columns.shape[1]), bool)])
    below = np.zeros((len(chosen), columns.shape[1]))
    largest = np.zeros_like(below)
    for place in range(chosen.shape[1]):
        below += chosen[:, order[place]]
        off = np.abs(below / new - (place + 1 - below) / rest)
        np.maximum(largest, np.where(ends[place], off, 0.0), out=largest)
    return largest.sum(axis=1)


def _components(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all runs on the components of all runs (runs, k), and the components (columns, k).

    All runs take part, so that the names of the runs do not matter.
    """
    runs = columns.shape[0]
    values, vectors = np.linalg.eigh(columns @ columns.T)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    if values.sum() <= 0:
        return np.zeros((runs, 0)), np.zeros((columns.shape[1], 0))
    enough = int(np.searchsorted(np.cumsum(values) / values.sum(), _EXPLAINED)) + 1
    # With nearly as many components as runs, every run is an outlier in some direction.
    k = max(1, min(enough, (runs - 1) // 3, int((values > values[0] * 1e-12).sum())))
    return vectors[:, :k] * np.sqrt(values[:k]), columns.T @ vectors[:, :k]


def _distances(squares: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    """(ways, fields): how far new runs are from reference runs, as a logarithm of the ratio to the
    distance among these.
    """
    new = chosen[0].sum()
    rest = chosen.shape[1] - new
    pick = chosen.astype(np.float64)
    found = np.zeros((len(chosen), len(squares)))
    for at, square in enumerate(squares):
        across = pick @ square
        whole = square.sum(axis=1)
        among = (pick * across).sum(axis=1)
        between = pick @ whole - among
        inside = whole.sum() - 2 * between - among
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(between / (new * rest)) - np.log(inside / (rest * (rest - 1)))
        found[:, at] = np.nan_to_num(ratio, nan=0.0, posinf=700.0, neginf=-700.0)
    return found


def _ranks(statistic: np.ndarray) -> np.ndarray:
    """For each way the share of ways whose statistic is at least as large."""
    rounded = np.where(np.isfinite(statistic), statistic * (1 - _TIE), statistic)
    ordered = np.sort(statistic)
    return (statistic.size - np.searchsorted(ordered, rounded, side="left")) / statistic.size


def _by_column(
    scaled: np.ndarray, bottom: np.ndarray, chosen: np.ndarray, alone: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Statistics of all columns: {name: of each way}, and the score of each column as it was run.

    alone: also of the new run that is farthest off.
    """
    statistics = {"mean": np.zeros(len(chosen)), "Kolmogorov-Smirnov": np.zeros(len(chosen))}
    if alone:
        statistics["single run"] = np.zeros(len(chosen))
    scores = np.zeros(scaled.shape[1])
    for start in range(0, scaled.shape[1], _COLUMNS):
        part, low = scaled[:, start : start + _COLUMNS], bottom[start : start + _COLUMNS]
        found = zscores(part, low, chosen)
        scores[start : start + _COLUMNS] = found[0]
        np.maximum(statistics["mean"], found.max(axis=1), out=statistics["mean"])
        statistics["Kolmogorov-Smirnov"] += _smirnov(part, chosen)
        if alone:
            farthest = _alone(part, low, chosen)
            np.maximum(statistics["single run"], farthest, out=statistics["single run"])
    return statistics, scores


def test(
    columns: np.ndarray,
    floors: np.ndarray,
    squares: Sequence[np.ndarray],
    new: int,
    *,
    alpha: float,
    permutations: int,
    seed: int,
) -> Tested:
    """Tests whether the last `new` runs belong to the others.

    columns: (runs, columns) of statistics. floors: see `zscores`. squares: of each field at each
    step (runs, runs), the mean squared differences of elements.
    """
    runs = columns.shape[0]
    order = _in_own_order(columns, squares)
    columns, squares = columns[order], [square[np.ix_(order, order)] for square in squares]
    chosen, exact = _choices(order >= runs - new, permutations, seed)
    centre = columns.mean(axis=0)
    scale = columns.std(axis=0)
    kept = scale > 0
    scaled = np.zeros_like(columns)
    scaled[:, kept] = (columns[:, kept] - centre[kept]) / scale[kept]
    bottom = np.zeros(columns.shape[1])
    bottom[kept] = floors[kept] / scale[kept]
    # One bad run is new in new / runs of all choices, and its p value cannot be smaller.
    alone = new > 1 and new <= alpha * runs
    statistics, scores = _by_column(scaled, bottom, chosen, alone)
    # Values below the floor are noise of rounding: they must not make components.
    heard = kept & (scale > floors)
    on_components, loadings = _components(scaled[:, heard])
    worst = np.zeros(columns.shape[1])
    if on_components.shape[1]:
        found = zscores(on_components, np.zeros(on_components.shape[1]), chosen)
        statistics["principal components"] = (found**2).sum(axis=1)
        worst[heard] = np.abs(loadings[:, int(found[0].argmax())])
    ratios = np.zeros(len(squares))
    if squares and runs - new > 1:
        found = _distances(squares, chosen)
        statistics["distance"] = found.mean(axis=1)
        ratios = np.exp(found[0] / 2)
    shares = {name: _ranks(values) for name, values in statistics.items()}
    # The smallest p value counts most, and the others break ties: of few choices, many are the most
    # extreme in something.
    joined = np.sum([1 / share for share in shares.values()], axis=0)
    singles = None
    if new == 1 and exact:
        singles = np.empty(runs)
        singles[order[chosen.argmax(axis=1)]] = _ranks(joined)
    largest = np.sort(statistics["mean"])
    adjusted = (largest.size - np.searchsorted(largest, scores * (1 - _TIE), side="left")) / largest.size
    return Tested(
        p=float(_ranks(joined)[0]),
        by_kind={name: float(share[0]) for name, share in shares.items()},
        ways=len(chosen),
        exact=exact,
        scores=scores,
        adjusted=adjusted,
        threshold=float(np.quantile(largest, 1 - alpha, method="higher")),
        components=on_components.shape[1],
        loadings=worst,
        ratios=ratios,
        singles=singles,
    )
