"""Comparison of two runs.

work            `compare`: matches steps, ranks and fields, compares them, and makes one `Comparison`
matching        which step, rank and field of one run belongs to which of the other
field           one field: its rule, its method, its result
shares          a comparison cut into pieces for processes and ranks of MPI, and the results joined again
merge           results of parts of one field, joined
by_id, sums     rows matched by ID; digests that do not depend on decomposition and order
attributes      names, units, texts and other facts that a file has beside its numbers
differences     each differing element, as an iterator
tolerances      rules by field, step and place; proposal: rules suggested by repeated runs
parallel        teams of processes
tables          results as tables of pandas and Arrow
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ALIGNMENTS", "Comparison", "FieldComparison", "compare", "histogram_edges", "parse_steps"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: a command that needs one of these modules does not wait for the others.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".work", __name__), name)
