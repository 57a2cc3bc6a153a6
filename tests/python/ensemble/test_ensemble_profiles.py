"""Profiles of calls in studies: what they decompose, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

import pandas as pd
from analysis_checks import FAST, MORE, covered, least, write_study
from ensemble_simulation import lines, study

from twinrun.ensemble.analysis.decompose import components, decompose, difference_of_profiles
from twinrun.ensemble.analysis.result import OPEN
from twinrun.ensemble.study.tasks import frame_of, load_tasks, usable

pytestmark = pytest.mark.usefixtures("quick_collection")

# Decomposition -----------------------------------------------------------------------------------------------------------


def profile(rank: int, wall: float, mpi: float, write: float, delay: float) -> dict:
    return {
        "version": 1, "rank": rank, "ranks": 2, "wall": wall, "cpu": wall - delay, "run_queue_delay": delay,
        "calls": {
            "MPI_Allreduce": {"group": "mpi_collective", "count": 10, "seconds": mpi * 0.75, "bytes": 80},
            "MPI_Wait": {"group": "mpi_wait", "count": 10, "seconds": mpi * 0.25, "bytes": 0},
            "fwrite": {"group": "stdio", "count": 5, "seconds": write, "bytes": 100},
        },
    }  # fmt: skip


def profiled(seed: int, cause: str) -> tuple[pd.DataFrame, list[list[dict]]]:
    """Tasks that differ by MPI time which is run-queue delay, or by writing."""
    rng = np.random.default_rng(seed)
    made, profiles = lines(seed, sigma=0.0), []
    for line in made:
        extra = rng.gamma(2)
        delay, write = (extra, 0.2) if cause == "delay" else (0.3, extra)
        compute, mpi = (
            8 + 0.05 * rng.standard_normal(),
            1 + (extra if cause == "delay" else 0.1 * rng.random()),
        )
        line["wall"] = compute + mpi + write
        profiles.append([profile(r, line["wall"], mpi, write, delay + 0.01 * rng.random()) for r in range(2)])
    return frame_of(made), profiles


@pytest.mark.parametrize(("cause", "first"), [("delay", "MPI"), ("write", "I/O")])
def test_decomposition_names_the_cause(cause: str, first: str) -> None:
    frame, profiles = profiled(1, cause)
    result = decompose(frame, FAST, profiles)
    parts = result.table.set_index("part")
    total = parts.loc["wall", "slow - fast quarter (s)"]
    adding = ["compute", "MPI", "I/O"]
    assert parts.loc[adding, "slow - fast quarter (s)"].sum() == pytest.approx(total)
    assert parts.loc[first, "slow - fast quarter (s)"] > 0.9 * total
    assert parts["share of variance"].sum() == pytest.approx(1, abs=1e-6)
    delay = parts.loc["run-queue delay"]
    if cause == "delay":
        # Half of what the two have in common is each one's.
        assert delay["share of variance"] == pytest.approx(0.5, abs=0.1)
        assert delay["R2 alone"] > 0.95 and result.facts["commonality"]["delay_and_mpi"] > 0.9
        assert result.facts["calls"][0]["call"] == "MPI_Allreduce"
    else:
        assert delay["R2 alone"] < 0.2 and delay["share high"] < 0.3
        assert result.facts["calls"][0]["call"] == "fwrite"
    for part in (*adding, "run-queue delay"):
        row = parts.loc[part]
        assert row["share low"] <= row["share of variance"] <= row["share high"]


def test_components_by_scheduler_add_up() -> None:
    frame, profiles = profiled(2, "delay")
    parts = components(usable(frame), profiles)
    assert (parts["compute"] + parts["mpi"] + parts["io"]).to_numpy() == pytest.approx(
        parts["wall"].to_numpy()
    )
    assert (parts["cpu"] + parts["blocked"] + parts["delay"]).to_numpy() == pytest.approx(
        parts["wall"].to_numpy()
    )
    assert parts["delay_sum"].to_numpy() == pytest.approx(2 * parts["delay"].to_numpy())


def test_slow_minus_fast_is_covered() -> None:
    """The interval of slow minus fast quarters holds the value of a study of thousands."""
    truth = None
    found = []
    for seed in range(40 * MORE + 1):
        rng = np.random.default_rng(seed)
        n = 20000 if seed == 0 else 40
        made = [
            {"task": k, "wall": 10 + float(x), "run_queue_delay": float(x) / 2, "node": "n"}
            for k, x in enumerate(rng.gamma(4, 0.3, n))
        ]
        if seed == 0:
            x = np.sort([line["wall"] for line in made])
            truth = float(x[-n // 4 :].mean() - x[: n // 4].mean())
            continue
        row = decompose(frame_of(made), FAST).table.iloc[0]
        found.append((row["low"], row["high"]))
    assert covered(found, truth) >= least(0.9, len(found))


def test_difference_of_profiles_is_antisymmetric() -> None:
    _, profiles = profiled(3, "delay")
    a = difference_of_profiles(profiles[:5], profiles[5:9]).set_index("call")["difference (s)"]
    b = difference_of_profiles(profiles[5:9], profiles[:5]).set_index("call")["difference (s)"]
    assert (a + b).abs().max() == pytest.approx(0, abs=1e-12)


def test_without_profiles_it_says_so() -> None:
    result = decompose(study(1), FAST)
    assert result.state == OPEN and "cannot be decided" in result.sentence


def test_profiles_are_read_and_incomplete_ones_are_none(tmp_path: Path) -> None:
    frame, profiles = profiled(1, "delay")
    made = [
        {k: v for k, v in row.items() if k in ("task", "wall", "start", "end", "node", "order")}
        for row in frame.to_dict("records")
    ]
    folder = write_study(tmp_path / "s", [])
    for k, (line, ranks) in enumerate(zip(made, profiles, strict=True)):
        line["profiles"] = []
        for r in ranks:
            name = f"P-{k}-{r['rank']}.json"
            (folder / name).write_text(json.dumps(r))
            line["profiles"].append(name)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    assert decompose(load_tasks(folder), FAST).facts["calls"][0]["call"] == "MPI_Allreduce"
    (folder / "P-0-0.json").write_text('{"version": 1, "calls"')
    assert decompose(load_tasks(folder), FAST).state == OPEN
