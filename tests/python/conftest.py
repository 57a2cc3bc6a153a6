"""Where random examples come from: fixed seeds in `make test`, fresh ones in `make hunt`, and what a hunt found is tried first.

Every test of hypothesis draws from a seed of its own name, so that a run makes the examples of the one before. `make hunt` mixes
TWINRUN_HUNT_SEED into it, and keeps what fails in tests/hunted/examples, hypothesis' database, which is part of the sources.
"""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path

# Tests run in as many processes as there are cores. Matrices here are small: threads of OpenBLAS would take turns on
# those cores, and wait for each other by spinning. Before numpy is loaded; programs that tests start have it too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ReadOnlyDatabase

FOUND = Path(__file__).resolve().parents[1] / "hunted" / "examples"
HUNT_SEED = os.environ.get("TWINRUN_HUNT_SEED", "")

_database = DirectoryBasedExampleDatabase(FOUND)
# No limits of time (a busy machine is no finding), and a folder of pytest's is the same for all examples of a test.
settings.register_profile(
    "twinrun",
    database=_database if HUNT_SEED else ReadOnlyDatabase(_database),
    deadline=None,
    derandomize=False,  # it would turn the database off: the seeds below do what it does
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("twinrun")


def seed_of(name: str) -> int:
    """Of a test, by its name without parameters (they share one function)."""
    return int.from_bytes(hashlib.sha256(f"{name} {HUNT_SEED}".encode()).digest()[:8], "little")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "function", None)
        if function is not None and hypothesis.is_hypothesis_test(function):
            own = function._hypothesis_internal_use_settings
            hypothesis.seed(seed_of(f"{item.path.name} {function.__qualname__}"))(function)
            function._hypothesis_internal_use_settings = (
                own  # with its database, which a seed takes away (test_hunt.py watches)
            )


def pytest_collection_finish() -> None:
    """What is there before the first test stays: modules, and thousands of tests. The garbage collector need not look through it
    again, in tests that collect, and whenever a test makes many objects.
    """
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"random examples: seed {HUNT_SEED} of a hunt" if HUNT_SEED else "random examples: fixed seeds"
