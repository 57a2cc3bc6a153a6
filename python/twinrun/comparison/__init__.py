"""Two runs held against each other.

work            `compare`: steps, ranks and fields are matched, compared, and put together as one `Comparison`
matching        which step, rank and field of one run belongs to which of the other
field           one field: its rule, the way to its answer, its result
shares          a comparison cut into pieces for processes and ranks of MPI, and its results put together again
merge           results of parts of one field made one
by_id, sums     rows matched by ID; digests of other cuttings and orders
attributes      names, units, text and what else a file says beside its numbers
differences     each differing element, as an iterator
tolerances      rules by field, step and place; proposal: rules that a set of runs suggests
parallel        teams of processes
tables          results as tables of pandas and Arrow
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ALIGNMENTS", "Comparison", "FieldComparison", "compare", "histogram_edges", "parse_steps"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: a command that needs one module of these waits for no other.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".work", __name__), name)
