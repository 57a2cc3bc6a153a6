"""A trace compared with another one while it is made."""

from __future__ import annotations

from collections.abc import Sequence

from .._core import __version__
from ..errors import Incomparable, TwinrunError
from ..runs.events import VERSION, Event
from .alignment import is_rest, leading
from .reading import TraceSubject
from .result import Origin
from .versions import levels_differ
from .walk import first_of_events

__all__ = ["Reference", "TraceDiverged"]


class TraceDiverged(TwinrunError):
    """A run differs from its reference: it was stopped.

    Attributes
    ----------
    origin : Origin or None
        Where the difference enters.

    Parameters: see `TwinrunError`.
    """

    origin: Origin | None = None

    @classmethod
    def at(cls, origin: Origin, where: str, fix: str | None = None) -> TraceDiverged:
        """Makes the error for a place.

        Parameters
        ----------
        origin : Origin
            Where the difference enters.
        where : str
            The reference.
        fix : str, default None
            What to do first.

        Returns
        -------
        TraceDiverged
            The error; it is not raised.
        """
        error = cls(f"differs from here: {origin}", where=where, fix=fix)
        error.origin = origin
        return error


class Reference:
    """The trace that another one is compared with, iteration by iteration. It may still be growing."""

    def __init__(self, path: str, rank: int) -> None:
        self.path, self._rank = path, rank
        self._subject = TraceSubject(path)

    def other_version(self) -> str | None:
        """What to do first where another version of twinrun wrote it, which may record less or more."""
        if not self._subject.written_otherwise():
            return None
        return (
            f"it was written by {self._subject.written_by()}, and this is twinrun {__version__} (format {VERSION}): "
            "make both traces with one version, as each has records that the other lacks"
        )

    def first(self, iteration: int, events: Sequence[Event], problems: Sequence[str]) -> Origin | None:
        """The first divergence of an iteration. Raises Incomparable where it cannot be compared."""
        if iteration not in self._subject.iterations(self._rank):
            self._subject = TraceSubject(self.path)  # it may have come meanwhile
        if iteration not in self._subject.iterations(self._rank):
            raise Incomparable(f"has no iteration {iteration} of rank {self._rank}", where=self.path)
        theirs, told, _ = self._subject.events(self._rank, iteration)
        for text in (*told, *problems):
            raise Incomparable(text, where=self.path)
        if not self._subject.written_otherwise() and (said := levels_differ(theirs, events)):
            raise Incomparable(said, where=self.path)
        if is_rest(events) and not is_rest(theirs):  # recorded after the last step of this run
            return first_of_events(iteration, leading(theirs), events, self._rank)
        if is_rest(theirs) and not is_rest(events):  # or of the reference, which ended there
            found = first_of_events(iteration, theirs, leading(events), self._rank)
            if found is None:
                raise Incomparable(f"ends before iteration {iteration} of rank {self._rank}", where=self.path)
            return found
        return first_of_events(iteration, theirs, events, self._rank)
