"""What an analysis that cannot decide would need to decide: a line, for reports."""

from __future__ import annotations

import math

import numpy as np

from . import deviations
from .model import percent
from .result import OPEN, Analysis, Options

__all__ = ["takes"]

# Where an analysis could not be made.
_LACKS = {
    "spread": "20 tasks or more that are independent of each other",
    "conditions": "a task that ends well",
    "makespan": "blocks of two tasks and more, with their starts and ends",
    "factors": "a factor with two levels or more, ten blocks, and each level on each node",
    "variation_factors": "a factor with two levels or more, and ten blocks",
    "nodes": "two runs or more on each of several nodes",
    "blocks": "two tasks or more in each of several blocks",
    "time_of_day": "two days or more, and eight hours of work spread over them",
    "periods": "12 tasks or more, with their starts",
    "trend": "16 tasks or more, in their order",
    "changes": "16 tasks or more, in their order",
    "load": "eight tasks or more, with measures of load that vary",
    "covariates": "a covariate with 16 tasks or more and three values",
    "decompose": "profiles of calls ([interpose]) or run-queue delay, of 12 tasks or more",
    "tail": "12 tasks or more",
    "scaling": "three sizes or more, five tasks of each",
    "outcome": "[results] in the study",
    "regimes": "20 tasks or more",
    "planning": "four tasks or more",
    "compare": "five tasks or more of conditions that both studies have",
    "interposition": "[interpose] with arm = true, and ten blocks",
    "hypotheses": "more blocks",
}
_INDEPENDENT = "tasks that are independent of each other and have no long tail"
_EFFECTS = {
    "factors": "an effect of {}", "variation_factors": "a difference of mean deviation of {}", "nodes": "a node that differs by {}",
    "blocks": "a deviation of {} between blocks", "time_of_day": "+-{} over the day", "periods": "a period of +-{}",
    "trend": "a drift of {}", "changes": "a change of {}",
}  # fmt: skip
_CORRELATION = 0.5  # with a measure of load, or a covariate


def _tasks(n: int, ratio: float) -> str:
    """Tasks for an interval, or an effect, that is this many times smaller."""
    return f"about {math.ceil(n * max(2.0, ratio**2))} tasks"


def takes(analysis: Analysis, options: Options) -> str:
    """What it would need; empty where it decided. Numbers of tasks grow with the square of what
    they resolve.
    """
    if analysis.state != OPEN:
        return ""
    n, seen = analysis.tasks, analysis.seen
    if "takes" in analysis.facts:
        return str(analysis.facts["takes"])
    if analysis.sentence.endswith("took the same time."):
        return "times that differ: all are the same"
    if analysis.name == "spread" and "cov" in analysis.facts:
        cov = analysis.facts["cov"]
        if np.isfinite(cov["high"]) and cov["value"] != options.matters:
            enough = max(2 * n, deviations.tasks_for(cov["value"], options.matters, options.confidence))
            return f"about {enough} tasks to tell {percent(cov['value'])} from {percent(options.matters)}"
        return _INDEPENDENT if n >= 20 else _LACKS["spread"]
    if analysis.name == "planning" and n >= 4:
        return _INDEPENDENT
    if seen is not None and not math.isfinite(seen) and analysis.claims:
        return f"more than {n} tasks: no effect is sure to be seen with these"
    if seen is not None and analysis.name in ("load", "covariates"):
        return f"{_tasks(n, math.atanh(min(seen, 0.999)) / math.atanh(_CORRELATION))} to see a correlation of {_CORRELATION:g}"
    if seen is not None and analysis.name in _EFFECTS:
        return f"{_tasks(n, seen / options.matters)} to see {_EFFECTS[analysis.name].format(percent(options.matters))}"
    if analysis.claims:
        return f"more than {n} tasks"
    return _LACKS.get(analysis.name, "more tasks")
