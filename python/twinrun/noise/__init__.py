"""The time that the operating system takes from threads: measured on each core, with its error."""

from __future__ import annotations

from .arms import ALL, BUT_ONE
from .figures import Peak, histogram_of, periodic, share_interval, stolen_in_windows
from .measurement import measure, parse_threshold
from .result import Noise, read_noise

__all__ = [
    "ALL", "BUT_ONE", "Noise", "Peak", "histogram_of", "measure", "parse_threshold", "periodic", "read_noise",
    "share_interval", "stolen_in_windows",
]  # fmt: skip
