"""The packages of analyses: one clear error instead of a traceback where one is missing."""

from __future__ import annotations

import importlib

from .errors import MissingPackage

__all__ = ["check"]


def check() -> None:
    """Raises MissingPackage unless pandas, SciPy, statsmodels and matplotlib are installed."""
    for name in ("pandas", "scipy", "statsmodels", "matplotlib"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingPackage.of(name, "twinrun[ensemble]") from None
