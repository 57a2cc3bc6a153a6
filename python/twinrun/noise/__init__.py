"""The time that the operating system takes from threads: measured on each core, with its error."""

from __future__ import annotations

from .measurement import *  # noqa: F403
from .measurement import __all__ as __all__
