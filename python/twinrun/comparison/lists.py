"""Fields of a place, compared by one call of the core: they become objects when somebody looks at them.

What is found is what comparing them one by one finds. See `place`, which does that with everything else, also with the few
fields of a container that the core cannot take.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .. import _core
from ..errors import TwinrunError
from ..formats.model import FLOATING
from ..runs.fields import FieldRef
from ..runs.files import Files
from ..runs.subject import Listed, Opened, Place
from .facts import compare_facts
from .field import FieldComparison, FieldGroup, bytes_read_by, place_text
from .matching import StepMatch
from .merge import Found
from .outcome import Outcome, Remarks
from .ranges import DIRECT, FieldPart, put_together
from .request import Request, Selection
from .settings import Decision, Settings

__all__ = ["ListedFields", "Rules", "asked_for", "compare_lists", "compare_places"]


@dataclass
class Rules:
    """The rules of many fields: each once, by its number.

    reasons: why this method, of the fields of each rule.
    """

    decisions: list[Decision] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    core: list[_core.ListRule] = field(default_factory=list)
    _numbers: dict[tuple[Decision, str, bool], int] = field(default_factory=dict)

    def number(self, decision: Decision, reason: str, own_tolerance: bool = False) -> int:
        """The number of a rule. own_tolerance: that of the fields' metadata counts."""
        known = self._numbers.setdefault((decision, reason, own_tolerance), len(self.core))
        if known == len(self.core):
            self.decisions.append(decision)
            self.reasons.append(reason)
            self.core.append(_core.ListRule(decision.rule(), own_tolerance))
        return known


