"""The two arms of a measurement, by the names that documents use: levels of a factor `cores`, too."""

from __future__ import annotations

__all__ = ["ALL", "BUT_ONE"]

ALL, BUT_ONE = "all", "all-but-one"
