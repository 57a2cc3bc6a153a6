"""Whether replicas share what the moment of their start does to them.

A block holds a workload of each condition, one after another, so its workloads have moments of their own.
What such a moment does to all of its replicas is no effect of the block, and no noise of single tasks.
Analyses that shuffle tasks, or take them as a series, would find blocks, periods or trends in it. They stay
silent where moments are shown to differ. `factors` compares the means of workloads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from ..study.tasks import condition_columns, usable
from .factors import by_workload
from .model import cells_of, model_of, percent
from .remarks import equal
from .result import Options

__all__ = ["SILENT", "Moments", "shared_moments"]

SILENT = ("blocks", "time_of_day", "periods", "trend", "changes", "tail", "scaling")
_LEVEL = 0.05


@dataclass(frozen=True)
class Moments:
    """Moments that differ. deviation: between them, of logarithms."""

    p: float
    deviation: float
    workloads: int
    tasks: int

    @property
    def sentence(self) -> str:
        p = "p < 0.0001" if self.p < 1e-4 else f"p = {self.p:.2g}"
        return (
            f"tasks that began at one moment resemble each other ({p}): beside conditions and blocks, moments differ by a standard "
            f"deviation of {percent(self.deviation)} of the time ({self.tasks} tasks as {self.workloads} workloads)"
        )

    @property
    def takes(self) -> str:
        return "a study of one condition, in which each workload is a block"


def shared_moments(frame: pd.DataFrame, options: Options = Options()) -> Moments | None:  # noqa: B008
    """Moments that are shown to differ, in studies with several workloads in a block; else None."""
    if options.value not in frame:
        return None
    good = usable(frame, options.value)
    columns = condition_columns(good)
    y = np.log(good[options.value].to_numpy(dtype=float))
    rows, means, workloads = by_workload(good, y, columns)
    if not workloads or rows["block"].nunique() == len(rows) or equal(good[options.value].to_numpy(float)):
        return None
    number = pd.factorize(cells_of(good, ["block", *columns]))[0]
    within = float(((y - means[number]) ** 2).sum()) / max(len(y) - len(means), 1)
    sizes = np.bincount(number)
    # Conditions and blocks are estimated from means, each by the number of its replicas.
    model = model_of(rows, means, columns, order=len(columns), spare=1)
    root = np.sqrt(sizes)
    fitted = np.linalg.lstsq(model.matrix * root[:, None], means * root, rcond=None)[0]
    free = len(means) - model.matrix.shape[1]
    if free < 1 or len(y) == len(means) or within < 1e-24:
        return None
    between = float((sizes * (means - model.matrix @ fitted) ** 2).sum()) / free
    p = float(stats.f.sf(between / within, free, len(y) - len(means)))
    if p > _LEVEL:
        return None
    return Moments(p, float(np.sqrt(max(0.0, between - within) / sizes.mean())), len(means), len(y))
