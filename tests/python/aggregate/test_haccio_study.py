"""The studies of apps/haccio: statistics on data whose truth is known, journals that survive, tiny real runs."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import io_studies
import numpy as np
import pytest
from commands import HANG, check_error, command, load_json
from hypothesis import given, settings
from hypothesis import strategies as st
from io_studies import conduct, conduct_study

from twinrun.aggregate.studies import (
    Interference,
    Journal,
    Plan,
    Size,
    Split,
    engine,
    looks,
)
from twinrun.aggregate.studies.launch import PROGRAM, Result, Stack
from twinrun.ensemble import intervals
from twinrun.ensemble.intervals import Interval
from twinrun.ensemble.run import runner
from twinrun.errors import DamagedFile, Incomparable, MissingFile, TwinrunError


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: for thousands of small files."""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=place, prefix="twinrun-test-") as made:
        yield Path(made)


# Statistics --------------------------------------------------------------------------------------------------------------

POSITIVE = st.lists(st.floats(1.0, 1e6), min_size=5, max_size=15).filter(
    lambda x: np.std(x) > 1e-3 * np.mean(x)
)


@settings(max_examples=50)
@given(POSITIVE)
def test_estimates_are_those_of_numpy(x: list[float]) -> None:
    for found, true in (
        (intervals.mean(x), np.mean(x)),
        (intervals.deviation(x), np.std(x, ddof=1)),
        (intervals.variation(x), np.std(x, ddof=1) / np.mean(x)),
    ):
        assert found.value == pytest.approx(true, rel=1e-9)
        assert found.low <= found.value <= found.high
        assert found.blocks == len(x)


@settings(max_examples=50)
@given(POSITIVE, st.floats(1e-3, 1e3))
def test_units_do_not_matter(x: list[float], c: float) -> None:
    a, b = intervals.mean(x), intervals.mean([c * v for v in x])
    assert (b.low, b.high) == pytest.approx((c * a.low, c * a.high), rel=1e-6)
    a, b = intervals.variation(x), intervals.variation([c * v for v in x])
    assert b.low == pytest.approx(a.low, rel=1e-6)
    # Twice as fast in every block: no doubt about the ratio, however much blocks differ.
    ratio = intervals.ratio_of_means([c * v for v in x], x)
    assert (ratio.low, ratio.high) == pytest.approx((c, c), rel=1e-6)


def coverage(
    interval: Callable[..., Interval], draw: Callable[[np.random.Generator], tuple], truth: float
) -> float:
    """How often an interval of 95% holds the truth."""
    rng = np.random.default_rng(4)
    rounds = 400
    found = [interval(*draw(rng), resamples=499) for _ in range(rounds)]
    return sum(i.low <= truth <= i.high for i in found) / rounds


def lognormal(sigma: float, n: int) -> Callable[[np.random.Generator], tuple]:
    return lambda rng: (rng.lognormal(0, sigma, n),)


@pytest.mark.parametrize("n", [10, 30])
@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int, sigma: float) -> None:
    mean, cov = math.exp(sigma**2 / 2), math.sqrt(math.exp(sigma**2) - 1)
    assert 0.92 <= coverage(intervals.mean, lognormal(sigma, n), mean) <= 0.985
    assert 0.90 <= coverage(intervals.variation, lognormal(sigma, n), cov) <= 0.985
    assert 0.90 <= coverage(intervals.deviation, lognormal(sigma, n), mean * cov) <= 0.985


@pytest.mark.parametrize("n", [10, 20])
def test_ratios_hold_the_truth_in_spite_of_drift(n: int) -> None:
    # Blocks drift by a factor of three: paired, the ratio is known well all the same.
    def draw(rng: np.random.Generator) -> tuple:
        drift = np.linspace(1, 3, n)
        return drift * rng.normal(0.87, 0.05, n), drift * rng.normal(1.0, 0.05, n)

    assert 0.92 <= coverage(intervals.ratio_of_means, draw, 0.87) <= 0.985
    rng = np.random.default_rng(1)
    widths = [intervals.ratio_of_means(*draw(rng), resamples=499).half_width for _ in range(50)]
    assert np.median(widths) < 0.08, "unpaired it would be 0.3"

    def spreads(rng: np.random.Generator) -> tuple:
        return rng.normal(1, 0.2, n), rng.normal(1, 0.1, n)

    assert 0.90 <= coverage(intervals.ratio_of_deviations, spreads, 2) <= 0.99
    assert 0.90 <= coverage(intervals.ratio_of_variations, spreads, 2) <= 0.99


