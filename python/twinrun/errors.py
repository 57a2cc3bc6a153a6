"""Errors of twinrun: each message is one line that says where, what is wrong, and what to do.

    TwinrunError
    ├── FormatError          a file could not be read as what it claims to be, or at all
    │   ├── DamagedFile      its bytes contradict its format or its size
    │   ├── MissingFile      it is not there
    │   ├── Unsupported      it is valid, but holds something this version cannot read
    │   └── MissingPackage   an optional Python package is needed; the message names the pip command
    ├── Incomparable         two things that cannot be compared: shapes, types
    │   └── Unmatched        a step, rank or field that only one of them has
    │       └── Uncompared   something that is there and cannot be compared
    ├── Stale                metadata that is older than the data it describes
    └── StepLost             steps that were captured in the background and could not be committed

The command line turns every one of them into one line on stderr and exit status 2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = [
    "DamagedFile",
    "FormatError",
    "Incomparable",
    "MissingFile",
    "MissingPackage",
    "Stale",
    "StepLost",
    "TwinrunError",
    "Uncompared",
    "Unmatched",
    "Unsupported",
]

_LONGEST = 2000  # characters of a message: names come from files, and a file may be hostile


def one_line(text: str, longest: int = _LONGEST) -> str:
    """`text` with line breaks, terminal escapes and undecodable bytes written as escapes, cut to `longest`."""
    if len(text) > longest:
        text = text[: longest // 2] + "…" + text[-(longest // 2) :]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class TwinrunError(Exception):
    """Base of all errors that a user can cause or meet.

    what: what is wrong. where: the file, dataset or field. fix: what to do about it.
    str() gives "where: what; fix".
    """

    def __init__(
        self, what: str, *, where: str | os.PathLike[str] | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else os.fspath(where)
        self.fix = fix
        place = "" if self.where is None else f"{self.where}: "
        # One string in args: such an error survives pickling, so that it can come back from a worker process.
        super().__init__(one_line(place + what + (f"; {fix}" if fix else "")))


class FormatError(TwinrunError):
    """A file could not be read as the format that it claims to be, or that was asked for."""


class DamagedFile(FormatError):
    """Bytes that contradict the format, a checksum, or the size of the file."""


class MissingFile(FormatError):
    """A file or folder that is not there."""


class Unsupported(FormatError):
    """A valid file with something that this version of twinrun cannot read."""


class MissingPackage(FormatError):
    """An optional Python package is needed and not installed."""

    @classmethod
    def of(cls, package: str, install: str, where: str | os.PathLike[str] | None = None) -> MissingPackage:
        """The error for `package`, installed by `pip install <install>`."""
        target = f"'{install}'" if "[" in install else install
        return cls(f"needs the Python package {package}", where=where, fix=f"run: pip install {target}")


class Incomparable(TwinrunError):
    """Two things that cannot be compared: other shape, type or set of fields."""


class Unmatched(Incomparable):
    """A step, rank or field that only one of two runs has."""


class Uncompared(Unmatched):
    """Something that a run has and that cannot be compared. Like what only one run has it may be left out, if that is said."""


class Stale(TwinrunError):
    """Metadata that is older than the data it describes."""


class StepLost(TwinrunError):
    """Steps that a run captured in the background and could not commit: they are not part of its history.

    steps: {step: why}. facts: what capture() would have returned, for the step that it took when it told; else None.
    """

    steps: Mapping[int, str] = {}
    facts: object = None

    @classmethod
    def of(cls, steps: Mapping[int, str], where: str, facts: object = None) -> StepLost:
        """The error for these steps."""
        first, why = next(iter(steps.items()))
        more = f" (and {len(steps) - 1} more)" if len(steps) > 1 else ""
        error = cls(f"step {first}{more} could not be committed: {why}", where=where)
        error.steps, error.facts = dict(steps), facts
        return error
