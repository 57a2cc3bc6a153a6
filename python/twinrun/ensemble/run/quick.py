"""Runs a command line as a study, in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import TwinrunError, one_line
from ...outputs import write_whole
from ..study.command_line import CommandLine, study_text
from ..study.record import StudyFolder
from ..study.study import COMMAND
from .folder import FolderWork
from .runner import Outcome, Progress, run

__all__ = ["run_commands"]

_SAID = 4096  # bytes of a failed command's output that are looked at


class _Commands(FolderWork):
    """Ends at the first failure, unless failures are ignored: then at the first command that cannot
    be started.
    """

    ignore_failure = False
    trouble: TwinrunError | None = None  # of the cleanup, which comes after all measurements

    def finish(self) -> None:
        try:
            super().finish()
        except TwinrunError as e:
            self.trouble = e

    def ended(self, line: Mapping) -> None:
        if line["status"] == "ok" or line.get("interrupted"):
            return
        factors = dict(line["factors"])
        what = ", ".join(
            filter(None, [factors.pop(COMMAND, ""), *(f"{k} = {v}" for k, v in factors.items())])
        )
        if line["exit"] is not None:
            how = f"ended with status {line['exit']}"
        elif line["signal"] is not None:
            how = f"was ended by signal {line['signal']}"
        else:
            raise TwinrunError(line.get("reason") or f"{what:.200} did not run")
        if self.ignore_failure:
            return
        own = self.attempts.folder(line["task"], line["attempt"])
        said = next((text for name in ("stderr", "stdout") if (text := _last_line(own / name))), "")
        raise TwinrunError(
            f"{one_line(what, 200)!r} {how}{f': {said}' if said else ', and printed nothing'}",
            fix="see to it that it works, or give --ignore-failure",
        )


def _last_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _SAID))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return one_line(lines[-1], 200) if lines else ""


def run_commands(
    line: CommandLine,
    folder: str | os.PathLike[str],
    report: Callable[[Progress], None] | None = None,
    left: list[str] | None = None,
) -> tuple[Outcome, TwinrunError | None]:
    """Runs the commands until their ratios are known, or the time is up. folder: a new one, or an empty one.
    left: takes what lies in it that is not the study's (`Outcome.left`), also where this raises.

    Returns how it ended, and why the cleanup failed, if it did: the runs still count.

    Raises TwinrunError where a command cannot be started, or fails and that is not ignored.
    """
    path = Path(folder)
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise TwinrunError(
            "is there already, and is not an empty folder", where=path,
            fix=f"give another folder, or go on with it: twinrun ensemble run {path}",
        )  # fmt: skip
    text = study_text(line, path.resolve().name)
    path.mkdir(parents=True, exist_ok=True)
    study = path / "study.toml"
    write_whole(study, text.encode())
    with StudyFolder(path, study) as opened:
        work = _Commands(opened)
        work.ignore_failure = line.ignore_failure
        try:
            return run(work, 0, report), work.trouble
        finally:
            if left is not None:
                left += opened.attempts.left()
