"""While differences still grow: do new runs differ from the reference runs as these differ from each other?

The idea is that of Rosinski and Williamson (SIAM J. Sci. Comput. 18, 1997): rounding of another
kind is like a perturbation of the last digits. Its size may be another one, its growth not. So new
runs may be farther away than reference runs are from each other by a factor, and no more. This is a
bound and not a test: it has no p value. The rate at which it would reject reference runs is counted
by leaving each of them out.

Where all reference runs are equal, no factor is of use: they show no difference that could be
allowed. Then a new run must equal them, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .samples import ROUNDINGS, Sample

__all__ = ["Grown", "floors", "grown", "rate", "saturated", "typical", "variation"]


@dataclass
class Grown:
    """How far runs are from the reference runs, in one field at one step.

    reference: the distance of a reference run to the others, the median over them; largest: of the
    one that is farthest.
    new: of each new run. bound: what is allowed. floor: what may be rounding alone. alarms:
    reference runs that would exceed it, were they new. beyond: numbers of the new runs that are
    farther away than is allowed.
    """

    reference: float
    largest: float
    new: list[float]
    bound: float
    floor: float
    alarms: list[int]
    beyond: list[int]

    @property
    def ratio(self) -> float:
        """The farthest new run against the farthest reference run. Rounding of the values counts as
        no difference.
        """
        most = max(self.new)
        if not self.beyond and self.largest <= self.floor:
            return 0.0
        return most / self.largest if self.largest > 0 else math.inf


def typical(sample: Sample, references: int) -> float:
    """The median distance between two reference runs."""
    if sample.squares is None:
        return math.nan
    return float(np.median(sample.distances[:references, :references][np.triu_indices(references, 1)]))


def variation(samples: Sequence[Sample], references: int) -> float:
    """The standard deviation of a field over its elements and steps, in the reference runs; or its
    size, where it is constant.
    """
    means = np.array([s.values[:references, 0] for s in samples])
    inside = np.array([np.nan_to_num(s.values[:references, 1]) for s in samples])
    total = float(np.mean(inside**2) + np.mean(np.var(means, axis=0)))
    return math.sqrt(total) if total > 0 else max((s.size for s in samples), default=0.0)


def saturated(samples: Sequence[Sample], references: int, spread: float) -> list[bool]:
    """Whether differences between reference runs are done growing, at each step of a field.

    They are where the differences are half of the largest over all steps, and at least `spread` of
    the field's own variation. Without distances, nothing is known of growth, and statistics decide
    alone.
    """
    if any(s.squares is None for s in samples):
        return [True] * len(samples)
    found = [typical(s, references) for s in samples]
    least = max(0.5 * max(found), spread * variation(samples, references))
    return [0 < d >= least for d in found]


def _to_references(distances: np.ndarray, run: int, others: Sequence[int]) -> float:
    return float(np.median(distances[run, [o for o in others if o != run]]))


def floors(samples: Sequence[Sample]) -> list[float]:
    """For each step of a field: differences that may be rounding of sums, and are not an excess.

    They are measured by the largest size of the field over all steps: where terms cancel, as forces
    do on a lattice, the rounding of the terms is all that is left. A field that all reference runs
    hold equal at every step shows no such terms: there the rounding of each element counts alone.
    Integers have none.
    """
    if all(s.equal for s in samples):
        return [0.0] * len(samples)
    scale = max(s.size for s in samples)
    return [ROUNDINGS * s.rounding * scale for s in samples]


def grown(sample: Sample, references: int, factor: float, floor: float) -> Grown:
    """The distances of one field at one step, and their bound: `factor` times the largest of a
    reference run, and `floor`.
    """
    distances = sample.distances
    own = range(references)
    to_own = [_to_references(distances, i, own) for i in own]
    largest = max(to_own)
    new = [_to_references(distances, run, own) for run in range(references, len(distances))]
    bound = factor * largest + floor
    if sample.equal:
        allowed = math.ldexp(floor, sample.exponent)
        beyond = [run - references for run, u in sample.unequal.items() if u.beyond > allowed]
    else:
        beyond = [k for k, distance in enumerate(new) if distance > bound]
    alarms = []
    for i in own if references > 2 else ():
        rest = [k for k in own if k != i]
        limit = factor * max(_to_references(distances, k, rest) for k in rest) + floor
        if _to_references(distances, i, rest) > limit:
            alarms.append(i)
    return Grown(float(np.median(to_own)), largest, new, bound, floor, alarms, beyond)


def rate(steps: Sequence[int | None], distances: Sequence[float]) -> float:
    """By which factor distances grow in a step, by least squares of their logarithms; NaN with
    fewer than three.
    """
    points = [(s, math.log(d)) for s, d in zip(steps, distances, strict=True) if s is not None and d > 0]
    if len({s for s, _ in points}) < 3:
        return math.nan
    x, y = np.array(points, np.float64).T
    return float(math.exp(np.polyfit(x - x.mean(), y, 1)[0]))
