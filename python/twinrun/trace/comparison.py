"""The comparison of two traces: the first operation whose inputs agree and whose outputs differ."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ..comparison.work import compare
from ..errors import Incomparable, TwinrunError
from ..runs.events import DIGESTS, EVENTS, KEPT, Event, Traced
from ..runs.opening import open_subject
from ..runs.provenance import Difference, Provenance, difference
from ..views import views
from .alignment import aligned
from .reading import TraceSubject
from .replicas import chosen_ranks, replicated, usual_rank
from .site import Site

__all__ = ["Origin", "TraceComparison", "ValueDifference", "compare_traces", "first_of_events"]

_MOST_ORIGINS = 1000
_MOST_PROBLEMS = 1000
_AROUND = 5


@dataclass
class ValueDifference:
    """A value of an event that differs.

    Attributes
    ----------
    name : str
        What the event calls it.
    role : str
        'value', 'parameter', 'buffer', 'gradient', 'state', 'setting' or 'rng'.
    out : bool
        Whether it came out of the operation, or went in.
    a, b : str
        Type and shape in both runs.
    elements, different : int or None
        Where both runs kept the data: how many elements there are, and how many differ.
    max_abs_diff : float or None
        The largest |a - b|.
    max_ulp : int or None
        The largest distance in representable numbers; None where it has no meaning.
    first_index : list of int or None
        The first element that differs; `first_a` and `first_b` are its values.
    first_a, first_b : object
        See `first_index`.
    max_index : list of int or None
        Where |a - b| is largest; `max_a` and `max_b` are the values there.
    max_a, max_b : object
        See `max_index`.
    box : list of (int, int) or None
        The smallest box that holds all elements that differ: along each axis the first index, and the one
        behind the last.
    infinite : int or None
        Elements where a NaN or an infinity meets something else.
    """

    name: str
    role: str
    out: bool
    a: str
    b: str
    elements: int | None = None
    different: int | None = None
    max_abs_diff: float | None = None
    max_ulp: int | None = None
    first_index: list[int] | None = None
    first_a: object = None
    first_b: object = None
    max_index: list[int] | None = None
    max_a: object = None
    max_b: object = None
    box: list[tuple[int, int]] | None = None
    infinite: int | None = None
    _kept: tuple[str, str] = field(default=("", ""), repr=False, compare=False)


@dataclass
class Origin:
    """A place at which a difference enters a run.

    Attributes
    ----------
    rank : int
        The rank.
    site : Site
        Iteration, microbatch, phase, module and operation.
    reason : {'operation', 'input', 'unmatched', 'generator'}
        'operation': its inputs agree, and its outputs differ. 'input': something that it takes
        differs, and nothing before it does: it was changed outside of what is traced. 'unmatched':
        one run does here what the other one does not. 'generator': a random number generator has
        another state, and no value differs.
    module : str
        The module whose code is meant; '' for the model itself. Of an input it is the module that called.
    kind : str
        The class of the module at the site.
    number : int
        The place in the order of events of this iteration.
    values : list of ValueDifference
        What differs there.
    generator : str
        Where the state of a random number generator differed first, if it did before; or ''.
    only_in : str
        For 'unmatched': 'a' or 'b'.
    names_rank : bool
        Whether the text names rank 0, too: ranks of one run were compared.
    """

    rank: int
    site: Site
    reason: Literal["operation", "input", "unmatched", "generator"]
    module: str
    kind: str
    number: int
    values: list[ValueDifference]
    generator: str = ""
    only_in: str = ""
    names_rank: bool = False

    def __str__(self) -> str:
        from .words import origin_text

        return origin_text(self)


class Passed(NamedTuple):
    """A value of an event near the first divergence.

    Attributes
    ----------
    name, role : str
        See `ValueDifference`.
    out : bool
        Whether it came out of the event.
    form : str
        Type and shape.
    differs : bool
        Whether it differs between the runs.
    producer : Site or None
        Of what went in: the last event before that gave these bits, in the same run; None where none did.
    """

    name: str
    role: str
    out: bool
    form: str
    differs: bool
    producer: Site | None


@dataclass
class Around:
    """An event near the first divergence, and whether it differs.

    Attributes
    ----------
    site : Site
        Where it is.
    kind : str
        The class of its module.
    values : list of Passed
        What went in and came out.
    state : str
        What the comparison found: 'inputs agree', 'outputs agree', 'all agree', 'inputs differ',
        'outputs differ', 'only in a' or 'only in b'.
    """

    site: Site
    state: str
    kind: str = ""
    values: list[Passed] = field(default_factory=list)


@dataclass
class TraceComparison:
    """The result of `compare_traces`.

    >>> for path in ("runs/a", "runs/b"):
    ...     with twinrun.Run(path) as run:
    ...         _ = run.capture(0, {"x": np.ones(4)}, phase="begin")
    >>> result = twinrun.compare_traces("runs/a", "runs/b")
    >>> result.verdict, result.first_divergence, result.values
    ('same', None, 1)

    Attributes
    ----------
    a, b : str
        The two traces.
    replicas : tuple of int
        Where ranks of one trace were compared among themselves: these ranks, the reference first; else empty.
    verdict : {'same', 'different', 'incomparable'}
        'same': every value of both traces was compared, and agrees bit by bit. 'incomparable':
        nothing differs, and something was not compared, see `problems`.
    first_divergence : Origin or None
        The earliest of `firsts`: by iteration, then by its place in the order of execution, then by rank.
    firsts : dict of int to Origin
        The first divergence of each rank.
    origins : list of Origin
        Every place at which a difference enters, in the order of execution of each rank; at most 1000.
    around : list of Around
        Events around the first divergence.
    events, values : int
        How many events were matched, and how many values of them were compared.
    different_values : int
        How many of these differ.
    unmatched : int
        Events and values that only one run has.
    problems : list of str
        What could not be compared; at most 1000 lines.
    notes : list of str
        What the user should know.
    by_module : dict of (int, str) to (int, int)
        {(iteration, module): (values, values that differ)}.
    provenance_a, provenance_b : Provenance or None
        Under which conditions the runs ran.
    conditions : list of Difference or None
        Conditions in which the runs differ, the likeliest explanation first.
    seconds : float
        Time of the comparison.
    same : bool
        True only if the verdict is 'same'; `bool(comparison)` gives it.
    """

    a: str
    b: str
    verdict: str = "incomparable"
    first_divergence: Origin | None = None
    firsts: dict[int, Origin] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    around: list[Around] = field(default_factory=list)
    events: int = 0
    values: int = 0
    different_values: int = 0
    unmatched: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replicas: tuple[int, ...] = ()
    by_module: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    provenance_a: Provenance | None = field(default=None, repr=False)
    provenance_b: Provenance | None = field(default=None, repr=False)
    seconds: float = 0.0

    @property
    def conditions(self) -> list[Difference] | None:
        """Conditions in which the runs differ, the likeliest explanation first; None where a run
        does not say.
        """
        if self.provenance_a is None or self.provenance_b is None:
            return None
        return difference(self.provenance_a, self.provenance_b)

    @property
    def same(self) -> bool:
        """True only if the verdict is 'same'."""
        return self.verdict == "same"

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page that `twinrun compare --html` writes.

        Parameters
        ----------
        path : path
            The file; it is replaced.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        views().write_trace_html(self, path)

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        from .words import verdict_text

        return verdict_text(self)


def _form(v: Traced | None) -> str:
    return "(not there)" if v is None else f"{v.dtype}[{','.join(map(str, v.shape))}]"


@dataclass
class _Found:
    """What two events of one place show."""

    ins: list[ValueDifference]
    outs: list[ValueDifference]
    generators: list[ValueDifference]
    problems: list[str]
    compared: int
    unmatched: int


def _by_key(e: Event) -> dict[tuple[bool, str, str, int], Traced]:
    found: dict[tuple[bool, str, str, int], Traced] = {}
    for v in e.values:
        again = 0
        while (v.out, v.role, v.name, again) in found:
            again += 1
        found[v.out, v.role, v.name, again] = v
    return found


def _compared(a: Event, b: Event) -> _Found:
    found = _Found([], [], [], [], 0, 0)
    ours, theirs = _by_key(a), _by_key(b)
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        one, other = ours.get(key), theirs.get(key)
        v = one or other
        assert v is not None
        if one is None or other is None:
            found.unmatched += 1
            found.problems.append(f"{v.name} is only in {'a' if other is None else 'b'}")
        elif one.missing or other.missing:
            if one.form == other.form:
                found.problems.append(f"{v.name} was not digested: {one.missing or other.missing}")
                continue
        else:
            found.compared += 1
            if one.form == other.form and one.digest == other.digest:
                continue
        kept = (one.kept if one else "", other.kept if other else "")
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
        values = [
            Passed(v.name, v.role, v.out, _form(v), (v.name, v.out) in differ, producer)
            for v, producer in zip(self.event.values, self.producers, strict=True)
        ]
        return Around(self.site, self.state, self.event.kind, values)


class _Rank:
    """The walk through the events of one rank."""

    def __init__(self, result: TraceComparison, rank: int, names_rank: bool = False) -> None:
        self.result, self.rank, self.names_rank = result, rank, names_rank
        self.first: Origin | None = None
        self.differed = False
        self.generator: tuple[str, Origin] | None = None
        self.before: list[_Near] = []
        self.around: list[Around] = []
        self.made: dict[
            int, Site
        ] = {}  # by digest: the last event of run a (or of b, where a has none) that gave it
        self.after = 0

    def problem(self, text: str) -> None:
        if len(self.result.problems) < _MOST_PROBLEMS:
            self.result.problems.append(text)
        elif len(self.result.problems) == _MOST_PROBLEMS:
            self.result.problems.append("more problems are not listed")

    def origin(self, origin: Origin) -> None:
        origin.generator = self.generator[0] if self.generator else ""
        origin.names_rank = self.names_rank
        if self.first is None:
            self.first = origin
            self.after = _AROUND
        if len(self.result.origins) < _MOST_ORIGINS:
            self.result.origins.append(origin)

    def _near(self, site: Site, state: str, e: Event, found: _Found | None = None) -> None:
        if self.first is not None and self.after < 0:
            return
        made = self.made
        near = _Near(site, state, e, [None if v.out else made.get(v.digest) for v in e.values], found)
        if self.first is None:
            self.before = [*self.before[-_AROUND + 1 :], near]
        else:
            self.around = self.around or [n.told() for n in self.before]
            self.around.append(near.told())
            self.after -= 1
        for v in e.values:
            if v.out and v.role not in ("setting", "rng"):
                made[v.digest] = site

    def near(self) -> list[Around]:
        """Events around the first divergence."""
        return self.around or [n.told() for n in self.before]

    def iteration(self, number: int, a: Sequence[Event], b: Sequence[Event]) -> None:
        wheres = f"rank {self.rank}, " if self.rank or self.names_rank else ""
        calls: dict[int, _Call] = {}  # by the number that run a gave them
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
            if one is None or other is None:
                only = "a" if other is None else "b"
                result.unmatched += 1
                self.problem(f"{wheres}{site}: only in {only}")
                enclosing = calls.get(e.enclosing) if only == "a" else None
                if not self.differed:
                    module = e.module or (enclosing.event.module if enclosing else "")
                    self.origin(Origin(self.rank, site, "unmatched", module, e.kind, at, [], only_in=only))
                    self.differed = True
                self._near(site, f"only in {only}", e)
                continue
            found = _compared(one, other)
            result.events += 1
            result.values += found.compared
            result.unmatched += found.unmatched
            for text in found.problems:
                self.problem(f"{wheres}{site}: {text}")
            call = calls.setdefault(e.call, _Call(e)) if e.call >= 0 else _Call(e)
            call.takes = call.takes or any(not v.out and v.role not in ("rng",) for v in e.values)
            differ = found.ins or found.outs
            every = len(found.ins) + len(found.outs) + len(found.generators)
            result.different_values += every
            n, d = result.by_module.get((number, e.module), (0, 0))
            result.by_module[number, e.module] = (n + found.compared, d + every)
            if found.generators and self.generator is None:
                where = Origin(self.rank, site, "generator", e.module, e.kind, at, found.generators)
                self.generator = str(site), where
            if found.ins:
                call.ins_differ = True
                if not self.differed:
                    self._entered(site, e, at, found, calls)
            own = found.outs and not call.ins_differ and not call.inner_differs
            if own and (not self.differed or (call.takes and not self._explained(e, dirty))):
                self.origin(Origin(self.rank, site, "operation", e.module, e.kind, at, found.outs))
            if differ:
                self.differed = True
                dirty.add(e.module)
                outer = calls.get(e.enclosing)
                while outer is not None and not outer.inner_differs:
                    outer.inner_differs = True
                    outer = calls.get(outer.event.enclosing)
            self._near(site, _state(e, found), e, found)

    @staticmethod
    def _explained(e: Event, dirty: set[str]) -> bool:
        """Whether a gradient may differ because of what its module kept from a forward pass that differs."""
        return e.phase == "backward" and (e.module in dirty or not e.module)

    def _entered(self, site: Site, e: Event, at: int, found: _Found, calls: dict[int, _Call]) -> None:
        """A value that differs though nothing before it does: it was made by code that is not
        traced by itself.
        """
        module = e.module
        outer = calls.get(e.enclosing)
        if all(v.role in ("value", "gradient") for v in found.ins) and e.phase in ("forward", "recompute"):
            module = outer.event.module if outer is not None else ""
        self.origin(Origin(self.rank, site, "input", module, e.kind, at, found.ins))

    def end(self) -> None:
        if self.first is None and self.generator is not None:
            self.origin(self.generator[1])
            self.generator[1].generator = ""
        if self.first is not None:
            self.result.firsts[self.rank] = self.first


def _state(e: Event, found: _Found) -> str:
    if found.outs:
        return "outputs differ"
    if found.ins:
        return "inputs differ"
    ways = {v.out for v in e.values if v.role != "rng"}
    return "all agree" if len(ways) != 1 else "outputs agree" if True in ways else "inputs agree"


class _Call:
    __slots__ = ("event", "inner_differs", "ins_differ", "takes")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.ins_differ = self.inner_differs = self.takes = False


def first_of_events(number: int, a: Sequence[Event], b: Sequence[Event], rank: int = 0) -> Origin | None:
    """The first divergence of one iteration of one rank; None where every value agrees.

    Raises Incomparable where nothing differs and something could not be compared.
    """
    result = TraceComparison("a", "b")
    walk = _Rank(result, rank)
    walk.iteration(number, a, b)
    walk.end()
    if walk.first is None and result.problems:
        raise Incomparable(result.problems[0])
    return walk.first


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _ulps(a: np.ndarray, b: np.ndarray, kind: str) -> int | None:
    """The largest distance in representable numbers; None where one of them is no finite number."""
    if kind not in ("f16", "bf16", "f32", "f64", "c64", "c128") or not a.size:
        return None
    width = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 4, "c128": 8}[kind]
    keys = []
    for x in (a, b):
        words = np.ascontiguousarray(x).reshape(-1).view(_UNSIGNED[width]).astype(np.uint64)
        sign = np.uint64(1 << (8 * width - 1))
        magnitude = words & np.uint64((1 << (8 * width - 1)) - 1)
        exponent = {2: 0x7F80 if kind == "bf16" else 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[width]
        if (magnitude >= np.uint64(exponent)).any():
            return None
        keys.append((magnitude, (words & sign) != 0))
    (ma, na), (mb, nb) = keys
    larger, smaller = np.maximum(ma, mb), np.minimum(ma, mb)
    # At most 2^64 - 2^53: no overflow.
    distance = np.where(na == nb, larger - smaller, larger + smaller)
    return int(distance.max())


def _measure(differs: ValueDifference, a: _Side, b: _Side, iteration: int) -> None:
    """Says by how much a value differs, where both runs kept it."""
    if not all(differs._kept):
        return
    (x, kind), (y, other) = (
        s.subject.kept(s.rank, iteration, name) for s, name in ((a, differs._kept[0]), (b, differs._kept[1]))
    )
    if kind != other or x.shape != y.shape:
        return
    size = {"c64": 4, "c128": 8}.get(kind, x.dtype.itemsize)
    words = [np.ascontiguousarray(v).reshape(-1).view(_UNSIGNED[size]) for v in (x, y)]
    unequal = words[0] != words[1]
    if kind in ("c64", "c128"):
        unequal = unequal.reshape(-1, 2).any(axis=1)
    differs.elements, differs.different = x.size, int(unequal.sum())
    if not differs.different:
        return
    at = int(np.flatnonzero(unequal)[0])
    differs.first_index = [int(i) for i in np.unravel_index(at, x.shape)] if x.shape else []
    wide = [_wide(v, kind).reshape(-1) for v in (x, y)]
    differs.first_a, differs.first_b = wide[0][at].item(), wide[1][at].item()
    with np.errstate(all="ignore"):
        apart = np.abs(wide[0] - wide[1]) if kind != "bool" else (wide[0] != wide[1])
    places = np.unravel_index(np.flatnonzero(unequal), x.shape) if x.shape else ()
    differs.box = [(int(along.min()), int(along.max()) + 1) for along in places]
    if kind[0] in "fbc" and kind != "bool":
        finite = np.isfinite(apart)
        differs.infinite = int((unequal & ~finite).sum())
        if finite.any():
            largest = int(np.where(finite, apart, -1).argmax())
            differs.max_abs_diff = float(apart[largest])
            if apart[largest] > 0:
                differs.max_index = [int(i) for i in np.unravel_index(largest, x.shape)] if x.shape else []
                differs.max_a, differs.max_b = wide[0][largest].item(), wide[1][largest].item()
    differs.max_ulp = _ulps(x, y, kind)


def _wide(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind[0] == "f":
        return x.astype(np.float64)
    return x


class _Side(NamedTuple):
    """One of the two that are compared. label: what messages call it."""

    subject: TraceSubject
    rank: int
    label: str


def _spans(numbers: Sequence[int]) -> str:
    """Iterations in words: '0 to 4, 7'."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    said = [str(low) if low == high else f"{low} to {high}" for low, high in spans[:10]]
    return ", ".join(said) + (", …" if len(spans) > 10 else "")


