"""Acceptances of simulated ensembles: how often right runs are rejected, and wrong ones found.

The model is Lorenz 96: 40 variables on a circle, chaotic as the weather is. Runs begin at one state of its climate,
perturbed in the last digits; about step 400 they have forgotten each other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from twinrun.acceptance.perturbation import perturb
from twinrun.acceptance.result import Acceptance
from twinrun.acceptance.samples import Sample, sample_of
from twinrun.acceptance.work import Settings, judge

SIZE = 40
GROWING = (20, 60, 100, 160, 220)
SETTLED = tuple(range(500, 900, 50))
STEP = 0.05


@dataclass(frozen=True)
class Code:
    """A version of the program. order: of its sums. forcing: the constant that may be wrong. precision: of its numbers."""

    order: str = "first"
    forcing: float = 8.0
    precision: str = "f8"


def slope(x: np.ndarray, code: Code) -> np.ndarray:
    right, left, two = np.roll(x, -1, -1), np.roll(x, 1, -1), np.roll(x, 2, -1)
    forcing = x.dtype.type(code.forcing)
    if code.order == "first":
        return (right - two) * left - x + forcing
    return right * left - two * left + (forcing - x)


def advance(x: np.ndarray, code: Code, by: float = STEP) -> np.ndarray:
    """A step of Runge and Kutta's method."""
    h = x.dtype.type(by)
    two, six = x.dtype.type(2), x.dtype.type(6)
    a = slope(x, code)
    b = slope(x + h / two * a, code)
    c = slope(x + h / two * b, code)
    d = slope(x + h * c, code)
    total = a + two * b + two * c + d if code.order == "first" else (d + a) + two * (c + b)
    return x + h * total / six


@functools.cache
def start(seed: int) -> np.ndarray:
    """A state of the climate."""
    x = np.full(SIZE, 8.0) + np.random.default_rng([96, seed]).normal(0, 0.01, SIZE)
    for _ in range(1000):
        x = advance(x, Code())
    return x


def runs(
    code: Code, count: int, seed: int, change: dict, steps: Sequence[int], first: int = 0
) -> dict[int, np.ndarray]:
    """{step: (runs, variables)}. change: as for `perturb`. first: the number of the first run, which seeds its perturbation."""
    begin = start(seed)
    x = np.array([perturb({"x": begin}, seed=first + k, **change)["x"] for k in range(count)])
    x = x.astype(code.precision)
    found = {}
    for step in range(1, max(steps) + 1):
        x = advance(x, code)
        if step in steps:
            found[step] = x.astype(np.float64)
    return found


def samples_of(states: dict[int, np.ndarray], references: int, rounding: float = 2.0**-53) -> list[Sample]:
    """Samples of the state and of its energy, one number."""
    found = []
    for step, x in states.items():
        energy = (x**2).mean(axis=1, keepdims=True) / 2
        found.append(sample_of([x], len(x), references, step, "x", rounding))
        found.append(sample_of([energy], len(x), references, step, "energy", rounding))
    return found


def written(states: dict[int, np.ndarray], digits: int) -> dict[int, np.ndarray]:
    """The states as a text with so many digits holds them."""
    return {step: np.vectorize(lambda v: float(f"{v:.{digits - 1}e}"))(x) for step, x in states.items()}


def judged(
    states: dict[int, np.ndarray],
    references: int,
    permutations: int = 999,
    rounding: float = 2.0**-53,
    **settings: object,
) -> Acceptance:
    """An acceptance of these runs, the reference runs first."""
    count = len(next(iter(states.values())))
    labels = [f"run {k}" for k in range(count)]
    chosen = Settings(permutations=permutations, leave_one_out=False, **settings)  # type: ignore[arg-type]
    return judge(samples_of(states, references, rounding), labels, references, chosen)


def together(
    a: dict[int, np.ndarray], b: dict[int, np.ndarray], of_a: slice, of_b: slice
) -> dict[int, np.ndarray]:
    return {step: np.concatenate([a[step][of_a], b[step][of_b]]) for step in a}


# The published tests, on the same runs ------------------------------------------------------------------------------


def means_of(states: dict[int, np.ndarray]) -> np.ndarray:
    """(runs, variables of the test): what such tests take, here the mean, the energy and the deviation at each step."""
    columns = []
    for step, x in states.items():
        if step in SETTLED:
            columns += [x.mean(axis=1), (x**2).mean(axis=1) / 2, x.std(axis=1)]
    return np.array(columns).T


def ect(states: dict[int, np.ndarray], references: int, failing: int = 3, of_runs: int = 2) -> bool:
    """The rule of CESM-ECT (Baker et al. 2015): a component fails where its score is beyond 2 standard deviations of
    the reference runs; new runs are rejected where `failing` components fail, each in `of_runs` of the runs.

    Components hold 95% of the variance (Price-Broncucia et al. 2025).
    """
    table = means_of(states)
    own = table[:references]
    scaled = (table - own.mean(axis=0)) / own.std(axis=0, ddof=1)
    _, values, vectors = np.linalg.svd(scaled[:references], full_matrices=False)
    share = np.cumsum(values**2) / (values**2).sum()
    k = int(np.searchsorted(share, 0.95)) + 1
    scores = scaled @ vectors[:k].T
    beyond = np.abs(scores[references:]) > 2 * scores[:references].std(axis=0, ddof=1)
    return int((beyond.sum(axis=0) >= of_runs).sum()) >= failing


def smirnov(states: dict[int, np.ndarray], references: int, alpha: float = 0.05) -> bool:
    """Kolmogorov-Smirnov tests of all variables with Benjamini and Hochberg's correction (EVV, since version 0.5.2)."""
    table = means_of(states)
    ps = [stats.ks_2samp(column[:references], column[references:]).pvalue for column in table.T]
    return bool((stats.false_discovery_control(ps) <= alpha).any())


def rate(hits: int, of: int) -> str:
    """As 3 of 100 [0.6%, 8.5%]."""
    interval = stats.binomtest(hits, of).proportion_ci(0.95, method="exact")
    return f"{hits} of {of} [{100 * interval.low:.2g}%, {100 * interval.high:.3g}%]"
