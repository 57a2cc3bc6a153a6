"""Effects of time: by block, by time of day, and periodic over the study."""

from __future__ import annotations

from .blocks import blocks
from .periods import periods
from .time_of_day import time_of_day

__all__ = ["blocks", "periods", "time_of_day"]
