"""Where a training is: the iteration, the run of the model within it, and the modules at work."""

from __future__ import annotations

from threading import get_ident

from .arguments import Given
from .model import Watched
from .states import Snapshot

__all__ = ["Frame", "Position"]


class Frame:
    """A module that is at work. stops: nodes of the graph of gradients that were there before it. given: what
    it was given. state: the parameters and buffers of it and of the modules below it, when it was called.
    thread: which one runs it.
    """

    __slots__ = ("call", "given", "phase", "sequence", "state", "stops", "thread", "watched")

    def __init__(
        self, call: int, phase: str, watched: Watched, sequence: int, stops: list, given: list[Given]
    ) -> None:
        self.call, self.phase, self.watched, self.sequence, self.stops = call, phase, watched, sequence, stops
        self.given = given
        self.state: Snapshot | None = None
        self.thread = get_ident()


class Position:
    """Where a training is. Hooks move it; events are numbered by it.

    frames: the modules at work, in the order in which they were called. A module may call another one in a
    thread of its own and wait for it: such a thread is within the modules of the one that was there first.
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

    def innermost(self, other_than: int = -1) -> Frame | None:
        """The innermost module at work in this thread, other than the call of this number. Where there is
        none, that of the thread which was there first.
        """
        frames = self.frames
        for thread in (get_ident(), frames[0].thread if frames else -1):
            for frame in reversed(frames):
                if frame.thread == thread and frame.call != other_than:
                    return frame
        return None

    def enclosing(self, call: int) -> int:
        """The call of the innermost module at work, other than `call` itself; -1 for none."""
        frame = self.innermost(call)
        return -1 if frame is None else frame.call

    def innermost_of(self, watched: Watched) -> int:
        """The number among `frames` of this module's innermost call in this thread; -1 for none."""
        thread = get_ident()
        at = len(self.frames) - 1
        while at >= 0 and not (self.frames[at].watched is watched and self.frames[at].thread == thread):
            at -= 1
        return at

    def beside(self, watched: Watched) -> Frame | None:
        """A module that another thread runs at the same time as this one runs `watched`, so that their order
        is by chance; None where there is none. A thread that has called no module is taken for one that the
        module at work waits for.
        """
        frames, thread = self.frames, get_ident()
        if not frames or (frames[0].thread == thread and frames[-1].thread == thread):
            return None
        own = max((n for n, frame in enumerate(frames) if frame.thread == thread), default=-1)
        for at, frame in enumerate(frames):
            if frame.thread == thread or frame.phase != "forward":
                continue
            around = frame.thread == frames[0].thread and frame.watched is not watched
            if at > own if own >= 0 else not around:
                return frame
        return None

    def begin_iteration(self) -> None:
        """Nothing of the iteration before counts any more."""
        self.frames.clear()
        self.touched = False
        self._calls = self.microbatch = 0
