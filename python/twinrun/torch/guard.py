"""What an error of a trace does, and whether a trace is at work: it may never end the training."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sized
from types import TracebackType
from typing import Any, TypeVar

import torch

from ..trace.online import TraceDiverged
from .graph_capture import capturing, refuse_graph_capture
from .iterations import Iterations
from .modes import no_dispatch_modes, no_functions, no_modes, sees_functions, sees_operations
from .position import Position
from .replicas import ReplicasDiffer

__all__ = ["Guard"]

_T = TypeVar("_T")

# Looked up once: every event asks.
_has_gradients, _set_gradients = torch.is_grad_enabled, torch._C._set_grad_enabled


class _Work:
    """The context of `Guard.work`. A class: thousands of them are made in a step, and a generator takes
    longer. what: None where errors are the caller's; parts are joined where there is an error.
    """

    __slots__ = ("_functions", "_guard", "_had_gradients", "_modes", "_what")

    def __init__(self, guard: Guard, what: str | tuple[str, str] | None) -> None:
        self._guard, self._what = guard, what

    def __enter__(self) -> None:
        guard = self._guard
        guard.lock.acquire()
        guard.thread.inside = True
        try:
            self._modes = self._functions = None
            if sees_functions():
                self._functions = no_functions()
                self._functions.__enter__()
            if sees_operations(guard.own_mode):  # in most trainings nothing does, and contexts take time
                self._modes = no_modes()
                self._modes.__enter__()
            self._had_gradients = _has_gradients()
            if self._had_gradients:
                _set_gradients(False)
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if _has_gradients() is not self._had_gradients:
                _set_gradients(self._had_gradients)
            if self._modes is not None:
                self._modes.__exit__(None, None, None)
            if self._functions is not None:
                self._functions.__exit__(None, None, None)
            return (
                error is not None and self._what is not None and self._guard.failed(_told(self._what), error)
            )
        finally:
            self._leave()

    def _leave(self) -> None:
        self._guard.thread.inside = False
        self._guard.lock.release()


def _told(what: str | tuple[str, str]) -> str:
    return what if isinstance(what, str) else f"{what[0]} {what[1] or 'the model'}"


class _Thread(threading.local):
    """What a trace knows of a thread. Gradients are computed by other threads than the training's.

    inside: whether it is at work for the trace. given: where the tensors lie that operations gave within the
    node of the graph of gradients that runs now. task: the pass of the graph that was here last. to_leaves:
    whether all of its gradients go to leaves; None where that is not known yet.
    """

    inside = False
    task = -1
    to_leaves: bool | None = None

    def __init__(self) -> None:
        self.given: set[int] = set()


class Guard:
    """Runs the work of a trace. After an error the trace is stopped, and the training goes on.

    handles: of the hooks; without any the trace does nothing. raises: whether errors reach the training.
    problems: what could not be traced. stopped: whether the trace ended. lock: held while a thread is at
    work; others wait. thread: whether this one is. own_mode: the dispatch mode of the trace, which lets
    pass what a thread at work does; None where there is none.
    """

    def __init__(
        self, position: Position, iterations: Iterations, handles: Sized, problems: list[str], raises: bool
    ) -> None:
        self._position, self._iterations = position, iterations
        self._handles, self._problems = handles, problems
        self.raises, self.stopped = raises, False
        self.lock, self.thread = threading.RLock(), _Thread()
        self.own_mode: object = None

    @property
    def active(self) -> bool:
        """Whether values are recorded now."""
        return (
            not self.stopped and not self.thread.inside and len(self._handles) > 0 and self._position.chosen
        )

    def records(self) -> bool:
        """Whether values are recorded now, and can be: the capture of a CUDA graph ends the trace."""
        if self.stopped or self.thread.inside or len(self._handles) == 0 or not self._position.chosen:
            return False
        if not capturing():
            return True
        with self.work("a value"):
            refuse_graph_capture()
        return False

    def work(self, what: str | tuple[str, str]) -> contextlib.AbstractContextManager[None]:
        """Work of the trace, which modes and the graph of gradients do not see. An error stops the trace.

        what: as a message says it; of a module also (what, its path), which take no time where all is well.
        """
        return _Work(self, what)

    def light(self, what: str | tuple[str, str], do: Callable[..., _T], *given: Any) -> _T | None:
        """Work `do(*given)` without the contexts of `work`, which take time: its operations run within
        `unseen`, if there are any. Gives what it gave, or None after an error.
        """
        thread = self.thread
        with self.lock:
            thread.inside = True
            try:
                return do(*given)
            except Exception as e:
                if not self.failed(_told(what), e):
                    raise
                return None
            finally:
                thread.inside = False

    def work_that_goes_on(self) -> contextlib.AbstractContextManager[None]:
        """The same for work that a trace does also after it stopped. Errors of it are the caller's."""
        return _Work(self, None)

    @contextlib.contextmanager
    def within_transforms(self) -> Iterator[None]:
        """Work that reads what transforms of torch.func hold. No mode of the program sees it."""
        with self.lock:
            self.thread.inside = True
            try:
                with no_functions(), no_dispatch_modes():
                    yield
            finally:
                self.thread.inside = False

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Within `light` work: operations that modes and the graph of gradients do not see."""
        modes = no_modes() if sees_operations(self.own_mode) else contextlib.nullcontext()
        with modes, torch.no_grad():
            yield

    def failed(self, what: str, error: BaseException | None) -> bool:
        """What work ends with, if with an error. True: the training does not see the error."""
        if error is None or not isinstance(error, Exception):
            return False
        asked = isinstance(error, (TraceDiverged, ReplicasDiffer)) or self._iterations.is_callers(error)
        if asked or self.raises:
            self.stopped = True
            return False
        self._stop(f"{what}: {type(error).__name__}: {error}")
        return True

    def problem(self, what: str) -> str:
        """Notes what could not be traced in this iteration, and gives it as a text for a warning."""
        text = f"iteration {self._position.iteration}: {what}"
        self._problems.append(text)
        self._iterations.problem(text)
        return text

    def _stop(self, why: str) -> None:
        if self.stopped:
            return
        self.stopped = True
        text = self.problem(f"the trace stopped at {why}")
        warnings.warn(f"twinrun: {text}; the training goes on", RuntimeWarning, stacklevel=4)
        self._position.frames.clear()
        self._iterations.capture_last()
