"""What `compare` may be asked for by word. The command line offers these words without loading the
comparison.
"""

from __future__ import annotations

__all__ = ["ALIGNMENTS", "METHODS", "TYPES"]

ALIGNMENTS = ("step", "time")
METHODS = ("auto", "staged", "direct", "published")
# Whether fields of different types are compared: not at all, or by the real numbers that they hold.
TYPES = ("same", "values")