@pytest.mark.parametrize("x", [[], [1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_few_repetitions_give_no_interval(x: list[float]) -> None:
    for interval in (intervals.mean(x), intervals.variation(x), intervals.ratio_of_means(x, x[::-1])):
        assert not interval.known and not interval.within(1e9)
        assert not interval.loss().known
        assert interval.text().endswith("(no interval)")
        load_json(json.dumps(interval.json()))


def test_no_spread_tells_nothing_of_spread() -> None:
    same = [2.0] * 10
    assert intervals.mean(same) == Interval(2.0, 2.0, 2.0, 10)
    assert intervals.variation(same).value == 0 and not intervals.variation(same).known


@settings(max_examples=50)
@given(POSITIVE)
def test_json_brings_intervals_back(x: list[float]) -> None:
    for interval in (intervals.variation(x), intervals.ratio_of_means(x[:3], x[-3:]).loss()):
        back = Interval.of(load_json(json.dumps(interval.json())))
        assert back == interval or math.isnan(interval.value)


# When to stop ------------------------------------------------------------------------------------------------------------


@given(st.integers(2, 60), st.integers(0, 300))
def test_looks_are_few_and_end_at_the_most(least: int, more: int) -> None:
    found = looks(Plan(least, least + more))
    assert found[0] == least and found[-1] == least + more
    assert all(b > a for a, b in itertools.pairwise(found))
    assert all(b >= min(math.ceil(1.25 * a), least + more) for a, b in itertools.pairwise(found))


def simulate(
    folder: Path, draw: Callable[[dict, int], dict], conditions: list[dict], enough: Callable, plan: Plan
) -> tuple:
    with Journal(folder / "journal", "simulated", {}) as journal:
        return conduct(journal, conditions, draw, enough, plan)


def test_runs_that_ended_at_once_are_not_waited_for(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_: object) -> None:
        raise AssertionError("all that runs has ended")

    monkeypatch.setattr(runner._Run, "_pause", pause)
    (memory / "0").mkdir()
    blocks, _ = simulate(memory / "0", lambda c, block: {"x": block}, [{}], lambda blocks: False, Plan(4, 6))
    assert len(blocks) == 6


def test_stopping_early_does_not_make_intervals_lie(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    rng = np.random.default_rng(2)
    rounds, held, lengths = 150, 0, []
    for i in range(rounds):
        folder = memory / str(i)
        folder.mkdir()

        def mean(blocks: list) -> Interval:
            return intervals.mean([b["{}"]["x"] for b in blocks], resamples=499)

        blocks, _ = simulate(
            folder,
            lambda condition, block: {"x": rng.normal(1, 0.2)},
            [{}],
            lambda blocks: mean(blocks).within(0.07),
            Plan(8, 60),
        )
        held += mean(blocks).low <= 1 <= mean(blocks).high
        lengths.append(len(blocks))
    assert held / rounds >= 0.90
    assert min(lengths) < 30 < max(lengths)
    assert set(lengths) <= set(looks(Plan(8, 60)))


def test_orders_are_shuffled_and_every_condition_comes_once_a_block(tmp_path: Path) -> None:
    conditions = [{"c": i} for i in range(5)]
    blocks, ended = simulate(tmp_path, lambda c, b: {}, conditions, lambda blocks: False, Plan(2, 30))
    assert len(blocks) == 30 and not ended
    orders = [tuple(sorted(range(5), key=lambda c: b[engine.key({"c": c})]["order"])) for b in blocks]
    assert all(sorted(o) == list(range(5)) for o in orders)
    assert len(set(orders)) > 20
    assert {o[0] for o in orders} == set(range(5))


# What is concluded -------------------------------------------------------------------------------------------------------


class FakeHaccio:
    """A stack whose runs take what a law says: rate(method, particles, beside, rng)."""

    mpiexec, program = ("mpiexec",), "haccio"

    def __init__(self, rate: Callable[..., float], seed: int = 0):
        self.rate, self.rng, self.beside = rate, np.random.default_rng(seed), 0

    def run(self, ranks: int, arguments: list[str], seconds: float) -> Result:
        values = [(a, b) for a, b in itertools.pairwise(arguments) if a.startswith("--")]
        given = dict(values)
        if arguments[0] == "split":
            lines = [{"kind": "run", "mpi": "Fake 1.0", "rounds": 2}]
            for i, way in enumerate(given["--ways"].split(",")):
                taken = self.rate(way, int(given["--communicators"]), int(given["--size"]), self.rng)
                lines.append({"kind": "repetition", "way": way, "order": i, "seconds": taken})
            return Result(tuple(lines))
        particles = int(given["--particles"])
        lines = [{"kind": "run", "mpi": "Fake 1.0", "hosts": {"h": ranks}}]
        for i, method in enumerate(b for a, b in values if a == "--method"):
            rate = self.rate(method, particles, self.beside, self.rng)
            lines.append(
                {
                    "kind": "repetition",
                    "method": method,
                    "operation": "write",
                    "order": i,
                    "begin": 0.0,
                    "phases": {},
                }
                | {"bytes": 38 * particles, "seconds": 38 * particles / rate, "bytes_per_second": rate}
            )
        return Result(tuple(lines))

    def start(self, ranks: int, arguments: list[str]) -> FakeHaccio:
        self.other = self.beside = int(arguments[arguments.index("--particles") + 1])
        return self

    def __enter__(self) -> FakeHaccio:
        return self

    def __exit__(self, *_: object) -> None:
        self.beside = 0

    def wait_for(self, kind: str, seconds: float) -> None:
        pass

    def wait(self, seconds: float) -> Result:
        line = {"kind": "repetition", "begin": -1.0, "seconds": 1e9, "bytes": 38 * self.other}
        return Result(({"kind": "run"}, line))


def findings(
    subject: Size | Interference | Split, folder: Path, plan: Plan, name: str = "journal"
) -> tuple[list[dict], dict]:
    with Journal(folder / name, subject.name, subject.identity()) as journal:
        blocks, ended = conduct_study(journal, subject, plan)
    result = subject.result(blocks, ended)
    load_json(json.dumps(result))
    return result["guidance"], result


def size_study(rate: Callable[..., float], folder: Path, seed: int = 0, **options: object) -> Size:
    defaults = {"particles": (5000, 25000, 100000), "methods": ("posix",)}
    return Size(stacks=[FakeHaccio(rate, seed)], ranks=4, folder=folder, **{**defaults, **options})


def varying(deviations: dict[int, float]) -> Callable[..., float]:
    return lambda method, particles, beside, rng: 1e9 * rng.normal(1, deviations[particles])


def test_the_size_from_which_on_runs_vary_little_is_found(tmp_path: Path) -> None:
    subject = size_study(varying({5000: 0.28, 25000: 0.03, 100000: 0.03}), tmp_path)
    guidance, result = findings(subject, tmp_path, Plan(30, 60))
    first, trend = guidance
    assert (
        first["decided"] and "no more than 10% from 25000 particles a rank (0.95 MB) on" in first["sentence"]
    )
    assert trend["decided"] and "small jobs vary more" in trend["sentence"]
    for row, true in zip(result["rows"], (0.28, 0.03, 0.03), strict=True):
        assert row["variation"]["low"] < true < row["variation"]["high"]
        assert len(row["rates"]) == result["blocks"]


def test_few_runs_decide_nothing_and_say_so(tmp_path: Path) -> None:
    subject = size_study(
        varying({5000: 0.12, 25000: 0.1, 100000: 0.09}), tmp_path, methods=("posix", "aggregate")
    )
    guidance, result = findings(subject, tmp_path, Plan(5, 6))
    assert not result["precise"]
    for finding in guidance:
        assert not finding["decided"] and "cannot be decided with 6 repetitions" in finding["sentence"], (
            finding
        )


def test_a_method_that_varies_much_everywhere_is_told(tmp_path: Path) -> None:
    subject = size_study(varying({5000: 0.3, 25000: 0.3, 100000: 0.3}), tmp_path)
    guidance, _ = findings(subject, tmp_path, Plan(40, 40))
    assert guidance[0]["decided"] and "more than 10% at the largest size too" in guidance[0]["sentence"]


def test_the_fastest_is_named_only_where_it_is_known(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def named(speed: float, seed: int) -> dict:
        def rate(method: str, particles: int, beside: int, rng: np.random.Generator) -> float:
            return rng.normal(speed if method == "aggregate" else 1.0, 0.1) * 1e9

        methods = ("posix", "aggregate", "mpiio")
        subject = size_study(rate, memory, seed, methods=methods, particles=(100,))
        return findings(subject, memory, Plan(10, 10), f"{speed}-{seed}")[0][-1]

    for seed in range(20):
        assert named(2.0, seed)["decided"] and "fastest: aggregate" in named(2.0, seed)["sentence"]
    # No difference: a winner would be wrong. The best of three is compared with the others, which favours it a little.
    assert sum(named(1.0, seed)["decided"] for seed in range(100)) <= 14


def interference_study(loss: float, spread: float, folder: Path, seed: int = 0) -> Interference:
    def rate(method: str, particles: int, beside: int, rng: np.random.Generator) -> float:
        return 2.2e9 * rng.normal(1 - (loss if beside > 40_000 else 0), spread * (3 if beside else 1))

    return Interference(
        stack=FakeHaccio(rate, seed), ranks=4, folder=folder, intensities=(0.2, 4.0), method="posix", repeat=1
    )


def test_losses_beside_another_job_are_found(tmp_path: Path) -> None:
    guidance, result = findings(interference_study(0.13, 0.01, tmp_path), tmp_path, Plan(20, 40))
    alone, weak, strong = result["rows"]
    assert alone["intensity"] == 0 and "loss" not in alone
    assert weak["loss"]["low"] < 0 < weak["loss"]["high"] < 0.05
    assert strong["loss"]["low"] < 0.13 < strong["loss"]["high"]
    assert strong["deviation_ratio"]["low"] < 3 < strong["deviation_ratio"]["high"]
    assert strong["overlap"] == 1 and strong["other_mean"]["value"] > 0
    sentences = [x["sentence"] for x in guidance]
    assert "allocate so that no job writes 4 MB a rank or more" in sentences[0]
    assert any("vary more (" in s for s in sentences) and any(
        "both jobs ran on h alone" in s for s in sentences
    )


def test_harmless_neighbours_are_told_and_doubts_too(tmp_path: Path) -> None:
    guidance, _ = findings(interference_study(0.0, 0.005, tmp_path), tmp_path, Plan(20, 40), "harmless")
    assert guidance[0]["decided"] and "any allocation will do" in guidance[0]["sentence"]
    guidance, _ = findings(interference_study(0.13, 0.2, tmp_path), tmp_path, Plan(6, 6), "doubtful")
    assert not guidance[0]["decided"] and "cannot be decided with 6 repetitions" in guidance[0]["sentence"]


def test_ways_of_making_communicators_are_ranked(tmp_path: Path) -> None:
    def rate(way: str, communicators: int, size: int, rng: np.random.Generator) -> float:
        slow = {"split": communicators, "group": 1.0, "coloured": 1.02, "disjoint": 1.0}[way]
        return 1e-3 * slow * rng.normal(1, 0.1)

    subject = Split(stacks=[FakeHaccio(rate)], ranks=8, communicators=(1, 16), sizes=(2, 4, 100))
    guidance, result = findings(subject, tmp_path, Plan(10, 20))
    assert {r["size"] for r in result["rows"]} == {2, 4}, "sizes above the number of ranks are left out"
    assert len(result["rows"]) == 2 * 2 * 4
    assert guidance and all("avoid successive MPI_Comm_split" in x["sentence"] for x in guidance)
    two = Split(
        stacks=[FakeHaccio(rate, 1), FakeHaccio(lambda *a: 3 * rate(*a), 2)],
        ranks=8,
        communicators=(4,),
        sizes=(2,),
    )
    guidance, _ = findings(two, tmp_path, Plan(10, 20), "two")
    stacks = [x for x in guidance if "times as long as Fake 1.0 (1)" in x["sentence"]]
    assert len(stacks) == 4 and all(x["decided"] for x in stacks)


# Journals ----------------------------------------------------------------------------------------------------------------

# A study whose runs are numbers, and that is killed by the kernel's hand in run number KILL, before or after its line is written.
VICTIM = """
import os, signal, sys
from io_studies import conduct
from twinrun.aggregate.studies import Journal, Plan
path, kill = sys.argv[1], int(sys.argv[2])
made = 0
def run(condition, block):
    global made
    if made == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    made += 1
    return {"x": 10 * block + condition["c"]}
with Journal(path, "victim", {"a": 1}) as journal:
    blocks, _ = conduct(journal, [{"c": 0}, {"c": 1}, {"c": 2}], run, lambda blocks: False, Plan(2, 3))
print([[b[k]["x"] for k in sorted(b)] for b in blocks])
"""
WHOLE = "[[0, 1, 2], [10, 11, 12], [20, 21, 22]]\n"


def victim(path: Path, kill: int) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(Path(io_studies.__file__).parent)}
    return subprocess.run(
        [sys.executable, "-c", VICTIM, path, str(kill)],
        capture_output=True, text=True, timeout=HANG, env=environment,
    )  # fmt: skip


def test_a_killed_study_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert victim(whole, -1).stdout == WHOLE
    reference = whole.read_text()
    for kill in (0, 1, 4, 8):
        path = tmp_path / str(kill)
        assert victim(path, kill).returncode == -signal.SIGKILL
        assert len(path.read_text().splitlines()) == 1 + kill, "every run that ended is kept"
        assert victim(path, -1).stdout == WHOLE
        assert path.read_text() == reference, "the same runs in the same order, none twice"
    # Killed again and again, one run further each time.
    path = tmp_path / "often"
    for _ in range(8):
        assert victim(path, 1).returncode == -signal.SIGKILL
    assert victim(path, -1).stdout == WHOLE and path.read_text() == reference


def fill(journal: Journal) -> list[dict]:
    blocks, _ = conduct(
        journal, [{"c": 0}, {"c": 1}], lambda c, b: {"x": b + c["c"]}, lambda blocks: False, Plan(2, 2)
    )
    return blocks


def test_a_torn_last_line_is_cut_off(memory: Path) -> None:
    path = memory / "journal"
    with Journal(path, "s", {"a": 1}) as journal:
        whole = fill(journal)
    text = path.read_bytes()
    for length in range(len(text)):
        path.write_bytes(text[:length])
        with Journal(path, "s", {"a": 1}) as journal:
            assert len(journal.runs) == max(text[:length].count(b"\n") - 1, 0)
            assert fill(journal) == whole
        assert path.read_bytes() == text


def test_every_run_is_on_storage_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    synced = []

    def sync(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):  # the folder is synced too, when the journal is made
            synced.append(path.read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", sync)
    with Journal(path, "s", {}) as journal:
        fill(journal)
    assert synced == [1, 2, 3, 4, 5]


def test_journals_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, "s", {"ranks": 2}) as journal:
        fill(journal)
        with pytest.raises(TwinrunError, match="another study is writing"):
            Journal(path, "s", {"ranks": 2})
    text = path.read_bytes()
    with pytest.raises(Incomparable, match="ranks = 2, not 3"):
        Journal(path, "s", {"ranks": 3})
    with pytest.raises(Incomparable, match="study of s"):
        Journal(path, "t", {"ranks": 2})
    lines = text.splitlines(keepends=True)
    for damaged in (lines[0] + b"{\n" + lines[1], lines[1] + lines[0], b"[]\n", lines[0] * 2, b"\n" + text):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match="line"):
            Journal(path, "s", {"ranks": 2})
        assert path.read_bytes() == damaged, "nothing of it is lost"
    with pytest.raises(TwinrunError, match="cannot be opened"):
        Journal(tmp_path / "no" / "journal", "s", {})


def test_a_run_that_fails_ends_the_study_and_keeps_the_others(tmp_path: Path) -> None:
    calls = []

    def run(condition: dict, block: int) -> dict:
        calls.append(condition)
        if len(calls) == 3:
            raise TwinrunError("no luck")
        return {}

    with pytest.raises(TwinrunError, match="no luck"):
        simulate(tmp_path, run, [{"c": 0}, {"c": 1}], lambda blocks: False, Plan(2, 2))
    with Journal(tmp_path / "journal", "simulated", {}) as journal:
        assert len(journal.runs) == 2


# Programs that are not haccio --------------------------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_jobs_that_fail_or_hang_say_why(tmp_path: Path) -> None:
    mpiexec = script(tmp_path / "mpiexec", 'shift 2; exec "$@"')
    bad = script(tmp_path / "bad", "echo warning; echo 'haccio: no luck' >&2; exit 2")
    with pytest.raises(TwinrunError, match=r"status 2: haccio: no luck"):
        Stack.of(bad, mpiexec).run(2, ["f"], 30)
    hanging = script(tmp_path / "hanging", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    with pytest.raises(TwinrunError, match=r"did not end within 0.5 s"):
        Stack.of(hanging, mpiexec).run(2, ["f"], 0.5)
    if (tmp_path / "pid").exists():  # it is gone, not only given up
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
    stack = Stack.of(bad, mpiexec)
    beside = Interference(stack=stack, ranks=2, folder=tmp_path, intensities=(1.0,), seconds=30)
    with (
        Journal(tmp_path / "journal", "interference", {}) as journal,
        pytest.raises(TwinrunError, match="the second job ended early"),
    ):
        # The run alone is made as if it had been before.
        alone = {"mpi": "", "hosts": {}, "begin": 0.0, "rate": 1.0, "rates": [1.0]}
        journal.add({"block": 0, "condition": {"intensity": 0.0}, **alone})
        engine.conduct(journal, beside, Plan(2, 2))
    with pytest.raises(MissingFile, match="not a program"):
        Stack.of(str(tmp_path / "nothing"))
    with pytest.raises(TwinrunError, match="does not say which launcher of MPI starts it"):
        Stack.of(bad)


# The real program --------------------------------------------------------------------------------------------------------


@pytest.fixture
def haccio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    program = os.environ.get(PROGRAM) or shutil.which("haccio")
    if program is None or not Path(program).exists():
        pytest.skip(
            f"needs haccio, which is built where there is an MPI: make test builds it, or set {PROGRAM}"
        )
    monkeypatch.setenv(PROGRAM, program)
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    return program


SMALL = ("--ranks", 2, "--least", 2, "--most", 2, "--run-limit", 120)
STUDIES = {
    "size": ("--particles", "100,500", "--method", "aggregate", "--method", "posix-packed", "--sync"),
    "interference": (
        "--particles",
        500,
        "--intensities",
        "0.01,0.05",
        "--method",
        "aggregate",
        "--repeat",
        2,
    ),
    "split": ("--communicators", "1,3", "--sizes", "1,2"),
}


@pytest.mark.parametrize("study", list(STUDIES))
def test_real_studies(study: str, haccio: str, tmp_path: Path) -> None:
    picture = []
    if study == "size":
        pytest.importorskip("matplotlib")
    try:
        import matplotlib  # noqa: F401

        picture = ["--picture", "picture.svg"]
    except ImportError:
        pass
    words = ("aggregate", "study", study, *SMALL, *STUDIES[study], "--json", "result.json", *picture)
    done = command(*words)
    assert done.status == 0, done
    assert "cannot be decided with 2 repetitions" in done.out
    result = load_json((tmp_path / "result.json").read_text())
    assert result["study"] == study and result["blocks"] == 2 and not result["precise"]
    assert all(r["mean"]["value"] > 0 for r in result["rows"])
    if picture:
        assert (tmp_path / "picture.svg").read_text().lstrip().startswith("<?xml")
    expected = {f"haccio-{study}.jsonl", "result.json", *(p for p in picture if p != "--picture")}
    assert {p.name for p in tmp_path.iterdir()} == expected, "no data is left"
    # Once more: nothing is left to run.
    before = (tmp_path / f"haccio-{study}.jsonl").read_bytes()
    again = command(*words)
    assert again.status == 0 and again.out == done.out
    assert (tmp_path / f"haccio-{study}.jsonl").read_bytes() == before
    # A run is lost: it alone is made again.
    lines = before.splitlines(keepends=True)
    (tmp_path / f"haccio-{study}.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    assert command(*words).status == 0
    after = (tmp_path / f"haccio-{study}.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:-1] == lines[:-1] and json.loads(after[-1])["order"] == json.loads(lines[-1])["order"]
    check_error(command(*words, "--ranks", 1), "ranks = 2, not 1")


def test_studies_from_haccio_itself(haccio: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    twinrun = script(tmp_path / "bin" / "twinrun", f'exec {sys.executable} -m twinrun "$@"')
    environment = {**os.environ, "PATH": f"{Path(twinrun).parent}:{os.environ['PATH']}"}
    del environment[PROGRAM]
    words = [haccio, "study", "split", *SMALL, "--communicators", 2, "--sizes", 2]
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=environment, timeout=HANG
    )
    assert done.returncode == 0 and "2 repetitions" in done.stdout, done


def test_the_table_of_the_benchmark(haccio: str, tmp_path: Path) -> None:
    bench = Path(__file__).resolve().parents[3] / "bench" / "aggregate_table.py"
    words = [
        sys.executable,
        bench,
        "--ranks",
        2,
        "--particles",
        "40,25000",
        "--layouts",
        "blocks",
        "--repeat",
        2,
    ]
    done = subprocess.run(
        [*map(str, words), "--json", "all.json"], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    cases = load_json((tmp_path / "all.json").read_text())
    assert [c["particles"] for c in cases] == [40, 25000]
    for case in cases:
        assert set(case["rates"]) >= {
            "aggregate",
            "posix",
            "mpiio-two-phase",
            "ceiling-copy",
            "ceiling-write",
        }
        for method, rates in case["rates"].items():
            assert len(rates["cached"]) == 2 and len(rates["synced"]) == (
                0 if method == "ceiling-copy" else 2
            )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| blocks")]
    # Six methods a size; goals: 3 times two-phase and 0.5 times POSIX, twice each, 0.9 with fsync once, CoV four times.
    assert len(rows) == 2 * 6 + 9
    assert {p.name for p in tmp_path.iterdir()} == {"all.json"}


def test_bad_words_are_refused(haccio: str, tmp_path: Path) -> None:
    study = ("aggregate", "study")
    check_error(command(*study, "size", "--particles", "5,x"), "'5,x'")
    check_error(command(*study, "size", "--least", 5, "--most", 4), "--most")
    check_error(
        command(*study, "size", "--program", haccio, "--program", haccio, "--mpiexec", "a"), "--mpiexec"
    )
    check_error(command(*study, "size", "--program", tmp_path / "none"), "none")
    check_error(command(*study, "split", "--ranks", 2, "--sizes", 3), "--sizes")
    check_error(command(*study, "size", *SMALL, "--method", "magic"), "magic")
