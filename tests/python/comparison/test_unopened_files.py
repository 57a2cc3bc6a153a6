"""A file of a folder that cannot be opened hides no other: the rest is compared, and it is named.

A verdict that says that the rest agrees is checked against what the rest is.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun
from twinrun import golden
from twinrun.comparison.words import verdict_line
from twinrun.errors import DamagedFile, TwinrunError
from twinrun.runs.subject import Unopened

STEPS = (1, 2, 3)
NAMES = ("a", "b", "c")


def write(run: Path, values: dict[tuple[int, str], np.ndarray]) -> None:
    for (step, name), array in values.items():
        folder = run / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", array)


def damage(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


@pytest.mark.parametrize("seed", range(20))
def test_the_rest_is_compared_as_brute_force_says(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    a = {at: random.integers(0, 9, 12).astype("f8") for at in itertools.product(STEPS, NAMES)}
    b = {at: x + (random.random() < 0.4) * (np.arange(12) == random.integers(12)) for at, x in a.items()}
    write(tmp_path / "A", a)
    write(tmp_path / "B", b)
    broken = {(run, at) for run in "AB" for at in a if random.random() < 0.15} or {("A", (2, "b"))}
    for run, (step, name) in broken:
        damage(tmp_path / run / f"step_{step}" / f"{name}.npy")
    whole = [at for at in a if not {("A", at), ("B", at)} & broken]
    executor = ThreadPoolExecutor(2) if seed % 4 == 0 else None
    found = twinrun.compare(tmp_path / "A", tmp_path / "B", partial=True, executor=executor)
    assert {(f.step, f.field): f.different for f in found.fields} == {
        at: int((a[at] != b[at]).sum()) for at in whole
    }
    assert found.verdict == "incomparable"
    assert len(found.problems) == len(broken)
    for run, (step, name) in broken:
        place = str(tmp_path / run / f"step_{step}" / f"{name}.npy")
        assert sum(place in p for p in found.problems) == 1
    rest = (
        "what was compared differs"
        if any((a[at] != b[at]).any() for at in whole)
        else "what was compared agrees"
    )
    assert rest in verdict_line(found)


def test_without_partial_it_raises(tmp_path: Path) -> None:
    for run in "AB":
        write(tmp_path / run, {(1, "x"): np.arange(5.0), (1, "y"): np.arange(5.0)})
    damage(tmp_path / "A" / "step_1" / "y.npy")
    with pytest.raises(TwinrunError, match=r"y\.npy"):
        twinrun.compare(tmp_path / "A", tmp_path / "B")


def test_nothing_could_be_compared(tmp_path: Path) -> None:
    for run in "AB":
        write(tmp_path / run, {(1, "x"): np.arange(5.0), (1, "y"): np.arange(5.0)})
        for name in "xy":
            damage(tmp_path / run / "step_1" / f"{name}.npy")
    with pytest.raises(DamagedFile, match=r"A/step_1/x\.npy"):
        twinrun.compare(tmp_path / "A", tmp_path / "B", partial=True)


def test_names_of_fields_in_several_kinds_of_files(tmp_path: Path) -> None:
    """The names of the fields of an archive do not tell of which file they are: the file is reported, once."""
    for run in "AB":
        write(tmp_path / run, {(1, "x"): np.arange(5.0)})
        np.savez(tmp_path / run / "step_1" / "more.npz", p=np.arange(3), q=np.arange(4))
    damage(tmp_path / "A" / "step_1" / "more.npz")
    found = twinrun.compare(tmp_path / "A", tmp_path / "B", partial=True)
    assert [f.field for f in found.fields] == ["x"]
    assert [("more.npz" in p) for p in found.problems] == [True]
    assert found.verdict == "incomparable"
    # Who leaves the file out does not leave out what else is missing.
    (tmp_path / "A" / "step_1" / "x.npy").unlink()
    left_out = command("compare", tmp_path / "A", tmp_path / "B", "--leave-out", "more.npz")
    assert left_out.status == 2 and "x" in left_out.err


@pytest.mark.parametrize("how", [[], ["--common"], ["--field", "x"]])
def test_a_file_of_unknown_steps_leaves_no_step_whole(tmp_path: Path, how: list[str]) -> None:
    """It may have fields of every step: that the others agree says nothing of them."""
    h5py = pytest.importorskip("h5py")
    for run in "AB":
        write(tmp_path / run, {(s, "x"): np.arange(5.0) for s in STEPS})
        with h5py.File(tmp_path / run / "more.h5", "w") as file:
            for s in STEPS:
                file[f"data/{s}/y"] = np.arange(5.0)
            file.attrs.update(
                openPMD="1.1.0",
                basePath="/data/%T/",
                iterationEncoding="groupBased",
                iterationFormat="/data/%T/",
            )
    with open(tmp_path / "A" / "more.h5", "r+b") as file:
        file.truncate(100)
    assert command("compare", tmp_path / "A", tmp_path / "B", *how).status == 2
    assert command("compare", tmp_path / "B", tmp_path / "A", *how).status == 2


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    for number, run in enumerate("AB"):
        write(tmp_path / run, {(1, "x"): np.arange(5.0) + number})
        np.save(os.fsdecode(os.fsencode(tmp_path / run / "step_1") + b"/caf\xe9.npy"), np.arange(3.0))
    found = twinrun.compare(tmp_path / "A", tmp_path / "B", partial=True)
    assert [(f.field, f.different) for f in found.fields] == [("x", 5)]
    assert "what was compared differs" in verdict_line(found)
    without = command("compare", tmp_path / "A", tmp_path / "B", "--leave-out", "caf*")
    assert without.status == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--field", "x"], 0),
        (["--field", "y"], 2),
        (["--field", "*"], 2),
        (["--field", "x", "--field", "y/part"], 2),
        (["--leave-out", "y"], 0),
        (["--leave-out", "x"], 2),
        (["--common"], 2),
    ],
)
def test_what_was_asked_for(tmp_path: Path, arguments: list[str], status: int) -> None:
    for run in "AB":
        write(tmp_path / run, {(1, "x"): np.arange(5.0), (1, "y"): np.arange(5.0)})
    damage(tmp_path / "B" / "step_1" / "y.npy")
    found = command("compare", tmp_path / "A", tmp_path / "B", *arguments)
    assert found.status == status


def test_whatever_a_file_may_hold_counts_as_chosen() -> None:
    random = np.random.default_rng(5)
    letters = list("ab/*?[]")
    matched = 0
    for _ in range(20_000):
        glob = "".join(random.choice(letters, random.integers(1, 7)))
        name = "".join(random.choice(list("ab/"), random.integers(1, 4)))
        field = name + random.choice(["", "/a", "/b/a", "/ab"])
        if fnmatch.fnmatchcase(field, glob):
            matched += 1
            assert Unopened(name, name, TwinrunError("")).may_match(glob), (glob, name, field)
    assert matched > 500


def test_golden_files_check_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "run", {(s, n): np.arange(9.0) for s in STEPS for n in NAMES})
    golden.save(tmp_path / "run", tmp_path / "kept", atol=1e-6)
    damage(tmp_path / "run" / "step_2" / "b.npy")
    np.save(tmp_path / "run" / "step_2" / "c.npy", np.arange(9.0) + 1)
    found = golden.check(tmp_path / "kept", tmp_path / "run")
    verdicts = {(f.step, f.field): f.verdict for f in found.fields}
    assert len(verdicts) == 8
    assert {at for at, said in verdicts.items() if said == "different"} == {(2, "c")}
    assert [("b.npy" in str(p)) for p in found.problems] == [True]
    assert found.status == 2
