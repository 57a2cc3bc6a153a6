"""What a divergence from the reference does: a call, a warning, or an error on this process or on all."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from ..capture.events import EventWriter
from ..errors import Incomparable
from ..trace.online import Reference, TraceDiverged
from ..trace.result import Origin
from .graph_capture import capturing
from .processes import rank
from .stopping import StopMark

__all__ = ["Divergence"]


class Divergence:
    """The first divergence of a trace from its reference. action: `on_divergence` of `trace`. raised: the
    error of a callback, which is the training's own.
    """

    raised: Exception | None = None

    def __init__(
        self, reference: Reference, action: Callable[[Origin], object] | str, problems: list[str]
    ) -> None:
        self._reference, self._action, self._problems = reference, action, problems
        self._first: Origin | None = None
        self._told = False  # that an iteration was not compared
        self._mark = StopMark.of_the_job() if action == "stop" else None

    def find(self, iteration: int, writer: EventWriter) -> Origin | None:
        """The divergence of an iteration; None where there is none, or an earlier one is known."""
        if self._first is not None or not len(writer):
            return None
        try:
            return self._reference.first(iteration, *writer.events())
        except Incomparable as e:
            self._problems.append(f"iteration {iteration}: {e}")
            if not self._told:
                self._told = True
                warnings.warn(
                    f"twinrun: iteration {iteration} was not compared with its reference: {e}. Others that are not are "
                    "among the trace's problems",
                    RuntimeWarning,
                    stacklevel=6,
                )
            return None

    def remember(self, found: Origin | None) -> None:
        """What was found is on storage now: no later iteration is compared."""
        self._first = self._first or found

    def act(self, found: Origin) -> None:
        """Does what the caller asked for. Raises TraceDiverged where this process stops alone."""
        path = self._reference.path
        if callable(self._action):
            try:
                self._action(found)
            except Exception as e:
                self.raised = e
                raise
        elif self._action == "stop" and self._mark is None:
            raise TraceDiverged.at(found, path, self._reference.other_version())
        else:
            fix = self._reference.other_version()
            said = f"twinrun: differs from {path}: {found}" + (f"; {fix}" if fix else "")
            warnings.warn(said, RuntimeWarning, stacklevel=5)

    def agree(self, iteration: int, found: Origin | None, *, stopped: bool, last: bool) -> None:
        """Where processes work together, all of them end after the same iteration: see `StopMark`.

        Raises TraceDiverged on each of them. stopped: whether the trace of this process ended.
        """
        if self._mark is None:
            return
        if stopped and torch.cuda.is_initialized() and not capturing():
            # Without digests that are read, the host may be ahead.
            torch.cuda.current_stream().synchronize()
        # Whether the others see a mark of the last iteration is chance: they end as they are.
        told = None if last else self._mark.since(iteration)
        waits = told is None and not last
        if waits and found is not None and self._mark.put(iteration, f"rank {rank()}: {found}"):
            return
        path = self._reference.path
        if found is not None or (self._first is not None and not waits):
            assert self._first is not None
            raise TraceDiverged.at(self._first, path, self._reference.other_version())
        if told is not None:
            raise TraceDiverged(f"another process differs from its reference: {told}", where=path)
