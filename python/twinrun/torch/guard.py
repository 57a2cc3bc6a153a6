"""What an error of a trace does, and whether a trace is at work: it may never end the training."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sized

import torch

from ..trace.online import TraceDiverged
from .graph_capture import capturing, refuse_graph_capture
from .iterations import Iterations
from .modes import no_modes
from .position import Position
from .replicas import ReplicasDiffer

__all__ = ["Guard"]


class _Thread(threading.local):
    # Whether this thread is at work for the trace. Gradients are computed by other threads.
    inside = False


class Guard:
    """Runs the work of a trace. After an error the trace is stopped, and the training goes on.

    handles: of the hooks; without any the trace does nothing. raises: whether errors reach the training.
    problems: what could not be traced. stopped: whether the trace ended.
    """

    def __init__(
        self, position: Position, iterations: Iterations, handles: Sized, problems: list[str], raises: bool
    ) -> None:
        self._position, self._iterations = position, iterations
        self._handles, self._problems = handles, problems
        self.raises, self.stopped = raises, False
        self._lock, self._thread = threading.RLock(), _Thread()

    @property
    def active(self) -> bool:
        """Whether values are recorded now."""
        return (
            not self.stopped and not self._thread.inside and len(self._handles) > 0 and self._position.chosen
        )

    def records(self) -> bool:
        """Whether values are recorded now, and can be: the capture of a CUDA graph ends the trace."""
        if not self.active:
            return False
        if not capturing():
            return True
        with self.work("a value"):
            refuse_graph_capture()
        return False

    @contextlib.contextmanager
    def work(self, what: str) -> Iterator[None]:
        """Work of the trace, which modes and the graph of gradients do not see. An error stops the trace."""
        with self._lock:
            self._thread.inside = True
            try:
                with no_modes(), torch.no_grad():
                    yield
            except (TraceDiverged, ReplicasDiffer):  # the caller asked for it
                self.stopped = True
                raise
            except Exception as e:
                if self.raises:
                    self.stopped = True
                    raise
                self._stop(f"{what}: {type(e).__name__}: {e}")
            finally:
                self._thread.inside = False

    @contextlib.contextmanager
    def work_that_goes_on(self) -> Iterator[None]:
        """The same for work that a trace does also after it stopped. Errors of it are the caller's."""
        with self._lock:
            self._thread.inside = True
            try:
                with no_modes(), torch.no_grad():
                    yield
            finally:
                self._thread.inside = False

    def _stop(self, why: str) -> None:
        if self.stopped:
            return
        self.stopped = True
        text = f"iteration {self._position.iteration}: the trace stopped at {why}"
        self._problems.append(text)
        self._iterations.problem(text)
        warnings.warn(f"twinrun: {text}; the training goes on", RuntimeWarning, stacklevel=4)
        self._position.frames.clear()
        self._iterations.capture_last()
