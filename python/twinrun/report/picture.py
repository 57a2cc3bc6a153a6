"""How the difference of two runs grows: |a - b| by step, a line for each field, as PNG, PDF or SVG by
matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..comparison.work import Comparison
from ..errors import MissingPackage
from ..outputs import picture_form, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["growth", "growth_figure", "save_growth"]


def growth(
    comparisons: Comparison | Iterable[Comparison],
) -> dict[str, list[tuple[int, float, float | None, bool]]]:
    """{field: [(step, at least, at most, exact)]}: bounds of the largest |a - b| over all ranks, by step."""
    both = [comparisons] if isinstance(comparisons, Comparison) else list(comparisons)
    lines: dict[str, dict[int, tuple[float, float | None, bool]]] = {}
    for f in (f for c in both for f in c.fields):
        if f.step is None:
            continue
        low, high, known = lines.setdefault(f.field, {}).get(f.step, (0.0, 0.0, True))
        low = max(low, f.max_abs_diff_at_least)
        high = None if high is None or f.max_abs_diff is None else max(high, f.max_abs_diff)
        lines[f.field][f.step] = (low, high, known and not f.max_abs_diff_is_bound)
    return {name: [(s, *v) for s, v in sorted(steps.items())] for name, steps in lines.items()}


def save_growth(comparison: Comparison, path: str, title: str | None = None) -> None:
    """Draws `growth` into a file.

    Raises MissingPackage without matplotlib, TwinrunError where it cannot write.
    """
    figure = growth_figure(comparison, title)
    ours: dict[str, Any] = {"metadata": {"Software": "twinrun"}} if picture_form(path) == "png" else {}
    save_figure(figure, path, dpi=120, **ours)


def growth_figure(comparison: Comparison, title: str | None = None) -> Figure:
    """Draws `growth`. Raises MissingPackage without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage.of("matplotlib", "twinrun[plot]") from None
    lines = growth(comparison)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    drawn = bounds = False
    for name, points in lines.items():
        # A bound is drawn as an arrow down: the true value lies below.
        shown = [(s, high, exact) for s, _, high, exact in points if high and math.isfinite(high)]
        if not shown:
            continue
        drawn = True
        (line,) = axes.plot([s for s, *_ in shown], [v for _, v, _ in shown], label=name)
        for marker, is_exact in (("o", True), ("v", False)):
            some = [(s, v) for s, v, exact in shown if exact == is_exact]
            bounds = bounds or (bool(some) and not is_exact)
            axes.plot(
                [s for s, _ in some],
                [v for _, v in some],
                marker,
                color=line.get_color(),
                markerfacecolor=line.get_color() if is_exact else "white",
            )
    tolerances = {f.atol for f in comparison.fields if f.atol > 0 and f.rtol == 0}
    for t in sorted(tolerances):
        axes.axhline(t, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"tolerance {t:g}", (0.01, t), xycoords=("axes fraction", "data"), va="bottom", fontsize=9
        )
    if drawn:
        axes.set_yscale("log")
        axes.legend(ncols=2, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no difference", ha="center", va="center", transform=axes.transAxes)
    steps = sorted({s for points in lines.values() for s, *_ in points})
    axes.set_xticks(steps[:: max(1, len(steps) // 12)])
    axes.set_xlabel("step")
    axes.set_ylabel("largest |a − b|" + (" (▽: at most, from metadata alone)" if bounds else ""))
    axes.set_title(title or f"{comparison.a} against {comparison.b}")
    axes.grid(alpha=0.3)
    return figure
