"""Fixtures of tests of golden files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a, noisy (within tolerance), parted (one element), edge (cannot all be told), and golden files of a."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("a", "noisy", "parted", "edge"):
        rng = np.random.default_rng(1)
        own = np.random.default_rng(2)
        with twinrun.Run(folder / name, atol=1e-6) as run:
            for step in (10, 20):
                x = rng.normal(size=(50, 60))
                if name != "a":
                    x += own.uniform(-0.5e-6, 0.5e-6, x.shape)
                if name == "edge":  # up to 0.95e-6
                    x[7] += 0.45e-6
                if name == "parted" and step == 20:
                    x[3, 7] += 1e-3
                run.capture(step, {"x": x, "id": np.arange(500)})
    assert (
        command("golden", "save", folder / "a", "--output", folder / "golden", "--keep-values", 0).status == 0
    )
    return folder
