"""The worked study in examples/gromacs: on its stand-in everywhere, on GROMACS where it is there.

TWINRUN_GROMACS: a folder in which tools/unpack_packages.sh left GROMACS, where gmx is not on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from ensemble_support import give_times, lines, within

from twinrun.ensemble import Options, analyse
from twinrun.ensemble.run import runner
from twinrun.ensemble.study.study import read_study

EXAMPLE = Path(__file__).parents[3] / "examples" / "gromacs"
FAST = Options(permutations=999, resamples=199)


def prepared(folder: Path, *options: object) -> Path:
    """A copy of the example with its box of water."""
    for path in EXAMPLE.iterdir():
        if path.suffix in (".py", ".toml"):
            shutil.copy(path, folder)
    done = subprocess.run(
        [sys.executable, folder / "prepare.py", folder / "water", *map(str, options)],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    return folder


def changed(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """One of its studies, made smaller."""
    text = (folder / name).read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return prepared(tmp_path, "--stand-in")


def test_studies_can_be_read() -> None:
    study = read_study(EXAMPLE / "study.toml")
    assert (
        [f.name for f in study.factors] == ["checkpoint", "files", "cores"]
        and study.noise
        and len(study.hypotheses) == 3
    )
    assert read_study(EXAMPLE / "nodes.toml").design.nodes == ("n0", "n1", "n2", "n3")
    assert read_study(EXAMPLE / "series.toml").blocks == 120
    storage = read_study(EXAMPLE / "storage.toml")
    assert set(storage.factor("interpose").levels) == {"off", "on", "slow-files", "no-files"}


def test_the_planted_slow_node_is_named(stand_in: Path) -> None:
    """Each of its tasks waits for a second, beside a process a core that burns time.

    What the processes alone take from a task of 0.02 s is lost among other programs on a busy machine; the wait is not.
    """
    study = changed(
        stand_in,
        "nodes.toml",
        ('"-nsteps", "1000"', '"-nsteps", "200"'),
        ('SLOW_PROCESSES = "2"', 'SLOW_PROCESSES = "1", SLOW_SECONDS = "1"'),
    )
    with within(HANG):
        runner.run_study(study, stand_in / "s")
    done = lines(stand_in / "s")
    assert all(x["status"] == "ok" and x["node"] == x["intended_node"] for x in done)
    rng = np.random.default_rng(1)
    waited = min(x["wall"] for x in done if x["node"] == "n2")
    assert waited > 1
    give_times(
        stand_in / "s", lambda x: (waited if x["node"] == "n2" else 0.1) * float(np.exp(0.02 * rng.normal()))
    )
    report = analyse(stand_in / "s", FAST)
    assert [c.what for c in report["nodes"].found] and "n2" in report["nodes"].sentence
    assert not any(f"Node {n} " in report["nodes"].sentence for n in ("n0", "n1", "n3"))


def test_the_whole_study_on_the_stand_in(stand_in: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("all-but-one of one core is none")
    study = changed(stand_in, "study.toml", ('"-nsteps", "1000"', '"-nsteps", "300"'), ("repetitions = 6", "repetitions = 3"),
                    ("seconds = 6", "seconds = 0.6"), ("warmup = 1", "warmup = 0"))  # fmt: skip
    with within(HANG):
        runner.run_study(study, stand_in / "s")
    done = lines(stand_in / "s")
    assert len(done) == 24
    for line in done:
        assert line["status"] == "ok" and not line["contradicted"]
        assert line["verified"]["checkpoint"] == {"on": "0.005", "off": "-1"}[line["factors"]["checkpoint"]]
        assert line["verified"]["files"] == {"on": "10", "off": "0"}[line["factors"]["files"]]
        cores = len(os.sched_getaffinity(0))
        assert len(line["cores"]) == (cores if line["factors"]["cores"] == "all" else cores - 1)
        assert line["factors"]["checkpoint"] == "on" or line["metrics"]["checkpoints"] == 0
        assert line["metrics"]["ns_per_day"] > 0
    report = analyse(stand_in / "s", FAST)
    assert (
        len(report["hypotheses"].facts["hypotheses"]) == 3 and "Before the study" in report["noise"].sentence
    )
    cells = report["factors"].facts["cells"]
    assert len(cells) == 8 and sum(c["n"] for c in cells) == 24


def test_a_planted_period_is_found_and_no_other() -> None:
    """A series of tasks as series.toml makes, simulated: noise that takes a third of each period; and none."""
    from ensemble_simulation import NOISES

    from twinrun.ensemble.analysis.periods import periods
    from twinrun.ensemble.study.tasks import frame_of

    def series(seed: int, period: float | None) -> list[dict]:
        rng, now, made = np.random.default_rng(seed), 0.0, []
        for k in range(120):
            work = 0.5 * float(np.exp(0.03 * NOISES["skewed"](rng)))
            end = now
            while work > 0:  # in steps of 10 ms: half the speed while it is disturbed
                slow = period is not None and end % period < 0.3 * period
                work -= 0.005 if slow else 0.01
                end += 0.01
            made.append({"version": 1, "task": k, "attempt": 1, "block": k, "order": k, "factors": {}, "status": "ok", "node": "n",
                         "cores": [0], "start": 1.7e9 + now, "end": 1.7e9 + end, "wall": end - now, "profiles": []})  # fmt: skip
            now = end + 0.05
        return made

    found = missed = 0
    for seed in range(10):
        planted = periods(frame_of(series(seed, 10.0)), FAST)
        assert planted.found and planted.facts["period"] == pytest.approx(10, rel=0.08)
        found += 1
        missed += bool(periods(frame_of(series(100 + seed, None)), FAST).found)
    assert found == 10 and missed <= 3  # one in twenty


def gromacs() -> list[str] | None:
    """Options of prepare.py for the GROMACS that is there."""
    unpacked = os.environ.get("TWINRUN_GROMACS")
    if unpacked and (Path(unpacked) / "usr" / "bin" / "gmx").exists():
        return ["--unpacked", unpacked]
    return [] if shutil.which("gmx") else None


needs_gromacs = pytest.mark.skipif(
    gromacs() is None,
    reason="needs GROMACS: apt-get install gromacs, or set TWINRUN_GROMACS to where tools/unpack_packages.sh left it",
)


@needs_gromacs
def test_gromacs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "17")  # as many shells have it, and some packages set it
    folder = prepared(tmp_path, *(gromacs() or []))
    cores = len(os.sched_getaffinity(0))
    levels = [] if cores > 1 else [('levels = ["all", "all-but-one"]', 'levels = ["all"]')]
    study = changed(folder, "study.toml", ('"-nsteps", "1000"', '"-nsteps", "60"'), ("repetitions = 6", "repetitions = 1"),
                    ("seconds = 6", "seconds = 0.6"), ("warmup = 1", "warmup = 0"), *levels)  # fmt: skip
    with within(HANG):
        runner.run_study(study, folder / "s")
    for line in lines(folder / "s"):
        assert line["status"] == "ok" and not line["contradicted"], line
        assert line["verified"]["files"] == {"on": "10", "off": "0"}[line["factors"]["files"]]
        assert line["metrics"]["ns_per_day"] > 0 and line["metrics_missing"] == []
        # 600 atoms and more, three coordinates and velocities of four bytes, each ten steps.
        assert (line["io"]["write_chars"] > 6 * 600 * 24) == (line["factors"]["files"] == "on")
    document = json.loads((folder / "s" / "noise" / "before.json").read_text())
    assert document["kind"] == "noise report"
    assert "Performance" not in analyse(folder / "s", FAST).headline
