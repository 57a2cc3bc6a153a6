"""Arrays of every kind, and what a history has of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from commands import command, load_json

CODES = ["f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 7), (1025,), (2, 3, 700)]


def arrays(seed: int) -> dict[str, np.ndarray]:
    """One array for every type and shape, in C and Fortran order, strided and big-endian."""
    rng = np.random.default_rng(seed)
    fields = {}
    for code in CODES:
        for shape in SHAPES:
            x = np.asarray(rng.integers(0, 2 if code == "?" else 100, shape)).astype(code)
            fields[f"{code}{list(shape)}"] = x
            fields[f"{code}{list(shape)}F"] = np.asfortranarray(x)
            if x.ndim:
                fields[f"{code}{list(shape)}S"] = np.repeat(x, 2, axis=-1)[..., ::2]
                fields[f"{code}{list(shape)}R"] = x[::-1]
            fields[f"{code}{list(shape)}B"] = x.astype(x.dtype.newbyteorder(">"))
    records = np.zeros(99, [("a", "i2"), ("b", "f8")])
    records["b"] = rng.normal(size=99)
    return fields | {"records": records["b"]}


def steps_of(path: Path) -> list[int]:
    return [s["step"] for s in load_json(command("log", path, "--json").out)["steps"]]
