"""Effects of the conditions: main effects and interactions, on the time and on its variation.

The model is of logarithms, with blocks (`design`), so an effect is a ratio: 1.03 is 3% longer than the base
level, which is named. The effect on variation is the same analysis of absolute deviations from each
condition's median (Brown and Forsythe, JASA 69, 1974, for several factors at once): it answers whether
checkpoints make the time *vary*. Deviations are of the times as they are; blocks are a term of the model of
deviations, and permutations stay within them. Tests are corrected by Holm.

Replicas that begin at one moment share what that moment does to all of them. They are no tasks that could
come in any order: the means of workloads are compared then, and workloads are shuffled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..study.tasks import condition_columns, usable
from .correction import holm
from .deviations import freedom
from .model import (
    Model,
    Term,
    at_least,
    cells_of,
    levels_of,
    model_of,
    percent,
    with_interval,
    with_nodes,
)
from .order import RANDOM, conditions_in_stretches
from .power import STUDIES, Chance, deviations_like, smallest
from .remarks import equal
from .resampling import permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .terms import TermTest, effect_of, terms_tested

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["as_verified", "by_workload", "effects_of", "factors", "variation_factors"]

# Tasks of a condition in each block, from which on deviations are from their own median.
_REPEATED = 4


def as_verified(good: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Leaves out tasks that ran under another level of a factor than planned; also returns how many."""
    wrong = np.zeros(len(good), dtype=bool)
    if "contradicted" in good:  # as the runner observed it
        wrong |= np.array(
            [isinstance(c, (list, tuple)) and len(c) > 0 for c in good["contradicted"]], dtype=bool
        )
    for f in condition_columns(good):
        seen = good.get("verified." + f.removeprefix("factors."))
        if seen is None:
            continue
        levels = set(good[f].map(str))
        # An observed value is a contradiction only if it is the name of another level.
        text = seen.map(str)
        wrong |= (seen.notna() & text.isin(levels) & (text != good[f].map(str))).to_numpy()
    return good[~wrong].reset_index(drop=True), int(wrong.sum())


def _short(name: str) -> str:
    return name.removeprefix("factors.")


def _contrasts(model: Model) -> list[tuple[Term, str, np.ndarray]]:
    """Main effects against the base level and, of factors with two levels, how they change each other;
    with the coefficients that give each.
    """
    found = []
    for term in model.terms:
        first = term.factors[0]
        levels = model.levels[first]
        if len(term.factors) == 1:
            base = model.row({first: levels[0]})
            found += [
                (term, f"{_short(first)}: {level} / {levels[0]}", model.row({first: level}) - base)
                for level in levels[1:]
            ]
        elif len(term.factors) == 2 and all(len(model.levels[f]) == 2 for f in term.factors):
            second = term.factors[1]
            other = model.levels[second]
            at = {(a, b): model.row({first: a, second: b}) for a in levels for b in other}
            contrast = (
                at[levels[1], other[1]]
                - at[levels[0], other[1]]
                - at[levels[1], other[0]]
                + at[levels[0], other[0]]
            )
            name = f"{term.name}: the ratio of {_short(first)}, at {_short(second)} = {other[1]} / {other[0]}"
            found.append((term, name, contrast))
    return found


def effects_of(model: Model, options: Options) -> list[dict]:
    """The effects of `_contrasts`, with intervals of 95% each."""
    rows = []
    for term, name, contrast in _contrasts(model):
        effect = effect_of(model, contrast, term.where)
        low, high = effect.ends(options.confidence)
        rows.append({"term": term.name, "effect": name, "value": effect.value, "low": low, "high": high,
                     "error": effect.error})  # fmt: skip
    return rows


def by_workload(
    good: pd.DataFrame, y: np.ndarray, columns: list[str]
) -> tuple[pd.DataFrame, np.ndarray, bool]:
    """A row and the mean of y for each workload, and whether there are any: without replicas the rows
    and y stay as they are.
    """
    if "replica" not in good or good["replica"].isna().any():
        return good, y, False
    cell = cells_of(good, ["block", *columns])
    number, names = pd.factorize(cell)
    if len(names) == len(good):
        return good, y, False
    first = np.unique(number, return_index=True)[1]
    return good.iloc[first].reset_index(drop=True), np.bincount(number, y) / np.bincount(number), True


