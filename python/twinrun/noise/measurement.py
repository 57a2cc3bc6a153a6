"""Noise of the operating system: the time that it takes from a thread that would run for ever, on each core.

    found = measure(seconds=30)
    found.sentence         what it shows, and how sure that is
    found.table            a row for each arm and core
    found.document         everything, for JSON; Noise(document) is the same again

Each core has a pinned thread, and all begin each loop at the same moment. Three loops (src/noise): readings
of a clock (detours: each interruption with its start and length), fixed work (how long equal pieces take) and
fixed time (how much is done in equal windows). A round runs them on all cores and on all but one, in an order
that changes from round to round; the effect of a free core is the mean difference of rounds, each with
itself. Shares of time have bootstrap intervals over windows of time.

The analysis is of lists of detours and counts only (`stolen_in_windows`, `share_interval`, `histogram_of`,
`periodic`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, bootstrap
from .._core import __version__
from ..errors import DamagedFile, MissingFile, TwinrunError, Unsupported
from ..marks import NOISE
from ..outputs import save_figure
from . import sources, tracefs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ALL", "BUT_ONE", "Noise", "Peak", "histogram_of", "measure", "parse_threshold", "periodic", "read_noise",
    "share_interval", "stolen_in_windows",
]  # fmt: skip

VERSION = 1
KIND = NOISE
ALL, BUT_ONE = "all", "all-but-one"  # as the levels of a factor `cores`
ROUNDS = 6
_WINDOW_NS = 1_000_000
_SHARES = (0.4, 0.2, 0.4)  # of a round's time: detours, fixed work, fixed time
_LONGEST = 86400.0


# ---- figures of lists ----------------------------------------------------------------------------


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


# ---- figures of a core ---------------------------------------------------------------------------


def core_figures(
    rounds: Sequence[_core.CoreNoise], window: float = _WINDOW_NS / 1e9, confidence: float = 0.95
) -> dict[str, Any]:
    """What the rounds of one core show. window: s."""
    shares, lengths = [], []
    watched = stolen = waited = 0.0
    for r in rounds:
        begin, end = float(r.begin_ns), float(r.end_ns)
        starts, own = r.starts, r.lengths
        lengths.append(own)
        watched += (end - begin) / 1e9
        stolen += float(own.sum()) / 1e9
        waited += max(float(r.run_queue_ns), 0.0) / 1e9
        # Up to twenty windows in a round, none shorter than 10 ms: a window must not cut a
        # scheduler's slice.
        windows = int(min(max((end - begin) // 10_000_000, 1), 20))
        if end > begin:
            shares.append(stolen_in_windows(starts, own, begin, end, windows) / ((end - begin) / windows))
    every = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    mean, low, high = share_interval(np.concatenate(shares) if shares else np.zeros(0), confidence)
    work = np.concatenate([r.work_ns for r in rounds])
    counts = [r.window_work for r in rounds]
    done = np.concatenate(counts)
    peak = periodic(counts, window)
    known = all(r.run_queue_ns >= 0 for r in rounds)
    return {
        "core": int(rounds[0].core),
        "loop_ns": float(np.median([r.undisturbed_ns for r in rounds])),
        "threshold_ns": float(np.median([r.threshold_ns for r in rounds])),
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
        "fixed_work": None
        if not len(work)
        else {
            "pieces": len(work),
            "least_ns": int(work.min()),
            "quantiles": {
                str(q): float(np.quantile(work, q) / work.min()) for q in (0.5, 0.9, 0.99, 0.999, 1.0)
            },
            "share": float(1 - work.min() / work.mean()),
        },
        "fixed_time": None
        if not len(done) or done.max() == 0
        else {
            "windows": len(done),
            "window_ns": int(window * 1e9),
            "most": int(done.max()),
            "quantiles": {str(q): float(np.quantile(done, q) / done.max()) for q in (0.0, 0.01, 0.1, 0.5)},
            "share": float(1 - done.mean() / done.max()),
            "peak": None if peak is None else dataclasses.asdict(peak),
        },
        "cut_short": any(r.full for r in rounds),
        "moved": any(r.moved for r in rounds),
    }


def _round_share(r: _core.CoreNoise) -> float:
    watched = r.end_ns - r.begin_ns
    return float(r.lengths.sum()) / watched if watched > 0 else math.nan


# ---- what it says --------------------------------------------------------------------------------


def _percent(x: float) -> str:
    return f"{100 * x:.3g}%"


def _span(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def _sentences(document: Mapping[str, Any]) -> list[str]:
    alpha = 1 - document["confidence"]
    arms = document["arms"]
    first = arms[ALL]
    worst = max(first, key=lambda c: c["share"] or 0)
    shares = [c["share"] for c in first if c["share"] is not None]
    if not shares:
        return ["No detours were looked for."]
    rate = sum(c["detours_per_s"] for c in first) / len(first)
    cores = f"{len(first)} cores" if len(first) > 1 else f"core {first[0]['core']}"
    interval = (
        ""
        if worst["share_low"] is None
        else f" [{_percent(worst['share_low'])}, {_percent(worst['share_high'])}]"
    )
    sentences = [
        f"On {cores} the system took {_percent(sum(shares) / len(shares))} of the time, in {rate:.3g} detours a second and core beyond "
        f"{_span(worst['threshold_ns'])}; most on core {worst['core']}: {_percent(worst['share'])}{interval}, at once {_span(worst['largest_ns'])}."
    ]
    if worst["share"] and worst["run_queue_share"] is not None:
        part = min(worst["run_queue_share"] / worst["share"], 1.0)
        sentences.append(f"There {_percent(part)} of it was waiting while other threads had the core; the rest is interrupts, page faults or what lies below the system.")  # fmt: skip
    by_core = {c["core"]: c for c in document.get("sources", {}).get(ALL, ())}
    if (told := by_core.get(worst["core"])) is not None and (said := sources.sentence(told)):
        sentences.append(said)
    for c in document.get("rtla") or ():
        if c["core"] == worst["core"]:
            counts = ", ".join(
                f"{name} {c[name] / c['seconds']:.3g}"
                for name in ("hardware", "nmi", "irq", "softirq", "thread")
            )
            sentences.append(
                f"rtla osnoise, right after, on core {c['core']}: {_percent(c['share'])} taken; a second: {counts}."
            )
    sentences += [tracefs.sentence(c) for c in document.get("trace") or () if c["core"] == worst["core"]]
    for failed in ("rtla_failed", "trace_failed"):
        if document.get(failed):
            sentences.append(f"{document[failed]}.")
    # For each core: how much slower work is than its fastest piece, without the time of detours.
    rest = [(1 - c["share"]) / (1 - c["fixed_work"]["share"]) - 1 for c in first if c["fixed_work"] and c["share"] is not None and c["fixed_work"]["share"] < 1]  # fmt: skip
    if rest and sum(rest) / len(rest) > 0.01:
        sentences.append(f"Beside detours, equal work took {_percent(sum(rest) / len(rest))} longer than at its fastest: the clock's frequency, caches, "
                    "or a core whose other half works for others.")  # fmt: skip
    every = [(arm, c) for arm, own in arms.items() for c in own]
    # Correction for the number of peaks: one for each core and arm.
    peaks = [
        (c["fixed_time"]["peak"], arm, c["core"])
        for arm, c in every
        if c["fixed_time"] and c["fixed_time"]["peak"]
    ]
    found = [(p, arm, core) for p, arm, core in peaks if min(1.0, p["p"] * len(peaks)) <= alpha]
    if found:
        peak, arm, core = min(found, key=lambda f: (f[0]["p"], -f[0]["ratio"]))
        p = min(1.0, peak["p"] * len(peaks))
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        sentences.append(f"Something comes back {peak['hz']:.4g} times a second (core {core}, {arm}{more}; {'p < 0.0001' if p < 1e-4 else f'p = {p:.2g}'}).")  # fmt: skip
    elif peaks:
        low = document["slowest_hz"]
        sentences.append(
            f"Nothing periodic is shown from {low:.2g} to {0.5e9 / document['window_ns']:.3g} times a second."
        )
    comparison = document["comparison"]
    if comparison is None:
        sentences.append("Whether a free core helps was not measured: that needs two cores.")
    else:
        d = comparison
        free, value = document["free"], d["value"]
        lost = f"{abs(100 * value):.3g} percentage points {'less' if value >= 0 else 'more'}"
        if d["low"] is None:
            sentences.append(
                f"With core {free} left free, the others lost {lost}: too few rounds to say how sure that is."
            )
        else:
            # The interval in the direction of the sentence: less or more.
            ends = sorted((d["low"], d["high"]) if value >= 0 else (-d["low"], -d["high"]))
            interval = f"[{100 * ends[0]:.3g}, {100 * ends[1]:.3g}], {d['rounds']} pairs of rounds"
            if ends[0] > 0:
                sentences.append(f"With core {free} left free, the others lost {lost} ({interval}).")
            else:
                sentences.append(
                    f"Whether leaving core {free} free helps the others cannot be decided: they lost {lost} ({interval})."
                )
    for arm, c in every:
        if c["cut_short"]:
            sentences.append(f"Core {c['core']} ({arm}) had more detours than could be kept: its figures are of the {c['watched_s']:.3g} s before.")  # fmt: skip
            break
    return sentences


@dataclass(frozen=True)
class Noise:
    """A measurement of the noise of the operating system.

    Attributes
    ----------
    document : dict
        Everything, as JSON has it.
    sentence : str
        What it shows, and how sure that is.
    rows : list of dict
        A row for each arm and core. Shares are of the time; names of times have their unit.
    table : pandas.DataFrame
        `rows` as a table.
    """

    document: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """What it shows, and how sure that is."""
        return " ".join(_sentences(self.document))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row an arm and core; shares are of the time, times as their names say."""
        found = []
        for arm, cores in self.document["arms"].items():
            for c in cores:
                work, windows = c["fixed_work"], c["fixed_time"]
                peak = windows["peak"] if windows else None
                found.append({
                    "cores": arm, "core": c["core"], "loop ns": c["loop_ns"], "detours/s": c["detours_per_s"],
                    "share": c["share"], "low": c["share_low"], "high": c["share_high"],
                    "largest us": c["largest_ns"] / 1e3, "run queue": c["run_queue_share"],
                    "work p99/least": work["quantiles"]["0.99"] if work else None,
                    "work lost": work["share"] if work else None,
                    "windows lost": windows["share"] if windows else None,
                    "peak Hz": peak["hz"] if peak else None, "p of peak": peak["p"] if peak else None,
                })  # fmt: skip
        return found

    @property
    def table(self) -> pd.DataFrame:
        """`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def lines(self) -> list[str]:
        """The summary for a terminal: a row for each core, then what it shows.

        Returns
        -------
        list of str
            The lines.
        """
        head = f"{'cores':12} {'core':>4} {'loop':>9} {'detours/s':>10} {'taken':>8} {'interval':>18} {'largest':>9} {'queue':>8} {'work p99':>9} {'windows':>8}"
        lines = [head]
        for r in self.rows:

            def text(key: str, form: Callable[[float], str], r: dict = r) -> str:
                return "" if r[key] is None else form(r[key])

            interval = "" if r["low"] is None else f"[{_percent(r['low'])}, {_percent(r['high'])}]"
            lines.append(
                f"{r['cores']:12} {r['core']:4d} {_span(r['loop ns']):>9} {text('detours/s', lambda x: f'{x:.4g}'):>10} "
                f"{text('share', _percent):>8} {interval:>18} {_span(1e3 * r['largest us']):>9} {text('run queue', _percent):>8} "
                f"{text('work p99/least', lambda x: f'x {x:.3g}'):>9} {text('windows lost', _percent):>8}"
            )
        return [*lines, "", *_sentences(self.document)]

    def draw(self, axes: Axes) -> None:
        """Draws how often detours of each length come, a line for each arm and core.

        Parameters
        ----------
        axes : matplotlib.axes.Axes
            Where to draw.
        """
        for arm, cores in self.document["arms"].items():
            for c in cores:
                counts = c["histogram"]
                if counts and c["watched_s"] > 0:
                    axes.plot([2.0**k for k in range(len(counts))], [n / c["watched_s"] if n else math.nan for n in counts],
                              "o-" if arm == ALL else "s--", markersize=3, label=f"{arm}, core {c['core']}")  # fmt: skip
        axes.set_xscale("log")
        if axes.lines:
            axes.set_yscale("log")
            axes.legend(fontsize=7)
        axes.set(
            xlabel="length of a detour (ns)", ylabel="detours a second", title="Noise of the operating system"
        )

    def figure(self) -> Figure:
        """Draws detours by length, and the share of time that each core lost.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        self.draw(left)
        rows = [r for r in self.rows if r["share"] is not None]
        at = range(len(rows))
        reach = [[100 * (r["share"] - r["low"]) if r["low"] is not None else 0 for r in rows],
                 [100 * (r["high"] - r["share"]) if r["high"] is not None else 0 for r in rows]]  # fmt: skip
        right.errorbar([100 * r["share"] for r in rows], at, xerr=reach, fmt="o")
        right.set_yticks(list(at), [f"{r['cores']}, core {r['core']}" for r in rows], fontsize=8)
        right.set(xlabel="time taken (%)", title="Share of the time that was taken")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        return figure

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `document` as JSON, as a whole or not at all.

        Parameters
        ----------
        path : str or path
            The file; '-' for standard output.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        from ..report import write_json

        write_json(os.fspath(path), {**self.document, "sentence": self.sentence})

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one self-contained page, as a whole or not at all.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        from ..report.noise import write_html

        write_html(self, os.fspath(path))

    def to_picture(self, path: str | os.PathLike[str]) -> None:
        """Saves `figure`. The suffix of the name decides the type.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        save_figure(self.figure(), path, dpi=120)


def read_noise(path: str | os.PathLike[str]) -> Noise:
    """Reads a measurement from its JSON.

    Parameters
    ----------
    path : str or path
        A file that `Noise.to_json` wrote.

    Returns
    -------
    Noise
        The measurement.

    Raises
    ------
    MissingFile
        The file cannot be read.
    DamagedFile
        It is no measurement, or lacks something.
    Unsupported
        It has a later version.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise MissingFile(f"cannot be read: {e.strerror}", where=path) from None
    except (ValueError, RecursionError):
        raise DamagedFile("is no JSON", where=path) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise DamagedFile("is no measurement of noise", where=path, fix="twinrun noise --json writes one")
    if document.get("version") != VERSION:
        raise Unsupported(f"has version {document.get('version')!r}", where=path)
    found = Noise(document)
    try:
        # Everything that later uses need, so that a damaged file is an error here.
        _ = found.sentence, found.lines()
        histograms = [c["histogram"] for cores in document["arms"].values() for c in cores]
        if not all(isinstance(n, int) and n >= 0 for h in histograms for n in h) or any(
            len(h) > 64 for h in histograms
        ):
            raise ValueError
        float(document["started"])
        if not all(c["watched_s"] >= 0 for cores in document["arms"].values() for c in cores):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
        raise DamagedFile("is a measurement of noise that lacks something", where=path) from None
    return found


