"""Fields of a place, compared by one call of the core: they become objects when somebody looks at them.

What is found is what comparing them one by one finds. See `place`, which does that with everything
else, also with the few fields of a container that the core cannot take.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .. import _core
from ..errors import TwinrunError
from ..formats.element_types import FLOATING
from ..runs.fields import FieldRef
from ..runs.subject import ListedPlaces, Opened, Place
from .facts import compare_facts
from .field import FieldComparison, FieldGroup, bytes_read_by, place_text
from .matching import StepMatch
from .merge import Found
from .outcome import Outcome, Remarks
from .ranges import DIRECT, FieldPart, put_together
from .request import Request, Selection
from .settings import Decision, Settings

__all__ = [
    "Kept",
    "ListedFields",
    "Rules",
    "StepsTogether",
    "asked_for",
    "compare_lists",
    "compare_places",
]


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

    listed: of each field its number in the results, -1: it is beside them; None: they are the
    results. beside: the others by their place. where: the first run.
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
        parts: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
        units: Mapping[int, str] | None = None,
    ) -> None:
        self._parts = dict(parts or {})
        self._units = dict(units or {})
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
        like.place = self._parts.get(at) or r.place(at)
        like.unit = self._units.get(at)
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


@dataclass
class StepsTogether:
    """Steps that follow one another and were compared by one call. found: None where they must be
    compared one by one.

    interrupt: an exception that ended the comparison after these steps.
    """

    matches: Sequence[StepMatch]
    found: Outcome | None
    interrupt: BaseException | None = None


def compare_places(request: Request, matches: Sequence[StepMatch]) -> list[StepsTogether] | None:
    """Compares steps whose ranks match by one call of the core. None where they must be compared
    one by one. A step in which a field cannot be compared is compared alone, and the results of the
    others stay.
    """
    settings = request.settings
    if request.key is not None or not request.use_metadata or settings.device == "cuda":
        return None
    if settings.periods.axes or settings.periods.named:
        return None
    # The second run first: it is the one that has no lists where its fields have other names.
    b = request.b.listed_together([(m.step_b, rank) for m in matches for rank in m.ranks_b])
    if b is None:
        return None
    a = request.a.listed_together([(m.step_a, rank) for m in matches for rank in m.ranks_a])
    if a is None or a.kind != b.kind or [*a.counts] != [*b.counts]:
        return None
    if settings.method not in _methods(a.kind):
        return None
    places = _Places(request, matches, a, b)
    if places.chosen is None:
        return None
    results = _compare(request, a.fields, b.fields, places.rules, places.chosen, places.places[0])
    return None if results is None else places.steps(results)


class _Places:
    """The places of steps that are compared by one call.

    chosen: of each field the number of its rule, -1 where it is left out; None where fields must be
    looked at one by one.
    """

    def __init__(
        self, request: Request, matches: Sequence[StepMatch], a: ListedPlaces, b: ListedPlaces
    ) -> None:
        self._request, self._matches = request, matches
        self.rules = Rules()
        self.places: list[Place] = [
            (match.step, rank)
            for match in matches
            for rank in (match.ranks_a if match.step_a is not None else match.ranks_b)
        ]
        self._opening = [x + y for x, y in zip(a.bytes_read, b.bytes_read, strict=True)]
        self._met = [Selection(request, None).met()] * len(self.places)
        ends = [*itertools.accumulate(a.counts)]
        self._ends = ends  # where the results of each place end
        by_metadata = a.kind == "metadata"
        self.chosen: list[int] | _core.RulesByKind | None
        if not _by_name(request):
            self.chosen = _chosen_by_kind(request, by_metadata, self.rules)
            return
        names, floating = a.fields.names, a.fields.floating
        chosen: list[int] = []
        self._ends, self._met = [], []
        begin = 0
        for (step, _), end in zip(self.places, ends, strict=True):
            wanted = Selection(request, step)
            own = _chosen(
                request, step, names[begin:end], floating[begin:end], by_metadata, wanted, self.rules
            )
            if own is None:
                self.chosen = None
                return
            chosen += own
            self._ends.append((self._ends[-1] if self._ends else 0) + len(own) - own.count(-1))
            self._met.append(wanted.met())
            begin = end
        self.chosen = chosen

    def steps(self, results: _core.ListResults) -> list[StepsTogether]:
        """What the core found, in the order of the steps."""
        interrupt = results.take_interrupt()
        failed = {bisect.bisect_right(self._ends, at) for at in results.failed}  # places
        found: list[StepsTogether] = []
        at, first, begin = 0, 0, 0  # a place; the first step and place of those that are together
        for number, match in enumerate(self._matches):
            end = at + len(match.ranks_a)
            if failed and any(place in failed for place in range(at, end)):
                if number > first:
                    found.append(self._group(results, (first, number), (begin, at)))
                if interrupt is not None:
                    found.append(StepsTogether([], None, interrupt))
                    return found
                found.append(StepsTogether([match], None))
                first, begin = number + 1, end
            at = end
        if first < len(self._matches):
            found.append(self._group(results, (first, len(self._matches)), (begin, at)))
        if interrupt is not None:
            found.append(StepsTogether([], None, interrupt))
        return found

    def _group(
        self, results: _core.ListResults, steps: tuple[int, int], places: tuple[int, int]
    ) -> StepsTogether:
        begin, end = places
        before = self._ends[begin - 1] if begin else 0
        if end - begin < len(self.places):
            results = results.part(before, self._ends[end - 1])
        group = FieldsOfPlaces(
            results,
            self.places[begin:end],
            [own - before for own in self._ends[begin:end]],
            self.rules,
            self._request.a.label,
        )
        # Where rules do not depend on names, all places have met the same.
        met = functools.reduce(operator.or_, {id(met): met for met in self._met[begin:end]}.values())
        remarks = Remarks(opening=sum(self._opening[begin:end]), met=met)
        found = Outcome(results=[(0, group)], remarks=remarks)
        return StepsTogether(self._matches[steps[0] : steps[1]], found)


@dataclass
class Kept:
    """The results of a list in which some fields could not be compared: comparing each of these
    alone says why.
    """

    results: _core.ListResults
    rules: Rules


def _methods(kind: str) -> tuple[str, str]:
    """The methods that compare fields of this kind as they lie."""
    return ("auto", "staged") if kind == "metadata" else ("auto", "direct")


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
    """The number in the lists of each field that has a result (-1: beside them), and the results
    beside them by their place in that.
    """
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
) -> Outcome | Kept | None:
    """Compares a place by one call. None where something else is to be compared; what is kept,
    where not all of it can be compared.

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
        if settings.method not in _methods(a.kind):
            return None
        found = Outcome(remarks=Remarks(opening=a.bytes_read + b.bytes_read))
        rules = Rules()
        by_metadata = a.kind == "metadata"
        chosen: Sequence[int] | _core.RulesByKind | None
        if not _by_name(request):
            chosen = _chosen_by_kind(request, by_metadata, rules)
        elif a.rest_places:
            return None
        else:
            names, floating = a.fields.names, a.fields.floating
            chosen = _chosen(request, match.step, names, floating, by_metadata, wanted, rules)
        if chosen is None:
            return None
        results = _compare(request, a.fields, b.fields, rules, chosen, place)
        if results is None:
            return None
        if (interrupt := results.take_interrupt()) is not None:
            raise interrupt
        if results.failed:
            return Kept(results, rules)
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
    """What files say beside their fields, with the names of these, which is all that is asked of
    fields there.
    """
    return opened.with_fields(dict.fromkeys(fields.names))  # type: ignore[arg-type]