def _iterations(
    result: TraceComparison, walk: _Rank, a: _Side, b: _Side, at: str, common: bool
) -> Iterator[int]:
    """The iterations that both have. Says which others there are."""
    ours, theirs = (set(s.subject.iterations(s.rank)) for s in (a, b))
    both = sorted(ours & theirs)
    if common and both:
        outside = {
            side.label: sorted(n for n in had - other if not both[0] <= n <= both[-1])
            for side, had, other in ((a, ours, theirs), (b, theirs, ours))
        }
        for label, left in outside.items():
            if left:
                result.notes.append(
                    f"{at}iteration{'s' if len(left) > 1 else ''} {_spans(left)} only in {label}: left out, "
                    f"compared are {both[0]} to {both[-1]}"
                )
        left_out = {n for left in outside.values() for n in left}
        ours, theirs = ours - left_out, theirs - left_out
    for n in sorted(ours | theirs):
        if n in ours and n in theirs:
            yield n
        else:
            result.unmatched += 1
            walk.problem(f"{at}iteration {n}: only in {a.label if n in ours else b.label}")


def _walked(
    result: TraceComparison, walk: _Rank, a: _Side, b: _Side, at: str, common: bool, alike: bool
) -> tuple[bool, int]:
    """Compares two ranks. Gives whether there are fields beside their traces, and how many values
    were no replicas.
    """
    beside, parts = False, 0
    for number in _iterations(result, walk, a, b, at, common):
        sides = []
        for side in (a, b):
            events, told, others = side.subject.events(side.rank, number)
            beside = beside or bool(others)
            for text in told:
                said = f"{at}{side.label}: {text}" if not alike else f"{side.label}: {text}"
                if not alike or said not in result.problems:  # those of the reference are met again
                    walk.problem(said)
            if alike:
                events, left = replicated(events)
                parts += left
            sides.append(events)
        walk.iteration(number, *sides)
    walk.end()
    return beside, parts


