"""What to say of a folder that cannot become a history, because it has a manifest already."""

from __future__ import annotations

import contextlib
import json
import os

from ..errors import TwinrunError
from ..formats.folder import MANIFEST

__all__ = ["in_words"]

_TAKEN = "holds a history already"  # as the core says it
_MOST = 1 << 16  # bytes of the line that tells what a manifest is


def in_words(error: TwinrunError, folder: str, fix: str) -> TwinrunError:
    """The core's error for this folder, with advice that its caller can follow; any other error as it is.

    fix: the advice where the folder holds a history.
    """
    if _TAKEN not in str(error):
        return error
    if not _begins_a_history(os.path.join(folder, MANIFEST)):
        # Neither to append nor to replace would work: both read the file first.
        return TwinrunError(
            f"holds a file {MANIFEST} that is no manifest of a history",
            where=folder,
            fix="name another folder, or move that file away",
        )
    return TwinrunError(_TAKEN, where=folder, fix=fix)


def _begins_a_history(manifest: str) -> bool:
    with contextlib.suppress(OSError, ValueError, RecursionError), open(manifest, "rb") as file:
        said = json.loads(file.readline(_MOST))
        return isinstance(said, dict) and "twinrun_history" in said
    return False
