"""A thread that brings what a run commits into a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import TwinrunError
from .mirror import Mirror

__all__ = ["Uploader"]

_LOOK = 0.2  # seconds after which a step that is under way is looked for


class Uploader:
    """Pushes a mirror in the background: once for each `notify`, and while steps are under way.

    error: why the last push failed; None: it did not. lacking: the steps that the bucket lacked then. The
    mirror is the thread's while there is one.
    """

    def __init__(self, mirror: Mirror, underway: Callable[[], bool]) -> None:
        """underway: whether steps were captured that are not in the journals yet; called by the thread."""
        self._mirror, self._underway = mirror, underway
        self._changed = threading.Condition()
        self._asked = self._done = 0  # pushes
        self._stopping = False
        self.error: TwinrunError | None = None
        self.lacking: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="twinrun-upload", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Lets the thread look for what is new."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits for a push of all that is there now."""
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= wanted or not self._thread.is_alive())

    def wait_for_push(self) -> bool:
        """Waits for the end of the push that is under way or asked for. False: there is none, or the last one
        failed.
        """
        with self._changed:
            if self.error is not None or self._done >= self._asked:
                return False
            done = self._done
            self._changed.wait_for(lambda: self._done > done or not self._thread.is_alive())
            return True

    def stop(self) -> None:
        """Ends the thread after the push that is under way."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        look = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or self._done < self._asked, _LOOK if look else None
                )
                if self._stopping:
                    return
                asked = self._asked
            error = self._push()
            lacking = set() if error is None else self._lacking()
            look = error is None and self._underway()
            with self._changed:
                self._done, self.error, self.lacking = asked, error, lacking
                self._changed.notify_all()

    def _push(self) -> TwinrunError | None:
        try:
            self._mirror.push()
        except TwinrunError as error:
            return error
        except Exception as error:  # the program that is captured goes on
            return TwinrunError(
                f"cannot be uploaded ({type(error).__name__})", where=self._mirror.bucket.name
            )
        return None

    def _lacking(self) -> set[int]:
        try:
            return self._mirror.lacks()
        except TwinrunError:  # of journals that cannot be read
            return set()
