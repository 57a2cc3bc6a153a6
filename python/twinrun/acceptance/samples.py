"""Samples of one field at one step: statistics of each run, and the distances between all runs.

Elements are read in pieces, from all runs at once, so that a field of any size needs bounded
memory. Differences are taken before anything is squared: a difference in the last digit is not lost
beside the values themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import Incomparable

__all__ = ["STATISTICS", "Sample", "Sums", "sample_of"]

# Statistics of the elements of a field: their mean, their standard deviation, and the root mean
# square of the differences between neighbours in storage. The last one sees changes of small scales
# that keep mean and deviation.
STATISTICS = ("mean", "deviation", "roughness")


@dataclass
class Sample:
    """One field at one step in all runs, the reference runs first.

    values: (runs, statistics); a column is NaN where it is not known. squares: (runs, runs), the
    mean squared difference of elements; None where the runs hold their elements in unknown orders.
    size: the root mean square of the reference runs' values. rounding: the relative precision of
    the coarsest element type; 0 for integers. elements: of each run that were compared. broken: new
    runs with a value that is not a number where reference runs have numbers, and how many.
    """

    step: int | None
    field: str
    values: np.ndarray
    squares: np.ndarray | None
    size: float
    rounding: float
    elements: int
    broken: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def distances(self) -> np.ndarray:
        """The root mean square of the differences between runs."""
        assert self.squares is not None
        return np.sqrt(self.squares)

    @property
    def floor(self) -> float:
        """Differences below it may be the rounding of the values alone."""
        return 8 * self.rounding * self.size


class Sums:
    """Sums over the elements of one field at one step, of all runs, piece by piece.

    references: how many of the runs are reference runs; they come first. matched: whether elements
    at the same place belong together.
    """

    def __init__(self, runs: int, references: int, matched: bool = True) -> None:
        self._runs, self._references, self._matched = runs, references, matched
        self._count = 0
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

    def add(self, piece: np.ndarray) -> None:
        """Adds elements: (runs, elements) of float64, the same elements of each run.

        Raises Incomparable where a reference run holds a value that is not a number, and not all runs do.
        """
        finite = np.isfinite(piece)
        if not finite.all():
            piece = self._numbers(piece, finite)
        count = piece.shape[1]
        if not count:
            return
        mean = piece.mean(axis=1)
        total = self._count + count
        with np.errstate(over="ignore", invalid="ignore"):
            inside = ((piece - mean[:, None]) ** 2).sum(axis=1)
            moved = mean - self._mean
            self._squares += inside + moved**2 * (self._count * count / total)
            self._mean += moved * (count / total)
            if count > 1:
                self._rough += (np.diff(piece, axis=1) ** 2).sum(axis=1)
                self._pairs += count - 1
            self._size += float((piece[: self._references] ** 2).sum()) / self._references
            if self._matched:
                away = piece - piece[0]
                self._shift += away.sum(axis=1)
                self._gram += away @ away.T
        self._base += (float(mean[0]) - self._base) * (count / total)
        self._count = total

    def _numbers(self, piece: np.ndarray, finite: np.ndarray) -> np.ndarray:
        """The elements that are numbers in all runs; counts the others, or raises the error."""
        # As the land in a field of the sea: in every run there is no number.
        nowhere = ~finite.any(axis=0)
        wrong = ~finite[:, ~nowhere]
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

    def sample(self, step: int | None, name: str, rounding: float) -> Sample:
        """All of it. Raises Incomparable where squares of the values are too large for float64."""
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
            with np.errstate(invalid="ignore", over="ignore"):
                squares = np.maximum(own[:, None] + own[None, :] - 2 * self._gram, 0.0) / count
            np.fill_diagonal(squares, 0.0)
            squares = (squares + squares.T) / 2
        size = math.sqrt(self._size / count) if math.isfinite(self._size) else math.inf
        far = squares is not None and not np.isfinite(squares).all()
        if far or not math.isfinite(size) or np.isinf(values).any():
            raise Incomparable(
                "its values are too large: their squares exceed float64", fix="leave it out with --leave-out"
            )
        return Sample(step, name, values, squares, size, rounding, self._count, self._broken)


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
    sums = Sums(runs, references, matched)
    for piece in pieces:
        sums.add(piece)
    return sums.sample(step, name, rounding)
