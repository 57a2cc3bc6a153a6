"""Comparison of two runs.

work            `compare`: checks what is asked for, and makes one `Comparison`
request         what a comparison was asked for; which fields are wanted
matching        which step, rank and field of one run belongs to which of the other
schedule        the units of all steps, compared here or on all ranks of a team
shares          units, and how they are cut into shares for the ranks of MPI
lists           all fields of a place by one call of the core, where nothing else is there
unit            one unit: a place, or a whole step, of these:
  place           one rank of a step: its facts, and its fields
  particles       fields whose rows are matched by ID, whatever their rank
  global_arrays   fields that the runs' ranks cut differently
entry           one field that both runs have, or a part of it, of these:
  ranges          ranges of a field
  sums            digests that do not depend on decomposition and order
  by_id, ids      rows matched by ID
settings        what counts as different in a field
facts           what files have beside fields: attributes compares it
ranks           all places of a step, open
outcome         what a unit found, and its shares joined; merge: results of parts of one field, joined
summary         what all steps found, and the verdict
result, field   `Comparison`, and what is known of one field
differences     each differing element, as an iterator; again: how both runs are opened again
tolerances      rules by field, step and place; proposal: rules suggested by repeated runs
parallel        teams of processes; launch: whether a launcher started this one
choices         what may be asked for by word
tables          results as tables of pandas and Arrow
overview        one entry a field: where it parts, where it leaves the tolerance, how that grows
words           results in a line; notebook: in a notebook
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
