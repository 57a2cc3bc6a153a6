"""What every analysis takes, and what it returns.

A claim is a statement that is made only if its test says so; its p value is corrected for all claims of its
analysis. A report makes many analyses: it gives each a `Judge` with a multiplier (Holm's, over analyses), so
that the whole report has one rate of false alarms. The sentence of an analysis therefore depends on the
judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import TwinrunError, in_short
from ...words import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ASSUMED",
    "DESCRIBED",
    "FOUND",
    "NONE",
    "OPEN",
    "TOLD",
    "Analysis",
    "Claim",
    "Judge",
    "Options",
    "could_have",
    "nothing",
]

FOUND = "found"  # a claim holds
NONE = "none"  # no claim holds, and an effect that matters would have been found
OPEN = "open"  # the data cannot decide


# What a claim of each analysis rests on; what was checked beside its test.
ASSUMED = {
    "factors": "by F with the variance of each level and by shuffling within blocks: it takes conditions in random order, no normal noise and no equal variances",
    "variation_factors": "by F with the variance of each level and by shuffling within blocks: it takes conditions in random order, no normal noise and no equal variances",
    "nodes": "by t, with its own variance where that is larger, and by shuffling within blocks: it takes tasks that were placed at random, no normal noise and no equal variances",
    "blocks": "more than in series in which tasks resemble the ones before as much as these",
    "periods": "more than in series in which tasks resemble the ones before as much as these; starts are taken as even there",
    "trend": "more than in series in which tasks resemble the ones before as much as these",
    "changes": "more than in series in which tasks resemble the ones before as much as these",
    "time_of_day": "by F and by shuffled hours: it takes hours that are independent of each other",
    "tail": "beside one distribution that may be skewed and have long tails, which fits less well",
    "load": "tasks count as fewer where both resemble the ones before",
    "covariates": "more than among series that resemble the ones before as much as these",
    "scaling": "by shuffled deviations: it takes tasks that are independent of each other",
    "outcome": "by ranks: it takes tasks that are independent of each other",
    "hypotheses": "by t tests of logarithms with the variance of each level: it takes tasks that are independent within blocks, and no long tail",
    "compare": "more than between series that resemble the ones before as much as these",
}


class _Described(str):
    """A state that is equal to "told" too, which was its name. For one release."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "told"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


DESCRIBED = _Described("described")  # a description, without a test
TOLD = DESCRIBED  # its former name, for one release


@dataclass(frozen=True)
class Options:
    """What all analyses share.

    >>> from twinrun.ensemble import Options
    >>> round(Options(confidence=0.99).alpha, 6)
    0.01

    Attributes
    ----------
    value : str, default 'wall'
        The column that is analysed: positive, in seconds.
    confidence : float, default 0.95
        Of intervals; 1 - confidence is the rate of false alarms of a report.
    power : float, default 0.8
        Reports name the smallest effect that they could have found with this probability.
    matters : float, default 0.05
        The smallest effect of interest, as a share of the time; and the coefficient of variation up to which
        time counts as reproducible.
    permutations, resamples : int
        How many to draw, at most; at least 99.
    size : str or None
        The factor or metric that is the size of the problem, for `scaling`.
    seed : int
        The same data give the same report.
    alpha : float
        1 - confidence.

    Raises
    ------
    TwinrunError
        A value is out of its range.
    """

    value: str = "wall"
    confidence: float = 0.95
    power: float = 0.8
    matters: float = 0.05
    permutations: int = 4999
    resamples: int = 1999
    size: str | None = None
    seed: int = 20171128

    def __post_init__(self) -> None:
        for name, x, low, high in (
            ("confidence", self.confidence, 0.5, 1),
            ("power", self.power, 0, 1),
            ("matters", self.matters, 0, math.inf),
        ):
            if not low < x < high:
                raise TwinrunError(f"{name} must be between {low:g} and {high:g}, not {in_short(x)}")
        if self.permutations < 99 or self.resamples < 99:
            raise TwinrunError("permutations and resamples must be at least 99")

    @property
    def alpha(self) -> float:
        """The rate of false alarms."""
        return 1 - self.confidence


@dataclass(frozen=True)
class Claim:
    """A statement that an analysis makes only if its test supports it.

    Attributes
    ----------
    what : str
        The statement, in a few words.
    p : float
        Its p value, corrected for all claims of its analysis.
    facts : dict
        The effect and its interval.
    """

    what: str
    p: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """Decides whether a p value is small enough, corrected for the whole report.

    tests: how many analyses of the report test something.
    """

    alpha: float
    multiplier: float = 1.0
    tests: int = 1

    def adjusted(self, p: float) -> float:
        """p, corrected for the report."""
        return min(1.0, p * self.multiplier)

    def holds(self, claim: Claim) -> bool:
        """Whether the claim is made."""
        return self.adjusted(claim.p) <= self.alpha

    @property
    def level(self) -> float:
        """The p value below which an analysis counts in the report, whatever the others show."""
        return self.alpha / self.tests

    def p(self, claim: Claim) -> str:
        """'p = 0.003'."""
        x = self.adjusted(claim.p)
        return "p < 0.0001" if x < 1e-4 else f"p = {x:.2g}"


