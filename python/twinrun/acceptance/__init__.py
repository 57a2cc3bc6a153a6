"""Whether new runs belong to the distribution of reference runs; and perturbed input for such a distribution.

    from twinrun.acceptance import accept, perturb

README.md says which module does what; docs/reference/acceptance.md is for users. Names are loaded at first
use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .copies import PerturbedCopy, perturb_copies
    from .perturbation import perturb
    from .result import Acceptance, Alarms, Excess, FieldAcceptance
    from .work import accept

__all__ = [
    "Acceptance",
    "Alarms",
    "Excess",
    "FieldAcceptance",
    "PerturbedCopy",
    "accept",
    "perturb",
    "perturb_copies",
]

_PLACES = {
    "Acceptance": "result",
    "Alarms": "result",
    "Excess": "result",
    "FieldAcceptance": "result",
    "PerturbedCopy": "copies",
    "accept": "work",
    "perturb": "perturbation",
    "perturb_copies": "copies",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