def _others(result: TraceComparison, a: TraceSubject, b: TraceSubject, common: bool) -> None:
    """Fields beside the trace are compared as those of any history."""
    steps = None
    if common:
        ours, theirs = ({n for r in s.ranks for n in s.iterations(r)} for s in (a, b))
        shared = sorted(ours & theirs)
        steps = f"{shared[0]}:{shared[-1]}" if shared else None
    try:
        # Opened here: paths of traces are refused there, where their events would be compared as
        # bytes.
        both = open_subject(a.label), open_subject(b.label)
        rest = compare(*both, leave_out=[EVENTS, DIGESTS, f"{KEPT}*"], partial=True, steps=steps)
    except TwinrunError as e:
        result.problems.append(f"fields beside the trace: {e}")
        return
    result.problems.extend(f"fields beside the trace: {p}" for p in rest.problems)
    if rest.verdict == "different":
        result.different_values += 1
        first = rest.first_divergence
        result.notes.append(f"fields beside the trace differ: first {first}")


_Walks = tuple[TraceComparison, list[_Rank], dict[int, tuple[_Side, _Side]]]


def _compared_runs(ours: TraceSubject, theirs: TraceSubject, common: bool) -> _Walks:
    """Each rank of a run against the same rank of the other one."""
    result = TraceComparison(ours.label, theirs.label)
    result.notes = [*ours.notes, *theirs.notes]
    result.provenance_a, result.provenance_b = ours.provenance, theirs.provenance
    beside = False
    walks: list[_Rank] = []
    sides: dict[int, tuple[_Side, _Side]] = {}
    ranks = sorted({*ours.ranks, *theirs.ranks})
    for rank in ranks:
        walks.append(_Rank(result, rank))
        sides[rank] = _Side(ours, rank, "a"), _Side(theirs, rank, "b")
        at = f"rank {rank}, " if len(ranks) > 1 else ""
        beside = _walked(result, walks[-1], *sides[rank], at, common, False)[0] or beside
    if beside:
        _others(result, ours, theirs, common)
    return result, walks, sides


