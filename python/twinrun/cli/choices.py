"""What options offer, in words and numbers of the library: so that help does not load it.

tests/python/cli/test_startup.py compares these with the library's own.
"""

from __future__ import annotations

__all__ = [
    "COMMUNICATORS",
    "GOLDEN_CHUNK",
    "IMPORTED",
    "INTENSITIES",
    "LAYOUTS",
    "METHODS",
    "PARTICLES",
    "PLACEMENTS",
    "SIZES",
]

PLACEMENTS = ("cost", "rank", "bridge", "random", "worst")
LAYOUTS = ("records", "blocks", "variables", "interleaved")
METHODS = ("runs", "tree", "list", "basic", "full")  # of records
GOLDEN_CHUNK = 16384  # bytes
# Formats of results of other programs.
IMPORTED = ("hyperfine", "google-benchmark", "caliper", "radical", "reframe", "sacct", "csv")
# Of studies of aggregation.
PARTICLES = (5_000, 10_000, 25_000, 50_000, 75_000, 100_000)
INTENSITIES = (0.2, 0.5, 1.0, 2.0, 4.0)  # MB of a rank, as on Mira
COMMUNICATORS = (1, 2, 4, 8, 16)
SIZES = (2, 4, 8, 16)
