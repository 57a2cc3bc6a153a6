"""The units of all steps, compared in this process, or on the ranks of a team."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import TwinrunError
from ..runs.subject import Place
from .field import FieldComparison
from .lists import ListedFields, StepsTogether, compare_places
from .matching import StepMatch, same_ranks
from .outcome import Outcome, in_shares
from .place import order_of_lists
from .request import Request
from .settings import Settings
from .shares import Unit, pieces, shares_by_size
from .unit import Worker

if TYPE_CHECKING:
    from .executors import Workers
    from .parallel import Team

__all__ = ["StepOutcome", "compare_steps"]

# Shares for each rank, where places have enough fields: a rank with a slow share takes fewer of
# them.
_SHARES_A_RANK = 4
_TOGETHER = 1024  # places that are compared by one call
# Bytes of a rank's read buffers: ranks of a node share what one process would take.
_LEAST_MEMORY = 64 << 20


@dataclass
class StepOutcome:
    """What comparing a step found: in its units, in their order; and in the fields that remained, `recut`,
    whose results replace those of the units.
    """

    units: list[Outcome]
    again: Outcome | None
    recut: tuple[str, ...] = ()
    steps: int = 1  # that were compared together


def compare_steps(
    request: Request, matches: Sequence[StepMatch], team: Team | Workers | None
) -> Iterator[StepOutcome]:
    """Compares all steps, here or on all ranks of the team; steps in their order."""
    alone = team is None or (team.sends_entries and team.size == 1)
    if team is None or alone or "arrays" in (request.a.kind, request.b.kind):
        yield from _compare_here(request, matches)
    else:
        yield from _compare_on_all(request, matches, team)


def _compare_here(request: Request, matches: Sequence[StepMatch]) -> Iterator[StepOutcome]:
    overall = None if request.progress is None else _Overall(request, matches)
    own = request if overall is None else replace(request, progress=overall)
    worker, index = Worker(own), 0
    left = deque(matches)
    while left:
        together = _steps_together(request, left)
        found = compare_places(own, together) if len(together) > 1 else None
        if found is None:
            found = [StepsTogether([match], None) for match in together or [left[0]]]
        for steps in found:
            if steps.interrupt is not None:
                raise steps.interrupt
            for _ in steps.matches:
                left.popleft()
            if steps.found is not None:
                end = index + sum(len(match.ranks_a) for match in steps.matches)
                if not worker.order_is_noted:
                    steps.found.order = _order_of(own, steps.matches, steps.found)
                    if steps.found.order is not None:
                        worker.order_was_noted(end)
                if overall is not None:
                    for match in steps.matches:
                        for unit in _units(request, match, index):
                            overall.ended(unit)
                index = end
                yield StepOutcome([steps.found], None, steps=len(steps.matches))
                continue
            units = _units(request, steps.matches[0], index)
            index += len(units)
            outcomes = []
            for unit in units:
                outcomes.append(worker.run(unit))
                if overall is not None:
                    overall.ended(unit)
            again = _left(steps.matches[0], index, [[outcome] for outcome in outcomes])
            if again is None:
                yield StepOutcome(outcomes, None)
            else:
                yield StepOutcome(outcomes, worker.run(again), again.recut or ())


def _order_of(request: Request, matches: Sequence[StepMatch], found: Outcome) -> tuple[int, str] | None:
    """The first note about particles in another order, of places that were compared together."""
    lists: dict[Place, list[FieldComparison]] = {}
    for _, group in found.results:
        assert isinstance(group, ListedFields)
        for one in group.lists_of_integers():
            lists.setdefault((one.step, one.rank), []).append(one)
    for match in matches if lists else ():
        for ranks in zip(match.ranks_a, match.ranks_b, strict=True):
            place = (match.step, ranks[0] if match.step_a is not None else ranks[1])
            if (note := order_of_lists(request, match, ranks, place, lists.get(place, ()))) is not None:
                return note
    return None


class _Overall:
    """How far all steps are, from how far one field is: in bytes of both runs."""

    def __init__(self, request: Request, matches: Sequence[StepMatch]) -> None:
        assert request.progress is not None
        self._tell = request.progress
        self._request = request
        self._total = sum(self._size(unit) for match in matches for unit in _units(request, match, 0))
        self._ended = 0  # bytes of the units that are done
        # Of the unit that is at work: a field, and the bytes of those before it.
        self._label, self._before, self._last = "", 0.0, 0

    def _size(self, unit: Unit) -> int:
        a, b = self._request.a, self._request.b
        of_a, of_b = unit.places()
        return max(1, sum(a.size(place) for place in of_a) + sum(b.size(place) for place in of_b))

    def __call__(self, label: str, done: int, total: int) -> None:
        if label != self._label:
            self._before += self._last
            self._label = label
        self._last = total
        here = self._ended + self._before + done
        self._tell(label, int(min(here, self._total)), self._total)

    def ended(self, unit: Unit) -> None:
        """A unit is compared."""
        self._ended += self._size(unit)
        self._label, self._before, self._last = "", 0.0, 0
        step = "" if unit.match.step_a is None else f"step {unit.match.step_a}"
        self._tell(step, self._ended, max(self._total, self._ended))


def _steps_together(request: Request, matches: Iterable[StepMatch]) -> list[StepMatch]:
    """The first of these steps whose places match one by one, as many as are compared together."""
    found: list[StepMatch] = []
    places, part = 0, 0.0
    part_of_a, part_of_b = request.a.part_of_list, request.b.part_of_list
    for match in matches:
        places += len(match.ranks_a)
        if not same_ranks(match) or places > _TOGETHER:
            break
        for rank_a, rank_b in zip(match.ranks_a, match.ranks_b, strict=True):
            of_a, of_b = part_of_a((match.step_a, rank_a)), part_of_b((match.step_b, rank_b))
            part += of_a if of_a > of_b else of_b
        if part > 1:
            break
        found.append(match)
    return found


def _compare_on_all(
    request: Request, matches: Sequence[StepMatch], team: Team | Workers
) -> Iterator[StepOutcome]:
    steps: list[list[Unit]] = []
    index = 0
    for match in matches:
        steps.append(_units(request, match, index))
        index += len(steps[-1])
    # In the units' order.
    made = _on_all(request, [unit for units in steps for unit in units], team)
    found = [[next(made) for _ in units] for units in steps]
    follow = [
        _left(units[0].match, units[-1].index, outcomes) for units, outcomes in zip(steps, found, strict=True)
    ]
    made_again = _on_all(request, [unit for unit in follow if unit is not None], team)
    for outcomes, again in zip(found, follow, strict=True):
        whole = [in_shares(of_unit, request.labels) for of_unit in outcomes]
        if again is None:
            yield StepOutcome(whole, None)
        else:
            yield StepOutcome(whole, in_shares(next(made_again), request.labels), again.recut or ())


def _units(request: Request, match: StepMatch, first: int) -> list[Unit]:
    """The units of a step: its places, or the step as a whole. first: the number of the first unit."""
    paired = same_ranks(match)
    if request.key is not None or not paired:
        return [Unit(first, match)]
    pairs = zip(match.ranks_a, match.ranks_b, strict=True)
    return [Unit(first + at, match, ranks) for at, ranks in enumerate(pairs)]


def _left(match: StepMatch, index: int, outcomes: Sequence[Sequence[Outcome]]) -> Unit | None:
    """The unit that remains of a step after its places are compared: fields that the runs cut differently."""
    recut = dict.fromkeys(name for of_place in outcomes for o in of_place for name in o.recut)
    return Unit(index, match, recut=tuple(recut)) if recut else None


def _on_all(request: Request, units: Sequence[Unit], team: Team | Workers) -> Iterator[list[Outcome]]:
    """Runs the units on all ranks of the team. Returns for each the outcomes of its shares."""
    if not units:
        return iter(())
    a, b = request.a, request.b
    sizes, known = [], []
    for unit in units:
        of_a, of_b = unit.places()
        if team.sends_entries:
            entries_a, entries_b = (
                {place: s.entry(place) for place in of} for s, of in ((a, of_a), (b, of_b))
            )
            known.append(replace(unit, entries_a=entries_a, entries_b=entries_b))
        else:
            known.append(replace(unit, stamps=(a.stamp_of(of_a), b.stamp_of(of_b))))
        sizes.append(sum(a.size(place) for place in of_a) + sum(b.size(place) for place in of_b))
    shares = _shares(request, units, sizes, team.size)
    parts = [replace(unit, share=(k, n)) for unit, n in zip(known, shares, strict=True) for k in range(n)]
    part_sizes = [size // n for size, n in zip(sizes, shares, strict=True) for _ in range(n)]
    sent = replace(
        request,
        a=a.without_places(),
        b=b.without_places(),
        progress=None,
    )
    if team.sends_entries:
        made = iter(team.share(_Job(sent), parts, part_sizes, request.progress))
    else:
        made = iter(team.share(sent, parts, part_sizes, request.progress))
    return iter([[next(made) for _ in range(n)] for n in shares])


def _shares(request: Request, units: Sequence[Unit], sizes: Sequence[int], ranks: int) -> list[int]:
    """How many shares each unit is cut into, so that all ranks have work.

    sizes: bytes of the units, of both runs.
    """
    wanted = _SHARES_A_RANK * ranks
    found = shares_by_size(sizes, wanted)
    places = [at for at, unit in enumerate(units) if unit.ranks is not None]
    if places and len(places) < wanted:  # few places: their fields are counted
        most = math.ceil(wanted / len(places))
        least = min(most, _pieces_of(request, units[places[0]], most))
        for at in places:
            found[at] = max(found[at], least)
    if request.key is not None:
        return [1] * len(units)
    return found


def _pieces_of(request: Request, unit: Unit, shares: int) -> int:
    """How many pieces of fields a place has for so many shares, judged by the first run."""
    with contextlib.suppress(TwinrunError), request.a.open(unit.places()[0][0], False) as opened:
        refs = list(opened.values())
        sizes = [ref.items * ref.itemsize for ref in refs]
        return max(1, len(pieces(sizes, [ref.reads_anywhere for ref in refs], shares)))
    return 1


class _Job:
    """The work in the form that ranks receive."""

    def __init__(self, request: Request) -> None:
        self._worker = Worker(request)

    def arrive(self, team: Team) -> None:
        """Divides what ranks of a node share: cores, memory, devices."""
        request = self._worker.request
        asked = request.settings
        memory = asked.memory if team.memory_is_each else max(_LEAST_MEMORY, asked.memory // team.node_size)
        own = replace(
            asked,
            threads=asked.threads or team.threads,
            memory=min(asked.memory, memory),
            devices=_own_devices(asked, team),
        )
        self._worker = Worker(replace(request, settings=own))

    def run(self, unit: Unit) -> Outcome:
        """Compares a part. An error becomes part of the outcome, and the leader raises it."""
        request = self._worker.request
        request.a.know(unit.entries_a)
        request.b.know(unit.entries_b)
        try:
            return self._worker.run(unit)
        except (TwinrunError, OSError, MemoryError) as e:
            return Outcome(error=e)


def _own_devices(settings: Settings, team: Team) -> list[int]:
    """The GPUs of one rank of a node: ranks divide them where there are several."""
    if settings.device == "cpu" or team.node_size == 1:
        return settings.devices
    usable = settings.devices or [
        at for at, device in enumerate(_core.devices().devices) if not device.reason
    ]
    return usable[team.node_rank % len(usable) :: team.node_size] if usable else settings.devices
