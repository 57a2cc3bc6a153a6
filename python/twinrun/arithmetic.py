"""Arithmetic of NumPy on values that may be anything: what the caller set for errors does not matter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    import numpy as np
else:
    from .later import numpy as np

__all__ = ["any_values"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def any_values(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function that computes with values of users, in which signalling NaN, infinities and
    subnormal numbers are no errors: neither `np.seterr` nor warnings as errors make it fail.

    Not for generators: between two values their caller would have this setting.
    """

    @functools.wraps(call)
    def quiet(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with np.errstate(all="ignore"):
            return call(*args, **kwargs)

    return quiet
