"""The comparison of one unit: a place, a whole step, or what remains of a step. See shares.py."""

from __future__ import annotations

from .matching import same_ranks
from .outcome import Outcome
from .place import compare_place
from .request import Request
from .shares import Unit

__all__ = ["Worker", "compare_unit"]


class Worker:
    """Compares units, one after another, in any order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        # The earliest unit that noted particles in another order: the note of a later one is not
        # used.
        self._noted: int | None = None

    @property
    def order_is_noted(self) -> bool:
        """Whether a unit noted particles in another order."""
        return self._noted is not None

    def order_was_noted(self, before: int) -> None:
        """Units before this number noted particles in another order."""
        self._noted = before - 1

    def run(self, unit: Unit) -> Outcome:
        """Compares a part of both runs."""
        noted = self._noted is not None and self._noted < unit.index
        found = compare_unit(self.request, unit, noted)
        if found.order is not None:
            self._noted = unit.index
        return found


def compare_unit(request: Request, unit: Unit, order_is_noted: bool = False) -> Outcome:
    """Compares a part of both runs. order_is_noted: as of `compare_place`."""
    if unit.recut is not None:
        from .global_arrays import compare_global_arrays  # few runs need it

        return compare_global_arrays(request, unit.match, only=set(unit.recut), share=unit.share)
    if unit.ranks is not None:
        return compare_place(request, unit.match, unit.ranks, share=unit.share, order_is_noted=order_is_noted)
    return _compare_step(request, unit)


def _compare_step(request: Request, unit: Unit) -> Outcome:
    """Compares one step of both runs as a whole. A step that is matched by ID has one share."""
    match = unit.match
    found, done = Outcome(), set[str]()
    if request.key is not None:
        from .particles import compare_by_id

        found, done = compare_by_id(request, match)
    if not same_ranks(match):
        from .global_arrays import compare_global_arrays

        rest = compare_global_arrays(request, match, done=done, share=unit.share)
        found.add(rest)
        found.pairs = rest.pairs
        return found
    recut: dict[str, None] = {}
    for ranks in zip(match.ranks_a, match.ranks_b, strict=True):
        of_place = compare_place(request, match, ranks, done)
        recut.update(dict.fromkeys(of_place.recut))
        found.add(of_place)
    if recut:
        from .global_arrays import compare_global_arrays

        found.results = found.without(recut)
        found.add(compare_global_arrays(request, match, only=set(recut), done=done))
    return found
