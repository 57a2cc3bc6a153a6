"""Tolerances suggested by repeated runs of the same code: their spread times a margin, as rules to edit."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .._core import __version__
from ..errors import TwinrunError, in_short, one_line
from ..formats.element_types import FLOATING
from ..formats.texts import MASK, SUFFIX, never_tolerated
from ..words import counted, percent
from .attributes import AttributeDifference
from .field import FieldComparison
from .work import compare

__all__ = ["FieldSpread", "Proposal", "propose"]

_LONGEST = 200  # characters of a comment with the values of an attribute
# Magnitudes that stand for a missing value in many files; those of NetCDF and CMIP are huge.
_HUGE = 1e15
_OFTEN_MISSING = {999.0, 9999.0, 99999.0, 32767.0, 32768.0, 2147483647.0, 2147483648.0}


@dataclass
class FieldSpread:
    """The spread of a field over repeated runs.

    dtype: its type. kind: what its elements are, for people; as `dtype` for numbers. comparisons: of one step
    of one rank each. exact: texts and the like, which have no tolerance; exact_differs: some of them differ.
    largest: max |a-b| by step, over all comparisons; infinite where no number is at least as large, for
    the reasons `endless`. relative: the largest |a-b| / |a| of elements that differ. differing: the largest
    share of elements that differ in any comparison. periods: the lengths of its circles by component, each
    that a comparison had. values: both at the largest |a-b| of all, where they are known.
    """

    name: str
    dtype: str
    kind: str = ""
    comparisons: int = 0
    exact: bool = False
    exact_differs: bool = False
    largest: dict[int | None, float] = field(default_factory=dict)
    endless: list[str] = field(default_factory=list)
    relative: float = 0.0
    differing: float = 0.0
    periods: set[tuple[float, ...]] = field(default_factory=set)
    values: tuple[float, float] | None = None

    def add(self, f: FieldComparison) -> None:
        """Adds the result of a comparison for equality."""
        self.comparisons += 1
        self.kind = self.kind or _kind(f)
        if f.kind is not None or (f.dtype not in FLOATING and never_tolerated(f.field)):
            self.exact = True
            self.exact_differs |= not f.same
            return
        self.periods.add(f.period)
        value = 0.0 if f.same else math.inf if f.max_abs_diff is None else float(f.max_abs_diff)
        if f.infinite or math.isinf(value):
            value = math.inf
            if (why := _why_endless(f)) not in self.endless:
                self.endless.append(why)
        if value > self.overall:
            a, b = f.max_abs_a, f.max_abs_b
            self.values = None if a is None or b is None else (float(a), float(b))
        self.largest[f.step] = max(self.largest.get(f.step, 0.0), value)
        self.relative = max(self.relative, f.max_rel_diff or 0.0)
        if f.elements:
            self.differing = max(self.differing, f.different / f.elements)

    @property
    def overall(self) -> float:
        """The largest |a-b| of all steps."""
        return max(self.largest.values(), default=0.0)

    @property
    def may_be_missing(self) -> bool:
        """Whether one value at the largest |a-b| often stands for a missing one, and is most of |a-b|."""
        if self.values is None:
            return False
        larger = max(map(abs, self.values))
        return self.overall >= larger / 2 and (larger >= _HUGE or larger in _OFTEN_MISSING)


def _kind(f: FieldComparison) -> str:
    """What the elements of a field are: texts and the like lie in numbers that mean nothing to people."""
    if f.kind is not None:
        return f.kind
    if not never_tolerated(f.field):
        return f.dtype
    return "text" if f.field.endswith(SUFFIX) else "mask" if f.field.endswith(MASK) else f"{f.dtype} label"


def _why_endless(f: FieldComparison) -> str:
    """Why no tolerance is as large as the largest |a-b| of a field."""
    if not f.infinite:
        return "they differ, and by how much is not known"
    a, b = f.max_abs_a, f.max_abs_b
    if a is None or b is None:
        return "|a-b| is not finite, which no tolerance allows"
    if math.isfinite(a) and math.isfinite(b):
        return "|a-b| exceeds the largest number of f64, and so every atol"
    return "a NaN or an infinity met another value, which no tolerance allows"


@dataclass
class Proposal:
    """fields: by name.

    runs: how many. margin: what the spread is multiplied by. notes: what no tolerance allows. problems: what
    was not compared, and why; the rules know nothing of it. attributes: the first difference of each
    attribute in which the runs differ, by its label; attributes have no tolerance.
    """

    runs: int
    margin: float
    fields: dict[str, FieldSpread]
    notes: list[str]
    by_step: bool = False
    problems: list[str] = field(default_factory=list)
    attributes: dict[str, AttributeDifference] = field(default_factory=dict)

    def toml(self) -> str:
        """The rules as a file that `read_tolerances` reads, with a comment above each."""
        chance = f"1 in {self.runs}" if self.runs > 1 else "unknown"
        lines = [
            f"# Proposed by twinrun {__version__} from {self.runs} runs: edit it.",
            f"# atol is the largest |a-b| to the first run, times {self.margin:g}, rounded up.",
            f"# The chance that one more run of this kind differs more than the largest of these is {chance}. More runs make it smaller.",
        ]
        lines += [f"# {one_line(note)}" for note in self.notes]
        lines += [f"# Not compared: {one_line(problem)}" for problem in self.problems]
        for spread in self.fields.values():
            lines += ["", *self._rules(spread)]
        return "\n".join([*lines, *self._rules_of_attributes()]) + "\n"

    def _rules_of_attributes(self) -> list[str]:
        """Rules that leave out what differs, as comments: whether it may differ is for people to say."""
        if not self.attributes:
            return []
        lines = [
            "",
            "# Attributes differ, and have no tolerance. A rule below leaves one out: take away the # of its",
            "# three lines.",
        ]
        for label, found in self.attributes.items():
            meaning = " (changes what the numbers mean)" if found.meaning else ""
            lines += ["", f"# {one_line(found.text(), _LONGEST)}{meaning}"]
            lines += ["#[[tolerance]]", f"#attribute = {_text(glob.escape(label))}", "#skip = true"]
        return lines

    def _rules(self, spread: FieldSpread) -> list[str]:
        steps = [s for s in spread.largest if s is not None]
        said = f"# {counted(spread.comparisons, 'comparison')} of {one_line(spread.kind or spread.dtype)}"
        if steps:
            said += (
                f", step {min(steps)}" if len(set(steps)) == 1 else f", steps {min(steps)} to {max(steps)}"
            )
        seen = {s: v for s, v in spread.largest.items() if v > 0}
        head = ["[[tolerance]]", f"field = {_text(glob.escape(spread.name))}"]
        period = self._period(spread)
        why = "; ".join(spread.endless)
        if spread.exact_differs:
            why = "they differ, and have no tolerance"
        elif not why and not math.isfinite(spread.overall * self.margin):
            why = (
                f"max |a-b| {spread.overall:.3g}, times {self.margin:g}, exceeds the largest number of f64, "
                "and so every atol"
            )
        if why:
            # Of two settings the second must go too: a rule leaves fields out, or has settings.
            advice = "to leave the field out, write skip = true in place of this"
            settings = [f"atol = 0.0  # {advice}", *period]
            if period and not period[-1].startswith("#"):
                settings[-1] += "  # and of this"
            return [f"{said}: {why}", *head, *settings]
        if not seen:
            return [f"{said}: always equal", *head, "atol = 0.0", *period]
        low, high = min(seen, key=lambda s: seen[s]), max(seen, key=lambda s: seen[s])
        at = lambda s: "" if s is None else f" (step {s})"  # noqa: E731
        smallest = "" if low == high else f"from {seen[low]:.3g}{at(low)} to "
        said += f": max |a-b| {smallest}{seen[high]:.3g}{at(high)}, in up to {percent(spread.differing)} of the elements"
        if equal := len(spread.largest) - len(seen):
            said += f"; {counted(equal, 'step')} equal"
        if math.isfinite(spread.relative) and spread.relative > 0:
            said += f"; relative up to {spread.relative:.3g}"
        more = period if spread.dtype in FLOATING else ["integers = true"]
        rules = [said]
        if spread.values is not None and spread.may_be_missing:
            a, b = spread.values
            rules.append(
                f"# The values there are {a!r} and {b!r}, so that this passes nearly any value of that size. "
                "Does one stand for a missing value?"
            )
        if self.by_step and len(steps) > 1:
            # Differences grow: a step gets the largest spread of all steps up to it.
            reached = 0.0
            for step in sorted(steps):
                reached = max(reached, spread.largest[step])
                rules += [*head, f'steps = "{step}"', f"atol = {_rounded_up(reached * self.margin)!r}", *more]
            rules.append("# Other steps:")
        return [*rules, *head, f"atol = {_rounded_up(spread.overall * self.margin)!r}", *more]

    def _period(self, spread: FieldSpread) -> list[str]:
        """The line of a rule that says on which circles the values lie; none for those on a line."""
        if not any(spread.periods):
            return []
        if len(spread.periods) > 1:
            return ["# period: not the same in all comparisons; give --period when you compare"]
        (lengths,) = spread.periods
        return [f"period = {lengths[0]!r}" if len(lengths) == 1 else f"period = {list(lengths)!r}"]


def _text(value: str) -> str:
    """As a TOML string."""
    escaped = "".join(
        {'"': '\\"', "\\": "\\\\"}.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value
    )
    return f'"{escaped}"'


def _rounded_up(value: float) -> float:
    """At least `value`, with one significant decimal digit."""
    if value == 0 or not math.isfinite(value):
        return value
    exponent = math.floor(math.log10(value))
    for digits in range(1, 12):
        candidate = float(f"{digits}e{exponent}")
        if value <= candidate < math.inf:  # digits of a number near the largest may round to infinity
            return candidate
    return value


def propose(
    runs: Sequence[object],
    *,
    margin: float = 2.0,
    by_step: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    **arguments: object,
) -> Proposal:
    """Proposes tolerances from repeated runs of the same code: compares the first run with each of the
    others.

    runs: two or more, as `compare` takes them. margin: factor on the spread, at least 1. by_step: one rule
    for each step. arguments: of `compare`, except tolerances. Raises what `compare` raises.
    """
    if len(runs) < 2:
        raise TwinrunError("a spread needs two runs at least", fix="name more of them")
    if not (math.isfinite(margin) and margin >= 1):
        raise TwinrunError(f"margin must be a number of at least 1, not {in_short(margin)}")
    spreads: dict[str, FieldSpread] = {}
    notes: dict[str, None] = {}
    problems: dict[str, None] = {}
    attributes: dict[str, AttributeDifference] = {}
    for other in runs[1:]:
        found = compare(
            runs[0],
            other,
            atol=0.0,
            rtol=0.0,
            tolerate_integers=True,
            partial=True,
            progress=progress,
            **_checked(arguments),
        )
        for f in found.fields:
            if f.particles is not None:
                if not f.same:
                    notes[
                        f"{f.field}: particles were lost or born between runs, which no tolerance allows"
                    ] = None
                continue
            spreads.setdefault(f.field, FieldSpread(f.field, f.dtype)).add(f)
        problems.update(dict.fromkeys(found.problems))
        for difference in found.attributes:
            attributes.setdefault(difference.label, difference)
    return Proposal(len(runs), margin, spreads, list(notes), by_step, list(problems), attributes)


def _checked(arguments: Mapping[str, object]) -> dict:
    wrong = sorted(set(arguments) & {"atol", "rtol", "ulp", "tolerances", "partial", "tolerate_integers"})
    if wrong:
        raise TwinrunError(
            f"{wrong[0]} is not for proposed tolerances: they are proposed from the runs alone",
            fix="leave it out",
        )
    return dict(arguments)
