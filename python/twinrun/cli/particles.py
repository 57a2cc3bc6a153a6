"""The small simulation of `twinrun demo`: particles that attract each other, moved by threads.

`python -m twinrun.cli.particles FOLDER --threads N` runs it and captures its steps. Each thread
adds up the forces of its share of the particles, and the shares are added in their order: the
result of a sum of float32 depends on how many shares there are. Nothing else differs between runs,
and with the same number of threads they are equal bit for bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..capture.run import Run

__all__ = ["main", "moved"]

_STEP = np.float32(0.02)  # of time
_SOFTENING = np.float32(1e-3)  # squared: close particles do not attract each other without bound


def _forces(x: np.ndarray, shares: Sequence[slice], pool: ThreadPoolExecutor) -> np.ndarray:
    """The acceleration of each particle: the sum over the shares of what their particles pull."""

    def of(share: slice) -> np.ndarray:
        away = x[share, None, :] - x[None, :, :]
        weight = (np.einsum("ijk,ijk->ij", away, away) + _SOFTENING) ** np.float32(-1.5)
        return np.einsum("ij,ijk->jk", weight, away)

    total = np.zeros_like(x)
    for part in pool.map(of, shares):
        total += part
    return total / np.float32(len(x))


def moved(particles: int, steps: int, threads: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The number of each step, the positions and velocities after it."""
    random = np.random.default_rng(1)
    x = random.normal(size=(particles, 3)).astype(np.float32)
    v = np.zeros_like(x)
    ends = [particles * k // threads for k in range(threads + 1)]
    shares = [slice(*ends[k : k + 2]) for k in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        for step in range(1, steps + 1):
            v += _STEP * _forces(x, shares, pool)
            x += _STEP * v
            yield step, x, v


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the simulation and captures steps into a history, which replaces one that is there."""
    parser = argparse.ArgumentParser(prog="python -m twinrun.cli.particles")
    parser.add_argument("folder")
    parser.add_argument("--particles", type=int, default=512)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--capture", default="50,100,150,200,250,300")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--atol", type=float, default=1e-5)
    given = parser.parse_args(arguments)
    wanted = {int(step) for step in given.capture.split(",")}
    with Run(given.folder, atol=given.atol, existing="replace") as run:
        for step, x, v in moved(given.particles, given.steps, given.threads):
            if step in wanted:
                run.capture(step, {"position": x, "velocity": v})


if __name__ == "__main__":
    main()
