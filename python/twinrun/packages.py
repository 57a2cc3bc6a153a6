"""The packages of analyses: one clear error where one is missing, in place of a traceback."""

from __future__ import annotations

import importlib

from .errors import MissingPackage

__all__ = ["check"]


def check() -> None:
    """MissingPackage unless pandas, SciPy, statsmodels, ruptures and matplotlib are there."""
    for name in ("pandas", "scipy", "statsmodels", "ruptures", "matplotlib"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingPackage.of(name, "twinrun[ensemble]") from None
