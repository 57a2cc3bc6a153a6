"""Paths with a zero byte: what stands before it may be another file, which is neither read nor written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun import golden

CALLS: dict[str, Callable[[str, str], object]] = {
    "compare": lambda bad, good: twinrun.compare(bad, good),
    "compare with": lambda bad, good: twinrun.compare(good, bad),
    "compare_distances": lambda bad, good: twinrun.compare_distances(good, bad, good),
    "index": lambda bad, _good: twinrun.index(bad),
    "verify": lambda bad, _good: twinrun.verify(bad),
    "sketch_of": lambda bad, _good: twinrun.sketch_of(bad, 1),
    "Run": lambda bad, _good: twinrun.Run(bad),
    "Run local": lambda bad, good: twinrun.Run(good + "-new", local=bad),
    "Run reference": lambda bad, good: twinrun.Run(good + "-new", reference=bad),
    "golden.save": lambda bad, good: golden.save(good, bad),
    "golden.check": lambda bad, good: golden.check(bad, good),
    "pack": lambda bad, good: twinrun.pack(good, bad),
    "restore": lambda bad, good: twinrun.restore(good, bad),
    "compact": lambda bad, _good: twinrun.compact(bad),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_path_is_never_cut_at_a_zero_byte(tmp_path: Path, name: str) -> None:
    good = tmp_path / "run"
    with twinrun.Run(good) as run:
        run.capture(1, {"x": np.arange(100.0)})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(twinrun.TwinrunError, match="zero byte"):
        CALLS[name](f"{good}\0.new", str(good))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
