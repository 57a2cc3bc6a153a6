"""Tests of a model's terms: which conditions, or blocks, have an effect.

A term's test is that of Brown and Forsythe, which takes no equal variances (`unequal`), and beside it
the permutation of the same statistic, in the reduced model's residuals within blocks (Freedman and
Lane, 1983). The permutation needs no normal noise. It is exact where tasks could be exchanged, and, for
two levels, right in large studies where they vary differently, because the statistic is studentized
(Janssen, 1997; DiCiccio and Romano, 2017). The larger of the two p values counts.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from .model import Model, cells_of_codes
from .resampling import permutation_p, permuted
from .unequal import Effect, Uneven

__all__ = ["TermTest", "effect_of", "terms_tested"]

_FLAT = 1e-12  # variance within groups, by that between: less is rounding


class TermTest:
    """The test of some columns of a model, against the model without them.

    without(rows): what the others leave of series; f(rows): F of what they leave; inside: the blocks within
    which what is left is shuffled.
    """

    def __init__(self, model: Model, columns: tuple[int, ...]) -> None:
        full = np.linalg.qr(model.matrix)[0]
        rest = [c for c in range(model.matrix.shape[1]) if c not in columns]
        self._reduced = np.linalg.qr(model.matrix[:, rest])[0]
        own = full - self._reduced @ (self._reduced.T @ full)  # the gain of the full model
        u, s, _ = np.linalg.svd(own, full_matrices=False)
        self._own = u[:, s > 1e-8]
        self._noise = Uneven(model.matrix, cells_of_codes(model.matrix[:, list(columns)]))
        self._weights = self._noise.of_groups((self._own**2).sum(axis=1))
        self.freedom = self._own.shape[1], model.freedom
        # Blocks are exchangeable among themselves only where blocks are what is tested.
        self.inside = None if model.block_columns and columns == model.block_columns else model.blocks

    def without(self, rows: np.ndarray) -> np.ndarray:
        """What the model without these columns leaves of each row."""
        return rows - (rows @ self._reduced) @ self._reduced.T

    def variances(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean square of these columns in each row, and what it would be without effects."""
        gain = ((rows @ self._own) ** 2).sum(axis=1)
        noise = self._noise.variances(self._noise.left(rows)) @ self._weights
        least = np.maximum(_FLAT * gain, 1e-24 * (rows**2).sum(axis=1))
        return gain / self.freedom[0], np.maximum(noise, np.maximum(least, 1e-300)) / self.freedom[0]

    def f(self, rows: np.ndarray) -> np.ndarray:
        """F of each row, with the variance of the groups that are compared."""
        mean_square, noise = self.variances(rows)
        return mean_square / noise

    def p(self, row: np.ndarray) -> float:
        """p of a row by its own degrees of freedom."""
        variances = self._noise.variances(self._noise.left(row[None]))[0]
        first, second = self._noise.box(self._own, variances), self._noise.welch(self._weights, variances)
        return float(stats.f.sf(self.f(row[None])[0], first, second))

    def limit(self, level: float) -> float:
        """The F that normal noise exceeds in this share of studies, where groups vary alike."""
        second = self._noise.welch(self._weights, None)
        return float(stats.f.ppf(1 - level, self.freedom[0], second))


def effect_of(model: Model, contrast: np.ndarray, columns: tuple[int, ...]) -> Effect:
    """A contrast of a model's coefficients. columns: of the term, whose levels may vary differently."""
    return Uneven(model.matrix, cells_of_codes(model.matrix[:, list(columns)])).effect(model.y, contrast)


def terms_tested(
    model: Model, where: dict[str, tuple[int, ...]], most: int, rng: np.random.Generator
) -> dict[str, tuple[float, float, float]]:
    """{name: (F, p of F, p by permutation)} of groups of columns, each against the model without it."""
    found = {}
    for name, columns in where.items():
        test = TermTest(model, columns)
        y = model.y - model.y.mean()
        left = test.without(y[None])[0]
        # rounding does not count as an effect
        if np.abs(left).max() < 1e-13 * max(1.0, float(np.abs(model.y).max())):
            found[name] = (0.0, 1.0, 1.0)
            continue
        observed = float(test.f(left[None])[0])

        def drawn(n: int, left: np.ndarray = left, test: TermTest = test) -> np.ndarray:
            return test.f(permuted(left, test.inside, n, rng))[:, None]

        p = permutation_p(np.array([observed]), drawn, most)[0]
        found[name] = (observed, test.p(left), float(p))
    return found