@dataclass
class _Effects:
    """The conditions of a study and what they do. times: to the time; otherwise to how much it varies.

    effects: rows of `effects_of`, as ratios of times; workloads: the model is of their means.
    """

    good: pd.DataFrame
    columns: list[str]
    model: Model
    options: Options
    times: bool
    effects: list[dict]
    claims: list[Claim]
    workloads: bool = False

    @property
    def base(self) -> str:
        return ", ".join(f"{_short(f)} = {self.model.levels[f][0]}" for f in self.columns)

    @property
    def data(self) -> str:
        blocks = f" in {len(self.model.block_columns) + 1} blocks" if self.model.block_columns else ""
        whole = f" as {len(self.model.y)} workloads" if self.workloads else ""
        return f"{len(self.good)} tasks{whole}{blocks}"

    @property
    def what(self) -> str:
        return "the time" if self.times else "how much the time varies"

    @property
    def flat(self) -> bool:
        """Whether an effect has no interval, for nothing varies beside it."""
        return any(not e["error"] > 0 for e in self.effects)

    def text(self, row: dict) -> str:
        if not row["error"] > 0:
            value = f"{row['value']:.3f}" if self.times else f"{percent(row['value'])} of the time"
            return f"{row['effect'] if self.times else row['effect'].replace(' / ', ' - ')} = {value} (no interval: beside it all times are equal)"
        if self.times:
            return f"{row['effect']} = {with_interval(row['value'], row['low'], row['high'], least=3)}"
        return f"{row['effect'].replace(' / ', ' - ')} = {percent(row['value'])} of the time [{percent(row['low'])}, {percent(row['high'])}]"

    def largest(self, claim: Claim) -> list[dict]:
        """The two largest effects, of a factor with several levels."""
        size = (lambda e: -abs(math.log(e["value"]))) if self.times else (lambda e: -abs(e["value"]))
        return sorted(claim.facts["effects"], key=size)[:2]

    def could_see(self, level: float) -> float:
        """The effect that is known least, in shuffled residuals. Holm corrects for the terms."""
        if not self.effects or self.flat:
            return math.inf
        model, n = self.model, len(self.model.y)
        least = int(np.argmax([e["error"] for e in self.effects]))
        term, _, contrast = _contrasts(model)[least]
        own = contrast[list(term.where)]
        adds = model.matrix[:, term.where] @ (own / (own @ own))
        test = TermTest(model, term.where)
        random = np.random.default_rng(self.options.seed)
        left = np.asarray(model.fit().resid)
        # What is left fills fewer dimensions than what it is shuffled in.
        wide = math.sqrt((n - 1 - len(model.block_columns)) / model.freedom)
        series = permuted(left - left.mean(), model.blocks, STUDIES, random) * wide
        series = series * deviations_like(freedom(left, model.freedom), random)
        level = level / len(model.terms)
        chance = Chance(n, test.inside, random)

        def found(effect: float) -> np.ndarray:
            rows = test.without(series + (math.log1p(effect) if self.times else effect) * adds)
            return test.f(rows) >= max(test.limit(level), chance.limit(rows, test.f, level))

        return smallest(found, self.options.power, 4 * self.effects[least]["error"])

    def tell(self, result: Analysis, judge: Judge) -> tuple[str, str]:
        found = [c for c in self.claims if judge.holds(c)]
        if found:
            told = "; ".join(
                (" and ".join(self.text(e) for e in self.largest(c)) or c.what) + f" ({judge.p(c)})"
                for c in sorted(found, key=lambda c: c.p)
            )
            first = "Effects on" if len(found) > 1 else "An effect on"
            open_ = [c.what for c in self.claims if not judge.holds(c)]
            rest = f"; of {', '.join(open_)} none is shown" if open_ else ""
            return f"{first} {self.what}: {told}{rest} (base: {self.base}; {self.data}).", FOUND
        if not self.effects:
            return f"No condition is shown to change {self.what} ({self.data}).", OPEN
        if self.flat:
            return (f"Whether a condition changes {self.what} cannot be decided: what conditions and blocks leave of the times is equal, "
                    f"so how sure an effect is cannot be told ({self.data}; base: {self.base})."), OPEN  # fmt: skip
        still = 1.0 if self.times else 0.0
        outer = max(max(abs(e["low"] - still), abs(e["high"] - still)) for e in self.effects)
        if not self.times:
            return (f"No condition is shown to change how much the time varies; differences of mean deviation beyond {at_least(outer)} of "
                    f"the time can be ruled out, {could_have(result, 'one of {} of the time')}, beside a mean deviation of "
                    f"{percent(float(np.mean(self.model.y)))} ({self.data})."), OPEN  # fmt: skip
        if outer <= self.options.matters:
            return (
                f"No condition changes {self.what} by more than {at_least(outer)} ({percent(self.options.confidence)} confidence of each "
                f"effect; {self.data}; base: {self.base}).",
                NONE,
            )
        return (f"Whether a condition changes {self.what} cannot be decided ({self.data}): {could_have(result, 'an effect of {}')}; "
                f"base: {self.base}."), OPEN  # fmt: skip

    def draw(self, title: str, axes: Axes) -> None:
        effects = self.effects
        names = [e["effect"].split(": the ratio")[0] for e in effects]
        at = np.arange(len(effects))[::-1]
        middle = np.array([e["value"] for e in effects])
        low, high = np.array([e["low"] for e in effects]), np.array([e["high"] for e in effects])
        axes.errorbar(middle, at, xerr=[middle - low, high - middle], fmt="o")
        axes.axvline(1 if self.times else 0, color="#999999", linewidth=0.8)
        axes.set_yticks(at, names, fontsize=8)
        axes.set(xlabel="ratio" if self.times else "difference in mean deviation, of the time", title=title)


