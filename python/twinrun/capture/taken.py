"""What to say of a folder that cannot become a history, because it has a manifest already."""

from __future__ import annotations

import os

from ..errors import TwinrunError
from ..marks import MANIFEST, begins_history

__all__ = ["in_words"]

_TAKEN = "holds a history already"  # as the core says it


def in_words(error: TwinrunError, folder: str, fix: str) -> TwinrunError:
    """The core's error for this folder, with advice that its caller can follow; any other error as it is.

    fix: the advice where the folder holds a history.
    """
    if _TAKEN not in str(error):
        return error
    if not begins_history(os.path.join(folder, MANIFEST)):
        # Neither to append nor to replace would work: both read the file first.
        return TwinrunError(
            f"holds a file {MANIFEST} that is no manifest of a history",
            where=folder,
            fix="name another folder, or move that file away",
        )
    return TwinrunError(_TAKEN, where=folder, fix=fix)
