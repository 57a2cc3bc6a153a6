"""`make test` makes the same random examples each time; `make hunt` makes others, and keeps what fails for `make test` to repeat."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hunt
import pytest
from commands import HANG

CONFTEST = Path(__file__).parents[1] / "conftest.py"
# Writes down what it draws; fails where it is told to.
TEST = """
import json, os
from hypothesis import given, settings, strategies as st

@settings(max_examples=20)
@given(st.integers(0, 1 << 60))
def test_drawn(number):
    with open(os.environ["DRAWN"], "a") as file:
        file.write(f"{number}\\n")
    assert number < int(os.environ["LIMIT"])
"""


def drawn(folder: Path, limit: int, **more: str) -> tuple[int, list[int]]:
    """(exit status, examples) of a run of the test in this folder."""
    out = folder / "drawn"
    out.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if k != "TWINRUN_HUNT_SEED"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/python"],
        cwd=folder, capture_output=True, text=True, timeout=HANG,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DRAWN": str(out), "LIMIT": str(limit), **more},
    )  # fmt: skip
    return done.returncode, [int(line) for line in out.read_text().split()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one test of hypothesis, under this project's conftest."""
    (tmp_path / "tests" / "python").mkdir(parents=True)
    shutil.copy(CONFTEST, tmp_path / "tests" / "python")
    (tmp_path / "tests" / "python" / "test_it.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_examples_follow_from_fixed_seeds(tree: Path) -> None:
    first = drawn(tree, 1 << 61)
    assert first[0] == 0 and len(set(first[1])) > 5
    assert drawn(tree, 1 << 61, CI="") == first == drawn(tree, 1 << 61, CI="1")
    assert not (tree / "tests" / "hunted").exists()
    hunted = drawn(tree, 1 << 61, TWINRUN_HUNT_SEED="1")
    assert hunted[0] == 0 and hunted != first != drawn(tree, 1 << 61, TWINRUN_HUNT_SEED="2") != hunted
    assert drawn(tree, 1 << 61, TWINRUN_HUNT_SEED="1")[1][:10] == hunted[1][:10]


def test_what_a_hunt_found_is_tried_first_ever_after(tree: Path) -> None:
    limit = max(drawn(tree, 1 << 61)[1]) + 1  # no fixed example fails
    assert drawn(tree, limit)[0] == 0
    seed = next(s for s in range(100) if drawn(tree, limit, TWINRUN_HUNT_SEED=str(s))[0] != 0)
    status, numbers = drawn(tree, limit)
    assert status == 1 and numbers[0] >= limit, seed
    kept = sorted((tree / "tests" / "hunted" / "examples").rglob("*"))
    # It stays there when it passes, for it may come back.
    status, numbers = drawn(tree, 1 << 61)
    assert status == 0 and numbers[0] >= limit
    assert sorted((tree / "tests" / "hunted" / "examples").rglob("*")) == kept


def test_a_hunt_ends_when_it_is_told_and_names_each_seed(capsys: pytest.CaptureFixture) -> None:
    time, seen = [0.0], []

    def part(name: str, seconds: float, fails: bool = False):
        def passes(seed: int) -> bool:
            time[0] += seconds
            seen.append((name, seed))
            return not fails

        return name, passes

    parts = [part("a", 1), part("b", 2, fails=True), part("c", 3)]
    failed = hunt.hunt(parts, 60, 5, lambda: time[0])
    assert 60 <= time[0] < 63 and {name for name, _ in seen} == {"a", "b", "c"}
    assert [f"b with seed {seed}" for name, seed in seen if name == "b"] == failed
    assert len({seed for _, seed in seen}) == len(seen)
    said = capsys.readouterr().out
    assert "from seed 5" in said and all(f"seed {seed}: {name}" in said for name, seed in seen)
    again, seen[:], time[0] = list(seen), [], 0.0
    hunt.hunt(parts, 60, 5, lambda: time[0])
    assert seen == again
    assert hunt.hunt([], 60, 5, lambda: time[0]) == []


PROGRAM = """#!/bin/sh
# Fails, as a program of GoogleTest does, with odd seeds.
[ -z "$TWINRUN_TEST_SEED" ] && exit 3
case "$TWINRUN_TEST_SEED" in *[13579])
    echo "[  FAILED  ] Kind/Suite.Odd/1, where GetParam() = 4"
    echo "[  FAILED  ] 1 test, listed below:"
    echo "[  FAILED  ] Kind/Suite.Odd/1, where GetParam() = 4"
    exit 1;;
esac
"""


def test_seeds_of_cpp_tests_are_kept_and_repeated(tmp_path: Path) -> None:
    (tmp_path / "tests" / "layer").mkdir(parents=True)
    (tmp_path / "tests" / "layer" / "x_test.cpp").write_text(
        "TEST_P(Suite, Odd) { random(test_seed(1)); }\nTEST(Suite, Fixed) { random(1); }\n"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "test_layer").write_text(PROGRAM)
    (folder / "test_layer").chmod(0o755)
    assert hunt.cpp_programs(tmp_path) == {"test_layer": ["Suite.Odd"]}
    ((name, passes),) = hunt.parts_of(tmp_path, folder, "")
    assert name == "test_layer" and passes(4) and hunt.read_seeds(tmp_path) == []
    assert not passes(7) and not passes(7)
    kept = [{"program": "test_layer", "test": "Kind/Suite.Odd/1", "seed": 7}]
    assert json.loads((tmp_path / hunt.SEEDS).read_text()) == kept
    assert hunt.replay(tmp_path, folder) == 1
    (folder / "test_layer").write_text("#!/bin/sh\n")
    assert hunt.replay(tmp_path, folder) == 0
    (folder / "test_layer").write_text("#!/bin/sh\nkill -SEGV $$\n")  # says nothing
    assert not passes(4) and hunt.read_seeds(tmp_path)[-1] == {
        "program": "test_layer",
        "test": "*",
        "seed": 4,
    }


def test_the_tree_has_both_kinds_of_tests_to_hunt_with() -> None:
    files = {path.name for path in hunt.python_files(hunt.ROOT)}
    assert {"test_planted.py", "test_format_npy.py"} <= files
    assert {"test_engine", "test_restore", "test_element"} <= set(hunt.cpp_programs(hunt.ROOT))
    assert isinstance(hunt.read_seeds(hunt.ROOT), list)
