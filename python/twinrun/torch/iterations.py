"""The events of each iteration on their way into the run."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch

from ..capture.events import EventWriter, StepEvents
from ..capture.run import Run
from ..trace.result import Origin
from .divergence import Divergence
from .graph_capture import capturing, refuse_graph_capture
from .modes import no_modes
from .position import Position

__all__ = ["Iterations"]


class _Waiting(NamedTuple):
    """An iteration whose digests are under way."""

    iteration: int
    step: StepEvents
    run: Run


class Iterations:
    """Captures iterations into a run, each as a whole, and compares them with a reference.

    run: may be replaced between two iterations. divergence: None where there is no reference.
    any: whether an iteration had events so far.
    """

    def __init__(
        self, run: Run, writer: EventWriter, position: Position, divergence: Divergence | None
    ) -> None:
        self.run = run
        self._writer, self._position, self._divergence = writer, position, divergence
        # The iteration whose digests wait for the end of a CUDA graph's capture.
        self._unread: int | None = None
        self._waiting: _Waiting | None = None
        self.any = False
        # Gradients that were seen in this iteration, and after how many the one before is captured.
        self._gradients, self._middle = 0, 1

    def problem(self, text: str) -> None:
        """Writes what was not traced into the iteration under way."""
        self._writer.problem(text)

    def is_callers(self, error: BaseException) -> bool:
        """Whether a callback of the training's own raised this error."""
        return self._divergence is not None and self._divergence.raised is error

    def has_gradients_alone(self) -> bool:
        """Whether the iteration under way has gradients, and nothing of a forward pass."""
        phases = self._writer.phases()
        return "backward" in phases and "forward" not in phases

    def check_readable(self) -> None:
        """Raises Unsupported where this iteration has events that cannot be read now."""
        if len(self._writer):
            refuse_graph_capture()

    def capture(self, last: bool = False) -> Origin | None:
        """Captures the iteration. Gives the first divergence from the reference, once.

        Without a reference, an iteration whose digests are under way on devices is captured later: in the
        middle of the next one's gradients, or when that ends. last: all of them are captured now.
        """
        self._gradients, self._middle = 0, max(1, self._gradients // 2)
        iteration, divergence = self._position.iteration, self._divergence
        found = None if divergence is None else divergence.find(iteration, self._writer)
        step = self._writer.take()
        self._capture_waiting()
        if step is not None:
            self.any = True
            self._waiting = _Waiting(iteration, step, self.run)
            if last or divergence is not None or not step.on_devices:
                self._capture_waiting()
        if divergence is not None:
            divergence.remember(found)
        return found

    def gradient_due(self) -> bool:
        """Whether the next `gradient_seen` captures something."""
        return (
            self._waiting is not None
            and self._gradients + 1 >= self._middle
            and type(self._waiting.run) is Run
        )

    def gradient_seen(self) -> None:
        """Captures the iteration before in the middle of this one's gradients. Devices have most work
        waiting then, and its digests are there: nobody waits for what is read and written here.
        """
        self._gradients += 1
        # A run of another class may have to meet other processes, which are elsewhere now.
        if self._gradients >= self._middle and self._waiting is not None and type(self._waiting.run) is Run:
            self._capture_waiting()

    def _capture_waiting(self) -> None:
        if self._waiting is not None and not capturing():
            waiting, self._waiting = self._waiting, None
            fields, places = waiting.step.fields(), waiting.step.places
            waiting.run.capture(waiting.iteration, fields, global_place=places or None)
            if self._divergence is None:  # which may keep events
                self._writer.written(waiting.step)

    def capture_last(self) -> None:
        """Captures the iteration in which the trace stopped: now, or after a CUDA graph's capture,
        which would end if it had to wait for digests.
        """
        if capturing():
            self._unread = self._position.iteration
        else:
            self._capture_as_it_is()

    def capture_late(self) -> None:
        """Captures what could not be read while a CUDA graph was captured."""
        position = self._position
        if self._unread is not None and not capturing():
            now, position.iteration, self._unread = position.iteration, self._unread, None
            try:
                with no_modes(), torch.no_grad():
                    self._capture_as_it_is()
            finally:
                position.iteration = now

    def _capture_problems(self, problems: list[str]) -> None:
        """What is wrong with the values must not take the reason with it: without one, two traces that
        stopped alike would be the same. Where the run has this step already, the next free one takes it.
        """
        position, run = self._position, self.run
        now = position.iteration
        try:
            for number in (lambda: now, lambda: max(run.steps, default=-1) + 1):
                with contextlib.suppress(Exception):
                    self._writer.drop()
                    for text in problems:
                        self._writer.problem(text)
                    position.iteration = number()
                    self.capture(last=True)
                    return
        finally:
            position.iteration = now

    def _capture_as_it_is(self) -> None:
        problems = self._writer.problems()
        try:
            found = self.capture(last=True)
        except Exception:
            self._capture_problems(problems)
            return
        with contextlib.suppress(Exception):
            if found is not None and self._divergence is not None:
                self._divergence.act(found)