# ---- measuring -----------------------------------------------------------------------------------


def parse_threshold(text: str) -> tuple[float, int]:
    """Reads a threshold: how long a step of a loop must be to count as a detour.

    >>> from twinrun import noise
    >>> noise.parse_threshold("9x"), noise.parse_threshold("2us")
    ((9.0, 0), (0.0, 2000))

    Parameters
    ----------
    text : str
        "9x" or "9" (times an undisturbed step, at least 2), or "500ns", "2us", "1ms".

    Returns
    -------
    (float, int)
        Times an undisturbed step, and nanoseconds; one of them is 0.

    Raises
    ------
    TwinrunError
        The text is not a threshold.
    """
    word = text.strip().lower()
    for unit, size in (("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000)):
        if word.endswith(unit):
            number, scale = word.removesuffix(unit), size
            break
    else:
        number, scale = word.removesuffix("x"), 0
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (value * scale >= 1 if scale else value >= 2) or not value <= 1e9:
        raise TwinrunError(
            f"{text!r} is not a threshold",
            fix="write 9x (times an undisturbed step, at least 2) or 500ns, 2us, 1ms",
        )
    return (0.0, round(value * scale)) if scale else (value, 0)


def _cores(cores: Sequence[int] | None, free: int | None) -> tuple[list[int], int]:
    """The cores to measure, and the one that an arm leaves free. Raises TwinrunError."""
    allowed = sorted(os.sched_getaffinity(0))
    chosen = list(allowed if cores is None else cores)
    missing = [c for c in chosen if c not in allowed]
    if missing or not chosen or len(set(chosen)) != len(chosen):
        raise TwinrunError(
            f"core {missing[0]} is not one of {allowed}" if missing else "name at least one core, each once"
        )
    spared = chosen[0] if free is None else free
    if spared not in chosen:
        raise TwinrunError(f"the core that is left free, {spared}, is not one of {chosen}")
    return chosen, spared


@contextlib.contextmanager
def _elsewhere(cores: Sequence[int]) -> Iterator[None]:
    """This thread waits on other cores, if it may use any: it must not add noise."""
    own = os.sched_getaffinity(0)
    others = own - set(cores)
    try:
        if others:
            os.sched_setaffinity(0, others)
        yield
    finally:
        if others:
            os.sched_setaffinity(0, own)


class _Rounds:
    """Rounds of all arms. each: seconds of a round; threshold: as `parse_threshold` gives it."""

    def __init__(self, arms: Mapping[str, list[int]], each: float, threshold: tuple[float, int]) -> None:
        self._arms, self._each, self._threshold = arms, each, threshold
        self._raw: dict[str, list[list[_core.CoreNoise]]] = {arm: [] for arm in arms}
        self._named: dict[str, dict[int, list[sources.Figures]]] = {
            arm: {c: [] for c in own} for arm, own in arms.items()
        }
        self._spans = dict.fromkeys(arms, 0.0)
        self.clock = ""
        self.done = 0

    def one(self, arm: str) -> None:
        """Measures a round of an arm."""
        cores = self._arms[arm]
        detours, fixed_work, fixed_time = (self._each * s for s in _SHARES)
        times, nanoseconds = self._threshold
        with _elsewhere(cores):
            before, begin = sources.Snapshot(without=[os.getpid()]), time.monotonic()
            found = _core.measure_noise(
                cores, detours, fixed_work, fixed_time, threshold=times or 9.0, threshold_ns=nanoseconds, window_ns=_WINDOW_NS
            )  # fmt: skip
            self._spans[arm] += time.monotonic() - begin
            after = sources.Snapshot(without=[os.getpid()])
        self.clock = found.clock
        self._raw[arm].append(found.cores)
        for core, came in sources.since(before, after, cores).items():
            self._named[arm][core].append(came)
        self.done += 1

    def figures(self, confidence: float) -> dict[str, list[dict]]:
        """Of each core, by arm."""
        return {
            arm: [
                core_figures([r[i] for r in parts], confidence=confidence)
                for i in range(len(self._arms[arm]))
            ]
            for arm, parts in self._raw.items()
        }

    def sources(self) -> dict[str, list[dict[str, Any]]]:
        """What took time from each core, by arm."""
        return {
            arm: [sources.figures(core, parts, self._spans[arm]) for core, parts in by_core.items()]
            for arm, by_core in self._named.items()
        }

    def comparison(self, spared: int, confidence: float) -> dict | None:
        """Whether a free core helps the others."""
        if BUT_ONE not in self._arms:
            return None
        pairs = []
        for whole, part in zip(self._raw[ALL], self._raw[BUT_ONE], strict=True):
            with_all = [_round_share(r) for r in whole if r.core != spared]
            without = [_round_share(r) for r in part]
            if not np.isnan([*with_all, *without]).any():
                pairs.append((float(np.mean(with_all)), float(np.mean(without))))
        return {**difference_of_rounds(pairs, confidence), "rounds": len(pairs), "pairs": pairs}


def _traced(cores: list[int], seconds: float) -> list[dict[str, Any]]:
    """The loops again, while the kernel traces what takes time from these cores."""
    with _elsewhere(cores):
        return tracefs.measured(
            cores, seconds, lambda: _core.measure_noise(cores, seconds, 0.0, 0.0, window_ns=_WINDOW_NS)
        )


def _beside(asked: bool, look: Callable[[], list[Any]]) -> tuple[list[Any] | None, str | None]:
    """What another program says, or why it does not: the measurement stays."""
    if not asked:
        return None, None
    try:
        return look(), None
    except TwinrunError as error:
        return None, str(error)


def measure(
    seconds: float = 30.0,
    cores: Sequence[int] | None = None,
    *,
    free: int | None = None,
    threshold: str = "9x",
    rounds: int = ROUNDS,
    compare: bool = True,
    confidence: float = 0.95,
    rtla: bool = False,
    trace: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Noise:
    """Measures the time that the operating system takes from each core.

        found = twinrun.noise.measure(seconds=30)
        print(found.sentence)

    Parameters
    ----------
    seconds : float, default 30
        Time of the whole measurement, in seconds: 0.1 to 86400.
    cores : sequence of int, default None
        The cores to measure; None for those that this process may use.
    free : int, default None
        The core that one arm leaves free; None for the first.
    threshold : str, default '9x'
        From where on a step is a detour, as `parse_threshold` reads it.
    rounds : int, default 6
        Rounds of each arm, 1 to 1000.
    compare : bool, default True
        False: all cores only, and no arm with a free core.
    confidence : float, default 0.95
        Of intervals.
    rtla : bool, default False
        True: run `rtla osnoise` on the same cores right after, for a fifth of the time, and add what it says.
    trace : bool, default False
        True: the loops run again right after, for a fifth of the time, while the kernel traces what takes
        time from the cores (tracefs).
    report : callable, default None
        `report(done, total)` is called after each part.

    Returns
    -------
    Noise
        The measurement.

    Raises
    ------
    TwinrunError
        A core cannot be used, a parameter is out of its range, rtla is asked for and not installed, or a
        trace is asked for and tracefs is not mounted.
    MissingPackage
        A package of twinrun[ensemble] is not installed.

    Notes
    -----
    Not thread-safe: it moves the calling thread from the measured cores for a time, and other work disturbs
    the measurement. Loops: P. Beckman et al., 2006, for detours (src/noise/README.md).
    """
    from ..packages import check

    check()
    if not 0.1 <= seconds <= _LONGEST:
        raise TwinrunError(f"seconds must be from 0.1 to {_LONGEST:g}, not {seconds:g}")
    if not 1 <= rounds <= 1000:
        raise TwinrunError(f"rounds must be from 1 to 1000, not {rounds}")
    if not 0.5 <= confidence < 1:
        raise TwinrunError(f"confidence must be between 0.5 and 1, not {confidence!r}")
    chosen, spared = _cores(cores, free)
    threshold_of = parse_threshold(threshold)
    if rtla:
        sources.check_rtla()
    if trace:
        tracefs.place()
    arms = {ALL: chosen}
    if compare and len(chosen) > 1:
        arms[BUT_ONE] = [c for c in chosen if c != spared]
    each = seconds / (rounds * len(arms))
    started = time.time()
    made = _Rounds(arms, each, threshold_of)
    for number in range(rounds):
        # So that no arm is always the first.
        for arm in list(arms) if number % 2 == 0 else list(arms)[::-1]:
            made.one(arm)
            if report is not None:
                report(made.done, rounds * len(arms))
    by_rtla, rtla_failed = _beside(rtla, lambda: sources.rtla(chosen, seconds / 5))
    by_trace, trace_failed = _beside(trace, lambda: _traced(chosen, max(seconds / 5, 0.1)))
    return Noise({
        "twinrun": __version__, "kind": KIND, "version": VERSION, "host": os.uname().nodename, "started": started,
        "seconds": time.time() - started, "clock": made.clock, "confidence": confidence, "threshold": threshold, "rounds": rounds,
        "free": spared if BUT_ONE in arms else None, "window_ns": _WINDOW_NS,
        "slowest_hz": 5 / (each * _SHARES[2]), "arms": made.figures(confidence), "comparison": made.comparison(spared, confidence),
        "sources": made.sources(), "rtla": by_rtla, "rtla_failed": rtla_failed, "trace": by_trace, "trace_failed": trace_failed,
    })  # fmt: skip
