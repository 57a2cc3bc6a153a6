"""Means, deviations and coefficients of variation with intervals, and their ratios.

Everything here is a product of powers of means and standard deviations of columns: the logarithm is a sum,
and its standard error is known from the influence of each block. Blocks (rows) are resampled together,
because their runs share what the machine did meanwhile; the resampled statistic, studentized by its own
error, gives the interval (bootstrap-t: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section
12.5). With 10 blocks of normal or lognormal values, intervals of 95% hold the true mean in 94 to 96% and the
true coefficient of variation in 92 to 94% of simulations; percentiles of the same resamples hold them in 90
and 78%. With fewer than five blocks there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import bootstrap
from ..words import significant

__all__ = [
    "LEAST",
    "Interval",
    "deviation",
    "mean",
    "median",
    "ratio_of_deviations",
    "ratio_of_means",
    "ratio_of_variations",
    "variation",
]

LEAST = 5  # blocks
RESAMPLES = 1999
_ROUNDING = 1e-12  # of logarithms: x and 2 x differ only by rounding


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    >>> from twinrun.ensemble.intervals import mean
    >>> rng = np.random.default_rng(1)
    >>> found = mean(rng.normal(10.0, 1.0, size=20))
    >>> found.low < 10 < found.high, found.blocks
    (True, 20)

    Attributes
    ----------
    value : float
        The estimate; NaN where it is not known.
    low, high : float
        The ends of the interval, infinite where they are not known.
    blocks : int
        How many blocks of runs it rests on.
    confidence : float
        With which probability the interval holds the true value.
    known : bool
        Whether there is an interval.
    half_width : float
        Half of its width.

    Notes
    -----
    Bootstrap-t over blocks: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5.
    """

    value: float
    low: float
    high: float
    blocks: int
    confidence: float = 0.95

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.high) and math.isfinite(self.low)

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    def within(self, half_width: float) -> bool:
        """Whether the interval is not wider than value +- half_width.

        Parameters
        ----------
        half_width : float
            In the unit of the value.

        Returns
        -------
        bool
            False also where there is no interval.
        """
        return self.known and self.half_width <= half_width

    def loss(self) -> Interval:
        """1 - x, for a ratio x.

        Returns
        -------
        Interval
            Of the loss.
        """
        return Interval(1 - self.value, 1 - self.high, 1 - self.low, self.blocks, self.confidence)

    def json(self) -> dict:
        """The interval for strict JSON: null for what is not known.

        Returns
        -------
        dict
            value, low, high, confidence, blocks.
        """
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {
            **{k: v if math.isfinite(v) else None for k, v in numbers.items()},
            "confidence": self.confidence,
            "blocks": self.blocks,
        }

    @classmethod
    def of(cls, x: Mapping) -> Interval:
        """Makes the interval of what `json` gave.

        Parameters
        ----------
        x : dict
            value, low, high, confidence, blocks.

        Returns
        -------
        Interval
            The same interval.
        """
        unknown = {"value": math.nan, "low": -math.inf, "high": math.inf}
        numbers = {k: unknown[k] if x[k] is None else x[k] for k in unknown}
        return cls(**numbers, blocks=x["blocks"], confidence=x["confidence"])

    def bars(self, scale: float = 1.0) -> tuple[float, float]:
        """Lengths of error bars for a picture.

        Parameters
        ----------
        scale : float, default 1
            A factor, such as 100 for percent.

        Returns
        -------
        (float, float)
            Down and up; 0 where there is no interval.
        """
        if not self.known:
            return 0.0, 0.0
        return scale * (self.value - self.low), scale * (self.high - self.value)

    def text(self, scale: float = 1.0, unit: str = "", digits: int = 3, marks: Sequence[float] = ()) -> str:
        """The interval as text: '12.3% [8.1, 20.4]'.

        Parameters
        ----------
        scale : float, default 1
            A factor, such as 100 for percent.
        unit : str, default ''
            What follows the value.
        digits : int, default 3
            Significant digits.
        marks : sequence of float, default ()
            Values that no end is rounded onto or across, such as 1 of a ratio; more digits are written then.

        Returns
        -------
        str
            '?' stands for a value that is not known; without an interval the text says so.
        """

        def number(x: float) -> str:
            if not math.isfinite(x):
                return "?"
            return (
                f"{x * scale:.0f}"
                if 100 <= abs(x * scale) < 1e6
                else significant(x * scale, digits, [m * scale for m in marks])
            )

        interval = f"[{number(self.low)}, {number(self.high)}]" if self.known else "(no interval)"
        return f"{number(self.value)}{unit} {interval}"


