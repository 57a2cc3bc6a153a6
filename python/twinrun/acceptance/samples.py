"""Samples of one field at one step: statistics of each run, and the distances between all runs.

Elements are read in pieces, from all runs at once, so that a field of any size needs bounded
memory. Differences are taken before anything is squared: a difference in the last digit is not lost
beside the values themselves. Nor is one of very small numbers: numbers whose squares would leave the
range of float64 are divided by a power of two first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import Incomparable

__all__ = ["ROUNDINGS", "STATISTICS", "Sample", "Sums", "Unequal", "sample_of"]

# So many units of rounding are no difference: an operation in another order makes a few of them.
ROUNDINGS = 8
# Binary exponents of numbers that are squared as they are: differences in their last digit, squared
# and summed, stay within the range of float64.
_SQUARED = 400
_EXACT = 2.0**62  # differences of 64-bit integers below it are taken exactly

# Statistics of the elements of a field: their mean, their standard deviation, and the root mean
# square of the differences between neighbours in storage. The last one sees changes of small scales
# that keep mean and deviation.
STATISTICS = ("mean", "deviation", "roughness")


@dataclass(frozen=True)
class Unequal:
    """How a new run differs where all reference runs are equal.

    most: the largest difference of an element; of elements in unknown orders, of their mean or
    deviation. beyond: the largest that the rounding of the element itself does not explain; 0
    without any. count: elements that differ; 0 where that is unknown.
    """

    most: float
    beyond: float
    count: int


@dataclass
class Sample:
    """One field at one step in all runs, the reference runs first.

    values: (runs, statistics); a column is NaN where it is not known. squares: (runs, runs), the
    mean squared difference of elements; None where the runs hold their elements in unknown orders.
    size: the root mean square of the reference runs' values. rounding: the relative precision of
    the coarsest element type; 0 for integers. elements: of each run that were compared. broken: new
    runs with a value that is not a number where reference runs have numbers, or another one than
    theirs, and how many. equal: whether all reference runs are equal. unequal: then, the new runs
    that are not. exponent: values, squares and size are in units of 2**exponent, 0 for most fields.
    """

    step: int | None
    field: str
    values: np.ndarray
    squares: np.ndarray | None
    size: float
    rounding: float
    elements: int
    broken: dict[int, int] = dataclasses.field(default_factory=dict)
    equal: bool = False
    unequal: dict[int, Unequal] = dataclasses.field(default_factory=dict)
    exponent: int = 0

    def in_units(self, exponent: int) -> Sample:
        """The same in units of 2**exponent."""
        by = self.exponent - exponent
        if not by:
            return self
        return dataclasses.replace(
            self,
            values=np.ldexp(self.values, by),
            squares=None if self.squares is None else np.ldexp(self.squares, 2 * by),
            size=math.ldexp(self.size, by),
            exponent=exponent,
        )

    @property
    def distances(self) -> np.ndarray:
        """The root mean square of the differences between runs."""
        assert self.squares is not None
        return np.sqrt(self.squares)

    @property
    def floor(self) -> float:
        """Differences below it may be the rounding of the values alone."""
        return ROUNDINGS * self.rounding * self.size


class Sums:
    """Sums over the elements of one field at one step, of all runs, piece by piece.

    references: how many of the runs are reference runs; they come first. matched: whether elements
    at the same place belong together. rounding: see `Sample`.
    """

    def __init__(self, runs: int, references: int, matched: bool = True, rounding: float = 0.0) -> None:
        self._runs, self._references, self._matched = runs, references, matched
        self._rounding = rounding
        self._count = 0
        self._exponent: int | None = None  # all sums are of values / 2**exponent; None: of zeros only
        self._base = 0.0  # mean of the first run
        # Mean difference to the first run, where matched; otherwise the mean itself.
        self._shift = np.zeros(runs)
        self._mean = np.zeros(runs)
        self._squares = np.zeros(runs)  # sum of squared deviations from the mean
        self._rough = np.zeros(runs)
        self._pairs = 0
        self._gram = np.zeros((runs, runs))
        self._size = 0.0
        self._broken: dict[int, int] = {}
        # Of reference runs that are equal so far: differences of new runs to them.
        self._equal = True
        self._most = np.zeros(runs - references)
        self._beyond = np.zeros(runs - references)
        self._unequal = np.zeros(runs - references, np.int64)
        self._elements = np.zeros(runs, np.uint64)  # a digest of each run that no order changes

    def add(self, piece: np.ndarray) -> None:
        """Adds elements, the same of each run: (runs, elements) of float64, or of 64-bit integers.

        Raises Incomparable where a reference run holds a value that is not a number, and not all runs do.
        """
        if piece.dtype.kind == "f":
            finite = np.isfinite(piece)
            if not finite.all():
                piece = self._numbers(piece, finite)
        if not piece.shape[1]:
            return
        if not self._matched:
            self._elements += _mixed(piece)
        away = _differences(piece) if self._matched else None
        if away is not None and self._equal:
            self._compare(piece[0], away)
        by = -self._scale(piece)
        piece = piece.astype(np.float64, copy=False)
        if by:
            piece = np.ldexp(piece, by)
            away = None if away is None else np.where(np.isinf(away), piece - piece[0], np.ldexp(away, by))
        self._sum(piece, away)

    def _sum(self, piece: np.ndarray, away: np.ndarray | None) -> None:
        count = piece.shape[1]
        mean = piece.mean(axis=1)
        total = self._count + count
        inside = ((piece - mean[:, None]) ** 2).sum(axis=1)
        moved = mean - self._mean
        self._squares += inside + moved**2 * (self._count * count / total)
        self._mean += moved * (count / total)
        if count > 1:
            self._rough += (np.diff(piece, axis=1) ** 2).sum(axis=1)
            self._pairs += count - 1
        self._size += float((piece[: self._references] ** 2).sum()) / self._references
        if away is not None:
            self._shift += away.sum(axis=1)
            self._gram += away @ away.T
        self._base += (float(mean[0]) - self._base) * (count / total)
        self._count = total

    def _scale(self, piece: np.ndarray) -> int:
        """The exponent that this piece and all earlier ones can be squared with."""
        largest = max(float(piece.max()), -float(piece.min()))
        if largest:
            own = math.frexp(largest)[1]
            own = own if abs(own) > _SQUARED else 0
            if self._exponent is None or own > self._exponent:
                by = 0 if self._exponent is None else self._exponent - own
                for linear in (self._shift, self._mean):
                    np.ldexp(linear, by, out=linear)
                for square in (self._squares, self._rough, self._gram):
                    np.ldexp(square, 2 * by, out=square)
                self._size, self._base = math.ldexp(self._size, 2 * by), math.ldexp(self._base, by)
                self._exponent = own
        return self._exponent or 0

    def _compare(self, first: np.ndarray, away: np.ndarray) -> None:
        """Whether the reference runs are equal in this piece too, and how far new runs are from them."""
        if away[: self._references].any():
            self._equal = False
            return
        off = np.abs(away[self._references :])
        self._unequal += np.count_nonzero(off, axis=1)
        np.maximum(self._most, off.max(axis=1), out=self._most)
        off[off <= ROUNDINGS * self._rounding * np.abs(first)] = 0.0
        np.maximum(self._beyond, off.max(axis=1), out=self._beyond)

    def _numbers(self, piece: np.ndarray, finite: np.ndarray) -> np.ndarray:
        """The elements that are numbers in all runs; counts the others, or raises the error."""
        # As the land in a field of the sea: in every run there is no number.
        nowhere = ~finite.any(axis=0)
        wrong = ~finite
        wrong[:, nowhere] = _other_kind(piece[:, nowhere], self._references)
        for run in range(self._references):
            if wrong[run].any():
                raise Incomparable(
                    f"{int(wrong[run].sum())} values are not numbers (NaN or infinite) where other runs have numbers",
                    fix="leave the run out, or the field with --leave-out",
                )
        for run in range(self._references, self._runs):
            if wrong[run].any():
                self._broken[run] = self._broken.get(run, 0) + int(wrong[run].sum())
        return piece[:, finite.all(axis=0)]

    def sample(self, step: int | None, name: str) -> Sample:
        """All of it."""
        values = np.full((self._runs, len(STATISTICS)), math.nan)
        squares = None
        count = max(self._count, 1)
        if self._count:
            values[:, 0] = self._base + self._shift / count if self._matched else self._mean
            if self._count > 1:
                values[:, 1] = np.sqrt(self._squares / count)
            if self._pairs and self._matched:
                values[:, 2] = np.sqrt(self._rough / self._pairs)
        if self._matched:
            own = np.diag(self._gram)
            squares = np.maximum(own[:, None] + own[None, :] - 2 * self._gram, 0.0) / count
            np.fill_diagonal(squares, 0.0)
            squares = (squares + squares.T) / 2
        size = math.sqrt(self._size / count)
        found = Sample(
            step, name, values, squares, size, self._rounding, self._count, self._broken, exponent=self._exponent or 0
        )  # fmt: skip
        found.equal, found.unequal = self._of_equal(values, size)
        return found

    def _of_equal(self, values: np.ndarray, size: float) -> tuple[bool, dict[int, Unequal]]:
        """Whether all reference runs are equal, and how the new runs differ from them."""
        own = self._references
        if not self._matched:
            self._equal = bool((self._elements[:own] == self._elements[0]).all())
            off = np.nan_to_num(np.abs(values[own:, :2] - values[0, :2])).max(axis=1, initial=0.0)
            off[self._elements[own:] == self._elements[0]] = 0.0
            # Their sums, too, are in another order.
            rounds = ROUNDINGS * max(self._rounding, 2.0**-53) * size
            self._most = np.ldexp(off, self._exponent or 0)
            self._beyond = np.where(off > rounds, self._most, 0.0)
        if not self._equal:
            return False, {}
        found = {
            own + k: Unequal(float(self._most[k]), float(self._beyond[k]), int(self._unequal[k]))
            for k in range(self._runs - own)
            if self._most[k]
        }
        return True, found


def _differences(piece: np.ndarray) -> np.ndarray:
    """Of each run to the first, as float64. Those of 64-bit integers are exact before they are rounded."""
    if piece.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return piece - piece[0]
    away = piece.astype(np.float64)
    away = away - away[0]
    with np.errstate(over="ignore"):
        exact = (piece - piece[0]).view(np.int64)
    return np.where(np.abs(away) < _EXACT, exact.astype(np.float64), away)


def _other_kind(piece: np.ndarray, references: int) -> np.ndarray:
    """(runs, elements): of elements that are numbers in no run, whether a run has NaN, infinity or
    -infinity where no reference run has the same.
    """
    kinds = np.where(np.isnan(piece), 0, np.sign(piece))
    known = [(kinds[:references] == kind).any(axis=0) & (kinds == kind) for kind in (-1, 0, 1)]
    return ~np.any(known, axis=0)


def _mixed(piece: np.ndarray) -> np.ndarray:
    """(runs,) a digest of the elements of each run: the sum of their bits, mixed as by SplitMix64, so
    that equal elements in another order have the same.
    """
    bits = (piece + 0 if piece.dtype.kind == "f" else piece).view(np.uint64)  # -0 and 0 are equal
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (bits ^ (bits >> np.uint64(31))).sum(axis=1, dtype=np.uint64)


def sample_of(
    pieces: Iterable[np.ndarray],
    runs: int,
    references: int,
    step: int | None,
    name: str,
    rounding: float,
    matched: bool = True,
) -> Sample:
    """The sample of a field whose elements come in pieces; see `Sums`."""
    sums = Sums(runs, references, matched, rounding)
    for piece in pieces:
        sums.add(piece)
    return sums.sample(step, name)