def _undecided(good: pd.DataFrame, columns: list[str]) -> str:
    """Why nothing can be said of conditions; empty: something can."""
    with_node = with_nodes(good, columns)
    if not with_node:
        return ""
    names = " and ".join(map(_short, with_node))
    return (
        f"What the conditions do cannot be decided: levels of {names} had nodes of their own, so the design cannot "
        f"tell the effect of {names} from that of the node; to tell them apart, run each level on each node "
        f"({len(good)} tasks on {good['node'].nunique()} nodes)."
    )


def _tested(model: Model, effects: list[dict], options: Options) -> tuple[list[Claim], pd.DataFrame]:
    """A claim for each term, and the table of terms and their effects."""
    rng = np.random.default_rng(options.seed)
    tested = terms_tested(model, {t.name: t.where for t in model.terms}, options.permutations, rng)
    raw = [max(p_f, p_permuted) for _, p_f, p_permuted in tested.values()]
    corrected = dict(zip(tested, holm(raw), strict=True))
    claims, rows = [], []
    for t in model.terms:
        own = [e for e in effects if e["term"] == t.name]
        claims.append(Claim(t.name, float(corrected[t.name]), {"effects": own, "order": len(t.factors)}))
        f, p_f, p_permuted = tested[t.name]
        facts = {
            "term": t.name,
            "F": f,
            "p of F": p_f,
            "p, permutation": p_permuted,
            "p, Holm": corrected[t.name],
        }
        rows += [{**facts, **{k: v for k, v in e.items() if k != "term"}} for e in own] or [facts]
    return claims, pd.DataFrame(rows)


def _analysis(
    name: str, title: str, good: pd.DataFrame, y: np.ndarray, options: Options, *, times: bool, left_out: int
) -> Analysis:
    columns = condition_columns(good)
    if equal(good[options.value].to_numpy(dtype=float)):
        return nothing(name, title, f"All {len(good)} tasks took the same time.", len(good))
    if stretches := conditions_in_stretches(good):
        names = " and ".join(map(_short, stretches))
        why = (
            f"What the conditions do cannot be decided: one level of {names} ran after another, so a change of the machine "
            f"meanwhile cannot be told from the effect of {names}; to tell them apart, run the levels in random order ({len(good)} tasks)."
        )
        return nothing(name, title, why, len(good), RANDOM)
    if why := _undecided(good, columns):
        return nothing(name, title, why, len(good))
    rows, means, workloads = by_workload(good, y, columns)
    model = model_of(rows, means, columns)
    if not model.terms or model.freedom < 3:
        whole = f" in {len(rows)} workloads" if workloads else ""
        return nothing(name, title, f"What the conditions do cannot be decided: {len(good)} tasks{whole} are too few for "
                       f"{len(columns)} factors.", len(good))  # fmt: skip
    effects = effects_of(model, options)
    if times:
        for row in effects:
            row |= {key: math.exp(row[key]) for key in ("value", "low", "high")}
    claims, table = _tested(model, effects, options)
    own = _Effects(good, columns, model, options, times, effects, claims, workloads)
    notes = []
    if workloads:
        notes.append(
            f"means of {len(rows)} workloads are compared: replicas share their moment, and are not independent"
        )
    if model.aliased:
        notes.append(
            f"the design cannot tell these from others, so they are not in the model: {', '.join(model.aliased)}"
        )
    if left_out:
        notes.append(f"{left_out} tasks ran under other conditions than intended and are left out")
    facts = {"effects": effects, "base": {_short(f): model.levels[f][0] for f in columns}}
    if times:
        facts["cells"] = _cells(good, columns, options.value)
    result = Analysis(name, title, table, lambda judge: own.tell(result, judge), len(good), options.alpha, claims,
                      partial(own.draw, title), facts, notes, could_see=own.could_see, power=options.power)  # fmt: skip
    return result


