"""What a comparison found, one entry a field: where it first differs, where it first differs by too
much, how that grows.

Two steps matter. The runs *part* where a field first differs at all, however little: that is near
the cause. They are *above* the tolerance where it first differs by more than is allowed: that is
the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import in_words_of_the_caller
from ..formats.element_types import FLOATING
from ..formats.texts import never_tolerated
from ..words import number
from .words import ranked, tolerance_text

if TYPE_CHECKING:
    from .field import FieldComparison
    from .result import Comparison

__all__ = [
    "Overview",
    "differs",
    "of_fields",
    "scale_of",
    "size_of",
    "sparkline",
    "tolerance_note",
    "where_they_part",
]

_WITHIN = "▁▂▃▄"
_DECADE = 10.0  # the four signs of a kind span at least this factor: what is nearly equal looks equal
_SMALLEST = 5e-324
_ABOVE = "▅▆▇█"
_NOTHING = "·"
_NAMES = 3  # fields that a line names


def differs(f: FieldComparison) -> bool:
    """Whether it is known that the field differs at all, by however little."""
    if f.different or f.max_abs_diff_at_least > 0:
        return True
    return bool(f.max_abs_diff) and not f.max_abs_diff_is_bound


def _may_differ(f: FieldComparison) -> bool:
    """Whether metadata leaves room for a difference within the tolerance that nobody looked for."""
    return f.max_abs_diff_is_bound and f.max_abs_diff != 0


def size_of(f: FieldComparison) -> float:
    """The largest |a - b|, or what bounds it; infinite where it is not known."""
    if f.max_abs_diff is not None:
        return f.max_abs_diff
    return math.inf if f.different else f.max_abs_diff_at_least


@dataclass
class Overview:
    """A field over all steps and ranks.

    parts: where it first differs at all, as far as is known; None: nowhere. open: the first place
    before that of which metadata leaves it open; None: there is none.
    above: where it first differs by more than the tolerance. largest: where |a - b| is largest. exact:
    whether `different` is a count, and not what is known at least.
    steps_above: steps where it is above the tolerance. growth: for each step the largest |a - b|
    that is known, and whether it is above the tolerance.
    """

    name: str
    parts: FieldComparison | None = None
    open: FieldComparison | None = None
    above: FieldComparison | None = None
    largest: FieldComparison | None = None
    exact: bool = True
    elements: int = 0
    different: int = 0
    max_rel: float = 0.0  # of what differs
    steps: set[int | None] = field(default_factory=set)
    steps_above: set[int | None] = field(default_factory=set)
    growth: dict[int | None, tuple[float, bool]] = field(default_factory=dict)

    def add(self, f: FieldComparison) -> None:
        """Adds the field at a step and rank; steps come in ascending order."""
        self.elements += f.elements
        self.different += f.different
        self.exact &= f.different_is_exact
        self.steps.add(f.step)
        if f.different:
            self.max_rel = max(self.max_rel, f.max_rel_diff or 0.0)
            self.steps_above.add(f.step)
            if self.above is None:  # a result that differs is false
                self.above = f
        if self.parts is None:
            if differs(f):
                self.parts = f
            elif self.open is None and _may_differ(f):
                self.open = f
        if self.largest is None or size_of(f) > size_of(self.largest):
            self.largest = f
        known, above = self.growth.get(f.step, (0.0, False))
        reached = f.max_abs_diff_at_least if f.max_abs_diff_is_bound else size_of(f)
        self.growth[f.step] = (max(known, reached), above or bool(f.different))

    @property
    def surely(self) -> bool:
        """Whether no earlier step than `parts` may differ."""
        return self.open is None

    @property
    def same(self) -> bool:
        """Everywhere within the tolerance."""
        return not self.different

    def at(self, with_rank: bool) -> str:
        """Where |a - b| is largest: '990 [9, 3]'; '' where that is not known."""
        f = self.largest
        if f is None or f.max_abs_index is None or not f.max_abs_diff:
            return ""
        words = [] if f.step is None else [str(f.step)]
        if with_rank and f.key is None and f.ranks is None:
            words.append(f"rank {f.rank}")
        return " ".join([*words, _index(f)]).strip()

    def place(self, with_rank: bool) -> str:
        """The same without the step, where there is one step only."""
        f = self.largest
        if f is None or f.max_abs_index is None or not f.max_abs_diff:
            return ""
        on = f"rank {f.rank} " if with_rank and f.key is None and f.ranks is None else ""
        return (on + _index(f)).strip()


def _index(f: FieldComparison) -> str:
    at = [] if f.max_abs_id is None else [f"id {f.max_abs_id}"]
    at += map(str, f.global_index(f.max_abs_index) or ())
    return "[" + ", ".join(at) + "]" if at else ""


def of_fields(c: Comparison) -> list[Overview]:
    """The fields of a comparison: those that part first come first, and those that never do last."""
    found: dict[str, Overview] = {}
    for f in c.fields:
        one = found.get(f.field)
        if one is None:
            one = found[f.field] = Overview(f.field)
        one.add(f)
    order: dict[int | None, int] = {}
    for f in c.fields:
        order.setdefault(f.step, len(order))
    return sorted(found.values(), key=lambda o: len(order) if o.parts is None else order[o.parts.step])


def scale_of(overviews: Iterable[Overview]) -> tuple[float, float, float, float]:
    """The ends of the scale of all sparklines: the smallest and largest difference within the
    tolerance, and above it; a decade apart, at least.
    """
    ends = [math.inf, 0.0, math.inf, 0.0]
    for one in overviews:
        for value, above in one.growth.values():
            if value > 0 and math.isfinite(value):
                ends[2 * above] = min(ends[2 * above], value)
                ends[2 * above + 1] = max(ends[2 * above + 1], value)
    if ends[0] < math.inf:
        ends[1] = max(ends[1], ends[0] * _DECADE)
    if ends[3] > 0:
        ends[2] = min(ends[2], max(ends[3] / _DECADE, _SMALLEST))
    return ends[0], ends[1], ends[2], ends[3]


def _sign(value: float, above: bool, scale: Sequence[float]) -> str:
    signs = _ABOVE if above else _WITHIN
    if value == 0:
        return signs[0] if above else _NOTHING
    low, high = scale[2 * above], scale[2 * above + 1]
    if not math.isfinite(value):
        return signs[-1]
    if not low < high:
        return signs[-1] if above else signs[0]
    share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return signs[min(len(signs) - 1, int(share * len(signs)))]


def sparkline(one: Overview, steps: Sequence[int | None], scale: Sequence[float], width: int) -> str:
    """The growth of a field over steps as signs, on a logarithmic scale: the upper four are above
    the tolerance.

    A sign stands for the largest of its steps where there are more than `width`.
    """
    columns = min(width, len(steps))
    signs = []
    for at in range(columns):
        part = steps[at * len(steps) // columns : (at + 1) * len(steps) // columns]
        known = [one.growth[s] for s in part if s in one.growth]
        if not known:
            signs.append(" ")
            continue
        above = any(found for _, found in known)
        signs.append(_sign(max(v for v, found in known if found == above), above, scale))
    return "".join(signs)


def _rounded_up(value: float) -> str:
    """A number of at most three digits that is not smaller."""
    text = f"{value:.3g}"
    if float(text) > value:
        return text
    exponent = math.floor(math.log10(value))
    return f"{value + 10.0 ** (exponent - 2):.3g}"


def _passing(c: Comparison) -> str:
    """What to give where values must be equal and are not: '--atol 0.00124 would pass'."""
    floats = [f for f in c.fields if f.different]
    if c.problems:  # nothing passes then
        return ""
    if any(
        f.kind is not None
        or f.particles is not None
        or (f.dtype not in FLOATING and never_tolerated(f.field))
        for f in floats
    ):
        return ""
    # On a circle |a-b| is of a - b as float64 rounds it: an atol that is as large may not pass.
    if any(any(f.period) for f in floats):
        return ""
    if any(f.infinite for f in floats):
        return "; no atol would pass: some |a-b| is no finite number (a NaN, an infinity, or an overflow)"
    sizes = [f.max_abs_diff for f in floats]
    largest = max((s for s in sizes if s is not None), default=0)
    if None in sizes or not 0 < largest < 1e300:
        return ""
    exact = any(f.dtype[0] in "iub" and not f.dtype.startswith("bf") for f in floats)
    asked = f"--atol {_rounded_up(largest)}{' --tolerate-integers' if exact else ''}"
    return f"; {in_words_of_the_caller(asked)} would pass"


def _asked(c: Comparison) -> bool:
    """Whether the caller named a tolerance."""
    if c._again is None:
        return True
    s = c._again.settings
    return bool(s.atol is not None or s.rtol is not None or s.ulps is not None or s.tolerances.rules)


def where_they_part(c: Comparison, overviews: Sequence[Overview]) -> str:
    """The line on the first difference of any size; '' where the verdict says it already."""
    first = next((o for o in overviews if o.parts is not None), None)
    if first is None or first.parts is None:
        return ""
    f = first.parts
    if f.different:  # above the tolerance at once
        return ""
    low, high = f.max_abs_diff_at_least, f.max_abs_diff
    if f.max_abs_diff_is_bound:
        size = f"{number(low)} to {number(high)}" if high is not None else f"at least {number(low)}"
    else:
        size = number(high)
    with_rank = ranked(c)
    others = [o for o in overviews if o is not first and o.parts is not None and o.parts.step == f.step]
    names = [o.name for o in others[: _NAMES - 1]]
    more = f" and {len(others) - len(names)} more" if len(others) > len(names) else ""
    also = f"; also {', '.join(names)}{more}" if names else ""
    place = [] if f.step is None else [f"step {f.step}"]
    if with_rank and f.key is None and f.ranks is None:
        place.append(f"rank {f.rank}")
    at = f" at {', '.join(place)}" if place else ""
    earlier = ""
    order = {step: at for at, step in enumerate(dict.fromkeys(g.step for g in c.fields))}
    if any(o.open is not None and order[o.open.step] < order[f.step] for o in overviews):
        tells = in_words_of_the_caller("--method direct")
        earlier = f"; metadata leaves open whether they part before: {tells} tells"
    largest = f"largest |a-b|{' there' if place else ''} {size}, at {first.name}{_index(f)}"
    return f"the runs {'first ' if place else ''}part{at}: {largest}, within the tolerance {tolerance_text(f)}{also}{earlier}"


def _of_integers(c: Comparison) -> str:
    """Says that a tolerance does not hold for integers, where some differ and the caller may not know."""
    s = None if c._again is None else c._again.settings
    if s is None or s.integers or not (s.atol or s.rtol):
        return ""
    exact = [f for f in c.fields if f.different and f.dtype[0] in "iub" and not f.dtype.startswith("bf")
             and f.kind is None and f.particles is None and not never_tolerated(f.field) and not f.atol
             and not f.rtol]  # fmt: skip
    tolerant = in_words_of_the_caller("--tolerate-integers")
    return f"integers and booleans must be equal: {tolerant} applies the tolerance to them" if exact else ""


def tolerance_note(c: Comparison) -> str:
    """What to know of a tolerance that nobody gave; '' where there is nothing to say."""
    if not c.fields:
        return ""
    if _asked(c):
        return _of_integers(c)
    used = {tolerance_text(f) for f in c.fields if f.atol or f.rtol}
    if used:
        said = used.pop() if len(used) == 1 else "one a field"
        replaced = in_words_of_the_caller("--atol and --rtol replace it")
        return f"no tolerance was given: that of the runs' metadata holds, {said}; {replaced}"
    if any(f.different and f.kind is None and f.particles is None for f in c.fields):
        return f"no tolerance was given: values must be equal{_passing(c)}"
    return ""
