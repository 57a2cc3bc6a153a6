"""A comparison that devices still work on: it becomes an ordinary one when somebody asks it for anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .result import Comparison

__all__ = ["Pending", "pending"]


class Pending(Comparison):
    """Finishes when anything but `done` is asked for; then it is a Comparison, of that class too."""

    def __getattribute__(self, name: str) -> Any:
        if name == "done":
            return object.__getattribute__(self, name)
        _finish(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _finish(self)
        setattr(self, name, value)

    def done(self) -> bool:
        """Whether the answer is there without waiting."""
        left = object.__getattribute__(self, "__dict__").get("_left")
        return left is None or left.is_done()


class _Left:
    """What is left to do, once, whichever thread comes first."""

    def __init__(self, finish: Callable[[], Comparison], is_done: Callable[[], bool]) -> None:
        self._finish: Callable[[], Comparison] | None = finish
        self.is_done = is_done
        self._lock = threading.Lock()
        self._found: Comparison | None = None
        self._error: BaseException | None = None

    def found(self) -> Comparison:
        with self._lock:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                self.is_done = lambda: self._found is not None or self._error is not None
                try:
                    self._found = finish()
                except BaseException as e:
                    self._error = e.with_traceback(None)  # which would keep the arrays
        if self._found is None:
            assert self._error is not None
            raise self._error
        return self._found


def pending(finish: Callable[[], Comparison], is_done: Callable[[], bool]) -> Comparison:
    """A comparison that `finish` makes when it is asked for. is_done: whether that need not wait."""
    made = object.__new__(Pending)
    object.__getattribute__(made, "__dict__")["_left"] = _Left(finish, is_done)
    return made


def _finish(made: Comparison) -> None:
    own = object.__getattribute__(made, "__dict__")
    left = own.get("_left")
    if left is not None:
        found = left.found()
        for name, value in vars(found).items():
            own.setdefault(name, value)
    object.__setattr__(made, "__class__", Comparison)
    own.pop("_left", None)
