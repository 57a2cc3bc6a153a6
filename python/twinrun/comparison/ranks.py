"""All places of a step of two runs, open at once."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

from ..runs.subject import Opened, opened_of
from .matching import StepMatch
from .request import Request

__all__ = ["Side", "all_ranks"]

_FILES_A_PLACE = 4  # open at once: metadata, data, files of a record
_OTHER_FILES = 256

Side = list[tuple[int, Opened]]  # (rank, fields) of a run


@contextlib.contextmanager
def all_ranks(request: Request, match: StepMatch) -> Iterator[tuple[Side, Side]]:
    """(rank, fields) of each place of the step, for both runs, all open."""
    _allow_files(_FILES_A_PLACE * (len(match.ranks_a) + len(match.ranks_b)))
    with contextlib.ExitStack() as stack:
        side_a, side_b = (
            [
                (rank, opened_of(stack.enter_context(subject.open((step, rank), request.use_metadata))))
                for rank in ranks
            ]
            for subject, step, ranks in (
                (request.a, match.step_a, match.ranks_a),
                (request.b, match.step_b, match.ranks_b),
            )
        )
        yield side_a, side_b


def _allow_files(count: int) -> None:
    """Raises the soft limit of open files by `count`, up to the hard limit: the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
