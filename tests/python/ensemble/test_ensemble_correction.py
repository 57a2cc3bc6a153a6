"""Corrected p-values are those of statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from twinrun.ensemble.analysis.correction import benjamini_hochberg, holm


@pytest.mark.parametrize(("own", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_as_statsmodels(own, method: str) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 5, 100):
        for kind in range(4):
            p = rng.random(n) ** (kind + 1)
            if kind % 2:
                p = np.round(p, 1)  # ties, zeros and ones
            assert own(p) == pytest.approx(multipletests(p, method=method)[1], rel=1e-14)
            assert own(list(p)) == pytest.approx(own(p))


@pytest.mark.parametrize("own", [holm, benjamini_hochberg])
def test_of_nothing(own) -> None:
    assert len(own([])) == 0
