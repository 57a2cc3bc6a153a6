"""Noise of the operating system: figures of lists, exactly; false alarms and power of its tests; planted disturbances on real cores."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")
pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from commands import HANG, command
from ensemble_support import within
from scipy import stats

from twinrun import _core
from twinrun.errors import MissingFile, TwinrunError, Unsupported
from twinrun.noise.arms import ALL, BUT_ONE
from twinrun.noise.figures import (
    core_figures,
    difference_of_rounds,
    histogram_of,
    periodic,
    share_interval,
    stolen_in_windows,
)
from twinrun.noise.measurement import measure, parse_threshold
from twinrun.noise.result import Noise, read_noise

CORES = sorted(os.sched_getaffinity(0))


# ---- figures of lists ---------------------------------------------------------------------------------------------------

detours = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 800)), max_size=30)


def laid_out(gaps: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, int]:
    """Starts, lengths and the end of detours with these gaps before them."""
    at, starts, lengths = 0, [], []
    for gap, length in gaps:
        at += gap
        starts.append(at)
        lengths.append(length)
        at += length
    return np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64), at


@given(detours, st.integers(1, 17), st.integers(1, 500))
@settings(max_examples=300)
def test_stolen_time_equals_counting_every_tick(gaps: list, windows: int, rest: int) -> None:
    starts, lengths, end = laid_out(gaps)
    # Borders on whole ticks, so that a tick is in one window.
    total = math.ceil((end + rest) / windows) * windows
    taken = np.zeros(total)
    for start, length in zip(starts, lengths, strict=True):
        taken[start : start + length] = 1
    found = stolen_in_windows(starts, lengths, 0, total, windows)
    np.testing.assert_allclose(found, taken.reshape(windows, -1).sum(axis=1), atol=1e-9 * total)


@given(detours, st.integers(1, 9))
@settings(max_examples=100)
def test_windows_add_up(gaps: list, windows: int) -> None:
    starts, lengths, end = laid_out(gaps)
    found = stolen_in_windows(starts + 10**15, lengths, 10**15, 10**15 + end + 1, windows)
    assert found.sum() == pytest.approx(lengths.sum(), abs=1)
    assert (found >= 0).all() and (found <= (end + 1) / windows + 1).all()


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_a_histogram_has_every_length_at_its_power_of_two(lengths: list[int]) -> None:
    found = histogram_of(np.array(lengths, dtype=np.int64))
    wanted = [0] * (max((max(x, 1).bit_length() for x in lengths), default=0))
    for x in lengths:
        wanted[max(x, 1).bit_length() - 1] += 1
    if max(lengths, default=0) < 2**53:  # beyond, a float rounds up to the next power
        assert found == wanted
    assert sum(found) == len(lengths)


def test_share_intervals_hold_the_truth() -> None:
    rng, rounds = np.random.default_rng(3), 150
    held = 0
    for _ in range(rounds):
        x = rng.gamma(0.5, 0.02, 120)  # bursts: most windows lose little
        _, low, high = share_interval(x)
        held += low <= 0.01 <= high
    assert held >= stats.binom.ppf(0.001, rounds, 0.92)
    assert share_interval(np.zeros(20)) == (0, 0, 0)
    mean, low, high = share_interval(np.ones(3))
    assert mean == 1 and math.isnan(low) and math.isnan(high)


def test_a_difference_of_rounds_is_a_paired_t_test() -> None:
    rng = np.random.default_rng(4)
    pairs = [(a, b) for a, b in rng.gamma(2, 0.01, (6, 2))]
    found = difference_of_rounds(pairs, 0.95)
    a, b = np.array(pairs).T
    wanted = stats.ttest_rel(a, b)
    interval = wanted.confidence_interval(0.95)
    assert (found["p"], found["low"], found["high"]) == pytest.approx(
        (wanted.pvalue, interval.low, interval.high)
    )
    assert difference_of_rounds(pairs[:2], 0.95)["low"] is None
    assert difference_of_rounds([], 0.95)["value"] is None


# ---- what comes back ------------------------------------------------------------------------------------------------------


def coloured(rng: np.random.Generator, n: int, colour: float) -> np.ndarray:
    """Autoregressive noise with heavy tails."""
    x = rng.standard_t(4, n)
    for i in range(1, n):
        x[i] += colour * x[i - 1]
    return 1000 + x


@pytest.mark.parametrize("colour", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("series", [1, 6])
def test_noise_of_any_colour_has_no_line(colour: float, series: int) -> None:
    rng, rounds = np.random.default_rng(5), 120
    alarms = 0
    for _ in range(rounds):
        peak = periodic([coloured(rng, 400, colour) for _ in range(series)], 1e-3)
        assert peak is not None
        alarms += peak.p <= 0.05
    assert alarms <= stats.binom.ppf(0.999, rounds, 0.05)


@pytest.mark.parametrize("hz", [10.0, 33.3, 100.0])
@pytest.mark.parametrize("pulse", [1, 4])
def test_a_planted_line_is_found_at_its_frequency(hz: float, pulse: int) -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        series = []
        for _ in range(4):
            x = coloured(rng, 1000, 0.5)
            phase = rng.random()
            for k in range(int(hz)):
                at = int((k + phase) / hz * 1000)
                x[at : at + pulse] -= 30
            series.append(x)
        peak = periodic(series, 1e-3)
        assert peak is not None and peak.p < 1e-6
        assert abs(peak.hz - hz) <= 1.0


def test_what_has_no_spectrum_has_no_line() -> None:
    assert periodic([], 1e-3) is None
    assert periodic([np.ones(500)], 1e-3) is None
    assert periodic([np.arange(10.0)], 1e-3) is None
    two = np.zeros(500)
    two[[100, 333]] = 1e9  # outliers alone
    peak = periodic([two], 1e-3)
    assert peak is not None and peak.p > 0.01


# ---- thresholds, hostile input --------------------------------------------------------------------------------------------


def test_thresholds() -> None:
    assert parse_threshold("9x") == (9.0, 0) and parse_threshold(" 2.5 ") == (2.5, 0)
    assert parse_threshold("500ns") == (0.0, 500) and parse_threshold("1.5us") == (0.0, 1500)
    for bad in ("", "x", "1x", "0ns", "-5us", "nan", "infx", "1e30ms", "9y"):
        with pytest.raises(TwinrunError):
            parse_threshold(bad)


@pytest.mark.parametrize("given", [
    {"seconds": 0}, {"seconds": math.nan}, {"seconds": 1e9}, {"cores": []}, {"cores": [CORES[0], CORES[0]]}, {"cores": [-1]},
    {"cores": [99999]}, {"free": 99999}, {"rounds": 0}, {"confidence": 1.0}, {"threshold": "1x"},
])  # fmt: skip
def test_what_cannot_be_measured_is_said(given: dict) -> None:
    with pytest.raises(TwinrunError):
        measure(**{"seconds": 0.2, **given})


# ---- on real cores --------------------------------------------------------------------------------------------------------


@contextmanager
def busy(core: int, burn: float, rest: float) -> Iterator[subprocess.Popen]:
    """A process on this core that burns for so many seconds of every burn + rest, by the clock."""
    program = f"""
