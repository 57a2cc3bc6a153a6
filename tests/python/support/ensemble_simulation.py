"""Simulated ensembles whose truth is known: what a study's journal would hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from twinrun.ensemble.study.tasks import frame_of

FACTORIAL = [{"checkpoint": a, "cores": b} for a in ("on", "off") for b in ("all", "all-but-one")]
NOISES: dict[str, Callable[[np.random.Generator], float]] = {
    "normal": lambda rng: float(rng.standard_normal()),
    "heavy": lambda rng: float(rng.standard_t(5) / np.sqrt(5 / 3)),
    "skewed": lambda rng: float((rng.gamma(4) - 4) / 2),
}


def lines(
    seed: int,
    *,
    nodes: int = 8,
    blocks: int = 6,
    sigma: float = 0.03,
    noise: str = "normal",
    cells: Sequence[dict] = ({},),
    planted: Callable[[np.random.Generator, dict], float] | None = None,
) -> list[dict]:
    """Tasks of a study: a block runs once on each node, in random order, 30 s apart; wall = 10 s * exp(noise + planted)."""
    rng = np.random.default_rng(seed)
    made: list[dict] = []
    for block in range(blocks):
        place = rng.permutation(nodes)
        levels = rng.permutation(nodes)
        for position in range(nodes):
            k = len(made)
            line = {
                "version": 1, "task": k, "attempt": 1, "block": block, "order": k, "repetition": block, "seed": k,
                "factors": cells[levels[position] % len(cells)], "status": "ok", "exit": 0,
                "node": f"n{place[position]:02d}", "cores": [0, 1], "start": 1.7e9 + 30.0 * k, "profiles": [],
                "run_queue_delay": float(rng.gamma(2)), "pressure": {"cpu_some": float(rng.gamma(2)), "io_some": 0.0},
                "context_switches": {"voluntary": int(rng.poisson(100)), "involuntary": int(rng.poisson(50))},
            }  # fmt: skip
            y = sigma * NOISES[noise](rng) + (planted(rng, line) if planted else 0.0)
            line["wall"] = 10 * float(np.exp(y))
            line["end"] = line["start"] + line["wall"]
            made.append(line)
    return made


def study(seed: int, **options: object) -> pd.DataFrame:
    """The same as a table."""
    return frame_of(lines(seed, **options))  # type: ignore[arg-type]


def workloads(
    seed: int, cells: Sequence[tuple[dict, int]], blocks: int, *, between: float = 0.03, sigma: float = 0.01, effect: float = 0.0, nodes: int = 4
) -> pd.DataFrame:  # fmt: skip
    """Blocks of a workload of each cell (its factors, its replicas), one after another, in random order.

    between: what a moment does to all replicas that begin at it; effect: of all cells but the first.
    """
    rng = np.random.default_rng(seed)
    made: list[dict] = []
    start = 1.7e9
    for block in range(blocks):
        for at in rng.permutation(len(cells)):
            factors, replicas = cells[at]
            moment = between * rng.normal() + (effect if at else 0.0)
            place = rng.permutation(max(replicas, nodes))
            for replica in range(replicas):
                wall = 10 * float(np.exp(moment + sigma * rng.normal()))
                begun = start + 0.0005 * replica
                made.append({
                    "version": 1, "task": len(made), "attempt": 1, "block": block, "order": len(made), "status": "ok", "factors": factors,
                    "node": f"n{place[replica] % nodes}", "slot": int(place[replica]), "replica": replica, "released": start,
                    "start": begun, "end": begun + wall, "wall": wall, "engine": "local", "run_queue_delay": float(rng.gamma(2)),
                })  # fmt: skip
            start += 20.0
    return frame_of(made)
