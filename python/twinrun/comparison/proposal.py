"""Tolerances suggested by repeated runs of the same code: their spread times a margin, as rules to edit."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .._core import __version__
from ..errors import TwinrunError, one_line
from ..formats.element_types import FLOATING
from ..words import counted, percent
from .field import FieldComparison
from .work import compare

__all__ = ["FieldSpread", "Proposal", "propose"]


@dataclass
class FieldSpread:
    """The spread of a field over repeated runs.

    dtype: its type. comparisons: of one step of one rank each. exact: texts and the like, which have no
    tolerance; exact_differs: some of them differ. largest: max |a-b| by step, over all
    comparisons; infinite where a NaN stood against a number. relative: the largest |a-b| / |a| of elements
    that differ. differing: the largest share of elements that differ in any comparison.
    """

    name: str
    dtype: str
    comparisons: int = 0
    exact: bool = False
    exact_differs: bool = False
    largest: dict[int | None, float] = field(default_factory=dict)
    relative: float = 0.0
    differing: float = 0.0

    def add(self, f: FieldComparison) -> None:
        """Adds the result of a comparison for equality."""
        self.comparisons += 1
        if f.kind is not None:
            self.exact = True
            self.exact_differs |= not f.same
            return
        value = math.inf if f.infinite or f.max_abs_diff is None else float(f.max_abs_diff)
        self.largest[f.step] = max(self.largest.get(f.step, 0.0), value)
        self.relative = max(self.relative, f.max_rel_diff)
        if f.elements:
            self.differing = max(self.differing, f.different / f.elements)

    @property
    def overall(self) -> float:
        """The largest |a-b| of all steps."""
        return max(self.largest.values(), default=0.0)


@dataclass
class Proposal:
    """fields: by name.

    runs: how many. margin: what the spread is multiplied by. notes: what no tolerance allows. problems: what
    was not compared, and why; the rules know nothing of it.
    """

    runs: int
    margin: float
    fields: dict[str, FieldSpread]
    notes: list[str]
    by_step: bool = False
    problems: list[str] = field(default_factory=list)

    def toml(self) -> str:
        """The rules as a file that `read_tolerances` reads, with a comment above each."""
        chance = f"1 in {self.runs}" if self.runs > 1 else "unknown"
        lines = [
            f"# Proposed by twinrun {__version__} from {self.runs} runs: edit it.",
            f"# atol is the largest |a-b| to the first run, times {self.margin:g}, rounded up. Runs that are as alike as these exceed the",
            f"# largest of them with a chance of {chance} each; more runs make that rarer.",
        ]
        lines += [f"# {one_line(note)}" for note in self.notes]
        lines += [f"# Not compared: {one_line(problem)}" for problem in self.problems]
        for spread in self.fields.values():
            lines += ["", *self._rules(spread)]
        return "\n".join(lines) + "\n"

    def _rules(self, spread: FieldSpread) -> list[str]:
        steps = [s for s in spread.largest if s is not None]
        said = f"# {counted(spread.comparisons, 'comparison')} of {spread.dtype}"
        if steps:
            said += (
                f", step {min(steps)}" if len(set(steps)) == 1 else f", steps {min(steps)} to {max(steps)}"
            )
        seen = {s: v for s, v in spread.largest.items() if v > 0}
        head = ["[[tolerance]]", f"field = {_text(glob.escape(spread.name))}"]
        if spread.exact_differs:
            return [f"{said}: they differ, and have no tolerance", *head, "# skip = true", "atol = 0.0"]
        if not seen:
            return [f"{said}: always equal", *head, "atol = 0.0"]
        if math.isinf(spread.overall):
            return [
                f"{said}: a NaN or an infinity met a number, which no tolerance allows",
                *head,
                "# skip = true",
                "atol = 0.0",
            ]
        low, high = min(seen, key=lambda s: seen[s]), max(seen, key=lambda s: seen[s])
        at = lambda s: "" if s is None else f" (step {s})"  # noqa: E731
        smallest = "" if low == high else f"from {seen[low]:.3g}{at(low)} to "
        said += f": max |a-b| {smallest}{seen[high]:.3g}{at(high)}, in up to {percent(spread.differing)} of the elements"
        if equal := len(spread.largest) - len(seen):
            said += f"; {counted(equal, 'step')} equal"
        if math.isfinite(spread.relative) and spread.relative > 0:
            said += f"; relative up to {spread.relative:.3g}"
        more = [] if spread.dtype in FLOATING else ["integers = true"]
        rules = [said]
        if self.by_step and len(steps) > 1:
            # Differences grow: a step gets the largest spread of all steps up to it.
            reached = 0.0
            for step in sorted(steps):
                reached = max(reached, spread.largest[step])
                rules += [*head, f'steps = "{step}"', f"atol = {_rounded_up(reached * self.margin)!r}", *more]
            rules.append("# Other steps:")
        return [*rules, *head, f"atol = {_rounded_up(spread.overall * self.margin)!r}", *more]


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
        if candidate >= value:
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
        raise TwinrunError(f"margin must be a number of at least 1, not {margin!r}")
    spreads: dict[str, FieldSpread] = {}
    notes: dict[str, None] = {}
    problems: dict[str, None] = {}
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
    return Proposal(len(runs), margin, spreads, list(notes), by_step, list(problems))


def _checked(arguments: Mapping[str, object]) -> dict:
    wrong = sorted(set(arguments) & {"atol", "rtol", "ulp", "tolerances", "partial", "tolerate_integers"})
    if wrong:
        raise TwinrunError(
            f"{wrong[0]} is not for proposed tolerances: they are proposed from the runs alone",
            fix="leave it out",
        )
    return dict(arguments)
