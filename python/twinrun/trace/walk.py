"""The walk through the events of one rank of two runs: where differences enter, and which explain others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import Incomparable
from ..runs.events import KERNELS, Event, Traced
from ..runs.gaps import (
    CHANGED_BEFORE,
    NOT_LOOKED_INTO,
    OF_EACH_RANK,
    PART,
    UNWRITTEN,
    WRITTEN,
    gap,
    may_be_alone,
)
from .alignment import aligned
from .result import Around, Origin, Passed, StructureDifference, TraceComparison, ValueDifference
from .site import Site
from .structure import StructureSeen, lone_containers, structure_differences
from .words import IN_VALUE, MOST_STRUCTURE, compared_text, qualified

__all__ = ["Walk", "first_of_events"]

_MOST_ORIGINS = 1000
_MOST_PROBLEMS = 1000
_AROUND = 5
_SHOWN = 8  # values of a signature
_REASONS = 3


def _form(v: Traced | None) -> str:
    return "(not there)" if v is None else f"{v.dtype}[{','.join(map(str, v.shape))}]"


def _signature(e: Event) -> str:
    """What an operation takes and gives. No other event has both: those of modules come one by one."""
    taken, given = ([v for v in e.values if v.out is out and v.role == "value"] for out in (False, True))
    if not taken or not given:
        return ""
    said = [
        ", ".join(f"{v.name} {_form(v)}" for v in side[:_SHOWN]) + (", …" if len(side) > _SHOWN else "")
        for side in (taken, given)
    ]
    return f"{e.operation}({said[0]}) -> {said[1]}"


@dataclass
class _Found:
    """What two events of one place show."""

    ins: list[ValueDifference]
    outs: list[ValueDifference]
    generators: list[ValueDifference]
    problems: list[str]
    compared: int
    unmatched: int
    # Values that were not digested in both runs: (value, why).
    unknown: list[tuple[Traced, str]]
    ins_agree: int = 0
    outs_agree: int = 0
    # Values that were not compared: (name, whether it came out, why).
    left: list[tuple[str, bool, str]] = field(default_factory=list)
    # Parameters and buffers that one run alone changed in a forward pass, in words.
    lone: list[str] = field(default_factory=list)
    # What differs beside the values.
    structure: list[StructureDifference] = field(default_factory=list)

    @property
    def ins_unknown(self) -> str:
        """The first value that goes in and is not known, and why; or ''."""
        return next((why for v, why in self.unknown if not v.out), "")

    def left_of(self, out: bool) -> list[str]:
        """Why values that come out, or that go in, were not compared."""
        return [why for _, of, why in self.left if of is out]

    def agrees(self, v: Traced) -> None:
        """A value was compared, and agrees."""
        if v.role == "rng":
            return
        if v.name.endswith(WRITTEN):
            self.left.append((v.name, v.out, f"in part {UNWRITTEN}"))
        elif v.out:
            self.outs_agree += 1
        else:
            self.ins_agree += 1


def _filled(v: Traced) -> str:
    """The argument that an operation wrote, and had no values of before; or ''."""
    return v.name.removeprefix("written.") if v.out and v.name.startswith("written.") else ""


# Of an event, by whether they come out, role, name, and which of those of one name they are.
_Values = dict[tuple[bool, str, str, int], Traced]


def _by_key(e: Event) -> _Values:
    found: _Values = {}
    for v in e.values:
        again = 0
        while (v.out, v.role, v.name, again) in found:
            again += 1
        found[v.out, v.role, v.name, again] = v
    return found


def _take_changed(ours: _Values, theirs: _Values, found: _Found) -> None:
    """Takes out what one run alone changed before it was seen. The other run has the tensor of that name:
    whether the two were the same one is not known.
    """
    for values, others in ((ours, theirs), (theirs, ours)):
        for key in [key for key, v in values.items() if gap(v) == CHANGED_BEFORE]:
            out, _, name, again = key
            tensor = next(
                (k for r in ("parameter", "buffer") if (k := (out, r, name, again)) in others), None
            )
            if key not in others and tensor is not None:
                v = others.pop(tensor)
                del values[key]
                found.unknown.append((v, f"{name} was not compared: {CHANGED_BEFORE}"))
                found.left.append((name, out, CHANGED_BEFORE))


def _compared_events(a: Event, b: Event) -> _Found:
    found = _Found([], [], [], [], 0, 0, [])
    ours, theirs = _by_key(a), _by_key(b)
    _take_changed(ours, theirs, found)
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        one, other = ours.get(key), theirs.get(key)
        v = one or other
        assert v is not None
        why = gap(v)
        if why and (may_be_alone(why) if one is None or other is None else gap(other) == why):
            found.left.append((v.name, v.out, why))
            continue
        if one is None or other is None:
            found.unmatched += 1
            alone = f"{v.name} is only in {'a' if other is None else 'b'}"
            if alone not in found.problems:  # a name may go in and come out
                found.problems.append(alone)
            if v.out and v.role in ("parameter", "buffer"):
                found.lone.append(alone)
        elif one.missing or other.missing:
            # Of a value that only one run digested nothing is known, also not by its form.
            if one.form == other.form or not (one.missing and other.missing):
                found.problems.append(f"{v.name} was not digested: {one.missing or other.missing}")
                found.unknown.append((v, found.problems[-1]))
                found.left.append((v.name, v.out, f"not digested: {one.missing or other.missing}"))
                continue
        else:
            found.compared += 1
            if one.form == other.form and one.digest == other.digest:
                found.agrees(v)
                continue
        kept = (one.kept if one else "", other.kept if other else "")
        if (
            one
            and other
            and one.form != other.form
            and (taken := _filled(v))
            and (False, v.role, taken, 0) not in ours
        ):
            # No operation makes another form of what it fills: it took that.
            found.ins.append(ValueDifference(taken, v.role, False, _form(one), _form(other)))
            continue
        differs = ValueDifference(v.name, v.role, v.out, _form(one), _form(other), _kept=kept)
        (found.generators if v.role == "rng" else found.outs if v.out else found.ins).append(differs)
    return found


class _Near(NamedTuple):
    """An event that may turn out to be near the first divergence. producers: of its values."""

    site: Site
    state: str
    event: Event
    producers: list[Site | None]
    found: _Found | None

    def told(self) -> Around:
        f = self.found
        differ = set() if f is None else {(d.name, d.out) for d in [*f.ins, *f.outs, *f.generators]}
        left = {} if f is None else {(name, out): why for name, out, why in f.left}
        values = [
            Passed(
                v.name,
                v.role,
                v.out,
                _form(v),
                (v.name, v.out) in differ,
                producer,
                left.get((v.name, v.out), ""),
            )
            for v, producer in zip(self.event.values, self.producers, strict=True)
        ]
        told = Around(self.site, self.state, self.event.kind, values)
        if f is not None:
            ins = f.left_of(False)
            told.inputs_agree, told.inputs_not_compared, told.not_compared = f.ins_agree, len(ins), _whys(ins)
            told.structure = f.structure
            told.text = _text(self.state, f)
        return told


class Walk:
    """The walk through the events of one rank."""

    def __init__(self, result: TraceComparison, rank: int, names_rank: bool = False) -> None:
        self.result, self.rank, self.names_rank = result, rank, names_rank
        self.first: Origin | None = None
        self.objects = 0  # values that nobody looked into
        self.uncalled: dict[str, None] = {}  # modules whose calls were not seen
        self.differed = False
        self.unknown = ""  # the first value that is not known, and where: before it all agrees
        self.generator: tuple[str, Origin] | None = None
        self.before: list[_Near] = []
        self.around: list[Around] = []
        self.made: dict[
            int, Site
        ] = {}  # by digest: the last event of run a (or of b, where a has none) that gave it
        self.after = 0
        self.event: Event | None = None  # the one under way
        self.draws = False  # whether the state of a generator that it is given differs
        self.seen = StructureSeen()
        # The call whose own code made the input that differs first; -1 for none.
        self._blamed = -1
        # Of run a, in the iteration under way: its events, and the numbers of calls at each place.
        self._events: Sequence[Event] = ()
        self._calls: dict[tuple[int, str, str, str], dict[int, int]] | None = None

    def problem(self, text: str) -> None:
        if len(self.result.problems) < _MOST_PROBLEMS:
            self.result.problems.append(text)
        elif len(self.result.problems) == _MOST_PROBLEMS:
            self.result.problems.append("more problems are not listed")

    def origin(self, origin: Origin) -> None:
        if self.event is not None:
            origin.signature = _signature(self.event)
        origin.generator = self.generator[0] if self.generator else ""
        if self.draws:  # from a generator of its own
            origin.generator = str(origin.site)
        origin.names_rank = self.names_rank
        if self.event is not None:
            origin.structure = self.seen.before(self.event, origin)
            if origin.reason != "unmatched":
                origin.call, origin.calls = self._call_of(self.event)
        if self.first is None:
            self.first = origin
            self.after = _AROUND
        if len(self.result.origins) < _MOST_ORIGINS:
            self.result.origins.append(origin)

    def _call_of(self, e: Event) -> tuple[int, int]:
        """(which of the calls at its place an event belongs to, how many there are); (0, 0) for one alone."""
        if self._calls is None:
            self._calls = {}
            for o in self._events:
                if o.call >= 0:  # a module has two events
                    place = o.microbatch, o.phase, o.module, o.operation
                    numbers = self._calls.setdefault(place, {})
                    numbers.setdefault(o.call, len(numbers) + 1)
        numbers = self._calls.get((e.microbatch, e.phase, e.module, e.operation), {})
        return (numbers[e.call], len(numbers)) if len(numbers) > 1 and e.call in numbers else (0, 0)

    def _near(self, site: Site, state: str, e: Event, found: _Found | None = None) -> None:
        if self.first is not None and self.after < 0:
            return
        made = self.made
        near = _Near(
            site, state, e, [None if v.out or v.missing else made.get(v.digest) for v in e.values], found
        )
        if self.first is None:
            self.before = [*self.before[-_AROUND + 1 :], near]
        else:
            self.around = self.around or [n.told() for n in self.before]
            self.around.append(near.told())
            self.after -= 1
        for v in e.values:
            if v.out and not v.missing and v.role not in ("setting", "rng"):
                made[v.digest] = site

    def near(self) -> list[Around]:
        """Events around the first divergence."""
        return self.around or [n.told() for n in self.before]

    def iteration(self, number: int, a: Sequence[Event], b: Sequence[Event]) -> None:
        self._blamed = -1
        self._events, self._calls = a, None
        wheres = f"rank {self.rank}, " if self.rank or self.names_rank else ""
        calls: dict[int, _Call] = {}  # by the number that run a gave them
        seen = self.seen = StructureSeen()
        dirty: set[str] = set()  # modules in which anything differed
        # What the optimizer made is taken in the next iteration; all else ends with its own.
        self.made = {
            d: s for d, s in self.made.items() if s.phase == "optimizer" and s.iteration == number - 1
        }
        result = self.result
        for at, (one, other) in enumerate(aligned(a, b)):
            e = one or other
            assert e is not None
            site = Site(number, e.microbatch, e.phase, e.module, e.operation)
            self.event, self.draws = e, False
            if (
                one is not None
                and other is not None
                and one.kind != other.kind
                and one.kind.startswith(KERNELS)
            ):
                one.kind = f"{one.kind} in a, {other.kind.removeprefix(KERNELS) or 'not known'} in b"
            if one is None or other is None:
                self._unmatched(site, e, at, "a" if other is None else "b", calls, wheres)
                continue
            found = _compared_events(one, other)
            found.structure = structure_differences(one, other, site)
            alone = lone_containers(one, other, found.structure)
            found.unmatched += len(alone)
            found.problems += map(str, alone)
            if self.first is None:
                beside = [d for d in found.structure if d not in alone]
                result.structure += beside[: MOST_STRUCTURE - len(result.structure)]
            result.events += 1
            result.values += found.compared
            self.objects += sum(why == NOT_LOOKED_INTO for _, _, why in found.left)
            result.unmatched += found.unmatched
            for text in found.problems:
                self.problem(f"{wheres}{site}: {text}")
            before = self.unknown
            if found.unknown:
                self.not_known(f"{site}: {found.unknown[0][1]}")
            if found.lone:
                self.not_known(f"{site}: {found.lone[0]}")
            call = calls.setdefault(e.call, _Call(e)) if e.call >= 0 else _Call(e)
            seen.add(one, other, found.structure)
            call.takes = call.takes or any(
                not v.out and v.role not in ("rng",) and gap(v) not in (OF_EACH_RANK, PART) for v in e.values
            )
            call.ins_agree += found.ins_agree
            call.ins_left += found.left_of(False)
            differ = found.ins or found.outs
            every = len(found.ins) + len(found.outs) + len(found.generators)
            result.different_values += every
            n, d = result.by_module.get((number, e.module), (0, 0))
            result.by_module[number, e.module] = (n + found.compared, d + every)
            self.draws = any(d.name == "generator" for d in found.generators)
            if found.generators and self.generator is None:
                where = Origin(self.rank, site, "generator", e.module, e.kind, at, found.generators)
                self.generator = str(site), where
            if found.ins_unknown:
                call.ins_unknown = call.ins_unknown or f"{site}: {found.ins_unknown}"
            if found.ins:
                call.ins_differ = True
                if e.call == self._blamed:
                    self._took(site, e, at, found, call)
                if not self.differed:
                    self._entered(site, e, at, found, calls, before or call.ins_unknown, call)
            own = found.outs and not call.ins_differ and not call.inner_differs
            # Inputs agree only where all are known; of what takes nothing: where all before is.
            unknown = call.ins_unknown or ("" if call.takes else before)
            if own and not self.differed and unknown:
                self._not_certain(site, e, at, found.outs, unknown, call)
            elif own and (
                not self.differed or (call.takes and not unknown and not self._explained(e, dirty))
            ):
                self.origin(
                    call.counted(Origin(self.rank, site, "operation", e.module, e.kind, at, found.outs))
                )
            if differ:
                self.differed = True
                dirty.add(e.module)
                outer = calls.get(e.enclosing)
                while outer is not None and not outer.inner_differs:
                    outer.inner_differs = True
                    outer = calls.get(outer.event.enclosing)
            self._near(site, _state(e, found), e, found)

    def _unmatched(
        self, site: Site, e: Event, at: int, only: str, calls: Mapping[int, _Call], wheres: str
    ) -> None:
        """An event that one run alone has. only: which one, 'a' or 'b'."""
        self.result.unmatched += 1
        self.problem(f"{wheres}{site}: only in {only}")
        enclosing = calls.get(e.enclosing) if only == "a" else None
        if not self.differed:
            module = e.module or (enclosing.event.module if enclosing else "")
            self.origin(Origin(self.rank, site, "unmatched", module, e.kind, at, [], only_in=only))
            self.differed = True
        self._near(site, f"only in {only}", e)

    @staticmethod
    def _explained(e: Event, dirty: set[str]) -> bool:
        """Whether a gradient may differ because of what its module kept from a forward pass that differs."""
        return e.phase == "backward" and (e.module in dirty or not e.module)

    def not_known(self, text: str) -> None:
        """Something was not compared: from here on it is not known whether everything before agrees."""
        self.unknown = self.unknown or text

    def _not_certain(
        self, site: Site, e: Event, at: int, values: list[ValueDifference], unknown: str, call: _Call
    ) -> None:
        """Values differ, maybe because of a value that is not known: nothing is to blame."""
        origin = Origin(self.rank, site, "unknown", e.module, e.kind, at, values, unknown=unknown)
        self.origin(call.counted(origin))

    def _entered(
        self,
        site: Site,
        e: Event,
        at: int,
        found: _Found,
        calls: dict[int, _Call],
        unknown: str,
        call: _Call,
    ) -> None:
        """A value that differs though nothing before it does: it was made by code that is not
        traced by itself.
        """
        if unknown:
            self._not_certain(site, e, at, found.ins, unknown, call)
            return
        module = e.module
        outer = calls.get(e.enclosing)
        if all(v.role in ("value", "gradient") for v in found.ins):
            if e.phase in ("forward", "recompute"):
                module = outer.event.module if outer is not None else ""
            elif e.phase == "backward" and outer is not None:
                module = outer.event.module
        if self.first is None and outer is not None and outer.event.module == module:
            self._blamed = outer.event.call
        within = outer is not None and e.phase == "forward"
        origin = Origin(self.rank, site, "input", module, e.kind, at, found.ins, _within=within)
        self.origin(call.counted(origin))

    def _took(self, site: Site, e: Event, at: int, found: _Found, call: _Call) -> None:
        """The code that is blamed for the first difference took a parameter that differs, of a module that it
        did not call: such are seen when it has returned.
        """
        taken = [v for v in found.ins if v.role in ("parameter", "buffer")]
        if not taken or self.first is None:
            return
        self._blamed = -1
        first = call.counted(Origin(self.rank, site, "input", e.module, e.kind, at, taken))
        first.call, first.calls = self._call_of(e)
        first.generator, first.names_rank = self.first.generator, self.first.names_rank
        # Those of other ranks stand before it.
        self.result.origins[:] = [first if o is self.first else o for o in self.result.origins]
        self.first = first

    def end(self) -> None:
        self.event = None
        if self.first is None and self.generator is not None:
            self.origin(self.generator[1])
            self.generator[1].generator = ""
        if self.first is not None:
            self.result.firsts[self.rank] = self.first


def _state(e: Event, found: _Found) -> str:
    if found.ins:  # what comes out may differ then
        return "inputs differ"
    if found.outs:
        return "outputs differ"
    if found.unknown:
        return "not known"
    if found.left:
        return "not all compared"
    ways = {v.out for v in e.values if v.role != "rng"}
    agree = "all agree" if len(ways) != 1 else "outputs agree" if True in ways else "inputs agree"
    return f"{agree}{IN_VALUE}" if found.structure else agree


def _text(state: str, found: _Found) -> str:
    """What a report says of an event."""
    if found.ins or found.outs or not (found.left or found.structure):
        return state
    if not found.left:
        return qualified(state.removesuffix(IN_VALUE), found.structure)
    sides = [
        compared_text(what, agree, len(why), _whys(why))
        for what, agree, why in (
            ("inputs", found.ins_agree, found.left_of(False)),
            ("outputs", found.outs_agree, found.left_of(True)),
        )
    ]
    said = ", ".join(side for side in sides if side)
    return qualified(f"{state}: {said}" if state == "not known" else said, found.structure)


def _whys(whys: Sequence[str]) -> str:
    """Reasons in words, each once."""
    each = list(dict.fromkeys(whys))
    return ", ".join(each[:_REASONS]) + (", …" if len(each) > _REASONS else "")


class _Call:
    __slots__ = ("event", "inner_differs", "ins_agree", "ins_differ", "ins_left", "ins_unknown", "takes")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.ins_differ = self.inner_differs = self.takes = False
        self.ins_unknown = ""  # which input is not known, and why
        self.ins_agree = 0
        self.ins_left: list[str] = []  # why inputs were not compared

    def counted(self, origin: Origin) -> Origin:
        """A place within this call, with how many inputs of the call agree."""
        origin.inputs_agree, origin.inputs_not_compared = self.ins_agree, len(self.ins_left)
        origin.not_compared = _whys(self.ins_left)
        return origin


def first_of_events(number: int, a: Sequence[Event], b: Sequence[Event], rank: int = 0) -> Origin | None:
    """The first divergence of one iteration of one rank; None where every value agrees.

    Raises Incomparable where nothing differs and something could not be compared.
    """
    result = TraceComparison("a", "b")
    walk = Walk(result, rank)
    walk.iteration(number, a, b)
    walk.end()
    if walk.first is None and result.problems:
        raise Incomparable(result.problems[0])
    return walk.first