@dataclass
class Analysis:
    """One analysis of a study: a table, a picture, a sentence, and the tests behind it.

    Attributes
    ----------
    name : str
        A stable name, for JSON.
    title : str
        A title for people.
    table : pandas.DataFrame
        The numbers; may be empty.
    tell : callable
        `tell(judge)` gives (sentence, state).
    tasks : int
        How many tasks it rests on.
    alpha : float
        The rate of false alarms.
    claims : sequence of Claim
        What was tested; empty for a description.
    draw : callable or None
        `draw(axes)` draws the picture.
    facts : dict
        Estimates with intervals, for JSON.
    notes : list of str
        What a reader has to know besides.
    judge : Judge or None
        The judge of the report, which corrects for all its analyses.
    explains : callable or None
        `explains(judge)` gives what its claims that hold add to the logarithm of each task's time (by row of
        `usable`), and how much better that fits than one mean (the fall of BIC); for reports, which take it
        out and look again.
    could_see : callable or None
        `could_see(level)` gives the smallest effect that is found in `Options.power` of studies like this.
    seen : float or None
        That effect, in this report.
    power : float
        As in `Options`.
    describe : callable or None
        `describe(judge)` gives what was measured and not decided, as a sentence, or nothing.
    after : list of str
        Names of analyses whose effects were taken out first.
    p : float or None
        The smallest p value of its claims; None without claims.
    judged_by : Judge
        The judge of the report, or one for this analysis alone.
    sentence : str
        What it shows, how sure that is, and what a claim rests on.
    description : str
        What stands out and is no claim, in numbers; empty where nothing does.
    state : {'found', 'none', 'open', 'described'}
        'found': a claim holds. 'none': no claim holds, and an effect that matters would have been found.
        'open': the data cannot decide. 'described': a description without a test. It is equal to 'told'
        too, its former name, until the next release.
    found : list of Claim
        The claims that hold.
    """

    name: str
    title: str
    table: pd.DataFrame
    tell: Callable[[Judge], tuple[str, str]]
    tasks: int
    alpha: float = 0.05
    claims: Sequence[Claim] = ()
    draw: Callable[[Axes], None] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    judge: Judge | None = None
    explains: Callable[[Judge], tuple[pd.Series, float] | None] | None = None
    could_see: Callable[[float], float] | None = None
    power: float = 0.8
    describe: Callable[[Judge], str] | None = None
    after: list[str] = field(default_factory=list)
    _seen: dict[float, float] = field(default_factory=dict, repr=False)
    _described: dict[Judge, str] = field(default_factory=dict, repr=False)

    @property
    def seen(self) -> float | None:
        """The smallest effect that its report finds in `Options.power` of studies like this; None:
        not known.
        """
        if self.could_see is None:
            return None
        level = self.judged_by.level
        if level not in self._seen:
            self._seen[level] = self.could_see(level)
        return self._seen[level]

    @property
    def p(self) -> float | None:
        """The smallest p value of its claims; None without claims."""
        return min((c.p for c in self.claims), default=None)

    @property
    def judged_by(self) -> Judge:
        """The report's judge, or one for this analysis alone."""
        return self.judge or Judge(self.alpha)

    @property
    def sentence(self) -> str:
        """What it shows, how sure that is, and what a claim rests on."""
        said, state = self.tell(self.judged_by)
        on = ASSUMED.get(self.name)
        return f"{said.removesuffix('.')}; {on}." if state == FOUND and on and self.claims else said

    @property
    def description(self) -> str:
        """What stands out and is no claim, in numbers; empty where nothing does."""
        if self.describe is None:
            return ""
        judge = self.judged_by
        if judge not in self._described:
            self._described[judge] = self.describe(judge)
        return self._described[judge]

    @property
    def state(self) -> str:
        """FOUND, NONE, OPEN or DESCRIBED."""
        return self.tell(self.judged_by)[1]

    @property
    def found(self) -> list[Claim]:
        """The claims that hold."""
        return [c for c in self.claims if self.judged_by.holds(c)]

    def figure(self) -> Figure | None:
        """Draws the picture with matplotlib.

        Returns
        -------
        matplotlib.figure.Figure or None
            None where there is nothing to draw.
        """
        if self.draw is None:
            return None
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 3.8), layout="constrained")
        axes = figure.add_subplot()
        self.draw(axes)
        axes.grid(alpha=0.3)
        return figure


def could_have(analysis: Analysis, effect: str, smaller: str = "") -> str:
    """'a change of 3% could have been seen in 80% of studies like this'; effect has {} for the
    number; smaller: what follows of those that could not.
    """
    seen = analysis.seen
    if seen is None or not math.isfinite(seen):
        return "no effect, however large, is sure to be seen in a study like this"
    return f"{effect.format(percent(seen))} could have been seen in {100 * analysis.power:g}% of studies like this{smaller}"


def nothing(name: str, title: str, why: str, tasks: int, takes: str = "") -> Analysis:
    """An analysis that is impossible, and why. takes: what it would need."""
    import pandas as pd

    facts = {"takes": takes} if takes else {}
    return Analysis(name, title, pd.DataFrame(), lambda _: (why, OPEN), tasks, facts=facts)
