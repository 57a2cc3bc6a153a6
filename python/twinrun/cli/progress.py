"""How far the runs of a study are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .common import console

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..ensemble.run.runner import Progress as Told

__all__ = ["Teller", "span"]


def span(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "time left unknown"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"


class Teller:
    """A bar on a terminal; elsewhere a line for each task."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._quiet = quiet
        self._out = console(stderr=True)
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.description}"),
                console=self._out,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Teller:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, progress: Told) -> None:
        if self._quiet:
            return
        left = span(progress.seconds_left)
        if self._bar:
            self._bar.update(self._task, completed=progress.done, total=progress.total, description=left)
            # Tasks without problems do not stay on the screen.
            if progress.line is None or progress.line["status"] != "ok" or progress.line["contradicted"]:
                self._bar.console.print(progress.text, soft_wrap=True)
            return
        self._out.print(f"{progress.text}; {progress.done} of {progress.total}, {left}", soft_wrap=True)