def _estimate(
    columns: Sequence[Sequence[float]],
    means: Sequence[float],
    deviations: Sequence[float],
    confidence: float,
    resamples: int,
) -> Interval:
    """prod mean_j^means_j * deviation_j^deviations_j over columns of equal length, all positive."""
    data = np.asarray(columns, dtype=np.float64).T
    n = len(data)
    uses_deviation = any(deviations)
    nothing = Interval(math.nan, 0.0, math.inf, n, confidence)
    if n == 0 or (uses_deviation and n == 1):
        return nothing
    samples = data[bootstrap.drawn(n, resamples, np.random.default_rng(bootstrap.SEED))]
    m = samples.mean(axis=1)
    d = samples - m[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        influence = (d / m[:, None, :]) @ np.asarray(means, dtype=np.float64)
        statistic = np.log(m) @ np.asarray(means, dtype=np.float64)
        if uses_deviation:
            b = np.asarray(deviations, dtype=np.float64)
            used = b != 0
            variance = (d[:, :, used] ** 2).mean(axis=1)
            influence = influence + ((d[:, :, used] ** 2 / variance[:, None, :] - 1) / 2) @ b[used]
            statistic = statistic + np.log(np.sqrt(variance * n / (n - 1))) @ b[used]
        error = np.sqrt((influence**2).sum(axis=1) / (n * max(n - 1, 1)))
        error[error < _ROUNDING] = 0
    if not np.isfinite(statistic[0]):
        # No spread: the deviation is 0, and there is no interval.
        return Interval(0.0 if statistic[0] == -np.inf else math.nan, 0.0, math.inf, n, confidence)
    value = math.exp(statistic[0])
    if n < LEAST:
        return Interval(value, 0.0, math.inf, n, confidence)
    if error[0] == 0:
        return Interval(value, value, value, n, confidence)
    low, high = bootstrap.studentized(statistic, error, confidence)

    def bound(x: float) -> float:
        return math.exp(x) if x < 700 else math.inf

    return Interval(value, bound(low), bound(high), n, confidence)


def median(x: Sequence[float]) -> float:
    """The median."""
    if len(x) == 1:  # most often: a task of each condition in a block. NumPy takes a hundred times as long
        return float(x[0])
    return float(np.median(x))


def mean(x: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """The mean."""
    return _estimate([x], [1], [0], confidence, resamples)


def deviation(x: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """The standard deviation (n - 1)."""
    return _estimate([x], [0], [1], confidence, resamples)


def variation(x: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """The coefficient of variation: the standard deviation by the mean."""
    return _estimate([x], [-1], [1], confidence, resamples)


def ratio_of_means(
    x: Sequence[float], y: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """mean(x) / mean(y), x[i] and y[i] of the same block."""
    return _estimate([x, y], [1, -1], [0, 0], confidence, resamples)


def ratio_of_deviations(
    x: Sequence[float], y: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """deviation(x) / deviation(y), x[i] and y[i] of the same block."""
    return _estimate([x, y], [0, 0], [1, -1], confidence, resamples)


def ratio_of_variations(
    x: Sequence[float], y: Sequence[float], confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """variation(x) / variation(y), x[i] and y[i] of the same block."""
    return _estimate([x, y], [-1, 1], [1, -1], confidence, resamples)
