"""Many processes that capture into one folder: each commits all its steps, or says in one line why not, and nobody's are lost."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from histories import steps_of

import twinrun

# Waits until it is told to begin: all do at once. Each step of a writer has its own number and its own values.
WRITER = """
import sys, numpy as np, twinrun
path, existing, local, record, writer = sys.argv[1:6]
print("ready", flush=True)
sys.stdin.readline()
steps = []
try:
    with twinrun.Run(path, existing=existing, local=local or None, record=record or None) as run:
        for i in range(3):
            step = 10 * int(writer) + i
            run.capture(step, {"x": np.full(200, float(step))})
            steps.append(step)
except twinrun.TwinrunError as e:
    print("failed", str(e).replace(chr(10), "|NEWLINE|"), flush=True)
else:
    print("committed", *steps, flush=True)
"""

REASONS = (
    "holds a history already",
    "another process is writing this history",
    "captured with other settings",
)


def write_at_once(
    path: Path | list[Path], writers: list[tuple[str, str, str]]
) -> list[tuple[str, list[int] | str]]:
    """(existing, local, record) of each, and where to. What each says."""
    paths = path if isinstance(path, list) else [path] * len(writers)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(paths[number]), *settings, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number, settings in enumerate(writers)
    ]  # fmt: skip
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    said = []
    for process in started:
        out, err = process.communicate(timeout=1200)
        assert process.returncode == 0 and err == "", (out, err)
        word, _, rest = out.strip().partition(" ")
        said.append((word, [int(step) for step in rest.split()] if word == "committed" else rest))
    return said


def check(path: Path, said: list[tuple[str, list[int] | str]], committed: list[int]) -> None:
    for word, what in said:
        if word == "failed":
            assert any(reason in what for reason in REASONS) and "|NEWLINE|" not in what, what
    assert steps_of(path) == sorted(committed)
    assert twinrun.verify(path)[0] == []
    record = twinrun._core.open_history(str(path)).record is not None
    settings = {"record": "runs"} if record else {}
    with twinrun.Run(path, existing="append", **settings) as run:
        for step in committed:
            assert np.array_equal(run.load(step)["x"], np.full(200, float(step))), step


@pytest.mark.parametrize("seed", range(6))
def test_processes_that_write_one_folder(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "run"
    record = "runs" if seed % 3 == 2 else ""
    local = str(tmp_path / "local") if seed % 2 else ""
    kinds = ["append", "append", "refuse"]
    writers = [(rng.choice(kinds), local, record) for _ in range(4)]
    said = write_at_once(path, writers)
    committed = [step for word, what in said if word == "committed" for step in what]
    check(path, said, committed)
    # One at least did; who appends waits for its turn, for ten seconds.
    assert committed
    for (existing, *_), (word, what) in zip(writers, said, strict=True):
        assert existing == "refuse" or word == "committed" or REASONS[1] in what, what


@pytest.mark.parametrize("seed", range(3))
def test_who_replaces_waits_for_who_writes(seed: int, tmp_path: Path) -> None:
    """A history that is replaced was closed by then: its writer was told that all was committed, and it was."""
    rng = random.Random(100 + seed)
    path = tmp_path / "run"
    writers = [(rng.choice(["append", "replace", "replace"]), "", "") for _ in range(4)]
    said = write_at_once(path, writers)
    there = steps_of(path)
    whole = [what for word, what in said if word == "committed" and set(what) <= set(there)]
    assert there and there == sorted(step for steps in whole for step in steps)
    check(path, said, there)


def test_a_record_and_plain_data_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "run"
    said = write_at_once(path, [("append", "", "runs"), ("append", "", ""), ("append", "", "runs")])
    check(path, said, [step for word, what in said if word == "committed" for step in what])
    assert {word for word, _ in said} == {"committed", "failed"}


def test_histories_that_share_a_local_folder(tmp_path: Path) -> None:
    """One after the other: each brings its steps home, and leaves the folder to the next."""
    paths = [tmp_path / f"run{i}" for i in range(3)]
    said = write_at_once(paths, [("refuse", str(tmp_path / "local"), "")] * 3)
    for path, (word, what) in zip(paths, said, strict=True):
        if word == "committed":
            check(path, [(word, what)], what)
        else:
            assert "another process is writing" in what or "holds steps of another run" in what, what
    assert "committed" in {word for word, _ in said}