class ListedFields(FieldGroup):
    """The comparison of each field of two lists, made when it is asked for.

    listed: of each field its number in the results, -1: it is beside them; None: they are the results. beside: the others by
    their place. where: the first run.
    """

    def __init__(
        self,
        results: _core.ListResults,
        place: Place,
        rules: Rules,
        where: str,
        listed: Sequence[int] | None = None,
        beside: Mapping[int, FieldComparison] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self._listed = listed
        self._beside = dict(beside or {})
        different = results.different
        if listed is not None:
            differ = {*different}
            different = [
                at
                for at, number in enumerate(listed)
                if (number in differ if number >= 0 else not self._beside[at].same)
            ]
        super().__init__(
            len(results) if listed is None else len(listed),
            different,
            results.bytes + sum(other.bytes for other in self._beside.values()),
            results.bytes_read + sum(map(bytes_read_by, self._beside.values())),
            numbers,
        )
        self._results = results
        self._place = place
        self._where = where
        self._decisions, self._reasons = rules.decisions, rules.reasons

    def make(self, at: int) -> FieldComparison:
        if at in self._beside:
            return self._beside[at]
        r = self._results
        if self._listed is not None:
            at = self._listed[at]
        like = FieldRef(r.name(at), r.dtype(at), "little", r.shape(at), r.fortran_order(at), self._where)
        rule = r.rule(at)
        decision = replace(self._decisions[rule], atol=r.atol(at), rtol=r.rtol(at))
        result = r.result(at)
        seconds = result.tree.seconds + result.sketch.seconds + result.elements.seconds
        place = self._place_of(at)
        part = FieldPart(Found(result), 0, like, place, decision, self._reasons[rule], seconds)
        return put_together([part])

    def _place_of(self, at: int) -> Place:
        return self._place

    def lists_of_integers(self) -> Iterator[FieldComparison]:
        """Those that differ and may be IDs of particles."""
        r = self._results
        for at in self._different:
            listed = at if self._listed is None else self._listed[at]
            dtype, shape = (
                (self[at].dtype, self[at].shape) if listed < 0 else (r.dtype(listed), r.shape(listed))
            )
            if dtype not in FLOATING and len(shape) == 1:
                yield self[at]


class FieldsOfPlaces(ListedFields):
    """The same of many places, one after another. ends: of each place, where its fields end."""

    def __init__(
        self,
        results: _core.ListResults,
        places: Sequence[Place],
        ends: Sequence[int],
        rules: Rules,
        where: str,
    ) -> None:
        super().__init__(results, places[0], rules, where)
        self._places = places
        self._ends = ends

    def _place_of(self, at: int) -> Place:
        return self._places[bisect.bisect_right(self._ends, at)]


def compare_places(request: Request, matches: Sequence[StepMatch]) -> Outcome | None:
    """Compares steps whose ranks match by one call, where all that is there are arrays of .npy files. None where that is not so,
    or where anything must be looked at place by place.
    """
    settings = request.settings
    if not (isinstance(request.a, Files) and isinstance(request.b, Files)):
        return None
    if request.globs is not None or request.key is not None or not request.use_metadata:
        return None
    if settings.tolerances.rules or settings.periods.axes or settings.periods.named:
        return None
    if settings.device == "cuda" or settings.method not in ("auto", "direct"):
        return None
    a, b = (
        side.arrays_of([(step, rank) for step, ranks in places for rank in ranks])
        for side, places in (
            (request.a, [(match.step_a, match.ranks_a) for match in matches]),
            (request.b, [(match.step_b, match.ranks_b) for match in matches]),
        )
    )
    if a is None or b is None or a[1] != b[1]:
        return None
    places: list[Place] = [
        (match.step, rank)
        for match in matches
        for rank in (match.ranks_a if match.step_a is not None else match.ranks_b)
    ]
    rules = Rules()
    reason = DIRECT if settings.method == "auto" else ""
    of_floating, of_others = (
        rules.number(asked_for(settings, "", floating, None, False)[0], reason) for floating in (True, False)
    )
    chosen = _core.RulesByKind(of_floating, of_others)
    results = _compare(request, a[0], b[0], rules, chosen, places[0])
    if results is None or results.failed:
        return None
    group = FieldsOfPlaces(results, places, list(itertools.accumulate(a[1])), rules, request.a.label)
    if next(group.lists_of_integers(), None) is not None:
        return None  # they may be IDs in another order, which is noted place by place
    return Outcome(results=[(0, group)])


def _compare(
    request: Request,
    a: _core.FieldList,
    b: _core.FieldList,
    rules: Rules,
    chosen: Sequence[int] | _core.RulesByKind,
    place: Place,
) -> _core.ListResults | None:
    advance = None
    if request.progress is not None:
        advance = functools.partial(request.progress, place_text(place))
    return _core.compare_lists(a, b, rules.core, chosen, request.settings.options(advance), request.started)


def _in_order(
    count: int, others: Mapping[int, FieldComparison | None]
) -> tuple[Sequence[int], dict[int, FieldComparison]]:
    """The number in the lists of each field that has a result (-1: beside them), and the results beside them by their place in that."""
    listed = array.array("q")
    made: dict[int, FieldComparison] = {}
    left = iter(range(count))
    for place in range(count + len(others)):
        if place not in others:
            listed.append(next(left))
        elif (other := others[place]) is not None:
            made[len(listed)] = other
            listed.append(-1)
    return listed, made


def compare_lists(
    request: Request,
    match: StepMatch,
    ranks: tuple[int, int],
    place: Place,
    wanted: Selection,
    compare_rest: Callable[[Request], Outcome],
) -> Outcome | None:
    """Compares a place by one call. None where something else is to be compared, or not all of it can be compared.

    compare_rest: compares the fields that no list takes.
    """
    settings = request.settings
    if request.key is not None or not request.use_metadata:
        return None
    if settings.periods.axes or settings.periods.named:
        return None
    with contextlib.ExitStack() as stack:
        try:
            a = stack.enter_context(request.a.listed((match.step_a, ranks[0])))
            b = None if a is None else stack.enter_context(request.b.listed((match.step_b, ranks[1])))
        except TwinrunError:  # is found again where it is reported
            return None
        if a is None or b is None or a.kind != b.kind or set(a.rest_places) != set(b.rest_places):
            return None
        if settings.device == "cuda" and not a.fields.any_on_device:
            return None
        if settings.method not in (("auto", "staged") if a.kind == "metadata" else ("auto", "direct")):
            return None
        found = Outcome(remarks=Remarks(opening=a.bytes_read + b.bytes_read))
        rules = Rules()
        chosen = _chosen(request, match.step, a, wanted, rules)
        if chosen is None:
            return None
        results = _compare(request, a.fields, b.fields, rules, chosen, place)
        if results is None or results.failed:
            return None
        if a.opened is not None and b.opened is not None and (a.opened.facts or b.opened.facts):
            sides = [_with_names(side.opened, side.fields) for side in (a, b) if side.opened is not None]
            found.add(compare_facts(request, match, ([sides[0]], [sides[1]]), place, wanted))
        others: dict[int, FieldComparison | None] = dict.fromkeys(a.rest_places.values())
        if a.rest is not None and b.rest is not None:
            rest = compare_rest(replace(request, a=a.rest, b=b.rest))
            for _, one in rest.fields():
                if one.field not in a.rest_places:
                    return None
                others[a.rest_places[one.field]] = one
            if rest.recut or rest.parts or rest.error is not None:
                return None
            rest.results = []
            found.add(rest)
    listed, beside = _in_order(len(results), others) if others else (None, {})
    group = ListedFields(results, place, rules, request.a.label, listed, beside)
    found.results.append((0, group))
    return found


def _with_names(opened: Opened, fields: _core.FieldList) -> Opened:
    """What files say beside their fields, with the names of these, which is all that is asked of fields there."""
    return opened.with_fields(dict.fromkeys(fields.names))  # type: ignore[arg-type]


def _chosen(
    request: Request, step: int | None, of: Listed, wanted: Selection, rules: Rules
) -> Sequence[int] | _core.RulesByKind | None:
    """Of each field of a list the number of its rule; -1 where it is left out. None where fields must be looked at one by one."""
    settings = request.settings
    by_metadata = of.kind == "metadata"
    reason = DIRECT if not by_metadata and settings.method == "auto" else ""
    if request.globs is None and not settings.tolerances.rules:
        of_floating, of_others = (
            rules.number(decision, reason, own)
            for decision, own in (
                asked_for(settings, "", floating, step, by_metadata) for floating in (True, False)
            )
        )
        return _core.RulesByKind(of_floating, of_others)
    if of.rest_places:
        return None
    found: list[int] = []
    known: dict[tuple[int | None, bool], int] = {}
    for name, floating in zip(of.fields.names, of.fields.floating, strict=True):
        if not wanted(name):
            found.append(-1)
            continue
        key = settings.tolerances.number(name, step), floating
        if key not in known:
            decision, own = asked_for(settings, name, floating, step, by_metadata)
            if decision.period:
                return None
            known[key] = rules.number(decision, reason, own)
        found.append(known[key])
    return found if known else None  # nothing to compare: that is reported elsewhere


def asked_for(
    settings: Settings, name: str, floating: bool, step: int | None, by_metadata: bool
) -> tuple[Decision, bool]:
    """The decision for all fields of a rule, but for its tolerance where that of the metadata counts."""
    like = FieldRef(name, "f64" if floating else "i64", "little", (1,), False, "")
    decision = settings.decision(like, like, step)
    rule = settings.rule(name, step)
    asked = not (settings.atol is None and settings.rtol is None and settings.ulps is None)
    if rule is not None and not (rule.atol is None and rule.rtol is None and rule.ulps is None):
        asked = True
    tolerant = floating or (settings.integers if rule is None or rule.integers is None else rule.integers)
    return decision, tolerant and not asked and by_metadata
