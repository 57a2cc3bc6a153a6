"""The table of conditions, and each against the first: the first answer to "which is faster, and
how sure is that?".

Medians have distribution-free intervals. Ratios are of runs of the same block (`locations.ratio`),
and all their intervals hold together with the stated probability. Where the study stopped as soon
as they were narrow, they are a little wider, so that they keep it. Both need blocks that are
independent of each other: that is tested, and where it is refuted the interval is not given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...errors import one_line
from ...report.ensemble import TIMES, seconds
from ...words import estimate
from .. import locations
from ..intervals import Interval
from ..study.tasks import condition_columns, usable
from .assumptions import checked
from .model import at_least, left_over, levels_of, percent, with_interval, with_nodes
from .order import conditions_in_stretches
from .result import DESCRIBED, Analysis, Judge, Options, nothing
from .serial import Resemblance, resemblance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Against", "Condition", "Conditions", "conditions", "conditions_of"]

_LEVEL = 0.05
# Fewer can hide a resemblance that halves what they show: of simulated series of 20 whose values
# resemble the one before by 0.5, every second one shows it, of 30 two of three.
_SHOWS = 30


@dataclass(frozen=True)
class Condition:
    """One condition. levels: of the factors that vary. failed: attempts that are not in n."""

    name: str
    levels: Mapping[str, str]
    n: int
    failed: int
    median: Interval
    cov: float


@dataclass(frozen=True)
class Against:
    """A condition's time as a ratio to that of the first. resemblance: of the ratios with those of
    the block before.
    always: faster or slower, if it was that in all blocks.
    """

    name: str
    base: str
    ratio: Interval
    resemblance: Resemblance
    always: str = ""

    @property
    def fails(self) -> str:
        """Why no interval can be given, or nothing."""
        return _alike("blocks", self.resemblance)


def _alike(units: str, found: Resemblance) -> str:
    if not found.shown:
        return ""
    return f"{units} resemble the ones before (correlation {found.value:.2f}), so they count as fewer than they are"


@dataclass(frozen=True)
class Conditions:
    """All conditions, the first of them first.

    against: the others. single: of runs, where there is one condition only. fails: why medians have
    no interval, or nothing. block: seconds that one took, NaN where not known. stopped: the study
    ended by its stopping rule's looks. value: the column.
    """

    rows: Sequence[Condition]
    against: Sequence[Against]
    single: Resemblance
    fails: str
    block: float
    confidence: float
    stopped: bool
    value: str = "wall"

    def table(self) -> pd.DataFrame:
        """A row a condition; empty cells for what is not known."""
        rows = []
        ratios = {a.name: a for a in self.against}
        for row in self.rows:
            known = row.median.known and not self.fails
            line: dict = {"condition": row.name, "n": row.n, "median": row.median.value,
                          "low": row.median.low if known else math.nan, "high": row.median.high if known else math.nan,
                          "CoV": row.cov}  # fmt: skip
            if self.against:
                to = f"against {self.rows[0].name}"
                other = ratios.get(row.name)
                known = other is not None and other.ratio.known and not other.fails
                line |= {to: math.nan if other is None else other.ratio.value,
                         "ratio low": other.ratio.low if known and other else math.nan,
                         "ratio high": other.ratio.high if known and other else math.nan}  # fmt: skip
            rows.append(line)
        return pd.DataFrame(rows)

    def sentences(self, precision: float) -> list[str]:
        """The sentences: about the only condition, or about each against the first. precision: half
        of what is too small to matter.
        """
        if not any(row.n for row in self.rows):
            return ["No run ended well: nothing can be said of times."]
        if len(self.rows) == 1:
            return [self._of_one(precision)]
        return [self._of_two(other, precision) for other in self.against]

    # -- sentences

    def _text(self, x: float) -> str:
        return seconds(x) if self.value in TIMES else f"{x:.4g}"

    def _of_one(self, precision: float) -> str:
        row = self.rows[0]
        own = _short(row.name)
        what = f"{own} takes {self._text(row.median.value)}"
        if self.value not in TIMES:
            what = f"{self.value} of {own} is {self._text(row.median.value)}"
        if self.fails:
            return f"{what} (median of {row.n} runs); its interval cannot be given: {self.fails}."
        if not row.median.known:
            return f"{what} ({_runs(row.n)}); too few for an interval: it takes 6 or more."
        interval = f"[{self._text(row.median.low)}, {self._text(row.median.high)}]"
        text = f"{what} {interval} (median of {row.n} runs{_rests('runs', row.n, self.single)})"
        if not row.median.within(precision * row.median.value):
            text += f", not within {percent(precision)} of it: {self._take(row.n, row.median, precision)}"
        return f"{text}."

    def _of_two(self, other: Against, precision: float) -> str:
        text = self._compared(other, precision)
        if self.value in TIMES:
            return text
        return (
            f"{self.value}: {text}".replace("is faster or slower", "is larger or smaller")
            .replace("faster than", "smaller than")
            .replace("slower than", "larger than")
        )

    def _compared(self, other: Against, precision: float) -> str:
        r, n = other.ratio, other.ratio.blocks
        own, base = _short(other.name), _short(other.base)
        pair = f"{base} and {own}"
        if n == 0:
            return f"{pair} cannot be compared: no block has a good run of both."
        if other.fails:
            if other.always:
                return (f"{own} was {other.always} than {base} in all {_blocks(n)} (ratio {r.value:.3g}), and the interval "
                        f"cannot be given: {other.fails}.")  # fmt: skip
            return (f"Whether {own} is faster or slower than {base} cannot be decided: {other.fails} (ratio "
                    f"{r.value:.3g}, {_blocks(n)}); it takes a quieter machine, or more blocks.")  # fmt: skip
        if not r.known:
            return (f"Whether {own} is faster or slower than {base} cannot be decided: {_blocks(n)} {'is' if n == 1 else 'are'} too few for an interval; "
                    f"it takes {_least(r.confidence)} or more (ratio {r.value:.3g}).")  # fmt: skip
        data = f"{_blocks(n)}{_rests('blocks', n, other.resemblance)}"
        if r.high < 1:
            return f"{own} is {_interval(1 / r.value, 1 / r.high, 1 / r.low)} faster than {base} ({data})."
        if r.low > 1:
            return f"{own} is {_interval(r.value, r.low, r.high)} slower than {base} ({data})."
        largest = max(r.high, 1 / r.low) - 1
        if largest < 1e-12:
            return f"{pair} took the same time in all {_blocks(n)}."
        if largest <= 2 * precision:
            return f"No difference larger than {at_least(largest)} is seen between {pair} ({data}; ratio {r.value:.3f})."
        return (f"Whether {own} is faster or slower than {base} cannot be decided: the ratio is "
                f"{with_interval(r.value, r.low, r.high)} ({data}); {self._take(n, r, precision)}.")  # fmt: skip

    def _take(self, n: int, found: Interval, precision: float) -> str:
        """The runs or blocks that an interval of this precision needs."""
        more = math.ceil(n * (found.half_width / (precision * found.value)) ** 2)
        unit = "runs" if len(self.rows) == 1 else "blocks"
        time = f", {_span(more * self.block)}" if math.isfinite(self.block) else ""
        return f"about {_about(more)} {unit}{time} would measure it within {percent(precision)}"


def _about(count: int) -> int:
    """A number of runs that is known roughly: two digits, and no fewer runs.

    >>> _about(26294), _about(87)
    (27000, 87)
    """
    step = 10 ** max(0, len(str(count)) - 2)
    return -(-count // step) * step


def _short(name: str) -> str:
    return one_line(name, 60)


def _rests(units: str, n: int, found: Resemblance) -> str:
    """What an interval takes for granted, and whether that was checked."""
    if n < _SHOWS or not found.tested:
        return f", taken as independent of each other: fewer than {_SHOWS} cannot show whether they are"
    return f", tested for independence: p = {found.p:.2g}"


def _interval(value: float, low: float, high: float) -> str:
    """'1.41 times [1.38, 1.45]', with as many digits as the interval deserves."""
    said, first, last = estimate(value, low, high)
    return f"{said} times [{first}, {last}]"


def _blocks(n: int) -> str:
    return "1 block" if n == 1 else f"{n} blocks"


def _runs(n: int) -> str:
    return "1 run" if n == 1 else f"{n} runs"


def _least(confidence: float) -> int:
    """Blocks from which on a ratio has an interval."""
    n = 1
    while not locations.ratio([1.0] * n, [1.0] * n, confidence).known:
        n += 1
    return n


def _span(total: float) -> str:
    return (
        f"{total:.0f} s"
        if total < 90
        else f"{total / 60:.0f} min"
        if total < 5400
        else f"{total / 3600:.1f} h"
    )


def _ordered(frame: pd.DataFrame, columns: list[str]) -> list[tuple[str, ...]]:
    """The cells of these columns, as the study lists their levels."""
    known: Mapping[str, Sequence[str]] = frame.attrs.get("levels", {})
    order = {}
    for column in columns:
        listed = [str(v) for v in known.get(column.removeprefix("factors."), ())]
        order[column] = [*listed, *(v for v in levels_of(frame[column]) if v not in listed)]
    cells = {tuple(str(v) for v in row) for row in frame[columns].itertuples(index=False, name=None)}
    return sorted(cells, key=lambda c: [order[k].index(v) for k, v in zip(columns, c, strict=True)])


def _independent(x: np.ndarray, options: Options) -> Resemblance:
    rng = np.random.default_rng(options.seed)
    return resemblance(
        x - np.median(x) if len(x) else x, lambda rows: rows, _LEVEL, options.permutations, rng
    )


def conditions_of(frame: pd.DataFrame, options: Options = Options()) -> Conditions:  # noqa: B008
    """The conditions of a table of tasks; the first is the first level of each factor, as the study
    lists them.
    """
    columns = condition_columns(frame)
    value = options.value
    good = usable(frame, value)
    stopped = bool(frame.attrs.get("looks"))

    def stated(confidence: float) -> float:
        return locations.sequential(confidence) if stopped else confidence

    cells = _ordered(frame, columns) if columns else [()]
    own = pd.Series(list(zip(*(good[c].map(str) for c in columns), strict=True)) if columns else [()] * len(good), index=good.index, dtype=object)  # fmt: skip
    every = pd.Series(list(zip(*(frame[c].map(str) for c in columns), strict=True)) if columns else [()] * len(frame), dtype=object)  # fmt: skip
    fails = ""
    if len(good) > 2:
        blocks = good["block"].to_numpy() if good["block"].nunique() > 1 else None
        assumed = checked(left_over(good, value, blocks=False), blocks, options)
        fails = _alike(assumed.units, assumed.resemblance)
    rows, times = [], []
    for cell in cells:
        part = good[np.array([c == cell for c in own], dtype=bool)]
        x = part[value].to_numpy(dtype=float)
        names = [c.removeprefix("factors.") for c in columns]
        # Commands speak for themselves.
        name = ", ".join(
            (v or "(empty)") if n == "command" else f"{n} = {v}" for n, v in zip(names, cell, strict=True)
        )
        rows.append(
            Condition(
                name or str(frame.attrs.get("name", "the task")),
                dict(zip(names, cell, strict=True)),
                len(x),
                sum(c == cell for c in every) - len(x),
                locations.median(x, stated(options.confidence)),
                float(np.std(x, ddof=1) / np.mean(x)) if len(x) > 1 else math.nan,
            )
        )
        times.append(part.groupby("block")[value].median())
    against = []
    confidence = stated(locations.each(options.confidence, len(cells) - 1))
    for row, other in zip(rows[1:], times[1:], strict=True):
        both = times[0].index.intersection(other.index).sort_values()
        base, there = times[0][both].to_numpy(dtype=float), other[both].to_numpy(dtype=float)
        alike = _independent(np.log(there) - np.log(base), options)
        always = "faster" if (there < base).all() else "slower" if (there > base).all() else ""
        against.append(
            Against(row.name, rows[0].name, locations.ratio(base, there, confidence), alike, always)
        )
    single = _independent(np.log(good[value].to_numpy(dtype=float)), options)
    if len(cells) == 1:
        fails = _alike("runs", single)
    return Conditions(rows, against, single, fails, _block_time(frame), options.confidence, stopped, value)


def _block_time(frame: pd.DataFrame) -> float:
    """Seconds from block to block, on average."""
    start, end = frame["start"], frame["end"]
    if not (start.notna().all() and end.notna().all()) or frame["block"].nunique() == 0:
        return math.nan
    return float(end.max() - start.min()) / frame["block"].nunique()


def conditions(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The median of each condition, and its ratio to the first."""
    title = "Conditions"
    found = conditions_of(frame, options)
    total = sum(row.n for row in found.rows)
    if total == 0:
        return nothing("conditions", title, "Nothing can be said of conditions: no task ended well.", 0)

    good = usable(frame, options.value)
    own = [c.removeprefix("factors.") for c in with_nodes(good, condition_columns(good))]
    warned = (
        f" Levels of {' and '.join(own)} had nodes of their own: what differs may be the nodes."
        if own
        else ""
    )
    if stretches := [c.removeprefix("factors.") for c in conditions_in_stretches(good)]:
        warned += f" One level of {' and '.join(stretches)} ran after another: what differs may be the time at which they ran."

    def tell(_: Judge) -> tuple[str, str]:
        return " ".join(found.sentences(options.matters / 2)) + warned, DESCRIBED

    def draw(axes: Axes) -> None:
        at = np.arange(len(found.rows))[::-1]
        middle = np.array([row.median.value for row in found.rows])
        bars = np.array([row.median.bars() if not found.fails else (0.0, 0.0) for row in found.rows]).T
        axes.errorbar(middle, at, xerr=bars, fmt="o")
        axes.set_yticks(at, [row.name[:60] for row in found.rows], fontsize=8)
        axes.set(
            xlabel=f"median of {options.value}" + (" (s)" if options.value in TIMES else ""),
            ylim=(-0.5, len(found.rows) - 0.5),
        )

    facts = {
        "medians": [{"condition": row.name, **row.median.json()} for row in found.rows],
        "ratios": [
            {"condition": a.name, "base": a.base, **a.ratio.json(), "fails": a.fails or None}
            for a in found.against
        ],
    }
    notes = [f"{row.failed} attempts of {row.name} are not in its times: they did not end well"
             for row in found.rows if row.failed]  # fmt: skip
    if found.fails:
        notes.append(f"medians have no interval: {found.fails}")
    return Analysis("conditions", title, found.table(), tell, total, options.alpha, (), draw, facts, notes)
