"""Where a training is: the iteration, the run of the model within it, and the modules at work."""

from __future__ import annotations

from .arguments import Given
from .model import Watched
from .states import Snapshot

__all__ = ["Frame", "Position"]


class Frame:
    """A module that is at work. stops: nodes of the graph of gradients that were there before it. given: what
    it was given. state: the parameters and buffers of it and of the modules below it, when it was called.
    """

    __slots__ = ("call", "given", "phase", "sequence", "state", "stops", "watched")

    def __init__(
        self, call: int, phase: str, watched: Watched, sequence: int, stops: list, given: list[Given]
    ) -> None:
        self.call, self.phase, self.watched, self.sequence, self.stops = call, phase, watched, sequence, stops
        self.given = given
        self.state: Snapshot | None = None


class Position:
    """Where a training is. Hooks move it; events are numbered by it.

    chosen: whether this iteration is traced. touched: whether it has begun. optimizing: whether a step of an
    optimizer is under way. failed: whether its closure raised, so that it may have ended.
    """

    __slots__ = (
        "_calls", "_every", "_iteration", "_start", "chosen", "failed", "frames", "microbatch", "optimizing", "touched",
    )  # fmt: skip

    def __init__(self, start: int, every: int) -> None:
        self._start, self._every = start, every
        self.iteration = start
        self.frames: list[Frame] = []
        self.microbatch = self._calls = 0
        self.touched = self.optimizing = self.failed = False

    @property
    def iteration(self) -> int:
        """The number of the iteration under way."""
        return self._iteration

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._iteration = number
        self.chosen = (number - self._start) % self._every == 0  # every hook asks

    def is_one_of_every(self, number: int) -> bool:
        """Whether this iteration is one of every so many."""
        return (self.iteration - self._start) % number == 0

    def new_call(self) -> int:
        """The number of a call that begins."""
        self._calls += 1
        return self._calls - 1

    def enclosing(self, call: int) -> int:
        """The call of the innermost module at work, other than `call` itself; -1 for none."""
        frames = self.frames
        at = len(frames) - 1
        if at >= 0 and frames[at].call == call:
            at -= 1
        return frames[at].call if at >= 0 else -1

    def begin_iteration(self) -> None:
        """Nothing of the iteration before counts any more."""
        self.frames.clear()
        self.touched = False
        self._calls = self.microbatch = 0