def _compared_replicas(
    subject: TraceSubject, common: bool, replicas: bool | Iterable[int] | Callable[[int], bool]
) -> _Walks:
    """Each data-parallel rank of a run against one of the majority."""
    wanted = replicas if callable(replicas) else None
    if not isinstance(replicas, bool) and not callable(replicas):
        wanted = set(replicas).__contains__
    ranks = chosen_ranks(subject, wanted)
    usual, majority = usual_rank(subject, ranks)
    others = [r for r in ranks if r != usual]
    said = ", ".join(map(str, others))
    result = TraceComparison(
        f"{subject.label}, rank {usual}", f"{subject.label}, rank{'s' if len(others) > 1 else ''} {said}"
    )
    result.replicas = (usual, *others)
    result.notes = [*subject.notes]
    walks: list[_Rank] = []
    sides: dict[int, tuple[_Side, _Side]] = {}
    beside, parts = False, 0
    for rank in others:
        walks.append(_Rank(result, rank, True))
        sides[rank] = _Side(subject, usual, f"rank {usual}"), _Side(subject, rank, f"rank {rank}")
        also, left = _walked(result, walks[-1], *sides[rank], f"rank {rank}, ", common, True)
        beside, parts = beside or also, parts + left
    if result.firsts and not majority:
        result.notes.append(f"no majority: it is not known whether rank {usual} or another one is right")
    if parts:
        result.notes.append("parts of distributed tensors were left out: ranks hold different ones")
    if beside:
        result.notes.append("fields beside the trace were not compared: each rank has its own")
    return result, walks, sides


