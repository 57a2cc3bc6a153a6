"""A measurement: its document, as rows, lines and pictures, and read from a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, MissingFile, Unsupported
from ..exports import Exports
from ..marks import NOISE
from ..outputs import save_figure
from .arms import ALL
from .words import percent, sentences_of, span

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KIND", "VERSION", "Noise", "read_noise"]

VERSION = 1
KIND = NOISE


@dataclass(frozen=True)
class Noise(Exports):
    """A measurement of the noise of the operating system.

    Attributes
    ----------
    document : dict
        Everything, as JSON has it.
    sentence : str
        What it shows, and how sure that is.
    rows : list of dict
        A row for each arm and core. Shares are of the time; names of times have their unit.
    table : pandas.DataFrame
        `rows` as a table.
    """

    document: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """What it shows, and how sure that is."""
        return " ".join(sentences_of(self.document))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row an arm and core; shares are of the time, times as their names say."""
        found = []
        for arm, cores in self.document["arms"].items():
            for c in cores:
                work, windows = c["fixed_work"], c["fixed_time"]
                peak = windows["peak"] if windows else None
                found.append({
                    "cores": arm, "core": c["core"], "loop ns": c["loop_ns"], "detours/s": c["detours_per_s"],
                    "share": c["share"], "low": c["share_low"], "high": c["share_high"],
                    "largest us": c["largest_ns"] / 1e3, "run queue": c["run_queue_share"],
                    "work p99/least": work["quantiles"]["0.99"] if work else None,
                    "work lost": work["share"] if work else None,
                    "windows lost": windows["share"] if windows else None,
                    "peak Hz": peak["hz"] if peak else None, "p of peak": peak["p"] if peak else None,
                })  # fmt: skip
        return found

    @property
    def table(self) -> pd.DataFrame:
        """`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def lines(self) -> list[str]:
        """The summary for a terminal: a row for each core, then what it shows.

        Returns
        -------
        list of str
            The lines.
        """
        head = f"{'cores':12} {'core':>4} {'loop':>9} {'detours/s':>10} {'taken':>8} {'interval':>18} {'largest':>9} {'queue':>8} {'work p99':>9} {'windows':>8}"
        lines = [head]
        for r in self.rows:

            def text(key: str, form: Callable[[float], str], r: dict = r) -> str:
                return "" if r[key] is None else form(r[key])

            interval = "" if r["low"] is None else f"[{percent(r['low'])}, {percent(r['high'])}]"
            lines.append(
                f"{r['cores']:12} {r['core']:4d} {span(r['loop ns']):>9} {text('detours/s', lambda x: f'{x:.4g}'):>10} "
                f"{text('share', percent):>8} {interval:>18} {span(1e3 * r['largest us']):>9} {text('run queue', percent):>8} "
                f"{text('work p99/least', lambda x: f'x {x:.3g}'):>9} {text('windows lost', percent):>8}"
            )
        return [*lines, "", *sentences_of(self.document)]

    def draw(self, axes: Axes) -> None:
        """Draws how often detours of each length come, a line for each arm and core.

        Parameters
        ----------
        axes : matplotlib.axes.Axes
            Where to draw.
        """
        for arm, cores in self.document["arms"].items():
            for c in cores:
                counts = c["histogram"]
                if counts and c["watched_s"] > 0:
                    axes.plot([2.0**k for k in range(len(counts))], [n / c["watched_s"] if n else math.nan for n in counts],
                              "o-" if arm == ALL else "s--", markersize=3, label=f"{arm}, core {c['core']}")  # fmt: skip
        axes.set_xscale("log")
        if axes.lines:
            axes.set_yscale("log")
            axes.legend(fontsize=7)
        axes.set(
            xlabel="length of a detour (ns)", ylabel="detours a second", title="Noise of the operating system"
        )

    def figure(self) -> Figure:
        """Draws detours by length, and the share of time that each core lost.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        self.draw(left)
        rows = [r for r in self.rows if r["share"] is not None]
        at = range(len(rows))
        reach = [[100 * (r["share"] - r["low"]) if r["low"] is not None else 0 for r in rows],
                 [100 * (r["high"] - r["share"]) if r["high"] is not None else 0 for r in rows]]  # fmt: skip
        right.errorbar([100 * r["share"] for r in rows], at, xerr=reach, fmt="o")
        right.set_yticks(list(at), [f"{r['cores']}, core {r['core']}" for r in rows], fontsize=8)
        right.set(xlabel="time taken (%)", title="Share of the time that was taken")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        return figure

    def _report(self) -> Any:
        from ..report import noise

        return noise

    def to_picture(self, path: str | os.PathLike[str]) -> None:
        """Saves `figure`. The suffix of the name decides the type.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        save_figure(self.figure(), path, dpi=120)


def read_noise(path: str | os.PathLike[str]) -> Noise:
    """Reads a measurement from its JSON.

    Parameters
    ----------
    path : str or path
        A file that `Noise.to_json` wrote.

    Returns
    -------
    Noise
        The measurement.

    Raises
    ------
    MissingFile
        The file cannot be read.
    DamagedFile
        It is no measurement, or lacks something.
    Unsupported
        It has a later version.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise MissingFile(f"cannot be read: {e.strerror}", where=path) from None
    except (ValueError, RecursionError):
        raise DamagedFile("is no JSON", where=path) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise DamagedFile("is no measurement of noise", where=path, fix="twinrun noise --json writes one")
    if document.get("version") != VERSION:
        raise Unsupported(f"has version {document.get('version')!r}", where=path)
    found = Noise(document)
    try:
        # Everything that later uses need, so that a damaged file is an error here.
        _ = found.sentence, found.lines()
        histograms = [c["histogram"] for cores in document["arms"].values() for c in cores]
        if not all(isinstance(n, int) and n >= 0 for h in histograms for n in h) or any(
            len(h) > 64 for h in histograms
        ):
            raise ValueError
        float(document["started"])
        if not all(c["watched_s"] >= 0 for cores in document["arms"].values() for c in cores):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
        raise DamagedFile("is a measurement of noise that lacks something", where=path) from None
    return found
