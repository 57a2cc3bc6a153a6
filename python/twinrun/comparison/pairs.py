"""Field pairs of a place that Python opened and matched, compared by one call of the core.

Pairs that need more than that (decoded elements, metadata that is built first, texts, circles,
parts of fields) are compared one by one, and so are those that the core could not compare: their
errors then say where and why.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Sequence

from .. import _core
from ..errors import TwinrunError
from ..runs.arrays import DeviceArrayView
from ..runs.fields import FieldRef
from ..runs.subject import Place
from .entry import compare_entry
from .field import FieldComparison, place_text
from .lists import Kept, ListedFields, Rules
from .matching import StepMatch
from .outcome import Outcome
from .ranges import DIRECT, NOT_WORTH_IT, is_small
from .request import Request
from .settings import Settings
from .shares import Piece

__all__ = ["compare_pieces"]

_LEAST = 2  # pairs that are worth a list


def compare_pieces(
    request: Request,
    match: StepMatch,
    pairs: Sequence[tuple[FieldRef, FieldRef]],
    pieces: Sequence[Piece],
    place: Place,
    is_whole: bool,
    kept: Kept | None = None,
) -> Outcome:
    """Compares these pieces of the field pairs of a place. is_whole: they are all of it.

    kept: what was found already; its fields that failed are compared again, alone.
    """
    found = Outcome()
    at_once = _Pairs(request, place)
    listed = array.array("q")  # of each piece its number in the list; -1: it is not there
    results, rules = None, at_once.rules
    if kept is not None and is_whole:
        there = {kept.results.name(number): number for number in range(len(kept.results))}
        listed.extend(there.pop(pairs[piece.at][0].name, -1) for piece in pieces)
        if not there:  # else the place is another one by now
            results, rules = kept.results, kept.rules
    if results is None:
        listed = array.array("q")
        if len(pieces) >= _LEAST and request.settings.device != "cuda":
            for piece in pieces:
                alone = piece.part[1] > 1 or not at_once.take(*pairs[piece.at])
                listed.append(-1 if alone else len(at_once) - 1)
        results = at_once.compare() if len(at_once) >= _LEAST else None
    failed = set() if results is None else {*results.failed}
    beside: dict[int, FieldComparison] = {}
    numbers = array.array("Q")
    used = array.array("q")
    for at, piece in enumerate(pieces):
        if results is not None and listed[at] >= 0 and listed[at] not in failed:
            numbers.append(piece.at)
            used.append(listed[at])
            continue
        one = compare_entry(request, match, *pairs[piece.at], place, piece)
        if results is not None and one.result is not None:
            beside[len(used)] = one.result
            numbers.append(piece.at)
            used.append(-1)
            one.result = None
        found.add_entry(one)
    if results is not None:
        group = ListedFields(
            results, place, rules, request.a.label, used, beside, None if is_whole else numbers, at_once.parts,
            at_once.units,
        )  # fmt: skip
        found.results.append((0, group))
    return found


class _Pairs:
    """Pairs that the core can take as they are."""

    def __init__(self, request: Request, place: Place) -> None:
        self.rules = Rules()
        self._request = request
        self._place = place
        self._list = _core.PairList()
        self._files = _core.OpenFiles()
        self.parts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # their places in global arrays
        self.units: dict[int, str] = {}  # of those that are dates or time spans

    def __len__(self) -> int:
        return len(self._list)

    def take(self, a: FieldRef, b: FieldRef) -> bool:
        """Adds a pair. False: it is to be compared alone."""
        settings = self._request.settings
        if not (_is_plain(a) and _is_plain(b) and _is_text(a.name)):
            return False
        how = _how(a, b, settings)
        if how is None:
            return False
        reason, uses_metadata = how
        try:
            decision = settings.decision(a, b, self._place[0])
            if decision.period:
                return False
            sources = [ref.source(settings.cache, self._files) for ref in (a, b)]
        except TwinrunError:  # is found again, and reported, where it is compared alone
            return False
        if a.place is not None and a.place[0] != a.shape and a.user_place == b.user_place:
            self.parts[len(self._list)] = a.place
        if a.unit is not None:
            self.units[len(self._list)] = a.unit
        self._list.add(
            a.name,
            a.dtype,
            a.shape,
            a.fortran_order,
            sources[0],
            a.metadata if uses_metadata else None,
            a.metadata_field,
            sources[1],
            b.metadata if uses_metadata else None,
            b.metadata_field,
            self.rules.number(decision, reason),
        )
        return True

    def compare(self) -> _core.ListResults:
        """The results of all, in their order."""
        progress = self._request.progress
        advance = None if progress is None else functools.partial(progress, place_text(self._place))
        results = self._list.compare(self.rules.core, self._request.settings.options(advance))
        if (interrupt := results.take_interrupt()) is not None:
            raise interrupt
        return results


def _is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8: names of files may have bytes that are not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(ref: FieldRef) -> bool:
    """Whether its elements lie in memory or in files as they are, and are numbers; or only its
    metadata is there.
    """
    if any(of is not None for of in (ref.kind, ref.text, ref.tell, ref.parts, ref.mask)):
        return False
    if ref.no_data:
        return ref.metadata is not None
    if ref.recorded is not None and ref.items:
        return False
    if ref.memory is not None:
        return not isinstance(ref.memory, DeviceArrayView)
    return ref.extents is not None


def _how(a: FieldRef, b: FieldRef, settings: Settings) -> tuple[str, bool] | None:
    """The reason of the method, and whether metadata is used, as `compare_part` decides; None: that
    has more to do.
    """
    method = settings.method
    have = [ref.metadata is not None for ref in (a, b)]
    at_hand = not (a.no_data or b.no_data)
    if method == "direct":
        return ("", True) if at_hand else None
    if all(have) and method in ("auto", "staged"):
        return "", True
    if method != "auto" or not at_hand:
        return None
    if not any(have):
        return DIRECT, False
    return (NOT_WORTH_IT, False) if is_small(a) else None
