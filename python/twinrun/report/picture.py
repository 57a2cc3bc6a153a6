"""How the difference of two runs grows: |a - b| by step, a line for each field, as PNG, PDF or SVG by
matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..arithmetic import any_values
from ..comparison.work import Comparison, FieldComparison
from ..errors import MissingPackage, TwinrunError, one_line
from ..outputs import picture_form, save_figure
from .places import BINS, Plane, look

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
else:
    from ..later import numpy as np

__all__ = ["growth", "growth_figure", "map_figure", "save_growth"]


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


@any_values
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
        (line,) = axes.plot([s for s, *_ in shown], [v for _, v, _ in shown], label=_label(name))
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
        said = "no difference" if not comparison.different else "they differ, and by how much is not known"
        axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes)
    steps = sorted({s for points in lines.values() for s, *_ in points})
    axes.set_xticks(steps[:: max(1, len(steps) // 12)])
    axes.set_xlabel("step")
    axes.set_ylabel("largest |a − b|" + (" (▽: at most, from metadata alone)" if bounds else ""))
    unknown = sorted({f.step for f in comparison.fields if f.step is not None and not f.different_is_exact})
    if drawn and unknown:
        many = f"{unknown[0]} to {unknown[-1]}" if len(unknown) > 1 else str(unknown[0])
        axes.set_xlabel(f"step (of {many} some differ by an unknown amount: no data)")
    axes.set_title(_label(title or f"{comparison.a} against {comparison.b}"))
    axes.grid(alpha=0.3)
    return figure


@any_values
def map_figure(comparison: Comparison, field: str | None = None, step: int | None = None) -> Figure:
    """Draws where a field differs: the first that does, or the one of this name, at this step.

    Raises MissingPackage without matplotlib, TwinrunError where there is nothing to draw.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage.of("matplotlib", "twinrun[plot]") from None

    def wanted(f: FieldComparison) -> bool:
        return (field is None or f.field == field) and (step is None or f.step == step)

    found, said = look(comparison, 1, wanted=wanted)
    if not found:
        at = "" if step is None else f" at step {step}"
        what = f"no field{at} has" if field is None else f"field {field!r} has no"
        if any(wanted(f) and not f.different_is_exact for f in comparison.fields):
            raise TwinrunError(
                f"digests say that elements{at} differ, and not which: there is no map",
                where=comparison.b,
                fix="keep the data of both runs",
            )
        raise TwinrunError(
            said or f"{what} elements that differ{'' if field is None else at}: there is no map",
            where=comparison.b,
        )
    (places,) = found
    f = places.field
    if places.line is None and not places.planes:
        raise TwinrunError(f"field {f.field!r} has no axes for a map", where=comparison.b)
    panels = max(1, len(places.planes))
    figure = Figure(figsize=(4.8 * panels + 1.2, 4.6), layout="constrained")
    all_axes = figure.subplots(1, panels, squeeze=False)[0]
    if places.line is not None:
        at_index = np.arange(places.line.size) * places.bin_size
        all_axes[0].bar(at_index, places.line, width=places.bin_size, align="edge")
        all_axes[0].set_xlim(0, places.line_length)
        all_axes[0].set_xlabel("axis 0")
        all_axes[0].set_ylabel("elements that differ")
    for axes, plane in zip(all_axes, places.planes, strict=False):
        values = plane.counts if plane.largest is None else plane.largest
        finite = np.isfinite(values)
        most = float(values[finite].max(initial=0.0)) or 1.0
        # A NaN against a number is beyond the scale: matplotlib draws nothing for infinity itself.
        shown = np.ma.masked_where(plane.counts == 0, np.where(finite, values, 2 * most))
        image = axes.imshow(shown, extent=_extent(plane), aspect="auto", interpolation="nearest", vmin=0, vmax=most,
                            origin="lower" if plane.upwards else "upper",
                            cmap=colormaps["viridis"].with_extremes(over="#d62728"))  # fmt: skip
        axes.set_facecolor("#eeeeee")
        axes.set_xlabel(plane.labels[0])
        axes.set_ylabel(plane.labels[1])
        said = "elements that differ" if plane.largest is None else "largest |a − b|"
        if not finite.all():
            said += " (red: not finite)"
        figure.colorbar(image, ax=axes, label=said)
    at = "" if f.step is None else f", step {f.step}"
    figure.suptitle(
        f"{_label(f.field)}{at}: {f.different} of {f.elements} elements differ"
        + ("" if not places.note else " (a part is shown)")
    )
    return figure


def _label(text: str) -> str:
    """A name as matplotlib draws it: no control characters, which fonts lack, and no formula."""
    return one_line(text).replace("$", r"\$")


def _extent(plane: Plane) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the picture of a plane, in its axes' units."""
    if plane.upwards:
        return (*plane.ranges[0], *plane.ranges[1])
    ends = []  # rows of a grid go down, as in the array; bins have as many indices each
    for (_, last), bins in zip(plane.ranges, plane.counts.shape[::-1], strict=True):
        ends.append(bins * -(-int(last + 1) // BINS) - 0.5)
    return -0.5, ends[0], ends[1], -0.5
