"""Effects of time: by block, by time of day, and periodic over the study."""

from __future__ import annotations

import numpy as np
import pandas as pd
import statsmodels.api as sm
from matplotlib.axes import Axes
from scipy import signal, stats
from scipy.optimize import brentq

from ..study.tasks import condition_columns, usable
from .model import left_over, model_of, percent, residuals, terms_tested
from .resampling import permutation_p, permuted
from .result import FOUND, NONE, OPEN, Analysis, Claim, Judge, Options, nothing

__all__ = ["blocks", "periods", "time_of_day"]

_DAY = 86400.0


def blocks(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """Whether blocks (batches) differ: the test of a random effect, and the standard deviation between blocks
    with its interval.
    """
    title = "By block"
    good = usable(frame, options.value)
    if good["block"].nunique() < 2 or len(good) < 2 * good["block"].nunique():
        return nothing("blocks", title, f"Whether blocks differ cannot be decided: {len(good)} tasks in "
                       f"{good['block'].nunique()} block(s).", len(good))  # fmt: skip
    y = np.log(good[options.value].to_numpy(dtype=float))
    model = model_of(good, y, condition_columns(good))
    rng = np.random.default_rng(options.seed)
    f, p_f, p_permuted = terms_tested(model, {"block": model.block_columns}, options.permutations, rng)[
        "block"
    ]
    sizes = good["block"].value_counts().to_numpy()
    freedom, left = len(model.block_columns), model.freedom
    n0 = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / freedom
    sigma = float(np.sqrt(model.fit().mse_resid))

    def deviation(f_true: float) -> float:
        return sigma * float(np.sqrt(max(0.0, (f_true - 1) / n0)))

    half = options.alpha / 2
    low = deviation(f / stats.f.ppf(1 - half, freedom, left))
    high = deviation(f / stats.f.ppf(half, freedom, left))
    # With a standard deviation of s between blocks F is (1 + n0 s^2 / sigma^2) times an F variable.
    critical = stats.f.ppf(1 - options.alpha, freedom, left)
    seen = deviation(critical / stats.f.ppf(1 - options.power, freedom, left))
    claim = Claim("blocks differ", max(p_f, p_permuted), {"between": deviation(f), "low": low, "high": high})
    middle = float(np.median(good[options.value]))
    rows = []
    left_over = residuals(good, options.value, blocks=False)
    for block, where in good.groupby("block", sort=True).indices.items():
        part = good[options.value].to_numpy(dtype=float)[where]
        rows.append({"block": block, "n": len(where), "median": float(np.median(part)), "(max-min)/min": part.max() / part.min() - 1,
                     "CoV": float(np.std(part, ddof=1) / part.mean()) if len(part) > 1 else np.nan,
                     "against all, conditions taken out": float(np.expm1(left_over[where].mean()))})  # fmt: skip
    table = pd.DataFrame(rows)

    def tell(judge: Judge) -> tuple[str, str]:
        data = f"{len(good)} tasks in {freedom + 1} blocks"
        if judge.holds(claim):
            return (f"Blocks differ ({judge.p(claim)}): a standard deviation between them of {percent(deviation(f))} of the time "
                    f"[{percent(low)}, {percent(high)}], beside {percent(sigma)} within ({data})."), FOUND  # fmt: skip
        if high <= options.matters:
            return (
                f"Blocks do not differ by a standard deviation of more than {percent(high)} of the time ({data}).",
                NONE,
            )
        return (f"Whether blocks differ cannot be decided ({judge.p(claim)}, {data}): a standard deviation between blocks of "
                f"{percent(seen)} of the time could have been seen."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        groups = [
            good[options.value].to_numpy(dtype=float)[w] for w in good.groupby("block").indices.values()
        ]
        axes.boxplot(groups, widths=0.6)
        axes.axhline(middle, color="#999999", linewidth=0.8)
        axes.set_xticks(range(1, len(groups) + 1), [str(b) for b in table["block"]], fontsize=7)
        axes.set(xlabel="block", ylabel=f"{options.value} (s)", title=title)

    facts = {"between": deviation(f), "low": low, "high": high, "within": sigma, "detectable": seen}
    return Analysis("blocks", title, table, tell, len(good), options.alpha, [claim], draw, facts)


def _moments(good: pd.DataFrame) -> np.ndarray | None:
    """Middles of tasks in seconds, or None where starts are not known."""
    if not np.isfinite(good["start"]).all():
        return None
    return good["start"].to_numpy(dtype=float)


def time_of_day(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """A daily rhythm: one sine and cosine of 24 h (UTC) fitted to means of hours, for tasks of one hour share
    what happened in it.
    """
    title = "By time of day"
    good = usable(frame, options.value)
    start = _moments(good)
    need = "it takes two days and more, and eight hours of work spread over them"
    covered = 0.0 if start is None or len(good) == 0 else float(start.max() - start.min())
    hours = np.array([]) if start is None else np.unique(start // 3600)
    if start is None or covered < 2 * _DAY or len(hours) < 8 or len(np.unique(hours % 24)) < 6:
        return nothing("time_of_day", title, f"Whether the time of day matters cannot be decided: the study's {len(good)} tasks "
                       f"cover {covered / 3600:.3g} h; {need}.", len(good))  # fmt: skip
    left = residuals(good, options.value, blocks=False)
    mean = pd.Series(left).groupby(start // 3600).mean()
    count = pd.Series(left).groupby(start // 3600).size().to_numpy()
    angle = 2 * np.pi * (mean.index.to_numpy() + 0.5) / 24
    matrix = np.column_stack([np.ones_like(angle), np.cos(angle), np.sin(angle)])
    weights = count / count.mean()
    fit = sm.WLS(mean.to_numpy(), matrix, weights=weights).fit()
    y, w = mean.to_numpy(), np.sqrt(weights)
    q = np.linalg.qr(matrix[:, 1:] * w[:, None] - np.outer(w, w @ (matrix[:, 1:] * w[:, None])) / (w @ w))[0]

    def power(v: np.ndarray) -> np.ndarray:
        v = v * w
        v = v - (v @ w)[:, None] * w / (w @ w)
        gain = ((v @ q) ** 2).sum(axis=1)
        return (gain / np.maximum((v**2).sum(axis=1) - gain, 1e-300))[:, None]

    rng = np.random.default_rng(options.seed)
    p_permuted = permutation_p(
        power(y[None])[0], lambda n: power(permuted(y, None, n, rng)), options.permutations
    )[0]
    amplitude = float(np.hypot(fit.params[1], fit.params[2]))
    error = float(np.sqrt((fit.bse[1] ** 2 + fit.bse[2] ** 2) / 2))
    half = stats.norm.ppf(1 - options.alpha / 2) * error
    seen = error * float(np.sqrt(_noncentral(options.alpha, options.power, len(y) - 3)))
    claim = Claim("a daily rhythm", max(float(fit.f_pvalue), float(p_permuted)),
                  {"amplitude": amplitude, "low": max(0.0, amplitude - half), "high": amplitude + half})  # fmt: skip
    slowest = float(np.arctan2(fit.params[2], fit.params[1]) / (2 * np.pi) * 24 % 24)
    of_day = (mean.index.to_numpy() % 24).astype(int)
    table = pd.DataFrame({"hour (UTC)": of_day, "against all": np.expm1(mean.to_numpy()), "n": count})
    table = table.groupby("hour (UTC)").agg({"against all": "mean", "n": "sum"}).reset_index()

    def tell(judge: Judge) -> tuple[str, str]:
        data = f"{len(good)} tasks in {len(y)} hours over {covered / _DAY:.3g} days"
        if judge.holds(claim):
            return (f"There is a daily rhythm ({judge.p(claim)}): +-{percent(amplitude)} of the time "
                    f"[{percent(claim.facts['low'])}, {percent(claim.facts['high'])}], slowest at {slowest:.1f} h UTC ({data})."), FOUND  # fmt: skip
        if amplitude + half <= options.matters:
            return f"No daily rhythm of more than +-{percent(amplitude + half)} of the time ({data}).", NONE
        return (f"Whether the time of day matters cannot be decided ({judge.p(claim)}, {data}): +-{percent(seen)} of the time "
                "could have been seen."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(start % _DAY / 3600, 100 * np.expm1(left), ".", alpha=0.5)
        axes.set(xlabel="hour of the day (UTC)", ylabel="against all (%)", title=title, xlim=(0, 24))

    facts = {**claim.facts, "detectable": seen}
    return Analysis("time_of_day", title, table, tell, len(good), options.alpha, [claim], draw, facts)


def _noncentral(alpha: float, power: float, freedom: int) -> float:
    """The noncentrality of F with 2 degrees at which a test has this power, for two coefficients of equal
    error.
    """
    critical = stats.f.ppf(1 - alpha, 2, freedom)
    return float(brentq(lambda x: stats.ncf.sf(critical, 2, freedom, x) - power, 1e-3, 1e3))


def _among_drifting(
    series: np.ndarray, basis: np.ndarray, cycles: np.ndarray, options: Options, rng: np.random.Generator
) -> float:
    """p of the highest peak, each taken against what the spectrum of an autoregression has there.

    series, basis: rows in the order of time, whose steps are taken as even. Both the data and the series
    drawn at random have their own coefficient estimated, with their own best period taken out, so that the
    estimate's error counts for all alike.
    """

    def scaled(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v = v - v.mean(axis=1, keepdims=True)
        v = v / np.maximum(v.std(axis=1, keepdims=True), 1e-300)
        return v, (v @ basis).reshape(len(v), -1, 2)

    def coefficient(v: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        best = (pairs**2).sum(axis=2).argmax(axis=1)
        columns = basis.reshape(len(basis), -1, 2)[:, best].transpose(1, 0, 2)
        v = v - (columns @ pairs[np.arange(len(v)), best][:, :, None])[:, :, 0]
        return np.clip((v[:, 1:] * v[:, :-1]).sum(axis=1) / np.maximum((v**2).sum(axis=1), 1e-300), 0.0, 0.95)

    def highest(v: np.ndarray) -> np.ndarray:
        v, pairs = scaled(v)
        phi = coefficient(v, pairs)[:, None]
        red = 1 / (1 + phi**2 - 2 * phi * np.cos(2 * np.pi * cycles[None] / v.shape[1]))
        return ((pairs**2).sum(axis=2) / (red / red.mean(axis=1, keepdims=True))).max(axis=1)[:, None]

    phi = float(coefficient(*scaled(series[None]))[0])

    def drawn(n: int) -> np.ndarray:
        shocks = rng.standard_normal((n, len(series) + 50))
        return highest(signal.lfilter([1.0], [1.0, -phi], shocks, axis=1)[:, 50:])

    return float(permutation_p(highest(series[None])[0], drawn, options.permutations)[0])


def periods(frame: pd.DataFrame, options: Options = Options()) -> Analysis:  # noqa: B008
    """A periodic effect: the highest peak of the Lomb-Scargle periodogram of residuals, over starts.

    The p value is of the highest peak of all; periods from two mean gaps to half of the study. It is the
    larger of two: by permutation of the series, and among series in which each task resembles the one before
    (a first-order autoregression as the data's own, the best period taken out): load that comes and goes
    slowly has high peaks, and no period.
    """
    title = "Periodic noise"
    good = usable(frame, options.value)
    start = _moments(good)
    if start is None or len(good) < 12 or start.max() <= start.min():
        return nothing(
            "periods",
            title,
            f"Whether noise is periodic cannot be decided with {len(good)} tasks.",
            len(good),
        )
    # A node that comes round regularly is an effect of the node, not a period.
    over = left_over(good, options.value, blocks=False, nodes=True)
    left = over.values
    if left.std() < 1e-12:
        return nothing("periods", title, f"All {len(good)} tasks took the same time.", len(good))
    t = start - start.min()
    covered = float(t.max())
    most = len(t) / 2
    cycles = np.arange(2.0, most + 0.25, 0.25)  # in the whole study; finer steps find no more
    angle = 2 * np.pi * cycles[:, None] * t / covered
    pairs = np.stack([np.cos(angle), np.sin(angle)], axis=2)
    pairs -= pairs.mean(axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(pairs, full_matrices=False)
    u = np.where((s < 1e-6 * s.max(axis=1, keepdims=True))[:, None, :], 0, u)
    basis = u.transpose(1, 0, 2).reshape(len(t), -1)

    def peaks(v: np.ndarray) -> np.ndarray:
        v = v - v.mean(axis=1, keepdims=True)
        v = v / np.maximum(v.std(axis=1, keepdims=True), 1e-300)
        return ((v @ basis) ** 2).reshape(len(v), -1, 2).sum(axis=2) / len(t)

    rng = np.random.default_rng(options.seed)
    own = peaks(left[None])[0]
    p = permutation_p(np.array([own.max()]), lambda n: peaks(over.again(permuted(left, None, n, rng))).max(axis=1)[:, None],
                      options.permutations)[0]  # fmt: skip
    in_time = np.argsort(t)
    p = max(p, _among_drifting(left[in_time], basis[in_time], cycles, options, rng))
    best = int(own.argmax())
    period = covered / cycles[best]
    share = float(own[best])  # of the variance
    amplitude = float(np.sqrt(2 * share) * np.std(left))
    freedom = len(t) - 3
    # Bonferroni over the independent frequencies, of which there are about as many as pairs of tasks.
    seen_share = _noncentral(options.alpha / most, options.power, freedom) / (len(t) + _noncentral(options.alpha / most, options.power, freedom))  # fmt: skip
    seen = float(np.sqrt(2 * seen_share) * np.std(left))
    claim = Claim(
        f"a period of {period:.3g} s", float(p), {"period": period, "amplitude": amplitude, "share": share}
    )
    power = (
        signal.lombscargle(t, left - left.mean(), 2 * np.pi * cycles / covered, normalize=True)
        if share
        else own
    )
    table = pd.DataFrame(
        {"period (s)": covered / cycles, "share of the variance": own, "Lomb-Scargle": power}
    )
    table = table.sort_values("share of the variance", ascending=False).head(5).reset_index(drop=True)

    def tell(judge: Judge) -> tuple[str, str]:
        if judge.holds(claim):
            return (f"Something comes back every {period:.4g} s, or at a multiple of that rate that tasks cannot tell apart "
                    f"({judge.p(claim)}): +-{percent(amplitude)} of the time, {percent(share)} of the variance that conditions leave "
                    f"({len(t)} tasks over {covered:.4g} s)."), FOUND  # fmt: skip
        if seen <= options.matters:
            return (f"No periodic noise is shown; +-{percent(seen)} of the time could have been seen, in {percent(options.power)} of studies "
                    f"like this, before the correction over analyses ({len(t)} tasks over {covered:.4g} s)."), NONE  # fmt: skip
        return (f"Whether noise is periodic cannot be decided ({judge.p(claim)}, {len(t)} tasks over {covered:.4g} s): "
                f"+-{percent(seen)} of the time could have been seen."), OPEN  # fmt: skip

    def draw(axes: Axes) -> None:
        axes.plot(covered / cycles, own)
        axes.set(xscale="log", xlabel="period (s)", ylabel="share of the variance", title=title)

    facts = {**claim.facts, "detectable": seen}
    return Analysis("periods", title, table, tell, len(t), options.alpha, [claim], draw, facts)
