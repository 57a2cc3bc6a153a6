"""Whether there is a bad node.

A test over all nodes at once (Kruskal-Wallis) has almost no power against one slow node among many: with 64
nodes, 3 runs each, 3% noise and one node 10% slower it rejects in 6% of studies. Each node is tested against
the rest instead, corrected for their number twice over: Benjamini-Hochberg on t tests, and the largest |t| of
all nodes under permutation within blocks, which also knows about tails that are not normal. A node is called
bad only if both say so. One fast run does not acquit a node, so the sentence names the effect that could
have been found. Where conditions or blocks had nodes of their own nothing is claimed and nothing denied.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import statsmodels.api as sm
from matplotlib.axes import Axes
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower

from ..study.tasks import condition_columns, usable
from .model import confounded, left_over, percent
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, nothing

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
    good = good[good["node"].notna()].reset_index(drop=True)
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
    # Step-down is not needed, because the question is one bad node: all nodes are compared with the largest
    # of all.
    order = np.argsort(-np.abs(own))
    looked = order[: min(8, len(order))]
    p_permuted = np.ones(len(labels))
    p_permuted[looked] = permutation_p(
        np.abs(own[looked]),
        lambda k: np.repeat(
            np.abs(t(over.again(permuted(left, inside, k, rng)))).max(axis=1)[:, None], len(looked), axis=1
        ),
        options.permutations,
    )
    for k in order[len(looked) :]:
        p_permuted[k] = p_permuted[looked[-1]]  # a smaller |t| has a larger p
    p = np.maximum(corrected, p_permuted)
    sigma = float(np.std(left, ddof=1))
    effect = left @ member / n - (left.sum() - left @ member) / (total - n)
    error = effect / np.where(own == 0, 1, own)
    error = np.where(own == 0, sigma * np.sqrt(1 / n + 1 / (total - n)), error)
    half = stats.t.ppf(1 - options.alpha / (2 * len(labels)), freedom) * error
    fewest = int(n.min())
    size = float(
        TTestIndPower().solve_power(
            None, fewest, options.alpha / len(labels), options.power, (total - fewest) / fewest, "two-sided"
        )
    )
    rest_sigma = float(
        np.sqrt(max((left**2).sum() - ((left @ member) ** 2 / n).sum(), 0) / max(total - len(labels), 1))
    )
    seen = float(np.expm1(size * rest_sigma))
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
        "high": np.expm1(effect + half), "p": p_t, "p, Benjamini-Hochberg": corrected, "p, permutation": p_permuted,
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
        least = f"a node {percent(seen)} slower could have been seen (in {percent(options.power)} of studies like this, before the correction over analyses)"
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

    facts = {"detectable": seen, "variance_share": {"value": share, "low": share_low, "high": share_high}}
    return Analysis("nodes", title, table, tell, total, options.alpha, claims, draw, facts)
