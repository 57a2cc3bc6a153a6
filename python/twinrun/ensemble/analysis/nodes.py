"""Whether there is a bad node.

A test over all nodes at once (Kruskal-Wallis) has almost no power against one slow node among many:
with 64 nodes, 3 runs each, 3% noise and one node 10% slower it rejects in 6% of studies. Each node
is tested against the rest instead, corrected for their number twice over: Benjamini-Hochberg on t
tests, and the smallest p of all nodes under permutation within blocks, which also knows about
tails that are not normal. A node is called bad only if both say so. It is then taken out before the
next is looked at. A node that varies more than the rest is tested with its own variance
(`unequal`). One fast run does not acquit a node, so the sentence names the effect that could have
been found. Where conditions or blocks had nodes of their own nothing is claimed and nothing denied.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS

from ..study.tasks import condition_columns, usable
from .correction import benjamini_hochberg
from .deviations import freedom
from .model import Left, at_least, confounded, fall_of_bic, left_over, percent
from .order import RANDOM, in_stretches
from .power import STUDIES, Chance, deviations_like, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing
from .unequal import against_rest, error_against_rest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["nodes", "variance_share"]


def variance_share(y: np.ndarray, groups: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """The share of the variance that lies between groups (intraclass correlation), and its interval.

    One-way random effects by analysis of variance; the interval is that of F, with the mean group size of
    Searle for unequal ones.
    """
    fit = OLS(y, pd.get_dummies(pd.Series(groups.astype(str)), dtype=float).to_numpy()).fit()
    sizes = np.unique(groups.astype(str), return_counts=True)[1]
    k, n = len(sizes), len(y)
    n0 = (n - (sizes**2).sum() / n) / (k - 1)
    between = float((fit.fittedvalues - y.mean()) @ (fit.fittedvalues - y.mean())) / (k - 1)
    f = between / max(float(fit.mse_resid), 1e-300)
    half = (1 - confidence) / 2

    def share(x: float) -> float:
        return float(np.clip((x - 1) / (x - 1 + n0), 0, 1))

    return (
        share(f),
        share(f / stats.f.ppf(1 - half, k - 1, n - k)),
        share(f / stats.f.ppf(half, k - 1, n - k)),
    )


def _evidence(p: np.ndarray) -> np.ndarray:
    """Larger where p is smaller."""
    return -np.log(np.maximum(p, 1e-300))


@dataclass
class _Nodes:
    """The tasks of each node. member: 1 where a task (row) ran on a node (column). inside: the
    block of each task, within which values are shuffled; None: there are none.
    """

    labels: list[str]
    member: np.ndarray
    over: Left
    inside: np.ndarray | None
    options: Options
    rng: np.random.Generator

    @property
    def n(self) -> np.ndarray:
        """Tasks of each node."""
        return self.member.sum(axis=0)

    @property
    def tasks(self) -> int:
        return len(self.member)

    def against(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each node against the rest, where nodes may vary differently: p of t, and its sign; a row for
        each series.
        """
        difference, _, _, p = against_rest(values, self.member)
        return p, np.sign(difference)

    def largest(self, values: np.ndarray, count: int) -> np.ndarray:
        """-log of the smallest p of all nodes, in shuffled values."""
        shuffled = self.over.again(permuted(values, self.inside, count, self.rng))
        return _evidence(self.against(shuffled)[0]).max(axis=1)[:, None]

    def signed(self, values: np.ndarray) -> np.ndarray:
        """The evidence that each node differs, negative where it is faster."""
        p, sign = self.against(values[None])
        return (_evidence(p) * sign)[0]

    def one_after_another(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """p of each node, the evidence that it was seen with, and the values without the nodes that
        were found.

        A slow node makes all others look fast beside a rest that holds it. So the farthest is taken
        out before the next is looked at, and a later p is never smaller than an earlier one.
        """
        labels, member = self.labels, self.member
        rest, open_, before = self.over.values, list(range(len(labels))), 0.0
        p = np.ones(len(labels))
        seen_as = self.signed(rest)
        while len(open_) > 1:
            each, sign = (x[0] for x in self.against(rest[None]))
            now = _evidence(each) * sign
            k = int(np.argmax(now)) if len(labels) == 2 else max(open_, key=lambda i: abs(now[i]))
            classic = float(benjamini_hochberg(each[open_]).min())
            shuffled = functools.partial(self.largest, rest)
            by_chance = permutation_p(np.abs(now[[k]]), shuffled, self.options.permutations)
            before = max(before, classic, float(by_chance[0]))
            p[k], seen_as[k] = before, now[k]
            if before > self.options.alpha:
                break
            open_.remove(k)
            if len(labels) == 2:
                break  # one is slower than the other, or the other faster: one finding
            out = member[:, k] > 0
            rest = np.where(out, rest - rest[out].mean() + rest[~out].mean(), rest)
        return p, seen_as, rest

    def effects(self, found: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """How much slower each node is than the rest, without those that were found, and half of
        its interval; in logarithms.

        By least squares beside conditions and blocks. Means of what these leave are of another size: in
        blocks of two tasks a block's mean holds half of what its slow node does.
        """
        count, basis = len(self.labels), self.over.basis
        left = self.over.values * self.over.scale
        own = self.member - basis @ (basis.T @ self.member)
        effect, half = np.zeros(count), np.zeros(count)
        for k in range(count):
            beside = np.linalg.qr(own[:, [j for j in found if j != k and count > 2]])[0]
            alone = own[:, k] - beside @ (beside.T @ own[:, k])
            rest = left - beside @ (beside.T @ left)
            size = max(float(alone @ alone), 1e-12)
            effect[k] = float(alone @ rest) / size
            error, freedom = error_against_rest(
                rest - effect[k] * alone,
                alone / size,
                self.member[:, k] > 0,
                basis.shape[1] + beside.shape[1] + 1,
            )
            # Where all tasks of both took equal times there is no interval.
            half[k] = (
                stats.t.ppf(1 - self.options.alpha / (2 * count), freedom) * error if error > 0 else np.nan
            )
        return effect, half

    def could_see(self, rest: np.ndarray, level: float) -> float:
        """The smallest effect that would be found where the node with the fewest runs is slower, in
        shuffled residuals.

        rest: values without the nodes that were found.
        """
        n, total, member, options = self.n, self.tasks, self.member, self.options
        random = np.random.default_rng(options.seed)
        # Without what nodes do, found or not.
        values = rest - (rest @ member / n) @ member.T + rest.mean()
        values = values * np.sqrt(total / max(total - len(self.labels), 1))
        slow = member[:, int(n.argmin())]
        like = deviations_like(freedom(values, total - len(self.labels)), random)
        series = self.over.again(permuted(values, self.inside, STUDIES, random)) * self.over.scale * like
        limit = float(_evidence(np.array(level / len(self.labels))))
        chance = Chance(total, self.inside, random)

        def found_at(effect: float) -> np.ndarray:
            rows = self.over.again(series + np.log1p(effect) * slow)
            by_chance = chance.limit(
                rows,
                lambda shuffled: _evidence(self.against(self.over.again(shuffled))[0]).max(axis=1),
                level,
            )
            return _evidence(self.against(rows)[0][:, int(n.argmin())]) >= max(limit, by_chance)

        sigma = float(np.std(self.over.values, ddof=1))
        return smallest(found_at, options.power, float(np.expm1(2 * sigma)))


@dataclass(frozen=True)
class _Share:
    """The share of the variance that lies between nodes, and its interval."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        return f"nodes hold {percent(self.value)} [{percent(self.low)}, {percent(self.high)}] of the variance"


def _undecided(good: pd.DataFrame, count: int) -> str:
    """Why nothing can be said of nodes; empty: something can. count: of nodes."""
    known = "Whether nodes differ cannot be decided:"
    if count < 2:
        if not len(good):
            return f"{known} no task tells on which node it ran."
        ran = (
            f"all {len(good)} tasks with a known node ran on one"
            if len(good) > 1
            else "one task tells on which node it ran"
        )
        return f"{known} {ran}."
    if len(good) < count + 3:
        return f"{known} {len(good)} tasks on {count} nodes; each node needs two runs and more."
    if _in_stretches(good):
        return (
            f"{known} tasks ran on one node after another, so a change of the machine meanwhile cannot be told from the effect of "
            f"a node; to tell them apart, run tasks on all nodes at once, or in random order ({len(good)} tasks on {count} nodes)."
        )
    with_node = confounded(
        good, [*condition_columns(good), *(["block"] if _has_blocks(good) else [])], "node"
    )
    if with_node:
        what = " and ".join(f.removeprefix("factors.") for f in with_node)
        return (
            f"{known} each {what} had nodes of its own, so the design cannot tell the effect of a node from that of the {what}; to "
            f"tell them apart, run each {what} on each node ({len(good)} tasks on {count} nodes)."
        )
    return ""


def _in_stretches(good: pd.DataFrame) -> bool:
    return bool(in_stretches(good, ["node"]))


def _has_blocks(good: pd.DataFrame) -> bool:
    return good["block"].nunique() > 1 and len(good) >= 2 * good["block"].nunique()


def _claims(
    labels: list[str], p: np.ndarray, effect: np.ndarray, half: np.ndarray, order: np.ndarray
) -> list[Claim]:
    """A claim for each node, with its effect and the interval as shares of the time."""
    low, middle, high = (np.expm1(x) for x in (effect - half, effect, effect + half))
    return [
        Claim(
            f"node {labels[k]} differs",
            float(p[k]),
            {
                "node": labels[k],
                "effect": float(middle[k]),
                "low": float(low[k]),
                "high": float(high[k]),
            },
        )
        for k in order
    ]


def _table(
    labels: list[str], n: np.ndarray, effect: np.ndarray, half: np.ndarray, p_t: np.ndarray, p: np.ndarray
) -> pd.DataFrame:
    """The nodes. p_t: of each alone; p: of one after another."""
    return pd.DataFrame(
        {
            "node": labels,
            "n": n.astype(int),
            "against the rest": np.expm1(effect),
            "low": np.expm1(effect - half),
            "high": np.expm1(effect + half),
            "p": p_t,
            "p, Benjamini-Hochberg": benjamini_hochberg(p_t),
            "p, one after another": p,
        }
    )


def nodes(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Each node against the rest; the share of the variance between nodes; the smallest effect that could be
    found.
    """
    title = "Is there a bad node?"
    good = usable(frame, options.value)
    rows = np.flatnonzero(good["node"].notna())
    good = good.iloc[rows].reset_index(drop=True)
    names = good["node"].map(str)
    count = names.value_counts()
    if why := _undecided(good, len(count)):
        return nothing("nodes", title, why, len(good), RANDOM if _in_stretches(good) else "")
    blocks = _has_blocks(good)
    over = left_over(good, options.value, blocks=blocks)
    left = over.values
    labels = sorted(count.index)
    member = (names.to_numpy()[:, None] == np.array(labels)[None, :]).astype(float)
    own = _Nodes(
        labels,
        member,
        over,
        good["block"].to_numpy() if blocks else None,
        options,
        np.random.default_rng(options.seed),
    )
    n, total = own.n, own.tasks
    p_t = own.against(left[None])[0][0]
    p, seen_as, rest = own.one_after_another()
    order = np.lexsort((-np.abs(seen_as), p))
    effect, half = own.effects([k for k in order if p[k] <= options.alpha])
    claims = _claims(labels, p, effect, half, order)
    table = _table(labels, n, effect, half, p_t, p).iloc[order].reset_index(drop=True)

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        bad = [labels.index(c.facts["node"]) for c in claims if judge.holds(c)]
        if not bad:
            return None
        added = member[:, bad] @ effect[bad]
        return pd.Series(added, index=rows), fall_of_bic(left, added, 2 * len(bad))

    share = _Share(np.nan, np.nan, np.nan)
    if (n >= 2).any() and total > len(labels):
        share = _Share(*variance_share(left, names.to_numpy(), options.confidence))

    def tell(judge: Judge) -> tuple[str, str]:
        return _sentence(
            result,
            judge,
            options,
            f"{share.text()} ({total} tasks on {len(labels)} nodes)",
            float(np.max(np.abs(effect) + half)),
        )

    facts = {"variance_share": {"value": share.value, "low": share.low, "high": share.high}}
    result = Analysis("nodes", title, table, tell, total, options.alpha, claims, functools.partial(_draw, table, title), facts,
                      explains=explains, could_see=functools.partial(own.could_see, rest), power=options.power)  # fmt: skip
    return result


def _sentence(result: Analysis, judge: Judge, options: Options, part: str, most: float) -> tuple[str, str]:
    """What is said, and its state. part: of the variance, and of which data. most: what no node is
    off by more than; a logarithm.
    """
    bad = [c for c in result.claims if judge.holds(c)]
    if bad:
        told = "; ".join(
            f"{c.facts['node']} is {percent(abs(c.facts['effect']))} {'slower' if c.facts['effect'] > 0 else 'faster'} than the "
            f"rest {_interval(c.facts)} ({judge.p(c)})"
            for c in bad[:3]
        )
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return f"Node {told}{more}; {part}.", FOUND
    limit = float(np.expm1(most))
    if limit <= options.matters:
        known = f"at {percent(options.confidence)} confidence, taking tasks as placed at random"
        return f"No node is off by more than {at_least(limit)} ({known}); {part}.", NONE
    least = could_have(result, "a node {} slower", ", a smaller effect not")
    seen = result.seen or math.inf
    if seen <= options.matters:
        return f"No bad node was found; {least}; {part}.", NONE
    return f"Whether there is a bad node cannot be decided: {least}; {part}.", OPEN


def _interval(facts: dict[str, float]) -> str:
    if not np.isfinite(facts["low"]):
        return "(no interval: beside it all times are equal)"
    return f"[{percent(facts['low'])}, {percent(facts['high'])}]"


def _draw(table: pd.DataFrame, title: str, axes: Axes) -> None:
    shown = table.sort_values("against the rest").reset_index(drop=True)
    axes.errorbar(range(len(shown)), 100 * shown["against the rest"],
                  [100 * (shown["against the rest"] - shown["low"]), 100 * (shown["high"] - shown["against the rest"])],
                  fmt="o", markersize=3, linewidth=0.8)  # fmt: skip
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel="node, by effect", ylabel="against the rest (%)", title=title)
    if len(shown) <= 16:
        axes.set_xticks(range(len(shown)), shown["node"], rotation=45, ha="right", fontsize=7)
