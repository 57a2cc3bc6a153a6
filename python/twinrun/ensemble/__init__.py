"""Whether the *time* is reproducible, and what makes it vary: studies of identical tasks, and their analyses.

    tasks           a study's folder as a table: a row an attempt
    model           what a study planned (conditions, blocks) taken out of its times; tests of its terms
    result          what every analysis returns: a table, a picture, one sentence, and the tests behind it
    conditions      the median of each condition, and its ratio to the first
    needs           what an analysis that cannot decide would take
    spread          range, quantiles, coefficient of variation; makespan and core-hours lost
    blocks          do blocks differ?
    time_of_day     a daily rhythm
    periods         something that comes back
    nodes           is there a bad node?
    factors         main effects and interactions of the conditions, on the time and on its spread
    load            correlation with what the system did meanwhile
    tail            is there a slow group?
    covariates      correlation with numbers that the user names
    decompose       slow minus fast as compute, MPI, I/O and run-queue delay
    compare         two studies
    scaling         variation against problem size
    trend           a drift over the study
    changes         change points over a series
    serial          tasks that resemble the ones before: a null for what is looked for in time
    assumptions     what intervals of a spread rest on, checked
    power           the smallest effect that is found in a share of studies like this
    regimes         makespan with fewer, as many, more resources than tasks, by simulation
    planning        how many repetitions are needed
    outcome         did the slow task also compute something else?
    hypotheses      what the study should show: supported, refuted, undecided
    noise           what the operating system takes from each core
    extras          what a folder has beside its tasks: hypotheses, noise before and after
    results         what a task computed, compared with what the first one did
    packages        a clear error where a package is missing
    competition     findings compete, and their false alarms are held down together
    findings        all of them on one study, and a verdict

An analysis is a function of a DataFrame (`tasks.load_tasks`) and `Options`. It needs the packages of
twinrun[ensemble].
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..packages import check

if TYPE_CHECKING:
    from .analysis.findings import Findings, analyse
    from .analysis.result import Analysis, Options
    from .study.tasks import load_tasks

__all__ = ["Analysis", "Findings", "Options", "analyse", "load_tasks"]

_WHERE = {
    "Analysis": "analysis.result",
    "Findings": "analysis.findings",
    "Options": "analysis.result",
    "analyse": "analysis.findings",
    "load_tasks": "study.tasks",
}


def __getattr__(name: str) -> Any:
    # Modules are imported when they are used: running tasks needs no pandas.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check()
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
