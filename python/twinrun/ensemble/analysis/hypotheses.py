"""Hypotheses that a study named before it ran: supported, refuted or undecided.

Each is about a ratio: the metric under `level` over that under `base`, estimated like all effects (least
squares of logarithms, with blocks and the other factors). `slower` and `larger` say that it is above 1 + by,
`faster` and `smaller` that it is below 1 / (1 + by): one-sided t tests that take no equal variances, both
ways. `same` says that it lies between those two: two one-sided tests (TOST). `different` says that it does
not. A hypothesis is refuted if a test supports its opposite, and undecided if no test supports either. p
values are corrected by Holm's method over the hypotheses of the study alone: they were named in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..study.document import Hypothesis
from ..study.tasks import condition_columns, usable
from .correction import holm
from .factors import as_verified, by_workload
from .model import confounded, levels_of, model_of, with_interval
from .order import conditions_in_stretches
from .result import DESCRIBED, OPEN, Analysis, Judge, Options
from .terms import effect_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["hypotheses"]

_MORE, _LESS = ("slower", "larger"), ("faster", "smaller")


def _words(h: Hypothesis, level: str, base: str) -> str:
    given = f" at {', '.join(f'{k} = {v}' for k, v in h.given.items())}" if h.given else ""
    metric = "" if h.metric == "wall" else f" in {h.metric}"
    if h.expect == "same":
        return f"{h.factor} {level} is the same within {100 * h.by:g}%{metric} as {base}{given}"
    amount = f" by more than {100 * h.by:g}%" if h.by else ""
    return f"{h.factor} {level} is {h.expect}{amount}{metric} than {base}{given}"


def _tested(frame: pd.DataFrame, h: Hypothesis, options: Options) -> dict[str, Any]:
    """ratio, low, high, p (of the hypothesis), against (p of its opposite), n; or why there are none."""
    column = f"factors.{h.factor}"
    row: dict[str, Any] = {
        "ratio": None,
        "low": None,
        "high": None,
        "p": 1.0,
        "against": 1.0,
        "n": 0,
        "why": "",
    }
    if h.metric not in frame or column not in frame:
        return {**row, "level": h.level or "?", "base": h.base or "?", "why": f"no task has {h.metric if h.metric not in frame else h.factor}"}  # fmt: skip
    levels = levels_of(frame[column].dropna())
    base = h.base or next((x for x in levels if x != h.level), "?")
    level = h.level or next((x for x in levels if x != base), "?")
    row |= {"level": level, "base": base}
    good, _ = as_verified(usable(frame, h.metric))
    for name, given_level in h.given.items():
        good = good[good[f"factors.{name}"].map(str) == given_level]
    good = good[good[column].map(str).isin([level, base])].reset_index(drop=True)
    row["n"] = len(good)
    if good[column].map(str).nunique() < 2:
        return {**row, "why": "not both levels have tasks"}
    if good["node"].duplicated().any() and confounded(good, [column], "node"):
        return {**row, "why": "each level had nodes of its own: run each level on each node"}
    if column in conditions_in_stretches(good):
        return {**row, "why": "one level ran after the other: run them in random order"}
    varied = condition_columns(good)
    model = model_of(*by_workload(good, np.log(good[h.metric].to_numpy(dtype=float)), varied)[:2], varied)
    if model.freedom < 3 or not any(t.factors == (column,) for t in model.terms):
        return {**row, "why": "too few tasks, or the design cannot separate the factor from others"}
    contrast = model.row({column: level}) - model.row({column: base})
    own = next(t for t in model.terms if t.factors == (column,))
    effect = effect_of(model, contrast, own.where)
    low, high = effect.ends(options.confidence)
    border = float(np.log1p(h.by))
    above = effect.above  # p of the claim that the logarithm of the ratio is above a limit

    if h.expect in _MORE:
        p, against = above(border), 1 - above(border)
    elif h.expect in _LESS:
        p, against = 1 - above(-border), above(-border)
    else:
        inside = max(1 - above(border), above(-border))
        # Outside on either side: twice the smaller (at by = 0 the two-sided t test).
        outside = min(1.0, 2 * min(above(border), 1 - above(-border)))
        p, against = (inside, outside) if h.expect == "same" else (outside, inside if h.by else 1.0)
    return {
        **row,
        "ratio": float(np.exp(effect.value)),
        "low": float(np.exp(low)),
        "high": float(np.exp(high)),
        "p": p,
        "against": against,
    }


def hypotheses(
    frame: pd.DataFrame,
    named: Sequence[Hypothesis],
    options: Options = Options(),  # noqa: B008
) -> Analysis:
    """Answers each hypothesis: the ratio with its interval, p, and supported, refuted or undecided."""
    title = "What the study was to show"
    rows = [_tested(frame, h, options) for h in named]
    # Each counts once: it or its opposite is tested.
    smaller = [min(1.0, 2 * min(r["p"], r["against"])) for r in rows]
    corrected = holm(smaller)
    table = []
    for h, r, p in zip(named, rows, corrected, strict=True):
        decided = p <= options.alpha
        answer = ("supported" if r["p"] < r["against"] else "refuted") if decided else "undecided"
        table.append({
            "hypothesis": h.text or _words(h, r["level"], r["base"]), "answer": answer, "ratio": r["ratio"], "low": r["low"],
            "high": r["high"], "p, Holm": float(p), "tasks": r["n"], "why": r["why"],
        })  # fmt: skip

    def said(row: dict[str, Any]) -> str:
        if row["ratio"] is None:
            return f"{row['hypothesis']}: {row['answer']}, {row['why']}"
        p = "p < 0.0001" if row["p, Holm"] < 1e-4 else f"p = {row['p, Holm']:.2g}"
        return f"{row['hypothesis']}: {row['answer']}, ratio {with_interval(row['ratio'], row['low'], row['high'], least=3)} ({p}, {row['tasks']} tasks)"  # fmt: skip

    def tell(_: Judge) -> tuple[str, str]:
        open_ = any(row["answer"] == "undecided" for row in table)
        return "; ".join(map(said, table)) + ".", OPEN if open_ else DESCRIBED

    def draw(axes: Axes) -> None:
        known = [row for row in table if row["ratio"] is not None]
        at = np.arange(len(known))[::-1]
        middle = np.array([row["ratio"] for row in known])
        reach = [middle - [row["low"] for row in known], np.array([row["high"] for row in known]) - middle]
        axes.errorbar(middle, at, xerr=reach, fmt="o")
        axes.axvline(1, color="#999999", linewidth=0.8)
        axes.set_yticks(at, [f"{row['hypothesis'][:60]}: {row['answer']}" for row in known], fontsize=8)
        axes.set(xlabel="ratio", title=title)

    drawn = draw if any(row["ratio"] is not None for row in table) else None
    return Analysis("hypotheses", title, pd.DataFrame(table), tell, max((r["n"] for r in rows), default=0), options.alpha, (), drawn,
                    {"hypotheses": table})  # fmt: skip
