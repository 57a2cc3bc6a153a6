"""What `compare` may be asked for by word. The command line offers these words without loading the
comparison.
"""

from __future__ import annotations

__all__ = ["ALIGNMENTS", "METHODS"]

ALIGNMENTS = ("step", "time")
METHODS = ("auto", "staged", "direct", "published")