def compare_traces(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    common: bool = False,
    replicas: bool | Iterable[int] | Callable[[int], bool] = False,
) -> TraceComparison:
    """Compares two traces: which operation is the first whose inputs agree and whose outputs differ.

    >>> for path, factor in (("runs/a", 2.0), ("runs/b", 2.5)):
    ...     with twinrun.Run(path) as run:
    ...         x = np.ones(4)
    ...         _ = run.capture(0, {"x": x}, phase="begin")
    ...         _ = run.capture(0, {"x": factor * x}, phase="after forces")
    >>> result = twinrun.compare_traces("runs/a", "runs/b")
    >>> result.verdict, result.first_divergence.site.phase
    ('different', 'after forces')

    Parameters
    ----------
    a, b : path
        Histories that `twinrun.torch.trace` or `Run.capture` with `phase` made, or folders of
        ranks. `replicas` takes one.
    common : bool, default False
        True: iterations before or after those that both traces have are left out and noted, as
        where a resumed training is compared with a continuous one. One that is missing between them
        is a problem as ever.
    replicas : bool or iterable of int, default False
        True: the data-parallel ranks of trace `a` are compared among themselves; numbers choose
        some of them. The reference is a rank of the majority. Compared is what all of them hold
        alike: parameters, and gradients, states and settings at the optimizer's step. Parts of
        distributed tensors are left out.

    Returns
    -------
    TraceComparison
        The verdict, and the places at which differences enter.

    Raises
    ------
    TwinrunError
        A folder is no history, or is damaged; or two traces are given with `replicas`, or one without.
    Incomparable
        A history holds no trace; with `replicas`, only one rank.

    Notes
    -----
    Values are compared by their digests, bit by bit. Events of both runs are matched by phase,
    module and operation in their order; what only one run has is a problem, and never equal.
    """
    start = time.perf_counter()
    if replicas is not False and replicas is not None:
        if b is not None:
            raise TwinrunError("replicas are the ranks of one trace", fix="give one trace")
        result, walks, sides = _compared_replicas(TraceSubject(a), common, replicas)
    elif b is None:
        raise TwinrunError("there is nothing to compare the trace with", fix="give two traces, or replicas")
    else:
        result, walks, sides = _compared_runs(TraceSubject(a), TraceSubject(b), common)
    if not result.events:
        result.problems.append("no event of the two traces could be compared")
    firsts = [(o.site.iteration, o.number, rank, o) for rank, o in result.firsts.items()]
    if firsts:
        result.first_divergence = min(firsts, key=lambda f: f[:3])[3]
        first = result.first_divergence
        result.around = next(w.near() for w in walks if w.first is first)
        for origin in [*result.firsts.values()]:
            for differs in origin.values:
                _measure(differs, *sides[origin.rank], origin.site.iteration)
    result.verdict = (
        "different"
        if result.different_values
        else "incomparable"
        if result.problems or result.unmatched
        else "same"
    )
    result.seconds = time.perf_counter() - start
    return result