def _by_name(request: Request) -> bool:
    """Whether rules depend on the names of fields."""
    return request.globs is not None or bool(request.settings.tolerances.rules)


def _reason(settings: Settings, by_metadata: bool) -> str:
    """Why the method of a list is what it is."""
    return DIRECT if not by_metadata and settings.method == "auto" else ""


def _chosen_by_kind(request: Request, by_metadata: bool, rules: Rules) -> _core.RulesByKind:
    """The numbers of the rules of fields whose names and steps do not matter."""
    settings = request.settings
    reason = _reason(settings, by_metadata)
    of_floating, of_others = (
        rules.number(decision, reason, own)
        for decision, own in (
            asked_for(settings, "", floating, None, by_metadata) for floating in (True, False)
        )
    )
    return _core.RulesByKind(of_floating, of_others)


def _chosen(
    request: Request,
    step: int | None,
    names: Sequence[str],
    floating: Sequence[bool],
    by_metadata: bool,
    wanted: Selection,
    rules: Rules,
) -> list[int] | None:
    """Of each field of a place the number of its rule; -1 where it is left out. None where fields
    must be looked at one by one.
    """
    settings = request.settings
    reason = _reason(settings, by_metadata)
    found: list[int] = []
    known: dict[tuple[int | None, bool], int] = {}
    for name, kind in zip(names, floating, strict=True):
        if not wanted(name):
            found.append(-1)
            continue
        key = settings.tolerances.number(name, step), kind
        if key not in known:
            decision, own = asked_for(settings, name, kind, step, by_metadata)
            if decision.period:
                return None
            known[key] = rules.number(decision, reason, own)
        found.append(known[key])
    return found if known else None  # nothing to compare: that is reported elsewhere


def asked_for(
    settings: Settings, name: str, floating: bool, step: int | None, by_metadata: bool
) -> tuple[Decision, bool]:
    """The decision for all fields of a rule, but for its tolerance where that of the metadata counts.

    name: '' where no rule depends on names or steps.
    """
    if name:
        like = FieldRef(name, "f64" if floating else "i64", "little", (1,), False, "")
        decision = settings.decision(like, like, step)
    else:
        decision = settings.by_kind[0 if floating else 1]
    rule = settings.rule(name, step)
    asked = not (settings.atol is None and settings.rtol is None and settings.ulps is None)
    if rule is not None and not (rule.atol is None and rule.rtol is None and rule.ulps is None):
        asked = True
    tolerant = floating or (settings.integers if rule is None or rule.integers is None else rule.integers)
    return decision, tolerant and not asked and by_metadata