import os, time
os.sched_setaffinity(0, {{{core}}})
print(flush=True)
start = time.monotonic()
while True:
    start += {burn + rest}
    end = start - {rest}
    while time.monotonic() < end: pass
    time.sleep(max(start - time.monotonic(), 0))
"""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()


def on_core(process: subprocess.Popen) -> float:
    """Seconds that a process has had a core."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.mark.parametrize(("burn", "rest"), [(0.03, 0.07), (0.05, 0.0)])
def test_all_that_another_process_had_was_seen(burn: float, rest: float) -> None:
    """Two threads of one core: what one had, the other lost. This holds however busy the machine is."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system has no schedstat")
    core = CORES[-1]
    with within(HANG), busy(core, burn, rest) as process:
        # It runs on its own core when all else is ready: begin after it did.
        first = on_core(process)
        start = time.monotonic()
        found = _core.measure_noise([core], detour_seconds=1.0, work_seconds=0, time_seconds=0).cores[0]
        outside = time.monotonic() - start - (found.end_ns - found.begin_ns) / 1e9
        had = on_core(process) - first
    figures = core_figures([found])
    assert not found.full
    stolen = figures["share"] * figures["watched_s"]
    # A tick's worth of accounting, on both ends.
    assert had - outside - 0.02 <= stolen <= figures["watched_s"]
    assert figures["share"] > 0.05
    assert sum(figures["histogram"]) == figures["detours"]
    assert figures["run_queue_share"] <= figures["share"] + 0.02
    assert figures["share_low"] <= figures["share"] <= figures["share_high"]


def of_a_core(rng: np.random.Generator, seconds: tuple[float, float, float], hz: float) -> SimpleNamespace:
    """What _core.measure_noise gives of a core that others use for a third of the time, in turns of any length, and which loses 40 ms
    `hz` times a second besides (0: it does not)."""
    tick = 1e-4
    lost = np.zeros(round(sum(seconds) / tick), bool)
    at = 0.0
    while at < sum(seconds):
        at += rng.exponential(0.008)
        took = min(rng.exponential(0.004), 0.03)
        lost[round(at / tick) : round((at + took) / tick)] = True
        at += took
    phase = rng.random()
    for k in range(int(sum(seconds) * hz) + 1 if hz else 0):
        first = (k - phase) / hz
        lost[max(0, round(first / tick)) : max(0, round((first + 0.04) / tick))] = True
    detours = lost[: round(seconds[0] / tick)]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], detours.view(np.int8), [0]])))
    window = round(1e-3 / tick)
    counted = ~lost[len(lost) - round(seconds[2] / 1e-3) * window :]
    whole = lambda x: np.asarray(x, dtype=np.int64)  # noqa: E731
    return SimpleNamespace(
        core=CORES[-1], undisturbed_ns=10.0, threshold_ns=90.0, begin_ns=0, end_ns=round(seconds[0] * 1e9),
        iterations=10**6, full=False, moved=False,
        starts=whole(edges[::2] * round(tick * 1e9)), lengths=whole((edges[1::2] - edges[::2]) * round(tick * 1e9)),
        work_ns=whole(100_000 + rng.exponential(20_000, 500)),
        window_work=whole(counted.reshape(-1, window).sum(axis=1) * 1800 + rng.integers(0, 50, counted.size // window)),
        involuntary_switches=100, run_queue_ns=round(lost.mean() * sum(seconds) * 1e9),
    )  # fmt: skip


@pytest.mark.parametrize("hz", [0, 10])
def test_a_planted_period_is_found_on_a_core_that_others_use(
    monkeypatch: pytest.MonkeyPatch, hz: int
) -> None:
    """What the loops would see is planted: on real cores it would be up to the others whether it can be seen."""
    rng = np.random.default_rng(7)

    def planted(cores: list[int], *seconds: float, **_: object) -> SimpleNamespace:
        found = [of_a_core(rng, seconds, hz) for _ in cores]
        return SimpleNamespace(clock="planted", tick_ns=1.0, cores=found)

    monkeypatch.setattr(_core, "measure_noise", planted)
    told = 0
    for _ in range(10):
        found = measure(4.0, [CORES[-1]], rounds=2)
        peak = found.document["arms"][ALL][0]["fixed_time"]["peak"]
        if hz:
            assert peak["p"] < 1e-3 and abs(peak["hz"] - hz) < 1.3, peak
        told += "comes back" in found.sentence
        assert found.document["arms"][ALL][0]["share"] > 0.2
    assert told == 10 if hz else told <= 2  # alarms at a rate of 5%


@pytest.fixture(scope="module")
def measured() -> Noise:
    with within(HANG):
        return measure(1.2, CORES[:2], rounds=3)


def test_a_measurement_holds_together(measured: Noise, tmp_path: Path) -> None:
    d = measured.document
    arms = [ALL] if len(CORES) == 1 else [ALL, BUT_ONE]
    assert list(d["arms"]) == arms
    for arm in arms:
        for c in d["arms"][arm]:
            assert sum(c["histogram"]) == c["detours"]
            assert 0 <= c["share"] <= 1 and c["largest_ns"] / 1e9 <= c["share"] * c["watched_s"] + 1e-9
            assert c["fixed_work"]["quantiles"]["0.5"] >= 1
            assert 0 <= c["fixed_time"]["share"] < 1
    assert len(measured.table) == sum(len(d["arms"][arm]) for arm in arms)
    if len(CORES) > 1:
        assert d["free"] == CORES[0] and d["comparison"]["rounds"] == 3
        assert f"core {CORES[0]} " in measured.sentence
    measured.to_json(tmp_path / "n.json")
    again = read_noise(tmp_path / "n.json")
    assert again.sentence == measured.sentence and again.lines() == measured.lines()
    measured.to_html(tmp_path / "n.html")
    page = (tmp_path / "n.html").read_text()
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    measured.to_picture(tmp_path / "n.png")
    assert (tmp_path / "n.png").stat().st_size > 1000
    with pytest.raises(TwinrunError):
        measured.to_picture(tmp_path / "n.nothing")


def test_it_decides_only_where_the_interval_allows_it(measured: Noise) -> None:
    document = json.loads(json.dumps(measured.document))
    document["free"] = 0
    for value, low, high, wanted in (
        (0.02, 0.01, 0.03, "left free, the others lost 2 percentage points less ([1, 3]"),
        (-0.02, -0.03, -0.01, "left free, the others lost 2 percentage points more ([1, 3]"),
        (0.02, -0.01, 0.05, "cannot be decided: they lost 2 percentage points less ([-1, 5]"),
        (-0.02, -0.05, 0.01, "cannot be decided: they lost 2 percentage points more ([-1, 5]"),
        (0.02, None, None, "too few rounds"),
    ):
        document["comparison"] = {"value": value, "low": low, "high": high, "p": 0.5, "rounds": 6}
        assert wanted in Noise(document).sentence


def test_damaged_measurements_are_errors(measured: Noise, tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    with pytest.raises(MissingFile):
        read_noise(path)
    good = json.loads(json.dumps(measured.document))
    path.write_text(json.dumps({**good, "version": 2}))
    with pytest.raises(Unsupported):
        read_noise(path)
    rng = random.Random(8)
    told = 0
    for _ in range(300):
        document = copy.deepcopy(good)
        place: object = document
        while True:  # some place in it
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type]
            key = rng.choice(keys)
            inner = place[key]  # type: ignore[index]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
                place = inner
                continue
            break
        if rng.random() < 0.4 and isinstance(place, dict):
            del place[key]  # type: ignore[attr-defined]
        else:
            place[key] = rng.choice([None, "x", -1, [], {}, 1e308, True, [{}], "\x1b[31m"])  # type: ignore[index]
        text = json.dumps(document)
        if rng.random() < 0.1:
            text = text[: rng.randrange(len(text))]
        path.write_text(text)
        try:
            noise = read_noise(path)
            if told % 10 == 0:
                noise.figure()  # what was taken can be used
            _ = noise.table
        except TwinrunError:
            told += 1
    assert told > 30


# ---- the verb -------------------------------------------------------------------------------------------------------------


def test_the_verb(tmp_path: Path) -> None:
    json_file, page, picture = tmp_path / "n.json", tmp_path / "n.html", tmp_path / "n.svg"
    done = command("noise", "--seconds", "0.6", "--rounds", "3", "--cores", str(CORES[0]), "--json", json_file, "--html", page,
                   "--picture", picture)  # fmt: skip
    assert done.status == 0, done.err
    assert "detours a second" in done.out and f"core {CORES[0]}" in done.out
    assert json.loads(json_file.read_text())["sentence"] in " ".join(done.out.split())
    assert page.exists() and picture.exists()
    for wrong in (
        ("--cores", "x"),
        ("--cores", "0-99999999"),
        ("--threshold", "1x"),
        ("--seconds", "nan"),
        ("--free", "9999"),
    ):
        done = command("noise", "--seconds", "0.3", *wrong)
        assert done.status == 2 and done.err.startswith("twinrun: ") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--picture", "x.xyz"], "has no suffix of a picture that --picture can write"),
        (["--picture", "none/x.png"], "lies in a folder that is not there"),
        (["--html", "."], "is a folder"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    # It would take an hour.
    done = command("noise", "--seconds", "3600", *words)
    assert done.status == 2 and said in done.err and "nothing was done" in done.err, done.err
    assert list(tmp_path.iterdir()) == []
