"""The analyses of a report, judged together: one rate of false alarms, and one finding for one cause.

Holm's method corrects over all analyses that test something. Of the claims that hold, the one that fits
best is kept, and its effect is taken out before the others look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from ..study.tasks import chosen_once, usable
from . import (
    blocks,
    changes,
    conditions,
    covariates,
    decompose,
    factors,
    load,
    moments,
    nodes,
    outcome,
    periods,
    planning,
    regimes,
    scaling,
    spread,
    tail,
    time_of_day,
    trend,
)
from .correction import holm
from .result import Analysis, Judge, Options, nothing
from .serial import CLEAR

__all__ = ["ANALYSES", "competing", "judge_together"]

# In the order of the report.
ANALYSES: dict[str, Callable[[pd.DataFrame, Options], Analysis]] = {
    "conditions": conditions.conditions,
    "spread": spread.spread,
    "makespan": spread.makespan,
    "factors": factors.factors,
    "variation_factors": factors.variation_factors,
    "nodes": nodes.nodes,
    "blocks": blocks.blocks,
    "time_of_day": time_of_day.time_of_day,
    "periods": periods.periods,
    "trend": trend.trend,
    "changes": changes.changes,
    "load": load.load,
    "decompose": decompose.decompose,
    "tail": tail.tail,
    "scaling": scaling.scaling,
    "outcome": outcome.outcome,
    "regimes": regimes.regimes,
    "planning": planning.planning,
}
# Where the tasks have what it is about.
_ON_REQUEST: dict[str, Callable[[pd.DataFrame, Options], Analysis]] = {"covariates": covariates.covariates}


def judge_together(analyses: Iterable[Analysis], options: Options) -> None:
    """Gives each analysis the judge of a report that has these."""
    analyses = list(analyses)
    tested = [a for a in analyses if a.p is not None]
    for a in analyses:
        a.judge = Judge(options.alpha, 1.0, max(1, len(tested)))
    if tested:
        raw = np.array([a.p for a in tested], dtype=float)
        adjusted = holm(raw)
        for a, p, corrected in zip(tested, raw, adjusted, strict=True):
            a.judge = Judge(
                options.alpha, max(1.0, float(corrected / p)) if p > 0 else len(tested), len(tested)
            )


def _without(frame: pd.DataFrame, value: str, effect: pd.Series) -> pd.DataFrame:
    """What `usable` gives, an effect on the logarithm of the value (by its rows) taken out; `as
    measured` keeps the value.
    """
    good = usable(frame, value)
    if "as measured" not in good:
        good["as measured"] = good[value]
    good.loc[effect.index, value] *= np.exp(-(effect - effect.mean()))
    return good


def competing(frame: pd.DataFrame, options: Options, chosen: list[str]) -> list[Analysis]:
    """The analyses, where findings take out each other: one cause is one finding.

    Of the claims that hold, the one that fits best (by BIC) is kept, its effect is taken out of the
    times, and all others that test something look again at what is left.
    """
    known = ANALYSES | _ON_REQUEST
    with chosen_once(frame):
        made = {name: known[name](frame, options) for name in chosen}
        shared = moments.shared_moments(frame, options)
    for name, a in made.items():
        if shared is not None and name in moments.SILENT and a.claims:
            made[name] = nothing(name, a.title, f"Nothing is said of it: {shared.sentence}.", a.tasks)
            made[name].facts["takes"] = shared.takes
    kept: list[str] = []
    rest = frame
    while True:
        judge_together(made.values(), options)
        rivals = []
        for a in made.values():
            told = a.explains(a.judged_by) if a.explains and a.name not in kept and a.found else None
            if told is not None:
                rivals.append((told[1], a.name, told[0]))
        if not rivals:
            return list(made.values())
        gain, best, effect = max(rivals, key=lambda r: r[0])
        if best == "trend" and any(name == "changes" and g > gain - 2 * CLEAR for g, name, _ in rivals):
            made[best].notes.append(
                "a change at one moment fits about as well: these tasks cannot tell the two apart"
            )
        kept.append(best)
        rest = _without(rest, options.value, effect)
        with chosen_once(rest):
            looking = [name for name, a in made.items() if name not in kept and a.claims]
            again = {name: known[name](rest, options) for name in looking}
        for name, a in again.items():
            a.after = list(kept)
            if made[name].found:
                a.notes.append(
                    f"without what was found first ({', '.join(kept)}: taken out), because one cause is one finding"
                )
        made |= again
