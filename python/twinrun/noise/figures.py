"""What lists of detours and counts show: shares of time, histograms, what comes back regularly.

No function here measures, or knows where its lists come from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core, bootstrap

__all__ = [
    "WINDOW_NS", "Peak", "core_figures", "difference_of_rounds", "histogram_of", "periodic", "share_interval",
    "share_of_round", "stolen_in_windows",
]  # fmt: skip

WINDOW_NS = 1_000_000  # in which the work of the loop of fixed time is counted


def stolen_in_windows(
    starts: np.ndarray, lengths: np.ndarray, begin: float, end: float, windows: int
) -> np.ndarray:
    """Time that detours take in each of several equal windows.

    >>> from twinrun import noise
    >>> noise.stolen_in_windows(np.array([5.0]), np.array([2.0]), 0, 10, windows=5)
    array([0., 0., 1., 1., 0.])

    Parameters
    ----------
    starts : array of float
        Where the detours begin, ascending. Detours do not overlap.
    lengths : array of float
        How long they are, in the unit of `begin` and `end`.
    begin, end : float
        The time that is divided.
    windows : int
        Into how many parts.

    Returns
    -------
    numpy.ndarray
        A time for each window. A detour over a border counts on both sides, exactly.
    """
    borders = np.linspace(begin, end, windows + 1)
    if len(starts) == 0:
        return np.zeros(windows)
    starts = np.asarray(starts, dtype=float)
    lengths = np.asarray(lengths, dtype=float)
    after = np.cumsum(lengths)
    # Taken until t: flat between detours, slope one within. A knot where each begins and one where
    # it ends.
    at: np.ndarray = np.ravel(np.column_stack([starts, starts + lengths]))
    taken = np.ravel(np.column_stack([after - lengths, after]))
    at = np.maximum.accumulate(at)  # roundings to whole nanoseconds
    return np.diff(np.interp(borders, at, taken))


def histogram_of(lengths: np.ndarray) -> list[int]:
    """Counts lengths by their power of two.

    >>> from twinrun import noise
    >>> noise.histogram_of(np.array([1, 2, 3, 9]))
    [1, 2, 0, 1]

    Parameters
    ----------
    lengths : array of int
        In nanoseconds.

    Returns
    -------
    list of int
        Entry k counts lengths with floor(log2) = k; entry 0 has those below 1 ns, too.
    """
    x = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    return np.bincount(np.frexp(x.astype(float))[1] - 1).tolist() if len(x) else []


def share_interval(
    shares: np.ndarray, confidence: float = 0.95, seed: int = 20171128
) -> tuple[float, float, float]:
    """The mean of shares of windows of time, with a bootstrap interval.

    >>> from twinrun import noise
    >>> noise.share_interval(np.full(8, 0.01))
    (0.01, 0.01, 0.01)

    Parameters
    ----------
    shares : array of float
        One for each window.
    confidence : float, default 0.95
        Of the interval.
    seed : int, default 20171128
        Of the resamples.

    Returns
    -------
    (float, float, float)
        Mean, low and high. With fewer than eight windows there is no interval, and the ends are NaN.

    Notes
    -----
    The BCa bootstrap of SciPy, percentiles where that has no answer.
    """
    x = np.asarray(shares, dtype=float)
    mean = float(x.mean()) if len(x) else math.nan
    if len(x) < 8:
        return mean, math.nan, math.nan
    if np.ptp(x) == 0:
        # All windows are equal: the data has nothing about events rarer than these windows.
        return mean, mean, mean
    low = high = np.array([math.nan])
    for method in ("BCa", "percentile"):
        if not np.isfinite([low, high]).all():
            low, high = bootstrap.interval(
                [len(x)],
                lambda rows: x[rows].mean(axis=-1),
                confidence=confidence,
                resamples=1999,
                rng=np.random.default_rng(seed),
                method=method,
            )
    return mean, float(low[0]), float(high[0])


@dataclass(frozen=True)
class Peak:
    """Something that comes back regularly.

    Attributes
    ----------
    hz : float
        How often, in Hz.
    p : float
        Its p value against noise without a line, corrected for all frequencies.
    ratio : float
        Its power over the typical power around it.
    """

    hz: float
    p: float
    ratio: float


def periodic(series: Sequence[np.ndarray], window: float) -> Peak | None:
    """Finds what comes back regularly: the fundamental of the strongest line of the averaged periodogram.

    >>> from twinrun import noise
    >>> rng = np.random.default_rng(1)
    >>> pulse = (np.arange(1000) % 10 == 0) + 0.01 * rng.normal(size=1000)
    >>> noise.periodic([pulse], window=0.001).hz
    100.0

    Parameters
    ----------
    series : sequence of array
        Counts in equal windows; series of fewer than 64 windows are left out.
    window : float
        The length of a window, in seconds.

    Returns
    -------
    Peak or None
        None where nothing can be decided: series are short, or nothing varies.

    Notes
    -----
    Each ordinate is compared with the mean of those around it, so that smooth noise of any colour
    is not a line: without a line the ratio has an F distribution. What comes back less than five
    times in a series is drift, and is left out.
    """
    from scipy import signal, stats

    usable = [np.asarray(s, dtype=float) for s in series if len(s) >= 64 and np.ptp(s) > 0]
    if not usable:
        return None
    length = min(map(len, usable))
    hz = np.fft.rfftfreq(length, window)[1 : length // 2]
    power = np.zeros(len(hz))
    for s in usable:
        own = signal.periodogram(s[:length], 1 / window, detrend="linear")[1][1 : length // 2]
        power += own / own.mean()  # each series has the same weight, however disturbed it was
    summed = np.concatenate([[0.0], np.cumsum(power)])
    at = np.arange(len(power))
    reach = np.clip(at // 3, 6, 50)
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(power))
    # Neighbours are left out: a line between two frequencies is in both.
    near_low, near_high = np.maximum(at - 1, 0), np.minimum(at + 2, len(power))
    count = (high - low) - (near_high - near_low)
    typical = ((summed[high] - summed[low]) - (summed[near_high] - summed[near_low])) / count
    ratio = power / np.maximum(typical, np.finfo(float).tiny)
    ratio[:4] = 0.0
    looked = len(ratio) - 4
    freedom = 2 * len(usable)
    p = stats.f.sf(ratio, freedom, freedom * count)
    p = -np.expm1(looked * np.log1p(-np.minimum(p, 1 - 1e-16)))  # Šidák, over frequencies
    strongest = int(np.argmin(np.where(ratio > 0, p - 1e-9 * ratio, 2.0)))
    # Short pulses have harmonics as strong as their fundamental: take the lowest line that divides
    # the strongest.
    for k in np.flatnonzero(p[: strongest + 1] <= 1e-3):
        times = round(hz[strongest] / hz[k])
        # A line lies within half a step of its place, and so does its multiple.
        if abs(hz[strongest] - times * hz[k]) <= (times + 1) * hz[0] / 2:
            return Peak(float(hz[k]), float(p[strongest]), float(ratio[k]))
    return Peak(float(hz[strongest]), float(p[strongest]), float(ratio[strongest]))


def difference_of_rounds(pairs: Sequence[tuple[float, float]], confidence: float) -> dict[str, float | None]:
    """Mean of first minus second with its t interval and p; null where fewer than three rounds have both."""
    from scipy import stats

    x = np.array([a - b for a, b in pairs], dtype=float)
    if len(x) < 3:
        return {"value": float(x.mean()) if len(x) else None, "low": None, "high": None, "p": None}
    value, spread = float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x)))
    if spread == 0:
        return {"value": value, "low": value, "high": value, "p": 1.0 if value == 0 else 0.0}
    reach = float(stats.t.ppf((1 + confidence) / 2, len(x) - 1)) * spread
    p = float(2 * stats.t.sf(abs(value) / spread, len(x) - 1))
    return {"value": value, "low": value - reach, "high": value + reach, "p": p}


def core_figures(
    rounds: Sequence[_core.CoreNoise], window: float = WINDOW_NS / 1e9, confidence: float = 0.95
) -> dict[str, Any]:
    """What the rounds of one core show. window: s."""
    return {
        "core": int(rounds[0].core),
        "loop_ns": float(np.median([r.undisturbed_ns for r in rounds])),
        "threshold_ns": float(np.median([r.threshold_ns for r in rounds])),
        **_detours(rounds, confidence),
        "fixed_work": _fixed_work(np.concatenate([r.work_ns for r in rounds])),
        "fixed_time": _fixed_time([r.window_work for r in rounds], window),
        "cut_short": any(r.full for r in rounds),
        "moved": any(r.moved for r in rounds),
    }


def _detours(rounds: Sequence[_core.CoreNoise], confidence: float) -> dict[str, Any]:
    """How many detours there were, how long they are, and which share of the time they took."""
    shares, lengths = [], []
    watched = stolen = waited = 0.0
    for r in rounds:
        begin, end = float(r.begin_ns), float(r.end_ns)
        lengths.append(r.lengths)
        watched += (end - begin) / 1e9
        stolen += float(r.lengths.sum()) / 1e9
        waited += max(float(r.run_queue_ns), 0.0) / 1e9
        # Up to twenty windows in a round, none shorter than 10 ms: a window must not cut a
        # scheduler's slice.
        windows = int(min(max((end - begin) // 10_000_000, 1), 20))
        if end > begin:
            taken = stolen_in_windows(r.starts, r.lengths, begin, end, windows)
            shares.append(taken / ((end - begin) / windows))
    every = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    mean, low, high = share_interval(np.concatenate(shares) if shares else np.zeros(0), confidence)
    known = all(r.run_queue_ns >= 0 for r in rounds)
    return {
        "watched_s": watched,
        "detours": len(every),
        "detours_per_s": len(every) / watched if watched > 0 else None,
        "share": stolen / watched if watched > 0 else None,
        "share_low": None if math.isnan(low) else min(low, mean),
        "share_high": None if math.isnan(high) else max(high, mean),
        "largest_ns": int(every.max()) if len(every) else 0,
        "histogram": histogram_of(every),
        # The share of detours in which the thread waited for the core while other threads used it.
        "run_queue_share": waited / watched if known and watched > 0 else None,
        "interruptions_per_s": sum(r.involuntary_switches for r in rounds) / watched if watched > 0 else None,
    }


def _fixed_work(pieces: np.ndarray) -> dict[str, Any] | None:
    """How long equal pieces of work took; None where there are none."""
    if not len(pieces):
        return None
    least = pieces.min()
    return {
        "pieces": len(pieces),
        "least_ns": int(least),
        "quantiles": {str(q): float(np.quantile(pieces, q) / least) for q in (0.5, 0.9, 0.99, 0.999, 1.0)},
        "share": float(1 - least / pieces.mean()),
    }


def _fixed_time(counts: Sequence[np.ndarray], window: float) -> dict[str, Any] | None:
    """How much work was done in equal windows of time; None where there was none."""
    done = np.concatenate(counts)
    if not len(done) or done.max() == 0:
        return None
    most, peak = done.max(), periodic(counts, window)
    return {
        "windows": len(done),
        "window_ns": int(window * 1e9),
        "most": int(most),
        "quantiles": {str(q): float(np.quantile(done, q) / most) for q in (0.0, 0.01, 0.1, 0.5)},
        "share": float(1 - done.mean() / most),
        "peak": None if peak is None else dataclasses.asdict(peak),
    }


def share_of_round(r: _core.CoreNoise) -> float:
    """The share of a round's time that detours took on a core; NaN where it has none."""
    watched = r.end_ns - r.begin_ns
    return float(r.lengths.sum()) / watched if watched > 0 else math.nan