def _cells(good: pd.DataFrame, columns: list[str], value: str) -> list[dict]:
    """The table of all conditions: YY, YN, NY, NN where there are two factors with two levels."""
    rows = []
    for levels, part in good.groupby([good[f].map(str) for f in columns], sort=True):
        x = part[value].to_numpy(dtype=float)
        rows.append({**dict(zip(map(_short, columns), levels, strict=True)), "n": len(x), "median": float(np.median(x)),
                     "mean": float(x.mean()), "(max-min)/min": float(x.max() / x.min() - 1),
                     "CoV": float(np.std(x, ddof=1) / x.mean()) if len(x) > 1 else None})  # fmt: skip
    if len(columns) == 2 and all(good[f].map(str).nunique() == 2 for f in columns):
        yes = [levels_of(good[f])[1] for f in columns]
        for row in rows:
            at = [row[_short(f)] for f in columns]
            row["case"] = "".join("Y" if a == y else "N" for a, y in zip(at, yes, strict=True))
    return rows


def _checked(frame: pd.DataFrame, options: Options) -> tuple[pd.DataFrame, int, list[str]]:
    good, left_out = as_verified(usable(frame, options.value))
    return good, left_out, condition_columns(good)


def factors(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Main effects and interactions of two on the logarithm of the time, as ratios to the base level with
    intervals.
    """
    title = "What the conditions do to the time"
    good, left_out, columns = _checked(frame, options)
    if not columns:
        return nothing("factors", title, "No condition was varied.", len(good))
    y = np.log(good[options.value].to_numpy(dtype=float))
    return _analysis("factors", title, good, y, options, times=True, left_out=left_out)


def variation_factors(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """The same of absolute deviations from each condition's median: which condition makes the time vary."""
    title = "What the conditions do to the variation"
    good, left_out, columns = _checked(frame, options)
    if not columns:
        return nothing("variation_factors", title, "No condition was varied.", len(good))
    y = np.log(good[options.value].to_numpy(dtype=float))
    # Deviations are of the times as they are: effects of blocks, taken out first, would be
    # estimated from the very tasks whose deviations are compared (with two tasks a block both would
    # deviate alike).
    cell = cells_of(good, [*columns, "block"])
    if pd.Series(cell).value_counts().min() < _REPEATED:
        cell = cells_of(good, columns)
    groups = pd.Series(y).groupby(cell.to_numpy())
    deviation = np.abs(y - groups.transform("median").to_numpy())
    # The median of an odd number leaves a zero that is not an observation (Hines and O'Hara Hines,
    # 2000).
    size = groups.transform("size").to_numpy()
    structural = np.zeros(len(y), dtype=bool)
    for _, where in groups.indices.items():
        if len(where) % 2:
            structural[where[np.argmin(deviation[where])]] = True
    keep = ~structural & (size >= 3)
    part = good[keep].reset_index(drop=True)
    if len(part) < 8 or condition_columns(part) != columns:
        return nothing("variation_factors", title, f"Which condition makes the time vary cannot be decided with {len(good)} tasks.",
                       len(good))  # fmt: skip
    return _analysis(
        "variation_factors", title, part, deviation[keep], options, times=False, left_out=left_out
    )
