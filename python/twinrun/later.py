"""Packages that are imported at their first use, because importing them takes longer than most commands.

    if TYPE_CHECKING:
        import numpy as np
    else:
        from ..later import numpy as np

NumPy takes more than 100 ms. Files whose elements the core reads are compared without it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = ["numpy", "numpy_is_loaded"]


class _Later(ModuleType):
    """A module that is imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> object:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # next time it is found without this function
        return value


numpy = _Later("numpy")


def numpy_is_loaded() -> bool:
    """Whether NumPy has been imported by any module. Before that, no object is of its types."""
    return "numpy" in sys.modules
