"""When a trace compares data-parallel processes among themselves, and what becomes of what it finds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from ..errors import TwinrunError
from ..runs.provenance import Difference
from .graph_capture import refuse_graph_capture
from .guard import Guard
from .iterations import Iterations
from .position import Position
from .processes import rank
from .replicas import ReplicasDiffer, check_replicas

__all__ = ["ReplicaChecks"]

_MOST_CONDITIONS = 5  # that a warning names


class ReplicaChecks:
    """The checks of one trace. every: of which iterations. group: the processes that hold the same values.

    A process whose trace stopped still answers the others.
    """

    def __init__(
        self,
        every: int,
        group: Any,
        guard: Guard,
        position: Position,
        iterations: Iterations,
        problems: list[str],
    ) -> None:
        self._every, self._group = every, group
        self._guard, self._position, self._iterations = guard, position, iterations
        self._problems = problems
        self._told: set[str] = set()
        self._first = True

    def due(self) -> bool:
        """Whether this iteration is checked."""
        return self._position.is_one_of_every(self._every)

    def check(self, values: Callable[[], Sequence[tuple[str, torch.Tensor]]]) -> None:
        """Compares values among the processes. Raises ReplicasDiffer on all of them; other errors are
        problems of the trace, unless the caller asked for them.
        """
        where = f"iteration {self._position.iteration}"
        differ_in: list[Difference] = []
        try:
            with self._guard.work_that_goes_on():
                refuse_graph_capture()
                conditions, self._first = self._conditions() if self._first else "", False
                found = check_replicas(values, where, self._group, conditions, differ_in.extend)
        except ReplicasDiffer:  # the caller asked for it
            raise
        except Exception as e:
            if self._guard.raises:
                raise
            found = [str(e) if isinstance(e, TwinrunError) else f"{type(e).__name__}: {e}"]
        finally:
            if differ_in:
                _warn_of(differ_in)
        for text in found:
            if text not in self._told:
                self._told.add(text)
                warnings.warn(f"twinrun: replicas: {text}", RuntimeWarning, stacklevel=4)
                self._problems.append(f"{where}: replicas: {text}")
            self._iterations.problem(f"{where}: replicas: {text}")

    def _conditions(self) -> str:
        """The conditions of this process, as its history has them from its beginning; '' where it has none
        that can be read, as one in a bucket.
        """
        try:
            own = _core.open_history(str(self._iterations.run.path)).provenance
        except Exception:  # the check is of values
            return ""
        # In a folder of its own a process is rank 0; one folder of all has the conditions of all.
        mine = [entry for entry in own if entry.rank == rank()] or own
        return mine[-1].json if mine else ""


def _warn_of(conditions: Sequence[Difference]) -> None:
    """Says in which conditions the processes differ. It is no problem of the trace: values decide."""
    said = "; ".join(f"{c.group}.{c.name}: {c.a} | {c.b}" for c in conditions[:_MOST_CONDITIONS])
    more = len(conditions) - _MOST_CONDITIONS
    rest = f"; and {more} more: twinrun compare --replicas lists them" if more > 0 else ""
    warnings.warn(
        f"twinrun: replicas run under different conditions: {said}{rest}", RuntimeWarning, stacklevel=5
    )
