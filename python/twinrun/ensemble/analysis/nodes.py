"""Whether there is a bad node.

A test over all nodes at once (Kruskal-Wallis) has almost no power against one slow node among many:
with 64 nodes, 3 runs each, 3% noise and one node 10% slower it rejects in 6% of studies. Each node
is tested against the rest instead, corrected for their number twice over: Benjamini-Hochberg on t
tests, and the largest |t| of all nodes under permutation within blocks, which also knows about
tails that are not normal. A node is called bad only if both say so. It is then taken out before the
next is looked at. One fast run does not acquit a node, so the sentence names the effect that could
have been found. If conditions or blocks had nodes of their own, the analysis cannot decide.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pandas as pd
import statsmodels.api as sm
from matplotlib.axes import Axes
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ..study.tasks import condition_columns, usable
from .model import confounded, fall_of_bic, left_over, percent
from .power import STUDIES, smallest
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, could_have, nothing

__all__ = ["nodes", "variance_share"]


def variance_share(y: np.ndarray, groups: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """The share of the variance that lies between groups (intraclass correlation), and its interval.

    One-way random effects by analysis of variance; the interval is that of F, with the mean group size of
    Searle for unequal ones.
    """
    fit = sm.OLS(y, pd.get_dummies(pd.Series(groups.astype(str)), dtype=float).to_numpy()).fit()
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
    if len(count) < 2:
        return nothing("nodes", title, f"Whether nodes differ cannot be decided: all {len(good)} tasks with a known node "
                       "ran on one.", len(good))  # fmt: skip
    if len(good) < len(count) + 3:
        return nothing("nodes", title, f"Whether nodes differ cannot be decided: {len(good)} tasks on {len(count)} nodes; "
                       "each node needs two runs and more.", len(good))  # fmt: skip
    blocks = good["block"].nunique() > 1 and len(good) >= 2 * good["block"].nunique()
    with_node = confounded(good, [*condition_columns(good), *(["block"] if blocks else [])], "node")
    if with_node:
        what = " and ".join(f.removeprefix("factors.") for f in with_node)
        return nothing("nodes", title, f"Whether nodes differ cannot be decided: each {what} had nodes of its own, so the design cannot tell "
                       f"the effect of a node from that of the {what}; to tell them apart, run each {what} on each node ({len(good)} tasks on "
                       f"{len(count)} nodes).", len(good))  # fmt: skip
    over = left_over(good, options.value, blocks=blocks)
    left = over.values
    labels = sorted(count.index)
    member = (names.to_numpy()[:, None] == np.array(labels)[None, :]).astype(float)
    n = member.sum(axis=0)
    total = len(left)
    inside = good["block"].to_numpy() if blocks else None

    def t(values: np.ndarray) -> np.ndarray:
        """The two-sample t of each node against the rest, with pooled variance; a row for each series."""
        mine = values @ member
        rest = values.sum(axis=1, keepdims=True) - mine
        squares = (values**2).sum(axis=1, keepdims=True)
        inner = squares - mine**2 / n - rest**2 / (total - n)
        error = np.sqrt(np.maximum(inner, 1e-300) / (total - 2) * (1 / n + 1 / (total - n)))
        return (mine / n - rest / (total - n)) / error

    own = t(left[None])[0]
    freedom = total - 2
    p_t = 2 * stats.t.sf(np.abs(own), freedom)
    corrected = multipletests(p_t, method="fdr_bh")[1]
    rng = np.random.default_rng(options.seed)

    def largest(values: np.ndarray, count: int) -> np.ndarray:
        """The largest |t| of all nodes, in shuffled values."""
        return np.abs(t(over.again(permuted(values, inside, count, rng)))).max(axis=1)[:, None]

    # One node after another: a slow one makes all others look fast beside a rest that holds it. So
    # the farthest is taken out before the next is looked at, and a later p is never smaller than an
    # earlier one.
    p = np.ones(len(labels))
    seen_as = own.copy()
    rest, open_, before = left, list(range(len(labels))), 0.0
    while len(open_) > 1:
        now = t(rest[None])[0]
        k = int(np.argmax(now)) if len(labels) == 2 else max(open_, key=lambda i: abs(now[i]))
        classic = float(multipletests(2 * stats.t.sf(np.abs(now[open_]), freedom), method="fdr_bh")[1].min())
        shuffled = functools.partial(largest, rest)
        before = max(
            before, classic, float(permutation_p(np.abs(now[[k]]), shuffled, options.permutations)[0])
        )
        p[k], seen_as[k] = before, now[k]
        if before > options.alpha:
            break
        open_.remove(k)
        if len(labels) == 2:
            break  # one is slower than the other, or the other faster: one finding
        out = member[:, k] > 0
        rest = np.where(out, rest - rest[out].mean() + rest[~out].mean(), rest)
    order = np.lexsort((-np.abs(seen_as), p))
    sigma = float(np.std(left, ddof=1))
    # Each against the rest, without those that were found before it.
    found = [k for k in order if p[k] <= options.alpha]
    effect, error = np.zeros(len(labels)), np.zeros(len(labels))
    for k in range(len(labels)):
        others = [j for j in range(len(labels)) if j != k and not (j in found and len(labels) > 2)] or [
            j for j in range(len(labels)) if j != k
        ]
        mine, theirs = left[member[:, k] > 0], left[member[:, others].any(axis=1)]
        effect[k] = mine.mean() - theirs.mean()
        inner = ((mine - mine.mean()) ** 2).sum() + ((theirs - theirs.mean()) ** 2).sum()
        spread = inner / max(len(mine) + len(theirs) - 2, 1)
        error[k] = np.sqrt(spread * (1 / len(mine) + 1 / len(theirs)))
    half = stats.t.ppf(1 - options.alpha / (2 * len(labels)), freedom) * error

    def could_see(level: float) -> float:
        """The node with the fewest runs is slower, in shuffled residuals."""
        random = np.random.default_rng(options.seed)
        # Without what nodes do, found or not.
        values = rest - (rest @ member / n) @ member.T + rest.mean()
        values = values * np.sqrt(total / max(total - len(labels), 1))
        slow = member[:, int(n.argmin())]
        series = over.again(permuted(values, inside, STUDIES, random)) * over.scale
        by_chance = float(np.quantile(largest(values, 1999), 1 - level))
        limit = max(by_chance, float(stats.t.ppf(1 - level / len(labels) / 2, freedom)))

        def found_at(effect: float) -> np.ndarray:
            return np.abs(t(over.again(series + np.log1p(effect) * slow))[:, int(n.argmin())]) >= limit

        return smallest(found_at, options.power, float(np.expm1(2 * sigma)))

    def explains(judge: Judge) -> tuple[pd.Series, float] | None:
        bad = [labels.index(c.facts["node"]) for c in claims if judge.holds(c)]
        if not bad:
            return None
        added = member[:, bad] @ effect[bad]
        return pd.Series(added, index=rows), fall_of_bic(left, added, 2 * len(bad))

    if (n >= 2).any() and total > len(labels):
        share, share_low, share_high = variance_share(left, names.to_numpy(), options.confidence)
    else:
        share = share_low = share_high = np.nan
    claims = [
        Claim(f"node {labels[k]} differs", float(p[k]), {"node": labels[k], "effect": float(np.expm1(effect[k])),
              "low": float(np.expm1(effect[k] - half[k])), "high": float(np.expm1(effect[k] + half[k]))})
        for k in order
    ]  # fmt: skip
    table = pd.DataFrame({
        "node": labels, "n": n.astype(int), "against the rest": np.expm1(effect), "low": np.expm1(effect - half),
        "high": np.expm1(effect + half), "p": p_t, "p, Benjamini-Hochberg": corrected, "p, one after another": p,
    }).iloc[order].reset_index(drop=True)  # fmt: skip

    def tell(judge: Judge) -> tuple[str, str]:
        data = f"{total} tasks on {len(labels)} nodes"
        bad = [c for c in claims if judge.holds(c)]
        part = f"nodes hold {percent(share)} [{percent(share_low)}, {percent(share_high)}] of the variance"
        if bad:
            told = "; ".join(
                f"{c.facts['node']} is {percent(abs(c.facts['effect']))} {'slower' if c.facts['effect'] > 0 else 'faster'} than the "
                f"rest [{percent(c.facts['low'])}, {percent(c.facts['high'])}] ({judge.p(c)})"
                for c in bad[:3]
            )
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            return f"Node {told}{more}; {part} ({data}).", FOUND
        limit = float(np.expm1(np.max(np.abs(effect) + half)))
        if limit <= options.matters:
            return f"No node is off by more than {percent(limit)}; {part} ({data}).", NONE
        least = could_have(result, "a node {} slower")
        seen = result.seen or math.inf
        if seen <= options.matters:
            return f"No bad node was found; {least}; {part} ({data}).", NONE
        return (
            f"Whether there is a bad node cannot be decided: {least}, a smaller effect not; {part} ({data}).",
            OPEN,
        )

    def draw(axes: Axes) -> None:
        shown = table.sort_values("against the rest").reset_index(drop=True)
        axes.errorbar(range(len(shown)), 100 * shown["against the rest"],
                      [100 * (shown["against the rest"] - shown["low"]), 100 * (shown["high"] - shown["against the rest"])],
                      fmt="o", markersize=3, linewidth=0.8)  # fmt: skip
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set(xlabel="node, by effect", ylabel="against the rest (%)", title=title)
        if len(shown) <= 16:
            axes.set_xticks(range(len(shown)), shown["node"], rotation=45, ha="right", fontsize=7)

    facts = {"variance_share": {"value": share, "low": share_low, "high": share_high}}
    result = Analysis("nodes", title, table, tell, total, options.alpha, claims, draw, facts,
                      explains=explains, could_see=could_see, power=options.power)  # fmt: skip
    return result
