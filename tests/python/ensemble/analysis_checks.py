"""What tests of analyses share: options, shares of studies, and a study on storage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from scipy import stats

from twinrun.ensemble import Options

MORE = int(os.environ.get("TWINRUN_SIMULATIONS", "1"))
FAST = Options(permutations=1999, resamples=499)


def covered(intervals: list[tuple[float, float]], truth: float) -> float:
    """The share of intervals that hold the truth."""
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def least(confidence: float, studies: int) -> float:
    """Coverage below which an interval of this confidence is refuted by so many studies (one in a thousand)."""
    return stats.binom.ppf(0.001, studies, confidence) / studies


def write_study(folder: Path, made: list[dict], end: str = "\n") -> Path:
    folder.mkdir()
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(line) for line in made) + end)
    return folder
