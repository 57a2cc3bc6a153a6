"""Analyses of what a study's folder has besides tasks: its hypotheses, and noise measured before and after
it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ...noise.measurement import Noise, read_noise
from ..study.study import read_study
from .hypotheses import hypotheses
from .profiles import interposition
from .result import DESCRIBED, Analysis, Options

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["noise_of_study", "of_folder"]

_WHEN = ("before", "after")


def noise_of_study(folder: str | os.PathLike[str], options: Options = Options()) -> Analysis | None:  # noqa: B008
    """The measurements before the first block and after the last; None where there are none.

    Raises DamagedFile.
    """
    found: dict[str, Noise] = {}
    for when in _WHEN:
        path = Path(folder) / "noise" / f"{when}.json"
        if path.exists():
            found[when] = read_noise(path)
    if not found:
        return None
    rows = [{"when": when, **row} for when, noise in found.items() for row in noise.rows]
    text = " ".join(f"{when.capitalize()} the study: {noise.sentence}" for when, noise in found.items())

    def draw(axes: Axes) -> None:
        last = found[max(found, key=_WHEN.index)]
        last.draw(axes)
        axes.set_title(f"Noise of the operating system, {max(found, key=_WHEN.index)} the study")

    return Analysis("noise", "Noise of the operating system", pd.DataFrame(rows), lambda _: (text, DESCRIBED), 0, options.alpha, (), draw,
                    {when: dict(noise.document) for when, noise in found.items()})  # fmt: skip


def of_folder(folder: str | os.PathLike[str], frame: pd.DataFrame, options: Options) -> list[Analysis]:
    """The analyses of a folder. A folder without a study (imported tasks) has none."""
    made: list[Analysis] = []
    path = Path(folder) / "study.toml"
    if path.exists():
        named = read_study(path).hypotheses
        if named:
            made.append(hypotheses(frame, named, options))
    noise = noise_of_study(folder, options)
    if noise is not None:
        made.append(noise)
    cost = interposition(frame, read_study(path) if path.exists() else None, options, folder)
    if cost is not None:
        made.append(cost)
    return made
