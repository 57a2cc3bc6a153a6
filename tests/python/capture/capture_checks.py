"""What tests of capture share: arrays to capture, and whether they came back."""

from __future__ import annotations

import numpy as np


def fields(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=3000),
        "n": rng.integers(0, 100, (20, 30)),
        "f": np.asfortranarray(rng.normal(size=(5, 7))),
    }


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[k], b[k]) and np.shape(a[k]) == np.shape(b[k]) for k in a
    )
