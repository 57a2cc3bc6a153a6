"""Common parts of the reports of studies: names of stacks, sentences, tables, pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...ensemble.intervals import Interval
from ...errors import MissingPackage
from ...outputs import save_figure
from ...words import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Finding",
    "beyond",
    "check_pictures",
    "joint",
    "names_of",
    "percent",
    "save_picture",
    "size_text",
    "table",
    "top",
]


@dataclass(frozen=True)
class Finding:
    """A sentence of guidance with its evidence. decided: False where the data cannot decide."""

    sentence: str
    decided: bool

    def json(self) -> dict:
        """The finding for JSON."""
        return {"sentence": self.sentence, "decided": self.decided}


def joint(confidence: float, claims: int) -> float:
    """The confidence of each of several claims that must hold together (Bonferroni)."""
    return 1 - (1 - confidence) / max(claims, 1)


def percent(share: float) -> str:
    """'5%'."""
    return f"{100 * share:.3g}%"


def beyond(blocks: int) -> str:
    """The sentence for an open question."""
    return f"cannot be decided with {blocks} repetitions"


def size_text(particles: int) -> str:
    """'5000 particles a rank (0.19 MB)'."""
    return f"{particles} particles a rank ({particles * 38 / 1e6:.3g} MB)"


def names_of(runs: Iterable[Mapping]) -> dict[int, str]:
    """{stack: MPI library}, from the runs; numbered where two have the same name."""
    found: dict[int, list[str]] = {}
    for run in runs:
        both = found.setdefault(run["condition"]["stack"], [])
        if run["mpi"] not in both:
            both.append(run["mpi"])
    names = {stack: " and ".join(both) for stack, both in sorted(found.items())}
    several = len(set(names.values())) < len(names)
    return {stack: f"{name} ({stack + 1})" if several else name for stack, name in names.items()}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines: the first column left, the others right."""
    return aligned([header, *rows], left=1)


def check_pictures() -> None:
    """Raises MissingPackage without matplotlib: before the first run, not after the last."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPackage.of("matplotlib", "twinrun[plot]") from None


def top(scale: float, intervals: Iterable[Interval]) -> float:
    """The end of an axis: above the intervals, except very wide ones that would hide the others."""
    known = [
        (scale * x.value, scale * (x.high if x.known else x.value))
        for x in intervals
        if math.isfinite(x.value)
    ]
    values = [1.05 * min(high, 3 * max(v for v, _ in known)) for _, high in known]
    return max(values, default=1.0) or 1.0


def save_picture(path: str | Path, panels: Sequence[Callable[[Axes], None]], title: str) -> None:
    """Draws panels side by side into a PNG, PDF or SVG file."""
    check_pictures()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes)
        axes.grid(alpha=0.3)
    save_figure(figure, path, dpi=120)
