"""The result of an acceptance: a verdict, where new runs exceed the reference runs, and what the
verdict rests on.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .._core import __version__
from ..exports import Exports
from ..words import aligned, counted, number

__all__ = ["Acceptance", "Alarms", "Excess", "FieldAcceptance"]

_ROWS = 12  # fields and excesses that the text lists


@dataclass(frozen=True)
class Excess:
    """One place where new runs exceed the reference runs.

    Attributes
    ----------
    kind : {'equal', 'growth', 'distribution', 'no number'}
        What is exceeded: values that all reference runs hold equal, the bound of growth, or the
        distribution of a statistic; or a value is not a number.
    step : int or None
        The step. None for files without a step, and for means over all steps whose differences have settled.
    field : str
        The field.
    what : str
        The statistic: 'distance', 'mean', 'deviation', 'roughness', or 'values'.
    run : str
        The new run that is farthest away; '' where all new runs are one group.
    size : float
        Of equal: the largest difference of a value; where elements are in unknown orders, of the mean
        or the deviation. Of growth: the distance in units of the farthest reference run. Of
        distribution: the difference of the means in standard deviations of the reference runs.
        Otherwise the number of values.
    low, high : float
        The interval of `size`, for normal statistics; NaN where there is none.
    p : float
        The p value, corrected for all fields and steps; NaN where there is none.
    over_steps : bool
        It is of the mean over all settled steps.
    count : int
        Of equal: how many values differ; 0 where elements are in unknown orders, and otherwise.
    relative : float
        Of equal: `size` as a share of the field's size, the root mean square of its values; NaN otherwise.
    """

    kind: str
    step: int | None
    field: str
    what: str
    run: str
    size: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    over_steps: bool = False
    count: int = 0
    relative: float = math.nan

    def __str__(self) -> str:
        at = (
            "over all settled steps, "
            if self.over_steps
            else ""
            if self.step is None
            else f"step {self.step}, "
        )
        who = f" ({self.run})" if self.run else ""
        if self.kind == "no number":
            return f"{at}{self.field}: {int(self.size)} values are NaN or infinite{who}"
        if self.kind == "equal":
            what = counted(self.count, "value") if self.count else "the mean or the deviation"
            differ = "differ" if self.count > 1 else "differs"
            of = "" if math.isnan(self.relative) else f", or {number(self.relative)} of the field's size"
            return (
                f"{at}{self.field}: {what} {differ} by up to {number(self.size)}{of}, "
                f"where all reference runs are equal{who}"
            )
        if self.kind == "growth":
            if math.isinf(self.size):  # the squares of the reference runs' differences underflow
                return f"{at}{self.field}: differs, beside which no reference run does{who}"
            return f"{at}{self.field}: {number(self.size)} times the difference of the farthest reference run{who}"
        said = f"{at}{self.field}: its {self.what} is {number(self.size)} standard deviations off"
        if math.isfinite(self.low):
            said += f" [{number(self.low)}, {number(self.high)}]"
        return f"{said}, p = {number(self.p)}"


@dataclass(frozen=True)
class FieldAcceptance:
    """What is known of one field.

    Attributes
    ----------
    field : str
        Its name.
    growing, settled : list of int or None
        The steps at which differences of reference runs still grow, and at which they have settled.
    ratio : float
        The largest distance of a new run in units of the farthest reference run, while differences
        grow; NaN without such steps. Infinite where all reference runs are equal and a new run is
        not; 0 where rounding explains the difference.
    ratio_step : int or None
        Its step.
    rate, new_rate : float
        The factor by which differences grow in a step: among the reference runs, and of the new
        runs; NaN with fewer than three steps.
    deviation : float
        The largest standardised difference of a statistic, where differences have settled; NaN
        without such steps.
    deviation_step : int or None
        Its step; None also for the mean over steps.
    deviation_of : str
        Its statistic.
    p : float
        Its p value, corrected for all fields and steps.
    distances : list of (step, reference, new)
        The median distance of a reference run to the others, and the largest of a new run.
    exceeds : bool
        Whether an excess lies in this field.
    """

    field: str
    growing: list[int | None]
    settled: list[int | None]
    ratio: float = math.nan
    ratio_step: int | None = None
    rate: float = math.nan
    new_rate: float = math.nan
    deviation: float = math.nan
    deviation_step: int | None = None
    deviation_of: str = ""
    p: float = math.nan
    distances: list[tuple[int | None, float, float]] = dataclasses.field(default_factory=list)
    exceeds: bool = False


@dataclass(frozen=True)
class Alarms:
    """How many reference runs would be rejected, if each were a new run and the others the reference.

    Attributes
    ----------
    rejected, runs : int
        How many, of how many.
    low, high : float
        The interval of the rate, at the confidence of the result (Clopper and Pearson).
    """

    rejected: int
    runs: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rejected} of {self.runs} [{100 * self.low:.3g}%, {100 * self.high:.3g}%]"


@dataclass(frozen=True)
class Acceptance(Exports):
    """Whether new runs belong to the distribution of reference runs.

    >>> rng = np.random.default_rng(1)
    >>> runs = [{"x": rng.normal(0, 1, 500)} for _ in range(23)]
    >>> result = twinrun.accept(runs[:20], runs[20:])
    >>> result.verdict, result.excesses
    ('accepted', [])

    Attributes
    ----------
    verdict : {'accepted', 'rejected', 'undecided'}
        Undecided where the runs are too few for any test.
    sentence : str
        The verdict and why, in one sentence.
    references, new : list of str
        The runs that were tested: equal runs count once.
    steps : list of int or None
        The steps that were tested.
    fields : list of FieldAcceptance
        What is known of each field.
    excesses : list of Excess
        Where new runs exceed the reference runs, the first step first. Empty unless rejected.
    p : float
        Of the test of distributions; NaN where no step has settled.
    tests : dict of str to float
        The p value of each of its statistics, alone.
    ways : int
        Choices of new runs out of all that the p value counts.
    exact : bool
        Whether these are all possible choices; otherwise they were drawn at random.
    alpha : float
        The rate of false alarms of the test of distributions.
    growth : float
        The allowed factor while differences grow.
    alarms : Alarms or None
        Reference runs that would be rejected. None with fewer than three.
    detectable : float
        The shift of one mean that would be found in 80% of cases, in standard deviations of the
        reference runs; NaN where no step has settled.
    checked : list of str
        The assumptions that were checked, and how.
    notes : list of str
        What the user should know.
    document : dict
        All of it, for JSON.

    Notes
    -----
    `bool(result)` is True only if the new runs are accepted. `str(result)` is the sentence.
    """

    verdict: str
    sentence: str
    references: list[str]
    new: list[str]
    steps: list[int | None]
    fields: list[FieldAcceptance]
    excesses: list[Excess]
    p: float
    tests: dict[str, float]
    ways: int
    exact: bool
    alpha: float
    growth: float
    alarms: Alarms | None
    detectable: float
    checked: list[str]
    notes: list[str]

    def __bool__(self) -> bool:
        return self.verdict == "accepted"

    def __str__(self) -> str:
        return self.sentence

    @property
    def document(self) -> dict[str, Any]:
        """All facts as one tree of dicts, for JSON.

        Returns
        -------
        dict
            The attributes by name; `format` and `version` say what it is.
        """
        return {
            "format": "twinrun acceptance",
            "version": 1,
            "twinrun": __version__,
            **dataclasses.asdict(self),
        }

    def lines(self) -> list[str]:
        """The report for a terminal: the sentence first.

        Returns
        -------
        list of str
            Lines without line breaks.
        """
        out = [self.sentence]
        if self.excesses:
            shown = self.excesses[:_ROWS]
            more = len(self.excesses) - len(shown)
            out += ["", "excesses, the first step first:", *(f"  {e}" for e in shown)]
            out += [f"  and {more} more (--json has all)"] if more else []
        head = ["field", "growing", "settled", "distance", "growth", "deviation", "p"]
        ordered = sorted(self.fields, key=lambda f: (not f.exceeds, -_rank(f)))
        rows = [head] + [_row(f) for f in ordered[:_ROWS]]
        out += ["", *(f"  {line}" for line in aligned(rows, left=1))]
        if len(ordered) > _ROWS:
            out.append(f"  and {len(ordered) - _ROWS} more fields (--json has all)")
        out += [
            "  distance: of the farthest new run, in units of the farthest reference run, at growing steps; growth: factor a",
            "  step, reference and new; deviation: in standard errors, at settled steps; p: corrected for all fields and steps",
        ]
        if any(math.isinf(f.ratio) for f in self.fields):
            out.append("  inf: all reference runs are equal there, and a new run is not")
        if self.tests:
            kind = f"all {self.ways}" if self.exact else f"{self.ways} random"
            said = ", ".join(f"{name} {number(p)}" for name, p in self.tests.items())
            out += ["", f"p = {number(self.p)} of {kind} choices of new runs; alone: {said}"]
        if math.isfinite(self.detectable):
            out.append(
                f"a mean that is off by {number(self.detectable)} standard deviations of the reference runs would be found in 80% of cases"
            )
        if self.alarms is not None:
            out.append(f"false alarms, each reference run left out in turn: {self.alarms}")
        out += ["", *(f"checked: {line}" for line in self.checked), *(f"note: {line}" for line in self.notes)]
        return out

    def _report(self) -> Any:
        from ..report import acceptance

        return acceptance


def _rank(f: FieldAcceptance) -> float:
    return max(x for x in (f.ratio, f.deviation, 0.0) if not math.isnan(x))


def _row(f: FieldAcceptance) -> list[str]:
    def said(value: float) -> str:
        return "" if math.isnan(value) else number(value)

    rates = "" if math.isnan(f.rate) else f"{number(f.rate)}, {said(f.new_rate) or '?'}"
    where = "mean of steps" if f.deviation_step is None and len(f.settled) > 1 else f"step {f.deviation_step}"
    if f.settled == [None]:
        where = ""
    deviation = f"{said(f.deviation)} ({f.deviation_of}{', ' + where if where else ''})" if f.settled else ""
    distance = said(f.ratio) + ("" if f.ratio_step is None else f" (step {f.ratio_step})")
    return [f.field, str(len(f.growing)), str(len(f.settled)), distance, rates, deviation, said(f.p)]
