"""Fixtures of tests of ensembles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ensemble_support import uncollected


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """For modules with many simulated studies."""
    with uncollected():
        yield
