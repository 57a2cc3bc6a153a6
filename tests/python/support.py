"""What several Python tests use: an exact brute-force comparison to hold reports against."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from twinrun import FieldComparison
from twinrun.comparison import histogram_edges


def exceeds(a: float | int, b: float | int, atol: float, rtol: float) -> bool:
    """|a - b| > atol + rtol |a| in exact rational arithmetic; finite operands."""
    return abs(Fraction(a) - Fraction(b)) > Fraction(atol) + Fraction(rtol) * abs(Fraction(a))


def scalars(x: np.ndarray) -> np.ndarray:
    """The flattened array; complex numbers as pairs."""
    x = np.ascontiguousarray(x).reshape(-1)
    if x.dtype.kind == "c":
        return x.view(x.real.dtype)
    return x


def brute_force(a: np.ndarray, b: np.ndarray, atol: float, rtol: float, equal_nan: bool = True) -> dict:
    """What a report must say, found out one element at a time."""
    xs, ys = scalars(a), scalars(b)
    if xs.dtype.kind == "b":
        xs, ys = xs.astype(np.uint8), ys.astype(np.uint8)
    different = []
    diffs = np.zeros(xs.size)
    for i, (x, y) in enumerate(zip(xs.tolist(), ys.tolist(), strict=True)):
        nan_x, nan_y = x != x, y != y
        if nan_x or nan_y:
            same = nan_x and nan_y and equal_nan
            diffs[i] = 0 if same else np.inf
        elif abs(x) == np.inf or abs(y) == np.inf:
            same = x == y
            diffs[i] = 0 if same else np.inf
        else:
            tolerance = atol + rtol * abs(float(x))
            rough = abs(float(x) - float(y))
            # Exact rationals are slow: only where rounding could decide.
            if rough > tolerance * (1 + 1e-9) and rough > 1e-290 and abs(x) < 2**53 and abs(y) < 2**53:
                same = False
            else:
                same = x == y or not exceeds(x, y, atol, rtol)
            diffs[i] = float(abs(x - y)) if isinstance(x, int) else abs(float(x) - float(y))
        if not same:
            different.append(i)
    return {"different": different, "diffs": diffs, "a": xs, "b": ys}


def histogram(diffs: np.ndarray) -> list[int]:
    """Counts in the report's bins."""
    edges = np.array(histogram_edges())
    bins = np.zeros(len(edges) + 3, dtype=np.int64)
    finite = diffs[np.isfinite(diffs)]
    bins[0] = int((finite == 0).sum())
    positive = finite[finite > 0]
    np.add.at(bins, 1 + np.searchsorted(edges, positive, side="right"), 1)
    bins[-1] = int(np.isinf(diffs).sum())
    return bins.tolist()


def check_report(f: FieldComparison, a: np.ndarray, b: np.ndarray, equal_nan: bool = True) -> None:
    """The report of a field equals brute force, whatever the method."""
    truth = brute_force(a, b, f.atol, f.rtol, equal_nan)
    different, diffs = truth["different"], truth["diffs"]
    assert f.elements == diffs.size
    assert f.different == len(different)
    if different:
        first = different[0]
        item = first // 2 if a.dtype.kind == "c" else first
        index = tuple(int(i) for i in np.unravel_index(item, a.shape)) if a.ndim else ()
        assert f.first_index == index + ((first % 2,) if a.dtype.kind == "c" else ())
        x, y = truth["a"][first], truth["b"][first]
        for said, is_so in ((f.first_a, x), (f.first_b, y)):
            assert said == is_so.item() or (np.isnan(said) and np.isnan(is_so))
        over = diffs[different]
        assert f.infinite == int(np.isinf(over).sum())
        assert f.histogram_different == histogram(over)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            magnitude = np.abs(truth["a"][different].astype(np.float64))
            relative = np.where(np.isinf(over) | (magnitude == 0), np.inf, over / magnitude)
        assert f.max_rel_diff == relative.max()
        finite = over[np.isfinite(over)]
        if finite.size and np.square(finite).sum() < 1e300:
            assert np.isclose(f.rms_diff, np.sqrt(np.mean(np.square(finite))), rtol=1e-9)
    else:
        assert f.first_index is None
        assert sum(f.histogram_different) == 0
    # The maximum over everything: exact, or a bound that is one.
    largest = diffs.max(initial=0.0)
    if f.max_abs_diff is not None:
        if f.max_abs_diff_is_bound:
            assert largest <= f.max_abs_diff
        else:
            assert f.max_abs_diff == largest
    assert f.max_abs_diff_at_least <= largest
    if f.elements_read == f.elements:
        assert f.histogram == histogram(diffs)
        assert not f.max_abs_diff_is_bound
    assert f.elements_read + f.proven_by_tree + sum(f.proven_by_cells) == f.elements
