"""The start of a comparison of arrays in memory: arrays on devices are compared while the others
are looked at.
"""

from __future__ import annotations

import os

from .. import _core
from ..runs.subject import Subject
from .settings import Settings

__all__ = ["may_start", "start"]


def may_start(a: object, b: object, settings: Settings) -> bool:
    """Whether both may be containers of arrays on devices, and all of their fields have one rule by kind."""
    if settings.device == "cpu" or settings.method not in ("auto", "direct"):
        return False
    if settings.tolerances.rules or settings.periods.axes or settings.periods.named:
        return False
    return not any(isinstance(side, (str, os.PathLike, Subject)) for side in (a, b))


def start(
    a: object, b: object, settings: Settings, may_leave: bool
) -> tuple[Subject, Subject, _core.StartedPairs | None]:
    """Opens both containers, as `open_subject` does. may_leave: the work may be left to the devices.

    Returns also what was begun, for `lists`: with what it finds there, it finds nothing else. Raises
    TwinrunError.
    """
    from ..runs.in_memory import open_and_start  # with NumPy

    of_floating, of_others = (decision.rule() for decision in settings.by_kind)
    return open_and_start(a, b, of_floating, of_others, settings.options(), may_leave)
