"""All places of a step of two runs, open at once."""

from __future__ import annotations

import contextlib
import resource
import types

from ..runs.subject import Opened
from .matching import StepMatch
from .request import Request

__all__ = ["OpenStep", "Side"]

_FILES_A_PLACE = 4  # open at once: metadata, data, files of a record
_OTHER_FILES = 256

Side = list[tuple[int, Opened]]  # (rank, fields) of a run


class OpenStep:
    """All places of a step of two runs, open while one is inside its `with`.

    notes_a, notes_b: on the places that could be opened.
    """

    def __init__(self, request: Request, match: StepMatch) -> None:
        self._request, self._match = request, match
        self._stack = contextlib.ExitStack()
        self.notes_a: list[str] = []
        self.notes_b: list[str] = []

    def __enter__(self) -> tuple[Side, Side]:
        """(rank, fields) of each place, for both runs."""
        request, match = self._request, self._match
        _allow_files(_FILES_A_PLACE * (len(match.ranks_a) + len(match.ranks_b)))
        sides: tuple[Side, Side] = ([], [])
        with self._stack:
            for subject, step, ranks, side, notes in (
                (request.a, match.step_a, match.ranks_a, sides[0], self.notes_a),
                (request.b, match.step_b, match.ranks_b, sides[1], self.notes_b),
            ):
                for rank in ranks:
                    opened = self._stack.enter_context(subject.open((step, rank), request.use_metadata))
                    notes += opened.notes
                    side.append((rank, opened))
            self._stack = self._stack.pop_all()  # they stay open
        return sides

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool | None:
        return self._stack.__exit__(kind, error, traceback)


def _allow_files(count: int) -> None:
    """Raises the soft limit of open files by `count`, up to the hard limit: the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
